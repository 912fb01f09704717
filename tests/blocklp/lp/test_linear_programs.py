"""Any LP: bounds are valid, optima are those of HiGHS, infeasible and unbounded ones are proved so."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.general_solvers.linear_program import LinearProgram, loaded_highs
from blocklp.lp.implied_bounds import implied_bounds
from blocklp.lp.judge import proved, violation

pytest.importorskip("highspy")

UNPROVED = (bl.Status.STALLED, bl.Status.PASS_LIMIT, bl.Status.TIME_LIMIT)


def random_program(seed: int) -> LinearProgram:
    """A small LP with small integers: free, half-bounded and fixed variables, rows with one side, two or none, empty rows."""
    draw = np.random.default_rng(seed)
    rows, n = int(draw.integers(0, 8)), int(draw.integers(1, 9))
    matrix = sp.csr_array(draw.integers(-4, 5, (rows, n)) * (draw.random((rows, n)) < 0.6) * 1.0)
    side, equal = draw.integers(-5, 9, rows) * 1.0, draw.random(rows) < 0.2
    least = np.where(draw.random(rows) < 0.3, side - draw.integers(0, 5, rows), -np.inf)
    most = np.where(draw.random(rows) < 0.9, side, np.inf)
    low = np.where(draw.random(n) < 0.7, 0.0, np.where(draw.random(n) < 0.3, -2.0, -np.inf))
    high = np.where(draw.random(n) < 0.4, draw.integers(0, 6, n) * 1.0, np.inf)
    cost, offset = draw.integers(-5, 6, n) * 1.0, float(draw.integers(-3, 4))
    sides = np.where(equal, side, least), np.where(equal, side, most)
    return LinearProgram(cost, matrix, *sides, low, high, offset, bool(draw.random() < 0.5))


def truth(program: LinearProgram) -> tuple[str, float]:
    """HiGHS's status and value."""
    highs = loaded_highs(program, presolve="off")
    highs.run()
    return highs.modelStatusToString(highs.getModelStatus()), highs.getInfo().objective_function_value + program.offset


@pytest.mark.parametrize("shard", range(4))
def test_optima_are_those_of_highs_and_nearly_all_others_are_proved(shard: int) -> None:
    found, proofs = dict.fromkeys(("Optimal", "Infeasible", "Unbounded"), 0), 0
    for seed in range(25 * shard, 25 * shard + 25):
        program = random_program(seed)
        status, value = truth(program)
        ours = bl.lp.solve_linear_program(program, time_limit=5, simplex=bool(shard % 2))
        found[status] += 1
        if status != "Optimal":
            proofs += str(ours.status) == status.lower()
            assert (
                ours.status not in {bl.Status.OPTIMAL, bl.Status.INFEASIBLE, bl.Status.UNBOUNDED}
                or str(ours.status) == status.lower()
            )
            continue
        sign = -1 if program.maximize else 1
        assert ours.status is bl.Status.OPTIMAL, seed
        assert sign * ours.bound <= sign * value + 1e-9 * abs(value), seed
        assert ours.primal == pytest.approx(value, rel=2e-4, abs=2e-4 * np.abs(program.c).max()), seed
        assert violation(program, ours.x) <= 1e-6
    assert min(found.values()) >= 2
    assert proofs >= 0.9 * (found["Infeasible"] + found["Unbounded"])


@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_presolve_changes_no_optimum(seed: int) -> None:
    program = random_program(seed)
    status, value = truth(program)
    if status != "Optimal":
        with_it = bl.lp.solve_linear_program(program, time_limit=0.3, presolve=False)
        assert with_it.status is not bl.Status.OPTIMAL
        return
    without = bl.lp.solve_linear_program(program, time_limit=5, presolve=False, simplex=bool(seed % 8))
    assert without.status is bl.Status.OPTIMAL
    assert without.primal == pytest.approx(value, rel=2e-4, abs=2e-4 * np.abs(program.c).max())


@pytest.mark.parametrize("seed", range(30))
def test_implied_bounds_hold_at_every_feasible_point(seed: int) -> None:
    program = random_program(seed)
    draw = np.random.default_rng(seed + 1000)
    x = np.clip(draw.integers(-3, 6, len(program.c)) * 1.0, program.lower, program.upper)
    at = program.A @ x
    given = LinearProgram(
        program.c, program.A, np.where(np.isfinite(program.row_lower), at - 1, -np.inf), at, program.lower, program.upper
    )
    low, high = implied_bounds(given)
    assert ((low <= x) & (x <= high)).all()
    for side, own in ((low, given.lower), (high, given.upper)):
        assert (side[np.isfinite(own)] == own[np.isfinite(own)]).all()


