"""What a pass of :class:`blocklp.methods.Admm` does in one program, as device functions for all kernels.

A *tile* is as many blocks of a group, or coupled variables, as a program has lanes.  Between passes t is kept
less ``RELAXATION`` times the points, and a point's place holds its reflection :math:`2 x - t`; after the last
pass both are whole.  Copies are added up in order, squares by tiles: no order depends on what else is in a
batch, or on which kernel the tiles are in.

Tuples that all take:

``group``
    ``(start, blocks, places, places_row, filled, filled_row, data, strides)``: first copy, number of blocks,
    variables of the coupled copies, numbers of blocks that are no padding, and block data
    (:func:`blocklp.kernels.triton_source.data_arguments`).
``state``
    ``(t, point, dual, anchor, target, mean, copies, variables)``: pointers to ``(batch, copies)``, for the
    reflected consensus and the means to ``(batch, variables)``, and these two lengths.
``sums``
    ``(order, order_row, ends, ends_row, listed, listed_row, shown, hubs, hubs_row, most_hubs)``: coupled
    copies sorted by variable, where those of each variable begin and end, which variables these are, how many
    at most, and which of them have more than :data:`LONG` copies: a program adds those up together.

Names that end in ``_row`` are the entries from one instance to the next, 0 where all have the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocklp.kernels.triton_functions import divided
from blocklp.kernels.triton_tables import LONGEST

AHEAD: tl.constexpr = tl.constexpr(8)
"""Copies of a variable that are under way at a time."""

LONG: tl.constexpr = tl.constexpr(LONGEST)


@triton.jit
def points_of(
    group: tl.tuple,
    state: tl.tuple,
    step: tl.tensor,
    centre: tl.tuple,
    row: tl.tensor,
    block: tl.tensor,
    mine: tl.tensor,
    FUNCTION: tl.constexpr,
    DIM: tl.constexpr,
    COUPLED: tl.constexpr,
    KIND: tl.constexpr,
) -> tl.tuple:
    """Proximal points of blocks whose coordinates are registers.

    Parameters
    ----------
    group, state : tuple
        As in the module.
    step, centre : float, tuple of (LANES,)
        Proximal weight, and coordinates of t.
    row, block, mine : int, (LANES,) int, (LANES,) bool
        The instance, its blocks, and which lanes have one.
    """
    cost = ()
    for i in tl.static_range(COUPLED, DIM):
        at = row * state[6] + group[0] + block + i * group[1]
        cost = cost + (tl.load(state[2] + at, mask=mine, other=0.0),)  # noqa: RUF005
    return FUNCTION(cost, centre, step, group[6], group[7], row, block, mine, KIND)


@triton.jit
def moved(
    group: tl.tuple,
    state: tl.tuple,
    i: tl.tensor,
    late: tl.tensor,
    rate: tl.tensor,
    share: tl.tensor,
    row: tl.tensor,
    block: tl.tensor,
    mine: tl.tensor,
    ANCHORED: tl.constexpr,
) -> tl.tensor:
    """T of one coordinate, updated and drawn to the anchor, where it is late.

    Parameters
    ----------
    group, state, row, block, mine
        As in :func:`points_of`.
    i, late, rate, share : int, int, float, float
        Coordinate, whether t is updated, relaxation, and the part of the way from the anchor.
    """
    at = row * state[6] + group[0] + block + i * group[1]
    place = tl.load(group[2] + row * group[3] + i * group[1] + block, mask=mine, other=0)
    near = tl.load(state[4] + row * state[7] + place, mask=mine, other=0.0)
    t = tl.load(state[0] + at, mask=mine, other=0.0)
    new = t + near * rate
    if ANCHORED:
        a = tl.load(state[3] + at, mask=mine, other=0.0)
        new = (new - a) * share + a
    return tl.where(late != 0, new, t)


@triton.jit
def reflected(
    at: tl.tensor,
    state: tl.tuple,
    x: tl.tensor,
    t: tl.tensor,
    rate: tl.tensor,
    last: tl.tensor,
    mine: tl.tensor,
) -> None:
    """Write t and the reflection of one coordinate; in the last pass t and the point as they are.

    Parameters
    ----------
    at, x, t, mine : (LANES,)
        Copies, int; their points and t; and which lanes have one.
    state, rate, last : tuple, float, int
        As in the module; relaxation; and whether this is the last pass.
    """
    tl.store(state[0] + at, tl.where(last != 0, t, t - x * rate), mask=mine)
    tl.store(state[1] + at, tl.where(last != 0, x, (x + x) - t), mask=mine)


@triton.jit
def block_tile(
    group: tl.tuple,
    state: tl.tuple,
    weights: tl.tuple,
    now: tl.tuple,
    row: tl.tensor,
    tile: tl.tensor,
    FUNCTION: tl.constexpr,
    DIM: tl.constexpr,
    COUPLED: tl.constexpr,
    UNROLLED: tl.constexpr,
    ANCHORED: tl.constexpr,
    RELAXATION: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Move t of a tile of blocks, and find their points.

    ``weights`` are pointers to weights, ages of anchors, and what is ready; ``now`` is the number of the
    pass, and whether it is the last one.

    Parameters
    ----------
    group, state, row, tile : tuple, tuple, int, int
        As in the module, the instance, and the tile.
    """
    KIND: tl.constexpr = weights[0].dtype.element_ty
    n, last = now
    block = tile * LANES + tl.arange(0, LANES)
    mine = block < tl.load(group[4] + row * group[5])
    step, ready = tl.load(weights[0] + row), tl.load(weights[2] + row).to(tl.int32)
    late = tl.where(n == 0, 1 - ready, 1)
    age = tl.load(weights[1] + row) + n - tl.where(n == 0, 0, ready)
    share = divided(age.to(KIND), (age + 1).to(KIND))
    rate = tl.full([], RELAXATION, KIND)
    at = row * state[6] + group[0] + block
    if (n == 0) & (late != 0):  # t comes whole
        for i in range(COUPLED):
            own = at + i * group[1]
            x = tl.load(state[1] + own, mask=mine, other=0.0)
            tl.store(state[0] + own, tl.load(state[0] + own, mask=mine, other=0.0) - x * rate, mask=mine)
    if UNROLLED:
        centre = ()
        for i in tl.static_range(COUPLED):
            t = moved(group, state, i, late, rate, share, row, block, mine, ANCHORED)
            centre = centre + (t,)  # noqa: RUF005
        x = points_of(group, state, step, centre, row, block, mine, FUNCTION, DIM, COUPLED, KIND)
        for i in tl.static_range(COUPLED):
            reflected(at + i * group[1], state, x[i], centre[i], rate, last, mine)
        if last != 0:
            for i in tl.static_range(COUPLED, DIM):
                tl.store(state[1] + at + i * group[1], x[i], mask=mine)
    else:
        for i in range(COUPLED):
            t = moved(group, state, i, late, rate, share, row, block, mine, ANCHORED)
            tl.store(state[0] + at + i * group[1], t, mask=mine)
        cost, centre, point = state[2] + at, state[0] + at, state[1] + at
        FUNCTION(cost, centre, step, point, group[1], group[6], group[7], row, block, mine, KIND)
        for i in range(COUPLED):
            own = at + i * group[1]
            x, t = (
                tl.load(state[1] + own, mask=mine, other=0.0),
                tl.load(state[0] + own, mask=mine, other=0.0),
            )
            reflected(own, state, x, t, rate, last, mine)


