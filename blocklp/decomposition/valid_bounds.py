r"""Lower bounds that hold in floating point.

For any multipliers :math:`\lambda` (consistent or not) and finite variable bounds ``lo, hi``

.. math:: \sum_b \min_{X_b} \langle \lambda_b, x_b \rangle + \sum_j \min(r_j lo_j, r_j hi_j),
          \qquad r = c - \sum_b \lambda_b,

is a lower bound in exact arithmetic (Neumaier and Shcherbina 2004, Jansson 2004).  :func:`corrected`
evaluates it in the working precision; :func:`safe` also charges an a-priori bound for every rounding error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.row_sums import largest
from blocklp.rounding import rounding, roundoff

NOISE = 16 * torch.finfo(torch.float64).eps
"""Relative rounding error of all that is added up, as :func:`corrected` subtracts it."""

CANCELLED, ROUNDED = 1e-3, 1e-9
"""Parts of the terms of an objective, at the point and at the bounds of the variables, below which its value
counts as zero."""


def charges(residual: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    r"""The terms :math:`\min(r_j lo_j, r_j hi_j)` of a residual in a bound.

    Parameters
    ----------
    residual, lower, upper : Tensor
        ``(batch, variables)``: r, and bounds of the variables.

    Returns
    -------
    Tensor
        ``(batch, variables)``.
    """
    return torch.minimum(residual * lower, residual * upper)


def corrected(problem: Decomposition, duals: Tensor, value: Tensor) -> Tensor:
    """Residual-corrected bound.

    A few units of roundoff of all that was added up are subtracted too, so that multipliers that have grown
    beyond all measure (a tiny proximal weight) are not taken for a better bound.

    Parameters
    ----------
    problem : Decomposition
        The problem.
    duals : Tensor
        ``(batch, copies)`` float64: multipliers.
    value : Tensor
        ``(batch,)`` float64: the sum of their block values.

    Returns
    -------
    Tensor
        ``(batch,)``.
    """
    residual, total = problem.cost - problem.collect(duals), problem.total_size(duals)
    paid = charges(residual, problem.lower, problem.upper)
    noise = NOISE * problem.magnitude(duals, total)
    return with_offset(value + problem.totals.over_variables(paid) - noise, problem.offset)


def with_offset(bound: Tensor, offset: Tensor) -> Tensor:
    """Bounds ``(batch,)`` plus the constants of the objective, rounded down."""
    total = bound + offset
    return total - torch.finfo(total.dtype).eps * total.abs()


def safe(problem: Decomposition, duals: Tensor) -> Tensor:
    """Bound ``(batch,)`` less every rounding error; ``-inf`` if a block type states no ``value_error``.

    Takes one oracle call.  ``duals`` must be float64.
    """
    return evaluated(problem, duals)[1]


def evaluated(problem: Decomposition, duals: Tensor) -> tuple[Tensor, Tensor]:
    """Evaluate multipliers ``(batch, copies)`` float64 by one oracle call.

    Returns
    -------
    bound, safe : Tensor
        ``(batch,)``: the bounds of :func:`corrected` and :func:`safe`.
    """
    values, blocks, known, rows = [], [], True, None
    for group in problem.groups:
        cost = group.view(duals)
        value, error = group.block_values(cost), group.value_error(cost)
        values.append(problem.totals.over_blocks(value))
        known = known and error is not None
        if error is not None:
            blocks.append((value - error, value.abs() + error))
    if problem.rows is not None:
        value = problem.rows.value(duals[:, problem.in_blocks :])
        error = roundoff(1, value.abs())
        values.append(value.sum(-1))
        rows = value - error, value.abs() + error
    residual, total = problem.cost - problem.collect(duals), problem.total_size(duals)
    paid = charges(residual, problem.lower, problem.upper)
    noise = NOISE * problem.magnitude(duals, total)
    value = torch.stack(values).sum(0) + problem.totals.over_variables(paid)
    bound = with_offset(value - noise, problem.offset)
    if not bool(problem.totals.everywhere(torch.tensor(known))):
        return bound, torch.full_like(problem.offset, -torch.inf)
    error = rounding(1, duals.dtype) * (problem.terms + 2) * (problem.cost.abs() + total)
    largest = problem.reach
    reach = (residual.abs() + error) * largest
    return bound, charged(problem, blocks, rows, paid, error * largest, reach)


def charged(
    problem: Decomposition,
    blocks: list[tuple[Tensor, Tensor]],
    rows: tuple[Tensor, Tensor] | None,
    paid: Tensor,
    error: Tensor,
    reach: Tensor,
) -> Tensor:
    """Sum of lower bounds on all terms, less the rounding error of that sum: ``(batch,)``.

    Parameters
    ----------
    problem : Decomposition
        The problem.
    blocks : list
        ``(batch, blocks)`` of each group: values less their errors, and magnitudes with them.
    rows : tuple of Tensor or None
        ``(batch, rows)``: likewise of rows beside the blocks.
    paid, error, reach : Tensor
        ``(batch, variables)``: terms of the residual, their errors, and magnitudes with them.

    Returns
    -------
    Tensor
        ``(batch,)``, in the units of the cost.
    """
    totals, offset, own = problem.totals, problem.offset, 0
    total, size = offset, offset.abs()
    for least, most in blocks:
        total = total + totals.over_blocks(least)
        size = size + totals.over_blocks(most)
        own += least.shape[-1]
    beside = 0
    if rows is not None:
        total, size, beside = total + rows[0].sum(-1), size + rows[1].sum(-1), rows[0].shape[-1]
    total = total + totals.over_variables(paid) - totals.over_variables(error)
    size = size + totals.over_variables(reach)
    terms = 1 + totals.blocks(own) + beside + 3 * totals.variables(reach.shape[-1])
    return total - rounding(terms + 8, total.dtype) * size


def proof(problem: Decomposition, duals: Tensor, bound: Tensor) -> Tensor:
    """Bound to prove infeasibility with.

    It is the rigorous one (:func:`safe`), or ``bound`` less an allowance for oracles of unknown error: 1e-6
    of the largest value that the multipliers could give.  Multipliers of an infeasible instance grow until
    their bound exceeds any allowance.

    Parameters
    ----------
    problem, duals
        As in :func:`corrected`.
    bound : Tensor
        ``(batch,)`` float64: their bound.

    Returns
    -------
    Tensor
        ``(batch,)``.
    """
    rigorous = safe(problem, duals)
    cautious = bound - 1e-6 * problem.magnitude(duals)
    return torch.where(torch.isfinite(rigorous), rigorous, cautious)


def box_minimum(problem: Decomposition) -> Tensor:
    r"""Lower bound :math:`\sum_j \min(c_j lo_j, c_j hi_j)` on feasible values, rounded down: ``(batch,)``."""
    low = charges(problem.cost, problem.lower, problem.upper)
    terms, total = problem.totals.variables(low.shape[-1]), problem.totals.over_variables
    error = rounding(terms + 3, low.dtype) * (total(low.abs()) + problem.offset.abs())
    return total(low) + problem.offset - error


def box_maximum(problem: Decomposition) -> Tensor:
    r"""Upper bound :math:`\sum_j \max(c_j lo_j, c_j hi_j)` on feasible values, rounded up: ``(batch,)``."""
    high = torch.maximum(problem.cost * problem.lower, problem.cost * problem.upper)
    terms, total = problem.totals.variables(high.shape[-1]), problem.totals.over_variables
    error = rounding(terms + 3, high.dtype) * (total(high.abs()) + problem.offset.abs())
    return total(high) + problem.offset + error


def floor(problem: Decomposition, x: Tensor) -> Tensor:
    r"""Least scale ``(batch,)`` that gaps are relative to, from primal points ``(batch, variables)``.

    A thousandth of :math:`\sum_j |c_j|` times the largest entry of the point, or of
    :math:`\sum_j |c_j| reach_j` if that is less, and a billionth of the latter; :math:`reach_j` is the
    largest magnitude that the bounds of a variable allow. A value below that is what is left where terms
    cancel. It scales with costs and variables as values do.
    """
    terms, entry = problem.cost_terms, problem.totals.greatest(largest(x))
    return torch.maximum(CANCELLED * torch.minimum(terms[0], terms[1] * entry), ROUNDED * terms[0])
