r"""What a point and multipliers of an LP prove, by a few lines that know no solver.

For any multipliers y, good or bad, with the reduced costs :math:`r = c - A^\top y`,

.. math:: \sum_i \min_{l_i \le s_i \le u_i} y_i s_i + \sum_j \min_{lo_j \le x_j \le hi_j} r_j x_j

is a lower bound (Neumaier and Shcherbina 2004).  All rounding is charged.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from blocklp.linear_program import Array, LinearProgram

EPS = float(np.finfo(np.float64).eps)


def proved(program: LinearProgram, price: Array, lower: Array, upper: Array) -> float:
    """A lower bound on the least value of an LP of minimisation.

    Parameters
    ----------
    program : LinearProgram
        The LP; its own bounds are not read.
    price : ndarray
        ``(rows,)``: multipliers, positive for lower sides; those of sides that rows do not have count as zero.
    lower, upper : ndarray
        ``(variables,)``: bounds of the variables, infinite where there is none.

    Returns
    -------
    float
        Minus infinity where a reduced cost is not zero and its variable has no bound on that side.
    """
    side = np.where(price > 0, program.row_lower, program.row_upper)
    price = np.where(np.isfinite(side), price, 0.0)
    rows = price * np.where(np.isfinite(side), side, 0.0)
    back = csr_array(program.A.T)
    terms = np.diff(back.indptr) + 2
    reduced = program.c - back @ price
    doubt = EPS * terms * (np.abs(program.c) + abs(back) @ np.abs(price))
    doubt[(np.diff(back.indptr) == 0)] = 0.0
    with np.errstate(invalid="ignore"):
        ends = [np.where(r == 0, 0.0, r * x) for r in (reduced - doubt, reduced + doubt) for x in (lower, upper)]
    columns = np.minimum.reduce(ends)
    value = float(np.sum(rows) + np.sum(columns) + program.offset)
    size = float(np.abs(rows).sum() + np.abs(columns).sum() + abs(program.offset))
    return value - EPS * (len(rows) + len(columns) + 3) * size if np.isfinite(value) else -np.inf


def violation(program: LinearProgram, x: Array) -> float:
    """Largest violation of a row or bound, relative to its side or the terms of the row; to the largest entry where both are zero."""
    largest = np.abs(x).max(initial=0.0)
    matrix = abs(program.A)
    terms, reach = matrix @ np.abs(x), matrix @ np.full(len(x), largest)
    parts = [
        (program.A @ x, program.row_lower, program.row_upper, terms, reach),
        (x, program.lower, program.upper, np.abs(x), np.full(len(x), largest)),
    ]
    worst = 0.0
    for value, low, high, own, size in parts:
        for side, over in ((low, low - value), (high, value - high)):
            scale = np.where(np.abs(side) > 0, np.maximum(np.abs(side), own), size)
            with np.errstate(invalid="ignore", divide="ignore"):
                worst = max(worst, float(np.where(over > 0, over / scale, 0.0).max(initial=0.0)))
    return worst
