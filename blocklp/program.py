r"""The rows of all blocks, as methods iterate on them that do without oracles.

.. math:: \min_x \; \langle c, x \rangle \quad \text{s.t.} \quad l \le A x \le u, \; lo \le x \le hi

A holds what the block types state (:meth:`BlockType.constraints`), without rows that the bounds of the variables imply.  It is kept
by blocks: the variables of a block are gathered once for all of its rows.  On a CPU larger problems run in compiled loops
(:mod:`blocklp.program_kernels`), others by tensor operations; both differ by rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType

import torch
from torch import Tensor

from blocklp.block import pick
from blocklp.box import Box
from blocklp.compiled import TILE, wanted
from blocklp.decomposition import Decomposition, Group, dot
from blocklp.errors import OptionError
from blocklp.loops import DIVIDED, MOST_PARTS

LOOPED = 300
"""Copies of an instance from which on compiled loops pay; like in :mod:`blocklp.sweeps`, that of the batch does not matter."""

LANCZOS = 16
MARGIN = 1.02
"""Steps that find the norm of the rows, and what the estimate may lack."""


@dataclass(frozen=True)
class Layout:
    """Where compiled loops find things.

    Attributes
    ----------
    kernels : module
        :mod:`blocklp.program_kernels`.
    groups : Tensor
        ``(groups, 7)`` int64: first copy, variables of a block, blocks, rows of a block, first row, first entry, and whether every
        block has entries of its own.
    tiles : Tensor
        ``(tiles, 3)`` int64: group, first block, blocks; the units of work.
    """

    kernels: ModuleType
    groups: Tensor
    tiles: Tensor

    @classmethod
    def of(cls, problem: Decomposition, matrices: tuple[Tensor, ...], kernels: ModuleType) -> Layout:
        """Lay the matrices of all groups out."""
        table, tiles, row, entry = [], [], 0, 0
        for number, (group, matrix) in enumerate(zip(problem.groups, matrices, strict=True)):
            _, rows, dim, own = matrix.shape
            table.append((group.start, dim, group.blocks, rows, row, entry, int(own > 1)))
            row, entry = row + rows * group.blocks, entry + rows * dim * own
            if rows:
                tiles += [(number, first, min(TILE, group.blocks - first)) for first in range(0, group.blocks, TILE)]
        return cls(kernels, torch.tensor(table), torch.tensor(tiles, dtype=torch.long).view(-1, 3))


@dataclass(frozen=True)
class Program:
    r"""The rows of all blocks, one group after the other and each as ``(rows, blocks)``, and the step sizes.

    The diagonals T and :math:`\Sigma` are the inverse absolute column and row sums of A (Pock and Chambolle 2011, eq. 10 with
    alpha = 1), both over the norm of :math:`\Sigma^{1/2} A T^{1/2}`, which is at most 1 then and, where entries have either sign,
    often a half.
    """

    entries: Tensor  # (batch or 1, entries): those of all matrices, one after the other
    matrices: tuple[Tensor, ...]  # one a group: (batch or 1, rows, dim, blocks or 1), views of them
    lower: Tensor  # (batch, rows)
    upper: Tensor  # (batch, rows)
    row: Tensor  # (batch, rows): the diagonal of Sigma
    length: Tensor  # (batch, rows): its inverse
    column: Tensor  # (batch, variables): the diagonal of T
    share: Tensor  # (batch, copies): of the reduced cost of the variable
    weight: Tensor  # (batch,): size of the primal points over that of the cost, both in units of the columns
    kept: tuple[Tensor, ...]  # one a group: numbers of the rows among those that the type states
    layout: Layout | None  # where compiled loops serve

    @classmethod
    def build(cls, problem: Decomposition) -> Program:
        """Write the LP out.

        Raises
        ------
        OptionError
            If a block type states no constraints.
        """
        low, high = (problem.spread(side.expand_as(problem.cost)) for side in (problem.lower, problem.upper))
        columns, boxes = torch.zeros_like(low), torch.zeros_like(low)
        matrices, lower, upper, rows, uses, numbers = [], [], [], [], [], []
        for group in problem.groups:
            stated = group.type.constraints()
            if stated is None:
                raise OptionError(
                    f"method 'pdhg' needs the constraints of all blocks, and blocks {group.name!r} of type {group.type.name} state "
                    f"none; give the type a method constraints() -> Constraints, or choose another method, such as 'auto'"
                )
            matrix = stated.matrix.to(low).permute(0, 2, 3, 1)
            least, most = (side.to(low).transpose(1, 2).expand(len(low), -1, group.blocks) for side in (stated.lower, stated.upper))
            plus, minus = matrix.clamp(min=0), matrix.clamp(max=0)
            idle_below = least <= times(group, plus, low) + times(group, minus, high)
            idle_above = most >= times(group, plus, high) + times(group, minus, low)
            if group.alive is not None:
                idle_below, idle_above = (idle | (group.alive[:, None] == 0) for idle in (idle_below, idle_above))
            used = ~(idle_below & idle_above)
            kept = used.any(2).any(0)
            numbers.append(kept.nonzero()[:, 0])
            matrix, size = matrix[:, kept], matrix[:, kept].abs()
            matrices.append(matrix)
            lower.append(least.masked_fill(idle_below, -torch.inf)[:, kept].flatten(1))
            upper.append(most.masked_fill(idle_above, torch.inf)[:, kept].flatten(1))
            rows.append(times(group, size, torch.ones_like(low)).flatten(1))
            uses.append(used[:, kept].flatten(1))
            group.rows(columns).copy_(transposed(size, used[:, kept].to(low)))
            group.rows(boxes).fill_(float(isinstance(group.type, Box)))
        takers = problem.spread(problem.collect(boxes))
        share = torch.where(takers > 0, boxes / takers, problem.to_dual(torch.ones_like(problem.cost)))
        # Without entries any step is as good.
        row, column = (torch.where(t > 0, 1 / t, torch.ones_like(t)) for t in (torch.cat(rows, 1), problem.collect(columns)))
        largest = torch.maximum(problem.lower.abs(), problem.upper.abs()).expand_as(column)
        size, cost, scale = largest.double(), problem.cost.double(), column.double()  # squares may be beyond single precision
        weight = (dot(size / scale, size) / dot(cost * scale, cost)).sqrt().to(low)
        weight = torch.where(torch.isfinite(weight) & (weight > 0), weight, torch.ones_like(weight))
        many = max(len(m) for m in matrices)
        entries = torch.cat([m.expand(many, -1, -1, -1).flatten(1) for m in matrices], 1)
        kept_entries = _views(entries, matrices)
        loops = kernels(problem)
        layout = None if loops is None else Layout.of(problem, kept_entries, loops)
        sides = torch.cat(lower, 1), torch.cat(upper, 1)
        program = cls(entries, kept_entries, *sides, row, 1 / row, column, share, weight, tuple(numbers), layout)
        norm = program._norm(problem, torch.cat(uses, 1))[:, None]
        return replace(program, row=row / norm, length=norm / row, column=column / norm)

    def parts(self, problem: Decomposition) -> int:
        """Parts of a single large instance that threads take in turn, each with sums of its own, whatever the number of threads."""
        if problem.batch > 1 or self.work < DIVIDED:
            return 1
        return max(2, min(MOST_PARTS, problem.copies // (2 * problem.coupling.variables)))

    @property
    def work(self) -> int:
        """Numbers that a pass reads, about."""
        return 2 * self.entries.numel() + 8 * self.row.numel() + 4 * self.share.numel()

    def activity(self, problem: Decomposition, x: Tensor) -> Tensor:
        """A x: ``(batch, variables) -> (batch, rows)``."""
        if (layout := self.layout) is not None:
            out = torch.zeros_like(self.row)
            units = len(x) * len(layout.tiles)
            layout.kernels.activity(units, layout.groups, layout.tiles, problem.coupling.places, self.entries, x, out)
            return out
        copies = problem.spread(x)
        return torch.cat([times(g, m, copies).flatten(1) for g, m in zip(problem.groups, self.matrices, strict=True)], 1)

    def pull(self, problem: Decomposition, y: Tensor) -> Tensor:
        """What every block adds to A^T y: ``(batch, rows) -> (batch, copies)``."""
        if (layout := self.layout) is not None:
            out = y.new_zeros(len(y), problem.copies)
            layout.kernels.pull(len(y) * len(layout.tiles), layout.groups, layout.tiles, self.entries, y, out)
            return out
        copies = y.new_empty(len(y), problem.copies)
        for (group, own), matrix in zip(by_groups(problem, y, list(map(len, self.kept))), self.matrices, strict=True):
            group.rows(copies).copy_(transposed(matrix, own))
        return copies

    def select(self, rows: Tensor) -> Program:
        """Return the program of some instances."""
        entries = self.entries if len(self.entries) == 1 else pick(self.entries, rows)
        return replace(
            self,
            entries=entries,
            matrices=_views(entries, self.matrices),
            lower=pick(self.lower, rows),
            upper=pick(self.upper, rows),
            row=pick(self.row, rows),
            length=pick(self.length, rows),
            column=pick(self.column, rows),
            share=pick(self.share, rows),
            weight=pick(self.weight, rows),
        )

    def whole(self, problem: Decomposition, y: Tensor) -> Tensor:
        """Duals of the rows that are kept to those of all that types state, zero for the others: ``(batch, rows)`` both."""
        parts = []
        for (group, own), kept in zip(by_groups(problem, y, list(map(len, self.kept))), self.kept, strict=True):
            parts.append(y.new_zeros(len(y), stated_rows(group), group.blocks).index_copy_(1, kept, own).flatten(1))
        return torch.cat(parts, 1)

    def part(self, problem: Decomposition, whole: Tensor) -> Tensor:
        """The other way round; what a side that there is not would have to pay for becomes zero."""
        split = by_groups(problem, whole, list(map(stated_rows, problem.groups)))
        parts = [own.index_select(1, kept).flatten(1) for (_, own), kept in zip(split, self.kept, strict=True)]
        y = torch.cat(parts, 1).to(self.row)
        return y.masked_fill(torch.where(y > 0, self.lower, self.upper).isinf() | ~torch.isfinite(y), 0.0)

    def _norm(self, problem: Decomposition, used: Tensor) -> Tensor:
        r"""The norm of :math:`\Sigma^{1/2} A T^{1/2}` over the rows used ``(batch, rows)``, by Lanczos steps: ``(batch,)``."""
        root, across = self.column.sqrt(), self.row * used
        # Any start will do that is the same for an instance in every batch.
        v = (torch.arange(1, self.column.shape[1] + 1, device=root.device) * 0.618034).frac().add(0.5).to(root).expand_as(root)
        before, off = torch.zeros_like(v), torch.zeros_like(v[:, 0])
        table = torch.zeros(len(v), LANCZOS, LANCZOS, dtype=torch.float64, device=v.device)
        v = v / dot(v, v).sqrt()[:, None]
        for k in range(LANCZOS):
            w = root * problem.collect(self.pull(problem, across * self.activity(problem, root * v)))
            on = dot(v, w)
            w = w - on[:, None] * v - off[:, None] * before
            off = dot(w, w).sqrt()
            table[:, k, k] = on
            if k + 1 < LANCZOS:
                table[:, k, k + 1] = table[:, k + 1, k] = off
            before, v = v, torch.where(off[:, None] > 0, w / off[:, None], torch.zeros_like(w))
        finite = torch.isfinite(table).flatten(1).all(1)
        largest = torch.linalg.eigvalsh(table.nan_to_num(0.0, 0.0, 0.0))[:, -1].clamp(min=0)
        norm = (largest.sqrt() * MARGIN).clamp(max=1).to(root)
        return torch.where(finite & (norm > 0), norm, torch.ones_like(norm))


def by_groups(problem: Decomposition, y: Tensor, rows: list[int]) -> list[tuple[Group, Tensor]]:
    """All groups with their numbers ``(batch, rows, blocks)``, views of ``(batch, all rows)``; ``rows`` of a block, one a group."""
    parts = torch.split(y, [n * g.blocks for n, g in zip(rows, problem.groups, strict=True)], 1)
    return [(g, part.view(len(y), n, g.blocks)) for g, n, part in zip(problem.groups, rows, parts, strict=True)]


def stated_rows(group: Group) -> int:
    """Rows that the type of a group states for each block."""
    stated = group.type.constraints()
    return 0 if stated is None else stated.matrix.shape[2]


def times(group: Group, matrix: Tensor, copies: Tensor) -> Tensor:
    """Every block's matrix times its copies: ``(batch, rows, blocks)``."""
    if matrix.shape[::3] == (1, 1):
        return torch.matmul(matrix[0, :, :, 0], group.rows(copies))
    return (matrix * group.rows(copies)[:, None]).sum(2)


def transposed(matrix: Tensor, y: Tensor) -> Tensor:
    """Every block's transposed matrix times ``(batch, rows, blocks)``: ``(batch, dim, blocks)``."""
    if matrix.shape[::3] == (1, 1):
        return torch.matmul(matrix[0, :, :, 0].T, y)
    return (matrix * y[:, :, None]).sum(1)


def _views(entries: Tensor, shapes: tuple[Tensor, ...] | list[Tensor]) -> tuple[Tensor, ...]:
    """The matrices of all groups ``(n, rows, dim, blocks or 1)`` in their entries ``(n, entries)``."""
    parts: list[Tensor] = list(torch.split(entries, [m[0].numel() for m in shapes], 1))
    return tuple(part.view(len(part), *m.shape[1:]) for part, m in zip(parts, shapes, strict=True))


def kernels(problem: Decomposition) -> ModuleType | None:
    """The compiled loops, where they pay."""
    if problem.cost.device.type != "cpu" or problem.coupling.maps or problem.copies < LOOPED:
        return None
    return wanted("blocklp.program_kernels")
