"""Minimisation by eliminating variables one after another: exact, in time and memory exponential in the width of the order.

Every variable's terms are added up in a table over its neighbours, which its minimum then joins (bucket elimination: R. Dechter,
Artificial Intelligence 113 (1999)).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from blocklp.deadline import Deadline
from blocklp.problems.qpbo.arrays import FloatArray, IntArray
from blocklp.problems.qpbo.instance import Qubo

WIDEST = 22
"""A table then has 4 million entries."""
PER_ENTRY = 1e-8
"""Seconds that it takes to add a table to another, for each entry, on a busy machine."""
PER_NEIGHBOUR = 3e-6
"""Seconds that it takes to write a neighbour down there."""


@dataclass(frozen=True)
class EliminationOrder:
    """An order of elimination.

    Attributes
    ----------
    variables : list of int
        The order.
    width : int
        Most neighbours at the time of elimination.
    work : float
        Entries of all tables.
    """

    variables: list[int]
    width: int
    work: float


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
    place = np.empty(qubo.n, dtype=np.int64)
    place[order.variables] = np.arange(qubo.n)
    buckets: list[list[tuple[tuple[int, ...], FloatArray]]] = [[((v,), np.array([0.0, c]))] for v, c in enumerate(qubo.linear)]
    for (a, b), p in zip(qubo.edges.tolist(), qubo.quadratic.tolist(), strict=True):
        first, second = (a, b) if place[a] < place[b] else (b, a)
        buckets[first].append(((first, second), np.array([[0.0, 0.0], [0.0, p]])))
    choices: list[tuple[int, tuple[int, ...], NDArray[np.uint8]]] = []
    for v in order.variables:
        scope = tuple(sorted({u for mine, _ in buckets[v] for u in mine}, key=lambda u: place[u]))
        if not deadline.affords(PER_ENTRY * 2.0 ** len(scope) * (len(buckets[v]) + 2)):
            return None
        table = np.zeros((2,) * len(scope))
        for mine, values in sorted(buckets[v], key=lambda entry: -entry[1].size):
            # Scopes are sorted by place, so axes are only to be inserted.
            table += values.reshape([2 if u in mine else 1 for u in scope])
        buckets[v] = []
        choices.append((v, scope[1:], np.packbits(table[1] < table[0])))
        if len(scope) > 1:
            buckets[scope[1]].append((scope[1:], np.minimum(table[0], table[1])))
    labels = np.zeros(qubo.n, dtype=np.int8)
    for v, others, packed in reversed(choices):
        position = 0
        for u in others:
            position = 2 * position + int(labels[u])
        labels[v] = (packed[position >> 3] >> (7 - (position & 7))) & 1
    return labels
