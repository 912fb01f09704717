"""The command line: ``blocklp demo``, ``qpbo``, ``mis``, ``mrf`` and ``info``, and the commands of other modules.

``HELP`` states where things are printed and the exit codes.  What a command needs is imported when it runs: its options must not
cost the others time, nor a wrong word.
"""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from blocklp.errors import BlocklpError, OptionError
from blocklp.problems.datasets.cli import register as register_datasets
from blocklp.problems.densecrf.cli import register as register_densecrf
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.learnt.cli import register as register_learnt
from blocklp.problems.lp.cli import register as register_lp
from blocklp.problems.matching.cli import register as register_matching
from blocklp.problems.options import Device, Ray, Results, Workers, executor, one_by_one
from blocklp.problems.process import EXIT_INTERRUPTED, interruptible, main, until
from blocklp.problems.verification.cli import register

if TYPE_CHECKING:
    from blocklp.model import Model
    from blocklp.problems.mis.instance import Objective
    from blocklp.problems.mis.relaxation import CliqueBlocks
    from blocklp.problems.mrf.readers import Format as MrfFormat
    from blocklp.problems.mrf.relaxation import Decomposition
    from blocklp.problems.qpbo.node_search import Rule
    from blocklp.problems.qpbo.readers import Format

METHODS = (
    "prox",
    "admm",
    "bundle",
    "pdhg",
    "race",
    "newton",
    "dantzig-wolfe",
    "proxbc",
    "proxfw",
    "polyak",
    "supergradient",
    "adam",
    "min-marginals",
    "smooth",
)
"""Names of :data:`blocklp.methods.METHODS`, for a help that does not wait for torch."""

OPTIONAL = (
    "highspy",
    "gurobipy",
    "cvxpy",
    "matplotlib",
    "dimod",
    "ortools",
    "thinqpbo",
    "numba",
    "scikit-image",
    "mtkahypar",
    "ray",
    "pooch",
    "h5py",
)
COMPLEMENTED = "a clique problem, solved as independent sets of the complement graph; pairs are those of the complement"


class Commands(TyperGroup):
    """The commands; an interrupt, and what blocklp or the file system refuses, becomes one line and exit code 130 or 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # who reads the output has enough; typer ends quietly
            raise
        except OSError as error:
            raise _ended(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}", 2) from error
        except BlocklpError as error:
            raise _ended(f"error: {error}", 2) from error
        except MemoryError as error:
            raise _ended(f"error: out of memory ({error})", 2) from error
        except KeyboardInterrupt as error:
            raise _ended("interrupted", EXIT_INTERRUPTED) from error


def _ended(line: str, code: int) -> typer.Exit:
    """Print one line on standard error, and return what ends the command."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(line, style="bold red"), soft_wrap=True)
    return typer.Exit(code)


class Precision(StrEnum):
    """Precision of the iterates."""

    float64 = "float64"
    float32 = "float32"


class Kind(StrEnum):
    """Format of a QPBO file."""

    sparse = "sparse"
    maxcut = "maxcut"


class Asked(StrEnum):
    """What the file of a graph asks for."""

    clique = "clique"
    independent_set = "independent-set"


class Cover(StrEnum):
    """Blocks of an independent-set relaxation."""

    edges = "edges"
    cliques = "cliques"


class MrfKind(StrEnum):
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


class Blocks(StrEnum):
    """Blocks of a relaxation of a Markov random field."""

    auto = "auto"
    edges = "edges"
    chains = "chains"
    qubo = "qubo"


FORMATS: dict[Kind, Format] = {Kind.sparse: "sparse", Kind.maxcut: "maxcut"}
OBJECTIVES: dict[Asked, Objective] = {Asked.clique: "clique", Asked.independent_set: "independent-set"}
DECOMPOSITIONS: dict[Blocks, Decomposition] = {
    Blocks.auto: "auto",
    Blocks.edges: "edges",
    Blocks.chains: "chains",
    Blocks.qubo: "qubo",
}
COVERS: dict[Cover, CliqueBlocks] = {Cover.edges: "edges", Cover.cliques: "cliques"}

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Instances, compressed or not; solved as one batch.")]
MethodName = Annotated[str, typer.Option("--method", help=f"auto, or one of {', '.join(METHODS)}.")]
Tol = Annotated[float, typer.Option(min=0, help="Relative gap of the LP at which an instance is optimal.")]
Passes = Annotated[int, typer.Option(min=1, help="Most oracle passes.")]
TimeLimit = Annotated[float, typer.Option(help="Seconds for all files together, reading and start-up too.")]
MaxBytes = Annotated[
    int,
    typer.Option(min=1, metavar="BYTES", help="Most bytes of a file once decompressed; in memory it may take four times as many."),
]
Dtype = Annotated[Precision, typer.Option(help="Precision of the iterates; bounds are float64 in either case.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, a list with one object a file, instead of the table.")]
Plot = Annotated[Path | None, typer.Option(metavar="OUT.png", help="Write a picture of the convergence (needs matplotlib).")]
Against = Annotated[
    str | None, typer.Option("--reference", metavar="SOLVER", help="Solve the same LPs with another solver too, such as highs.")
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Search for a solution that is proved optimal; no options of the relaxation but --time-limit.")
]
Distributed = Annotated[
    bool, typer.Option("--distributed", help="Share one LP among the processes of torchrun; --json then prints one object.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no notes on standard error.")]

