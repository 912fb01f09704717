"""A pass of :class:`blocklp.methods.prox.Prox` over blocks with a vertex table in two sweeps, for the CPU.

The tensor operations of :mod:`blocklp.methods.active_set` and
:class:`blocklp.decomposition.problem.Decomposition` read and write every number of a block some sixty times a
pass. Here a sweep takes blocks by tiles that stay in the nearest cache, and each number is read and written
once.

Traffic of a pass, in numbers a block of dimension d with k vertices: the means 2 d (places are numbers too);
:func:`ask` reads points, centre, places and weights and writes multipliers, 4 d + k; :func:`advance` reads
multipliers and both weights and writes weights and points, 2 d + 4 k. An edge of roof duality (d = 3, k = 4)
moves 24 + 20 = 44 numbers: 176 bytes in single precision.

Blocks without a table keep a few answers of their oracle, and :func:`renew` does for ADMM what is left to do
once it has answered.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import FAST, TILE, compile, kernel

TINY = 1e-37
"""Less than the square of any step that matters, in single precision too."""


@compile(inline="always")
def _values(
    duals: Any,
    start: Any,
    blocks: Any,
    first: Any,
    count: Any,
    table: Any,
    masked: Any,
    huge: Any,
    values: Any,
) -> None:
    """Cost of every vertex of a tile of blocks; masked vertices cost a huge number."""
    for k in range(len(table)):
        value = values[k]
        value[:] = 0
        for i in range(table.shape[1]):
            entry, row = table[k, i], start + i * blocks + first
            dual = duals[row : row + count]
            if entry != 0:
                for q in range(count):
                    value[q] += entry * dual[q]
        for q in range(min(count, len(masked))):
            if masked[q, k]:
                value[q] = huge


@compile(inline="always")
def fold(lanes: Any) -> Any:
    """The sum of a tile, halves upon halves."""
    half = TILE // 2
    while half:
        upper = lanes[half : 2 * half]
        for q in range(half):
            lanes[q] += upper[q]
        half //= 2
    return lanes[0]


@compile(inline="always")
def _turn(gradients: Any, news: Any, useds: Any, ways: Any, lanes: Any, count: Any, out: Any) -> None:
    """Direction from the worst vertices in use to the best ones, for a tile of blocks.

    Four of the lanes hold the best and worst gradients, the largest step and the squared length, zero so far.
    """
    vertices, zero, one = len(gradients), lanes.dtype.type(0), lanes.dtype.type(1)
    best, worst, most, up, down, length = lanes[0], lanes[1], lanes[2], lanes[3], lanes[4], lanes[5]
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


@compile(inline="always")
def _walk(gradients: Any, news: Any, ways: Any, turns: Any, lanes: Any, count: Any, weight: Any) -> None:
    """Take the best step along a direction whose squared length is in the lanes: weights and gradients."""
    zero, tiny = lanes.dtype.type(0), lanes.dtype.type(TINY)
    best, worst, most, length = lanes[0], lanes[1], lanes[2], lanes[5]
    for q in range(count):
        step = (worst[q] - best[q]) * weight / max(length[q], tiny)
        length[q] = min(max(step, zero), most[q])
    for k in range(len(gradients)):
        gradient, new, way, turn = gradients[k], news[k], ways[k], turns[k]
        for q in range(count):
            new[q] = max(new[q] + way[q] * length[q], zero)
        for q in range(count):
            gradient[q] += turn[q] * (length[q] / weight)


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
    masked: Any,
    huge: float,
    valid: Any,
    weights: Any,
    duals: Any,
    sums: Any,
) -> None:
    """Multipliers ``centre + (points - mean) / eta`` of one group, and the oracle's answers to them.

    Parameters
    ----------
    begin, stop : int
        Units to deal with; a unit is a tile of blocks of one instance.
    points, centre : array
        ``(batch, copies)``.
    place : array
        ``(batch or 1, copies)``: the variable of each copy.
    mean : array
        ``(batch, variables)``: mean of the copies of each variable.
    eta : array
        ``(batch,)``: the proximal weight.
    start : int
        First copy of the group.
    table : array
        ``(vertices, dim)``.
    masked : array
        ``(batch or 1, blocks or 0, vertices)`` bool: vertices that bounds rule out.
    huge : float
        Cost of a masked vertex.
    valid : array
        ``(batch or 1, blocks or 0)``: 1 for valid blocks, 0 for padding.
    weights : array
        ``(batch, vertices, blocks)``: weights of the vertices.
    duals : array
        ``(batch, copies)``: the multipliers, written.
    sums : array
        ``(batch, tiles, 3)``, written: the squared disagreement, the least costs and the costs of the weights
        of every tile.
    """
    batch, vertices, blocks = weights.shape
    dim, tiles = table.shape[1], sums.shape[1]
    for unit in range(begin, stop):
        b, tile = unit // tiles, unit % tiles
        first = tile * TILE
        count = min(TILE, blocks - first)
        values, best = np.empty((vertices, TILE), points.dtype), np.zeros(TILE, points.dtype)
        residual, cost = np.zeros(TILE, points.dtype), np.zeros(TILE, points.dtype)
        inverse, average = points.dtype.type(1) / eta[b], mean[b]
        for i in range(dim):
            row = start + i * blocks + first
            end = row + count
            point, middle, dual = points[b, row:end], centre[b, row:end], duals[b, row:end]
            where = place[b % len(place), row : row + count]
            for q in range(count):
                dual[q] = point[q] - average[where[q]]
            for q in range(count):
                residual[q] += dual[q] * dual[q]
            for q in range(count):
                dual[q] = middle[q] + dual[q] * inverse
        _values(duals[b], start, blocks, first, count, table, masked[b % len(masked), first:], huge, values)
        for q in range(count):
            best[q] = values[0, q]
        for k in range(vertices):
            value, weight = values[k], weights[b, k, first : first + count]
            for q in range(count):
                best[q] = min(best[q], value[q])
            for q in range(count):
                cost[q] += weight[q] * value[q]
        counted = valid[b % len(valid), first:]
        for q in range(min(count, len(counted))):
            best[q] *= counted[q]
        sums[b, tile, 0], sums[b, tile, 1], sums[b, tile, 2] = fold(residual), fold(best), fold(cost)


@kernel(fastmath=FAST)
def advance(
    begin: int,
    stop: int,
    duals: Any,
    start: int,
    table: Any,
    gram: Any,
    masked: Any,
    huge: float,
    eta: Any,
    momentum: Any,
    repeats: int,
    ruled_out: float,
    weights: Any,
    earlier: Any,
    points: Any,
) -> None:
    """Pairwise steps of one group's blocks (:func:`blocklp.methods.active_set.pairwise_steps`), extrapolated.

    Parameters
    ----------
    begin, stop, start, masked, huge, eta
        As in :func:`ask`.
    duals : array
        ``(batch, copies)``: the multipliers, whose costs of the vertices are the slopes.
    table, gram : array
        ``(vertices, dim)``, and ``(vertices, vertices)``: inner products in the coupled coordinates.
    momentum : array
        ``(batch,)``: part of the step by which weights are extrapolated.
    repeats : int
        Number of steps.
    ruled_out : float
        Less than any real cost (:func:`blocklp.methods.active_set.ruled_out`).
    weights, earlier : array
        ``(batch, vertices, blocks)``, written: extrapolated weights, and those of this step.
    points : array
        ``(batch, copies)``, written: the points of the extrapolated weights.
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
        length = lanes[5]
        weight, before = eta[b], momentum[b]
        masks = masked[b % len(masked), first:]
        _values(duals[b], start, blocks, first, count, table, masks, huge, gradients)
        for k in range(vertices):
            for q in range(count):
                news[k, q] = weights[b, k, first + q]
        for _ in range(repeats):
            _turn(gradients, news, useds, ways, lanes, count, out)
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
            _walk(gradients, news, ways, turns, lanes, count, weight)
        length[:count] = 0
        for k in range(vertices):
            new, used, last = news[k], useds[k], earlier[b, k, first : first + count]
            for q in range(count):
                used[q] = max(new[q] + (new[q] - last[q]) * before, zero)
            for q in range(count):
                length[q] += used[q]
            for q in range(count):
                last[q] = new[q]
        for q in range(count):
            length[q] = one / max(length[q], tiny)
        for k in range(vertices):
            used, further = useds[k], weights[b, k, first : first + count]
            for q in range(count):
                used[q] *= length[q]
                further[q] = used[q]
        for i in range(dim):
            row = start + i * blocks + first
            point = points[b, row : row + count]
            point[:] = 0
            for k in range(vertices):
                entry, used = table[k, i], useds[k]
                if entry != 0:
                    for q in range(count):
                        point[q] += entry * used[q]


