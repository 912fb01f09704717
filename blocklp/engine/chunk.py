"""Chunks: instances that are iterated together, and leave or are frozen when they are done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.engine.active import Active
from blocklp.engine.best_bound import BestBound
from blocklp.engine.candidates import Candidates, MeanCandidates
from blocklp.engine.limits import Limits
from blocklp.engine.records import Repair, Results, Snapshot, Start, picked, zeros
from blocklp.engine.schedule import CheckSchedule
from blocklp.engine.status_record import Readout, StatusRecord, status_record
from blocklp.engine.stopping import Moment, StopRules
from blocklp.kernels.plan import Plan
from blocklp.methods import Method
from blocklp.methods.base import StateParts
from blocklp.status import Status

COMPACTED = 0.5
"""On a device instances that are done leave once at most so large a part of those held is active: tensors of
the others are then copied."""

STATE = "state_"
"""What names of a snapshot's numbers begin with that are of the method's state."""


@dataclass(frozen=True)
class ChunkTask:
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
    observed : bool
        Whether the caller sees every check, which is then settled at once.
    results : Results
        Of all instances, written.
    """

    method: Method
    dtype: torch.dtype
    limits: Limits
    repair: Repair | None
    rounds: float
    observed: bool
    results: Results


@dataclass(frozen=True)
class Pending:
    """A check whose record is on its way to the host.

    Attributes
    ----------
    packed : Readout
        The record (:func:`blocklp.engine.status_record.status_record`).
    when : Moment
        When the check was made.
    value, eta : Tensor
        ``(held,)``: dual value and proximal weight, should points be projected.
    """

    packed: Readout
    when: Moment
    value: Tensor
    eta: Tensor


