"""Bounds of whole instances whose blocks are of one type, compiled for the CPU: a template.

:mod:`blocklp.kernels.block_source` puts the functions of a type in the place of those of
:mod:`blocklp.kernels.block_tiles`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.block_tiles import CHAINS, COUPLED, DIM, least
from blocklp.kernels.compiled import FAST, TILE, compile, kernel
from blocklp.kernels.instance_passes import add, gather
from blocklp.kernels.turns import claim, done

EPS = float(np.finfo(np.float64).eps)

SHARES, BETTER, NEW = 4, 5, 6
"""Where the totals of the first part hold what all parts go by."""

PHASES = 7
"""Of a bound."""


@compile(nogil=True, error_model="numpy", fastmath=FAST | {"reassoc"})
def _total(values: Any) -> float:
    """A sum in an order that depends on nothing but the length."""
    total = 0.0
    for q in range(len(values)):
        total += values[q]
    return total


@compile(nogil=True, error_model="numpy", fastmath=FAST | {"reassoc"})
def _magnitude(values: Any) -> float:
    """The sum of magnitudes, in an order that depends on nothing but the length."""
    total = 0.0
    for q in range(len(values)):
        total += abs(values[q])
    return total


@compile(nogil=True, error_model="numpy", fastmath=FAST | {"reassoc"})
def _copied(values: Any, own: Any) -> float:
    """Copy numbers; returns the sum of their magnitudes, in an order that the length alone decides."""
    total = 0.0
    for q in range(len(values)):
        own[q] = values[q]
        total += abs(own[q])
    return total


@kernel()
def bounds(
    begin: int,
    stop: int,
    shared: Any,
    parts: int,
    live: Any,
    layout: Any,
    used: int,
    met: Any,
    variables: Any,
    box: Any,
    others: Any,
    duals: Any,
    limits: Any,
    primal: Any,
    found: Any,
    data: Any,
) -> None:
    """Evaluate multipliers of active instances whose other blocks are boxes, and keep better ones.

    It is :func:`blocklp.engine.best_bound.improve`.

    Parameters
    ----------
    begin, stop : int
        Units to deal with: an active instance each; or a part of the only one, where ``shared`` has room.
    shared : tuple of array
        State of the phase barrier; ``(parts, 3, used)`` and ``(parts, 8)`` float64 for the sums of the
        parts of a single instance, or without parts.
    parts : int
        Parts of an instance.
    live : array
        ``(k,)`` int64: the active instances.
    layout : tuple
        As in :func:`blocklp.kernels.instance_updates.pass_over_blocks`.
    used : int
        One past the last variable that the blocks share.
    met : array
        ``(batch or 1, variables)`` bool: the variables that they share.
    variables, box : tuple of array
        ``(batch, variables)`` costs and ``(batch or 1, variables)`` numbers of copies; bounds
        ``(batch or 1, variables)``.
    others : tuple of array
        ``(batch,)``: largest magnitude of a copy, and the value of all other blocks.
    duals : array
        ``(batch, copies)``.
    limits : tuple of float
        Relative improvement that counts, and part of the gap that does not.
    primal : array
        ``(batch,)``: values of the best points.
    found : tuple of array
        ``(batch,)`` bounds, ``(batch,)`` best bounds and ``(batch, copies)`` their multipliers, written.
    data : tuple of array
        Block data.
    """
    (turns, sums, totals), (places, start, blocks, filled), (cost, counts) = shared, layout, variables
    (lower, upper), (largest, rest), (noticed, negligible) = box, others, limits
    bound, best, best_duals = found
    near, alone = np.empty((DIM + 1, TILE)), len(sums) > 0
    if not alone:
        sums, totals = np.empty((parts, 1 + CHAINS, used)), np.empty((parts, 8))
    for row in live[:1] if alone else live[begin:stop]:
        m = row % len(lower)
        where = (places[row % len(places)], start, blocks, filled[row % len(filled)])
        about = (cost[row], counts[row % len(counts)], met[row % len(met)], lower[m], upper[m])
        allowed = negligible * (primal[row] - best[row])
        known = (16 * EPS * largest[row], rest[row], noticed, allowed)
        kept = (bound[row : row + 1], best[row : row + 1], best_duals[row])
        state = (where, used, about, known, duals[row], near, sums, totals, kept, (data, row))
        if alone:
            while True:
                phase, k = claim(turns, PHASES, parts)
                if phase >= PHASES:
                    break
                _bound(phase, phase + 1, k, *state)
                done(turns)
        elif parts == 1:
            _bound(0, PHASES, 0, *state)
        else:
            for phase in range(PHASES):
                for k in range(parts):
                    _bound(phase, phase + 1, k, *state)


@compile(nogil=True, error_model="numpy")
def _bound(
    begin: int,
    end: int,
    k: int,
    where: Any,
    used: int,
    about: Any,
    known: Any,
    dual: Any,
    near: Any,
    sums: Any,
    totals: Any,
    kept: Any,
    data: Any,
) -> None:
    """Phases of that, from ``begin`` to before ``end``, for a part of an instance.

    Totals get the values of blocks, the sizes of their multipliers, what the variables pay, and at most how
    much they would spare if copies shared what the multipliers lack; the first of them whether they have to,
    whether the bound is better than the best one, and whether that is the first.
    """
    (place, start, blocks, filled), (c, number, met, low, high) = where, about
    (noise, rest, noticed, allowed), (bound, best, best_dual) = known, kept
    parts, share, said = len(sums), sums[0, 0], totals[0]
    first, last = filled * k // parts, filled * (k + 1) // parts
    for phase in range(begin, end):
        if phase == 0 or (phase == 3 and said[SHARES]):
            given = share if phase else share[:0]
            totals[k, 0], totals[k, 1] = _values(where, first, last, c, given, dual, near, sums[k, 1:], data)
        elif phase == 1 or (phase == 4 and said[SHARES]):
            own = slice(used * k // parts, used * (k + 1) // parts)
            _residual(c[own], met[own], sums[:, 1:, own], share[own])
            totals[k, 2], totals[k, 3] = _charged(share[own], low[own], high[own], number[own])
        elif phase == 2 and k == 0:
            said[SHARES] = not totals[:, 3].sum() <= allowed or np.isinf(allowed)
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
                for i in range(COUPLED):
                    own = slice(start + i * blocks + first, start + i * blocks + last)
                    best_dual[own] = dual[own]
            if said[NEW]:  # all others stay at their cost
                for q in range(len(dual) * k // parts, len(dual) * (k + 1) // parts):
                    if q < start or q >= start + COUPLED * blocks:
                        best_dual[q] = c[place[q]]


@compile(nogil=True, error_model="numpy")
def _residual(c: Any, met: Any, sums: Any, left: Any) -> None:
    """Write costs less the sums of multipliers, of some variables; one sum in a loop takes least."""
    for v in range(len(left)):
        left[v] = c[v] if met[v] else 0.0
    for j in range(len(sums)):
        for chain in range(CHAINS):
            own = sums[j, chain]
            for v in range(len(left)):
                left[v] -= own[v] if met[v] else 0.0


@compile(nogil=True, error_model="numpy")
def _charged(left: Any, low: Any, high: Any, number: Any) -> tuple[float, float]:
    """What residuals cost within bounds, and at most; divides them among the copies."""
    paid = spared = 0.0
    for v in range(len(left)):
        paid += min(left[v] * low[v], left[v] * high[v])
        spared += abs(left[v]) * (high[v] - low[v])
        left[v] /= number[v]
    return paid, spared


@compile(nogil=True, error_model="numpy")
def _values(
    where: Any, first: int, last: int, c: Any, share: Any, dual: Any, near: Any, sums: Any, data: Any
) -> tuple[float, float]:
    """Sums of the values of some blocks, of the sizes of their multipliers, and of these by variable.

    Parameters
    ----------
    where : tuple
        Places, first copy, blocks, and blocks that are no padding.
    first, last : int
        The blocks.
    c : array
        ``(variables,)``: costs.
    share : array
        ``(variables,)``, what every copy gets more; or ``(0,)``.
    dual : array
        ``(copies,)``.
    near : array
        ``(DIM + 1, TILE)``, to be written over.
    sums : array
        ``(CHAINS, used)``, written.
    data : tuple
        Block data, and the instance.
    """
    (place, start, blocks, _), value = where, near[DIM]
    sums[:], total, size = 0, 0.0, 0.0
    for at in range(first, last, TILE):
        count = min(TILE, last - at)
        for i in range(DIM):
            own, a = near[i], start + i * blocks + at
            variable, given = place[a : a + count], dual[a : a + count]
            if i >= COUPLED:
                gather(variable, c, own)
                size += _magnitude(own[:count])
            elif len(share):
                for q in range(count):
                    own[q] = given[q] + share[variable[q]]
                size += _magnitude(own[:count])
            else:
                size += _copied(given, own)
        add(place, (start, blocks, at, count), near, sums[0], sums[CHAINS - 1])
        least(near, (start, blocks, at, count), value, data)
        total += _total(value[:count])
    return total, size
