"""The commands ``blocklp data list`` and ``blocklp data fetch``; what they need is imported when they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blocklp.problems.command_line.options import OneJson, Silent
from blocklp.problems.command_line.process import interruptible

if TYPE_CHECKING:
    from blocklp.problems.datasets.catalogue import DataSet


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Public data sets: list them, fetch them, and check them.", no_args_is_help=True)
    group.command("list")(_list_command)
    group.command("fetch")(_fetch_command)
    app.add_typer(group, name="data")


def _list_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Sets, or folders of theirs, whose files to list with checksums.")
    ] = None,
    as_json: OneJson = False,
) -> None:
    """List the data sets: what they hold, their sizes, licences and sources, and where they go.

    The files of sets that are named are listed as sha256sum writes and reads them; --json adds their sizes and addresses.
    """
    from blocklp.problems.datasets.catalogue import chosen, data_folder, data_sets

    folder = data_folder()
    sets = [chosen(name) for name in names] if names else list(data_sets().values())
    if as_json:
        rows = [
            {
                "name": own.name,
                "about": own.about,
                "files": len(own.files),
                "bytes": own.bytes,
                "present": _present(own, folder),
                "licences": own.licences,
            }
            | ({"contents": [vars(file) for file in own.files]} if names else {})
            for own in sets
        ]
        typer.echo(json.dumps({"folder": str(folder), "sets": rows}, indent=2))
        return
    if names:
        for file in (file for own in sets for file in own.files):
            typer.echo(f"{file.sha256}  {file.path}")
        return
    for own in sets:
        typer.echo(f"{own.name:13} {len(own.files):4} files {own.bytes / 1e6:5.1f} MB, {_present(own, folder)} here: {own.about}")
        folders = sorted({"/".join(file.path.split("/")[:2]) for file in own.files})
        typer.echo(f"{'':13} folders: {', '.join(folders)}")
        for source, licence in own.licences.items():
            typer.echo(f"{'':13} github.com/{source}: {licence}")
    typer.echo(f"folder: {folder} (BLOCKLP_DATA names another one); `blocklp data list NAME` has the files and their checksums")


def _present(own: DataSet, folder: Path) -> int:
    return sum((folder / file.path).is_file() for file in own.files)


def _fetch_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Data sets, or folders such as verification/oval21.")],
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of all data sets instead of BLOCKLP_DATA's.")] = None,
    mirror: Annotated[str | None, typer.Option(metavar="URL", help="Address of a copy of that folder.")] = None,
    quiet: Silent = False,
) -> None:
    """Download public data sets and check them; of networks, write instances.csv and expected.csv.

    Files that are there and have their checksums are left alone, so that it goes on after an interrupt.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from blocklp.problems.datasets.catalogue import chosen
    from blocklp.problems.datasets.download import fetch

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    shown = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
    with interruptible(), shown as progress:
        for name in names:
            wanted = chosen(name)
            task, arrived = progress.add_task(name, total=wanted.bytes), dict[str, int]()

            def told(file: Any, got: int, task: Any = task, arrived: dict[str, int] = arrived) -> None:
                arrived[file.path] = got
                progress.update(task, completed=sum(arrived.values()), description=file.path)

            folder, fetched = fetch(name, to, mirror, told)
            total = len(wanted.files)
            typer.echo(f"{folder}: {total} files, {fetched} downloaded, {total - fetched} there before; all checksums agree")
