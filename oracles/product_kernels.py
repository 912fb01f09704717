"""Passes of ADMM over blocks of :mod:`blocklp.oracles.boolean_quadric`, compiled for the CPU.

The start is in ``product_start.py``, checks are in ``product_checks.py``.
Only the ends of an edge are shared, and of its product a pass needs the cost alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import TILE, compile, kernel
from blocklp.kernels.turns import claim, done, fetch
from blocklp.oracles.product_checks import add, edge_bounds, edge_certified, edge_completed, edge_products
from blocklp.oracles.product_start import edge_answers, edge_start

__all__ = [
    "edge_answers",
    "edge_bounds",
    "edge_certified",
    "edge_completed",
    "edge_divided",
    "edge_pass",
    "edge_passes",
    "edge_products",
    "edge_restart",
    "edge_start",
]

RUN = 4 * TILE
"""Edges at a time in passes over whole instances: less begins anew than with tiles."""

FAR, AHEAD = 500_000, RUN
"""Edges of a part that are more than caches hold, and how early memory is then asked for them: while a processor adds to sums all
over the place it does not look ahead."""


@compile(inline="always")
def _ends(u: Any, v: Any, p: Any, zero: Any, one: Any, half: Any) -> Any:
    """The ends of :meth:`blocklp.oracles.boolean_quadric.Edge.prox` around (u, v); p is the product's cost times the weight."""
    gain = min(p, zero)
    side = -one if p < zero else one
    kink = min(max((u + side * v + (-p if p < zero else -one)) * half, zero), abs(p))
    return min(max(u - kink - gain, zero), one), min(max(v - side * kink, zero), one)


@compile(nogil=True, error_model="numpy")
def _reflect(eta: Any, cost: Any, rate: Any, t_a: Any, t_b: Any, r_a: Any, r_b: Any) -> None:
    """Reflections ``2 x - t`` of some edges, and ``t - rate x`` for t: what the next update draws towards its targets."""
    kind = t_a.dtype.type
    zero, one, half = kind(0), kind(1), kind(0.5)
    for q in range(len(t_a)):
        x_a, x_b = _ends(t_a[q], t_b[q], eta * cost[q], zero, one, half)
        r_a[q] = x_a + x_a - t_a[q]
        r_b[q] = x_b + x_b - t_b[q]
        t_a[q] -= rate * x_a
        t_b[q] -= rate * x_b


@compile(nogil=True, error_model="numpy")
def _mirror(x: Any, t: Any, r: Any) -> None:
    """Reflections of some copies whose t stays."""
    for q in range(len(t)):
        r[q] = x[q] + x[q] - t[q]


@compile(nogil=True, error_model="numpy")
def _gather(place: Any, values: Any, near: Any) -> None:
    """Values of some variables; one kind in a loop: several would take half as long again."""
    for q in range(len(place)):
        near[q] = values[place[q]]


@compile(nogil=True, error_model="numpy")
def _update(
    place_a: Any,
    place_b: Any,
    target: Any,
    rate: Any,
    anchor_a: Any,
    anchor_b: Any,
    age: int,
    t_a: Any,
    t_b: Any,
    near_a: Any,
    near_b: Any,
) -> None:
    """The update of t for some edges, once their points have been taken from it."""
    kind = t_a.dtype.type
    share = kind(age) / kind(age + 1)
    _gather(place_a, target, near_a)
    _gather(place_b, target, near_b)
    for q in range(len(t_a)):
        t_a[q] += rate * near_a[q]
        t_b[q] += rate * near_b[q]
    for q in range(len(anchor_a)):
        t_a[q] = (t_a[q] - anchor_a[q]) * share + anchor_a[q]
        t_b[q] = (t_b[q] - anchor_b[q]) * share + anchor_b[q]


