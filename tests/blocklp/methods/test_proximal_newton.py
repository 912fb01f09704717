"""Projections onto blocks of one row, their curvature, and the proximal point method over them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize
from scipy.sparse import csc_array, csr_array, random_array

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.backend import Backend
from blocklp.methods.block_program import LOOPS, BlockProgram, curvature, projected
from blocklp.methods.proximal_point import ProximalPoint
from blocklp.oracles import AtMostOne, Knapsack, Simplex

Array = NDArray[np.float64]


def backends() -> list[Backend]:
    pytest.importorskip("numba", reason="numba is not installed")
    import blocklp.kernels.numba_rows  # noqa: F401, registers

    return [Backend("torch"), Backend("numba", frozenset([LOOPS]))]


def program(seed: int, backend: Backend, rows: int = 4, blocks: int = 9) -> BlockProgram:
    """Blocks of one to seven variables, some with weights of either sign and sides on both ends; feasible."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 8, blocks)
    first, n = np.concatenate([[0], np.cumsum(sizes)]), int(sizes.sum())
    whole = draw.random() < 0.5
    weight = np.ones(n) if whole else draw.normal(size=n)
    lower = np.zeros(n) if whole else draw.uniform(-1, 0, n)
    upper = lower + draw.uniform(0, 2, n)
    inside = draw.uniform(lower, upper)
    load = np.add.reduceat(weight * inside, first[:-1])
    below = np.where(draw.random(blocks) < 0.4, -np.inf, load - draw.exponential(0.3, blocks))
    above = np.where(draw.random(blocks) < 0.4, np.inf, load + draw.exponential(0.3, blocks))
    equal = draw.random(blocks) < 0.2
    below, above = np.where(equal, load, below), np.where(equal, load, above)
    matrix = random_array((rows, n), density=0.5, rng=draw, format="csc")
    reached = matrix @ inside
    sides = reached - draw.exponential(0.2, rows), reached + draw.exponential(0.2, rows)
    low, high = (np.where(draw.random(rows) < 0.3, end, side) for end, side in zip((-np.inf, np.inf), sides, strict=True))
    columns = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data
    return BlockProgram(first, weight, lower, upper, draw.normal(size=n), below, above, *columns, low, high, backend)


@pytest.mark.parametrize("seed", range(40))
def test_a_projection_is_the_nearest_point(seed: int) -> None:
    """First-order conditions: the point is in its block, and no other point of it is nearer to where it came from."""
    for backend in backends():
        p, draw = program(seed, backend), np.random.default_rng(seed)
        at, y = draw.normal(0, 2, len(p.cost)), draw.normal(size=len(p.row_lower))
        found = projected(p, at, y, 0.7)
        t = at + 0.7 * (p.matrix.T @ y)
        np.testing.assert_allclose(found.activity, p.matrix @ found.x, atol=1e-12)
        assert (p.lower <= found.x).all() and (found.x <= p.upper).all()
        for b in range(len(p.below)):
            own = slice(p.first[b], p.first[b + 1])
            load = p.weight[own] @ found.x[own]
            assert p.below[b] - 1e-10 <= load <= p.above[b] + 1e-10
            # The distance is convex: least where no feasible direction descends, which an LP over the block says.
            rows = np.stack([p.weight[own], -p.weight[own]])
            sides = np.array([p.above[b], -p.below[b]])
            known = np.isfinite(sides)
            best = linprog(
                found.x[own] - t[own],
                rows[known] if known.any() else None,
                sides[known] if known.any() else None,
                bounds=np.stack([p.lower[own], p.upper[own]], 1),
            )
            assert best.fun >= (found.x[own] - t[own]) @ found.x[own] - 1e-8


