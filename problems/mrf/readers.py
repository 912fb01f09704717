"""Readers of UAI, toulbar2 ``.wcsp`` and ``.qpbo`` files, of evidence and of labellings, of any compression.

Formats
-------
uai
    UAI competitions: ``MARKOV`` (or ``BAYES``), the number of variables, their numbers of labels, the number of factors, a line
    ``order i j ..`` for each (variables from 0), then for each factor the number of entries and the table, the last variable fastest.
    Entries are potentials, the energy is minus the sum of their logarithms, and zeros forbid.  In the *log domain* (``.LG``, or
    ``log=True``) entries are the logarithms themselves.
wcsp
    toulbar2: ``name n labels constraints top``, the numbers of labels, then for each constraint ``order i j .. default entries`` and
    its entries ``a b .. cost``; all other labels have the default cost.  Costs of ``top`` or more forbid, and so do those that add up
    to as much.
qpbo
    toulbar2: ``n m``, then m lines ``i j w`` (from 1) of one triangle of a symmetric W.  Minimise ``x' W x``, so an off-diagonal
    entry counts twice; over {0, 1}, or over {1, -1} if n is negative (label 0 is then 1, and diagonal entries are linear terms);
    maximise if m is negative.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

import blocklp as bl
from blocklp.errors import FormatError, OptionError
from blocklp.problems.files import MAX_BYTES, Allowance, format_suffix
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.qpbo.arrays import FloatArray, IntArray
from blocklp.problems.qpbo.readers import LARGEST, NODE, Lines, instance_name

Format = Literal["uai", "wcsp", "qpbo"]

SUFFIXES: dict[str, Format] = {".uai": "uai", ".lg": "uai", ".wcsp": "wcsp", ".qpbo": "qpbo"}

MOST_VARIABLES = 32
"""Variables of a factor at most: axes of an array."""

ENTRY = 24
"""Bytes of memory that an entry of a table takes at most."""

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
            if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
                raise self.error(position, f"not a whole number; {what} should be here")
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


def read_mrf(
    path: str | os.PathLike[str],
    format: Format | None = None,
    log: bool | None = None,
    evidence: str | os.PathLike[str] | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    time_limit: float | bl.Deadline = math.inf,
) -> Mrf:
    """Read a UAI, ``.wcsp`` or ``.qpbo`` file (see the module's text).

    Parameters
    ----------
    path : path-like
        The file.
    format : {"uai", "wcsp", "qpbo"}, optional
        By default told by the suffix, in any case and below that of a compression.
    log : bool, optional
        Whether the tables of a UAI file are in the log domain; by default if its suffix is ``.LG``.
    evidence : path-like, optional
        A ``.uai.evid`` file: variables whose labels are given.
    max_bytes : int
        Most bytes that a file may hold once decompressed; the tables may take four times as much memory.
    time_limit : float or Deadline
        Seconds.

    Returns
    -------
    Mrf
        Named after the file.

    Raises
    ------
    FormatError
        The file is malformed, cut off, too large or of a kind that is not read.
    OptionError
        ``format`` is unknown, or ``log`` is given for a file that is not UAI.
    ScopeError
        The evidence does not fit.
    TimeLimitError
        The time is over.
    """
    file, deadline = Path(path), bl.Deadline.of(time_limit)
    suffix = format_suffix(file)
    if format is None:
        if suffix not in SUFFIXES:
            known = ", ".join(SUFFIXES)
            raise FormatError(f"{file}: the suffix tells no format ({known} do); pass format='uai', 'wcsp' or 'qpbo' (--format)")
        format = SUFFIXES[suffix]
    if format not in ("uai", "wcsp", "qpbo"):
        raise OptionError(f"format is {format!r}; give 'uai', 'wcsp', 'qpbo' or None")
    if log is not None and format != "uai":
        raise OptionError(f"log={log} is for UAI files, and {file} is read as {format!r}; leave it out")
    words, name = Words.read(file, max_bytes, deadline), instance_name(file, (".uai.lg", *SUFFIXES))
    if format == "uai":
        mrf = _uai(words, name, suffix == ".lg" if log is None else log)
    else:
        mrf = _wcsp(words, name) if format == "wcsp" else _qpbo(words, name)
    words.end()
    return mrf if evidence is None else mrf.condition(read_evidence(evidence, max_bytes=max_bytes, time_limit=deadline))


def _uai(words: Words, name: str, log: bool) -> Mrf:
    if words.word("the kind of network") not in ("MARKOV", "BAYES"):
        raise words.error(0, "a UAI file begins with MARKOV or BAYES")
    n = words.integer("the number of variables", least=1)
    counts = _counts(words, n)
    scopes = []
    for _ in range(words.integer("the number of factors")):
        begin = words.at
        order = words.integer("the number of variables of a factor", most=MOST_VARIABLES)
        scopes.append(words.integers(order, "a variable of a factor", most=n - 1))
        if len(set(scopes[-1])) < order:
            raise words.error(begin, "this factor names a variable twice; name each once")
    factors = []
    for scope in scopes:
        shape = [counts[i] for i in scope]
        begin, size = words.at, _table_size(words, shape)
        if words.integer("the size of a table") != size:
            raise words.error(begin, f"the variables {scope} of this factor have {size} joint labels; correct the size of its table")
        values = words.numbers(size, "an entry of a table")
        wrong = (values == np.inf) if log else (values < 0) | (values == np.inf)
        if wrong.any():
            allowed = (
                "a logarithm that is finite or -inf" if log else "a potential that is finite and not negative (or pass log=True)"
            )
            raise words.error(words.at - size + int(wrong.argmax()), f"give {allowed}")
        with np.errstate(divide="ignore"):
            energies = -(values if log else np.log(values))
        if not scope and np.isinf(energies).any():
            raise words.error(words.at - 1, "this factor without variables forbids every labelling; leave it out")
        factors.append((scope, energies.reshape(shape)))
    return Mrf(counts, factors, name=name)


def _counts(words: Words, n: int, most: int | None = None) -> list[int]:
    """Numbers of labels."""
    counts = words.integers(n, "a number of labels", least=1, most=most)
    # Methods keep the labels of all variables in an array.
    words.allowance.take(NODE * n + 2 * 8 * n * max(counts), f"{n} variables of up to {max(counts)} labels")
    return counts


def _table_size(words: Words, shape: list[int]) -> int:
    """Entries of a table."""
    size = math.prod(shape)
    try:
        words.allowance.take(ENTRY * size, f"a table of {size} entries")
    except FormatError as error:
        raise words.error(words.at - 1, f"a table of {size} entries is too large; split the factor, or raise max_bytes") from error
    return size


def _wcsp(words: Words, given: str) -> Mrf:
    words.word("the name of the problem")
    n = words.integer("the number of variables", least=1)
    largest = words.integer("the largest number of labels", least=1)
    constraints = words.integer("the number of constraints")
    top = words.integer("the upper bound", least=1)
    counts = _counts(words, n, largest)
    factors, constant = [], 0

    def cost(what: str) -> float:
        value = words.integer(what)
        if value < top and value > EXACT:
            raise words.error(words.at - 1, f"costs above {EXACT} are rounded in float64; divide all of them by a constant")
        return float(value) if value < top else math.inf

    for _ in range(constraints):
        order = words.integer("the number of variables of a constraint (shared tables are not read)", most=MOST_VARIABLES)
        begin = words.at
        scope = words.integers(order, "a variable of a constraint", most=n - 1)
        if len(set(scope)) < order:
            raise words.error(begin, "this constraint names a variable twice; name each once")
        default = cost("the default cost (global constraints, marked -1, are not read)")
        shape = [counts[i] for i in scope]
        _table_size(words, shape)
        table = np.full(shape, default)
        entries = words.integer("the number of entries of a constraint")
        for _ in range(entries):
            labels = [words.integer("a label", most=size - 1) for size in shape]
            table[tuple(labels)] = cost("a cost")
        if order:
            factors.append((scope, table))
        else:
            # All labellings have a constant of the upper bound or more.
            constant += top if np.isinf(table) else int(table)
    most = constant + sum(int(table[np.isfinite(table)].max(initial=0.0)) for _, table in factors)
    if most >= top and top > EXACT:
        raise FormatError(
            f"{words.path}: costs add up to the upper bound {top}, which float64 does not hold exactly; "
            "divide all of them by a constant"
        )
    return Mrf(counts, factors, float(constant), given, float(top) if most >= top else math.inf)


def _qpbo(words: Words, name: str) -> Mrf:
    begin = words.at
    n, m = words.integers(2, "the number of variables or of coefficients", least=-(10**9))
    if n == 0:
        raise words.error(begin, "no variable; an instance needs at least one")
    words.allowance.take((NODE + 2 * 8 * 2) * abs(n), f"{abs(n)} variables")
    # Label 0 is x = 0 over {0, 1}, and x = 1 over {1, -1}.
    values, sign = np.array([0.0, 1.0] if n > 0 else [1.0, -1.0]), 1.0 if m >= 0 else -1.0
    factors: list[tuple[list[int], FloatArray]] = []
    for _ in range(abs(m)):
        i, j = (k - 1 for k in words.integers(2, "a variable", least=1, most=abs(n)))
        w = sign * words.numbers(1, "a coefficient")
        if not np.isfinite(w).all() or abs(w[0]) > LARGEST:
            raise words.error(words.at - 1, f"a coefficient must be finite, and at most {LARGEST:g}")
        factors.append(([i], w * values) if i == j else ([i, j], 2 * w * np.outer(values, values)))
    return Mrf(np.full(abs(n), 2), factors, name=name)


def read_evidence(
    path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES, time_limit: float | bl.Deadline = math.inf
) -> dict[int, int]:
    """Read a ``.uai.evid`` file: ``k`` and k pairs ``variable label``, in older files after a ``1``, the number of samples.

    Parameters
    ----------
    path, max_bytes, time_limit
        As in :func:`read_mrf`.

    Returns
    -------
    dict
        Variables and their labels.

    Raises
    ------
    FormatError
        The file is malformed, holds several samples, or gives a variable twice.
    """
    words = Words.read(path, max_bytes, time_limit)
    older = len(words.texts) % 2 == 0
    if older and words.integer("the number of samples", most=1) == 0:
        return {}
    count = words.integer("the number of observed variables")
    pairs = words.integers(2 * count, "a variable or its label")
    words.end()
    found = dict(zip(pairs[::2], pairs[1::2], strict=True))
    if len(found) < count:
        raise words.error(0, "a variable is observed twice; name each once")
    return found


def read_labelling(
    path: str | os.PathLike[str], mrf: Mrf, *, max_bytes: int = MAX_BYTES, time_limit: float | bl.Deadline = math.inf
) -> IntArray:
    """Read a ``.MAP`` file, ``MAP`` and then ``n x_0 .. x_(n-1)``: ``(n,)`` int64.

    Parameters
    ----------
    path, max_bytes, time_limit
        As in :func:`read_mrf`.
    mrf : Mrf
        The instance that it labels.

    Raises
    ------
    FormatError
        The file is malformed or does not fit the instance.
    """
    words = Words.read(path, max_bytes, time_limit)
    if words.word("MAP") not in ("MAP", "MPE"):
        raise words.error(0, "a labelling begins with MAP")
    words.integer("the number of variables", least=mrf.n, most=mrf.n)
    labels = [words.integer("a label", most=int(size) - 1) for size in mrf.counts]
    words.end()
    return np.array(labels, dtype=np.int64)
