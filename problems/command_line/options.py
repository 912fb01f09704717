"""Options that several commands have, and groups of them that stand in signatures for all of their options."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from blocklp.errors import OptionError
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.modules import module_names

if TYPE_CHECKING:
    from blocklp.campaigns import Executor
    from blocklp.deadline import Deadline

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
    str | None, typer.Option("--reference", metavar="SOLVER", help="Solve the same with another solver too, such as highs.")
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Search for a solution that is proved optimal; no options of the relaxation but --time-limit.")
]
Distributed = Annotated[
    bool, typer.Option("--distributed", help="Share one LP among the processes of torchrun; --json then prints one object.")
]
Proving = Annotated[
    Path | None, typer.Option(metavar="FILE", help="With --exact: write a proof of the optimum, for `blocklp check-proof`.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no notes on standard error.")]
Certified = Annotated[float, typer.Option(min=0, help="Relative gap to be certified.")]
Seconds = Annotated[float, typer.Option(help="Seconds, reading and start-up too.")]
OneJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Silent = Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")]


def chosen_from(package: str, text: str) -> Any:
    """An option that takes the name of a module of a package, which its help lists.

    Parameters
    ----------
    package : str
        The package, whose modules are not imported.
    text : str
        Its help, with ``{}`` where the names go.
    """
    names = module_names(package)
    return typer.Option(help=text.format(", ".join(names)), autocompletion=lambda: list(names))


def format_of(package: str) -> Any:
    """The option ``--format`` of a command that reads the formats of a package."""
    return chosen_from(package, "Format of the files, one of {}; by default told by their suffixes.")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Take the options of every parameter whose type is a group of them, in its place.

    Parameters
    ----------
    command : callable
        The function of a command; a group is a dataclass each of whose fields is an option.
    """
    given = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {parameter.name: parameter.annotation for parameter in given if is_dataclass(parameter.annotation)}

    @functools.wraps(command)
    def called(**options: Any) -> None:
        for name, group in groups.items():
            options[name] = group(**{field.name: options.pop(field.name) for field in fields(group)})
        command(**options)

    options: list[inspect.Parameter] = []
    for parameter in given:
        if (group := groups.get(parameter.name)) is None:
            options.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(group, include_extras=True)
        for field in fields(group):
            own = {"default": field.default, "annotation": hints[field.name]}
            options.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, **own))
    vars(called).update(__signature__=inspect.Signature(options), __annotations__={})
    return called


@dataclass(frozen=True)
class Solving:
    """How relaxations are solved, or that minima are searched for."""

    method: MethodName = "auto"
    tol: Tol = 1e-4
    passes: Passes = 5000
    exact: Exact = False
    time_limit: TimeLimit = math.inf
    device: Device = "cpu"
    dtype: Dtype = Precision.float64

    def checked(self, deadline: Deadline) -> dict[str, Any]:
        """Return the options of a solve.

        Parameters
        ----------
        deadline : Deadline
            When the work ends.

        Raises
        ------
        DeviceError
            If the device has no such name or is missing.
        """
        import torch

        from blocklp.options import known_device

        known_device(self.device)
        given = {"method": self.method, "tol": self.tol, "passes": self.passes, "time_limit": deadline, "device": self.device}
        return given | {"dtype": getattr(torch, self.dtype)}

    def check_exact(self) -> None:
        """Refuse options that a search for minima does not have.

        Raises
        ------
        OptionError
            If an option of the relaxation is given.
        """
        if replace(self, exact=False, time_limit=math.inf) != Solving():
            raise OptionError("--method, --tol, --passes, --device and --dtype are about the relaxation; --exact takes none of them")


@dataclass(frozen=True)
class Reading:
    """How files are read, and where they are worked on."""

    max_bytes: MaxBytes = MAX_BYTES
    results: Results = None
    workers: Workers = None
    ray: Ray = None

    def one_by_one(self, tree: bool = False) -> bool:
        """Whether files are solved one by one and recorded.

        Parameters
        ----------
        tree : bool
            Whether workers may share the search of a file instead.

        Raises
        ------
        OptionError
            There are workers, and no place for what they find.
        """
        if not tree and self.results is None and (self.workers is not None or self.ray is not None):
            raise OptionError("--workers and --ray solve file by file; say by --results where their lines go")
        return self.results is not None

    def tree(self) -> AbstractContextManager[Executor | None]:
        """Return the workers that share the search of a file; none, and so other rounds, where no option names some."""
        return nullcontext() if self.workers is None and self.ray is None else executor(self.workers, self.ray)


@dataclass(frozen=True)
class Output:
    """What is printed and written."""

    as_json: Json = False
    plot: Plot = None
    reference: Against = None
    proof: Proving = None
    quiet: Quiet = False


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
