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
from blocklp.engine.records import relative_gap
from blocklp.status import Status

STILL = 1e-10
"""Relative change of a value up to which it counts as the same."""


@dataclass(frozen=True)
class Checked:
    """The state of the active instances at a check.

    Attributes
    ----------
    bound, primal : Tensor
        ``(k,)`` float64: the best so far, in the sense of minimisation; ``primal`` is infinite
        without a point.
    value : Tensor
        ``(k,)``: the dual value of the present multipliers.
    floor : Tensor
        ``(k,)`` float64: what gaps are relative to at least.
    infeasible : Tensor
        ``(k,)`` bool: whether the bound proves that there is no point.
    passes : int
        Passes so far.
    out_of_passes, out_of_time : bool
        Whether there are none left.
    """

    bound: Tensor
    primal: Tensor
    value: Tensor
    floor: Tensor
    infeasible: Tensor
    passes: int
    out_of_passes: bool
    out_of_time: bool


class StopRules:
    """The stop rules, and the values and pass at which each active instance last made progress.

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
        self.box_maximum, self.patience = box_maximum(problem), limits.patience
        self.tol, self.cutoff = (of_each[rows].cpu().numpy() for of_each in (limits.tol, limits.cutoff))
        self.last = np.tile([[-np.inf], [np.inf], [-np.inf]], len(rows))
        self.passes = np.zeros(len(rows), np.int64)

    def infeasible(
        self,
        problem: Decomposition,
        bound: Tensor,
        duals: Tensor,
        positions: Tensor | None,
    ) -> Tensor:
        """Whether the best bounds prove that there is no point.

        Parameters
        ----------
        problem : Decomposition
            The problem in float64, of all instances that the multipliers are of.
        bound : Tensor
            ``(k,)`` float64: the best bounds of the active instances.
        duals : Tensor
            ``(batch, copies)``: their multipliers.
        positions : Tensor or None
            ``(k,)`` int64: the active instances among those of the problem; None where they are all of them.

        Returns
        -------
        Tensor
            ``(k,)`` bool.
        """
        over = bound > self.box_maximum
        if bool(over.any()):
            where = over.nonzero()[:, 0]
            at = where if positions is None else positions[where]
            part = problem.select(at)
            proved = proof(part, part.recentred(duals[at].double()), bound[where])
            over[where] = proved > self.box_maximum[where]
        return over

    def update(self, now: Checked) -> Tensor:
        """Note progress; return the status of instances that end, ``(k,)`` int64, 0 for those that go on."""
        limit = Status.PASS_LIMIT if now.out_of_passes else Status.TIME_LIMIT if now.out_of_time else 0
        status = np.full(len(self.passes), int(limit))
        known = now.bound, now.primal, now.value, now.floor
        bound, primal, value, floor = (of_each.cpu().numpy() for of_each in known)
        with np.errstate(invalid="ignore", divide="ignore"):
            self._note(np.array([bound, primal, value]), floor, now.passes)
            reasons = (  # each counts for more than those before it
                (now.passes - self.passes >= self.patience, Status.STALLED),
                (~np.isfinite(value), Status.NUMERICAL_ERROR),
                (now.infeasible.cpu().numpy(), Status.INFEASIBLE),
                (bound - NOTICED * abs(bound) >= self.cutoff, Status.CUTOFF),
                (relative_gap(primal, bound, floor) <= self.tol, Status.OPTIMAL),
            )
        for mask, why in reasons:
            status[mask] = why
        return torch.from_numpy(status).to(now.bound.device)

    def _note(self, values: NDArray[np.float64], floor: NDArray[np.float64], passes: int) -> None:
        """Note progress: of the best values, or of the value of the present multipliers."""
        scale = STILL * np.maximum(abs(values[0]), floor)
        changed = (abs(values - self.last) > scale).any(0)  # not where both are infinite
        self.last[:, changed], self.passes[changed] = values[:, changed], passes

    def select(self, rows: Tensor) -> StopRules:
        """Return the rules of some of the instances: their positions ``(m,)`` int64."""
        other, at = copy.copy(self), rows.cpu().numpy()
        other.box_maximum = self.box_maximum[rows]
        for name in ("tol", "cutoff", "last", "passes"):
            setattr(other, name, getattr(self, name)[..., at])
        return other
