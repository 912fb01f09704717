r"""Triton kernels for the rows of all blocks: sparse products, and what passes over rows are made of.

Kernels take instances and tiles in one dimension of the grid, since a device limits the others: program p is
tile ``p % units`` of instance ``p // units``.  Tables are those of
:class:`blocklp.kernels.row_tables.SparseSums`.  All sums are in a fixed order, without atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocklp.kernels.triton_launch import kernel


@triton.jit
def tables_at(b: tl.tensor, sums: tl.tuple) -> tl.tuple:
    """Return the tables of an instance: starts, numbers and sources of terms, and tiles."""
    starts, numbers, sources, tiles, apart, _ = sums
    starts += b * tl.load(apart)
    numbers += b * tl.load(apart + 1)
    sources += b * tl.load(apart + 2)
    tiles += b * tl.load(apart + 3)
    return starts, numbers, sources, tiles


@triton.jit
def tile_at(tile: tl.tensor, sums: tl.tuple, LONG: tl.constexpr, BLOCK: tl.constexpr) -> tl.tuple:
    """Return the sums of a tile: their numbers, which lanes have one, first terms and ends, width and slot.

    All lanes of a wide tile share one sum, which is that of the first lane.

    Parameters
    ----------
    tile, sums : int, tuple
        The tile, and what :func:`tables_at` returned.
    """
    starts, tiles = sums[0], sums[3] + tile * 4
    first, count, wide, slot = tl.load(tiles), tl.load(tiles + 1), tl.load(tiles + 2) != 0, tl.load(tiles + 3)
    lane = tl.arange(0, BLOCK)
    k, at = first + lane, tl.where(wide, first, first + lane)
    there = lane < tl.where(wide, count * BLOCK, count)
    begin = tl.load(starts + at, mask=there, other=0)
    end = tl.load(starts + at + 1, mask=there, other=0)
    short = end - begin <= tl.where(wide, end - begin, LONG)
    return k, (lane < count) & short, begin, tl.where(short, end, begin), wide, slot


@triton.jit
def added(
    terms: tl.tuple,
    sums: tl.tuple,
    entries: tl.tensor,
    values: tl.tensor,
    ahead: tl.tuple,
    UNIT: tl.constexpr,
    AHEAD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Add up the sums of a tile.

    Parameters
    ----------
    terms, sums : tuple
        What :func:`tile_at` and :func:`tables_at` returned.
    entries, values : pointer
        Entries and other factors of the instance; entries are not read where all are 1 (UNIT).
    ahead : tuple
        Distance from the factors of the pass before, and momentum: by how much of their difference they are
        moved on (AHEAD).
    """
    _, _, begin, end, wide, _ = terms
    _, numbers, sources, _ = sums
    step = tl.where(wide, BLOCK, 1)
    begin += tl.where(wide, tl.arange(0, BLOCK), 0)
    total = tl.zeros([BLOCK], dtype=values.dtype.element_ty)
    for j in range(0, tl.max((end - begin + step - 1) // step, 0)):
        at = begin + j * step
        here = at < end
        source = tl.load(sources + at, mask=here, other=0)
        term = tl.load(values + source, mask=here, other=0.0)
        if AHEAD:
            term += ahead[1] * (term - tl.load(values - ahead[0] + source, mask=here, other=0.0))
        if not UNIT:
            number = tl.load(numbers + at, mask=here, other=0)
            term = tl.load(entries + number, mask=here, other=0.0) * term
        total += tl.where(here, term, 0.0)
    if wide:
        total = tl.zeros([BLOCK], dtype=total.dtype) + tl.sum(total, 0)
    return total


@kernel
def sparse_products(
    units: tl.tensor,
    out: tl.tensor,
    out_row: tl.tensor,
    values: tl.tensor,
    values_row: tl.tensor,
    entries: tl.tensor,
    entries_row: tl.tensor,
    sums: tl.tuple,
    UNIT: tl.constexpr,
    LONG: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Sums of entries times values, ``(batch, sums)``, or of values alone (UNIT).

    Parameters
    ----------
    units, out_row, values_row, entries_row : int
        Tiles of an instance, and numbers from one instance to the next.
    out, values, entries : pointer
        Sums, written; ``(batch, values)``; and ``(batch or 1, entries)``.
    sums : tuple of pointers
        :meth:`blocklp.kernels.row_tables.SparseSums.given`.
    """
    b = (tl.program_id(0) // units).to(tl.int64)
    own = tables_at(b, sums)
    terms = tile_at(tl.program_id(0) % units, own, LONG, BLOCK)
    total = added(
        terms, own, entries + b * entries_row, values + b * values_row, (0, 0.0), UNIT, False, BLOCK
    )
    tl.store(out + b * out_row + terms[0], total, mask=terms[1])


@kernel
def sparse_extremes(
    units: tl.tensor,
    least: tl.tensor,
    most: tl.tensor,
    out_row: tl.tensor,
    values: tl.tensor,
    values_row: tl.tensor,
    entries: tl.tensor,
    entries_row: tl.tensor,
    sums: tl.tuple,
    LONG: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The least and the largest of 1 and of the values of all terms with entries, ``(batch, sums)``.

    Parameters
    ----------
    units, out_row, values, values_row, entries, entries_row, sums
        As in :func:`sparse_products`.
    least, most : pointer
        ``(batch, sums)``, written.
    """
    b = (tl.program_id(0) // units).to(tl.int64)
    own = tables_at(b, sums)
    k, mine, begin, end, wide, _ = tile_at(tl.program_id(0) % units, own, LONG, BLOCK)
    step = tl.where(wide, BLOCK, 1)
    begin += tl.where(wide, tl.arange(0, BLOCK), 0)
    low = tl.full([BLOCK], 1, dtype=values.dtype.element_ty)
    high = low
    for j in range(0, tl.max((end - begin + step - 1) // step, 0)):
        at = begin + j * step
        here = at < end
        number = tl.load(own[1] + at, mask=here, other=0)
        source = tl.load(own[2] + at, mask=here, other=0)
        counts = here & (tl.load(entries + b * entries_row + number, mask=here, other=0.0) != 0)
        value = tl.load(values + b * values_row + source, mask=counts, other=1.0)
        low, high = tl.minimum(low, value), tl.maximum(high, value)
    if wide:
        one = tl.zeros([BLOCK], dtype=low.dtype)
        low, high = one + tl.min(low, 0), one + tl.max(high, 0)
    tl.store(least + b * out_row + k, low, mask=mine)
    tl.store(most + b * out_row + k, high, mask=mine)


@triton.jit
def slots_added(
    partial: tl.tensor, depth: tl.tensor, which: tl.tensor, WIDTH: tl.constexpr, LANES: tl.constexpr
) -> tl.tensor:
    """Add up one of WIDTH numbers of all slots of an instance, in ``depth`` rows.

    Parameters
    ----------
    partial, depth, which : pointer, int, int
        ``(depth * LANES, WIDTH)`` float64, rows of slots, and the number to add up.
    """
    lane = tl.arange(0, LANES)
    total = tl.zeros([LANES], dtype=tl.float64)
    for j in range(0, depth):
        total += tl.load(partial + (j * LANES + lane) * WIDTH + which)
    return tl.sum(total, 0)


@triton.jit
def put_slot(
    partial: tl.tensor,
    slot: tl.tensor,
    which: tl.tensor,
    mine: tl.tensor,
    terms: tl.tensor,
    WIDTH: tl.constexpr,
) -> None:
    """Write what a tile contributes to one of WIDTH numbers of its instance, added in double precision.

    Parameters
    ----------
    partial, slot, which : pointer, int, int
        ``(slots, WIDTH)`` float64, written; the slot; and the number.
    mine, terms : (BLOCK,)
        Which lanes count, and what they add.
    """
    tl.store(partial + slot * WIDTH + which, tl.sum(tl.where(mine, terms.to(tl.float64), 0.0), 0))
