"""The loop that all methods share: passes, bounds, primal points, stopping, and instances that leave when done.

The method moves the multipliers; the loop never trusts it.  Every bound it records is evaluated in float64 and corrected
for the residual of the multipliers (:mod:`blocklp.bounds`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from blocklp.bounds import box_maximum, corrected, proof, safe
from blocklp.decomposition import Decomposition
from blocklp.methods import Method
from blocklp.methods.base import where
from blocklp.status import Status

Repair = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Event:
    """What a callback sees at every check; tensors have one entry an instance, finished ones included.

    Attributes
    ----------
    passes : int
        Oracle passes so far, bound evaluations included.
    seconds : float
        Time since the start.
    bound, primal, gap : Tensor
        ``(batch,)`` float64: best bound, best primal value (in the sense of the model), relative gap.
    status : Tensor
        ``(batch,)`` int64: :class:`Status`.
    """

    passes: int
    seconds: float
    bound: Tensor
    primal: Tensor
    gap: Tensor
    status: Tensor


@dataclass(frozen=True)
class Limits:
    """When to stop; ``tol`` and ``cutoff`` are ``(batch,)`` float64 on the problem's device."""

    tol: Tensor
    cutoff: Tensor
    passes: int
    time_limit: float
    check_every: int
    feasibility_tol: float
    patience: int


@dataclass
class Results:
    """The best so far of every instance, ``(batch, ...)`` float64, in the sense of minimisation."""

    bound: Tensor
    safe_bound: Tensor
    primal: Tensor
    x: Tensor
    duals: Tensor
    eta: Tensor
    status: Tensor
    passes: Tensor
    seconds: Tensor
    history: list[Event] = field(default_factory=list)

    def gap(self) -> Tensor:
        """Relative gap, see :func:`relative_gap`."""
        return relative_gap(self.primal, self.bound)


def relative_gap(primal: Tensor, bound: Tensor) -> Tensor:
    r"""Return :math:`(primal - bound) / \max(1, |primal|, |bound|)`, infinite without a primal point."""
    scale = torch.maximum(primal.abs(), bound.abs()).clamp(min=1.0)
    return torch.where(torch.isfinite(primal) & torch.isfinite(bound), (primal - bound) / scale, torch.inf)


def run(
    problem: Decomposition,
    method: Method,
    dtype: torch.dtype,
    limits: Limits,
    duals: Tensor,
    eta: Tensor | None,
    repair: Repair | None = None,
    callback: Callable[[Event], Any] | None = None,
    record: Callable[[Event], None] | None = None,
) -> Results:
    """Solve the instances of ``problem`` (float64) with iterates in ``dtype``, starting from ``duals`` ``(batch, copies)``.

    ``repair`` takes points ``(k, variables)`` and the numbers of their instances ``(k,)`` to feasible points and a mask of
    those that are; ``callback`` may return True or a mask ``(batch,)`` of instances to stop.
    """
    return _Run(problem, method, dtype, limits, repair, callback, record).solve(duals, eta)


