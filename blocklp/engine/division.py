"""How instances are divided into chunks, and chunks among threads; on a device by the memory that is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from blocklp.errors import DeviceError
from blocklp.kernels.plan import Plan

BYTES_OF_COPY = 200
"""Memory of a device that a solve takes at most for each copy of a variable beside the problem, about: of
iterates in float64, with the tensors of a check."""

FILLED = 0.8
"""Part of a device's free memory that a chunk is meant to take."""


def workers() -> ThreadPoolExecutor:
    """As many threads as torch has, each with one of its own."""
    return ThreadPoolExecutor(torch.get_num_threads(), initializer=torch.set_num_threads, initargs=(1,))


def chunks(plan: Plan, first: int, most: int) -> list[tuple[Plan, slice]]:
    """Cut a plan into plans of some instances at a time.

    Parameters
    ----------
    plan : Plan
        Of all instances.
    first : int
        Number of its first instance.
    most : int
        Copies of a chunk on a CPU, about.  On a device a chunk has as many as its free memory holds.

    Returns
    -------
    list of (Plan, slice)
        Chunks of one size but for the last, and the numbers of their instances.
    """
    problem, device = plan.problem, plan.problem.cost.device
    copies = problem.batch * problem.copies
    if device.type == "cpu":
        count = max(1, round(copies / most))
    else:
        free = free_memory(device)
        count = 1 if free is None else max(1, -(-copies * BYTES_OF_COPY // max(1, int(FILLED * free))))
    return _split(plan, slice(first, first + problem.batch), count)


def in_turn(pieces: list[tuple[Plan, slice]], work: Callable[[Plan, slice, int], None]) -> None:
    """Do some work on chunks, one after the other; those that do not fit the device's memory are halved.

    Parameters
    ----------
    pieces : list of (Plan, slice)
        The chunks, and the numbers of their instances.
    work : callable
        Takes a chunk, its numbers, and how many instances there are in chunks after it; it may begin anew
        with a part of these instances after it has run out of memory.

    Raises
    ------
    OutOfMemoryError
        If a single instance does not fit.
    """
    todo = list(pieces)
    while todo:
        plan, rows = todo.pop(0)
        try:
            work(plan, rows, sum(own.problem.batch for own, _ in todo))
            continue
        except torch.OutOfMemoryError:
            if plan.problem.batch == 1:
                raise
        # Not above: the exception keeps tensors of the frames that it passed.
        release(plan.problem.cost.device)
        todo[:0] = _split(plan, rows, 2)


@contextmanager
def within_memory(device: torch.device) -> Iterator[None]:
    """Say by an error of ours that what cannot be divided does not fit a device's memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        said = str(error).partition("\n")[0]
        need = "solve fewer instances at a time, with dtype=torch.float32, or on the CPU"
        raise DeviceError(f"the memory of {device} does not suffice ({said}); {need}") from None


def _split(plan: Plan, rows: slice, count: int) -> list[tuple[Plan, slice]]:
    """Cut a plan of instances of some numbers into so many of one size."""
    if count == 1:
        return [(plan, rows)]
    batch = plan.problem.batch
    size = -(-batch // count)
    parts = (slice(at, min(at + size, batch)) for at in range(0, batch, size))
    return [(plan.select(own), slice(rows.start + own.start, rows.start + own.stop)) for own in parts]


def free_memory(device: torch.device) -> int | None:
    """Bytes that tensors can still take on a device; None where its module does not tell."""
    module: Any = getattr(torch, device.type, None)
    if not hasattr(module, "mem_get_info"):
        return None
    free = int(module.mem_get_info(device)[0])
    if hasattr(module, "memory_reserved") and hasattr(module, "memory_allocated"):  # kept for reuse
        free += int(module.memory_reserved(device)) - int(module.memory_allocated(device))
    return free


def release(device: torch.device) -> None:
    """Give memory that a device's allocator keeps for reuse back to it, in pieces of any size."""
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, "empty_cache"):
        module.empty_cache()
