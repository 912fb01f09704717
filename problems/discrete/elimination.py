"""Minimisation of a sum of tables by eliminating variables one after another: exact, in time and memory exponential in the width.

All tables that name a variable are added up in one over its neighbours, which its minimum then joins (bucket elimination: R. Dechter,
Artificial Intelligence 113 (1999)).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from blocklp.deadline import Deadline
from blocklp.problems.discrete.reduced import PackedBits, Rule, back_substituted
from blocklp.problems.qpbo.arrays import FloatArray, IntArray

PER_ENTRY = 1e-8
"""Seconds that it takes to add a table to another, for each entry, on a busy machine."""
PER_NEIGHBOUR = 3e-6
"""Seconds that it takes to write a neighbour of an order down there."""
WIDEST = 23
"""Neighbours at the time of elimination, at most: of two labels each, a table then has 16 million entries."""
FILLED = 2000
"""Most variables of an order by least fill."""


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
        Entries of all tables; infinite where the order was not pursued to its end.
    """

    variables: list[int]
    width: int
    work: float


def neighbour_sets(n: int, edges: IntArray) -> list[set[int]]:
    """Return the neighbours of each node.

    Parameters
    ----------
    n : int
        Number of nodes.
    edges : ndarray
        ``(m, 2)`` int64: pairs.
    """
    near: list[set[int]] = [set() for _ in range(n)]
    for a, b in edges.tolist():
        near[a].add(b)
        near[b].add(a)
    return near


def cheapest_order(
    counts: Sequence[int],
    edges: IntArray,
    affordable: float = math.inf,
    deadline: Deadline | None = None,
    rules: Sequence[str] = ("table", "band", "fill"),
) -> EliminationOrder:
    """Return the cheapest of the orders by the least table, by bandwidth, and by the least fill.

    One of more work than is affordable, wider than :data:`WIDEST`, or not ready at the deadline, has infinite work.

    Parameters
    ----------
    counts : sequence of int
        Labels of each variable.
    edges : ndarray
        ``(m, 2)`` int64: pairs of variables that some table names.
    affordable : float
        Entries of all tables above which an order is not pursued.
    deadline : Deadline, optional
        When orders must be ready.
    rules : sequence of {"table", "band", "fill"}
        Which orders; least fill is for up to :data:`FILLED` variables.
    """
    deadline = deadline or Deadline()
    orders = [_ordered(counts, edges, rule, affordable, deadline) for rule in rules if rule != "fill" or len(counts) <= FILLED]
    return min(orders, key=lambda order: order.work)


def _ordered(counts: Sequence[int], edges: IntArray, rule: str, affordable: float, deadline: Deadline) -> EliminationOrder:
    """Eliminate the variable of the least score next."""
    n = len(counts)
    if not deadline.affords(PER_NEIGHBOUR * (n + 2 * len(edges))):
        return EliminationOrder([], 0, math.inf)
    near, bits = neighbour_sets(n, edges), np.log2(counts).tolist()
    alike = len(set(bits)) == 1

    def table(v: int) -> float:
        return float((len(near[v]) + 1) * bits[v] if alike else sum([bits[a] for a in near[v]], bits[v]))

    def fill(v: int) -> float:
        around = near[v]
        return len(around) * (len(around) - 1) - sum([len(near[a] & around) for a in around])

    score: Callable[[int], float] = {"table": table, "fill": fill, "band": _by_bandwidth(n, edges)}[rule]
    scores: list[float] = []
    for v in range(n):
        if rule == "fill" and deadline.over():
            return EliminationOrder([], 0, math.inf)
        scores.append(score(v))
    # Scores that have changed since are passed over.
    heap = [(s, v) for v, s in enumerate(scores)]
    heapq.heapify(heap)
    order: list[int] = []
    width, work = 0, 0.0
    while len(order) < n:
        least, v = heapq.heappop(heap)
        if least != scores[v]:
            continue
        scores[v] = -math.inf  # of none
        around = near[v]
        width = max(width, len(around))
        if width > WIDEST or (work := work + 2.0 ** table(v)) > affordable or deadline.over():
            return EliminationOrder(order, width, math.inf)
        order.append(v)
        for a in around:
            near[a] |= around
            near[a] -= {a, v}
        if rule == "band":
            continue
        for a in around.union(*[near[a] for a in around]) if rule == "fill" else around:
            scores[a] = score(a)
            heapq.heappush(heap, (scores[a], a))
    return EliminationOrder(order, width, work)


