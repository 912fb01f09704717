r"""The plan of execution of a decomposition: compiled loops, parts with partial sums, and a deadline.

A block type names its loops (:class:`HasLoops`).  They sum in another order than tensor operations;
improvements that this could explain do not count (:data:`blocklp.engine.best_bound.NOTICED`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.capabilities import HasIntervals, HasLoops, supports
from blocklp.blocks.contract import Rows, pick
from blocklp.deadline import Deadline
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.decomposition.valid_bounds import NOISE, with_offset
from blocklp.kernels import compiled
from blocklp.kernels.backend import AUTO, Backend, choose
from blocklp.kernels.compiled import TURNS, tiles
from blocklp.kernels.program import MOST_PARTS, Program
from blocklp.kernels.prox_source import block_data, module_of
from blocklp.kernels.settings import EngineSettings

_NO_TURNS = torch.zeros(0, dtype=torch.long)
_NO_TOTALS = torch.zeros(0, 8, dtype=torch.float64)
_NO_SUMS = {kind: torch.zeros(0, 4, 0, dtype=kind) for kind in (torch.float32, torch.float64)}


@dataclass(frozen=True)
class Plan:
    """A decomposition, and how it is executed on the machine at hand.

    Attributes
    ----------
    problem : Decomposition
        The mathematics.
    deadline : Deadline
        When a solve of it gives up; methods ask it where they take long.
    backend : Backend
        What runs the operations; before :meth:`settled`, what was asked for.
    settings : EngineSettings
        How work is divided.
    divided : tuple or None
        Parts in which large instances are summed, and one past the last variable that these share.
    loops : Loops or None
        Compiled loops that a solve decided to use.
    programs : dict
        What :attr:`program` wrote out last, by precision; problems that differ in costs alone share it.
    """

    problem: Decomposition
    deadline: Deadline = field(default_factory=Deadline)
    backend: Backend = AUTO
    settings: EngineSettings = field(default_factory=EngineSettings)
    divided: tuple[int, int] | None = None
    loops: Loops | None = None
    programs: dict[torch.dtype, Program] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        problem: Decomposition,
        deadline: Deadline | None = None,
        backend: Backend = AUTO,
        settings: EngineSettings | None = None,
    ) -> Plan:
        """Plan a solve, large instances in parts: as many as their blocks outweigh.

        Parameters
        ----------
        problem : Decomposition
            The mathematics.
        deadline : Deadline, optional
            When a solve of it gives up; by default never.
        backend : Backend
            What is asked for.
        settings : EngineSettings, optional
            How work is divided.
        """
        plan = cls(problem, deadline or Deadline(), backend, settings or EngineSettings())
        local = problem.cost.device.type == "cpu" and not problem.coupling.maps
        if problem.copies < plan.settings.divided_copies or not plan.loopable or not local:
            return plan
        blocks = max(group.blocks for group in problem.groups if looped(group))
        return replace(plan, divided=(max(2, min(MOST_PARTS, blocks // (2 * max(plan.used, 1)))), plan.used))

    @property
    def program(self) -> Program:
        """The rows of all blocks, written out once, whatever the costs; see :meth:`Program.build`."""
        known = self.programs.get(self.problem.cost.dtype)
        if known is None:
            known = Program.build(self.problem, self.deadline, self.backend, self.settings)
        elif known.backend is not self.backend:
            known = replace(known, backend=self.backend)
        self.programs[self.problem.cost.dtype] = known
        return known

    @property
    def written(self) -> Program | None:
        """The rows of all blocks, where some method has written them out."""
        return self.programs.get(self.problem.cost.dtype)

    @cached_property
    def loopable(self) -> bool:
        """Whether loops may run over whole instances: one group has compiled loops, all others are boxes."""
        groups = self.problem.groups
        boxes = [supports(group.type, HasIntervals) for group in groups]
        if self.problem.rows is not None or sum(boxes) != len(boxes) - 1:
            return False
        return looped(groups[boxes.index(False)])

    @cached_property
    def met(self) -> Tensor:
        """Variables that real blocks of types with compiled loops share: ``(batch or 1, variables)`` bool."""
        coupling = self.problem.coupling
        index = coupling.index
        met = torch.zeros(len(index), coupling.variables, dtype=torch.bool, device=index.device)
        for group in self.problem.groups:
            # Blocks that only pad have a variable of their own.
            real = met.new_ones(1, 1) if group.alive is None else group.alive > 0
            for (first, last), shared in zip(group.spans, group.curved.tolist(), strict=True):
                if shared and looped(group):
                    places = coupling.index[:, first:last]
                    met.scatter_(1, places, real.expand(places.shape))
        return met

    @cached_property
    def used(self) -> int:
        """One past the last variable of :attr:`met`; of all instances where these are summed in parts."""
        if self.divided is not None:
            return self.divided[1]
        columns = self.met.any(0).nonzero()
        return int(columns[-1]) + 1 if len(columns) else 0

    @property
    def parts(self) -> int:
        """Parts of every instance that have partial sums of their own, whatever the number of threads."""
        return 1 if self.divided is None else self.divided[0]

    def select(self, rows: Rows) -> Plan:
        """Return the plan of some instances: numbers ``(k,)`` int64, or a slice."""
        programs = {kind: program.select(rows) for kind, program in self.programs.items()}
        loops = None if self.loops is None else self.loops.select(rows)
        return replace(self, problem=self.problem.select(rows), loops=loops, programs=programs)

    def to(self, dtype: torch.dtype) -> Plan:
        """Return the plan of the same problem in another precision."""
        return replace(self, problem=self.problem.to(dtype))

    def settled(self, kind: torch.dtype, passes: int) -> Plan:
        """Return the plan with a backend chosen for iterates in a precision and so many passes, as a rule."""
        problem = self.problem
        named = {loops_of(group) or scalar_loops(group) for group in problem.groups}
        kernels = frozenset(name.partition(":")[0] for name in named if name)
        size = problem.batch * problem.copies
        backend = choose(self.backend.name, problem.cost.device, size, passes, kernels, kind, self.deadline)
        return replace(self, backend=backend)

    def loaded(self, whole: bool) -> Plan:
        """Return the plan with compiled loops, where some group has them and the backend serves them.

        With ``whole`` loops run over whole instances where possible; these give the means of the blocks'
        points, but not the points themselves.
        """
        return replace(self, loops=_load(self, whole))

    def over(self) -> Plan:
        """Return the plan with tables of its instances for the loops, if there are loops."""
        return self if self.loops is None else replace(self, loops=self.loops.over(self))


@dataclass(frozen=True)
class Loops:
    """Compiled loops of a problem.

    Attributes
    ----------
    passes : tuple
        A pass over each group's blocks, called with the group; None where tensor operations do it.
    alone : tuple or None
        Number of the one group that shares variables, all others being nothing but bounds, and its loops by
        their names (:attr:`Only.find`), if it has some.
    only : Only or None
        Loops over that group, for the instances of :meth:`over`.
    used : int
        One past the last variable that blocks of that group share.
    """

    passes: tuple[Callable[..., None] | None, ...]
    alone: tuple[int, Callable[[str], Callable[..., None]]] | None
    only: Only | None = None
    used: int = 0

    def over(self, plan: Plan) -> Loops:
        """Return the loops with tables of a plan's instances."""
        if self.alone is None:
            return self
        only, used = Only.over(plan, *self.alone)
        return replace(self, only=only, used=used)

    def select(self, rows: Rows) -> Loops:
        """Return the loops over some instances."""
        return self if self.only is None else replace(self, only=self.only.select(rows))

    def with_active(self, active: Tensor) -> Loops:
        """Return loops in which instances at positions ``active`` ``(k,)`` are active, all others frozen."""
        assert self.only is not None
        return replace(self, only=replace(self.only, live=active))


