"""Minimisation of a quadratic function by eliminating variables one after another, in the cheapest of several orders."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from blocklp.deadline import Deadline
from blocklp.problems.elimination import EliminationOrder, eliminate
from blocklp.problems.qpbo.arrays import IntArray
from blocklp.problems.qpbo.instance import Qubo

WIDEST = 22
"""A table then has 4 million entries."""
PER_NEIGHBOUR = 3e-6
"""Seconds that it takes to write a neighbour down there."""


def cheapest_order(n: int, edges: IntArray, deadline: Deadline | None = None) -> EliminationOrder:
    """Return the cheapest of the orders by least degree, by least fill, and by bandwidth.

    One whose width exceeds 40, or that is not ready at the deadline, has infinite work.

    Parameters
    ----------
    n : int
        Number of variables.
    edges : ndarray
        ``(m, 2)`` int64: pairs.
    deadline : Deadline, optional
        When orders must be ready.
    """
    deadline = deadline or Deadline()
    graph = coo_array((np.ones(len(edges)), edges.T), shape=(n, n)).tocsr()
    banded = reverse_cuthill_mckee((graph + graph.T).tocsr(), symmetric_mode=True).tolist()
    orders = [_eliminated(n, edges, "degree", None, deadline), _eliminated(n, edges, "given", banded, deadline)]
    if n <= 2000:
        orders.append(_eliminated(n, edges, "fill", None, deadline))
    return min(orders, key=lambda order: order.work)


def _eliminated(n: int, edges: IntArray, rule: str, given: list[int] | None, deadline: Deadline) -> EliminationOrder:
    if not deadline.affords(PER_NEIGHBOUR * (n + 2 * len(edges))):
        return EliminationOrder([], 0, np.inf)
    near: list[set[int]] = [set() for _ in range(n)]
    for a, b in edges.tolist():
        near[a].add(b)
        near[b].add(a)

    def fill(v: int) -> int:
        around = near[v]
        return len(around) * (len(around) - 1) - sum(len(near[a] & around) for a in around)

    score = []
    for v in range(n):
        if rule == "fill" and deadline.over():
            return EliminationOrder([], 0, np.inf)
        score.append(fill(v) if rule == "fill" else len(near[v]))
    # Scores that have changed since are passed over.
    heap = [(s, v) for v, s in enumerate(score)]
    heapq.heapify(heap)
    order: list[int] = []
    left, width, work = set(range(n)), 0, 0.0
    while left:
        if given is not None:
            v = given[len(order)]
        else:
            least, v = heapq.heappop(heap)
            if v not in left or least != score[v]:
                continue
        around = near[v]
        left.discard(v)
        order.append(v)
        width, work = max(width, len(around)), work + 2.0 ** (len(around) + 1)
        if width > 40 or deadline.over():
            return EliminationOrder([], width, np.inf)
        for a in around:
            near[a] |= around
            near[a] -= {a, v}
        touched = set(around)
        if rule == "fill":
            touched = touched.union(*(near[a] for a in around)) if around else touched
        for a in touched & left:
            score[a] = fill(a) if rule == "fill" else len(near[a])
            heapq.heappush(heap, (score[a], a))
    return EliminationOrder(order, width, work)


def minimise_by_elimination(qubo: Qubo, order: EliminationOrder, deadline: Deadline) -> NDArray[np.int8] | None:
    """Return a minimiser, or None where there is no time for the next table.

    Parameters
    ----------
    qubo : Qubo
        The function.
    order : EliminationOrder
        Which variables are eliminated one after the other.
    deadline : Deadline
        Asked before every table.
    """
    alone = [((i,), np.array([0.0, c])) for i, c in enumerate(qubo.linear.tolist())]
    terms = zip(qubo.edges.tolist(), qubo.quadratic.tolist(), strict=True)
    pairs = [(ends, np.array([[0.0, 0.0], [0.0, p]])) for ends, p in terms]
    labels = eliminate([2] * qubo.n, [*alone, *pairs], order, deadline)
    return None if labels is None else labels.astype(np.int8)
