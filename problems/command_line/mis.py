"""The command ``blocklp mis``; what it needs is imported when it runs."""

from __future__ import annotations

from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from blocklp.errors import OptionError
from blocklp.problems.command_line.options import Files, Output, Reading, Solving, format_of, grouped
from blocklp.problems.command_line.process import interruptible, until

if TYPE_CHECKING:
    from blocklp.problems.mis.instance import Objective
    from blocklp.problems.mis.relaxation import CliqueBlocks


class GraphObjectiveName(StrEnum):
    """What the file of a graph asks for."""

    clique = "clique"
    independent_set = "independent-set"


class GraphBlocksName(StrEnum):
    """Blocks of an independent-set relaxation."""

    edges = "edges"
    cliques = "cliques"
    separated = "separated"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mis")(_mis_command)


@grouped
def _mis_command(
    ctx: typer.Context,
    files: Files,
    *,
    blocks: Annotated[
        GraphBlocksName, typer.Option(help="One block an edge, or one a clique: stronger, later; separated: more cliques, in rounds.")
    ] = GraphBlocksName.cliques,
    solving: Solving,
    format: Annotated[str | None, format_of("blocklp.problems.mis.formats")] = None,
    objective: Annotated[
        GraphObjectiveName | None, typer.Option(help="What the files ask for; by default told by their suffixes.")
    ] = None,
    reading: Reading,
    output: Output,
) -> None:
    """Bound heaviest independent sets of graphs (DIMACS, METIS), and find sets; of .clq files, heaviest cliques."""
    if solving.exact and blocks is not GraphBlocksName.cliques:
        raise OptionError("--blocks is about the relaxation; leave it out, or leave --exact out")
    if reading.one_by_one(tree=solving.exact):
        from blocklp.problems.command_line.file_campaigns import run_files

        return run_files(ctx, _mis_command, files)
    deadline = until(solving.time_limit, ctx.obj)
    from blocklp.problems.command_line.labelling import SolvableFiles, answer
    from blocklp.problems.command_line.report import COMPLEMENTED
    from blocklp.problems.mis import clique_model, read_graph, solve_mis, solve_mis_exactly
    from blocklp.progress import ElapsedTime

    asks: Objective | None = None if objective is None else objective.value
    with interruptible(), nullcontext() if output.quiet else ElapsedTime("reading"):
        given_graphs = [read_graph(file, format, asks, max_bytes=reading.max_bytes, time_limit=deadline) for file in files]
        graphs = [graph.complement(reading.max_bytes) if graph.objective == "clique" else graph for graph in given_graphs]
    names = [
        (str(file), graph.n, len(graph.edges), "" if graph is given else COMPLEMENTED)
        for file, graph, given in zip(files, graphs, given_graphs, strict=True)
    ]
    cover: CliqueBlocks = blocks.value
    with reading.tree() as workers:
        asked = SolvableFiles(
            names,
            "weight",
            solve=lambda **given: solve_mis(graphs, cover, **given),
            model=lambda i: clique_model(graphs[i], cover),
            search=lambda i, **given: solve_mis_exactly(graphs[i], executor=workers, **given),
            problems=graphs,
            workers=workers,
        )
        answer(asked, solving, output, deadline)
