"""The loop that all methods share: passes, bounds, primal points, stopping, and instances that leave when done.

The method moves the multipliers; the loop never trusts it.  Every bound it records is evaluated in float64 and corrected
for the residual of the multipliers (:mod:`blocklp.valid_bounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.checks import complete, feasible, floor, improve, keep, mend, offer, offer_mean, point
from blocklp.closing import CACHED_COPIES, certify, chunks, workers
from blocklp.compiled import called, loops_only, mark, until
from blocklp.decomposition import Decomposition
from blocklp.errors import TimeLimitError
from blocklp.methods import Method
from blocklp.methods.base import Memory
from blocklp.plan import Plan
from blocklp.records import Event, Limits, Results, picked, reordered
from blocklp.status import Status
from blocklp.stopping import Checked, Stopping
from blocklp.valid_bounds import box_maximum, box_minimum, corrected, proof

MEND_SHARE, MEND_PART = 4, 2
"""An attempt to make points feasible waits for so many passes of the method for each of the last one, at most half of all so far."""

GLANCE = 0.1
"""Seconds between two looks at the clock, about; a pass is not divided."""

CLOSING = 3.0
"""Checks that it takes to end: one, and the final bounds."""

RARELY = 11
"""Checks at the method's cadence before they become rarer."""

Repair = Callable[[Tensor, Tensor], Tensor]

KEPT_BYTES = 31 * 2**20
"""The C library gives freed blocks of this size back to the system at once, unless it has seen one as large freed before."""

LOOPED_COPIES = KEPT_BYTES // 12
"""The same for compiled loops, which take one instance after the other: as many as memory is kept for in double precision."""


def run(
    plan: Plan,
    method: Method,
    dtype: torch.dtype,
    limits: Limits,
    duals: Tensor | None,
    eta: Tensor | None,
    repair: Repair | None = None,
    callback: Callable[[Event], Any] | None = None,
    record: Callable[[Event], None] | None = None,
    memory: Memory | None = None,
) -> Results:
    """Solve the instances of a plan (float64) with iterates in ``dtype``, starting from ``duals`` ``(batch, copies)``, or zero.

    ``repair`` takes points ``(k, variables)`` and the numbers of their instances ``(k,)`` to points that should be
    feasible; ``callback`` may return True or a mask ``(batch,)`` of instances to stop.
    """
    problem = plan.problem
    given = method.weights(problem.batch)
    eta = eta if given is None else given.to(problem.cost.device, dtype)
    try:
        with until(limits.deadline):
            plan = replace(plan, deadline=limits.deadline).settled(dtype, method.usual)
            results = _in_parts(plan, method, dtype, limits, duals, eta, repair, callback, record, memory)
            results.backend = plan.backend.name
            return results
    except KeyboardInterrupt:  # before the first pass
        results = _nothing_yet(problem)
        return replace(results, status=torch.full_like(results.status, Status.INTERRUPTED))


def _in_parts(
    plan: Plan,
    method: Method,
    dtype: torch.dtype,
    limits: Limits,
    duals: Tensor | None,
    eta: Tensor | None,
    repair: Repair | None,
    callback: Callable[[Event], Any] | None,
    record: Callable[[Event], None] | None,
    memory: Memory | None,
) -> Results:
    """Solve instances that share other coordinates than their neighbours in parts of their own."""
    problem = plan.problem
    order, same = problem.alike()
    parts = [(rows, plan if part is problem else Plan.of(part, plan.deadline, plan.backend)) for rows, part in same]
    if len(parts) == 1:
        return _solve(problem, parts, method, dtype, limits, duals, eta, memory, repair, callback, record)
    back = order.argsort()

    def told(event: Event) -> Any:
        answer = None if callback is None else callback(picked(event, back))
        mask = answer is not None and not isinstance(answer, bool)
        return torch.as_tensor(answer, device=order.device).expand(len(order))[order] if mask else answer

    def recorded(event: Event) -> None:
        assert record is not None
        record(picked(event, back))

    def repaired(x: Tensor, rows: Tensor) -> Tensor:
        assert repair is not None
        return repair(x, order[rows])

    limits = picked(limits, order)
    duals, eta, memory = (reordered(value, order) for value in (duals, eta, memory))
    hooks = repair and repaired, callback and told, record and recorded
    return picked(_solve(problem, parts, method, dtype, limits, duals, eta, memory, *hooks), back)


