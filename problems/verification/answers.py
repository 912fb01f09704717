"""From files to an answer: queries, networks, the deadline, and the forms in which answers are written.

Variables of a VNN-LIB 2 query keep their declared names, types and shapes; a version 1 query has ``X`` and ``Y`` of type real.
Values are printed as the float64 number that equals them, so that they are read back the same as float32 and as float64.

Reference: VNN-LIB standard 2.0, chapter "Command-line interface" (https://www.vnnlib.org).
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from blocklp import __version__
from blocklp.campaigns import Executor
from blocklp.deadline import Deadline
from blocklp.errors import OptionError, TimeLimitError
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.printing import json_number
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.onnx_files import Runtime, require_onnx
from blocklp.problems.verification.onnx_reader import load_onnx
from blocklp.problems.verification.proof_files import write_proof
from blocklp.problems.verification.properties import Property
from blocklp.problems.verification.verdict import Verdict, VerificationEvent
from blocklp.problems.verification.verify import verify
from blocklp.problems.verification.vnnlib_reader import parse_property, read_vnnlib
from blocklp.progress import INTERVAL, LiveLine

KEPT = 4
"""Networks that stay loaded."""

TENSOR = re.compile(r"\(\s*declare-(?:input|output)\s+([A-Za-z]\w*)\s+([A-Za-z]\w*)\s*\[([\d,\s]*)\]")
NETWORK = re.compile(r"\(\s*declare-network\s+([A-Za-z]\w*)")


@dataclass(frozen=True)
class QueryVariable:
    """A declared tensor; ``shape`` is None in version 1, which does not state it."""

    name: str
    element_type: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Query:
    """What a VNN-LIB file declares: networks by name (none in version 1), input and output; and its text."""

    file: Path
    networks: tuple[str, ...]
    input: QueryVariable
    output: QueryVariable
    text: str = field(default="", repr=False)

    def network(self, given: Sequence[str]) -> Path:
        """Return the file of the one network from options ``NAME=FILE`` or ``FILE``.

        Raises
        ------
        OptionError
            There are too few or too many options, or one has another name.
        """
        wanted = ", ".join(self.networks) or "one network"
        if len(given) != 1:
            raise OptionError(f"{self.file} is about {wanted}, and {len(given)} networks are given; give one, --network N=MODEL.onnx")
        name, equals, file = given[0].partition("=")
        if not equals or Path(given[0]).is_file():
            return Path(given[0])
        if self.networks and name not in self.networks:
            raise OptionError(f"{self.file} is about {wanted}, and the network given is {name!r}; correct --network")
        return Path(file)

    def in_float32(self, real_semantics: bool) -> bool:
        """Whether the query is about an evaluation in float32; it refuses other floating-point types.

        Raises
        ------
        OptionError
            The types are neither real nor float32, and reading them as real was not asked for.
        """
        kinds = {v.element_type.lower() for v in (self.input, self.output)}
        if real_semantics or kinds == {"real"}:
            return False
        if kinds == {"float32"}:
            return True
        found = next(v.element_type for v in (self.input, self.output) if v.element_type.lower() not in ("real", "float32"))
        raise OptionError(
            f"{self.file} declares {found}, but what is proved here holds in real arithmetic or in float32; "
            "declare real in the query, or give --real-semantics to have it read so"
        )


def read_query(path: str | os.PathLike[str], max_bytes: int, deadline: Deadline) -> Query:
    """Read the text of a VNN-LIB file and its declarations, whose errors are left to ``parse_property``.

    Parameters
    ----------
    path : path-like
        The file.
    max_bytes : int
        Memory that reading it may take.
    deadline : Deadline
        When to give up.

    Raises
    ------
    FormatError
        The file is damaged, too large or no text.
    TimeLimitError
        The deadline is over.
    OSError
        It cannot be read.
    """
    file = Path(path)
    whole = read_vnnlib(file, max_bytes, deadline)
    text = re.sub(r";[^\n]*", "", whole)
    tensors = [
        QueryVariable(name, kind, tuple(int(size) for size in re.findall(r"\d{1,18}", shape)))
        for name, kind, shape in TENSOR.findall(text)
    ]
    x, y = tensors if len(tensors) == 2 else (QueryVariable("X", "real", None), QueryVariable("Y", "real", None))
    return Query(file, tuple(NETWORK.findall(text)), x, y, whole)


@dataclass
class Networks:
    """Networks that were read, with what replays them; the last few are kept."""

    kept: dict[Path, tuple[Network, Runtime]] = field(default_factory=dict)

    def get(self, path: Path, max_bytes: int, deadline: Deadline) -> tuple[Network, Runtime]:
        """Return a network and what replays it; errors are those of ``load_onnx``.

        Parameters
        ----------
        path, max_bytes, deadline
            As in ``load_onnx``.
        """
        found = self.kept.pop(path, None) or load_onnx(path, max_bytes, deadline)
        self.kept[path] = found
        for old in list(self.kept)[:-KEPT]:
            del self.kept[old]
        return found


@dataclass(frozen=True)
class Answer:
    """A verdict with the query it answers.

    Attributes
    ----------
    query : Query
        The query.
    network : Path
        File of the network.
    verdict : Verdict
        The verdict.
    load_seconds, seconds : float
        Time for reading, and for all.
    interrupted : bool
        Whether the user ended the run.
    task : tuple of Network and Property, or None
        What was decided; None if time was up before it was read.
    """

    query: Query
    network: Path
    verdict: Verdict
    load_seconds: float
    seconds: float
    interrupted: bool
    task: tuple[Network, Property] | None = None

    def assignment(self) -> list[tuple[QueryVariable, NDArray[Any]]]:
        """Input and output of the counterexample with their declarations; empty without one."""
        x, y = self.verdict.x, self.verdict.y
        if x is None or y is None:
            return []
        pairs = ((self.query.input, x), (self.query.output, y))
        return [(QueryVariable(v.name, v.element_type, v.shape or (values.size,)), values) for v, values in pairs]

    def summary(self) -> str:
        """One line about how the answer came about."""
        parts = [self.verdict.reason.rstrip("."), f"{self.seconds:.2f} s ({self.load_seconds:.2f} s start and reading)"]
        parts.append(f"{self.verdict.nodes} nodes")
        if math.isfinite(self.verdict.bound):
            parts.append(f"bound {self.verdict.bound:.6g}")
        return " | ".join(parts)

    def text(self) -> str:
        """The answer as the standard has it: the verdict and, for sat, every variable with one value a line."""
        lines = [self.verdict.status]
        for variable, values in self.assignment():
            lines.append(f"{variable.name} {variable.element_type} [{','.join(map(str, variable.shape or ()))}]")
            lines += [repr(float(value)) for value in values]
        return "\n".join(lines)

    def entry(self) -> dict[str, Any]:
        """The answer as an object of strict JSON."""
        return {
            "status": self.verdict.status,
            "query": str(self.query.file),
            "network": str(self.network),
            "version": __version__,
            "claim": self.verdict.claim,
            "reason": self.verdict.reason,
            "bound": json_number(self.verdict.bound),
            "nodes": self.verdict.nodes,
            "seconds": self.seconds,
            "load_seconds": self.load_seconds,
            "phases": self.verdict.phases,
            "assignment": {
                v.name: {"type": v.element_type, "shape": list(v.shape or ()), "values": [json_number(value) for value in values]}
                for v, values in self.assignment()
            },
        }

    def competition(self) -> str:
        """The result file of VNN-COMP: the verdict and, for sat, ``((X_0 v) ... (Y_0 v))``."""
        lines = [self.verdict.status.replace("timed-out", "timeout")]
        pairs = [
            f"({letter}_{i} {float(value)!r})"
            for letter, (_, values) in zip("XY", self.assignment(), strict=False)
            for i, value in enumerate(values)
        ]
        return "\n".join([*lines, *(["(" + "\n".join(pairs) + ")"] if pairs else [])]) + "\n"

    def serialise(self, folder: Path) -> None:
        """Write the counterexample as ``NAME.pb``, serialised TensorProto objects in the precision of the network.

        Raises
        ------
        MissingDependencyError
            onnx is not installed.
        """
        numpy_helper = require_onnx().numpy_helper
        folder.mkdir(parents=True, exist_ok=True)
        precision = np.float64 if self.verdict.y is not None and self.verdict.y.dtype == np.float64 else np.float32
        for variable, values in self.assignment():
            proto = numpy_helper.from_array(values.astype(precision).reshape(variable.shape or ()), variable.name)
            (folder / f"{variable.name}.pb").write_bytes(proto.SerializeToString())


def try_file(file: Path) -> None:
    """Raise an OSError if a file cannot be written; what is in it stays, and none is left behind that was not there."""
    there = file.exists()
    if there and not (file.is_file() or file.is_dir()):
        return  # a pipe or a device: opening it may wait for a reader
    try:
        with file.open("ab"):
            pass
    except OSError as error:
        raise type(error)(error.errno, f"{error.strerror}; choose a place that can be written", str(file)) from error
    if not there:
        file.unlink()


def try_folder(folder: Path) -> None:
    """Raise an OSError if files cannot be written into a folder, or the folder not be made; nothing is left behind."""
    place = folder
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:  # which names a file that nobody asked for
        raise type(error)(error.errno, f"{error.strerror}; choose a folder that can be written", str(folder)) from error


@dataclass(frozen=True)
class How:
    """How to answer, as given on the command line."""

    timeout: float = math.inf
    attack: bool = True
    real_semantics: bool = False
    max_bytes: int = MAX_BYTES
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    proof: Path | None = None  # where a proof of the verdict goes


def answer(
    path: str | os.PathLike[str],
    given: Sequence[str],
    how: How,
    networks: Networks,
    deadline: Deadline,
    callback: Callable[[VerificationEvent], None] | None = None,
    executor: Executor | None = None,
) -> Answer:
    """Read a query and a network and decide.

    Parameters
    ----------
    path : path-like
        The VNN-LIB file.
    given : sequence of str
        Options ``NAME=FILE`` or ``FILE``: the network.
    how : How
        How to answer; the deadline has its timeout.
    networks : Networks
        Those read before.
    deadline : Deadline
        For everything; seconds of the answer count from its beginning.
    callback : callable, optional
        Gets the progress; its seconds count from the end of reading.
    executor : Executor, optional
        Whose workers share the search.

    Raises
    ------
    BlocklpError
        Query and network cannot be read, do not fit, or speak of numbers other than real ones.
    OSError
        A file cannot be read.
    KeyboardInterrupt
        The user interrupted the reading; an interrupt after it gives an answer that says so.
    """
    query = Query(Path(path), (), QueryVariable("X", "real", None), QueryVariable("Y", "real", None))
    file, loaded, task = Path(), math.nan, None
    try:
        deadline.check("starting")
        query = read_query(path, how.max_bytes, deadline)
        file = query.network(given)
        network, runtime, prop = read_task(query, file, how, networks, deadline)
        loaded, proof, task = deadline.elapsed(), how.proof is not None, (network, prop)
        limits: dict[str, Any] = {"timeout": deadline, "executor": executor, "callback": callback}
        verdict = verify(network, prop, runtime=runtime, attack=how.attack, proof=proof, **limits)
        if how.proof is not None and verdict.proof is not None:
            write_proof(how.proof, network, prop, verdict.proof.steps())
    except TimeLimitError:
        loaded = deadline.elapsed()
        verdict = Verdict("timed-out", None, None, -math.inf, 0, 0.0, {}, "Time was up before the search began.")
    return Answer(query, file, verdict, loaded, deadline.elapsed(), verdict.reason == "Interrupted.", task)


def read_task(query: Query, file: Path, how: How, networks: Networks, deadline: Deadline) -> tuple[Network, Runtime, Property]:
    """Read the network of a query, and what the query asks of it.

    Parameters
    ----------
    query : Query
        The query.
    file : Path
        The network.
    how : How
        How to answer.
    networks : Networks
        Those read before.
    deadline : Deadline
        When to give up.

    Returns
    -------
    network, runtime, prop : Network, Runtime and Property
        The network, in the arithmetic that the query speaks of; what replays it; and the property.

    Raises
    ------
    BlocklpError, OSError
        As :func:`answer` does.
    """
    float32 = query.in_float32(how.real_semantics)
    network, runtime = networks.get(file, how.max_bytes, deadline)
    if float32 and runtime.element_type != "float32":
        told = f"{query.file} declares float32, and the network {file} is one of {runtime.element_type}"
        raise OptionError(f"{told}; correct one, or give --real-semantics to have the query read as one of real numbers")
    prop = parse_property(query.file, query.text, network.inputs, network.outputs, how.max_bytes, deadline, float32)
    network = network.to(network.dtype, how.device)
    return network.in_float32() if float32 else network, runtime, prop


class Watch(LiveLine):
    """A live line about a running verification on standard error.

    Parameters
    ----------
    quiet : bool
        Draw nothing.
    console : rich.console.Console, optional
        Where to draw instead.
    interval : float
        Seconds between two drawings of a search at least; other phases are drawn at once.
    """

    def __init__(self, quiet: bool = False, console: Console | None = None, interval: float = INTERVAL) -> None:
        super().__init__(console, interval)
        self.quiet, self.title, self.deadline = quiet, "", Deadline()

    def __enter__(self) -> Self:
        return self if self.quiet else super().__enter__()

    def begin(self, title: str, deadline: Deadline) -> None:
        """Say what is being worked on, and until when."""
        self.title, self.deadline = title, deadline
        self(VerificationEvent("reading", 0.0))

    def __call__(self, progress: VerificationEvent) -> None:
        """Draw, unless the same phase was drawn a moment ago."""
        if progress.search is None:
            self.reset()
        self.draw(lambda: describe(progress, self.title, self.deadline.left()))


def describe(progress: VerificationEvent, title: str, left: float) -> str:
    """Return one line about a running verification.

    Parameters
    ----------
    progress : VerificationEvent
        Where the verification is.
    title : str
        Put first, if not empty.
    left : float
        Seconds left, infinite without a limit.
    """
    parts = [title] if title else []
    parts.append(progress.phase)
    if progress.search is not None:
        event = progress.search
        parts += [f"{event.nodes} nodes", f"{event.open} open", f"bound {event.bound:.6g}"]
    parts.append(f"{progress.seconds:.1f} s")
    if math.isfinite(left):
        parts.append(f"{max(0.0, left):.0f} s left")
    return " | ".join(parts)
