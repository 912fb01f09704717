"""Nodes as instances whose costs penalise points without the fixings (:mod:`blocklp.search.nodes`)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from blocklp.blocks.capabilities import value_error_of
from blocklp.decomposition.problem import Decomposition
from blocklp.kernels.node_layout import ENOUGH
from blocklp.rounding import rounding


def penalised(problem: Decomposition, fixed: Tensor, duals: Tensor) -> tuple[Decomposition, Tensor]:
    """State nodes as instances whose costs penalise points without the fixings.

    Parameters
    ----------
    problem : Decomposition
        The model, a batch of one.
    fixed : Tensor
        ``(nodes, variables)`` int8: 0, 1, or -1 for free.
    duals : Tensor
        ``(nodes, copies)`` float64: multipliers to start from.

    Returns
    -------
    problem, duals : Decomposition, Tensor
        A batch of nodes, whose bounds are valid for all points that have the fixings, and their multipliers
        ``(nodes, copies)``.
    """
    duals = problem.recentred(duals)
    pay = torch.empty_like(duals)
    for group in problem.groups:
        own = group.rows(duals).abs().sum(1, keepdim=True)
        group.rows(pay).copy_((ENOUGH * own).expand(-1, group.dim, -1))
    side = problem.spread((fixed == 0).double() - (fixed == 1).double())
    duals = torch.where(side != 0, side * pay, duals)
    cost = torch.where(fixed < 0, problem.cost, problem.collect(duals))
    offset = problem.offset + torch.where(fixed == 1, problem.cost - cost, 0.0).sum(1)
    # The rounding of the constant.
    size = torch.where(fixed == 1, problem.cost.abs() + cost.abs(), 0.0).sum(1)
    offset = offset - rounding(fixed.shape[1] + 2, cost.dtype) * size
    return replace(problem, cost=cost, offset=offset), duals


def contradictory(problem: Decomposition, fixed: Tensor) -> Tensor:
    """Whether a block of a node has no point with the fixings ``(nodes, variables)``: ``(nodes,)`` bool."""
    side = problem.spread((fixed == 0).double() - (fixed == 1).double())
    found = torch.zeros(len(fixed), dtype=torch.bool, device=fixed.device)
    for group in problem.groups:
        own = group.view(side)
        found |= (group.type.min_value(own) > own.clamp(max=0).sum(-1) + 1e-6).any(1)
    return found


def sides(problem: Decomposition, duals: Tensor) -> tuple[Tensor, Tensor]:
    """Increases of the bound when a variable is 0, and when it is 1, by min-marginals less their rounding.

    Parameters
    ----------
    problem : Decomposition
        The nodes.
    duals : Tensor
        ``(nodes, copies)`` float64: multipliers.

    Returns
    -------
    zero, one : Tensor
        ``(nodes, variables)`` float64, not negative.
    """
    found = torch.zeros(2, *duals.shape, dtype=duals.dtype, device=duals.device)
    for group in problem.groups:
        cost = group.view(duals)
        m = None if group.min_marginals is None else group.min_marginals(cost)
        error = value_error_of(group.type, cost)
        if m is None or error is None:
            continue
        finite = m.abs().nan_to_num(posinf=0.0, neginf=0.0)
        error = 4 * error[..., None] + rounding(4, cost.dtype) * finite
        group.view(found[0]).copy_((-m - error).nan_to_num(0.0, posinf=math.inf).clamp(min=0))
        group.view(found[1]).copy_((m - error).nan_to_num(0.0, posinf=math.inf).clamp(min=0))
    zero, one = (problem.collect(side) * (1 - 1e-12) for side in found)
    return zero, one
