"""The command ``blocklp matching``; what it needs is imported when it runs."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from blocklp.errors import OptionError
from blocklp.problems.command_line.lp import BY_ROWS
from blocklp.problems.command_line.options import Against, Certified, Distributed, OneJson, Seconds
from blocklp.problems.command_line.process import EXIT_STOPPED, interruptible, until
from blocklp.problems.files import MAX_BYTES


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("matching")(_matching_command)


def _matching_command(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Arrays source, destination, value, weight and capacity (.npz); or a folder of Parquet or Arrow files.",
        ),
    ],
    tol: Certified = 1e-4,
    time_limit: Seconds = math.inf,
    max_bytes: Annotated[int, typer.Option(min=1, metavar="BYTES", help="Most bytes of the arrays in memory.")] = 8 * MAX_BYTES,
    output: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Write shares of edges and prices of destinations: OUT.npz, or a folder of Parquet files."),
    ] = None,
    reference: Against = None,
    distributed: Distributed = False,
    as_json: OneJson = False,
) -> None:
    """Match sources to destinations with capacities, at the largest value, to a certified gap."""
    began = ctx.obj if isinstance(ctx.obj, float) else time.perf_counter()
    deadline = until(time_limit, ctx.obj)
    if distributed and reference is not None:
        raise OptionError("--reference is for one process; leave it out, or leave --distributed out")
    if distributed:
        return _by_processes(file, output, {"tol": tol, "time_limit": deadline}, max_bytes, as_json)
    import numpy as np

    from blocklp.problems.command_line.reference import check_solver, compare
    from blocklp.problems.matching import MatchingPart, matching_model, read_matching, solve_matching, write_shares
    from blocklp.problems.printing import json_number, json_status, print_values
    from blocklp.progress import ElapsedTime

    if reference is not None:
        check_solver(reference)
    with interruptible(), ElapsedTime(f"reading {file.name}"):
        given = read_matching(file, max_bytes=max_bytes, time_limit=deadline)
    with interruptible(), ElapsedTime(f"matching {given.sources} sources to {given.destinations} destinations"):
        found = solve_matching(given, tol=tol, time_limit=deadline)
    if output is not None and output.suffix == ".npz":
        np.savez(output, x=found.x, price=found.price)
    elif output is not None:
        write_shares(output, MatchingPart(given, 0), found.x, found.price)
    numbers = {"bound": found.bound, "safe_bound": found.safe_bound, "primal": found.primal, "gap": found.gap}
    report: dict[str, object] = {
        "status": json_status(found.status),
        **{key: json_number(value) for key, value in numbers.items()},
        "seconds": found.seconds,
        "total_seconds": time.perf_counter() - began,
        "edges": given.edges,
        "sources": given.sources,
        "destinations": given.destinations,
        "passes": found.passes,
    }
    if reference is not None:
        with interruptible(), ElapsedTime(f"solving the LP by {reference}"):
            other = compare(matching_model(given), reference)
        report["reference"] = other.entry() if as_json else str(other)
    if as_json:
        typer.echo(json.dumps({"file": str(file), **report}))
    else:
        print_values(str(file), report)
    raise typer.Exit(0 if str(found.status) == "optimal" else EXIT_STOPPED)


def _by_processes(file: Path, output: Path | None, options: dict[str, Any], max_bytes: int, as_json: bool) -> None:
    """Solve it over the processes that torchrun has started: each has the edges of a range of sources."""
    if output is not None and output.suffix == ".npz":
        raise OptionError(f"--output {output} is one file, and every process writes its own; give the name of a folder")
    import blocklp as bl
    from blocklp.problems.command_line.distributed import run_distributed
    from blocklp.problems.matching import MatchingPart, matching_shard, read_matching_part, write_shares

    held: list[tuple[MatchingPart, int, int]] = []

    def part(rank: int, world: int) -> bl.Model | bl.Status:
        own = read_matching_part(file, rank, world, max_bytes=max_bytes, time_limit=options["time_limit"])
        held.append((own, rank, world))
        return matching_shard(own)

    def write(found: bl.Solution) -> None:
        (own, rank, world) = held[0]
        if output is not None:
            write_shares(output, own, found.x["x"][0].numpy(), found.price("capacity")[0].numpy(), rank, world)

    run_distributed("matching", part, BY_ROWS | options, as_json, write=write)
