"""A pass of :class:`blocklp.methods.Admm` over one group, new weights and restarts, for the CPU: a template.

:mod:`blocklp.kernels.block_source` puts the functions of a type in the place of those of
:mod:`blocklp.kernels.block_tiles`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.block_tiles import CHAINS, COUPLED, DIM, RUN, points
from blocklp.kernels.compiled import FAST, TILE, compile, kernel
from blocklp.kernels.instance_passes import add, gather, update


@kernel(grain=8)
def pass_over_blocks(
    begin: int,
    stop: int,
    order: Any,
    layout: Any,
    eta: Any,
    target: Any,
    relaxation: float,
    anchors: Any,
    iterates: Any,
    duals: Any,
    found: Any,
    data: Any,
) -> None:
    """Update t of copies, and find the proximal points of their blocks; the targets are the caller's.

    Parameters
    ----------
    begin, stop : int
        Units to deal with; a unit is a tile of blocks of one instance.
    order : array
        ``(k,)`` int64: the tiles of blocks that are wanted.
    layout : tuple
        ``(batch or 1, copies)``, the variable of each copy; first copy of the group; its blocks; and
        ``(batch or 1,)``, blocks that are no padding.
    eta : array
        ``(batch,)``: proximal weights.
    target : array
        ``(batch, variables)``: the reflected consensus.
    relaxation : float
        Relaxation of the pass.
    anchors : tuple of array
        ``(batch, copies)``, anchors of Halpern steps, or ``(batch, 0)`` for none; ``(batch,)`` int64, passes
        since they were set; ``(batch,)`` bool, instances whose iterate is up to date.
    iterates, duals, found : array
        ``(batch, copies)``: t, written; costs, where no other block shares them; and points, written.
    data : tuple of array
        Block data.
    """
    places, start, blocks, filled = layout
    anchor, age, ready = anchors
    kind, tiles = found.dtype.type, len(order)
    near, x, speed = np.empty(TILE, found.dtype), np.empty((DIM, TILE), found.dtype), kind(relaxation)
    for unit in range(begin, stop):
        row, at = unit // tiles, order[unit % tiles] * TILE
        count = min(at + TILE, filled[row % len(filled)]) - at
        place, t, out, still = places[row % len(places)], iterates[row], found[row], anchor.shape[1] > 0
        if count <= 0:
            continue
        if not ready[row]:
            for i in range(COUPLED):
                a = start + i * blocks + at
                own, fixed = slice(a, a + count), slice(a, a + count * still)
                for q in range(a, a + count):
                    t[q] -= speed * out[q]
                update(place[own], target[row], speed, anchor[row, fixed], age[row], t[own], near)
        points(eta[row], duals[row], t, (start, blocks, at, count), x, (data, row))
        for i in range(DIM):
            a = start + i * blocks + at
            for q in range(count):
                out[a + q] = x[i, q]


@kernel(grain=64)
def settle(
    begin: int,
    stop: int,
    live: Any,
    layout: Any,
    weights: Any,
    residuals: Any,
    ages: Any,
    rule: Any,
    found: Any,
    consensus: Any,
    relaxation: float,
    anchors: Any,
    iterates: Any,
    duals: Any,
    data: Any,
) -> None:
    """Look at the weights and anchors of instances, and restart where due (:func:`.admm.admm_settled`).

    Parameters
    ----------
    begin, stop : int
        Units to deal with; a unit is a run of blocks of one instance.
    live : array
        ``(k,)`` int64: the active instances.
    layout, relaxation, iterates, duals, data
        As in :func:`pass_over_blocks`.
    weights : tuple of array
        ``(batch,)``: proximal weights, those at the start, and float64 by what they would be divided
        (:meth:`blocklp.methods.proximal_weight.ResidualBalancing.rooted`).
    residuals : tuple of array
        ``(batch,)`` float64: squared primal and dual residuals, and the sums of both when the anchor was set
        and at the last look.
    ages : tuple
        ``(batch,)`` int64, passes since the anchor was set; and from how many on it has served.
    rule : tuple
        :meth:`blocklp.methods.Admm.rule`, whether there is an anchor, and whether there will be none.
    found : tuple of array
        ``(batch,)``, written: weights, whether a restart is due, age, and the residuals when the anchor was
        set and at this look.
    consensus : tuple of array
        ``(batch, variables)``: reflected consensus, and means of the points.
    anchors : array
        ``(batch, copies)``, written, or ``(batch, 0)`` for none.
    """
    (eta, first, root), (primal, dual, origin, before), (age, oldest) = weights, residuals, ages
    decay, enough, held, _, most, reach, anchored, plain = rule
    new, due, younger, set_at, last = found
    kind, room = new.dtype.type, (np.empty((2, RUN), duals.dtype), np.empty((DIM, RUN), duals.dtype))
    runs = (layout[2] + RUN - 1) // RUN
    for unit in range(begin, stop):
        row, run = live[unit // runs], unit % runs
        residual, served, weight = primal[row] + dual[row], True, eta[row]
        if anchored:
            worse = residual <= decay * origin[row] and residual > before[row]
            served = worse or residual <= enough * origin[row] or age[row] >= oldest
        if served and not held and not np.isnan(root[row]):
            balanced = weight * kind(min(max(1 / root[row], 1 / most), most))
            weight = min(max(balanced, first[row] / kind(reach)), first[row] * kind(reach))
        again = weight != eta[row] if plain else served
        if run == 0:
            new[row], due[row], younger[row] = weight, again, 1 if again else age[row]
            set_at[row], last[row] = (residual, np.inf) if served else (origin[row], residual)
        if again:
            step = (eta[row], weight / eta[row], kind(relaxation))
            _restart(row, run * RUN, layout, step, consensus, anchors, iterates, duals, room, data)


@kernel(grain=64)
def restart(
    begin: int,
    stop: int,
    rows: Any,
    layout: Any,
    weights: Any,
    consensus: Any,
    relaxation: float,
    anchors: Any,
    iterates: Any,
    duals: Any,
    data: Any,
) -> None:
    """Update t for other weights, and set anchors there: :func:`blocklp.methods.admm.admm_restart`.

    Parameters
    ----------
    begin, stop, layout, consensus, relaxation, anchors, iterates, duals, data
        As in :func:`settle`.
    rows : array
        ``(k,)`` int64: the instances.
    weights : tuple of array
        ``(batch,)``: proximal weights, and new weights over these.
    """
    (eta, ratio), kind = weights, duals.dtype.type
    room = np.empty((2, RUN), duals.dtype), np.empty((DIM, RUN), duals.dtype)
    runs = (layout[2] + RUN - 1) // RUN
    for unit in range(begin, stop):
        row, at = rows[unit // runs], unit % runs * RUN
        step = (eta[row], ratio[row], kind(relaxation))
        _restart(row, at, layout, step, consensus, anchors, iterates, duals, room, data)


@compile(nogil=True, error_model="numpy")
def _restart(
    row: int,
    at: int,
    layout: Any,
    step: Any,
    consensus: Any,
    anchors: Any,
    iterates: Any,
    duals: Any,
    room: Any,
    data: Any,
) -> None:
    """Update t of a run of blocks, the first of them ``at``; ``step`` are weight, ratio and relaxation."""
    (places, start, blocks, filled), (weight, ratio, speed) = layout, step
    (target, mean), (near, x) = consensus, room
    count = min(at + RUN, filled[row % len(filled)]) - at
    if count <= 0:
        return
    points(weight, duals[row], iterates[row], (start, blocks, at, count), x, (data, row))
    for i in range(COUPLED):
        a = start + i * blocks + at
        place, t = places[row % len(places), a : a + count], iterates[row, a : a + count]
        gather(place, mean[row], near[0])
        gather(place, target[row], near[1])
        _restarted(near[0], near[1], speed, ratio, x[i], t)
        if anchors.shape[1]:
            for q in range(count):
                anchors[row, a + q] = t[q]


@compile(nogil=True, error_model="numpy")
def _restarted(mean: Any, target: Any, speed: Any, ratio: Any, x: Any, t: Any) -> None:
    """The next t of some copies, for a weight that is ``ratio`` times as large."""
    for k in range(len(t)):
        m, w = mean[k], target[k]
        z = m + m - w
        z = (m - z) * speed + z
        u = (t[k] - speed * x[k]) + speed * w
        t[k] = (u - z) * ratio + z


@kernel()
def first_means(
    begin: int,
    stop: int,
    layout: Any,
    used: int,
    counts: Any,
    duals: Any,
    answers: Any,
    mean: Any,
    squares: Any,
) -> None:
    """Write the means of the first points, and what the first weight goes by.

    Parameters
    ----------
    begin, stop : int
        Units to deal with, an instance each.
    layout, duals
        As in :func:`pass_over_blocks`.
    used : int
        One past the last variable that the blocks share.
    counts : array
        ``(batch or 1, variables)``: numbers of copies.
    answers : array
        ``(batch, copies)``: the first points.
    mean : array
        ``(batch, variables)``, written before ``used``.
    squares : tuple of array
        ``(batch,)`` float64, written: squared lengths of the points less their means, and of the multipliers
        of variables with several copies.
    """
    (places, start, blocks, filled), (away, long) = layout, squares
    sums, near = np.empty((CHAINS, used), answers.dtype), np.empty((COUPLED + 1, RUN), answers.dtype)
    for row in range(begin, stop):
        place, number, middle = places[row % len(places)], counts[row % len(counts)], mean[row]
        own, dual, given = filled[row % len(filled)], duals[row], answers[row]
        sums[:], away[row], long[row] = 0, 0, 0
        for at in range(0, own, RUN):
            count = min(RUN, own - at)
            for i in range(COUPLED):
                a = start + i * blocks + at
                for q in range(count):
                    near[i, q] = given[a + q]
            add(place, (start, blocks, at, count), near, sums[0], sums[CHAINS - 1])
        for v in range(used):
            total = sums[0, v] if CHAINS == 1 else sums[0, v] + sums[1, v]
            middle[v] = total / number[v]
        for at in range(0, own, RUN):
            count = min(RUN, own - at)
            for i in range(COUPLED):
                a = start + i * blocks + at
                gather(place[a : a + count], middle, near[0])
                gather(place[a : a + count], number, near[1])
                away[row] += _squares(given[a : a + count], near[0], near[1])
                near[0] = 0
                long[row] += _squares(dual[a : a + count], near[0], near[1])


@compile(nogil=True, error_model="numpy", fastmath=FAST | {"reassoc"})
def _squares(x: Any, origin: Any, number: Any) -> float:
    """Squared distance of copies of variables with several, in an order that the length alone decides."""
    total = 0.0
    for q in range(len(x)):
        away = np.float64(x[q] - origin[q]) if number[q] > 1 else 0.0
        total += away * away
    return total


@kernel()
def first_iterates(
    begin: int,
    stop: int,
    layout: Any,
    eta: Any,
    relaxation: float,
    mean: Any,
    duals: Any,
    answers: Any,
    iterates: Any,
) -> None:
    """Write the first t of coupled copies, an instance a unit.

    Parameters
    ----------
    begin, stop, layout, eta, relaxation, duals, iterates
        As in :func:`pass_over_blocks`; t is written.
    mean, answers
        As in :func:`first_means`.
    """
    (places, start, blocks, filled), kind = layout, iterates.dtype
    near, speed = np.empty(RUN, kind), kind.type(relaxation)
    for row in range(begin, stop):
        own, place, weight = filled[row % len(filled)], places[row % len(places)], eta[row]
        for at in range(0, own, RUN):
            count = min(RUN, own - at)
            for i in range(COUPLED):
                a = start + i * blocks + at
                dual, x, t = (
                    duals[row, a : a + count],
                    answers[row, a : a + count],
                    iterates[row, a : a + count],
                )
                gather(place[a : a + count], mean[row], near)
                for q in range(count):
                    t[q] = near[q] - weight * dual[q] - (x[q] - near[q]) * speed
