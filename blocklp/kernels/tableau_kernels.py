"""The dual simplex method on dense tableaus, one small LP after the other, compiled for the CPU.

The method is that of :mod:`blocklp.oracles.lp.dual_simplex`: the finite box makes the vertex of cheapest
bounds dual feasible, and the ratio test passes breakpoints.  Here rows leave by their violation over a
reference weight (dual Devex, Forrest and Goldfarb 1992), which costs no product with the tableau, and values
of basic variables are updated from pivot to pivot, and computed anew before the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import compile, kernel
from blocklp.kernels.row_kernels import BESIDE, EXACT

ENDED, EMPTY, UNFINISHED = 0, 1, 2
"""What :func:`pivoted_to_end` says: an optimum, no point, or that pivots did not suffice."""

GRAIN = 16
"""LPs that are worth waking a thread."""


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _add_column(t: Any, column: int, step: float, value: Any) -> None:
    """Values of the basic variables after a step of a nonbasic one."""
    for i in range(len(value)):
        value[i] += t[i, column] * step


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _evaluate(t: Any, basis: Any, sides: Any, at: Any, value: Any) -> None:
    """Values of nonbasic variables, at their bounds, and of basic ones."""
    (_, outside, _, above), (low, high) = basis, sides
    value[:] = 0
    for j in range(len(at)):
        k = outside[j]
        at[j] = high[k] if above[j] else low[k]
        if at[j] != 0:
            _add_column(t, j, at[j], value)


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _leaving(inside: Any, sides: Any, value: Any, weight: Any, slack: float, late: int) -> int:
    """The row of the largest squared violation over its weight; -1 if none is violated."""
    (low, high), best, row = sides, -1.0, -1
    for i in range(len(value)):
        k = inside[i]
        off = max(low[k] - value[i], value[i] - high[k])
        if off > slack:
            score = off * off / weight[i]
            if late:  # degenerate pivots may cycle: prefer other rows every time
                score *= 1 + (k * 7919 + late * 104729) % 61
            if score > best:
                best, row = score, i
    return row


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def breakpoints(entries: Any, sign: float, reduced: Any, above: Any, least: float, ratio: Any) -> None:
    """How far duals can go until each reduced cost is zero; infinite where it never is.

    Parameters
    ----------
    entries, reduced, above, ratio : ndarray
        ``(columns,)``: the leaving row, reduced costs, which variables are at their upper bounds, and what is
        written.
    sign, least : float
        Which way the row leaves, and the least magnitude of a pivot.
    """
    for j in range(len(entries)):
        slope = sign * entries[j]
        able = abs(slope) > least and (slope < 0 if above[j] else slope > 0)
        ratio[j] = abs(reduced[j]) / abs(slope) if able else np.inf


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def next_breakpoint(entries: Any, ratio: Any) -> int:
    """The column of the least ratio, and of the largest pivot, the most accurate, among ties; -1 for none."""
    column = -1
    for j in range(len(entries)):
        if ratio[j] < np.inf and (
            column < 0
            or ratio[j] < ratio[column]
            or (ratio[j] == ratio[column] and abs(entries[j]) > abs(entries[column]))
        ):
            column = j
    return column


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _entering(
    t: Any, row: int, sign: float, need: float, least: float, basis: Any, sides: Any, room: Any
) -> int:
    """The column where breakpoints add up to ``need``, -1 if they do not; those before it change sides."""
    (reduced, outside, _, above), (low, high), (at, ratio, _, value, _) = basis, sides, room
    entries, total = t[row], 0.0
    breakpoints(entries, sign, reduced, above, least, ratio)
    while True:
        column: int = next_breakpoint(entries, ratio)
        if column < 0:
            return -1
        k = outside[column]
        total += abs(entries[column]) * (high[k] - low[k])
        if total >= need:
            return column
        above[column] = not above[column]
        other = high[k] if above[column] else low[k]
        _add_column(t, column, other - at[column], value)
        at[column], ratio[column] = other, np.inf


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _exchange(t: Any, reduced: Any, row: int, column: int, across: Any, weight: Any) -> None:
    """The row leaves the basis and the column enters it."""
    pivot, own, dim = t[row, column], t[row], len(across)
    step, reference = reduced[column] / pivot, weight[row]
    for j in range(dim):
        reduced[j] -= step * own[j]
        across[j] = own[j] / pivot
    reduced[column] = step
    for i in range(len(weight)):
        other = t[i]
        factor = other[column]
        if i != row and factor != 0:
            for j in range(dim):
                other[j] -= factor * across[j]
            other[column] = factor / pivot
            weight[i] = max(weight[i], (factor / pivot) ** 2 * reference)
    for j in range(dim):
        own[j] = -across[j]
    own[column] = 1 / pivot
    weight[row] = max(reference / pivot**2, 1.0)


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def pivoted_to_end(t: Any, basis: Any, sides: Any, limits: Any, room: Any) -> int:
    """Pivot an LP to its last basis, in place.

    Parameters
    ----------
    t : ndarray
        ``(rows, dim)``: the tableau, basic variables by nonbasic ones.
    basis : tuple of ndarray
        Reduced costs ``(dim,)``, numbers of nonbasic ``(dim,)`` and of basic variables ``(rows,)``, and which
        of the nonbasic ones are at their upper bounds ``(dim,)``.
    sides : tuple of ndarray
        Lower and upper bounds of variables by their numbers; those of variables that are nonbasic first are
        finite.
    limits : tuple
        Most pivots, pivots after which rows are preferred in turn, against cycling, magnitude up to which
        entries of the tableau are taken for rounding, and violation up to which a row counts as satisfied.
    room : tuple of ndarray
        Values of nonbasic variables, ratios and a row ``(dim,)``; values of basic variables and weights
        ``(rows,)``: the values are written, for the last basis.

    Returns
    -------
    int
        ``ENDED``, ``EMPTY`` or ``UNFINISHED``.
    """
    (most, stall, least, slack), (at, _, across, value, weight) = limits, room
    (reduced, outside, inside, above), (low, high) = basis, sides
    _evaluate(t, basis, sides, at, value)
    weight[:], exact, pivots = 1.0, True, 0
    while pivots < most:
        row = _leaving(inside, sides, value, weight, slack, pivots if pivots > stall else 0)
        if row < 0:
            if exact:
                return ENDED
            _evaluate(t, basis, sides, at, value)
            exact = True
            continue
        k = inside[row]
        too_low = value[row] < low[k]
        side = low[k] if too_low else high[k]
        need = abs(side - value[row]) - slack
        column = _entering(t, row, 1.0 if too_low else -1.0, need, least, basis, sides, room)
        if column < 0:
            return EMPTY
        step = (side - value[row]) / t[row, column]
        _add_column(t, column, step, value)
        value[row], at[column] = at[column] + step, side
        _exchange(t, reduced, row, column, across, weight)
        inside[row], outside[column] = outside[column], k
        above[column], exact = not too_low, False
        pivots += 1
    return UNFINISHED


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _fill(groups: Any, sparse: Any, place: Any, entries: Any, number: Any, t: Any) -> None:
    """Write the rows that have a number of their own, not -1, into the tableau."""
    starts, column = sparse
    t[:] = 0
    for g in range(len(groups)):
        start, dim, blocks, rows, row, entry, own = groups[g]
        for r in range(rows):
            for k in range(blocks):
                at = number[row + r * blocks + k]
                if at < 0:
                    continue
                if own == BESIDE:
                    for e in range(starts[k], starts[k + 1]):
                        t[at, column[e]] += entries[entry + e]
                    continue
                for i in range(dim):
                    e = (r * dim + i) * blocks + k if own else r * dim + i
                    t[at, place[start + i * blocks + k]] += entries[entry + e]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _power_of_two(size: float) -> float:
    """The power of two next to a size; 1 for zero."""
    return float(2.0 ** np.round(np.log2(size))) if size > 0 else 1.0


@kernel(grain=GRAIN)
def vertices(
    begin: int,
    stop: int,
    limits: Any,
    layout: Any,
    places: Any,
    entries: Any,
    variables: Any,
    rows: Any,
    found: Any,
    ended: Any,
) -> None:
    """Solve LPs by rows (:class:`blocklp.kernels.program.Program`), an instance a unit, all in float64.

    Parameters
    ----------
    begin, stop : int
        The first instance, and one past the last.
    limits : ndarray
        ``(4,)`` float64: as in :func:`pivoted_to_end`, pivots over the number of rows and one more, and
        violations over the largest side of a row.
    layout : tuple of ndarray
        Groups and sparse rows of :class:`blocklp.kernels.row_layout.RowLayout`.
    places, entries : ndarray
        ``(batch or 1, copies)`` and ``(batch or 1, entries)``.
    variables : tuple of ndarray
        Cost, finite lower and upper bound, and unit of variables, ``(batch, variables)`` each.
    rows : tuple of ndarray
        Lower and upper side of rows, ``(batch, rows)`` each.
    found : tuple of ndarray
        Vertices ``(batch, variables)`` and duals of rows ``(batch, rows)``: written where the method ended.
    ended : ndarray
        ``(batch,)`` bool: written.
    """
    (groups, sparse), (x, y) = layout, found
    dim, count = x.shape[1], y.shape[1]
    tableau, number, own = np.empty((count, dim)), np.empty(count, np.int64), np.empty(count, np.int64)
    low, high, unit = np.empty(dim + count), np.empty(dim + count), np.empty(dim + count)
    reduced, outside, inside = np.empty(dim), np.empty(dim, np.int64), np.empty(count, np.int64)
    above, by_column, by_row = np.empty(dim, np.bool_), np.empty((3, dim)), np.empty((2, count))
    for b in range(begin, stop):
        many = 0
        for r in range(count):
            bounded = rows[0][b, r] > -np.inf or rows[1][b, r] < np.inf
            number[r] = many if bounded else -1
            if bounded:
                own[many], inside[many], many = r, dim + many, many + 1
        t = tableau[:many]
        _fill(groups, sparse, places[b % len(places)], entries[b % len(entries)], number, t)
        for j in range(dim):
            unit[j] = _power_of_two(variables[3][b, j])
            reduced[j], outside[j] = variables[0][b, j] * unit[j], j
            low[j], high[j] = variables[1][b, j] / unit[j], variables[2][b, j] / unit[j]
            above[j] = reduced[j] < 0
        largest = 1.0
        for i in range(many):
            size, r = 0.0, own[i]
            for j in range(dim):
                t[i, j] *= unit[j]
                size += abs(t[i, j])
            scale = 1 / _power_of_two(size)
            t[i] *= scale
            unit[dim + i], low[dim + i], high[dim + i] = scale, rows[0][b, r] * scale, rows[1][b, r] * scale
            for side in (low[dim + i], high[dim + i]):
                largest = max(largest, abs(side)) if abs(side) < np.inf else largest
        basis, sides = (reduced, outside, inside[:many], above), (low, high)
        room = by_column[0], by_column[1], by_column[2], by_row[0][:many], by_row[1][:many]
        own_limits = limits[0] * (many + 1), limits[1] * (many + 1), limits[2], limits[3] * largest
        ended[b] = pivoted_to_end(t, basis, sides, own_limits, room) == ENDED
        if ended[b]:
            y[b] = 0
            for j in range(dim):
                k = outside[j]
                if k < dim:
                    x[b, k] = room[0][j] * unit[k]
                else:
                    y[b, own[k - dim]] = reduced[j] * unit[k]
            for i in range(many):
                k = inside[i]
                if k < dim:
                    x[b, k] = room[3][i] * unit[k]
