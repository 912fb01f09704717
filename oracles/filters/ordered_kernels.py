"""Levels, their blur and the exact sweep on a CPU, compiled by numba on first use and cached.

Kernels of :mod:`blocklp.oracles.filters.ordered`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import FAST, compile, kernel

TILE = 32
"""Levels that the ordered filter blurs at a time."""
DIGIT = 11
"""Bits that the sort looks at in one pass."""


@compile(nogil=True)
def _sort(bits: Any) -> Any:
    """Sort floating-point numbers, given as their bits, by radix: ascending keys, and the permutation."""
    count = len(bits)
    width = 8 * bits.itemsize
    digits = (width + DIGIT - 1) // DIGIT
    one = bits.dtype.type(1)
    sign = one << bits.dtype.type(width - 1)
    mask = bits.dtype.type(2**DIGIT - 1)
    keys, order = np.empty_like(bits), np.empty(count, np.int32)
    tally = np.zeros((digits, 2**DIGIT), np.int32)
    for n in range(count):
        # Negative numbers rise as their bits fall; the two zeros are one number.
        if bits[n] < sign:
            keys[n] = bits[n] | sign
        else:
            keys[n] = sign if bits[n] == sign else ~bits[n]
        order[n] = n
        for d in range(digits):
            tally[d, (keys[n] >> bits.dtype.type(DIGIT * d)) & mask] += 1
    other_keys, other_order = np.empty_like(keys), np.empty_like(order)
    for d in range(digits):
        shift = bits.dtype.type(DIGIT * d)
        if tally[d, (keys[0] >> shift) & mask] == count:
            continue
        total = np.int32(0)
        for digit in range(2**DIGIT):
            here = tally[d, digit]
            tally[d, digit] = total
            total += here
        for n in range(count):
            digit = (keys[n] >> shift) & mask
            to = tally[d, digit]
            tally[d, digit] = to + 1
            other_keys[to], other_order[to] = keys[n], order[n]
        keys, other_keys, order, other_order = other_keys, keys, other_order, order
    return keys, order


@compile(inline="always")
def _end(keys: Any, first: int) -> int:
    """The end of the run of keys that are equal to the one at ``first``."""
    last = first + 1
    while last < len(keys) and keys[last] == keys[first]:
        last += 1
    return last


@compile(nogil=True)
def _place(keys: Any, order: Any, most: int, at: Any) -> Any:
    """Positions of a label's scores on its levels: :func:`blocklp.oracles.filters.ordered.assign_levels`."""
    count = len(keys)
    limit = 4 * count // most
    distinct, heavy, light, runs, end = 0, 0, 0, 0, 0
    after_heavy = True
    while end < count:
        first, end = end, _end(keys, end)
        distinct += 1
        if end - first > limit:
            heavy += 1
            after_heavy = True
        else:
            light += end - first
            runs += after_heavy
            after_heavy = False
    if distinct <= most:
        limit = 0  # every score has a level to itself
    base, end = 0, 0
    while end < count:
        first, end = end, _end(keys, end)
        scores = 1
        if end - first > limit:
            levels = 1
        else:  # a run of scores that few points have: levels in proportion to its points, or one a score
            while end < count:
                following = _end(keys, end)
                if following - end > limit:
                    break
                scores, end = scores + 1, following
            levels = 1 + (end - first) * (most - heavy - runs) // light
        rate = (levels - 1) / (2 * (end - first))
        last = first
        for score in range(scores):
            begin, last = last, _end(keys, last)
            place = np.float32(base + (rate * (begin + last - 2 * first) if scores > levels else score))
            for j in range(begin, last):
                at[order[j]] = place
        base += min(scores, levels)
    return base, light if limit > 0 else 0


@kernel()
def levels(begin: int, stop: int, bits: Any, most: int, at: Any, counts: Any, light: Any) -> None:
    """Positions of scores on levels: :func:`blocklp.oracles.filters.ordered.assign_levels`.

    Parameters
    ----------
    begin, stop : int
        Labels.
    bits : ndarray
        ``(labels, points)`` uint32 or uint64: the bits of the scores.
    most : int
        Most levels of a label.
    at : ndarray
        ``(labels, points)`` float32, written over by positions.
    counts, light : ndarray
        ``(labels,)`` int64, written over by numbers of levels and of light points.
    """
    for label in range(begin, stop):
        keys, order = _sort(bits[label])
        counts[label], light[label] = _place(keys, order, most, at[label])


