"""Stop rules, which a check applies in order."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.valid_bounds import box_maximum, proof
from blocklp.engine.best_bound import NOTICED
from blocklp.engine.limits import Limits
from blocklp.engine.status_record import Numbers, StatusRecord
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

    They work on arrays: operations on tensors take several times as long where instances are few.

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
        self.box_maximum, self.patience = box_maximum(problem).cpu().numpy(), limits.patience
        self.tol, self.cutoff = limits.tol[rows].numpy(), limits.cutoff[rows].numpy()
        self.last = np.tile([[-np.inf], [np.inf], [-np.inf]], len(rows))
        self.passes = np.zeros(len(rows), np.int64)

    def infeasible(
        self, problem: Decomposition, bound: Numbers, duals: Tensor, positions: Tensor
    ) -> NDArray[np.bool_]:
        """Whether the best bounds prove that there is no point.

        Parameters
        ----------
        problem : Decomposition
            The problem in float64, of all instances that the multipliers are of.
        bound : array
            ``(k,)`` float64: the best bounds of the active instances.
        duals : Tensor
            ``(batch, copies)``: their multipliers.
        positions : Tensor
            ``(k,)`` int64 on the CPU: the active instances among those of the problem.

        Returns
        -------
        array
            ``(k,)`` bool.
        """
        over: NDArray[np.bool_] = bound > self.box_maximum
        if over.any():
            where, device = over.nonzero()[0], duals.device
            at = positions[torch.from_numpy(where)].to(device)
            part = problem.select(at)
            own = torch.from_numpy(bound[where]).to(device)
            proved = proof(part, part.recentred(duals[at].double()), own)
            over[where] = proved.cpu().numpy() > self.box_maximum[where]
        return over

    def update(self, now: StatusRecord, infeasible: NDArray[np.bool_], when: Moment) -> NDArray[np.int64]:
        """Note progress, and apply the rules.

        Parameters
        ----------
        now : StatusRecord
            The state of the active instances at the check.
        infeasible : array
            ``(k,)`` bool: whether the bound proves that there is no point.
        when : Moment
            When that was.

        Returns
        -------
        array
            ``(k,)`` int64: the status of instances that end, 0 for those that go on.
        """
        limit = Status.PASS_LIMIT if when.out_of_passes else Status.TIME_LIMIT if when.out_of_time else 0
        status = np.full(len(self.passes), int(limit))
        with np.errstate(invalid="ignore", divide="ignore"):
            self._note(now, when.passes)
            reasons = (  # each counts for more than those before it
                (when.passes - self.passes >= self.patience, Status.STALLED),
                (~np.isfinite(now.value), Status.NUMERICAL_ERROR),
                (infeasible, Status.INFEASIBLE),
                (now.bound - NOTICED * abs(now.bound) >= self.cutoff, Status.CUTOFF),
                (now.gap <= self.tol, Status.OPTIMAL),
            )
        for mask, why in reasons:
            status[mask] = why
        return status

    def _note(self, now: StatusRecord, passes: int) -> None:
        """Note progress: of the best values, or of the value of the present multipliers."""
        scale, values = (
            STILL * np.maximum(abs(now.bound), now.floor),
            np.array([now.bound, now.primal, now.value]),
        )
        changed = (abs(values - self.last) > scale).any(0)  # not where both are infinite
        self.last[:, changed], self.passes[changed] = values[:, changed], passes

    def select(self, rows: Tensor) -> StopRules:
        """Return the rules of some of the instances: their positions ``(m,)`` int64, on the CPU."""
        other, at = copy.copy(self), rows.numpy()
        for name in ("box_maximum", "tol", "cutoff", "last", "passes"):
            setattr(other, name, getattr(self, name)[..., at])
        return other