def _by_bandwidth(n: int, edges: IntArray) -> Callable[[int], float]:
    """The place of each variable in an order of small bandwidth."""
    graph = coo_array((np.ones(len(edges)), edges.T), shape=(n, n)).tocsr()
    place = np.empty(n)
    place[reverse_cuthill_mckee((graph + graph.T).tocsr(), symmetric_mode=True)] = np.arange(n)
    return place.tolist().__getitem__


def aligned(scope: Sequence[int], table: FloatArray) -> tuple[Sequence[int], FloatArray]:
    """Return the variables of a table in ascending order, and the table with its axes in that order.

    Parameters
    ----------
    scope : sequence of int
        The variable of each axis.
    table : numpy.ndarray
        The table.
    """
    axes = sorted(range(len(scope)), key=scope.__getitem__)
    return [scope[k] for k in axes], table.transpose(axes)


def added(
    variables: Sequence[int], sizes: Sequence[int], shape: Sequence[int], tables: list[tuple[Sequence[int], FloatArray]]
) -> FloatArray:
    """Add up tables of some variables each.

    Parameters
    ----------
    variables : sequence of int
        Variables of the sum, ascending.
    sizes, shape : sequence of int
        Numbers of labels of all variables there are, and of those of the sum.
    tables : list of (sequence of int, ndarray)
        Tables, :func:`aligned`; they are sorted.
    """
    total = np.zeros(shape)
    tables.sort(key=lambda entry: -entry[1].size)
    for mine, table in tables:
        # Some axes are only to be inserted.
        total += table if len(mine) == len(shape) else table.reshape([sizes[j] if j in mine else 1 for j in variables])
    return total


def eliminate(
    counts: Sequence[int], factors: Iterable[tuple[Sequence[int], FloatArray]], order: EliminationOrder, deadline: Deadline
) -> IntArray | None:
    """Return a minimiser, or None where there is no time for the next table.

    Parameters
    ----------
    counts : sequence of int
        Labels of each variable.
    factors : iterable of (sequence of int, ndarray)
        Variables, one or more, and a table with an axis for each; entries may be infinite.
    order : EliminationOrder
        Which variables are eliminated one after the other.
    deadline : Deadline
        Asked before every table.

    Returns
    -------
    ndarray or None
        ``(variables,)`` int64.
    """
    # From here on variables are called by their places in the order.
    place = [0] * len(counts)
    for number, v in enumerate(order.variables):
        place[v] = number
    sizes = [counts[v] for v in order.variables]
    buckets: list[list[tuple[Sequence[int], FloatArray]]] = [[] for _ in sizes]
    for scope, table in factors:
        mine: Sequence[int] = [place[j] for j in scope]
        if len(mine) > 2 or mine[0] > mine[-1]:
            mine, table = aligned(mine, table)
        buckets[mine[0]].append((mine, table))
    rules: list[Rule] = []
    for i, own in enumerate(buckets):
        variables = sorted({i}.union(*[mine for mine, _ in own]))
        shape, others = [sizes[j] for j in variables], variables[1:]
        if not deadline.affords(PER_ENTRY * math.prod(shape) * (len(own) + 2)):
            return None
        total = added(variables, sizes, shape, own)
        own.clear()
        if sizes[i] == 2:
            first, second = total
            rules.append((i, others, PackedBits(second < first)))
            least = np.minimum(first, second)
        else:
            rules.append((i, others, total.argmin(0).astype(np.min_scalar_type(sizes[i])).ravel()))
            least = total.min(0)
        if others:
            buckets[others[0]].append((others, least))
    labels = np.zeros(len(counts), dtype=np.int64)
    labels[order.variables] = back_substituted([0] * len(counts), sizes, rules)
    return labels
