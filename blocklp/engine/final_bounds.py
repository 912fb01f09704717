"""The end of a solve: the multipliers of every instance evaluated once more, with all rounding charged."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.valid_bounds import box_minimum, corrected, evaluated, safe
from blocklp.engine.best_bound import NOTICED
from blocklp.engine.division import in_turn, workers
from blocklp.engine.records import Results
from blocklp.kernels.plan import Plan, summed_by
from blocklp.methods.base import where


def certify(parts: list[tuple[Plan, slice]], results: Results) -> None:
    """Share the rounding residual of the multipliers among their copies, and charge all rounding.

    Parameters
    ----------
    parts : list of (Plan, slice)
        The problem of some instances in turn, in float64, and their numbers; oracles that remember their last
        answers are asked by the plans of the solve.
    results : Results
        Results of all instances: multipliers, bounds and values are written.
    """
    if results.x.device.type != "cpu":
        in_turn(parts, lambda plan, rows, _: _certify(plan, rows, results))
        return
    with workers() if len(parts) > 1 else nullcontext() as pool:
        every = map if pool is None else pool.map
        list(every(lambda part: _certify(part[0], part[1], results), parts))


def _certify(plan: Plan, rows: slice, results: Results) -> None:
    """Certify the results of some instances."""
    part = plan.problem
    if part.coupling.sums is not None:  # definitions have the last word
        part = summed_by(part, None)
    made, before = results.passes[rows] > 0, results.duals[rows]
    if not bool(made.any()):  # no time was left, or an interrupt came at once
        return
    sound = part.totals.everywhere(torch.isfinite(before.sum(1)))
    if not bool(sound.all()):  # a warm start beyond single precision, whose passes led nowhere
        before = torch.where(sound[:, None], before, part.to_dual(part.cost))
    duals, bound, rigorous = certified(part, before)
    better = bound > results.bound[rows] - NOTICED * bound.abs()
    if not bool(better.all()):  # what the method said is not the last word
        known = corrected(part, before, part.value(before))
        better |= bound >= known
        bound = torch.where(better, bound, known)
        rigorous = torch.where(better, rigorous, safe(part, before))
        duals = where(better, duals, before)
    known = torch.where(made, bound.nan_to_num(-torch.inf, torch.inf, -torch.inf), results.bound[rows])
    unbounded = torch.isneginf(known)
    results.bound[rows] = torch.where(unbounded, box_minimum(part), known) if bool(unbounded.any()) else known
    rigorous = rigorous.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    results.safe_bound[rows] = torch.where(made, rigorous, results.safe_bound[rows])
    results.duals[rows] = duals
    # Loops add in another order.
    value = part.primal_value(results.x[rows])
    results.primal[rows] = torch.where(torch.isfinite(results.primal[rows]), value, results.primal[rows])


def certified(problem: Decomposition, duals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Share the residual of multipliers ``(batch, copies)`` float64 among the copies, and evaluate them.

    Returns
    -------
    duals, bound, safe : Tensor
        ``(batch, copies)``, ``(batch,)``, ``(batch,)`` float64: the multipliers, their corrected and their
        rigorous bound.
    """
    shared = problem.recentred(duals)
    return shared, *evaluated(problem, shared)
