"""Stop rules, which a check applies in order."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.valid_bounds import box_maximum, proof
from blocklp.engine.best_bound import NOTICED
from blocklp.engine.limits import Limits
from blocklp.engine.records import relative_gap
from blocklp.engine.status_record import StatusRecord
from blocklp.status import Status

STILL = 1e-10
"""Relative change of a value up to which it counts as the same."""


@dataclass(frozen=True)
class Moment:
    """When a check was made.

    Attributes
    ----------
    passes : int
        Passes so far.
    seconds : float
        Time since the start.
    out_of_passes, out_of_time : bool
        Whether there are none left.
    """

    passes: int
    seconds: float
    out_of_passes: bool
    out_of_time: bool


class StopRules:
    """The stop rules, and the values and pass at which each active instance last made progress, on the CPU.

    Parameters
    ----------
    limits : Limits
        What the caller asked for, by instance.
    rows : Tensor
        ``(k,)`` int64: numbers of the instances.
    problem : Decomposition
        The problem of these instances, in float64.
    """

    def __init__(self, limits: Limits, rows: Tensor, problem: Decomposition) -> None:
        self.box_maximum = box_maximum(problem).cpu()
        unknown = torch.full_like(rows, -torch.inf, dtype=torch.float64)
        self.tol, self.cutoff, self.patience = limits.tol[rows], limits.cutoff[rows], limits.patience
        self.last, self.passes = torch.stack([unknown, -unknown, unknown]), torch.zeros_like(rows)

    def infeasible(self, problem: Decomposition, bound: Tensor, duals: Tensor, positions: Tensor) -> Tensor:
        """Whether the best bounds prove that there is no point.

        Parameters
        ----------
        problem : Decomposition
            The problem in float64, of all instances that the multipliers are of.
        bound : Tensor
            ``(k,)`` float64 on the CPU: the best bounds of the active instances.
        duals : Tensor
            ``(batch, copies)``: their multipliers.
        positions : Tensor
            ``(k,)`` int64 on the CPU: the active instances among those of the problem.

        Returns
        -------
        Tensor
            ``(k,)`` bool.
        """
        over = bound > self.box_maximum
        if bool(over.any()):
            where, device = over.nonzero()[:, 0], duals.device
            at = positions[where].to(device)
            part = problem.select(at)
            proved = proof(part, part.recentred(duals[at].double()), bound[where].to(device))
            over[where] = proved.cpu() > self.box_maximum[where]
        return over

    def update(self, now: StatusRecord, infeasible: Tensor, when: Moment) -> Tensor:
        """Note progress, and apply the rules.

        Parameters
        ----------
        now : StatusRecord
            The state of the active instances at the check.
        infeasible : Tensor
            ``(k,)`` bool: whether the bound proves that there is no point.
        when : Moment
            When that was.

        Returns
        -------
        Tensor
            ``(k,)`` int64: the status of instances that end, 0 for those that go on.
        """
        self._note(now, when.passes)
        limit = Status.PASS_LIMIT if when.out_of_passes else Status.TIME_LIMIT if when.out_of_time else 0
        status = torch.full_like(self.passes, int(limit))
        reasons = (  # each counts for more than those before it
            (when.passes - self.passes >= self.patience, Status.STALLED),
            (~torch.isfinite(now.value), Status.NUMERICAL_ERROR),
            (infeasible, Status.INFEASIBLE),
            (now.bound - NOTICED * now.bound.abs() >= self.cutoff, Status.CUTOFF),
            (relative_gap(now.primal, now.bound, now.floor) <= self.tol, Status.OPTIMAL),
        )
        for mask, why in reasons:
            status.masked_fill_(mask, int(why))
        return status

    def _note(self, now: StatusRecord, passes: int) -> None:
        """Note progress: of the best values, or of the value of the present multipliers."""
        scale = STILL * torch.maximum(now.bound.abs(), now.floor)
        values = torch.stack([now.bound, now.primal, now.value])
        changed = ((values - self.last).abs() > scale).any(0)  # not where both are infinite
        self.last = torch.where(changed, values, self.last)
        self.passes = self.passes.masked_fill(changed, passes)

    def select(self, rows: Tensor) -> StopRules:
        """Return the rules of some of the instances: their positions ``(m,)`` int64."""
        other = copy.copy(self)
        for name in ("box_maximum", "tol", "cutoff", "last", "passes"):
            setattr(other, name, getattr(self, name)[..., rows])
        return other
