"""How instances are divided into chunks, and chunks among threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from blocklp.kernels.plan import Plan


def workers() -> ThreadPoolExecutor:
    """As many threads as torch has, each with one of its own."""
    return ThreadPoolExecutor(torch.get_num_threads(), initializer=torch.set_num_threads, initargs=(1,))


def chunks(plan: Plan, first: int, most: int) -> list[tuple[Plan, slice]]:
    """Cut a plan into plans of some instances at a time: on a GPU all, on a CPU those with so many copies.

    Parameters
    ----------
    plan : Plan
        Of all instances.
    first : int
        Number of its first instance.
    most : int
        Copies of a chunk, about.

    Returns
    -------
    list of (Plan, slice)
        Chunks of one size but for the last, and the numbers of their instances.
    """
    problem = plan.problem
    on_gpu = problem.cost.device.type != "cpu"
    count = 1 if on_gpu else max(1, round(problem.batch * problem.copies / most))
    if count == 1:
        return [(plan, slice(first, first + problem.batch))]
    size = -(-problem.batch // count)
    parts = (slice(at, min(at + size, problem.batch)) for at in range(0, problem.batch, size))
    return [(plan.select(own), slice(first + own.start, first + own.stop)) for own in parts]
