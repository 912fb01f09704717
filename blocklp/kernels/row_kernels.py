"""Products with the rows of all blocks (:class:`blocklp.kernels.program.Program`), compiled for the CPU.

Blocks are taken by tiles, all rows of a tile at once: what the rows need is gathered once, and a matrix that
was read for a product is in the cache for the next one.  Sums are added tile by tile, so that they do not
depend on the number of threads; those of tensor operations differ from them by rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import TILE, compile, kernel

EXACT = {"nsz"}
"""The one liberty with rounding that tensor operations take too: the sign of zero."""

NEAR = 64
"""Variables of a block up to which their values are gathered once for all of its rows."""

BESIDE = 2
"""The mark of rows beside the blocks."""

GRAIN = 64
"""Tiles that are worth waking a thread."""


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def gather(group: Any, first: int, count: int, place: Any, values: Any, near: Any) -> None:
    """Gather values of a tile's variables into ``near``, if it has room for them.

    Parameters
    ----------
    group : ndarray
        ``(7,)`` int64: a row of the groups of :class:`blocklp.kernels.row_layout.RowLayout`.
    first, count : int
        The first block of the tile, and how many blocks it has.
    place : ndarray
        ``(copies,)`` int64: the variable of each copy.
    values : ndarray
        ``(variables,)``.
    near : ndarray
        ``(rooms, TILE)``, written where the blocks have so many variables at most.
    """
    start, dim, blocks = group[0], group[1], group[2]
    for i in range(dim if dim <= len(near) else 0):
        at = start + i * blocks + first
        where, own = place[at : at + count], near[i]
        for q in range(count):
            own[q] = values[where[q]]


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def _sparse(group: Any, entries: Any, first: int, count: int, sparse: Any, values: Any, reached: Any) -> None:
    """A tile of rows beside the blocks times the values of their variables."""
    starts, column = sparse
    for q in range(count):
        total = entries.dtype.type(0)
        for k in range(starts[first + q], starts[first + q + 1]):
            total += entries[group[5] + k] * values[column[k]]
        reached[q] = total


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def row_product(
    group: Any,
    entries: Any,
    r: int,
    first: int,
    count: int,
    sparse: Any,
    place: Any,
    values: Any,
    near: Any,
    reached: Any,
) -> None:
    """A row of a tile of blocks times the values of its variables.

    Parameters
    ----------
    group, first, count, place, values
        As in :func:`gather`.
    entries : ndarray
        ``(entries,)``: the entries of all matrices of an instance.
    r : int
        Which of the rows of each block.
    sparse : tuple of ndarray
        Where rows beside the blocks begin, and their columns (:class:`blocklp.kernels.row_layout.RowLayout`).
    near : ndarray
        ``(rooms, TILE)``: what :func:`gather` wrote, if there is room.
    reached : ndarray
        ``(TILE,)``, written: the product, a block an entry.
    """
    start, dim, blocks, own = group[0], group[1], group[2], group[6]
    if own == BESIDE:
        _sparse(group, entries, first, count, sparse, values, reached)
        return
    base = group[5] + r * dim * (blocks if own else 1)
    reached[:count] = 0
    for i in range(dim):
        if dim > len(near):
            at = base + (i * blocks + first if own else i)
            where = place[start + i * blocks + first : start + i * blocks + first + count]
            for q in range(count):
                reached[q] += entries[at + (q if own else 0)] * values[where[q]]
            continue
        value = near[i]
        if own:
            entry = entries[base + i * blocks + first : base + i * blocks + first + count]
            for q in range(count):
                reached[q] += entry[q] * value[q]
        elif entries[base + i] != 0:
            one = entries[base + i]
            for q in range(count):
                reached[q] += one * value[q]


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def _column(group: Any, entries: Any, i: int, first: int, count: int, y: Any, copy: Any) -> None:
    """Column i of a tile of blocks times y."""
    dim, blocks, rows, row, own = group[1], group[2], group[3], group[4], group[6]
    copy[:count] = 0
    for r in range(rows):
        dual = y[row + r * blocks + first : row + r * blocks + first + count]
        base = group[5] + (r * dim + i) * (blocks if own else 1)
        if own:
            entry = entries[base + first : base + first + count]
            for q in range(count):
                copy[q] += entry[q] * dual[q]
        elif entries[base] != 0:
            one = entries[base]
            for q in range(count):
                copy[q] += one * dual[q]


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def add_adjoint(
    group: Any,
    entries: Any,
    first: int,
    count: int,
    y: Any,
    sparse: Any,
    place: Any,
    copy: Any,
    sums: Any,
) -> None:
    """Transposed rows of a tile of blocks times y, added to the sums of the variables.

    Parameters
    ----------
    group, entries, first, count, sparse, place
        As in :func:`row_product`.
    y : ndarray
        ``(rows,)``: duals of all rows of an instance.
    copy : ndarray
        ``(TILE,)``: room.
    sums : ndarray
        ``(variables,)``, added to.
    """
    start, dim, blocks = group[0], group[1], group[2]
    if group[6] == BESIDE:
        starts, column = sparse
        for q in range(first, first + count):
            dual = y[group[4] + q]
            for k in range(starts[q], starts[q + 1]):
                sums[column[k]] += entries[group[5] + k] * dual
        return
    for i in range(dim):
        _column(group, entries, i, first, count, y, copy)
        at = start + i * blocks + first
        where = place[at : at + count]
        for q in range(count):
            sums[where[q]] += copy[q]


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def sum_parts(sums: Any, first: int, count: int, total: Any) -> None:
    """Sums of some variables over all parts, from the first to the last.

    Parameters
    ----------
    sums : ndarray
        ``(parts, variables)``: partial sums.
    first, count : int
        The first variable, and how many there are.
    total : ndarray
        ``(TILE,)``, written.
    """
    for q in range(count):
        total[q] = sums[0, first + q]
    for k in range(1, len(sums)):
        own = sums[k, first : first + count]
        for q in range(count):
            total[q] += own[q]


@kernel(GRAIN, fastmath=EXACT)
def activity(
    begin: int,
    stop: int,
    groups: Any,
    tiles: Any,
    sparse: Any,
    places: Any,
    entries: Any,
    x: Any,
    out: Any,
) -> None:
    """Rows times x, a tile a unit.

    Parameters
    ----------
    begin, stop : int
        The first unit, and one past the last.
    groups, tiles, sparse : ndarray, ndarray, tuple of ndarray
        As in :class:`blocklp.kernels.row_layout.RowLayout`.
    places : ndarray
        ``(batch or 1, copies)`` int64: the variable of each copy.
    entries : ndarray
        ``(batch or 1, entries)``: the entries of all matrices.
    x : ndarray
        ``(batch, variables)``.
    out : ndarray
        ``(batch, rows)``: written.
    """
    near = np.empty((min(groups[:, 1].max(), NEAR), TILE), x.dtype)
    for unit in range(begin, stop):
        b, tile = unit // len(tiles), tiles[unit % len(tiles)]
        group, first, count = groups[tile[0]], tile[1], tile[2]
        gather(group, first, count, places[b % len(places)], x[b], near)
        for r in range(group[3]):
            at = group[4] + r * group[2] + first
            reached, place = out[b, at : at + count], places[b % len(places)]
            row_product(group, entries[b % len(entries)], r, first, count, sparse, place, x[b], near, reached)


@kernel(GRAIN, fastmath=EXACT)
def adjoint(begin: int, stop: int, groups: Any, tiles: Any, entries: Any, y: Any, out: Any) -> None:
    """Transposed rows times y by copies, before these are summed by variable, a tile a unit.

    Parameters
    ----------
    begin, stop : int
        The first unit, and one past the last.
    groups, tiles : ndarray
        As in :class:`blocklp.kernels.row_layout.RowLayout`.
    entries : ndarray
        ``(batch or 1, entries)``: the entries of all matrices.
    y : ndarray
        ``(batch, rows)``.
    out : ndarray
        ``(batch, copies)``: written.
    """
    for unit in range(begin, stop):
        b, tile = unit // len(tiles), tiles[unit % len(tiles)]
        group, first, count = groups[tile[0]], tile[1], tile[2]
        for i in range(group[1]):
            at = group[0] + i * group[2] + first
            _column(group, entries[b % len(entries)], i, first, count, y[b], out[b, at : at + count])
