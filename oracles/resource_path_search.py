"""Walks within resources, block after block; :mod:`blocklp.oracles.resource_path_kernels` compiles them."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np


def label(
    first: int,
    last: int,
    ends: Any,
    out: Any,
    cost: Any,
    terminals: Any,
    resources: Any,
    memory: Any,
    used: Any,
    value: Any,
) -> None:
    """Cheapest walks by label setting with dominance (Desrochers and Soumis 1988).

    A label is a walk from the source: where it ends, what it has consumed, the nodes that it remembers and
    its cost. Labels are settled by rising sums of what they have consumed, so that those that might dominate
    one come before it.

    Parameters
    ----------
    first, last, ends, cost, terminals
        As in :func:`blocklp.oracles.path_search.walk`.
    out : tuple of ndarray
        ``(nodes + 1,)`` and ``(arcs,)`` int64: where the arcs of every node begin, by tail.
    resources : tuple of ndarray
        Consumption ``(blocks or 1, arcs, resources)``, least and largest amounts at each node
        ``(blocks or 1, nodes, resources)``, and the largest ones there with which another node may still be
        reached ``(blocks or 1, other nodes, nodes, resources)``, int64.
    memory : tuple of ndarray
        ``(nodes, words)`` int64 each: the bit of every node, and the bits of the nodes that walks remember
        there; without words walks remember nothing.
    used, value : ndarray
        ``(blocks, arcs)`` float64, all 0, and ``(blocks,)`` float64: written over by how often the walk takes
        each arc, and by its cost, infinite where there is none.
    """
    heads, (consumption, least, most, reach), (own, kept) = ends[1], resources, memory
    nodes, count, words = least.shape[1], consumption.shape[2], own.shape[1]
    room = 256
    at, before, via = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    spent, seen = np.empty((room, count), np.int64), np.empty((room, words), np.int64)
    total, dearer = np.empty(room), np.empty(room, np.int64)
    cheapest, now = np.empty(nodes, np.int64), np.empty(count, np.int64)
    for b in range(first, last):
        c, use = cost[b], consumption[b % len(consumption)]
        low, high = least[b % len(least)], most[b % len(most)]
        source, target = terminals[0][b], terminals[1][b]
        cheapest[:] = -1
        at[0], before[0], via[0], total[0] = source, -1, -1, 0.0
        spent[0], seen[0] = low[source], own[source]
        made, best, end, through = 1, np.inf, -1, -1
        heap = [(low[source].sum(), 0.0, 0)]
        while len(heap) > 0:
            k = heappop(heap)[2]
            # Settled labels of a node are kept by rising cost, so that only those before it might dominate.
            v, fits = at[k], True
            ahead, other = -1, cheapest[v]
            while other >= 0 and fits and total[other] <= total[k]:
                better = True
                for r in range(count):
                    better = better and spent[other, r] <= spent[k, r]
                for w in range(words):
                    better = better and (seen[other, w] & ~seen[k, w]) == 0
                fits = not better
                ahead, other = other, dearer[other]
            for r in range(count):
                fits = fits and spent[k, r] <= high[v, r]
            if not fits:
                continue
            dearer[k] = other
            if ahead < 0:
                cheapest[v] = k
            else:
                dearer[ahead] = k
            for i in range(out[0][v], out[0][v + 1]):
                a = out[1][i]
                h, along, amount = heads[a], total[k] + c[a], 0
                fits = along < np.inf
                for w in range(words):
                    fits = fits and (seen[k, w] & own[h, w]) == 0
                for r in range(count):
                    now[r] = max(low[h, r], spent[k, r] + use[a, r])
                    fits = fits and now[r] <= high[h, r]
                    amount += now[r]
                if not fits:
                    continue
                if h == target:
                    if along < best:
                        best, end, through = along, k, a
                    continue
                if made == len(at):
                    at, before = np.append(at, at), np.append(before, before)
                    via, total = np.append(via, via), np.append(total, total)
                    dearer = np.append(dearer, dearer)
                    spent, seen = np.concatenate((spent, spent)), np.concatenate((seen, seen))
                at[made], before[made], via[made], total[made] = h, k, a, along
                spent[made], seen[made] = now, seen[k]
                for w in range(words):
                    seen[made, w] = (seen[k, w] & kept[h, w]) | own[h, w]
                # Nodes that are out of reach need not be remembered.
                for u in range(nodes if words else 0):
                    for w in range(words):
                        if (seen[made, w] & own[u, w]) != 0:
                            for r in range(count):
                                if now[r] > reach[b % len(reach), u, h, r]:
                                    seen[made, w] &= ~own[u, w]
                heappush(heap, (amount, along, made))
                made += 1
        value[b] = best
        while end >= 0:
            used[b, through] += 1
            end, through = before[end], via[end]