@kernel(fastmath=FAST)
def renew(
    begin: int,
    stop: int,
    slopes: Any,
    start: int,
    found: Any,
    least: Any,
    coupled: Any,
    eta: Any,
    repeats: int,
    ruled_out: float,
    atoms: Any,
    weights: Any,
    points: Any,
) -> None:
    """Keep an oracle's answers among the atoms of one group's blocks, and take pairwise steps.

    The loops of :class:`blocklp.methods.active_set.VertexCache` and
    :func:`blocklp.methods.active_set.pairwise_steps`.

    Parameters
    ----------
    begin, stop, start, eta, repeats, ruled_out
        As in :func:`ask` and :func:`advance`.
    slopes : array
        ``(batch, copies)``: gradient of the model, at which the oracle was asked.
    found : array
        ``(batch, dim, blocks)``: the oracle's points.
    least : array
        ``(batch, blocks)``: their values.
    coupled : array
        ``(dim,)``: 1 for coordinates that other blocks share.
    atoms : array
        ``(batch, atoms, dim, blocks)``, written.
    weights : array
        ``(batch, atoms, blocks)``, written.
    points : array
        ``(batch, copies)``, written: the points of the weights.
    """
    batch, slots, dim, blocks = atoms.shape
    tiles, kind = (blocks + TILE - 1) // TILE, weights.dtype.type
    zero, out, tiny = kind(0), kind(ruled_out), kind(TINY)
    for unit in range(begin, stop):
        b, first = unit // tiles, unit % tiles * TILE
        count = min(TILE, blocks - first)
        gradients, news = np.empty((slots, TILE), weights.dtype), np.empty((slots, TILE), weights.dtype)
        useds, ways = np.empty((slots, TILE), weights.dtype), np.empty((slots, TILE), weights.dtype)
        turns, lanes = np.empty((slots, TILE), weights.dtype), np.empty((6, TILE), weights.dtype)
        low, weight = lanes[0], eta[b]
        for k in range(slots):
            for q in range(count):
                news[k, q] = weights[b, k, first + q]
            gradient = gradients[k]
            gradient[:count] = 0
            for i in range(dim):
                row = start + i * blocks + first
                atom, slope = atoms[b, k, i, first : first + count], slopes[b, row : row + count]
                for q in range(count):
                    gradient[q] += atom[q] * slope[q]
        for q in range(count):
            low[q] = gradients[0, q]
        for k in range(slots):
            gradient = gradients[k]
            for q in range(count):
                low[q] = min(low[q], gradient[q])
        for q in range(count):
            value = least[b, first + q]
            if low[q] <= value + kind(1e-12) * abs(value):
                continue  # it is there
            slot = 1
            for k in range(2, slots):
                if news[k, q] < news[slot, q]:
                    slot = k
            moved, at = news[slot, q], first + q
            share = moved / max(news[0, q] + moved, tiny)
            news[0, q] += moved
            news[slot, q] = zero
            gradients[0, q] = zero
            gradients[slot, q] = zero
            for i in range(dim):
                slope = slopes[b, start + i * blocks + at]
                atoms[b, 0, i, at] += share * (atoms[b, slot, i, at] - atoms[b, 0, i, at])
                atoms[b, slot, i, at] = found[b, i, at]
                gradients[0, q] += atoms[b, 0, i, at] * slope
                gradients[slot, q] += found[b, i, at] * slope
        for _ in range(repeats):
            _turn(gradients, news, useds, ways, lanes, count, out)
            length, move = lanes[5], useds[0]
            turns[:, :count] = 0
            for i in range(dim):
                if coupled[i] == 0:
                    continue
                move[:count] = 0
                for k in range(slots):
                    atom, way = atoms[b, k, i, first : first + count], ways[k]
                    for q in range(count):
                        move[q] += atom[q] * way[q]
                for q in range(count):
                    length[q] += move[q] * move[q]
                for k in range(slots):
                    atom, turn = atoms[b, k, i, first : first + count], turns[k]
                    for q in range(count):
                        turn[q] += atom[q] * move[q]
            _walk(gradients, news, ways, turns, lanes, count, weight)
        for k in range(slots):
            for q in range(count):
                weights[b, k, first + q] = news[k, q]
        for i in range(dim):
            row = start + i * blocks + first
            point = points[b, row : row + count]
            point[:] = 0
            for k in range(slots):
                atom, new = atoms[b, k, i, first : first + count], news[k]
                for q in range(count):
                    point[q] += atom[q] * new[q]
