"""Loops over the rows of all blocks (:class:`blocklp.program.Program`), compiled for the CPU.

Blocks are taken by tiles, all rows of a tile at once: what the rows need is gathered once, and a matrix that
was read for a product is in the cache for the next one.  Sums are added tile by tile, so that they do not
depend on the number of threads.  They do what the tensor operations do, in the same order, so that both give
the same bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blocklp.compiled import TILE, compile, kernel
from blocklp.fused import _fold
from blocklp.turns import claim, done

STAGES = 5
"""Of a pass of PDHG: variables, blocks, distances, a decision, and what had to wait for it."""

EXACT = {"nsz"}
"""The one liberty with rounding that tensor operations take too: the sign of zero."""

NEAR = 64
"""Variables of a block up to which their values are gathered once for all of its rows."""

BESIDE = 2
"""The mark of rows beside the blocks."""

GRAIN = 64
"""Tiles that are worth waking a thread."""

_AS_IT_GOES, _STORED, _RESTARTED = 0, 1, 2


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _gather(group: Any, first: int, count: int, place: Any, values: Any, near: Any) -> None:
    """Gather values of a tile's variables into ``near`` (dim, TILE), if it has room for them."""
    start, dim, blocks = group[0], group[1], group[2]
    for i in range(dim if dim <= len(near) else 0):
        at = start + i * blocks + first
        where, own = place[at : at + count], near[i]
        for q in range(count):
            own[q] = values[where[q]]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _sparse(group: Any, entries: Any, first: int, count: int, sparse: Any, values: Any, reached: Any) -> None:
    """A tile of rows beside the blocks times the values of their variables."""
    starts, column = sparse
    for q in range(count):
        total = entries.dtype.type(0)
        for k in range(starts[first + q], starts[first + q + 1]):
            total += entries[group[5] + k] * values[column[k]]
        reached[q] = total


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _row(
    group: Any,
    entries: Any,
    r: int,
    first: int,
    count: int,
    sparse: Any,
    place: Any,
    values: Any,
    near: Any,
    reached: Any,
) -> None:
    """Row r of a tile of blocks times the values of its variables, which ``near`` holds if there is room."""
    start, dim, blocks, own = group[0], group[1], group[2], group[6]
    if own == BESIDE:
        _sparse(group, entries, first, count, sparse, values, reached)
        return
    base = group[5] + r * dim * (blocks if own else 1)
    reached[:count] = 0
    for i in range(dim):
        if dim > len(near):
            at = base + (i * blocks + first if own else i)
            where = place[start + i * blocks + first : start + i * blocks + first + count]
            for q in range(count):
                reached[q] += entries[at + (q if own else 0)] * values[where[q]]
            continue
        value = near[i]
        if own:
            entry = entries[base + i * blocks + first : base + i * blocks + first + count]
            for q in range(count):
                reached[q] += entry[q] * value[q]
        elif entries[base + i] != 0:
            one = entries[base + i]
            for q in range(count):
                reached[q] += one * value[q]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _column(group: Any, entries: Any, i: int, first: int, count: int, y: Any, copy: Any) -> None:
    """Column i of a tile of blocks times y."""
    dim, blocks, rows, row, own = group[1], group[2], group[3], group[4], group[6]
    copy[:count] = 0
    for r in range(rows):
        dual = y[row + r * blocks + first : row + r * blocks + first + count]
        base = group[5] + (r * dim + i) * (blocks if own else 1)
        if own:
            entry = entries[base + first : base + first + count]
            for q in range(count):
                copy[q] += entry[q] * dual[q]
        elif entries[base] != 0:
            one = entries[base]
            for q in range(count):
                copy[q] += one * dual[q]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _add_adjoint(
    group: Any,
    entries: Any,
    first: int,
    count: int,
    y: Any,
    sparse: Any,
    place: Any,
    copy: Any,
    sums: Any,
) -> None:
    """Transposed rows of a tile of blocks times y, added to the sums of the variables."""
    start, dim, blocks = group[0], group[1], group[2]
    if group[6] == BESIDE:
        starts, column = sparse
        for q in range(first, first + count):
            dual = y[group[4] + q]
            for k in range(starts[q], starts[q + 1]):
                sums[column[k]] += entries[group[5] + k] * dual
        return
    for i in range(dim):
        _column(group, entries, i, first, count, y, copy)
        at = start + i * blocks + first
        where = place[at : at + count]
        for q in range(count):
            sums[where[q]] += copy[q]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _total(sums: Any, first: int, count: int, total: Any) -> None:
    """Sums of some variables over all parts."""
    total[:count] = sums[0, first : first + count]
    for k in range(1, len(sums)):
        own = sums[k, first : first + count]
        for q in range(count):
            total[q] += own[q]


