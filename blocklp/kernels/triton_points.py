"""Primal points of whole instances in Triton, and what a check tells the host.

They are :func:`blocklp.engine.points.offer_mean`, :func:`blocklp.engine.points.finish_points` and
:func:`blocklp.engine.status_record.status_record`; programs and arguments are those of
:mod:`blocklp.kernels.triton_bounds`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocklp.kernels.triton_bounds import CHUNK, added
from blocklp.kernels.triton_launch import kernel

ROUNDER = tl.constexpr(3.0 * 2.0**51)
"""Added to a number below 2**51 and subtracted again it rounds to a whole one, half to even."""

PLAIN, ROUNDED, ITS_WORST, OTHER_WORST, IN_BLOCKS, ROUNDED_IN_BLOCKS, BEFORE = (
    tl.constexpr(n) for n in range(7)
)
"""What the totals of an instance hold, a number for each chunk."""

TOTALS = 7

CANCELLED, NOISE = tl.constexpr(1e-3), tl.constexpr(1e-9)


@triton.jit
def whole(values: tl.tensor) -> tl.tensor:
    """Whole numbers next to some, half to even."""
    return tl.where(tl.abs(values) < 2.0**51, (values + ROUNDER) - ROUNDER, values)


@triton.jit
def within(values: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Numbers moved into bounds; what is no number stays none.

    Parameters
    ----------
    values, low, high : (BLOCK,) float64
        The numbers, and their bounds.
    """
    values = tl.where(values < low, low, values)
    return tl.where(values > high, high, values)


