"""Passes of ADMM over blocks of :mod:`blocklp.oracles.products`, their bounds and primal points, compiled for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.compiled import TILE, compile, kernel
from blocklp.consensus_kernels import follow_row, pull_row

EPS = float(np.finfo(np.float64).eps)


@compile(nogil=True, error_model="numpy")
def _edges(
    place: Any,
    m: Any,
    z: Any,
    speed: Any,
    step: Any,
    anchor: Any,
    age: int,
    start: int,
    blocks: int,
    first: int,
    count: int,
    dual: Any,
    point: Any,
    near: Any,
) -> None:
    """Multipliers and proximal points of some edges of an instance: :meth:`Edge.prox` and the update before it.

    An edge reads its product's cost, two multipliers, two points, two places and four numbers there, and writes two multipliers and
    three points: 16 numbers, 64 bytes in single precision.  ``near`` (4, TILE) is room for what is gathered.
    """
    kind = point.dtype.type
    zero, one, half = kind(0), kind(1), kind(0.5)
    a, b, c = start + first, start + blocks + first, start + 2 * blocks + first
    mean_a, mean_b, z_a, z_b = near[0], near[1], near[2], near[3]
    place_a, place_b = place[a : a + count], place[b : b + count]
    for q in range(count):
        i, j = place_a[q], place_b[q]
        mean_a[q], mean_b[q], z_a[q], z_b[q] = m[i], m[j], z[i], z[j]
    dual_a, dual_b, cost = dual[a : a + count], dual[b : b + count], dual[c : c + count]
    x_a, x_b, x_c = point[a : a + count], point[b : b + count], point[c : c + count]
    rate = speed
    if len(anchor):
        for q in range(count):
            dual_a[q] = (x_a[q] - mean_a[q]) * speed + dual_a[q]
            dual_b[q] = (x_b[q] - mean_b[q]) * speed + dual_b[q]
        pull_row(anchor[a : a + count], age, dual_a)
        pull_row(anchor[b : b + count], age, dual_b)
        rate = zero  # they have moved
    for q in range(count):
        l_a = (x_a[q] - mean_a[q]) * rate + dual_a[q]
        l_b = (x_b[q] - mean_b[q]) * rate + dual_b[q]
        dual_a[q] = l_a
        dual_b[q] = l_b
        u, v, p = z_a[q] - step * l_a, z_b[q] - step * l_b, step * cost[q]
        gain = min(p, zero)
        side = -one if p < zero else one
        kink = min(max((u + side * v + (-p if p < zero else -one)) * half, zero), abs(p))
        y_a = min(max(u - kink - gain, zero), one)
        y_b = min(max(v - side * kink, zero), one)
        x_a[q] = y_a
        x_b[q] = y_b
        x_c[q] = min(y_a, y_b) if p < zero else max(y_a + y_b - one, zero)


@compile(nogil=True, error_model="numpy")
def _add_runs(place: Any, value: Any, sums: Any) -> None:
    """Add values to the sums of their places, in order; a sum stays in a register as long as its place comes again.

    Edges mostly are sorted by their first end.
    """
    kind = sums.dtype.type
    if not len(place):
        return
    here = place[0]
    total = sums[here]
    for k in range(len(place)):
        if place[k] != here:
            sums[here] = total
            here = place[k]
            total = sums[here]
        total += kind(value[k])
    sums[here] = total


@kernel(grain=32)
def edge_pass(
    begin: int,
    stop: int,
    places: Any,
    mean: Any,
    consensus: Any,
    rate: Any,
    eta: Any,
    anchor: Any,
    age: Any,
    start: int,
    blocks: int,
    duals: Any,
    points: Any,
) -> None:
    """One pass over the edges of all instances, a tile a unit; means and consensus are the caller's."""
    tiles = (blocks + TILE - 1) // TILE
    near = np.empty((4, TILE), points.dtype)
    for unit in range(begin, stop):
        row, first = unit // tiles, unit % tiles * TILE
        pulled = (anchor[row], age[row])
        own = (places[row % len(places)], mean[row], consensus[row], rate[row], eta[row], *pulled, start, blocks)
        _edges(*own, first, min(TILE, blocks - first), duals[row], points[row], near)


@kernel()
def edge_passes(
    begin: int,
    stop: int,
    live: Any,
    passes: int,
    used: int,
    counts: Any,
    relaxation: float,
    places: Any,
    mean: Any,
    consensus: Any,
    rate: Any,
    eta: Any,
    anchor: Any,
    base: Any,
    age: Any,
    start: int,
    blocks: int,
    duals: Any,
    points: Any,
) -> None:
    """Several passes, a live instance a unit, which then stays in the cache; all but the last end with the next consensus."""
    near, sums = np.empty((4, TILE), points.dtype), np.empty(used, points.dtype)
    speed = points.dtype.type(relaxation)
    for row in live[begin:stop]:
        place, number = places[row % len(places)], counts[row % len(counts), :used]
        m, z, pull, still, point = mean[row, :used], consensus[row, :used], anchor[row], base[row], points[row]
        for n in range(passes):
            if n:
                follow_row(number, speed, m, z)
                if len(still):
                    pull_row(still[:used], age[row] + n, z)
            sums[:] = 0
            for first in range(0, blocks, TILE):
                own = (place, m, z, rate[row], eta[row], pull, age[row] + n, start, blocks)
                _edges(*own, first, min(TILE, blocks - first), duals[row], point, near)
                tile = slice(start + first, start + min(first + TILE, blocks))
                _add_runs(place[tile], point[tile], sums)  # while it is near
            for k in range(start + blocks, start + 2 * blocks):
                sums[place[k]] += point[k]
            for v in range(used):
                m[v] = sums[v] / number[v]


