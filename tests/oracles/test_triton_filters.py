"""Triton's kernels of the filters against their definitions in tensor operations, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError
from blocklp.oracles.filters import lattice_operations
from blocklp.oracles.filters.ordered import ordered_filter
from blocklp.oracles.filters.permutohedral import Lattice

from .. import simulated_device

pytest.importorskip("triton", reason="Triton is not installed")

CLOSE = {torch.float64: {"rtol": 1e-12, "atol": 1e-12}, torch.float32: {"rtol": 1e-5, "atol": 1e-5}}


def cloud(count: int, d: int, seed: int = 0) -> Tensor:
    return 1.5 * torch.randn(count, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_triton_serves(lattice: Lattice) -> None:
    found = lattice_operations.kernels(lattice.weights)
    assert found is not None and found.__name__.endswith("triton_lattice")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("count", "d", "channels"), [(1, 1, 1), (2, 3, 40), (40, 1, 2), (20, 2, 21), (7, 4, 1), (4, 6, 5), (9, 2, 70)]
)
def test_clouds_of_points(count: int, d: int, channels: int, dtype: torch.dtype, use_backend: Callable[[str], None]) -> None:
    """Building, splat, both blurs, slice, products and the diagonal; 70 points of one place make a vertex of several runs."""
    features = cloud(count, d).to(dtype)
    if d == 1:
        features = torch.cat([features, features[:1].expand(70, 1)])
    values = random(len(features), channels).to(dtype)
    use_backend("torch")
    truth = Lattice.build(features)
    summed = truth.splat(values)
    use_backend("triton")
    found = Lattice.build(features)
    assert_triton_serves(found)
    assert torch.equal(found.vertices, truth.vertices) and torch.equal(found.neighbours, truth.neighbours)
    torch.testing.assert_close(found.weights, truth.weights, rtol=0, atol=1e-13 if dtype == torch.float64 else 1e-5)

    def both(work: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        use_backend("triton")
        there = work()
        use_backend("torch")
        return there, work()

    of = truth.weights, truth.vertices
    none = None, None, None
    for work in (
        lambda: lattice_operations.splat(values, *of, truth.size, none),
        *(lambda way=way: lattice_operations.blur(summed, truth.neighbours, way) for way in (0, 1, -1)),  # type: ignore[misc]
        lambda: lattice_operations.slice_(summed, *of, none),
        lambda: lattice_operations._products(summed, values, truth.vertices),
    ):
        torch.testing.assert_close(*both(work), **CLOSE[dtype])
    use_backend("triton")
    diagonal = found.diagonal
    repeated = torch.equal(found.filter(values), found.filter(values))
    use_backend("torch")
    assert repeated
    torch.testing.assert_close(diagonal, truth.diagonal, **CLOSE[dtype])


def test_no_channels(use_backend: Callable[[str], None]) -> None:
    use_backend("triton")
    lattice = Lattice.build(cloud(5, 2))
    assert lattice.filter(torch.zeros(5, 0)).shape == (5, 0)
    assert ordered_filter(lattice, torch.zeros(5, 0)).shape == (5, 0)


def test_what_is_refused_on_a_cpu_is_refused(use_backend: Callable[[str], None]) -> None:
    use_backend("triton")
    with pytest.raises(NonFiniteError):
        Lattice.build(torch.tensor([[0.0], [torch.nan]]))
    with pytest.raises(NonFiniteError):
        Lattice.build(torch.tensor([[0.0], [torch.inf]], dtype=torch.float64))
    with pytest.raises(ModelError, match="tells neighbours apart"):
        Lattice.build(torch.tensor([[0.0], [1e9]]))
    with pytest.raises(ModelError, match="too many for keys"):
        Lattice.build(torch.tensor([[0.0] * 6, [1e12] * 6], dtype=torch.float64))


def test_labels_and_images_have_bits_of_their_own(use_backend: Callable[[str], None]) -> None:
    """The bits of an image do not depend on what is beside it in its batch."""
    use_backend("triton")
    one, other = cloud(6, 2, 1), cloud(9, 2, 2)
    values = random(15, 2).float()
    together = Lattice.build(torch.cat([one, other]), torch.tensor([0] * 6 + [1] * 9))
    assert torch.equal(together.filter(values)[:6], Lattice.build(one).filter(values[:6]))
    found = ordered_filter(together, values, levels=4, resolution=0)
    assert found.dtype == torch.float32
    assert torch.equal(found[6:], ordered_filter(Lattice.build(other), values[6:], levels=4, resolution=0))


def scores(kind: str, count: int) -> Tensor:
    spread = torch.rand(count, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return {"spread": spread, "ties": (4 * spread).floor(), "flat": torch.ones_like(spread), "mass": spread.clamp(min=0.7)}[kind]


@pytest.mark.parametrize("kind", ["spread", "ties", "flat", "mass"])
@pytest.mark.parametrize(("d", "count"), [(1, 20), (2, 9)])
def test_ordered_filter(kind: str, d: int, count: int, use_backend: Callable[[str], None]) -> None:
    """Exact by a sweep in parts of several points, and on levels; 300 levels take more than one block."""
    features, y, values = cloud(count, d), scores(kind, count), random(count, 2)
    found = []
    for backend in ("triton", "torch"):
        use_backend(backend)
        lattice = Lattice.build(features)
        exact = [ordered_filter(lattice, y, v, levels=None) for v in (None, values)]
        found.append([*exact, ordered_filter(lattice, y, values, levels=5, resolution=0)])
        if backend == "triton":
            assert torch.equal(exact[1], ordered_filter(lattice, y, values, levels=None))
    for there, here in zip(*found, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-11, atol=1e-11)
    if kind == "flat":
        assert not found[0][0].any() and not found[0][2].any()


def test_more_levels_than_a_block(use_backend: Callable[[str], None]) -> None:
    features, y = cloud(90, 1), scores("spread", 90)
    use_backend("torch")
    truth = ordered_filter(Lattice.build(features), y, levels=80, resolution=0)
    use_backend("triton")
    torch.testing.assert_close(ordered_filter(Lattice.build(features), y, levels=80, resolution=0), truth, rtol=1e-11, atol=1e-11)


def test_parts_of_a_lattice(use_backend: Callable[[str], None]) -> None:
    """A part has vertices of its own; scaled kernels keep what does not depend on the weights."""
    use_backend("triton")
    lattice, kept, every = Lattice.build(cloud(12, 2)), torch.arange(0, 12, 3), torch.eye(12, dtype=torch.float64)
    matrix = lattice.filter(every)
    part = lattice.restrict(kept).filter(every[:4, :4])
    torch.testing.assert_close(part, matrix[kept][:, kept], rtol=1e-12, atol=1e-12)
    factors = torch.linspace(0.5, 2, 12, dtype=torch.float64)[:, None]
    scaled = lattice.scaled(factors)
    assert scaled.entries is lattice.entries
    torch.testing.assert_close(scaled.filter(every), factors * matrix * factors.T, rtol=1e-12, atol=1e-12)


def test_launches_and_waits(use_backend: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A lattice waits for its number of vertices alone; filters wait nowhere, and take a launch an axis and four more."""
    if not simulated_device.available():
        pytest.skip("this version of torch takes no devices from Python")
    device = simulated_device.install()
    use_backend("triton")
    simulated_device.count_triton()
    # Tensors of the simulated device are of a class of their own, which is taken for a traced one.
    monkeypatch.setattr(lattice_operations, "_plain", lambda *_: True)
    features, values = cloud(6, 2).to(device), random(6, 2).to(device)

    def counts(work: Callable[[], object]) -> tuple[int, int]:
        with simulated_device.watch("blocklp") as trace:
            work()
        assert not trace.atomics
        return trace.launches, trace.syncs

    launches, waits = counts(lambda: Lattice.build(features))
    assert waits == 1 and launches <= 40
    lattice = Lattice.build(features)
    _ = lattice.entries, lattice.seen, lattice.stencil
    assert counts(lambda: lattice.filter(values)) == (lattice.features + 5, 0)
    launches, waits = counts(lambda: ordered_filter(lattice, values, levels=4, resolution=0))
    assert waits == 0 and launches <= 100
    launches, waits = counts(lambda: ordered_filter(lattice, values, levels=None))
    assert waits == 0 and launches <= 45
