"""The quadratic relaxations of dense CRFs against enumeration, dense matrices and explicit LPs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from blocklp.errors import ModelError, OptionError
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import Cliques, DenseCRF, Kernel
from blocklp.problems.densecrf.dc_gen import dc_gen
from blocklp.problems.densecrf.dc_neg import dc_neg, own_curvature
from blocklp.problems.densecrf.frank_wolfe import ConvexBound, Point, concave_cliques, dominant_diagonal, linearise
from blocklp.problems.densecrf.qp_cvx import qp_cvx
from blocklp.problems.densecrf.result import Result
from blocklp.problems.densecrf.run import Run

from .explicit_lp import clique_points, explicit_lp

LINEAR = (torch.arange(3.0)[:, None] - torch.arange(3.0)).abs()
MIXED = torch.tensor([[0.4, -1.0, 2.0], [-1.0, -0.7, 0.5], [2.0, 0.5, 0.0]])
COMPATIBILITIES = {"potts": None, "linear": LINEAR, "mixed": MIXED}
METHODS = {"qp-cvx": qp_cvx, "dc-gen": dc_gen, "dc-neg": dc_neg}


def crf(
    seed: int,
    points: int = 7,
    labels: int = 3,
    kind: Callable[[Tensor], Gaussian | Lattice] = Gaussian,
    compatibility: Tensor | None = None,
    cliques: str | None = None,
    dtype: torch.dtype = torch.float64,
    weight: float = 0.6,
) -> DenseCRF:
    draw = torch.Generator().manual_seed(seed)
    flat, deep = (1.5 * torch.randn(points, d, generator=draw, dtype=torch.float64) for d in (2, 4))
    unary = 2 * torch.rand(points, labels, generator=draw, dtype=torch.float64)
    kernels = (Kernel(kind(flat), weight, seed % 2 == 0, compatibility), Kernel(kind(deep), 2 * weight, True, compatibility))
    if not cliques:
        return DenseCRF(unary.to(dtype), kernels)
    member = torch.full((points, 2), -1)
    member[:3, 0], member[4:6, 0] = 1, 0
    cost = torch.tensor([0.8, 1.7], dtype=dtype)
    if cliques == "apart":
        return DenseCRF(unary.to(dtype), kernels, cliques=Cliques(member[:, 0].contiguous(), cost))
    member[2:6, 1] = 2
    return DenseCRF(unary.to(dtype), kernels, cliques=Cliques(member, torch.cat([cost, cost[:1]])))


class Recorder(Run):
    """A run that keeps the points of all steps."""

    def __init__(self, field: DenseCRF, start: Tensor | None = None) -> None:
        super().__init__(field, "test")
        if start is not None:
            self.start = start.to(field.unary)
        self.points = [self.start]
        self.calls = [0]

    def step(self, y: Tensor, stalled: Callable[[], object] | None = None) -> bool:
        self.points.append(y)
        self.calls.append(self.filter_calls)
        return super().step(y, stalled)


def solve(field: DenseCRF, method: str, start: Tensor | None = None, **options: int) -> Result:
    run = Recorder(field, start)
    METHODS[method](run, **options)
    return run.result()


def everything(field: DenseCRF) -> Tensor:
    """Energies of all labellings, from the dense matrices."""
    labellings = torch.tensor(list(itertools.product(range(field.labels), repeat=field.points)))
    total = field.unary.double()[torch.arange(field.points), labellings].sum(1)
    for kernel in field.kernels:
        matrix = kernel(torch.eye(field.points, dtype=torch.float64)).triu(1)
        costs = 1 - torch.eye(field.labels, dtype=torch.float64) if kernel.compatibility is None else kernel.compatibility
        for a, b in itertools.combinations(range(field.points), 2):
            total += matrix[a, b] * costs[labellings[:, a], labellings[:, b]]
    if field.cliques is not None:
        for c, cost in enumerate(field.cliques.cost.tolist()):
            there = labellings[:, clique_points(field.cliques, c)]
            total += cost * (there != there[:, :1]).any(1).double()
    return total


def pair_matrix(field: DenseCRF) -> np.ndarray:
    """P, from the dense matrices."""
    total = np.zeros((field.points * field.labels,) * 2)
    for kernel in field.kernels:
        matrix = kernel(torch.eye(field.points, dtype=torch.float64)).numpy().copy()
        np.fill_diagonal(matrix, 0)
        costs = np.ones(field.labels) - np.eye(field.labels) if kernel.compatibility is None else kernel.compatibility.numpy()
        total += np.kron(matrix, costs)
    return total


def concave_energy(field: DenseCRF, y: Tensor) -> float:
    """The non-convex relaxation: (20) of the higher-order text for cliques, its z minimised out."""
    y = y.double()
    total = float(DenseCRF(field.unary.double(), field.kernels).energy(y))
    if field.cliques is not None:
        for c, cost in enumerate(field.cliques.cost.tolist()):
            away = (1 - y[clique_points(field.cliques, c)]).sum(0)
            best_z = min(
                sum(z + (1 - z) * a for z, a in zip(zs, away.tolist(), strict=True)) for zs in itertools.product((0, 1), repeat=3)
            )
            total += cost * (best_z - (field.labels - 1))
    return total


@pytest.mark.parametrize("cliques", [None, "apart", "overlapping"])
@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
@pytest.mark.parametrize("kind", [Gaussian, Lattice.build])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bounds_are_below_the_best_labelling(kind: type, compatibility: str, cliques: str | None, dtype: torch.dtype) -> None:
    for seed in range(4):
        field = crf(seed, 6, 3, kind, COMPATIBILITIES[compatibility], cliques, dtype, (0.05, 0.6, 5.0)[seed % 3])
        best = everything(field).min().item()
        assert ConvexBound(field).anywhere().item() <= best
        scores = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        run = Recorder(field, (10**seed * scores).softmax(1))
        qp_cvx(run, steps=10)
        found = run.result()
        assert found.energy.item() >= best - 1e-9
        assert ConvexBound(field).anywhere().item() - 1e-3 <= found.bound.item() <= best
        printed = Recorder(field, (10**seed * scores).softmax(1))
        qp_cvx(printed, steps=10, centred=False)
        assert ConvexBound(field, centred=False).anywhere().item() - 1e-3 <= printed.result().bound.item() <= best


@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
def test_bounds_are_safe_where_they_are_tight(compatibility: str) -> None:
    # Unaries that decide everything leave no gap: only the charge for rounding keeps the bound below.
    for seed in range(3):
        field = crf(seed, 6, 3, Lattice.build, COMPATIBILITIES[compatibility], "apart")
        strong = (1000 * field.unary).float()
        best = everything(DenseCRF(strong, field.kernels, cliques=field.cliques)).min().item()
        found = solve(DenseCRF(strong, field.kernels, cliques=field.cliques), "qp-cvx")
        assert best - 1e-2 <= found.bound.item() <= best


@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
@pytest.mark.parametrize("kind", [Gaussian, Lattice.build])
def test_relaxation_is_convex_and_equal_at_labellings(kind: type, compatibility: str) -> None:
    field = crf(2, 6, 3, kind, COMPATIBILITIES[compatibility])
    costs = LINEAR if compatibility == "linear" else MIXED if compatibility == "mixed" else 1 - torch.eye(3)
    # 2.1.5.5, where every pair counts once, for the shifted compatibility.
    shifted = DenseCRF(field.unary, tuple(Kernel(k.filter, k.weight, k.normalise, costs - costs.median()) for k in field.kernels))
    expected = np.abs(pair_matrix(shifted)).sum(1) / 2
    np.testing.assert_allclose(dominant_diagonal(field).numpy().reshape(-1), expected)
    # As printed, without a shift.
    np.testing.assert_allclose(dominant_diagonal(field, centred=False).numpy().reshape(-1), np.abs(pair_matrix(field)).sum(1) / 2)
    hessian = pair_matrix(field) / 2 + np.diag(expected)
    # A constant in the compatibility changes nothing on the simplices: convex along their directions.
    along = np.kron(np.eye(6), np.eye(3) - 1 / 3)
    assert np.linalg.eigvalsh(along @ hessian @ along).min() > -1e-12
    unary, diagonal = field.unary.numpy().reshape(-1), np.diag(hessian)
    for x, energy in zip(itertools.product(range(3), repeat=6), everything(field).tolist(), strict=True):
        y = np.eye(3)[list(x)].reshape(-1)
        assert (unary - diagonal) @ y + y @ hessian @ y == pytest.approx(energy, abs=1e-9)


def test_potts_relaxation_is_the_laplacian() -> None:
    field = crf(1, 6, 4)
    relaxation = ConvexBound(field)
    matrix = sum(k(torch.eye(6, dtype=torch.float64)) for k in field.kernels).fill_diagonal_(0)
    printed = torch.from_numpy(np.abs(pair_matrix(field)).sum(1) / 2).view(6, 4)
    torch.testing.assert_close(relaxation.diagonal, printed / 3)  # M - 1 times less than printed
    y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(1)
    pairs = field.message(y) - field.own(y)
    value = (y * (relaxation.linear + pairs / 2 + relaxation.diagonal * y)).sum()
    apart = (y[:, None] - y[None]).square().sum(2)
    torch.testing.assert_close(value, (field.unary * y).sum() + (matrix * apart).sum() / 4)


@pytest.mark.parametrize("cliques", [None, "apart"])
@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
def test_qp_cvx_reaches_the_minimum_of_the_relaxation(compatibility: str, cliques: str | None) -> None:
    field = crf(4, 7, 3, Gaussian, COMPATIBILITIES[compatibility], cliques)
    run = Recorder(field)
    qp_cvx(run, steps=400)
    found, relaxation = run.result(), ConvexBound(field)
    y = found.y
    value = (y * (relaxation.linear + (field.message(y) - field.own(y)) / 2 + relaxation.diagonal * y)).sum()
    if field.cliques is not None:
        value += field.cliques.relaxed(y).sum()
    # A bound below and a point above with one value: both are the minimum.
    assert found.bound.item() <= value.item()
    assert found.bound.item() == pytest.approx(value.item(), abs=1e-2)


def test_qp_cvx_descends_with_overlapping_cliques() -> None:
    field = crf(4, 7, 3, cliques="overlapping")
    assert field.cliques is not None
    relaxation, values = ConvexBound(field), []
    run = Recorder(field)
    qp_cvx(run, steps=20)
    for y in run.points:
        value = (y * (relaxation.linear + (field.message(y) - field.own(y)) / 2 + relaxation.diagonal * y)).sum()
        values.append(value.item() + field.cliques.relaxed(y).sum().item())
    assert max(np.diff(values)) <= 1e-9 and values[-1] < values[0] - 0.1
    assert run.result().bound.item() <= values[-1]


def test_one_filter_call_a_step() -> None:
    field = crf(0, kind=Lattice.build)
    methods: list[tuple[Callable[..., None], dict[str, int], int]] = [
        (qp_cvx, {"steps": 4}, 1),
        (dc_gen, {"outer": 3, "inner": 4}, 4),
        (dc_neg, {"steps": 4}, 1),
    ]
    for method, options, calls in methods:
        run = Recorder(field, torch.full_like(field.unary, 1 / 3))
        method(run, **options)
        # One for the start, and then only those of the steps.
        assert len(run.calls) > 2
        assert np.diff(run.calls).tolist() == [1 + calls] + [calls] * (len(run.calls) - 2)
        assert run.filter_calls == run.calls[-1]
    # Points and their pairs go along a segment together.
    now = Point.at(run, torch.full_like(field.unary, 1 / 3))
    other = Point.at(run, torch.eye(3, dtype=torch.float64)[torch.arange(7) % 3])
    middle = now.towards(other, torch.full((7, 1), 0.3, dtype=torch.float64))
    torch.testing.assert_close(middle.pairs, Point.at(run, middle.y).pairs)


def test_conditional_gradient_with_cliques_is_the_minimum() -> None:
    for seed in range(8):
        field = crf(seed, cliques="apart")
        assert field.cliques is not None
        gradient = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        zero = torch.zeros_like(gradient)
        found = linearise(field, Point(gradient.softmax(1), zero), gradient, zero, field.cliques)
        bare = DenseCRF(gradient, (), cliques=field.cliques)
        truth = everything(bare).min().item()
        assert found.least.item() == pytest.approx(truth, abs=1e-12)
        assert bare.energy(found.vertex).item() == pytest.approx(truth, abs=1e-12)
        # The relaxation of one kind of clique is exact: no fractional point is below, by the explicit LP.
        assert explicit_lp(bare) == pytest.approx(truth, abs=1e-8)


@pytest.mark.parametrize("cliques", [None, "apart", "overlapping"])
@pytest.mark.parametrize("kind", [Gaussian, Lattice.build])
@pytest.mark.parametrize(
    ("method", "compatibility"),
    [("dc-gen", "potts"), ("dc-gen", "linear"), ("dc-gen", "mixed"), ("dc-neg", "potts"), ("dc-neg", "linear")],
)
def test_relaxed_energy_never_rises(method: str, kind: type, compatibility: str, cliques: str | None) -> None:
    lowered = 0.0
    for seed in range(3):
        field = crf(seed, 20, 3, kind, COMPATIBILITIES[compatibility], cliques, weight=(0.2, 1.0, 4.0)[seed % 3])
        start = torch.randn(20, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(1)
        run = Recorder(field, start)
        METHODS[method](run, **({"outer": 8, "inner": 3} if method == "dc-gen" else {"steps": 20}))
        energies = [concave_energy(field, y) for y in run.points]
        assert max(np.diff(energies)) <= 1e-9
        assert all(float((y.sum(1) - 1).abs().max()) < 1e-12 and float(y.min()) >= 0 for y in run.points)
        lowered += energies[0] - energies[-1]
    assert lowered > 1


def test_dc_neg_searches_the_way_on_an_indefinite_kernel() -> None:
    # With a diagonal of 0.1, full steps go past the least energy, from label to label for ever.
    class Apart(Gaussian):
        def filter(self, values: Tensor) -> Tensor:
            return super().filter(values) - 0.9 * values

        @property
        def diagonal(self) -> Tensor:
            return super().diagonal - 0.9

    features = torch.tensor([[0.0], [0.1]], dtype=torch.float64)
    field = DenseCRF(torch.tensor([[0.0, 0.1], [0.1, 0.0]], dtype=torch.float64), (Kernel(Apart(features), 1.0, False),))
    start = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
    run, printed = Recorder(field, start), Recorder(field, start)
    dc_neg(run)
    energies = [concave_energy(field, y) for y in run.points]
    assert max(np.diff(energies)) <= 1e-12
    dc_neg(printed, search=False)
    assert len(printed.points) == 21 and concave_energy(field, printed.points[-1]) > energies[-1] + 0.05
    assert run.result().energy.item() == pytest.approx(everything(field).min().item())


def test_dc_neg_solves_its_problems_exactly() -> None:
    """One step of Potts against A.1.3.2 by its conditions of optimality."""
    field = crf(6, 9, 3)
    start = torch.randn(9, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(1)
    run = Recorder(field, start)
    dc_neg(run, steps=1)
    y = run.points[1]
    own = sum(k.diagonal for k in field.kernels)
    torch.testing.assert_close(own_curvature(field), own)
    # Gradient of y'(phi + K y_k mu) - y' own mu y / 2: least where y is positive.
    gradient = field.unary + field.message(start) - own * (1 - y)
    assert float(((y > 0) * (gradient - gradient.amin(1, keepdim=True))).max()) < 1e-9


def test_clique_tangents_are_above() -> None:
    field = crf(0, cliques="overlapping")
    assert field.cliques is not None
    bare = DenseCRF(torch.zeros_like(field.unary), (), cliques=field.cliques)
    draw = torch.Generator().manual_seed(0)
    for _ in range(200):
        y, x = ((s * torch.randn(7, 3, generator=draw, dtype=torch.float64)).softmax(1) for s in (4, 40))
        g = concave_cliques(field.cliques, y)
        assert concave_energy(bare, x) <= concave_energy(bare, y) + float(((x - y) * g).sum()) + 1e-9
    for x in torch.randint(3, (50, 7), generator=draw):
        exact = bare.energy(x).item()
        assert concave_energy(bare, torch.nn.functional.one_hot(x, 3)) == pytest.approx(exact, abs=1e-12)


def test_cliques_of_no_cost_change_nothing() -> None:
    field = crf(3, kind=Lattice.build)
    free = DenseCRF(
        field.unary, field.kernels, cliques=Cliques(torch.tensor([0, 0, 0, -1, 1, 1, 1]), torch.zeros(2, dtype=torch.float64))
    )
    start = torch.rand(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(1)
    for method in METHODS:
        one, two = solve(field, method, start), solve(free, method, start)
        torch.testing.assert_close(one.y, two.y, rtol=0, atol=1e-12)
        torch.testing.assert_close(one.bound, two.bound, rtol=0, atol=1e-9)


@pytest.mark.parametrize("compatibility", [None, LINEAR])
def test_images_of_one_batch_are_alone(compatibility: Tensor | None) -> None:
    draw = torch.Generator().manual_seed(0)
    features = [torch.randn(n, 3, generator=draw, dtype=torch.float64) for n in (11, 17)]
    unaries = [2 * torch.rand(n, 3, generator=draw, dtype=torch.float64) for n in (11, 17)]
    starts = [u.neg().softmax(1) for u in unaries]
    members = [torch.arange(n) // 4 - 1 for n in (11, 17)]
    costs = [torch.full((int(m.max()) + 1,), 0.5, dtype=torch.float64) for m in members]
    image = torch.arange(2).repeat_interleave(torch.tensor([11, 17]))
    shifted = torch.where(members[1] < 0, -1, members[1] + len(costs[0]))
    together = DenseCRF(
        torch.cat(unaries),
        (Kernel(Lattice.build(torch.cat(features), image), 0.7, True, compatibility),),
        image,
        Cliques(torch.cat([members[0], shifted]), torch.cat(costs)),
    )
    parts = [
        DenseCRF(u, (Kernel(Lattice.build(f), 0.7, True, compatibility),), cliques=Cliques(m, c))
        for u, f, m, c in zip(unaries, features, members, costs, strict=True)
    ]
    for method in METHODS:
        whole = solve(together, method, torch.cat(starts))
        single = [solve(p, method, s) for p, s in zip(parts, starts, strict=True)]
        assert torch.equal(whole.y, torch.cat([s.y for s in single]))
        assert torch.equal(whole.bound, torch.cat([s.bound for s in single]))
        assert torch.equal(whole.energy, torch.cat([s.energy for s in single]))


def test_wrong_options_are_refused() -> None:
    run = Run(crf(0), "test")
    for method, options in ((qp_cvx, {"steps": 0}), (dc_gen, {"outer": 0}), (dc_gen, {"inner": 0}), (dc_neg, {"steps": 0})):
        with pytest.raises(OptionError, match="at least 1"):
            method(run, **options)
    with pytest.raises(ModelError, match="dc-gen"):
        dc_neg(Run(crf(0, compatibility=MIXED), "test"))
