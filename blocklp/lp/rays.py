"""Proofs that an LP has no feasible point, or no least value: rays that HiGHS finds and the judge checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blocklp.deadline import Deadline
from blocklp.general_solvers.linear_program import Array, LinearProgram, loaded_highs
from blocklp.general_solvers.simplex_turns import run_within
from blocklp.general_solvers.small_lp import DUAL_SIMPLEX, PRIMAL_SIMPLEX
from blocklp.lp.best import needed
from blocklp.lp.closing import proved_closed
from blocklp.lp.implied_bounds import implied_bounds
from blocklp.lp.judge import EPS, FEASIBLE, violation
from blocklp.lp.scaling import Scaled
from blocklp.status import Status

TRACE = 1e-9
"""Part of the largest multiplier of a ray below which another one is rounding."""

ALONG = 1e-9
"""Largest violation of the recession cone by a ray, relative to its terms."""

UNLIMITED = 2**31 - 1
"""Iterations of the simplex methods."""

LENGTHS = (0.0, 1.0, 1e2, 1e4)
"""Of a ray from the origin, at which points are tried, over the largest number that a row asks for."""


def verdict(program: LinearProgram, seconds: float) -> Status | None:
    """Look for a ray that proves an LP infeasible or unbounded.

    Rays along which the value falls are points of an LP of their own, which has an optimum: the least value
    in the cone of recession, cut off where an entry is 1 or -1.  It takes much less time than to follow the
    value of the LP itself to where it has no end.

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

    deadline = Deadline.of(seconds)
    ray = _falling_ray(program, deadline)
    if ray is not None and (_has_point_along(program, ray) or _has_point(program, deadline)):
        return Status.UNBOUNDED
    highs = _without_costs(program, DUAL_SIMPLEX)
    if run_within(highs, deadline.left(), UNLIMITED) != highspy.HighsModelStatus.kInfeasible:
        return None
    rays = (_of_a_row(program), np.array(highs.getDualRay()[2]))
    return Status.INFEASIBLE if any(proves_infeasible(program, ray) for ray in rays) else None


def _falling_ray(program: LinearProgram, deadline: Deadline) -> Array | None:
    """A ray of the cone of recession ``(variables,)`` along which the value falls; None for none.

    It is looked for in scaled variables: the simplex method fails where costs differ by many orders.
    """
    import highspy

    low, high = np.where(np.isinf(program.lower), -1.0, 0.0), np.where(np.isinf(program.upper), 1.0, 0.0)
    if not (((program.c < 0) & (high > 0)) | ((program.c > 0) & (low < 0))).any():
        return None
    below, above = (np.where(np.isfinite(side), 0.0, side) for side in (program.row_lower, program.row_upper))
    cone, scaled = LinearProgram(program.c, program.A, below, above, low, high), Scaled.of(program)
    highs = loaded_highs(replace(cone, c=scaled.program.c, A=scaled.program.A))
    status = run_within(highs, deadline.left(), UNLIMITED)
    ray = np.array(highs.getSolution().col_value) * scaled.column
    if status != highspy.HighsModelStatus.kOptimal or not np.isfinite(ray).all():
        return None
    unbounded = replace(cone, lower=np.where(low < 0, -np.inf, 0.0), upper=np.where(high > 0, np.inf, 0.0))
    falls = float(program.c @ ray) < -ALONG * float(np.abs(program.c) @ np.abs(ray))
    return ray if falls and violation(unbounded, ray) <= ALONG else None


def _has_point_along(program: LinearProgram, ray: Array) -> bool:
    """Whether points on a ray from the origin satisfy rows and bounds, rounding included."""
    terms, unit = EPS * (np.diff(program.A.indptr) + 2), needed(program)
    for length in LENGTHS:
        x = np.clip(length * unit * ray, program.lower, program.upper)
        activity, error = program.A @ x, terms * (program.sizes @ np.abs(x))
        if ((activity - error >= program.row_lower) & (activity + error <= program.row_upper)).all():
            return True
    return False


def _has_point(program: LinearProgram, deadline: Deadline) -> bool:
    """Whether the primal simplex method finds a feasible point."""
    import highspy

    highs = _without_costs(program, PRIMAL_SIMPLEX)
    if run_within(highs, deadline.left(), UNLIMITED) != highspy.HighsModelStatus.kOptimal:
        return False
    return violation(program, np.array(highs.getSolution().col_value)) <= FEASIBLE


def _without_costs(program: LinearProgram, strategy: int) -> Any:
    """HiGHS with an LP without costs, for one of its simplex methods, which is to begin from the slacks."""
    options = {"presolve": "off", "solver": "simplex", "simplex_strategy": strategy}
    return loaded_highs(replace(program, c=np.zeros_like(program.c)), **options)


def _of_a_row(program: LinearProgram) -> Array:
    """The unit ray of the most violated row: HiGHS gives none where a row has no entries."""
    plus, minus = program.A.maximum(0), program.A.minimum(0)
    above = plus @ program.lower + minus @ program.upper - program.row_upper
    below = program.row_lower - plus @ program.upper - minus @ program.lower
    ray = np.zeros(len(above))
    if len(ray):
        ray[np.maximum(above, below).argmax()] = 1.0
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
