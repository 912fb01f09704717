"""Restarted PDHG: the linear program it iterates on, the rate of Halpern's iteration, accuracy, independence of the batch."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

import blocklp as bl
from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.row_sums import dot
from blocklp.engine.points import feasible
from blocklp.errors import OptionError
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.numba_rows import batch_loops
from blocklp.kernels.plan import Plan
from blocklp.kernels.program import Program
from blocklp.kernels.settings import EngineSettings
from blocklp.methods.pdhg import PdhgState
from blocklp.oracles import AtMostOne, Edge, Knapsack, Pairwise, Polytope, Simplex
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model


@pytest.fixture(autouse=True, params=["numba", "torch"])
def both(request: pytest.FixtureRequest, use_backend: Callable[[str], None]) -> None:
    """Every test with compiled loops and without."""
    use_backend(request.param)


def planned(p: Decomposition, divided: int = 300_000) -> Plan:
    """With the backend that the test is about, large instances in parts."""
    return Plan(p, settings=EngineSettings(divided_numbers=divided)).settled(p.cost.dtype, 1)


def roof(n: int, seed: int) -> bl.Model:
    """Weighted independent set on a BA graph."""
    edges = np.array(nx.barabasi_albert_graph(n, 4, seed=seed).edges())
    weights = np.random.default_rng(seed).random(n)
    return roof_duality_model(Qubo.from_terms(-weights, edges, np.maximum(weights[edges[:, 0]], weights[edges[:, 1]])))


def mixed(seed: int, batch: int = 1) -> bl.Model:
    """Shared and own matrices, equations, rows that bounds imply, and a bound that needs a box."""
    draw = np.random.default_rng(seed)
    m = bl.Model(batch)
    upper = np.ones(12)
    upper[3] = 0.4
    x = m.variable("x", 12, lower=0, upper=upper)
    m.add(Simplex(3), x[np.arange(12).reshape(4, 3)])
    m.add(Knapsack(draw.uniform(0.2, 1, (batch, 2, 4)), 0.9), x[np.stack([draw.permutation(12)[:4] for _ in range(2)])])
    matrix = draw.normal(size=(3, 2, 3))
    inside = np.einsum("brd->br", matrix) / 3
    m.add(
        Polytope(matrix, inside - 0.2, inside + 0.3, np.zeros(3), np.ones(3)),
        x[np.stack([draw.permutation(12)[:3] for _ in range(3)])],
    )
    m.minimize(draw.normal(size=(batch, 12)) @ x)
    return m


def labelling(side: int) -> bl.Model:
    """A Markov random field on a grid, three labels."""
    draw = np.random.default_rng(side)
    edges = np.array(nx.convert_node_labels_to_integers(nx.grid_2d_graph(side, side)).edges)
    m = bl.Model()
    x = m.variable("x", (side * side, 3), lower=0, upper=1)
    z = m.variable("z", (len(edges), 9), lower=0, upper=1)
    m.add(Pairwise(3, 3), [*(x[edges[:, end], k] for end in (0, 1) for k in range(3)), *(z[:, k] for k in range(9))])
    m.minimize((draw.normal(size=(side * side, 3)) * x).sum() + (draw.normal(size=(len(edges), 9)) * z).sum())
    return m


def beside(rows: int, batch: int = 1) -> bl.Model:
    """Blocks, variables that no block holds, and sparse rows beside them, some of which are empty."""
    draw, n = np.random.default_rng(rows), rows + 40
    m = bl.Model(batch)
    x = m.variable("x", n, lower=0, upper=draw.uniform(0.5, 1.5, n))
    m.add(AtMostOne(5), x[np.arange(20).reshape(4, 5)])
    matrix = sp.random_array((rows, n), density=4 / n, rng=draw, data_sampler=lambda size: draw.normal(size=size))
    m.add_rows(matrix, x, -0.1 - draw.random((batch, rows)), 0.2)
    m.minimize(draw.normal(size=(batch, n)) @ x)
    return m


def begun(p: Decomposition, method: bl.methods.Pdhg | None = None) -> PdhgState:
    plan, method = planned(p), method or bl.methods.Pdhg()
    return method.weighted(plan, method.start(plan, p.to_dual(p.cost), None))


def random(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("model", [roof(30, 0), mixed(0), mixed(1, 3), labelling(4), beside(30, 2)])
def test_the_maps_are_adjoint_and_no_step_is_too_long(model: bl.Model) -> None:
    p = model.compile().decomposition()
    plan = planned(p)
    rows, steps = plan.program, plan.steps
    for seed in range(20):
        x, y = random(tuple(p.cost.shape), seed), random(tuple(rows.lower.shape), seed + 100)
        product = dot(rows.activity(p, x), y)
        assert torch.allclose(product, dot(x, p.collect(rows.adjoint(p, y))))
        assert bool((2 * product.abs() <= dot(x / steps.column, x) + dot(y / steps.row, y)).all())


@pytest.mark.parametrize("model", [roof(30, 0), mixed(0), mixed(1, 3), labelling(4), beside(30, 2)])
def test_steps_are_as_long_as_the_rows_allow(model: bl.Model) -> None:
    p = model.compile().decomposition()
    rows = planned(p).program
    used = torch.isfinite(rows.lower) | torch.isfinite(rows.upper)
    for i in range(p.batch):
        part = planned(p).select(torch.tensor([i]))
        one, own, steps = part.problem, part.program, part.steps
        units = torch.eye(p.cost.shape[1], dtype=torch.float64)
        columns = torch.cat([own.activity(one, unit[None]) for unit in units])
        scaled = (columns * steps.column[0].sqrt()[:, None] * (steps.row[0].sqrt() * used[i])).numpy()
        assert 0.95 <= np.linalg.norm(scaled, 2) <= 1 + 1e-9


def passed(model: bl.Model, dtype: torch.dtype, divided: int = 300_000) -> PdhgState:
    """After 83 passes in leaps of several lengths."""
    p = model.compile().decomposition().to(dtype)
    plan = planned(p, divided)
    state = bl.methods.Pdhg().start(plan, p.to_dual(p.cost), None)
    for left in (1, 7, 5, 30, 40):
        while left:
            state, passes = bl.methods.Pdhg().run(plan, state, left)
            left -= passes
    return bl.methods.Pdhg().finish(plan, state)


def same(one: PdhgState, other: PdhgState) -> bool:
    single, several = ("eta", "age", "residual", "first_residual", "pulled", "duals", "points"), ("now", "first", "bar")
    alone = all(torch.equal(getattr(one, name), getattr(other, name)) for name in single)
    pairs = [pair for name in several for pair in zip(getattr(one, name), getattr(other, name), strict=True)]
    return alone and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("both", ["torch"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("divided", [0, 10**12])
@pytest.mark.parametrize(
    "model", [roof(300, 0), mixed(0), mixed(1, 5), labelling(12), beside(600), beside(40, 3), mixed(2, 37), beside(30, 300)]
)
def test_loops_do_what_tensor_operations_do(
    model: bl.Model, divided: int, dtype: torch.dtype, use_backend: Callable[[str], None]
) -> None:
    """Whatever their number of parts, up to rounding: after 83 passes with restarts."""
    found = []
    for backend in ("numba", "torch"):
        use_backend(backend)
        found.append(passed(model, dtype, divided))
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-8, "atol": 1e-8}
    alike = found[0].age == found[1].age  # rounding may move a restart in single precision
    assert float(alike.double().mean()) >= (0.9 if dtype == torch.float32 else 1.0)
    for one, other in zip((*found[0].bar, found[0].duals), (*found[1].bar, found[1].duals), strict=True):
        torch.testing.assert_close(one[alike], other[alike], **close)


@pytest.mark.parametrize("model", [mixed(2, 37), beside(30, 300)])
def test_loops_for_batches_serve_instances_that_share_their_places(model: bl.Model, use_backend: Callable[[str], None]) -> None:
    use_backend("numba")
    rows = planned(model.compile().decomposition()).program
    assert batch_loops(rows, model.batch) is not None and batch_loops(rows, 15) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("models", [[roof(30, 1), roof(300, 2)], [mixed(1), mixed(2)], [labelling(3), labelling(5)]])
def test_padding_changes_nothing(models: list[bl.Model], dtype: torch.dtype) -> None:
    together = bl.compile(models, dtype=dtype).solve(method="pdhg", tol=1e-6, passes=500)
    for i, model in enumerate(models):
        alone = model.solve(method="pdhg", tol=1e-6, passes=500, dtype=dtype)
        assert together.passes[i] == alone.passes[0] and torch.equal(together.raw_x[i, : model.size], alone.raw_x[0])
        assert together.bound[i].item() == pytest.approx(alone.bound.item(), rel=1e-13)


def test_threads_change_nothing_and_parts_only_rounding() -> None:
    pytest.importorskip("numba")
    model, threads, found = roof(2000, 3), torch.get_num_threads(), []
    try:
        for work, count in ((0, 1), (0, 3), (10**12, 1)):
            torch.set_num_threads(count)
            found.append(passed(model, torch.float64, work))
    finally:
        torch.set_num_threads(threads)
    assert [len(s.pulled[0]) for s in found] == [2, 2, 1]
    assert same(found[0], found[1])
    assert torch.allclose(found[0].duals, found[2].duals, atol=1e-9)


def test_rows_and_bounds_describe_the_feasible_points() -> None:
    p = mixed(2).compile().decomposition()
    rows = planned(p).program
    optimum = torch.as_tensor(reference(mixed(2)).x["x"])
    seen = set()
    for seed in range(300):
        x = optimum + 10.0 ** (-(seed % 10)) * random(tuple(p.cost.shape), seed)
        x = torch.minimum(torch.maximum(x, p.lower), p.upper)
        activity = rows.activity(p, x)
        slack = 1e-6 * rows.sizes(p, x)
        mine = bool(((activity >= rows.lower - slack) & (activity <= rows.upper + slack)).all())
        assert mine == bool(feasible(planned(p), x, 1e-6))
        seen.add(mine)
    assert seen == {True, False}


def test_rows_are_written_out_once_for_all_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for other bounds; each solve is what a new solver would give."""
    built, build = [], Program.build
    monkeypatch.setattr(Program, "build", classmethod(lambda cls, *given: built.append(1) or build(*given)))
    model = mixed(3)
    x, price = model.variables["x"], model.parameter("price", 12)
    model.minimize((price * x).sum())
    solver = model.compile()
    draw, bounds = torch.Generator().manual_seed(0), {x[4]: (0, 0.2)}
    for count, held in ((1, None), (1, None), (2, bounds), (2, None)):
        price.value = torch.randn(12, generator=draw, dtype=torch.float64)
        found = solver.solve(method="pdhg", tol=1e-6, bounds=held)
        assert len(built) == count
        other = model.compile().solve(method="pdhg", tol=1e-6, bounds=held)
        del built[count:]
        assert torch.equal(found.bound, other.bound) and torch.equal(found.raw_x, other.raw_x)
        assert found.bound.item() <= reference(model, bounds=held).objective.item() + 1e-9


