"""The command ``blocklp mrf``; what it needs is imported when it runs."""

from __future__ import annotations

from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blocklp.errors import OptionError
from blocklp.problems.command_line.options import Files, Output, Reading, Solving, chosen_from, format_of, grouped
from blocklp.problems.command_line.process import interruptible, until

if TYPE_CHECKING:
    from blocklp.problems.mrf.relaxation import Decomposition


class MrfBlocksName(StrEnum):
    """Blocks of a relaxation of a Markov random field."""

    auto = "auto"
    edges = "edges"
    chains = "chains"
    qubo = "qubo"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mrf")(_mrf_command)


@grouped
def _mrf_command(
    ctx: typer.Context,
    files: Files,
    *,
    blocks: Annotated[
        MrfBlocksName, typer.Option(help="One block an edge, or one a chain of edges; qubo: roof duality.")
    ] = MrfBlocksName.auto,
    solving: Solving,
    format: Annotated[str | None, format_of("blocklp.problems.mrf.formats")] = None,
    reading: Reading,
    log: Annotated[bool | None, typer.Option("--log/--no-log", help="Whether UAI tables are logarithms; by default in .LG.")] = None,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of tightening: clusters of variables that raise the bound.")] = 0,
    heuristic: Annotated[
        str | None,
        chosen_from("blocklp.problems.mrf.nonconvex.methods", "A method that looks for another labelling in the end, one of {}."),
    ] = None,
    evidence: Annotated[Path | None, typer.Option(metavar="FILE.evid", help="Labels that are given, for all files.")] = None,
    output: Output,
) -> None:
    """Bound energies of Markov random fields (.uai, .wcsp, .cfn, .wcnf, .opb ..) by their LP relaxation, and find labellings."""
    if solving.exact and (rounds or heuristic or blocks is not MrfBlocksName.auto):
        raise OptionError("--rounds, --blocks and --heuristic are about the relaxation; leave them out, or leave --exact out")
    if reading.one_by_one(tree=solving.exact):
        from blocklp.problems.command_line.file_campaigns import run_files

        return run_files(ctx, _mrf_command, files)
    deadline = until(solving.time_limit, ctx.obj)
    from blocklp.problems.command_line.labelling import SolvableFiles, answer, tell_round
    from blocklp.problems.mrf import read_mrf, relax, solve_mrf, solve_mrf_exactly
    from blocklp.progress import ElapsedTime
    from blocklp.search.tightening import Budget

    with interruptible(), nullcontext() if output.quiet else ElapsedTime("reading"):
        mrfs = [read_mrf(file, format, log, evidence, max_bytes=reading.max_bytes, time_limit=deadline) for file in files]
    names = [
        (str(file), model.n, sum(len(scope) > 1 for scope, _ in model.factors), "") for file, model in zip(files, mrfs, strict=True)
    ]
    chosen: Decomposition = blocks.value
    budget = Budget(rounds=rounds) if rounds else False
    told = None if output.quiet else tell_round
    with reading.tree() as workers:
        asked = SolvableFiles(
            names,
            "energy",
            solve=lambda **given: solve_mrf(mrfs, chosen, tighten=budget, told=told, heuristic=heuristic, **given),
            model=lambda i: relax(mrfs[i], chosen).model,
            search=lambda i, **given: solve_mrf_exactly(mrfs[i], executor=workers, **given),
            problems=mrfs,
            workers=workers,
            tightened=rounds > 0,
        )
        answer(asked, solving, output, deadline)
