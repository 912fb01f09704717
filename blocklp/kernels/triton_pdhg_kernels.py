r"""Triton kernels for passes of PDHG (:mod:`blocklp.methods.pdhg`), restarts included.

A pass is two kernels: one over variables, one over rows.  After every fifth pass and the next one, a third
adds the residuals up, and decides which instances begin a new epoch.  :func:`pdhg_leap` makes many passes of
instances in one launch, a program an instance; all of them run the same tiles, so that bits agree.

Iterates are kept as (now, start of the epoch, last step) in *planes* one after the other.  An instance that
is *due* begins a new epoch in the next pass, which reads its last step in place of the others.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocklp.kernels.triton_launch import kernel
from blocklp.kernels.triton_row_kernels import added, put_slot, slots_added, tables_at, tile_at


@triton.jit
def iterates_at(
    b: tl.tensor, batch: tl.tensor, variables: tl.tensor, rows: tl.tensor, planes: tl.tuple
) -> tl.tuple:
    """Return x, y and A x of an instance, and the sizes of the planes of x and of the others.

    Parameters
    ----------
    b, batch, variables, rows, planes : int, int, int, int, tuple of pointers
        The instance, the sizes, and x, y and A x: ``(3, batch, variables or rows)`` each.
    """
    x, y, activity = planes
    whole = batch.to(tl.int64)
    return x + b * variables, y + b * rows, activity + b * rows, whole * variables, whole * rows


@triton.jit
def numbers_at(at: tl.tensor, given: tl.tuple) -> tl.tuple:
    """Return four pointers, moved on to an instance."""
    return given[0] + at, given[1] + at, given[2] + at, given[3] + at


@triton.jit
def _reflected(new: tl.tensor, old: tl.tensor, first: tl.tensor, back: tl.tensor) -> tl.tensor:
    """The step reflected, and averaged with the start of the epoch."""
    reflected = 2 * new - old
    return reflected + back * (first - reflected)


@triton.jit
def pdhg_variables(
    tile: tl.tensor,
    sums: tl.tuple,
    entries: tl.tensor,
    iterates: tl.tuple,
    given: tl.tuple,
    scalars: tl.tuple,
    partial: tl.tensor,
    measured: tl.tensor,
    LONG: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Step the variables of a tile of an instance.

    Parameters
    ----------
    tile : int32
        The tile of variables.
    sums, entries : tuple, pointer
        Rows by variables (:func:`tables_at`), and their entries.
    iterates : tuple
        What :func:`iterates_at` returned.
    given : tuple of pointers
        Costs, bounds and the diagonal of T.
    scalars : tuple
        Weight, age and whether a new epoch begins.
    partial : pointer
        Slots, two numbers each.
    measured : bool
        Whether the residual of the pass is asked for.
    """
    x, y, _, plane, row_plane = iterates
    cost, lower, upper, column = given
    eta, age, due = scalars
    terms = tile_at(tile, sums, LONG, BLOCK)
    total = added(terms, sums, entries, y + 2 * due * row_plane, (0, 0.0), False, False, BLOCK)
    k, mine, slot = terms[0], terms[1], terms[5]
    old = tl.load(x + 2 * due * plane + k, mask=mine, other=0.0)
    first = tl.load(x + (1 + due) * plane + k, mask=mine, other=0.0)
    scale = tl.load(column + k, mask=mine, other=1.0)
    new = old - eta * scale * (tl.load(cost + k, mask=mine, other=0.0) - total)
    new = tl.maximum(new, tl.load(lower + k, mask=mine, other=0.0))
    new = tl.minimum(new, tl.load(upper + k, mask=mine, other=0.0))
    tl.store(x + k, _reflected(new, old, first, 1 / (age + 2)), mask=mine)
    tl.store(x + plane + k, first, mask=mine & (k < plane * due))
    tl.store(x + 2 * plane + k, new, mask=mine)
    if measured:
        step, moved = new - old, new - first
        put_slot(partial, slot, 0, mine, step * step / scale, 2)
        put_slot(partial, slot, 1, mine, moved * moved / scale, 2)


