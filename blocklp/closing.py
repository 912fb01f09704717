"""The end of a solve: the multipliers of every instance evaluated once more, with all rounding charged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from blocklp.checks import NOTICED, certified
from blocklp.decomposition import Decomposition
from blocklp.methods.base import where
from blocklp.plan import Plan
from blocklp.records import Results
from blocklp.valid_bounds import box_minimum, corrected, safe

CACHED_COPIES = 320_000
"""Copies of the instances that a CPU iterates on in turn: the tensors of a pass then stay in its cache."""


def certify(plan: Plan, results: Results, first: int) -> None:
    """Share the rounding residual of the multipliers among their copies, and charge all rounding.

    Parameters
    ----------
    plan : Plan
        The problem in float64, of some instances in turn.
    results : Results
        Results of all instances: multipliers, bounds and values of these ones are written.
    first : int
        Number of the first of these instances.
    """

    def certify_chunk(own: slice) -> None:
        chunk, rows = plan.select(own), slice(first + own.start, first + own.stop)
        part = chunk.problem
        made, before = results.passes[rows] > 0, results.duals[rows]
        if not bool(made.any()):  # no time was left, or an interrupt came at once
            return
        sound = torch.isfinite(before.sum(1))
        if not bool(sound.all()):  # a warm start beyond single precision, whose passes led nowhere
            before = torch.where(sound[:, None], before, part.to_dual(part.cost))
        duals, bound, rigorous = certified(chunk, before)
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

    parts = chunks(plan.problem, CACHED_COPIES)
    if len(parts) == 1:
        certify_chunk(parts[0])
    else:
        with workers() as pool:
            list(pool.map(certify_chunk, parts))


def workers() -> ThreadPoolExecutor:
    """As many threads as torch has, each with one of its own."""
    return ThreadPoolExecutor(torch.get_num_threads(), initializer=torch.set_num_threads, initargs=(1,))


def chunks(problem: Decomposition, most: int) -> list[slice]:
    """Slices of the instances, of one size: on a GPU all, on a CPU those with so many copies."""
    on_gpu = problem.cost.device.type != "cpu"
    count = 1 if on_gpu else max(1, round(problem.batch * problem.copies / most))
    size = -(-problem.batch // count)
    return [slice(first, min(first + size, problem.batch)) for first in range(0, problem.batch, size)]
