"""The permutohedral lattice against dense matrices, the Gaussian and its own tensor operations."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError, ShapeError
from blocklp.oracles.filters import lattice_geometry, lattice_operations
from blocklp.oracles.filters.permutohedral import Lattice


def points(count: int, d: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    return spread * torch.randn(count, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(params=["compiled", "tensors", "triton"])
def both_ways(request: pytest.FixtureRequest, use_backend: Callable[[str], None]) -> str:
    """The implementation that serves: numba's loops, tensor operations or Triton's kernels."""
    if request.param == "tensors":
        use_backend("torch")
    elif request.param == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
        use_backend("triton")
    elif lattice_operations.kernels(torch.empty(0)) is None:
        pytest.skip("numba is not installed")
    return str(request.param)


def dense(features: Tensor, symmetric: bool = True) -> Tensor:
    """The kernel by its definition: walks on a table of integer coordinates."""
    count, d = features.shape
    lattice = Lattice.build(features)
    _, whole = lattice_geometry.embed(features)
    table = {tuple(key): at for key, at in zip(whole.flatten(0, 1).tolist(), lattice.vertices.flatten().tolist(), strict=True)}
    splat = np.zeros((lattice.size, count))
    for row, (vertices, weights) in enumerate(zip(lattice.vertices.tolist(), lattice.weights.tolist(), strict=True)):
        splat[vertices, row] += weights
    blurs = []
    for axis in range(d + 1):
        blur = np.eye(lattice.size)
        for key, at in table.items():
            for sign in (1, -1):
                beside = tuple(k + sign * (d if i == axis else -1) for i, k in enumerate(key))
                if beside in table:
                    blur[at, table[beside]] += 0.5
        blurs.append(blur)
    there = np.linalg.multi_dot([*blurs[::-1], splat])
    back = np.linalg.multi_dot([*blurs, splat]) if symmetric else there
    return torch.tensor(splat.T @ (there + back)) / 2 / (1 + 2.0**-d)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_filter_is_the_walk_on_the_lattice(d: int) -> None:
    features = points(60, d)
    lattice = Lattice.build(features)
    matrix = lattice.filter(torch.eye(60, dtype=torch.float64))
    torch.testing.assert_close(matrix, dense(features), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(matrix, matrix.T, rtol=0, atol=1e-14)
    narrow = lattice.filter(torch.eye(60))
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), matrix, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_one_order_is_the_published_filter(d: int) -> None:
    features = points(60, d)
    lattice = Lattice.build(features, symmetric=False)
    matrix = lattice.filter(torch.eye(60, dtype=torch.float64))
    torch.testing.assert_close(matrix, dense(features, symmetric=False), rtol=1e-12, atol=1e-12)
    if d > 1:
        assert float((matrix - matrix.T).abs().max()) > 1e-4
    with pytest.raises(ModelError, match="symmetric"):
        _ = lattice.diagonal


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0])
def test_diagonal_is_that_of_the_matrix(d: int, spread: float) -> None:
    features = points(60, d, spread=spread)
    torch.testing.assert_close(Lattice.build(features).diagonal, dense(features).diagonal(), rtol=1e-12, atol=1e-12)
    narrow = Lattice.build(features.float()).diagonal
    torch.testing.assert_close(narrow, dense(features).diagonal(), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("both_ways")
def test_stencil_is_the_blur() -> None:
    for d, spread in ((1, 0.5), (2, 0.5), (5, 0.3)):
        lattice = Lattice.build(points(150, d, spread=spread))
        starts, columns, entries = lattice.stencil
        matrix = torch.zeros(lattice.size, lattice.size, dtype=torch.float64)
        matrix[torch.arange(lattice.size).repeat_interleave(starts.diff()), columns.long()] = entries.double()
        assert torch.equal(matrix, lattice.blur(torch.eye(lattice.size, dtype=torch.float64)))


def test_points_seen() -> None:
    features = points(400, 2, spread=1.0)
    matrix = dense(features)
    truth = float(matrix.sum(1).square().sum() / matrix.square().sum())
    assert Lattice.build(features).seen == pytest.approx(truth, rel=0.2)


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_points_are_means_of_their_vertices(d: int) -> None:
    features = points(200, d)
    weights, whole = lattice_geometry.embed(features)
    assert float(weights.min()) >= -1e-12
    torch.testing.assert_close(weights.sum(1), torch.ones(200, dtype=torch.float64))
    elevated = features @ lattice_geometry.elevation_map(d).T
    torch.testing.assert_close((weights[:, :, None] * whole).sum(1), elevated)
    assert not bool(whole.sum(2).any())
    assert bool((whole % (d + 1) == (whole[:, :, :1] % (d + 1))).all())
    for first, second in itertools.combinations(range(d + 1), 2):
        assert bool((whole[:, first] != whole[:, second]).any(1).all())


@pytest.mark.parametrize("d", [1, 2, 3])
def test_dense_points_see_the_gaussian(d: int) -> None:
    axis = torch.arange(-4, 4.01, (0.05, 0.2, 0.5)[d - 1], dtype=torch.float64)
    features = torch.cartesian_prod(*[axis] * d).view(-1, d)
    middle = features.norm(dim=1).argmin()
    one = torch.zeros(len(features), 1, dtype=torch.float64)
    one[middle] = 1
    seen = Lattice.build(features).filter(one)[:, 0]
    truth = torch.exp(-(features - features[middle]).square().sum(1) / 2)
    scale = (seen @ truth) / (seen @ seen)
    assert 0.95 < float(scale) < 1.35
    assert float((scale * seen - truth).norm() / truth.norm()) < 0.12


def test_gradients(both_ways: str) -> None:
    features = points(12, 2).requires_grad_()
    values = torch.rand(12, 3, dtype=torch.float64, requires_grad=True)
    for symmetric in (True, False):
        build = partial(Lattice.build, image=None, symmetric=symmetric)
        # Triton's interpreter takes its time: some directions instead of all.
        assert torch.autograd.gradcheck(
            lambda f, v: build(f).filter(v),  # noqa: B023
            (features, values),
            fast_mode=both_ways == "triton",
        )


@pytest.mark.usefixtures("both_ways")
def test_operators_keep_the_rules() -> None:
    lattice = Lattice.build(points(20, 2))
    values = torch.rand(20, 3, dtype=torch.float64, requires_grad=True)
    at = lattice.splat(values).detach().requires_grad_()
    weights = lattice.weights.clone().requires_grad_()
    entries = lattice_operations.sorted_entries(lattice.vertices, lattice.size)
    for operator, arguments in (
        (lattice_operations._splat, (values, weights, lattice.vertices, lattice.size, *entries)),
        (lattice_operations._splat, (values, weights, lattice.vertices, lattice.size, None, None)),
        (lattice_operations._slice, (at, weights, lattice.vertices, *entries)),
        (lattice_operations._blur, (at, lattice.neighbours, lattice_operations.BOTH)),
        (lattice_operations._blur, (at, lattice.neighbours, lattice_operations.BACK)),
        (lattice_operations._products, (at.detach(), values.detach(), lattice.vertices)),
    ):
        found = torch.library.opcheck(operator, arguments)
        assert set(found.values()) == {"SUCCESS"}


@pytest.mark.usefixtures("both_ways")
def test_images_of_one_lattice_do_not_meet() -> None:
    first, second = points(30, 3, 1), points(50, 3, 2)
    image = torch.tensor([0] * 30 + [1] * 50)
    values = torch.rand(80, 4, dtype=torch.float64)
    together = Lattice.build(torch.cat([first, second]), image).filter(values)
    assert torch.equal(together[:30], Lattice.build(first).filter(values[:30]))
    assert torch.equal(together[30:], Lattice.build(second).filter(values[30:]))


def test_threads_change_no_bit() -> None:
    lattice, values = Lattice.build(points(5000, 3)), torch.rand(5000, 20)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            found.append(lattice.filter(values))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2, 3, 5, 8])
def test_compiled_loops_build_the_same_lattice(d: int, dtype: torch.dtype) -> None:
    """Features that need gradients are embedded by tensor operations; 3000 points make the table of vertices grow."""
    if lattice_operations.kernels(torch.empty(0)) is None:
        pytest.skip("numba is not installed")
    features = points(3000, d).to(dtype) * (3 if d < 8 else 1)
    features[100:130] = features[99]  # one point after another in one simplex
    features[200:210] = 0.0  # equal residuals
    image = torch.arange(3000) // 1700
    loops, tensors = Lattice.build(features, image), Lattice.build(features.clone().requires_grad_(), image)
    assert loops.size == tensors.size
    # Loops number the vertices in the order of the points, tensor operations by their keys.
    other = torch.full((loops.size + 1,), loops.size)
    other[loops.vertices] = tensors.vertices
    assert torch.equal(other[:-1].sort().values, torch.arange(loops.size))
    assert torch.equal(other[loops.vertices], tensors.vertices)
    assert torch.equal(other[loops.neighbours], tensors.neighbours[:, :, other[:-1]])
    torch.testing.assert_close(loops.weights, tensors.weights.detach(), rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-13)
    factors = torch.linspace(0.5, 2, 3000, dtype=dtype)[:, None]
    values = torch.rand(3000, 2, dtype=dtype)
    torch.testing.assert_close(loops.scaled(factors).filter(values), factors * loops.filter(factors * values))


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("d", [1, 2, 5])
def test_one_point_and_one_place(d: int) -> None:
    for count in (1, 7):
        features = points(1, d).expand(count, d)
        lattice = Lattice.build(features)
        alone = lattice.filter(torch.ones(count, 1, dtype=torch.float64))
        assert alone[:, 0].tolist() == pytest.approx([float(dense(features).sum(1)[0])] * count, rel=1e-12)
        assert lattice.diagonal.tolist() == pytest.approx([float(dense(features)[0, 0])] * count, rel=1e-12)


def test_wrong_features_are_refused() -> None:
    with pytest.raises(ShapeError, match="floating-point"):
        Lattice.build(torch.zeros(4, 2, dtype=torch.int64))
    with pytest.raises(ShapeError, match="floating-point"):
        Lattice.build(torch.zeros(4))
    with pytest.raises(ShapeError, match="one number each"):
        Lattice.build(torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(NonFiniteError, match="width of zero"):
        Lattice.build(torch.tensor([[0.0, torch.nan]]))
    with pytest.raises(ModelError, match="larger kernel widths"):
        Lattice.build(torch.tensor([[0.0] * 5, [1e4] * 5]))
    for dtype, size in ((torch.float32, 1e7), (torch.float32, 1e30), (torch.float64, 1e30), (torch.float64, 1e308)):
        for d in (1, 5):
            with pytest.raises(ModelError, match="take their mean off"):
                Lattice.build(torch.tensor([[size] * d, [0.0] * d], dtype=dtype))
    for image in ([0, 1, 0], [-1, 0, 0]):
        with pytest.raises(ModelError, match="sort the points"):
            Lattice.build(torch.zeros(3, 2), torch.tensor(image))


@pytest.mark.usefixtures("both_ways")
def test_values_of_another_length_are_refused() -> None:
    lattice = Lattice.build(points(50, 2))
    for values in (torch.ones(49, 1), torch.ones(1, 3), torch.ones(50), torch.ones(50, 2, dtype=torch.int64)):
        with pytest.raises(ShapeError, match="50, channels"):
            lattice.filter(values)
    with pytest.raises(ShapeError, match="vertices"):
        lattice.slice(torch.ones(lattice.size + 1, 2))
    with pytest.raises(ShapeError, match="vertices"):
        lattice.blur(torch.ones(lattice.size - 1, 2))


def test_half_precision_goes_the_way_of_tensors() -> None:
    lattice = Lattice.build(points(50, 2))
    values = torch.rand(50, 2)
    torch.testing.assert_close(lattice.filter(values.bfloat16()).float(), lattice.filter(values), rtol=0.05, atol=0.05)


def test_keys_far_apart_by_powers_of_two_are_numbered_quickly() -> None:
    """Points in one coordinate only, in many images: keys then differ by multiples of what an image adds."""
    features = torch.arange(3000.0, dtype=torch.float64)[:, None].expand(-1, 3) * 7
    lattice = Lattice.build(features)
    assert lattice.size == Lattice.build(features.clone().requires_grad_()).size
