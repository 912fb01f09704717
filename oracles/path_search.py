"""Cheapest paths and unit flows, block after block; :mod:`blocklp.oracles.path_kernels` compiles them."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np


def walk(
    first: int,
    last: int,
    ends: Any,
    order: Any,
    cost: Any,
    terminals: Any,
    taken: Any,
    price: Any,
) -> None:
    """Shortest paths of acyclic graphs by dynamic programming.

    Parameters
    ----------
    first, last : int
        The blocks, from ``first`` to before ``last``.
    ends : ndarray
        ``(2, arcs)`` int64: tails and heads.
    order : ndarray
        ``(arcs,)`` int64: arcs in a topological order of their tails.
    cost : ndarray
        ``(blocks, arcs)`` float64, infinite for masked arcs.
    terminals : tuple of ndarray
        ``(blocks,)`` int64 each: sources and targets.
    taken, price : ndarray
        ``(blocks, arcs)`` bool, all False, and ``(blocks, nodes)`` float64: written over by the arcs of the
        path and by the distances of the nodes from the source, infinite where there is no path.
    """
    tails, heads = ends[0], ends[1]
    source, target = terminals
    via = np.empty(price.shape[1], np.int64)
    for b in range(first, last):
        distance, c = price[b], cost[b]
        distance[:] = np.inf
        distance[source[b]] = 0.0
        for a in order:
            through = distance[tails[a]] + c[a]
            if through < distance[heads[a]]:
                distance[heads[a]], via[heads[a]] = through, a
        node = target[b]
        if distance[node] < np.inf:
            while node != source[b]:
                taken[b, via[node]] = True
                node = tails[via[node]]


def send(
    first: int,
    last: int,
    ends: Any,
    out: Any,
    into: Any,
    cost: Any,
    terminals: Any,
    taken: Any,
    price: Any,
    feasible: Any,
) -> None:
    """Cheapest unit flows with a capacity of one on every arc.

    Arcs of negative cost are filled; the imbalance of nodes is then sent along shortest augmenting paths, by
    Dijkstra's algorithm with potentials (Edmonds and Karp 1972).

    Parameters
    ----------
    first, last, ends, cost, terminals
        As in :func:`walk`.
    out, into : tuple of ndarray
        ``(nodes + 1,)`` and ``(arcs,)`` int64: where the arcs of every node begin, by tail and by head.
    taken, price, feasible : ndarray
        ``(blocks, arcs)`` bool, ``(blocks, nodes)`` float64 and ``(blocks,)`` bool: written over by the flow,
        potentials of the nodes, and whether there is such a flow.
    """
    tails, heads = ends[0], ends[1]
    source, target = terminals
    nodes, arcs = price.shape[1], cost.shape[1]
    rest, distance = np.empty(nodes, np.int64), np.empty(nodes)
    via, done = np.empty(nodes, np.int64), np.empty(nodes, np.bool_)
    for b in range(first, last):
        c, x, p = cost[b], taken[b], price[b]
        p[:], rest[:], feasible[b] = 0.0, 0, True
        rest[source[b]] += 1
        rest[target[b]] -= 1
        for a in range(arcs):
            x[a] = c[a] < 0
            if x[a]:
                rest[tails[a]] -= 1
                rest[heads[a]] += 1
        for start in range(nodes):
            while rest[start] > 0 and feasible[b]:
                distance[:], done[:] = np.inf, False
                distance[start], end = 0.0, -1
                heap = [(0.0, start)]
                while len(heap) > 0:
                    at, node = heappop(heap)
                    if done[node]:
                        continue
                    done[node] = True
                    if rest[node] < 0:
                        end = node
                        break
                    for i in range(out[0][node], out[0][node + 1]):
                        a = out[1][i]
                        if not x[a] and c[a] < np.inf:
                            through = at + max(c[a] + p[node] - p[heads[a]], 0.0)
                            if through < distance[heads[a]]:
                                distance[heads[a]], via[heads[a]] = through, a
                                heappush(heap, (through, heads[a]))
                    for i in range(into[0][node], into[0][node + 1]):
                        a = into[1][i]
                        if x[a]:
                            through = at + max(p[node] - c[a] - p[tails[a]], 0.0)
                            if through < distance[tails[a]]:
                                distance[tails[a]], via[tails[a]] = through, a
                                heappush(heap, (through, tails[a]))
                if end < 0:
                    feasible[b] = False
                    break
                for node in range(nodes):
                    if done[node]:
                        p[node] += distance[node] - distance[end]
                rest[start] -= 1
                rest[end] += 1
                node = end
                while node != start:
                    a = via[node]
                    x[a] = not x[a]
                    node = tails[a] if heads[a] == node else heads[a]
