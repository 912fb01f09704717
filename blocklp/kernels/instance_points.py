"""Primal points of whole instances whose blocks are of one type, compiled for the CPU: a template.

:mod:`blocklp.kernels.block_source` puts the functions of a type in the place of those of
:mod:`blocklp.kernels.block_tiles`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.block_tiles import COUPLED, DIM, complete
from blocklp.kernels.compiled import FAST, TILE, compile, kernel
from blocklp.kernels.instance_passes import gather
from blocklp.kernels.turns import claim, done

KEPT = 7
"""Where the totals of the first part hold which point is kept."""

STEPS = 4
"""Phases of a point."""


@compile(nogil=True, error_model="numpy", fastmath=FAST | {"reassoc"})
def _inner(y: Any, c: Any) -> float:
    """The inner product, added up in an order that depends on nothing but the length."""
    value = 0.0
    for v in range(len(y)):
        value += c[v] * y[v]
    return value


@kernel()
def completed(
    begin: int,
    stop: int,
    shared: Any,
    parts: int,
    live: Any,
    layout: Any,
    ends: int,
    masks: Any,
    variables: Any,
    box: Any,
    limits: Any,
    mean: Any,
    state: Any,
    primal: Any,
    x: Any,
    data: Any,
) -> None:
    """Complete means of active instances whose other blocks are boxes, and keep points that are better.

    It is :func:`blocklp.engine.points.offer_mean`; coordinates that no other block shares are left to
    :func:`finished`.

    Parameters
    ----------
    begin, stop, parts, live, layout, data
        As in :func:`blocklp.kernels.instance_bounds.bounds`.
    shared : tuple of array
        State of the phase barrier; ``(2, ends)`` and ``(parts, 8)`` float64 for the parts of a single
        instance, or without parts.
    ends : int
        One past the last variable that the blocks share, or that others have.
    masks : tuple of array
        ``(batch or 1, variables)`` bool: variables that the blocks share, and those of other blocks; and
        ``(batch,)`` bool: whether bounds may be tighter than the blocks for variables that are not shared.
    variables, box : tuple of array
        Costs, and constants of the objective ``(batch,)``; bounds, and the grid, all
        ``(batch or 1, variables)``.
    limits : tuple of float
        Relative improvement that counts, and violation that a point may have.
    mean : array
        ``(batch, variables)``.
    state : tuple of array
        ``(batch,)``: best bounds, and sums of the sizes of the costs.
    primal, x : array
        ``(batch,)`` and ``(batch, variables)``: best values and points, written.
    """
    (turns, found, totals), (places, start, blocks, filled), (met, private, narrow) = shared, layout, masks
    (cost, offset), (lower, upper, grid), (noticed, tolerance), (bound, size) = variables, box, limits, state
    near, alone = np.empty((4 * DIM + 3, TILE)), len(totals) > 0
    if not alone:
        found, totals = np.empty((2, ends)), np.empty((parts, 8))
    for row in live[:1] if alone else live[begin:stop]:
        m = row % len(lower)
        where = (places[row % len(places)], start, blocks, filled[row % len(filled)])
        about = (cost[row], met[row % len(met)], private[row % len(private)], narrow[row])
        sides = (lower[m], upper[m], grid[row % len(grid)])
        known = (offset[row], bound[row] - tolerance * size[row], noticed, tolerance)
        given = (where, ends, about, sides, known, mean[row], near, found, totals)
        kept = (primal[row : row + 1], x[row])
        if alone:
            while True:
                phase, k = claim(turns, STEPS, parts)
                if phase >= STEPS:
                    break
                _complete(phase, phase + 1, k, *given, kept, (data, row))
                done(turns)
        elif parts == 1:
            _complete(0, STEPS, 0, *given, kept, (data, row))
        else:
            for phase in range(STEPS):
                for k in range(parts):
                    _complete(phase, phase + 1, k, *given, kept, (data, row))


@compile(nogil=True, error_model="numpy")
def _complete(
    begin: int,
    end: int,
    k: int,
    where: Any,
    ends: int,
    about: Any,
    sides: Any,
    known: Any,
    mean: Any,
    near: Any,
    found: Any,
    totals: Any,
    kept: Any,
    data: Any,
) -> None:
    """Phases of that, from ``begin`` to before ``end``, for a part of an instance.

    ``found`` gets, of every variable before ``ends``, the mean within bounds and the same rounded to the
    grid, totals get the values of both and their violations, and the first of them which one is kept.
    """
    (c, met, private, narrow), (low, high, step), (primal, x), parts = about, sides, kept, len(totals)
    variables = slice(ends * k // parts, ends * (k + 1) // parts)
    for phase in range(begin, end):
        if phase == 0:
            price, within, rounded = c[variables], found[0, variables], found[1, variables]
            bounds_of = (low[variables], high[variables], step[variables])
            _candidates(
                mean[variables], met[variables], private[variables], price, bounds_of, within, rounded
            )
            totals[k, 0], totals[k, 1] = _inner(within, price), _inner(rounded, price)
            totals[k, 2], totals[k, 3] = 0.0, 0.0
        elif phase == 1:
            _add_blocks(where, k, parts, c, (low, high, narrow), found, near, totals[k], data)
        elif phase == 2 and k == 0:
            offset, least_value, noticed, tolerance = known
            totals[0, KEPT] = -1
            for i in (1, 0):  # first the rounded ones, where that helps
                value, other = offset + totals[:, i].sum(), offset + totals[:, 0].sum()
                new, none = value < primal[0] - noticed * abs(value), np.isinf(primal[0])
                wanted = i == 0 or value < other + noticed * abs(other)
                if totals[0, KEPT] >= 0 or not (new or none) or not wanted:
                    continue
                good = new and value >= least_value and totals[:, 2 + i].max() <= tolerance
                if good:
                    primal[0] = value
                if good or (none and i == 0):
                    totals[0, KEPT] = i
        elif phase == 3 and totals[0, KEPT] >= 0:
            y = found[int(totals[0, KEPT])]
            for v in range(variables.start, variables.stop):
                if met[v] or private[v]:
                    x[v] = y[v]


@compile(nogil=True, error_model="numpy")
def _candidates(mean: Any, met: Any, private: Any, c: Any, sides: Any, near: Any, rounded: Any) -> None:
    """The means of some variables within bounds, and these rounded to the grid.

    What only boxes have goes to its better bound.
    """
    low, high, step = sides
    for v in range(len(mean)):
        y = min(max(np.float64(mean[v]), low[v]), high[v])
        z = min(max(np.rint(y / step[v]) * step[v], low[v]), high[v])
        best = (high[v] if c[v] < 0 else low[v]) if private[v] else 0.0
        near[v] = y if met[v] else best
        rounded[v] = (z if step[v] > 0 else y) if met[v] else best


@compile(nogil=True, error_model="numpy")
def _add_blocks(
    where: Any, k: int, parts: int, c: Any, sides: Any, found: Any, near: Any, totals: Any, data: Any
) -> None:
    """Add what the blocks of a part cost beside shared variables at two points, and note their violations.

    Parameters
    ----------
    where : tuple
        Places, first copy, blocks, and blocks that are no padding.
    k, parts : int
        The part, and how many there are.
    c : array
        ``(variables,)``: costs.
    sides : tuple
        Bounds ``(variables,)``, and whether they may be tighter than the blocks.
    found : array
        ``(2, ends)``: the points.
    near : array
        ``(4 * DIM + 3, TILE)``, to be written over.
    totals : array
        ``(8,)``, written: values, and after them the violations.
    data : tuple
        Block data, and the instance.
    """
    (place, start, blocks, filled), (low, high, narrow) = where, sides
    costs, values, out, worst = (
        near[:DIM],
        near[DIM : 2 * DIM],
        near[2 * DIM],
        near[2 * DIM + 1 : 2 * DIM + 3],
    )
    first, last = filled * k // parts, filled * (k + 1) // parts
    worst[:] = 0
    for at in range(first, last, TILE):
        count = min(TILE, last - at)
        for i in range(COUPLED, DIM):
            a, price, below, above = (
                start + i * blocks + at,
                costs[i],
                near[2 * DIM + 3 + 2 * i],
                near[2 * DIM + 4 + 2 * i],
            )
            gather(place[a : a + count], c, price)
            if narrow:
                gather(place[a : a + count], low, below)
                gather(place[a : a + count], high, above)
        for j in range(2):
            point, most = found[j], worst[j]
            for i in range(COUPLED):
                a = start + i * blocks + at
                gather(place[a : a + count], point, values[i])
            complete(costs, values, (start, blocks, at, count), out, data)
            for i in range(COUPLED, DIM):
                value, below, above = values[i], near[2 * DIM + 3 + 2 * i], near[2 * DIM + 4 + 2 * i]
                totals[j] += _inner(value[:count], costs[i])
                if narrow:
                    for q in range(count):
                        most[q] = max(most[q], below[q] - value[q], value[q] - above[q])
            for q in range(count):
                most[q] = max(most[q], out[q])
    for j in range(2):
        totals[2 + j] = worst[j].max()


@kernel(grain=32)
def finished(begin: int, stop: int, rows: Any, layout: Any, cost: Any, x: Any, data: Any) -> None:
    """Write the coordinates that no other block shares into the points of some instances.

    Parameters
    ----------
    begin, stop : int
        Units to deal with; a unit is a tile of blocks of one instance.
    rows : array
        ``(k,)`` int64: the instances.
    layout, cost, data
        As in :func:`blocklp.kernels.instance_bounds.bounds`.
    x : array
        ``(batch, variables)``: the points, written.
    """
    places, start, blocks, filled = layout
    tiles, near = (blocks + TILE - 1) // TILE, np.empty((2 * DIM + 1, TILE))
    costs, values = near[:DIM], near[DIM : 2 * DIM]
    for unit in range(begin, stop):
        row, at = rows[unit // tiles], unit % tiles * TILE
        place, count = places[row % len(places)], min(at + TILE, filled[row % len(filled)]) - at
        for i in range(DIM):
            for q in range(count):
                v = place[start + i * blocks + at + q]
                costs[i, q], values[i, q] = cost[row, v], x[row, v]
        if count > 0:
            complete(costs, values, (start, blocks, at, count), near[2 * DIM], (data, row))
        for i in range(COUPLED, DIM):
            for q in range(count):
                x[row, place[start + i * blocks + at + q]] = values[i, q]


@kernel(grain=64)
def recorded(begin: int, stop: int, live: Any, terms: Any, parts: Any, given: Any, x: Any, out: Any) -> None:
    """Pack the status of active instances: :func:`blocklp.engine.status_record.status_record`.

    Parameters
    ----------
    begin, stop : int
        Units to deal with, an active instance each.
    live : array
        ``(k,)`` int64: the active instances.
    terms : tuple of array
        ``(batch,)``: :attr:`blocklp.decomposition.problem.Decomposition.cost_terms`.
    parts : tuple of float
        The parts of these of which ``floor`` is made.
    given : tuple of array
        ``(batch,)``: bounds, values of multipliers, values of points, and weights.
    x : array
        ``(batch, variables)``: the points.
    out : array
        ``(6, batch)``, written.
    """
    (whole, cost), (cancelled, rounded), (bound, value, primal, eta) = terms, parts, given
    for row in live[begin:stop]:
        out[0, row], out[1, row], out[2, row] = bound[row], primal[row], value[row]
        least = min(whole[row], cost[row] * _largest(x[row]))
        out[3, row] = max(cancelled * least, rounded * whole[row])
        out[4, row], out[5, row] = np.inf, eta[row]


@compile(nogil=True, error_model="numpy", fastmath=FAST | {"nnan"})
def _largest(x: Any) -> float:
    """The largest magnitude of a point, of which no entry is NaN."""
    most = 0.0
    for v in range(len(x)):
        most = max(most, abs(x[v]))
    return most
