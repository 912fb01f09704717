"""Persistency at the nodes of a branch and bound: labels that some best completion of a node's fixings has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blocklp.errors import ShapeError
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.persistency import verified_persistency


def node_persistency(qubo: Qubo, fixings: ArrayLike, points: ArrayLike) -> NDArray[np.int8]:
    """Add verified persistencies to the fixings of nodes; takes a maximum flow or two for each of them.

    A fixed variable gets a linear term that outweighs its couplings, which changes the labels of no best completion;
    :func:`verified_persistency` then proves the labels in integers.

    Parameters
    ----------
    qubo : Qubo
        The function to be minimised.
    fixings : array_like of int, shape (nodes, n)
        0, 1, and -1 for free.
    points : array_like, shape (nodes, n)
        Suggestions, such as ``NodeBounds.x``: candidates are labels below 1/3 and above 2/3.

    Returns
    -------
    numpy.ndarray, shape (nodes, n), int8
        The fixings, and labels that some best completion of them has, all at once.

    Raises
    ------
    ShapeError
        Fixings or points do not fit the instance or each other.
    NonFiniteError
        A point has an entry that is not finite.
    """
    fixed, point = np.asarray(fixings, dtype=np.int8), np.asarray(points, dtype=np.float64)
    if fixed.ndim != 2 or fixed.shape[1] != qubo.n or point.shape != fixed.shape:
        raise ShapeError(f"fixings have shape {fixed.shape}, points {point.shape}; both need (nodes, {qubo.n})")
    coupled = np.ones(qubo.n)
    np.add.at(coupled, qubo.edges, 2 * np.abs(qubo.quadratic)[:, None])
    found = fixed.copy()
    for row, labels, own in zip(found, fixed, point, strict=True):
        linear = np.where(labels < 0, qubo.linear, np.where(labels == 0, coupled, -coupled))
        weak = verified_persistency(replace(qubo, linear=linear), np.where(labels < 0, own, labels)).weak
        row[labels < 0] = weak[labels < 0]
    return found
