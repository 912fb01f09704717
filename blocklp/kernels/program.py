r"""The rows of all blocks, for methods that need no oracles.

.. math:: \min_x \; \langle c, x \rangle \quad \text{s.t.} \quad l \le A x \le u, \; lo \le x \le hi

A holds what the block types state (:class:`HasConstraints`), without rows that the bounds of the
variables imply.  It is kept by blocks: the variables of a block are gathered once for all of its rows.
Products are operations (:mod:`blocklp.kernels.operations`); compiled loops for the CPU are in
:mod:`blocklp.kernels.numba_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.capabilities import HasIntervals, supports
from blocklp.blocks.contract import Rows, pick
from blocklp.deadline import Deadline
from blocklp.decomposition.block_products import by_groups, stated_rows, times, transposed
from blocklp.decomposition.group_rows import GroupRows
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.decomposition.rows import CouplingRows
from blocklp.decomposition.variable_box import VariableBox
from blocklp.kernels.backend import AUTO, Backend
from blocklp.kernels.operations import operation
from blocklp.kernels.row_layout import RowLayout
from blocklp.kernels.settings import DEFAULT, EngineSettings
from blocklp.violation import known_empty

PASSES = "blocklp.kernels.program_kernels"
"""Module of compiled loops over the rows: passes of PDHG."""

MOST_PARTS = 8
"""The most parts with partial sums of their own that an instance is divided into."""


@dataclass(frozen=True)
class Program:
    """The rows of all blocks, one group after the other and each as ``(rows, blocks)``."""

    box: VariableBox
    entries: Tensor  # (batch or 1, entries): those of all matrices, one after the other
    matrices: tuple[Tensor, ...]  # one a group: (batch or 1, rows, dim, blocks or 1), views of them
    lower: Tensor  # (batch, rows)
    upper: Tensor  # (batch, rows)
    unit: Tensor  # (batch, rows): what the rows that types state are multiplied by
    used: Tensor  # (batch, rows) bool: rows of which a side is left
    row_sums: Tensor  # (batch, rows): sums of the magnitudes of the entries
    column_sums: Tensor  # (batch, variables): likewise
    share: Tensor  # (batch, copies): of the reduced cost of the variable
    reach: Tensor  # (batch, variables): magnitudes that bounds allow and rows ask for
    coupling: CouplingRows | None  # rows beside the blocks, which come after theirs, in units of their own
    nonzeros: int  # entries of all rows of an instance, those that blocks share counted for each
    rows_of_blocks: int  # of an instance, in all processes that hold parts of it
    kept: tuple[Tensor, ...]  # one a group: numbers of the rows among those that the type states
    layout: RowLayout | None  # on a CPU, without structured scopes
    backend: Backend = AUTO
    tables: dict[str, Any] = field(default_factory=dict, repr=False)  # what backends laid out, by name

    @classmethod
    def build(
        cls,
        problem: Decomposition,
        deadline: Deadline,
        backend: Backend = AUTO,
        settings: EngineSettings = DEFAULT,
    ) -> Program:
        """Write the LP out, for a backend.

        Parameters
        ----------
        problem : Decomposition
            The problem, in the precision of the iterates.
        deadline : Deadline
            Checked before the rows of each group are written.
        backend : Backend
            What runs products and passes.
        settings : EngineSettings
            When instances are divided.

        Returns
        -------
        Program
            The rows of all instances.

        Raises
        ------
        OptionError
            If a block type states no constraints.
        TimeLimitError
            If the deadline is over.
        """
        box = VariableBox.of(problem)
        low, high = problem.spread(box.lower), problem.spread(box.upper)
        reach = torch.maximum(box.lower.abs(), box.upper.abs())
        far = problem.totals.greatest(reach.max())
        columns, boxes, needed = (torch.zeros_like(low) for _ in range(3))
        groups = []
        for group in problem.groups:
            as_rows = box.as_rows.get(group.name)
            own = GroupRows.written(group, as_rows, low, high, far, problem.totals, deadline)
            groups.append(own)
            group.rows(columns).copy_(own.columns)
            group.rows(boxes).fill_(float(supports(group.type, HasIntervals)))
            group.rows(needed).copy_(own.needed)
        matrices = [own.matrix for own in groups]
        names = "lower", "upper", "unit", "sums", "used"
        parts = ([getattr(own, name).flatten(1) for own in groups] for name in names)
        lower, upper, units, rows, uses = parts
        takers = problem.spread(problem.collect(boxes))
        share = torch.where(takers > 0, boxes / takers, problem.to_dual(torch.ones_like(problem.cost)))
        met, coupling = problem.coupling.collect(columns[:, : problem.in_blocks]), None
        need = problem.coupling.greatest(torch.zeros_like(problem.cost), needed[:, : problem.in_blocks])
        if problem.rows is not None:
            coupling, unit = problem.rows.in_own_units()
            sums = coupling.absolute()
            met = met + sums.adjoint(torch.ones_like(coupling.lower), met.shape[1])
            lower.append(coupling.lower)
            upper.append(coupling.upper)
            units.append(unit.expand_as(coupling.lower))
            rows.append(sums.activity(torch.ones_like(problem.cost)))
            uses.append(torch.ones_like(coupling.lower, dtype=torch.bool))
            need = torch.maximum(need, problem.rows.asked(need.shape[1]).nan_to_num(0.0, 0.0))
        row_sums = torch.cat(rows, 1)
        need = torch.where(need > 0, need, problem.totals.greatest(need.amax(1, keepdim=True)))
        reach = torch.where(need > 0, torch.minimum(reach, need), reach)
        many = max(len(m) for m in matrices)
        beside = [low.new_zeros(many, 0) if coupling is None else coupling.entry.expand(many, -1)]
        entries = torch.cat([*(m.expand(many, -1, -1, -1).flatten(1) for m in matrices), *beside], 1)
        kept_entries, layout = _views(entries, matrices), None
        if low.device.type == "cpu" and not problem.coupling.maps and problem.totals.whole:
            several = max(2, min(MOST_PARTS, problem.copies // (2 * problem.coupling.variables)))
            several = several if _work(entries, row_sums, share) >= settings.divided_numbers else 1
            layout = RowLayout.of(problem, kept_entries, coupling, several)
        ends = torch.cat(lower, 1), torch.cat(upper, 1)
        pairs = zip(matrices, problem.groups, strict=True)
        nonzeros = sum(m.shape[1] * m.shape[2] * g.blocks for m, g in pairs)
        return cls(
            box,
            entries,
            kept_entries,
            *ends,
            torch.cat(units, 1),
            torch.cat(uses, 1),
            row_sums,
            met,
            share,
            reach,
            coupling,
            nonzeros + beside[0].shape[1],
            problem.totals.rows(row_sums.shape[1] - (0 if coupling is None else coupling.count)),
            tuple(own.kept for own in groups),
            layout,
            backend,
        )

    @property
    def parts(self) -> int:
        """Partial sums of every variable that add up to A^T y."""
        return 1 if self.layout is None else self.layout.parts

    @property
    def beside(self) -> int:
        """Number of rows beside the blocks, which come last."""
        return 0 if self.coupling is None else self.coupling.count

    @property
    def kinds(self) -> tuple[int, int]:
        """Numbers of rows of the blocks in all processes, and of rows beside them, as totals ask for them."""
        return self.rows_of_blocks, self.beside

    @property
    def work(self) -> int:
        """Numbers that a pass over an instance reads, about."""
        return _work(self.entries, self.row_sums, self.share)

    def loops(self, module: str) -> ModuleType | None:
        """A module of compiled loops over the rows, where the backend has it."""
        return None if self.layout is None else self.backend.loops(module)

    def activity(self, problem: Decomposition, x: Tensor) -> Tensor:
        """A x: ``(batch, variables) -> (batch, rows)``."""
        return row_products(self, problem, (self.entries, self.coupling), x)

    def adjoint(self, problem: Decomposition, y: Tensor) -> Tensor:
        """A^T y by copies, before these are summed by variable: ``(batch, rows) -> (batch, copies)``."""
        copies = row_adjoints(self, problem, y)
        if self.coupling is not None:
            first = y.shape[1] - self.coupling.count
            copies[:, problem.in_blocks :] = y[:, first:] * self.unit[:, first:]
        return copies

    def by_groups(self, problem: Decomposition, y: Tensor) -> list[tuple[Group, Tensor]]:
        """Return all groups with the part of ``y`` for their kept rows, without the rows beside blocks."""
        counts = list(map(len, self.kept))
        end = sum(n * g.blocks for n, g in zip(counts, problem.groups, strict=True))
        return by_groups(problem, y[:, :end], counts)

    def sums(self, problem: Decomposition, y: Tensor) -> Tensor:
        """Partial sums of A^T y, all in the first part: ``(batch, rows) -> (batch, parts, variables)``."""
        out = y.new_zeros(len(y), self.parts, problem.coupling.variables)
        out[:, 0] = problem.collect(self.adjoint(problem, y))
        return out

    def sizes(self, problem: Decomposition, x: Tensor) -> Tensor:
        """Scales of the rows at points ``(batch, variables)``, for relative violations: ``(batch, rows)``."""
        coupling = None if self.coupling is None else self.coupling.absolute()
        rows, values = (self.entries.abs(), coupling), (x.abs(), problem.sizes(x).contiguous())
        terms, reach = (row_products(self, problem, rows, own) for own in values)
        magnitudes = (side.abs() for side in (self.lower, self.upper))
        sides = [torch.where(size > 0, torch.maximum(size, terms), reach) for size in magnitudes]
        # A row has one tolerance: the tighter one.
        return torch.minimum(*sides)

    def violation(self, problem: Decomposition, x: Tensor) -> Tensor:
        """Largest relative violation ``(batch,)`` of a row at points ``(batch, variables)``."""
        reached = self.activity(problem, x)
        excess = torch.maximum(self.lower - reached, reached - self.upper)
        outside = excess > 0
        none = torch.tensor(not excess.shape[1] or known_empty(outside))
        if bool(problem.totals.everywhere(none)):  # as a rule: sizes need not be known
            return x.new_zeros(len(x))
        beyond = torch.where(outside, excess / self.sizes(problem, x), 0.0)
        return problem.totals.greatest(torch.nn.functional.pad(beyond, (0, 1)).amax(1))

    def scaled(self, problem: Decomposition, x: Tensor) -> Tensor:
        """Scale points, from the lower bounds, until no row with entries of one sign is violated.

        Variables of packing rows that are exceeded shrink by what the worst of these rows asks for; all
        others grow by what the worst covering row asks for.

        Parameters
        ----------
        problem : Decomposition
            The problem of this program.
        x : Tensor
            ``(batch, variables)``.

        Returns
        -------
        Tensor
            ``(batch, variables)``, within bounds; feasible for packing and for covering, elsewhere
            perhaps not.
        """
        lowest = self.box.lower.expand_as(x).contiguous()
        reached, base = self.activity(problem, x), self.activity(problem, lowest)
        side = torch.where(reached > self.upper, self.upper, torch.maximum(reached, self.lower))
        factor = ((side - base) / (reached - base)).nan_to_num(1.0, 1.0, 1.0)
        less, more = row_extremes(self, problem, factor)
        scale = torch.where(less < 1, less.clamp(min=0), more)
        return self.box.clip(self.box.lower + scale * (x - self.box.lower))

    def select(self, rows: Rows) -> Program:
        """Return the program of some instances."""
        entries = self.entries if len(self.entries) == 1 else pick(self.entries, rows)
        return replace(
            self,
            box=self.box.select(rows),
            entries=entries,
            matrices=_views(entries, self.matrices),
            lower=pick(self.lower, rows),
            upper=pick(self.upper, rows),
            unit=pick(self.unit, rows),
            used=pick(self.used, rows),
            row_sums=pick(self.row_sums, rows),
            column_sums=pick(self.column_sums, rows),
            share=pick(self.share, rows),
            coupling=None if self.coupling is None else self.coupling.select(rows),
            reach=pick(self.reach, rows),
            tables={name: own.select(rows) for name, own in self.tables.items()},
        )

    @cached_property
    def _last(self) -> list[int]:
        """One past the last kept row of each group; the host waits once for all."""
        return torch.stack([torch.nn.functional.pad(kept + 1, (0, 1)).amax() for kept in self.kept]).tolist()

    def whole(self, problem: Decomposition, y: Tensor) -> Tensor:
        """Duals ``(batch, rows)`` of all stated rows from those of the kept ones, zero for the others."""
        parts = []
        y = y * self.unit
        for (group, own), kept, last in zip(self.by_groups(problem, y), self.kept, self._last, strict=True):
            count = stated_rows(group)
            full = y.new_zeros(len(y), max(count, last), group.blocks)
            full.index_copy_(1, kept, own)
            parts.append(full[:, :count].flatten(1))
        return torch.cat([*parts, y[:, y.shape[1] - self.beside :]], 1)

    def part(self, problem: Decomposition, whole: Tensor) -> Tensor:
        """Duals ``(batch, rows)`` of the kept rows from those of all stated rows.

        Duals that would be paid by an infinite side become zero.
        """
        parts = []
        first = whole.shape[1] - self.beside
        stated = by_groups(problem, whole[:, :first], list(map(stated_rows, problem.groups)))
        for (_, own), kept, last in zip(stated, self.kept, self._last, strict=True):
            full = torch.nn.functional.pad(own, (0, 0, 0, max(0, last - own.shape[1])))
            parts.append(full.index_select(1, kept).flatten(1))
        y = torch.cat([*parts, whole[:, first:]], 1).to(self.unit) / self.unit
        return y.masked_fill(torch.where(y > 0, self.lower, self.upper).isinf() | ~torch.isfinite(y), 0.0)

    def proved(self, problem: Decomposition, y: Tensor) -> Tensor:
        """The rows' part of the dual value at duals y: ``(batch, rows) -> (batch,)``."""
        side = torch.where(y > 0, self.lower, self.upper)
        terms = (y * torch.where(torch.isfinite(side), side, 0.0)).double()
        return problem.totals.of_program_in_order([], [terms], self.kinds)[0]

    def reduced(self, problem: Decomposition, duals: Tensor) -> Tensor:
        """Reduced costs that multipliers ``(batch, copies)`` leave, divided among copies, in that shape."""
        reduced = problem.spread(problem.cost - problem.collect(duals))
        if self.box.holds_lower is None or self.box.holds_upper is None:
            return self.share * reduced
        holders = self.box.holds_lower, self.box.holds_upper
        low, high = (torch.where(holds < 0, self.share, holds) for holds in holders)
        return torch.where(reduced > 0, low, high) * reduced


