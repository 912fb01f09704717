"""Chordless cycles of the graph of pair factors, the candidates of tightening."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import networkx
import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.marginals import Scope
from blocklp.problems.qpbo.arrays import IntArray
from blocklp.problems.qpbo.clusters import Pairs

LARGEST = 1024
"""Joint labels of a cycle at most."""

MOST = 200_000
"""Cycles of a length that are listed."""

LONGEST = 8
"""Variables of a cycle at most, where there are none of three or four."""

WEDGES, LOOKED_AT = 500_000, 50_000_000
"""Paths of two edges, or pairs of these, that are looked at between two looks at the clock, and in all."""


def cycles(mrf: Mrf, largest: int = LARGEST, *, time_limit: float | bl.Deadline = math.inf) -> list[Scope]:
    """List chordless cycles of the graph of pair factors as sets of variables, the shortest first.

    Cycles of three and four variables; where there are none, those of up to eight.

    Parameters
    ----------
    mrf : Mrf
        The energy.
    largest : int
        Joint labels of a cycle at most.
    time_limit : float or Deadline
        Seconds; those found by then are returned.
    """
    deadline = bl.Deadline.of(time_limit)
    edges = np.concatenate([group.scopes for group in mrf.groups if group.order == 2] or [np.zeros((0, 2), dtype=np.int64)])
    pairs = Pairs(mrf.n, torch.from_numpy(edges[:, 0] * mrf.n + edges[:, 1]).sort().values, torch.zeros(len(edges)))
    found = _Found(mrf.counts, largest), _Found(mrf.counts, largest)
    triangles, four_cycles = found
    for a, b, c in _paths(pairs):
        joined = pairs.find(a, c)[1]
        closing = joined & (b < c)
        triangles.add(torch.stack([a[closing], b[closing], c[closing]], 1))
        for some in _four_cycles(pairs, a[~joined], b[~joined], c[~joined]):
            four_cycles.add(some)
            if four_cycles.enough or deadline.over():
                break
        if (triangles.enough and four_cycles.enough) or deadline.over():
            break
    return triangles.scopes() + four_cycles.scopes() or _long_cycles(mrf, edges, largest, deadline)


class _Found:
    """Cycles of one length."""

    def __init__(self, counts: IntArray, largest: int) -> None:
        self._counts, self._largest, self._cycles, self._looked_at = counts, largest, list[IntArray](), 0

    def add(self, cycles: Tensor) -> None:
        sets = np.sort(cycles.numpy(), 1)
        self._cycles.append(sets[self._counts[sets].astype(float).prod(1) <= self._largest])
        self._looked_at += WEDGES

    @property
    def enough(self) -> bool:
        return sum(map(len, self._cycles)) >= MOST or self._looked_at >= LOOKED_AT

    def scopes(self) -> list[Scope]:
        return sorted(map(tuple, np.concatenate(self._cycles).tolist()))[:MOST] if self._cycles else []


def _paths(pairs: Pairs) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Paths a - b - c whose first variable is the least, all of some first variables at a time."""
    near = pairs.adjacency
    ends = torch.zeros(pairs.n, dtype=torch.long).index_add(0, near.owner, near.degree[near.neighbour]).cumsum(0)
    begin = 0
    while begin < pairs.n:
        end = _piece(ends, begin)
        first = torch.arange(begin, end)
        position, entry = near.expand(first)
        a, b = first[position], near.neighbour[entry]
        a, b = a[b > a], b[b > a]
        position, entry = near.expand(b)
        a, b, c = a[position], b[position], near.neighbour[entry]
        yield a[c > a], b[c > a], c[c > a]
        begin = end


def _piece(ends: Tensor, begin: int) -> int:
    """Where what begins somewhere has as much to look at as one piece may, by sums from the start; one item at least."""
    before = int(ends[begin - 1]) if begin else 0
    return max(begin + 1, int(torch.searchsorted(ends, before + WEDGES, right=True)))


def _four_cycles(pairs: Pairs, a: Tensor, b: Tensor, c: Tensor) -> Iterator[Tensor]:
    """Cycles of two paths a - b - c between the same ends, without a chord between their middles."""
    order = (a * pairs.n + c).argsort(stable=True)
    a, b, c = a[order], b[order], c[order]
    _, sizes = torch.unique_consecutive(a * pairs.n + c, return_counts=True)
    start = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    rank = torch.arange(len(a)) - start  # each path goes with those of its ends before it
    begin, ends = 0, rank.cumsum(0)
    while begin < len(a):
        end = _piece(ends, begin)
        own = torch.arange(begin, end)
        second = torch.repeat_interleave(own, rank[own])
        first = start[second] + torch.arange(len(second)) - (ends[second] - rank[second] - ends[begin] + rank[begin])
        open_ = ~pairs.find(b[first], b[second])[1]
        first, second = first[open_], second[open_]
        yield torch.stack([a[first], b[first], c[first], b[second]], 1)
        begin = end


def _long_cycles(mrf: Mrf, edges: IntArray, largest: int, deadline: bl.Deadline) -> list[Scope]:
    """Cycles of any length up to the longest."""
    small: set[Scope] = set()
    graph = networkx.Graph(edges.tolist())
    for c in itertools.islice(networkx.chordless_cycles(graph, length_bound=LONGEST), MOST):
        if deadline.over():
            break
        if len(c) > 2 and np.prod(mrf.counts[c].astype(float)) <= largest:
            small.add(tuple(sorted(c)))
    return sorted(small, key=lambda c: (len(c), c))
