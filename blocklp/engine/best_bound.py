"""The best bound of every instance, and the multipliers that prove it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.valid_bounds import corrected
from blocklp.kernels.operations import operation
from blocklp.kernels.plan import Plan
from blocklp.methods.base import put
from blocklp.violation import known_empty

NOTICED = 1e-13
"""Relative improvement from which on a bound is better: sums in another order differ by less."""

NEGLIGIBLE = 0.01
"""Part of the gap: where sharing the residual of multipliers among copies gains less, by an upper estimate,
they do not share it."""


class BestBound:
    """The best bound of every instance of a chunk, and the multipliers that prove it.

    Parameters
    ----------
    duals : Tensor
        ``(batch, copies)``: any multipliers; those of better bounds are written over them.

    Attributes
    ----------
    value : Tensor
        ``(batch,)`` float64: the bounds, corrected for the residual of the multipliers.
    duals : Tensor
        ``(batch, copies)``: their multipliers.
    """

    def __init__(self, duals: Tensor) -> None:
        self.value = duals.new_full((len(duals),), -torch.inf, dtype=torch.float64)
        self.duals = duals

    def update(self, plan: Plan, duals: Tensor, value: Tensor) -> None:
        """Keep multipliers where their bound is better.

        Parameters
        ----------
        plan : Plan
            The problem in float64.
        duals : Tensor
            ``(batch, copies)`` float64: multipliers.
        value : Tensor
            ``(batch,)``: the sums of their block values.
        """
        if plan.in_place:  # once more takes less than tensor operations
            self.evaluate(plan, duals, torch.full_like(self.value, torch.inf))
            return
        bound = corrected(plan.problem, duals, value)
        self.value = keep(bound, duals, self.value, self.duals, NOTICED)

    def evaluate(self, plan: Plan, duals: Tensor, primal: Tensor) -> Tensor:
        """Evaluate multipliers, and keep better ones (:func:`improved_bounds`).

        Parameters
        ----------
        plan : Plan
            The problem in float64, and how it is executed.
        duals : Tensor
            ``(batch, copies)``: multipliers, of any precision.
        primal : Tensor
            ``(batch,)`` float64: values of the best primal points.

        Returns
        -------
        Tensor
            ``(batch,)`` float64: the bounds of these multipliers.
        """
        limits = NOTICED, NEGLIGIBLE
        bound, self.value = improved_bounds(plan, duals, limits, primal, self.value, self.duals)
        return bound

    def select(self, rows: Tensor) -> BestBound:
        """Return the bounds of some of the instances: their positions ``(k,)`` int64."""
        other = copy.copy(self)
        other.value, other.duals = self.value[rows], self.duals[rows]
        return other


@operation
def improved_bounds(
    plan: Plan,
    duals: Tensor,
    limits: tuple[float, float],
    primal: Tensor,
    best: Tensor,
    best_duals: Tensor,
) -> tuple[Tensor, Tensor]:
    """Evaluate multipliers, their residual shared among copies where it matters, and keep the best.

    Parameters
    ----------
    plan : Plan
        The problem in float64, and how it is executed.
    duals : Tensor
        ``(batch, copies)``: the multipliers, of any precision.
    limits : tuple of float
        Relative improvement from which on a bound is better, and the part of the gap below which the residual
        is not shared.
    primal : Tensor
        ``(batch,)`` float64: values of the best primal points, infinite where there is none.
    best : Tensor
        ``(batch,)`` float64: the best bounds so far, which may be written over.
    best_duals : Tensor
        ``(batch, copies)`` float64: their multipliers. Better ones are written over them as they are, without
        their residual shared: :func:`certified` does that in the end.

    Returns
    -------
    bound, best : Tensor
        ``(batch,)`` float64: the corrected bound, and the best one.
    """
    problem, (noticed, negligible) = plan.problem, limits
    duals = doubled(problem, duals)
    residual, allowed = problem.cost - problem.collect(duals), negligible * (primal - best)
    charge = problem.totals.over_variables(residual.abs().mul_(problem.upper - problem.lower))
    shares = ~(charge <= allowed) | torch.isinf(allowed)
    shared = duals if known_empty(shares) else duals + problem.to_dual(residual.mul_(shares[:, None]))
    del residual  # what follows takes most memory
    bound = corrected(problem, shared, problem.value(shared))
    return bound, keep(bound, duals, best, best_duals, noticed)


def doubled(problem: Decomposition, duals: Tensor) -> Tensor:
    """Multipliers in float64; where coordinates are not coupled they are the cost, however it was rounded."""
    if duals.dtype == torch.float64 or problem.coupling.maps:
        return duals.double()
    duals = duals.double()
    for group in problem.groups:
        for first, last in group.unshared:
            duals[:, first:last] = problem.coupling.spread_part(problem.cost, first, last)
    return duals


def keep(bound: Tensor, duals: Tensor, best: Tensor, best_duals: Tensor, noticed: float) -> Tensor:
    """Keep the better one of two bounds of each instance.

    Parameters
    ----------
    bound, best : Tensor
        ``(batch,)`` float64: new bounds, and the best so far.
    duals, best_duals : Tensor
        ``(batch, copies)``: their multipliers; better ones are written over the best ones.
    noticed : float
        Relative improvement from which on a bound is better.

    Returns
    -------
    Tensor
        ``(batch,)``: the best bounds.
    """
    better = (bound > best + noticed * bound.abs()) | ((bound > best) & torch.isinf(best))  # false for NaN
    put(better, duals.to(best_duals.dtype), best_duals)
    return torch.where(better, bound, best)
