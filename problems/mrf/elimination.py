"""Minimisation of a discrete energy by eliminating variables one after another, that of the least table next."""

from __future__ import annotations

import heapq

import numpy as np

from blocklp.deadline import Deadline
from blocklp.problems.elimination import EliminationOrder, eliminate
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.qpbo.arrays import IntArray

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
    return eliminate(mrf.counts.tolist(), mrf.factors, order, deadline)
