"""Depth-first search for heaviest independent sets with clique-cover bounds, compiled for the CPU.

A cover of the candidates by cliques bounds their heaviest set by the sum of the heaviest nodes of the cliques.  Candidates are
taken in the reverse order of the cover, so that each comes with the bound of itself and of all before it (P. Östergård 2002;
E. Tomita, T. Seki, DMTCS 2003, for cliques of the complement).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.compiled import compile


@compile(nogil=True, error_model="numpy")
def _cover(adjacent: Any, weights: Any, nodes: Any, count: int, order: Any, bounds: Any, used: Any) -> float:
    """Greedy clique cover; ``order[:count]`` lists nodes by clique, ``bounds`` what the ones up to each can weigh."""
    left = count
    for i in range(count):
        used[i] = False
    filled, total = 0, 0.0
    while left > 0:
        begin, heaviest = filled, 0.0
        for i in range(count):
            v = nodes[i]
            if used[i]:
                continue
            fits = True
            for j in range(begin, filled):
                if not adjacent[v, order[j]]:
                    fits = False
                    break
            if fits:
                used[i] = True
                order[filled] = v
                heaviest = max(heaviest, weights[v])
                bounds[filled] = total + heaviest
                filled += 1
                left -= 1
        total += heaviest
    return total


@compile(nogil=True, error_model="numpy")
def cover_bound(adjacent: Any, weights: Any, nodes: Any) -> Any:
    """Bound of the heaviest independent set of some nodes."""
    n = len(nodes)
    return _cover(adjacent, weights, nodes, n, np.empty(n, dtype=np.int64), np.empty(n), np.empty(n, dtype=np.bool_))


@compile(nogil=True, error_model="numpy")
def heaviest(adjacent: Any, weights: Any, nodes: Any, least: float, step: float, budget: int, members: Any) -> Any:
    """Search for a set heavier than ``least`` by ``step`` or more, in at most so many nodes of the tree.

    Parameters
    ----------
    adjacent : (n, n) bool
    weights : (n,)
    nodes : (n,) int64
        The candidates in their order: those of many neighbours first make better covers.
    members : (n,) bool
        Set to the best set found.

    Returns
    -------
    tuple
        Weight of the best set, or ``least``; whether the search came to its end; nodes of the tree.
    """
    n = len(nodes)
    order, bounds = np.empty((n + 1, n), dtype=np.int64), np.empty((n + 1, n))
    used, next_nodes = np.empty(n, dtype=np.bool_), np.empty(n, dtype=np.int64)
    place, chosen = np.zeros(n + 1, dtype=np.int64), np.empty(n + 1, dtype=np.int64)
    won = np.zeros(n + 1)
    rank = np.empty(n, dtype=np.int64)
    inside = np.zeros(n, dtype=np.bool_)
    for i in range(n):
        rank[nodes[i]] = i
    best, tree = least, 1
    _cover(adjacent, weights, nodes, n, order[0], bounds[0], used)
    depth, place[0] = 0, n - 1
    while depth >= 0:
        i = place[depth]
        if i < 0 or won[depth] + bounds[depth, i] < best + step:
            depth -= 1
            continue
        if tree >= budget:
            return best, False, tree
        place[depth] = i - 1
        v = order[depth, i]
        chosen[depth] = v
        weight = won[depth] + weights[v]
        # The candidates before it that it leaves, in the first order again.
        inside[:] = False
        for j in range(i):
            u = order[depth, j]
            if not adjacent[v, u]:
                inside[rank[u]] = True
        count = 0
        for j in range(n):
            if inside[j]:
                next_nodes[count] = nodes[j]
                count += 1
        tree += 1
        if weight >= best + step or (weight > best and count == 0):
            best = weight
            members[:] = False
            for j in range(depth + 1):
                members[chosen[j]] = True
        if count:
            depth += 1
            won[depth] = weight
            _cover(adjacent, weights, next_nodes, count, order[depth], bounds[depth], used)
            place[depth] = count - 1
    return best, True, tree


@compile(nogil=True, error_model="numpy")
def tabu_swaps(first: Any, neighbour: Any, weights: Any, inside: Any, rounds: int, patience: int, best: Any) -> float:
    """Tabu search by swaps of one node for its neighbours in the set (Q. Wu, J.-K. Hao, F. Glover, Annals of OR 196 (2012)).

    In every round the node enters that gains most, the one longest untouched among equals, and its neighbours leave; these may not
    return for some rounds.  A random node is forced in when the best set has not improved for ``patience`` rounds.

    Parameters
    ----------
    first, neighbour : (n + 1,), (2 m,)
        Neighbour lists.
    inside : (n,) bool
        An independent set, overwritten.
    best : (n,) bool
        Set to the best one met.

    Returns
    -------
    float
        Its weight.
    """
    n = len(weights)
    state = np.uint64(3037000493)
    loss, crowd = np.zeros(n), np.zeros(n, dtype=np.int64)
    until, moved = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    total = 0.0
    for v in range(n):
        if inside[v]:
            total += weights[v]
            for e in range(first[v], first[v + 1]):
                loss[neighbour[e]] += weights[v]
                crowd[neighbour[e]] += 1
    top, improved = total, 0
    best[:] = inside
    for t in range(1, rounds + 1):
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        number = np.int64(state >> np.uint64(33))
        chosen: Any = np.int64(-1)
        gain = -np.inf
        if t - improved > patience:
            chosen, improved = number % n, t
            if inside[chosen]:
                continue
        else:
            for v in range(n):
                if not inside[v] and (until[v] <= t or total + weights[v] - loss[v] > top):
                    mine = weights[v] - loss[v]
                    if mine > gain or (mine == gain and moved[v] < moved[chosen]):
                        chosen, gain = np.int64(v), mine
            if chosen < 0:
                continue
        v = chosen
        inside[v], moved[v] = True, t
        total += weights[v]
        for e in range(first[v], first[v + 1]):
            u = neighbour[e]
            loss[u] += weights[v]
            crowd[u] += 1
            if inside[u]:
                inside[u], moved[u] = False, t
                until[u] = t + 7 + number % 7
                total -= weights[u]
                for f in range(first[u], first[u + 1]):
                    w = neighbour[f]
                    crowd[w] -= 1
                    # Without neighbours in the set nothing is left of rounding.
                    loss[w] = loss[w] - weights[u] if crowd[w] else 0.0
        if total > top:
            top, improved = total, t
            best[:] = inside
    return top
