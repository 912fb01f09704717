"""Multipliers and squared residuals of :class:`blocklp.methods.Admm`, as device functions for all kernels.

Tuples and tiles are those of :mod:`blocklp.kernels.triton_admm_phases`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocklp.kernels.triton_admm_phases import listed_tile
from blocklp.kernels.triton_functions import divided


@triton.jit
def primal_tile(
    group: tl.tuple,
    state: tl.tuple,
    eta: tl.tensor,
    row: tl.tensor,
    tile: tl.tensor,
    COUPLED: tl.constexpr,
    LANES: tl.constexpr,
) -> tl.tensor:
    """Write the multipliers of a tile of blocks; returns the squared distance of points from their means.

    Parameters
    ----------
    group, state, row, tile
        As in :func:`blocklp.kernels.triton_admm_phases.block_tile`; multipliers are those of coupled copies.
    eta : pointer
        ``(batch,)``: weights.
    """
    block = tile * LANES + tl.arange(0, LANES)
    mine = block < tl.load(group[4] + row * group[5])
    step, squares = tl.load(eta + row), tl.full([LANES], 0.0, tl.float64)
    for i in range(COUPLED):
        at = row * state[6] + group[0] + block + i * group[1]
        place = tl.load(group[2] + row * group[3] + i * group[1] + block, mask=mine, other=0)
        mean = tl.load(state[5] + row * state[7] + place, mask=mine, other=0.0)
        target = tl.load(state[4] + row * state[7] + place, mask=mine, other=0.0)
        t, x = tl.load(state[0] + at, mask=mine, other=0.0), tl.load(state[1] + at, mask=mine, other=0.0)
        tl.store(state[2] + at, divided(((mean + mean) - target) - t, step), mask=mine)
        away = (x - mean).to(tl.float64)
        squares += away * away
    return tl.sum(squares, 0)


@triton.jit
def dual_tile(
    sums: tl.tuple, state: tl.tuple, row: tl.tensor, tile: tl.tensor, LANES: tl.constexpr
) -> tl.tensor:
    """Squared distance of the means of a tile of variables with several copies from the consensus.

    Parameters
    ----------
    sums, state, row, tile
        As in :func:`blocklp.kernels.triton_admm_phases.variable_tile`; each variable counts as often as
        it has copies.
    """
    variable, begin, end = listed_tile(sums, row, tile, LANES)
    at, several = row * state[7] + variable, end - begin > 1
    mean = tl.load(state[5] + at, mask=several, other=0.0)
    target = tl.load(state[4] + at, mask=several, other=0.0)
    step = (mean - ((mean + mean) - target)).to(tl.float64)
    return tl.sum(step * step * (end - begin).to(tl.float64), 0)


@triton.jit
def total_of(parts: tl.tensor, count: tl.tensor, LANES: tl.constexpr) -> tl.tensor:
    """The sum of what tiles added up.

    Parameters
    ----------
    parts, count : pointer, int
        ``(count,)`` float64.
    """
    total = tl.full([LANES], 0.0, tl.float64)
    for first in range(0, count, LANES):
        k = first + tl.arange(0, LANES)
        total += tl.load(parts + k, mask=k < count, other=0.0)
    return tl.sum(total, 0)