def test_bounds_pass_from_row_to_row() -> None:
    """x1 <= 1, x2 <= 2 x1, x3 <= 2 x2 with x >= 0: x3 is at most 4."""
    matrix = sp.csr_array(np.array([[1.0, 0, 0], [-2, 1, 0], [0, -2, 1]]))
    program = LinearProgram(np.zeros(3), matrix, np.full(3, -np.inf), np.array([1.0, 0, 0]), np.zeros(3), np.full(3, np.inf))
    assert implied_bounds(program)[1] == pytest.approx([1, 2, 4], rel=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_the_judge_is_below_the_exact_value_of_the_multipliers(seed: int) -> None:
    program = random_program(seed)
    draw = np.random.default_rng(seed)
    price = draw.normal(size=len(program.row_lower)) * 10.0 ** draw.integers(-6, 7)
    low, high = np.where(np.isinf(program.lower), -7.0, program.lower), np.where(np.isinf(program.upper), 9.0, program.upper)
    side = np.where(price > 0, program.row_lower, program.row_upper)
    price = np.where(np.isfinite(side), price, 0.0)
    total = Fraction(program.offset) + sum(Fraction(p) * Fraction(v) for p, v in zip(price, side, strict=True) if p)
    dense = program.A.toarray()
    for j, c in enumerate(program.c):
        reduced = Fraction(c) - sum(Fraction(dense[i, j]) * Fraction(p) for i, p in enumerate(price))
        total += min(reduced * Fraction(low[j]), reduced * Fraction(high[j]))
    own = proved(program, price, low, high)
    assert Fraction(own) <= total
    assert own == pytest.approx(float(total), rel=1e-9, abs=1e-9 * (1 + np.abs(price).max(initial=0)))


def test_points_beyond_what_was_assumed_are_kept() -> None:
    """The first point is small, and a bound for variables up to 1,000 follows; the optimum has one of 45,094."""
    rows = [[-30.0, 0, -3000, 0, -200], [20, -0.2, 0, 0, -300], [20, -0.3, 0, 0, 0], [0, -0.2, 0, -0.02, 0], [10, 0.2, 0, 0, 300]]
    low, high = np.array([-3.0, -3, 1, 0, -np.inf]), np.array([np.inf, np.inf, 2, np.inf, np.inf])
    most, cost = np.array([-3.0, 7, 0, 0, 7]), np.array([4.0, -1, -2, 2, -4])
    program = LinearProgram(cost, sp.csr_array(rows), np.full(5, -np.inf), most, low, high)
    _, value = truth(program)
    ours = bl.lp.solve_linear_program(program, tol=1e-6)
    assert ours.status is bl.Status.OPTIMAL and value == pytest.approx(-44976.08)
    assert ours.primal == pytest.approx(value) and ours.bound <= value + 1e-9 * abs(value) and not len(ours.declared)


def test_values_at_the_end_of_what_is_assumed_are_no_optima() -> None:
    """Without HiGHS no ray is found: declared bounds cut an unbounded LP off, and its value there is no optimum."""
    costs = np.array([3.0, -1.0, 2.0, 1.0, -2.0, 0.0, -4.0])
    matrix = sp.csr_array([[-2.0, -3.0, 1.0, 0.0, -1.0, 1.0, 0.0]])
    low, high = np.array([-np.inf, -2, -3, -3, -2, -np.inf, 0]), np.array([np.inf, np.inf, np.inf, np.inf, 3, 5, 5])
    program = LinearProgram(costs, matrix, np.full(1, -np.inf), np.zeros(1), low, high)
    assert truth(program)[0] == "Unbounded"
    ours = bl.lp.solve_linear_program(program, passes=6000, presolve=False, simplex=False)
    assert ours.status is not bl.Status.OPTIMAL and ours.gap == np.inf


def test_bounds_a_million_times_too_wide_make_no_difference() -> None:
    """Covering: min sum x with A x >= 1 and 0 <= x <= reach."""
    draw, found = np.random.default_rng(0), []
    matrix = sp.random_array((40, 60), density=0.1, rng=draw, data_sampler=lambda size: draw.uniform(0.5, 1, size)).tocsr()
    matrix = matrix[np.diff(matrix.indptr) > 0]
    for reach in (1e1, 1e3, 1e6, 1e8):  # beyond, rounding of double precision shows
        m = bl.Model()
        x = m.variable("x", 60, lower=0, upper=reach)
        m.add(matrix @ x >= 1)
        m.minimize(x.sum())
        found.append(m.solve(tol=1e-5, passes=20_000))
    assert all(f.status == (bl.Status.OPTIMAL,) for f in found)
    assert all(int(f.passes) <= int(found[0].passes) for f in found)
    values = [f.primal.item() for f in found]
    assert max(values) == pytest.approx(min(values), rel=3e-5)


def test_variables_without_a_bound_are_named_as_declared() -> None:
    """A free variable that no row bounds, and whose cost is zero, leaves the bound as it is; the answer says what it assumes."""
    program = LinearProgram(
        np.array([1.0, 0.0]),
        sp.csr_array([[1.0, 1.0]]),
        np.array([1.0]),
        np.array([np.inf]),
        np.array([0.0, -np.inf]),
        np.full(2, np.inf),
    )
    found = bl.lp.solve_linear_program(program)
    assert found.status is bl.Status.OPTIMAL and found.primal == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("option", [{"tol": "a"}, {"tol": -1}, {"passes": 0}, {"presolve": 1}, {"simplex": "no"}, {"time_limit": -1}])
def test_wrong_options_are_refused(option: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(option))):
        bl.lp.solve_linear_program(random_program(0), **option)  # type: ignore[arg-type]