@dataclass(frozen=True)
class Only:
    """Loops over whole instances, for the only group that shares variables; all others are only bounds.

    Attributes
    ----------
    group : int
        Its number.
    find : callable
        A loop by its name: ``passes``, ``bounds``, ``completed`` and ``certified`` for whole instances,
        ``divided`` for the passes of a single large one, ``restart``, ``products``.
    room : Tensor or None
        ``(parts, 4, used)`` for the sums of a large instance: as many as its blocks outweigh, whatever the
        number of threads.
    filled : Tensor
        :attr:`Group.filled`.
    live : Tensor
        ``(k,)`` int64: the active instances; frozen ones keep their place, which spares copying the others.
    met : Tensor
        ``(batch or 1, variables)`` bool: variables that blocks of the group share.
    private : Tensor
        ``(batch or 1, variables)`` bool: variables in blocks of other groups.
    narrow : Tensor
        ``(batch,)`` bool: whether some variable of the group that is not shared has tighter bounds than 0 and
        1.
    ends : int
        One past the last variable that is met or private.
    rest, largest, size : Tensor
        ``(batch,)``: value of all other groups and the constant less their rounding, largest magnitude of a
        variable of the group, sum of the sizes of the costs.
    """

    group: int
    find: Callable[[str], Callable[..., None]]
    room: Tensor | None
    filled: Tensor
    live: Tensor
    met: Tensor
    private: Tensor
    narrow: Tensor
    ends: int
    rest: Tensor
    largest: Tensor
    size: Tensor

    def dealt(self, kind: torch.dtype) -> tuple[int, Tensor, int, Tensor, Tensor]:
        """Work for the passes of a large instance by threads.

        Returns
        -------
        units : int
            Units of work: instances, or the parts of a single one.
        turns : Tensor
            State of the phase barrier, int64.
        parts : int
            Parts of an instance.
        sums, totals : Tensor
            ``(parts, 4, used)`` and ``(parts, 8)`` where the units are parts, else empty.
        """
        parts = 1 if self.room is None else len(self.room)
        if self.room is None or len(self.rest) > 1:
            return len(self.live), _NO_TURNS, parts, _NO_SUMS[kind], _NO_TOTALS
        sums = self.room.flatten().view(kind)[: self.room.numel()].view(self.room.shape)
        return parts, torch.zeros(TURNS, dtype=torch.long), parts, sums, self.rest.new_empty(parts, 8)

    def select(self, rows: Rows) -> Only:
        """Return the loops over some instances, all of them active."""
        shared = self.filled, self.met, self.private
        filled, met, private = (pick(v, rows) if len(v) > 1 else v for v in shared)
        rest = pick(self.rest, rows)
        return replace(
            self,
            live=torch.arange(len(rest)),
            filled=filled,
            met=met,
            private=private,
            narrow=pick(self.narrow, rows),
            rest=rest,
            largest=pick(self.largest, rows),
            size=pick(self.size, rows),
        )

    @classmethod
    def over(cls, plan: Plan, number: int, find: Callable[[str], Callable[..., None]]) -> tuple[Only, int]:
        """Lay out the tables of a problem's instances for the loops.

        Parameters
        ----------
        plan : Plan
            The problem, and the parts in which it is summed.
        number : int
            Number of the only group that shares variables.
        find : callable
            Its loops by their names.

        Returns
        -------
        loops, used : Only, int
            The loops, and one past the last variable that the group shares.
        """
        problem = plan.problem
        group, index, rest = problem.groups[number], problem.coupling.index, torch.zeros_like(problem.offset)
        met, private = plan.met, torch.zeros_like(plan.met)
        tight, narrow = (problem.lower > 0) | (problem.upper < 1), torch.zeros(1, dtype=torch.bool)
        for other in problem.groups:
            # Blocks that only pad have a variable of their own.
            real = torch.ones(1, 1, dtype=torch.bool) if other.alive is None else other.alive > 0
            for (first, last), shared in zip(other.spans, other.curved.tolist(), strict=True):
                places = index[:, first:last]
                if other is not group:
                    private.scatter_(1, places, real.expand(places.shape))
                elif not shared:
                    rows = max(len(tight), len(places))
                    own = tight.expand(rows, -1).gather(1, places.expand(rows, -1))
                    narrow = narrow | (own & real).any(1)
            if other is not group:
                own = problem.coupling.spread_part(problem.cost, other.start, other.stop)
                extent = problem.extent.expand_as(problem.cost)
                extent = problem.coupling.spread_part(extent, other.start, other.stop)
                rounding_error = NOISE * (own.abs() * extent).sum(1)
                rest = rest + (other.block_values(other.blockwise(own)).sum(-1) - rounding_error)
        largest = problem.extent.masked_fill(private & ~met, 0.0).amax(1)
        columns, used = private.any(0).nonzero(), plan.used
        ends = max(used, int(columns[-1]) + 1 if len(columns) else 0)
        room = problem.cost.new_empty(plan.parts, 4, used) if plan.parts > 1 else None
        batch, rest = problem.batch, with_offset(rest, problem.offset)
        tables = (torch.arange(batch), met, private, narrow.expand(batch), ends, rest, largest.expand(batch))
        return cls(number, find, room, group.filled, *tables, problem.cost.abs().sum(1)), used


