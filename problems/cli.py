"""The command line: ``blocklp demo``, ``blocklp qpbo``, ``blocklp mis``, ``blocklp mrf``, ``blocklp info``.

``HELP`` states where things are printed and the exit codes.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

import blocklp as bl
from blocklp.errors import BlocklpError, DeviceError, OptionError
from blocklp.problems.demo import compare, demo
from blocklp.problems.densecrf.cli import register as register_densecrf
from blocklp.problems.exact import ExactResult, SearchProgress
from blocklp.problems.mis import MisSolution, clique_model, read_graph, solve_mis, solve_mis_exactly
from blocklp.problems.mis.relaxation import CliqueBlocks
from blocklp.problems.mrf import MrfSolution, read_mrf, relax, solve_mrf, solve_mrf_exactly
from blocklp.problems.mrf.readers import Format as MrfFormat
from blocklp.problems.mrf.relaxation import Decomposition
from blocklp.problems.plot import blank_figure, plot_convergence
from blocklp.problems.qpbo import QpboSolution, read_qubo, roof_duality_model, solve_qpbo, solve_qpbo_exactly
from blocklp.problems.qpbo.readers import Format
from blocklp.problems.report import ExactRow, Row, exact_json, show, show_exact, to_json
from blocklp.problems.together import share
from blocklp.problems.verification.cli import register, started
from blocklp.progress import Progress
from blocklp.tightening import Round

OPTIONAL = ("highspy", "gurobipy", "cvxpy", "matplotlib", "dimod", "ortools", "thinqpbo", "numba", "scikit-image")
COMPLEMENTED = "a clique problem, solved as independent sets of the complement graph; pairs are those of the complement"


class Commands(TyperGroup):
    """The commands; what blocklp or the file system refuses becomes one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # who reads the output has enough; typer ends quietly
            raise
        except (BlocklpError, OSError) as error:
            problem = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
            Console(stderr=True).print(Text(f"error: {problem}", style="bold red"), soft_wrap=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


class Precision(StrEnum):
    """Precision of the iterates."""

    float64 = "float64"
    float32 = "float32"


class Kind(StrEnum):
    """Format of a QPBO file."""

    sparse = "sparse"
    maxcut = "maxcut"


class Cover(StrEnum):
    """Blocks of an independent-set relaxation."""

    edges = "edges"
    cliques = "cliques"


class MrfKind(StrEnum):
    """Format of a file with a Markov random field."""

    uai = "uai"
    wcsp = "wcsp"
    qpbo = "qpbo"


class Blocks(StrEnum):
    """Blocks of a relaxation of a Markov random field."""

    auto = "auto"
    edges = "edges"
    chains = "chains"
    qubo = "qubo"


FORMATS: dict[Kind, Format] = {Kind.sparse: "sparse", Kind.maxcut: "maxcut"}
MRF_FORMATS: dict[MrfKind, MrfFormat] = {MrfKind.uai: "uai", MrfKind.wcsp: "wcsp", MrfKind.qpbo: "qpbo"}
DECOMPOSITIONS: dict[Blocks, Decomposition] = {
    Blocks.auto: "auto",
    Blocks.edges: "edges",
    Blocks.chains: "chains",
    Blocks.qubo: "qubo",
}
COVERS: dict[Cover, CliqueBlocks] = {Cover.edges: "edges", Cover.cliques: "cliques"}

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Instances, gzipped or not; solved as one batch.")]
MethodName = Annotated[str, typer.Option("--method", help=f"auto, or one of {', '.join(bl.METHODS)}.")]
Tol = Annotated[float, typer.Option(min=0, help="Relative gap of the LP at which an instance is optimal.")]
Passes = Annotated[int, typer.Option(min=1, help="Most oracle passes.")]
TimeLimit = Annotated[float, typer.Option(help="Seconds for all files together.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Dtype = Annotated[Precision, typer.Option(help="Precision of the iterates; bounds are float64 in either case.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, a list with one object a file, instead of the table.")]
Plot = Annotated[Path | None, typer.Option(metavar="OUT.png", help="Write a picture of the convergence (needs matplotlib).")]
Against = Annotated[
    str | None, typer.Option("--reference", metavar="SOLVER", help="Solve the same LPs with another solver too, such as highs.")
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Search for a solution that is proved optimal; no options of the relaxation but --time-limit.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no notes on standard error.")]

HELP = """Certified bounds on real problems by block-bounded linear programs.  Start with: blocklp demo

Results go to standard output, progress and errors to standard error.

Exit codes: 0 if every instance reached the tolerance, 1 if one stopped before (its bound is valid all the same), 2 for
bad input, 130 after an interrupt (the best so far is still printed)."""

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, help=HELP)
register(app)
register_densecrf(app)


def main() -> None:
    """Run the command line."""
    app(obj=started())


@app.command("demo")
def demo_command() -> None:
    """Solve a few real problems that ship with the package's dependencies, and explain the results."""
    demo(Console())


@app.command()
def qpbo(
    files: Files,
    method: MethodName = "auto",
    tol: Tol = 1e-4,
    passes: Passes = 5000,
    exact: Exact = False,
    time_limit: TimeLimit = math.inf,
    device: Device = "cpu",
    dtype: Dtype = Precision.float64,
    format: Annotated[Kind | None, typer.Option(help="Format of the files; by default told by their suffixes.")] = None,
    tighten: Annotated[bool, typer.Option("--tighten", help="Add violated triangles and cycles: stronger, later.")] = False,
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
    qubos = [read_qubo(file, None if format is None else FORMATS[format]) for file in files]
    names = [(str(file), qubo.n, len(qubo.edges), "") for file, qubo in zip(files, qubos, strict=True)]
    options = Options(method, tol, passes, time_limit, device, dtype)
    output = Output(as_json, plot, reference, quiet)
    if exact:
        run_exact(names, "energy", lambda i, **given: solve_qpbo_exactly(qubos[i], **given), options, output)
        return
    told = None if quiet else tell_round
    run(names, lambda **given: solve_qpbo(qubos, tighten, told, **given), lambda i: roof_duality_model(qubos[i]), options, output)


@app.command()
def mis(
    files: Files,
    blocks: Annotated[Cover, typer.Option(help="One block an edge, or one a clique: stronger, later.")] = Cover.cliques,
    method: MethodName = "auto",
    tol: Tol = 1e-4,
    passes: Passes = 5000,
    exact: Exact = False,
    time_limit: TimeLimit = math.inf,
    device: Device = "cpu",
    dtype: Dtype = Precision.float64,
    as_json: Json = False,
    plot: Plot = None,
    reference: Against = None,
    quiet: Quiet = False,
) -> None:
    """Bound heaviest independent sets of DIMACS graphs, and find sets; of .clq files, heaviest cliques."""
    given_graphs = [read_graph(file) for file in files]
    graphs = [graph.complement() if graph.objective == "clique" else graph for graph in given_graphs]
    names = [
        (str(file), graph.n, len(graph.edges), "" if graph is given else COMPLEMENTED)
        for file, graph, given in zip(files, graphs, given_graphs, strict=True)
    ]
    cover = COVERS[blocks]
    options = Options(method, tol, passes, time_limit, device, dtype)
    output = Output(as_json, plot, reference, quiet)
    if exact:
        if blocks is not Cover.cliques:
            raise OptionError("--blocks is about the relaxation; leave it out, or leave --exact out")
        run_exact(names, "weight", lambda i, **given: solve_mis_exactly(graphs[i], **given), options, output)
        return
    run(names, lambda **given: solve_mis(graphs, cover, **given), lambda i: clique_model(graphs[i], cover), options, output)


@app.command()
def mrf(
    files: Files,
    blocks: Annotated[Blocks, typer.Option(help="One block an edge, or one a chain of edges; qubo: roof duality.")] = Blocks.auto,
    method: MethodName = "auto",
    tol: Tol = 1e-4,
    passes: Passes = 5000,
    exact: Exact = False,
    time_limit: TimeLimit = math.inf,
    device: Device = "cpu",
    dtype: Dtype = Precision.float64,
    format: Annotated[MrfKind | None, typer.Option(help="Format of the files; by default told by their suffixes.")] = None,
    log: Annotated[bool | None, typer.Option("--log/--no-log", help="Whether UAI tables are logarithms; by default in .LG.")] = None,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of tightening: clusters of variables that raise the bound.")] = 0,
    evidence: Annotated[Path | None, typer.Option(metavar="FILE.evid", help="Labels that are given, for all files.")] = None,
    as_json: Json = False,
    plot: Plot = None,
    reference: Against = None,
    quiet: Quiet = False,
) -> None:
    """Bound energies of Markov random fields (.uai, .LG, .wcsp, .qpbo) by their LP relaxation, and find labellings."""
    if exact and (rounds or blocks is not Blocks.auto):
        raise OptionError("--rounds and --blocks are about the relaxation; leave them out, or leave --exact out")
    if rounds and reference is not None:
        raise OptionError("--reference solves the LP without clusters, --rounds a stronger one; give one of them")
    kind = None if format is None else MRF_FORMATS[format]
    mrfs = [read_mrf(file, kind, log, evidence) for file in files]
    names = [
        (str(file), model.n, sum(len(scope) > 1 for scope, _ in model.factors), "") for file, model in zip(files, mrfs, strict=True)
    ]
    options = Options(method, tol, passes, time_limit, device, dtype)
    output = Output(as_json, plot, reference, quiet)
    if exact:
        run_exact(names, "energy", lambda i, **given: solve_mrf_exactly(mrfs[i], **given), options, output)
        return
    chosen = DECOMPOSITIONS[blocks]
    budget = bl.Budget(rounds=rounds) if rounds else False
    told = None if quiet else tell_round
    run(
        names,
        lambda **given: solve_mrf(mrfs, chosen, tighten=budget, told=told, **given),
        lambda i: relax(mrfs[i], chosen).model,
        options,
        output,
    )


@app.command()
def info() -> None:
    """Print versions, devices, methods, and which optional packages are there."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"blocklp {bl.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    devices = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    console.print(Text(f"devices: {', '.join(['cpu', *devices])}; {torch.get_num_threads()} threads"))
    console.print(f"methods: {', '.join(bl.METHODS)}")
    for package in OPTIONAL:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        console.print(f"{package}: {version}")


def tell_round(round: Round, energy: float) -> None:
    """Write a line about a round of tightening to standard error."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(Text(f"{round} | labelling {energy:.9g}"))


@dataclass(frozen=True)
class Options:
    """How to solve, as given on the command line."""

    method: str
    tol: float
    passes: int
    time_limit: float
    device: str
    dtype: Precision

    def checked(self) -> dict[str, Any]:
        """Return the options of a solve.

        Raises
        ------
        OptionError, DeviceError
            If the device has no such name or is missing.
        """
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise OptionError(f"unknown device {self.device!r}; give cpu, cuda or cuda:N")
        number = int(self.device.partition(":")[2] or 0)
        if self.device != "cpu" and number >= torch.cuda.device_count():
            raise DeviceError(f"device {self.device!r} is missing, {torch.cuda.device_count()} CUDA devices are there; use cpu")
        return asdict(self) | {"dtype": getattr(torch, self.dtype)}


@dataclass(frozen=True)
class Output:
    """What to print and to write."""

    as_json: bool
    plot: Path | None
    reference: str | None
    quiet: bool


def run(
    names: Sequence[tuple[str, int, int, str]],
    solve: Callable[..., Sequence[QpboSolution | MisSolution | MrfSolution]],
    model: Callable[[int], bl.Model],
    options: Options,
    output: Output,
) -> None:
    """Solve, report, and exit with the code of the worst instance.

    ``names`` holds file, number of variables, number of pairs and a note for each instance; ``model`` gives the LP of an
    instance for the comparison with another solver.
    """
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    given = options.checked()
    figure = None if output.plot is None else blank_figure(output.plot)
    if not output.quiet:
        for file, _, _, note in names:
            if note:
                errors.print(Text(f"{file}: {note}"))
    # First, so that an unknown or missing solver is told before the work.
    others = [None if output.reference is None else compare(model(i), output.reference) for i in range(len(names))]
    with nullcontext() if output.quiet else Progress() as callback:
        found = solve(**given, callback=callback, history=figure is not None)
    solutions = [f.relaxation for f in found]
    status = {s.status[0] for s in solutions}
    rows = [Row(file, n, pairs, f, note, other) for (file, n, pairs, note), f, other in zip(names, found, others, strict=True)]
    if output.as_json:
        typer.echo(to_json(rows, options.method))
    else:
        show(rows, Console())
    if figure is not None and output.plot is not None:
        plot_convergence(figure, [Path(row.file).name for row in rows], [s.history for s in solutions])
        figure.savefig(output.plot, dpi=150)
    if bl.Status.INTERRUPTED in status:
        raise typer.Exit(130)
    if status != {bl.Status.OPTIMAL}:
        raise typer.Exit(1)


def run_exact(
    names: Sequence[tuple[str, int, int, str]],
    named: str,
    solve: Callable[..., ExactResult],
    options: Options,
    output: Output,
) -> None:
    """Solve instances exactly, one after another, report, and exit with the code of the worst one.

    Raises
    ------
    OptionError
        If an option of the relaxation is given, or there is no time.
    """
    time_limit = options.time_limit
    if options != Options("auto", 1e-4, 5000, time_limit, "cpu", Precision.float64):
        raise OptionError("--method, --tol, --passes, --device and --dtype are about the relaxation; --exact takes none of them")
    if output.plot is not None or output.reference is not None:
        raise OptionError("--plot and --reference are about the relaxation; leave them out, or leave --exact out")
    if not time_limit > 0:
        raise OptionError(f"--time-limit is {time_limit}; give a positive number of seconds")
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    began, rows = time.perf_counter(), []
    for i, (file, n, pairs, note) in enumerate(names):
        if note and not output.quiet:
            errors.print(Text(f"{file}: {note}"))
        seconds = share(time_limit, began, 1, len(names) - i)
        with nullcontext() if output.quiet else SearchProgress() as callback:
            rows.append(ExactRow(file, n, pairs, named, solve(i, time_limit=seconds, callback=callback), note))
        if rows[-1].found.status is bl.Status.INTERRUPTED:
            for missed, *_ in names[i + 1 :]:
                errors.print(Text(f"{missed}: not reached before the interrupt"))
            break
    if output.as_json:
        typer.echo(exact_json(rows))
    else:
        show_exact(rows, Console())
    if rows[-1].found.status is bl.Status.INTERRUPTED:
        raise typer.Exit(130)
    if not all(row.found.proven for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
