"""Readers of QUBO and max-cut files, and the line tables that all text readers of graphs share.

Formats
-------
sparse
    Biq Mac Library: a header ``n m``, then m lines ``i j q`` (numbered from 1) with one triangle of a symmetric
    matrix Q.  The objective is to minimise ``y' Q y``, so an off-diagonal entry counts twice.
maxcut
    rudy and G-set: a header ``n m`` (a trailing word such as ``J`` is ignored), then m lines ``i j w`` or ``i j``
    (weight 1).  The objective is to maximise the weight of the cut; the ``Qubo`` has its negative as minimum.
"""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from blocklp.errors import FormatError, OptionError
from blocklp.problems.qpbo.arrays import FloatArray, IntArray, first_true, merge_pairs
from blocklp.problems.qpbo.instance import Qubo

Format = Literal["sparse", "maxcut"]

# Float64 sums of coefficients that spread further than this lose the small ones altogether.
LARGEST_SPREAD = 1e15

# Methods square what they add up.
LARGEST = 1e150

GRAPH_SUFFIXES = (".clq", ".col", ".mis", ".mwvc")


@dataclass(frozen=True)
class Lines:
    """Non-blank lines of a text file, split into fields, each with its line number.

    ``ints``, ``floats`` and ``nodes`` parse one column in bulk; only when that fails are the lines searched for the
    faulty one.
    """

    path: Path
    numbers: list[int]
    fields: list[list[str]]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Lines:
        """Read a UTF-8 text file, compressed if its name ends in ``.gz`` or ``.xz``.

        Raises
        ------
        FormatError
            The file is not compressed data although it is named so, is cut off, or is not text.
        """
        file = Path(path)
        kind, unpack = {".gz": ("gzip", gzip.decompress), ".xz": ("xz", lzma.decompress)}.get(file.suffix, ("", bytes))
        try:
            text = unpack(file.read_bytes()).decode("utf-8")
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise FormatError(f"{file}: damaged {kind} data ({error}); fetch the file again") from error
        except UnicodeDecodeError as error:
            raise FormatError(f"{file}: not a text file ({error}); decompress or convert it") from error
        table = [(number, line.split()) for number, line in enumerate(text.split("\n"), start=1)]
        kept = [(number, fields) for number, fields in table if fields]
        return cls(file, [number for number, _ in kept], [fields for _, fields in kept])

    def __len__(self) -> int:
        return len(self.fields)

    def select(self, rows: list[int]) -> Lines:
        """Return the given rows only."""
        return Lines(self.path, [self.numbers[row] for row in rows], [self.fields[row] for row in rows])

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
        texts = [fields[column] for fields in self.fields]
        # int() alone would also take "1_000" and overflow later; a node or count never has more than 18 digits.
        if not all(text.isascii() and text.isdigit() and len(text) <= 18 for text in texts):
            row = next(r for r, t in enumerate(texts) if not (t.isascii() and t.isdigit() and len(t) <= 18))
            raise self.error(row, f"{texts[row]!r} is not a whole number without sign; correct field {column + 1}")
        return np.array(list(map(int, texts)), dtype=np.int64)

    def floats(self, column: int) -> FloatArray:
        """Parse a column of finite numbers of at most ``LARGEST``, whose magnitudes spread at most by ``LARGEST_SPREAD``."""
        texts = [fields[column] for fields in self.fields]
        try:
            values = np.array(list(map(_number, texts)), dtype=np.float64)
        except ValueError:
            row = next(row for row, text in enumerate(texts) if not _is_number(text))
            raise self.error(row, f"{texts[row]!r} is not a number; correct field {column + 1}") from None
        if (bad := first_true(~np.isfinite(values))) is not None:
            raise self.error(bad, f"{texts[bad]} is not finite; state hard constraints apart from the objective")
        self._check_spread(values)
        return values

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


def _number(text: str) -> float:
    # float() alone would also take "1_000".
    return float(text.replace("_", "?"))


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True


def instance_name(path: Path, suffixes: tuple[str, ...]) -> str:
    """Return the file name without ``.gz`` or ``.xz`` and without a known suffix."""
    name = path.name.removesuffix(".gz").removesuffix(".xz")
    return next((name.removesuffix(suffix) for suffix in suffixes if name.endswith(suffix)), name)


def read_qubo(path: str | os.PathLike[str], format: Format | None = None) -> Qubo:
    """Read a Biq Mac ``.sparse`` or a rudy / G-set max-cut file (see the module's text), gzipped or not.

    Parameters
    ----------
    path : path-like
        The file.
    format : {"sparse", "maxcut"}, optional
        By default a name ending in ``.sparse`` (before ``.gz``) is a QUBO and any other a max-cut graph.

    Returns
    -------
    Qubo
        Named after the file.

    Raises
    ------
    FormatError
        The file is truncated or malformed, repeats a pair, numbers a node outside 1 .. n, or holds a coefficient
        that is not finite, or that sums in float64 cannot bear beside the others.
    OptionError
        ``format`` is unknown.
    """
    file = Path(path)
    stated = file.name.removesuffix(".gz")
    if format is None:
        if stated.endswith(GRAPH_SUFFIXES):
            raise FormatError(f"{file}: this suffix names a DIMACS graph; read it with blocklp.problems.mis.read_graph")
        format = "sparse" if stated.endswith(".sparse") else "maxcut"
    if format not in ("sparse", "maxcut"):
        raise OptionError(f"format is {format!r}; give 'sparse', 'maxcut' or None")
    lines = Lines.read(file)
    if not len(lines):
        raise FormatError(f"{file}: the file is empty; its first line must be the header 'n m'")
    header, body = lines.select([0]), lines.select(list(range(1, len(lines))))
    if len(header.fields[0]) not in ((2, 3) if format == "maxcut" else (2,)):
        raise header.error(0, f"not a header of the {format} format; write 'n m'")
    n, m = int(header.ints(0)[0]), int(header.ints(1)[0])
    if n == 0:
        raise header.error(0, "no variable; an instance needs at least one")
    if len(body) != m:
        raise header.error(0, f"{m} entries are announced but {len(body)} follow; the file is cut off or miscounted")
    unweighted = format == "maxcut" and all(len(fields) == 2 for fields in body.fields)
    if not unweighted:
        body.require_width(3, "'i j value'")
    pairs = np.stack([body.nodes(0, n), body.nodes(1, n)], axis=1)
    values = np.ones(m) if unweighted else body.floats(2)
    _refuse_repeated(body, pairs, n)
    name = instance_name(file, (".sparse", ".txt", ".mc"))
    if format == "sparse":
        doubled = np.where(pairs[:, 0] == pairs[:, 1], values, 2 * values)
        return Qubo.from_terms(np.zeros(n), pairs, doubled, name=name)
    if (row := first_true(pairs[:, 0] == pairs[:, 1])) is not None:
        raise body.error(row, "a max-cut graph has no self-loops; for a QUBO matrix pass format='sparse'")
    return Qubo.max_cut(n, pairs, values, name=name)


def _refuse_repeated(body: Lines, pairs: IntArray, n: int) -> None:
    """Refuse a pair that is listed twice: whether it should count once or twice is not for a reader to guess."""
    merged, position = merge_pairs(pairs, n)
    if len(merged) == len(pairs):
        return
    first_row: dict[int, int] = {}
    for row, place in enumerate(position.tolist()):
        if place in first_row:
            raise body.error(row, f"repeats the pair of line {body.numbers[first_row[place]]}; list each pair once")
        first_row[place] = row
