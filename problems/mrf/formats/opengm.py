"""Graphical models of OpenGM, HDF5 files ``.h5``, read by h5py (an optional package).

A group (``gm``, or the only one) holds ``header`` (version, version, variables, factors, kinds, then for each
kind of function its number and how many there are), ``numbers-of-states``, ``factors`` (for each: function,
kind, order, variables) and for each kind used a group ``function-id-N`` with ``indices`` and ``values``,
those of its functions one after the other.  A kind is named by its number in the header.

====== =============================== ====================== ==============================================
number function                        indices                values
====== =============================== ====================== ==============================================
16000  table                           order, labels          entries, the first variable fastest
16001  sparse table                    order, labels, k,      default, k entries
                                       k positions
16003  truncated absolute difference   labels                 threshold, weight
16004  squared difference              labels                 weight
16006  Potts                           labels                 equal, not equal
====== =============================== ====================== ==============================================

The energy is the sum of all factors.

Source: OpenGM 2, github.com/opengm/opengm (graphicalmodel_hdf5.hxx and functions).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from blocklp.errors import FormatError, needed
from blocklp.problems.files import Allowance
from blocklp.problems.formats import InputFile
from blocklp.problems.lines import NODE
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.words import ENTRY, MOST_VARIABLES
from blocklp.problems.qpbo.arrays import FloatArray

SUFFIXES = (".h5", ".hdf5")

SIGNATURE = b"\x89HDF\r\n\x1a\n"


class Numbers:
    """A dataset of numbers that is read in turn."""

    def __init__(self, group: Any, name: str, allowance: Allowance) -> None:
        self.name, self.allowance, self.at = name, allowance, 0
        if name not in group:
            raise FormatError(f"{allowance.path}: no dataset {name}; is it a graphical model of OpenGM?")
        data = group[name]
        allowance.take(8 * int(data.size), f"the dataset {name}")
        self.data = np.asarray(data[()]).reshape(-1)

    def error(self, problem: str) -> FormatError:
        """Build the error that names file, dataset and position."""
        return FormatError(f"{self.allowance.path}, {self.name}, position {self.at}: {problem}")

    def take(self, count: int) -> FloatArray:
        """Return the next numbers."""
        self.at += count
        if self.at > len(self.data):
            raise self.error("the dataset ends too early; the file is damaged")
        return np.asarray(self.data[self.at - count : self.at], dtype=np.float64)

    def integers(self, count: int, least: int = 0, most: float = 2**53) -> list[int]:
        """Return the next whole numbers.

        Parameters
        ----------
        count : int
            How many of them.
        least, most : int and float
            The range, both ends included.

        Raises
        ------
        FormatError
            If one is not whole or out of range, or the dataset ends before.
        """
        found = self.take(count)
        if ((found != np.floor(found)) | (found < least) | (found > most)).any():
            raise self.error(f"a whole number in {least} .. {most:g} should be here; the file is damaged")
        return [int(k) for k in found]


def read(file: InputFile) -> Mrf:
    """Read an energy.

    Raises
    ------
    MissingDependencyError
        h5py is not installed.
    """
    path, allowance = file.path, file.allowance
    with path.open("rb") as stream:
        if stream.read(len(SIGNATURE)) != SIGNATURE:
            raise FormatError(f"{path} is not a file of HDF5; decompress it, or pass the format that it has")
    if path.stat().st_size > allowance.max_bytes:
        raise FormatError(f"{path} holds more than {allowance.max_bytes} bytes; raise max_bytes if it may")
    with needed(f"{path}: models of OpenGM are read by h5py", "opengm"):
        h5py: Any = importlib.import_module("h5py")
    try:
        with h5py.File(path, "r") as opened:
            groups = [group for group in opened.values() if isinstance(group, h5py.Group) and "header" in group]
            if len(groups) != 1:
                raise FormatError(f"{path}: {len(groups)} groups hold a graphical model; one should")
            return _model(groups[0], allowance, file.name)
    except (OSError, KeyError, ValueError) as error:
        raise FormatError(f"{path}: h5py cannot read it ({error}); fetch it again") from error


def _model(group: Any, allowance: Allowance, name: str) -> Mrf:
    header = Numbers(group, "header", allowance)
    header.integers(2)
    n, m, kinds = header.integers(3)
    if n == 0:
        raise header.error("no variable; a model needs at least one")
    functions = [header.integers(2) for _ in range(min(kinds, len(header.data)))]
    allowance.take(NODE * n, f"{n} variables")
    counts = Numbers(group, "numbers-of-states", allowance).integers(n, 1)
    allowance.take(2 * 8 * n * max(counts), f"{n} variables of up to {max(counts)} labels")
    tables = [_functions(group, number, count, allowance) if count else [] for number, count in functions]
    factors = Numbers(group, "factors", allowance)
    found: list[tuple[list[int], FloatArray]] = []
    for _ in range(m):
        function, kind, order = factors.integers(3)
        # Old files name a kind by its place in the header.
        place = next((k for k, (number, _) in enumerate(functions) if number == kind), kind)
        if place >= len(tables) or function >= len(tables[place]):
            raise factors.error("no such function; the file is damaged")
        scope, table = factors.integers(order, 0, n - 1), tables[place][function]
        if list(table.shape) != [counts[i] for i in scope]:
            raise factors.error(f"a function of {list(table.shape)} labels does not fit its variables {scope}; the file is damaged")
        found.append((scope, table))
    allowance.take(sum(8 * table.size for _, table in found), "the tables of all factors")
    return Mrf(counts, found, name=name)


def _table(indices: Numbers, values: Numbers) -> FloatArray:
    shape = _shape(indices, indices.integers(1, 0, MOST_VARIABLES)[0])
    return values.take(math.prod(shape)).reshape(shape, order="F")


def _sparse(indices: Numbers, values: Numbers) -> FloatArray:
    shape = _shape(indices, indices.integers(1, 0, MOST_VARIABLES)[0])
    size = math.prod(shape)
    flat = np.full(size, values.take(1)[0])
    count = indices.integers(1, 0, size)[0]
    flat[indices.integers(count, 0, size - 1)] = values.take(count)
    return flat.reshape(shape, order="F")


def _difference(indices: Numbers, values: Numbers) -> FloatArray:
    rows, columns = _shape(indices, 2)
    threshold, weight = values.take(2)
    return np.asarray(weight * np.minimum(np.abs(np.subtract.outer(np.arange(rows), np.arange(columns))), threshold))


def _squared(indices: Numbers, values: Numbers) -> FloatArray:
    rows, columns = _shape(indices, 2)
    return np.asarray(values.take(1)[0] * np.subtract.outer(np.arange(rows), np.arange(columns)) ** 2.0)


def _potts(indices: Numbers, values: Numbers) -> FloatArray:
    rows, columns = _shape(indices, 2)
    equal, different = values.take(2)
    return np.asarray(np.where(np.equal.outer(np.arange(rows), np.arange(columns)), equal, different))


def _shape(indices: Numbers, order: int) -> list[int]:
    """Return numbers of labels, and account for their table."""
    shape = indices.integers(order, 1)
    indices.allowance.take(ENTRY * math.prod(shape), f"a table of {math.prod(shape)} entries")
    return shape


KINDS: dict[int, Callable[[Numbers, Numbers], FloatArray]] = {
    16000: _table,
    16001: _sparse,
    16003: _difference,
    16004: _squared,
    16006: _potts,
}
"""Functions by their numbers."""


def _functions(group: Any, number: int, count: int, allowance: Allowance) -> list[FloatArray]:
    """Read all functions of a kind."""
    if number not in KINDS:
        raise FormatError(
            f"{allowance.path}: functions of kind {number} are not read ({', '.join(map(str, KINDS))} are); state them as tables"
        )
    name = f"function-id-{number}"
    if name not in group:
        raise FormatError(f"{allowance.path}: no group {name}; the file is damaged")
    indices = Numbers(group[name], "indices", allowance)
    values = Numbers(group[name], "values", allowance)
    return [KINDS[number](indices, values) for _ in range(count)]