@triton.jit
def summed(
    values: tl.tensor,
    other: tl.tensor,
    order: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    mine: tl.tensor,
    REFLECT: tl.constexpr,
) -> tl.tuple:
    """Sums of copies of some variables, in order: of the values, and of twice these less the others.

    Without ``REFLECT`` the second sum is the first one.

    Parameters
    ----------
    values, other, order : pointer
        ``(copies,)``: two values of each copy, and the copies by variable, int.
    begin, end, mine : (LANES,)
        Where copies begin and end in ``order``, int; and which lanes have a variable.
    """
    total = tl.full(mine.shape, 0.0, values.dtype.element_ty)
    reflected = total
    for k in range(0, tl.max(tl.where(mine, end - begin, 0), 0), AHEAD):
        copies = ()
        found = ()
        others = ()
        for j in tl.static_range(AHEAD):
            own = tl.load(order + begin + (k + j), mask=mine & (begin + (k + j) < end), other=0)
            copies = copies + (own,)  # noqa: RUF005
        for j in tl.static_range(AHEAD):
            here = mine & (begin + (k + j) < end)
            found = found + (tl.load(values + copies[j], mask=here, other=0.0),)  # noqa: RUF005
            if REFLECT:
                others = others + (tl.load(other + copies[j], mask=here, other=0.0),)  # noqa: RUF005
        for j in tl.static_range(AHEAD):
            total += found[j]
            if REFLECT:
                reflected += (found[j] + found[j]) - others[j]
    if not REFLECT:
        reflected = total
    return total, reflected


@triton.jit
def summed_together(
    values: tl.tensor,
    other: tl.tensor,
    order: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    REFLECT: tl.constexpr,
    LANES: tl.constexpr,
) -> tl.tuple:
    """The sums of the copies of one variable, as :func:`summed`: every lane adds up some.

    Parameters
    ----------
    values, other, order
        As in :func:`summed`.
    begin, end : int
        Where its copies begin and end in ``order``.
    """
    total = tl.full([LANES], 0.0, values.dtype.element_ty)
    reflected = total
    for k in range(begin, end, LANES):
        own = k + tl.arange(0, LANES)
        here = own < end
        copy = tl.load(order + own, mask=here, other=0)
        x = tl.load(values + copy, mask=here, other=0.0)
        total += x
        if REFLECT:
            reflected += (x + x) - tl.load(other + copy, mask=here, other=0.0)
    if not REFLECT:
        reflected = total
    return tl.sum(total, 0), tl.sum(reflected, 0)


