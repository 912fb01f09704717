"""The layout of the rows of all blocks (:class:`blocklp.kernels.program.Program`) for compiled loops."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.rows import CouplingRows
from blocklp.kernels.compiled import TILE


@dataclass(frozen=True)
class RowLayout:
    """The order in which blocks are taken on a CPU, and where compiled loops find things.

    Attributes
    ----------
    groups : Tensor
        ``(groups, 7)`` int64: first copy, variables of a block, blocks, rows of a block, first row, first
        entry, and whether every block has entries of its own (1) or all share theirs (0); 2 for the rows
        beside the blocks, each a block without variables.
    tiles : Tensor
        ``(tiles, 3)`` int64: group, first block, blocks; the units of work.
    sparse : tuple of Tensor
        ``(rows + 1,)`` and ``(entries,)`` int64: where the entries of every row beside the blocks begin, and
        their variables.
    parts : int
        Sums of every variable, each over as many tiles, whatever the number of threads.
    variables : int
        Number of variables.
    targets : Tensor or None
        ``(1, copies and entries of rows beside blocks)`` int64: the variable of each, where instances agree.
    """

    groups: Tensor
    tiles: Tensor
    sparse: tuple[Tensor, Tensor]
    parts: int
    variables: int
    targets: Tensor | None

    @classmethod
    def of(
        cls,
        problem: Decomposition,
        matrices: tuple[Tensor, ...],
        coupling: CouplingRows | None,
        parts: int,
    ) -> RowLayout:
        """Lay the matrices of all groups out, and the rows beside them.

        Parameters
        ----------
        problem : Decomposition
            The problem.
        matrices : tuple of Tensor
            ``(batch or 1, rows, dim, blocks or 1)`` for each group.
        coupling : CouplingRows, optional
            The rows beside the blocks.
        parts : int
            Partial sums of every variable.

        Returns
        -------
        RowLayout
            Tables of groups ``(groups, 7)`` and of tiles ``(tiles, 3)`` int64, and the rows
            beside.
        """
        table, tiles, row, entry = [], [], 0, 0
        for number, (group, matrix) in enumerate(zip(problem.groups, matrices, strict=True)):
            _, rows, dim, own = matrix.shape
            table.append((group.start, dim, group.blocks, rows, row, entry, int(own > 1)))
            row, entry = row + rows * group.blocks, entry + rows * dim * own
            if rows:
                tiles += _tiles(number, group.blocks)
        starts = column = torch.zeros(0, dtype=torch.long)
        if coupling is not None:
            table.append((problem.in_blocks, 0, coupling.count, 1, row, entry, 2))
            tiles += _tiles(len(table) - 1, coupling.count)
            starts, column = coupling.starts, coupling.column
        index = problem.coupling.index
        targets = None if len(index) > 1 else torch.cat([index, column[None]], 1) if len(column) else index
        numbered, variables = torch.tensor(tiles, dtype=torch.long).view(-1, 3), problem.coupling.variables
        return cls(torch.tensor(table), numbered, (starts, column), parts, variables, targets)

    @cached_property
    def by_row(self) -> tuple[Tensor, Tensor, Tensor]:
        """All rows as one sparse matrix: starts ``(rows + 1,)``, and the numbers and variables of entries."""
        assert self.targets is not None
        counts, numbers, columns = [], [], []
        for start, dim, blocks, rows, _, entry, kind in self.groups.tolist():
            if kind == 2:
                first, column = self.sparse
                counts.append(first.diff())
                numbers.append(entry + torch.arange(len(column)))
                columns.append(column)
                continue
            of_row = torch.arange(rows)[:, None, None] * dim + torch.arange(dim)
            own = of_row * blocks + torch.arange(blocks)[:, None] if kind else of_row.expand(-1, blocks, -1)
            variables = self.targets[0, start : start + dim * blocks].view(dim, blocks).T
            counts.append(torch.full((rows * blocks,), dim))
            numbers.append(entry + own.flatten())
            columns.append(variables.expand(rows, -1, -1).flatten())
        return _starts(torch.cat(counts)), torch.cat(numbers), torch.cat(columns)

    @cached_property
    def by_copy(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The transposed matrix by copies, in the order of the tiles.

        The variable of every copy, where its entries start, and for each entry its number and its row.
        """
        assert self.targets is not None
        variables, counts, numbers, duals = ([torch.zeros(0, dtype=torch.long)] for _ in range(4))
        for number, first, count in self.tiles.tolist():
            start, dim, blocks, rows, row, entry, kind = self.groups[number].tolist()
            if kind == 2:
                begin, end = self.sparse[0][[first, first + count]].tolist()
                variables.append(self.sparse[1][begin:end])
                counts.append(torch.ones(end - begin, dtype=torch.long))
                numbers.append(entry + torch.arange(begin, end))
                lengths = self.sparse[0][first : first + count + 1].diff()
                duals.append(row + torch.arange(first, first + count).repeat_interleave(lengths))
                continue
            own, r = torch.arange(first, first + count)[:, None], torch.arange(rows)
            of_row = r * dim + torch.arange(dim)[:, None, None]
            of_group = self.targets[0, start : start + dim * blocks].view(dim, blocks)
            variables.append(of_group[:, first : first + count].flatten())
            counts.append(torch.full((dim * count,), rows))
            at = of_row * blocks + own if kind else of_row.expand(-1, count, -1)
            numbers.append(entry + at.flatten())
            duals.append((row + r * blocks + own).expand(dim, -1, -1).flatten())
        return torch.cat(variables), _starts(torch.cat(counts)), torch.cat(numbers), torch.cat(duals)


def _tiles(group: int, blocks: int) -> list[tuple[int, int, int]]:
    """Tiles of a group: its number, the first block and the number of blocks of each."""
    return [(group, first, min(TILE, blocks - first)) for first in range(0, blocks, TILE)]


def _starts(counts: Tensor) -> Tensor:
    """The starts of pieces of given lengths ``(k,)`` that follow each other, and the end: ``(k + 1,)``."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
