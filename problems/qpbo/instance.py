"""Quadratic pseudo-boolean functions: the instance type and its constructors.

A ``Qubo`` is the function

    E(y) = offset + sum_i linear[i] y_i + sum_e quadratic[e] y_i(e) y_j(e),      y in {0, 1}^n,

to be minimised.  Every constructor states its source in this one form.

Reference: E. Boros and P. L. Hammer, Pseudo-Boolean optimization, Discrete Applied Mathematics 123 (2002).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy  # whose parts are imported where they are used
from numpy.typing import ArrayLike

from blocklp.errors import ModelError, NonFiniteError, ShapeError
from blocklp.problems.qpbo.arrays import (
    FloatArray,
    IntArray,
    as_finite,
    as_pairs,
    as_points,
    as_real,
    check_canonical,
    check_labels,
    first_true,
    graph_attributes,
    merge_pairs,
    refuse_self_loops,
)


@dataclass(frozen=True, eq=False)
class Qubo:
    """Minimise ``offset + sum_i linear[i] y_i + sum_e quadratic[e] y_i y_j`` over ``y`` in {0, 1}^n.

    Parameters
    ----------
    linear : numpy.ndarray, shape (n,), float64
        Coefficient of each variable, n > 0.
    edges : numpy.ndarray, shape (m, 2), int64
        Coupled pairs, smaller variable first, sorted lexicographically, unique.
    quadratic : numpy.ndarray, shape (m,), float64
        Coefficient of each pair.
    offset : float
        Constant term.
    labels : tuple of hashable, length n, or None
        The user's names of the variables.
    name : str
        Name of the instance.

    Raises
    ------
    ModelError
        There is no variable, the edges are not canonical, or the labels do not fit.
    ShapeError, NonFiniteError, ScopeError
        An array is of the wrong shape, not finite, or names a variable that does not exist.
    """

    linear: FloatArray
    edges: IntArray
    quadratic: FloatArray
    offset: float = 0.0
    labels: tuple[Hashable, ...] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        linear = as_finite(self.linear, "linear")
        if linear.size == 0:
            raise ModelError("linear is empty: an instance needs at least one variable")
        edges = as_pairs(self.edges, linear.size)
        edges.setflags(write=False)
        check_canonical(edges)
        quadratic = as_finite(self.quadratic, "quadratic")
        if quadratic.size != len(edges):
            raise ShapeError(f"quadratic has {quadratic.size} entries for {len(edges)} edges; give one to each")
        object.__setattr__(self, "linear", linear)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "quadratic", quadratic)
        object.__setattr__(self, "offset", float(as_finite([self.offset], "offset")[0]))
        check_labels(self.labels, linear.size)

    @property
    def n(self) -> int:
        """Number of variables."""
        return self.linear.size

    def energy(self, y: ArrayLike) -> FloatArray:
        """Return the value of each labelling.

        Parameters
        ----------
        y : array_like, shape (..., n)
            Labellings; fractional ones give the multilinear extension.

        Returns
        -------
        numpy.ndarray, shape (...), float64

        Raises
        ------
        ShapeError
            The last axis is not of length n.
        """
        point = as_points(y, self.n)
        products = point[..., self.edges[:, 0]] * point[..., self.edges[:, 1]]
        return np.asarray(self.offset + point @ self.linear + products @ self.quadratic)

    @classmethod
    def from_terms(
        cls,
        linear: ArrayLike,
        edges: ArrayLike,
        quadratic: ArrayLike,
        offset: float = 0.0,
        labels: tuple[Hashable, ...] | None = None,
        name: str = "",
    ) -> Qubo:
        """Build from terms in any order.

        Repeated and reversed pairs are added up, where a file that repeats one is refused; a pair (i, i) goes to ``linear`` because
        y_i^2 = y_i, and pairs whose sum is zero are dropped.

        Parameters
        ----------
        linear : array_like, shape (n,)
        edges : array_like of int, shape (k, 2)
        quadratic : array_like, shape (k,)
        offset, labels, name
            As in the class.

        Raises
        ------
        ModelError, ShapeError, NonFiniteError, ScopeError
            As in the class.
        """
        diagonal = as_finite(linear, "linear").copy()
        pairs = as_pairs(edges, diagonal.size)
        values = as_finite(quadratic, "quadratic")
        if values.size != len(pairs):
            raise ShapeError(f"quadratic has {values.size} entries for {len(pairs)} edges; give one to each")
        square = pairs[:, 0] == pairs[:, 1]
        np.add.at(diagonal, pairs[square, 0], values[square])
        merged, position = merge_pairs(pairs[~square], diagonal.size)
        sums = np.bincount(position, weights=values[~square], minlength=len(merged))
        return cls(diagonal, merged[sums != 0], sums[sums != 0], offset, labels, name)

    @classmethod
    def from_matrix(cls, matrix: Any, name: str = "") -> Qubo:
        """Build from ``y' Q y`` with any square Q: the coefficient of y_i y_j is Q_ij + Q_ji, that of y_i is Q_ii.

        Parameters
        ----------
        matrix : array_like or scipy.sparse matrix or array, shape (n, n)
            Symmetric, triangular or neither.
        name : str
            Name of the instance.

        Raises
        ------
        ModelError
            An entry is no real number, or entries are given by pairs of names.
        ShapeError
            The matrix is not square.
        NonFiniteError
            An entry is NaN or infinite.
        """
        if isinstance(matrix, Mapping) and not scipy.sparse.issparse(matrix):
            raise ModelError(
                f"the matrix is a {type(matrix).__name__}; give a square array, or coefficients by pairs of names to Qubo.from_bqm, "
                "as dimod.BinaryQuadraticModel.from_qubo(...) makes one of them, or by pairs of numbers to Qubo.from_terms"
            )
        given = matrix if scipy.sparse.issparse(matrix) else as_real(matrix, "the matrix")
        if len(given.shape) != 2 or given.shape[0] != given.shape[1]:
            raise ShapeError(f"the matrix has shape {given.shape}; give a square one")
        entries = scipy.sparse.coo_array(given)
        values = as_real(entries.data, "the matrix")
        row, column = (index.astype(np.int64) for index in entries.coords)
        if (bad := first_true(~np.isfinite(values))) is not None:
            raise NonFiniteError(f"matrix[{row[bad]}, {column[bad]}] is {values[bad]}; every entry must be finite")
        return cls.from_terms(np.zeros(entries.shape[0]), np.stack([row, column], axis=1), values, name=name)

    @classmethod
    def from_networkx(cls, graph: Any, linear: str = "weight", quadratic: str = "weight") -> Qubo:
        """Build from a networkx graph; ``labels`` are its nodes in their order.

        Parameters
        ----------
        graph : networkx.Graph
            Directed graphs and multigraphs add up parallel edges.
        linear : str
            Node attribute with the coefficient of each variable.
        quadratic : str
            Edge attribute with the coefficient of each pair.

        Raises
        ------
        ModelError
            A node or an edge lacks its attribute, or the graph has no node.
        """
        values, terms = graph_attributes(graph, linear, quadratic)
        pairs, coefficients = [ends for *ends, _ in terms], [value for *_, value in terms]
        return cls.from_terms(values, pairs, coefficients, labels=tuple(graph.nodes), name=str(graph.name))

    @classmethod
    def from_bqm(cls, bqm: Any) -> Qubo:
        """Build from a ``dimod.BinaryQuadraticModel``, BINARY or SPIN (spin s = 2 y - 1).

        Parameters
        ----------
        bqm : dimod.BinaryQuadraticModel
            ``labels`` become its variables in their order.

        Raises
        ------
        ModelError
            The model has no variable, or is of another kind: one with constraints, or with variables of more than two values.
        """
        if getattr(getattr(bqm, "vartype", None), "name", None) not in ("BINARY", "SPIN"):
            raise ModelError(
                f"{type(bqm).__name__} is not a BinaryQuadraticModel; turn a constrained model into one, as by dimod.cqm_to_bqm, "
                "whose penalties then count as costs"
            )
        binary = bqm.change_vartype("BINARY", inplace=False)
        labels = tuple(binary.variables)
        index = {label: position for position, label in enumerate(labels)}
        return cls.from_terms(
            [binary.linear[label] for label in labels],
            [(index[head], index[tail]) for head, tail in binary.quadratic],
            list(binary.quadratic.values()),
            offset=float(binary.offset),
            labels=labels,
        )

    @classmethod
    def max_cut(cls, n: int, edges: ArrayLike, weights: ArrayLike, name: str = "") -> Qubo:
        """Build the function whose minimum is minus the weight of a maximum cut.

        The cut of y weighs ``sum_ij w_ij (y_i + y_j - 2 y_i y_j)``; the two sides may be exchanged freely.

        Parameters
        ----------
        n : int
            Number of nodes.
        edges : array_like of int, shape (m, 2)
            Repeated edges add up.
        weights : array_like, shape (m,)
        name : str
            Name of the instance.

        Raises
        ------
        ModelError, ShapeError, NonFiniteError, ScopeError
            As in the class; also a self-loop, which no cut can separate.
        """
        pairs = as_pairs(edges, n)
        values = as_finite(weights, "weights")
        if values.size != len(pairs):
            raise ShapeError(f"weights has {values.size} entries for {len(pairs)} edges; give one to each")
        refuse_self_loops(pairs)
        linear = -np.bincount(pairs.ravel(), weights=np.repeat(values, 2), minlength=n)
        return cls.from_terms(linear, pairs, 2 * values, name=name)

    @classmethod
    def max_cut_from_networkx(cls, graph: Any, weight: str | None = "weight") -> Qubo:
        """Build :meth:`max_cut` of a networkx graph; ``labels`` are its nodes in their order.

        Self-loops are left out: no cut separates them.

        Parameters
        ----------
        graph : networkx.Graph
            Directed graphs and multigraphs add up parallel edges.
        weight : str or None
            Edge attribute with the weight, 1 where an edge has none; None gives every edge weight 1.

        Raises
        ------
        ModelError, NonFiniteError
            A weight is no finite number, or the graph has no node.
        """
        _, terms = graph_attributes(graph, None, weight, 1.0)
        terms = [(head, tail, value) for head, tail, value in terms if head != tail]
        cut = cls.max_cut(len(graph), [ends for *ends, _ in terms], [value for *_, value in terms], str(graph.name))
        return replace(cut, labels=tuple(graph.nodes))