def _solve(
    problem: Decomposition,
    alike: list[tuple[slice, Plan]],
    method: Method,
    dtype: torch.dtype,
    limits: Limits,
    duals: Tensor | None,
    eta: Tensor | None,
    memory: Memory | None,
    repair: Repair | None,
    callback: Callable[[Event], Any] | None,
    record: Callable[[Event], None] | None,
) -> Results:
    """Solve instances in the order of their parts, each of which share the same coordinates."""
    results = _nothing_yet(problem)
    if limits.deadline.over():
        return replace(results, status=torch.full_like(results.status, Status.TIME_LIMIT))
    torch.empty(KEPT_BYTES, dtype=torch.uint8)  # and freed: passes then reuse memory instead of faulting it in again
    if method.looped:
        alike = [(rows, part.loaded(whole=repair is None)) for rows, part in alike]
    slices = []
    for rows, part in alike:
        together = part.loops is not None and part.loops.alone is not None
        if together:
            _ = part.problem.coupling.places  # once for all lanes, and for solves to come
        slices += chunks(part, rows.start, LOOPED_COPIES if together else CACHED_COPIES)
    rounds = max(1.0, len(slices) / torch.get_num_threads())
    lanes = [_Lane(some, results, at, method, limits, repair, rounds) for some, at in slices]
    live = [(lane, lane.work(dtype, duals, eta, memory)) for lane in lanes]
    # Lanes are independent: they run side by side, one core each, which splits better than the operations of one lane do.  Loops deal
    # the instances of a single lane out to threads themselves.
    pool = workers()
    swept = len(lanes) == 1 and (lanes[0].parked or method.in_loops(lanes[0].plan))
    try:
        with loops_only() if swept else nullcontext():
            while live:
                turns = [turn for _, turn in live]
                list(map(next, turns) if len(turns) == 1 else pool.map(next, turns))
                if callback is not None or record is not None:
                    _tell(results, lanes, callback, record)
                live = [(lane, turn) for lane, turn in live if len(lane.rows)]
    except KeyboardInterrupt:
        pool.shutdown()  # let the turns that are under way end
        for lane in lanes:
            lane.drop(torch.ones_like(results.status, dtype=torch.bool))
    finally:
        pool.shutdown()
    if all(lane.memory is not None for lane in lanes):
        x, y, weight = (torch.cat(parts) for parts in zip(*(lane.memory for lane in lanes if lane.memory), strict=True))
        results.memory = x, y, weight
    results.passes += results.passes > 0
    try:
        certify([piece for some, at in slices for piece in chunks(some, at.start, CACHED_COPIES)], results)
        for name in filter(called, alike[0][1].backend.modules):
            if (module := alike[0][1].backend.loops(name)) is not None:
                mark(module, dtype)
    except KeyboardInterrupt:  # the bounds of the last checks are valid
        results.status.masked_fill_(results.status == Status.OPTIMAL, int(Status.INTERRUPTED))
    return results


def _nothing_yet(problem: Decomposition) -> Results:
    batch, full = problem.batch, problem.cost.new_full
    zero = torch.zeros(batch, dtype=torch.long, device=problem.cost.device)
    return Results(
        bound=box_minimum(problem),
        safe_bound=box_minimum(problem),
        primal=full((batch,), torch.inf),
        x=_zeros(problem.cost, problem.cost.shape[1]),
        duals=_zeros(problem.cost, problem.copies),
        eta=full((batch,), torch.nan),
        status=zero,
        passes=zero.clone(),
        seconds=full((batch,), 0.0),
        floor=full((batch,), 0.0),
        repaired=torch.zeros_like(zero, dtype=torch.bool),
    )