def test_rows_that_bounds_imply_are_left_out() -> None:
    p = labelling(3).compile().decomposition()
    # 1 + 3 + 3 equations a block; the 9 signs are bounds.
    assert planned(p).program.lower.shape == (1, 7 * 12)


@pytest.mark.parametrize("model", [roof(30, 0), mixed(0), labelling(4)])
def test_without_restarts_the_residual_falls_as_halpern_promises(model: bl.Model) -> None:
    """|z - z bar| <= |z_0 - z*| / (k + 1) in the norm of the iteration, for every saddle point z* (Lieder 2021, reflected)."""

    class Endless(bl.methods.Pdhg):
        sufficient = necessary = 0.0
        artificial = float("inf")
        every = 1

    class Steady(bl.methods.Pdhg):
        reach = 1.0  # the weight stays, so that the norm is the same

    p = model.compile().decomposition()
    plan, saddle = planned(p), begun(p)
    for _ in range(800):
        saddle, _ = Steady().run(plan, saddle, 10)
        if saddle.residual.item() < 1e-22:
            break
    assert saddle.residual.item() < 1e-18
    state, method = begun(p), Endless()
    steps, eta = plan.steps, state.eta
    dx, dy, da = (a - b for a, b in zip(state.now, saddle.now, strict=True))
    size = dot(dx / steps.column, dx) / eta + 2 * dot(dy, da) + dot(dy / steps.row, dy) * eta
    for k in range(300):
        state = method.step(plan, state)
        assert state.residual.item() <= size.item() / (k + 1) ** 2 * (1 + 1e-9)


