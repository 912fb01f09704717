"""What reductions leave of a problem, and the way home for its solutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from blocklp.problems.qpbo.arrays import IntArray

P = TypeVar("P")


class LabelTable(Protocol):
    """A table of labels in row-major order."""

    def __getitem__(self, position: int, /) -> Any:
        """Return the label in a place."""


Rule = tuple[int, Sequence[int], LabelTable]
"""A variable that was minimised out, the others that its best label depends on, and the table of that."""


class PackedBits:
    """A table of zeros and ones, eight to a byte.

    Parameters
    ----------
    mask : numpy.ndarray, bool
        The table.
    """

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self.bytes = np.packbits(mask)

    def __getitem__(self, position: int) -> int:
        return int(self.bytes[position >> 3]) >> (7 - (position & 7)) & 1


def back_substituted(labels: list[int], counts: Sequence[int], rules: Sequence[Rule]) -> list[int]:
    """Give variables that were minimised out their best labels, the last one first.

    Parameters
    ----------
    labels : list of int
        Those of the other variables in their places; overwritten.
    counts : sequence of int
        Labels of each variable.
    rules : sequence of tuple
        In the order in which variables were minimised out.
    """
    for variable, others, best in reversed(rules):
        position = 0
        for j in others:
            position = position * counts[j] + labels[j]
        labels[variable] = int(best[position])
    return labels


@dataclass(frozen=True)
class Reduced(Generic[P]):
    """What is left of a problem, and how to come back.

    Attributes
    ----------
    constant : float
        The minimum is that of the parts plus this; infinite where there is no solution.
    parts : tuple
        Problems without common variables.
    lift : callable
        Takes labels of each of the parts to labels of the given problem, of the same value.
    least : float
        Another bound on the minimum.
    """

    constant: float
    parts: tuple[P, ...]
    lift: Callable[[Sequence[NDArray[Any]]], NDArray[Any]]
    least: float = -np.inf


@dataclass(frozen=True)
class Elimination:
    """The way home where variables were minimised out, and labels were dropped.

    Attributes
    ----------
    counts : sequence of int
        Labels of each variable of the given problem.
    rules : sequence of tuple
        Variables minimised out, in order.
    variables : sequence of numpy.ndarray
        The variables of each part in the given problem.
    labels : sequence of numpy.ndarray, optional
        The labels of each variable of the given problem that are left; by default all.
    """

    counts: Sequence[int]
    rules: Sequence[Rule]
    variables: Sequence[IntArray]
    labels: Sequence[IntArray] | None = None

    def __call__(self, found: Sequence[NDArray[Any]]) -> IntArray:
        """Return labels of the given problem, int64, from those of the parts."""
        whole = [0] * len(self.counts)
        for variables, mine in zip(self.variables, found, strict=True):
            for i, label in zip(variables.tolist(), mine.tolist(), strict=True):
                whole[i] = label if self.labels is None else int(self.labels[i][label])
        return np.array(back_substituted(whole, self.counts, self.rules), dtype=np.int64)


def components(edges: IntArray, left: NDArray[np.bool_]) -> list[IntArray]:
    """Return the nodes of each connected component.

    Parameters
    ----------
    edges : numpy.ndarray, shape (m, 2), int64
        Pairs of nodes that are left.
    left : numpy.ndarray, shape (n,), bool
        Which nodes are.

    Returns
    -------
    list of numpy.ndarray
        Nodes in ascending order; components by their first nodes.
    """
    n, nodes = len(left), np.flatnonzero(left)
    _, owner = connected_components(coo_array((np.ones(len(edges)), edges.T), shape=(n, n)), directed=False)
    _, first, owner = np.unique(owner[nodes], return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))[owner]
    return np.split(nodes[np.argsort(rank, kind="stable")], np.cumsum(np.bincount(rank))[:-1]) if len(nodes) else []