def looped(group: Group) -> bool:
    """Whether the type of a group names compiled loops."""
    return loops_of(group) is not None


def loops_of(group: Group) -> str | None:
    """The compiled loops that the type of a group names, or None."""
    return group.type.loops(group.curved) if supports(group.type, HasLoops) else None


def _load(plan: Plan, whole: bool) -> Loops | None:
    """Find the loops of a plan's groups, without tables of instances."""
    problem = plan.problem
    if problem.cost.device.type != "cpu" or problem.coupling.maps or problem.rows is not None:
        return None
    named = [loops_of(group) for group in problem.groups]
    modules = {name.partition(":")[0] for name in named if name}
    if None in [plan.backend.loops(module) for module in modules]:
        named = [None] * len(named)
    passes: list[Callable[..., None] | None] = []
    sharing: list[int | None] = []
    for n, (group, name) in enumerate(zip(problem.groups, named, strict=True)):
        find = _finder(name)
        passes.append(_scalar_pass(plan, group) if find is None else _table_pass(find("pass")))
        if group.shares:
            sharing.append(None if find is None else n)
        elif not _bounds_only(problem, group):
            sharing.append(None)
    if not any(passes):
        return None
    number, alone = sharing[0] if whole and len(sharing) == 1 else None, None
    if number is not None and (find := _finder(named[number])) is not None:
        alone = number, find
    return Loops(tuple(passes), alone)


