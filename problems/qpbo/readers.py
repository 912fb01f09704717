"""Readers of QUBO and max-cut files, and the line tables that all text readers of graphs share.

Formats
-------
sparse
    Biq Mac Library: a header ``n m``, then m lines ``i j q`` (numbered from 1) with one triangle of a symmetric
    matrix Q.  The objective is to minimise ``y' Q y``, so an off-diagonal entry counts twice.
maxcut
    rudy and G-set: a header ``n m`` (a trailing word such as ``J`` is ignored), then m lines ``i j w`` or ``i j``
    (weight 1).  The objective is to maximise the weight of the cut; the ``Qubo`` has its negative as minimum.
edges
    Lines ``i,j,w`` or ``i,j`` (weight 1) of comma-separated values with nodes numbered from 0, below lines ``# ...`` and a line of
    names, if any: a max-cut graph on the nodes up to the largest.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

import blocklp as bl
from blocklp.errors import FormatError, OptionError
from blocklp.problems.files import COMPRESSIONS, MAX_BYTES, PIECE, Allowance, format_suffix, read_text
from blocklp.problems.qpbo.arrays import FloatArray, IntArray, first_true, merge_pairs
from blocklp.problems.qpbo.instance import Qubo

Format = Literal["sparse", "maxcut", "edges"]

# Float64 sums of coefficients that spread further than this lose the small ones altogether.
LARGEST_SPREAD = 1e15

# Methods square what they add up.
LARGEST = 1e150

SUFFIXES: dict[str, Format] = {
    ".sparse": "sparse",
    **dict.fromkeys((".mc", ".maxcut", ".rud", ".rudy"), "maxcut"),
    ".csv": "edges",
}
"""Suffixes that tell the format of a QUBO or max-cut file."""

DIMACS = (".clq", ".wclq", ".col", ".mis", ".mwis", ".mwvc")
"""Suffixes of DIMACS graphs."""

_GRAPH = "a DIMACS graph; read it with blocklp.problems.mis.read_graph, or blocklp mis"
_FIELD = "a Markov random field; read it with blocklp.problems.mrf.read_mrf, or blocklp mrf"
ELSEWHERE = {
    **dict.fromkeys(DIMACS, _GRAPH),
    **dict.fromkeys((".uai", ".lg", ".wcsp", ".qpbo", ".cfn", ".json", ".opb", ".wbo"), _FIELD),
    **dict.fromkeys((".cnf", ".wcnf", ".erg", ".bep", ".h5", ".hdf5"), _FIELD),
}
"""Suffixes of the formats that other readers know."""

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


def read_qubo(
    path: str | os.PathLike[str],
    format: Format | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    time_limit: float | bl.Deadline = math.inf,
) -> Qubo:
    """Read a matrix of Biq Mac, or a max-cut graph of rudy, G-set or ``.csv`` (see the module's text), of any compression.

    Parameters
    ----------
    path : path-like
        The file.
    format : {"sparse", "maxcut", "edges"}, optional
        By default told by the suffix, in any case and below that of a compression: ``.sparse`` is a QUBO; ``.mc``, ``.maxcut``,
        ``.rud`` and ``.rudy`` are max-cut graphs, ``.csv`` lists their edges.  Under a suffix that says nothing, lines without
        weights or a trailing word in the header tell a max-cut graph; triples alone may be either, and are refused.
    max_bytes : int
        Most bytes that the file may hold once decompressed; the instance may take four times as much memory.
    time_limit : float or Deadline
        Seconds.

    Returns
    -------
    Qubo
        Named after the file.

    Raises
    ------
    FormatError
        The file is truncated, malformed or too large, repeats a pair, numbers a node outside 1 .. n, or holds a coefficient
        that is not finite, or that sums in float64 cannot bear beside the others; or its format is not certain.
    OptionError
        ``format`` is unknown.
    TimeLimitError
        The time is over.
    """
    file = Path(path)
    suffix = format_suffix(file)
    if format is None:
        if suffix in ELSEWHERE:
            raise FormatError(f"{file}: this suffix names {ELSEWHERE[suffix]}")
        format = SUFFIXES.get(suffix)
    elif format not in get_args(Format):
        raise OptionError(f"format is {format!r}; give {', '.join(map(repr, get_args(Format)))} or None")
    lines = Lines.read(file, max_bytes, time_limit)
    if not len(lines):
        raise FormatError(f"{file}: the file is empty; its first line must be the header 'n m'")
    return READERS[format or _told_by_content(lines)](lines, instance_name(file, (*SUFFIXES, ".txt")))


def _told_by_content(lines: Lines) -> Format:
    """The format of a file whose suffix says nothing."""
    width = len(lines.fields[0])
    if width != 3 and (width != 2 or len(lines) == 1 or len(lines.fields[1]) != 2):
        raise FormatError(
            f"{lines.path}: neither suffix nor content tells a matrix from a max-cut graph; pass format='sparse' or 'maxcut' "
            "(--format)"
        )
    return "maxcut"


def _read_sparse(lines: Lines, name: str) -> Qubo:
    """Read a matrix that is summed over ordered pairs."""
    n, pairs, values, _ = _read_entries(lines, "sparse")
    doubled = np.where(pairs[:, 0] == pairs[:, 1], values, 2 * values)
    return Qubo.from_terms(np.zeros(n), pairs, doubled, name=name)


def _read_maxcut(lines: Lines, name: str) -> Qubo:
    """Read a graph below a header."""
    n, pairs, values, body = _read_entries(lines, "maxcut")
    if (row := first_true(pairs[:, 0] == pairs[:, 1])) is not None:
        raise body.error(row, "a max-cut graph has no self-loops; for a QUBO matrix pass format='sparse'")
    return Qubo.max_cut(n, pairs, values, name=name)


def _read_entries(lines: Lines, format: Format) -> tuple[int, IntArray, FloatArray, Lines]:
    """The number of nodes, pairs from 0 on ``(m, 2)``, their values ``(m,)``, and the lines that they stand in."""
    header, body = lines.select([0]), lines.select(list(range(1, len(lines))))
    if len(header.fields[0]) not in ((2, 3) if format == "maxcut" else (2,)):
        raise header.error(0, f"not a header of the {format} format; write 'n m'")
    n, m = int(header.ints(0)[0]), int(header.ints(1)[0])
    if n == 0:
        raise header.error(0, "no variable; an instance needs at least one")
    if len(body) != m:
        raise header.error(0, f"{m} entries are announced but {len(body)} follow; the file is cut off or miscounted")
    body.allowance.take(NODE * n, f"{n} variables")
    unweighted = format == "maxcut" and all(len(fields) == 2 for fields in body.fields)
    if not unweighted:
        body.require_width(3, "'i j value'")
    pairs = np.stack([body.nodes(0, n), body.nodes(1, n)], axis=1)
    values = np.ones(m) if unweighted else body.floats(2)
    body.allowance.check()
    _refuse_repeated(body, pairs, n)
    return n, pairs, values, body


def _read_edges(lines: Lines, name: str) -> Qubo:
    """Read a graph whose edges are lines of comma-separated values."""
    rows = [row for row, fields in enumerate(lines.fields) if not fields[0].startswith("#")]
    table = [[field.strip() for field in " ".join(lines.fields[row]).split(",")] for row in rows]
    body = Lines(lines.allowance, [lines.numbers[row] for row in rows], table)
    if table and table[0][0][:1].isalpha():
        body = body.select(list(range(1, len(body))))
    if not len(body):
        raise FormatError(f"{lines.path}: no edge; write lines 'i,j,weight'")
    unweighted = all(len(fields) == 2 for fields in body.fields)
    if not unweighted:
        body.require_width(3, "'i,j,weight'")
    pairs = np.stack([body.ints(0), body.ints(1)], axis=1)
    n = int(pairs.max()) + 1
    body.allowance.take(NODE * n, f"{n} variables")
    if (row := first_true(pairs[:, 0] == pairs[:, 1])) is not None:
        raise body.error(row, "a max-cut graph has no self-loops")
    values = np.ones(len(pairs)) if unweighted else body.floats(2)
    body.allowance.check()
    _refuse_repeated(body, pairs, n)
    return Qubo.max_cut(n, pairs, values, name=name)


READERS: dict[Format, Callable[[Lines, str], Qubo]] = {"sparse": _read_sparse, "maxcut": _read_maxcut, "edges": _read_edges}
"""Readers of lines by format."""


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
