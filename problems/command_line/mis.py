"""The command ``blocklp mis``; what it needs is imported when it runs."""

from __future__ import annotations

import math
from enum import StrEnum
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
    from blocklp.problems.mis.instance import Objective
    from blocklp.problems.mis.relaxation import CliqueBlocks


COMPLEMENTED = "a clique problem, solved as independent sets of the complement graph; pairs are those of the complement"


class GraphObjectiveName(StrEnum):
    """What the file of a graph asks for."""

    clique = "clique"
    independent_set = "independent-set"


class GraphBlocksName(StrEnum):
    """Blocks of an independent-set relaxation."""

    edges = "edges"
    cliques = "cliques"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mis")(mis_command)


def mis_command(
    ctx: typer.Context,
    files: Files,
    blocks: Annotated[
        GraphBlocksName, typer.Option(help="One block an edge, or one a clique: stronger, later.")
    ] = GraphBlocksName.cliques,
    method: MethodName = "auto",
    tol: Tol = 1e-4,
    passes: Passes = 5000,
    exact: Exact = False,
    time_limit: TimeLimit = math.inf,
    device: Device = "cpu",
    dtype: Dtype = Precision.float64,
    format: Annotated[
        GraphObjectiveName | None, typer.Option(help="What the files ask for; by default told by their suffixes.")
    ] = None,
    max_bytes: MaxBytes = MAX_BYTES,
    results: Results = None,
    workers: Workers = None,
    ray: Ray = None,
    as_json: Json = False,
    plot: Plot = None,
    reference: Against = None,
    quiet: Quiet = False,
) -> None:
    """Bound heaviest independent sets of DIMACS graphs, and find sets; of .clq files, heaviest cliques."""
    if exact and blocks is not GraphBlocksName.cliques:
        raise OptionError("--blocks is about the relaxation; leave it out, or leave --exact out")
    if one_by_one(results, workers, ray):
        from blocklp.problems.command_line.file_campaigns import run_files

        return run_files(ctx, mis_command, files)
    deadline = until(time_limit, ctx.obj)
    from blocklp.problems.command_line.labelling import Options, Output, run, run_exact
    from blocklp.problems.mis import clique_model, read_graph, solve_mis

    asked: Objective | None = None if format is None else format.value
    given_graphs = [read_graph(file, asked, max_bytes=max_bytes, time_limit=deadline) for file in files]
    graphs = [graph.complement(max_bytes) if graph.objective == "clique" else graph for graph in given_graphs]
    names = [
        (str(file), graph.n, len(graph.edges), "" if graph is given else COMPLEMENTED)
        for file, graph, given in zip(files, graphs, given_graphs, strict=True)
    ]
    cover: CliqueBlocks = blocks.value
    options = Options(method, tol, passes, deadline, device, dtype)
    output = Output(as_json, plot, reference, quiet)
    if exact:
        from blocklp.problems.mis import solve_mis_exactly

        run_exact(names, "weight", lambda i, **given: solve_mis_exactly(graphs[i], **given), options, output)
        return
    run(names, lambda **given: solve_mis(graphs, cover, **given), lambda i: clique_model(graphs[i], cover), options, output)
