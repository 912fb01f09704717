"""A pass of :class:`blocklp.methods.prox.Prox` over blocks with a vertex table in two sweeps, for the CPU.

The tensor operations of :mod:`blocklp.atoms` and :class:`blocklp.decomposition.Decomposition` read and write every number of a block
some sixty times a pass.  Here a sweep takes blocks by tiles that stay in the nearest cache, and each number is read and written once.

Traffic of a pass, in numbers a block of dimension d with k vertices: the means 2 d (places are numbers too); :func:`ask` reads
points, centre, places and weights and writes multipliers, 4 d + k; :func:`advance` reads multipliers and both weights and writes
weights and points, 2 d + 4 k.  An edge of roof duality (d = 3, k = 4) moves 24 + 20 = 44 numbers: 176 bytes in single precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.compiled import FAST, TILE, compile, kernel

TINY = 1e-37
"""Less than the square of any step that matters, in single precision too."""


@compile(inline="always")
def _values(duals: Any, start: Any, blocks: Any, first: Any, count: Any, table: Any, struck: Any, huge: Any, values: Any) -> None:
    """Cost of every vertex of a tile of blocks; vertices that bounds rule out cost a huge number."""
    for k in range(len(table)):
        value = values[k]
        value[:] = 0
        for i in range(table.shape[1]):
            entry, row = table[k, i], start + i * blocks + first
            dual = duals[row : row + count]
            if entry != 0:
                for q in range(count):
                    value[q] += entry * dual[q]
        for q in range(min(count, len(struck))):
            if struck[q, k]:
                value[q] = huge


@compile(inline="always")
def _fold(lanes: Any) -> Any:
    """The sum of a tile, halves upon halves."""
    half = TILE // 2
    while half:
        upper = lanes[half : 2 * half]
        for q in range(half):
            lanes[q] += upper[q]
        half //= 2
    return lanes[0]


@kernel(fastmath=FAST)
def ask(
    begin: int,
    stop: int,
    points: Any,
    centre: Any,
    place: Any,
    mean: Any,
    eta: Any,
    start: int,
    table: Any,
    struck: Any,
    huge: float,
    alive: Any,
    weights: Any,
    duals: Any,
    sums: Any,
) -> None:
    """Multipliers ``centre + (points - mean) / eta`` of one group, and the oracle's answers to them.

    ``sums`` ``(batch, tiles, 3)`` are, of every tile, the squared disagreement, the least costs and the costs of the weights.
    ``struck`` ``(batch or 1, blocks or 0, vertices)`` are vertices that bounds rule out, ``alive`` ``(batch or 1, blocks or 0)`` is 1
    for blocks that count.
    """
    batch, vertices, blocks = weights.shape
    dim, tiles = table.shape[1], sums.shape[1]
    for unit in range(begin, stop):
        b, tile = unit // tiles, unit % tiles
        first = tile * TILE
        count = min(TILE, blocks - first)
        values, best = np.empty((vertices, TILE), points.dtype), np.zeros(TILE, points.dtype)
        apart, cost = np.zeros(TILE, points.dtype), np.zeros(TILE, points.dtype)
        inverse, average = points.dtype.type(1) / eta[b], mean[b]
        for i in range(dim):
            row = start + i * blocks + first
            point, middle, dual = points[b, row : row + count], centre[b, row : row + count], duals[b, row : row + count]
            where = place[b % len(place), row : row + count]
            for q in range(count):
                dual[q] = point[q] - average[where[q]]
            for q in range(count):
                apart[q] += dual[q] * dual[q]
            for q in range(count):
                dual[q] = middle[q] + dual[q] * inverse
        _values(duals[b], start, blocks, first, count, table, struck[b % len(struck), first:], huge, values)
        best[:count] = values[0, :count]
        for k in range(vertices):
            value, weight = values[k], weights[b, k, first : first + count]
            for q in range(count):
                best[q] = min(best[q], value[q])
            for q in range(count):
                cost[q] += weight[q] * value[q]
        living = alive[b % len(alive), first:]
        for q in range(min(count, len(living))):
            best[q] *= living[q]
        sums[b, tile, 0], sums[b, tile, 1], sums[b, tile, 2] = _fold(apart), _fold(best), _fold(cost)


@kernel(fastmath=FAST)
def advance(
    begin: int,
    stop: int,
    duals: Any,
    start: int,
    table: Any,
    gram: Any,
    struck: Any,
    huge: float,
    eta: Any,
    push: Any,
    repeats: int,
    ruled_out: float,
    weights: Any,
    earlier: Any,
    points: Any,
) -> None:
    """Pairwise steps of one group's blocks (:func:`blocklp.atoms.pairwise_steps`), extrapolation by ``push``, and their points.

    ``weights`` become the extrapolated ones, ``earlier`` those of this step.
    """
    batch, vertices, blocks = weights.shape
    dim, tiles, kind = table.shape[1], (blocks + TILE - 1) // TILE, weights.dtype.type
    zero, one, out, tiny = kind(0), kind(1), kind(ruled_out), kind(TINY)
    for unit in range(begin, stop):
        b, first = unit // tiles, unit % tiles * TILE
        count = min(TILE, blocks - first)
        gradients, news = np.empty((vertices, TILE), weights.dtype), np.empty((vertices, TILE), weights.dtype)
        useds, ways = np.empty((vertices, TILE), weights.dtype), np.empty((vertices, TILE), weights.dtype)
        turns, lanes = np.empty((vertices, TILE), weights.dtype), np.empty((6, TILE), weights.dtype)
        best, worst, most, up, down, length = lanes[0], lanes[1], lanes[2], lanes[3], lanes[4], lanes[5]
        weight, before = eta[b], push[b]
        _values(duals[b], start, blocks, first, count, table, struck[b % len(struck), first:], huge, gradients)
        for k in range(vertices):
            news[k, :count] = weights[b, k, first : first + count]
        for _ in range(repeats):
            for q in range(count):
                best[q], worst[q], most[q] = -out, 2 * out, -out
                up[q], down[q], length[q] = zero, zero, zero
            for k in range(vertices):
                gradient, new, used = gradients[k], news[k], useds[k]
                for q in range(count):
                    used[q] = gradient[q] + (out if new[q] <= zero else zero)
                for q in range(count):
                    best[q] = min(best[q], gradient[q])
                for q in range(count):
                    worst[q] = max(worst[q], used[q])
            for k in range(vertices):
                gradient, new, used = gradients[k], news[k], useds[k]
                for q in range(count):
                    up[q] += one if gradient[q] == best[q] else zero
                for q in range(count):
                    down[q] += one if used[q] >= worst[q] else zero
                for q in range(count):
                    most[q] = min(most[q], new[q] if used[q] >= worst[q] else -out)
            for q in range(count):
                most[q] *= down[q]
                up[q], down[q] = one / up[q], one / down[q]
            for k in range(vertices):
                gradient, used, way = gradients[k], useds[k], ways[k]
                for q in range(count):
                    way[q] = up[q] if gradient[q] == best[q] else zero
                for q in range(count):
                    way[q] -= down[q] if used[q] >= worst[q] else zero
            for k in range(vertices):
                turn, way = turns[k], ways[k]
                turn[:count] = 0
                for m in range(vertices):
                    entry, other = gram[k, m], ways[m]
                    if entry != 0:
                        for q in range(count):
                            turn[q] += entry * other[q]
                for q in range(count):
                    length[q] += way[q] * turn[q]
            for q in range(count):
                step = (worst[q] - best[q]) * weight / max(length[q], tiny)
                length[q] = min(max(step, zero), most[q])
            for k in range(vertices):
                gradient, new, way, turn = gradients[k], news[k], ways[k], turns[k]
                for q in range(count):
                    new[q] = max(new[q] + way[q] * length[q], zero)
                for q in range(count):
                    gradient[q] += turn[q] * (length[q] / weight)
        length[:count] = 0
        for k in range(vertices):
            new, used, last = news[k], useds[k], earlier[b, k, first : first + count]
            for q in range(count):
                used[q] = max(new[q] + (new[q] - last[q]) * before, zero)
            for q in range(count):
                length[q] += used[q]
            last[:] = new[:count]
        for q in range(count):
            length[q] = one / max(length[q], tiny)
        for k in range(vertices):
            used, further = useds[k], weights[b, k, first : first + count]
            for q in range(count):
                used[q] *= length[q]
            further[:] = used[:count]
        for i in range(dim):
            row = start + i * blocks + first
            point = points[b, row : row + count]
            point[:] = 0
            for k in range(vertices):
                entry, used = table[k, i], useds[k]
                if entry != 0:
                    for q in range(count):
                        point[q] += entry * used[q]
