"""Many instances, in this process or over many, recorded row by row so that a run can be taken up again.

Instances are those of VNN-COMP: a csv file of rows ``onnx,vnnlib,timeout``, paths relative to it.  A row of results is
appended and flushed when its instance is done; rows that are there already are not run again.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from blocklp.campaigns import CampaignEvent, Executor, Records, Shared, Task, completed, hard_limit
from blocklp.deadline import Deadline
from blocklp.errors import BlocklpError, FormatError
from blocklp.problems.files import MAX_BYTES, read_text
from blocklp.problems.printing import print_table
from blocklp.problems.verification.answers import How, Networks, Watch, answer, try_folder
from blocklp.problems.verification.problem import problem_of

COLUMNS = ("onnx", "vnnlib", "status", "seconds", "nodes", "bound", "load_seconds", "witness")
DECIDED = ("sat", "unsat")


@dataclass(frozen=True)
class BenchmarkInstance:
    """A network, a property and seconds; the names are those of the file."""

    onnx: str
    vnnlib: str
    timeout: float

    @property
    def key(self) -> tuple[str, str]:
        """The names that tell instances apart."""
        return self.onnx, self.vnnlib


@dataclass(frozen=True)
class InstanceResult:
    """A row of results; ``status`` is a verdict or ``error: ...``."""

    onnx: str
    vnnlib: str
    status: str
    seconds: float
    nodes: int = 0
    bound: float = math.nan
    load_seconds: float = math.nan
    witness: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The names that tell instances apart."""
        return self.onnx, self.vnnlib

    def cells(self) -> list[str]:
        """Return the row; numbers that are not known are empty."""
        numbers = [f"{v:.9g}" if math.isfinite(v) else "" for v in (self.seconds, self.nodes, self.bound, self.load_seconds)]
        return [self.onnx, self.vnnlib, self.status, *numbers, self.witness]


def read_instances(path: Path, max_bytes: int = MAX_BYTES) -> list[BenchmarkInstance]:
    """Read a file of instances.

    Raises
    ------
    FormatError
        A row has not three columns, or its last is not a positive number of seconds.
    FileNotFoundError
        There is no such file.
    """
    instances = []
    for number, row in enumerate(_rows(path, max_bytes), 1):
        if not row:
            continue
        try:
            onnx, vnnlib, seconds = (cell.strip() for cell in row)
            timeout = float(seconds)
        except ValueError:
            raise FormatError(f"{path}, line {number}: {','.join(row)!r} is not 'network,property,seconds'; correct it") from None
        if not timeout > 0:
            raise FormatError(f"{path}, line {number}: a timeout of {seconds} seconds; give a positive number")
        instances.append(BenchmarkInstance(onnx, vnnlib, timeout))
    return instances


def results_of(text: str, path: Path) -> list[InstanceResult]:
    """Make results of the text of a file.

    Raises
    ------
    FormatError
        The file has other columns or a damaged row.
    """
    heading, *rows = _parsed(path, text) or [[]]
    if text and tuple(heading) != COLUMNS:
        raise FormatError(f"{path}: its columns are {','.join(heading)!r}, not those of results; name another file")
    try:
        return [_result(*row) for row in rows if row]
    except (ValueError, TypeError):
        raise FormatError(f"{path}: a row is damaged; remove it or name another file") from None


def _result(onnx: str, vnnlib: str, status: str, seconds: str, nodes: str, bound: str, load: str, witness: str) -> InstanceResult:
    numbers = [float(cell) if cell else math.nan for cell in (seconds, bound, load)]
    return InstanceResult(onnx, vnnlib, status, numbers[0], int(nodes), numbers[1], numbers[2], witness)


def read_expected(path: Path, max_bytes: int = MAX_BYTES) -> dict[tuple[str, str], str]:
    """Read known results: a csv file with the columns onnx, vnnlib and expected, among others.

    Raises
    ------
    FormatError
        A column is missing.
    """
    heading, *rows = _rows(path, max_bytes) or [[]]
    try:
        places = [heading.index(name) for name in ("onnx", "vnnlib", "expected")]
        return {(row[places[0]], row[places[1]]): row[places[2]] for row in rows if row}
    except (ValueError, IndexError):
        raise FormatError(f"{path}: every row needs the columns onnx, vnnlib and expected; name them in the first line") from None


