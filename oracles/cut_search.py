"""Minimum cuts, block after block; :mod:`blocklp.oracles.cut_kernels` compiles them."""

from __future__ import annotations

from typing import Any

import numpy as np


def separate(
    first: int,
    last: int,
    ends: Any,
    out: Any,
    into: Any,
    cost: Any,
    capacity: Any,
    flow: Any,
    side: Any,
) -> None:
    """Largest flows and smallest cuts by blocking flows (Dinic 1970).

    Parameters
    ----------
    first, last, ends
        As in :func:`blocklp.oracles.path_search.walk`.
    out, into
        As in :func:`blocklp.oracles.path_search.send`.
    cost : ndarray
        ``(blocks, nodes)`` float64: what a node costs on the side of the sources; infinite where it must not
        be there, minus infinity where it must.
    capacity, flow : ndarray
        ``(blocks, arcs)`` float64: nonnegative capacities, which become the residual ones, and zeros, which
        become the flow.
    side : ndarray
        ``(blocks, nodes)`` bool: becomes True on the side of the sources.
    """
    tails, heads = ends[0], ends[1]
    nodes = cost.shape[1]
    level, at, queue = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    rest, path, ahead = np.empty(nodes), np.empty(nodes, np.int64), np.empty(nodes, np.bool_)
    for b in range(first, last):
        room, back = capacity[b], flow[b]
        for v in range(nodes):
            rest[v] = -cost[b, v]
        while True:
            # Levels of the nodes that can be reached from those with something to send.
            to_sink, many = False, 0
            for v in range(nodes):
                level[v], at[v] = -1, 0
                if rest[v] > 0:
                    level[v], queue[many] = 0, v
                    many += 1
            done = 0
            while done < many:
                v = queue[done]
                done += 1
                to_sink = to_sink or rest[v] < 0
                for i in range(out[0][v], out[0][v + 1]):
                    a = out[1][i]
                    if room[a] > 0 and level[heads[a]] < 0:
                        level[heads[a]], queue[many] = level[v] + 1, heads[a]
                        many += 1
                for i in range(into[0][v], into[0][v + 1]):
                    a = into[1][i]
                    if back[a] > 0 and level[tails[a]] < 0:
                        level[tails[a]], queue[many] = level[v] + 1, tails[a]
                        many += 1
            if not to_sink:
                break
            for start in range(nodes):
                while rest[start] > 0:
                    # A path to a node that takes something, one level after the other; ``path`` holds its
                    # arcs.
                    v, depth = start, 0
                    while rest[v] >= 0:
                        forward = out[0][v + 1] - out[0][v]
                        degree = forward + into[0][v + 1] - into[0][v]
                        following = -1
                        while at[v] < degree:
                            if at[v] < forward:
                                a = out[1][out[0][v] + at[v]]
                                following = heads[a] if room[a] > 0 else -1
                            else:
                                a = into[1][into[0][v] + at[v] - forward]
                                following = tails[a] if back[a] > 0 else -1
                            if following >= 0 and level[following] == level[v] + 1:
                                path[depth], ahead[depth] = a, at[v] < forward
                                break
                            following = -1
                            at[v] += 1
                        if following >= 0:
                            v, depth = following, depth + 1
                        elif depth == 0:
                            break
                        else:  # nothing leads on from here
                            depth -= 1
                            v = tails[path[depth]] if ahead[depth] else heads[path[depth]]
                            at[v] += 1
                    if rest[v] >= 0:
                        break
                    amount = min(rest[start], -rest[v])
                    for i in range(depth):
                        amount = min(amount, room[path[i]] if ahead[i] else back[path[i]])
                    rest[start] -= amount
                    rest[v] += amount
                    for i in range(depth):
                        sign = 1.0 if ahead[i] else -1.0
                        room[path[i]] -= sign * amount
                        back[path[i]] += sign * amount
        for v in range(nodes):
            side[b, v] = level[v] >= 0
