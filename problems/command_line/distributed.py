"""Commands over the processes that torchrun starts: the first of them prints."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch.distributed as dist
import typer

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.problems.command_line.options import Output, Solving
from blocklp.problems.command_line.process import EXIT_STOPPED, interruptible
from blocklp.problems.printing import json_number, json_status
from blocklp.progress import Progress

NEEDED = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
"""Variables of the environment that torchrun sets."""


def run_distributed(part: Callable[[int, int], bl.Model], solving: Solving, output: Output, deadline: bl.Deadline) -> None:
    """Solve one LP over all processes, report, and exit: with code 1 if it did not reach the tolerance.

    Only the first process has that code, so that torchrun does not end it before it has printed.

    Parameters
    ----------
    part : callable
        States the part of the LP of a process, of its number and that of processes (:meth:`blocklp.Model.shard`).
    solving, output : Solving, Output
        The options of the command.
    deadline : Deadline
        When the work ends.

    Raises
    ------
    OptionError
        If an option is for one process, or torchrun has not started this one.
    """
    if output.plot is not None or output.reference is not None:
        raise OptionError("--plot and --reference are for one process; leave them out, or leave --distributed out")
    if missing := [name for name in NEEDED if name not in os.environ]:
        how = "torchrun --nproc-per-node 2 -m blocklp qpbo FILE --distributed"
        raise OptionError(f"--distributed needs processes, and {', '.join(missing)} are not set; start them by `{how}`")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    first = rank == 0
    try:
        given = solving.checked(deadline)
        solver = part(rank, world).compile(device=given.pop("device"), dtype=given.pop("dtype"))
        with interruptible(), nullcontext() if output.quiet or not first else Progress() as callback:
            found = solver.solve(mesh=True, callback=callback, **given)
        hashed = bl.distributed.solution_hash(found, mesh=True)
    finally:
        dist.destroy_process_group()
    if not first:
        return
    entry = summary(found) | {"world": world, "hash": hashed}
    if output.as_json:
        typer.echo(json.dumps(entry, allow_nan=False))
    else:
        for name, value in entry.items():
            typer.echo(f"{name}: {value}")
    if found.status != (bl.Status.OPTIMAL,):
        raise typer.Exit(EXIT_STOPPED)


def summary(found: bl.Solution) -> dict[str, Any]:
    """The fields of a solution that are printed: strict JSON, where infinities and NaN are null."""
    numbers = {name: float(getattr(found, name)[0]) for name in ("bound", "primal", "gap", "seconds")}
    return {name: json_number(value) for name, value in numbers.items()} | {
        "status": json_status(found.status[0]),
        "passes": int(found.passes[0]),
    }
