"""The solver of linear programs as CVXPY wants it; :func:`blocklp.CVXPY` gives it, so that only who asks for it needs CVXPY."""

from __future__ import annotations

import math
from typing import Any

import cvxpy.settings as s
import numpy as np
from cvxpy.reductions.solution import Solution
from cvxpy.reductions.solvers.conic_solvers.conic_solver import ConicSolver
from scipy.sparse import csr_array

from blocklp.errors import OptionError
from blocklp.linear_program import LinearProgram
from blocklp.lp.solve import LinearSolution, solve_linear_program
from blocklp.status import Status

OPTIONS = ("tol", "time_limit", "passes", "presolve")

STATUSES = {Status.OPTIMAL: s.OPTIMAL, Status.INFEASIBLE: s.INFEASIBLE, Status.UNBOUNDED: s.UNBOUNDED}

LIMITS = (Status.TIME_LIMIT, Status.PASS_LIMIT, Status.INTERRUPTED)
"""Statuses after which a point that is known is CVXPY's ``user_limit``; after others it is ``optimal_inaccurate``."""


class LinearProgramSolver(ConicSolver):
    """A solver of linear programs for CVXPY.

    Bounds of variables come as rows: those that CVXPY 1.9 infers for variables of its own are wrong where 0 meets infinity (all zero
    for the parts of a quantile loss), and solvers that take bounds call such problems infeasible.
    """

    BOUNDED_VARIABLES = False

    def __eq__(self, other: object) -> bool:
        """All are one, so that CVXPY keeps what it compiled, and the last answer, where a solve asks for a new one."""
        return isinstance(other, LinearProgramSolver)

    def __hash__(self) -> int:
        """That of the name."""
        return hash(self.name())

    def name(self) -> str:
        """As problems call it."""
        return "BLOCKLP"

    def import_solver(self) -> None:
        """Nothing more is needed."""

    def cite(self, data: dict[str, Any]) -> str:
        """Where the method is from."""
        return "H. Lu and J. Yang (2024), Restarted Halpern PDHG for linear programming."

    def solve_via_data(
        self, data: dict[str, Any], warm_start: bool, verbose: bool, solver_opts: dict[str, Any], solver_cache: Any = None
    ) -> LinearSolution:
        """Solve min c x with A x + s = b, s zero or nonnegative, as CVXPY states it.

        With ``warm_start``, CVXPY's default, a problem of the same shape as the one solved last goes on from its answer.

        Raises
        ------
        OptionError
            If there is no such option.
        """
        if unknown := set(solver_opts) - set(OPTIONS):
            raise OptionError(f"unknown options {', '.join(map(repr, sorted(unknown)))}; there are {', '.join(OPTIONS)}")
        cost, right = (np.asarray(data[key], dtype=np.float64).ravel() for key in (s.C, s.B))
        below = np.where(np.arange(len(right)) < data[self.DIMS].zero, right, -np.inf)
        free = np.full(len(cost), np.inf)
        program = LinearProgram(cost, csr_array(data[s.A]), below, right, -free, free)
        last = solver_cache.get(self.name()) if warm_start and solver_cache is not None else None
        fits = isinstance(last, LinearSolution) and (len(last.row_price), len(last.x)) == program.A.shape
        found = solve_linear_program(program, warm_start=last if fits else None, **({"tol": 1e-6} | solver_opts))
        if solver_cache is not None:
            solver_cache[self.name()] = found
        return found

    def invert(self, solution: LinearSolution, inverse_data: dict[str, Any]) -> Any:
        """Give the answer back in the problem's own variables and constraints."""
        known = math.isfinite(solution.primal)
        other = s.USER_LIMIT if solution.status in LIMITS else s.OPTIMAL_INACCURATE
        status = STATUSES.get(solution.status, other if known else s.SOLVER_ERROR)
        equal = inverse_data[self.DIMS].zero
        found = {
            "status": status,
            "value": solution.primal,
            "primal": solution.x,
            "eq_dual": -solution.row_price[:equal],
            "ineq_dual": -solution.row_price[equal:],
        }
        made: Solution = super().invert(found, inverse_data)  # type: ignore[no-untyped-call]
        made.attr.update({s.NUM_ITERS: solution.passes, s.SOLVE_TIME: solution.seconds, s.EXTRA_STATS: solution})
        return made
