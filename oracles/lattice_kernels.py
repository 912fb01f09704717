"""Splat, blur and slice on a CPU, compiled by numba on first use and cached: the loops of :mod:`blocklp.oracles.permutohedral`.

Every result is written by one thread in a fixed order, so runs repeat bit for bit whatever the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.compiled import FAST, compile, kernel

TILE = 32
"""Levels that the ordered filter blurs at a time."""
CHUNK = 1024
"""Points that a thread embeds at a time."""
DIGIT = 11
"""Bits that the sort looks at in one pass."""


@kernel()
def embed(begin: int, stop: int, features: Any, elevation: Any, corners: Any, turns: Any, weights: Any) -> None:
    """Simplices of points ``(points, d)``: lattice units of the first corners, the axes between corners, barycentric weights.

    That is the tensor code of :func:`blocklp.oracles.permutohedral._embed`, point by point.
    """
    points, d = features.shape
    inverse = features.dtype.type(1 / (d + 1))
    for chunk in range(begin, stop):
        lifted, residual = np.empty(d + 1, features.dtype), np.empty(d + 1, features.dtype)
        rank = np.empty(d + 1, np.int64)
        whole = np.empty(d + 1, np.int64)
        for n in range(chunk * CHUNK, min((chunk + 1) * CHUNK, points)):
            excess = 0
            for i in range(d + 1):
                total = features.dtype.type(0)
                for j in range(d):
                    total += features[n, j] * elevation[i, j]
                lifted[i] = total
                whole[i] = np.int64(np.rint(total * inverse))
                excess += whole[i]
                residual[i] = total - whole[i] * (d + 1)
                rank[i] = 0
            for i in range(d + 1):
                for j in range(i + 1, d + 1):
                    # Equal residuals keep their order.
                    less = np.int64(residual[i] < residual[j])
                    rank[i] += less
                    rank[j] += 1 - less
            for i in range(d + 1):
                turn = rank[i] + excess
                if turn < 0:
                    turn += d + 1
                    whole[i] += 1
                elif turn > d:
                    turn -= d + 1
                    whole[i] -= 1
                if i < d:
                    corners[n, i] = whole[i]
                turns[n, d - turn] = i
                lifted[i] = lifted[i] * inverse - whole[i]
            weights[n, 0] = 1 + lifted[turns[n, 0]] - lifted[turns[n, d]]
            for k in range(1, d + 1):
                weights[n, k] = lifted[turns[n, k]] - lifted[turns[n, k - 1]]


@compile(inline="always")
def _slot(table: Any, key: Any) -> Any:
    """Where a key is in a table of keys and numbers, or could be."""
    mask = np.uint64(len(table) - 1)
    mixed = np.uint64(key) ^ (np.uint64(key) >> np.uint64(32))  # keys may be far apart by powers of two
    at = (mixed * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
    while table[at & mask, 1] >= 0 and table[at & mask, 0] != key:
        at += np.uint64(1)
    return at & mask


@compile(nogil=True)
def _double(table: Any) -> Any:
    """The same table with twice the room."""
    larger = np.full((2 * len(table), 2), -1)
    for at in range(len(table)):
        if table[at, 1] >= 0:
            larger[_slot(larger, table[at, 0])] = table[at]
    return larger


@compile(nogil=True)
def number(corners: Any, turns: Any, low: Any, strides: Any, offsets: Any, vertices: Any) -> Any:
    """Number the vertices in the order of their first points; return their packed keys.

    ``low`` is the least of the coordinates, ``strides`` what a step in each adds to a key, ``offsets`` what a point's image adds.
    """
    points, d = corners.shape
    table = np.full((1 << 12, 2), -1)
    count = 0
    keys = np.empty(len(table), np.int64)
    before = np.full(d + 1, -1)  # a point often is in the simplex of the one before it
    steps = np.full(d + 1, strides.sum())
    steps[:d] -= (d + 1) * strides
    start = (low * strides).sum()
    for n in range(points):
        key = offsets[n] - start
        for i in range(d):
            key += corners[n, i] * (d + 1) * strides[i]
        for k in range(d + 1):
            if key == before[k]:
                vertices[n, k] = vertices[n - 1, k]
            else:
                before[k] = key
                at = _slot(table, key)
                if table[at, 1] < 0:
                    table[at, 0], table[at, 1], keys[count] = key, count, key
                    vertices[n, k] = count
                    count += 1
                    if 2 * count == len(table):
                        table = _double(table)
                        more = np.empty(len(table), np.int64)
                        more[:count] = keys[:count]
                        keys = more
                else:
                    vertices[n, k] = table[at, 1]
            key += steps[turns[n, k]]
    return keys[:count].copy()


@compile(nogil=True)
def next_vertices(keys: Any, steps: Any, found: Any) -> None:
    """Where the rising keys are that lie a step up and down from each: ``(steps, 2, size)``, ``size`` for none."""
    size = len(keys)
    for axis in range(len(steps)):
        for side in range(2):
            step = steps[axis] if side == 0 else -steps[axis]
            at = 0
            for m in range(size):
                wanted = keys[m] + step
                while at < size and keys[at] < wanted:
                    at += 1
                found[axis, side, m] = at if at < size and keys[at] == wanted else size


@kernel(fastmath=FAST)
def splat(begin: int, stop: int, values: Any, weights: Any, vertices: Any, shares: int, out: Any) -> None:
    """``out[vertices] += weights * values``, point by point; every share has some of the channels."""
    points, corners, channels = len(weights), np.uint64(weights.shape[1]), values.shape[1]
    source, target, row = values.reshape(-1), out.reshape(-1), np.uint64(channels)
    for share in range(begin, stop):
        first, last = np.uint64(share * channels // shares), np.uint64((share + 1) * channels // shares)
        for n in range(points):
            here = np.uint64(n) * row
            for k in range(corners):
                weight, there = weights[n, k], np.uint64(vertices[n, k]) * row
                for c in range(first, last):
                    target[there + c] += weight * source[here + c]


@kernel(fastmath=FAST)
def blur(begin: int, stop: int, values: Any, before: Any, after: Any, out: Any) -> None:
    """``out = values + half of both neighbours``."""
    size, channels = values.shape
    half = values.dtype.type(0.5)
    for m in range(begin, stop):
        a, b = before[m], after[m]
        if a < size and b < size:
            for c in range(channels):
                out[m, c] = values[m, c] + half * (values[a, c] + values[b, c])
        elif a < size or b < size:
            other = min(a, b)
            for c in range(channels):
                out[m, c] = values[m, c] + half * values[other, c]
        else:
            for c in range(channels):
                out[m, c] = values[m, c]


@kernel(fastmath=FAST)
def slice_(begin: int, stop: int, values: Any, weights: Any, vertices: Any, out: Any) -> None:
    """``out[n] = sum of weights[n] * values[vertices[n]]``, by threes where that is possible: six for colours and places."""
    corners, channels = weights.shape[1], np.uint64(values.shape[1])
    source, target = values.reshape(-1), out.reshape(-1)
    for n in range(begin, stop):
        here = np.uint64(n) * channels
        w, m = weights[n], vertices[n]
        k = 0
        if corners >= 6:
            a, b, c = np.uint64(m[0]) * channels, np.uint64(m[1]) * channels, np.uint64(m[2]) * channels
            d, e, f = np.uint64(m[3]) * channels, np.uint64(m[4]) * channels, np.uint64(m[5]) * channels
            for q in range(channels):
                near = w[0] * source[a + q] + w[1] * source[b + q] + w[2] * source[c + q]
                target[here + q] = near + w[3] * source[d + q] + w[4] * source[e + q] + w[5] * source[f + q]
            k = 6
        elif corners >= 3:
            a, b, c = np.uint64(m[0]) * channels, np.uint64(m[1]) * channels, np.uint64(m[2]) * channels
            for q in range(channels):
                target[here + q] = w[0] * source[a + q] + w[1] * source[b + q] + w[2] * source[c + q]
            k = 3
        else:
            for q in range(channels):
                target[here + q] = 0
        while k < corners:
            a = np.uint64(m[k]) * channels
            for q in range(channels):
                target[here + q] += w[k] * source[a + q]
            k += 1


@kernel(fastmath=FAST)
def products(begin: int, stop: int, values: Any, others: Any, vertices: Any, out: Any) -> None:
    """``out[n, k] = <values[vertices[n, k]], others[n]>``."""
    for n in range(begin, stop):
        for k in range(out.shape[1]):
            total = values.dtype.type(0)
            for c in range(values.shape[1]):
                total += values[vertices[n, k], c] * others[n, c]
            out[n, k] = total


@compile(inline="always")
def _walk(neighbours: Any, at: Any, axes: Any, chosen: bool, side: int) -> Any:
    """Where steps along the axes that are (not) chosen lead."""
    size = neighbours.shape[2]
    for axis in range(len(axes)):
        if axes[axis] == chosen and at < size:
            at = neighbours[axis, side, at]
    return at


@kernel()
def diagonal(begin: int, stop: int, weights: Any, vertices: Any, neighbours: Any, scale: float, out: Any) -> None:
    """What every point counts for itself, by the walks that :attr:`Lattice.diagonal` explains."""
    corners = neighbours.shape[0]
    for n in range(begin, stop):
        at, weight = vertices[n], weights[n]
        axis, between = np.zeros(corners, np.int64), np.zeros(corners, np.bool_)
        for k in range(corners - 1):
            while neighbours[axis[k], 1, at[k]] != at[k + 1]:
                axis[k] += 1
        around = 0.5**corners
        total = 0.0
        for first in range(corners):
            own = 1.0
            for side in range(2):
                if _walk(neighbours, at[first], between, False, side) == at[first]:
                    own += around
            total += weight[first] * weight[first] * own
            straight, about = 1.0, around
            for last in range(first + 1, corners):
                between[axis[last - 1]] = True
                straight, about = straight * 0.5, about * 2
                share = 0.0
                for side in range(2):  # from the first to the last, and back
                    start, end = (at[last], at[first]) if side == 0 else (at[first], at[last])
                    if _walk(neighbours, start, between, True, side) == end:
                        share += straight
                    if _walk(neighbours, start, between, False, 1 - side) == end:
                        share += about
                total += weight[first] * weight[last] * share
            between[:] = False
        out[n] = scale * total


@compile(nogil=True)
def stencil(neighbours: Any) -> Any:
    """The blur as a sparse matrix: where its rows start, their columns and entries."""
    axes, _, size = neighbours.shape
    starts = np.zeros(size + 1, np.int64)
    columns, entries = np.empty(32 * size, np.int32), np.empty(32 * size, np.float32)
    found, row = np.empty(size, np.int32), np.empty(size, np.int32)
    value, before, total = np.zeros(size), np.empty(size), np.zeros(size)
    for m in range(size):
        width = 0
        for way in range(2):
            found[0], value[m], count = m, 1.0, 1
            for step in range(axes):
                axis = step if way == 0 else axes - 1 - step
                known = count
                for j in range(known):
                    before[j] = 0.5 * value[found[j]]
                for j in range(known):
                    for side in range(2):
                        to = neighbours[axis, side, found[j]]
                        if to < size:
                            if value[to] == 0:
                                found[count] = to
                                count += 1
                            value[to] += before[j]
            for j in range(count):
                to = found[j]
                if total[to] == 0:
                    row[width] = to
                    width += 1
                total[to] += 0.5 * value[to]
                value[to] = 0
        start = starts[m]
        starts[m + 1] = start + width
        if start + width > len(columns):
            more = max(2 * len(columns), start + width)
            old_columns, old_entries = columns, entries
            columns, entries = np.empty(more, np.int32), np.empty(more, np.float32)
            columns[:start], entries[:start] = old_columns[:start], old_entries[:start]
        for j in range(width):
            columns[start + j], entries[start + j] = row[j], total[row[j]]
            total[row[j]] = 0
    return starts, columns[: starts[size]].copy(), entries[: starts[size]].copy()


@compile(nogil=True)
def _sort(bits: Any) -> Any:
    """Sort floating-point numbers, given as their bits, by radix: keys in rising order, and the positions of the numbers."""
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
        keys[n] = bits[n] | sign if bits[n] <= sign and bits[n] != sign else (sign if bits[n] == sign else ~bits[n])
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
    """Where the keys equal to the one at ``first`` end."""
    last = first + 1
    while last < len(keys) and keys[last] == keys[first]:
        last += 1
    return last


@compile(nogil=True)
def _place(keys: Any, order: Any, most: int, at: Any) -> Any:
    """Positions of one label's scores on its levels: :func:`blocklp.oracles.ordered.assign_levels`."""
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
        limit = 0  # every score has a level of its own
    base, end = 0, 0
    while end < count:
        first, end = end, _end(keys, end)
        scores = 1
        if end - first > limit:
            levels = 1
        else:  # a run of scores that few points have: as many levels as its share of the points, or one for each score
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
    """Positions of scores ``(labels, points)``, given as their bits, on at most so many levels."""
    for label in range(begin, stop):
        keys, order = _sort(bits[label])
        counts[label], light[label] = _place(keys, order, most, at[label])


