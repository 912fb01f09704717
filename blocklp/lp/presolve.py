"""HiGHS's presolve as a reduction: a smaller LP, and the way back for points and multipliers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blocklp.general_solvers.linear_program import Array, LinearProgram, loaded_highs, program_of


@dataclass(frozen=True)
class PresolvedProgram:
    """A presolved LP, and the inverse of the reduction.

    Attributes
    ----------
    program : LinearProgram or None
        The reduced LP; None where presolve says that the LP has no feasible point, or no least value.
    """

    program: LinearProgram | None
    _highs: Any

    def restore(self, x: Array, price: Array) -> tuple[Array, Array]:
        """Point ``(variables,)`` and prices ``(rows,)`` of the LP given, from those of :attr:`program`."""
        import highspy

        solution = highspy.HighsSolution()
        solution.col_value, solution.row_dual = list(x), list(price)
        assert self.program is not None
        solution.row_value = list(self.program.A @ x)
        solution.col_dual = list(self.program.c - self.program.A.T @ price)
        solution.value_valid = solution.dual_valid = True
        self._highs.postsolve(solution)
        restored = self._highs.getSolution()
        return np.array(restored.col_value), np.array(restored.row_dual)


def presolved(program: LinearProgram, seconds: float) -> PresolvedProgram | None:
    """Reduce an LP by HiGHS's presolve; None where highspy is not installed, or the ``seconds`` are over."""
    try:
        import highspy
    except ImportError:
        return None
    highs = loaded_highs(program, time_limit=max(0.0, min(seconds, 1e9)))
    highs.presolve()
    status, statuses = highs.getModelPresolveStatus(), highspy.HighsPresolveStatus
    if status in (statuses.kInfeasible, statuses.kUnboundedOrInfeasible):
        return PresolvedProgram(None, highs)
    if status not in (statuses.kReduced, statuses.kReducedToEmpty, statuses.kNotReduced):
        return None
    reduced = program_of(highs.getPresolvedLp())
    return PresolvedProgram(replace(reduced, offset=reduced.offset + program.offset), highs)