class _Run:
    """One solve.  ``rows`` are the instances still at work; everything with a leading ``active`` dimension follows it."""

    def __init__(
        self,
        problem: Decomposition,
        method: Method,
        dtype: torch.dtype,
        limits: Limits,
        repair: Repair | None,
        callback: Callable[[Event], Any] | None,
        record: Callable[[Event], None] | None,
    ) -> None:
        self.began = time.perf_counter()
        self.whole, self.method, self.limits = problem, method, limits
        self.repair, self.callback, self.record = repair, callback, record
        self.exact = dtype == torch.float64
        batch, like = problem.batch, problem.cost
        full = like.new_full
        self.results = Results(
            bound=full((batch,), -torch.inf),
            safe_bound=full((batch,), -torch.inf),
            primal=full((batch,), torch.inf),
            x=torch.zeros_like(like),
            duals=like.new_zeros(batch, problem.copies),
            eta=full((batch,), torch.nan),
            status=torch.zeros(batch, dtype=torch.long, device=like.device),
            passes=torch.zeros(batch, dtype=torch.long, device=like.device),
            seconds=full((batch,), 0.0),
        )
        self.box_maximum = box_maximum(problem)
        # What follows the active instances.
        self.rows = torch.arange(batch, device=like.device)
        self.problem = problem
        self.work = problem.to(dtype)
        self.best_bound = full((batch,), -torch.inf)
        self.passes = 0
        self.mark_bound = full((batch,), -torch.inf)
        self.mark_primal = full((batch,), torch.inf)
        self.mark_pass = torch.zeros(batch, dtype=torch.long, device=like.device)

    def solve(self, duals: Tensor, eta: Tensor | None) -> Results:
        """Run to the end; an interrupt keeps what there is."""
        duals = self.problem.recentred(duals)
        self.best_duals = duals
        try:
            state = self.method.start(self.work, duals.to(self.work.cost.dtype), eta)
            self.passes = 1
            while True:
                if self.exact:
                    self._improve(state.duals, state.value)
                if self.passes == 1 or self.passes % self.limits.check_every == 0 or self._out_of_budget():
                    keep = self._check(state)
                    if keep is not None:
                        if not len(keep):
                            break
                        state = state.select(keep)
                state = self.method.step(self.work, state)
                self.passes += 1
        except KeyboardInterrupt:
            self._leave(torch.full_like(self.rows, Status.INTERRUPTED), torch.arange(len(self.rows)), None)
        return self._finish()

    def _out_of_budget(self) -> bool:
        late = time.perf_counter() - self.began >= self.limits.time_limit
        return late or self.passes >= self.limits.passes

    def _improve(self, duals: Tensor, value: Tensor) -> None:
        """Keep the multipliers where their corrected bound is the best so far."""
        bound = corrected(self.problem, duals, value)
        better = bound > self.best_bound  # false for NaN
        self.best_bound = torch.where(better, bound, self.best_bound)
        self.best_duals = where(better, duals, self.best_duals)

    def _check(self, state: Any) -> Tensor | None:
        """Look for reasons to stop; return the positions that go on, or None if all do."""
        if not self.exact:
            duals = self.problem.recentred(state.duals.double())
            self._improve(duals, self.problem.min_oracle(duals)[1])
            self.passes += 1
        out, rows, limits = self.results, self.rows, self.limits
        self._primal(state)
        bound, primal = self.best_bound, out.primal[rows]
        out.bound[rows] = bound
        status = torch.zeros_like(rows)

        def mark(mask: Tensor, why: Status) -> None:
            status.masked_fill_(mask & (status == 0), int(why))

        gap = relative_gap(primal, bound)
        mark(gap <= limits.tol[rows], Status.OPTIMAL)
        mark(bound >= limits.cutoff[rows], Status.CUTOFF)
        over = bound > self.box_maximum[rows]
        if bool(over.any()):
            where = over.nonzero()[:, 0]
            over[where] = proof(self.problem.select(where), self.best_duals[where], bound[where]) > self.box_maximum[rows[where]]
            mark(over, Status.INFEASIBLE)
        mark(~torch.isfinite(state.value), Status.NUMERICAL_ERROR)
        scale = bound.abs().clamp(min=1.0)
        moved = (bound > self.mark_bound + 1e-10 * scale) | (primal < self.mark_primal - 1e-10 * scale)
        self.mark_bound = torch.where(moved, bound, self.mark_bound)
        self.mark_primal = torch.where(moved, primal, self.mark_primal)
        self.mark_pass = self.mark_pass.masked_fill(moved, self.passes)
        mark(self.passes - self.mark_pass >= limits.patience, Status.STALLED)
        if self.passes >= limits.passes:
            mark(torch.ones_like(over), Status.PASS_LIMIT)
        seconds = time.perf_counter() - self.began
        if seconds >= limits.time_limit:
            mark(torch.ones_like(over), Status.TIME_LIMIT)
        out.status[rows] = status
        out.passes[rows] = self.passes
        out.seconds[rows] = seconds
        self._tell(seconds, status)
        if not bool(status.any()):
            return None
        return self._leave(status, status.nonzero()[:, 0], state)

    def _primal(self, state: Any) -> None:
        """Offer the mean of the copies, repaired if there is a hook, as a primal point."""
        points = state.points.double()
        x = self.problem.mean(points)
        if self.repair is None:
            x = torch.minimum(torch.maximum(x, self.problem.lower), self.problem.upper)
            apart = (points - self.problem.spread(x)).abs().amax(1)
            feasible = apart <= self.limits.feasibility_tol * (1 + x.abs().amax(1))
        else:
            x, feasible = self.repair(x, self.rows)
        value = (self.problem.cost * x).sum(1) + self.problem.offset
        better = feasible & (value < self.results.primal[self.rows])
        self.results.primal[self.rows] = torch.where(better, value, self.results.primal[self.rows])
        first = ~torch.isfinite(self.results.primal[self.rows])
        self.results.x[self.rows] = torch.where((better | first)[:, None], x, self.results.x[self.rows])

    def _tell(self, seconds: float, status: Tensor) -> None:
        """Send the event; a callback's answer may stop instances."""
        if self.callback is None and self.record is None:
            return
        out = self.results
        event = Event(self.passes, seconds, out.bound.clone(), out.primal.clone(), out.gap(), out.status.clone())
        if self.record is not None:
            self.record(event)
        if self.callback is not None:
            answer = self.callback(event)
            if answer is not None and answer is not False:
                stop = torch.as_tensor(answer, dtype=torch.bool, device=status.device).expand(self.whole.batch)
                status.masked_fill_(stop[self.rows] & (status == 0), int(Status.INTERRUPTED))
                out.status[self.rows] = status

    def _leave(self, status: Tensor, done: Tensor, state: Any) -> Tensor:
        """Write out finished instances and shrink everything to the others."""
        rows = self.rows[done]
        out = self.results
        out.bound[rows] = self.best_bound[done]
        out.duals[rows] = self.best_duals[done]
        out.status[rows] = status[done]
        out.passes[rows] = self.passes
        out.seconds[rows] = time.perf_counter() - self.began
        if state is not None:
            out.eta[rows] = state.eta[done].double()
        stays = torch.ones_like(status, dtype=torch.bool).index_fill(0, done, False)
        keep = stays.nonzero()[:, 0]
        if len(keep):
            self.problem, self.work = self.problem.select(keep), self.work.select(keep)
        for name in ("rows", "best_bound", "best_duals", "mark_bound", "mark_primal", "mark_pass"):
            setattr(self, name, getattr(self, name)[keep])
        return keep

    def _finish(self) -> Results:
        """Share the rounding residual of the multipliers among their copies and charge all rounding: one more pass."""
        out, problem = self.results, self.whole
        duals = problem.recentred(out.duals)
        bound = corrected(problem, duals, problem.min_oracle(duals)[1])
        better = bound >= out.bound
        out.bound = torch.where(better, bound, out.bound)
        out.duals = torch.where(better[:, None], duals, out.duals)
        out.safe_bound = safe(problem, out.duals)
        out.passes += 1
        return out
