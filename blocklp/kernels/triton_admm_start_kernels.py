"""Kernels that start :class:`blocklp.methods.Admm`: means, squared residuals and t of the first points.

Tuples are those of :mod:`blocklp.kernels.triton_admm_phases`, and programs and ``parts`` as in
:mod:`blocklp.kernels.triton_admm_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocklp.kernels.triton_admm_phases import LONG, hub, listed_tile, summed, summed_together
from blocklp.kernels.triton_admm_residuals import total_of
from blocklp.kernels.triton_functions import divided
from blocklp.kernels.triton_launch import kernel


@triton.jit
def mean_lanes(sums: tl.tuple, state: tl.tuple, row: tl.tensor, tile: tl.tensor, LANES: tl.constexpr) -> None:
    """The means of the points of a tile of variables, a lane each.

    Parameters
    ----------
    sums, state, row, tile
        As in :func:`blocklp.kernels.triton_admm_phases.variable_tile`.
    """
    order, point = sums[0] + row * sums[1], state[1] + row * state[6]
    variable, begin, end = listed_tile(sums, row, tile, LANES)
    mine = (end > begin) & (end - begin <= LONG)
    total, _ = summed(point, point, order, begin, end, mine, False)
    count = tl.where(mine, end - begin, 1).to(total.dtype)
    tl.store(state[5] + row * state[7] + variable, divided(total, count), mask=mine)


@triton.jit
def mean_hub(sums: tl.tuple, state: tl.tuple, row: tl.tensor, number: tl.tensor, LANES: tl.constexpr) -> None:
    """The mean of the points of a variable of many copies, by all lanes.

    Parameters
    ----------
    sums, state, row, number
        As in :func:`blocklp.kernels.triton_admm_phases.variable_tile` and
        :func:`blocklp.kernels.triton_admm_phases.hub`.
    """
    order, point = sums[0] + row * sums[1], state[1] + row * state[6]
    variable, begin, end = hub(sums, row, number)
    if end > begin:
        total, _ = summed_together(point, point, order, begin, end, False, LANES)
        tl.store(state[5] + row * state[7] + variable, divided(total, (end - begin).to(total.dtype)))


@triton.jit
def mean_tile(sums: tl.tuple, state: tl.tuple, row: tl.tensor, tile: tl.tensor, LANES: tl.constexpr) -> None:
    """The means of the points of a tile of variables; tiles after those of all are a variable of many copies.

    Parameters
    ----------
    sums, state, row, tile
        As in :func:`blocklp.kernels.triton_admm_phases.variable_tile`.
    """
    tiles = tl.cdiv(sums[6], LANES)
    if tile < tiles:
        mean_lanes(sums, state, row, tile, LANES)
    else:
        mean_hub(sums, state, row, tile - tiles, LANES)


@kernel
def first_means(active: tl.tensor, sums: tl.tuple, state: tl.tuple, LANES: tl.constexpr) -> None:
    """Means of the first points, a tile of variables a program.

    Parameters
    ----------
    active, sums, state
        As in :func:`blocklp.kernels.triton_admm_kernels.leap`; points are read, and means written.
    """
    tiles = tl.cdiv(sums[6], LANES) + sums[9]
    row, tile = tl.load(active + tl.program_id(0) // tiles), tl.program_id(0) % tiles
    mean_tile(sums, state, row, tile, LANES)


@kernel
def first_squares(
    active: tl.tensor,
    group: tl.tuple,
    state: tl.tuple,
    counts: tl.tensor,
    counts_row: tl.tensor,
    parts: tl.tensor,
    first: tl.tensor,
    slots: tl.tensor,
    COUPLED: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Squares by tiles: of the points less their means, and ``slots // 2`` further of the multipliers.

    Parameters
    ----------
    active, group, state, parts, first, slots
        As in :func:`blocklp.kernels.triton_admm_kernels.leap`; ``first`` is the group's first slot, int.
    counts, counts_row : pointer, int
        ``(batch or 1, variables)``: numbers of copies.
    """
    tiles = tl.cdiv(group[1], LANES)
    row, tile = tl.load(active + tl.program_id(0) // tiles), tl.program_id(0) % tiles
    block = tile * LANES + tl.arange(0, LANES)
    mine = block < tl.load(group[4] + row * group[5])
    residual, size = tl.full([LANES], 0.0, tl.float64), tl.full([LANES], 0.0, tl.float64)
    for i in range(COUPLED):
        at = row * state[6] + group[0] + block + i * group[1]
        place = tl.load(group[2] + row * group[3] + i * group[1] + block, mask=mine, other=0)
        several = tl.load(counts + row * counts_row + place, mask=mine, other=0.0) > 1
        mean = tl.load(state[5] + row * state[7] + place, mask=mine, other=0.0)
        away = (tl.load(state[1] + at, mask=mine, other=0.0) - mean).to(tl.float64)
        dual = tl.load(state[2] + at, mask=mine & several, other=0.0).to(tl.float64)
        residual, size = residual + away * away, size + dual * dual
    own = parts + row * slots + first + tile
    tl.store(own, tl.sum(residual, 0))
    tl.store(own + slots // 2, tl.sum(size, 0))


@kernel
def first_totals(
    active: tl.tensor,
    groups: tl.tuple,
    parts: tl.tensor,
    slots: tl.tensor,
    found: tl.tuple,
    GROUPS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Add up the squares of :func:`first_squares`, an instance a program.

    Parameters
    ----------
    active, groups, parts, slots
        As in :func:`first_squares`, of all groups.
    found : tuple of pointers
        ``(batch,)`` float64, written: sums for the points and for the multipliers.
    """
    row, first = tl.load(active + tl.program_id(0)), 0
    residual, size = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
    own = parts + row * slots
    for g in tl.static_range(GROUPS):
        tiles = tl.cdiv(groups[g][1], LANES)
        residual += total_of(own + first, tiles, LANES)
        size += total_of(own + slots // 2 + first, tiles, LANES)
        first += tiles
    tl.store(found[0] + row, residual)
    tl.store(found[1] + row, size)


@kernel
def first_iterates(
    active: tl.tensor,
    group: tl.tuple,
    state: tl.tuple,
    eta: tl.tensor,
    COUPLED: tl.constexpr,
    RELAXATION: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """The first t of coupled copies.

    Parameters
    ----------
    active, group, state
        As in :func:`blocklp.kernels.triton_admm_kernels.leap`; points, multipliers and means are read, and t
        is written.
    eta : pointer
        ``(batch,)``: weights.
    """
    tiles = tl.cdiv(group[1], LANES)
    row, tile = tl.load(active + tl.program_id(0) // tiles), tl.program_id(0) % tiles
    block = tile * LANES + tl.arange(0, LANES)
    mine = block < tl.load(group[4] + row * group[5])
    step = tl.load(eta + row)
    rate = tl.full([], RELAXATION, step.dtype)
    for i in range(COUPLED):
        at = row * state[6] + group[0] + block + i * group[1]
        place = tl.load(group[2] + row * group[3] + i * group[1] + block, mask=mine, other=0)
        near = tl.load(state[5] + row * state[7] + place, mask=mine, other=0.0)
        x, dual = tl.load(state[1] + at, mask=mine, other=0.0), tl.load(state[2] + at, mask=mine, other=0.0)
        tl.store(state[0] + at, (near - step * dual) - (x - near) * rate, mask=mine)
