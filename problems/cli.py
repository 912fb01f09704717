"""The command line: ``blocklp demo``, ``blocklp qpbo``, ``blocklp mis``, ``blocklp info``.

Results go to standard output, progress and errors to standard error.  Exit codes: 0 if every instance reached the
tolerance, 1 if one stopped before (its bound is valid all the same), 2 for bad input, 130 after an interrupt, whose best
so far is still printed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
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
from blocklp.problems.mis import WeightedGraph, clique_model, read_graph, solve_mis
from blocklp.problems.plot import blank_figure, plot_convergence
from blocklp.problems.qpbo import Qubo, read_qubo, roof_duality_model, solve_qpbo
from blocklp.problems.report import Row, table, to_json
from blocklp.progress import Progress

OPTIONAL = ("highspy", "gurobipy", "cvxpy", "matplotlib", "dimod", "ortools", "thinqpbo")


class Commands(TyperGroup):
    """The commands; what blocklp or the file system refuses becomes one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
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


Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Instances, gzipped or not; solved as one batch.")]
MethodName = Annotated[str, typer.Option("--method", help=f"One of {', '.join(bl.METHODS)}.")]
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
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no notes on standard error.")]

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, rich_markup_mode="rich", help=__doc__)


def main() -> None:
    """Run the command line."""
    app()


@app.command("demo")
def demo_command() -> None:
    """Solve a few real problems that ship with the package's dependencies, and explain the results."""
    demo(Console())


@app.command()
def qpbo(
    files: Files,
    method: MethodName = "prox",
    tol: Tol = 1e-4,
    passes: Passes = 5000,
    time_limit: TimeLimit = math.inf,
    device: Device = "cpu",
    dtype: Dtype = Precision.float64,
    format: Annotated[Kind | None, typer.Option(help="Format of the files; by default told by their suffixes.")] = None,
    as_json: Json = False,
    plot: Plot = None,
    reference: Against = None,
    quiet: Quiet = False,
) -> None:
    """Bound QUBO and max-cut instances by roof duality, and find labellings."""
    named = None if format is None else format.value
    qubos = [read_qubo(file, named) for file in files]
    sizes = [(qubo.n, len(qubo.edges), "") for qubo in qubos]

    def solve(**options: Any) -> Sequence[Any]:
        return solve_qpbo(qubos, **options)

    _run(
        files, sizes, solve, lambda i: roof_duality_model(qubos[i]), as_json, plot, reference, quiet,
        method=method, tol=tol, passes=passes, time_limit=time_limit, device=device, dtype=dtype,
    )
