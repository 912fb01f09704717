"""Candidates for the best primal point of every instance, at each check."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from blocklp.engine.best_bound import NOTICED
from blocklp.engine.limits import Limits
from blocklp.engine.points import feasible, finish_points, offer, offer_mean, point
from blocklp.engine.projection import offer_projected
from blocklp.engine.records import Repair, Results
from blocklp.kernels.plan import Plan
from blocklp.methods import Method

SHARE, PART = 4, 2
"""A feasibility projection waits for so many passes of the method for each of the last one, at most for one
in so many of all so far."""


class Candidates:
    """Primal points: the mean of the copies as a repair hook changes it, completed, and projected.

    Parameters
    ----------
    results : Results
        Of all instances: the best points and their values are written to ``x`` and ``primal``.
    limits : Limits
        Whether and how exactly points must be feasible.
    repair : callable or None
        Hook of the caller.
    part : slice
        Numbers of the instances.
    """

    def __init__(self, results: Results, limits: Limits, repair: Repair | None, part: slice) -> None:
        self.results, self.repair, self.part = results, repair, part
        self.tolerance, self.projects = limits.feasibility_tol, limits.project
        self.project_from = torch.zeros_like(results.passes[part])

    def update(
        self,
        plan: Plan,
        method: Method,
        state: Any,
        bound: Tensor,
        rows: Tensor,
        passes: int,
    ) -> None:
        """Offer the points of a finished state, and keep them where they are better.

        Parameters
        ----------
        plan : Plan
            The active instances, in float64.
        method : Method
            The method, which says what the mean is.
        state : MethodState
            Its finished state.
        bound : Tensor
            ``(k,)`` float64: the best bounds.
        rows : Tensor
            ``(k,)`` int64: numbers of the active instances.
        passes : int
            Passes so far.
        """
        out = self.results
        mean = method.mean(plan, state)
        best = out.primal[rows], out.x[rows]
        due = torch.ones_like(rows, dtype=torch.bool)
        if self.repair is not None:
            repaired = self.repair(mean, rows)
            due = self._unrepaired(plan, repaired, rows)
            best = offer(plan, repaired, None, self.tolerance, bound, *best)[:2]
        found, made = point(plan, mean, self.tolerance)
        copies = None if made else state.points
        primal, x, worst = offer(plan, found, copies, self.tolerance, bound, *best)
        if self.projects:
            primal, x = self._projected(plan, found, worst, due, bound, primal, x, passes)
        out.x[rows] = x  # first: an interrupt must not leave a value without its point
        out.primal[rows] = primal

    def _unrepaired(self, plan: Plan, points: Tensor, rows: Tensor) -> Tensor:
        """Note who has got a feasible point from the hook, and tell who has not yet: ``(k,)`` bool."""
        done = self.results.repaired[rows]
        if not bool(done.all()):
            self.results.repaired[rows] = done = done | feasible(plan, points, self.tolerance)
        return ~done

    def _projected(
        self,
        plan: Plan,
        found: Tensor,
        worst: Tensor,
        due: Tensor,
        bound: Tensor,
        primal: Tensor,
        x: Tensor,
        passes: int,
    ) -> tuple[Tensor, Tensor]:
        """The best points after a projection of those found, where they are due and passes allow it."""
        rows = (due & (self.project_from <= passes) & torch.isfinite(worst)).nonzero()[:, 0]
        if not len(rows):
            return primal, x
        part = plan if len(rows) == len(due) else plan.select(rows)
        given = found[rows], worst[rows], self.tolerance, bound[rows], primal[rows], x[rows]
        better, points, spent = offer_projected(part, *given)
        self.project_from[rows] = passes + (SHARE * spent).clamp(max=passes // PART)
        return primal.index_copy(0, rows, better), x.index_copy(0, rows, points)

    def finish(self, plan: Plan, positions: Tensor) -> None:
        """Do what is left to do for the points of instances that are done; nothing here."""

    def select(self, rows: Tensor) -> Candidates:
        """Return the candidates of some of the instances: their positions ``(m,)`` int64."""
        other = copy.copy(self)
        other.project_from = self.project_from[rows]
        return other


class MeanCandidates(Candidates):
    """Means of the copies, completed in place; instances that are done keep their places."""

    def update(
        self,
        plan: Plan,
        method: Method,
        state: Any,
        bound: Tensor,
        rows: Tensor,
        passes: int,
    ) -> None:
        """Offer the means of a finished state.

        Parameters
        ----------
        plan, method, state, rows, passes
            As in :meth:`Candidates.update`; the state is of all instances, active or not.
        bound : Tensor
            ``(batch,)`` float64: the best bounds of all instances.
        """
        primal, x = self.results.primal[self.part], self.results.x[self.part]
        offer_mean(plan, state.mean, (NOTICED, self.tolerance), bound, primal, x)

    def finish(self, plan: Plan, positions: Tensor) -> None:
        """Write what no other block shares of instances at some positions ``(k,)`` int64, which are done."""
        finish_points(plan, positions, self.results.x[self.part])
