"""The feasibility projection (:func:`blocklp.engine.projection.project`), and a descent along variables.

Both are compiled for the CPU. Blocks are taken by tiles, as in :mod:`blocklp.kernels.row_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import TILE, compile, kernel
from blocklp.kernels.fused_kernels import fold
from blocklp.kernels.row_kernels import EXACT, NEAR, add_adjoint, gather, row_product, sum_parts


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _dual_step(
    group: Any,
    first: int,
    count: int,
    slack: Any,
    sparse: Any,
    place: Any,
    entries: Any,
    sides: Any,
    point: Any,
    own: Any,
    near: Any,
    room: Any,
) -> tuple[bool, Any]:
    """A dual gradient step of a tile's rows: whether a row is violated, and how far momentum leads back."""
    lower, upper, sigma, length = sides
    y, ahead, new = own
    room[:] = 0
    reached, w, off, back = room[0], room[1], room[2], room[3]
    gather(group, first, count, place, point, near)
    for r in range(group[3]):
        at = group[4] + r * group[2] + first
        end = at + count
        row_product(group, entries, r, first, count, sparse, place, point, near, reached)
        low, high, allowed = lower[at:end], upper[at:end], slack[at:end]
        for q in range(count):
            off[q] = max(off[q], max(low[q] - reached[q], reached[q] - high[q]) - allowed[q])
        further, dual, step = ahead[at:end], y[at:end], new[at:end]
        weight, diagonal = length[at:end], sigma[at:end]
        for q in range(count):
            w[q] = further[q] * weight[q] - reached[q]
        for q in range(count):
            w[q] = diagonal[q] * (w[q] - min(max(w[q], -high[q]), -low[q]))
        for q in range(count):
            back[q] += (further[q] - w[q]) * weight[q] * (w[q] - dual[q])
        for q in range(count):
            step[q] = w[q]
    worst = off[0]
    for q in range(count):
        worst = max(worst, off[q])
    return not worst <= 0, fold(back)


@kernel(fastmath=EXACT)
def project(
    begin: int,
    stop: int,
    most: int,
    layout: Any,
    places: Any,
    entries: Any,
    variables: Any,
    rows: Any,
    slack: Any,
    own: Any,
    pulled: Any,
    found: Any,
    passes: Any,
) -> None:
    """Project points onto the feasible set (:func:`blocklp.engine.projection.project`), an instance a unit.

    Parameters
    ----------
    begin, stop : int
        The first instance, and one past the last.
    most : int
        Most passes.
    layout, places, entries
        As in :func:`blocklp.kernels.program_kernels.passes`.
    variables : tuple of ndarray
        ``(batch, variables)`` each: the points, lower and upper bounds, the diagonal of T.
    rows : tuple of ndarray
        As in :func:`blocklp.kernels.program_kernels.passes`.
    slack : ndarray
        ``(batch, rows)``: admissible violations.
    own : tuple of ndarray
        ``(batch, rows)`` each, zero at first: duals, duals after the momentum step, and room for new ones.
    pulled : ndarray
        ``(batch, parts, variables)``, zero at first: partial sums of A^T y.
    found, passes : ndarray
        ``(batch, variables)`` and ``(batch,)``: written.
    """
    groups, tiles, sparse = layout
    parts, near = pulled.shape[1], np.empty((min(groups[:, 1].max(), NEAR), TILE), entries.dtype)
    room = np.empty((4, TILE), entries.dtype)
    for b in range(begin, stop):
        x = variables[0][b]
        lower, upper = variables[1][b % len(variables[1])], variables[2][b % len(variables[2])]
        column, place, own_entries = variables[3][b], places[b % len(places)], entries[b % len(entries)]
        sides, mine = (rows[0][b], rows[1][b], rows[2][b], rows[3][b]), (own[0][b], own[1][b], own[2][b])
        y, ahead, new = mine
        point, total, age = found[b], room[0], 0
        for n in range(most):
            passes[b] = n + 1
            for first in range(0, len(point), TILE):
                count = min(TILE, len(point) - first)
                sum_parts(pulled[b], first, count, total)
                for q in range(count):
                    point[first + q] = x[first + q] + column[first + q] * total[q]
                for q in range(first, first + count):
                    point[q] = min(max(point[q], lower[q]), upper[q])
            off, back = False, 0.0
            for t in range(len(tiles)):
                group, first, count = groups[tiles[t, 0]], tiles[t, 1], tiles[t, 2]
                bad, part = _dual_step(
                    group,
                    first,
                    count,
                    slack[b],
                    sparse,
                    place,
                    own_entries,
                    sides,
                    point,
                    mine,
                    near,
                    room,
                )
                off, back = off or bad, back + part
            if not off:
                break
            age = 0 if back > 0 else age + 1
            pulled[b] = 0
            momentum = entries.dtype.type(age / (age + 3))
            for part in range(parts):
                for t in range(len(tiles) * part // parts, len(tiles) * (part + 1) // parts):
                    group, first, count = groups[tiles[t, 0]], tiles[t, 1], tiles[t, 2]
                    for r in range(group[3]):
                        at = group[4] + r * group[2] + first
                        for q in range(at, at + count):
                            ahead[q] = new[q] + momentum * (new[q] - y[q])
                        for q in range(at, at + count):
                            y[q] = new[q]
                    sums = pulled[b, part]
                    add_adjoint(group, own_entries, first, count, ahead, sparse, place, room[0], sums)


@kernel(fastmath=EXACT)
def extremes(begin: int, stop: int, by_row: Any, entries: Any, values: Any, least: Any, most: Any) -> None:
    """The least and the largest of 1 and of the values of the rows of each variable.

    Parameters
    ----------
    begin, stop : int
        The first instance, and one past the last.
    by_row : tuple of ndarray
        The rows as a sparse matrix (:attr:`blocklp.kernels.row_layout.RowLayout.by_row`).
    entries : ndarray
        ``(batch or 1, entries)``: its numbers.
    values : ndarray
        ``(batch, rows)``.
    least, most : ndarray
        ``(batch, variables)``, 1 at first: written.
    """
    starts, numbers, columns = by_row
    for b in range(begin, stop):
        own, low, high = entries[b % len(entries)], least[b], most[b]
        for r in range(len(starts) - 1):
            value = values[b, r]
            for k in range(starts[r], starts[r + 1]):
                if value != 1 and own[numbers[k]] != 0:
                    low[columns[k]] = min(low[columns[k]], value)
                    high[columns[k]] = max(high[columns[k]], value)
