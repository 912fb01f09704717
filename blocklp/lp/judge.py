r"""What a point and multipliers of an LP prove, by a few lines that know no solver.

For any multipliers y, good or bad, with the reduced costs :math:`r = c - A^\top y`,

.. math:: \sum_i \min_{l_i \le s_i \le u_i} y_i s_i + \sum_j \min_{lo_j \le x_j \le hi_j} r_j x_j

is a lower bound (Neumaier and Shcherbina 2004).  All rounding is charged.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from blocklp.linear_program import Array, LinearProgram

EPS = float(np.finfo(np.float64).eps)

FEASIBLE = 1e-6
"""Violation of rows and bounds up to which a point counts as feasible, relative to the row."""

SMALLEST, LARGEST = 1e-200, 1e200
"""Magnitudes between which what rounding takes from products is a number itself."""


def proved(
    program: LinearProgram,
    price: Array,
    lower: Array,
    upper: Array,
    slack: Array | None = None,
    zero: NDArray[np.bool_] | None = None,
) -> float:
    """A lower bound on the least value of an LP of minimisation.

    Parameters
    ----------
    program : LinearProgram
        The LP; its own bounds are not read.
    price : ndarray
        ``(rows,)``: multipliers, positive for lower sides; those of sides that rows do not have count as zero.
    lower, upper : ndarray
        ``(variables,)``: bounds of the variables, infinite where there is none.
    slack, zero : ndarray, optional
        ``(rows,)``, ``(variables,)`` bool: the bound is that of some multipliers within ``slack`` of those given, of which it is
        known that they make these reduced costs zero exactly.

    Returns
    -------
    float
        Minus infinity where a reduced cost is not zero and its variable has no bound on that side.
    """
    price = of_sides(program, price)
    near = [price] if slack is None else [price - slack, price + slack]
    with np.errstate(invalid="ignore"):
        sides = [np.where(y > 0, program.row_lower, program.row_upper) for y in near]
        rows = np.minimum.reduce([np.where(y == 0, 0.0, y * side) for y, side in zip(near, sides, strict=True)])
    reduced, doubt = reduced_costs(program, price, np.isinf(lower) | np.isinf(upper), slack)
    with np.errstate(invalid="ignore"):
        ends = [np.where(r == 0, 0.0, r * x) for r in (reduced - doubt, reduced + doubt) for x in (lower, upper)]
    columns = np.minimum.reduce(ends)
    columns = columns if zero is None else np.where(zero, 0.0, columns)
    value = float(np.sum(rows) + np.sum(columns) + program.offset)
    size = float(np.abs(rows).sum() + np.abs(columns).sum() + abs(program.offset))
    return value - EPS * (len(rows) + len(columns) + 4) * size if np.isfinite(value) else -np.inf


def of_sides(program: LinearProgram, price: Array) -> Array:
    """Multipliers ``(rows,)``, zero for sides that rows do not have."""
    return np.where(np.isfinite(np.where(price > 0, program.row_lower, program.row_upper)), price, 0.0)


def reduced_costs(program: LinearProgram, price: Array, exact: NDArray[np.bool_], slack: Array | None = None) -> tuple[Array, Array]:
    """What multipliers leave of the costs, and how much that may be off by rounding, or by multipliers off by ``slack``.

    Of the columns ``exact`` ``(variables,)`` those that are within rounding of zero are added up without any.
    """
    back, sizes = program.by_column, program.sizes_by_column
    count, size = np.diff(back.indptr), np.abs(price) if slack is None else np.abs(price) + slack
    reduced = program.c - back @ price
    doubt = EPS * (count + 2) * (np.abs(program.c) + sizes @ size)
    doubt[count == 0] = 0.0
    for j in np.flatnonzero(exact & (np.abs(reduced) <= doubt) & (doubt > 0)):
        own = slice(back.indptr[j], back.indptr[j + 1])
        entry, y = back.data[own], price[back.indices[own]]
        high, low = _products(entry, y)
        if ((np.abs(high) > SMALLEST) & (np.abs(entry) < LARGEST) & (np.abs(y) < LARGEST) | (high == 0) & (y == 0)).all():
            reduced[j] = math.fsum([program.c[j], *-high, *-low])
            doubt[j] = EPS * abs(reduced[j])
    doubt += 0.0 if slack is None else (1 + EPS * (count + 2)) * (sizes @ slack)
    return reduced, doubt


def _products(a: Array, b: Array) -> tuple[Array, Array]:
    """Products and what rounding took from them, exactly (Dekker 1971)."""
    product, (a_high, b_high) = a * b, ((2.0**27 + 1) * side for side in (a, b))
    a_high, b_high = a_high - (a_high - a), b_high - (b_high - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def violation(program: LinearProgram, x: Array) -> float:
    """Largest violation of a row or bound, relative to its side or the terms of the row; to the largest entry where both are zero."""
    largest = np.abs(x).max(initial=0.0)
    matrix = program.sizes
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