@pytest.mark.parametrize("seed", range(40))
def test_loops_and_definition_agree(seed: int) -> None:
    definition, loops = (program(seed, backend) for backend in backends())
    draw = np.random.default_rng(seed)
    at, y, v = (draw.normal(0, 2, n) for n in (len(loops.cost), len(loops.row_lower), len(loops.row_lower)))
    a, b = (projected(p, at, y, 1.3) for p in (definition, loops))
    np.testing.assert_allclose(b.x, a.x, atol=1e-11)
    np.testing.assert_allclose(b.activity, a.activity, atol=1e-11)
    ours, theirs = curvature(loops, a), curvature(definition, a)
    np.testing.assert_allclose(ours.dense(), theirs.dense(), atol=1e-12)
    np.testing.assert_allclose(ours.times(v), theirs.dense() @ v, atol=1e-12)
    np.testing.assert_allclose(ours.diagonal(), np.diag(theirs.dense()), atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_curvature_is_the_derivative_of_the_activity(seed: int) -> None:
    """Where no variable is near a bound at which it would start or stop to move: by differences."""
    for backend in backends():
        p, draw, h = program(seed, backend), np.random.default_rng(seed), 1e-7
        at, y, v = (draw.normal(size=n) for n in (len(p.cost), len(p.row_lower), len(p.row_lower)))
        ends = [projected(p, at, y + sign * h * v, 1.0) for sign in (-1, 1)]
        states = [(e.x == p.lower) | (e.x == p.upper) for e in ends]
        if (states[0] != states[1]).any() or ((ends[0].price == 0) != (ends[1].price == 0)).any():
            continue
        slope = (ends[1].activity - ends[0].activity) / (2 * h)
        np.testing.assert_allclose(curvature(p, ends[0]).times(v), slope, atol=1e-6)


def optimum(p: BlockProgram) -> float:
    blocks = csr_array((p.weight, np.arange(len(p.cost)), p.first), shape=(len(p.below), len(p.cost)))
    rows, sides = [], []
    for matrix, low, high in ((blocks, p.below, p.above), (p.matrix.tocsr(), p.row_lower, p.row_upper)):
        for sign, side in ((1, high), (-1, -low)):
            known = np.isfinite(side)
            rows.append(sign * matrix.toarray()[known])
            sides.append(side[known])
    found = linprog(p.cost, np.concatenate(rows), np.concatenate(sides), bounds=np.stack([p.lower, p.upper], 1))
    assert found.status == 0
    return float(found.fun)


@pytest.mark.parametrize("seed", range(25))
def test_proximal_points_end_at_an_optimum(seed: int) -> None:
    """Value and prices are those of HiGHS: the point is feasible and optimal where the method has ended by itself."""
    for backend in backends():
        p = program(seed, backend, rows=5, blocks=12)
        run = ProximalPoint(p, np.clip(0.0, p.lower, p.upper), np.zeros(5), 1.0, Deadline.of(20.0))
        while not run.ended and run.projections < 3000:
            run.advance()
        reached = p.matrix @ run.x
        outside = np.maximum(p.row_lower - reached, reached - p.row_upper).max()
        assert outside <= 1e-6
        assert p.cost @ run.x == pytest.approx(optimum(p), abs=1e-5)


def test_a_proximal_step_is_the_one_that_it_should_be() -> None:
    """Against SLSQP on the quadratic program of the first step."""
    p = program(3, backends()[1], rows=2, blocks=4)
    start, sigma = np.clip(0.0, p.lower, p.upper), 0.8
    run = ProximalPoint(p, start, np.zeros(2), sigma, Deadline.of(20.0))
    run._loose = 1e-10  # the residual of a first step may be larger
    run.advance()

    def value(x: Array) -> float:
        return float(p.cost @ x + (x - start) @ (x - start) / (2 * sigma))

    inside = []
    for b in range(4):
        w = np.zeros(len(start))
        w[p.first[b] : p.first[b + 1]] = p.weight[p.first[b] : p.first[b + 1]]
        inside += [(w, p.below[b], p.above[b])]
    inside += [(row, low, high) for row, low, high in zip(p.matrix.toarray(), p.row_lower, p.row_upper, strict=True)]
    held = []
    for w, low, high in inside:
        held += [{"type": "ineq", "fun": lambda x, w=w, low=low: w @ x - low}] if np.isfinite(low) else []
        held += [{"type": "ineq", "fun": lambda x, w=w, high=high: high - w @ x}] if np.isfinite(high) else []
    bounds = list(zip(p.lower, p.upper, strict=True))
    best = minimize(value, run.x, bounds=bounds, constraints=held, method="SLSQP", options={"ftol": 1e-12, "maxiter": 500})
    assert value(run.x) == pytest.approx(best.fun, abs=1e-6)


def test_another_deadline_leaves_prices_as_they_are() -> None:
    p = program(0, backends()[1])
    run = ProximalPoint(p, p.lower.copy(), np.zeros(4), 1.0, Deadline.of(1e-9))
    assert run.advance() and run.projections == 0 and not run.price.any()


def assignment(seed: int, rows: int = 12, columns: int = 40, batch: int = 1) -> bl.Model:
    """Jobs to machines with capacities: choices become blocks, capacities keep prices."""
    draw = np.random.default_rng(seed)
    m = bl.Model(batch)
    x = m.variable("x", (columns, rows), lower=0, upper=1)
    m.add(Simplex(rows), scope=x)
    load = draw.uniform(0.5, 2, (rows, columns))
    m.add(Knapsack(load, 1.1 * load.sum(1) / rows), scope=x.T)
    cost = torch.from_numpy(draw.uniform(1, 3, (batch, columns, rows)))
    m.minimize((cost * x).sum())
    return m


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_the_method_certifies_what_highs_finds(dtype: torch.dtype, backend: str) -> None:
    if backend == "numba":
        pytest.importorskip("numba", reason="numba is not installed")
    m = assignment(0, batch=3)
    truth = reference(m).objective
    found = m.compile(dtype=dtype, backend=backend).solve(method="newton", tol=1e-4, passes=2000)
    assert [str(s) for s in found.status] == ["optimal"] * 3
    assert (found.bound <= truth + 1e-7).all() and (found.primal >= truth - 1e-4).all()
    assert (found.primal - found.bound <= 1.01e-4 * truth.abs()).all()


def test_a_warm_start_goes_on_from_its_point() -> None:
    solver = assignment(1).compile()
    first = solver.solve(method="newton", tol=1e-8, passes=3000)
    again = solver.solve(method="newton", tol=1e-8, passes=3000, warm_start=first.state)
    assert again.passes.item() < first.passes.item() / 2 and again.status[0] is bl.Status.OPTIMAL


def test_passes_are_no_more_than_asked_for() -> None:
    found = assignment(2).compile().solve(method="newton", tol=0, passes=25)
    assert found.passes.item() <= 26 and found.status[0] is bl.Status.PASS_LIMIT


def sources(cost: Array, count: int = 3000, destinations: int = 20) -> bl.Model:
    """Many choices and few rows: where ``auto`` opens with proximal steps; ``cost`` is (batch, count, 6)."""
    draw = np.random.default_rng(0)
    m = bl.Model(len(cost))
    x = m.variable("x", (count, 6), lower=0, upper=1)
    m.add(AtMostOne(6), x)
    to = draw.integers(0, destinations, 6 * count)
    rows = csr_array((draw.uniform(0.5, 2, 6 * count), (to, np.arange(6 * count))), shape=(destinations, 6 * count))
    m.add(rows @ x.reshape(6 * count) <= 0.4 * count / destinations)
    m.maximize((torch.from_numpy(cost) * x).sum())
    return m


COSTS = np.random.default_rng(5).lognormal(0, 0.5, (3, 3000, 6))


def test_auto_opens_with_it_where_few_rows_keep_prices() -> None:
    pytest.importorskip("numba", reason="numba is not installed")
    m = sources(COSTS[:1])
    truth = float(reference(m).objective)
    found = m.compile(backend="numba").solve(tol=1e-5)
    by_passes = m.compile(backend="numba").solve(method="pdhg", tol=1e-5, passes=20_000)
    assert found.status[0] is bl.Status.OPTIMAL and found.passes.item() * 10 < by_passes.passes.item()
    assert truth * (1 - 1e-9) <= float(found.bound) <= truth * (1 + 1.01e-5)
    assert truth * (1 - 1.01e-5) <= float(found.primal) <= truth * (1 + 1e-6)


def test_what_an_instance_gets_does_not_depend_on_its_batch() -> None:
    pytest.importorskip("numba", reason="numba is not installed")
    tol = torch.tensor([1e-3, 1e-6, 1e-4])
    together = sources(COSTS).compile(backend="numba").solve(tol=tol)
    for i in range(3):
        alone = sources(COSTS[i : i + 1]).compile(backend="numba").solve(tol=float(tol[i]))
        for name in ("bound", "primal", "raw_x", "passes"):
            assert torch.equal(getattr(together, name)[i], getattr(alone, name)[0]), name


def test_points_are_scaled_into_packing_rows() -> None:
    rng = np.random.default_rng(3)
    first, count = np.array([0, 3, 5, 9]), 9
    rows = csc_array(np.where(rng.random((4, count)) < 0.5, rng.lognormal(size=(4, count)), 0.0))
    ones, none = np.ones(count), np.zeros(count)
    sides = np.full(4, -np.inf), rng.uniform(0.1, 1, 4)
    blocks = first, ones, none, ones, -ones, np.full(3, -np.inf), np.ones(3)
    program = BlockProgram(*blocks, rows.indptr, rows.indices, rows.data, *sides)
    x = rng.random(count)
    packed = program.packed(x)
    assert (rows @ packed <= sides[1] * (1 + 1e-12)).all() and (packed <= x).all()
    free = np.diff(rows.indptr) == 0
    assert np.array_equal(packed[free], x[free])
    # What is in the rows stays as it is, and so does everything where a row asks for something.
    assert np.array_equal(program.packed(packed * (1 - 1e-9)), packed * (1 - 1e-9))
    covering = BlockProgram(*blocks, rows.indptr, rows.indices, rows.data, np.full(4, 0.1), sides[1])
    assert np.array_equal(covering.packed(x), x)


@pytest.mark.parametrize("method", ["newton", "auto"])
def test_units_are_bounds_where_rows_ask_for_more(method: str) -> None:
    """Weights that differ by orders of magnitude do not slow a matching down; some sources have one edge."""
    rng = np.random.default_rng(0)
    sources, destinations, edges = 2000, 100, 10_000
    source = np.sort(rng.integers(0, sources, edges))
    entries = rng.lognormal(size=edges), (rng.integers(0, destinations, edges), np.arange(edges))
    m = bl.Model()
    x = m.variable("x", edges, lower=0, upper=1)
    edge, size = np.unique(source, return_index=True)[1], np.unique(source, return_counts=True)[1]
    for k in np.unique(size).tolist():
        m.add(AtMostOne(k), x[edge[size == k][:, None] + np.arange(k)])
    m.add(csr_array(entries, shape=(destinations, edges)) @ x <= 0.1 * edges / destinations)
    m.maximize(torch.from_numpy(rng.lognormal(size=edges)) @ x)
    found = m.solve(method=method, tol=1e-4)
    assert found.status == (bl.Status.OPTIMAL,) and found.passes.item() <= 150
