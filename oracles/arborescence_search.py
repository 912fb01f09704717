"""Cheapest arborescences, block after block; :mod:`blocklp.oracles.arborescence_kernels` compiles them."""

from __future__ import annotations

from typing import Any

import numpy as np


def contract(
    first: int,
    last: int,
    ends: Any,
    cost: Any,
    root: Any,
    price: Any,
    taken: Any,
    value: Any,
) -> None:
    """Cheapest arborescences by contracting cycles of cheapest arcs (Chu and Liu 1965, Edmonds 1967).

    Every set but that of the root takes its cheapest entering arc, whose reduced cost becomes its price;
    cycles of these become sets, until there are none. The prices prove the value, whatever their rounding.

    Parameters
    ----------
    first, last : int
        The blocks, from ``first`` to before ``last``.
    ends : ndarray
        ``(2, arcs)`` int64: tails and heads.
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
    within, above = np.empty(nodes, np.int64), np.empty(most, np.int64)
    best, mark, left = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(arcs)
    for b in range(first, last):
        y, sets, feasible = price[b], nodes, True
        left[:], above[:], best[:] = cost[b], none, -1
        for v in range(nodes):
            within[v] = v
        while feasible:
            top = within[root[b]]
            best[:sets] = np.where(above[:sets] == none, -1, best[:sets])
            for a in range(arcs):
                s = within[heads[a]]
                enters = s != top and s != within[tails[a]] and left[a] < np.inf
                if enters and (best[s] < 0 or left[a] < left[best[s]]):
                    best[s] = a
            mark[:sets] = -1
            for s in range(sets):
                if above[s] == none and s != top:
                    if best[s] < 0:
                        feasible = False
                        break
                    mark[s] = 0
            if not feasible:
                break
            for s in range(sets):
                if mark[s] == 0:
                    y[s] += left[best[s]]
            # Prices of a round are subtracted at once, so that all arcs into a set are rounded alike.
            for a in range(arcs):
                s = within[heads[a]]
                if s != top and s != within[tails[a]]:
                    left[a] -= left[best[s]] if a != best[s] else 0.0
            for s in range(sets):
                if mark[s] == 0:
                    left[best[s]] = 0.0
            before = sets
            for start in range(before):
                s = start
                while s < before and mark[s] == 0:
                    mark[s] = start + 1
                    s = within[tails[best[s]]]
                    while above[s] != none:
                        s = above[s]
                if s < before and mark[s] == start + 1 and above[s] == none and s != top:
                    while above[s] == none:
                        above[s] = sets
                        s = within[tails[best[s]]]
                    sets += 1
            if sets == before:
                break
            for v in range(nodes):
                while above[within[v]] != none:
                    within[v] = above[within[v]]
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
        # Arcs may be cheaper than the prices of the sets that they enter by what these are rounded by.
        total, size, short = 0.0, 0.0, 0.0
        for s in range(sets):
            total += y[s]
            size += abs(y[s])
        for a in range(arcs):
            if cost[b, a] == np.inf or heads[a] == root[b]:
                continue
            u, v, paid, terms, count = tails[a], heads[a], 0.0, abs(cost[b, a]), 4
            while u != v:
                if u < v:
                    u = above[u]
                else:
                    paid += y[v]
                    terms += abs(y[v])
                    v = above[v]
                    count += 1
            short += max(0.0, count * unit * terms + (paid - cost[b, a]))
        value[b] = total - short - (arcs + 4) * unit * short - (sets + 4) * unit * size
