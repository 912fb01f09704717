r"""The plan of execution of a decomposition: its backend, compiled loops, partial sums and deadline.

Loops sum in another order than tensor operations; improvements that this could explain do not count
(:data:`blocklp.engine.best_bound.NOTICED`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from blocklp.blocks.contract import Rows
from blocklp.deadline import Deadline
from blocklp.decomposition.problem import Decomposition
from blocklp.kernels.backend import AUTO, Backend, choose
from blocklp.kernels.instances import (
    Instances,
    checks_in_loops,
    last_of,
    loops_of,
    only_one,
    pass_over,
    shared_variables,
)
from blocklp.kernels.program import MOST_PARTS, Program
from blocklp.kernels.settings import EngineSettings


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
        if problem.copies < plan.settings.divided_copies or (number := only_one(problem)) is None:
            return plan
        group = problem.groups[number]
        used = last_of(shared_variables(problem, group))
        return replace(plan, divided=(max(2, min(MOST_PARTS, group.blocks // (2 * max(used, 1)))), used))

    @property
    def instances(self) -> Instances | None:
        """Loops over whole instances, where they run."""
        return None if self.loops is None else self.loops.instances

    @property
    def freezes(self) -> bool:
        """Whether loops do all for whole instances, which then stay in place when they are done."""
        loops = self.loops
        if loops is None or loops.whole is None:
            return False
        return checks_in_loops(self.problem.groups[loops.whole])

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
        kernels = frozenset(name for group in problem.groups if (name := loops_of(group)) is not None)
        size = problem.batch * problem.copies
        backend = choose(self.backend.name, problem.cost.device, size, passes, kernels, kind, self.deadline)
        return replace(self, backend=backend)

    def loaded(self, whole: bool) -> Plan:
        """Return the plan with compiled loops, where some group has them and the backend serves them.

        With ``whole`` loops run over whole instances where possible; these give the means of the blocks'
        points, but not the points themselves.
        """
        problem = self.problem
        if problem.cost.device.type != "cpu" or problem.coupling.maps or problem.rows is not None:
            return replace(self, loops=None)
        names = [loops_of(group) for group in problem.groups]
        modules = [None if name is None else self.backend.loops(name) for name in names]
        if not any(modules):
            return replace(self, loops=None)
        only = only_one(problem) if whole else None
        passes = tuple(None if module is None else pass_over(module) for module in modules)
        return replace(self, loops=Loops(passes, None if only is None or modules[only] is None else only))

    def over(self) -> Plan:
        """Return the plan with tables of its instances for loops over whole instances, where these run."""
        if self.loops is None or self.loops.whole is None:
            return self
        number, problem = self.loops.whole, self.problem
        module = self.backend.loops(str(loops_of(problem.groups[number])))
        assert module is not None
        instances = Instances.of(problem, number, module, self.divided)
        return replace(self, loops=replace(self.loops, instances=instances))


@dataclass(frozen=True)
class Loops:
    """Compiled loops of a problem.

    Attributes
    ----------
    passes : tuple
        A pass over each group's blocks, called with the group; None where tensor operations do it.
    whole : int or None
        Number of the one group that shares variables, where loops run over whole instances.
    instances : Instances or None
        These loops, once :meth:`Plan.over` has laid out tables.
    """

    passes: tuple[Callable[..., None] | None, ...]
    whole: int | None = None
    instances: Instances | None = None

    def select(self, rows: Rows) -> Loops:
        """Return the loops over some instances."""
        return self if self.instances is None else replace(self, instances=self.instances.select(rows))

    def with_active(self, active: Tensor) -> Loops:
        """Return loops in which instances at positions ``active`` ``(k,)`` are active, all others frozen."""
        assert self.instances is not None
        return replace(self, instances=replace(self.instances, active=active))
