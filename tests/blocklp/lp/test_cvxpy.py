"""CVXPY problems through the solver object: values, duals in CVXPY's signs, statuses, parameters."""

from __future__ import annotations

import numpy as np
import pytest

import blocklp as bl
from blocklp.errors import OptionError

cvxpy = pytest.importorskip("cvxpy")
pytest.importorskip("highspy")


@pytest.mark.parametrize("seed", range(10))
def test_values_and_duals_are_those_of_another_solver(seed: int) -> None:
    draw, n = np.random.default_rng(seed), 6
    x = cvxpy.Variable(n, bounds=[0, 2] if seed % 2 else None)
    matrix = draw.normal(size=(4, n))
    inside = draw.dirichlet(np.ones(n))
    right = matrix @ (2 * inside)
    rows = [matrix @ x <= right + 0.3, cvxpy.sum(x) == 2, x >= 0, x <= 2]
    cost = draw.normal(size=n)
    problem = cvxpy.Problem(cvxpy.Minimize(cost @ x + 3) if seed % 3 else cvxpy.Maximize(cost @ x), rows)
    problem.solve(solver=bl.CVXPY(), tol=1e-6, time_limit=10)
    value, duals = problem.value, [row.dual_value for row in rows[:2]]
    assert problem.status == cvxpy.OPTIMAL
    found = problem.solver_stats.extra_stats
    assert isinstance(found, bl.lp.LinearSolution) and found.gap <= 1e-6
    problem.solve(solver=cvxpy.CLARABEL)
    assert value == pytest.approx(problem.value, rel=1e-5, abs=1e-5)
    # In CVXPY's signs they prove the value: min over the box of the Lagrangian (of the negative, when maximising).
    above, equal = np.asarray(duals[0]), float(duals[1])
    least = cost if seed % 3 else -cost
    reduced = least + matrix.T @ above + equal
    dual = -above @ (right + 0.3) - 2 * equal + 2 * np.minimum(reduced, 0).sum()
    assert (above >= -1e-9).all()
    assert dual == pytest.approx(value - 3 if seed % 3 else -value, rel=1e-4, abs=1e-4)


def test_statuses_and_refusals() -> None:
    x = cvxpy.Variable()
    empty = cvxpy.Problem(cvxpy.Minimize(x), [x >= 1, x <= 0])
    empty.solve(solver=bl.CVXPY())
    assert empty.status == cvxpy.INFEASIBLE
    endless = cvxpy.Problem(cvxpy.Minimize(x), [x <= 0])
    endless.solve(solver=bl.CVXPY())
    assert endless.status == cvxpy.UNBOUNDED
    with pytest.raises(cvxpy.error.SolverError):
        cvxpy.Problem(cvxpy.Minimize(cvxpy.square(x))).solve(solver=bl.CVXPY())
    with pytest.raises(OptionError, match="maxit"):
        cvxpy.Problem(cvxpy.Minimize(x), [x >= 0]).solve(solver=bl.CVXPY(), maxit=3)


def test_parameters_change_the_problem() -> None:
    x, p = cvxpy.Variable(3), cvxpy.Parameter(nonneg=True)
    problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.sum(x)), [x >= 0, cvxpy.sum(x) <= p])
    for value in (1.0, 5.0):
        p.value = value
        assert problem.solve(solver=bl.CVXPY()) == pytest.approx(value, rel=1e-5)
