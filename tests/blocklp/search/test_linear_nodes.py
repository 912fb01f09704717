"""Nodes of a general LP: bounds against HiGHS node by node, and against rational arithmetic."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import highspy
import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array

import blocklp as bl
from blocklp.errors import ModelError, NonFiniteError, ShapeError
from blocklp.general_solvers.linear_program import LinearProgram, loaded_highs
from blocklp.lp import shared_basis
from blocklp.search import LinearNodeBounds

NODES = 24


def random_program(seed: int) -> LinearProgram:
    """A feasible LP with equations, ranges, and variables with two, one and no bounds; integers now and then."""
    rng = np.random.default_rng(seed)
    rows, n = int(rng.integers(1, 9)), int(rng.integers(2, 14))
    whole = rng.random() < 0.5
    A = csr_array(random_array((rows, n), density=0.6, rng=rng, data_sampler=rng.standard_normal))
    A.data = np.round(3 * A.data) if whole else A.data * 10.0 ** rng.integers(-2, 3, len(A.data))
    A.eliminate_zeros()
    kinds = rng.random(n)
    lower = np.where(kinds < 0.9, -rng.integers(0, 4, n).astype(float), -np.inf)
    upper = np.where(kinds < 0.7, lower + rng.integers(0, 6, n), np.inf)
    point = np.clip(rng.integers(-3, 4, n).astype(float), np.maximum(lower, -9), np.minimum(upper, 9))
    activity, sides = A @ point, rng.random(rows)
    below = np.where(sides < 0.7, activity - rng.integers(0, 3, rows), -np.inf)
    above = np.where(sides > 0.4, activity + np.where(sides > 0.9, 0, rng.integers(0, 4, rows)), np.inf)
    below = np.where(sides > 0.9, activity, below)
    cost = rng.integers(-5, 6, n).astype(float) if whole else rng.normal(size=n)
    if rng.random() < 0.8:  # bounded below
        cost = np.where(np.isinf(upper), np.abs(cost), cost)
        lower = np.where(np.isinf(lower), -50.0, lower)
    return LinearProgram(cost, A, below, above, lower, upper, float(rng.integers(-3, 4)), bool(rng.random() < 0.3))


def narrowed(program: LinearProgram, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of nodes ``(nodes, variables)``: one to three variables each have a narrower box, some an empty one."""
    rng, n = np.random.default_rng(seed), len(program.c)
    lower, upper = (np.repeat(side[None], NODES, 0) for side in (program.lower, program.upper))
    for i in range(1, NODES):
        for j in rng.integers(0, n, rng.integers(1, 4)):
            value = float(rng.integers(-4, 8)) if rng.random() < 0.7 else rng.normal()
            if rng.random() < 0.5:
                upper[i, j] = min(upper[i, j], value)
            else:
                lower[i, j] = max(lower[i, j], value)
    return lower, upper


def exact(program: LinearProgram) -> tuple[float, str]:
    """The value of an LP by HiGHS, infinite where there is none, and its status."""
    if (program.lower > program.upper).any():
        return -math.inf if program.maximize else math.inf, "Infeasible"
    highs = loaded_highs(program, presolve="off")
    highs.run()
    status = highs.modelStatusToString(highs.getModelStatus())
    if status == "Optimal":
        return highs.getInfo().objective_function_value + program.offset, status
    worst = math.inf if status == "Infeasible" else -math.inf
    return (-worst if program.maximize else worst), status


def drawn(seed: int) -> tuple[LinearProgram, bl.LinearNodes]:
    """The first of some random LPs whose values and variables are bounded."""
    for k in itertools.count(seed, 10_000):
        program = random_program(k)
        try:
            return program, bl.LinearNodes(program)
        except ModelError as error:
            assert "bound" in str(error)
    raise AssertionError