@operation
def row_products(
    program: Program, problem: Decomposition, rows: tuple[Tensor, CouplingRows | None], x: Tensor
) -> Tensor:
    """Rows times points.

    Parameters
    ----------
    program : Program
        The program, which has shapes and places; entries are those of ``rows``.
    problem : Decomposition
        The problem of this program.
    rows : tuple
        Entries ``(batch or 1, entries)`` as in :attr:`Program.entries`, and the rows beside the blocks.
    x : Tensor
        ``(batch, variables)``.

    Returns
    -------
    Tensor
        ``(batch, rows)``.
    """
    (entries, coupling), copies = rows, problem.coupling.spread(x)
    matrices = _views(entries, program.matrices)
    parts = [times(g, m, copies).flatten(1) for g, m in zip(problem.groups, matrices, strict=True)]
    return torch.cat(parts if coupling is None else [*parts, coupling.activity(x)], 1)


@operation
def row_adjoints(program: Program, problem: Decomposition, y: Tensor) -> Tensor:
    """Transposed rows of blocks times duals, by copies.

    Parameters
    ----------
    program, problem : Program, Decomposition
        The program and its problem.
    y : Tensor
        ``(batch, rows)``.

    Returns
    -------
    Tensor
        ``(batch, copies)``; copies of rows beside the blocks hold anything.
    """
    copies = y.new_empty(len(y), problem.copies)
    for (group, own), matrix in zip(program.by_groups(problem, y), program.matrices, strict=True):
        group.rows(copies).copy_(transposed(matrix, own))
    return copies