@compile(nogil=True, error_model="numpy")
def _points(eta: Any, cost: Any, t_a: Any, t_b: Any, x_a: Any, x_b: Any) -> None:
    """The ends of the points of some edges."""
    kind = t_a.dtype.type
    zero, one, half = kind(0), kind(1), kind(0.5)
    for q in range(len(t_a)):
        x_a[q], x_b[q] = _ends(t_a[q], t_b[q], eta * cost[q], zero, one, half)


@compile(nogil=True, error_model="numpy")
def _products(cost: Any, x_a: Any, x_b: Any, product: Any) -> None:
    """The products of the points of some edges."""
    zero, one = product.dtype.type(0), product.dtype.type(1)
    for q in range(len(product)):
        product[q] = min(x_a[q], x_b[q]) if cost[q] < zero else max(x_a[q] + x_b[q] - one, zero)


@compile(nogil=True, error_model="numpy")
def _part(
    first: int,
    last: int,
    n: int,
    late: int,
    show: bool,
    place: Any,
    target: Any,
    rate: Any,
    eta: Any,
    anchor: Any,
    age: int,
    start: int,
    blocks: int,
    dual: Any,
    governing: Any,
    near: Any,
    sums: Any,
    spans: Any,
) -> None:
    """Pass n of some over the edges of an instance from ``first`` to before ``last``; the first ``late`` ones update nothing.

    ``sums`` (4, used) become those of ``2 x - t`` and, where points are to be shown, of the points, from ``spans[0]`` to before
    ``spans[1]`` for first ends, from ``spans[2]`` to before ``spans[3]`` for second ones.  ``near`` is (4, RUN), to be written over.

    An edge reads two values t, two places, its cost and two values of the anchor, and writes two values t: 9 numbers, 36 bytes in
    single precision.  Between the passes t is kept less ``rate`` times the points, which are then found once a pass.
    """
    far = last - first > FAR
    near_a, near_b = near[0], near[1]
    for kind in range(4 if show else 2):
        sums[kind, int(spans[kind % 2 * 2]) : int(spans[kind % 2 * 2 + 1])] = 0
    for at in range(first, last, RUN):
        count = min(RUN, last - at)
        a, b, c = start + at, start + blocks + at, start + 2 * blocks + at
        place_a, place_b, cost = place[a : a + count], place[b : b + count], dual[c : c + count]
        t_a, t_b, still = governing[a : a + count], governing[b : b + count], len(anchor) > 0
        if n == 0 and late == 0:  # t comes whole
            _reflect(eta, cost, rate, t_a, t_b, near_a, near_b)
        if n >= late:
            anchor_a, anchor_b = anchor[a : a + count * still], anchor[b : b + count * still]
            _update(place_a, place_b, target, rate, anchor_a, anchor_b, age + n - late, t_a, t_b, near_a, near_b)
        if show:
            _points(eta, cost, t_a, t_b, near[2], near[3])
            _mirror(near[2], t_a, near_a)
            _mirror(near[3], t_b, near_b)
        else:
            _reflect(eta, cost, rate, t_a, t_b, near_a, near_b)
        if far:
            fetch(place, a + AHEAD, RUN)
            fetch(place, b + AHEAD, RUN)
            fetch(dual, c + AHEAD, RUN)
            fetch(governing, a + AHEAD, RUN)
            fetch(governing, b + AHEAD, RUN)
            if still:
                fetch(anchor, a + AHEAD, RUN)
                fetch(anchor, b + AHEAD, RUN)
        add(place_a, place_b, near_a, near_b, sums[0], sums[1])
        if show:
            add(place_a, place_b, near[2], near[3], sums[2], sums[3])


@compile(nogil=True, error_model="numpy")
def _find_spans(place: Any, start: int, blocks: int, first: int, last: int, spans: Any) -> None:
    """The spans of :func:`_part`; those of no edges end before they begin."""
    spans[0], spans[1] = _span(place[start + first : start + last])
    spans[2], spans[3] = _span(place[start + blocks + first : start + blocks + last])


