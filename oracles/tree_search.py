"""Cheapest trees and forests, block after block; :mod:`blocklp.oracles.tree_kernels` compiles them."""

from __future__ import annotations

from typing import Any

import numpy as np


def grow(
    first: int,
    last: int,
    ends: Any,
    order: Any,
    key: Any,
    cost: Any,
    nodes: Any,
    taken: Any,
    value: Any,
    feasible: Any,
) -> None:
    """Greedy forests: edges in an order of their keys, those that close no cycle (Kruskal 1956).

    Parameters
    ----------
    first, last : int
        The blocks, from ``first`` to before ``last``.
    ends : ndarray
        ``(2, edges)`` int64: the two ends of every edge.
    order : ndarray
        ``(blocks, edges)`` int64: edges by rising keys.
    key, cost : ndarray
        ``(blocks, edges)`` float64: what edges are sorted by, minus infinity where an edge must be taken,
        infinity where it must not; and what they cost.
    nodes : ndarray
        ``(nodes,)`` int64: the numbers of the nodes.
    taken, value, feasible : ndarray
        ``(blocks, edges)`` bool, all False, ``(blocks,)`` float64 and ``(blocks,)`` bool: written over by the
        edges of the forest, the sum of their costs in the order in which they are taken, and whether those
        that must be taken close no cycle.
    """
    tails, heads = ends[0], ends[1]
    above = np.empty(len(nodes), np.int64)
    for b in range(first, last):
        above[:] = nodes
        left = len(nodes) - 1
        value[b], feasible[b] = 0.0, True
        for e in order[b]:
            if key[b, e] == np.inf or (left == 0 and key[b, e] > -np.inf):
                break
            u, v = tails[e], heads[e]
            while above[u] != u:  # halving paths
                above[u] = above[above[u]]
                u = above[u]
            while above[v] != v:
                above[v] = above[above[v]]
                v = above[v]
            if u != v:
                # The root with the lower number stays.
                above[max(u, v)] = min(u, v)
                taken[b, e] = True
                value[b] += cost[b, e]
                left -= 1
            elif key[b, e] == -np.inf:
                feasible[b] = False
