"""The solver of linear programs in PuLP, against HiGHS."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

import blocklp as bl

pulp = pytest.importorskip("pulp", reason="pulp is not installed")


def variable(problem: pulp.LpProblem, *given, **options) -> pulp.LpVariable:
    """Declare a variable as the version of PuLP wants it."""
    return getattr(problem, "add_variable", pulp.LpVariable)(*given, **options)


def word(answer: Any) -> str:
    """The status that a solve has returned: a number before PuLP 4."""
    return answer.status.name if hasattr(pulp, "LpSolveStatus") else pulp.LpStatus[answer]


def random_problem(seed: int) -> tuple[pulp.LpProblem, float, int]:
    """A random LP with rows of all senses and free variables, its optimal value by HiGHS, and HiGHS's status."""
    draw = np.random.default_rng(seed)
    rows, n = 4, 6
    matrix, cost = draw.integers(-3, 4, (rows, n)).astype(float), draw.integers(-5, 6, n).astype(float)
    inner = draw.integers(0, 3, n).astype(float)
    sense, side = draw.integers(-1, 2, rows), matrix @ inner + 0.0
    lower, upper = np.where(draw.random(n) < 0.8, -1.0, -np.inf), np.where(draw.random(n) < 0.8, 4.0, np.inf)
    largest = seed % 2 == 1
    problem = pulp.LpProblem("random", pulp.LpMaximize if largest else pulp.LpMinimize)
    ends = [(None if np.isinf(a) else a, None if np.isinf(b) else b) for a, b in zip(lower, upper, strict=True)]
    x = [variable(problem, f"x{j:02}", *end) for j, end in enumerate(ends)]
    problem += pulp.lpSum(c * v for c, v in zip(cost, x, strict=True)) + 7
    for i, s in enumerate(sense):
        form = pulp.lpSum(a * v for a, v in zip(matrix[i], x, strict=True))
        problem += (form <= side[i], form == side[i], form >= side[i])[s + 1], f"row{i}"
    below, above, equal = matrix[sense == -1], matrix[sense == 1], matrix[sense == 0]
    truth = linprog(
        -cost if largest else cost,
        A_ub=np.vstack([below, -above]),
        b_ub=np.concatenate([side[sense == -1], -side[sense == 1]]),
        A_eq=equal if len(equal) else None,
        b_eq=side[sense == 0] if len(equal) else None,
        bounds=ends,
    )
    value = truth.fun if truth.status == 0 else np.nan
    return problem, (-value if largest else value) + 7, truth.status


@pytest.mark.parametrize("seed", range(20))
def test_values_prices_and_statuses_are_those_of_the_optimum(seed: int) -> None:
    problem, value, status = random_problem(seed)
    answer = problem.solve(bl.PuLP(tol=1e-9))
    found = word(answer)
    if status != 0:
        assert found in ("Unbounded", "Infeasible", "Not Solved", "Stopped")
        return
    assert found == "Optimal"
    if hasattr(pulp, "LpSolveStatus"):
        assert answer.has_solution and answer.best_bound == pytest.approx(value, rel=1e-6, abs=1e-6)
    else:
        assert problem.sol_status == pulp.LpSolutionOptimal
    assert pulp.value(problem.objective) == pytest.approx(value, rel=1e-6, abs=1e-6)
    rows = problem.constraints() if callable(problem.constraints) else list(problem.constraints.values())
    # Strong duality: prices times sides and reduced costs times the ends that they point at give the value.
    sides = sum(row.pi * -row.constant for row in rows)
    ends = sum(v.dj * v.varValue for v in problem.variables())
    assert sides + ends + 7 == pytest.approx(value, rel=1e-5, abs=1e-5)
    for row in rows:
        assert row.slack == pytest.approx(-row.value(), abs=1e-9)
        assert row.sense != pulp.LpConstraintLE or row.slack >= -1e-6
        assert row.sense != pulp.LpConstraintGE or row.slack <= 1e-6


def test_integers_and_unknown_options_are_refused_by_name() -> None:
    problem = pulp.LpProblem("whole")
    x = variable(problem, "count", 0, 3, cat="Integer")
    problem += x
    problem += x >= 0.5
    with pytest.raises(bl.BlocklpError, match="'count' is an integer"):
        problem.solve(bl.PuLP())
    with pytest.raises(bl.BlocklpError, match=r"'gap'.*time_limit, tol"):
        bl.PuLP(gap=1e-3)


def test_infeasible_problems_are_proved_so() -> None:
    problem = pulp.LpProblem("empty")
    x = variable(problem, "x", 0, 1)
    problem += x
    problem += x >= 2
    assert word(problem.solve(bl.PuLP())) == "Infeasible"


def test_limits_are_told_beside_the_best_point() -> None:
    draw = np.random.default_rng(0)
    problem = pulp.LpProblem("long", pulp.LpMaximize)
    x = [variable(problem, f"x{j:03}", 0, 1) for j in range(300)]
    problem += pulp.lpSum(float(c) * v for c, v in zip(draw.random(300), x, strict=True))
    for row in draw.random((200, 300)):
        problem += pulp.lpSum(float(a) * v for a, v in zip(row, x, strict=True)) <= 5.0
    answer = problem.solve(bl.PuLP(time_limit=1e-3))
    assert word(answer) in ("Not Solved", "TimeLimit")
    if hasattr(answer, "best_bound"):
        assert not answer.has_solution or answer.objective <= answer.best_bound
