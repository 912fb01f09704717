r"""Triton kernels for blocks that are convex combinations of vertices (:mod:`blocklp.methods.active_set`).

A program takes BLOCK blocks of one group of one instance, and holds weights and slopes as (SLOTS, BLOCK)
numbers, a block a column; vertices beyond the last have an infinite slope and no weight.  Vertices are read
where they are needed, one coordinate at a time, whether all blocks share a table or each keeps its own: what
differs is how far apart they are (``strides``: of instances, vertices, coordinates and blocks).
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocklp.kernels.triton_launch import kernel
from blocklp.kernels.triton_row_kernels import put_slot, slots_added

INFINITE = tl.constexpr(float("inf"))


@triton.jit
def coordinate(
    atoms: tl.tensor, i: tl.tensor, k: tl.tensor, mine: tl.tensor, shape: tl.tuple, SLOTS: tl.constexpr
) -> tl.tensor:
    """Coordinate i of all vertices of the blocks k: ``(SLOTS, BLOCK)``.

    Parameters
    ----------
    atoms, i, k, mine, shape : pointer, int, (BLOCK,) int, (BLOCK,) bool, tuple
        Vertices, coordinate, blocks, which lanes have one, and what :func:`shape_of` returned.
    """
    count, strides = shape
    slot = tl.arange(0, SLOTS)
    at = slot[:, None] * strides[1] + i * strides[2] + k[None, :] * strides[3]
    return tl.load(atoms + at, mask=(slot[:, None] < count) & mine[None, :], other=0.0)


@triton.jit
def slopes_of(
    atoms: tl.tensor,
    costs: tl.tensor,
    k: tl.tensor,
    mine: tl.tensor,
    sizes: tl.tuple,
    shape: tl.tuple,
    masked: tl.tensor,
    huge: tl.tensor,
    MASKED: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Cost of every vertex ``(SLOTS, BLOCK)``: huge where bounds exclude it, infinite where there is none.

    Parameters
    ----------
    atoms, costs, k, mine, sizes, shape, masked, huge
        As in :func:`coordinate` and :func:`renewed`; ``(blocks, count)`` int8: excluded ones; and their cost.
    """
    blocks, dim = sizes
    slot = tl.arange(0, SLOTS)
    there = slot[:, None] < shape[0]
    values = tl.zeros([SLOTS, BLOCK], dtype=costs.dtype.element_ty)
    for i in range(0, dim):
        cost = tl.load(costs + i * blocks + k, mask=mine, other=0.0)
        values += coordinate(atoms, i, k, mine, shape, SLOTS) * cost[None, :]
    if MASKED:
        out = tl.load(masked + k[None, :] * shape[0] + slot[:, None], mask=there & mine[None, :], other=0)
        values = tl.where(out != 0, huge, values)
    return tl.where(there, values, INFINITE)