@kernel(GRAIN, fastmath=EXACT)
def activity(
    begin: int,
    stop: int,
    groups: Any,
    tiles: Any,
    sparse: Any,
    places: Any,
    entries: Any,
    x: Any,
    out: Any,
) -> None:
    """Rows times x, a tile a unit.

    Parameters
    ----------
    begin, stop : int
        The first unit, and one past the last.
    groups, tiles, sparse : ndarray, ndarray, tuple of ndarray
        As in :class:`blocklp.row_layout.Layout`.
    places : ndarray
        ``(batch or 1, copies)`` int64: the variable of each copy.
    entries : ndarray
        ``(batch or 1, entries)``: the entries of all matrices.
    x : ndarray
        ``(batch, variables)``.
    out : ndarray
        ``(batch, rows)``: written.
    """
    near = np.empty((min(groups[:, 1].max(), NEAR), TILE), x.dtype)
    for unit in range(begin, stop):
        b, tile = unit // len(tiles), tiles[unit % len(tiles)]
        group, first, count = groups[tile[0]], tile[1], tile[2]
        _gather(group, first, count, places[b % len(places)], x[b], near)
        for r in range(group[3]):
            at = group[4] + r * group[2] + first
            reached, place = out[b, at : at + count], places[b % len(places)]
            _row(group, entries[b % len(entries)], r, first, count, sparse, place, x[b], near, reached)