@compile(nogil=True, error_model="numpy")
def _span(place: Any) -> tuple[Any, Any]:
    """The first of some places, and one past the last."""
    first, last = np.uint64(2**62), np.uint64(0)
    for q in range(len(place)):
        first, last = min(first, place[q]), max(last, place[q] + np.uint64(1))
    return first, last


@compile(nogil=True, error_model="numpy")
def _merge(
    show: bool, first: int, last: int, cost: Any, counts: Any, eta: Any, sums: Any, spans: Any, target: Any, mean: Any
) -> None:
    """The next targets of some variables, and the means of their points, from the sums (parts, 4, used)."""
    if len(sums) == 1:  # an instance that is whole has all of its sums; there are thousands of these in a batch
        for v in range(first, last):
            target[v] = (sums[0, 0, v] + sums[0, 1, v] - eta * cost[v]) / counts[v]
        for v in range(first, last * show):
            mean[v] = (sums[0, 2, v] + sums[0, 3, v]) / counts[v]
        return
    near = np.empty(TILE, target.dtype)
    for at in range(first, last, TILE):
        own = slice(at, min(at + TILE, last))
        new, c, number = target[own], cost[own], counts[own]
        _total_of_parts(sums, spans, 0, own, near)
        for v in range(len(new)):
            new[v] = (near[v] - eta * c[v]) / number[v]
        if show:
            point = mean[own]
            _total_of_parts(sums, spans, 2, own, near)
            for v in range(len(point)):
                point[v] = near[v] / number[v]


@compile(nogil=True, error_model="numpy")
def _total_of_parts(sums: Any, spans: Any, kind: int, own: Any, total: Any) -> None:
    """Sums of some variables, from those of the first and of the second ends in every part."""
    total[:] = 0
    for k in range(len(sums)):
        for end in range(2):
            first, last = max(own.start, int(spans[k, 2 * end])), min(own.stop, int(spans[k, 2 * end + 1]))
            if first < last:
                part, of_all = sums[k, kind + end, first:last], total[first - own.start : last - own.start]
                for v in range(len(part)):
                    of_all[v] += part[v]


@compile(nogil=True, error_model="numpy")
def _show(
    first: int,
    last: int,
    place: Any,
    target: Any,
    mean: Any,
    eta: Any,
    start: int,
    blocks: int,
    dual: Any,
    governing: Any,
    near: Any,
) -> float:
    """The multipliers of the ends of some edges; returns their squared distance from the mean, first ends and second ends apart."""
    m_a, m_b, w_a, w_b, of_first, of_second = near[0], near[1], near[2], near[3], 0.0, 0.0
    for at in range(first, last, RUN):
        count = min(RUN, last - at)
        a, b, c = start + at, start + blocks + at, start + 2 * blocks + at
        place_a, place_b = place[a : a + count], place[b : b + count]
        t_a, t_b = governing[a : a + count], governing[b : b + count]
        _gather(place_a, mean, m_a)
        _gather(place_b, mean, m_b)
        _gather(place_a, target, w_a)
        _gather(place_b, target, w_b)
        _multipliers(eta, m_a, w_a, t_a, dual[a : a + count])
        _multipliers(eta, m_b, w_b, t_b, dual[b : b + count])
        _points(eta, dual[c : c + count], t_a, t_b, w_a, w_b)
        for q in range(count):
            away, beside = np.float64(w_a[q] - m_a[q]), np.float64(w_b[q] - m_b[q])
            of_first += away * away
            of_second += beside * beside
    return of_first + of_second


@compile(nogil=True, error_model="numpy")
def _multipliers(eta: Any, mean: Any, target: Any, t: Any, dual: Any) -> None:
    """The multipliers of some copies."""
    for q in range(len(t)):
        dual[q] = (mean[q] + mean[q] - target[q] - t[q]) / eta