@compile(inline="always")
def _next_levels(place: Any, tiles: Any) -> Any:
    """The two levels next to a position: tile and column of the lower and the higher one, and its share."""
    low = np.uint32(place)
    share = place - np.float32(low)
    high = low + np.uint32(share > 0)
    return low % tiles, low // tiles, high % tiles, high // tiles, share


@compile(fastmath=FAST, nogil=True)
def _splat_levels(at: Any, values: Any, weights: Any, vertices: Any, total: Any) -> None:
    """Splat every point to the two levels next to its position."""
    flat, row = total.reshape(-1), np.uint64(total.shape[2])
    tile, tiles = np.uint64(total[0].size), np.uint32(len(total))
    for n in range(len(at)):
        low_tile, low, high_tile, high, share = _next_levels(at[n], tiles)
        low_at, high_at = low_tile * tile + low, high_tile * tile + high
        above = share * values[n]
        below = values[n] - above
        for k in range(weights.shape[1]):
            m = np.uint64(vertices[n, k]) * row
            flat[m + low_at] += weights[n, k] * below
            flat[m + high_at] += weights[n, k] * above


@compile(fastmath=FAST, nogil=True)
def _slice_levels(
    at: Any,
    weights: Any,
    vertices: Any,
    total: Any,
    columns: Any,
    scale: float,
    out: Any,
) -> None:
    """Slice every point off the two levels next to its position: their tiles and the columns before."""
    flat, row = total.reshape(-1), np.uint64(total.shape[2])
    tile, tiles = np.uint64(total[0].size), np.uint32(len(total))
    other = columns.reshape(-1)
    for n in range(len(at)):
        low_tile, low, high_tile, high, share = _next_levels(at[n], tiles)
        low_at, high_at = low_tile * tile + low, high_tile * tile + high
        below, above = total.dtype.type(0), total.dtype.type(0)
        for k in range(weights.shape[1]):
            m = np.uint64(vertices[n, k]) * row
            below += weights[n, k] * (flat[m + low_at] + other[m + low])
            above += weights[n, k] * (flat[m + high_at] + other[m + high])
        out[n] = scale * (below + share * (above - below))


@compile(fastmath=FAST, nogil=True)
def _blur_tile(values: Any, before: Any, after: Any, out: Any) -> None:
    """Blur along one axis; the last row, zero, stands for missing neighbours."""
    half = values.dtype.type(0.5)
    for m in range(len(before)):
        a, b = before[m], after[m]
        for q in range(values.shape[1]):
            out[m, q] = values[m, q] + half * (values[a, q] + values[b, q])


@compile(fastmath=FAST, nogil=True)
def _pile(there: Any, back: Any, upto: Any, tile: Any) -> None:
    """Add the mean of both blurs to ``upto``; the tile becomes the sum of ``upto`` before and after."""
    half = tile.dtype.type(0.5)
    for i in range(len(tile)):
        before = upto[i]
        upto[i] = before + half * (there[i] + back[i])
        tile[i] = before + upto[i]


@compile(fastmath=FAST, nogil=True)
def _blur_levels(total: Any, upto: Any, neighbours: Any, buffers: Any) -> None:
    """Blur all tiles by both orders of the axes, and sum them in ``upto``.

    Each tile becomes the sum of all before it plus the sum of all up to it.
    """
    for number in range(len(total)):
        tile = total[number]
        there, back, spare = buffers[0], buffers[1], buffers[2]
        _blur_tile(tile, neighbours[0, 0], neighbours[0, 1], there)
        for axis in range(1, len(neighbours)):
            _blur_tile(there, neighbours[axis, 0], neighbours[axis, 1], spare)
            there, spare = spare, there
        _blur_tile(tile, neighbours[-1, 0], neighbours[-1, 1], back)
        for axis in range(len(neighbours) - 2, -1, -1):
            _blur_tile(back, neighbours[axis, 0], neighbours[axis, 1], spare)
            back, spare = spare, back
        _pile(there.reshape(-1), back.reshape(-1), upto.reshape(-1), tile.reshape(-1))


@compile(fastmath=FAST, nogil=True)
def _sign_columns(upto: Any) -> None:
    """Replace the sum of each column by the sum of those before it, less its own and of those after it."""
    for m in range(len(upto)):
        below = upto.dtype.type(0)
        for q in range(upto.shape[1]):
            below -= upto[m, q]
        for q in range(upto.shape[1]):
            column = upto[m, q]
            upto[m, q] = below
            below += 2 * column


