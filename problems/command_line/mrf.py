"""The command ``blocklp mrf``; what it needs is imported when it runs."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blocklp.errors import OptionError
from blocklp.problems.command_line.options import (
    Against,
    Device,
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
    one_by_one,
)
from blocklp.problems.command_line.process import until
from blocklp.problems.files import MAX_BYTES

if TYPE_CHECKING:
    from blocklp.problems.mrf.readers import Format
    from blocklp.problems.mrf.relaxation import Decomposition


class MrfFormatName(StrEnum):
    """Formats of energies; those of files that say it by their suffix need not be named."""

    uai = "uai"
    wcsp = "wcsp"
    qpbo = "qpbo"
    cfn = "cfn"
    opb = "opb"
    cnf = "cnf"
    erg = "erg"
    bep = "bep"
    opengm = "opengm"


class MrfBlocksName(StrEnum):
    """Blocks of a relaxation of a Markov random field."""

    auto = "auto"
    edges = "edges"
    chains = "chains"
    qubo = "qubo"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mrf")(mrf_command)


def mrf_command(
    ctx: typer.Context,
    files: Files,
    blocks: Annotated[
        MrfBlocksName, typer.Option(help="One block an edge, or one a chain of edges; qubo: roof duality.")
    ] = MrfBlocksName.auto,
    method: MethodName = "auto",
    tol: Tol = 1e-4,
    passes: Passes = 5000,
    exact: Exact = False,
    time_limit: TimeLimit = math.inf,
    device: Device = "cpu",
    dtype: Dtype = Precision.float64,
    format: Annotated[MrfFormatName | None, typer.Option(help="Format of the files; by default told by their suffixes.")] = None,
    max_bytes: MaxBytes = MAX_BYTES,
    results: Results = None,
    workers: Workers = None,
    ray: Ray = None,
    log: Annotated[bool | None, typer.Option("--log/--no-log", help="Whether UAI tables are logarithms; by default in .LG.")] = None,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of tightening: clusters of variables that raise the bound.")] = 0,
    evidence: Annotated[Path | None, typer.Option(metavar="FILE.evid", help="Labels that are given, for all files.")] = None,
    as_json: Json = False,
    plot: Plot = None,
    reference: Against = None,
    quiet: Quiet = False,
) -> None:
    """Bound energies of Markov random fields (.uai, .wcsp, .cfn, .wcnf, .opb ..) by their LP relaxation, and find labellings."""
    if exact and (rounds or blocks is not MrfBlocksName.auto):
        raise OptionError("--rounds and --blocks are about the relaxation; leave them out, or leave --exact out")
    if rounds and reference is not None:
        raise OptionError("--reference solves the LP without clusters, --rounds a stronger one; give one of them")
    if one_by_one(results, workers, ray):
        from blocklp.problems.command_line.file_campaigns import run_files

        return run_files(ctx, mrf_command, files)
    deadline = until(time_limit, ctx.obj)
    from blocklp.problems.command_line.labelling import Options, Output, run, run_exact, tell_round
    from blocklp.problems.mrf import read_mrf, relax, solve_mrf
    from blocklp.search.tightening import Budget

    kind: Format | None = None if format is None else format.value
    mrfs = [read_mrf(file, kind, log, evidence, max_bytes=max_bytes, time_limit=deadline) for file in files]
    names = [
        (str(file), model.n, sum(len(scope) > 1 for scope, _ in model.factors), "") for file, model in zip(files, mrfs, strict=True)
    ]
    options = Options(method, tol, passes, deadline, device, dtype)
    output = Output(as_json, plot, reference, quiet)
    if exact:
        from blocklp.problems.mrf import solve_mrf_exactly

        run_exact(names, "energy", lambda i, **given: solve_mrf_exactly(mrfs[i], **given), options, output)
        return
    chosen: Decomposition = blocks.value
    budget = Budget(rounds=rounds) if rounds else False
    told = None if quiet else tell_round
    run(
        names,
        lambda **given: solve_mrf(mrfs, chosen, tighten=budget, told=told, **given),
        lambda i: relax(mrfs[i], chosen).model,
        options,
        output,
    )
