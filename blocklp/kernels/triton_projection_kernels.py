r"""Triton kernels for the feasibility projection (:mod:`blocklp.engine.projection`).

A pass is three kernels: over variables, over rows, and one program an instance that decides whether rows are
violated and whether momentum begins anew.  :func:`projection_leap` makes all passes in one launch, a program
an instance.  Duals are kept as (before, now) in two planes; momentum is added as they are read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocklp.kernels.triton_launch import kernel
from blocklp.kernels.triton_pdhg_kernels import numbers_at
from blocklp.kernels.triton_row_kernels import added, put_slot, slots_added, tables_at, tile_at


@triton.jit
def projection_variables(
    tile: tl.tensor,
    sums: tl.tuple,
    entries: tl.tensor,
    iterates: tl.tuple,
    given: tl.tuple,
    momentum: tl.tensor,
    LONG: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The points of a tile of variables of an instance, where the duals with momentum lead.

    Parameters
    ----------
    tile, sums, entries
        As in :func:`blocklp.kernels.triton_pdhg_kernels.pdhg_variables`.
    iterates : tuple
        Pointers to points and duals, and the size of a plane of these.
    given : tuple of pointers
        The points to project, bounds, and the diagonal of T.
    momentum : float
        Of this instance.
    """
    found, y, plane = iterates
    x, lower, upper, column = given
    terms = tile_at(tile, sums, LONG, BLOCK)
    total = added(terms, sums, entries, y + plane, (plane, momentum), False, True, BLOCK)
    k, mine = terms[0], terms[1]
    point = tl.load(x + k, mask=mine, other=0.0) + tl.load(column + k, mask=mine, other=1.0) * total
    point = tl.maximum(point, tl.load(lower + k, mask=mine, other=0.0))
    tl.store(found + k, tl.minimum(point, tl.load(upper + k, mask=mine, other=0.0)), mask=mine)


