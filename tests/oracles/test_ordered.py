"""The ordered filter against its definition, on the lattice's own matrix and on the Gaussian's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from blocklp.errors import NonFiniteError, OptionError, ShapeError
from blocklp.oracles import permutohedral
from blocklp.oracles.gaussian import Gaussian
from blocklp.oracles.ordered import assign_levels, ordered_filter
from blocklp.oracles.permutohedral import Lattice

POINTS = 70


def features(d: int, count: int = POINTS) -> Tensor:
    return 1.5 * torch.randn(count, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)


def scores(kind: str, labels: int = 4, count: int = POINTS) -> Tensor:
    draw = torch.Generator().manual_seed(9)
    spread = torch.rand(count, labels, generator=draw, dtype=torch.float64)
    return {"spread": spread, "ties": (4 * spread).floor(), "flat": torch.ones_like(spread), "mass": spread.clamp(min=0.7)}[kind]


def by_definition(matrix: Tensor, y: Tensor, values: Tensor) -> Tensor:
    return torch.stack([(matrix * (s[:, None] - s).sign()) @ v for s, v in zip(y.T, values.T, strict=True)], 1)


@pytest.fixture(params=["compiled", "tensors"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tensors":
        monkeypatch.setattr(permutohedral, "lattice_kernels", None)
    elif permutohedral.lattice_kernels is None:
        pytest.skip("numba is not installed")


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("kind", ["spread", "ties", "flat", "mass"])
@pytest.mark.parametrize("d", [2, 5])
def test_enough_levels_are_exact(kind: str, d: int) -> None:
    lattice, y = Lattice.build(features(d)), scores(kind)
    matrix = lattice.filter(torch.eye(POINTS, dtype=torch.float64))
    for values in (None, torch.rand(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)):
        found = ordered_filter(lattice, y, values, levels=POINTS)
        truth = by_definition(matrix, y, torch.ones_like(y) if values is None else values)
        torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("both_ways")
def test_coarse_levels_only_make_ties() -> None:
    lattice, y = Lattice.build(features(2)), scores("spread")
    matrix = lattice.filter(torch.eye(POINTS, dtype=torch.float64))
    at, counts = assign_levels(y, 5)
    assert counts.tolist() == [5] * 4
    found = ordered_filter(lattice, y, levels=5)
    torch.testing.assert_close(found, by_definition(matrix, at.double(), torch.ones_like(y)))
    # Antisymmetric weights: they sum to zero over the points.
    torch.testing.assert_close(found.sum(0), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.parametrize("most", [2, 3, 7, 40])
@pytest.mark.parametrize("kind", ["spread", "ties", "flat", "mass"])
def test_levels_keep_the_order(kind: str, most: int) -> None:
    y = scores(kind)
    at, counts = assign_levels(y, most)
    assert int(counts.max()) <= most
    for s, level, count in zip(y.T, at.T, counts, strict=True):
        order = s.argsort()
        assert bool((level[order].diff() >= 0).all())
        assert sorted(set(level.tolist())) == list(range(count))
        assert all(len(set(level[s == value].tolist())) == 1 for value in s.unique())


def test_a_score_of_many_points_keeps_to_itself() -> None:
    y = torch.cat([torch.full((900,), 0.5), torch.linspace(0, 1, 100)])[:, None]
    at, _ = assign_levels(y, 10)
    heavy = at[0, 0]
    assert int((at[:, 0] == heavy).sum()) == 900


def test_more_levels_err_less() -> None:
    lattice, y = Lattice.build(features(2, 3000)), scores("spread", 2, 3000)
    truth = ordered_filter(lattice, y, levels=3000)
    errors = [float((ordered_filter(lattice, y, levels=h) - truth).norm() / truth.norm()) for h in (8, 32, 128)]
    assert errors[0] < 0.3
    assert errors[1] < errors[0] / 2
    assert errors[2] < 0.02


def test_gaussian_is_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    f, y = features(3), scores("ties")
    matrix = torch.exp(-torch.cdist(f, f).square() / 2)
    values = torch.rand(y.shape, dtype=torch.float64)
    image = torch.tensor([0] * 30 + [1] * 40)
    apart = matrix * (image[:, None] == image)
    for chunk in (10_000_000, 7 * POINTS):
        monkeypatch.setattr("blocklp.oracles.gaussian.CHUNK", chunk)
        torch.testing.assert_close(Gaussian(f).filter(values), matrix @ values)
        torch.testing.assert_close(Gaussian(f).ordered(y, values), by_definition(matrix, y, values))
        torch.testing.assert_close(Gaussian(f, image).filter(values), apart @ values)
    far = torch.tensor([[1e4, 0.0], [1e4 + 1, 0.0]])
    np.testing.assert_allclose(Gaussian(far).filter(torch.eye(2))[0, 1], np.exp(-0.5), rtol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    lattice = Lattice.build(features(2))
    with pytest.raises(ShapeError, match="70 points"):
        ordered_filter(lattice, torch.rand(69, 2))
    with pytest.raises(OptionError, match="at least 2"):
        ordered_filter(lattice, scores("spread"), levels=1)
    with pytest.raises(NonFiniteError, match="width of zero"):
        Gaussian(torch.full((2, 2), torch.inf))
