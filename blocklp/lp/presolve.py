"""HiGHS's presolve as a reduction: a smaller LP, and the way back for points and multipliers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blocklp.linear_program import Array, LinearProgram, loaded_highs, program_of


@dataclass(frozen=True)
class Presolved:
    """What presolve made of an LP.

    Attributes
    ----------
    program : LinearProgram or None
        What is left to solve; None where presolve says that the LP has no feasible point, or no least value.
    """

    program: LinearProgram | None
    _highs: Any

    def restore(self, x: Array, price: Array) -> tuple[Array, Array]:
        """A point ``(columns,)`` and multipliers ``(rows,)`` of the LP given, from those of :attr:`program`, in its sense."""
        import highspy

        solution = highspy.HighsSolution()
        solution.col_value, solution.row_dual = list(x), list(price)
        assert self.program is not None
        solution.row_value = list(self.program.A @ x)
        solution.col_dual = list(self.program.c - self.program.A.T @ price)
        solution.value_valid = solution.dual_valid = True
        self._highs.postsolve(solution)
        found = self._highs.getSolution()
        return np.array(found.col_value), np.array(found.row_dual)


def presolved(program: LinearProgram, seconds: float) -> Presolved | None:
    """Reduce an LP by HiGHS's rules; None where highspy is not installed, or the time is over."""
    try:
        import highspy
    except ImportError:
        return None
    highs = loaded_highs(program, time_limit=max(0.0, min(seconds, 1e9)))
    highs.presolve()
    status, found = highs.getModelPresolveStatus(), highspy.HighsPresolveStatus
    if status in (found.kInfeasible, found.kUnboundedOrInfeasible):
        return Presolved(None, highs)
    if status not in (found.kReduced, found.kReducedToEmpty, found.kNotReduced):
        return None
    made = program_of(highs.getPresolvedLp())
    return Presolved(replace(made, offset=made.offset + program.offset), highs)
