"""What the loops of the dual simplex method over nodes of an LP are given, and what they write."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LOWER, BASIC, UPPER = 0, 1, 2
"""Where a variable is in a basis, in HiGHS's numbers."""

ENDED, EMPTY, PASSED, UNFINISHED, UNREACHED, INTERRUPTED = range(6)
"""Ends of nodes: an optimum, no point, a bound above the goal, and pivots that were too few or too small."""


@dataclass(frozen=True)
class NodeArrays:
    """Nodes; fields in the order in which the loops take them.

    Attributes
    ----------
    lower, upper : ndarray
        ``(nodes, variables)``.
    cost : ndarray
        ``(nodes, variables)``, or ``(0, variables)`` where all have that of the LP.
    goal : ndarray
        ``(nodes,)``: values from which on a node is of no interest.
    basis : ndarray
        ``(nodes, 1 or 0, variables + rows)`` int8: bases to start from, by default the shared one.
    """

    lower: Array
    upper: Array
    cost: Array
    goal: Array
    basis: NDArray[np.int8]

    def arguments(self) -> tuple[Any, ...]:
        """All fields."""
        return tuple(getattr(self, f.name) for f in fields(self))

    def part(self, nodes: slice) -> NodeArrays:
        """Some of the nodes."""
        count = len(self.lower)
        return NodeArrays(*(v[nodes] if len(v) == count else v for v in self.arguments()))


@dataclass(frozen=True)
class NodeAnswers:
    """What is found of nodes; fields in the order in which the loops take them.

    Attributes
    ----------
    bound, primal : ndarray
        ``(nodes,)``: certified bounds, and values of the points, infinite where these are not feasible.
    status : ndarray
        ``(nodes,)`` int64: one of the numbers above.
    pivots : ndarray
        ``(nodes,)`` int64.
    x, price : ndarray
        ``(nodes, variables)``, ``(nodes, rows)``.
    basis : ndarray
        ``(nodes, variables + rows)`` int8.
    """

    bound: Array
    primal: Array
    status: NDArray[np.int64]
    pivots: NDArray[np.int64]
    x: Array
    price: Array
    basis: NDArray[np.int8]

    def arguments(self) -> tuple[Any, ...]:
        """All fields."""
        return tuple(getattr(self, f.name) for f in fields(self))

    def part(self, nodes: slice) -> NodeAnswers:
        """Views of some of the nodes."""
        return NodeAnswers(*(v[nodes] for v in self.arguments()))

    @classmethod
    def nothing(cls, nodes: int, rows: int, variables: int) -> NodeAnswers:
        """Answers that say nothing yet."""
        return cls(
            np.full(nodes, -np.inf),
            np.full(nodes, np.inf),
            np.full(nodes, UNREACHED),
            np.zeros(nodes, dtype=np.int64),
            np.zeros((nodes, variables)),
            np.zeros((nodes, rows)),
            np.zeros((nodes, variables + rows), dtype=np.int8),
        )
