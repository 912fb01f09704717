"""Splat, blur and slice on a CPU, compiled by numba on first use and cached.

Kernels of :mod:`blocklp.oracles.filters.permutohedral`; arrays of points have a row for each point, those of
vertices a row for each vertex.  Each computes the entries from ``begin`` to before ``stop`` of its outputs.

Every result is written by one thread in a fixed order, so runs repeat bit for bit whatever the number of
threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import FAST, compile, kernel

CHUNK = 128
"""Points that a thread embeds at a time, in columns."""


@kernel(fastmath=FAST)
def embed(
    begin: int,
    stop: int,
    features: Any,
    scales: Any,
    steps: Any,
    start: int,
    offsets: Any,
    keys: Any,
    weights: Any,
) -> None:
    """Simplices of points: keys of their vertices, and barycentric weights.

    The algorithm of :func:`blocklp.oracles.filters.lattice_geometry.embed`, with the elevation by a running
    sum.

    Parameters
    ----------
    begin, stop : int
        Chunks of :data:`CHUNK` points.
    features : ndarray
        ``(points, d)`` floating point.
    scales : ndarray
        ``(d,)``: factors of the features.
    steps : ndarray
        ``(d + 1,)`` int64: change of a key by a step up each axis.
    start : int
        Key of the origin.
    offsets : ndarray
        ``(points,)`` int64: change of the keys by the image of each point.
    keys, weights : ndarray
        ``(points, d + 1)`` int64 and floating point, written over.
    """
    points, d = features.shape
    real = features.dtype.type
    zero, one, last, inverse = real(0), real(1), real(d), real(1 / (d + 1))
    lifted, whole = np.empty((d + 1, CHUNK), features.dtype), np.empty((d + 1, CHUNK), features.dtype)
    residual, rank = np.empty((d + 1, CHUNK), features.dtype), np.empty((d + 1, CHUNK), features.dtype)
    below, excess = np.empty(CHUNK, features.dtype), np.empty(CHUNK, features.dtype)
    first = np.empty(CHUNK, np.int64)
    axes, ordered = np.empty(d + 1, np.int64), np.empty(d + 1, features.dtype)
    for chunk in range(begin, stop):
        origin = chunk * CHUNK
        count = min(CHUNK, points - origin)
        below[:], excess[:], first[:] = zero, zero, start
        for i in range(d, -1, -1):
            if i > 0:
                for t in range(count):
                    feature = features[origin + t, i - 1] * scales[i - 1]
                    lifted[i, t] = below[t] - real(i) * feature
                    below[t] += feature
            else:
                lifted[0, :count] = below[:count]
            for t in range(count):
                whole[i, t] = np.rint(lifted[i, t] * inverse)
                excess[t] += whole[i, t]
                residual[i, t] = lifted[i, t] - whole[i, t] * real(d + 1)
        for i in range(d + 1):
            rank[i] = excess
        for i in range(d + 1):
            for j in range(i + 1, d + 1):
                one_rank, other_rank = rank[i], rank[j]
                one_residual, other_residual = residual[i], residual[j]
                for t in range(count):
                    # Equal residuals keep their order.
                    less = one if one_residual[t] < other_residual[t] else zero
                    one_rank[t] += less
                    other_rank[t] += one - less
        for i in range(d + 1):
            step = steps[i]
            for t in range(count):
                wrap = (one if rank[i, t] < zero else zero) - (one if rank[i, t] > last else zero)
                rank[i, t] += real(d + 1) * wrap
                corner = whole[i, t] + wrap
                lifted[i, t] = lifted[i, t] * inverse - corner
                first[t] += np.int64(corner) * step
        for t in range(count):
            n = origin + t
            for i in range(d + 1):
                place = d - np.int64(rank[i, t])
                axes[place], ordered[place] = i, lifted[i, t]
            key = first[t] + offsets[n]
            keys[n, 0], weights[n, 0] = key, one + ordered[0] - ordered[d]
            for k in range(1, d + 1):
                key -= steps[axes[k - 1]]
                keys[n, k], weights[n, k] = key, ordered[k] - ordered[k - 1]


@compile(inline="always")
def _slot(table: Any, key: Any) -> Any:
    """Position of a key in a table of keys and numbers, or the free one where it belongs."""
    mask = np.uint64(len(table) - 1)
    mixed = np.uint64(key) ^ (np.uint64(key) >> np.uint64(32))  # keys may be far apart by powers of two
    at = (mixed * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
    while table[at & mask, 1] >= 0 and table[at & mask, 0] != key:
        at += np.uint64(1)
    return at & mask


@compile(nogil=True)
def _double(table: Any) -> Any:
    """A copy of the table of twice its size."""
    larger = np.full((2 * len(table), 2), -1)
    for at in range(len(table)):
        if table[at, 1] >= 0:
            larger[_slot(larger, table[at, 0])] = table[at]
    return larger


@compile(nogil=True)
def number(vertices: Any, steps: Any) -> Any:
    """Number the vertices in the order of their first points, and find their neighbours.

    Keys ``(points, d + 1)`` int64 are replaced by numbers; a step up each axis adds ``steps`` ``(d + 1,)`` to
    a key.  The neighbours up and down each axis are ``(d + 1, 2, size)`` int64, ``size`` for none.
    """
    points, corners = vertices.shape
    table = np.full((1 << 14, 2), -1)
    count = 0
    # A point often is in the simplex of the one before it.
    before, last_number = np.full(corners, -1), np.full(corners, -1)
    for n in range(points):
        for k in range(corners):
            key = vertices[n, k]
            if key == before[k]:
                vertices[n, k] = last_number[k]
            else:
                before[k] = key
                at = _slot(table, key)
                if table[at, 1] >= 0:
                    vertices[n, k] = last_number[k] = table[at, 1]
                else:
                    table[at, 0], table[at, 1] = key, count
                    vertices[n, k] = last_number[k] = count
                    count += 1
                    if 2 * count == len(table):
                        table = _double(table)
    neighbours = np.full((corners, 2, count), count)
    for here in range(len(table)):
        m = table[here, 1]
        if m >= 0:
            for axis in range(corners):
                up = table[_slot(table, table[here, 0] + steps[axis]), 1]
                if up >= 0:
                    neighbours[axis, 0, m], neighbours[axis, 1, up] = up, m
    return neighbours


@kernel(fastmath=FAST)
def splat(begin: int, stop: int, values: Any, weights: Any, vertices: Any, shares: int, out: Any) -> None:
    """Splat ``out[vertices] += weights * values``, point by point.

    Parameters
    ----------
    begin, stop : int
        Shares of the channels.
    values : ndarray
        ``(points, channels)`` floating point.
    weights, vertices : ndarray
        ``(points, d + 1)`` floating point and int64.
    shares : int
        Number of parts that the channels are divided into.
    out : ndarray
        ``(size, channels)``, zeros that become the sums.
    """
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
    """Blur ``out = values + half of both neighbours`` along one axis.

    Parameters
    ----------
    begin, stop : int
        Vertices.
    values : ndarray
        ``(size, channels)`` floating point.
    before, after : ndarray
        ``(size,)`` int64: neighbours, ``size`` for none.
    out : ndarray
        ``(size, channels)``, written over.
    """
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
    """Slice ``out[n] = sum of weights[n] * values[vertices[n]]``.

    In sums of three terms where that is possible: colours and places have six.

    Parameters
    ----------
    begin, stop : int
        Points.
    values : ndarray
        ``(size, channels)`` floating point.
    weights, vertices : ndarray
        ``(points, d + 1)`` floating point and int64.
    out : ndarray
        ``(points, channels)``, written over.
    """
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
    """Inner products ``out[n, k] = <values[vertices[n, k]], others[n]>``.

    Parameters
    ----------
    begin, stop : int
        Points.
    values, others : ndarray
        ``(size, channels)`` and ``(points, channels)`` floating point.
    vertices : ndarray
        ``(points, d + 1)`` int64.
    out : ndarray
        ``(points, d + 1)``, written over.
    """
    for n in range(begin, stop):
        for k in range(out.shape[1]):
            total = values.dtype.type(0)
            for c in range(values.shape[1]):
                total += values[vertices[n, k], c] * others[n, c]
            out[n, k] = total


@compile(inline="always")
def _walk(neighbours: Any, at: Any, axes: Any, chosen: bool, side: int) -> Any:
    """The vertex that steps along the axes that are (not) chosen lead to, ``size`` for none."""
    size = neighbours.shape[2]
    for axis in range(len(axes)):
        if axes[axis] == chosen and at < size:
            at = neighbours[axis, side, at]
    return at


@kernel()
def diagonal(
    begin: int,
    stop: int,
    weights: Any,
    vertices: Any,
    neighbours: Any,
    scale: float,
    out: Any,
) -> None:
    """Diagonal of the kernel matrix, by the walks that :attr:`Lattice.diagonal` explains.

    Parameters
    ----------
    begin, stop : int
        Points.
    weights, vertices : ndarray
        ``(points, d + 1)`` floating point and int64.
    neighbours : ndarray
        ``(d + 1, 2, size)`` int64.
    scale : float
        Factor of the filter.
    out : ndarray
        ``(points,)`` float64, written over.
    """
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
            stay = 1.0
            for side in range(2):
                if _walk(neighbours, at[first], between, False, side) == at[first]:
                    stay += around
            total += weight[first] * weight[first] * stay
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
    """The blur as a sparse matrix by rows: starts, columns and entries."""
    axes, _, size = neighbours.shape
    starts = np.zeros(size + 1, np.int64)
    columns, entries = np.empty(32 * size, np.int32), np.empty(32 * size, np.float32)
    reached, row = np.empty(size, np.int32), np.empty(size, np.int32)
    value, before, total = np.zeros(size), np.empty(size), np.zeros(size)
    for m in range(size):
        width = 0
        for way in range(2):
            reached[0], value[m], count = m, 1.0, 1
            for step in range(axes):
                axis = step if way == 0 else axes - 1 - step
                previous = count
                for j in range(previous):
                    before[j] = 0.5 * value[reached[j]]
                for j in range(previous):
                    for side in range(2):
                        to = neighbours[axis, side, reached[j]]
                        if to < size:
                            if value[to] == 0:
                                reached[count] = to
                                count += 1
                            value[to] += before[j]
            for j in range(count):
                to = reached[j]
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