@compile(inline="always")
def _next_levels(place: Any, tiles: Any) -> Any:
    """The two levels next to a position: tile and column of the lower and of the higher one, and the share of the higher one."""
    low = np.uint32(place)
    share = place - np.float32(low)
    high = low + np.uint32(share > 0)
    return low % tiles, low // tiles, high % tiles, high // tiles, share


@compile(fastmath=FAST, nogil=True)
def _splat_levels(at: Any, values: Any, weights: Any, vertices: Any, total: Any) -> None:
    """Every point to the two levels next to its position."""
    flat, row, tile, tiles = total.reshape(-1), np.uint64(total.shape[2]), np.uint64(total[0].size), np.uint32(len(total))
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
def _slice_levels(at: Any, weights: Any, vertices: Any, total: Any, columns: Any, scale: float, out: Any) -> None:
    """Every point from the two levels next to its position: from their tiles, and from the columns before theirs."""
    flat, row, tile, tiles = total.reshape(-1), np.uint64(total.shape[2]), np.uint64(total[0].size), np.uint32(len(total))
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
    """Blur along one axis; the last vertex is the one that does not exist, and zero."""
    half = values.dtype.type(0.5)
    for m in range(len(before)):
        a, b = before[m], after[m]
        for q in range(values.shape[1]):
            out[m, q] = values[m, q] + half * (values[a, q] + values[b, q])


