"""Shortest paths between the two copies of nodes, compiled for the CPU: see :mod:`blocklp.problems.qpbo.clusters`."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from blocklp.kernels.compiled import kernel

SECONDS = 4.0
"""What it takes to compile this loop, on a busy machine."""


@kernel()
def odd_cycles(
    begin: int, stop: int, starts: Any, first: Any, near: Any, same: Any, limit: float, tie: float, distance: Any, paths: Any
) -> None:
    """Dijkstra's algorithm from one copy of some nodes, until it reaches the other copy or the limit.

    Parameters
    ----------
    starts : (k,) int64
    first : (n + 1,) int64
        Where the neighbours of each node begin.
    near : (2 m,) int64
    same : (2 m,)
        Length of the way to the neighbour's copy on the same side; the one across is 1 less that.
    limit : float
        Paths of this length and more are not followed.
    tie : float
        Added to every length, so that of equal paths the one of fewer pairs is the shorter.
    distance : (k,)
        Written: the lengths, infinite where there is no path within the limit, or one too long for ``paths``.
    paths : (k, most) int32
        Written: the nodes after the first, -1 behind the last, which is the first again.
    """
    n = len(first) - 1
    reached, before = np.full(2 * n, np.inf), np.empty(2 * n, dtype=np.int64)
    for row in range(begin, stop):
        source = starts[row]
        target = source + n
        touched = [source]
        reached[source] = 0.0
        heap = [(0.0, source)]
        distance[row] = np.inf
        while len(heap) > 0:
            length, at = heapq.heappop(heap)
            if length > reached[at]:
                continue
            if at == target:
                distance[row] = length
                break
            side = n if at >= n else 0
            for q in range(first[at - side], first[at - side + 1]):
                for across in range(2):
                    to = near[q] + (side if across == 0 else n - side)
                    longer = length + tie + (1.0 - same[q] if across else same[q])
                    if longer < limit and longer < reached[to]:
                        if reached[to] == np.inf:
                            touched.append(to)
                        reached[to] = longer
                        before[to] = at
                        heapq.heappush(heap, (longer, to))
        if distance[row] < np.inf:
            count, at = 0, target
            while at != source:
                if count == paths.shape[1]:
                    distance[row] = np.inf
                    break
                paths[row, count] = at - n if at >= n else at
                count += 1
                at = before[at]
            paths[row, count:] = -1
        for at in touched:
            reached[at] = np.inf


def rehearse() -> None:
    """Compile the loop, for the types of arrays that searches give it."""
    first, near = np.array([0, 2, 4, 6]), np.array([1, 2, 0, 2, 0, 1])
    paths = np.empty((3, 8), dtype=np.int32)
    odd_cycles(3, np.arange(3), first, near, np.full(6, 0.5), 1.0, 1e-9, np.empty(3), paths)
