"""Bounds and primal points of blocks of :mod:`blocklp.oracles.boolean_quadric`, compiled for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from blocklp.kernels.compiled import FAST, TILE, TURNS, compile, kernel
from blocklp.kernels.turns import claim, done
from blocklp.rounding import rounding

EPS = float(np.finfo(np.float64).eps)

SHARES, BETTER, NEW = 4, 5, 6
"""Where the first totals of a bound hold what all its parts go by."""


@compile(nogil=True, error_model="numpy")
def add(place_a: Any, place_b: Any, a: Any, b: Any, first: Any, second: Any) -> None:
    """Add values of first and of second ends to sums of their own: two chains of additions run side by side."""
    for q in range(len(place_a)):
        first[place_a[q]] += a[q]
        second[place_b[q]] += b[q]


@kernel()
def edge_bounds(
    begin: int,
    stop: int,
    turns: Any,
    parts: int,
    sums: Any,
    totals: Any,
    live: Any,
    start: int,
    blocks: int,
    filled: Any,
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
    negligible: float,
    primal: Any,
    bound: Any,
    best: Any,
    best_duals: Any,
) -> None:
    """:func:`blocklp.engine.best_bound.improve` for live instances whose other blocks are boxes; products are in no others.

    An instance a unit; or, with ``sums`` (parts, 4, used) and ``totals`` (parts, 8), a part of the only one.
    """
    near, phases, divided = np.empty((4, TILE)), 7, len(sums) > 0
    if not divided:
        turns, sums, totals = np.empty(TURNS, np.int64), np.empty((parts, 4, used)), np.empty((parts, 8))
    for row in live[:1] if divided else live[begin:stop]:
        n, m = row % len(places), row % len(lower)
        layout = (
            start,
            blocks,
            filled[row % len(filled)],
            used,
            met[row % len(met)],
            places[n],
            cost[row],
            counts[row % len(counts)],
        )
        known = (lower[m], upper[m], 16 * EPS * largest[row], rest[row], duals[row], noticed, negligible * (primal[row] - best[row]))
        kept = (bound[row : row + 1], best[row : row + 1], best_duals[row])
        if parts == 1:
            _bound(0, phases, 0, near, sums, totals, *layout, *known, *kept)
            continue
        if not divided:
            turns[:] = 0
        while True:
            phase, k = claim(turns, phases, parts)
            if phase >= phases:
                break
            _bound(phase, phase + 1, k, near, sums, totals, *layout, *known, *kept)
            done(turns)


@compile(nogil=True, error_model="numpy")
def _bound(
    first_phase: int,
    last_phase: int,
    k: int,
    near: Any,
    sums: Any,
    totals: Any,
    start: int,
    blocks: int,
    filled: int,
    used: int,
    met: Any,
    place: Any,
    c: Any,
    number: Any,
    low: Any,
    high: Any,
    noise: float,
    rest: float,
    dual: Any,
    noticed: float,
    allowed: float,
    bound: Any,
    best: Any,
    best_dual: Any,
) -> None:
    """Phases of that for a part of an instance.

    ``totals`` get the values of blocks, the sizes of their multipliers, what the variables pay, and at most how much they would
    spare if copies shared what the multipliers lack; the first of them whether they have to, whether the bound is better than the
    best one, and whether that is the first.
    """
    parts, share, said = len(sums), sums[0, 0], totals[0]
    first, last = start + filled * k // parts, start + filled * (k + 1) // parts
    variables = range(used * k // parts, used * (k + 1) // parts)
    for phase in range(first_phase, last_phase):
        if phase == 0:
            totals[k, 0], totals[k, 1] = _values(place, first, last, blocks, c, share[:0], dual, near, sums[k, 1], sums[k, 2])
        elif phase == 1 or (phase == 4 and said[SHARES]):
            paid = spared = 0.0
            for v in variables:
                left = 0.0
                if met[v]:
                    left = c[v]
                    for j in range(parts):
                        left -= sums[j, 1, v] + sums[j, 2, v]
                paid += min(left * low[v], left * high[v])
                spared += abs(left) * (high[v] - low[v])
                share[v] = left / number[v]
            totals[k, 2], totals[k, 3] = paid, spared
        elif phase == 2 and k == 0:
            said[SHARES] = not totals[:, 3].sum() <= allowed or np.isinf(allowed)
        elif phase == 3 and said[SHARES]:
            totals[k, 0], totals[k, 1] = _values(place, first, last, blocks, c, share, dual, near, sums[k, 1], sums[k, 2])
        elif phase == 5 and k == 0:
            total = 0.0
            for j in range(parts):
                total += totals[j, 0] + totals[j, 2] - noise * totals[j, 1]
            total += rest
            total -= EPS * abs(total)
            new = np.isinf(best[0])
            better = total > best[0] + noticed * abs(total) or (total > best[0] and new)
            bound[0], said[BETTER], said[NEW] = total, better, better and new
            if better:
                best[0] = total
        elif phase == 6:
            if said[BETTER]:
                for side in (0, blocks):
                    ends = slice(first + side, last + side)
                    best_dual[ends] = dual[ends]
            if said[NEW]:  # all others stay at their cost
                for q in range(len(dual) * k // parts, len(dual) * (k + 1) // parts):
                    if q < start or q >= start + 2 * blocks:
                        best_dual[q] = c[place[q]]


@compile(nogil=True, error_model="numpy")
def _values(
    place: Any, first: int, last: int, blocks: int, c: Any, share: Any, dual: Any, near: Any, sum_a: Any, sum_b: Any
) -> tuple[float, float]:
    """Sums of the values of some blocks, of the sizes of their multipliers, and, for each variable, of these, its share added."""
    near_a, near_b, value, mass = near[0], near[1], near[2], near[3]
    sum_a[:], sum_b[:], total, size = 0, 0, 0.0, 0.0
    for at in range(first, last, TILE):
        count = min(TILE, last - at)
        place_a, place_b, place_c = place[at : at + count], place[at + blocks :], place[at + 2 * blocks :]
        dual_a, dual_b = dual[at : at + count], dual[at + blocks :]
        for q in range(count):
            value[q] = c[place_c[q]]
        for q in range(count):
            near_a[q], near_b[q] = dual_a[q], dual_b[q]
        if len(share):
            for q in range(count):
                near_a[q] += share[place_a[q]]
                near_b[q] += share[place_b[q]]
        for q in range(count):
            a, b, p = near_a[q], near_b[q], value[q]
            value[q], mass[q] = min(min(a, 0.0), min(b, a + b + p)), abs(a) + abs(b) + abs(p)
        total += _total(value[:count])
        size += _total(mass[:count])
        add(place_a, place_b, near_a, near_b, sum_a, sum_b)
    return total, size


@compile(nogil=True, error_model="numpy", fastmath=FAST | {"reassoc"})
def _total(values: Any) -> float:
    """A sum in an order that depends on nothing but the length."""
    total = 0.0
    for q in range(len(values)):
        total += values[q]
    return total


@kernel()
def edge_completed(
    begin: int,
    stop: int,
    turns: Any,
    parts: int,
    totals: Any,
    found: Any,
    live: Any,
    start: int,
    blocks: int,
    filled: Any,
    ends: int,
    met: Any,
    private: Any,
    narrow: Any,
    places: Any,
    cost: Any,
    offset: Any,
    lower: Any,
    upper: Any,
    grid: Any,
    noticed: float,
    tolerance: float,
    mean: Any,
    bound: Any,
    size: Any,
    primal: Any,
    x: Any,
) -> None:
    """:func:`blocklp.engine.points.offer_mean` for active instances whose other blocks are boxes.

    Variables from ``ends`` on are products.
    Units are those of :func:`edge_bounds`; ``found`` is (2, ends).  Products are left to :func:`edge_products`.
    """
    near, phases, divided = np.empty((4, TILE)), 7, len(totals) > 0
    if not divided:
        turns, totals, found = np.empty(TURNS, np.int64), np.empty((parts, 8)), np.empty((2, ends))
    for row in live[:1] if divided else live[begin:stop]:
        n, m = row % len(places), row % len(lower)
        real, shared, alone = filled[row % len(filled)], met[row % len(met)], private[row % len(private)]
        layout = (start, blocks, real, ends, shared, alone, narrow[row], places[n])
        state = (cost[row], offset[row], lower[m], upper[m], grid[row % len(grid)], mean[row])
        known = (noticed, tolerance, bound[row], size[row], primal[row : row + 1], x[row])
        if parts == 1:
            _complete(0, phases, 0, parts, near, totals, found, *layout, *state, *known)
            continue
        if not divided:
            turns[:] = 0
        while True:
            phase, k = claim(turns, phases, parts)
            if phase >= phases:
                break
            _complete(phase, phase + 1, k, parts, near, totals, found, *layout, *state, *known)
            done(turns)


@compile(nogil=True, error_model="numpy")
def _complete(
    first_phase: int,
    last_phase: int,
    k: int,
    parts: int,
    near: Any,
    totals: Any,
    found: Any,
    start: int,
    blocks: int,
    filled: int,
    ends: int,
    met: Any,
    private: Any,
    narrow: bool,
    place: Any,
    c: Any,
    offset: float,
    low: Any,
    high: Any,
    step: Any,
    mean: Any,
    noticed: float,
    tolerance: float,
    bound: float,
    size: float,
    primal: Any,
    x: Any,
) -> None:
    """Phases of that for a part of an instance.

    ``found`` gets, of every variable before ``ends``, the mean within bounds and the same rounded to the grid, ``totals`` get the
    values of both, how far they are beyond bounds, and the first of them which one is kept.
    """
    first, last = start + filled * k // parts, start + filled * (k + 1) // parts
    variables = slice(ends * k // parts, ends * (k + 1) // parts)
    for phase in range(first_phase, last_phase):
        if phase == 0:
            own, both, shared, price = totals[k], found[:, variables], met[variables], c[variables]
            own[:], own[6] = 0, -1
            kinds, sides = (shared, private[variables]), (low[variables], high[variables], step[variables])
            _candidates(mean[variables], *kinds, price, *sides, both[0], both[1])
            for i in range(2):
                own[i] = _inner(both[i], price)
                own[4 + i] = _outside(both[i], shared)
        elif phase == 1:
            _add_products(place, first, last, blocks, c, found, near, totals[k])
        elif phase == 6:
            if totals[0, 6] >= 0:
                y = found[int(totals[0, 6])]
                for v in range(variables.start, variables.stop):
                    if met[v] or private[v]:
                        x[v] = y[v]
        elif totals[0, 6] < 0:  # first the rounded ones, where that helps
            i = 1 if phase < 4 else 0
            value, other = offset + totals[:, i].sum(), offset + totals[:, 0].sum()
            new, none = value < primal[0] - noticed * abs(value), np.isinf(primal[0])
            if (new or none) and (i == 0 or value < other + noticed * abs(other)):
                if phase in (2, 4):
                    if narrow:
                        totals[k, 4 + i] = max(totals[k, 4 + i], _beyond(place, first, last, blocks, c, low, high, found[i]))
                elif k == 0:
                    good = new and value >= bound - tolerance * size and totals[:, 4 + i].max() <= tolerance
                    if good:
                        primal[0] = value
                    if good or (none and i == 0):
                        totals[0, 6] = i


@compile(nogil=True, error_model="numpy")
def _candidates(mean: Any, met: Any, private: Any, c: Any, low: Any, high: Any, step: Any, near: Any, rounded: Any) -> None:
    """The means of some variables within bounds, and the same rounded to the grid; what nothing shares goes to its better bound."""
    for v in range(len(mean)):
        y = min(max(np.float64(mean[v]), low[v]), high[v])
        z = min(max(np.rint(y / step[v]) * step[v], low[v]), high[v])
        best = (high[v] if c[v] < 0 else low[v]) if private[v] else 0.0
        near[v] = y if met[v] else best
        rounded[v] = (z if step[v] > 0 else y) if met[v] else best


@compile(nogil=True, error_model="numpy", fastmath=FAST | {"reassoc"})
def _inner(y: Any, c: Any) -> float:
    """The inner product, added up in an order that depends on nothing but the length."""
    value = 0.0
    for v in range(len(y)):
        value += c[v] * y[v]
    return value


@compile(nogil=True, error_model="numpy")
def _outside(y: Any, met: Any) -> float:
    """How far variables that are shared leave the unit interval: within it the cheapest products are what their blocks allow."""
    least, most = 0.0, 1.0
    for v in range(len(y)):
        own = y[v] if met[v] else 0.0
        least, most = min(least, own), max(most, own)
    return max(-least, most - 1)


@compile(inline="always")
def _product(a: Any, b: Any, cost: Any) -> Any:
    """The cheapest product of two ends."""
    return max(a + b - 1, 0.0) if cost > 0 else min(a, b)


@compile(nogil=True, error_model="numpy")
def _add_products(place: Any, start: int, last: int, blocks: int, c: Any, points: Any, near: Any, value: Any) -> None:
    """Add what the cheapest products at two points cost."""
    near_a, near_b, p, cost = near[0], near[1], near[2], near[3]
    for at in range(start, last, TILE):
        count = min(TILE, last - at)
        place_a, place_b, place_c = place[at : at + count], place[at + blocks :], place[at + 2 * blocks :]
        for q in range(count):
            p[q] = c[place_c[q]]
        for k in range(2):
            y = points[k]
            for q in range(count):
                near_a[q], near_b[q] = y[place_a[q]], y[place_b[q]]
            for q in range(count):
                cost[q] = p[q] * _product(near_a[q], near_b[q], p[q])
            value[k] += _total(cost[:count])


@compile(nogil=True, error_model="numpy")
def _beyond(place: Any, first: int, last: int, blocks: int, c: Any, low: Any, high: Any, y: Any) -> float:
    """How far the cheapest products at y are beyond their bounds."""
    past = 0.0
    for q in range(first, last):
        v = place[q + 2 * blocks]
        best = _product(y[place[q]], y[place[q + blocks]], c[v])
        past = max(past, low[v] - best, best - high[v])
    return past


@kernel(grain=32)
def edge_products(begin: int, stop: int, rows: Any, start: int, blocks: int, filled: Any, places: Any, cost: Any, x: Any) -> None:
    """The cheapest products of primal points of some instances, a tile of them a unit."""
    tiles = (blocks + TILE - 1) // TILE
    for unit in range(begin, stop):
        row, at = rows[unit // tiles], unit % tiles * TILE
        place, c, y = places[row % len(places)], cost[row], x[row]
        for q in range(start + at, start + min(at + TILE, filled[row % len(filled)])):
            v = place[q + 2 * blocks]
            y[v] = _product(y[place[q]], y[place[q + blocks]], c[v])


UNIT, ERROR = rounding(1, torch.float64), rounding(2, torch.float64)
"""Relative errors of one operation and of the value of an edge (:meth:`blocklp.oracles.boolean_quadric.Edge.value_error`)."""


@kernel()
def edge_certified(
    begin: int,
    stop: int,
    start: int,
    blocks: int,
    filled: Any,
    places: Any,
    cost: Any,
    counts: Any,
    lower: Any,
    upper: Any,
    duals: Any,
    shared: Any,
    value: Any,
    least: Any,
    most: Any,
    charge: Any,
    doubt: Any,
    reach: Any,
) -> None:
    """Terms that :func:`blocklp.engine.final_bounds.certified` adds up, a row a unit; torch adds them."""
    share, held, mass = np.empty((3, cost.shape[1]))
    for row in range(begin, stop):
        place, before, dual = places[row % len(places)], duals[row], shared[row]
        c, number, low, high = cost[row], counts[row % len(counts)], lower[row % len(lower)], upper[row % len(upper)]
        share[:], held[:], mass[:] = 0, 0, 0
        for k in range(len(place)):
            share[place[k]] += before[k]
        for v in range(len(c)):
            share[v] = (c[v] - share[v]) / number[v]
        for k in range(len(place)):
            own = before[k] + share[place[k]]
            dual[k] = own
            held[place[k]] += own
            mass[place[k]] += abs(own)
        real = filled[row % len(filled)]
        first, second, both = dual[start:], dual[start + blocks :], dual[start + 2 * blocks :]
        best, below, above = value[row], least[row], most[row]
        for q in range(real):
            a, b, p = first[q], second[q], both[q]
            lowest, slack = min(min(min(a, b), a + b + p), 0.0), ERROR * (abs(a) + abs(b) + abs(p))
            best[q], below[q], above[q] = lowest, lowest - slack, abs(lowest) + slack
        best[real:], below[real:], above[real:] = 0, 0, 0
        paid, unsure, size = charge[row], doubt[row], reach[row]
        for v in range(len(c)):
            left, largest = c[v] - held[v], max(abs(low[v]), abs(high[v]))
            unknown = UNIT * (number[v] + 2) * (abs(c[v]) + mass[v])
            paid[v], unsure[v], size[v] = min(left * low[v], left * high[v]), unknown * largest, (abs(left) + unknown) * largest
