"""Cheapest transports, block after block; :mod:`blocklp.oracles.transport_kernels` compiles them."""

from __future__ import annotations

from typing import Any

import numpy as np


def send(first: int, last: int, cost: Any, sources: Any, sinks: Any, flow: Any, price: Any) -> None:
    r"""Send all of every source to sinks by shortest augmenting paths.

    Paths are found by Dijkstra's algorithm with potentials (Tomizawa 1971; Edmonds and Karp 1972), on dense
    costs.

    Parameters
    ----------
    first, last : int
        The blocks, from ``first`` to before ``last``.
    cost : ndarray
        ``(blocks, n, k)`` float64.
    sources, sinks : ndarray
        ``(blocks, n)`` and ``(blocks, k)`` int64, nonnegative, with one sum.
    flow, price : ndarray
        ``(blocks, n, k)`` int64, zero, and ``(blocks, n)`` float64: written over by the flow and the
        potentials of the sources, with :math:`\min_i c_{ij} + p_i` those of the sinks.
    """
    n, k = cost.shape[1], cost.shape[2]
    high, distance, reached = np.empty(k), np.empty(k), np.empty(n)
    before, entered = np.empty(k, np.int64), np.empty(n, np.int64)
    done, queue = np.empty(k, np.bool_), np.empty(n, np.int64)
    for b in range(first, last):
        c, x, p, left = cost[b], flow[b], price[b], sinks[b].copy()
        p[:] = 0.0
        for j in range(k):
            high[j] = c[:, j].min()
        for i in range(n):
            rest = sources[b, i]
            while rest > 0:
                distance[:], done[:], entered[:] = np.inf, False, -2
                entered[i], reached[i], queue[0], many, at = -1, 0.0, i, 1, 0.0
                while True:
                    for number in range(many):
                        row = queue[number]
                        for j in range(k):
                            if not done[j]:
                                through = at + max(c[row, j] + p[row] - high[j], 0.0)
                                if through < distance[j]:
                                    distance[j], before[j] = through, row
                    target = -1
                    for j in range(k):
                        if not done[j] and (target < 0 or distance[j] < distance[target]):
                            target = j
                    done[target], at, many = True, distance[target], 0
                    if left[target] > 0:
                        break
                    for row in range(n):
                        if entered[row] == -2 and x[row, target] > 0:
                            entered[row], reached[row], queue[many] = target, at, row
                            many += 1
                for row in range(n):
                    if entered[row] > -2:
                        p[row] += reached[row] - at
                for j in range(k):
                    if done[j]:
                        high[j] += distance[j] - at
                amount, row = min(rest, left[target]), before[target]
                while row != i:
                    amount = min(amount, x[row, entered[row]])
                    row = before[entered[row]]
                rest -= amount
                left[target] -= amount
                j, row = target, before[target]
                while row != i:
                    x[row, j] += amount
                    j = entered[row]
                    x[row, j] -= amount
                    row = before[j]
                x[i, j] += amount