def proved(program: LinearProgram, price: np.ndarray, low: np.ndarray, high: np.ndarray) -> Fraction | float:
    """The bound of prices in rational numbers, in the sense of minimisation; minus infinity where there is none."""
    turn = -1 if program.maximize else 1
    total = Fraction(turn * program.offset)
    dense = program.A.toarray()
    for i, y in enumerate(turn * price):
        side = program.row_lower[i] if y > 0 else program.row_upper[i]
        if y != 0:
            assert np.isfinite(side)
            total += Fraction(y) * Fraction(side)
    for j in range(len(program.c)):
        reduced = Fraction(turn * program.c[j])
        reduced -= sum(Fraction(turn * price[i]) * Fraction(dense[i, j]) for i in range(len(price)))
        end = low[j] if reduced > 0 else high[j]
        if reduced != 0:
            if not np.isfinite(end):
                return -math.inf
            total += reduced * Fraction(end)
    return total


def check(program: LinearProgram, found: LinearNodeBounds, lower: np.ndarray, upper: np.ndarray, each: bool) -> int:
    """Compare nodes with HiGHS; the number of those that are solved."""
    sign, solved = (-1.0 if program.maximize else 1.0), 0
    for i in range(len(lower)):
        node = replace(program, lower=lower[i], upper=upper[i])
        value, status = exact(node)
        bound, primal, cutoff = (sign * float(t[i]) for t in (found.bound, found.primal, found.cutoff))
        own = bl.Status(int(found.status[i]))
        near = 1e-7 * max(1.0, abs(value)) if math.isfinite(value) else 0.0
        assert bound <= sign * value + near
        assert primal >= sign * value - (10 if each else 1000) * near
        if own is bl.Status.INFEASIBLE:
            assert status != "Optimal"  # HiGHS gives up now and then
        if own is bl.Status.CUTOFF:
            assert bound >= cutoff
        if own is bl.Status.OPTIMAL:
            assert abs(bound - sign * value) <= 1e-5 * max(1.0, abs(value)) and status == "Optimal"
        if each and status == "Optimal":
            close = abs(bound - sign * value) <= 1e-5 * max(1.0, abs(value))
            assert own in (bl.Status.OPTIMAL, bl.Status.CUTOFF) or (own is bl.Status.STALLED and close)
        solved += own in (bl.Status.OPTIMAL, bl.Status.CUTOFF, bl.Status.INFEASIBLE)
    return solved


@pytest.mark.parametrize("seed", range(150))
def test_bounds_are_those_of_highs(seed: int) -> None:
    program, nodes = drawn(seed)
    lower, upper = narrowed(program, seed)
    found = nodes.solve(lower, upper)
    assert check(program, found, lower, upper, each=True) >= NODES // 2