@kernel()
def edge_bounds(
    begin: int,
    stop: int,
    live: Any,
    start: int,
    blocks: int,
    used: int,
    met: Any,
    places: Any,
    cost: Any,
    counts: Any,
    lower: Any,
    upper: Any,
    largest: Any,
    rest: Any,
    duals: Any,
    noticed: float,
    bound: Any,
    best: Any,
    best_duals: Any,
) -> None:
    """:func:`blocklp.checks.improve` for live instances whose other blocks are boxes of value ``rest``; products are in no others."""
    share, again = np.empty(used), np.empty(used)
    ends = start + 2 * blocks
    for row in live[begin:stop]:
        place, dual, c, number = places[row % len(places)], duals[row], cost[row], counts[row % len(counts)]
        low, high, own = lower[row % len(lower)], upper[row % len(upper)], met[row % len(met)]
        share[:], again[:] = 0, 0
        _add_runs(place[start : start + blocks], dual[start : start + blocks], share)
        for k in range(start + blocks, ends):
            share[place[k]] += np.float64(dual[k])
        for v in range(used):
            share[v] = (c[v] - share[v]) / number[v]
        total, size = 0.0, 0.0
        here, mine = 0, 0.0
        for first in range(0, blocks, TILE):
            part, mass = 0.0, 0.0
            for q in range(start + first, start + min(first + TILE, blocks)):
                i, j, p = place[q], place[q + blocks], c[place[q + 2 * blocks]]
                a, b = dual[q] + share[i], dual[q + blocks] + share[j]
                part += min(min(a, 0.0), min(b, a + b + p))
                mass += abs(a) + abs(b) + abs(p)
                if i != here:
                    again[here] += mine
                    here, mine = i, 0.0
                mine += a
                again[j] += b
            total += part
            size += mass
        again[here] += mine
        for v in range(used):
            if own[v]:
                left = c[v] - again[v]
                total += min(left * low[v], left * high[v])
        total += rest[row] - 16 * EPS * size * largest[row]
        bound[row] = total
        if total > best[row] + noticed * abs(total) or (total > best[row] and np.isinf(best[row])):
            best[row] = total
            for k in range(len(dual)):
                best_duals[row, k] = dual[k] + share[place[k]] if start <= k < ends else c[place[k]]


@kernel()
def edge_completed(
    begin: int,
    stop: int,
    live: Any,
    start: int,
    blocks: int,
    used: int,
    ends: int,
    met: Any,
    private: Any,
    places: Any,
    cost: Any,
    offset: Any,
    counts: Any,
    lower: Any,
    upper: Any,
    grid: Any,
    noticed: float,
    tolerance: float,
    points: Any,
    bound: Any,
    size: Any,
    primal: Any,
    x: Any,
) -> None:
    """:func:`blocklp.checks.offer` for live instances whose other blocks are boxes; variables from ``ends`` on are products."""
    plain, near = np.empty(cost.shape[1]), np.empty(cost.shape[1])
    for row in live[begin:stop]:
        place, point, c, number = places[row % len(places)], points[row], cost[row], counts[row % len(counts)]
        low, high, step = lower[row % len(lower)], upper[row % len(upper)], grid[row % len(grid)]
        shared, alone = met[row % len(met)], private[row % len(private)]
        plain[:used] = 0
        _add_runs(place[start : start + blocks], point[start : start + blocks], plain)
        for k in range(start + blocks, start + 2 * blocks):
            plain[place[k]] += np.float64(point[k])
        value, other, beyond, past = offset[row], offset[row], 0.0, 0.0
        biggest, rounded = 0.0, 0.0
        for v in range(ends):
            if shared[v]:
                u = min(max(plain[v] / number[v], low[v]), high[v])
                w = min(max(np.rint(u / step[v]) * step[v], low[v]), high[v]) if step[v] > 0 else u
                plain[v], near[v] = u, w
                value += c[v] * u
                other += c[v] * w
                # The products below then are within what the block allows.
                beyond, past = max(beyond, -u, u - 1), max(past, -w, w - 1)
                biggest, rounded = max(biggest, abs(u)), max(rounded, abs(w))
            elif alone[v]:
                plain[v] = near[v] = high[v] if c[v] < 0 else low[v]
                value += c[v] * plain[v]
                other += c[v] * plain[v]
                biggest, rounded = max(biggest, abs(plain[v])), max(rounded, abs(plain[v]))
        for q in range(start, start + blocks):
            i, j, k = place[q], place[q + blocks], place[q + 2 * blocks]
            a, b, u, w = plain[i], plain[j], near[i], near[j]
            plain[k] = max(a + b - 1, 0.0) if c[k] > 0 else min(a, b)
            near[k] = max(u + w - 1, 0.0) if c[k] > 0 else min(u, w)
            value += c[k] * plain[k]
            other += c[k] * near[k]
            beyond, past = max(beyond, low[k] - plain[k], plain[k] - high[k]), max(past, low[k] - near[k], near[k] - high[k])
            biggest, rounded = max(biggest, abs(plain[k])), max(rounded, abs(near[k]))
        chosen, most, violated = plain, biggest, beyond
        if other < value + noticed * abs(value) and past <= tolerance * (1 + rounded):
            chosen, value, most, violated = near, other, rounded, past
        slack = tolerance * (1 + most)
        good = value < primal[row] - noticed * abs(value) and value >= bound[row] - slack * size[row] and violated <= slack
        if good:
            primal[row] = value
        if good or np.isinf(primal[row]):
            x[row, :] = chosen
