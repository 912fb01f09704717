"""Bounds of whole instances in Triton: :func:`blocklp.engine.best_bound.improved_bounds`.

Programs take chunks of tiles: the sums of a chunk are kept, and added up in the order of the chunks.  One
program an instance goes from phase to phase at a barrier of its threads; for large instances there is a
launch for each phase, with one program a chunk.  Bits are the same either way.

Kernels of checks take tuples.  ``layout`` is ``(active, places, order, ends, filled)``: numbers of the
active instances, variables of the copies, copies sorted by variable and where those of each begin, and
numbers of valid blocks; ``strides`` are the entries from one instance to the next, 0 where all have the
same, in ``places``, ``order``, ``ends``, ``filled``, the counts, bounds below and above, both masks of
variables and the grid; ``sizes`` are variables, copies, first copy of the group, blocks, and one past the
last variable that the kernel looks at.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocklp.kernels.triton_launch import kernel

CHUNK = tl.constexpr(16)
"""Tiles of a chunk."""

AHEAD = tl.constexpr(4)
"""Copies of a variable that are under way at a time."""

EPS = tl.constexpr(2.0**-52)

VALUE, SIZE, PAID, SPARED, PAID_SHARED, BEFORE = (tl.constexpr(n) for n in range(6))
"""What the totals of an instance hold, a number for each chunk."""

TOTALS = 6


@triton.jit
def added(totals: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The sum of ``count`` numbers, in an order that depends on nothing but their places.

    Parameters
    ----------
    totals, count : pointer, int
        ``(count,)`` float64.
    """
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float64)
    for at in range(0, count, BLOCK):
        total += tl.load(totals + at + lane, mask=at + lane < count, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def collected(
    layout: tl.tuple,
    strides: tl.tuple,
    duals: tl.tensor,
    share: tl.tensor,
    row: tl.tensor,
    copies: tl.tensor,
    j: tl.tensor,
    mine: tl.tensor,
    shares: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The sum of the copies of some variables, in the order of the copies, each with its share.

    Parameters
    ----------
    layout, strides : tuple
        As in the module's docstring.
    duals, share : pointer
        ``(batch, copies)`` multipliers, and ``(variables,)`` float64: what each copy gets besides.
    row, copies : int
        The instance, and its copies.
    j, mine, shares : (BLOCK,) int, (BLOCK,) bool, bool
        Variables, which lanes have one, and whether shares are added.
    """
    order, ends = layout[2] + row * strides[1], layout[3] + row * strides[2]
    begin, end = tl.load(ends + j, mask=mine, other=0), tl.load(ends + j + 1, mask=mine, other=0)
    more = tl.where(shares, tl.load(share + j, mask=mine, other=0.0), 0.0)
    total = tl.zeros([BLOCK], tl.float64)
    for first in range(0, tl.max(end - begin, 0), AHEAD):
        for m in tl.static_range(AHEAD):
            here = mine & (begin + first + m < end)
            copy = tl.load(order + begin + first + m, mask=here, other=0)
            own = tl.load(duals + row * copies + copy, mask=here, other=0.0).to(tl.float64)
            total += tl.where(here, own + more, 0.0)
    return total


@kernel
def bounds(
    layout: tl.tuple,
    strides: tl.tuple,
    sizes: tl.tuple,
    duals: tl.tensor,
    variables: tl.tuple,
    room: tl.tuple,
    others: tl.tuple,
    kept: tl.tuple,
    data: tl.tuple,
    data_strides: tl.tuple,
    most: tl.tensor,
    parts: tl.tensor,
    LIMITS: tl.constexpr,
    PHASE: tl.constexpr,
    FUNCTION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Evaluate multipliers and keep better ones; all phases if ``PHASE`` is -1.

    Parameters
    ----------
    layout, strides, sizes : tuple
        As in the module's docstring.
    duals : pointer
        ``(batch, copies)``: multipliers, of any precision.
    variables : tuple of pointers
        ``(batch or 1, variables)``: costs, counts, bounds below and above, and masks of the variables that
        blocks share.
    room : tuple of pointers
        ``(active, used)`` and ``(active, TOTALS, most)`` float64, written: shares of the variables, and
        totals of the chunks.
    others : tuple of pointers
        ``(batch,)`` float64: best primal values, values of all other groups, and the largest magnitude of a
        copy.
    kept : tuple of pointers
        Bounds and best bounds ``(batch,)`` float64, and the multipliers of these ``(batch, copies)``,
        written.
    data, data_strides : tuple
        Block data (:func:`blocklp.kernels.triton_source.data_arguments`).
    most, parts : int
        Chunks of an instance at most, and its programs.
    FUNCTION : tuple
        The least cost of one block, its coordinates, and how many of these are coupled.
    LIMITS : tuple of float
        The least relative gain, and the share of a gap that variables may spare.
    """
    index, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    row, lane = tl.load(layout[0] + index).to(tl.int64), tl.arange(0, BLOCK)
    count, copies, start, blocks, used = sizes
    cost, number = variables[0] + row * count, variables[1] + row * strides[4]
    lower, upper = variables[2] + row * strides[5], variables[3] + row * strides[6]
    met, share = variables[4] + row * strides[7], room[0] + index * used
    totals = room[1] + index * 6 * most
    DIM: tl.constexpr = FUNCTION[1]
    COUPLED: tl.constexpr = FUNCTION[2]
    tiles_v, chunks_v, chunks_b = (
        tl.cdiv(used, BLOCK),
        tl.cdiv(used, CHUNK * BLOCK),
        tl.cdiv(blocks, CHUNK * BLOCK),
    )
    filled = tl.load(layout[4] + row * strides[3])
    if (PHASE == 0) | (PHASE == -1):
        for chunk in range(part, chunks_v, parts):
            paid, spared = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
            for tile in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, tiles_v)):
                j = tile * BLOCK + lane
                mine = j < used
                mine &= tl.load(met + j, mask=mine, other=0) != 0
                left = tl.load(cost + j, mask=mine, other=0.0)
                left -= collected(layout, strides, duals, share, row, copies, j, mine, False, BLOCK)
                low = tl.load(lower + j, mask=mine, other=0.0)
                high = tl.load(upper + j, mask=mine, other=0.0)
                paid += tl.minimum(left * low, left * high)
                spared += tl.abs(left) * (high - low)
                tl.store(share + j, left / tl.load(number + j, mask=mine, other=1.0), mask=mine)
            tl.store(totals + PAID * most + chunk, tl.sum(paid, 0))
            tl.store(totals + SPARED * most + chunk, tl.sum(spared, 0))
        if part == 0:
            tl.store(totals + BEFORE * most, tl.load(kept[1] + row))
    if PHASE == -1:
        tl.debug_barrier()
    before = tl.load(totals + BEFORE * most)
    allowed = LIMITS[1] * (tl.load(others[0] + row) - before)
    spared_all = added(totals + SPARED * most, chunks_v, BLOCK)
    shares = (spared_all > allowed) | (spared_all != spared_all) | (allowed != allowed)
    shares |= tl.abs(allowed) == float("inf")
    if (PHASE == 1) | (PHASE == -1):
        for chunk in range(part, chunks_b, parts):
            value, size = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
            for tile in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, tl.cdiv(filled, BLOCK))):
                b = tile * BLOCK + lane
                mine, own = b < filled, ()
                for i in tl.static_range(DIM):
                    at = start + i * blocks + b
                    place = tl.load(layout[1] + row * strides[0] + at, mask=mine, other=0)
                    if i < COUPLED:
                        dual = tl.load(duals + row * copies + at, mask=mine, other=0.0).to(tl.float64)
                        dual += tl.where(shares, tl.load(share + place, mask=mine, other=0.0), 0.0)
                    else:
                        dual = tl.load(cost + place, mask=mine, other=0.0)
                    size += tl.abs(dual)
                    own = own + (dual,)  # noqa: RUF005
                value += tl.where(mine, FUNCTION[0](own, data, data_strides, row, b, mine, tl.float64), 0.0)
            tl.store(totals + VALUE * most + chunk, tl.sum(value, 0))
            tl.store(totals + SIZE * most + chunk, tl.sum(size, 0))
        if shares:
            for chunk in range(part, chunks_v, parts):
                paid = tl.zeros([BLOCK], tl.float64)
                for tile in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, tiles_v)):
                    j = tile * BLOCK + lane
                    mine = j < used
                    mine &= tl.load(met + j, mask=mine, other=0) != 0
                    left = tl.load(cost + j, mask=mine, other=0.0)
                    left -= collected(layout, strides, duals, share, row, copies, j, mine, True, BLOCK)
                    low = tl.load(lower + j, mask=mine, other=0.0)
                    high = tl.load(upper + j, mask=mine, other=0.0)
                    paid += tl.minimum(left * low, left * high)
                tl.store(totals + PAID_SHARED * most + chunk, tl.sum(paid, 0))
    if PHASE == -1:
        tl.debug_barrier()
    if (PHASE == 2) | (PHASE == -1):
        total = added(totals + VALUE * most, chunks_b, BLOCK)
        if shares:
            total += added(totals + PAID_SHARED * most, chunks_v, BLOCK)
        else:
            total += added(totals + PAID * most, chunks_v, BLOCK)
        total -= tl.load(others[2] + row) * (16 * EPS) * added(totals + SIZE * most, chunks_b, BLOCK)
        total += tl.load(others[1] + row)
        total -= tl.abs(total) * EPS
        first = tl.abs(before) == float("inf")
        better = (total > before + LIMITS[0] * tl.abs(total)) | ((total > before) & first)
        if part == 0:
            tl.store(kept[0] + row, total)
            if better:
                tl.store(kept[1] + row, total)
        if better:
            kind = kept[2].dtype.element_ty
            last = start + COUPLED * blocks
            for tile in range(part, tl.cdiv(copies, BLOCK), parts):
                q = tile * BLOCK + lane
                coupled = (q >= start) & (q < last)
                dual = tl.load(duals + row * copies + q, mask=coupled, other=0.0).to(kind)
                tl.store(kept[2] + row * copies + q, dual, mask=coupled)
                if first:  # all others stay at their cost
                    mine = (q < copies) & ~coupled
                    place = tl.load(layout[1] + row * strides[0] + q, mask=mine, other=0)
                    tl.store(
                        kept[2] + row * copies + q,
                        tl.load(cost + place, mask=mine, other=0.0).to(kind),
                        mask=mine,
                    )