@kernel()
def ordered(
    begin: int,
    stop: int,
    at: Any,
    counts: Any,
    order: Any,
    values: Any,
    weights: Any,
    vertices: Any,
    neighbours: Any,
    scale: float,
    threads: int,
    out: Any,
) -> None:
    """The ordered filter on levels.

    Levels are blurred in tiles that fit into the cache.  A tile holds every ``tiles``-th level, so that the
    prefix sum adds whole tiles; then each column of the tiles lacks the columns before it.

    Parameters
    ----------
    begin, stop : int
        Threads.
    at, counts : ndarray
        ``(labels, points)`` float32 and ``(labels,)`` int64: positions on levels, and numbers of levels.
    order : ndarray
        ``(k,)`` int64: the labels to filter, dealt out to threads in turn.
    values : ndarray
        ``(labels, points)`` floating point.
    weights, vertices : ndarray
        ``(points, d + 1)`` floating point and int32.
    neighbours : ndarray
        ``(d + 1, 2, size)`` int64.
    scale : float
        Factor of the filter.
    threads : int
        Number of threads.
    out : ndarray
        ``(labels, points)``, written over.
    """
    rows = neighbours.shape[2] + 1  # the last row stands for missing neighbours: it stays zero
    most = (counts.max() + TILE - 1) // TILE
    labels = len(order)
    for thread in range(begin, stop):
        # Fresh memory is slow: once for all labels.
        memory, upto = np.empty((most, rows, TILE), values.dtype), np.empty((rows, TILE), values.dtype)
        buffers = np.zeros((3, rows, TILE), values.dtype)
        for i in range(thread, labels, threads):
            label = order[i]
            if counts[label] < 2:  # all scores are equal
                out[label] = 0
                continue
            total = memory[: (counts[label] + TILE - 1) // TILE]
            total[:], upto[:] = 0, 0
            _splat_levels(at[label], values[label], weights, vertices, total)
            _blur_levels(total, upto, neighbours, buffers)
            _sign_columns(upto)
            _slice_levels(at[label], weights, vertices, total, upto, scale, out[label])


@compile(inline="always")
def _read(seen: Any, weights: Any, vertices: Any, n: Any) -> Any:
    """Slice a point off the vertices."""
    total = 0.0
    for k in range(weights.shape[1]):
        total += weights[n, k] * seen[vertices[n, k]]
    return total


@kernel()
def swept(
    begin: int,
    stop: int,
    bits: Any,
    labels: Any,
    values: Any,
    weights: Any,
    vertices: Any,
    starts: Any,
    columns: Any,
    entries: Any,
    scale: float,
    threads: int,
    out: Any,
) -> None:
    """The exact ordered filter.

    Points join in the order of their scores.  Every point slices the sums over points below it, and over
    points below it or equal to it, off the blurred vertices of the points that have joined.

    Parameters
    ----------
    begin, stop, weights, vertices, scale, threads
        As in :func:`ordered`.
    bits : ndarray
        ``(all labels, points)`` uint32 or uint64: the bits of the scores.
    labels : ndarray
        ``(k,)`` int64: the labels to filter, dealt out to threads in turn.
    values : ndarray
        ``(all labels, points)`` floating point.
    starts, columns, entries : ndarray
        ``(size + 1,)``, ``(entries,)`` and ``(entries,)``: the blur as a sparse matrix by rows.
    out : ndarray
        ``(all labels, points)``, written over.
    """
    points, corners, size = bits.shape[1], weights.shape[1], len(starts) - 1
    for thread in range(begin, stop):
        seen, splat, sums = np.empty(size), np.empty(size), np.empty(points)
        for i in range(thread, len(labels), threads):
            label = labels[i]
            keys, order = _sort(bits[label])
            seen[:] = 0
            end = 0
            while end < points:
                first, end = end, _end(keys, end)
                for j in range(first, end):
                    sums[order[j]] = _read(seen, weights, vertices, order[j])
                if (end - first) * corners < size:
                    for j in range(first, end):
                        n = order[j]
                        for k in range(corners):
                            weight = weights[n, k] * values[label, n]
                            for e in range(starts[vertices[n, k]], starts[vertices[n, k] + 1]):
                                seen[columns[e]] += weight * entries[e]
                else:  # as many entries as vertices: blur them together
                    splat[:] = 0
                    for j in range(first, end):
                        n = order[j]
                        for k in range(corners):
                            splat[vertices[n, k]] += weights[n, k] * values[label, n]
                    for m in range(size):
                        for e in range(starts[m], starts[m + 1]):
                            seen[m] += splat[columns[e]] * entries[e]
                for j in range(first, end):
                    sums[order[j]] += _read(seen, weights, vertices, order[j])
            for n in range(points):
                out[label, n] = scale * (sums[n] - _read(seen, weights, vertices, n))