@pytest.mark.parametrize("model", [roof(60, 1), mixed(3), labelling(4)])
def test_a_saddle_point_is_fixed_and_its_multipliers_are_optimal(model: bl.Model) -> None:
    p = model.compile().decomposition()
    plan, state = planned(p), begun(p)
    for _ in range(600):
        state, _ = bl.methods.Pdhg().run(plan, state, 10)
        if state.residual.item() < 1e-24:
            break
    state = bl.methods.Pdhg().finish(plan, state)
    after = bl.methods.Pdhg().step(plan, state)
    assert torch.allclose(after.points, state.points, atol=1e-8) and torch.allclose(after.duals, state.duals, atol=1e-8)
    truth = reference(model).objective.item()
    assert (p.value(state.duals) + p.offset).item() == pytest.approx(truth, abs=1e-7)
    assert p.primal_value(p.mean(state.points)).item() == pytest.approx(truth, abs=1e-7)


def test_the_multipliers_always_sum_to_the_cost_and_private_ones_are_the_cost() -> None:
    p = labelling(4).compile().decomposition()
    plan, state = planned(p), begun(p)
    for _ in range(30):
        state = bl.methods.Pdhg().step(plan, state)
        assert torch.allclose(p.collect(state.duals), p.cost, atol=1e-12)
        [group] = p.groups
        own = group.coupled == 0
        assert bool(own.any())
        assert torch.allclose(group.view(state.duals)[..., own], group.view(p.spread(p.cost))[..., own], atol=1e-12)


