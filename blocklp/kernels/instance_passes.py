"""Passes of :class:`blocklp.methods.Admm` over blocks of one type, compiled for the CPU: a template.

:mod:`blocklp.kernels.block_source` puts the functions of a type in the place of those of
:mod:`blocklp.kernels.block_tiles`.  Copies that other blocks share come first in a block; of the others a
pass needs the cost alone.

Between the passes over whole instances t is kept less ``relaxation`` times the points, which are then found
once a pass.  A copy reads t, its place and its anchor, and writes t.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.block_tiles import CHAINS, COUPLED, DIM, RUN, points, reflect
from blocklp.kernels.compiled import FAST, TILE, compile, kernel
from blocklp.kernels.turns import claim, done, fetch

FAR = 500_000
"""Blocks of a part that are more than caches hold: memory is then asked for a run ahead, since while a
processor adds to sums all over the place it does not look ahead."""


@compile(nogil=True, error_model="numpy")
def gather(place: Any, values: Any, near: Any) -> None:
    """Gather values of some variables; one coordinate in a loop: several would take half as long again.

    Parameters
    ----------
    place, values, near : array
        ``(k,)``: the variables; ``(variables,)``; and at least ``(k,)``, written.
    """
    for q in range(len(place)):
        near[q] = values[place[q]]


@compile(nogil=True, error_model="numpy")
def update(place: Any, target: Any, relaxation: Any, anchor: Any, age: int, t: Any, near: Any) -> None:
    """Update t of some copies, from which ``relaxation`` times their points has been taken.

    Parameters
    ----------
    place, target : array
        ``(k,)``: variables of the copies; ``(variables,)``: the reflected consensus.
    relaxation, age : float, int
        Relaxation of the pass, and passes since the anchor was set.
    anchor : array
        ``(k,)``: the anchor of Halpern's step, or ``(0,)`` for none.
    t, near : array
        ``(k,)``, written, and at least ``(k,)``, to be written over.
    """
    kind = t.dtype.type
    share = kind(age) / kind(age + 1)
    gather(place, target, near)
    for q in range(len(t)):
        t[q] += relaxation * near[q]
    for q in range(len(anchor)):
        t[q] = (t[q] - anchor[q]) * share + anchor[q]


@compile(nogil=True, error_model="numpy")
def _mirror(x: Any, t: Any, r: Any) -> None:
    """Reflections of some copies whose t stays."""
    for q in range(len(t)):
        r[q] = x[q] + x[q] - t[q]


@compile(nogil=True, error_model="numpy")
def add(place: Any, tile: Any, near: Any, first: Any, second: Any) -> None:
    """Add values of a tile to sums of their variables: two chains of additions run side by side.

    Parameters
    ----------
    place, near : array
        ``(copies,)``: variables of the copies; ``(COUPLED, count)``: the values.
    tile : tuple of int
        First copy of the group, its blocks, the first block of the tile, and how many.
    first, second : array
        ``(used,)``: sums of even and of odd coordinates, written.
    """
    start, blocks, at, count = tile
    for i in range(0, COUPLED - 1, 2):
        a, b = start + i * blocks + at, start + (i + 1) * blocks + at
        place_a, place_b, near_a, near_b = place[a : a + count], place[b : b + count], near[i], near[i + 1]
        for q in range(count):
            first[place_a[q]] += near_a[q]
            second[place_b[q]] += near_b[q]
    if COUPLED % 2:
        a = start + (COUPLED - 1) * blocks + at
        place_a, near_a = place[a : a + count], near[COUPLED - 1]
        for q in range(count):
            first[place_a[q]] += near_a[q]


@compile(nogil=True, error_model="numpy")
def _pass(
    now: Any,
    part: Any,
    layout: Any,
    eta: Any,
    relaxation: Any,
    target: Any,
    memory: Any,
    dual: Any,
    t: Any,
    room: Any,
    sums: Any,
    spans: Any,
    data: Any,
) -> None:
    """Make a pass over a part of the blocks of an instance.

    Parameters
    ----------
    now : tuple
        Number of the pass, how many of the first ones update nothing, and whether points are to be shown.
    part : tuple of int
        The first block, and one past the last.
    layout : tuple
        Places ``(copies,)``, first copy of the group, and its blocks.
    eta, relaxation : float
        Proximal weight and relaxation.
    target : array
        ``(variables,)``: the reflected consensus.
    memory : tuple
        Anchor ``(copies,)`` or ``(0,)``, and its age.
    dual, t : array
        ``(copies,)``: costs, and t, which is written.
    room : tuple of array
        ``(at least COUPLED, RUN)`` and ``(DIM, RUN)``, to be written over.
    sums : array
        ``(2 * CHAINS, used)``, written: sums of ``2 x - t`` and, where points are to be shown, of the points.
    spans : array
        ``(2 * CHAINS,)``: the variables that each chain adds to, the first and one past the last.
    data : tuple
        Block data, and the instance.
    """
    (n, late, show), (first, last), (place, start, blocks), (near, x) = now, part, layout, room
    anchor, age = memory
    far, still = last - first > FAR, len(anchor) > 0
    for k in range(2 * CHAINS if show else CHAINS):
        sums[k, int(spans[k % CHAINS * 2]) : int(spans[k % CHAINS * 2 + 1])] = 0
    for at in range(first, last, RUN):
        count = min(RUN, last - at)
        tile = (start, blocks, at, count)
        if n == 0 and late == 0:  # t comes whole
            reflect(eta, relaxation, dual, t, tile, near, data)
        if n >= late:
            for i in range(COUPLED):
                a = start + i * blocks + at
                own, fixed = slice(a, a + count), slice(a, a + count * still)
                update(place[own], target, relaxation, anchor[fixed], age + n - late, t[own], near[i])
        if show:
            points(eta, dual, t, tile, x, data)
            for i in range(COUPLED):
                a = start + i * blocks + at
                _mirror(x[i], t[a : a + count], near[i])
        else:
            reflect(eta, relaxation, dual, t, tile, near, data)
        if far:
            for i in range(DIM):
                a = start + i * blocks + at + RUN
                if i >= COUPLED:
                    fetch(dual, a, RUN)
                    continue
                fetch(place, a, RUN)
                fetch(t, a, RUN)
                if still:
                    fetch(anchor, a, RUN)
        add(place, tile, near, sums[0], sums[CHAINS - 1])
        if show:
            add(place, tile, x, sums[CHAINS], sums[2 * CHAINS - 1])


@compile(nogil=True, error_model="numpy")
def _find_spans(layout: Any, first: int, last: int, spans: Any) -> None:
    """The spans of :func:`_pass`; those of no blocks end before they begin."""
    place, start, blocks = layout
    spans[0::2], spans[1::2] = 2.0**62, 0
    for i in range(COUPLED):
        chain = 2 * (i % CHAINS)
        low, high = np.uint64(2**62), np.uint64(0)
        own = place[start + i * blocks + first : start + i * blocks + last]
        for q in range(len(own)):
            low, high = min(low, own[q]), max(high, own[q] + np.uint64(1))
        spans[chain], spans[chain + 1] = min(spans[chain], low), max(spans[chain + 1], high)


@compile(nogil=True, error_model="numpy")
def _consensus(
    show: bool, part: Any, cost: Any, counts: Any, eta: Any, sums: Any, spans: Any, out: Any
) -> None:
    """The next target of some variables, and the means of their points, from the sums of all parts.

    Parameters
    ----------
    show : bool
        Whether means are to be written.
    part : tuple of int
        The first variable, and one past the last.
    cost, counts : array
        ``(variables,)``: costs and numbers of copies.
    eta : float
        Proximal weight.
    sums : array
        ``(parts, 2 * CHAINS, used)``, see :func:`_pass`.
    spans : array
        ``(parts, 2 * CHAINS)``.
    out : tuple of array
        ``(variables,)``: target and mean, written.
    """
    (first, last), (target, mean) = part, out
    if len(sums) == 1:  # an instance that is whole, of which there are thousands in a batch
        one, two, three, four = sums[0, 0], sums[0, CHAINS - 1], sums[0, CHAINS], sums[0, 2 * CHAINS - 1]
        if CHAINS == 1:
            for v in range(first, last):
                target[v] = (one[v] - eta * cost[v]) / counts[v]
            for v in range(first, last * show):
                mean[v] = three[v] / counts[v]
        else:
            for v in range(first, last):
                target[v] = (one[v] + two[v] - eta * cost[v]) / counts[v]
            for v in range(first, last * show):
                mean[v] = (three[v] + four[v]) / counts[v]
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
            _total_of_parts(sums, spans, CHAINS, own, near)
            for v in range(len(point)):
                point[v] = near[v] / number[v]


@compile(nogil=True, error_model="numpy")
def _total_of_parts(sums: Any, spans: Any, kind: int, own: Any, total: Any) -> None:
    """Sums of some variables, from those of every chain in every part."""
    total[:] = 0
    for k in range(len(sums)):
        for chain in range(CHAINS):
            first, last = (
                max(own.start, int(spans[k, 2 * chain])),
                min(own.stop, int(spans[k, 2 * chain + 1])),
            )
            if first < last:
                part, of_all = sums[k, kind + chain, first:last], total[first - own.start : last - own.start]
                for v in range(len(part)):
                    of_all[v] += part[v]


@compile(nogil=True, error_model="numpy")
def _multipliers(
    part: Any, layout: Any, eta: Any, target: Any, mean: Any, dual: Any, t: Any, room: Any, data: Any
) -> float:
    """Write the multipliers of a part; returns the squared distance of its points from their means.

    Parameters
    ----------
    part, layout, eta, target, dual, t, room, data
        As in :func:`_pass`; the multipliers of coupled copies are written.
    mean : array
        ``(variables,)``.
    """
    (first, last), (place, start, blocks), (near, x), total = part, layout, room, 0.0
    for at in range(first, last, RUN):
        count = min(RUN, last - at)
        points(eta, dual, t, (start, blocks, at, count), x, data)
        for i in range(COUPLED):
            a = start + i * blocks + at
            own, middle, goal, point = t[a : a + count], near[0], near[1], x[i]
            gather(place[a : a + count], mean, middle)
            gather(place[a : a + count], target, goal)
            out = dual[a : a + count]
            for q in range(count):
                out[q] = (middle[q] + middle[q] - goal[q] - own[q]) / eta
            total += _distance(point[:count], middle[:count])
    return total


@compile(nogil=True, error_model="numpy", fastmath=FAST | {"reassoc"})
def _distance(x: Any, mean: Any) -> float:
    """Squared distance, added up in an order that depends on nothing but the length."""
    total = 0.0
    for q in range(len(x)):
        away = np.float64(x[q] - mean[q])
        total += away * away
    return total


@compile(nogil=True, error_model="numpy")
def _moves(mean: Any, target: Any, counts: Any) -> float:
    """Squared distance of some means from the consensus, a copy of each."""
    total = 0.0
    for v in range(len(mean)):
        if counts[v] > 1:
            step = np.float64(mean[v] - (mean[v] + mean[v] - target[v]))
            total += step * step * np.float64(counts[v])
    return total


@compile(inline="always")
def _cut(own: int, blocks: int, k: int, parts: int) -> tuple[int, int]:
    """The blocks of a part, without padding."""
    return min(own, blocks * k // parts), min(own, blocks * (k + 1) // parts)


@kernel()
def passes(
    begin: int,
    stop: int,
    parts: int,
    live: Any,
    count: int,
    layout: Any,
    used: int,
    variables: Any,
    eta: Any,
    relaxation: float,
    anchors: Any,
    iterates: Any,
    duals: Any,
    residuals: Any,
    data: Any,
) -> None:
    """Make several passes, an active instance a unit, which then stays in the cache.

    The last pass writes multipliers and means of points.

    Parameters
    ----------
    begin, stop : int
        Units to deal with.
    parts : int
        Parts of an instance, which have sums of their own.
    live : array
        ``(k,)`` int64: the active instances.
    count : int
        Passes.
    layout
        As in :func:`blocklp.kernels.instance_updates.pass_over_blocks`.
    used : int
        One past the last variable that the blocks share.
    variables : tuple of array
        ``(batch, variables)`` costs, ``(batch or 1, variables)`` numbers of copies, and ``(batch,
        variables)`` targets and means, both written.
    eta, relaxation, anchors, iterates, duals
        As in :func:`blocklp.kernels.instance_updates.pass_over_blocks`; multipliers of coupled copies are
        written.
    residuals : tuple of array
        ``(batch,)`` float64: squared primal and dual residual, written.
    data : tuple of array
        Block data.
    """
    (places, start, blocks, filled), (cost, counts, target, mean), (anchor, age, ready) = (
        layout,
        variables,
        anchors,
    )
    kind, (primal_residual, dual_residual) = duals.dtype, residuals
    sums, spans = np.empty((parts, 2 * CHAINS, used), kind), np.zeros((parts, 2 * CHAINS))
    room, speed = (np.empty((COUPLED + 1, RUN), kind), np.empty((DIM, RUN), kind)), kind.type(relaxation)
    for row in live[begin:stop]:
        number, late, own = counts[row % len(counts)], int(ready[row]), filled[row % len(filled)]
        t, dual, where = iterates[row], duals[row], (places[row % len(places)], start, blocks)
        memory, block = (anchor[row], age[row]), (data, row)
        spans[:, 1::2] = used
        if parts > 1:
            for k in range(parts):
                first, last = _cut(own, blocks, k, parts)
                _find_spans(where, first, last, spans[k])
        for n in range(count):
            now = (n, late, n == count - 1)
            state = (where, eta[row], speed, target[row], memory, dual, t, room)
            for k in range(parts):
                _pass(now, _cut(own, blocks, k, parts), *state, sums[k], spans[k], block)
            found = (target[row], mean[row])
            _consensus(now[2], (0, used), cost[row], number, eta[row], sums, spans, found)
        primal_residual[row], dual_residual[row] = 0, 0
        for k in range(parts):
            part = _cut(own, blocks, k, parts)
            primal_residual[row] += _multipliers(
                part, where, eta[row], target[row], mean[row], dual, t, room, block
            )
            of_part = slice(used * k // parts, used * (k + 1) // parts)
            dual_residual[row] += _moves(mean[row, of_part], target[row, of_part], number[of_part])


@kernel()
def divided(
    begin: int,
    stop: int,
    shared: Any,
    count: int,
    layout: Any,
    used: int,
    variables: Any,
    eta: Any,
    relaxation: float,
    anchors: Any,
    iterates: Any,
    duals: Any,
    data: Any,
) -> None:
    """Make several passes over a single large instance: blocks, then variables, then blocks, ..., in parts.

    Parameters
    ----------
    begin, stop : int
        Units to deal with, as many as parts; which unit does which work the phase barrier says.
    shared : tuple of array
        State of the phase barrier; ``(parts, 2 * CHAINS, used)`` and ``(parts, 8)`` for the sums of the
        parts, written: the first two numbers of a part are its shares of the squared residuals.
    count, layout, used, variables, eta, relaxation, anchors, iterates, duals, data
        As in :func:`passes`.
    """
    (turns, sums, totals), (places, start, blocks, filled), parts = shared, layout, len(shared[1])
    (cost, counts, target, mean), (anchor, age, ready), kind = variables, anchors, duals.dtype
    late, own, weight, where = int(ready[0]), filled[0], eta[0], (places[0], start, blocks)
    room, block, spans = (
        (np.empty((COUPLED + 1, RUN), kind), np.empty((DIM, RUN), kind)),
        (data, 0),
        totals[:, 4:],
    )
    t, dual, goal, middle, phases = iterates[0], duals[0], target[0], mean[0], 2 * count + 1
    state = (where, weight, kind.type(relaxation), goal, (anchor[0], age[0]), dual, t, room)
    while True:
        phase, k = claim(turns, phases, parts)
        if phase >= phases:
            return
        n, show, part = phase // 2, phase // 2 >= count - 1, _cut(own, blocks, k, parts)
        if n == count:
            totals[k, 0] = _multipliers(part, where, weight, goal, middle, dual, t, room, block)
        elif phase % 2 == 0:
            if n == 0:
                _find_spans(where, part[0], part[1], spans[k])
            _pass((n, late, show), part, *state, sums[k], spans[k], block)
        else:
            first, last = used * k // parts, used * (k + 1) // parts  # of the variables
            _consensus(show, (first, last), cost[0], counts[0], weight, sums, spans, (goal, middle))
            if show:
                totals[k, 1] = _moves(middle[first:last], goal[first:last], counts[0, first:last])
        done(turns)
