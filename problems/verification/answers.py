"""From files to an answer: queries, networks, the deadline, and the forms in which answers are written.

Variables of a VNN-LIB 2 query keep their declared names, types and shapes; a version 1 query has ``X`` and ``Y`` of type real.
Values are printed as the float64 number that equals them, so that they are read back the same as float32 and as float64.

Reference: VNN-LIB standard 2.0, chapter "Command-line interface" (https://www.vnnlib.org).
"""

from __future__ import annotations

import gzip
import math
import os
import re
import signal
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.live import Live
from rich.text import Text

from blocklp import __version__
from blocklp.errors import FormatError, MissingDependencyError, OptionError, install
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.onnx_reader import Runtime, read_onnx
from blocklp.problems.verification.verify import Progress, Verdict, verify
from blocklp.problems.verification.vnnlib_reader import read_property
from blocklp.progress import INTERVAL

GRACE = 0.1
"""Seconds past the deadline at which whatever still runs is interrupted."""

KEPT = 4
"""Networks that stay loaded."""

LONGEST = 1e7
"""Seconds beyond which no alarm is set."""

TENSOR = re.compile(r"\(\s*declare-(?:input|output)\s+([A-Za-z]\w*)\s+([A-Za-z]\w*)\s*\[([\d,\s]*)\]")
NETWORK = re.compile(r"\(\s*declare-network\s+([A-Za-z]\w*)")


@dataclass(frozen=True)
class Variable:
    """A declared tensor; ``shape`` is None in version 1, which does not state it."""

    name: str
    element_type: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Query:
    """What a VNN-LIB file declares: networks by name (none in version 1), input and output."""

    file: Path
    networks: tuple[str, ...]
    input: Variable
    output: Variable

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

    def check_types(self, real_semantics: bool) -> None:
        """Refuse floating-point semantics, for which nothing is proved here.

        Raises
        ------
        OptionError
            The types are not real, and reading them as real was not asked for.
        """
        found = next((v.element_type for v in (self.input, self.output) if v.element_type.lower() != "real"), None)
        if found is not None and not real_semantics:
            raise OptionError(
                f"{self.file} declares {found}, but what is proved here holds in real arithmetic; "
                "declare real in the query, or give --real-semantics to have it read so"
            )


def read_query(path: str | os.PathLike[str]) -> Query:
    """Read the declarations of a VNN-LIB file, whose errors are left to ``read_property``.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    """
    file = Path(path)
    data = file.read_bytes()
    try:
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FormatError(f"{file}: damaged gzip data ({error}); fetch the file again") from error
    text = re.sub(r";[^\n]*", "", data.decode("utf-8-sig", "replace"))
    tensors = [
        Variable(name, kind, tuple(int(size) for size in shape.split(",")) if shape.strip() else ())
        for name, kind, shape in TENSOR.findall(text)
    ]
    x, y = tensors if len(tensors) == 2 else (Variable("X", "real", None), Variable("Y", "real", None))
    return Query(file, tuple(NETWORK.findall(text)), x, y)


@dataclass
class Networks:
    """Networks that were read, with what replays them; the last few are kept."""

    kept: dict[Path, tuple[Network, Runtime]] = field(default_factory=dict)

    def get(self, path: Path) -> tuple[Network, Runtime]:
        """Return a network and what replays it.

        Raises
        ------
        FormatError, FileNotFoundError, MissingDependencyError
            As ``read_onnx``.
        """
        found = self.kept.pop(path, None) or (read_onnx(path), Runtime(path))
        self.kept[path] = found
        for old in list(self.kept)[:-KEPT]:
            del self.kept[old]
        return found


class OutOfTime(KeyboardInterrupt):
    """Raised where the deadline finds the program; a KeyboardInterrupt, so that no handler of errors mistakes it."""


