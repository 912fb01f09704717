"""What a check evaluates: the bound of some multipliers and a primal point, by tensor operations or compiled loops."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.block import relative_excess
from blocklp.compiled import tiles
from blocklp.decomposition import Decomposition
from blocklp.errors import TimeLimitError
from blocklp.methods.base import put, where
from blocklp.nearest import nearest
from blocklp.plan import Plan
from blocklp.valid_bounds import block_terms, charged, corrected, safe, summed

NOTICED = 1e-13
"""Relative improvement from which on a bound is better: sums in another order differ by less."""

NEGLIGIBLE = 0.01
"""Part of the gap up to which the copies do not share the residual of multipliers: an upper estimate of what they would gain."""

ALMOST = 3e-2
"""Points that violate rows by more, relative to what their terms add up to, are not worth mending."""

CANCELLED, ROUNDED = 1e-3, 1e-9
"""Parts of the terms of an objective, at the point and at the bounds of the variables, below which its value counts as zero."""

MENDING = 150
"""Passes for that."""


def improve(plan: Plan, duals: Tensor, primal: Tensor, best: Tensor, best_duals: Tensor) -> tuple[Tensor, Tensor]:
    """Evaluate multipliers ``(batch, copies)`` of any precision, their residual shared where it matters; keep the best so far.

    They are written over the best multipliers given, as they come: :func:`certified` shares what is left in the end.  ``primal``
    ``(batch,)`` are the values of primal points, infinite where there is none.

    Returns
    -------
    bound, best : Tensor
        ``(batch,)`` float64: the corrected bound, and the best one.
    """
    problem = plan.problem
    if (loops := plan.loops) is not None and loops.only is not None:
        only, group, bound = loops.only, problem.groups[loops.only.group], best.clone()
        table = (problem.coupling.places, problem.cost, problem.counts, problem.lower, problem.upper, only.largest, only.rest)
        layout = (group.start, group.blocks, only.filled, loops.used, only.met)
        units, *parts = only.dealt(best.dtype)
        only.find("bounds")(units, *parts, only.live, *layout, *table, duals, NOTICED, NEGLIGIBLE, primal, bound, best, best_duals)
        return bound, best
    duals = doubled(problem, duals)
    residual, allowed = problem.cost - problem.collect(duals), NEGLIGIBLE * (primal - best)
    shares = ~((residual.abs() * (problem.upper - problem.lower)).sum(1) <= allowed) | torch.isinf(allowed)
    shared = duals + problem.to_dual(residual.mul_(shares[:, None]))
    bound = corrected(problem, shared, problem.value(shared))
    return bound, keep(bound, duals, best, best_duals)


def doubled(problem: Decomposition, duals: Tensor) -> Tensor:
    """Multipliers in float64; those of what is not shared are the cost, however a method rounded it."""
    if duals.dtype == torch.float64 or problem.coupling.maps:
        return duals.double()
    duals = duals.double()
    for group in problem.groups:
        for (first, last), shared in zip(group.spans, group.curved.tolist(), strict=True):
            if not shared:
                duals[:, first:last] = problem.coupling.spread_part(problem.cost, first, last)
    return duals


def keep(bound: Tensor, duals: Tensor, best: Tensor, best_duals: Tensor) -> Tensor:
    """The best bounds; their multipliers are written over the best ones given."""
    better = (bound > best + NOTICED * bound.abs()) | ((bound > best) & torch.isinf(best))  # false for NaN
    put(better, duals, best_duals)
    return torch.where(better, bound, best)


def certified(plan: Plan, duals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Share the residual of multipliers ``(batch, copies)`` float64 among the copies, and evaluate them.

    Returns
    -------
    duals, bound, safe : Tensor
        ``(batch, copies)``, ``(batch,)``, ``(batch,)`` float64: the multipliers, their corrected and their rigorous bound.
    """
    problem = plan.problem
    if (loops := plan.loops) is None or loops.alone is None:
        shared = problem.recentred(duals)
        return shared, corrected(problem, shared, problem.value(shared)), safe(problem, shared)
    number, find = loops.alone
    group, shared = problem.groups[number], torch.empty_like(duals)
    edges, variables = duals.new_empty(3, len(duals), group.blocks), duals.new_empty(3, *problem.cost.shape)
    table = (problem.coupling.places, problem.cost, problem.counts, problem.lower, problem.upper)
    find("certified")(len(duals), group.start, group.blocks, group.filled, *table, duals, shared, *edges, *variables)
    blocks = [terms for g in problem.groups if (terms := tuple(edges) if g is group else block_terms(g, shared))]
    value = torch.stack([values.sum(-1) for values, *_ in blocks]).sum(0)
    bound = summed(problem, shared, value, variables[0])
    return shared, bound, charged(problem.offset, [(least, most) for _, least, most in blocks], *variables)


