"""Files of any compression, read in pieces up to a stated size."""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blocklp as bl
from blocklp.errors import FormatError, MissingDependencyError, OptionError

MAX_BYTES = 2**30
"""Most bytes that a file may hold once decompressed, unless the caller raises it (``max_bytes=``, ``--max-bytes``)."""

MEMORY = 4
"""What is made of a file may take so many times ``max_bytes`` of memory."""

PIECE = 2**20
"""Bytes that are read at a time."""

COMPRESSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".lzma": "xz", ".zst": "zstd"}
"""Suffixes, in any case, that say nothing about a file's format; what it is compressed with tell its first bytes."""

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x5d\x00\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_OPENERS: dict[str, Callable[..., Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}


class Allowance:
    """What a reader may take of memory and time; it asks before it allocates.

    Parameters
    ----------
    path : Path
        The file, for messages.
    max_bytes : int
        Most bytes that it may hold once decompressed; what is made of it may take ``MEMORY`` times as many.
    time_limit : float or Deadline
        Seconds, or what is left of a deadline.

    Raises
    ------
    OptionError
        If ``max_bytes`` is not a positive integer, or ``time_limit`` not positive.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, time_limit: float | bl.Deadline = math.inf) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1:
            raise OptionError(f"max_bytes is {max_bytes!r}; it must be a positive integer")
        self.path, self.max_bytes, self.taken = path, max_bytes, 0
        self.deadline = bl.Deadline.of(time_limit)

    def take(self, size: int, what: str) -> None:
        """Account for so many bytes of memory.

        Raises
        ------
        FormatError
            If that is too much, before anything is allocated.
        """
        self.taken += size
        if self.taken > MEMORY * self.max_bytes:
            needed = -(-self.taken // MEMORY)
            raise FormatError(
                f"{self.path}: {what} would take {self.taken} bytes of memory, more than {MEMORY} times max_bytes "
                f"({self.max_bytes}); correct the file, or raise max_bytes to {needed}"
            )

    def check(self) -> None:
        """Give up at the deadline.

        Raises
        ------
        TimeLimitError
            If it is over.
        """
        self.deadline.check(f"reading {self.path}")


def format_suffix(path: str | Path) -> str:
    """Return the suffix that tells the format, in lower case and without those of compressions: ``.clq`` for ``a.CLQ.xz``."""
    suffixes = [s.lower() for s in Path(path).suffixes]
    while suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_bytes(path: str | Path, *, max_bytes: int = MAX_BYTES, deadline: bl.Deadline | None = None) -> bytes:
    """Read a file, decompressed if its first bytes are those of gzip, bzip2, xz or (from Python 3.14 on) zstd.

    Parameters
    ----------
    path : str or Path
        The file.
    max_bytes : int
        Most bytes that it may hold once decompressed; no more are ever in memory.
    deadline : Deadline, optional
        When to give up.

    Raises
    ------
    FormatError
        If it is damaged, or larger.
    MissingDependencyError
        If this Python does not read its compression.
    TimeLimitError
        If the deadline is over.
    OSError
        If it cannot be opened.
    """
    path = Path(path)
    with path.open("rb") as file:
        start = file.read(8)
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
    if kind == "zstd":
        try:
            _OPENERS["zstd"] = importlib.import_module("compression.zstd").open
        except ImportError as error:
            raise MissingDependencyError(f"{path}: zstd is read from Python 3.14 on; decompress the file first") from error
    pieces, size = [], 0
    try:
        with path.open("rb") if kind is None else _OPENERS[kind](path, "rb") as file:
            while piece := file.read(PIECE):
                size += len(piece)
                if size > max_bytes:
                    raise FormatError(f"{path} holds more than {max_bytes} bytes once decompressed; raise max_bytes if it may")
                if deadline is not None:
                    deadline.check(f"reading {path}")
                pieces.append(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise FormatError(f"{path}: damaged {kind} data ({error}); fetch the file again") from error
    except OSError as error:
        if kind is None or error.errno is not None:
            raise
        raise FormatError(f"{path}: damaged {kind} data ({error}); fetch the file again") from error
    return b"".join(pieces)


def read_text(path: str | Path, *, max_bytes: int = MAX_BYTES, deadline: bl.Deadline | None = None) -> str:
    """Read a file of text in UTF-8, with or without a byte order mark; see :func:`read_bytes`.

    Parameters
    ----------
    path, max_bytes, deadline
        As in :func:`read_bytes`.

    Raises
    ------
    FormatError
        Also if it is not text.
    """
    try:
        return read_bytes(path, max_bytes=max_bytes, deadline=deadline).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start}); is it another format?") from error
