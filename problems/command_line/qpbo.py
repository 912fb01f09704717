"""The command ``blocklp qpbo``; what it needs is imported when it runs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from blocklp.errors import OptionError
from blocklp.problems.command_line.options import Distributed, Files, Output, Reading, Solving, format_of, grouped
from blocklp.problems.command_line.process import interruptible, until

if TYPE_CHECKING:
    from blocklp.model import Model
    from blocklp.problems.qpbo.node_search import Rule


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("qpbo")(_qpbo_command)


@grouped
def _qpbo_command(
    ctx: typer.Context,
    files: Files,
    *,
    solving: Solving,
    format: Annotated[str | None, format_of("blocklp.problems.qpbo.formats")] = None,
    reading: Reading,
    tighten: Annotated[bool, typer.Option("--tighten", help="Add violated triangles and cycles: stronger, later.")] = False,
    distributed: Distributed = False,
    branching: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.safetensors|strong", help="With --exact: branch by scores that `blocklp train` wrote, or try all children."
        ),
    ] = None,
    output: Output,
) -> None:
    """Bound QUBO and max-cut instances by roof duality, tightened by clusters if asked for, and find labellings."""
    if tighten and solving.exact:
        raise OptionError("--exact chooses its own bounds; leave out --tighten")
    if reading.one_by_one(tree=solving.exact):
        from blocklp.problems.command_line.file_campaigns import run_files

        return run_files(ctx, _qpbo_command, files)
    if distributed and (tighten or solving.exact or len(files) > 1):
        raise OptionError("--distributed bounds one file by roof duality; leave out --tighten, --exact and other files")
    if distributed and (output.plot is not None or output.reference is not None):
        raise OptionError("--plot and --reference are for one process; leave them out, or leave --distributed out")
    if branching is not None and not solving.exact:
        raise OptionError("--branching is about searches; give --exact too")
    deadline = until(solving.time_limit, ctx.obj)
    from blocklp.problems.command_line.labelling import SolvableFiles, answer, tell_round
    from blocklp.problems.qpbo import read_qubo, roof_duality_model, solve_qpbo, solve_qpbo_exactly
    from blocklp.progress import ElapsedTime

    if distributed:
        from blocklp.problems.command_line.distributed import run_distributed
        from blocklp.problems.qpbo.shards import shard_of

        def part(rank: int, world: int) -> Model:
            return shard_of(read_qubo(files[0], format, max_bytes=reading.max_bytes, time_limit=deadline), rank, world)

        run_distributed("qpbo", part, solving.checked(deadline), output.as_json, output.quiet)
        return
    with interruptible(), nullcontext() if output.quiet else ElapsedTime("reading"):
        qubos = [read_qubo(file, format, max_bytes=reading.max_bytes, time_limit=deadline) for file in files]
    names = [(str(file), qubo.n, len(qubo.edges), "") for file, qubo in zip(files, qubos, strict=True)]
    rule: Rule | None = None
    if branching is not None:
        from blocklp.problems.learnt import LearntBranching
        from blocklp.problems.qpbo import StrongBranching

        rule = StrongBranching() if branching == "strong" else LearntBranching.load(branching)
    told = None if output.quiet else tell_round
    with reading.tree() as workers:
        asked = SolvableFiles(
            names,
            "energy",
            solve=lambda **given: solve_qpbo(qubos, tighten, told, **given),
            model=lambda i: roof_duality_model(qubos[i]),
            search=lambda i, **given: solve_qpbo_exactly(qubos[i], branching=rule, executor=workers, **given),
            problems=qubos,
            workers=workers,
            tightened=tighten,
        )
        answer(asked, solving, output, deadline)