@triton.jit
def projection_rows(
    tile: tl.tensor,
    sums: tl.tuple,
    entries: tl.tensor,
    iterates: tl.tuple,
    given: tl.tuple,
    slack: tl.tensor,
    momentum: tl.tensor,
    partial: tl.tensor,
    LONG: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A dual step of a tile of rows of an instance.

    Arguments are those of :func:`projection_variables`, but for sums by rows, the rows' sides, diagonal and
    its inverse as ``given``, admissible violations ``slack``, and slots of two numbers: how many rows are
    violated, and how far momentum leads back.

    Parameters
    ----------
    tile, sums, entries, iterates, given, slack, momentum, partial
        As in :func:`projection_variables`, but for what is said above.
    """
    found, y, plane = iterates
    lower, upper, diagonal, length = given
    terms = tile_at(tile, sums, LONG, BLOCK)
    reached = added(terms, sums, entries, found, (0, 0.0), False, False, BLOCK)
    k, mine, slot = terms[0], terms[1], terms[5]
    low, high = tl.load(lower + k, mask=mine, other=0.0), tl.load(upper + k, mask=mine, other=0.0)
    within = tl.maximum(low - reached, reached - high) <= tl.load(slack + k, mask=mine, other=0.0)
    now, scale = tl.load(y + plane + k, mask=mine, other=0.0), tl.load(length + k, mask=mine, other=1.0)
    ahead = now + momentum * (now - tl.load(y + k, mask=mine, other=0.0))
    w = ahead * scale - reached
    clipped = tl.minimum(tl.maximum(w, -high), -low)
    new = tl.load(diagonal + k, mask=mine, other=1.0) * (w - clipped)
    tl.store(y + k, now, mask=mine)
    tl.store(y + plane + k, new, mask=mine)
    put_slot(partial, slot, 0, mine, tl.where(within, 0.0, 1.0), 2)
    put_slot(partial, slot, 1, mine, (ahead - new) * scale * (new - now), 2)


@triton.jit
def projection_step(partial: tl.tensor, depth: tl.tensor, age: tl.tensor, LANES: tl.constexpr) -> tl.tuple:
    """Add slots up: whether a row is violated (int32), and age and momentum of the next pass.

    Parameters
    ----------
    partial, depth, age : pointer, int, float
        ``(depth * LANES, 2)`` float64: slots of the instance; rows of them; and passes since momentum began.
    """
    violated = slots_added(partial, depth, 0, 2, LANES) > 0
    back = slots_added(partial, depth, 1, 2, LANES) > 0
    age = tl.where(back, 0.0, age + 1).to(age.dtype)
    return violated.to(tl.int32), age, age / (age + 3)


@kernel
def projection_pass(
    units: tl.tensor,
    variables: tl.tensor,
    rows: tl.tensor,
    plane: tl.tensor,
    entries_row: tl.tensor,
    slots: tl.tensor,
    sums: tl.tuple,
    entries: tl.tensor,
    planes: tl.tuple,
    given: tl.tuple,
    momenta: tl.tensor,
    actives: tl.tensor,
    partial: tl.tensor,
    ROWS: tl.constexpr,
    LONG: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The points of all variables of active instances, or a dual step of all their rows.

    Parameters
    ----------
    units, variables, rows, plane, entries_row, slots : int
        Tiles of an instance, sizes, entries from one plane of duals and one instance to the next, and numbers
        in the slots of an instance.
    sums, entries, given
        As in :func:`projection_variables` or :func:`projection_rows`, of all instances; for rows the
        admissible violations come last in ``given``.
    planes : tuple of pointers
        Points ``(batch, variables)`` and duals ``(2, batch, rows)``, written.
    momenta, actives : pointer
        ``(batch,)``: momentum, and int32, 0 for an instance that is done.
    partial : pointer
        ``(batch, slots)`` float64, written for rows.
    """
    b, tile = (tl.program_id(0) // units).to(tl.int64), tl.program_id(0) % units
    if tl.load(actives + b) != 0:
        own, mine, momentum = tables_at(b, sums), entries + b * entries_row, tl.load(momenta + b)
        iterates = planes[0] + b * variables, planes[1] + b * rows, plane
        if ROWS:
            sides, slack = numbers_at(b * rows, given), given[4] + b * rows
            room = partial + b * slots
            projection_rows(tile, own, mine, iterates, sides, slack, momentum, room, LONG, BLOCK)
        else:
            numbers = numbers_at(b * variables, given)
            projection_variables(tile, own, mine, iterates, numbers, momentum, LONG, BLOCK)


@kernel
def projection_decide(
    depth: tl.tensor,
    partial: tl.tensor,
    momenta: tl.tensor,
    ages: tl.tensor,
    actives: tl.tensor,
    passes: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """Count the pass of an active instance, and decide whether there is another one.

    Parameters
    ----------
    depth : int
        Rows of slots of an instance.
    partial, momenta, ages, actives, passes : pointer
        Slots, and ``(batch,)`` each, written.
    """
    b = tl.program_id(0).to(tl.int64)
    if tl.load(actives + b) != 0:
        own = partial + b * depth * LANES * 2
        active, age, momentum = projection_step(own, depth, tl.load(ages + b), LANES)
        tl.store(passes + b, tl.load(passes + b) + 1)
        tl.store(actives + b, active)
        tl.store(ages + b, age)
        tl.store(momenta + b, momentum)


@kernel
def projection_leap(
    most: tl.tensor,
    variables: tl.tensor,
    rows: tl.tensor,
    plane: tl.tensor,
    entries_row: tl.tensor,
    sums: tl.tuple,
    entries: tl.tensor,
    planes: tl.tuple,
    given: tl.tuple,
    slack: tl.tensor,
    partial: tl.tensor,
    passes: tl.tensor,
    LONG: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Make passes until no row is violated, at most so many, a program an instance.

    ``sums`` and ``given`` are those of variables and of rows: tables and numbers.

    Parameters
    ----------
    most, variables, rows, plane, entries_row : int
        Passes at most, and as in :func:`projection_pass`.
    entries, planes, slack, partial, passes
        As in :func:`projection_pass`; passes made ``(batch,)`` int64, written.
    """
    b = tl.program_id(0).to(tl.int64)
    tiles, row_tiles, depth = tl.load(sums[0][5]), tl.load(sums[1][5]), tl.load(sums[1][5] + 1)
    own, across, mine = tables_at(b, sums[0]), tables_at(b, sums[1]), entries + b * entries_row
    iterates = planes[0] + b * variables, planes[1] + b * rows, plane
    numbers, sides = numbers_at(b * variables, given[0]), numbers_at(b * rows, given[1])
    room, allowed = partial + b * depth * LANES * 2, slack + b * rows
    momentum = tl.full([], 0, slack.dtype.element_ty)
    age, active, count = momentum, tl.full([], 1, tl.int32), tl.full([], 0, tl.int32)
    while (active != 0) & (count < most):
        for tile in range(0, tiles):
            projection_variables(tile, own, mine, iterates, numbers, momentum, LONG, BLOCK)
        tl.debug_barrier()
        for tile in range(0, row_tiles):
            projection_rows(tile, across, mine, iterates, sides, allowed, momentum, room, LONG, BLOCK)
        tl.debug_barrier()
        active, age, momentum = projection_step(room, depth, age, LANES)
        tl.debug_barrier()
        count += 1
    tl.store(passes + b, count.to(tl.int64))
