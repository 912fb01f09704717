"""What the loops of the dual simplex method over nodes of an LP are given, and what they write."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LOWER, BASIC, UPPER = 0, 1, 2
"""Where a variable is in a basis, in HiGHS's numbers."""

ZERO = 1e-9
"""Reduced costs up to which a variable may be at either bound."""

FAR = 1e7
"""Where a variable without a bound is held while its reduced cost asks for one."""

ENDED, EMPTY, PASSED, UNFINISHED, OUTSIDE, UNREACHED, INTERRUPTED = range(7)
"""Ends of nodes: an optimum, no point, a bound above the goal, pivots that were too few or too small, and
bounds that are outside those of the LP."""


@dataclass(frozen=True)
class NodeArrays:
    """Nodes; fields in the order in which the loops take them.

    Attributes
    ----------
    lower, upper : ndarray
        ``(nodes or 1, variables)``: bounds of the LP before scaling.
    cost : ndarray
        ``(nodes, variables)`` of the scaled LP, or ``(0, variables)`` where all have its costs.
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
        count = len(self.goal)
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
        ``(nodes, variables)``, ``(nodes, rows)``: of the LP before scaling; points of nodes that are done
        with are not written.
    basis : ndarray
        ``(nodes, variables + rows)`` int8: of the LP before scaling, written as points are.
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
        """Return answers that say nothing yet.

        Parameters
        ----------
        nodes, rows, variables : int
            Their numbers.
        """
        return cls(
            np.full(nodes, -np.inf),
            np.full(nodes, np.inf),
            np.full(nodes, UNREACHED),
            np.zeros(nodes, dtype=np.int64),
            np.zeros((nodes, variables)),
            np.zeros((nodes, rows)),
            np.zeros((nodes, variables + rows), dtype=np.int8),
        )
