"""Candidates for the best primal point of every instance, at each check."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.engine.active import Active
from blocklp.engine.best_bound import NOTICED
from blocklp.engine.limits import Limits
from blocklp.engine.points import feasible, finish_points, offer, offer_mean, point
from blocklp.engine.projection import ALMOST, offer_projected
from blocklp.engine.records import Repair, Results
from blocklp.engine.status_record import Numbers
from blocklp.kernels.plan import Plan
from blocklp.methods import Method
from blocklp.violation import known_empty

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
    count : int
        Number of the instances, all of them active.

    Attributes
    ----------
    found : Tensor or None
        ``(held, variables)`` float64: the points of the last check, where they might be projected.
    project_from : array
        ``(k,)`` int64: passes from which on those of active instances might be.
    """

    found: Tensor | None = None

    def __init__(self, results: Results, limits: Limits, repair: Repair | None, count: int) -> None:
        self.results, self.repair = results, repair
        self.tolerance, self.projects = limits.feasibility_tol, limits.project
        self.project_from = np.zeros(count, np.int64)

    def update(
        self, plan: Plan, method: Method, state: Any, bound: Tensor, active: Active
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Offer the points of a finished state, and keep them where they are better.

        Parameters
        ----------
        plan : Plan
            The instances held, in float64.
        method : Method
            The method, which says what the mean is.
        state : MethodState
            Its finished state.
        bound : Tensor
            ``(held,)`` float64: the best bounds.
        active : Active
            The active instances; points of others are not written.

        Returns
        -------
        primal, x : Tensor
            ``(held,)`` and ``(held, variables)`` float64: best values and points.
        worst : Tensor or None
            ``(held,)`` float64: relative violation of the points found, infinite where these need not be
            projected; None where none need be.
        """
        out, held = self.results, active.held
        mean = method.mean(plan, state)
        best, repaired = (out.primal[held], out.x[held]), None
        if self.repair is not None:
            hooked = self.repair(mean, active.numbers)
            repaired = self._repaired(plan, hooked, active)
            best = offer(plan, hooked, None, self.tolerance, bound, *best)[:2]
        found, made, known = point(plan, mean, self.tolerance)
        copies = None if made else state.points
        primal, x, worst = offer(plan, found, copies, self.tolerance, bound, *best, known)
        active.write(x, out.x)  # first: an interrupt must not leave a value without its point
        active.write(primal, out.primal)
        if not self.projects:
            return primal, x, None
        self.found = found
        return primal, x, worst if repaired is None else worst.masked_fill(repaired, torch.inf)

    def _repaired(self, plan: Plan, points: Tensor, active: Active) -> Tensor:
        """Note who has got a feasible point from the hook: ``(held,)`` bool."""
        done = self.results.repaired[active.held]
        if not known_empty(~done):
            done = done | feasible(plan, points, self.tolerance)
            active.write(done, self.results.repaired)
        return done

    def due(self, plan: Plan, worst: Numbers, passes: int) -> Tensor:
        """Which of the active instances have a point that is almost feasible, whose turn it is.

        Parameters
        ----------
        plan : Plan
            The instances held, in float64.
        worst : array
            ``(k,)`` float64: relative violations of the points of active instances.
        passes : int
            Passes so far.

        Returns
        -------
        Tensor
            ``(j,)`` int64: numbers among the ``k``.
        """
        if self.found is None:
            return torch.zeros(0, dtype=torch.long)
        almost = (worst > self.tolerance) & (worst <= ALMOST) & (self.project_from <= passes)
        rows = torch.from_numpy(almost.nonzero()[0])
        return rows if len(rows) and plan.problem.testable else rows[:0]

    def project(self, plan: Plan, bound: Tensor, active: Active, due: Tensor, passes: int) -> None:
        """Project points of the last check, and keep them where they are better.

        Parameters
        ----------
        plan, bound, active
            As in :meth:`update`.
        due : Tensor
            ``(j,)`` int64: what :meth:`due` returned.
        passes : int
            Passes at that check.
        """
        assert self.found is not None
        out, part = self.results, active.select(due)
        numbers, at = part.there
        plan = plan if len(due) == len(bound) else plan.select(at)
        given = self.found[at], self.tolerance, bound[at], out.primal[numbers], out.x[numbers]
        better, points, spent = offer_projected(plan, *given)
        self.project_from[due.numpy()] = passes + np.minimum(SHARE * spent.cpu().numpy(), passes // PART)
        out.x[numbers] = points
        out.primal[numbers] = better

    def finish(self, plan: Plan, active: Active) -> None:
        """Do what is left to do for the points of all instances held, once they are done; nothing here."""

    def select(self, stay: Tensor) -> Candidates:
        """Return the candidates of some of the active instances: their numbers ``(m,)`` int64 among them."""
        other = copy.copy(self)
        other.project_from = self.project_from[stay.numpy()]
        return other


class MeanCandidates(Candidates):
    """Means of the copies, completed in place; instances that are done keep their places."""

    def update(
        self, plan: Plan, method: Method, state: Any, bound: Tensor, active: Active
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Offer the means of a finished state; parameters and results are those of :meth:`Candidates.update`.

        Parameters
        ----------
        plan, method, active
            As there.
        state : MethodState
            A state of all instances, active or not.
        bound : Tensor
            ``(batch,)`` float64: the best bounds of all instances.
        """
        primal, x = self.results.primal[active.held], self.results.x[active.held]
        offer_mean(plan, state.mean, (NOTICED, self.tolerance), bound, primal, x)
        return primal, x, None

    def finish(self, plan: Plan, active: Active) -> None:
        """Write what no other block shares."""
        finish_points(plan, torch.arange(active.count, device=active.device), self.results.x[active.held])