@triton.jit
def pairwise(
    atoms: tl.tensor,
    weights: tl.tensor,
    slopes: tl.tensor,
    k: tl.tensor,
    mine: tl.tensor,
    dim: tl.tensor,
    shape: tl.tuple,
    coupled: tl.tensor,
    eta: tl.tensor,
    repeats: tl.tensor,
    LIMITS: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Weights after pairwise steps (:func:`blocklp.methods.active_set.pairwise_steps`).

    LIMITS are a slope below all real ones, and the least positive number.

    Parameters
    ----------
    atoms, weights, slopes, k, mine, dim, shape, coupled, eta, repeats
        As in :func:`renewed`; ``(dim,)``: 1 for coupled coordinates; weight, and steps.
    """
    there = tl.arange(0, SLOTS)[:, None] < shape[0]
    for _ in range(0, repeats):
        best = tl.min(slopes, 0)
        to = (slopes == best[None, :]).to(weights.dtype)
        used = tl.where(there, slopes + tl.where(weights <= 0, LIMITS[0], 0.0).to(weights.dtype), -INFINITE)
        worst = tl.max(used, 0)
        leave = (used >= worst[None, :]).to(weights.dtype)
        ties = tl.sum(leave, 0)
        most = tl.min(tl.where(leave > 0, weights, INFINITE), 0) * ties
        way = to / tl.sum(to, 0)[None, :] - leave / ties[None, :]
        turn, length = tl.zeros_like(weights), tl.zeros_like(best)
        for i in range(0, dim):
            atom = coordinate(atoms, i, k, mine, shape, SLOTS) * tl.load(coupled + i).to(weights.dtype)
            move = tl.sum(atom * way, 0)
            turn += atom * move[None, :]
            length += move * move
        step = tl.maximum((worst - best) * eta / tl.maximum(length, LIMITS[1]), 0.0)
        step = tl.minimum(step, most)
        weights = tl.maximum(weights + way * step[None, :], 0.0)
        slopes = turn * (step / eta)[None, :] + slopes
    return weights


@triton.jit
def renewed(
    atoms: tl.tensor,
    costs: tl.tensor,
    found: tl.tuple,
    weights: tl.tensor,
    earlier: tl.tensor,
    slopes: tl.tensor,
    k: tl.tensor,
    mine: tl.tensor,
    sizes: tl.tuple,
    shape: tl.tuple,
    LIMITS: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tuple:
    """Keep an oracle's answers among the vertices (:class:`blocklp.methods.active_set.VertexCache`).

    Parameters
    ----------
    atoms, costs : pointer
        Vertices, written, and costs of the coordinates.
    found : tuple
        Pointers to the oracle's points and to their values, and how far coordinates and blocks of points are
        apart.
    weights, earlier, slopes : (SLOTS, BLOCK)
        Weights of the vertices now and before, and their costs.

    Returns
    -------
    weights, earlier, slopes
        Those of the new vertices.
    """
    blocks, dim = sizes
    slot = tl.arange(0, SLOTS)
    value = tl.load(found[1] + k, mask=mine, other=0.0)
    free = tl.where((slot[:, None] > 0) & (slot[:, None] < shape[0]), weights, INFINITE)
    chosen = tl.argmin(free, 0, tie_break_left=True)
    # Where the oracle's answer is among the vertices none is replaced.
    chosen = tl.where(tl.min(slopes, 0) <= value + 1e-12 * tl.abs(value), SLOTS, chosen)
    new = slot[:, None] == chosen[None, :]
    first = (slot[:, None] == 0) & (chosen[None, :] < SLOTS)
    moved = tl.sum(tl.where(new, weights, 0.0), 0)
    base = tl.sum(tl.where(slot[:, None] == 0, weights, 0.0), 0)
    share = moved / tl.maximum(base + moved, LIMITS[1])
    weights = tl.where(new, 0.0, tl.where(first, weights + moved[None, :], weights))
    before = tl.sum(tl.where(new, earlier, 0.0), 0)
    earlier = tl.where(new, 0.0, tl.where(first, earlier + before[None, :], earlier))
    values = tl.zeros([SLOTS, BLOCK], dtype=weights.dtype)
    for i in range(0, dim):
        atom = coordinate(atoms, i, k, mine, shape, SLOTS)
        dropped = tl.sum(tl.where(new, atom, 0.0), 0)
        kept = tl.sum(tl.where(slot[:, None] == 0, atom, 0.0), 0)
        kept += share * (dropped - kept)
        point = tl.load(found[0] + i * found[2] + k * found[3], mask=mine, other=0.0)
        atom = tl.where(new, point[None, :], tl.where(first, kept[None, :], atom))
        at = slot[:, None] * shape[1][1] + i * shape[1][2] + k[None, :] * shape[1][3]
        tl.store(atoms + at, atom, mask=(new | first) & mine[None, :])
        values += atom * tl.load(costs + i * blocks + k, mask=mine, other=0.0)[None, :]
    return weights, earlier, tl.where(slot[:, None] < shape[0], values, INFINITE)


@triton.jit
def shape_of(count: tl.tensor, dim: tl.tensor, blocks: tl.tensor, OWN: tl.constexpr) -> tl.tuple:
    """How many vertices there are, and how far apart: each block's own, or those of a table.

    Parameters
    ----------
    count, dim, blocks : int, int, int64
        Vertices, coordinates and blocks; ``OWN`` says whether vertices are ``(batch, count, dim, blocks)``, a
        block's own, or a table ``(count, dim)`` for all blocks.
    """
    if OWN:
        strides = (count * dim * blocks, dim * blocks, blocks, blocks * 0 + 1)
    else:
        strides = (blocks * 0, blocks * 0 + dim, blocks * 0 + 1, blocks * 0)
    return count, strides


@triton.jit
def answers_at(b: tl.tensor, blocks: tl.tensor, answers: tl.tuple) -> tl.tuple:
    """The oracle's answers to an instance: pointers, and how far coordinates and blocks are apart.

    Parameters
    ----------
    b, blocks, answers : int, int, tuple
        The instance, its blocks, and as in :func:`vertex_steps`.
    """
    point = answers[0] + b * tl.load(answers[2])
    return point, answers[1] + b * blocks, tl.load(answers[2] + 1), tl.load(answers[2] + 2)


@triton.jit
def put_answers(
    partial: tl.tensor,
    tile: tl.tensor,
    least: tl.tensor,
    slopes: tl.tensor,
    weights: tl.tensor,
    mine: tl.tensor,
    there: tl.tensor,
) -> None:
    """Write the least costs of a tile's blocks, and the cost of their points.

    Parameters
    ----------
    partial, tile, least, slopes, weights, mine, there
        Slots; the tile; ``(BLOCK,)``; ``(SLOTS, BLOCK)`` twice; and masks of blocks and of vertices.
    """
    put_slot(partial, tile, 1, mine, least, 3)
    cost = tl.where(there, weights * tl.where(there, slopes, 0.0), 0.0)
    put_slot(partial, tile, 2, mine, tl.sum(cost, 0), 3)


@kernel
def vertex_ask(
    units: tl.tensor,
    blocks: tl.tensor,
    dim: tl.tensor,
    count: tl.tensor,
    start: tl.tensor,
    sizes: tl.tuple,
    state: tl.tuple,
    place: tl.tensor,
    etas: tl.tensor,
    table: tl.tensor,
    masks: tl.tuple,
    weights: tl.tensor,
    partial: tl.tensor,
    FORM: tl.constexpr,
    HUGE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Multipliers of a group around a centre, and what the vertices of a table cost there.

    Parameters
    ----------
    units, blocks, dim, count, start : int
        Tiles, blocks, coordinates, vertices, and the first copy.
    sizes : pointer
        ``(6,)`` int64: copies and variables of an instance; how far instances are apart in ``place``, in both
        ``masks``; and rows of slots.
    state : tuple of pointers
        Points, centre and multipliers (written) ``(batch, copies)``, and means ``(batch, variables)``.
    place : pointer
        ``(batch or 1, copies)``: the variable of each copy.
    etas, table, weights : pointer
        ``(batch,)``, ``(count, dim)`` and ``(batch, count, blocks)``.
    masks : tuple of pointers
        ``(batch or 1, blocks, count)`` int8: excluded vertices; ``(batch or 1, blocks)``: 0 for padding.
    partial : pointer
        Slots of three numbers: squared disagreement, least costs, and costs of the points.
    FORM : tuple
        Whether there is a table, whether vertices are excluded, whether there is padding, and room for
        vertices, a power of two.
    HUGE : float
        Cost of an excluded vertex.
    """
    b, tile = (tl.program_id(0) // units).to(tl.int64), tl.program_id(0) % units
    copies, variables = tl.load(sizes), tl.load(sizes + 1)
    k, eta = (tile * BLOCK + tl.arange(0, BLOCK)).to(tl.int64), tl.load(etas + b)
    mine, wide = k < blocks, blocks.to(tl.int64)
    own, mean = b * copies + start, state[3] + b * variables
    residual = tl.zeros([BLOCK], dtype=etas.dtype.element_ty)
    for i in range(0, dim):
        at = i * wide + k
        where = tl.load(place + b * tl.load(sizes + 2) + start + at, mask=mine, other=0).to(tl.int64)
        apart = tl.load(state[0] + own + at, mask=mine, other=0.0) - tl.load(
            mean + where, mask=mine, other=0.0
        )
        residual += apart * apart
        dual = apart / eta + tl.load(state[1] + own + at, mask=mine, other=0.0)
        tl.store(state[2] + own + at, dual, mask=mine)
    slots = partial + b * tl.load(sizes + 5)
    put_slot(slots, tile, 0, mine, residual, 3)
    if FORM[0]:
        tl.debug_barrier()  # other threads read the multipliers
        shape, there = shape_of(count, dim, wide, False), tl.arange(0, FORM[3])[:, None] < count
        masked, costs = masks[0] + b * tl.load(sizes + 3), state[2] + own
        huge = tl.full([], HUGE, residual.dtype)
        slopes = slopes_of(table, costs, k, mine, (wide, dim), shape, masked, huge, FORM[1], FORM[3], BLOCK)
        counted = (residual * 0) + 1
        if FORM[2]:
            counted = tl.load(masks[1] + b * tl.load(sizes + 4) + k, mask=mine, other=0.0)
        at = (b * count + tl.arange(0, FORM[3])[:, None]) * wide + k[None, :]
        held = tl.load(weights + at, mask=there & mine[None, :], other=0.0)
        put_answers(slots, tile, tl.min(slopes, 0) * counted, slopes, held, mine, there)


@kernel
def vertex_renew(
    units: tl.tensor,
    blocks: tl.tensor,
    dim: tl.tensor,
    count: tl.tensor,
    start: tl.tensor,
    copies: tl.tensor,
    depth: tl.tensor,
    answers: tl.tuple,
    atoms: tl.tensor,
    costs: tl.tensor,
    weights: tl.tuple,
    partial: tl.tensor,
    LIMITS: tl.constexpr,
    SLOTS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Keep the oracle's answers among each block's own vertices; both weights and vertices are written.

    Parameters
    ----------
    units, blocks, dim, count, start, copies, answers, weights
        As in :func:`vertex_steps`.
    atoms, costs : pointer
        ``(batch, count, dim, blocks)``, and multipliers ``(batch, copies)``.
    depth, partial : int, pointer
        Rows of slots, and ``(batch, depth * LANES, 3)`` float64: of three numbers least costs and costs of
        the points are written.
    LIMITS : tuple
        As in :func:`vertex_steps`.
    """
    b, tile = (tl.program_id(0) // units).to(tl.int64), tl.program_id(0) % units
    k, wide = (tile * BLOCK + tl.arange(0, BLOCK)).to(tl.int64), blocks.to(tl.int64)
    mine, shape, slot = k < blocks, shape_of(count, dim, wide, True), tl.arange(0, SLOTS)
    own, mine_costs, sizes = atoms + b * shape[1][0], costs + b * copies + start, (wide, dim)
    at, there = (b * count + slot[:, None]) * wide + k[None, :], (slot[:, None] < count) & mine[None, :]
    held = tl.load(weights[0] + at, mask=there, other=0.0)
    last = tl.load(weights[1] + at, mask=there, other=0.0)
    slopes = slopes_of(own, mine_costs, k, mine, sizes, shape, own, LIMITS[1], False, SLOTS, BLOCK)
    found = answers_at(b, blocks, answers)
    held, last, slopes = renewed(
        own, mine_costs, found, held, last, slopes, k, mine, sizes, shape, LIMITS, SLOTS, BLOCK
    )
    tl.store(weights[0] + at, held, mask=there)
    tl.store(weights[1] + at, last, mask=there)
    slots = partial + b * depth * LANES * 3
    best = tl.load(found[1] + k, mask=mine, other=0.0)
    put_answers(slots, tile, best, slopes, held, mine, there)


@kernel
def vertex_totals(depth: tl.tensor, partial: tl.tensor, out: tl.tensor, LANES: tl.constexpr) -> None:
    """Add up three numbers of all slots, a program an instance.

    Parameters
    ----------
    depth : int
        Rows of LANES slots of an instance.
    partial, out : pointer
        ``(batch, depth * LANES, 3)`` float64; ``(batch, 3)``, written in its own precision.
    """
    b = tl.program_id(0).to(tl.int64)
    own = partial + b * depth * LANES * 3
    for which in range(0, 3):
        total = slots_added(own, depth, which, 3, LANES)
        tl.store(out + b * 3 + which, total.to(out.dtype.element_ty))


@kernel
def vertex_steps(
    units: tl.tensor,
    blocks: tl.tensor,
    dim: tl.tensor,
    count: tl.tensor,
    start: tl.tensor,
    copies: tl.tensor,
    repeats: tl.tensor,
    masks: tl.tuple,
    answers: tl.tuple,
    atoms: tl.tensor,
    scalars: tl.tuple,
    weights: tl.tuple,
    state: tl.tuple,
    FORM: tl.constexpr,
    LIMITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Pairwise steps of all blocks of a group, extrapolated; their points, weights and vertices are written.

    Parameters
    ----------
    units, blocks, dim, count, start, copies, repeats : int
        Tiles, blocks, coordinates, vertices, first copy of the group, copies of an instance, and steps.
    masks : tuple of pointers
        ``(batch or 1, blocks, count)`` int8: excluded vertices; how far instances are apart in them; and
        ``(dim,)``: 1 for coordinates that other blocks share.
    answers : tuple of pointers
        The oracle's points, their values ``(batch, blocks)``, and how far instances, coordinates and blocks
        are apart in the points; not read where none are kept.
    atoms : pointer
        Vertices: a table ``(count, dim)``, or those of each block ``(batch, count, dim, blocks)``.
    scalars : tuple of pointers
        ``(batch,)``: proximal weights, and factors of extrapolation.
    weights : tuple of pointers
        ``(batch, count, blocks)``: weights and those of the last pass; extrapolated weights and those of this
        pass are written.
    state : tuple of pointers
        Slopes, and points (written), ``(batch, copies)``.
    FORM : tuple
        Whether each block has its own vertices, vertices are excluded, answers are kept, and weights are
        extrapolated; and room for vertices, a power of two.
    LIMITS : tuple
        A slope below all real ones, the least positive number, and the cost of an excluded vertex.
    """
    b, tile = (tl.program_id(0) // units).to(tl.int64), tl.program_id(0) % units
    k, wide = (tile * BLOCK + tl.arange(0, BLOCK)).to(tl.int64), blocks.to(tl.int64)
    mine, shape = k < blocks, shape_of(count, dim, wide, FORM[0])
    own, costs, slot = atoms + b * shape[1][0], state[0] + b * copies + start, tl.arange(0, FORM[4])
    eta = tl.load(scalars[0] + b)
    at, there = (b * count + slot[:, None]) * wide + k[None, :], (slot[:, None] < count) & mine[None, :]
    held = tl.load(weights[0] + at, mask=there, other=0.0)
    last = tl.load(weights[1] + at, mask=there, other=0.0)
    masked, huge = masks[0] + b * tl.load(masks[1]), tl.full([], LIMITS[2], held.dtype)
    sizes = wide, dim
    slopes = slopes_of(own, costs, k, mine, sizes, shape, masked, huge, FORM[1], FORM[4], BLOCK)
    if FORM[2]:
        found = answers_at(b, blocks, answers)
        held, last, slopes = renewed(
            own, costs, found, held, last, slopes, k, mine, sizes, shape, LIMITS, FORM[4], BLOCK
        )
        tl.debug_barrier()
    new = pairwise(own, held, slopes, k, mine, dim, shape, masks[2], eta, repeats, LIMITS, FORM[4], BLOCK)
    ahead = new
    if FORM[3]:
        tl.store(weights[1] + at, new, mask=there)
        ahead = tl.maximum((new - last) * tl.load(scalars[1] + b) + new, 0.0)
        ahead = ahead / tl.maximum(tl.sum(ahead, 0), LIMITS[1])[None, :]
    tl.store(weights[0] + at, ahead, mask=there)
    for i in range(0, dim):
        point = tl.sum(coordinate(own, i, k, mine, shape, FORM[4]) * ahead, 0)
        tl.store(state[1] + b * copies + start + i * wide + k, point, mask=mine)
