"""Commands over the processes that torchrun starts: the first of them prints."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch.distributed as dist
import typer

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.problems.command_line.process import EXIT_STOPPED, interruptible
from blocklp.problems.printing import json_number, json_status
from blocklp.progress import Progress

NEEDED = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
"""Variables of the environment that torchrun sets."""


def run_distributed(
    command: str,
    part: Callable[[int, int], bl.Model | bl.Status],
    options: dict[str, Any],
    as_json: bool,
    quiet: bool = False,
    told: Mapping[str, object] | None = None,
    write: Callable[[bl.Solution], None] | None = None,
) -> None:
    """Solve one LP over all processes, report, and exit: with code 1 if it did not reach the tolerance.

    Only the first process has that code, so that torchrun does not end it before it has printed.

    Parameters
    ----------
    command : str
        Name of the command.
    part : callable
        States the LP, or the part of a process of it (:meth:`blocklp.Model.shard`), of the number of this process and that
        of processes; or returns the status of one that is known to have no optimum.
    options : dict
        Those of :meth:`blocklp.Model.compile` and :meth:`blocklp.solver.Solver.solve`, with ``time_limit``, a deadline.
    as_json, quiet : bool
        Whether an object is printed, and no progress.
    told : mapping, optional
        What is printed too, known once the part has been stated. A true ``boxed`` says that the LP has bounds which its file
        lacks: its status is that of an LP within reach, and so named.
    write : callable, optional
        Writes what this process has of the solution.

    Raises
    ------
    OptionError
        If torchrun has not started this process.
    """
    if missing := [name for name in NEEDED if name not in os.environ]:
        how = f"torchrun --nproc-per-node 2 -m blocklp {command} FILE --distributed"
        raise OptionError(f"--distributed needs processes, and {', '.join(missing)} are not set; start them by `{how}`")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    first = rank == 0
    try:
        compiled = {name: options[name] for name in ("device", "dtype") if name in options}
        model = part(rank, world)
        if isinstance(model, bl.Status):
            status = model
            entry: dict[str, Any] = {"bound": None, "primal": None, "gap": None, "seconds": options["time_limit"].elapsed()}
            entry |= {"status": json_status(status), "passes": 0, "world": world, "hash": None}
        else:
            solver = model.compile(**compiled)
            given = {name: value for name, value in options.items() if name not in compiled}
            with interruptible(), nullcontext() if quiet or not first else Progress() as callback:
                found = solver.solve(mesh=True, callback=callback, **given)
            if write is not None:
                write(found)
            entry, status = summary(found), found.status[0]
            entry |= {"world": world, "hash": bl.distributed.solution_hash(found, mesh=True)}
    finally:
        dist.destroy_process_group()
    if not first:
        return
    entry |= told or {}
    if entry.get("boxed"):
        entry["status"] += "_within_reach"
    if as_json:
        typer.echo(json.dumps(entry, allow_nan=False))
    else:
        for name, value in entry.items():
            typer.echo(f"{name}: {value}")
    if status is not bl.Status.OPTIMAL:
        raise typer.Exit(EXIT_STOPPED)


def summary(found: bl.Solution) -> dict[str, Any]:
    """The fields of a solution that are printed: strict JSON, where infinities and NaN are null."""
    numbers = {name: float(getattr(found, name)[0]) for name in ("bound", "primal", "gap", "seconds")}
    return {name: json_number(value) for name, value in numbers.items()} | {
        "status": json_status(found.status[0]),
        "passes": int(found.passes[0]),
    }
