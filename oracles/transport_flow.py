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
    high, distance, reached, done = np.empty(k), np.empty(k), np.empty(n), np.empty(k)
    before, entered, cheapest = np.empty(k, np.int64), np.empty(n, np.int64), np.empty(k, np.int64)
    queue, rests, sent = np.empty(n, np.int64), np.empty(n, np.int64), np.empty((k, n), np.int64)
    for b in range(first, last):
        c, p, left = cost[b], price[b], sinks[b].copy()
        p[:], high[:], cheapest[:], sent[:], rests[:] = 0.0, c[0], 0, 0, sources[b]
        for i in range(1, n):
            for j in range(k):
                if c[i, j] < high[j]:
                    high[j], cheapest[j] = c[i, j], i
        for j in range(k):  # every sink is served by its cheapest source first
            i = cheapest[j]
            amount = min(rests[i], left[j])
            sent[j, i], rests[i], left[j] = amount, rests[i] - amount, left[j] - amount
        for i in range(n):
            while rests[i] > 0:
                distance[:], done[:], before[:], entered[:] = np.inf, 0.0, i, -2
                entered[i], reached[i], queue[0], many, at = -1, 0.0, i, 1, 0.0
                while True:
                    for number in range(many):
                        row = queue[number]
                        costs, shift = c[row], p[row]
                        for j in range(k):  # sinks that are done are no farther than this
                            through = at + max(costs[j] + shift - high[j], 0.0)
                            nearer = through < distance[j]
                            distance[j] = through if nearer else distance[j]
                            before[j] = row if nearer else before[j]
                    target, nearest = -1, np.inf
                    for j in range(k):
                        if distance[j] + done[j] < nearest:
                            target, nearest = j, distance[j] + done[j]
                    if target < 0:  # costs are beyond all numbers
                        target = int(np.argmin(done))
                    done[target], at, many = np.inf, distance[target], 0
                    if left[target] > 0:
                        break
                    own = sent[target]
                    for row in range(n):
                        if own[row] > 0 and entered[row] == -2:
                            entered[row], reached[row], queue[many] = target, at, row
                            many += 1
                for row in range(n):
                    if entered[row] > -2:
                        p[row] += reached[row] - at
                for j in range(k):
                    if done[j] > 0:
                        high[j] += distance[j] - at
                amount, row = min(rests[i], left[target]), before[target]
                while row != i:
                    amount = min(amount, sent[entered[row], row])
                    row = before[entered[row]]
                rests[i] -= amount
                left[target] -= amount
                j, row = target, before[target]
                while row != i:
                    sent[j, row] += amount
                    j = entered[row]
                    sent[j, row] -= amount
                    row = before[j]
                sent[j, i] += amount
        for i in range(n):
            for j in range(k):
                flow[b, i, j] = sent[j, i]
