"""Primal points: offered, completed and measured."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.decomposition.block_runs import completed, of_blocks, run_length, runs
from blocklp.engine.best_bound import NOTICED
from blocklp.kernels.operations import operation
from blocklp.kernels.plan import Plan
from blocklp.methods.base import where
from blocklp.violation import known_empty, relative_excess


def offer(
    plan: Plan,
    found: Tensor,
    points: Tensor | None,
    tolerance: float,
    bound: Tensor,
    primal: Tensor,
    x: Tensor,
    known: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Keep primal points where they are feasible and better than the best.

    Parameters
    ----------
    plan : Plan
        The problem in float64.
    found : Tensor
        ``(batch, variables)`` float64: points within the bounds of the variables.
    points : Tensor or None
        ``(batch, copies)``, of any precision: copies that must agree with the points found; None where they
        need not.
    tolerance : float
        Relative violation up to which a point counts as feasible.
    bound, primal : Tensor
        ``(batch,)`` float64: best bound and best value of a point so far; the value is infinite without one.
    x : Tensor
        ``(batch, variables)`` float64: the points of the best values.
    known : Tensor or None
        ``(batch,)``: violations of the points found, if :func:`point` measured them.

    Returns
    -------
    primal, x, worst : Tensor
        ``(batch,)``, ``(batch, variables)`` float64: the best values and points; any point where none is
        feasible. ``(batch,)``: largest relative violation of the points found, infinite where none of them
        would be better.
    """
    problem = plan.problem
    value = problem.primal_value(found)
    better = nearer(value, primal, bound) & problem.totals.everywhere(torch.isfinite(found).all(1))
    if known_empty(better):
        worst = torch.full_like(value, torch.inf)
    else:
        worst = violation(plan, found) if known is None else known
    feasible = better & (worst <= tolerance)
    if points is not None and not known_empty(feasible):
        copies = points[:, : problem.in_blocks]
        slack = problem.coupling.spread(tolerance * problem.sizes(found))
        agree = ((copies - problem.coupling.spread(found)).abs() <= slack).all(1)
        feasible &= problem.totals.everywhere(agree)
    first = feasible | torch.isinf(primal)
    primal, x = torch.where(feasible, value, primal), _either(first, found, x)
    return primal, x, torch.where(better, worst, torch.inf)


@operation
def offer_mean(
    plan: Plan, mean: Tensor, limits: tuple[float, float], bound: Tensor, primal: Tensor, x: Tensor
) -> None:
    """Complete the means of copies, and keep the points where they are better.

    Coordinates that no other block shares need not be those of the points before :func:`finish_points` is
    called.

    Parameters
    ----------
    plan : Plan
        The problem in float64, whose types complete points.
    mean : Tensor
        ``(batch, variables)``, of any precision: means of the copies of each variable.
    limits : tuple of float
        Relative improvement that counts, and relative violation up to which a point counts as feasible.
    bound : Tensor
        ``(batch,)`` float64: the best bounds.
    primal, x : Tensor
        ``(batch,)`` and ``(batch, variables)`` float64: best values and points, written.
    """
    found, _, worst = point(plan, mean.double(), limits[1])
    better, best, _ = offer(plan, found, None, limits[1], bound, primal, x, worst)
    x.copy_(best)
    primal.copy_(better)


@operation
def finish_points(plan: Plan, rows: Tensor, x: Tensor) -> None:
    """Write what :func:`offer_mean` left out of points: nothing, by the definition.

    Parameters
    ----------
    plan : Plan
        The problem in float64.
    rows : Tensor
        ``(k,)`` int64: the instances.
    x : Tensor
        ``(batch, variables)`` float64: points of all instances, written.
    """