@compile(nogil=True, error_model="numpy")
def _moves(mean: Any, target: Any, counts: Any) -> float:
    """Squared distance of some means from the consensus, a copy of each."""
    total = 0.0
    for v in range(len(mean)):
        if counts[v] > 1:
            step = np.float64(mean[v] - (mean[v] + mean[v] - target[v]))
            total += step * step * np.float64(counts[v])
    return total


@kernel(grain=32)
def edge_pass(
    begin: int,
    stop: int,
    places: Any,
    start: int,
    blocks: int,
    eta: Any,
    target: Any,
    rate: float,
    anchor: Any,
    age: Any,
    ready: Any,
    governing: Any,
    duals: Any,
    points: Any,
) -> None:
    """One pass over the edges of all instances, a tile a unit; the targets are the caller's."""
    tiles = (blocks + TILE - 1) // TILE
    near = np.empty((2, TILE), points.dtype)
    for unit in range(begin, stop):
        row, at = unit // tiles, unit % tiles * TILE
        count, still = min(TILE, blocks - at), anchor.shape[1] > 0
        a, b, c = start + at, start + blocks + at, start + 2 * blocks + at
        place, point, cost = places[row % len(places)], points[row], duals[row, c : c + count]
        t_a, t_b = governing[row, a : a + count], governing[row, b : b + count]
        if not ready[row]:
            pulled = (anchor[row, a : a + count * still], anchor[row, b : b + count * still], age[row])
            speed, ends = points.dtype.type(rate), (place[a : a + count], place[b : b + count])
            _reflect(eta[row], cost, speed, t_a, t_b, near[0], near[1])
            _update(*ends, target[row], speed, *pulled, t_a, t_b, near[0], near[1])
        _points(eta[row], cost, t_a, t_b, point[a : a + count], point[b : b + count])
        _products(cost, point[a : a + count], point[b : b + count], point[c : c + count])