@triton.jit
def worst_of(totals: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The largest of ``count`` numbers, at least 0.

    Parameters
    ----------
    totals, count : pointer, int
        ``(count,)`` float64.
    """
    lane = tl.arange(0, BLOCK)
    most = tl.zeros([BLOCK], tl.float64)
    for at in range(0, count, BLOCK):
        most = tl.maximum(most, tl.load(totals + at + lane, mask=at + lane < count, other=0.0))
    return tl.max(most, 0)


@triton.jit
def in_blocks(
    found: tl.tensor,
    places: tl.tuple,
    costs: tl.tuple,
    box: tl.tuple,
    own: tl.tuple,
    FUNCTION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tuple:
    """Complete a point in some blocks: what coordinates that no other block shares cost, and violations.

    Parameters
    ----------
    found : pointer
        ``(ends,)`` float64: the point.
    places, costs : tuple of (BLOCK,)
        The variable of each coordinate, int, and its cost, float64.
    box : tuple
        Pointers to bounds below and above, and whether these may be tighter than the blocks.
    own : tuple
        Block data and their strides, the instance, its blocks, and which lanes have one.
    FUNCTION : tuple
        As in :func:`completed`.
    """
    DIM: tl.constexpr = FUNCTION[1]
    COUPLED: tl.constexpr = FUNCTION[2]
    value, worst, points = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64), ()
    lower, upper, narrow = box
    mine = own[4]
    for i in tl.static_range(COUPLED):
        points = points + (tl.load(found + places[i], mask=mine, other=0.0),)  # noqa: RUF005
    made = FUNCTION[0](costs, points, own[0], own[1], own[2], own[3], mine, tl.float64)
    if DIM == COUPLED:
        worst = tl.maximum(worst, tl.where(mine, made, 0.0))
    else:
        worst = tl.maximum(worst, tl.where(mine, made[DIM - COUPLED], 0.0))
        for i in tl.static_range(COUPLED, DIM):
            value += tl.where(mine, made[i - COUPLED] * costs[i], 0.0)
            if narrow:
                low = tl.load(lower + places[i], mask=mine, other=0.0)
                high = tl.load(upper + places[i], mask=mine, other=0.0)
                outside = tl.maximum(low - made[i - COUPLED], made[i - COUPLED] - high)
                worst = tl.maximum(worst, tl.where(mine, outside, 0.0))
    return value, worst


@kernel
def completed(
    layout: tl.tuple,
    strides: tl.tuple,
    sizes: tl.tuple,
    variables: tl.tuple,
    instances: tl.tuple,
    room: tl.tuple,
    kept: tl.tuple,
    data: tl.tuple,
    data_strides: tl.tuple,
    most: tl.tensor,
    parts: tl.tensor,
    LIMITS: tl.constexpr,
    PHASE: tl.constexpr,
    POINTS: tl.constexpr,
    FUNCTION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Complete means, and keep points that are better; all phases if ``PHASE`` is -1.

    Parameters
    ----------
    layout, strides, sizes, data, data_strides, most, parts
        As in :func:`blocklp.kernels.triton_bounds.bounds`.
    variables : tuple of pointers
        ``(batch or 1, variables)``: means of copies, of any precision; costs, bounds below and above, and the
        grid; and masks of variables that the blocks share, and of those of other blocks.
    instances : tuple of pointers
        ``(batch,)``: constants of the objective and best bounds, float64, and whether bounds may be tighter
        than the blocks for variables of one block.
    room : tuple of pointers
        ``(active, POINTS, ends)`` and ``(active, TOTALS, most)`` float64, written: points, and totals of the
        chunks.
    kept : tuple of pointers
        ``(batch,)`` and ``(batch, variables)`` float64: best values and points, written.
    POINTS : int
        2 where means rounded to the grid are tried too, else 1.
    FUNCTION : tuple
        What completes one block, its coordinates, and how many of these are coupled.
    """
    index, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    row, lane = tl.load(layout[0] + index).to(tl.int64), tl.arange(0, BLOCK)
    count, copies, start, blocks, ends = sizes
    mean, cost, grid = variables[0] + row * count, variables[1] + row * count, variables[4] + row * strides[9]
    lower, upper = variables[2] + row * strides[5], variables[3] + row * strides[6]
    shared, beside = variables[5] + row * strides[7], variables[6] + row * strides[8]
    found, totals = room[0] + index * POINTS * ends, room[1] + index * 7 * most
    DIM: tl.constexpr = FUNCTION[1]
    COUPLED: tl.constexpr = FUNCTION[2]
    chunks_v, chunks_b = tl.cdiv(ends, CHUNK * BLOCK), tl.cdiv(blocks, CHUNK * BLOCK)
    if (PHASE == 0) | (PHASE == -1):
        for chunk in range(part, chunks_v, parts):
            plain, rounded = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
            for tile in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, tl.cdiv(ends, BLOCK))):
                j = tile * BLOCK + lane
                mine = j < ends
                met = tl.load(shared + j, mask=mine, other=0) != 0
                private = tl.load(beside + j, mask=mine, other=0) != 0
                c = tl.load(cost + j, mask=mine, other=0.0)
                low = tl.load(lower + j, mask=mine, other=0.0)
                high = tl.load(upper + j, mask=mine, other=0.0)
                best = tl.where(private, tl.where(c < 0, high, low), 0.0)
                x = within(tl.load(mean + j, mask=mine, other=0.0).to(tl.float64), low, high)
                plain += tl.where(met, x, best) * c
                tl.store(found + j, tl.where(met, x, best), mask=mine)
                if POINTS == 2:
                    step = tl.load(grid + j, mask=mine, other=0.0)
                    near = whole(x / tl.where(step > 0, step, 1.0)) * step
                    near = tl.where(met, tl.where(step > 0, within(near, low, high), x), best)
                    rounded += near * c
                    tl.store(found + ends + j, near, mask=mine)
            tl.store(totals + PLAIN * most + chunk, tl.sum(plain, 0))
            tl.store(totals + ROUNDED * most + chunk, tl.sum(rounded, 0))
        if part == 0:
            tl.store(totals + BEFORE * most, tl.load(kept[0] + row))
    if PHASE == -1:
        tl.debug_barrier()
    if (PHASE == 1) | (PHASE == -1):
        filled = tl.load(layout[4] + row * strides[3])
        narrow = tl.load(instances[2] + row) != 0
        for chunk in range(part, chunks_b, parts):
            value, worst = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
            other, its = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
            for tile in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, tl.cdiv(filled, BLOCK))):
                b = tile * BLOCK + lane
                mine, places, costs = b < filled, (), ()
                for i in tl.static_range(DIM):
                    place = layout[1] + row * strides[0] + start + i * blocks + b
                    places = places + (tl.load(place, mask=mine, other=0),)  # noqa: RUF005
                    if i < COUPLED:
                        costs = costs + (tl.zeros([BLOCK], tl.float64),)  # noqa: RUF005
                    else:
                        costs = costs + (tl.load(cost + places[i], mask=mine, other=0.0),)  # noqa: RUF005
                box, own = (lower, upper, narrow), (data, data_strides, row, b, mine)
                more, outside = in_blocks(found, places, costs, box, own, FUNCTION, BLOCK)
                value, worst = value + more, tl.maximum(worst, outside)
                if POINTS == 2:
                    more, outside = in_blocks(found + ends, places, costs, box, own, FUNCTION, BLOCK)
                    other, its = other + more, tl.maximum(its, outside)
            tl.store(totals + IN_BLOCKS * most + chunk, tl.sum(value, 0))
            tl.store(totals + ITS_WORST * most + chunk, tl.max(worst, 0))
            if POINTS == 2:
                tl.store(totals + ROUNDED_IN_BLOCKS * most + chunk, tl.sum(other, 0))
                tl.store(totals + OTHER_WORST * most + chunk, tl.max(its, 0))
    if PHASE == -1:
        tl.debug_barrier()
    if (PHASE == 2) | (PHASE == -1):
        before, bound = tl.load(totals + BEFORE * most), tl.load(instances[1] + row)
        value = tl.load(instances[0] + row) + added(totals + PLAIN * most, chunks_v, BLOCK)
        value += added(totals + IN_BLOCKS * most, chunks_b, BLOCK)
        worst = worst_of(totals + ITS_WORST * most, chunks_b, BLOCK)
        chosen = 0
        if POINTS == 2:
            other = tl.load(instances[0] + row) + added(totals + ROUNDED * most, chunks_v, BLOCK)
            other += added(totals + ROUNDED_IN_BLOCKS * most, chunks_b, BLOCK)
            its = worst_of(totals + OTHER_WORST * most, chunks_b, BLOCK)
            rounds = (other < value + LIMITS[0] * tl.abs(value)) & (its <= LIMITS[1])
            chosen = tl.where(rounds, 1, 0)
            value, worst = tl.where(rounds, other, value), tl.where(rounds, its, worst)
        good = tl.abs(value - bound) < tl.abs(before - bound) - LIMITS[0] * tl.abs(value)
        good &= (worst <= LIMITS[1]) & (value == value)
        if good & (part == 0):
            tl.store(kept[0] + row, value)
        if good | (tl.abs(before) == float("inf")):
            for tile in range(part, tl.cdiv(ends, BLOCK), parts):
                j = tile * BLOCK + lane
                mine = j < ends
                mine &= (tl.load(shared + j, mask=mine, other=0) != 0) | (
                    tl.load(beside + j, mask=mine, other=0) != 0
                )
                tl.store(
                    kept[1] + row * count + j,
                    tl.load(found + chosen * ends + j, mask=mine, other=0.0),
                    mask=mine,
                )


