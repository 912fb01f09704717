"""Download of data sets, by pooch: a file appears under its name only when it is whole and has its checksum."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from blocklp.errors import FormatError, OptionError, needed
from blocklp.problems.datasets.catalogue import DataSet, Remote, chosen, data_folder

SECONDS = 30.0
"""Longest wait for the server to say something."""

ATTEMPTS = 3
"""Further attempts at a file that does not arrive; pauses between them grow."""


class _Told:
    """What pooch takes for a bar of progress: it tells how many bytes of a file are here."""

    def __init__(self, told: Callable[[Remote, int], None], file: Remote) -> None:
        self.told, self.file, self.total, self.got = told, file, 0, 0

    def update(self, more: int) -> None:
        """More bytes have arrived; pooch counts the last piece as a whole one."""
        self.got = min(self.got + more, self.file.bytes)
        self.told(self.file, self.got)

    def reset(self) -> None:
        """Before the end, pooch counts all bytes anew."""
        self.got = 0

    def close(self) -> None:
        """The file is here."""


def fetch(
    name: str,
    folder: Path | None = None,
    mirror: str | None = None,
    told: Callable[[Remote, int], None] = lambda file, got: None,
    attempts: int = ATTEMPTS,
) -> tuple[Path, int]:
    """Download what is missing of a data set; of networks, write ``instances.csv`` and ``expected.csv``.

    Parameters
    ----------
    name : str
        Of a set, or of a folder of one, such as ``verification/oval21``.
    folder : Path, optional
        The folder of all data sets, in place of :func:`data_folder`.
    mirror : str, optional
        Address of a copy of that folder, in place of the public sources.
    told : callable
        Gets a file and how many of its bytes are here, as they arrive.
    attempts : int
        How often a file that does not arrive is tried again.

    Returns
    -------
    Path
        The folder of what was asked for.
    int
        Number of files that were downloaded.

    Raises
    ------
    OptionError
        There is no such set, or the mirror is no address of http or https.
    MissingDependencyError
        pooch is not installed.
    ConnectionError
        The server does not answer, or does not have a file.
    FormatError
        A file is other than the table says.
    """
    wanted, root = chosen(name), folder or data_folder()
    if mirror is not None and not mirror.startswith(("http://", "https://")):
        raise OptionError(f"the mirror is {mirror!r}; give an address that begins with http:// or https://")
    with needed("data sets are fetched by pooch, which is not installed", "data"):
        import pooch
    pooch.get_logger().setLevel("WARNING")
    fetched = 0
    for file in wanted.files:
        path = root / file.path
        if not (path.is_file() and pooch.file_hash(str(path)) == file.sha256):
            _download(pooch, file, path, mirror, told, attempts)
            fetched += 1
        told(file, file.bytes)
    target = root / wanted.name
    if wanted.instances:
        _write_tables(target, wanted)
    return target, fetched


def _download(
    pooch: Any,
    file: Remote,
    path: Path,
    mirror: str | None,
    told: Callable[[Remote, int], None],
    attempts: int,
) -> None:
    """Download one file, in place of what may be there."""
    import requests

    url = file.url if mirror is None else f"{mirror.rstrip('/')}/{quote(file.path)}"
    fetcher = pooch.create(
        path.parent, "", registry={path.name: f"sha256:{file.sha256}"}, urls={path.name: url}, retry_if_failed=attempts
    )
    try:
        fetcher.fetch(path.name, downloader=pooch.HTTPDownloader(progressbar=_Told(told, file), timeout=SECONDS))
    except ValueError as error:  # the checksum, by pooch's own words
        raise FormatError(f"{url}: its SHA-256 is not {file.sha256}; the file was changed on the way or at its source") from error
    except requests.RequestException as error:
        answer = "" if error.response is None else f"the server says {error.response.status_code} {error.response.reason}; "
        raise ConnectionError(f"{url}: {answer or f'{error}; '}try later, or give --mirror of a copy") from error


def _write_tables(folder: Path, wanted: DataSet) -> None:
    """Write the instances of VNN-COMP's form, and what is known of them."""
    rows = [[onnx, vnnlib, f"{seconds:g}"] for onnx, vnnlib, seconds, _ in wanted.instances]
    _write_rows(folder / "instances.csv", rows)
    known = [[onnx, vnnlib, expected] for onnx, vnnlib, _, expected in wanted.instances]
    _write_rows(folder / "expected.csv", [["onnx", "vnnlib", "expected"], *known])


def _write_rows(path: Path, rows: list[list[str]]) -> None:
    part = path.with_name(f"{path.name}.part")
    with part.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)
    part.replace(path)