@compile(inline="always")
def _cut(own: int, blocks: int, k: int, parts: int) -> tuple[int, int]:
    """The edges of a part, without those that only pad."""
    return min(own, blocks * k // parts), min(own, blocks * (k + 1) // parts)


@kernel()
def edge_passes(
    begin: int,
    stop: int,
    parts: int,
    live: Any,
    passes: int,
    places: Any,
    start: int,
    blocks: int,
    filled: Any,
    used: int,
    cost: Any,
    counts: Any,
    eta: Any,
    target: Any,
    mean: Any,
    rate: float,
    anchor: Any,
    age: Any,
    ready: Any,
    governing: Any,
    duals: Any,
    apart: Any,
    moved: Any,
) -> None:
    """Several passes, a live instance a unit, which then stays in the cache; the last one shows multipliers and means of points."""
    sums, near, speed = np.empty((parts, 4, used), duals.dtype), np.empty((4, RUN), duals.dtype), duals.dtype.type(rate)
    spans = np.zeros((parts, 4))
    for row in live[begin:stop]:
        place, number = places[row % len(places)], counts[row % len(counts)]
        t, dual, late, own = governing[row], duals[row], int(ready[row]), filled[row % len(filled)]
        spans[:, 1::2] = used
        if parts > 1:
            for k in range(parts):
                first, last = _cut(own, blocks, k, parts)
                _find_spans(place, start, blocks, first, last, spans[k])
        for n in range(passes):
            show = n == passes - 1
            state = (n, late, show, place, target[row], speed, eta[row], anchor[row], age[row], start, blocks, dual, t)
            for k in range(parts):
                first, last = _cut(own, blocks, k, parts)
                _part(first, last, *state, near, sums[k], spans[k])
            _merge(show, 0, used, cost[row], number, eta[row], sums, spans, target[row], mean[row])
        apart[row], moved[row] = 0, 0
        for k in range(parts):
            first, last = _cut(own, blocks, k, parts)
            total = _show(first, last, place, target[row], mean[row], eta[row], start, blocks, dual, t, near)
            part = slice(used * k // parts, used * (k + 1) // parts)
            apart[row], moved[row] = apart[row] + total, moved[row] + _moves(mean[row, part], target[row, part], number[part])


@kernel()
def edge_divided(
    begin: int,
    stop: int,
    turns: Any,
    parts: int,
    sums: Any,
    totals: Any,
    passes: int,
    places: Any,
    start: int,
    blocks: int,
    filled: Any,
    used: int,
    cost: Any,
    counts: Any,
    eta: Any,
    target: Any,
    mean: Any,
    rate: float,
    anchor: Any,
    age: Any,
    ready: Any,
    governing: Any,
    duals: Any,
) -> None:
    """The same for a single large instance: edges, then variables, then edges, ..., each in parts.

    ``totals`` (parts, 8) get what :func:`edge_passes` calls apart and moved, and the spans of :func:`_part`.
    """
    speed, late, own, weight = duals.dtype.type(rate), int(ready[0]), filled[0], eta[0]
    place, t, dual, goal, middle, phases = places[0], governing[0], duals[0], target[0], mean[0], 2 * passes + 1
    near = np.empty((4, RUN), duals.dtype)
    while True:
        phase, k = claim(turns, phases, parts)
        if phase >= phases:
            return
        n, show = phase // 2, phase // 2 >= passes - 1
        first, last = _cut(own, blocks, k, parts)
        if n == passes:
            totals[k, 0] = _show(first, last, place, goal, middle, weight, start, blocks, dual, t, near)
        elif phase % 2 == 0:
            state = (n, late, show, place, goal, speed, weight, anchor[0], age[0], start, blocks, dual, t)
            if n == 0:
                _find_spans(place, start, blocks, first, last, totals[k, 4:])
            _part(first, last, *state, near, sums[k], totals[k, 4:])
        else:
            first, last = used * k // parts, used * (k + 1) // parts  # of the variables
            _merge(show, first, last, cost[0], counts[0], weight, sums, totals[:, 4:], goal, middle)
            if show:
                totals[k, 1] = _moves(middle[first:last], goal[first:last], counts[0, first:last])
        done(turns)


@kernel(grain=256)
def edge_restart(
    begin: int,
    stop: int,
    rows: Any,
    places: Any,
    start: int,
    blocks: int,
    eta: Any,
    ratio: Any,
    target: Any,
    mean: Any,
    rate: float,
    anchor: Any,
    governing: Any,
    duals: Any,
) -> None:
    """:func:`blocklp.methods.admm.restart` for the ends of some instances, a tile of edges a unit."""
    tiles, speed, near = (blocks + TILE - 1) // TILE, duals.dtype.type(rate), np.empty((4, TILE), duals.dtype)
    for unit in range(begin, stop):
        row, at = rows[unit // tiles], unit % tiles * TILE
        count = min(TILE, blocks - at)
        a, b, c = start + at, start + blocks + at, start + 2 * blocks + at
        t_a, t_b = governing[row, a : a + count], governing[row, b : b + count]
        _points(eta[row], duals[row, c : c + count], t_a, t_b, near[0], near[1])
        for first, x, t in ((a, near[0], t_a), (b, near[1], t_b)):
            place = places[row % len(places), first : first + count]
            _gather(place, mean[row], near[2])
            _gather(place, target[row], near[3])
            _restarted(near[2], near[3], speed, ratio[row], x, t)
            if anchor.shape[1]:
                anchor[row, first : first + count] = t


@compile(nogil=True, error_model="numpy")
def _restarted(mean: Any, target: Any, speed: Any, ratio: Any, x: Any, t: Any) -> None:
    """The next t of some copies, for a weight that is ``ratio`` times as large."""
    for k in range(len(t)):
        m, w = mean[k], target[k]
        z = m + m - w
        z = (m - z) * speed + z
        u = (t[k] - speed * x[k]) + speed * w
        t[k] = (u - z) * ratio + z
