"""Node-weighted graphs for maximum-weight independent sets, cliques and vertex covers.

An independent set holds no two adjacent nodes.  The three problems are one:

* a clique of a graph is an independent set of its complement;
* a set is independent if and only if the other nodes are a vertex cover, so the minimum weight of a vertex cover is
  the total weight minus the maximum weight of an independent set.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blocklp.errors import ModelError, OptionError
from blocklp.problems.files import MAX_BYTES, MEMORY
from blocklp.problems.qpbo.arrays import (
    FloatArray,
    IntArray,
    as_finite,
    as_pairs,
    as_points,
    check_canonical,
    check_labels,
    first_true,
    graph_attributes,
    merge_pairs,
    refuse_self_loops,
)
from blocklp.problems.qpbo.instance import Qubo

Objective = Literal["independent-set", "clique"]

PER_EDGE = 80
"""Bytes of memory that an edge takes while a graph is built, at most."""


@dataclass(frozen=True, eq=False)
class WeightedGraph:
    """A graph with node weights, and what is to be maximised on it.

    Parameters
    ----------
    weights : numpy.ndarray, shape (n,), float64
        Weight of each node, not negative, n > 0.
    edges : numpy.ndarray, shape (m, 2), int64
        Adjacent nodes, smaller one first, sorted lexicographically, unique.
    labels : tuple of hashable, length n, or None
        The user's names of the nodes.
    name : str
        Name of the instance.
    objective : {"independent-set", "clique"}
        Whether the heaviest independent set or the heaviest clique is sought.

    Raises
    ------
    ModelError
        There is no node, a weight is negative, the edges are not canonical, or the labels do not fit.
    ShapeError, NonFiniteError, ScopeError
        An array is of the wrong shape, not finite, or names a node that does not exist.
    OptionError
        ``objective`` is unknown.
    """

    weights: FloatArray
    edges: IntArray
    labels: tuple[Hashable, ...] | None = None
    name: str = ""
    objective: Objective = "independent-set"

    def __post_init__(self) -> None:
        weights = as_finite(self.weights, "weights")
        if weights.size == 0:
            raise ModelError("weights is empty: a graph needs at least one node")
        if (row := first_true(weights < 0)) is not None:
            raise ModelError(
                f"weights[{row}] is {weights[row]}: a node of negative weight is in no best set; "
                "drop it, or add the same constant to all weights if the sets have a fixed size"
            )
        edges = as_pairs(self.edges, weights.size)
        edges.setflags(write=False)
        check_canonical(edges)
        check_labels(self.labels, weights.size)
        if self.objective not in ("independent-set", "clique"):
            raise OptionError(f"objective is {self.objective!r}; give 'independent-set' or 'clique'")
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "edges", edges)

    @property
    def n(self) -> int:
        """Number of nodes."""
        return self.weights.size

    @classmethod
    def from_edges(
        cls,
        weights: ArrayLike,
        edges: ArrayLike,
        labels: tuple[Hashable, ...] | None = None,
        name: str = "",
        objective: Objective = "independent-set",
    ) -> WeightedGraph:
        """Build from edges in any order and orientation; repeated ones are merged.

        Parameters
        ----------
        weights : array_like, shape (n,)
        edges : array_like of int, shape (k, 2)
        labels, name, objective
            As in the class.

        Raises
        ------
        ModelError, ShapeError, NonFiniteError, ScopeError, OptionError
            As in the class; also a self-loop, which would forbid its node.
        """
        values = as_finite(weights, "weights")
        pairs = as_pairs(edges, values.size)
        refuse_self_loops(pairs)
        return cls(values, merge_pairs(pairs, values.size)[0], labels, name, objective)

    @classmethod
    def from_networkx(cls, graph: Any, weight: str | None = "weight") -> WeightedGraph:
        """Build from a networkx graph; ``labels`` are its nodes in their order.

        Parameters
        ----------
        graph : networkx.Graph
            Directions and parallel edges are disregarded.
        weight : str or None
            Node attribute with the weight; None gives every node weight 1.

        Raises
        ------
        ModelError
            A node lacks the attribute, an edge is a self-loop, or the graph has no node.
        """
        weights, terms = graph_attributes(graph, weight, None)
        return cls.from_edges(weights, [ends for *ends, _ in terms], tuple(graph.nodes), str(graph.name))

    def complement(self, max_bytes: int = MAX_BYTES) -> WeightedGraph:
        """Return the complement graph, on which cliques and independent sets change places.

        The result has the other ``objective``, hence the same optimum.

        Parameters
        ----------
        max_bytes : int
            A quarter of the most bytes of memory that this may take, as for readers.

        Raises
        ------
        ModelError
            It would take more.
        """
        count = self.n * (self.n - 1) // 2 - len(self.edges)
        size = 2 * self.n**2 + PER_EDGE * count
        if size > MEMORY * max_bytes:
            raise ModelError(
                f"the complement has {count} edges, which would take {size} bytes of memory, more than {MEMORY} times max_bytes "
                f"({max_bytes}); raise max_bytes to {-(-size // MEMORY)}"
            )
        absent = np.ones((self.n, self.n), dtype=np.bool_)
        absent[self.edges[:, 0], self.edges[:, 1]] = False
        edges = np.argwhere(np.triu(absent, k=1))
        other: Objective = "clique" if self.objective == "independent-set" else "independent-set"
        return WeightedGraph(self.weights, edges, self.labels, self.name, other)

    def independent(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Tell which node sets are independent.

        Parameters
        ----------
        y : array_like, shape (..., n)
            Indicators: a node is in the set where ``y`` is not zero.

        Returns
        -------
        numpy.ndarray, shape (...), bool

        Raises
        ------
        ShapeError
            The last axis is not of length n.
        """
        inside = as_points(y, self.n) != 0
        return np.asarray(~(inside[..., self.edges[:, 0]] & inside[..., self.edges[:, 1]]).any(axis=-1))

    def without_conflicts(self, y: ArrayLike) -> NDArray[np.bool_]:
        """Drop the lighter node of every edge that is in a set as a whole: never a loss in the function of :meth:`to_qubo`.

        Parameters
        ----------
        y : array_like, shape (n,)
            Indicators: a node is in the set where ``y`` is not zero.

        Returns
        -------
        numpy.ndarray, shape (n,), bool
            An independent set.

        Raises
        ------
        ShapeError
            It is not of length n.
        """
        inside = np.asarray(as_points(y, self.n) != 0, dtype=np.bool_)
        for a, b in self.edges[inside[self.edges].all(1)].tolist():
            if inside[a] and inside[b]:
                inside[a if self.weights[a] <= self.weights[b] else b] = False
        return inside

    def weight(self, y: ArrayLike) -> FloatArray:
        """Return the weight ``weights . y`` of each node set.

        Parameters
        ----------
        y : array_like, shape (..., n)
            Indicators, 0 or 1.

        Returns
        -------
        numpy.ndarray, shape (...), float64

        Raises
        ------
        ShapeError
            The last axis is not of length n.
        """
        return np.asarray(as_points(y, self.n) @ self.weights)

    def to_qubo(self, penalty: float | None = None) -> Qubo:
        """Return ``-weights . y + sum_ij P_ij y_i y_j``, whose minimum is minus the heaviest independent set's weight.

        Parameters
        ----------
        penalty : float, optional
            P of every edge.  By default ``P_ij = max(w_i, w_j)``, or 1 where both weights are zero.  Any P_ij of at
            least ``min(w_i, w_j)`` is exact: where both ends are chosen, dropping the lighter one never costs more
            than it saves.

        Returns
        -------
        Qubo
            With the labels and the name of the graph.

        Raises
        ------
        ModelError
            ``penalty`` is too small or not positive, or the graph states a clique problem.
        """
        self.require_independent_set()
        ends = self.weights[self.edges]
        if penalty is None:
            values = ends.max(axis=1, initial=0.0)
            values[values == 0] = 1.0
        else:
            least = float(ends.min(axis=1, initial=np.inf).max(initial=0.0))
            if not (penalty > 0 and penalty >= least):
                raise ModelError(f"penalty is {penalty}, too small to forbid every edge; give {least} or more, above 0")
            values = np.full(len(self.edges), float(penalty))
        return Qubo(-self.weights, self.edges, values, labels=self.labels, name=self.name)

    def require_independent_set(self) -> None:
        """Refuse a graph that states a clique problem where independent sets are meant.

        Raises
        ------
        ModelError
            ``objective`` is ``"clique"``.
        """
        if self.objective == "clique":
            raise ModelError("the graph states a clique problem; use its complement(), whose independent sets they are")