HELP = """Certified bounds on real problems by block-bounded linear programs.  Start with: blocklp demo

Results go to standard output, progress and errors to standard error.

Exit codes: 0 if every instance reached the tolerance, 1 if one stopped before (its bound is valid all the same), 2 for
bad input or if time ran out before there was a bound, 130 after an interrupt (what is found so far is still printed)."""

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, help=HELP)
register(app)
register_densecrf(app)
register_lp(app)
register_matching(app)
register_learnt(app)
register_datasets(app)


@app.command("demo")
def demo_command() -> None:
    """Solve a few real problems that ship with the package's dependencies, and explain the results."""
    from rich.console import Console

    from blocklp.problems.demo import demo

    with interruptible():
        demo(Console())


@app.command("warm-up")
def warm_up_command(as_json: Json = False) -> None:
    """Compile the loops of the numba backend once on this machine; takes a minute or two."""
    import json

    from rich.console import Console

    from blocklp.problems.warm_up import warm_up

    taken: dict[str, float] = {}
    with interruptible():
        for part, seconds in warm_up():
            taken[part] = seconds
            Console(stderr=True, highlight=False).print(f"{part}: {seconds:.1f} s")
        if as_json:
            print(json.dumps(taken))


@app.command()
def qpbo(
    ctx: typer.Context,
    files: Files,
    method: MethodName = "auto",
    tol: Tol = 1e-4,
    passes: Passes = 5000,
    exact: Exact = False,
    time_limit: TimeLimit = math.inf,
    device: Device = "cpu",
    dtype: Dtype = Precision.float64,
    format: Annotated[Kind | None, typer.Option(help="Format of the files; by default told by their suffixes.")] = None,
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
        from blocklp.problems.file_campaigns import run_files

        return run_files(ctx, qpbo, files)
    if distributed and (tighten or exact or len(files) > 1):
        raise OptionError("--distributed bounds one file by roof duality; leave out --tighten, --exact and other files")
    if branching is not None and not exact:
        raise OptionError("--branching is about searches; give --exact too")
    deadline = until(time_limit, ctx.obj)
    from blocklp.problems.commands import Options, Output, run, run_exact, tell_round
    from blocklp.problems.qpbo import read_qubo, roof_duality_model, solve_qpbo

    kind = None if format is None else FORMATS[format]
    if distributed:
        from blocklp.problems.distributed import run_distributed
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


@app.command()
def mis(
    ctx: typer.Context,
    files: Files,
    blocks: Annotated[Cover, typer.Option(help="One block an edge, or one a clique: stronger, later.")] = Cover.cliques,
    method: MethodName = "auto",
    tol: Tol = 1e-4,
    passes: Passes = 5000,
    exact: Exact = False,
    time_limit: TimeLimit = math.inf,
    device: Device = "cpu",
    dtype: Dtype = Precision.float64,
    format: Annotated[Asked | None, typer.Option(help="What the files ask for; by default told by their suffixes.")] = None,
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
    if exact and blocks is not Cover.cliques:
        raise OptionError("--blocks is about the relaxation; leave it out, or leave --exact out")
    if one_by_one(results, workers, ray):
        from blocklp.problems.file_campaigns import run_files

        return run_files(ctx, mis, files)
    deadline = until(time_limit, ctx.obj)
    from blocklp.problems.commands import Options, Output, run, run_exact
    from blocklp.problems.mis import clique_model, read_graph, solve_mis

    asked = None if format is None else OBJECTIVES[format]
    given_graphs = [read_graph(file, asked, max_bytes=max_bytes, time_limit=deadline) for file in files]
    graphs = [graph.complement(max_bytes) if graph.objective == "clique" else graph for graph in given_graphs]
    names = [
        (str(file), graph.n, len(graph.edges), "" if graph is given else COMPLEMENTED)
        for file, graph, given in zip(files, graphs, given_graphs, strict=True)
    ]
    cover = COVERS[blocks]
    options = Options(method, tol, passes, deadline, device, dtype)
    output = Output(as_json, plot, reference, quiet)
    if exact:
        from blocklp.problems.mis import solve_mis_exactly

        run_exact(names, "weight", lambda i, **given: solve_mis_exactly(graphs[i], **given), options, output)
        return
    run(names, lambda **given: solve_mis(graphs, cover, **given), lambda i: clique_model(graphs[i], cover), options, output)


@app.command()
def mrf(
    ctx: typer.Context,
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
    if exact and (rounds or blocks is not Blocks.auto):
        raise OptionError("--rounds and --blocks are about the relaxation; leave them out, or leave --exact out")
    if rounds and reference is not None:
        raise OptionError("--reference solves the LP without clusters, --rounds a stronger one; give one of them")
    if one_by_one(results, workers, ray):
        from blocklp.problems.file_campaigns import run_files

        return run_files(ctx, mrf, files)
    deadline = until(time_limit, ctx.obj)
    from blocklp.problems.commands import Options, Output, run, run_exact, tell_round
    from blocklp.problems.mrf import read_mrf, relax, solve_mrf
    from blocklp.search.tightening import Budget

    kind: MrfFormat | None = None if format is None else format.value
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
    chosen = DECOMPOSITIONS[blocks]
    budget = Budget(rounds=rounds) if rounds else False
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
    import importlib.metadata
    import sys

    import torch

    import blocklp as bl
    from blocklp.kernels.backend import accelerators

    typer.echo(f"blocklp {bl.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    devices = [f"{name} ({what})" for name, what in accelerators().items()]
    typer.echo(f"devices: {', '.join(['cpu', *devices])}; {torch.get_num_threads()} threads")
    typer.echo(f"methods: {', '.join(bl.methods.METHODS)}")
    for package in OPTIONAL:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        typer.echo(f"{package}: {version}")


if __name__ == "__main__":
    main()
