"""The words of a text file, and what all readers of energies check: numbers of labels, scopes and sizes of tables."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import blocklp as bl
from blocklp.errors import FormatError
from blocklp.problems.files import MAX_BYTES, Allowance
from blocklp.problems.lines import NODE, Lines
from blocklp.problems.qpbo.arrays import FloatArray

MOST_VARIABLES = 32
"""Variables of a factor at most: axes of an array."""

ENTRY = 24
"""Bytes of memory that an entry of a table takes at most."""

DIGITS = 18
"""Digits of a whole number at most, so that int64 holds it."""

EXACT = 2**53
"""Whole numbers up to this are floats without rounding."""


@dataclass
class Words:
    """The words of a text file one after the other, each with its line."""

    allowance: Allowance
    texts: list[str]
    lines: list[int]
    at: int = 0

    @classmethod
    def read(cls, path: str | os.PathLike[str], max_bytes: int = MAX_BYTES, time_limit: float | bl.Deadline = math.inf) -> Words:
        """Read a file; raises as :meth:`blocklp.problems.qpbo.readers.Lines.read`, also if it is empty.

        Parameters
        ----------
        path, max_bytes, time_limit
            As in :meth:`blocklp.problems.qpbo.readers.Lines.read`.
        """
        lines = Lines.read(path, max_bytes, time_limit)
        if not len(lines):
            raise FormatError(f"{lines.path}: the file is empty; fetch it again")
        return cls.of(lines)

    @classmethod
    def of(cls, lines: Lines) -> Words:
        """Return the words of some lines."""
        texts = [word for fields in lines.fields for word in fields]
        return cls(lines.allowance, texts, np.repeat(lines.numbers, [len(fields) for fields in lines.fields]).tolist())

    @property
    def path(self) -> Path:
        """The file."""
        return self.allowance.path

    def error(self, position: int, problem: str) -> FormatError:
        """Build the error that names file, line and word."""
        return FormatError(f"{self.path}, line {self.lines[position]}, word {self.texts[position]!r}: {problem}")

    def take(self, count: int, what: str) -> range:
        """Return the positions of the next ``count`` words."""
        self.allowance.check()
        begin, end = self.at, self.at + count
        if end > len(self.texts):
            raise FormatError(
                f"{self.path}, line {self.lines[-1]}: the file ends where {what} should follow ({end - len(self.texts)} more); "
                "it is cut off or miscounted"
            )
        self.at = end
        return range(begin, end)

    def word(self, what: str) -> str:
        """Return the next word."""
        return self.texts[self.take(1, what)[0]]

    def integers(self, count: int, what: str, least: int = 0, most: int | None = None) -> list[int]:
        """Return the next integers; each must be in ``least .. most``.

        Parameters
        ----------
        count : int
            How many of them.
        what : str
            Their name, for messages.
        least, most : int
            The range; None for no upper end.
        """
        found = []
        for position in self.take(count, what):
            text = self.texts[position]
            digits = text.removeprefix("-")
            if not (digits.isascii() and digits.isdigit()):
                raise self.error(position, f"not a whole number; {what} should be here")
            if len(digits) > DIGITS:
                raise self.error(position, f"{len(digits)} digits are too many; {what} may have {DIGITS}")
            value = int(text)
            if value < least or (most is not None and value > most):
                limit = f"at least {least}" if most is None else f"in {least} .. {most}"
                raise self.error(position, f"{what} must be {limit}")
            found.append(value)
        return found

    def integer(self, what: str, least: int = 0, most: int | None = None) -> int:
        """Return the next integer.

        Parameters
        ----------
        what, least, most
            As in :meth:`integers`.
        """
        return self.integers(1, what, least, most)[0]

    def numbers(self, count: int, what: str) -> FloatArray:
        """Return the next numbers, infinities included."""
        positions = self.take(count, what)
        texts = self.texts[positions.start : positions.stop]
        try:
            values = np.array(list(map(float, texts)), dtype=np.float64)
            bad = np.isnan(values) | np.array(["_" in text for text in texts], dtype=bool)
        except ValueError:
            bad = np.array([not _is_float(text) for text in texts])
        if bad.any():
            raise self.error(positions[int(bad.argmax())], f"not a number; {what} should be here")
        return values

    def end(self) -> None:
        """Refuse what follows."""
        if self.at < len(self.texts):
            raise self.error(self.at, "the file should end before this word; correct the numbers announced above")


def _is_float(text: str) -> bool:
    try:
        return "_" not in text and not np.isnan(float(text))
    except ValueError:
        return False


def label_counts(words: Words, n: int, most: int | None = None, intervals: bool = False) -> list[int]:
    """Read numbers of labels.

    Parameters
    ----------
    words : Words
    n : int
        The number of variables.
    most : int, optional
        Labels of a variable at most.
    intervals : bool
        Whether a negative number stands for the labels of an interval.
    """
    if intervals and any(text.startswith("-") for text in words.texts[words.at : words.at + n]):
        counts = [abs(count) for count in words.integers(n, "a number of labels", -(most or 1), most)]
        if 0 in counts:
            raise words.error(words.at - n + counts.index(0), "a number of labels is not 0")
    else:
        counts = words.integers(n, "a number of labels", least=1, most=most)
    # Methods keep the labels of all variables in an array.
    words.allowance.take(NODE * n + 2 * 8 * n * max(counts), f"{n} variables of up to {max(counts)} labels")
    return counts


def table_size(words: Words, shape: list[int]) -> int:
    """Entries of a table."""
    size = math.prod(shape)
    try:
        words.allowance.take(ENTRY * size, f"a table of {size} entries")
    except FormatError as error:
        raise words.error(words.at - 1, f"a table of {size} entries is too large; split the factor, or raise max_bytes") from error
    return size