@operation
def row_extremes(program: Program, problem: Decomposition, values: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest of 1 and of the values of each variable's rows.

    Parameters
    ----------
    program, problem, values : Program, Decomposition, Tensor
        The program, its problem, and ``(batch, rows)``.

    Returns
    -------
    least, largest : Tensor
        ``(batch, variables)``.
    """
    return _extreme(program, problem, values, "amin"), _extreme(program, problem, values, "amax")


def _extreme(program: Program, problem: Decomposition, values: Tensor, how: str) -> Tensor:
    """The least (``amin``) or largest (``amax``) of 1 and of values ``(batch, rows)``, by variable."""
    copies = values.new_ones(len(values), problem.in_blocks)
    for (group, own), matrix in zip(program.by_groups(problem, values), program.matrices, strict=True):
        for entry, value in zip(matrix.unbind(1), own[:, :, None].unbind(1), strict=True):
            mine = torch.where(entry != 0, value, 1.0)
            group.rows(copies).copy_(getattr(torch, how)(torch.stack([group.rows(copies), mine]), 0))
    index = problem.coupling.index.expand(len(values), -1)
    found = values.new_ones(len(values), problem.coupling.variables).scatter_reduce(1, index, copies, how)
    if (rows := program.coupling) is not None:
        own = values[:, values.shape[1] - rows.count :][:, rows.row]
        found = found.scatter_reduce(1, rows.column.expand(len(values), -1), own, how)
    return found


def _views(entries: Tensor, shapes: tuple[Tensor, ...] | list[Tensor]) -> tuple[Tensor, ...]:
    """The matrices of all groups ``(n, rows, dim, blocks or 1)`` in their entries ``(n, entries)``."""
    sizes = [m[0].numel() for m in shapes]
    parts: list[Tensor] = list(torch.split(entries[:, : sum(sizes)], sizes, 1))
    return tuple(part.view(len(part), *m.shape[1:]) for part, m in zip(parts, shapes, strict=True))


def _work(entries: Tensor, rows: Tensor, share: Tensor) -> int:
    """Numbers that a pass over an instance reads, about."""
    return 2 * entries.shape[1] + 8 * rows.shape[1] + 4 * share.shape[1]
