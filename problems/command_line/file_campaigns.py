"""Commands over many files, one by one, over workers, with a line of JSON appended for every file that is done."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from blocklp.campaigns import Executor, InProcess, Records, Shared, Task, completed, hard_limit
from blocklp.deadline import Deadline
from blocklp.errors import FormatError, OptionError
from blocklp.problems.command_line.options import executor
from blocklp.problems.command_line.process import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_STOPPED, interruptible, until
from blocklp.problems.discrete.together import share
from blocklp.problems.printing import print_table
from blocklp.progress import CampaignProgress

COLUMNS = ("status", "bound", "energy", "weight", "primal", "gap", "nodes", "seconds")
"""Numbers of a line that the table shows, where a command has them."""

OWN = {"workers": None, "ray": None, "results": None, "as_json": True, "quiet": True}
"""What the command gets for each file in place of what it was given."""


def run_files(ctx: typer.Context, command: Callable[..., None], files: Sequence[Path]) -> None:
    """Run a command for each of many files, report, and exit with the worst code.

    Whatever the command prints with ``--json`` for a file alone becomes its line in the results, with ``exit_code`` added; a file
    that has a line already is left alone.

    Parameters
    ----------
    ctx : Context
        That of the command: its options ``--workers``, ``--ray`` and ``--results`` say where files are worked on and recorded.
    command : callable
        The function of the command, which can be imported.
    files : sequence of Path
        The files.

    Raises
    ------
    OptionError
        An option is for all files together.
    FormatError
        The results are not those of such a run.
    ProcessError
        Another process writes to them, or there is no cluster.
    """
    given = dict(ctx.params)
    for name in ("plot", "distributed"):
        if given.get(name):
            raise OptionError(f"--{name} is for files that are solved together; leave it out, or leave --results out")
    deadline = until(given["time_limit"], ctx.obj)
    quiet, as_json, results = given.get("quiet", False), given["as_json"], Path(given["results"])
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    interrupted = False
    name = str(ctx.info_name)
    with Records(results, lambda text: entries_of(text, results, name)) as records, executor(given["workers"], given["ray"]) as where:
        done = records.found
        left = [file for file in dict.fromkeys(map(str, files)) if file not in done]
        calls = _Calls(command, given | {name: value for name, value in OWN.items() if name in given}, where, deadline)
        live = not quiet and not isinstance(where, InProcess)
        try:
            with interruptible(), CampaignProgress() if live else nullcontext() as progress:
                for outcome in completed(where, calls.tasks(left), total=len(left), time_limit=deadline, callback=progress):
                    entry = {"command": name} | (outcome.value or failed(outcome.key, outcome.error, outcome.seconds))
                    records.append(json.dumps(entry, allow_nan=False))
                    done[outcome.key] = entry
                    if not quiet:
                        errors.print(Text(f"{outcome.key}: {entry['status']}, {outcome.seconds:.2f} s"))
        except KeyboardInterrupt:
            interrupted = True
    found = [done[file] for file in dict.fromkeys(map(str, files)) if file in done]
    if as_json:
        typer.echo(json.dumps(found, allow_nan=False, indent=2))
    else:
        _show(found)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    # Those that time was not enough for have no line, and count as stopped.
    codes = [entry["exit_code"] for entry in found] + [EXIT_STOPPED] * (len(found) < len(dict.fromkeys(map(str, files))))
    raise typer.Exit(max(codes, default=0))


@dataclass(frozen=True)
class _Calls:
    """Makes the tasks of files: each begins with its share of the time that is left then."""

    command: Callable[..., None]
    given: dict[str, Any]
    executor: Executor
    deadline: Deadline

    def tasks(self, files: Sequence[str]) -> Iterator[Task]:
        for number, file in enumerate(files):
            left = len(files) - number
            seconds = share(self.deadline, min(self.executor.workers, left), left).left()
            arguments = self.command, self.given, file, self.executor.share_file(Path(file)), max(seconds, 1e-9)
            yield Task(file, solved, arguments, Path(file).name, hard_limit(seconds))


def solved(command: Callable[..., None], given: dict[str, Any], file: str, place: Shared, seconds: float) -> dict[str, Any]:
    """Run a command for one file, and return what it prints as JSON.

    Parameters
    ----------
    command : callable
        Its function.
    given : dict
        Its options, as click has parsed them.
    file : str
        The file as it was named.
    place : Shared
        Its place where this process is.
    seconds : float
        Time for it.

    Raises
    ------
    BlocklpError, OSError
        Those of the command.
    KeyboardInterrupt
        The user ended it.
    """
    app = typer.Typer(add_completion=False)
    app.command()(command)
    parsed = typer.main.get_command(app)
    name = "files" if "files" in given else "file"
    own = given | {name: [place.get()], "time_limit": seconds}
    code, said = 0, io.StringIO()
    with parsed.context_class(parsed, obj=time.perf_counter()), redirect_stdout(said):
        assert parsed.callback is not None
        try:
            parsed.callback(**own)
        except typer.Exit as exit:
            code = exit.exit_code
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    printed = json.loads(said.getvalue())
    entry: dict[str, Any] = printed[0] if isinstance(printed, list) else printed
    return entry | {"file": file, "exit_code": code}


def failed(file: str, error: Exception | None, seconds: float) -> dict[str, Any]:
    """Return the line of a file whose command, or whose process, failed.

    Parameters
    ----------
    file : str
        As it was named.
    error : Exception, optional
        What it failed by.
    seconds : float
        How long it was worked on.

    Returns
    -------
    dict
        An object of strict JSON.
    """
    return {
        "file": file,
        "status": "error",
        "reason": f"{type(error).__name__}: {error}",
        "seconds": seconds,
        "exit_code": EXIT_ERROR,
    }


def entries_of(text: str, path: Path, command: str) -> dict[str, dict[str, Any]]:
    """Read lines of JSON by their files.

    Parameters
    ----------
    text : str
        The lines.
    path : Path
        Where they are from, for errors.
    command : str
        The command whose lines they must be.

    Raises
    ------
    FormatError
        A line is none of them, or of another command.
    """
    found: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
            found[entry["file"]], _, by = entry, entry["exit_code"], entry["command"]
        except (ValueError, TypeError, KeyError):
            raise FormatError(f"{path}, line {number}: not the line of a file that was solved; name another file") from None
        if by != command:
            raise FormatError(f"{path}, line {number}: what blocklp {by} found, and this is {command}; name another file")
    return found


def _show(entries: Sequence[dict[str, Any]]) -> None:
    """Print a table: one line a file."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("instance", overflow="fold")
    columns = [name for name in COLUMNS if any(name in entry for entry in entries)]
    for name in columns:
        table.add_column(name, justify="left" if name == "status" else "right", no_wrap=True)
    for entry in entries:
        cells = [entry.get(name) for name in columns]
        table.add_row(escape(entry["file"]), *("" if c is None else f"{c:.8g}" if isinstance(c, float) else str(c) for c in cells))
    print_table(table, Console())
    for entry in entries:
        if entry["status"] == "error":
            Console(stderr=True, soft_wrap=True, highlight=False).print(Text(f"{entry['file']}: {entry['reason']}", style="bold red"))