@pytest.mark.parametrize("scale", [1e8, 1e12])
@pytest.mark.parametrize("seed", range(6))
def test_large_costs_leave_the_optima(seed: int, scale: float) -> None:
    program, nodes = drawn(seed)
    lower, upper = narrowed(program, seed)
    found = nodes.solve(lower, upper)
    larger = bl.LinearNodes(replace(program, c=scale * program.c, offset=scale * program.offset))
    large = larger.solve(lower, upper)
    same = (found.status == int(bl.Status.OPTIMAL)) & (large.status == int(bl.Status.OPTIMAL))
    assert int(same.sum()) >= int((found.status == int(bl.Status.OPTIMAL)).sum()) // 2
    torch.testing.assert_close(large.bound[same] / scale, found.bound[same], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("seed", range(0, 150, 3))
def test_bounds_hold_in_rational_numbers(seed: int) -> None:
    program, nodes = drawn(seed)
    lower, upper = narrowed(program, seed)
    found, sign = nodes.solve(lower, upper), (-1 if program.maximize else 1)
    implied = shared_basis.SharedProgram.of(replace(program, c=sign * program.c, maximize=False))
    assert len(found.bound) == NODES
    for i in range(NODES):
        if math.isfinite(found.bound[i]):
            ends = (lower[i], upper[i], *(side * implied.column for side in (implied.program.lower, implied.implied)))
            low = np.maximum(ends[0], np.minimum(ends[2], ends[3]))
            high = np.minimum(ends[1], np.maximum(ends[2], ends[3]))
            value = proved(program, found.row_price[i].numpy(), low, high)
            assert Fraction(sign * float(found.bound[i])) <= value


@pytest.mark.parametrize("seed", range(0, 150, 5))
def test_cutoffs_costs_and_bases_of_parents(seed: int) -> None:
    (program, nodes), rng = drawn(seed), np.random.default_rng(seed)
    lower, upper = narrowed(program, seed)
    whole = nodes.solve(lower, upper)
    finite = whole.bound[torch.isfinite(whole.bound)]
    found = nodes.solve(lower, upper, cutoff=finite.median())
    check(program, found, lower, upper, each=True)
    reached = (finite.median() >= whole.bound) if program.maximize else (whole.bound >= finite.median() + 1e-9)
    assert (found.status[reached & torch.isfinite(whole.bound)] == int(bl.Status.CUTOFF)).all()

    # Children from the bases of their parents.
    picked = rng.integers(0, len(program.c), NODES)
    narrower = upper.copy()
    narrower[range(NODES), picked] = np.minimum(narrower[range(NODES), picked], rng.integers(-2, 3, NODES))
    children = nodes.solve(lower, narrower, basis=whole.basis)
    check(program, children, lower, narrower, each=True)
    fresh = nodes.solve(lower, narrower)
    optimal = int(bl.Status.OPTIMAL)
    both = (children.status == optimal) & (fresh.status == optimal)
    assert torch.allclose(children.bound[both], fresh.bound[both], rtol=1e-6, atol=1e-6)

    if np.isfinite(upper).all() and np.isfinite(lower).all():
        cost = rng.integers(-5, 6, (NODES, len(program.c))).astype(float)
        found = nodes.solve(cost=cost)
        for i in range(NODES):
            value, _ = exact(replace(program, c=cost[i]))
            assert math.isclose(float(found.bound[i]), value, rel_tol=1e-6, abs_tol=1e-6)


def test_nodes_do_not_depend_on_what_is_beside_them() -> None:
    program, nodes = drawn(4)
    lower, upper = narrowed(program, 4)
    found = nodes.solve(lower, upper)
    alone = [nodes.solve(lower[i], upper[i]) for i in range(NODES)]
    assert torch.equal(found.bound, torch.cat([one.bound for one in alone]))
    assert torch.equal(found.basis, torch.cat([one.basis for one in alone]))


@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_without_highs_the_first_basis_is_found_by_pivots(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blocklp.search.linear_nodes.basis_by_highs", lambda program: None)
    monkeypatch.setattr("blocklp.search.linear_nodes.FACTORED", 2)
    program, nodes = drawn(seed)
    root = nodes.solve()
    assert root.status.item() == int(bl.Status.OPTIMAL)
    assert math.isclose(root.bound.item(), exact(program)[0], rel_tol=1e-6, abs_tol=1e-6)
    assert root.pivots.item() == 0  # it is the first basis


@pytest.mark.parametrize("seed", range(0, 40, 5))
def test_without_loops_passes_bound_nodes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKLP_BACKEND", "torch")
    program, nodes = drawn(seed)
    lower, upper = narrowed(program, seed)
    found = nodes.solve(lower[:6], upper[:6])
    check(program, found, lower[:6], upper[:6], each=False)
    assert torch.isfinite(found.bound[0])


def knapsack() -> bl.Model:
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(np.array([[3.0, 2.0, 2.0]]) @ x <= 4)
    m.maximize(5 * x[0] + 4 * x[1] + 3 * x[2])
    return m


def test_strong_branching_bounds_both_children() -> None:
    nodes = bl.LinearNodes(knapsack())
    found = nodes.strong_branching([0, 1])
    assert torch.allclose(found.at, torch.tensor([2 / 3, 1.0], dtype=torch.float64))
    assert torch.allclose(found.down.bound, torch.tensor([7.0, 22 / 3], dtype=torch.float64))
    assert torch.allclose(found.up.bound, torch.tensor([7.0, -math.inf], dtype=torch.float64))
    cut = nodes.strong_branching([0], cutoff=7.2)
    assert cut.down.status.item() == cut.up.status.item() == int(bl.Status.CUTOFF)
    inside = nodes.strong_branching([2], upper=[0.0, 1, 1])  # at the node's own point, 1
    assert inside.at.item() == 1.0 and inside.up.status.item() == int(bl.Status.INFEASIBLE)


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_tightened_bounds_are_those_of_highs(seed: int) -> None:
    program, nodes = drawn(seed)
    n, value = len(program.c), exact(program)[0]
    cutoff = value - 1.0 if program.maximize else value + 1.0
    lower, upper = nodes.tighten(cutoff=cutoff)
    sign = -1.0 if program.maximize else 1.0
    rows = csr_array(np.vstack([program.A.toarray(), sign * program.c]))
    near = replace(
        program,
        A=rows,
        row_lower=np.append(program.row_lower, -np.inf),
        row_upper=np.append(program.row_upper, sign * (cutoff - program.offset)),
        maximize=False,
        offset=0.0,
    )
    for j in range(n):
        for side, ends in ((1.0, lower), (-1.0, -upper)):
            least, status = exact(replace(near, c=side * np.eye(n)[j]))
            if status == "Optimal":
                assert ends[j] <= least + 1e-6 * max(1, abs(least))
                assert ends[j] >= least - 1e-4 * max(1, abs(least))


def test_models_with_blocks_and_netlib_like_ranges() -> None:
    m = knapsack()
    direct = bl.LinearNodes(m.linear_program()).solve()
    assert torch.equal(bl.LinearNodes(m).solve().bound, direct.bound)


def test_limits_end_nodes_with_valid_bounds() -> None:
    rng = np.random.default_rng(0)
    program = LinearProgram(
        -rng.random(60), csr_array(rng.random((40, 60))), np.full(40, -np.inf), np.full(40, 5.0), np.zeros(60), np.ones(60)
    )
    nodes = bl.LinearNodes(program)
    upper = (rng.random((3000, 60)) < 0.5).astype(float)
    short = nodes.solve(upper=upper, pivots=1)
    long = nodes.solve(upper=upper, pivots=500)
    assert (short.status == int(bl.Status.PASS_LIMIT)).any() and (long.status == int(bl.Status.OPTIMAL)).all()
    assert (short.bound <= long.bound + 1e-9).all() and (short.pivots <= 1).all()
    late = nodes.solve(upper=upper, time_limit=1e-9)
    reached = late.status != int(bl.Status.TIME_LIMIT)
    assert 0 < int(reached.sum()) < 3000 and (late.bound[~reached] == -math.inf).all()


def test_no_nodes_and_refusals() -> None:
    m = knapsack()
    nodes = bl.LinearNodes(m)
    assert len(nodes.solve(upper=np.zeros((0, 3))).bound) == 0
    assert "3 variables and 1 rows" in repr(nodes)
    with pytest.raises(ShapeError, match=r"upper bound 2 of variable 1 in node 0 is outside"):
        nodes.solve(upper=[1.0, 2, 1])
    with pytest.raises(ShapeError, match=r"lower has shape \(1, 2\)"):
        nodes.solve(lower=[0.0, 0])
    with pytest.raises(NonFiniteError, match="variable 2 in node 0 is nan"):
        nodes.solve(lower=[0.0, 0, math.nan])
    with pytest.raises(ShapeError, match="is none; give 1 ones"):
        nodes.solve(basis=torch.ones(1, 4, dtype=torch.int8))
    with pytest.raises(ShapeError, match="columns are integers from 0 to 2"):
        nodes.strong_branching([3])
    free = LinearProgram(np.ones(1), csr_array((1, 1)), np.zeros(1), np.ones(1), np.full(1, -np.inf), np.full(1, np.inf))
    with pytest.raises(ModelError, match="variable 0 has no bounds"):
        bl.LinearNodes(free)
    growing = replace(free, lower=np.zeros(1), c=-np.ones(1))
    with pytest.raises(ModelError, match="variable 0 has no upper bound"):
        bl.LinearNodes(growing)
    batch = bl.Model(batch=2)
    batch.variable("x", 1, lower=0, upper=1)
    with pytest.raises(ModelError, match="the model has 2"):
        bl.LinearNodes(batch)


def test_a_basis_of_highs_is_taken() -> None:
    program = knapsack().linear_program()
    highs = loaded_highs(program)
    highs.run()
    basis = highs.getBasis()
    stated = [int(s) for s in (*basis.col_status, *basis.row_status)]
    assert isinstance(highs, highspy.Highs)
    found = bl.LinearNodes(program, basis=stated).solve()
    assert found.pivots.item() == 0 and math.isclose(found.bound.item(), 22 / 3)