@compile(fastmath=FAST, nogil=True)
def _pile(there: Any, back: Any, upto: Any, tile: Any) -> None:
    """Add the mean of both blurs to ``upto``; the tile becomes the sum of what that was and what it is."""
    half = tile.dtype.type(0.5)
    for i in range(len(tile)):
        before = upto[i]
        upto[i] = before + half * (there[i] + back[i])
        tile[i] = before + upto[i]


@compile(fastmath=FAST, nogil=True)
def _blur_levels(total: Any, upto: Any, neighbours: Any, buffers: Any) -> None:
    """Blur all tiles by both orders of the axes; each becomes the sum of those before it and of those up to it; add up all."""
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
    """Turn the columns' sums into what is in the columns before each less what is in it and in those after it."""
    for m in range(len(upto)):
        below = upto.dtype.type(0)
        for q in range(upto.shape[1]):
            below -= upto[m, q]
        for q in range(upto.shape[1]):
            own = upto[m, q]
            upto[m, q] = below
            below += 2 * own


@kernel()
def ordered(
    begin: int,
    stop: int,
    at: Any,
    counts: Any,
    turn: Any,
    values: Any,
    weights: Any,
    vertices: Any,
    neighbours: Any,
    scale: float,
    threads: int,
    out: Any,
) -> None:
    """The ordered filter of values ``(labels, points)`` at positions on levels, for the labels that ``turn`` deals out to threads.

    Levels are blurred in tiles that fit into the cache.  A tile holds every
    ``tiles``-th level, so that the prefix sum adds whole tiles; then each column of the tiles lacks the columns before it.
    """
    rows = neighbours.shape[2] + 1  # the last is the vertex that does not exist: it stays zero
    most = (counts.max() + TILE - 1) // TILE
    labels = len(turn)
    for thread in range(begin, stop):
        # Fresh memory is slow: once for all labels.
        memory, upto = np.empty((most, rows, TILE), values.dtype), np.empty((rows, TILE), values.dtype)
        buffers = np.zeros((3, rows, TILE), values.dtype)
        for i in range(thread, labels, threads):
            label = turn[i]
            if counts[label] < 2:  # all points are level
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
    """What a point slices off the vertices."""
    total = 0.0
    for k in range(weights.shape[1]):
        total += weights[n, k] * seen[vertices[n, k]]
    return total


@kernel()
def swept(
    begin: int,
    stop: int,
    bits: Any,
    turn: Any,
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
    """The exact ordered filter of values ``(labels, points)``, for the labels that ``turn`` deals out to threads.

    Points in the order of their scores join those that are seen.  Every point reads what is below it, and what is below it or level
    with it, off the blurred vertices of the points so far.
    """
    points, corners, size = bits.shape[1], weights.shape[1], len(starts) - 1
    labels = len(turn)
    for thread in range(begin, stop):
        seen, splat, sums = np.empty(size), np.empty(size), np.empty(points)
        for i in range(thread, labels, threads):
            label = turn[i]
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
