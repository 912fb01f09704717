"""Checks: the bound of some multipliers and a primal point, by tensor operations or compiled loops."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.compiled import tiles
from blocklp.decomposition import Decomposition
from blocklp.errors import TimeLimitError
from blocklp.methods.base import put, where
from blocklp.nearest import nearest
from blocklp.plan import Plan
from blocklp.valid_bounds import block_terms, charged, corrected, safe, summed
from blocklp.violation import relative_excess

NOTICED = 1e-13
"""Relative improvement from which on a bound is better: sums in another order differ by less."""

NEGLIGIBLE = 0.01
"""Part of the gap: where sharing the residual of multipliers among copies gains less, by an upper estimate,
they do not share it."""

ALMOST = 3e-2
"""Relative violation of rows above which a point is not worth a feasibility projection."""

CANCELLED, ROUNDED = 1e-3, 1e-9
"""Parts of the terms of an objective, at the point and at the bounds of the variables, below which its value
counts as zero."""

MENDING = 150
"""Passes of a feasibility projection."""


def improve(
    plan: Plan,
    duals: Tensor,
    primal: Tensor,
    best: Tensor,
    best_duals: Tensor,
) -> tuple[Tensor, Tensor]:
    """Evaluate multipliers, their residual shared among copies where it matters, and keep the best.

    Parameters
    ----------
    plan : Plan
        The problem in float64, and its compiled loops.
    duals : Tensor
        ``(batch, copies)``: the multipliers, of any precision.
    primal : Tensor
        ``(batch,)`` float64: values of the best primal points, infinite where there is none.
    best : Tensor
        ``(batch,)`` float64: the best bounds so far.
    best_duals : Tensor
        ``(batch, copies)`` float64: their multipliers. Better ones are written over them as they are, without
        their residual shared: :func:`certified` does that in the end.

    Returns
    -------
    bound, best : Tensor
        ``(batch,)`` float64: the corrected bound, and the best one.
    """
    problem = plan.problem
    if (loops := plan.loops) is not None and loops.only is not None:
        only, group, bound = loops.only, problem.groups[loops.only.group], best.clone()
        bounds = problem.lower, problem.upper, only.largest, only.rest
        table = problem.coupling.places, problem.cost, problem.counts, *bounds
        layout = (group.start, group.blocks, only.filled, loops.used, only.met)
        units, *parts = only.dealt(best.dtype)
        state = duals, NOTICED, NEGLIGIBLE, primal, bound, best, best_duals
        only.find("bounds")(units, *parts, only.live, *layout, *table, *state)
        return bound, best
    duals = doubled(problem, duals)
    residual, allowed = problem.cost - problem.collect(duals), NEGLIGIBLE * (primal - best)
    shares = ~((residual.abs() * (problem.upper - problem.lower)).sum(1) <= allowed) | torch.isinf(allowed)
    shared = duals + problem.to_dual(residual.mul_(shares[:, None]))
    bound = corrected(problem, shared, problem.value(shared))
    return bound, keep(bound, duals, best, best_duals)


def doubled(problem: Decomposition, duals: Tensor) -> Tensor:
    """Multipliers in float64; where coordinates are not coupled they are the cost, however it was rounded."""
    if duals.dtype == torch.float64 or problem.coupling.maps:
        return duals.double()
    duals = duals.double()
    for group in problem.groups:
        for (first, last), coupled in zip(group.spans, group.curved.tolist(), strict=True):
            if not coupled:
                duals[:, first:last] = problem.coupling.spread_part(problem.cost, first, last)
    return duals


def keep(bound: Tensor, duals: Tensor, best: Tensor, best_duals: Tensor) -> Tensor:
    """Keep the better one of two bounds of each instance.

    Parameters
    ----------
    bound, best : Tensor
        ``(batch,)`` float64: new bounds, and the best so far.
    duals, best_duals : Tensor
        ``(batch, copies)``: their multipliers; better ones are written over the best ones.

    Returns
    -------
    Tensor
        ``(batch,)``: the best bounds.
    """
    better = (bound > best + NOTICED * bound.abs()) | ((bound > best) & torch.isinf(best))  # false for NaN
    put(better, duals, best_duals)
    return torch.where(better, bound, best)


def certified(plan: Plan, duals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Share the residual of multipliers ``(batch, copies)`` float64 among the copies, and evaluate them.

    Returns
    -------
    duals, bound, safe : Tensor
        ``(batch, copies)``, ``(batch,)``, ``(batch,)`` float64: the multipliers, their corrected and their
        rigorous bound.
    """
    problem = plan.problem
    if (loops := plan.loops) is None or loops.alone is None:
        shared = problem.recentred(duals)
        return shared, corrected(problem, shared, problem.value(shared)), safe(problem, shared)
    number, find = loops.alone
    group, shared = problem.groups[number], torch.empty_like(duals)
    edges, variables = duals.new_empty(3, len(duals), group.blocks), duals.new_empty(3, *problem.cost.shape)
    table = (problem.coupling.places, problem.cost, problem.counts, problem.lower, problem.upper)
    layout, found = (group.start, group.blocks, group.filled), (duals, shared, *edges, *variables)
    find("certified")(len(duals), *layout, *table, *found)
    every = [tuple(edges) if g is group else block_terms(g, shared) for g in problem.groups]
    blocks = [terms for terms in every if terms]
    value = torch.stack([values.sum(-1) for values, *_ in blocks]).sum(0)
    bound = summed(problem, shared, value, variables[0])
    return shared, bound, charged(problem.offset, [(least, most) for _, least, most in blocks], *variables)


