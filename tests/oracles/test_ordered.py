"""The ordered filter against its definition, on the lattice's own matrix and on the Gaussian's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.oracles.filters import lattice_operations
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.ordered import assign_levels, ordered_error, ordered_filter
from blocklp.oracles.filters.permutohedral import Lattice

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
def both_ways(request: pytest.FixtureRequest, use_backend: Callable[[str], None]) -> None:
    if request.param == "tensors":
        use_backend("torch")
    elif lattice_operations.kernels(torch.empty(0)) is None:
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


def grid(height: int, width: int, sxy: float) -> Tensor:
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([rows, columns], 2).flatten(0, 1).double() / sxy


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("kind", ["spread", "mass"])
@pytest.mark.parametrize("most", [2, 5, 40])
def test_levels_interpolate_the_sign(kind: str, most: int) -> None:
    lattice, y = Lattice.build(features(2)), scores(kind)
    matrix = lattice.filter(torch.eye(POINTS, dtype=torch.float64))
    at, counts, _ = assign_levels(y, most)
    found = ordered_filter(lattice, y, levels=most, resolution=0)
    for place, count, column in zip(at.T.double(), counts.tolist(), found.T, strict=True):
        level = torch.arange(count)
        share = (1 - (place[:, None] - level).abs()).clamp(min=0)
        sign = share @ (level[:, None] - level).sign().double() @ share.T
        torch.testing.assert_close(share.sum(1), torch.ones(POINTS, dtype=torch.float64))
        assert float(sign.abs().max()) <= 1 + 1e-12
        torch.testing.assert_close(column, (matrix * sign).sum(1), rtol=1e-6, atol=1e-6)
    # Antisymmetric weights: they sum to zero over the points.
    torch.testing.assert_close(found.sum(0), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("most", [2, 3, 7, 40])
@pytest.mark.parametrize("kind", ["spread", "ties", "flat", "mass"])
def test_levels_keep_the_order(kind: str, most: int) -> None:
    y = scores(kind)
    at, counts, light = assign_levels(y, most)
    assert int(counts.max()) <= most
    for s, place, count, shared in zip(y.T, at.T, counts.tolist(), light.tolist(), strict=True):
        distinct, rank = s.unique(return_inverse=True)
        first = torch.stack([place[s == value].amin() for value in distinct])
        last = torch.stack([place[s == value].amax() for value in distinct])
        assert torch.equal(first, last)
        assert bool((first.diff() >= 0).all())
        assert 0 <= float(place.min()) <= float(place.max()) <= count - 1
        assert (shared == 0) == (len(distinct) <= most)
        if shared == 0:
            assert torch.equal(place, rank.float())


def test_a_score_of_many_points_keeps_to_itself() -> None:
    y = torch.cat([torch.full((900,), 0.5), torch.linspace(0, 1, 100)])[:, None]
    at, _, light = assign_levels(y, 10)
    assert int(light) == 100
    others = at[900:, 0]
    assert float((others - at[0, 0]).abs().min()) >= 1


def test_compiled_levels_are_those_of_tensors(use_backend: Callable[[str], None]) -> None:
    draw = torch.Generator().manual_seed(3)
    spread = torch.randn(500, 6, generator=draw, dtype=torch.float64)
    y = torch.where(torch.rand(500, 6, generator=draw) < torch.linspace(0, 1, 6), spread.round(decimals=1), spread)
    y[0], y[1], y[2], y[3] = 0.0, -0.0, 1e300, -1e-320
    for dtype in (torch.float64, torch.float32):
        for most in (4, 30, 500):
            use_backend("auto")
            compiled = assign_levels(y.to(dtype), most)
            use_backend("torch")
            for found, truth in zip(compiled, assign_levels(y.to(dtype), most), strict=True):
                assert torch.equal(found, truth)


@pytest.mark.parametrize("sxy", [1.0, 3.0, 10.0])
def test_default_levels_lose_less_than_one_percent(sxy: float) -> None:
    lattice = Lattice.build(grid(60, 60, sxy))
    draw = torch.Generator().manual_seed(0)
    spread = torch.rand(3600, 2, generator=draw)
    sure = (4 * spread - 1.5).clamp(0, 1)  # most scores at 0 and 1
    assert float(ordered_error(lattice, torch.cat([spread, sure, torch.ones_like(sure)], 1)).max()) < 0.01
    assert float(ordered_error(lattice, spread, 4, resolution=0).min()) > 0.02


def test_sweep_is_a_level_for_every_score(use_backend: Callable[[str], None]) -> None:
    lattice = Lattice.build(grid(20, 30, 3.0))
    draw = torch.Generator().manual_seed(0)
    y = torch.rand(600, 3, generator=draw, dtype=torch.float64)
    y[:, 0], y[:, 1] = y[:, 0].round(), (4 * y[:, 1] - 1.5).clamp(0, 1)  # many points join at once, or many and then few
    values = torch.randn(600, 3, generator=draw, dtype=torch.float64)
    swept, narrow = ordered_filter(lattice, y, values, None), ordered_filter(lattice, y, values.float(), None)
    use_backend("torch")
    truth = ordered_filter(lattice, y, values, None)
    torch.testing.assert_close(swept, truth, rtol=1e-11, atol=1e-11)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), truth, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("levels", [4, 64, None])
def test_images_and_labels_are_alone(levels: int | None) -> None:
    parts = [features(3, 90), features(3, 40) + 1, features(3, 1)]
    image = torch.arange(3).repeat_interleave(torch.tensor([90, 40, 1]))
    y = torch.rand(131, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = ordered_filter(Lattice.build(torch.cat(parts), image), y, levels=levels, resolution=0)
    alone = [
        ordered_filter(Lattice.build(f), s, levels=levels, resolution=0) for f, s in zip(parts, y.split([90, 40, 1]), strict=True)
    ]
    assert torch.equal(together, torch.cat(alone))
    turned = ordered_filter(Lattice.build(torch.cat(parts), image), y.flip(1), levels=levels, resolution=0)
    assert torch.equal(together, turned.flip(1))


@pytest.mark.parametrize("levels", [8, None])
def test_threads_change_no_bit(levels: int | None) -> None:
    lattice, y = Lattice.build(features(3, 2000)), torch.rand(2000, 5, generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            found.append(ordered_filter(lattice, y, levels=levels, resolution=0))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_gaussian_is_its_definition() -> None:
    f, y = features(3), scores("ties")
    matrix = torch.exp(-torch.cdist(f, f).square() / 2)
    values = torch.rand(y.shape, dtype=torch.float64)
    image = torch.tensor([0] * 30 + [1] * 40)
    apart = matrix * (image[:, None] == image)
    for chunk in (10_000_000, 7 * POINTS):
        torch.testing.assert_close(Gaussian(f, chunk=chunk).filter(values), matrix @ values)
        torch.testing.assert_close(Gaussian(f, chunk=chunk).ordered(y), by_definition(matrix, y, torch.ones_like(y)))
        factors = torch.linspace(0.5, 2, len(f), dtype=torch.float64)[:, None]
        weighted = factors * matrix * factors.T
        once = by_definition(weighted, y, torch.ones_like(y))
        torch.testing.assert_close(Gaussian(f, chunk=chunk).scaled(factors).ordered(y), once)
        torch.testing.assert_close(Gaussian(f, chunk=chunk).scaled(factors).filter(values), weighted @ values)
        torch.testing.assert_close(Gaussian(f, chunk=chunk).scaled(factors).diagonal, weighted.diagonal())
        torch.testing.assert_close(Gaussian(f, image, chunk=chunk).filter(values), apart @ values)
    far = torch.tensor([[1e4, 0.0], [1e4 + 1, 0.0]])
    np.testing.assert_allclose(Gaussian(far).filter(torch.eye(2))[0, 1], np.exp(-0.5), rtol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    lattice = Lattice.build(features(2))
    with pytest.raises(ShapeError, match="70 points"):
        ordered_filter(lattice, torch.rand(69, 2))
    with pytest.raises(OptionError, match="at least 2"):
        ordered_filter(lattice, scores("spread"), levels=1)
    with pytest.raises(ModelError, match="symmetric"):
        ordered_filter(Lattice.build(features(2), symmetric=False), scores("spread"))
    with pytest.raises(NonFiniteError, match="width of zero"):
        Gaussian(torch.full((2, 2), torch.inf))
