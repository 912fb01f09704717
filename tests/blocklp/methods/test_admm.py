"""ADMM: optima of HiGHS, the same bits with and without compiled loops, and what its parts promise."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import networkx as nx
import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.backend import Backend
from blocklp.kernels.plan import Plan
from blocklp.kernels.settings import EngineSettings
from blocklp.language.compiled_models import ModelList
from blocklp.methods import as_method
from blocklp.methods.consensus import moves
from blocklp.oracles import AtMostOne, Edge, Knapsack, Pairwise, Simplex, Triangle
from blocklp.solver import Solver

from ..random_models import polytopes


def qpbo(seed: int, n: int = 30, p: float = 0.2, isolated: int = 0, grid: float = 0.5) -> bl.Model:
    """Roof duality of a random QUBO with costs of both signs; some variables are in no pair."""
    draw = np.random.default_rng(seed)
    edges = np.array((nx.gnp_random_graph if p < 1 else nx.gnm_random_graph)(n, p, seed=seed).edges())
    m = bl.Model()
    y = m.variable("y", n + isolated, lower=0, upper=1, grid=grid)
    z = m.variable("z", len(edges), lower=0, upper=1)
    m.add(Edge(), [y[edges[:, 0]], y[edges[:, 1]], z])
    m.minimize(draw.normal(size=n + isolated) @ y + draw.normal(size=len(edges)) @ z + 2.0)
    return m


def divided_solver(models: Sequence[bl.Model], copies: int, dtype: torch.dtype = torch.float64, **others: int) -> Solver:
    """A solver that sums instances of so many copies in parts."""
    return Solver(ModelList(list(models)), torch.device("cpu"), dtype, settings=EngineSettings(divided_copies=copies, **others))


def dense(seed: int, n: int, edges: int = 60) -> bl.Model:
    """Pairs at random, also the same ones again."""
    draw = np.random.default_rng(seed)
    pairs = np.array([draw.permutation(n)[:2] for _ in range(edges)])
    m = bl.Model()
    y, z = m.variable("y", n, lower=0, upper=1), m.variable("z", edges, lower=0, upper=1)
    m.add(Edge(), [y[pairs[:, 0]], y[pairs[:, 1]], z])
    m.minimize(draw.normal(size=n) @ y + draw.normal(size=edges) @ z)
    return m


def cliques(seed: int) -> bl.Model:
    m = bl.Model()
    x = m.variable("x", 20, lower=0, upper=1)
    draw = np.random.default_rng(seed)
    m.add(AtMostOne(5), x[np.stack([draw.permutation(20)[:5] for _ in range(16)])])
    m.maximize(draw.random(20) @ x)
    return m


def assignment(seed: int) -> bl.Model:
    draw = np.random.default_rng(seed)
    m = bl.Model()
    x = m.variable("x", (3, 8), lower=0, upper=1)
    weights = draw.uniform(0.2, 1, (3, 8))
    m.add(Knapsack(weights, weights.sum(1) * 0.5), [x[:, j] for j in range(8)])
    m.add(Simplex(3), [x[i] for i in range(3)])
    m.minimize((draw.random((3, 8)) * x).sum())
    return m


def markov(seed: int) -> bl.Model:
    draw = np.random.default_rng(seed)
    edges = np.array(nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 4)).edges())
    m = bl.Model()
    x = m.variable("x", (16, 3), lower=0, upper=1)
    z = m.variable("z", (len(edges), 9), lower=0, upper=1)
    ends = [x[edges[:, side], k] for side in (0, 1) for k in range(3)]
    m.add(Pairwise(3, 3), [*ends, *(z[:, k] for k in range(9))])
    m.minimize((draw.normal(size=(16, 3)) * x).sum() + (draw.normal(size=(len(edges), 9)) * z).sum())
    return m


def triangles(seed: int) -> bl.Model:
    """Edges whose products triangles share: no closed form for either."""
    m = bl.Model()
    y, z = m.variable("y", 4, lower=0, upper=1), m.variable("z", 6, lower=0, upper=1)
    pairs = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
    m.add(Edge(), [y[pairs[:, 0]], y[pairs[:, 1]], z])
    m.add(Triangle(), [y[[0, 0]], y[[1, 1]], y[[2, 3]], z[[0, 0]], z[[1, 2]], z[[3, 4]]])
    draw = np.random.default_rng(seed)
    m.minimize(draw.normal(size=4) @ y + draw.normal(size=6) @ z)
    return m


FAMILIES = {f.__name__: f for f in (qpbo, cliques, assignment, markov, triangles, polytopes)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_reach_the_optimum_of_highs(family: str, seed: int) -> None:
    m = FAMILIES[family](seed)
    truth = reference(m).objective
    found = m.solve(method="admm", tol=1e-7, passes=3000)
    short = (truth - found.bound) * (-1 if m.maximizing else 1)
    scale = truth.abs().clamp(min=1)
    assert bool((short >= -1e-9 * scale).all())
    assert bool((short <= 2e-3 * scale).all())


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", ["markov", "triangles"])
def test_tables_in_compiled_loops(family: str, dtype: torch.dtype, fixed: bool, use_backend) -> None:
    """Blocks with a vertex table take their pairwise steps in the loops that `prox` has, fixings included."""
    use_backend("numba")
    for seed in range(4):
        m = FAMILIES[family](seed)
        first = next(iter(m.variables.values()))
        bounds = {first[(0,) * (first.index.dim() - 1) + ([0],)]: (1.0, 1.0)} if fixed else None
        truth = reference(m, bounds=bounds).objective
        found = m.compile(dtype=dtype).solve(method="admm", bounds=bounds, tol=1e-6, passes=1500)
        scale = truth.abs().clamp(min=1)
        assert bool((found.bound <= truth + 1e-9 * scale).all())
        assert bool((truth - found.bound <= 2e-3 * scale).all())


@pytest.mark.parametrize("seed", range(4))
def test_high_accuracy_on_edges(seed: int) -> None:
    """A thousand passes close the gap to 1e-9 in double precision."""
    found = qpbo(seed).solve(tol=1e-9, passes=1000)
    assert found.status == (bl.Status.OPTIMAL,)


def test_an_extreme_weight_gives_valid_bounds() -> None:
    m = qpbo(0)
    truth = reference(m).objective
    for eta in (1e-9, 1e9):
        for dtype in (torch.float32, torch.float64):
            assert bool((m.compile(dtype=dtype).solve(method=bl.methods.Admm(eta), passes=200).bound <= truth + 1e-9).all())


def same(first: bl.Solution, second: bl.Solution) -> bool:
    """Whether two solutions have the same bits."""
    parts = [(getattr(first, k), getattr(second, k)) for k in ("bound", "safe_bound", "primal", "passes")]
    parts += [(first.state.duals[k], second.state.duals[k]) for k in first.state.duals]
    parts.append((first.raw_x, second.raw_x))
    return all(torch.equal(a, b) for a, b in parts)


def assert_near(first: bl.Solution, second: bl.Solution, dtype: torch.dtype) -> None:
    """Two backends: rounding may move an anchor, and with it a check by ten passes."""
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-6, "atol": 1e-9}
    torch.testing.assert_close(first.bound, second.bound, **close)
    torch.testing.assert_close(first.primal, second.primal, **close)


@pytest.fixture
def tensors_and_loops(use_backend):
    """Run something without and with compiled loops."""

    def run(solve):
        answers = []
        for backend in ("torch", "numba"):
            use_backend(backend)
            answers.append(solve())
        return answers

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("grid", "passes"), [(0.5, 150), (0.0, 30)])
def test_loops_do_what_tensor_operations_do(tensors_and_loops, dtype: torch.dtype, grid: float, passes: int) -> None:
    """Costs of both signs, variables in no pair, one instance and a ragged batch; points that are rounded, and means as they are."""
    models = [qpbo(seed, n, p, seed, grid) for seed, (n, p) in enumerate([(30, 0.2), (12, 0.5), (60, 0.05)])]
    for solver in (models[0].compile(dtype=dtype), bl.compile(models, dtype=dtype)):
        tensors, compiled = tensors_and_loops(lambda solver=solver: solver.solve(method="admm", tol=1e-6, passes=passes))
        assert_near(tensors, compiled, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_check_sees_the_bounds_of_tensor_operations(tensors_and_loops, dtype: torch.dtype) -> None:
    """Up to the order of sums."""
    close = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    for seed in range(12):
        m = qpbo(seed, 10)
        solve = partial(m.compile(dtype=dtype).solve, method="admm", tol=0, passes=60, check_every=10, history=True)
        tensors, compiled = tensors_and_loops(solve)
        assert [e.passes for e in tensors.history] == [e.passes for e in compiled.history]
        for a, b in zip(tensors.history, compiled.history, strict=True):
            torch.testing.assert_close(a.bound, b.bound, **close)
            torch.testing.assert_close(a.primal, b.primal, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loops_begin_where_tensor_operations_do(dtype: torch.dtype) -> None:
    """A ragged batch whose variables in one pair alone, or in none, have no part in the first weight."""
    pytest.importorskip("numba")
    models = [qpbo(seed, n, p, seed) for seed, (n, p) in enumerate([(30, 0.2), (12, 0.5), (60, 0.05)])]
    whole = Plan(bl.compile(models).decomposition(), backend=Backend("numba")).settled(dtype, 1).laid_out(whole=True)
    plan = whole.begun().to(dtype)
    assert plan.whole
    problem = plan.problem
    (group,) = (g for g in problem.groups if g.shares)
    first = problem.to_dual(problem.cost)
    tensors = bl.methods.Admm().start(replace(plan, backend=Backend("torch"), tables=None), first.clone(), None)
    compiled = bl.methods.Admm().start(plan, first.clone(), None)
    torch.testing.assert_close(compiled.eta, tensors.eta)
    shared = (problem.counts > 1).expand_as(problem.cost)
    torch.testing.assert_close(compiled.mean[shared], tensors.mean[shared])
    assert group.valid is not None
    coupled = (group.valid[:, None] > 0) & (group.coupled[:, None] > 0)
    torch.testing.assert_close(group.rows(compiled.iterate)[coupled], group.rows(tensors.iterate)[coupled])


def test_what_one_block_has_moves_nothing() -> None:
    """Not even where its target overflows, as loops have it."""
    counts, mean = torch.tensor([[2.0, 1.0]]), torch.tensor([[0.5, 1.0]])
    target = torch.tensor([[0.25, -torch.inf]])
    assert moves(counts, mean, target).tolist() == [2 * 0.25**2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loops_beside_types_without_them(tensors_and_loops, dtype: torch.dtype) -> None:
    """Edges in loops, cliques and a table by tensor operations, all sharing variables."""
    m = qpbo(5)
    y = m.variables["y"]
    m.add(AtMostOne(3), y[np.arange(30).reshape(10, 3)])
    m.add(bl.FiniteVertices([[0, 0], [1, 0], [0, 1]]), y[np.arange(30).reshape(2, 15).T])
    tensors, compiled = tensors_and_loops(lambda: m.compile(dtype=dtype).solve(tol=1e-6, passes=200))
    assert_near(tensors, compiled, dtype)
    assert bool((tensors.bound <= reference(m).objective + 1e-9).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_instance_is_summed_in_parts(tensors_and_loops, dtype: torch.dtype) -> None:
    """With the same bits for any number of threads and in a batch; without parts the same but for rounding."""
    m = qpbo(1, 80, 0.3)

    def solve(models=(m,), divided: int = 0) -> bl.Solution:
        return divided_solver(models, divided, dtype).solve(tol=0, passes=250)

    tensors, whole = tensors_and_loops(lambda: solve(divided=10**12))
    assert_near(tensors, whole, dtype)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(solve())
    finally:
        torch.set_num_threads(threads)
    together = solve([m, m])
    assert same(*found)
    assert together.bound.tolist() == [found[0].bound.item()] * 2
    for k in (0, 1):
        assert all(torch.equal(together.state.duals[name][k], own[0]) for name, own in found[0].state.duals.items())
        assert torch.equal(together.raw_x[k, : m.size], found[0].raw_x[0, : m.size])
    assert_near(found[0], whole, dtype)
    assert bool((found[0].bound <= reference(m).objective + 1e-9).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_stay_as_they_are_while_instances_leave(tensors_and_loops, dtype: torch.dtype) -> None:
    """Graphs of many and of few nodes, in chunks of several sizes; with a repair hook as without."""
    for seed, hooked in itertools.product(range(3), (False, True)):
        models = [dense(seed + n, n) for n in (4, 30, 12)]
        for m in models if hooked else ():
            m.repair_with(lambda x: x)
        tol = torch.tensor([1e-13, 1.0, 1e-2])

        def solve(models: list[bl.Model] = models, tol: torch.Tensor = tol) -> bl.Solution:
            return divided_solver(models, 0, dtype, cached_copies=100).solve(tol=tol, passes=150)

        found = tensors_and_loops(solve)
        assert_near(*found, dtype)
        assert found[1].passes[1] < found[1].passes[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_has_the_bits_of_single_instances(dtype: torch.dtype) -> None:
    """Long enough for operations that treat the end of a tensor otherwise than its bulk."""
    models = [qpbo(seed, 25, 70) for seed in range(37)]  # a graph of 70 edges each: padding would change the order of sums
    together = bl.compile(models, dtype=dtype).solve(tol=1e-5, passes=300)
    for k, m in enumerate(models):
        alone = m.compile(dtype=dtype).solve(tol=1e-5, passes=300)
        assert alone.bound[0] == together.bound[k] and alone.passes[0] == together.passes[k]
        assert alone.state.eta[0] == together.state.eta[k]


def test_fixings_keep_the_closed_form() -> None:
    """Bounds that fix ends or products agree with HiGHS, and primal points obey them."""
    m = qpbo(3, 14, 0.4)
    y, z = m.variables["y"], m.variables["z"]
    draw = np.random.default_rng(0)
    for _ in range(6):
        fixed = {y[[int(i)]]: (v, v) for i, v in zip(draw.permutation(14)[:4], draw.integers(0, 2, 4), strict=True)}
        fixed[z[[0]]] = (0.0, 0.0)
        truth = reference(m, bounds=fixed)
        found = m.solve(bounds=fixed, tol=1e-8, passes=2000)
        if truth.status[0] == "infeasible":
            assert found.status == (bl.Status.INFEASIBLE,)
            continue
        assert found.status == (bl.Status.OPTIMAL,)
        torch.testing.assert_close(found.primal, truth.objective, rtol=1e-6, atol=1e-6)
        assert bool((found.bound <= truth.objective + 1e-9).all())


@pytest.mark.parametrize("divided", [0, 10**12])
def test_primal_points_of_loops_obey_bounds_of_products(tensors_and_loops, divided: int) -> None:
    """Products that may not be a half, so that rounding to halves leaves the bounds, and the mean does not."""
    for seed in range(4):
        m = qpbo(seed, 14, 0.4)
        z = m.variables["z"]
        narrow = {z[[k]]: (0.0, 0.3) for k in range(0, z.shape[0], 3)} | {z[[1]]: (0.2, 1.0)}
        truth = reference(m, bounds=narrow)
        solver = divided_solver([m], divided)
        found = tensors_and_loops(lambda solver=solver, narrow=narrow: solver.solve(bounds=narrow, tol=1e-7, passes=3000))
        for solution in found:
            assert solution.status == (bl.Status.OPTIMAL,)
            torch.testing.assert_close(solution.primal, truth.objective, rtol=1e-6, atol=1e-6)
            assert bool((solution.bound <= truth.objective + 1e-9).all())
            for view, (low, high) in narrow.items():
                value = float(solution.x["z"].reshape(-1)[int(view.index) - int(z.index.min())])
                assert low - 1e-6 <= value <= high + 1e-6


@pytest.mark.parametrize("seed", range(30))
def test_proximal_points_of_edges_with_fixings(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    low = (torch.rand(1, 40, 3, generator=draw) < 0.2).double()
    high = torch.maximum((torch.rand(1, 40, 3, generator=draw) < 0.8).double(), low)
    kind = Edge().restrict(low, high)
    assert kind is not None
    valid = ~kind.excluded.all(-1)[0]
    kind = kind.with_data(excluded=kind.excluded[:, valid])
    cost, centre = torch.randn(2, 1, int(valid.sum()), 3, generator=draw, dtype=torch.float64)
    shared = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    point = kind.prox(cost, centre, torch.full((1, 1, 1), 0.7, dtype=torch.float64), shared)
    assert point is not None
    slope = cost + shared * (point - centre) / 0.7
    # The third coordinate is the best for the ends only inside the block; its value there is the minimum over vertices left.
    torch.testing.assert_close((slope * point).sum(-1), kind.min_oracle(slope)[1], rtol=1e-9, atol=1e-9)


def test_what_is_no_method_is_refused() -> None:
    with pytest.raises(OptionError, match="instance of a method"):
        qpbo(0).solve(method=bl.methods.Admm)  # type: ignore[arg-type]


def test_auto_chooses_by_the_types() -> None:
    assert isinstance(as_method("auto", qpbo(0).compile().decomposition()), bl.methods.Admm)


def test_points_that_cannot_be_tested_are_not_completed() -> None:
    """A type without constraints could hide that the mean of its copies is outside."""

    class Bare(bl.BlockType):
        dim = 2

        def min_oracle(self, cost):
            return Simplex(2).min_oracle(cost)

    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(Bare(), x[[[0, 1], [1, 2]]])
    m.minimize(np.array([1.0, 0.5, 1.0]) @ x)
    found = m.solve(tol=1e-6)
    assert found.primal[0] >= 0.5 - 1e-5
    torch.testing.assert_close(found.bound, torch.tensor([0.5], dtype=torch.float64), rtol=1e-4, atol=1e-4)


def test_a_grid_must_be_a_number() -> None:
    for grid in (-1.0, float("nan"), "fine", np.ones(2)):
        with pytest.raises(OptionError, match="grid"):
            bl.Model().variable("x", 2, lower=0, upper=1, grid=grid)  # type: ignore[arg-type]


def test_a_repair_hook_is_tested_with_loops_too(tensors_and_loops) -> None:
    m = qpbo(0)
    truth = reference(m).objective
    m.repair_with(lambda x: {"y": torch.full_like(x["y"], 5.0), "z": torch.zeros_like(x["z"])})
    for found in tensors_and_loops(lambda: m.solve(passes=50)):
        assert bool(found.hook_failed.all()) and bool((found.primal >= truth - 1e-6).all())


def test_a_repair_hook_gets_the_means_of_products_too(tensors_and_loops) -> None:
    """One that changes nothing keeps what it gets: in the end an optimal point."""
    m = qpbo(0)
    seen = []
    m.repair_with(lambda x: seen.append(x["z"].clone()) or x)
    for found, products in tensors_and_loops(lambda: (m.solve(passes=600, tol=1e-5), seen[-1])):
        assert found.status == (bl.Status.OPTIMAL,) and products.max() > 0.4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_private_variables_of_types_that_complete_nothing(dtype: torch.dtype) -> None:
    """Beside edges, whose loops leave them out: their means still are those of their points."""

    class AtMostOneOfAll(bl.BlockType):
        def min_oracle(self, cost: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            least, where = cost.min(-1)
            point = torch.zeros_like(cost).scatter_(-1, where[..., None], 1.0) * (least < 0)[..., None]
            return point, (point * cost).sum(-1)

        def constraints(self) -> bl.Constraints:
            return bl.Constraints.rows(np.vstack([np.eye(3), np.ones((1, 3))]), [0, 0, 0, -np.inf], [np.inf] * 3 + [1])

    m = qpbo(0)
    y = m.variables["y"]
    w = m.variable("w", 4, lower=0, upper=1)
    m.add(AtMostOneOfAll(), [y[[0, 2, 4, 6]], y[[1, 3, 5, 7]], w])
    assert m.objective is not None
    m.minimize(m.objective - np.full(4, 0.9) @ w)
    found = m.compile(dtype=dtype).solve(tol=1e-4, passes=2000)
    truth = float(reference(m).objective)
    assert found.status == (bl.Status.OPTIMAL,) and float(found.primal) == pytest.approx(truth, rel=2e-4)
    assert found.x["w"].max() > 0.5


def test_means_of_thousands_of_points_agree_with_them() -> None:
    """In single precision too: one variable in 5000 blocks, whose points all have it at a third."""

    class Segment(bl.BlockType):
        def min_oracle(self, cost: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            vertices = torch.tensor([[1 / 3, 1], [1, 1 / 3], [1, 1]], dtype=cost.dtype)
            least, where = (cost @ vertices.T).min(-1)
            return vertices[where], least

        def constraints(self) -> bl.Constraints:
            return bl.Constraints.rows([[1, 0], [0, 1], [1, 1]], [1 / 3, 1 / 3, 4 / 3], [1, 1, np.inf])

    n = 5000
    m = bl.Model()
    hub, x = m.variable("hub", 1, lower=0, upper=1), m.variable("x", n, lower=0, upper=1)
    m.add(Segment(), [hub[np.zeros(n, int)], x])
    m.minimize(np.full(1, 2.0 * n) @ hub + np.random.default_rng(0).uniform(1, 2, n) @ x)
    found = m.compile(dtype=torch.float32).solve(method="admm", tol=1e-4, passes=100, project=False)
    assert found.status == (bl.Status.OPTIMAL,)


def test_boxes_beside_edges_keep_their_own_bounds(tensors_and_loops) -> None:
    class Budget(bl.BlockType):
        """Has bounds, and is not their product."""

        block_data = ("lower", "upper")

        def __init__(self, lower, upper):
            self.lower, self.upper = (torch.tensor([[side]], dtype=torch.float64) for side in (lower, upper))

        def min_oracle(self, cost):
            best, which = cost.min(-1, keepdim=True)
            return torch.zeros_like(cost).scatter_(-1, which, (best < 0).to(cost)), best[..., 0].clamp(max=0)

        def constraints(self):
            return AtMostOne(2).constraints()

    for kind, truth in ((bl.Box([0.2, 0.2], [0.5, 0.5]), -1.0), (Budget([0.0, 0.0], [1.0, 1.0]), -1.0)):
        m = bl.Model()
        y, z, w = (m.variable(name, n, lower=0, upper=1) for name, n in (("y", 3), ("z", 2), ("w", 2)))
        m.add(Edge(), [y[[0, 1]], y[[1, 2]], z])
        m.add(kind, [w[[0]], w[[1]]])
        m.minimize(y.sum() + z.sum() - w.sum())
        for found in tensors_and_loops(lambda m=m: m.solve(tol=1e-6)):
            assert found.primal.item() == pytest.approx(truth, abs=1e-6)
            assert found.bound.item() == pytest.approx(truth, abs=1e-5)


def test_a_grid_that_leaves_the_blocks_is_not_followed(tensors_and_loops) -> None:
    m = bl.Model()
    y, z = m.variable("y", 4, lower=0, upper=2, grid=1.5), m.variable("z", 3, lower=0, upper=1)
    m.add(Edge(), [y[[0, 1, 2]], y[[1, 2, 3]], z])
    m.minimize(0.1 * z.sum() - y.sum())
    truth = reference(m).objective
    for found in tensors_and_loops(lambda: m.solve(tol=1e-6)):
        torch.testing.assert_close(found.primal, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [Simplex(3), AtMostOne(3)])
def test_projections_far_from_the_simplex(kind: bl.BlockType) -> None:
    """Costs and steps beyond the digits of the 1: the point is the vertex, not nothing."""
    cost = torch.tensor([[[1.0, -2.0, 3.0]]])
    point = kind.prox(cost, torch.zeros_like(cost), torch.full((1, 1, 1), 1e9), torch.ones(3))
    assert point is not None and point.tolist() == [[[0.0, 1.0, 0.0]]]


def test_an_oracle_of_its_own_is_asked_everywhere(tensors_and_loops) -> None:
    """A type that takes the constraints of another one, and none of its formulas."""

    class Anything(bl.BlockType):
        dim = 3

        def min_oracle(self, cost):
            point = (cost < 0).to(cost)
            return point, (cost * point).sum(-1)

        def constraints(self):
            return bl.Box([0.0] * 3, [1.0] * 3).constraints()

    m = bl.Model()
    y, z = m.variable("y", 3, lower=0, upper=1), m.variable("z", 2, lower=0, upper=1)
    m.add(Anything(), [y[[0, 1]], y[[1, 2]], z])
    m.minimize(y.sum() - 1.5 * z.sum())
    for found in tensors_and_loops(lambda: m.solve(tol=1e-6)):
        assert found.bound.item() == pytest.approx(-3.0, abs=1e-4)
        assert found.bound.item() <= -3.0 + 1e-9


def test_ragged_boxes_away_from_zero(tensors_and_loops) -> None:
    models = []
    for count in (1, 3):
        m = bl.Model()
        y, z = m.variable("y", 2, lower=0, upper=1), m.variable("z", 1, lower=0, upper=1)
        w = m.variable("w", count, lower=1, upper=2)
        m.add(Edge(), [y[[0]], y[[1]], z])
        m.minimize(w.sum() + z.sum() - y.sum())
        models.append(m)
    for found in tensors_and_loops(lambda: bl.compile(models).solve(tol=1e-6)):
        assert found.primal.tolist() == pytest.approx([0.0, 2.0], abs=1e-5)


def test_a_callback_may_solve_another_model(tensors_and_loops) -> None:
    inner = qpbo(1)
    answers = tensors_and_loops(lambda: qpbo(0).solve(tol=1e-4, callback=lambda event: inner.solve(passes=20) and None))
    assert all(a.status == (bl.Status.OPTIMAL,) for a in answers)


def test_a_warm_start_from_other_private_costs(tensors_and_loops) -> None:
    first, second = qpbo(2), qpbo(2)
    second.minimize(1.3 * second.variables["z"].sum() - second.variables["y"].sum())
    state = first.solve(passes=40).state
    tensors, compiled = tensors_and_loops(lambda: second.solve(warm_start=state, tol=1e-6, passes=300))
    assert_near(tensors, compiled, torch.float64)
    assert bool((tensors.bound <= reference(second).objective + 1e-9).all())


def test_limits_count_every_pass() -> None:
    for passes in (1, 2, 3, 17):
        for dtype in (torch.float32, torch.float64):
            for method in ("admm", "prox"):
                found = qpbo(0).compile(dtype=dtype).solve(method=method, tol=0, passes=passes)
                # The first check of single precision cannot be spared; the last pass certifies what is returned.
                assert found.passes.item() <= max(passes, 2) + 1


@pytest.mark.parametrize("eta", [0.0, -1.0, float("nan"), float("inf"), "large"])
def test_weights_that_are_none_are_refused(eta: object) -> None:
    with pytest.raises(OptionError, match="eta"):
        bl.methods.Admm(eta)  # type: ignore[arg-type]


def test_anchors_move_up_and_close_the_gap() -> None:
    """What plain passes leave open after a while, restarted ones do not."""
    m = qpbo(7, 200, 0.02)
    truth = reference(m).objective

    class Plain(bl.methods.Admm):
        plain = 10**9

    errors = [
        float(truth - m.solve(method=method, tol=0, passes=600, patience=10**6).bound) for method in (Plain(), bl.methods.Admm())
    ]
    assert errors[1] <= 1e-9 * abs(float(truth)) or errors[1] < 0.1 * errors[0]
    problem = m.compile().decomposition()
    method = bl.methods.Admm()
    state = method.start(Plan(problem), problem.recentred(problem.cost.new_zeros(1, problem.copies)), None)
    ages = []
    for _ in range(300):
        state = method.step(Plan(problem), state)
        ages.append(int(state.age))
    assert state.anchor.shape == state.duals.shape
    assert any(later < before for before, later in itertools.pairwise(ages[110:]))
    torch.testing.assert_close(problem.collect(state.duals), problem.cost, rtol=0, atol=1e-9)


def test_instances_that_stay_are_not_disturbed_by_those_that_leave(tensors_and_loops) -> None:
    """Callbacks stop some, tolerances others; the rest get the bits that they get alone."""
    models = [qpbo(seed, 25, 70) for seed in range(12)]
    tolerance = torch.tensor([1e-2, 1e-6] * 6)

    def stopping(event: bl.Event):
        return torch.arange(12) % 4 == 3 if event.passes > 40 else None

    def solve() -> tuple[bl.Solution, list[bl.Solution]]:
        together = bl.compile(models).solve(tol=tolerance, passes=400, callback=stopping)
        return together, [m.solve(tol=1e-6, passes=400) for m in models]

    for found, own in tensors_and_loops(solve):
        for k in (1, 5, 9):
            alone = own[k]
            assert found.bound[k] == alone.bound[0] and found.passes[k] == alone.passes[0]
            assert all(torch.equal(found.state.duals[name][k], alone.state.duals[name][0]) for name in alone.state.duals)
        assert all(found.status[k] in (bl.Status.INTERRUPTED, bl.Status.OPTIMAL) for k in (3, 7, 11))


def test_padding_has_no_multipliers(tensors_and_loops) -> None:
    """A ragged batch that is warm-started from a state with entries in its padding."""
    solver = bl.compile([qpbo(0, 30, 0.2), qpbo(1, 12, 0.5)])
    state = solver.solve(passes=30).state
    draw = torch.Generator().manual_seed(0)
    noise = {k: v + 0.1 * torch.randn(v.shape, generator=draw, dtype=v.dtype) for k, v in state.duals.items()}
    tensors, compiled = tensors_and_loops(lambda: solver.solve(warm_start=bl.State(noise, state.eta), tol=1e-6, passes=200))
    assert_near(tensors, compiled, torch.float64)


@pytest.mark.parametrize("value", [0.0, 2.0, 2.6, "1.6", None])
def test_a_relaxation_that_cannot_converge_is_refused(value: object) -> None:
    method = type("Relaxed", (bl.methods.Admm,), {"relaxation": value})
    with pytest.raises(OptionError, match="give a number above 0 and below 2"):
        method()
