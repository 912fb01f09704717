"""The command ``blocklp qpbo``; what it needs is imported when it runs."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from blocklp.errors import OptionError
from blocklp.problems.command_line.options import (
    Against,
    Device,
    Distributed,
    Dtype,
    Exact,
    Files,
    Json,
    MaxBytes,
    MethodName,
    Passes,
    Plot,
    Precision,
    Quiet,
    Ray,
    Results,
    TimeLimit,
    Tol,
    Workers,
    executor,
    one_by_one,
)
from blocklp.problems.command_line.process import until
from blocklp.problems.files import MAX_BYTES

if TYPE_CHECKING:
    from blocklp.model import Model
    from blocklp.problems.qpbo.node_search import Rule
    from blocklp.problems.qpbo.readers import Format


class QuboFormatName(StrEnum):
    """Format of a QPBO file."""

    sparse = "sparse"
    maxcut = "maxcut"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("qpbo")(qpbo_command)


def qpbo_command(
    ctx: typer.Context,
    files: Files,
    method: MethodName = "auto",
    tol: Tol = 1e-4,
    passes: Passes = 5000,
    exact: Exact = False,
    time_limit: TimeLimit = math.inf,
    device: Device = "cpu",
    dtype: Dtype = Precision.float64,
    format: Annotated[QuboFormatName | None, typer.Option(help="Format of the files; by default told by their suffixes.")] = None,
    max_bytes: MaxBytes = MAX_BYTES,
    results: Results = None,
    workers: Workers = None,
    ray: Ray = None,
    tighten: Annotated[bool, typer.Option("--tighten", help="Add violated triangles and cycles: stronger, later.")] = False,
    distributed: Distributed = False,
    branching: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.safetensors|strong", help="With --exact: branch by scores that `blocklp train` wrote, or try all children."
        ),
    ] = None,
    as_json: Json = False,
    plot: Plot = None,
    reference: Against = None,
    quiet: Quiet = False,
) -> None:
    """Bound QUBO and max-cut instances by roof duality, tightened by clusters if asked for, and find labellings."""
    if tighten and reference is not None:
        raise OptionError("--reference solves the LP of roof duality, --tighten a stronger one; give one of them")
    if tighten and exact:
        raise OptionError("--exact chooses its own bounds; leave out --tighten")
    if results is not None or (not exact and one_by_one(results, workers, ray)):
        from blocklp.problems.command_line.file_campaigns import run_files

        return run_files(ctx, qpbo_command, files)
    if distributed and (tighten or exact or len(files) > 1):
        raise OptionError("--distributed bounds one file by roof duality; leave out --tighten, --exact and other files")
    if branching is not None and not exact:
        raise OptionError("--branching is about searches; give --exact too")
    deadline = until(time_limit, ctx.obj)
    from blocklp.problems.command_line.labelling import Options, Output, run, run_exact, tell_round
    from blocklp.problems.qpbo import read_qubo, roof_duality_model, solve_qpbo

    kind: Format | None = None if format is None else format.value
    if distributed:
        from blocklp.problems.command_line.distributed import run_distributed
        from blocklp.problems.qpbo.shards import shard_of

        def part(rank: int, world: int) -> Model:
            return shard_of(read_qubo(files[0], kind, max_bytes=max_bytes, time_limit=deadline), rank, world)

        given = Options(method, tol, passes, deadline, device, dtype), Output(as_json, plot, reference, quiet)
        run_distributed(part, *given)
        return
    qubos = [read_qubo(file, kind, max_bytes=max_bytes, time_limit=deadline) for file in files]
    names = [(str(file), qubo.n, len(qubo.edges), "") for file, qubo in zip(files, qubos, strict=True)]
    options = Options(method, tol, passes, deadline, device, dtype)
    output = Output(as_json, plot, reference, quiet)
    if exact:
        from functools import partial

        from blocklp.campaigns import InProcess
        from blocklp.problems.qpbo import solve_qpbo_exactly

        rule: Rule | None = None
        if branching is not None:
            from blocklp.problems.learnt import LearntBranching
            from blocklp.problems.qpbo import StrongBranching

            rule = StrongBranching() if branching == "strong" else LearntBranching.load(branching)
        with executor(workers, ray) as where:
            # Without workers there are no rounds.
            search = partial(solve_qpbo_exactly, branching=rule, executor=None if isinstance(where, InProcess) else where)
            run_exact(names, "energy", lambda i, **given: search(qubos[i], **given), options, output)
        return
    told = None if quiet else tell_round
    run(names, lambda **given: solve_qpbo(qubos, tighten, told, **given), lambda i: roof_duality_model(qubos[i]), options, output)
