r"""Lovász's theta function of a weighted graph, as multipliers of a semidefinite leaf.

The weight of an independent set is at most the least t with

.. math:: t I + \Lambda \succeq \sqrt{w} \sqrt{w}^\top, \qquad \Lambda_{ij} = 0 \text{ unless i and j are neighbours}

(L. Lovász, IEEE Transactions on Information Theory 25 (1979); M. Grötschel, L. Lovász and A. Schrijver 1988).  The boundary point
method finds it by one eigenvalue decomposition a step, however many edges there are (J. Povh, F. Rendl and A. Wiegele, Computing 78
(2006)).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blocklp.deadline import Deadline
from blocklp.problems.mis.instance import WeightedGraph

Floats = NDArray[np.float64]

STEPS, LOOK = 1000, 10
"""Steps at most, and after how many the bound is looked at."""
PATIENCE, SHARE = 8, 0.1
"""Looks that must close such a share of what is missing to be followed by others; twice as many at first."""


def theta(graph: WeightedGraph, goal: float, deadline: Deadline) -> tuple[float, Floats, Floats]:
    """Return t, the entries of the matrix for the edges, and the diagonal of the primal matrix, which says how likely nodes are.

    Parameters
    ----------
    graph : WeightedGraph
        The graph; its weights are positive.
    goal : float
        A t that is small enough.
    deadline : Deadline
        When to return what there is.

    Returns
    -------
    t : float
        A bound, up to rounding.
    entries : numpy.ndarray, shape (m,), float64
    shares : numpy.ndarray, shape (n,), float64
        They add up to one.
    """
    n, (first, second) = graph.n, graph.edges.T
    root = np.sqrt(graph.weights)
    gain = np.outer(root, root)
    scale = float(graph.weights.sum())
    sigma = 2 / scale  # primal units for a dual one
    primal, slack = np.zeros((n, n)), np.zeros((n, n))
    best = (scale, np.zeros(len(graph.edges)))
    bounds: list[float] = []
    for step in range(1, STEPS + 1):
        summed = slack + gain + primal / sigma
        t = (float(np.trace(summed)) - 1 / sigma) / n
        entries = summed[first, second]
        dual = t * np.eye(n)
        dual[first, second] = dual[second, first] = entries
        values, vectors = np.linalg.eigh(dual - gain - primal / sigma)
        some = values > 0
        slack = (vectors[:, some] * values[some]) @ vectors[:, some].T
        primal = (vectors[:, ~some] * (-sigma * values[~some])) @ vectors[:, ~some].T
        if step % LOOK and step < STEPS:
            continue
        bound = t - min(0.0, float(np.linalg.eigvalsh(dual - gain)[0]))
        if bound < best[0]:
            best = bound, entries.copy()
        bounds.append(best[0])
        slow = len(bounds) > 2 * PATIENCE and bounds[-1 - PATIENCE] - bounds[-1] < SHARE * (bounds[-1] - goal)
        if best[0] < goal or slow or deadline.over():
            break
        # Steps are balanced by how far either side is from feasible.
        missing = abs(np.trace(primal) - 1) + 2 * np.abs(primal[first, second]).sum()
        apart = np.linalg.norm(slack + gain - dual) / (1 + np.linalg.norm(gain))
        sigma *= 1.5 if missing / (1 + missing) < apart else 1 / 1.5
    return best[0], best[1], np.maximum(np.diagonal(primal), 0.0)