def _zeros(like: Tensor, columns: int, kind: torch.dtype = torch.float64) -> Tensor:
    """Zeros ``(batch, columns)``; on a CPU memory is taken where threads write to it, not before."""
    shape = (len(like), columns)
    if like.device.type != "cpu":
        return like.new_zeros(shape, dtype=kind)
    return torch.from_numpy(np.zeros(shape, np.float32 if kind == torch.float32 else np.float64))


def _tell(
    results: Results,
    lanes: list[_Lane],
    callback: Callable[[Event], Any] | None,
    record: Callable[[Event], None] | None,
) -> None:
    """Send the event; a callback's answer may stop instances."""
    passes, seconds = max(lane.passes for lane in lanes), lanes[0].limits.deadline.elapsed()
    event = Event(passes, seconds, results.bound.clone(), results.primal.clone(), results.gap(), results.status.clone())
    if record is not None:
        record(event)
    answer = None if callback is None else callback(event)
    if answer is not None and answer is not False:
        stop = torch.as_tensor(answer, dtype=torch.bool, device=results.status.device).expand(len(results.status))
        for lane in lanes:
            lane.drop(stop)


class _Lane:
    """Some instances on their way; ``rows`` are those still at work.

    What has a leading dimension follows them, except where compiled loops leave out who is done: problem, state and the best
    multipliers then keep all instances of the lane, those at work at the positions ``live``.
    """

    def __init__(
        self,
        plan: Plan,
        results: Results,
        part: slice,
        method: Method,
        limits: Limits,
        repair: Repair | None,
        rounds: float,
    ) -> None:
        rows = torch.arange(part.start, part.stop, device=plan.problem.cost.device)
        self.results, self.rows, self.method, self.limits = results, rows, method, limits
        self.repair = repair
        self.rounds, self.closing, self.longest = rounds, 0.0, 1
        self.plan = self.iterated = plan
        self.parked = plan.loops is not None and plan.loops.alone is not None
        self.part, self.live = part, torch.arange(len(rows), device=rows.device)
        self.passes, self.due = 0, 1
        self.state: Any = None
        self.memory: tuple[Tensor, ...] | None = None
        full = plan.problem.cost.new_full
        self.best_bound = full((len(rows),), -torch.inf)
        self.stopping = Stopping(limits, rows)
        self.mend_from = torch.zeros_like(rows)

    @property
    def problem(self) -> Decomposition:
        """The mathematics of the instances, in double precision."""
        return self.plan.problem

    def work(self, dtype: torch.dtype, duals: Tensor | None, eta: Tensor | None, memory: Memory | None) -> Iterator[None]:
        """Make passes from where the whole batch starts; yields after every check, and is not resumed without instances."""
        limits = self.limits
        duals, eta = (None if t is None else t[self.part] for t in (duals, eta))
        self.plan = self.plan.over()
        self.iterated, self.box_maximum = self.plan.to(dtype), box_maximum(self.problem)
        self.exact = dtype == torch.float64
        self.evaluated = self.exact and self.method.evaluates
        if duals is None:
            first = self.problem.to_dual(self.problem.cost).to(dtype)
        else:
            first = self.problem.recentred(duals).to(dtype)
        kind = dtype if self.parked else torch.float64  # loops take them as they are
        self.best_duals = _zeros(first, first.shape[1], kind) if duals is None else first.to(kind, copy=True)
        try:
            self.state = self.method.start(self.iterated, first, eta)
            if memory is not None:
                x, y, weight = (t[self.part] for t in memory)
                self.state = self.method.resume(self.iterated, self.state, (x, y, weight))
        except TimeLimitError:  # nothing is known yet but what the bounds of the variables say
            self.results.status[self.rows], self.rows = int(Status.TIME_LIMIT), self.rows[:0]
            yield
        self.passes = 1
        while True:
            if self._known():
                self._improve(self.state.duals, self.state.value)
            # A check that has to evaluate makes a pass of its own.
            if self.passes + (not self._known()) >= self.due or self.method.due(self.state) or self._out_of_budget():
                began = limits.deadline.elapsed()
                self.state = self.method.finish(self.iterated, self.state)
                self._check()
                self.due = self._next_check()
                self.closing = CLOSING * self.rounds * (limits.deadline.elapsed() - began)
                yield
                if not self.parked:
                    self.state = self.method.checked(self.iterated, self.state, self.results.gap()[self.rows])
                    if self.method.due(self.state):
                        continue
            most = 1 if self.evaluated else max(1, min(self.due - self.passes - 1, self._left()))
            began = limits.deadline.elapsed()
            self.state, passes = self.method.leap(self.iterated, self.state, min(most, self.longest))
            self.passes += passes
            pace = (limits.deadline.elapsed() - began) / passes
            self.longest = max(1, int(GLANCE / max(pace, 1e-9)))

    def drop(self, stop: Tensor) -> None:
        """Interrupt the instances of a mask ``(batch,)`` that are still at work."""
        done = stop[self.rows].nonzero()[:, 0]
        if len(done) and self.passes:
            self._leave(torch.full_like(self.rows, Status.INTERRUPTED), done)
        elif len(done):
            self.results.status[self.rows[done]] = int(Status.INTERRUPTED)

    def _out_of_budget(self) -> bool:
        return self.limits.deadline.left() <= self.closing or self._left() <= 0

    def _next_check(self) -> int:
        """The pass of the next check after one."""
        if (every := self.limits.check_every) is not None:
            return (self.passes // every + 1) * every
        cadence, last = self.method.cadence, self.passes if self.due > 1 else 0
        return last + cadence * max(1, last // (RARELY * cadence)) + 1

    def _known(self) -> bool:
        """Whether the state holds the value of its multipliers in double precision: the first state that is checked does."""
        return self.evaluated or (self.exact and self.due == 1)

    def _left(self) -> int:
        """Passes that may still be made; a check takes one where steps do not evaluate."""
        return self.limits.passes - self.passes - (not self.evaluated)

    def _improve(self, duals: Tensor, value: Tensor) -> None:
        """Keep the multipliers where their corrected bound is the best so far."""
        bound = corrected(self.problem, duals, value)
        self.best_bound = keep(bound, duals, self.best_bound, self.best_duals)

    def _check(self) -> None:
        """Look for reasons to stop."""
        value = self.state.value
        if not self._known():
            primal = self.results.primal[self.part if self.parked else self.rows]
            value, self.best_bound = improve(self.plan, self.state.duals, primal, self.best_bound, self.best_duals)
            self.passes += 1
        out, rows, limits = self.results, self.rows, self.limits
        self._primal()
        value, bound, primal = value[self.live], self.best_bound[self.live], out.primal[rows]
        out.bound[rows] = bound
        least = floor(self.problem, out.x[self.part])[self.live] if self.parked else floor(self.problem, out.x[rows])
        out.floor[rows] = least
        seconds, out_of_time = limits.deadline.elapsed(), limits.deadline.left() <= self.closing
        infeasible = self._infeasible(bound)
        status = self.stopping.status(Checked(bound, primal, value, least, infeasible, self.passes, self._left() <= 0, out_of_time))
        out.status[rows] = status
        out.passes[rows] = self.passes
        out.seconds[rows] = seconds
        done = status.nonzero()[:, 0]
        if len(done):
            self._leave(status, done)

    def _infeasible(self, bound: Tensor) -> Tensor:
        """Whether bounds ``(k,)`` prove that there is no point: ``(k,)`` bool."""
        over = bound > self.box_maximum
        if bool(over.any()):
            where = over.nonzero()[:, 0]
            at = self.live[where]
            problem = self.problem.select(at)
            over[where] = proof(problem, problem.recentred(self.best_duals[at].double()), bound[where]) > self.box_maximum[where]
        return over

    def _primal(self) -> None:
        """Offer what a repair hook makes of the mean of the copies, and the mean completed by the types, mended, or as it is."""
        out, tolerance = self.results, self.limits.feasibility_tol
        if self.parked:
            offer_mean(self.plan, self.state.mean, tolerance, self.best_bound, out.primal[self.part], out.x[self.part])
            return
        mean = self.method.mean(self.plan, self.state)
        best = out.primal[self.rows], out.x[self.rows]
        due = torch.ones_like(self.rows, dtype=torch.bool)
        if self.repair is not None:
            repaired = self.repair(mean, self.rows)
            due = self._unrepaired(repaired)
            best = offer(self.plan, repaired, None, tolerance, self.best_bound, *best)[:2]
        found, made = point(self.plan, mean, tolerance)
        copies = None if made else self.state.points
        primal, x, worst = offer(self.plan, found, copies, tolerance, self.best_bound, *best)
        primal, x = self._mended(found, worst, due, primal, x) if self.limits.mend else (primal, x)
        out.x[self.rows] = x  # first: an interrupt must not leave a value without its point
        out.primal[self.rows] = primal

    def _unrepaired(self, points: Tensor) -> Tensor:
        """Note who has got a feasible point from the hook, and tell who has not yet: ``(k,)`` bool."""
        done = self.results.repaired[self.rows]
        if not bool(done.all()):
            self.results.repaired[self.rows] = done = done | feasible(self.plan, points, self.limits.feasibility_tol)
        return ~done

    def _mended(self, found: Tensor, worst: Tensor, due: Tensor, primal: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The best primal points after an attempt to mend those found, where they are due and passes allow it."""
        rows = (due & (self.mend_from <= self.passes) & torch.isfinite(worst)).nonzero()[:, 0]
        if not len(rows):
            return primal, x
        plan = self.plan if len(rows) == len(self.rows) else self.plan.select(rows)
        given = found[rows], worst[rows], self.limits.feasibility_tol, self.best_bound[rows]
        better, points, spent = mend(plan, *given, primal[rows], x[rows])
        self.mend_from[rows] = self.passes + (MEND_SHARE * spent).clamp(max=self.passes // MEND_PART)
        return primal.index_copy(0, rows, better), x.index_copy(0, rows, points)

    def _leave(self, status: Tensor, done: Tensor) -> None:
        """Write out the instances at some positions and go on with the others."""
        rows, at, out = self.rows[done], self.live[done], self.results
        out.bound[rows] = self.best_bound[at]
        if self.parked:
            complete(self.plan, at, out.x[self.part])
            if len(done) == len(status):  # the last ones: to write those of all at once takes least
                out.duals[self.part] = self.best_duals
        else:
            out.duals[rows] = self.best_duals[at]
        out.status[rows] = status[done]
        out.passes[rows] = self.passes
        out.seconds[rows] = self.limits.deadline.elapsed()
        if self.method.proximal:
            out.eta[rows] = self.state.eta[at].double()
        known = self.method.remember(self.iterated, self.state)
        if known is not None:
            if self.memory is None:
                self.memory = tuple(t.new_zeros(self.part.stop - self.part.start, *t.shape[1:]).double() for t in known)
            for kept, now in zip(self.memory, known, strict=True):
                kept[rows - self.part.start] = now[done].double()
        stay = torch.ones_like(status, dtype=torch.bool).index_fill(0, done, False).nonzero()[:, 0]
        names = ["rows", "box_maximum", "mend_from"]
        left: dict[str, Any] = {}
        if self.parked:
            loops = self.plan.loops
            assert loops is not None
            live = self.live[stay]
            loops = loops.park(live)
            left = {"live": live, "plan": replace(self.plan, loops=loops), "iterated": replace(self.iterated, loops=loops)}
        elif len(stay):
            names += ["best_bound", "best_duals"]
            plan = self.plan.select(stay)
            iterated = plan if self.exact else self.iterated.select(stay)
            left = {"live": torch.arange(len(stay), device=stay.device), "plan": plan, "iterated": iterated}
            left["state"] = self.state.select(stay)
        left["stopping"] = self.stopping.select(stay)
        vars(self).update(left, **{name: getattr(self, name)[stay] for name in names})  # at once, whatever interrupts
