"""The command ``blocklp matching``; what it needs is imported when it runs."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blocklp.errors import OptionError
from blocklp.problems.command_line.lp import BY_ROWS
from blocklp.problems.command_line.options import Against, Certified, Distributed, OneJson, Seconds
from blocklp.problems.command_line.process import EXIT_STOPPED, interruptible, until
from blocklp.problems.files import MAX_BYTES

if TYPE_CHECKING:
    from blocklp.model import Model


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("matching")(_matching_command)


def _matching_command(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.npz", help="Arrays source, destination, value, weight and capacity.")],
    tol: Certified = 1e-4,
    time_limit: Seconds = math.inf,
    max_bytes: Annotated[int, typer.Option(min=1, metavar="BYTES", help="Most bytes of the arrays in memory.")] = 8 * MAX_BYTES,
    output: Annotated[Path | None, typer.Option(metavar="OUT.npz", help="Write shares of edges and prices of destinations.")] = None,
    reference: Against = None,
    distributed: Distributed = False,
    as_json: OneJson = False,
) -> None:
    """Match sources to destinations with capacities, at the largest value, to a certified gap."""
    began = ctx.obj if isinstance(ctx.obj, float) else time.perf_counter()
    deadline = until(time_limit, ctx.obj)
    if distributed and (output is not None or reference is not None):
        raise OptionError("--output and --reference are for one process; leave them out, or leave --distributed out")
    import numpy as np

    from blocklp.general_solvers.solvers import lp_solver
    from blocklp.problems.command_line.reference import compare
    from blocklp.problems.matching import matching_model, read_matching, solve_matching
    from blocklp.problems.printing import json_number, json_status, print_values
    from blocklp.progress import ElapsedTime

    if reference is not None:
        lp_solver(reference)  # refuses unknown names before the work
    if distributed:
        from blocklp.problems.command_line.distributed import run_distributed

        def part(*_: int) -> Model:
            return matching_model(read_matching(file, max_bytes=max_bytes, time_limit=deadline))

        return run_distributed("matching", part, BY_ROWS | {"tol": tol, "time_limit": deadline}, as_json)
    with interruptible(), ElapsedTime(f"reading {file.name}"):
        given = read_matching(file, max_bytes=max_bytes, time_limit=deadline)
    with interruptible(), ElapsedTime(f"matching {given.sources} sources to {given.destinations} destinations"):
        found = solve_matching(given, tol=tol, time_limit=deadline)
    if output is not None:
        np.savez(output, x=found.x, price=found.price)
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