@kernel(GRAIN, fastmath=EXACT)
def pull(begin: int, stop: int, groups: Any, tiles: Any, entries: Any, y: Any, out: Any) -> None:
    """Transposed rows times y by copies, before these are summed by variable, a tile a unit.

    Parameters
    ----------
    begin, stop : int
        The first unit, and one past the last.
    groups, tiles : ndarray
        As in :class:`blocklp.row_layout.Layout`.
    entries : ndarray
        ``(batch or 1, entries)``: the entries of all matrices.
    y : ndarray
        ``(batch, rows)``.
    out : ndarray
        ``(batch, copies)``: written.
    """
    for unit in range(begin, stop):
        b, tile = unit // len(tiles), tiles[unit % len(tiles)]
        group, first, count = groups[tile[0]], tile[1], tile[2]
        for i in range(group[1]):
            at = group[0] + i * group[2] + first
            _column(group, entries[b % len(entries)], i, first, count, y[b], out[b, at : at + count])


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
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
    _total(pulled, first, count, total)
    for q in range(count):
        v = first + q
        total[q] = x[v] - eta * column[v] * (cost[v] - total[q])
    for q in range(count):
        v = first + q
        near[v] = min(max(total[q], lower[v]), upper[v])
    if not stored:
        _advance(x[first : first + count], x0[first : first + count], near[first : first + count], back)


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _advance(now: Any, origin: Any, bar: Any, back: Any) -> None:
    """Reflected Halpern step: reflect numbers at ``bar``, average them with those where their epoch began."""
    for q in range(len(now)):
        ahead = bar[q] + bar[q] - now[q]
        now[q] = ahead + back * (origin[q] - ahead)


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
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
    _gather(group, first, count, place, x, near)
    for r in range(group[3]):
        at = group[4] + r * group[2] + first
        end = at + count
        _row(group, entries, r, first, count, sparse, place, x, near, reached)
        dual, active, weight = y[at:end], a[at:end], length[at:end]
        for q in range(count):
            w[q] = eta * weight[q] * dual[q] - (reached[q] + reached[q] - active[q])
        low, high, diagonal = lower[at:end], upper[at:end], sigma[at:end]
        for q in range(count):
            w[q] = diagonal[q] * inverse * (w[q] - min(max(w[q], -high[q]), -low[q]))
        if stored:
            y_bar[at:end] = w[:count]
            a_bar[at:end] = reached[:count]
        else:
            _advance(dual, y0[at:end], w[:count], back)
            _advance(active, a0[at:end], reached[:count], back)
    if not stored:
        _add_adjoint(group, entries, first, count, y, sparse, place, reached, pulled)


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _step_of_variables(first: int, count: int, own: Any, column: Any, room: Any, out: Any) -> None:
    """Squared lengths over T of the step of some variables, and of the way from where the epoch began."""
    x, x0, near = own
    room[:2] = 0
    here, away = room[0], room[1]
    for q in range(count):
        v = first + q
        here[q] = (near[v] - x[v]) ** 2 / column[v]
        away[q] = (near[v] - x0[v]) ** 2 / column[v]
    out[0], out[1] = _fold(here), _fold(away)


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
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
    out[0], out[1], out[2] = _fold(here), _fold(away), _fold(across)


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


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _settle(now: Any, origin: Any, bar: Any, restarted: bool, back: Any) -> None:
    """Take a stored step: a restart sets the numbers and their origin to it, else a Halpern step follows."""
    if restarted:
        now[:] = bar
        origin[:] = bar
    else:
        _advance(now, origin, bar, back)


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
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
            _add_adjoint(group, entries, first, count, y[0], sparse, place, room[0], pulled[part])


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
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
    verdict: Any,
    sums: Any,
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
    rules, scalars, sums, verdict
        As in :func:`decide`, ``sums`` with the instance first.
    layout : tuple
        Groups, tiles and sparse rows of :class:`blocklp.row_layout.Layout`.
    places, entries : ndarray
        As in :func:`activity`.
    variables : tuple of ndarray
        ``(batch, variables)`` each: cost, lower and upper bounds, the diagonal of T.
    rows : tuple of ndarray
        ``(batch, rows)`` each: lower and upper sides, the diagonal of Sigma and its inverse.
    own : tuple of ndarray
        x, its origin and its step, ``(batch, variables)``; then those of y and of the activity,
        ``(batch, rows)``.
    pulled : ndarray
        ``(batch, parts, variables)``: partial sums of A^T y.
    """
    groups, tiles, sparse = layout
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


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _dual_step(
    group: Any,
    first: int,
    count: int,
    slack: Any,
    sparse: Any,
    place: Any,
    entries: Any,
    sides: Any,
    point: Any,
    own: Any,
    near: Any,
    room: Any,
) -> tuple[bool, Any]:
    """A dual gradient step of a tile's rows: whether a row is violated, and how far momentum leads back."""
    lower, upper, sigma, length = sides
    y, ahead, new = own
    room[:] = 0
    reached, w, off, back = room[0], room[1], room[2], room[3]
    _gather(group, first, count, place, point, near)
    for r in range(group[3]):
        at = group[4] + r * group[2] + first
        end = at + count
        _row(group, entries, r, first, count, sparse, place, point, near, reached)
        low, high, allowed = lower[at:end], upper[at:end], slack[at:end]
        for q in range(count):
            off[q] = max(off[q], max(low[q] - reached[q], reached[q] - high[q]) - allowed[q])
        further, dual, step = ahead[at:end], y[at:end], new[at:end]
        weight, diagonal = length[at:end], sigma[at:end]
        for q in range(count):
            w[q] = further[q] * weight[q] - reached[q]
        for q in range(count):
            w[q] = diagonal[q] * (w[q] - min(max(w[q], -high[q]), -low[q]))
        for q in range(count):
            back[q] += (further[q] - w[q]) * weight[q] * (w[q] - dual[q])
        step[:] = w[:count]
    worst = off[0]
    for q in range(count):
        worst = max(worst, off[q])
    return not worst <= 0, _fold(back)


