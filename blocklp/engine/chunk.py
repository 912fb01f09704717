"""Chunks: instances that are iterated together, and leave or are frozen when they are done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.engine.best_bound import BestBound
from blocklp.engine.candidates import Candidates, MeanCandidates
from blocklp.engine.limits import Limits
from blocklp.engine.points import floor
from blocklp.engine.records import Repair, Results, Start, picked, zeros
from blocklp.engine.schedule import Schedule
from blocklp.engine.stopping import Checked, StopRules
from blocklp.kernels.plan import Plan
from blocklp.methods import Method
from blocklp.status import Status


@dataclass(frozen=True)
class Task:
    """What all chunks of a solve share.

    Attributes
    ----------
    method : Method
        The method.
    dtype : torch.dtype
        Precision of the iterates.
    limits : Limits
        What the caller asked for, of all instances.
    repair : callable or None
        Hook of the caller.
    rounds : float
        Chunks for each thread.
    results : Results
        Of all instances, written.
    """

    method: Method
    dtype: torch.dtype
    limits: Limits
    repair: Repair | None
    rounds: float
    results: Results


class Chunk:
    """Instances that are iterated together; those that are done leave, and all tensors follow the others.

    Parameters
    ----------
    plan : Plan
        Of the instances, in float64.
    part : slice
        Their numbers.
    task : Task
        What all chunks of a solve share.

    Attributes
    ----------
    rows : Tensor
        ``(k,)`` int64: numbers of the active instances.
    positions : Tensor or None
        ``(k,)`` int64: which of the instances held they are; None where those that are done have left.
    plan, iterated : Plan
        Of the instances held, in float64 and in the precision of the iterates.
    state : MethodState
        State of the method.
    best : BestBound
        Their best bounds.
    memory : tuple of Tensor or None
        Primal-dual warm start of all instances of the chunk that are done.
    """

    positions: Tensor | None = None
    offered: ClassVar[type[Candidates]] = Candidates
    state: Any
    best: BestBound
    rules: StopRules

    def __init__(self, plan: Plan, part: slice, task: Task) -> None:
        self.plan = self.iterated = plan
        self.part, self.results, self.limits = part, task.results, task.limits
        self.method, self.dtype = task.method, task.dtype
        self.rows = torch.arange(part.start, part.stop, device=plan.problem.cost.device)
        self.candidates = self.offered(task.results, task.limits, task.repair, part)
        self.schedule = Schedule(task.method, task.limits, task.dtype == torch.float64, task.rounds)
        self.memory: tuple[Tensor, ...] | None = None

    @property
    def problem(self) -> Decomposition:
        """The mathematics of the instances held, in double precision."""
        return self.plan.problem

    @property
    def swept(self) -> bool:
        """Whether passes are compiled loops, which deal the instances out to threads themselves."""
        return self.method.in_loops(self.plan)

    def begin(self, start: Start) -> None:
        """Make the first pass, from where all instances start.

        Raises
        ------
        TimeLimitError
            If there is no time to prepare the method.
        """
        start = picked(start, self.part)
        self.plan = self.plan.begun()
        self.iterated = self.plan.to(self.dtype)
        self.rules = StopRules(self.limits, self.rows, self.problem)
        if start.duals is None:
            first = self.problem.to_dual(self.problem.cost).to(self.dtype)
            best = zeros(first, first.shape[1], self._kept)
        else:
            first = self.problem.recentred(start.duals).to(self.dtype)
            best = first.to(self._kept, copy=True)
        self.best = BestBound(best)
        self.state = self.method.start(self.iterated, first, start.eta)
        if start.warm is not None:
            self.state = self.method.resume(self.iterated, self.state, start.warm)
        self.schedule.passes = 1

    def give_up(self) -> None:
        """End without a pass: nothing is known but what the bounds of the variables say."""
        self.results.status[self.rows], self.rows = int(Status.TIME_LIMIT), self.rows[:0]

    def check(self) -> None:
        """Evaluate the finished state, look for points and for reasons to stop."""
        out, rows, schedule, value = self.results, self.rows, self.schedule, self.state.value
        if not schedule.known:
            value = self.best.evaluate(self.plan, self.state.duals, out.primal[self._held])
            schedule.passes += 1
        self.candidates.update(self.plan, self.method, self.state, self.best.value, rows, schedule.passes)
        value, bound, primal = self._active(value), self._active(self.best.value), out.primal[rows]
        out.bound[rows] = bound
        out.floor[rows] = least = self._active(floor(self.problem, out.x[self._held]))
        seconds, out_of_time = self.limits.deadline.elapsed(), schedule.out_of_time
        infeasible = self.rules.infeasible(self.problem, bound, self.best.duals, self.positions)
        limits = schedule.passes, schedule.out_of_passes, out_of_time
        status = self.rules.update(Checked(bound, primal, value, least, infeasible, *limits))
        out.status[rows] = status
        out.passes.index_fill_(0, rows, schedule.passes)
        out.seconds.index_fill_(0, rows, seconds)
        done = status.nonzero()[:, 0]
        if len(done):
            self._leave(status, done)

    def advise(self) -> None:
        """Tell the method what a check has found."""
        gap = self.results.gap()[self.rows]
        self.state = self.method.checked(self.iterated, self.state, gap)

    def drop(self, stop: Tensor) -> None:
        """Interrupt the active instances of a mask ``(batch,)``."""
        done = stop[self.rows].nonzero()[:, 0]
        if len(done) and self.schedule.passes:
            self._leave(torch.full_like(self.rows, Status.INTERRUPTED), done)
        elif len(done):
            self.results.status[self.rows[done]] = int(Status.INTERRUPTED)

    @property
    def _kept(self) -> torch.dtype:
        """Precision of the best multipliers: that of the iterates, whose bounds are float64 in any case."""
        return self.dtype

    @property
    def _held(self) -> Tensor | slice:
        """Numbers of the instances held."""
        return self.rows

    def _active(self, values: Tensor) -> Tensor:
        """Values ``(k,)`` of the active instances among those held."""
        return values

    def _leave(self, status: Tensor, done: Tensor) -> None:
        """Write out the active instances at some positions and go on with the others."""
        rows, out = self.rows[done], self.results
        at = done if self.positions is None else self.positions[done]
        out.bound[rows] = self.best.value[at]
        self.candidates.finish(self.plan, at)
        self._write(rows, at)
        out.status[rows] = status[done]
        out.passes[rows] = self.schedule.passes
        out.seconds[rows] = self.limits.deadline.elapsed()
        if self.method.proximal:
            out.eta[rows] = self.state.eta[at].double()
        known = self.method.remember(self.iterated, self.state)
        if known is not None:
            if self.memory is None:
                count = self.part.stop - self.part.start
                self.memory = tuple(t.new_zeros(count, *t.shape[1:]).double() for t in known)
            for kept, now in zip(self.memory, known, strict=True):
                kept[rows - self.part.start] = now[at].double()
        stay = torch.ones_like(status, dtype=torch.bool).index_fill(0, done, False).nonzero()[:, 0]
        left = {"rows": self.rows[stay], "rules": self.rules.select(stay), **self._remaining(stay)}
        vars(self).update(left)  # at once, whatever interrupts

    def _write(self, rows: Tensor, at: Tensor) -> None:
        """Write the multipliers of instances ``rows``, at positions ``at`` of those held."""
        self.results.duals[rows] = self.best.duals[at].double()

    def _remaining(self, stay: Tensor) -> dict[str, Any]:
        """Attributes once only the instances at positions ``stay`` are active."""
        if not len(stay):
            return {}
        plan = self.plan.select(stay)
        return {
            "plan": plan,
            "iterated": plan if self.dtype == torch.float64 else self.iterated.select(stay),
            "state": self.state.select(stay),
            "best": self.best.select(stay),
            "candidates": self.candidates.select(stay),
        }


class FrozenChunk(Chunk):
    """Instances that stay in place: freezing those that are done spares copying others."""

    positions: Tensor
    offered = MeanCandidates

    def begin(self, start: Start) -> None:
        """Make the first pass, with all instances active."""
        self.positions = torch.arange(len(self.rows))
        super().begin(start)

    @property
    def swept(self) -> bool:
        """Whether passes are compiled loops, which deal the instances out to threads themselves."""
        return True

    def advise(self) -> None:
        """Do nothing: the methods of these loops take no advice."""

    @property
    def _held(self) -> slice:
        """Numbers of the instances held: all of the chunk."""
        return self.part

    def _active(self, values: Tensor) -> Tensor:
        return values[self.positions]

    def _write(self, rows: Tensor, at: Tensor) -> None:
        if len(rows) == len(self.rows):  # the last ones: to write those of all at once takes least
            self.results.duals[self.part] = self.best.duals

    def _remaining(self, stay: Tensor) -> dict[str, Any]:
        positions = self.positions[stay]
        plans = self.plan.with_active(positions), self.iterated.with_active(positions)
        return {"positions": positions, "plan": plans[0], "iterated": plans[1]}