@pytest.mark.parametrize("n", [200, 1000])
def test_roof_duals_are_certified_to_nine_digits(n: int) -> None:
    model = roof(n, 0)
    solution = model.solve(method="pdhg", tol=1e-9)
    assert solution.status == (bl.Status.OPTIMAL,) and solution.gap.item() <= 1e-9
    assert solution.bound.item() == pytest.approx(reference(model).objective.item(), rel=2e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_optima_are_those_of_the_reference(dtype: torch.dtype) -> None:
    for model in (mixed(4), mixed(5, 3), labelling(5)):
        solution = model.solve(method="pdhg", tol=1e-5, dtype=dtype)
        truth = reference(model).objective
        assert set(solution.status) == {bl.Status.OPTIMAL}
        assert bool((solution.bound <= truth + 1e-9).all())
        assert torch.allclose(solution.bound, truth, rtol=3e-5, atol=3e-5)


def test_an_infeasible_instance_is_proved_so() -> None:
    m = bl.Model(2)
    x = m.variable("x", 4, lower=torch.tensor([[0.0, 0, 0, 0], [1.0, 1, 0, 0]]), upper=1)
    m.add(AtMostOne(3), x[torch.tensor([[0, 2, 3], [1, 2, 3]])])
    m.add(AtMostOne(2), x[:2])
    m.minimize(-(x.sum()))
    assert m.solve(method="pdhg", tol=1e-6).status == (bl.Status.OPTIMAL, bl.Status.INFEASIBLE)


def test_instances_with_matrices_of_their_own_do_not_depend_on_the_batch() -> None:
    batch = mixed(8, 3).compile()
    together = batch.solve(method="pdhg", passes=300, tol=torch.tensor([1e-9, 0.3, 1e-9]))
    p = batch.decomposition()
    of_all = planned(p)
    for i in range(3):
        q = p.select(torch.tensor([i]))
        plan, state, whole = planned(q), begun(q), begun(p)
        for _ in range(12):
            state, whole = bl.methods.Pdhg().step(plan, state), bl.methods.Pdhg().step(of_all, whole)
        assert torch.equal(whole.duals[i], state.duals[0]) and torch.equal(whole.eta[i], state.eta[0])
        picked, _ = bl.methods.Pdhg().run(plan, whole.select(torch.tensor([i])), 40)
        alone, _ = bl.methods.Pdhg().run(plan, state, 40)
        assert torch.equal(bl.methods.Pdhg().finish(plan, picked).duals, bl.methods.Pdhg().finish(plan, alone).duals)
    assert together.passes[1] < together.passes[0]


def test_a_warm_start_loses_nothing() -> None:
    for first in ("pdhg", "admm"):
        solver = labelling(5).compile()
        begun_at = solver.solve(method=first, passes=150, tol=0)
        again = solver.solve(method="pdhg", passes=1, tol=0, warm_start=begun_at.state)
        assert again.bound.item() >= begun_at.bound.item() - 1e-9


@pytest.mark.parametrize(("dtype", "tol", "maximize"), [(torch.float64, 1e-5, True), (torch.float32, 1e-4, False)])
def test_a_warm_start_goes_on_where_the_method_was(maximize: bool, dtype: torch.dtype, tol: float) -> None:
    """Also of a selection of instances, with tighter bounds, and in a model with more blocks."""
    model = mixed(4, 3)
    if maximize:
        assert model.objective is not None
        model.maximize(-1.0 * model.objective)
    solver = model.compile(dtype=dtype)
    cold = solver.solve(method="pdhg", check_every=10, tol=tol)
    again = solver.solve(method="pdhg", check_every=10, tol=tol, warm_start=cold.state)
    assert set(cold.status) | set(again.status) == {bl.Status.OPTIMAL}
    assert bool((2 * again.passes < cold.passes).all())
    turned = bl.State.concatenate([cold.state.select([2]), cold.state.select([0, 1])]).select([1, 2, 0])
    assert turned.saddle is not None and cold.state.saddle is not None
    assert torch.equal(turned.saddle.x, cold.state.saddle.x)
    assert all(torch.equal(v, cold.state.saddle.rows[k]) for k, v in turned.saddle.rows.items())
    assert torch.equal(solver.solve(method="pdhg", check_every=10, tol=tol, warm_start=turned).bound, again.bound)
    x = model.variables["x"]
    held = {x[11]: (0, 0.3)}
    fixed = solver.solve(method="pdhg", check_every=10, tol=tol, bounds=held, warm_start=cold.state)
    truth = reference(model, bounds=held).objective
    assert torch.allclose(fixed.bound, truth, rtol=3 * tol, atol=3 * tol)
    model.add(Knapsack([1.0, 1.0], 1.2), x[torch.tensor([[0, 11], [7, 11]])])
    grown = model.solve(method="pdhg", check_every=10, tol=tol, dtype=dtype, warm_start=cold.state)
    assert torch.allclose(grown.bound, reference(model).objective, rtol=3 * tol, atol=3 * tol)


def test_what_is_remembered_follows_its_instance() -> None:
    models = [mixed(4), labelling(4)]
    whole = bl.compile([roof(20, 1), roof(30, 2)])
    together = whole.solve(method="pdhg", check_every=10, tol=1e-6)
    for i, n in enumerate((20, 30)):
        own = together.instance(i)
        model = roof(n, i + 1)
        assert own.state.saddle is not None and own.state.saddle.x.shape == (1, model.size)
        again = model.solve(method="pdhg", check_every=10, tol=1e-6, warm_start=own.state)
        assert again.status == (bl.Status.OPTIMAL,) and int(again.passes) <= 21
        assert again.bound.item() == pytest.approx(own.bound.item(), rel=2e-6)
    first, other = (m.solve(method="pdhg", passes=20, tol=0).state for m in models)
    assert first.saddle is not None and other.saddle is not None
    assert {k: tuple(v.shape) for k, v in other.saddle.rows.items()} == {"Pairwise": (1, 24, 7)}
    assert models[0].solve(method="admm", passes=20, tol=0, warm_start=first).state.saddle is None


def test_a_solve_in_pieces_gets_on() -> None:
    """Each piece begins at what the last one left, without losing its weight to restarts after a few passes."""
    solver = roof(300, 5).compile()
    truth, state, errors = reference(roof(300, 5)).objective.item(), None, []
    for _ in range(4):
        found = solver.solve(method="pdhg", passes=150, tol=0, warm_start=state)
        state = found.state
        errors.append((truth - found.bound.item()) / abs(truth))
    assert errors[3] <= 0.05 * errors[0] and errors[3] <= 1e-5


def test_states_of_other_widths_are_joined_without_what_does_not_fit() -> None:
    model = roof(20, 1)
    alone, padded = model.solve(method="pdhg", passes=20, tol=0), bl.compile([model, model]).solve(method="pdhg", passes=20, tol=0)
    joined = bl.State.concatenate([alone.state, padded.state])
    assert joined.batch == 3 and joined.saddle is None
    assert bl.State.concatenate([padded.state, padded.state]).saddle is not None


@pytest.mark.parametrize("size", [1e-30, 1e20, 1e30])
def test_costs_whose_squares_single_precision_does_not_hold(size: float) -> None:
    model = mixed(4)
    truth = reference(model).objective.item()
    assert model.objective is not None
    model.minimize(size * model.objective)
    solution = model.solve(method="pdhg", tol=1e-4, dtype=torch.float32)
    assert solution.status == (bl.Status.OPTIMAL,)
    assert truth - 2e-4 * max(abs(truth), 1 / size) <= solution.bound.item() / size <= truth + 1e-6


@pytest.mark.parametrize("size", [1e39, 1e-42])
def test_rows_beyond_the_precision_end_without_an_error(size: float) -> None:
    def model(size: float) -> bl.Model:
        m = bl.Model()
        x = m.variable("x", 6, lower=0, upper=1)
        m.add(Knapsack(np.full((3, 4), size), 2 * size), x[np.array([[0, 1, 2, 3], [2, 3, 4, 5], [0, 1, 4, 5]])])
        m.minimize(-(np.arange(1.0, 7) @ x))
        return m

    solution = model(size).solve(method="pdhg", dtype=torch.float32, passes=50)
    assert solution.bound.item() <= reference(model(1.0)).objective.item() + 1e-9


def test_a_structured_scope_gives_what_its_index_gives() -> None:
    n = 40

    def chain(maps: bool) -> bl.Model:
        m = bl.Model()
        y, z = m.variable("y", n, lower=0, upper=1), m.variable("z", n - 1, lower=0, upper=1)

        def to_dual(x: Tensor) -> Tensor:
            return torch.cat([x[:, : n - 1], x[:, 1:n], x[:, n:]], 1)

        def to_primal(c: Tensor) -> Tensor:
            first, second, pairs = c.split(n - 1, 1)
            ends = torch.nn.functional.pad(first, (0, 1)) + torch.nn.functional.pad(second, (1, 0))
            return torch.cat([ends, pairs], 1)

        own = {"to_dual": to_dual, "to_primal": to_primal} if maps else {}
        m.add(Edge(), [y[: n - 1], y[1:], z], **own)
        draw = np.random.default_rng(0)
        m.minimize(-(draw.random(n) @ y) + draw.random(n - 1) @ z)
        return m

    plain, mapped = (chain(maps).solve(method="pdhg", passes=60, tol=0).bound for maps in (False, True))
    assert torch.allclose(plain, mapped, rtol=1e-12)


def test_a_type_without_constraints_is_named() -> None:
    class Mute(bl.BlockType):
        """A box that does not say so."""

        dim = 2

        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            point = (cost < 0).to(cost)
            return point, (cost * point).sum(-1)

    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(Mute(), x[torch.tensor([[0, 1], [1, 2]])])
    m.minimize(x.sum())
    with pytest.raises(OptionError, match=r"'Mute' of type Mute.*constraints\(\)"):
        m.solve(method="pdhg")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", range(6))
def test_bounds_that_blocks_state_are_those_of_their_variables(seed: int, dtype: torch.dtype) -> None:
    """Variables reach further than their blocks, and two blocks cut different sides of one variable."""
    rng = np.random.default_rng(seed)
    low, high = -rng.random((2, 8)), rng.random((2, 8))
    m = bl.Model()
    x = m.variable("x", 8, lower=-2, upper=3)
    weights = rng.random((2, 8))
    m.add(Knapsack(weights, 0.3 * (weights * high).sum(1), low, high), x[np.stack([np.arange(8)] * 2)])
    m.add(bl.Box(low[:1, :4] + 0.1, high[:1, :4] + 0.2), x[np.arange(4)[None]])
    m.minimize(torch.as_tensor(rng.standard_normal(8)) @ x)
    truth = reference(m).objective.item()
    found = m.solve(method="pdhg", tol=1e-5, dtype=dtype)
    assert found.status == (bl.Status.OPTIMAL,)
    assert found.bound.item() <= truth + 1e-12 and found.bound.item() == pytest.approx(truth, rel=2e-5)


def test_bounds_that_contradict_each_other_are_proved_to() -> None:
    m = bl.Model()
    x = m.variable("x", 2, lower=0, upper=1)
    m.add(bl.Box([0.0, 0.0], [0.4, 1.0]), x)
    m.add(bl.Box([0.6, 0.0], [1.0, 1.0]), x)
    m.minimize(x.sum())
    assert m.solve(method="pdhg", passes=5000).status == (bl.Status.INFEASIBLE,)


def test_bounds_that_contradict_long_blocks_are_rows_only_there() -> None:
    """One of 3,000 items is fixed beyond what its knapsack leaves: a row for each bound would be 72 MB, a single one is 24 KB."""
    m = bl.Model()
    x = m.variable("x", 3000, lower=0, upper=1)
    m.add(Knapsack(np.full(3000, 2.0), 1.0), x)
    m.add(bl.Box(np.zeros(1), np.ones(1)), x[[5]][:, None])
    m.minimize(-x.sum())
    solver = m.compile()
    problem = solver.decomposition({x[5]: 1})
    assert Plan(problem).program.entries.numel() < 4 * 3000
    assert solver.solve(bounds={x[5]: 1}, method="pdhg", passes=5000).status == (bl.Status.INFEASIBLE,)


def test_a_long_knapsack_states_as_many_numbers_as_it_has_variables() -> None:
    """A row for each bound would be 3.2 GB."""
    stated = Knapsack(torch.ones(20_000, dtype=torch.float64), 9.0).constraints()
    assert sum(t.numel() for t in (stated.matrix, stated.below, stated.above)) == 60_000
