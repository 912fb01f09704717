"""Files of one record a line, to which records are appended and in which none is ever changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Self, TypeVar

from blocklp.errors import FormatError, ProcessError

T = TypeVar("T")


class Records(Generic[T]):
    """Appends lines to a file, each of which is there in whole once it is written.

    What a run that was killed has left of a last line is cut off.  The file is locked while it is open, where
    the system has locks: two campaigns that wrote to the same file would do everything twice.

    Parameters
    ----------
    path : Path
        The file; made if it is not there.
    parse : callable
        Makes records of the text that is there; raises an error, before anything is changed, if they are not
        what it expects.

    Attributes
    ----------
    found : object
        What ``parse`` returned.
    new : bool
        Whether there was nothing.

    Raises
    ------
    ProcessError
        Another process writes to the file.
    FormatError
        The file is not text in UTF-8.
    OSError
        It cannot be opened.
    """

    def __init__(self, path: Path, parse: Callable[[str], T]) -> None:
        self.path = path
        self._stream = path.open("ab", buffering=0)  # closing leaves nothing to write
        try:
            _lock(self._stream.fileno(), path)
            text = path.read_bytes() if path.is_file() else b""
            whole = text[: text.rfind(b"\n") + 1]
            try:
                self.found: T = parse(whole.decode())
            except UnicodeDecodeError as error:
                raise FormatError(
                    f"{path} is not text in UTF-8 ({error.reason}); name another file"
                ) from error
            self.new = not whole
            if len(whole) < len(text):
                os.truncate(path, len(whole))
        except BaseException:
            self._stream.close()
            raise

    def append(self, line: str) -> None:
        """Write a line, without its end.

        Raises
        ------
        OSError
            They cannot be written.
        """
        data = f"{line}\n".encode()
        while data:
            data = data[self._stream.write(data) :]

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _lock(descriptor: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # as on Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ProcessError(f"another process writes to {path}; wait for it, or name another file") from error
