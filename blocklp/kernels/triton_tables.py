"""Index tables of the blocks that Triton's kernels of :class:`blocklp.methods.Admm` serve.

A group is served where its type has a proximal point of one block that can be translated
(:mod:`blocklp.kernels.triton_source`), for the coordinates that are coupled.  Passes take whole instances
where all groups that share variables are; the others keep the oracle's answer anyway.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.blocks.contract import Rows, pick
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.kernels.instances import only_one
from blocklp.kernels.operations import lays_out
from blocklp.kernels.plan import Plan
from blocklp.kernels.triton_checks import CheckTables, index_dtype
from blocklp.kernels.triton_source import BlockFunctions, functions_of

LONGEST = 128
"""Most copies of a variable that one lane adds up."""


@dataclass(frozen=True)
class GroupTable:
    """A group that is served.

    Attributes
    ----------
    number : int
        Which one.
    functions : BlockFunctions
        Those of its type.
    places : Tensor
        ``(batch or 1, coupled copies)``: their variables.
    filled : Tensor
        ``(batch or 1,)``: blocks that are no padding.
    """

    number: int
    functions: BlockFunctions
    places: Tensor
    filled: Tensor

    @classmethod
    def of(cls, problem: Decomposition, number: int, functions: BlockFunctions) -> GroupTable:
        """The table of a group of a problem.

        Parameters
        ----------
        problem, number, functions : Decomposition, int, BlockFunctions
            The problem, the number of the group, and the functions of its type.
        """
        group, dtype = problem.groups[number], index_dtype(problem)
        stop = group.start + functions.coupled * group.blocks
        places = problem.coupling.index[:, group.start : stop].to(dtype).contiguous()
        if group.valid is None:
            filled = torch.full((1,), group.blocks, dtype=dtype, device=places.device)
        else:
            filled = group.valid.sum(1).to(dtype)
        return cls(number, functions, places, filled)

    def select(self, rows: Rows) -> GroupTable:
        """The table of some instances."""
        return replace(self, places=_own(self.places, rows), filled=_own(self.filled, rows))


@dataclass(frozen=True)
class CopyTables:
    """Coupled copies of the groups that are served, by variable.

    Attributes
    ----------
    order : Tensor
        ``(batch or 1, copies)``: numbers of the copies, those of one variable side by side and in order.
    ends : Tensor
        ``(batch or 1, shown + 1)``: where those of each listed variable begin.
    listed : Tensor
        ``(batch or 1, shown)``: the variables that have some; those of an instance that has fewer come to end
        where they begin.
    hubs : Tensor
        ``(batch or 1, k + 1)``: which of the listed variables have more than :data:`LONGEST` copies, and then
        ``shown``.
    """

    order: Tensor
    ends: Tensor
    listed: Tensor
    hubs: Tensor

    @classmethod
    def of(cls, problem: Decomposition, tables: tuple[GroupTable, ...]) -> CopyTables:
        """Sort the coupled copies of a problem; the host waits once, for numbers of variables.

        Parameters
        ----------
        problem : Decomposition
            The problem.
        tables : tuple of GroupTable
            Those of its groups.
        """
        variables, device = problem.coupling.variables, problem.cost.device
        rows = max(len(t) for table in tables for t in (table.places, table.filled))
        numbers, places = [], []
        for table in tables:
            group, coupled = problem.groups[table.number], table.functions.coupled
            numbers.append(torch.arange(group.start, group.start + coupled * group.blocks, device=device))
            block = torch.arange(group.blocks, device=device).repeat(coupled)
            there = block < table.filled[:, None]
            own = torch.where(there, table.places.long(), variables)
            places.append(own.expand(rows, -1))
        place, number = torch.cat(places, 1), torch.cat(numbers)
        order = number[place.argsort(stable=True)]
        lengths = torch.zeros(rows, variables + 1, dtype=torch.long, device=device)
        lengths.scatter_add_(1, place, torch.ones_like(place))
        some, many = lengths[:, :-1] > 0, lengths[:, :-1] > LONGEST
        shown, most = torch.stack([some.sum(1).amax(), many.sum(1).amax()]).tolist()
        shown = max(1, shown)
        rank = torch.where(some, some.long().cumsum(1) - 1, shown)
        every = torch.arange(variables, device=device).expand(rows, -1)
        listed = torch.zeros(rows, shown + 1, dtype=torch.long, device=device).scatter_(1, rank, every)
        counts = torch.zeros_like(listed).scatter_(1, rank, lengths[:, :-1])[:, :-1]
        ends = torch.nn.functional.pad(counts.cumsum(1), (1, 0))
        place = torch.where(counts > LONGEST, (counts > LONGEST).long().cumsum(1) - 1, most)
        each = torch.arange(shown, device=device).expand(rows, -1)
        hubs = torch.full((rows, most + 1), shown, device=device).scatter_(1, place, each)
        hubs[:, -1] = shown
        dtype = index_dtype(problem)
        return cls(*(t.to(dtype).contiguous() for t in (order, ends, listed[:, :-1], hubs)))

    def select(self, rows: Rows) -> CopyTables:
        """The sums of some instances."""
        return CopyTables(*(_own(t, rows) for t in (self.order, self.ends, self.listed, self.hubs)))


@dataclass(frozen=True)
class TritonTables:
    """Tables of a problem, empty before :meth:`filled`.

    Attributes
    ----------
    functions : tuple
        :class:`BlockFunctions` of every group, None for those that tensor operations serve.
    all_shared : bool
        Whether those are all that share variables.
    groups : tuple of GroupTable
        The groups that are served.
    sums : CopyTables or None
        Where passes take whole instances.
    active : Tensor or None
        ``(k,)`` int64: the active instances.
    checked : int or None
        Number of the only group that shares variables, where kernels check whole instances.
    checks : CheckTables or None
        What these kernels take.
    """

    functions: tuple[BlockFunctions | None, ...]
    all_shared: bool
    groups: tuple[GroupTable, ...] = ()
    sums: CopyTables | None = None
    active: Tensor | None = None
    checked: int | None = None
    checks: CheckTables | None = None

    @property
    def whole(self) -> bool:
        """Whether passes take whole instances."""
        return self.all_shared

    @property
    def in_place(self) -> bool:
        """Whether checks take whole instances: they take those that are active."""
        return self.checked is not None

    def filled(self, plan: Plan) -> TritonTables:
        """The tables of the instances of a plan."""
        kept = plan.keep(
            ("triton tables", self.all_shared, self.checked), lambda: self._of_blocks(plan.problem)
        )
        return kept if kept.checks is None else replace(kept, checks=kept.checks.priced(plan.problem))

    def _of_blocks(self, problem: Decomposition) -> TritonTables:
        """The tables of the instances of a problem, whatever the costs."""
        found = tuple(
            GroupTable.of(problem, n, functions)
            for n, functions in enumerate(self.functions)
            if functions is not None
        )
        sums = CopyTables.of(problem, found) if self.all_shared else None
        active = torch.arange(problem.batch, device=problem.cost.device)
        checks = None
        if self.checked is not None and (functions := self.functions[self.checked]) is not None:
            checks = CheckTables.of(problem, self.checked, functions)
        return replace(self, groups=found, sums=sums, active=active, checks=checks)

    def select(self, rows: Rows) -> TritonTables:
        """The tables of some instances, all of them active."""
        if self.active is None:
            return self
        active = torch.arange(len(pick(self.active, rows)), device=self.active.device)
        sums = None if self.sums is None else self.sums.select(rows)
        checks = None if self.checks is None else self.checks.select(rows)
        groups = tuple(g.select(rows) for g in self.groups)
        return replace(self, groups=groups, sums=sums, active=active, checks=checks)

    def with_active(self, active: Tensor) -> TritonTables:
        """Tables in which instances at positions ``(k,)`` are active, all others frozen."""
        checks = None if self.checks is None else replace(self.checks, active=active)
        return replace(self, active=active, checks=checks)

    def group(self, number: int) -> GroupTable | None:
        """The table of a group, if it is served."""
        return next((own for own in self.groups if own.number == number), None)


@lays_out("triton")
def tables(plan: Plan, whole: bool) -> TritonTables | None:
    """Tables of the groups that kernels serve; None where there are none.

    Kernels that take whole instances give points too, so that they serve whether or not means are enough.
    """
    problem = plan.problem
    if problem.coupling.maps or problem.rows is not None:
        return None
    functions = tuple(_served(group) if group.shares else None for group in problem.groups)
    if not any(functions):
        return None
    pairs = list(zip(problem.groups, functions, strict=True))
    names = sorted({group.type.name for group, own in pairs if own is not None})
    logging.getLogger("blocklp").info("Triton kernels for passes over blocks of type %s", ", ".join(names))
    all_shared = all(own is not None for group, own in pairs if group.shares)
    return TritonTables(functions, all_shared, checked=_checked(problem, functions) if whole else None)


def _served(group: Group) -> BlockFunctions | None:
    """The functions of a group's type, where they serve for the coordinates that are coupled."""
    coupled = group.dim - group.type.private_coordinates
    if group.pattern != (True,) * coupled + (False,) * (group.dim - coupled):
        return None
    return functions_of(group.type, group.dim)


def _checked(problem: Decomposition, functions: tuple[BlockFunctions | None, ...]) -> int | None:
    """The number of the only group that shares variables, where kernels check whole instances."""
    number = only_one(problem)
    own = None if number is None else functions[number]
    if own is None or not own.unrolled or own.min_block is None or own.complete_block is None:
        return None
    return number


def _own(values: Tensor, rows: Rows) -> Tensor:
    """Values of some instances, ``(batch or 1, ...)``."""
    return values if len(values) == 1 else pick(values, rows)
