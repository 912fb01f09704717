"""Proofs that an LP has no feasible point, or no least value: rays that HiGHS finds and the judge checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blocklp.linear_program import Array, LinearProgram, loaded_highs
from blocklp.lp.closing import proved_closed
from blocklp.lp.implied_bounds import implied_bounds
from blocklp.lp.judge import FEASIBLE, violation
from blocklp.status import Status

TRACE = 1e-9
"""Part of the largest multiplier of a ray below which another one is rounding."""

ALONG = 1e-9
"""Largest part of its terms by which a ray may leave what it must stay in."""


def verdict(program: LinearProgram, seconds: float) -> Status | None:
    """Whether an LP of minimisation is infeasible or unbounded, by a ray that proves it; None where none was found in time.

    Parameters
    ----------
    program : LinearProgram
        The LP.
    seconds : float
        Most time for the simplex method.
    """
    import highspy

    highs = loaded_highs(program, presolve="off", solver="simplex", time_limit=max(0.0, min(seconds, 1e9)))
    highs.run()
    status, x = highs.getModelStatus(), np.array(highs.getSolution().col_value)
    if status == highspy.HighsModelStatus.kInfeasible:
        rays = [_of_a_row(program), np.array(highs.getDualRay()[2])]
        return Status.INFEASIBLE if any(proves_infeasible(program, ray) for ray in rays) else None
    if status == highspy.HighsModelStatus.kUnbounded:
        rays = [_of_a_column(program), np.array(highs.getPrimalRay()[2])]
        if violation(program, x) > FEASIBLE:  # the ray was found on the way to a feasible point
            anywhere = loaded_highs(replace(program, c=np.zeros_like(program.c)), time_limit=max(0.0, min(seconds, 1e9)))
            anywhere.run()
            x = np.array(anywhere.getSolution().col_value)
        return Status.UNBOUNDED if any(_proves_unbounded(program, x, ray) for ray in rays) else None
    return None


def _of_a_row(program: LinearProgram) -> Array:
    """The row whose variables allow it least, alone: HiGHS gives no ray where a row has no entries."""
    plus, minus = program.A.maximum(0), program.A.minimum(0)
    with np.errstate(invalid="ignore"):
        low, high = (np.where(np.isfinite(s), s, 0.0) for s in (program.lower, program.upper))
        off = np.maximum(plus @ low + minus @ high - program.row_upper, program.row_lower - plus @ high - minus @ low)
    ray = np.zeros(len(off))
    if len(off):
        ray[off.argmax()] = 1.0
    return ray


def _of_a_column(program: LinearProgram) -> Array:
    """A variable in no row that may go on for ever, alone."""
    unmet = np.diff(program.A.tocsc().indptr) == 0
    free = unmet & np.isinf(np.where(program.c > 0, program.lower, program.upper)) & (program.c != 0)
    ray = np.zeros(len(program.c))
    if free.any():
        ray[free.argmax()] = -np.sign(program.c[free.argmax()])
    return ray


def proves_infeasible(program: LinearProgram, ray: Array) -> bool:
    """Farkas: the rows, added up with these multipliers, ask for more than the variables can give."""
    if len(ray) != len(program.row_lower):
        return False
    nothing, box = replace(program, c=np.zeros_like(program.c), offset=0.0), implied_bounds(program)
    # Rounding may leave a trace of rows that have no part in the proof, and with them of variables without bounds.
    clean = np.where(np.abs(ray) > TRACE * np.abs(ray).max(initial=0.0), ray, 0.0)
    return any(proved_closed(nothing, sign * own, *box)[0] > 0 for own in (clean, ray) for sign in (1.0, -1.0))


def _proves_unbounded(program: LinearProgram, x: Array, ray: Array) -> bool:
    """The value falls without end along a ray from a feasible point."""
    names = ("row_lower", "row_upper", "lower", "upper")
    sides: dict[str, Any] = {name: np.where(np.isfinite(side := getattr(program, name)), 0.0, side) for name in names}
    cone = replace(program, **sides)
    falls = len(ray) == len(program.c) and float(program.c @ ray) < -ALONG * float(np.abs(program.c) @ np.abs(ray))
    return falls and violation(cone, ray) <= ALONG and violation(program, x) <= FEASIBLE
