r"""Bounds and violations of a point and multipliers of an LP, by a few lines independent of any solver.

For any multipliers y, good or bad, with the reduced costs :math:`r = c - A^\top y`,

.. math:: \sum_i \min_{l_i \le s_i \le u_i} y_i s_i + \sum_j \min_{lo_j \le x_j \le hi_j} r_j x_j

is a lower bound (Neumaier and Shcherbina 2004).  All rounding is charged.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from blocklp.general_solvers.linear_program import Array, LinearProgram

EPS = float(np.finfo(np.float64).eps)

FEASIBLE = 1e-6
"""Violation of rows and bounds up to which a point counts as feasible, relative to the row."""

SMALLEST, LARGEST = 1e-200, 1e200
"""Magnitudes between which the rounding error of a product is a floating-point number."""


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
        The LP; its bounds of variables are not read.
    price : ndarray
        ``(rows,)``: multipliers, positive for lower sides; those of sides that rows do not have count as
        zero.
    lower, upper : ndarray
        ``(variables,)``: bounds of the variables, infinite where there is none.
    slack, zero : ndarray, optional
        ``(rows,)``, ``(variables,)`` bool: the bound is that of some multipliers within ``slack`` of those
        given, of which it is known that they make these reduced costs zero exactly.

    Returns
    -------
    float
        Minus infinity where a reduced cost is not zero and its variable has no bound on that side.
    """
    price = of_sides(program, price)
    near = [price] if slack is None else [price - slack, price + slack]
    with np.errstate(invalid="ignore"):
        sides = [np.where(y > 0, program.row_lower, program.row_upper) for y in near]
        terms = [np.where(y == 0, 0.0, y * side) for y, side in zip(near, sides, strict=True)]
        rows = np.minimum.reduce(terms)
    reduced, error = reduced_costs(program, price, np.isinf(lower) | np.isinf(upper), slack)
    extremes = (reduced - error, reduced + error)
    with np.errstate(invalid="ignore"):
        ends = [np.where(r == 0, 0.0, r * x) for r in extremes for x in (lower, upper)]
    columns = np.minimum.reduce(ends)
    columns = columns if zero is None else np.where(zero, 0.0, columns)
    value = float(np.sum(rows) + np.sum(columns) + program.offset)
    size = float(np.abs(rows).sum() + np.abs(columns).sum() + abs(program.offset))
    return value - EPS * (len(rows) + len(columns) + 4) * size if np.isfinite(value) else -np.inf


def of_sides(program: LinearProgram, price: Array) -> Array:
    """Multipliers ``(rows,)``, zero for sides that rows do not have."""
    return np.where(np.isfinite(np.where(price > 0, program.row_lower, program.row_upper)), price, 0.0)


def reduced_costs(
    program: LinearProgram,
    price: Array,
    exact: NDArray[np.bool_],
    slack: Array | None = None,
) -> tuple[Array, Array]:
    """Reduced costs of multipliers, and bounds on their errors.

    Parameters
    ----------
    program : LinearProgram
        The LP.
    price : ndarray
        ``(rows,)``: multipliers.
    exact : ndarray
        ``(variables,)`` bool: the columns that are summed exactly where they are within rounding of zero.
    slack : ndarray, optional
        ``(rows,)``: errors of the multipliers, zero by default.

    Returns
    -------
    reduced, error : ndarray
        ``(variables,)``: reduced costs, and their largest errors by rounding and by ``slack``.
    """
    back, sizes = program.by_column, program.sizes_by_column
    count, size = np.diff(back.indptr), np.abs(price) if slack is None else np.abs(price) + slack
    reduced = program.c - back @ price
    error = EPS * (count + 2) * (np.abs(program.c) + sizes @ size)
    error[count == 0] = 0.0
    for j in np.flatnonzero(exact & (np.abs(reduced) <= error) & (error > 0)):
        column = slice(back.indptr[j], back.indptr[j + 1])
        entry, y = back.data[column], price[back.indices[column]]
        high, low = _products(entry, y)
        in_range = (np.abs(high) > SMALLEST) & (np.abs(entry) < LARGEST) & (np.abs(y) < LARGEST)
        if (in_range | (high == 0) & (y == 0)).all():
            reduced[j] = math.fsum([program.c[j], *-high, *-low])
            error[j] = EPS * abs(reduced[j])
    error += 0.0 if slack is None else (1 + EPS * (count + 2)) * (sizes @ slack)
    return reduced, error


def _products(a: Array, b: Array) -> tuple[Array, Array]:
    """Products and their rounding errors, exactly (Dekker 1971)."""
    product, (a_high, b_high) = a * b, ((2.0**27 + 1) * side for side in (a, b))
    a_high, b_high = a_high - (a_high - a), b_high - (b_high - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def violation(program: LinearProgram, x: Array) -> float:
    """Largest relative violation of a row or bound at a point ``(variables,)``.

    Relative to the side or the terms of the row, whichever is larger; to terms of the largest entry where the
    side is zero.
    """
    largest = np.abs(x).max(initial=0.0)
    matrix = program.sizes
    terms, reach = matrix @ np.abs(x), matrix @ np.full(len(x), largest)
    parts = [
        (program.A @ x, program.row_lower, program.row_upper, terms, reach),
        (x, program.lower, program.upper, np.abs(x), np.full(len(x), largest)),
    ]
    worst = 0.0
    for value, low, high, magnitude, size in parts:
        for side, over in ((low, low - value), (high, value - high)):
            scale = np.where(np.abs(side) > 0, np.maximum(np.abs(side), magnitude), size)
            with np.errstate(invalid="ignore", divide="ignore"):
                worst = max(worst, float(np.where(over > 0, over / scale, 0.0).max(initial=0.0)))
    return worst
