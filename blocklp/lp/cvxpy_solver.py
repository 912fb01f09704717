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


class LinearProgramSolver(ConicSolver):
    """A solver of linear programs for CVXPY."""

    BOUNDED_VARIABLES = True

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

        Raises
        ------
        OptionError
            If there is no such option.
        """
        if unknown := set(solver_opts) - set(OPTIONS):
            raise OptionError(f"unknown options {', '.join(map(repr, sorted(unknown)))}; there are {', '.join(OPTIONS)}")
        cost, right, n = (
            np.asarray(data[s.C], dtype=np.float64).ravel(),
            np.asarray(data[s.B], dtype=np.float64).ravel(),
            len(data[s.C]),
        )
        equal = data[self.DIMS].zero
        below = np.where(np.arange(len(right)) < equal, right, -np.inf)
        lower, upper = (
            np.full(n, none) if side is None else np.asarray(side, dtype=np.float64).ravel()
            for side, none in ((data.get(s.LOWER_BOUNDS), -np.inf), (data.get(s.UPPER_BOUNDS), np.inf))
        )
        program = LinearProgram(cost, csr_array(data[s.A]), below, right, lower, upper)
        return solve_linear_program(program, **({"tol": 1e-6} | solver_opts))

    def invert(self, solution: LinearSolution, inverse_data: dict[str, Any]) -> Any:
        """Give the answer back in the problem's own variables and constraints."""
        known = math.isfinite(solution.primal)
        status = STATUSES.get(solution.status, s.USER_LIMIT if known else s.SOLVER_ERROR)
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
