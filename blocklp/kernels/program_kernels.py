"""Passes of :class:`blocklp.methods.pdhg.Pdhg` over the rows of all blocks, compiled for the CPU.

Blocks are taken by tiles, as in :mod:`blocklp.kernels.row_kernels`.  Sums are added tile by tile, so that
they do not depend on the number of threads; those of tensor operations differ from them by rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blocklp.kernels.compiled import TILE, compile, kernel
from blocklp.kernels.fused_kernels import fold
from blocklp.kernels.row_kernels import EXACT, NEAR, add_adjoint, gather, row_product, sum_parts
from blocklp.kernels.turns import claim, done

STAGES = 5
"""Of a pass of PDHG: variables, blocks, distances, a decision, and what had to wait for it."""

_AS_IT_GOES, _STORED, _RESTARTED = 0, 1, 2


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def _variables(
    first: int,
    count: int,
    eta: Any,
    back: Any,
    stored: bool,
    given: Any,
    own: Any,
    pulled: Any,
    room: Any,
) -> None:
    """The step of some variables; unless it is stored, x takes its reflected Halpern step at once."""
    cost, lower, upper, column = given
    x, x0, near = own
    total = room[0]
    sum_parts(pulled, first, count, total)
    for q in range(count):
        v = first + q
        total[q] = x[v] - eta * column[v] * (cost[v] - total[q])
    for q in range(count):
        v = first + q
        near[v] = min(max(total[q], lower[v]), upper[v])
    if not stored:
        _advance(x[first : first + count], x0[first : first + count], near[first : first + count], back)


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def _advance(now: Any, origin: Any, bar: Any, back: Any) -> None:
    """Reflected Halpern step: reflect numbers at ``bar``, average them with those where their epoch began."""
    for q in range(len(now)):
        ahead = bar[q] + bar[q] - now[q]
        now[q] = ahead + back * (origin[q] - ahead)


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def _blocks(
    group: Any,
    first: int,
    count: int,
    eta: Any,
    back: Any,
    stored: bool,
    sparse: Any,
    place: Any,
    entries: Any,
    given: Any,
    x: Any,
    own: Any,
    pulled: Any,
    near: Any,
    room: Any,
) -> None:
    """The step of a tile's rows; unless it is stored, add their adjoint product to ``pulled``."""
    lower, upper, sigma, length = given
    y, y0, y_bar, a, a0, a_bar = own
    reached, w, inverse = room[0], room[1], near.dtype.type(1) / eta
    gather(group, first, count, place, x, near)
    for r in range(group[3]):
        at = group[4] + r * group[2] + first
        end = at + count
        row_product(group, entries, r, first, count, sparse, place, x, near, reached)
        dual, active, weight = y[at:end], a[at:end], length[at:end]
        for q in range(count):
            w[q] = eta * weight[q] * dual[q] - (reached[q] + reached[q] - active[q])
        low, high, diagonal = lower[at:end], upper[at:end], sigma[at:end]
        for q in range(count):
            w[q] = diagonal[q] * inverse * (w[q] - min(max(w[q], -high[q]), -low[q]))
        if stored:
            for q in range(count):
                y_bar[at + q], a_bar[at + q] = w[q], reached[q]
        else:
            _advance(dual, y0[at:end], w[:count], back)
            _advance(active, a0[at:end], reached[:count], back)
    if not stored:
        add_adjoint(group, entries, first, count, y, sparse, place, reached, pulled)


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def _step_of_variables(first: int, count: int, own: Any, column: Any, room: Any, out: Any) -> None:
    """Squared lengths over T of the step of some variables, and of the way from where the epoch began."""
    x, x0, near = own
    room[:2] = 0
    here, away = room[0], room[1]
    for q in range(count):
        v = first + q
        here[q] = (near[v] - x[v]) ** 2 / column[v]
        away[q] = (near[v] - x0[v]) ** 2 / column[v]
    out[0], out[1] = fold(here), fold(away)


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def _step_of_rows(group: Any, first: int, count: int, own: Any, length: Any, room: Any, out: Any) -> None:
    """Squared lengths over Sigma of a tile's dual steps and ways, and the product with activity steps."""
    y, y0, y_bar, a, _, a_bar = own
    room[:3] = 0
    here, away, across = room[0], room[1], room[2]
    for r in range(group[3]):
        at = group[4] + r * group[2] + first
        end = at + count
        dual, origin, bar = y[at:end], y0[at:end], y_bar[at:end]
        active, reached, weight = a[at:end], a_bar[at:end], length[at:end]
        for q in range(count):
            here[q] += (bar[q] - dual[q]) ** 2 * weight[q]
        for q in range(count):
            away[q] += (bar[q] - origin[q]) ** 2 * weight[q]
        for q in range(count):
            across[q] += (bar[q] - dual[q]) * (reached[q] - active[q])
    out[0], out[1], out[2] = fold(here), fold(away), fold(across)


