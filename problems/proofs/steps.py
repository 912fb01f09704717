"""The steps that proofs consist of, and how they are written as JSON.

A proof is the sequence of the steps of a tree, each before those below it: a :class:`Branch` has as many subtrees as it has cases, a
:class:`Split` as many as it has parts, an :class:`Eliminate` one, a :class:`Decomposition` one where it removes labels, and the
others are leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blocklp.errors import FormatError

Clique: TypeAlias = tuple[tuple[int, ...], float]
"""Variables, and a price."""


@dataclass(frozen=True)
class Branch:
    """Cases of a variable; together they hold all its labels.

    Attributes
    ----------
    variable : int
        The variable.
    cases : tuple of tuple of int
        Labels of each case.
    """

    variable: int
    cases: tuple[tuple[int, ...], ...]

    @property
    def below(self) -> int:
        """Number of subtrees."""
        return len(self.cases)


@dataclass(frozen=True)
class Split:
    """Parts of the variables that no table connects: the minimum is the sum of theirs."""

    parts: tuple[tuple[int, ...], ...]

    @property
    def below(self) -> int:
        """Number of subtrees."""
        return len(self.parts)


@dataclass(frozen=True)
class Eliminate:
    """Variables that are minimised out, one after the other, by adding up all tables that name them."""

    variables: tuple[int, ...]

    below = 1


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of a decomposition with equally many variables, and the tables that they take over.

    Attributes
    ----------
    variables : numpy.ndarray, shape (parts, k), int64
        Variables of each.
    tables : tuple of (tuple of int, numpy.ndarray)
        Positions among these, and an array ``(parts, *labels)`` float64 over the labels that the variables there are left with, NaN
        (null in files) for entries that are infinite.
    """

    variables: NDArray[np.int64]
    tables: tuple[tuple[tuple[int, ...], NDArray[np.float64]], ...]


@dataclass(frozen=True, eq=False)
class Decomposition:
    """A lower bound by Lagrangean duality; without parts and cliques the sum of least entries.

    A leaf; or where labels are removed, a bound of the labellings that have one of them, above a step for all others.

    Attributes
    ----------
    parts : tuple of Parts
        The parts.
    cliques : tuple of (tuple of int, float)
        Variables of two labels, and the price for choosing the second label of more than one.
    removed : tuple of (int, tuple of int)
        Variables, and labels that are bounded here.
    """

    parts: tuple[Parts, ...] = ()
    cliques: tuple[Clique, ...] = ()
    removed: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def below(self) -> int:
        """Number of subtrees."""
        return int(bool(self.removed))


@dataclass(frozen=True)
class Semidefinite:
    """A leaf: a lower bound of a quadratic function of variables of two labels, by a positive semidefinite matrix.

    Attributes
    ----------
    diagonal : tuple of float
        Multipliers of the squares of spins: of the constant one, then of the variables in ascending order.
    triangles : tuple of (int, int, int, int, int, float)
        Nodes i < j < k, where 0 is the constant and variables count from 1; two signs; and the price of each inequality.
    penalties : tuple of (int, int, float)
        Nodes i < j, and what stands for the infinite entries of their table.
    """

    diagonal: tuple[float, ...]
    triangles: tuple[tuple[int, int, int, int, int, float], ...]
    penalties: tuple[tuple[int, int, float], ...] = ()

    below = 0


Step: TypeAlias = Branch | Split | Eliminate | Decomposition | Semidefinite


def to_json(step: Step) -> dict[str, Any]:
    """Return what a file says of a step."""
    if isinstance(step, Branch):
        return {"branch": step.variable, "cases": [list(case) for case in step.cases]}
    if isinstance(step, Split):
        return {"split": [list(part) for part in step.parts]}
    if isinstance(step, Eliminate):
        return {"eliminate": list(step.variables)}
    if isinstance(step, Semidefinite):
        penalties = {"penalties": [list(p) for p in step.penalties]} if step.penalties else {}
        return {"diagonal": list(step.diagonal), "triangles": [list(t) for t in step.triangles]} | penalties
    parts = [
        {"variables": group.variables.tolist(), "tables": [[list(axes), _numbers(values)] for axes, values in group.tables]}
        for group in step.parts
    ]
    stated: dict[str, Any] = {"parts": parts}
    if step.cliques:
        stated["cliques"] = [[list(variables), price] for variables, price in step.cliques]
    if step.removed:
        stated["removed"] = [[v, list(labels)] for v, labels in step.removed]
    return stated


def from_json(item: Any) -> Step:
    """Return the step that a file states; its numbers are checked where they are used.

    Raises
    ------
    FormatError
        It states none.
    """
    try:
        if "branch" in item:
            return Branch(_whole(item["branch"]), tuple(map(_wholes, item["cases"])))
        if "split" in item:
            return Split(tuple(map(_wholes, item["split"])))
        if "eliminate" in item:
            return Eliminate(_wholes(item["eliminate"]))
        if "diagonal" in item:
            diagonal = tuple(map(float, item["diagonal"]))
            triangles, penalties = _priced(item["triangles"]), _priced(item.get("penalties", ()))
            return Semidefinite(diagonal, triangles, penalties)
        groups = tuple(_parts(group) for group in item["parts"])
        cliques = tuple((_wholes(variables), float(price)) for variables, price in item.get("cliques", ()))
        return Decomposition(groups, cliques, tuple((_whole(v), _wholes(labels)) for v, labels in item.get("removed", ())))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(f"not a step of a proof: {str(item)[:80]} ({error})") from error


def _parts(item: Any) -> Parts:
    variables = [_wholes(row) for row in item["variables"]]
    tables = tuple((_wholes(axes), np.array(values, dtype=np.float64)) for axes, values in item["tables"])
    return Parts(np.array(variables, dtype=np.int64).reshape(len(variables), -1), tables)


def _numbers(values: NDArray[np.float64]) -> list[Any]:
    """Nested lists, with None for NaN."""
    hard = np.isnan(values)
    found: list[Any] = (np.where(hard, None, values) if hard.any() else values).tolist()  # type: ignore[call-overload]
    return found


def _priced(rows: Any) -> tuple[Any, ...]:
    """Integers with a number after them."""
    return tuple((*_wholes(nodes), float(number)) for *nodes, number in rows)


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise ValueError(f"{number!r} is no integer")
    return number


def _wholes(numbers: Any) -> tuple[int, ...]:
    return tuple(map(_whole, numbers))