class Alarm:
    """Raises ``OutOfTime`` inside its ``with`` statement a moment after a deadline.

    Reading a file does not look at a clock, and a batch of nodes may take long.  Where signals cannot be had (in another
    thread, on Windows) it does nothing, and the deadline is kept by those who look at it.

    Parameters
    ----------
    deadline : float
        On the clock of ``time.perf_counter``.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline, self.rang = deadline, False
        self._before: Any = None
        main = threading.current_thread() is threading.main_thread()
        self._usable = main and hasattr(signal, "setitimer") and deadline - time.perf_counter() < LONGEST

    def check(self) -> None:
        """Raise ``OutOfTime`` if the deadline is over."""
        if time.perf_counter() >= self.deadline:
            raise OutOfTime

    def __enter__(self) -> Alarm:
        if self._usable:
            self._before = signal.signal(signal.SIGALRM, self._ring)
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, self.deadline + GRACE - time.perf_counter()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._usable:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    def _ring(self, *_: object) -> None:
        self.rang = True
        raise OutOfTime


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
    """

    query: Query
    network: Path
    verdict: Verdict
    load_seconds: float
    seconds: float
    interrupted: bool

    def assignment(self) -> list[tuple[Variable, NDArray[Any]]]:
        """Input and output of the counterexample with their declarations; empty without one."""
        x, y = self.verdict.x, self.verdict.y
        if x is None or y is None:
            return []
        pairs = ((self.query.input, x), (self.query.output, y))
        return [(Variable(v.name, v.element_type, v.shape or (values.size,)), values) for v, values in pairs]

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
            "reason": self.verdict.reason,
            "bound": finite(self.verdict.bound),
            "nodes": self.verdict.nodes,
            "seconds": self.seconds,
            "load_seconds": self.load_seconds,
            "phases": self.verdict.phases,
            "assignment": {
                v.name: {"type": v.element_type, "shape": list(v.shape or ()), "values": [finite(float(value)) for value in values]}
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
        try:
            from onnx import numpy_helper
        except ImportError as error:
            raise MissingDependencyError(f"serialised assignments need the package onnx: {install('verify')}") from error
        folder.mkdir(parents=True, exist_ok=True)
        precision = np.float64 if self.verdict.y is not None and self.verdict.y.dtype == np.float64 else np.float32
        for variable, values in self.assignment():
            proto = numpy_helper.from_array(values.astype(precision).reshape(variable.shape or ()), variable.name)
            (folder / f"{variable.name}.pb").write_bytes(proto.SerializeToString())


def finite(value: float) -> float | None:
    """Return a number, or None in place of what JSON cannot hold."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class How:
    """How to answer, as given on the command line."""

    timeout: float = math.inf
    attack: bool = True
    real_semantics: bool = False


def answer(
    path: str | os.PathLike[str],
    given: Sequence[str],
    how: How,
    networks: Networks,
    began: float,
    callback: Callable[[Progress], None] | None = None,
) -> Answer:
    """Read a query and a network and decide.

    Parameters
    ----------
    path : path-like
        The VNN-LIB file.
    given : sequence of str
        Options ``NAME=FILE`` or ``FILE``: the network.
    how : How
        Seconds for everything since ``began``, and the rest.
    networks : Networks
        Those read before.
    began : float
        Reading of ``time.perf_counter()`` from which the time counts.
    callback : callable, optional
        Gets the progress; its seconds count from the end of reading.

    Raises
    ------
    BlocklpError
        Query and network cannot be read, do not fit, or speak of numbers other than real ones.
    OSError
        A file cannot be read.
    KeyboardInterrupt
        The user interrupted the reading; an interrupt after it gives an answer that says so.
    """
    query = Query(Path(path), (), Variable("X", "real", None), Variable("Y", "real", None))
    file, loaded, verdict = Path(), math.nan, None
    alarm = Alarm(began + how.timeout)
    try:
        with alarm:
            alarm.check()
            query = read_query(path)
            query.check_types(how.real_semantics)
            file = query.network(given)
            network, runtime = networks.get(file)
            alarm.check()
            prop = read_property(path, network.inputs, network.outputs)
            alarm.check()
            loaded = time.perf_counter()
            left = alarm.deadline - loaded
            verdict = verify(network, prop, timeout=left, runtime=runtime, attack=how.attack, callback=callback)
    except OutOfTime:
        pass
    now = time.perf_counter()
    if verdict is None:
        # The alarm rang in the midst of something, and what was found so far went with it.
        reason = "Time was up before the search began." if math.isnan(loaded) else "Time is up."
        verdict = Verdict("timed-out", None, None, -math.inf, 0, now - began, {}, reason)
    elif alarm.rang and verdict.status == "unknown":
        verdict = replace(verdict, status="timed-out", reason="Time is up.")
    load_seconds = (now if math.isnan(loaded) else loaded) - began
    return Answer(query, file, verdict, load_seconds, now - began, verdict.reason == "Interrupted.")


class Watch:
    """A live line about a running verification on standard error, in its ``with`` statement and on a terminal only.

    Parameters
    ----------
    quiet : bool
        Draw nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._quiet, self._drawn = quiet, 0.0
        self.title, self.deadline = "", math.inf

    def __enter__(self) -> Watch:
        if self._console.is_terminal and not self._quiet:
            # Drawn by the callback alone: a refreshing thread would compete with the search.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def begin(self, title: str, deadline: float) -> None:
        """Say what is being worked on, and until when on the clock of ``time.perf_counter``."""
        self.title, self.deadline, self._drawn = title, deadline, 0.0
        self(Progress("reading", 0.0))

    def __call__(self, progress: Progress) -> None:
        """Draw, unless the same phase was drawn a moment ago."""
        now = time.perf_counter()
        if self._live is None or (now - self._drawn < INTERVAL and progress.search is not None):
            return
        self._drawn = now
        self._live.update(Text(describe(progress, self.title, self.deadline - now), no_wrap=True, overflow="ellipsis"), refresh=True)


def describe(progress: Progress, title: str, left: float) -> str:
    """Return one line about a running verification."""
    parts = [title] if title else []
    parts.append(progress.phase)
    if progress.search is not None:
        event = progress.search
        parts += [f"{event.nodes} nodes", f"{event.open} open", f"bound {event.bound:.6g}"]
    parts.append(f"{progress.seconds:.1f} s")
    if math.isfinite(left):
        parts.append(f"{max(0.0, left):.0f} s left")
    return " | ".join(parts)