def offer(
    plan: Plan, found: Tensor, points: Tensor | None, tolerance: float, bound: Tensor, primal: Tensor, x: Tensor
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

    Returns
    -------
    primal, x, worst : Tensor
        ``(batch,)``, ``(batch, variables)`` float64: the best values and points; any point where none is
        feasible. ``(batch,)``: largest relative violation of the points found, infinite where none of them
        would be better.
    """
    problem = plan.problem
    value = problem.primal_value(found)
    better = nearer(value, primal, bound) & torch.isfinite(found).all(1)
    worst = violation(plan, found) if bool(better.any()) else torch.full_like(value, torch.inf)
    feasible = better & (worst <= tolerance)
    if points is not None and bool(feasible.any()):
        copies = points[:, : problem.in_blocks]
        slack = problem.coupling.spread(tolerance * problem.sizes(found))
        feasible &= ((copies - problem.coupling.spread(found)).abs() <= slack).all(1)
    first = feasible | torch.isinf(primal)
    primal, x = torch.where(feasible, value, primal), torch.where(first[:, None], found, x)
    return primal, x, torch.where(better, worst, torch.inf)


def floor(problem: Decomposition, x: Tensor) -> Tensor:
    r"""Least scale ``(batch,)`` that gaps are relative to, from primal points ``(batch, variables)``.

    A thousandth of :math:`\sum_j |c_j|` times the largest entry of the point, or of
    :math:`\sum_j |c_j| reach_j` if that is less, and a billionth of the latter; :math:`reach_j` is the
    largest magnitude that the bounds of a variable allow. A value below that is what is left where terms
    cancel. It scales with costs and variables as values do.
    """
    terms, largest = problem.cost_terms, torch.linalg.vector_norm(x, torch.inf, dim=1)
    return torch.maximum(CANCELLED * torch.minimum(terms[0], terms[1] * largest), ROUNDED * terms[0])


def offer_mean(plan: Plan, mean: Tensor, tolerance: float, bound: Tensor, primal: Tensor, x: Tensor) -> None:
    """Keep the primal points that the means of copies give where they are better, in compiled loops.

    Products are not those of the points before :func:`complete` is called.

    Parameters
    ----------
    plan : Plan
        The problem in float64, with loops of a single group.
    mean : Tensor
        ``(batch, variables)``, of any precision: means of the copies of each variable.
    tolerance : float
        Relative violation up to which a point counts as feasible.
    bound : Tensor
        ``(batch,)`` float64: the best bounds.
    primal, x : Tensor
        ``(batch,)`` and ``(batch, variables)`` float64: best values and points, written.
    """
    problem = plan.problem
    assert plan.loops is not None and plan.loops.only is not None
    only, grid = plan.loops.only, problem.grid
    group, steps = problem.groups[only.group], torch.zeros_like(problem.counts) if grid is None else grid
    table = (problem.coupling.places, problem.cost, problem.offset, problem.lower, problem.upper, steps)
    layout = (group.start, group.blocks, only.filled, only.ends, only.met, only.private, only.narrow)
    units, turns, parts, _, totals = only.dealt(x.dtype)
    state = (NOTICED, tolerance, mean, bound, only.size, primal, x)
    found = x.new_empty(2, only.ends if len(totals) else 0)  # otherwise each thread has its own
    only.find("completed")(units, turns, parts, totals, found, only.live, *layout, *table, *state)


def complete(plan: Plan, rows: Tensor, x: Tensor) -> None:
    """Write the products into primal points that :func:`offer_mean` kept.

    Parameters
    ----------
    plan : Plan
        The problem in float64, with loops of a single group.
    rows : Tensor
        ``(k,)`` int64: the instances.
    x : Tensor
        ``(batch, variables)`` float64: points of all instances, written.
    """
    problem = plan.problem
    assert plan.loops is not None and plan.loops.only is not None
    only = plan.loops.only
    group = problem.groups[only.group]
    layout = (group.start, group.blocks, only.filled, problem.coupling.places, problem.cost)
    only.find("products")(len(rows) * tiles(group.blocks), rows, *layout, x)


def mend(
    plan: Plan, found: Tensor, worst: Tensor, tolerance: float, bound: Tensor, primal: Tensor, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scale points that are almost feasible and might be better, or else project them; keep those that are better.

    Parameters
    ----------
    plan : Plan
        The problem in float64, and its compiled loops.
    found : Tensor
        ``(batch, variables)`` float64: points within the bounds of the variables.
    worst : Tensor
        ``(batch,)``: their largest relative violation, infinite where they would not be better.
    tolerance : float
        Relative violation up to which a point counts as feasible.
    bound, primal : Tensor
        ``(batch,)`` float64: best bound and best value of a point so far; the value is infinite without one.
    x : Tensor
        ``(batch, variables)`` float64: the points of the best values.

    Returns
    -------
    primal, x, spent : Tensor
        ``(batch,)``, ``(batch, variables)`` float64, and the passes that this took ``(batch,)`` int64.
    """
    problem = plan.problem
    spent = torch.zeros(len(primal), dtype=torch.long, device=primal.device)
    due = (worst > tolerance) & (worst <= ALMOST)
    if not problem.testable or plan.deadline.over() or not bool(due.any()):
        return primal, x, spent

    def part(rows: Tensor) -> Plan:
        return plan if len(rows) == problem.batch else plan.select(rows)

    def offered(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        better, best, _ = offer(part(rows), points, None, tolerance, bound[rows], primal[rows], x[rows])
        return primal.index_copy(0, rows, better), x.index_copy(0, rows, best)

    rows = due.nonzero()[:, 0]
    try:
        before = primal
        primal, x = offered(part(rows).program.scaled(part(rows).problem, found[rows]), rows)
        rows = (due & ~(primal < before)).nonzero()[:, 0]
        if len(rows):
            projected, passes = nearest(part(rows), found[rows], tolerance / 2, MENDING)
            primal, x = offered(projected, rows)
            spent.index_copy_(0, rows, passes)
    except TimeLimitError:  # no time is left to write the rows out
        pass
    return primal, x, spent


def point(plan: Plan, mean: Tensor, tolerance: float) -> tuple[Tensor, bool]:
    """Clip means of copies to the bounds of the variables, and complete them where the types can.

    With a grid the rounded point is preferred where it is feasible and no worse.

    Parameters
    ----------
    plan : Plan
        The problem in float64, and its compiled loops.
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
    """
    problem = plan.problem
    x = torch.minimum(torch.maximum(mean, problem.lower), problem.upper)
    made = problem.completed(x)
    if made is None:
        return x, False
    if problem.grid is not None:
        near = torch.where(problem.grid > 0, (x / problem.grid).round() * problem.grid, x)
        rounded = problem.completed(torch.minimum(torch.maximum(near, problem.lower), problem.upper))
        assert rounded is not None
        value, other = problem.primal_value(made), problem.primal_value(rounded)
        better = (other < value + NOTICED * value.abs()) & feasible(plan, rounded, tolerance)
        made = where(better, rounded, made)
    return made, True


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
    return (violation(plan, x) <= tolerance) & torch.isfinite(x).all(1)


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
    lower, upper = box.lower, box.upper
    worst = relative_excess(lower - x, lower.abs(), x.abs(), size)
    worst = torch.maximum(worst, relative_excess(x - upper, upper.abs(), x.abs(), size)).amax(1)
    if program is not None:  # all rows at once
        return torch.maximum(worst, program.violation(problem, x))
    if problem.rows is not None:
        worst = torch.maximum(worst, problem.rows.violation(x, size))
    copies, sizes = problem.coupling.spread(x), problem.coupling.spread(size)
    for group in problem.groups:
        rows = group.constraints
        if rows is not None:
            own = rows.relative_violation(group.view(copies), group.view(sizes))
            worst = torch.maximum(worst, (own if group.alive is None else own * group.alive).amax(1))
    return worst
