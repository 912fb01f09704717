"""Options that commands of several problem modules have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blocklp.errors import OptionError

if TYPE_CHECKING:
    from blocklp.campaigns import Executor

Device = Annotated[str, typer.Option(help="Where to compute: cpu, or one of the devices that `blocklp info` lists.")]
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
