r"""Lower bounds that hold in floating point.

For any multipliers :math:`\lambda` (consistent or not) and finite variable bounds ``lo, hi``

.. math:: \sum_b \min_{X_b} \langle \lambda_b, x_b \rangle + \sum_j \min(r_j lo_j, r_j hi_j),
          \qquad r = c - \sum_b \lambda_b,

is a lower bound in exact arithmetic (Neumaier and Shcherbina 2004, Jansson 2004).  :func:`corrected` evaluates it in
the working precision; :func:`safe` also charges an a-priori bound for every rounding error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.bounds import rounding, roundoff
from blocklp.decomposition import Decomposition, Group

NOISE = 16 * torch.finfo(torch.float64).eps
"""Units of roundoff of all that is added up that :func:`corrected` charges."""


def charges(residual: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    r"""The charges :math:`\min(r_j lo_j, r_j hi_j)` of a residual, all ``(batch, variables)``."""
    return torch.minimum(residual * lower, residual * upper)


def corrected(problem: Decomposition, duals: Tensor, value: Tensor) -> Tensor:
    """Residual-corrected bound of float64 multipliers whose block values sum to ``value``: ``(batch,)``.

    A few units of roundoff of all that was added up are charged too, so that multipliers that have grown beyond all
    measure (a tiny proximal weight) are not taken for a better bound.
    """
    residual = problem.cost - problem.collect(duals)
    return summed(problem, duals, value, charges(residual, problem.lower, problem.upper))


def summed(problem: Decomposition, duals: Tensor, value: Tensor, paid: Tensor) -> Tensor:
    """Residual-corrected bound ``(batch,)`` where the charges ``(batch, variables)`` of the residual are known."""
    return with_offset(value + paid.sum(-1) - problem.magnitude(duals).mul_(NOISE), problem.offset)


def with_offset(bound: Tensor, offset: Tensor) -> Tensor:
    """Bounds ``(batch,)`` plus the constants of the objective, rounded down."""
    total = bound + offset
    return total - torch.finfo(total.dtype).eps * total.abs()


def safe(problem: Decomposition, duals: Tensor) -> Tensor:
    """Bound with every rounding error charged, ``(batch,)``; ``-inf`` if a block type states no ``value_error``.

    Costs one oracle call.  ``duals`` must be float64.
    """
    blocks: list[tuple[Tensor, Tensor]] = []
    for group in problem.groups:
        found = block_terms(group, duals)
        if found is None:
            return torch.full_like(problem.offset, -torch.inf)
        blocks.append(found[1:])
    if problem.rows is not None:
        value = problem.rows.value(duals[:, problem.in_blocks :])
        error = roundoff(1, value.abs())
        blocks.append((value - error, value.abs() + error))
    residual = problem.cost - problem.collect(duals)
    doubt = rounding(1, duals.dtype) * (problem.terms + 2) * (problem.cost.abs() + problem.total_size(duals))
    largest = problem.reach
    paid = charges(residual, problem.lower, problem.upper)
    return charged(problem.offset, blocks, paid, doubt * largest, (residual.abs() + doubt) * largest)


def block_terms(group: Group, duals: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Values of a group's blocks, the same less their errors, and magnitudes with them, all ``(batch, blocks)``."""
    cost = group.view(duals)
    error = group.value_error(cost)
    if error is None:
        return None
    value = group.block_values(cost)
    return value, value - error, value.abs() + error


def charged(offset: Tensor, blocks: list[tuple[Tensor, Tensor]], paid: Tensor, doubt: Tensor, reach: Tensor) -> Tensor:
    """Sum of what is certain, less the rounding of that sum: ``(batch,)``.

    Parameters
    ----------
    offset : Tensor
        ``(batch,)``.
    blocks : list
        ``(batch, blocks)`` of each group: values less their errors, and magnitudes with them.
    paid, doubt, reach : Tensor
        ``(batch, variables)``: charges of the residual, their errors, and magnitudes with them.
    """
    total, size, terms = offset, offset.abs(), 1
    for least, most in blocks:
        total = total + least.sum(-1)
        size = size + most.sum(-1)
        terms += least.shape[-1]
    total = total + paid.sum(-1) - doubt.sum(-1)
    size = size + reach.sum(-1)
    return total - rounding(terms + 3 * reach.shape[-1] + 8, total.dtype) * size


def proof(problem: Decomposition, duals: Tensor, bound: Tensor) -> Tensor:
    """Bound to prove infeasibility with: the rigorous one, or ``bound`` less an allowance for oracles of unknown error.

    The allowance is 1e-6 of the largest value that the multipliers could give; those of an infeasible instance grow until
    their bound exceeds any allowance.
    """
    rigorous = safe(problem, duals)
    cautious = bound - 1e-6 * problem.magnitude(duals)
    return torch.where(torch.isfinite(rigorous), rigorous, cautious)


def box_minimum(problem: Decomposition) -> Tensor:
    r"""Lower bound :math:`\sum_j \min(c_j lo_j, c_j hi_j)` on every feasible value, rounded down: ``(batch,)``."""
    low = charges(problem.cost, problem.lower, problem.upper)
    error = rounding(low.shape[-1] + 3, low.dtype) * (low.abs().sum(-1) + problem.offset.abs())
    return low.sum(-1) + problem.offset - error


def box_maximum(problem: Decomposition) -> Tensor:
    r"""Upper bound :math:`\sum_j \max(c_j lo_j, c_j hi_j)` on every feasible value, rounded up: ``(batch,)``."""
    high = torch.maximum(problem.cost * problem.lower, problem.cost * problem.upper)
    error = rounding(high.shape[-1] + 3, high.dtype) * (high.abs().sum(-1) + problem.offset.abs())
    return high.sum(-1) + problem.offset + error