def point(plan: Plan, mean: Tensor, tolerance: float) -> tuple[Tensor, bool, Tensor | None]:
    """Clip means of copies to the bounds of the variables, and complete them where the types can.

    With a grid the rounded point is preferred where it is feasible and no worse.

    Parameters
    ----------
    plan : Plan
        The problem in float64, and how it is executed.
    mean : Tensor
        ``(batch, variables)`` float64: means of the copies of each variable.
    tolerance : float
        Relative violation up to which a point counts as feasible.

    Returns
    -------
    x : Tensor
        ``(batch, variables)`` float64.
    made : bool
        Whether the points were completed.
    worst : Tensor or None
        ``(batch,)``: their violations (:func:`violation`); None where not all of them were measured.
    """
    problem = plan.problem
    x = torch.minimum(torch.maximum(mean, problem.lower), problem.upper)
    made = completed(problem, x)
    if made is None:
        return x, False, None
    worst = None
    if problem.grid is not None:
        near = torch.where(problem.grid > 0, (x / problem.grid).round() * problem.grid, x)
        del x
        torch.minimum(torch.maximum(near, problem.lower, out=near), problem.upper, out=near)
        rounded = completed(problem, near)
        del near
        assert rounded is not None
        value, other = problem.primal_value(made), problem.primal_value(rounded)
        better = other < value + NOTICED * value.abs()
        if not known_empty(better):
            away = violation(plan, rounded)
            finite = problem.totals.everywhere(torch.isfinite(rounded).all(1))
            better &= (away <= tolerance) & finite
            made = _either(better, rounded, made)
            worst = away if known_empty(~better) else None
    return made, True, worst


def feasible(plan: Plan, x: Tensor, tolerance: float) -> Tensor:
    """Whether points satisfy bounds and stated constraints.

    Parameters
    ----------
    plan : Plan
        The problem in float64.
    x : Tensor
        ``(batch, variables)`` float64.
    tolerance : float
        Relative violation up to which a point counts as feasible.

    Returns
    -------
    Tensor
        ``(batch,)`` bool.
    """
    finite = plan.problem.totals.everywhere(torch.isfinite(x).all(1))
    return (violation(plan, x) <= tolerance) & finite


def nearer(value: Tensor, primal: Tensor, bound: Tensor) -> Tensor:
    """Whether values are nearer to the bound than the best so far: ``(batch,)`` bool.

    A point that is feasible within a tolerance may be worth less than the bound; then one that is worth more
    is better.

    Parameters
    ----------
    value, primal, bound : Tensor
        ``(batch,)`` float64: values of new points, the best value so far, and the best bound.
    """
    return (value - bound).abs() < (primal - bound).abs() - NOTICED * value.abs()


def violation(plan: Plan, x: Tensor) -> Tensor:
    """Largest violation of bounds and stated constraints by points ``(batch, variables)``: ``(batch,)``.

    Each is relative to the side that is violated or to the terms of the row, whichever is more
    (:meth:`Constraints.violation`).
    """
    problem = plan.problem
    size, program = problem.sizes(x), plan.written
    box = problem if program is None else program.box
    parts = zip(
        *(torch.split(own, run_length(problem), 1) for own in (x, box.lower, box.upper, size)), strict=True
    )
    worst = torch.stack([_beyond(*own) for own in parts]).amax(0)
    if program is not None:  # all rows at once
        return problem.totals.greatest(torch.maximum(worst, program.violation(problem, x)))
    if problem.rows is not None:
        worst = torch.maximum(worst, problem.rows.violation(x, size))
    for group in problem.groups:
        if (rows := group.constraints) is None:
            continue
        for blocks in runs(problem, group):
            given = (of_blocks(problem, values, group, blocks) for values in (x, size))
            own = rows.part(blocks).relative_violation(*given)
            own = own if group.valid is None else own * group.valid[:, blocks]
            worst = torch.maximum(worst, own.amax(1))
    return problem.totals.greatest(worst)


def _beyond(x: Tensor, lower: Tensor, upper: Tensor, size: Tensor) -> Tensor:
    """Largest relative violation of bounds by some variables ``(batch, k)``: ``(batch,)``."""
    below = relative_excess(lower - x, lower.abs(), x.abs(), size)
    return torch.maximum(below, relative_excess(x - upper, upper.abs(), x.abs(), size)).amax(1)


def _either(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """:func:`where`, which copies nothing where all instances of a CPU take the first."""
    return a if known_empty(~mask) else where(mask, a, b)