@kernel(fastmath=EXACT)
def project(
    begin: int,
    stop: int,
    most: int,
    layout: Any,
    places: Any,
    entries: Any,
    variables: Any,
    rows: Any,
    slack: Any,
    own: Any,
    pulled: Any,
    found: Any,
    passes: Any,
) -> None:
    """Project points onto the feasible set (:func:`blocklp.nearest.nearest`), an instance a unit.

    Parameters
    ----------
    begin, stop : int
        The first instance, and one past the last.
    most : int
        Most passes.
    layout, places, entries
        As in :func:`passes`.
    variables : tuple of ndarray
        ``(batch, variables)`` each: the points, lower and upper bounds, the diagonal of T.
    rows : tuple of ndarray
        As in :func:`passes`.
    slack : ndarray
        ``(batch, rows)``: admissible violations.
    own : tuple of ndarray
        ``(batch, rows)`` each, zero at first: duals, duals after the momentum step, and room for new ones.
    pulled : ndarray
        ``(batch, parts, variables)``, zero at first: partial sums of A^T y.
    found, passes : ndarray
        ``(batch, variables)`` and ``(batch,)``: written.
    """
    groups, tiles, sparse = layout
    parts, near = pulled.shape[1], np.empty((min(groups[:, 1].max(), NEAR), TILE), entries.dtype)
    room = np.empty((4, TILE), entries.dtype)
    for b in range(begin, stop):
        x = variables[0][b]
        lower, upper = variables[1][b % len(variables[1])], variables[2][b % len(variables[2])]
        column, place, own_entries = variables[3][b], places[b % len(places)], entries[b % len(entries)]
        sides, mine = (rows[0][b], rows[1][b], rows[2][b], rows[3][b]), (own[0][b], own[1][b], own[2][b])
        y, ahead, new = mine
        point, total, age = found[b], room[0], 0
        for n in range(most):
            passes[b] = n + 1
            for first in range(0, len(point), TILE):
                count = min(TILE, len(point) - first)
                _total(pulled[b], first, count, total)
                for q in range(count):
                    point[first + q] = x[first + q] + column[first + q] * total[q]
                for q in range(first, first + count):
                    point[q] = min(max(point[q], lower[q]), upper[q])
            off, back = False, 0.0
            for t in range(len(tiles)):
                group, first, count = groups[tiles[t, 0]], tiles[t, 1], tiles[t, 2]
                bad, part = _dual_step(
                    group,
                    first,
                    count,
                    slack[b],
                    sparse,
                    place,
                    own_entries,
                    sides,
                    point,
                    mine,
                    near,
                    room,
                )
                off, back = off or bad, back + part
            if not off:
                break
            age = 0 if back > 0 else age + 1
            pulled[b] = 0
            momentum = entries.dtype.type(age / (age + 3))
            for part in range(parts):
                for t in range(len(tiles) * part // parts, len(tiles) * (part + 1) // parts):
                    group, first, count = groups[tiles[t, 0]], tiles[t, 1], tiles[t, 2]
                    for r in range(group[3]):
                        at = group[4] + r * group[2] + first
                        for q in range(at, at + count):
                            ahead[q] = new[q] + momentum * (new[q] - y[q])
                        y[at : at + count] = new[at : at + count]
                    sums = pulled[b, part]
                    _add_adjoint(group, own_entries, first, count, ahead, sparse, place, room[0], sums)
