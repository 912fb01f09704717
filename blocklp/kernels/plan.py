r"""The plan of execution of a decomposition: its backend, the tables that this prepared, and the deadline.

Backends add in different orders: a bound counts as better only from a relative improvement of 1e-13 on
(:data:`blocklp.engine.best_bound.NOTICED`).

A solve chooses a backend (:meth:`Plan.settled`), has it prepare tables (:meth:`Plan.laid_out`) and fill
them for a chunk of instances (:meth:`Plan.begun`).  Tables are *whole* where one call makes passes over
all blocks of an instance and keeps means alone; *in place* where instances that are done are skipped
and not removed: the others are *active*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from blocklp.blocks.contract import Rows
from blocklp.deadline import Deadline
from blocklp.decomposition.incidence import CopySums
from blocklp.decomposition.problem import Decomposition
from blocklp.errors import OptionError
from blocklp.kernels.backend import AUTO, BY_BLOCKS, ENGINE, Backend, choose
from blocklp.kernels.instances import loops_of
from blocklp.kernels.operations import LAYOUTS, OPERATIONS, operation, unknown_names
from blocklp.kernels.program import Program
from blocklp.kernels.settings import EngineSettings
from blocklp.kernels.step_sizes import StepSizes

Laid = TypeVar("Laid")


class Tables(Protocol):
    """What a backend's implementations keep beside a problem (:mod:`blocklp.kernels.operations`)."""

    @property
    def whole(self) -> bool:
        """Whether passes take whole instances, and keep the means of coupled copies, not their points."""

    @property
    def in_place(self) -> bool:
        """Whether checks take whole instances too, so that those that are done stay where they are."""

    def filled(self, plan: Plan) -> Self:
        """The tables of the instances of a plan, which are about to be iterated on."""

    def select(self, rows: Rows) -> Self:
        """The tables of some instances, all of them active."""

    def with_active(self, active: Tensor) -> Self:
        """Tables in which instances at positions ``active`` ``(k,)`` int64 are active, all others frozen."""


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
    tables : Tables or None
        What the backend's implementations keep beside the problem.
    programs : dict
        What :attr:`program` wrote out last, by precision; problems that differ in costs alone share it.
    step_sizes : dict
        What :attr:`steps` estimated, likewise.
    kept : dict
        What :meth:`keep` holds; problems that differ in costs alone share it.
    """

    problem: Decomposition
    deadline: Deadline = field(default_factory=Deadline)
    backend: Backend = AUTO
    settings: EngineSettings = field(default_factory=EngineSettings)
    tables: Tables | None = None
    programs: dict[torch.dtype, Program] = field(default_factory=dict, repr=False)
    step_sizes: dict[torch.dtype, StepSizes] = field(default_factory=dict, repr=False)
    kept: dict[object, Any] = field(default_factory=dict, repr=False)

    @property
    def whole(self) -> bool:
        """Whether passes take whole instances, and keep the means of coupled copies alone."""
        return self.tables is not None and self.tables.whole

    @property
    def in_place(self) -> bool:
        """Whether instances that are done stay in place: passes and checks take whole instances."""
        return self.tables is not None and self.tables.in_place

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
    def steps(self) -> StepSizes:
        """The step sizes of the rows, estimated once, when a pass over the rows is made."""
        known = self.step_sizes.get(self.problem.cost.dtype)
        if known is None:
            known = StepSizes.of(self.program, self.problem, self.deadline)
            self.step_sizes[self.problem.cost.dtype] = known
        return known

    @property
    def written(self) -> Program | None:
        """The rows of all blocks, where some method has written them out."""
        return self.programs.get(self.problem.cost.dtype)

    def select(self, rows: Rows) -> Plan:
        """Return the plan of some instances: numbers ``(k,)`` int64, or a slice."""
        programs = {kind: program.select(rows) for kind, program in self.programs.items()}
        steps = {kind: own.select(rows) for kind, own in self.step_sizes.items()}
        tables, problem = None if self.tables is None else self.tables.select(rows), self.problem.select(rows)
        return replace(self, problem=problem, tables=tables, programs=programs, step_sizes=steps, kept={})

    def to(self, dtype: torch.dtype) -> Plan:
        """Return the plan of the same problem in another precision."""
        return replace(self, problem=self.problem.to(dtype))

    def keep(self, key: object, lay_out: Callable[[], Laid]) -> Laid:
        """Lay out tables once for all solves whose problems differ in costs alone.

        Parameters
        ----------
        key : hashable
            Names the tables and whatever beside the problem they depend on.
        lay_out : callable
            Makes them, of blocks, scopes and bounds; not of costs.

        Returns
        -------
        Laid
            The tables, which nobody may write to.
        """
        if key not in self.kept:
            self.kept[key] = lay_out()
        found: Laid = self.kept[key]
        return found

    def settled(self, dtype: torch.dtype, passes: int, by_rows: bool = True) -> Plan:
        """Return the plan with a backend chosen.

        Parameters
        ----------
        dtype : dtype
            Precision of the iterates.
        passes : int
            Passes that the method takes, as a rule.
        by_rows : bool
            Whether the method takes rows beside the blocks; else the loops for these are not loaded.

        Returns
        -------
        Plan
            The plan, whose problem sums copies by the tables of that backend.

        Raises
        ------
        OptionError
            If the backend implements an operation that there is not.
        """
        problem = self.problem
        kernels = frozenset(name for group in problem.groups if (name := loops_of(group)) is not None)
        size = problem.batch * problem.copies
        own, engine = (self.backend.name, problem.cost.device, size, passes), ENGINE if by_rows else BY_BLOCKS
        backend = choose(*own, kernels, dtype, self.deadline, engine)
        if unknown := unknown_names(backend.builds_on):
            there = ", ".join(sorted(OPERATIONS))
            raise OptionError(f"backend {backend.name!r} implements {', '.join(unknown)}; there are {there}")
        plan = replace(self, backend=backend)
        sums = copy_sums(plan)
        return plan if sums is None else replace(plan, problem=summed_by(problem, sums))

    def laid_out(self, whole: bool) -> Plan:
        """Return the plan with tables of the first backend that has some for the problem.

        With ``whole`` passes may take whole instances where possible; these give the means of the blocks'
        points, but not the points themselves.
        """
        for name in self.backend.builds_on:
            found = LAYOUTS[name](self, whole) if name in LAYOUTS else None
            if found is not None:
                return replace(self, tables=found)
        return replace(self, tables=None)

    def begun(self) -> Plan:
        """Return the plan with tables of its own instances."""
        return self if self.tables is None else replace(self, tables=self.tables.filled(self))

    def with_active(self, active: Tensor) -> Plan:
        """Return the plan in which instances at positions ``(k,)`` int64 are active, all others frozen."""
        assert self.tables is not None
        return replace(self, tables=self.tables.with_active(active))


@operation
def copy_sums(plan: Plan) -> CopySums | None:
    """The tables that sum the copies of every variable in :meth:`Decomposition.collect`.

    Parameters
    ----------
    plan : Plan
        The problem, and the backend that has been chosen.

    Returns
    -------
    CopySums or None
        A function ``(batch, copies) -> (batch, variables)`` with the sums of some instances, ``select``; None
        for tensor operations (:meth:`Coupling.collect`).
    """
    return None


def summed_by(problem: Decomposition, sums: CopySums | None) -> Decomposition:
    """Return the problem with other sums of copies; those of tensor operations for None."""
    return replace(problem, coupling=replace(problem.coupling, sums=sums))
