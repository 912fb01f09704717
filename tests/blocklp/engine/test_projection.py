"""Points that are almost feasible: their projection, and the certificates that it gives."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.engine.points import feasible, violation
from blocklp.engine.projection import offer_projected, project
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.plan import Plan
from blocklp.kernels.program import Program
from blocklp.methods import as_method
from blocklp.oracles import AtMostOne, Polytope, Simplex


def model(seed: int, dim: int = 4, blocks: int = 25, equalities: int = 0) -> bl.Model:
    """Polytopes that share all variables; some rows are equalities through a common point."""
    draw = np.random.default_rng(seed)
    variables = 2 * blocks
    matrix, inside = draw.normal(size=(blocks, 3, dim)), draw.random(variables)
    scope = np.stack([draw.permutation(variables)[:dim] for _ in range(blocks)])
    at = np.einsum("brd,bd->br", matrix, inside[scope])
    lower, upper = np.full_like(at, -np.inf), at + 0.3 * draw.random(at.shape)
    lower[:equalities, 0] = upper[:equalities, 0] = at[:equalities, 0]
    m = bl.Model()
    x = m.variable("x", variables, lower=0, upper=1)
    m.add(Polytope(matrix, lower, upper, np.zeros(dim), np.ones(dim)), x[scope])
    m.minimize(draw.normal(size=variables) @ x)
    return m


def test_the_projection_is_the_nearest_point() -> None:
    """Against a general solver of quadratic programs, in the metric of the method."""
    problem = model(0, blocks=6, equalities=2).compile().decomposition()
    program = Program.build(problem, Deadline())
    start = torch.rand(1, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, passes = project(Plan(problem), start, 1e-10, 20_000)
    assert int(passes) < 20_000 and float(violation(Plan(problem), found)) <= 1e-9

    def rows(x: np.ndarray) -> np.ndarray:
        reached = program.activity(problem, torch.tensor(x)[None])
        room = torch.cat([program.upper - reached, reached - program.lower])
        return room[room.isfinite()].numpy()

    scale = Plan(problem).steps.column[0].numpy()
    best = minimize(
        lambda x: float(((x - start[0].numpy()) ** 2 / scale).sum()),
        found[0].numpy(),
        constraints={"type": "ineq", "fun": rows},
        bounds=[(0, 1)] * 12,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert np.abs(best.x - found[0].numpy()).max() < 1e-5


def test_feasible_points_stay_and_instances_do_not_mix() -> None:
    solver = bl.compile([model(1), model(2)])
    problem = solver.decomposition()
    optima = torch.cat([reference(model(seed)).x["x"] for seed in (1, 2)])
    noise = 1e-3 * torch.randn(optima.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = torch.zeros_like(problem.cost)  # instances that differ in their scopes are padded
    start[:, : optima.shape[1]] = torch.stack([optima[0], optima[1] + noise[1]])
    found, passes = project(Plan(problem), start, 1e-6, 500)
    assert passes[0] == 1 and torch.allclose(found[0], start[0].clamp(0, 1), atol=1e-9)
    assert bool((violation(Plan(problem), found) <= 1e-6).all()) and 1 < passes[1] < 500
    for i in range(2):
        alone = project(Plan(problem.select(torch.tensor([i]))), start[i : i + 1], 1e-6, 500)
        assert torch.equal(alone[0][0], found[i]) and alone[1][0] == passes[i]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", ["auto", "admm"])
def test_polytopes_are_certified(method: str, dtype: torch.dtype) -> None:
    """Also where equalities leave no interior; what is certified is true and feasible by the test for all points."""
    for equalities in (0, 8):
        given = model(3, equalities=equalities)
        truth = reference(given).objective.item()
        solver = given.compile(dtype=dtype)
        found = solver.solve(method=method, tol=1e-3, passes=6000, check_every=50)
        assert found.status[0] is bl.Status.OPTIMAL
        assert truth - 1.1e-3 * max(1, abs(truth)) <= found.bound.item() <= truth + 1e-7
        assert abs(found.primal.item() - truth) <= 1.1e-3 * max(1, abs(truth))
        assert bool(feasible(Plan(solver.decomposition()), found.x["x"].double(), 1e-6).all())


def test_auto_takes_rows_where_all_types_state_them() -> None:
    class Silent(Simplex):
        def constraints(self) -> None:
            return None

    def mixed(kind: Simplex) -> bl.Model:
        m = bl.Model()
        x = m.variable("x", 4, lower=0, upper=1)
        m.add(Polytope([[1.0, 2.0, 3.0, 1.0]], [-np.inf], [2.0], np.zeros(4), np.ones(4)), [x[None, i] for i in range(4)])
        m.add(kind, [x[None, i] for i in range(4)])
        m.minimize(-x.sum())
        return m

    chosen = [type(as_method("auto", mixed(kind).compile().decomposition())) for kind in (Simplex(4), Silent(4))]
    assert chosen == [bl.methods.Race, bl.methods.DantzigWolfe]


def test_without_mending_bounds_are_the_same_and_points_come_later() -> None:
    given = model(3)
    truth = reference(given).objective.item()
    mended, left = (given.solve(method="admm", tol=1e-9, passes=200, project=mend) for mend in (True, False))
    assert torch.equal(mended.bound, left.bound) and left.bound.item() <= truth + 1e-7
    assert truth - 1e-5 <= mended.primal.item() < left.primal.item()


@pytest.mark.parametrize("limit", [np.inf, 1e-9])
def test_points_stay_as_they_are_where_no_time_is_left_to_mend_them(limit: float) -> None:
    """To write out the rows takes its time on large problems, and a solve by oracles alone has not done so before."""
    m = bl.Model()
    x = m.variable("x", 4, lower=0, upper=1)
    m.add(Simplex(4), x)
    m.minimize((torch.arange(4.0) * x).sum())
    plan = Plan(m.compile().decomposition(), Deadline(limit))
    almost = torch.tensor([[0.52, 0.49, 0.0, 0.0]], dtype=torch.float64)
    nothing = torch.full((1,), torch.inf, dtype=torch.float64)
    primal, _, _ = offer_projected(plan, almost, 1e-6, torch.zeros_like(nothing), nothing, torch.zeros_like(almost))
    assert bool(torch.isfinite(primal)) == np.isinf(limit)


@pytest.mark.parametrize("seed", range(40))
def test_points_of_packing_and_covering_rows_are_scaled_into_them(seed: int, use_backend: Callable[[str], None]) -> None:
    """By no more than the worst row asks for, in blocks and beside them; variables in satisfied rows alone stay."""
    draw = np.random.default_rng(seed)
    packing, n = bool(seed % 2), 12
    m = bl.Model(2)
    low = draw.uniform(0, 0.2, n)
    x = m.variable("x", n, lower=low, upper=np.full(n, 1.0 if packing else 50.0))
    entries = draw.uniform(0.5, 2, (3, n)) * (draw.random((3, n)) < 0.5)
    least = entries @ low
    if packing:
        m.add(AtMostOne(4), x[np.arange(8).reshape(2, 4)])
        m.add(entries @ x <= least + draw.uniform(0.2, 1.0, 3))
    else:
        m.add(entries @ x >= (least + draw.uniform(0.5, 3.0, 3)) * (entries.sum(1) > 0))
    m.minimize(draw.normal(size=(2, n)) @ x)
    plan = Plan(m.compile().decomposition())
    given = torch.from_numpy(low + draw.uniform(0.05, 0.6, (2, n)))
    given = torch.nn.functional.pad(given, (0, plan.problem.cost.shape[1] - n))
    found = plan.program.scaled(plan.problem, given)
    use_backend("numba")
    loops = plan.settled(torch.float64, 1)
    torch.testing.assert_close(loops.program.scaled(loops.problem, given), found)
    assert bool((violation(plan, found) <= 1e-12).all())
    assert bool(((found <= given + 1e-12) if packing else (found >= given - 1e-12)).all())
    reached = plan.program.activity(plan.problem, given)
    slack = torch.minimum(plan.program.upper - reached, reached - plan.program.lower)
    if bool((slack >= 0).all()):
        torch.testing.assert_close(found, given)
