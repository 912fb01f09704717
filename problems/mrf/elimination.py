"""Minimisation of a discrete energy by eliminating variables: exact, in time and memory exponential in the width of the order.

As :mod:`blocklp.problems.qpbo.elimination`, for tables of any shape (bucket elimination: R. Dechter, Artificial Intelligence 113
(1999)).
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from blocklp.deadline import Deadline
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.qpbo.arrays import FloatArray, IntArray
from blocklp.problems.qpbo.elimination import PER_ENTRY, EliminationOrder

WIDEST = 24
"""Variables of a table."""


def cheapest_order(mrf: Mrf, affordable: float, deadline: Deadline | None = None) -> EliminationOrder:
    """Eliminate the variable of the least table next.

    Parameters
    ----------
    mrf : Mrf
        The energy.
    affordable : float
        Entries above which an order is not pursued.
    deadline : Deadline, optional
        No order is pursued beyond.

    Returns
    -------
    EliminationOrder
        Cut short, and of infinite work, where that would be too much.
    """
    near: list[set[int]] = [set() for _ in range(mrf.n)]
    for a, b in mrf.edges.tolist():
        near[a].add(b)
        near[b].add(a)
    logs = np.log(mrf.counts)

    def size(i: int) -> float:
        return float(logs[i] + sum(logs[j] for j in near[i]))

    sizes = [size(i) for i in range(mrf.n)]
    # Sizes that have changed since are passed over.
    heap = [(s, i) for i, s in enumerate(sizes)]
    heapq.heapify(heap)
    order: list[int] = []
    width, work = 0, 0.0
    while len(order) < mrf.n:
        least, i = heapq.heappop(heap)
        if least != sizes[i]:
            continue
        sizes[i] = -1.0  # of none
        width, work = max(width, len(near[i])), work + float(np.exp(least))
        if work > affordable or len(near[i]) >= WIDEST or (deadline is not None and deadline.over()):
            return EliminationOrder(order, width, np.inf)
        order.append(i)
        for j in near[i]:
            near[j] |= near[i]
            near[j] -= {i, j}
        for j in near[i]:
            sizes[j] = size(j)
            heapq.heappush(heap, (sizes[j], j))
    return EliminationOrder(order, width, work)


def minimise_by_elimination(mrf: Mrf, order: EliminationOrder, deadline: Deadline) -> IntArray | None:
    """Return a minimiser, or None where there is no time for the next table.

    Its energy is infinite where no labelling respects the hard constraints.

    Parameters
    ----------
    mrf : Mrf
        The model.
    order : EliminationOrder
        Which variables are eliminated one after the other.
    deadline : Deadline
        Asked before every table.
    """
    place = np.empty(mrf.n, dtype=np.int64)
    place[order.variables] = np.arange(mrf.n)
    buckets: list[list[tuple[tuple[int, ...], FloatArray]]] = [[] for _ in range(mrf.n)]

    def put(scope: tuple[int, ...], table: FloatArray) -> None:
        """Into the bucket of its first variable in the order, its axes in that order too."""
        by_place = np.argsort(place[list(scope)])
        scope = tuple(scope[k] for k in by_place)
        buckets[scope[0]].append((scope, table.transpose(by_place)))

    for scope, table in mrf.factors:
        put(scope, table)
    choices: list[tuple[int, tuple[int, ...], IntArray]] = []
    for i in order.variables:
        scope = tuple(sorted({i}.union(*(mine for mine, _ in buckets[i])), key=lambda j: place[j]))
        if not deadline.affords(PER_ENTRY * math.prod(mrf.counts[j] for j in scope) * (len(buckets[i]) + 2)):
            return None
        total = np.zeros([mrf.counts[j] for j in scope])
        for mine, table in buckets[i]:
            total += table.reshape([mrf.counts[j] if j in mine else 1 for j in scope])
        buckets[i] = []
        choices.append((i, scope[1:], total.argmin(0).astype(np.min_scalar_type(len(total)))))
        if len(scope) > 1:
            put(scope[1:], total.min(0))
    labels = np.zeros(mrf.n, dtype=np.int64)
    for i, others, best in reversed(choices):
        labels[i] = best[tuple(labels[list(others)])]
    return labels
