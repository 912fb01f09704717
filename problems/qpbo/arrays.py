"""Checks of the arrays that instances are made of, and the one order in which they keep their edges."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blocklp.errors import ModelError, NonFiniteError, ScopeError, ShapeError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def first_true(mask: NDArray[np.bool_]) -> int | None:
    """Return the first index at which a vector of booleans holds, or None."""
    return int(mask.argmax()) if mask.any() else None


def as_real(values: Any, name: str) -> FloatArray:
    """Return real numbers as float64, not copied if they are already.

    Raises
    ------
    ModelError
        They are complex, or no numbers at all.
    """
    if isinstance(values, (str, bytes)):
        raise ModelError(f"{name} is {values!r}; give real numbers")
    try:
        # Not ``np.array``, which asks for a copy in a way that tensors of torch do not know, and warns.
        array = np.asarray(values)
        if np.iscomplexobj(array):
            raise ModelError(f"{name} holds complex numbers; give their real parts, if that is what is meant")
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{name} does not hold real numbers ({error})") from error


def as_finite(values: ArrayLike, name: str) -> FloatArray:
    """Return a read-only float64 vector; an error names the first entry that is not finite.

    Parameters
    ----------
    values : array_like, shape (k,)
        Numbers.
    name : str
        What the numbers are called in messages.

    Raises
    ------
    ModelError
        ``values`` are not real numbers.
    ShapeError
        ``values`` is not one-dimensional.
    NonFiniteError
        An entry is NaN or infinite.
    """
    array = as_real(values, name).copy()
    if array.ndim != 1:
        raise ShapeError(f"{name} has shape {array.shape}; give a vector")
    if (bad := first_true(~np.isfinite(array))) is not None:
        raise NonFiniteError(f"{name}[{bad}] is {array[bad]}; every entry must be finite")
    array.setflags(write=False)
    return array


def as_points(y: ArrayLike, n: int) -> FloatArray:
    """Return points as float64.

    Parameters
    ----------
    y : array_like, shape (..., n)
        Points.
    n : int
        Number of variables.

    Raises
    ------
    ShapeError
        The last axis is not of length n.
    """
    points = np.asarray(y, dtype=np.float64)
    if points.ndim == 0 or points.shape[-1] != n:
        raise ShapeError(f"y has shape {points.shape}; its last axis must have length {n}")
    return points


def as_pairs(pairs: ArrayLike, n: int) -> IntArray:
    """Return an int64 array of shape (m, 2); an error names the first pair outside ``0 .. n-1``.

    Raises
    ------
    ShapeError
        ``pairs`` is not an integer array of shape (m, 2).
    ScopeError
        A pair names a node outside ``0 .. n-1``.
    """
    array = np.asarray(pairs)
    if array.size == 0:
        array = np.zeros((0, 2), dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != 2 or not np.issubdtype(array.dtype, np.integer):
        raise ShapeError(f"edges has shape {array.shape} and dtype {array.dtype}; give integers of shape (m, 2)")
    outside = (array < 0) | (array >= n)
    if (bad := first_true(outside[:, 0] | outside[:, 1])) is not None:
        pair = tuple(array[bad].tolist())
        raise ScopeError(f"edges[{bad}] is {pair}, but the nodes are 0 .. {n - 1}; number them from 0")
    return array.astype(np.int64)


def merge_pairs(pairs: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """Orient pairs upwards, sort them lexicographically and merge the repeated ones.

    Parameters
    ----------
    pairs : numpy.ndarray, shape (k, 2), int64
        Pairs of distinct nodes in any order and orientation.
    n : int
        Number of nodes.

    Returns
    -------
    merged : numpy.ndarray, shape (m, 2), int64
        Unique pairs with the smaller node first.
    position : numpy.ndarray, shape (k,), int64
        Row of ``merged`` that each given pair went to.
    """
    keys, position = np.unique(pairs.min(axis=1) * n + pairs.max(axis=1), return_inverse=True)
    return np.stack([keys // n, keys % n], axis=1), position


def check_canonical(edges: IntArray) -> None:
    """Refuse edges that are not oriented upwards, sorted and unique.

    Raises
    ------
    ModelError
        Naming the first edge out of order.
    """
    wrong = edges[:, 0] >= edges[:, 1]
    before, after = edges[:-1], edges[1:]
    wrong[1:] |= (before[:, 0] > after[:, 0]) | ((before[:, 0] == after[:, 0]) & (before[:, 1] >= after[:, 1]))
    if (row := first_true(wrong)) is not None:
        pair = tuple(edges[row].tolist())
        raise ModelError(
            f"edges[{row}] is {pair}: edges must have i < j, be sorted and be unique; "
            "use from_terms or from_edges, which merge and sort"
        )


def check_labels(labels: tuple[Hashable, ...] | None, n: int) -> None:
    """Check that labels, if given, are ``n`` different ones.

    Raises
    ------
    ModelError
        Their number is wrong or two are equal.
    """
    if labels is not None and (len(labels) != n or len(set(labels)) != n):
        raise ModelError(f"labels holds {len(set(labels))} different labels for {n} nodes; give one label to each")


def graph_attributes(
    graph: Any, node: str | None, edge: str | None, missing: float | None = None
) -> tuple[list[Any], list[tuple[int, int, Any]]]:
    """Return attributes of the nodes of a networkx graph, in their order, and of its edges, by the numbers of their ends.

    Parameters
    ----------
    graph : networkx.Graph
        The graph.
    node, edge : str or None
        Names of the attributes; None for a 1 each.
    missing : float, optional
        That of an edge without one.

    Raises
    ------
    ModelError
        A node or an edge lacks its attribute.
    """
    index = {label: position for position, label in enumerate(graph.nodes)}
    values = [(label, 1.0 if node is None else data.get(node)) for label, data in graph.nodes(data=True)]
    terms = [(head, tail, 1.0 if edge is None else data.get(edge, missing)) for head, tail, data in graph.edges(data=True)]
    for owner, key, value, attribute in (
        *(("node", label, value, node) for label, value in values),
        *(("edge", (head, tail), value, edge) for head, tail, value in terms),
    ):
        if value is None:
            raise ModelError(f"{owner} {key!r} has no attribute {attribute!r}; set it or pass the name of another one")
    return [value for _, value in values], [(index[head], index[tail], value) for head, tail, value in terms]


def refuse_self_loops(pairs: IntArray) -> None:
    """Refuse pairs (i, i).

    Raises
    ------
    ModelError
        Naming the first one.
    """
    if (loop := first_true(pairs[:, 0] == pairs[:, 1])) is not None:
        raise ModelError(f"edges[{loop}] joins node {pairs[loop, 0]} to itself; drop the self-loop")
