"""Cheapest arborescences, block after block; :mod:`blocklp.oracles.arborescence_kernels` compiles them."""

from __future__ import annotations

from typing import Any

import numpy as np


def contract(
    first: int,
    last: int,
    ends: Any,
    order: Any,
    cost: Any,
    root: Any,
    price: Any,
    taken: Any,
    value: Any,
) -> None:
    """Cheapest arborescences by contracting cycles of cheapest arcs (Chu and Liu 1965, Edmonds 1967).

    A path of sets grows backwards along cheapest entering arcs, whose reduced costs become the prices of
    sets, until it comes to the root or to a tree that it leads to; a cycle becomes a set. The arcs that enter
    a set are a skew heap (Tarjan 1977; Gabow, Galil, Spencer and Tarjan 1986). The prices prove the value,
    whatever their rounding.

    Parameters
    ----------
    first, last, ends
        As in :func:`blocklp.oracles.path_search.walk`.
    order : ndarray
        ``(blocks, arcs)`` int64: arcs by their heads, those of each by rising cost.
    cost : ndarray
        ``(blocks, arcs)`` float64, infinite for masked arcs.
    root : ndarray
        ``(blocks,)`` int64: roots.
    price : ndarray
        ``(blocks, 2 * nodes)`` float64, all 0: written over by the prices of nodes and, after them, of sets.
    taken, value : ndarray
        ``(blocks, arcs)`` bool, all False, and ``(blocks,)`` float64: written over by the arcs of the
        arborescence, and by a lower bound on its cost, infinite where there is none.
    """
    tails, heads = ends[0], ends[1]
    arcs, most, unit = cost.shape[1], price.shape[1], 2.0**-50
    nodes, none = most // 2, most
    # Heaps: children of arcs, their reduced costs, and what is to be added to those of all below.
    one, other = np.empty(arcs, np.int64), np.empty(arcs, np.int64)
    key, later, heap = np.empty(arcs), np.empty(arcs), np.empty(most, np.int64)
    # Sets: the set above in the order of contractions, one on the way to the topmost, the arc that enters.
    above, within, best = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    state, path, parts = np.empty(most, np.int64), np.empty(nodes, np.int64), np.empty(2 * most, np.int64)
    around, large, level = np.empty(most), np.empty(most), np.empty(most, np.int64)
    for b in range(first, last):
        y, sets, feasible = price[b], nodes, True
        key[:], later[:], one[:], other[:] = cost[b], 0.0, -1, -1
        above[:], heap[:], state[:] = none, -1, 0
        for s in range(most):
            within[s] = s
        for i in range(arcs - 1, -1, -1):
            a = order[b, i]
            one[a], heap[heads[a]] = heap[heads[a]], a
        state[root[b]] = 2
        for start in range(nodes):
            if state[start] != 0 or above[start] != none or not feasible:
                continue
            s, depth, count = start, 0, 1
            parts[0] = heap[start]
            while True:
                while count > 1:  # merge two heaps into one
                    p, q, bottom, top = parts[count - 1], parts[count - 2], -1, -1
                    while p >= 0 and q >= 0:
                        if key[q] < key[p] or (key[q] == key[p] and q < p):
                            p, q = q, p
                        for child in (one[p], other[p]):
                            if child >= 0:
                                key[child] += later[p]
                                later[child] += later[p]
                        later[p] = 0.0
                        if bottom < 0:
                            top = p
                        else:
                            one[bottom] = p
                        bottom, p = p, other[p]
                        other[bottom], one[bottom] = one[bottom], -1
                    rest = p if p >= 0 else q
                    if bottom < 0:
                        top = rest
                    else:
                        one[bottom] = rest
                    count -= 1
                    parts[count - 1] = top
                a = parts[0]
                if a < 0 or key[a] == np.inf:
                    feasible = False
                    break
                u = tails[a]
                while within[u] != u:  # halving paths
                    within[u] = within[within[u]]
                    u = within[u]
                paid = 0.0 if u == s else key[a]
                for child in (one[a], other[a]):
                    if child >= 0:
                        key[child] += later[a] - paid
                        later[child] += later[a] - paid
                parts[0], parts[1], count = one[a], other[a], 2
                if u == s:
                    continue
                best[s], y[s], heap[s] = a, key[a], a
                path[depth], state[s], depth = s, 1, depth + 1
                if state[u] == 2:
                    break
                if state[u] == 0:
                    s, parts[0], count = u, heap[u], 1
                    continue
                count = 0
                while True:  # a cycle
                    depth -= 1
                    s = path[depth]
                    above[s], within[s] = sets, sets
                    parts[count], parts[count + 1], count = one[heap[s]], other[heap[s]], count + 2
                    if s == u:
                        break
                s, sets = sets, sets + 1
            for i in range(depth):
                state[path[i]] = 2
        if not feasible:
            value[b] = np.inf
            continue
        for s in range(sets - 1, -1, -1):
            if s >= nodes:
                v = heads[best[s]]
                while above[v] != s:
                    v = above[v]
                best[v] = best[s]
            elif s != root[b]:
                taken[b, best[s]] = True
        for s in range(nodes, sets):
            y[s] = max(y[s], 0.0)
        # Arcs may be cheaper than the prices of the sets that they enter by what these are rounded by; not
        # those that cost more than all sets around their heads.
        total, size, short = 0.0, 0.0, 0.0
        for s in range(sets - 1, -1, -1):
            total += y[s]
            size += abs(y[s])
            around[s], large[s], level[s] = y[s], abs(y[s]), 6
            if above[s] != none:
                around[s] += around[above[s]]
                large[s] += large[above[s]]
                level[s] += level[above[s]] - 5
        for a in range(arcs):
            c, u, v = cost[b, a], tails[a], heads[a]
            if c == np.inf or v == root[b] or around[v] + 2 * level[v] * unit * (abs(c) + large[v]) <= c:
                continue
            paid, terms, count = 0.0, abs(c), 4
            while u != v:
                if u < v:
                    u = above[u]
                else:
                    paid += y[v]
                    terms += abs(y[v])
                    v = above[v]
                    count += 1
            short += max(0.0, count * unit * terms + (paid - c))
        value[b] = total - short - (arcs + 4) * unit * short - (sets + 4) * unit * size