def _rows(path: Path, max_bytes: int) -> list[list[str]]:
    return _parsed(path, read_text(path, max_bytes=max_bytes))


def _parsed(path: Path, text: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise FormatError(f"{path}: not a csv file ({error}); give one") from error


@dataclass(frozen=True)
class BenchmarkRun:
    """How a run of instances ended.

    Attributes
    ----------
    rows : list of InstanceResult
        Rows of the instances, in their order, written or not.
    interrupted : bool
        Whether the user interrupted it; the instance at work then has no row.
    problem : str
        Which file could not be written, if any: the run ended there if it was that of the results.
    """

    rows: list[InstanceResult]
    interrupted: bool = False
    problem: str = ""


def run_instances(
    instances: Path,
    results: Path,
    how: How,
    executor: Executor,
    told: Callable[[InstanceResult], None] = lambda row: None,
    *,
    watch: Watch | None = None,
    callback: Callable[[CampaignEvent], Any] | None = None,
) -> BenchmarkRun:
    """Answer all instances that have no row yet.

    Parameters
    ----------
    instances, results : Path
        The files.  Counterexamples go to a folder beside the results, as VNN-COMP wants them.  Both places are tried before
        the first instance, and a verdict is told before it is written.
    how : How
        Its timeout caps that of each row.
    executor : Executor
        Where instances are answered.
    told : callable
        Gets every new row.
    watch : Watch, optional
        Shows the progress of an instance that is answered in this process.
    callback : callable, optional
        Gets the progress of all.

    Raises
    ------
    FormatError, OSError
        A file cannot be read, or a place cannot be written to.
    ProcessError
        Another process writes to the results.
    """
    wanted = read_instances(instances, how.max_bytes)
    try_folder(_folder(results))
    problem, interrupted = "", False
    with Records(results, lambda text: results_of(text, results)) as records:
        done = {row.key: row for row in records.found}
        if records.new:
            records.append(_line(COLUMNS))
        tasks = _tasks(wanted, done, instances.parent, how, executor, watch)
        try:
            for outcome in completed(executor, tasks, total=len(tasks), callback=callback):
                row, witness = outcome.value or (_failed(outcome.key, outcome.error, outcome.seconds), "")
                done[row.key] = row
                told(row)
                if row.status == "sat":
                    try:
                        row = done[row.key] = replace(row, witness=_write_witness(witness, results, row))
                    except OSError as error:
                        problem = f"{error.filename or results}: {error.strerror}"
                records.append(_line(row.cells()))
        except KeyboardInterrupt:
            interrupted = True
        except OSError as error:
            problem = f"{error.filename or results}: {error.strerror}"
    return BenchmarkRun(_in_order(wanted, done), interrupted, problem)


def _tasks(
    wanted: Sequence[BenchmarkInstance],
    done: Collection[tuple[str, str]],
    folder: Path,
    how: How,
    executor: Executor,
    watch: Watch | None,
) -> list[Task]:
    """Return the tasks of instances without a row; a network is shared once by all of its instances."""
    networks, files = executor.share(Networks()), dict[Path, Shared]()
    tasks = {}
    for number, instance in enumerate(wanted, 1):
        if instance.key in done or instance.key in tasks:
            continue
        given = replace(how, timeout=min(instance.timeout, how.timeout))
        for file in (own := [_file(folder, name) for name in instance.key]):
            if file not in files:
                files[file] = executor.share_file(file)
        title = f"{number}/{len(wanted)} {Path(instance.onnx).stem} {Path(instance.vnnlib).stem}"
        arguments = instance.key, tuple(files[file] for file in own), given, networks, watch, title
        tasks[instance.key] = Task(instance.key, answered, arguments, title, limit=hard_limit(given.timeout))
    return list(tasks.values())


def answered(
    key: tuple[str, str], files: tuple[Shared, Shared], how: How, networks: Shared, watch: Watch | None, title: str
) -> tuple[InstanceResult, str]:
    """Answer one instance; return its row and, for sat, the text of its counterexample.

    Parameters
    ----------
    key : tuple of str
        The names of the instance.
    files : tuple of Shared
        Its network and its property.
    how : How
        How to answer, with the time for it.
    networks : Shared
        Those that this process has read.
    watch : Watch, optional
        Shows the progress.
    title : str
        For that.

    Raises
    ------
    KeyboardInterrupt
        The user ended it.
    """
    deadline = Deadline(how.timeout)
    if watch is not None:
        watch.begin(title, deadline)
    try:
        network, query = (file.get() for file in files)
        found = answer(query, [str(network)], how, networks.get(), deadline, watch)
    except Exception as error:  # Whatever it is, the other instances can do without it.
        return _failed(key, error, deadline.elapsed()), ""
    if found.interrupted:
        raise KeyboardInterrupt
    verdict = found.verdict
    row = InstanceResult(*key, verdict.status, found.seconds, verdict.nodes, verdict.bound, found.load_seconds)
    return row, found.competition() if verdict.status == "sat" else ""


def _failed(key: tuple[str, str], error: Exception | None, seconds: float) -> InstanceResult:
    said = " ".join((problem_of(error) if isinstance(error, OSError) else str(error)).split())
    said = said if isinstance(error, BlocklpError | OSError) else f"{type(error).__name__} {said}".strip()
    return InstanceResult(*key, f"error: {said}", seconds)


def _line(cells: Sequence[str]) -> str:
    """Return a row as a line without its end."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(cells)
    return stream.getvalue()


def _in_order(wanted: Sequence[BenchmarkInstance], done: dict[tuple[str, str], InstanceResult]) -> list[InstanceResult]:
    return [done[key] for key in dict.fromkeys(instance.key for instance in wanted) if key in done]


def _file(folder: Path, name: str) -> Path:
    """Return a file of the folder, or the gzipped file that stands in its place."""
    file = folder / name
    zipped = file.with_name(f"{file.name}.gz")
    return zipped if zipped.is_file() and not file.exists() else file


def _folder(results: Path) -> Path:
    """Return the folder of the counterexamples."""
    return results.parent / f"{results.stem}-witnesses"


def _write_witness(text: str, results: Path, row: InstanceResult) -> str:
    """Write a counterexample; return its path relative to the results."""
    file = _folder(results) / f"{Path(row.onnx).stem}-{Path(row.vnnlib).stem}.txt"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return str(file.relative_to(results.parent))


@dataclass(frozen=True)
class Score:
    """Rows of results by how they compare with what is known.

    Attributes
    ----------
    right, wrong, undecided, errors, new : list of InstanceResult
        As known; contradicting it; unknown or timed-out though a verdict is known; failed; verdicts where none is known.
    open : list of InstanceResult
        No verdict, and none known.
    """

    right: list[InstanceResult]
    wrong: list[InstanceResult]
    undecided: list[InstanceResult]
    errors: list[InstanceResult]
    new: list[InstanceResult]
    open: list[InstanceResult]


def score(rows: Sequence[InstanceResult], expected: dict[tuple[str, str], str]) -> Score:
    """Compare results with what is known; a row that is not listed counts as unknown."""
    found = Score([], [], [], [], [], [])
    for row in rows:
        known, decided = expected.get(row.key) in DECIDED, row.status in DECIDED
        if row.status.startswith("error"):
            found.errors.append(row)
        elif known and decided:
            (found.right if expected[row.key] == row.status else found.wrong).append(row)
        elif known:
            found.undecided.append(row)
        else:
            (found.new if decided else found.open).append(row)
    return found


def show_score(rows: Sequence[InstanceResult], expected: dict[tuple[str, str], str], console: Console) -> None:
    """Print the comparison by family, the first folder of the network, and for all.

    Parameters
    ----------
    rows : sequence of InstanceResult
        The results.
    expected : dict
        Known results by network and property.
    console : Console
        Where to print.
    """
    families: dict[str, list[InstanceResult]] = {}
    for row in rows:
        path = Path(row.onnx)
        families.setdefault(path.parent.name if path.is_absolute() else path.parts[0], []).append(row)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("family", overflow="fold")
    for heading in ("instances", "right", "wrong", "undecided", "errors", "new verdicts", "still open", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for family, members in [*(sorted(families.items()) if len(families) > 1 else []), ("all", list(rows))]:
        part = score(members, expected)
        counts = [str(len(kind)) for kind in (part.right, part.wrong, part.undecided, part.errors, part.new, part.open)]
        counts[1] = f"[bold red]{counts[1]}[/]" if part.wrong else counts[1]
        table.add_row(escape(family), str(len(members)), *counts, f"{sum(row.seconds for row in members):.1f}")
    print_table(table, console)