@kernel
def finished(
    layout: tl.tuple,
    strides: tl.tuple,
    sizes: tl.tuple,
    rows: tl.tensor,
    cost: tl.tensor,
    x: tl.tensor,
    data: tl.tuple,
    data_strides: tl.tuple,
    FUNCTION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the coordinates that no other block shares into points of the instances ``rows``.

    Parameters
    ----------
    layout, strides, sizes, data, data_strides, FUNCTION
        As in :func:`completed`.
    rows : pointer
        ``(k,)`` int64: the instances.
    cost, x : pointer
        ``(batch, variables)``: costs, and points.
    """
    DIM: tl.constexpr = FUNCTION[1]
    COUPLED: tl.constexpr = FUNCTION[2]
    count, start, blocks = sizes[0], sizes[2], sizes[3]
    tiles = tl.cdiv(blocks, BLOCK)
    row = tl.load(rows + tl.program_id(0) // tiles).to(tl.int64)
    b = tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)
    mine, costs, points = b < tl.load(layout[4] + row * strides[3]), (), ()
    places = layout[1] + row * strides[0] + start + b
    for i in tl.static_range(DIM):
        place = tl.load(places + i * blocks, mask=mine, other=0)
        if i < COUPLED:
            costs = costs + (tl.zeros([BLOCK], tl.float64),)  # noqa: RUF005
            points = points + (tl.load(x + row * count + place, mask=mine, other=0.0),)  # noqa: RUF005
        else:
            costs = costs + (tl.load(cost + row * count + place, mask=mine, other=0.0),)  # noqa: RUF005
    own = FUNCTION[0](costs, points, data, data_strides, row, b, mine, tl.float64)
    for i in tl.static_range(COUPLED, DIM):
        place = tl.load(places + i * blocks, mask=mine, other=0)
        tl.store(x + row * count + place, own[i - COUPLED], mask=mine)


@kernel
def recorded(
    active: tl.tensor,
    numbers: tl.tuple,
    terms: tl.tuple,
    x: tl.tensor,
    packed: tl.tensor,
    batch: tl.tensor,
    count: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Pack the status of active instances, an instance a program.

    Parameters
    ----------
    active : pointer
        ``(active,)`` int64: the active instances.
    numbers : tuple of pointers
        ``(batch,)``: best bounds and best values float64, values and proximal weights of any precision.
    terms : tuple of pointers
        ``(batch,)`` float64: :attr:`blocklp.decomposition.problem.Decomposition.cost_terms`.
    x, packed : pointer
        ``(batch, variables)`` float64: best points; ``(6, batch)`` float64, written.
    batch, count : int
        Instances and variables.
    """
    row, lane = tl.load(active + tl.program_id(0)).to(tl.int64), tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float64)
    for at in range(0, count, BLOCK):
        own = tl.load(x + row * count + at + lane, mask=at + lane < count, other=0.0)
        largest = tl.maximum(largest, tl.abs(own))
    reach, size = tl.load(terms[0] + row), tl.load(terms[1] + row)
    # Constants last: Triton 3.7's interpreter makes a constant of a constant times a tensor.
    least = tl.maximum(tl.minimum(reach, size * tl.max(largest, 0)) * CANCELLED, reach * NOISE)
    tl.store(packed + row, tl.load(numbers[0] + row))
    tl.store(packed + batch + row, tl.load(numbers[1] + row))
    tl.store(packed + 2 * batch + row, tl.load(numbers[2] + row).to(tl.float64))
    tl.store(packed + 3 * batch + row, least)
    tl.store(packed + 4 * batch + row, float("inf"))
    tl.store(packed + 5 * batch + row, tl.load(numbers[3] + row).to(tl.float64))