def offer(
    plan: Plan, mean: Tensor, points: Tensor, tolerance: float, bound: Tensor, primal: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Keep the primal points that the means of copies give where they are feasible and better than the best so far.

    ``mean`` ``(batch, variables)`` float64, ``points`` ``(batch, copies)`` of any precision.

    Returns
    -------
    primal, x : Tensor
        ``(batch,)``, ``(batch, variables)`` float64: the best values and points; any point where none is feasible.
    """
    found, made = point(plan, mean, tolerance)
    return prefer(plan, found, None if made else points, tolerance, bound, primal, x)


def floor(problem: Decomposition, x: Tensor) -> Tensor:
    r"""Least scale ``(batch,)`` that gaps are relative to, from primal points ``(batch, variables)``.

    A thousandth of :math:`\sum_j |c_j|` times the largest entry of the point, or of :math:`\sum_j |c_j| reach_j` if that
    is less, and a billionth of the latter; :math:`reach_j` is the largest magnitude that the bounds of a variable allow.
    A value below that is what is left where terms cancel.  It scales with costs and variables as values do.
    """
    terms, largest = problem.cost_terms, torch.linalg.vector_norm(x, torch.inf, dim=1)
    return torch.maximum(CANCELLED * torch.minimum(terms[0], terms[1] * largest), ROUNDED * terms[0])


def offer_mean(plan: Plan, mean: Tensor, tolerance: float, bound: Tensor, primal: Tensor, x: Tensor) -> None:
    """Keep the primal points that means of copies of any precision give where they are better, in compiled loops.

    The best values and points are written over those given; products are not those of the points before :func:`complete` is called.
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
    """Add products to the primal points ``(batch, variables)`` that compiled loops kept of some instances ``(k,)``."""
    problem = plan.problem
    assert plan.loops is not None and plan.loops.only is not None
    only = plan.loops.only
    group = problem.groups[only.group]
    layout = (group.start, group.blocks, only.filled, problem.coupling.places, problem.cost)
    only.find("products")(len(rows) * tiles(group.blocks), rows, *layout, x)


def mend(plan: Plan, mean: Tensor, tolerance: float, bound: Tensor, primal: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Make feasible what promises a better primal point and is almost feasible, and keep it where it is better.

    Returns
    -------
    primal, x, spent : Tensor
        ``(batch,)``, ``(batch, variables)`` float64, and the passes that this took ``(batch,)`` int64.
    """
    problem = plan.problem
    spent = torch.zeros(len(primal), dtype=torch.long, device=primal.device)
    if not problem.testable or plan.deadline.over():
        return primal, x, spent
    found, _ = point(plan, mean, tolerance)
    due = nearer(problem.primal_value(found), primal, bound) & torch.isfinite(found).all(1)
    if bool(due.any()):
        worst = violation(plan, found)
        due &= (worst > tolerance) & (worst <= ALMOST)
    rows = due.nonzero()[:, 0]
    if not len(rows):
        return primal, x, spent
    part = plan if len(rows) == problem.batch else plan.select(rows)
    try:
        mended, passes = nearest(part, found[rows], tolerance / 2, MENDING)
    except TimeLimitError:  # no time is left to write the rows out
        return primal, x, spent
    better, points = prefer(part, mended, None, tolerance, bound[rows], primal[rows], x[rows])
    return primal.index_copy(0, rows, better), x.index_copy(0, rows, points), spent.index_copy(0, rows, passes)


def prefer(
    plan: Plan, found: Tensor, points: Tensor | None, tolerance: float, bound: Tensor, primal: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """The better of points found and the best so far; ``points`` are copies that must agree with what was found."""
    problem = plan.problem
    value = problem.primal_value(found)
    better = nearer(value, primal, bound)
    if points is not None:
        copies = points[:, : problem.in_blocks]
        slack = problem.coupling.spread(tolerance * problem.sizes(found))
        better &= ((copies - problem.coupling.spread(found)).abs() <= slack).all(1)
    if bool(better.any()):
        better &= feasible(plan, found, tolerance)
    first = better | torch.isinf(primal)
    return torch.where(better, value, primal), torch.where(first[:, None], found, x)


def point(plan: Plan, mean: Tensor, tolerance: float) -> tuple[Tensor, bool]:
    """Means of copies ``(batch, variables)`` float64 within bounds, completed where types can, and whether they were.

    With a grid the rounded point is preferred where it is feasible and no worse.
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
        made = where((other < value + NOTICED * value.abs()) & feasible(plan, rounded, tolerance), rounded, made)
    return made, True


def feasible(plan: Plan, x: Tensor, tolerance: float) -> Tensor:
    """Whether points ``(batch, variables)`` satisfy bounds and stated constraints within a tolerance: ``(batch,)``."""
    return (violation(plan, x) <= tolerance) & torch.isfinite(x).all(1)


def nearer(value: Tensor, primal: Tensor, bound: Tensor) -> Tensor:
    """Whether values ``(batch,)`` are nearer to the bound than the best so far.

    A point that is feasible within a tolerance may be worth less than the bound; then one that is worth more is better.
    """
    return (value - bound).abs() < (primal - bound).abs() - NOTICED * value.abs()


def violation(plan: Plan, x: Tensor) -> Tensor:
    """Largest violation of bounds and stated constraints by points ``(batch, variables)``: ``(batch,)``.

    Each is relative to the side that is violated or to the terms of the row, whichever is more (:meth:`Constraints.violation`).
    """
    problem = plan.problem
    size, program = problem.sizes(x), plan.written
    lower, upper = (problem.lower, problem.upper) if program is None else (program.box.lower, program.box.upper)
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
