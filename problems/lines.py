"""Text files as lines of fields, each with its number, and what all readers of instances share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import blocklp as bl
from blocklp.errors import FormatError
from blocklp.problems.files import COMPRESSIONS, MAX_BYTES, PIECE, Allowance, read_text
from blocklp.problems.qpbo.arrays import FloatArray, IntArray, first_true

# Float64 sums of coefficients that spread further than this lose the small ones altogether.
LARGEST_SPREAD = 1e15

# Methods square what they add up.
LARGEST = 1e150

WORD, NODE = 100, 400
"""Bytes of memory that a word of a text file takes, and those of a variable in an instance and its solvers, both at most."""

STEP = 2**16
"""Lines or words between two looks at the clock."""


@dataclass(frozen=True)
class Lines:
    """Non-blank lines of a text file, split into fields, each with its line number.

    ``ints``, ``floats`` and ``nodes`` parse one column in bulk; only when that fails are the lines searched for the
    faulty one.
    """

    allowance: Allowance
    numbers: list[int]
    fields: list[list[str]]

    @classmethod
    def read(cls, path: str | os.PathLike[str], max_bytes: int = MAX_BYTES, time_limit: float | bl.Deadline = math.inf) -> Lines:
        """Read a UTF-8 text file of any compression.

        Parameters
        ----------
        path : path-like
            The file.
        max_bytes : int
            Memory that its text and lines may take.
        time_limit : float or Deadline
            Seconds for reading.

        Raises
        ------
        FormatError, OSError, TimeLimitError
            As :func:`blocklp.problems.files.read_text`; also if its lines would take too much memory.
        """
        allowance = Allowance(Path(path), max_bytes, time_limit)
        text = read_text(allowance.path, max_bytes=max_bytes, deadline=allowance.deadline)
        allowance.take(WORD * _pieces(text), "its words and lines")
        numbers: list[int] = []
        table: list[list[str]] = []
        begin = line_number = 0
        while begin <= len(text):
            # A piece ends where a line does.
            stop = text.find("\n", begin + PIECE)
            stop = len(text) if stop < 0 else stop
            allowance.check()
            for line in text[begin:stop].split("\n"):
                line_number += 1
                if fields := line.split():
                    numbers.append(line_number)
                    table.append(fields)
            begin = stop + 1
        return cls(allowance, numbers, table)

    @property
    def path(self) -> Path:
        """The file."""
        return self.allowance.path

    def __len__(self) -> int:
        return len(self.fields)

    def select(self, rows: list[int]) -> Lines:
        """Return the given rows only."""
        return Lines(self.allowance, [self.numbers[row] for row in rows], [self.fields[row] for row in rows])

    def error(self, row: int, problem: str) -> FormatError:
        """Build the error that names this file, the line of ``row`` and its text."""
        return FormatError(f"{self.path}, line {self.numbers[row]} ({' '.join(self.fields[row])!r}): {problem}")

    def require_width(self, width: int, form: str) -> None:
        """Refuse lines that have not ``width`` fields; ``form`` says what they should look like."""
        for row, fields in enumerate(self.fields):
            if len(fields) != width:
                raise self.error(row, f"{len(fields)} fields where {width} are needed; write {form}")

    def ints(self, column: int) -> IntArray:
        """Parse a column of plain decimal integers."""
        return np.array(self._parsed(column, _whole, "a whole number without sign"), dtype=np.int64)

    def floats(self, column: int) -> FloatArray:
        """Parse a column of finite numbers of at most ``LARGEST``, whose magnitudes spread at most by ``LARGEST_SPREAD``."""
        values = np.array(self._parsed(column, _number, "a number"), dtype=np.float64)
        if (bad := first_true(~np.isfinite(values))) is not None:
            text = self.fields[bad][column]
            raise self.error(bad, f"{text} is not finite; state hard constraints apart from the objective")
        self._check_spread(values)
        return values

    def _parsed(self, column: int, parse: Callable[[str], Any], what: str) -> list[Any]:
        """Parse a column; an error names the first line where that fails."""
        texts = [fields[column] for fields in self.fields]
        found: list[Any] = []
        for begin in range(0, len(texts), STEP):
            self.allowance.check()
            try:
                found += map(parse, texts[begin : begin + STEP])
            except ValueError:
                text = texts[len(found)]
                raise self.error(len(found), f"{text!r} is not {what}; correct field {column + 1}") from None
        return found

    def _check_spread(self, values: FloatArray) -> None:
        magnitudes = np.abs(values)
        if not magnitudes.any():
            return
        row, smallest = int(magnitudes.argmax()), float(magnitudes[magnitudes > 0].min())
        # Relative to each other only: sums of numbers that are all large are as good as sums of small ones.
        if magnitudes[row] > LARGEST_SPREAD * smallest:
            raise self.error(
                row,
                f"magnitude {magnitudes[row]:g} is beyond {LARGEST_SPREAD:g} times the smallest one ({smallest:g}), which sums in "
                "float64 would lose; state big-M entries as hard constraints, or drop the small ones",
            )
        if magnitudes[row] > LARGEST:
            raise self.error(
                row, f"magnitude {magnitudes[row]:g} is beyond {LARGEST:g}, so squares and sums of squares overflow; rescale the file"
            )

    def nodes(self, column: int, n: int) -> IntArray:
        """Parse a column of nodes numbered 1 .. n into 0 .. n-1."""
        values = self.ints(column)
        if (row := first_true((values < 1) | (values > n))) is not None:
            raise self.error(row, f"node {values[row]} is outside 1 .. {n}; correct it or the header")
        return values - 1


def _pieces(text: str) -> int:
    """Number of words and of lines of a text."""
    lines = words = 0
    for begin in range(0, len(text), PIECE):
        part = text[begin : begin + PIECE]
        blank = np.frombuffer(part.encode(), dtype=np.uint8) <= ord(" ")
        # A word that goes on from one piece to the next counts twice.
        words += 1 + int(np.count_nonzero(blank[:-1] > blank[1:]))
        lines += part.count("\n")
    return words + lines


def _whole(text: str) -> int:
    # int() alone would also take "1_000" and overflow later; a node or count never has more than 18 digits.
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    # float() alone would also take "1_000".
    return float(text.replace("_", "?"))


def instance_name(path: Path, suffixes: Iterable[str]) -> str:
    """Return the file name without the suffixes of compressions, and without a known suffix of a format, in any case."""
    name = path.name
    while Path(name).suffix.lower() in COMPRESSIONS:
        name = Path(name).stem
    known = next((s for s in suffixes if name.lower().endswith(s) and len(name) > len(s)), "")
    return name[: len(name) - len(known)]
