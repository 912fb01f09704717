"""The end of a solve: the multipliers of every instance evaluated once more, with all rounding charged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch

from blocklp.checks import NOTICED, certified
from blocklp.methods.base import where
from blocklp.plan import Plan
from blocklp.records import Results
from blocklp.valid_bounds import box_minimum, corrected, safe

CACHED_COPIES = 320_000
"""Copies of the instances that a CPU iterates on in turn: the tensors of a pass then stay in its cache."""


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
    with workers() if len(parts) > 1 else nullcontext() as pool:
        every = map if pool is None else pool.map
        list(every(lambda part: _certify(part[0], part[1], results), parts))


def _certify(plan: Plan, rows: slice, results: Results) -> None:
    """Certify the results of some instances."""
    part = plan.problem
    made, before = results.passes[rows] > 0, results.duals[rows]
    if not bool(made.any()):  # no time was left, or an interrupt came at once
        return
    sound = torch.isfinite(before.sum(1))
    if not bool(sound.all()):  # a warm start beyond single precision, whose passes led nowhere
        before = torch.where(sound[:, None], before, part.to_dual(part.cost))
    duals, bound, rigorous = certified(plan, before)
    better = bound > results.bound[rows] - NOTICED * bound.abs()
    if not bool(better.all()):  # what the method said is not the last word
        known = corrected(part, before, part.value(before))
        better |= bound >= known
        bound = torch.where(better, bound, known)
        rigorous = torch.where(better, rigorous, safe(part, before))
        duals = where(better, duals, before)
    least = box_minimum(part)
    known = torch.where(made, bound.nan_to_num(-torch.inf, torch.inf, -torch.inf), results.bound[rows])
    results.bound[rows] = torch.where(torch.isneginf(known), least, known)
    rigorous = rigorous.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    results.safe_bound[rows] = torch.where(made, rigorous, results.safe_bound[rows])
    results.duals[rows] = duals
    # Loops add in another order.
    value = part.primal_value(results.x[rows])
    results.primal[rows] = torch.where(torch.isfinite(results.primal[rows]), value, results.primal[rows])


def workers() -> ThreadPoolExecutor:
    """As many threads as torch has, each with one of its own."""
    return ThreadPoolExecutor(torch.get_num_threads(), initializer=torch.set_num_threads, initargs=(1,))


def chunks(plan: Plan, first: int, most: int) -> list[tuple[Plan, slice]]:
    """Plans of some instances at a time, of one size: on a GPU all, on a CPU those with so many copies.

    Each comes with the numbers of its instances, which are counted from ``first``.
    """
    problem = plan.problem
    on_gpu = problem.cost.device.type != "cpu"
    count = 1 if on_gpu else max(1, round(problem.batch * problem.copies / most))
    if count == 1:
        return [(plan, slice(first, first + problem.batch))]
    size = -(-problem.batch // count)
    parts = (slice(at, min(at + size, problem.batch)) for at in range(0, problem.batch, size))
    return [(plan.select(own), slice(first + own.start, first + own.stop)) for own in parts]
