"""What prices of the rows of an LP prove, and what a point is worth, compiled for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import compile
from blocklp.kernels.dual_simplex_layout import FAR
from blocklp.kernels.row_kernels import EXACT

FEASIBLE = 1e-6
"""Violation of rows and bounds up to which a point counts as feasible, relative to the terms of the row."""

EPS = float(np.finfo(np.float64).eps)


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def certified(cost: Any, factor: float, price: Any, low: Any, high: Any, program: Any, room: Any) -> float:
    """A lower bound by prices, all rounding charged (Neumaier and Shcherbina 2004).

    Parameters
    ----------
    cost : ndarray
        ``(variables,)``.
    factor : float
        The costs count so many times: 1, or 0 for a proof that there is no point.
    price : ndarray
        ``(rows,)``: may be moved towards the interior, so far as variables without an upper bound need it.
    low, high : ndarray
        ``(variables + rows,)``: bounds of variables and activities; the upper ones may be infinite.
    program : tuple
        The matrix by rows (starts, columns, entries); ``(variables,)`` relative errors of the sums in
        columns, and upper bounds that rows imply; prices ``(rows,)`` and reduced costs ``(variables,)`` of
        the interior, positive where these bounds are infinite too, and whether they are those of the LP's
        costs, not of none.
    room : ndarray
        ``(2, variables)``: overwritten.

    Returns
    -------
    float
        Minus infinity where nothing is proved.
    """
    (start, column, entry), errors, implied, inner, margin, objective = program
    n, reduced, terms = len(cost), room[0], room[1]
    for attempt in range(2):
        total, size, need = 0.0, 0.0, 0.0
        for j in range(n):
            reduced[j] = factor * cost[j]
            terms[j] = abs(reduced[j])
        for i in range(len(price)):
            y = price[i]
            side = low[n + i] if y > 0 else high[n + i]
            if y == 0 or abs(side) == np.inf:
                price[i] = 0.0
                continue
            total += y * side
            size += abs(y * side)
            for e in range(start[i], start[i + 1]):
                term = entry[e] * y
                reduced[column[e]] -= term
                terms[column[e]] += abs(term)
        for j in range(n):
            own, error = reduced[j], errors[j] * terms[j]
            if own >= error:  # the sign is sure, and the upper bound of no account
                least = min((own - error) * low[j], (own + error) * low[j])
            else:
                end = min(high[j], implied[j])
                if end < np.inf:
                    least = min(own * low[j], own * end) - error * max(abs(low[j]), abs(end))
                else:
                    least = (own - error) * low[j]
                    need = max(need, (error - own) / margin[j] if margin[j] > 0 else np.inf)
            total += least
            size += abs(least)
        if need == 0:
            return total - EPS * (n + len(price) + 4) * size
        mixed = 4 * need
        if attempt or mixed == np.inf or (objective and (factor == 0 or mixed > 0.5)):
            break
        for i in range(len(price)):
            price[i] += mixed * (inner[i] - (price[i] if objective else 0.0))
    return -np.inf


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def value_of(cost: Any, x: Any, low: Any, high: Any, matrix: Any, room: Any) -> float:
    """The value of a point, infinite where rows that are calculated anew are violated.

    Parameters
    ----------
    cost : ndarray
        ``(variables,)``.
    x, low, high : ndarray
        ``(variables + rows,)``: the point and its activities, of which the first are read, and bounds.
    matrix : tuple
        The matrix by columns: starts, rows, entries.
    room : ndarray
        ``(2, rows)``: overwritten.

    Returns
    -------
    float
        The value.
    """
    start, index, entry = matrix
    n, total, activity, size = len(cost), 0.0, room[0], room[1]
    activity[:], size[:] = 0, 0
    for j in range(n):
        at = min(max(x[j], low[j]), high[j])
        if abs(at - x[j]) > FEASIBLE * (1 + abs(at)) or abs(at) >= FAR:
            return np.inf
        if at != 0:
            total += cost[j] * at
            for e in range(start[j], start[j + 1]):
                activity[index[e]] += entry[e] * at
                size[index[e]] += abs(entry[e] * at)
    for i in range(len(activity)):
        off = max(low[n + i] - activity[i], activity[i] - high[n + i])
        if off > FEASIBLE * max(size[i], 1e-3):
            return np.inf
    return total
