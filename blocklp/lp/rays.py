"""Proofs that an LP has no feasible point, or no least value: rays that HiGHS finds and the judge checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blocklp.general_solvers.linear_program import Array, LinearProgram, loaded_highs
from blocklp.lp.closing import proved_closed
from blocklp.lp.implied_bounds import implied_bounds
from blocklp.lp.judge import FEASIBLE, violation
from blocklp.status import Status

TRACE = 1e-9
"""Part of the largest multiplier of a ray below which another one is rounding."""

ALONG = 1e-9
"""Largest violation of the recession cone by a ray, relative to its terms."""


def verdict(program: LinearProgram, seconds: float) -> Status | None:
    """Look for a ray that proves an LP infeasible or unbounded.

    Parameters
    ----------
    program : LinearProgram
        An LP of minimisation.
    seconds : float
        Most time for the simplex method.

    Returns
    -------
    Status or None
        ``INFEASIBLE``, ``UNBOUNDED``, or None where no ray was found in time.
    """
    import highspy

    limit = max(0.0, min(seconds, 1e9))
    highs = loaded_highs(program, presolve="off", solver="simplex", time_limit=limit)
    highs.run()
    status, x = highs.getModelStatus(), np.array(highs.getSolution().col_value)
    if status == highspy.HighsModelStatus.kInfeasible:
        rays = [_of_a_row(program), np.array(highs.getDualRay()[2])]
        return Status.INFEASIBLE if any(proves_infeasible(program, ray) for ray in rays) else None
    if status == highspy.HighsModelStatus.kUnbounded:
        rays = [_of_a_column(program), np.array(highs.getPrimalRay()[2])]
        if violation(program, x) > FEASIBLE:  # the ray was found on the way to a feasible point
            feasibility = loaded_highs(replace(program, c=np.zeros_like(program.c)), time_limit=limit)
            feasibility.run()
            x = np.array(feasibility.getSolution().col_value)
        return Status.UNBOUNDED if any(_proves_unbounded(program, x, ray) for ray in rays) else None
    return None


def _of_a_row(program: LinearProgram) -> Array:
    """The unit ray of the most violated row: HiGHS gives none where a row has no entries."""
    plus, minus = program.A.maximum(0), program.A.minimum(0)
    with np.errstate(invalid="ignore"):
        low, high = (np.where(np.isfinite(s), s, 0.0) for s in (program.lower, program.upper))
        above = plus @ low + minus @ high - program.row_upper
        violation_of_rows = np.maximum(above, program.row_lower - plus @ high - minus @ low)
    ray = np.zeros(len(violation_of_rows))
    if len(ray):
        ray[violation_of_rows.argmax()] = 1.0
    return ray


def _of_a_column(program: LinearProgram) -> Array:
    """The unit ray of a variable in no row that is unbounded in the direction of its cost."""
    no_row = np.diff(program.A.tocsc().indptr) == 0
    free = no_row & np.isinf(np.where(program.c > 0, program.lower, program.upper)) & (program.c != 0)
    ray = np.zeros(len(program.c))
    if free.any():
        ray[free.argmax()] = -np.sign(program.c[free.argmax()])
    return ray


def infeasible_by_one_row(program: LinearProgram) -> bool:
    """Whether bounds, those that rows imply, or a single row prove that an LP has no feasible point.

    Rounding is charged.  False says nothing.
    """
    low, high = implied_bounds(program)
    return bool((low > high).any()) or proves_infeasible(program, _of_a_row(program))


def proves_infeasible(program: LinearProgram, ray: Array) -> bool:
    """Whether multipliers ``(rows,)`` are a Farkas proof that no point in the bounds satisfies the rows."""
    if len(ray) != len(program.row_lower):
        return False
    feasibility, box = replace(program, c=np.zeros_like(program.c), offset=0.0), implied_bounds(program)
    # Rounding may leave a trace of rows that have no part in the proof, and with them of variables without
    # bounds.
    clean = np.where(np.abs(ray) > TRACE * np.abs(ray).max(initial=0.0), ray, 0.0)
    candidates = (clean, -clean, ray, -ray)
    return any(proved_closed(feasibility, candidate, *box)[0] > 0 for candidate in candidates)


def _proves_unbounded(program: LinearProgram, x: Array, ray: Array) -> bool:
    """Whether the value falls without end along a ray from a feasible point."""
    if len(ray) != len(program.c):
        return False
    sides: dict[str, Any] = {}
    for name in ("row_lower", "row_upper", "lower", "upper"):
        side = getattr(program, name)
        sides[name] = np.where(np.isfinite(side), 0.0, side)
    cone = replace(program, **sides)
    falls = float(program.c @ ray) < -ALONG * float(np.abs(program.c) @ np.abs(ray))
    return falls and violation(cone, ray) <= ALONG and violation(program, x) <= FEASIBLE