def scalar_loops(group: Group) -> str | None:
    """The module of passes by the type's own proximal point of a block; None unless all is coupled."""
    return module_of(group.type) if bool(group.curved.all()) else None


def _scalar_pass(plan: Plan, group: Group) -> Callable[..., None] | None:
    """A pass over a group by its type's proximal point of one block, where the backend has it."""
    name = scalar_loops(group)
    if name is None or (module := plan.backend.loops(name)) is None:
        return None
    run: Callable[..., None] = module.pass_over_blocks

    def passed(group: Group, places: Tensor, eta: Tensor, *rest: Any) -> None:
        target, relaxation, anchor, age, ready, iterates, _, points = rest
        layout = (places, group.start, group.blocks, group.dim, group.filled)
        units, data = len(eta) * tiles(group.blocks), block_data(group.type)
        run(units, layout, eta, target, relaxation, (anchor, age, ready), iterates, points, data)

    return passed


def _table_pass(run: Callable[..., None]) -> Callable[..., None]:
    """A pass over the blocks of a group by loops of its type's own."""

    def passed(group: Group, places: Tensor, eta: Tensor, *rest: Any) -> None:
        run(len(eta) * tiles(group.blocks), places, group.start, group.blocks, eta, *rest)

    return passed


def _bounds_only(problem: Decomposition, group: Group) -> bool:
    """Whether a group is nothing but the bounds of its variables."""
    if not supports(group.type, HasIntervals):
        return False
    valid = torch.ones(1, dtype=torch.bool) if group.alive is None else group.alive[:, None] > 0
    sides = zip(group.type.intervals(), (problem.lower, problem.upper), strict=True)
    same = [a.transpose(1, 2) == group.rows(problem.spread(b.expand(problem.batch, -1))) for a, b in sides]
    return all(bool((s | ~valid).all()) for s in same)


def _finder(name: str | None) -> Callable[[str], Callable[..., None]] | None:
    if name is None:
        return None
    source, _, which = name.partition(":")
    module = compiled.loops(source)
    return lambda what: getattr(module, f"{which}_{what}")
