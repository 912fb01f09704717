"""Download of public benchmark sets, with checksums.

``sets.json`` names for each set its files, where they are below a base address, their bytes and SHA-256, and its instances.
The sets are those of VNN-COMP 2021 (stanleybak/vnncomp2021 on GitHub); they are not part of this package.
"""

from __future__ import annotations

import csv
import hashlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from blocklp.errors import FormatError, OptionError

CHUNK = 1 << 16
SECONDS = 30.0
"""Longest wait for the server to say something."""
PAUSES = (0.5, 2.0, 5.0)
"""Seconds before each further attempt."""


@dataclass(frozen=True)
class Remote:
    """A file of a set: where it goes, where it comes from below the base address, and what it must be."""

    path: str
    source: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class BenchmarkSet:
    """A benchmark set; an instance is network, property, seconds and the known result."""

    name: str
    about: str
    files: tuple[Remote, ...]
    instances: tuple[tuple[str, str, float, str], ...]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)


def benchmark_sets() -> tuple[str, dict[str, BenchmarkSet]]:
    """Return the base address and all sets by name."""
    table = json.loads(Path(__file__).with_name("sets.json").read_text(encoding="utf-8"))
    return table["base"], {
        name: BenchmarkSet(
            name, found["about"], tuple(Remote(*row) for row in found["files"]), tuple(tuple(row) for row in found["instances"])
        )
        for name, found in table["sets"].items()
    }


def fetch_set(
    name: str,
    folder: Path,
    base: str | None = None,
    told: Callable[[Remote, int], None] = lambda file, got: None,
    pauses: tuple[float, ...] = PAUSES,
) -> tuple[Path, int]:
    """Download what is missing of a set, and write its ``instances.csv`` and ``expected.csv``.

    A file appears under its name only when it is whole and has its checksum; what was cut off is taken up again.

    Parameters
    ----------
    name : str
        Of the set.
    folder : Path
        The set becomes a folder in it.
    base : str, optional
        Address in place of the public one.
    told : callable
        Gets a file and how many of its bytes are here, as they arrive.
    pauses : tuple of float
        Seconds before each further attempt.

    Returns
    -------
    Path
        The folder of the set.
    int
        Number of files that were downloaded.

    Raises
    ------
    OptionError
        There is no such set.
    ConnectionError
        The server does not answer, does not have a file, or breaks off every time.
    FormatError
        A file is other than the table says.
    """
    public, sets = benchmark_sets()
    if name not in sets:
        raise OptionError(f"unknown set {name!r}; choose one of {', '.join(sets)}")
    root, fetched = folder / name, 0
    address = (base or public).rstrip("/")
    for file in sets[name].files:
        target = root / file.path
        if not (target.is_file() and target.stat().st_size == file.bytes and checksum(target) == file.sha256):
            _fetch(file, f"{address}/{quote(file.source)}", target, told, pauses)
            fetched += 1
        told(file, file.bytes)
    _write_rows(root / "instances.csv", [[onnx, vnnlib, f"{seconds:g}"] for onnx, vnnlib, seconds, _ in sets[name].instances])
    known = [[onnx, vnnlib, expected] for onnx, vnnlib, _, expected in sets[name].instances]
    _write_rows(root / "expected.csv", [["onnx", "vnnlib", "expected"], *known])
    return root, fetched


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_rows(path: Path, rows: list[list[str]]) -> None:
    part = path.with_name(f"{path.name}.part")
    with part.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)
    part.replace(path)


def _fetch(file: Remote, url: str, target: Path, told: Callable[[Remote, int], None], pauses: tuple[float, ...]) -> None:
    """Download a file, trying again after failures that may pass."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    problem: OSError | FormatError
    for pause in (*pauses, None):
        try:
            _continue(file, url, part, told)
            if (found := checksum(part)) == file.sha256:
                part.replace(target)
                return
            part.unlink()
            problem = FormatError(f"{url}: SHA-256 is {found}, not {file.sha256}; the file was changed on the way or at its source")
        except urllib.error.HTTPError as error:
            problem = ConnectionError(f"{url}: the server says {error.code} {error.reason}; try later, or give --base-url of a copy")
            error.close()
            if error.code == 416:  # what is here is longer than what is there
                part.unlink(missing_ok=True)
            elif error.code < 500 and error.code not in (408, 429):
                break
        except (http.client.HTTPException, urllib.error.URLError, ConnectionError, TimeoutError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error or type(error).__name__
            problem = ConnectionError(f"{url}: {reason}; try again, what has arrived is kept")
        if pause is not None:
            time.sleep(pause)
    raise problem


def _continue(file: Remote, url: str, part: Path, told: Callable[[Remote, int], None]) -> None:
    """Append to ``part`` what is missing of it; IncompleteRead if the server ends too early."""
    have = part.stat().st_size if part.exists() else 0
    if have >= file.bytes:
        if have == file.bytes:
            return
        part.unlink()
        have = 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        # A server that does not know ranges sends everything again, with 200 instead of 206.
        if response.status != 206:
            have = 0
        with part.open("ab" if have else "wb") as stream:
            while chunk := response.read(CHUNK):
                stream.write(chunk)
                have += len(chunk)
                told(file, have)
                if have > file.bytes:
                    break
    if have < file.bytes:
        raise http.client.IncompleteRead(b"", file.bytes - have)
