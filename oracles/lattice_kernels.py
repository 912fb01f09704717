"""Splat, blur and slice on a CPU, compiled by numba on first use and cached: the loops of :mod:`blocklp.oracles.permutohedral`.

Every result is written by one thread in a fixed order, so runs repeat bit for bit whatever the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.compiled import FAST, compile, kernel

CHUNK = 1024
"""Points that a thread embeds at a time."""


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
