"""The solver of linear programs as PuLP wants it.

:func:`blocklp.PuLP` gives it, so that only who asks for it needs PuLP.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any

import numpy as np
import pulp
from scipy.sparse import csr_array

from blocklp.errors import ModelError, OptionError
from blocklp.general_solvers.linear_program import LinearProgram
from blocklp.lp.solve import LinearSolution, solve_linear_program
from blocklp.status import Status

OPTIONS = ("tol", "passes", "presolve", "simplex")

WORDS = {
    Status.OPTIMAL: "Optimal",
    Status.INFEASIBLE: "Infeasible",
    Status.UNBOUNDED: "Unbounded",
    Status.TIME_LIMIT: "TimeLimit",
    Status.PASS_LIMIT: "IterationLimit",
    Status.INTERRUPTED: "Interrupted",
    Status.NUMERICAL_ERROR: "NumericalError",
}
"""PuLP's names of statuses; before PuLP 4 there are the first three, and all others are not solved."""


class PulpLinearProgramSolver(pulp.LpSolver):  # type: ignore[misc]
    """A solver of linear programs for PuLP; parameters are those of :func:`blocklp.PuLP`."""

    name = "BLOCKLP"

    def __init__(self, time_limit: float | None, **options: Any) -> None:
        if unknown := set(options) - set(OPTIONS):
            known = f"there are time_limit, {', '.join(OPTIONS)}"
            raise OptionError(f"unknown options {', '.join(map(repr, sorted(unknown)))}; {known}")
        super().__init__(mip=False, msg=False, timeLimit=time_limit)
        self.chosen = {"tol": 1e-6, **options}

    def available(self) -> bool:
        """Whether it can be used: wherever it is imported."""
        return True

    def actualSolve(self, lp: Any, **options: Any) -> Any:
        """Solve a problem, and write values, reduced costs, prices and slacks into it.

        Parameters
        ----------
        lp : pulp.LpProblem
            The problem.
        options : dict
            Options for this solve alone.

        Returns
        -------
        pulp.LpSolveStats
            How the solve went, with the bound; before PuLP 4 its status, an integer.

        Raises
        ------
        ModelError
            If it has integer variables.
        """
        began = time.time(), sum(os.times()[:4])  # as PuLP counts
        rows = lp.constraints() if callable(lp.constraints) else list(lp.constraints.values())
        variables = lp.variables()
        whole = [v.name for v in variables if v.cat == pulp.LpInteger]
        if whole:
            need = "declare it as continuous, or give the problem to another solver"
            raise ModelError(f"variable {whole[0]!r} is an integer; {need}")
        program = _program(lp, variables, rows)
        limit = math.inf if self.timeLimit is None else float(self.timeLimit)
        found = solve_linear_program(program, time_limit=limit, **{**self.chosen, **options})
        known = math.isfinite(found.primal)
        if known:
            _write(program, found, variables, rows)
        if hasattr(pulp, "LpSolveStatus"):
            status = pulp.LpSolveStatus[WORDS.get(found.status, "Stopped")]
            bound = found.bound if math.isfinite(found.bound) else None
            return self.buildStats(lp, status, known, start=began, best_bound=bound)
        status, solution = _before_4(found.status, known)
        lp.assignStatus(status, solution)
        return status


def _before_4(status: Status, known: bool) -> tuple[int, int]:
    """The statuses of a problem and its solution in PuLP 2 and 3."""
    if status in (Status.OPTIMAL, Status.INFEASIBLE, Status.UNBOUNDED):
        word = WORDS[status]
        return int(getattr(pulp, f"LpStatus{word}")), int(getattr(pulp, f"LpSolution{word}"))
    solution = pulp.LpSolutionIntegerFeasible if known else pulp.LpSolutionNoSolutionFound
    return int(pulp.LpStatusNotSolved), int(solution)


def _program(lp: Any, variables: list[Any], rows: list[Any]) -> LinearProgram:
    """The LP that a problem states."""
    place = {hash(v): j for j, v in enumerate(variables)}  # of the same variable there may be several objects
    entries = [(value, i, place[hash(v)]) for i, row in enumerate(rows) for v, value in row.items()]
    parts = zip(*entries, strict=True) if entries else ([], [], [])
    data, at, column = map(np.array, parts)
    shape = len(rows), len(variables)
    matrix = csr_array((data.astype(np.float64), (at.astype(np.int64), column.astype(np.int64))), shape=shape)
    side = np.array([-row.constant for row in rows], dtype=np.float64)
    sense = np.array([row.sense for row in rows])
    cost = np.zeros(len(variables))
    for v, value in lp.objective.items():
        cost[place[hash(v)]] = value
    sides = (-np.inf, [v.lowBound for v in variables]), (np.inf, [v.upBound for v in variables])
    known = ([none if end is None else end for end in ends] for none, ends in sides)
    lower, upper = (np.array(ends, dtype=np.float64) for ends in known)
    least = np.where(sense == pulp.LpConstraintLE, -np.inf, side)
    most = np.where(sense == pulp.LpConstraintGE, np.inf, side)
    offset, maximize = float(lp.objective.constant), lp.sense == pulp.LpMaximize
    return LinearProgram(cost, matrix, least, most, lower, upper, offset, maximize)


def _write(program: LinearProgram, found: LinearSolution, variables: list[Any], rows: list[Any]) -> None:
    """Write a solution into a problem's variables and constraints."""
    reduced, activity = program.c - program.A.T @ found.row_price, program.A @ found.x
    for v, value, cost in zip(variables, found.x, reduced, strict=True):
        v.varValue, v.dj = float(value), float(cost)
    for row, price, reached in zip(rows, found.row_price, activity, strict=True):
        row.pi, row.slack = float(price), float(-row.constant - reached)
