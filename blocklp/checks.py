"""What a check evaluates: the bound of some multipliers and a primal point, by tensor operations or compiled loops."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.bounds import corrected, noise
from blocklp.decomposition import Decomposition
from blocklp.methods.base import where

NOTICED = 1e-13
"""Relative improvement from which on a bound is better: sums in another order differ by less."""


def improve(problem: Decomposition, duals: Tensor, best: Tensor, best_duals: Tensor) -> tuple[Tensor, ...]:
    """Evaluate multipliers ``(batch, copies)`` of any precision, their residual shared; keep them where they are the best so far.

    Compiled loops write over the best ones given.

    Returns
    -------
    bound, best, best_duals : Tensor
        ``(batch,)``, ``(batch,)``, ``(batch, copies)`` float64: the corrected bound, and the best ones.
    """
    if (loops := problem.loops) is not None and loops.only is not None:
        group = problem.groups[loops.only.group]
        rest = problem.offset.clone()
        for other in problem.groups:
            if other is not group:
                own = problem.coupling.spread_part(problem.cost, other.start, other.stop)
                rest += other.block_values(other.blockwise(own)).sum(-1) - noise(own, problem)
        bound = torch.empty_like(best)
        table = (problem.coupling.places, problem.cost, problem.counts, problem.lower, problem.upper, problem.largest, rest)
        loops.only.bounds(problem.batch, group.start, group.blocks, *table, duals, NOTICED, bound, best, best_duals)
        return bound, best, best_duals
    duals = problem.recentred(duals.double())
    bound = corrected(problem, duals, problem.value(duals))
    return bound, *keep(bound, duals, best, best_duals)


def keep(bound: Tensor, duals: Tensor, best: Tensor, best_duals: Tensor) -> tuple[Tensor, Tensor]:
    """The best bounds and their multipliers."""
    better = (bound > best + NOTICED * bound.abs()) | ((bound > best) & torch.isinf(best))  # false for NaN
    return torch.where(better, bound, best), where(better, duals, best_duals)


def point(problem: Decomposition, points: Tensor, tolerance: float) -> tuple[Tensor, bool]:
    """Mean of the copies within bounds, completed where types can: ``(batch, variables)`` float64, and whether it was.

    With a grid the rounded point is preferred where it is feasible and no worse.
    """
    if (loops := problem.loops) is not None and loops.only is not None:
        group, grid = problem.groups[loops.only.group], problem.grid
        x, steps = torch.empty_like(problem.cost), torch.zeros_like(problem.counts) if grid is None else grid
        table = (problem.coupling.places, problem.cost, problem.counts, problem.lower, problem.upper, steps)
        loops.only.completed(problem.batch, group.start, group.blocks, *table, NOTICED, points, x)
        return x, True
    x = problem.mean(points.double())
    x = torch.minimum(torch.maximum(x, problem.lower), problem.upper)
    made = problem.completed(x)
    if made is None:
        return x, False
    if problem.grid is not None:
        near = torch.where(problem.grid > 0, (x / problem.grid).round() * problem.grid, x)
        rounded = problem.completed(torch.minimum(torch.maximum(near, problem.lower), problem.upper))
        assert rounded is not None
        value, other = problem.primal_value(made), problem.primal_value(rounded)
        made = where((other < value + NOTICED * value.abs()) & feasible(problem, rounded, tolerance), rounded, made)
    return made, True


def feasible(problem: Decomposition, x: Tensor, tolerance: float) -> Tensor:
    """Whether points ``(batch, variables)`` satisfy bounds and stated constraints within a tolerance: ``(batch,)``."""
    size = 1 + x.abs().amax(1)
    worst = torch.maximum(problem.lower - x, x - problem.upper).amax(1)
    copies = problem.spread(x)
    for group in problem.groups:
        rows = group.type.constraints()
        if rows is not None:
            own = (
                rows.worst(group.rows(copies)) if group.alive is None else (rows.violation(group.view(copies)) * group.alive).amax(1)
            )
            worst = torch.maximum(worst, own)
    return (worst <= tolerance * size) & torch.isfinite(x).all(1)
