"""The solver of linear programs in CVXPY's interface; :func:`blocklp.CVXPY` returns it."""

from __future__ import annotations

import math
from typing import Any

import cvxpy.settings as s
import numpy as np
from cvxpy.reductions.solution import Solution
from cvxpy.reductions.solvers.conic_solvers.conic_solver import ConicSolver
from scipy.sparse import csr_array

from blocklp.errors import OptionError
from blocklp.general_solvers.linear_program import LinearProgram
from blocklp.lp.solve import LinearSolution, solve_linear_program
from blocklp.status import Status

OPTIONS = ("tol", "time_limit", "passes", "presolve", "simplex")

STATUSES = {Status.OPTIMAL: s.OPTIMAL, Status.INFEASIBLE: s.INFEASIBLE, Status.UNBOUNDED: s.UNBOUNDED}

LIMITS = (Status.TIME_LIMIT, Status.PASS_LIMIT, Status.INTERRUPTED)
"""Statuses that are CVXPY's ``user_limit`` where there is a point; others are ``optimal_inaccurate``."""


class CvxpyLinearProgramSolver(ConicSolver):
    """A solver of linear programs for CVXPY.

    Bounds of variables come as rows: those that CVXPY 1.9 infers for variables of its own are wrong where 0
    meets infinity (all zero for the parts of a quantile loss), and solvers that take bounds call such
    problems infeasible.
    """

    BOUNDED_VARIABLES = False

    def __eq__(self, other: object) -> bool:
        """All objects are equal, so that CVXPY keeps compiled problem and last answer between solves."""
        return isinstance(other, CvxpyLinearProgramSolver)

    def __hash__(self) -> int:
        """The hash of the name, as all objects are equal."""
        return hash(self.name())

    def name(self) -> str:
        """The solver's name in CVXPY."""
        return "BLOCKLP"

    def import_solver(self) -> None:
        """Import nothing: CVXPY calls this to see whether the solver is installed."""

    def cite(self, data: dict[str, Any]) -> str:
        """The source of the method."""
        return "H. Lu and J. Yang (2024), Restarted Halpern PDHG for linear programming."

    def solve_via_data(
        self,
        data: dict[str, Any],
        warm_start: bool,
        verbose: bool,
        solver_opts: dict[str, Any],
        solver_cache: Any = None,
    ) -> LinearSolution:
        """Solve min c x with A x + s = b, s zero or nonnegative, as CVXPY states it.

        Parameters
        ----------
        data : dict
            CVXPY's problem data: c ``(variables,)``, A ``(rows, variables)`` sparse, b ``(rows,)``, and the
            numbers of rows of each cone.
        warm_start : bool
            Whether to start from the last answer in the cache, where that has the shape of the problem.
        verbose : bool
            Not used.
        solver_opts : dict
            Options of :func:`blocklp.lp.solve_linear_program`: ``tol`` (1e-6 by default), ``time_limit``,
            ``passes``, ``presolve`` and ``simplex``.
        solver_cache : dict, optional
            CVXPY's cache of answers by solver, in which this one is stored.

        Returns
        -------
        LinearSolution
            The answer, which :meth:`invert` translates.

        Raises
        ------
        OptionError
            If there is no such option.
        """
        if unknown := set(solver_opts) - set(OPTIONS):
            names = ", ".join(map(repr, sorted(unknown)))
            raise OptionError(f"unknown options {names}; there are {', '.join(OPTIONS)}")
        cost, right = (np.asarray(data[key], dtype=np.float64).ravel() for key in (s.C, s.B))
        below = np.where(np.arange(len(right)) < data[self.DIMS].zero, right, -np.inf)
        free = np.full(len(cost), np.inf)
        program = LinearProgram(cost, csr_array(data[s.A]), below, right, -free, free)
        last = solver_cache.get(self.name()) if warm_start and solver_cache is not None else None
        fits = isinstance(last, LinearSolution) and (len(last.row_price), len(last.x)) == program.A.shape
        options = {"tol": 1e-6} | solver_opts
        solution = solve_linear_program(program, warm_start=last if fits else None, **options)
        if solver_cache is not None:
            solver_cache[self.name()] = solution
        return solution

    def invert(self, solution: LinearSolution, inverse_data: dict[str, Any]) -> Any:
        """Translate an answer to the variables and constraints of CVXPY's problem."""
        has_point = math.isfinite(solution.primal)
        other = s.USER_LIMIT if solution.status in LIMITS else s.OPTIMAL_INACCURATE
        status = STATUSES.get(solution.status, other if has_point else s.SOLVER_ERROR)
        equal = inverse_data[self.DIMS].zero
        answer = {
            "status": status,
            "value": solution.primal,
            "primal": solution.x,
            "eq_dual": -solution.row_price[:equal],
            "ineq_dual": -solution.row_price[equal:],
        }
        result: Solution = super().invert(answer, inverse_data)  # type: ignore[no-untyped-call]
        result.attr[s.NUM_ITERS], result.attr[s.SOLVE_TIME] = solution.passes, solution.seconds
        result.attr[s.EXTRA_STATS] = solution
        return result
