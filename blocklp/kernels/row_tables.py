r"""The rows of all blocks as sparse matrices, for devices that take a thread or a block of threads a sum.

Products with A, with its transpose by variables, and with its transpose by copies are sums of entries times
numbers at other places (:class:`SparseSums`).  Sums are dealt out by *tiles*.  A tile is up to :data:`TILE`
sums of at most :data:`LONG` terms that follow each other, each added by one thread from its first term to its
last; or one longer sum, which all threads add up together.

What a tile contributes to a number of the whole instance, such as a norm, goes to its *slot*.  Slots are in
rows of :data:`LANES`, and every run of tiles (a row of all blocks of a group; all variables) begins a row of
slots.  Added row by row, and then over the lanes, they give the same bits however many blocks of padding an
instance has in its batch: padding only appends zeros to every run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.blocks.contract import Rows, pick
from blocklp.decomposition.problem import Decomposition
from blocklp.kernels.program import Program

TILE = 256
"""Sums of a tile at most, and the threads that work on it."""

LONG = 64
"""Terms of a sum above which it is a tile of its own."""

LANES = 128
"""Slots that are added up side by side."""


@dataclass(frozen=True)
class SparseSums:
    """Sums of entries times numbers at other places; ``n`` is 1 in tables that all instances share.

    Attributes
    ----------
    starts : Tensor
        ``(n, sums + 1)`` int32, or int64 where that does not suffice: where the terms of each sum begin.
    numbers, sources : Tensor
        ``(n, terms)`` likewise: the number of the entry of each term, and the place of its other factor.
    tiles : Tensor
        ``(n, tiles, 4)`` likewise: the first sum of each tile; how many there are, 0 for a tile that only
        other instances need; whether it is one long sum; and its slot.
    apart : Tensor
        ``(4,)`` int64: how far instances are from each other in each of these tables; 0 where all share it.
        On the device: whatever Triton is given as a number it compiles for.
    counts : Tensor
        ``(2,)`` int64, likewise on the device: numbers of tiles and of rows of slots.
    depth : int
        Rows of slots.
    """

    starts: Tensor
    numbers: Tensor
    sources: Tensor
    tiles: Tensor
    apart: Tensor
    counts: Tensor
    depth: int

    @classmethod
    def of(
        cls, targets: Tensor, sources: Tensor, numbers: Tensor, zero: Tensor, runs: list[int]
    ) -> SparseSums:
        """Sort terms by their sums.

        Parameters
        ----------
        targets : Tensor
            ``(n, terms)`` int64: the sum that each term belongs to; terms of a sum keep their order.
        sources : Tensor
            ``(n or 1, terms)`` int64: the place of its other factor.
        numbers, zero : Tensor
            ``(terms,)`` int64 and bool: the number of its entry, and whether this is zero in all instances:
            such terms are left out, but not of long sums, in which they decide which terms are added first.
        runs : list of int
            Numbers of sums, one run after the other.

        Returns
        -------
        SparseSums
            The tables, on the device of the terms.
        """
        count, batch = sum(runs), len(targets)
        lengths = targets.new_zeros(batch, count + 1).scatter_add_(1, targets, torch.ones_like(targets))
        long = lengths > LONG
        targets = torch.where(zero & ~long.gather(1, targets), count, targets)
        order = targets.argsort(dim=1, stable=True)
        lengths = torch.zeros_like(lengths).scatter_add_(1, targets, torch.ones_like(targets))[:, :count]
        starts = torch.nn.functional.pad(lengths.cumsum(1), (1, 0))
        if batch == 1:
            order = order[:, : int(starts[0, -1])]
        several = max(batch, len(sources))
        found = numbers[order], sources.expand(several, -1).gather(1, order.expand(several, -1))
        return cls.of_sorted(starts, found, long[:, :count], runs)

    @classmethod
    def of_sorted(
        cls, starts: Tensor, terms: tuple[Tensor, Tensor], long: Tensor, runs: list[int]
    ) -> SparseSums:
        """Deal out terms that are sorted by their sums.

        Parameters
        ----------
        starts, terms : Tensor, tuple of Tensor
            ``(n, sums + 1)`` and ``(n, terms)`` integers: :attr:`starts`, and :attr:`numbers` and
            :attr:`sources`.
        long : Tensor
            ``(n, sums)`` bool: sums that are tiles of their own, all of more than :data:`LONG` terms.
        runs
            As in :meth:`of`, and so is what is returned.
        """
        tiles, depth = _tiles(long, runs)
        ends = (int(t.amax()) if t.numel() else 0 for t in terms)
        kind = torch.int32 if max(long.shape[1], terms[0].shape[1], *ends) < 2**31 - 1 else torch.int64
        starts, numbers, sources, tiles = tables = tuple(t.to(kind) for t in (starts, *terms, tiles))
        sizes = torch.tensor([*map(apart, tables), tiles.shape[1], depth], device=starts.device)
        return cls(starts, numbers, sources, tiles, sizes[:4], sizes[4:], depth)

    @property
    def units(self) -> int:
        """Tiles of an instance."""
        return self.tiles.shape[1]

    @property
    def given(self) -> tuple[Tensor, ...]:
        """All tables, as kernels take them."""
        return self.starts, self.numbers, self.sources, self.tiles, self.apart, self.counts

    def select(self, rows: Rows) -> SparseSums:
        """Return the tables of some instances."""
        tables = self.starts, self.numbers, self.sources, self.tiles
        starts, numbers, sources, tiles = (t if len(t) == 1 else pick(t, rows) for t in tables)
        return replace(self, starts=starts, numbers=numbers, sources=sources, tiles=tiles)


@dataclass(frozen=True)
class RowTables:
    """The matrix of a program by rows, by variables, and by the copies of these in blocks."""

    by_row: SparseSums
    by_variable: SparseSums
    by_copy: SparseSums

    @classmethod
    def of(cls, program: Program, problem: Decomposition) -> RowTables:
        """Lay out the rows of all groups and those beside them, on the device of the problem."""
        parts, row, entry = [], 0, 0
        for group, matrix in zip(problem.groups, program.matrices, strict=True):
            _, rows, dim, own = matrix.shape
            b, i, r = (torch.arange(n, device=matrix.device) for n in (group.blocks, dim, rows))
            i, r = i[:, None], r[:, None, None]
            number = entry + (r * dim + i) * own + (b if own > 1 else 0 * b)
            terms = row + r * group.blocks + b, group.start + i * group.blocks + b, number
            parts.append([t.expand(rows, dim, group.blocks).flatten() for t in terms])
            row, entry = row + rows * group.blocks, entry + rows * dim * own
        inside = sum(len(part[0]) for part in parts)
        runs = [
            g.blocks for g, m in zip(problem.groups, program.matrices, strict=True) for _ in range(m.shape[1])
        ]
        places = problem.coupling.index
        if (beside := program.coupling) is not None:
            every = torch.arange(len(beside.row), device=places.device)
            parts.append([row + beside.row, problem.in_blocks + every, entry + every])
            places = torch.cat([places, beside.column.expand(len(places), -1)], 1)
            runs.append(beside.count)
        rows_, copies, numbers = (torch.cat(own) for own in zip(*parts, strict=True))
        variables = places[:, copies]
        zero = (program.entries == 0).all(0)[numbers]
        return cls(
            SparseSums.of(rows_[None], variables, numbers, zero, runs),
            SparseSums.of(variables, rows_[None], numbers, zero, [problem.coupling.variables]),
            SparseSums.of(
                copies[None, :inside],
                rows_[None, :inside],
                numbers[:inside],
                zero[:inside],
                [problem.in_blocks],
            ),
        )

    def select(self, rows: Rows) -> RowTables:
        """Return the tables of some instances."""
        return RowTables(*(t.select(rows) for t in (self.by_row, self.by_variable, self.by_copy)))


def apart(table: Tensor) -> int:
    """How far the rows of a contiguous table are from each other; 0 where there is one for all."""
    return table[0].numel() if len(table) > 1 else 0


def _tiles(long: Tensor, runs: list[int]) -> tuple[Tensor, int]:
    """Tiles ``(n, tiles, 4)`` of runs of sums, ``(n, sums)`` bool, and the rows of slots that they take."""
    batch, first, depth = len(long), 0, 0
    parts = [long.new_zeros(batch, 0, 4, dtype=torch.long)]
    counts = [part.sum(1) for part in torch.split(long, runs, 1)]
    most = torch.stack([torch.stack([c.amax(), c.amin()]) for c in counts]).tolist() if counts else []
    for count, (largest, least) in zip(runs, most, strict=True):
        if least < count:
            begin = torch.arange(0, count, TILE, device=long.device)
            own = [first + begin, (count - begin).clamp(max=TILE), 0 * begin, depth * LANES + begin // TILE]
            parts.append(torch.stack(own, 1).expand(batch, -1, -1))
            depth += -(-len(begin) // LANES)
        if largest:
            own_long = long[:, first : first + count]
            at = (~own_long).to(torch.uint8).argsort(dim=1, stable=True)[:, :largest]
            slot = torch.arange(largest, device=long.device).expand_as(at)
            there = own_long.gather(1, at).long()
            parts.append(torch.stack([first + at, there, torch.ones_like(at), depth * LANES + slot], 2))
            depth += -(-largest // LANES)
        first += count
    return torch.cat(parts, 1).contiguous(), depth
