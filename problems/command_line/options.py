"""Options that several commands have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blocklp.errors import OptionError

if TYPE_CHECKING:
    from blocklp.campaigns import Executor

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


class Precision(StrEnum):
    """Precision of the iterates."""

    float64 = "float64"
    float32 = "float32"


Device = Annotated[str, typer.Option(help="Where to compute: cpu, or one of the devices that `blocklp doctor` lists.")]
Workers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Work in N processes: on files, or with qpbo --exact on one search tree.")
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Work on the nodes of a Ray cluster; auto finds this machine's."),
]
Results = Annotated[
    Path | None,
    typer.Option("--results", metavar="OUT.jsonl", help="Solve file by file, and append a line for each; those there are kept."),
]
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


def one_by_one(results: Path | None, workers: int | None, ray: str | None) -> bool:
    """Whether the files of a command are solved one by one and recorded.

    Parameters
    ----------
    results : Path, optional
        Where they are recorded.
    workers, ray : int and str, optional
        As in :func:`executor`.

    Raises
    ------
    OptionError
        There are workers, and no place for what they find.
    """
    if results is None and (workers is not None or ray is not None):
        raise OptionError("--workers and --ray solve file by file; say by --results where their lines go")
    return results is not None


def executor(workers: int | None, ray: str | None, threads: int | None = None) -> Executor:
    """Return where the instances of a command are worked on: in this process by default.

    Parameters
    ----------
    workers : int, optional
        Processes on this machine.
    ray : str, optional
        Address of a cluster.
    threads : int, optional
        Threads of each of the processes.

    Raises
    ------
    OptionError
        Both are given, or threads for a cluster.
    MissingDependencyError, ProcessError
        There is no cluster to be had.
    """
    from blocklp.campaigns import InProcess, LocalExecutor, RayExecutor

    if workers is not None and ray is not None:
        raise OptionError("--workers are processes here, --ray those of a cluster; give one of them")
    if ray is not None:
        if threads is not None:
            raise OptionError("--threads is for processes here; tasks of a cluster have one for each CPU of theirs")
        return RayExecutor(ray)
    return InProcess() if workers is None else LocalExecutor(workers, threads)