@triton.jit
def pdhg_rows(
    tile: tl.tensor,
    sums: tl.tuple,
    entries: tl.tensor,
    iterates: tl.tuple,
    given: tl.tuple,
    scalars: tl.tuple,
    partial: tl.tensor,
    measured: tl.tensor,
    LONG: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Step the rows of a tile of an instance; arguments are those of :func:`pdhg_variables`.

    Sums are by rows; ``given`` are sides, the diagonal of Sigma and its inverse; slots have three numbers.

    Parameters
    ----------
    tile, sums, entries, iterates, given, scalars, partial, measured
        As in :func:`pdhg_variables`, but for what is said above.
    """
    x, y, activity, plane, row_plane = iterates
    lower, upper, diagonal, length = given
    eta, age, due = scalars
    terms = tile_at(tile, sums, LONG, BLOCK)
    reached = added(terms, sums, entries, x + 2 * plane, (0, 0.0), False, False, BLOCK)
    k, mine, slot = terms[0], terms[1], terms[5]
    now, start = 2 * due * row_plane + k, (1 + due) * row_plane + k
    old, first = tl.load(y + now, mask=mine, other=0.0), tl.load(y + start, mask=mine, other=0.0)
    before = tl.load(activity + now, mask=mine, other=0.0)
    begun = tl.load(activity + start, mask=mine, other=0.0)
    scale = tl.load(length + k, mask=mine, other=1.0)
    w = eta * scale * old - (2 * reached - before)
    clipped = tl.maximum(w, -tl.load(upper + k, mask=mine, other=0.0))
    clipped = tl.minimum(clipped, -tl.load(lower + k, mask=mine, other=0.0))
    new = tl.load(diagonal + k, mask=mine, other=1.0) * (1 / eta) * (w - clipped)
    back, begins = 1 / (age + 2), mine & (k < row_plane * due)
    tl.store(y + k, _reflected(new, old, first, back), mask=mine)
    tl.store(activity + k, _reflected(reached, before, begun, back), mask=mine)
    tl.store(y + row_plane + k, first, mask=begins)
    tl.store(activity + row_plane + k, begun, mask=begins)
    tl.store(y + 2 * row_plane + k, new, mask=mine)
    tl.store(activity + 2 * row_plane + k, reached, mask=mine)
    if measured:
        step, moved = new - old, new - first
        put_slot(partial, slot, 0, mine, step * step * scale, 3)
        put_slot(partial, slot, 1, mine, step * (reached - before), 3)
        put_slot(partial, slot, 2, mine, moved * moved * scale, 3)


@triton.jit
def pdhg_epoch(
    partials: tl.tuple,
    depths: tl.tuple,
    scalars: tl.tuple,
    known: tl.tuple,
    weight: tl.tensor,
    passes: tl.tensor,
    RULES: tl.constexpr,
    LANES: tl.constexpr,
) -> tl.tuple:
    """Add the residual of a pass up, and decide whether a new epoch begins.

    Parameters
    ----------
    partials, depths : tuple
        Slots of variables and of rows of an instance, and how many rows of slots these are.
    scalars : tuple
        Weight, and age with the pass.
    known : tuple of float64
        Squared residuals: the last one, and that at the start of the epoch.
    weight : float
        The weight that the sizes of the data suggest.
    passes : int
        Passes made, this one included.
    RULES : tuple
        Squares of the sufficient and the necessary decrease, the longest epoch as a part of all passes,
        passes between restarts, and the largest factor between the weight and the one that sizes suggest.

    Returns
    -------
    eta, age, due, residual, first : tuple
        Their values for the next pass.
    """
    eta, age = scalars
    residual, first = known
    wide = eta.to(tl.float64)
    step = slots_added(partials[0], depths[0], 0, 2, LANES)
    along = slots_added(partials[1], depths[1], 0, 3, LANES)
    across = slots_added(partials[1], depths[1], 1, 3, LANES)
    now = step / wide + 2 * across + along * wide
    now = tl.where(now > 0, now, 0.0)
    young = age == 1
    first = tl.where(young, now, first)
    due = eta != eta
    if passes % RULES[3] != 0:
        residual = tl.where(young, now, residual)
    else:
        primal = slots_added(partials[0], depths[0], 1, 2, LANES)
        dual = slots_added(partials[1], depths[1], 2, 3, LANES)
        enough = now <= RULES[0] * first
        some = (now > residual) & (now <= RULES[1] * first)
        long = age.to(tl.float64) > tl.full([], RULES[2], tl.float64) * passes
        due = (age > 1) & (enough | some | long)
        ratio = tl.sqrt(primal / tl.where(dual > 0, dual, 1.0))
        balanced = tl.sqrt(wide * tl.minimum(tl.maximum(ratio, wide / 100), wide * 100))
        suggested = weight.to(tl.float64)
        balanced = tl.minimum(tl.maximum(balanced, suggested / RULES[4]), suggested * RULES[4])
        valid = due & (dual > 0) & (ratio > 0) & (ratio < float("inf"))
        eta = tl.where(valid, balanced.to(eta.dtype), eta)
        age = tl.where(due, 0.0, age).to(eta.dtype)
        residual = now
    return eta, age, due.to(tl.int32), residual, first


@kernel
def pdhg_pass(
    units: tl.tensor,
    late: tl.tensor,
    batch: tl.tensor,
    variables: tl.tensor,
    rows: tl.tensor,
    entries_row: tl.tensor,
    slots: tl.tensor,
    sums: tl.tuple,
    entries: tl.tensor,
    planes: tl.tuple,
    given: tl.tuple,
    scalars: tl.tuple,
    partial: tl.tensor,
    FORM: tl.constexpr,
    LONG: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Step all variables or rows; ages are ``late`` passes behind, and instances have so many slots.

    Parameters
    ----------
    units, late, batch, variables, rows, entries_row, slots : int
        Tiles of an instance; entries from one instance to the next; and as above.
    sums, entries, planes, given, scalars, partial
        As in :func:`pdhg_variables` or :func:`pdhg_rows`, and :func:`iterates_at`, of all instances.
    FORM : tuple of bool
        Whether it is the rows that step, and whether the residual of the pass is asked for.
    """
    b = (tl.program_id(0) // units).to(tl.int64)
    state = tl.load(scalars[0] + b), tl.load(scalars[1] + b) + late, tl.load(scalars[2] + b)
    own, iterates = tables_at(b, sums), iterates_at(b, batch, variables, rows, planes)
    tile, mine, room = tl.program_id(0) % units, entries + b * entries_row, partial + b * slots
    if FORM[0]:
        sides = numbers_at(b * rows, given)
        pdhg_rows(tile, own, mine, iterates, sides, state, room, FORM[1], LONG, BLOCK)
    else:
        numbers = numbers_at(b * variables, given)
        pdhg_variables(tile, own, mine, iterates, numbers, state, room, FORM[1], LONG, BLOCK)


@kernel
def pdhg_restart(
    late: tl.tensor,
    passes: tl.tensor,
    depth: tl.tensor,
    row_depth: tl.tensor,
    partials: tl.tuple,
    scalars: tl.tuple,
    residuals: tl.tensor,
    firsts: tl.tensor,
    weights: tl.tensor,
    RULES: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Decide on new epochs after a measured pass, a program an instance; ages are ``late`` passes behind.

    Parameters
    ----------
    late, passes, depth, row_depth : int
        As above; passes made; and rows of slots.
    partials, scalars, residuals, firsts, weights : pointer
        As in :func:`pdhg_epoch`, ``(batch,)`` each.
    """
    b = tl.program_id(0).to(tl.int64)
    own = partials[0] + b * depth * LANES * 2, partials[1] + b * row_depth * LANES * 3
    state = tl.load(scalars[0] + b), tl.load(scalars[1] + b) + late
    known, weight = (tl.load(residuals + b), tl.load(firsts + b)), tl.load(weights + b)
    eta, age, due, residual, first = pdhg_epoch(
        own, (depth, row_depth), state, known, weight, passes, RULES, LANES
    )
    tl.store(scalars[0] + b, eta)
    tl.store(scalars[1] + b, age)
    tl.store(scalars[2] + b, due)
    tl.store(residuals + b, residual)
    tl.store(firsts + b, first)


@triton.jit
def settled(
    start: tl.tensor, iterates: tl.tuple, variables: tl.tensor, rows: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Begin a new epoch in some numbers of an instance: the last step in place of the others.

    Parameters
    ----------
    start, iterates, variables, rows : int, tuple, int, int
        The first number, and as in :func:`iterates_at`.
    """
    x, y, activity, plane, row_plane = iterates
    k = start + tl.arange(0, BLOCK)
    last = tl.load(x + 2 * plane + k, mask=k < variables, other=0.0)
    tl.store(x + k, last, mask=k < variables)
    tl.store(x + plane + k, last, mask=k < variables)
    dual = tl.load(y + 2 * row_plane + k, mask=k < rows, other=0.0)
    tl.store(y + k, dual, mask=k < rows)
    tl.store(y + row_plane + k, dual, mask=k < rows)
    reached = tl.load(activity + 2 * row_plane + k, mask=k < rows, other=0.0)
    tl.store(activity + k, reached, mask=k < rows)
    tl.store(activity + row_plane + k, reached, mask=k < rows)


@kernel
def pdhg_settle(
    units: tl.tensor,
    late: tl.tensor,
    batch: tl.tensor,
    variables: tl.tensor,
    rows: tl.tensor,
    planes: tl.tuple,
    ages: tl.tensor,
    dues: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Begin the new epochs that are due, and bring ages up to date, which are ``late`` passes behind.

    Parameters
    ----------
    units, late, batch, variables, rows, planes, ages, dues
        As in :func:`pdhg_pass`; ages and whether epochs begin, ``(batch,)``.
    """
    b, start = (tl.program_id(0) // units).to(tl.int64), tl.program_id(0) % units * BLOCK
    if tl.load(dues + b) != 0:
        settled(start, iterates_at(b, batch, variables, rows, planes), variables, rows, BLOCK)
    if start == 0:
        tl.store(ages + b, tl.load(ages + b) + late)


@kernel
def pdhg_leap(
    many: tl.tensor,
    passes: tl.tensor,
    batch: tl.tensor,
    variables: tl.tensor,
    rows: tl.tensor,
    entries_row: tl.tensor,
    sums: tl.tuple,
    entries: tl.tensor,
    planes: tl.tuple,
    given: tl.tuple,
    scalars: tl.tuple,
    out: tl.tuple,
    RULES: tl.constexpr,
    LONG: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Make many passes, a program an instance, after ``passes`` others.

    Parameters
    ----------
    many, passes, batch, variables, rows, entries_row : int
        Passes to make, those made, and sizes as in :func:`pdhg_pass`.
    sums, given : tuple
        Of variables and of rows each: tables, and numbers as in :func:`pdhg_variables` and :func:`pdhg_rows`.
    entries, planes : pointer, tuple of pointers
        ``(batch or 1, entries)``; x, y and A x, ``(3, batch, variables or rows)`` each.
    scalars : tuple of pointers
        ``(batch,)``: weights, ages, squared residuals at the last measurement and at the start of the epoch,
        and the weights that sizes suggest.
    out : tuple of pointers
        Written: slots of variables and of rows ``(batch, depth * LANES, 2 or 3)`` float64, and A^T y after
        the passes ``(batch, variables)``.
    """
    b = tl.program_id(0).to(tl.int64)
    eta, age = tl.load(scalars[0] + b), tl.load(scalars[1] + b)
    residual, first, weight = tl.load(scalars[2] + b), tl.load(scalars[3] + b), tl.load(scalars[4] + b)
    counts, row_counts = sums[0][5], sums[1][5]
    tiles, row_tiles = tl.load(counts), tl.load(row_counts)
    depths = tl.load(counts + 1), tl.load(row_counts + 1)
    due = tl.full([], 0, tl.int32)
    own, across = tables_at(b, sums[0]), tables_at(b, sums[1])
    slots = out[0] + b * depths[0] * LANES * 2, out[1] + b * depths[1] * LANES * 3
    iterates = iterates_at(b, batch, variables, rows, planes)
    mine, numbers = entries + b * entries_row, numbers_at(b * variables, given[0])
    sides = numbers_at(b * rows, given[1])
    for n in range(passes + 1, passes + many + 1):
        measured, now = n % RULES[3] <= 1, (eta, age, due)
        for tile in range(0, tiles):
            pdhg_variables(tile, own, mine, iterates, numbers, now, slots[0], measured, LONG, BLOCK)
        tl.debug_barrier()
        for tile in range(0, row_tiles):
            pdhg_rows(tile, across, mine, iterates, sides, now, slots[1], measured, LONG, BLOCK)
        tl.debug_barrier()
        age += 1
        due = tl.full([], 0, tl.int32)
        if measured:
            eta, age, due, residual, first = pdhg_epoch(
                slots, depths, (eta, age), (residual, first), weight, n, RULES, LANES
            )
            tl.debug_barrier()
    if due != 0:
        for start in range(0, tl.maximum(variables, rows), BLOCK):
            settled(start, iterates, variables, rows, BLOCK)
    tl.debug_barrier()
    for tile in range(0, tiles):
        terms = tile_at(tile, own, LONG, BLOCK)
        total = added(terms, own, mine, iterates[1], (0, 0.0), False, False, BLOCK)
        tl.store(out[2] + b * variables + terms[0], total, mask=terms[1])
    tl.store(scalars[0] + b, eta)
    tl.store(scalars[1] + b, age)
    tl.store(scalars[2] + b, residual)
    tl.store(scalars[3] + b, first)