class Chunk:
    """Instances that are iterated together; those that are done leave, and all tensors follow the others.

    A check evaluates the present state and sends its record to the host, which settles the check: it applies
    the stop rules to the record.  On a CPU it does so at once.  On a device the record takes its time, and
    the host settles a check just before the next one, when passes have been made that instances which were
    done did not need; what is kept of these is what the check found.  Nothing depends on when the record
    arrives.

    Parameters
    ----------
    plan : Plan
        Of the instances, in float64.
    part : slice
        Their numbers.
    task : ChunkTask
        What all chunks of a solve share.

    Attributes
    ----------
    active : Active
        The active instances, among those held: on a device instances that are done leave when they are half
        of them.
    plan, iterated : Plan
        Of the instances held, in float64 and in the precision of the iterates.
    state : MethodState
        State of the method.
    best : BestBound
        Their best bounds.
    gap : Tensor
        ``(k,)`` float64 on the CPU: gaps of the active instances at the last check that was settled.
    memory : tuple of Tensor or None
        Primal-dual warm start of all instances of the chunk that are done.
    """

    offered: ClassVar[type[Candidates]] = Candidates
    state: Any
    best: BestBound
    rules: StopRules
    pending: Pending | None = None

    def __init__(self, plan: Plan, part: slice, task: ChunkTask) -> None:
        self.plan = self.iterated = plan
        self.part, self.results, self.limits = part, task.results, task.limits
        self.method, self.dtype = task.method, task.dtype
        self.active = Active.all_of(part, plan.problem.cost.device)
        self.candidates = self.offered(task.results, task.limits, task.repair, self.active.count)
        exact, on_device = task.dtype == torch.float64, self.active.device.type != "cpu"
        self.schedule = CheckSchedule(task.method, task.limits, exact, task.rounds, on_device)
        self.memory: tuple[Tensor, ...] | None = None
        self.gap = torch.full((self.active.count,), torch.inf, dtype=torch.float64)
        self.at_once = task.observed or task.method.advised or not on_device

    @property
    def problem(self) -> Decomposition:
        """The mathematics of the instances held, in double precision."""
        return self.plan.problem

    @property
    def rows(self) -> Tensor:
        """Numbers of the active instances: ``(k,)`` int64 on the CPU."""
        return self.active.rows

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
        if start.duals is None:
            self.state = self.method.opened(self.iterated, self.state)
        self.schedule.passes = 1
        if start.snapshot is not None:
            self._restore(start.snapshot)

    def snapshot(self) -> Snapshot:
        """All that passes go on from, once a check is settled; tensors are those of the solve."""
        out, kept = self.results, self.method.saved(self.iterated, self.state)
        numbers = {f"{STATE}{name}": torch.as_tensor(values) for name, values in kept.numbers.items()}
        numbers |= {"bound": self.best.value, "primal": out.primal[self.part], "floor": out.floor[self.part]}
        numbers |= {"repaired": out.repaired[self.part], "place": torch.tensor(self.schedule.place)}
        numbers |= {
            "last": torch.from_numpy(self.rules.last),
            "progress": torch.from_numpy(self.rules.passes),
        }
        copies, variables = kept.copies | {"best": self.best.duals}, kept.variables | {"x": out.x[self.part]}
        return Snapshot(copies, variables, kept.rows, numbers)

    def _restore(self, found: Snapshot) -> None:
        """Go on from a snapshot, of instances all of which are held."""
        out, numbers = self.results, found.numbers
        copies = {name: own for name, own in found.copies.items() if name != "best"}
        variables = {name: own for name, own in found.variables.items() if name != "x"}
        state = {name.removeprefix(STATE): own for name, own in numbers.items() if name.startswith(STATE)}
        kept = StateParts(copies, variables, found.rows, state)
        self.state = self.method.restored(self.iterated, self.state, kept)
        self.best.duals, self.best.value = found.copies["best"], numbers["bound"]
        out.x[self.part], out.primal[self.part] = found.variables["x"], numbers["primal"]
        out.floor[self.part], out.repaired[self.part] = numbers["floor"], numbers["repaired"]
        out.bound[self.part] = numbers["bound"]
        self.rules.last, self.rules.passes = numbers["last"].numpy(), numbers["progress"].numpy()
        passes, following = numbers["place"].tolist()
        self.schedule.place = passes, following
        found.resumed()

    def give_up(self) -> None:
        """End without a pass: nothing is known but what the bounds of the variables say."""
        self.results.status[self.rows] = int(Status.TIME_LIMIT)
        self.active = self.active.select(self.rows[:0])

    def check(self) -> None:
        """Settle the last check; then evaluate the finished state, and look for points."""
        self.settle()
        if not len(self.rows):
            return
        schedule, value = self.schedule, self.state.value
        if not schedule.known:
            primal = self.results.primal[self.active.held]
            value = self.best.evaluate(self.plan, self.state.duals, primal)
            schedule.passes += 1
        points = self.candidates.update(self.plan, self.method, self.state, self.best.value, self.active)
        packed = status_record(self.plan, self.best.value, value, *points, self.state.eta)
        limits = schedule.out_of_passes, schedule.out_of_time
        when = Moment(schedule.passes, self.limits.deadline.elapsed(), *limits)
        self.pending = Pending(Readout(packed), when, value, self.state.eta)
        if self.at_once or schedule.known or any(limits):
            self.settle()

    def settle(self) -> None:
        """Apply the stop rules to the last check, if that has not been done; whoever is done leaves."""
        if self.pending is None:
            return
        (pending, self.pending), out, rows = (self.pending, None), self.results, self.rows
        now, when = StatusRecord.of(pending.packed.read(), self.active.positions), pending.when
        if len(due := self.candidates.due(self.plan, now.worst, when.passes)):
            self.candidates.project(self.plan, self.best.value, self.active, due, when.passes)
            found = out.primal[self.active.held], out.x[self.active.held], None
            packed = status_record(self.plan, self.best.value, pending.value, *found, pending.eta)
            now = StatusRecord.of(Readout(packed).read(), self.active.positions)
        infeasible = self.rules.infeasible(self.problem, now.bound, self.best.duals, self.active.positions)
        status = self.rules.update(now, infeasible, when)
        known = {"bound": now.bound, "floor": now.floor, "status": status}
        if self.method.proximal:
            known["eta"] = now.eta
        out.note(rows, known | {"passes": when.passes, "seconds": when.seconds})
        self.gap = torch.from_numpy(now.gap)
        done = status.nonzero()[0]
        if len(done):
            self._leave(torch.from_numpy(done))

    def advise(self) -> None:
        """Tell the method what a check has found."""
        if self.method.advised:
            gap = torch.zeros(self.active.count, dtype=torch.float64)
            gap[self.active.positions] = self.gap
            self.state = self.method.checked(
                self.iterated, self.state, gap.to(self.active.device, non_blocking=True)
            )

    def drop(self, stop: Tensor) -> None:
        """Interrupt the active instances of a mask ``(batch,)``, on the CPU."""
        self.settle()
        out, done = self.results, stop[self.rows].nonzero()[:, 0]
        rows, at = self.rows[done], self.active.positions[done]
        out.status[rows] = int(Status.INTERRUPTED)
        if not len(done) or not self.schedule.passes:
            return
        bound, eta = torch.stack([self.best.value, self.state.eta.double()]).cpu()[:, at]
        out.bound[rows], out.passes[rows] = bound, self.schedule.passes
        out.seconds[rows] = self.limits.deadline.elapsed()
        if self.method.proximal:
            out.eta[rows] = eta
        self._leave(done)

    @property
    def _kept(self) -> torch.dtype:
        """Precision of the best multipliers: that of the iterates, whose bounds are float64 in any case."""
        return self.dtype

    def _leave(self, done: Tensor) -> None:
        """Write out the active instances of some numbers ``(j,)`` among them, and go on with the others."""
        self._write(self.active.select(done))
        leaves = torch.zeros(len(self.rows), dtype=torch.bool).index_fill(0, done, True)
        stay = (~leaves).nonzero()[:, 0]
        left = {
            "rules": self.rules.select(stay),
            "candidates": self.candidates.select(stay),
            "gap": self.gap[stay],
        }
        vars(self).update(left | self._remaining(self.active.select(stay)))  # at once, whatever interrupts

    def _write(self, leaving: Active) -> None:
        """Write the multipliers and the warm start of instances that leave."""
        numbers, at = leaving.there
        self.results.duals[numbers] = self.best.duals[at].double()
        known = self.method.remember(self.iterated, self.state)
        if known is None:
            return
        if self.memory is None:
            count = self.part.stop - self.part.start
            self.memory = tuple(t.new_zeros(count, *t.shape[1:]).double() for t in known)
        for kept, now in zip(self.memory, known, strict=True):
            kept[numbers - self.part.start] = now[at].double()

    def _remaining(self, stay: Active) -> dict[str, Any]:
        """Attributes once only some instances are active, of those that were."""
        many = self.active.device.type != "cpu" and len(stay.rows) > COMPACTED * stay.count
        if many or not len(stay.rows):
            return {"active": stay}
        at, plan = stay.there[1], self.plan.select(stay.there[1])
        return {
            "active": stay.compacted(),
            "plan": plan,
            "iterated": plan if self.dtype == torch.float64 else self.iterated.select(at),
            "state": self.state.select(at),
            "best": self.best.select(at),
        }


class FrozenChunk(Chunk):
    """Instances that stay in place: freezing those that are done spares copying others."""

    offered = MeanCandidates

    @property
    def swept(self) -> bool:
        """Whether passes are compiled loops, which deal the instances out to threads themselves."""
        return True

    def _write(self, leaving: Active) -> None:
        """Write what is kept of all instances held once the last ones leave, which takes least."""
        if len(leaving.rows) == len(self.rows):
            self.candidates.finish(self.plan, self.active)
            self.results.duals[self.part] = self.best.duals

    def _remaining(self, stay: Active) -> dict[str, Any]:
        at = stay.there[1]
        return {
            "active": stay,
            "plan": self.plan.with_active(at),
            "iterated": self.iterated.with_active(at),
        }
