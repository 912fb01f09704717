r"""Lower bounds that hold in floating point.

For any multipliers :math:`\lambda` (consistent or not) and finite variable bounds ``lo, hi``

.. math:: \sum_b \min_{X_b} \langle \lambda_b, x_b \rangle + \sum_j \min(r_j lo_j, r_j hi_j),
          \qquad r = c - \sum_b \lambda_b,

is a lower bound in exact arithmetic (Neumaier and Shcherbina 2004, Jansson 2004).  :func:`corrected` evaluates it in
the working precision; :func:`safe` also charges an a-priori bound for every rounding error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from blocklp.decomposition import Decomposition


def rounding(terms: int | Tensor, dtype: torch.dtype) -> float | Tensor:
    r""":math:`\gamma_n = n u / (1 - n u)` for ``terms`` operations, doubled to cover the bound's own rounding."""
    unit = torch.finfo(dtype).eps
    return 2 * terms * unit / (1 - 2 * terms * unit)


def charge(residual: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    r"""The charge :math:`\sum_j \min(r_j lo_j, r_j hi_j)` of a residual ``(batch, variables)``: ``(batch,)``."""
    return torch.minimum(residual * lower, residual * upper).sum(-1)


def corrected(problem: Decomposition, duals: Tensor, value: Tensor) -> Tensor:
    """Residual-corrected bound of float64 multipliers whose block values sum to ``value``: ``(batch,)``.

    A few units of roundoff of all that was added up are charged too, so that multipliers that have grown beyond all
    measure (a tiny proximal weight) are not taken for a better bound.
    """
    residual = problem.cost - problem.collect(duals)
    return value + charge(residual, problem.lower, problem.upper) + problem.offset - noise(duals, problem)


def noise(duals: Tensor, problem: Decomposition) -> Tensor:
    """Some units of roundoff of all that is added up: ``(batch,)``."""
    return 16 * torch.finfo(duals.dtype).eps * duals.abs().sum(1) * problem.largest


def safe(problem: Decomposition, duals: Tensor) -> Tensor:
    """Bound with every rounding error charged, ``(batch,)``; ``-inf`` if a block type states no ``value_error``.

    Costs one oracle call.  ``duals`` must be float64.
    """
    total, size, terms = problem.offset.clone(), problem.offset.abs(), 1
    for group in problem.groups:
        cost = group.view(duals)
        error = group.value_error(cost)
        if error is None:
            return torch.full_like(problem.offset, -torch.inf)
        value = group.block_values(cost)
        total = total + (value - error).sum(-1)
        size = size + (value.abs() + error).sum(-1)
        terms += value.shape[-1]
    residual = problem.cost - problem.collect(duals)
    doubt = rounding(1, duals.dtype) * (problem.counts + 2) * (problem.cost.abs() + problem.collect(duals.abs()))
    largest = torch.maximum(problem.lower.abs(), problem.upper.abs())
    total = total + charge(residual, problem.lower, problem.upper) - (doubt * largest).sum(-1)
    size = size + ((residual.abs() + doubt) * largest).sum(-1)
    return total - rounding(terms + 3 * residual.shape[-1] + 8, duals.dtype) * size


def proof(problem: Decomposition, duals: Tensor, bound: Tensor) -> Tensor:
    """Bound to prove infeasibility with: the rigorous one, or ``bound`` less an allowance for oracles of unknown error.

    The allowance is 1e-6 of the largest value that the multipliers could give; those of an infeasible instance grow until
    their bound exceeds any allowance.
    """
    rigorous = safe(problem, duals)
    cautious = bound - 1e-6 * duals.abs().sum(1) * problem.largest
    return torch.where(torch.isfinite(rigorous), rigorous, cautious)


def box_maximum(problem: Decomposition) -> Tensor:
    r"""Upper bound :math:`\sum_j \max(c_j lo_j, c_j hi_j)` on every feasible value, rounded up: ``(batch,)``."""
    high = torch.maximum(problem.cost * problem.lower, problem.cost * problem.upper)
    error = rounding(high.shape[-1] + 3, high.dtype) * (high.abs().sum(-1) + problem.offset.abs())
    return high.sum(-1) + problem.offset + error