@compile(nogil=True, error_model="numpy")
def decide(
    b: int,
    passed: int,
    look: bool,
    stored: bool,
    rules: Any,
    scalars: Any,
    many: int,
    sums: Any,
    verdict: Any,
) -> None:
    """Decide whether the epoch of an instance ends, and the primal weight of the next one.

    Parameters
    ----------
    b : int
        The instance.
    passed : int
        Passes made.
    look : bool
        Whether the residual was measured in this pass.
    stored : bool
        Whether the step was stored and is yet to be taken.
    rules : tuple
        Sufficient and necessary decrease, longest epoch over all passes, passes between two looks, and the
        largest factor between a weight and the first.
    scalars : tuple of ndarray
        ``(batch,)`` each: weight, passes of the epoch, squared residual, that of its first pass, first
        weight.
    many : int
        Tiles of rows.
    sums : ndarray
        ``(tiles of rows, then of variables, 3)``: squared steps, squared ways from the origin, and products.
    verdict : ndarray
        ``(batch,)``: written.
    """
    eta, age, residual, first, weight = scalars
    verdict[b] = _STORED if stored else _AS_IT_GOES
    old = age[b]
    age[b] = old + 1
    if not look:
        return
    dx = dy = x_away = y_away = across = 0.0
    for t in range(many):
        dy, y_away, across = dy + sums[t, 0], y_away + sums[t, 1], across + sums[t, 2]
    for t in range(many, len(sums)):
        dx, x_away = dx + sums[t, 0], x_away + sums[t, 1]
    before, now = residual[b], dx / eta[b] + 2 * across + dy * eta[b]
    now = now if now > 0 else 0.0
    residual[b] = now
    if old == 0:
        first[b] = now
    if passed % rules[3] != 0 or old == 0:
        return
    enough = now <= rules[0] * first[b]
    some = now > before and now <= rules[1] * first[b]
    if enough or some or age[b] > rules[2] * passed:
        verdict[b], age[b] = _RESTARTED, 0
        ratio = math.sqrt(x_away / y_away) if y_away > 0 else 0.0
        if 0 < ratio < math.inf:
            balanced = math.sqrt(eta[b] * min(max(ratio, eta[b] / 100), eta[b] * 100))
            eta[b] = min(max(balanced, weight[b] / rules[4]), weight[b] * rules[4])


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def _settle(now: Any, origin: Any, bar: Any, restarted: bool, back: Any) -> None:
    """Take a stored step: a restart sets the numbers and their origin to it, else a Halpern step follows."""
    if restarted:
        for q in range(len(bar)):
            now[q] = origin[q] = bar[q]
    else:
        _advance(now, origin, bar, back)


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def _stage(
    stage: int,
    part: int,
    parts: int,
    b: int,
    many: int,
    before: int,
    rules: Any,
    tables: Any,
    variables: Any,
    rows: Any,
    own: Any,
    pulled: Any,
    scalars: Any,
    verdict: Any,
    sums: Any,
    scratch: Any,
) -> None:
    """A part of a stage of a pass over one instance."""
    groups, tiles, sparse, place, entries = tables
    near, room = scratch
    x, y = own[:3], own[3:]
    eta, age, passed, kind = scalars[0][b], scalars[1][b], before + stage // STAGES + 1, stage % STAGES
    one = near.dtype.type(1)
    size = len(x[0])
    look = age == 0 or passed % rules[3] == 0
    stored = look or passed == before + many
    if kind == 0:
        back = one / (age + one + one)
        for first in range(_share(part, parts, size), _share(part + 1, parts, size), TILE):
            count = min(TILE, size - first)
            _variables(first, count, eta, back, stored, variables, x, pulled, room)
    elif kind == 1:
        back = one / (age + one + one)
        pulled[part] = 0
        for t in range(len(tiles) * part // parts, len(tiles) * (part + 1) // parts):
            group, first, count = groups[tiles[t, 0]], tiles[t, 1], tiles[t, 2]
            out, point = pulled[part], x[2]
            _blocks(
                group,
                first,
                count,
                eta,
                back,
                stored,
                sparse,
                place,
                entries,
                rows,
                point,
                y,
                out,
                near,
                room,
            )
    elif kind == 2 and look:
        for t in range(len(tiles) * part // parts, len(tiles) * (part + 1) // parts):
            _step_of_rows(groups[tiles[t, 0]], tiles[t, 1], tiles[t, 2], y, rows[3], room, sums[t])
        for first in range(_share(part, parts, size), _share(part + 1, parts, size), TILE):
            count = min(TILE, size - first)
            _step_of_variables(first, count, x, variables[3], room, sums[len(tiles) + first // TILE])
    elif kind == 3 and part == 0:
        decide(b, passed, look, stored, rules, scalars, len(tiles), sums, verdict)
    elif kind == 4 and verdict[b] != _AS_IT_GOES:
        restarted, back = verdict[b] == _RESTARTED, one / (age + one)
        first, last = _share(part, parts, size), _share(part + 1, parts, size)
        _settle(x[0][first:last], x[1][first:last], x[2][first:last], restarted, back)
        pulled[part] = 0
        for t in range(len(tiles) * part // parts, len(tiles) * (part + 1) // parts):
            group, first, count = groups[tiles[t, 0]], tiles[t, 1], tiles[t, 2]
            for r in range(group[3]):
                at = group[4] + r * group[2] + first
                _settle(y[0][at : at + count], y[1][at : at + count], y[2][at : at + count], restarted, back)
                _settle(y[3][at : at + count], y[4][at : at + count], y[5][at : at + count], restarted, back)
            add_adjoint(group, entries, first, count, y[0], sparse, place, room[0], pulled[part])


@compile(nogil=True, error_model="numpy", fastmath=EXACT, forceinline=True)
def _share(part: int, parts: int, count: int) -> int:
    """The first number of a part, where ``count`` numbers are divided by whole tiles."""
    return min((count + TILE - 1) // TILE * part // parts * TILE, count)


@kernel()
def passes(
    begin: int,
    stop: int,
    turns: Any,
    parts: int,
    many: int,
    before: int,
    rules: Any,
    layout: Any,
    places: Any,
    entries: Any,
    variables: Any,
    rows: Any,
    own: Any,
    pulled: Any,
    scalars: Any,
    looked: Any,
) -> None:
    """Passes of :class:`blocklp.methods.pdhg.Pdhg`; all that changes is written over.

    A unit is an instance or, of a single one, one of its parts: whoever is free takes a part of a stage.

    Parameters
    ----------
    begin, stop : int
        The first unit, and one past the last.
    turns : ndarray
        State of the phase barrier.
    parts : int
        Parts of an instance, with partial sums of their own.
    many, before : int
        Passes to make, and passes made before.
    rules, scalars
        As in :func:`decide`.
    layout : tuple
        Groups, tiles and sparse rows of :class:`blocklp.kernels.row_layout.RowLayout`.
    places, entries : ndarray
        As in :func:`blocklp.kernels.row_kernels.activity`.
    variables : tuple of ndarray
        ``(batch, variables)`` each: cost, lower and upper bounds, the diagonal of T.
    rows : tuple of ndarray
        ``(batch, rows)`` each: lower and upper sides, the diagonal of Sigma and its inverse.
    own : tuple of ndarray
        x, its origin and its step, ``(batch, variables)``; then those of y and of the activity,
        ``(batch, rows)``.
    pulled : ndarray
        ``(batch, parts, variables)``: partial sums of A^T y.
    looked : tuple of ndarray
        ``verdict`` and ``sums`` of :func:`decide`, the latter with the instance first: written.
    """
    (groups, tiles, sparse), (verdict, sums) = layout, looked
    near = np.empty((min(groups[:, 1].max(), NEAR), TILE), entries.dtype)
    room = np.empty((3, TILE), entries.dtype)
    shared = parts > 1 and len(pulled) == 1
    for unit in range(begin, stop):
        b = 0 if shared else unit
        tables = groups, tiles, sparse, places[b % len(places)], entries[b % len(entries)]
        lower, upper = variables[1][b % len(variables[1])], variables[2][b % len(variables[2])]
        given = variables[0][b], lower, upper, variables[3][b]
        sides = rows[0][b], rows[1][b], rows[2][b], rows[3][b]
        x = own[0][b], own[1][b], own[2][b]
        y = own[3][b], own[4][b], own[5][b]
        mine = x + y + (own[6][b], own[7][b], own[8][b])
        stage, part = claim(turns, many * STAGES, parts) if shared else (0, 0)
        while stage < many * STAGES:
            _stage(
                stage,
                part,
                parts,
                b,
                many,
                before,
                rules,
                tables,
                given,
                sides,
                mine,
                pulled[b],
                scalars,
                verdict,
                sums[b],
                (near, room),
            )
            if shared:
                done(turns)
                stage, part = claim(turns, many * STAGES, parts)
            else:
                stage, part = (stage, part + 1) if part + 1 < parts else (stage + 1, 0)
