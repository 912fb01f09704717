"""CVXPY's own tests of LP solvers (``cvxpy.tests.solver_test_helpers``), run through the solver object.

What does not apply:

- the part of ``test_lp_bound_attr`` that asks for bounds of variables in the solver's data: they come as rows here, since those that
  CVXPY infers can be wrong; its problem is solved below.
- ``test_lp_7`` asks SDPA for its arithmetic before it solves; its problem is solved below.
- ``test_mi_lp_*``: integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blocklp as bl
from blocklp.general_solvers.linear_program import LinearProgram
from blocklp.lp import cvxpy_solver

cvxpy = pytest.importorskip("cvxpy")
helpers = pytest.importorskip("cvxpy.tests.solver_test_helpers")
pytest.importorskip("highspy")

OTHERS = {"test_lp_7", "test_lp_bound_attr"}


def suite() -> list[str]:
    return sorted(name for name in vars(helpers.StandardTestLPs) if name.startswith("test_lp_"))


def test_the_suite_is_the_one_that_is_known() -> None:
    assert OTHERS < set(suite()) and len(suite()) >= 9


@pytest.mark.parametrize("name", [name for name in suite() if name not in OTHERS])
def test_of_cvxpy(name: str) -> None:
    getattr(helpers.StandardTestLPs, name)(bl.CVXPY())


def test_problem_of_bounds() -> None:
    problem = helpers.lp_bound_attr()
    problem.solve(bl.CVXPY())
    problem.verify_objective(4)
    problem.verify_primal_values(4)


def test_ill_posed_problem() -> None:
    problem = helpers.lp_7()
    problem.solve(bl.CVXPY())
    problem.verify_objective(4)


@pytest.mark.parametrize("name", ["mi_lp_0", "mi_lp_1"])
def test_integers_are_refused(name: str) -> None:
    with pytest.raises(cvxpy.error.SolverError):
        getattr(helpers, name)().solve(bl.CVXPY())


def norms(draw: np.random.Generator) -> dict[str, Any]:
    matrix, right = draw.normal(size=(30, 6)), draw.normal(size=30)
    x, r = cvxpy.Variable(6), cvxpy.Variable()
    off = matrix @ x - right
    lengths = np.linalg.norm(matrix, axis=1)
    inside = [matrix @ x + lengths * r <= 1 + np.abs(right), cvxpy.norm_inf(x) <= 9]
    return {
        "norm1": cvxpy.Problem(cvxpy.Minimize(cvxpy.norm1(off))),
        "norm_inf": cvxpy.Problem(cvxpy.Minimize(cvxpy.norm_inf(off))),
        "max": cvxpy.Problem(cvxpy.Minimize(cvxpy.max(off)), [cvxpy.norm_inf(x) <= 3]),
        "abs": cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(cvxpy.abs(x - 1)) + cvxpy.sum(cvxpy.abs(matrix[:3] @ x)))),
        "sum_largest": cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_largest(off, 5)), [cvxpy.norm1(x) <= 1]),
        "quantile": cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(cvxpy.maximum(0.9 * off, -0.1 * off)))),
        "Chebyshev": cvxpy.Problem(cvxpy.Maximize(r), inside),
    }


@pytest.mark.parametrize("name", list(norms(np.random.default_rng(0))))
def test_free_variables_of_norms(name: str) -> None:
    """The truth is Clarabel's; the bound is proved without any assumption on free variables."""
    problem = norms(np.random.default_rng(1))[name]
    problem.solve(solver=cvxpy.CLARABEL)
    value, duals = problem.value, [np.asarray(c.dual_value) for c in problem.constraints]
    problem = norms(np.random.default_rng(1))[name]
    problem.solve(solver=bl.CVXPY(), time_limit=20)
    found = problem.solver_stats.extra_stats
    assert problem.status == cvxpy.OPTIMAL and not len(found.declared) and found.gap <= 1e-6
    assert problem.value == pytest.approx(value, rel=1e-5)
    for constraint, dual in zip(problem.constraints, duals, strict=True):
        assert np.asarray(constraint.dual_value) == pytest.approx(dual, abs=1e-4)


def test_parameters_go_on_from_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, starts = np.random.default_rng(2), []
    matrix, x, p = draw.normal(size=(20, 5)), cvxpy.Variable(5), cvxpy.Parameter(20)
    problem, other = (cvxpy.Problem(cvxpy.Minimize(cvxpy.norm1(matrix @ x - p))) for _ in range(2))
    own = cvxpy_solver.solve_linear_program

    def noted(program: LinearProgram, **options: Any) -> bl.lp.LinearSolution:
        starts.append(options["warm_start"])
        return own(program, **options)

    monkeypatch.setattr(cvxpy_solver, "solve_linear_program", noted)
    right = draw.normal(size=20)
    for change in (0.0, 1e-3):
        p.value = right + change * draw.normal(size=20)
        problem.solve(solver=bl.CVXPY())
        ours = problem.value
        assert ours == pytest.approx(other.solve(solver=cvxpy.CLARABEL), rel=1e-5)
    p.value = right
    problem.solve(solver=bl.CVXPY(), warm_start=False)
    assert [start is None for start in starts] == [True, False, True]


def test_statuses_at_limits() -> None:
    draw = np.random.default_rng(3)
    matrix, x = draw.normal(size=(60, 20)), cvxpy.Variable(20)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm1(matrix @ x - 1)), [cvxpy.norm_inf(x) <= 1])
    with pytest.raises(cvxpy.error.SolverError):  # no point is known yet
        problem.solve(solver=bl.CVXPY(), passes=2)
    packing = cvxpy.Problem(cvxpy.Maximize(cvxpy.sum(x)), [np.abs(matrix) @ x <= 1, x >= 0])
    with pytest.warns(UserWarning, match="inaccurate"):
        packing.solve(solver=bl.CVXPY(), passes=1)
    assert packing.status == cvxpy.USER_LIMIT and packing.value == pytest.approx(0)
    with pytest.warns(UserWarning, match="inaccurate"):
        problem.solve(solver=bl.CVXPY(), tol=0, warm_start=False, passes=1_000)
    assert problem.status == cvxpy.OPTIMAL_INACCURATE and problem.solver_stats.extra_stats.gap < 1e-9
