"""Files of proofs: lines of JSON, compressed by gzip, the first of which says what they are about."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from blocklp.deadline import Deadline
from blocklp.errors import FormatError
from blocklp.problems.files import MAX_BYTES, read_bytes


def write_lines(path: str | Path, header: Mapping[str, Any], steps: Iterable[Mapping[str, Any]]) -> int:
    """Write a proof; the same proof is always the same bytes.

    Parameters
    ----------
    path : path-like
        The file.
    header : mapping
        ``format``, ``version``, and what the proof is about.
    steps : iterable of mapping
        Its steps.

    Returns
    -------
    int
        Bytes of the file.

    Raises
    ------
    OSError
        It cannot be written.
    """
    with Path(path).open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        for line in itertools.chain([header], steps):
            packed.write(json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n")
    return Path(path).stat().st_size


def header_of(path: str | Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return the header of a file, as far as it has one."""
    try:
        header = json.loads(read_bytes(path, max_bytes=max_bytes).split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def read_lines(
    path: str | Path,
    wanted: tuple[str, int],
    said: str,
    *,
    max_bytes: int = MAX_BYTES,
    deadline: Deadline | None = None,
) -> tuple[dict[str, Any], Iterator[Any]]:
    """Return the header and the steps of a proof.

    Parameters
    ----------
    path : path-like
        The file, compressed or not.
    wanted : (str, int)
        The format and its version.
    said : str
        What such a file is, and how one is made, for messages.
    max_bytes : int
        Most bytes that it may hold once decompressed.
    deadline : Deadline, optional
        When the steps end in a ``TimeLimitError``.

    Raises
    ------
    FormatError
        It is damaged, no proof, or of another version; of a step that is damaged, when its turn comes.
    OSError
        It cannot be read.
    """
    lines = read_bytes(path, max_bytes=max_bytes, deadline=deadline).splitlines()
    try:
        header: dict[str, Any] = json.loads(lines[0])
        kind, version = header["format"], header["version"]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise FormatError(f"{path}: {said}") from error
    if (kind, version) != wanted:
        raise FormatError(
            f"{path}: {kind!r} of version {version!r}, where {wanted[0]!r} of version {wanted[1]} is read; write it again"
        )
    return header, _steps(path, lines[1:], deadline)


def _steps(path: str | Path, lines: list[bytes], deadline: Deadline | None) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        if deadline is not None:
            deadline.check(f"checking step {number} of a proof")
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path}: step {number} is damaged; write it again") from error