@triton.jit
def listed_tile(sums: tl.tuple, row: tl.tensor, tile: tl.tensor, LANES: tl.constexpr) -> tl.tuple:
    """The variables of a tile, and where their copies begin and end; lanes without one have no copies.

    Parameters
    ----------
    sums, row, tile : tuple, int, int
        As in the module, the instance, and the tile.
    """
    k = tile * LANES + tl.arange(0, LANES)
    there = k < sums[6]
    begin = tl.load(sums[2] + row * sums[3] + k, mask=there, other=0)
    end = tl.load(sums[2] + row * sums[3] + k + 1, mask=there, other=0)
    return tl.load(sums[4] + row * sums[5] + k, mask=there, other=0), begin, end


@triton.jit
def hub(sums: tl.tuple, row: tl.tensor, number: tl.tensor) -> tl.tuple:
    """A variable of many copies, and where these begin and end; for instances that have fewer none.

    Parameters
    ----------
    sums, row, number : tuple, int, int
        As in the module, the instance, and which of its variables of many copies.
    """
    k = tl.load(sums[7] + row * sums[8] + number)
    begin = tl.load(sums[2] + row * sums[3] + k)
    end = tl.load(sums[2] + row * sums[3] + tl.minimum(k + 1, sums[6]))
    return tl.load(sums[4] + row * sums[5] + tl.minimum(k, sums[6] - 1)), begin, end


@triton.jit
def variable_lanes(
    sums: tl.tuple,
    state: tl.tuple,
    cost: tl.tensor,
    eta: tl.tensor,
    last: tl.tensor,
    row: tl.tensor,
    tile: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """The consensus of a tile of variables, a lane each.

    Parameters
    ----------
    sums, state, cost, eta, last, row, tile
        As in :func:`variable_tile`.
    """
    KIND: tl.constexpr = eta.dtype.element_ty
    order, point, t = sums[0] + row * sums[1], state[1] + row * state[6], state[0] + row * state[6]
    variable, begin, end = listed_tile(sums, row, tile, LANES)
    mine = (end > begin) & (end - begin <= LONG)
    at, count = row * state[7] + variable, tl.where(mine, end - begin, 1).to(KIND)
    price = tl.load(eta + row) * tl.load(cost + at, mask=mine, other=0.0)
    if last != 0:
        points, total = summed(point, t, order, begin, end, mine, True)
        tl.store(state[5] + at, divided(points, count), mask=mine)
    else:
        total, _ = summed(point, t, order, begin, end, mine, False)
    tl.store(state[4] + at, divided(total - price, count), mask=mine)


@triton.jit
def variable_hub(
    sums: tl.tuple,
    state: tl.tuple,
    cost: tl.tensor,
    eta: tl.tensor,
    last: tl.tensor,
    row: tl.tensor,
    number: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """The consensus of a variable of many copies, by all lanes.

    Parameters
    ----------
    sums, state, cost, eta, last, row, number
        As in :func:`variable_tile` and :func:`hub`.
    """
    KIND: tl.constexpr = eta.dtype.element_ty
    order, point, t = sums[0] + row * sums[1], state[1] + row * state[6], state[0] + row * state[6]
    variable, begin, end = hub(sums, row, number)
    if end > begin:
        at, count = row * state[7] + variable, (end - begin).to(KIND)
        price = tl.load(eta + row) * tl.load(cost + at)
        if last != 0:
            points, total = summed_together(point, t, order, begin, end, True, LANES)
            tl.store(state[5] + at, divided(points, count))
        else:
            total, _ = summed_together(point, t, order, begin, end, False, LANES)
        tl.store(state[4] + at, divided(total - price, count))


@triton.jit
def variable_tile(
    sums: tl.tuple,
    state: tl.tuple,
    cost: tl.tensor,
    eta: tl.tensor,
    last: tl.tensor,
    row: tl.tensor,
    tile: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """The reflected consensus of a tile of variables; after the last pass the means of their points too.

    Tiles after those of all variables are a variable of many copies each.

    Parameters
    ----------
    sums, state : tuple
        As in the module.
    cost, eta : pointer
        ``(batch, variables)`` and ``(batch,)``: costs and weights.
    last, row, tile : int
        Whether this is the last pass, the instance, and the tile.
    """
    tiles = tl.cdiv(sums[6], LANES)
    if tile < tiles:
        variable_lanes(sums, state, cost, eta, last, row, tile, LANES)
    else:
        variable_hub(sums, state, cost, eta, last, row, tile - tiles, LANES)
