"""Depth-first search for heaviest independent sets with clique-cover bounds, compiled for the CPU.

A cover of the candidates by cliques bounds their heaviest set by the sum of the heaviest nodes of the cliques.  Candidates are
taken in the reverse order of the cover, so that each comes with the bound of itself and of all before it (P. Östergård 2002;
E. Tomita, T. Seki, DMTCS 2003, for cliques of the complement).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import compile

SECONDS = 30.0
"""What it takes to compile all of these loops, on a busy machine."""


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
    """Bound of the heaviest independent set of some nodes.

    Parameters
    ----------
    adjacent : (n, n)
        Whether nodes are adjacent.
    weights : (n,)
        Weights of all nodes.
    nodes : (k,)
        The nodes that count.
    """
    n = len(nodes)
    return _cover(adjacent, weights, nodes, n, np.empty(n, dtype=np.int64), np.empty(n), np.empty(n, dtype=np.bool_))


@compile(nogil=True, error_model="numpy")
def heaviest(
    adjacent: Any,
    weights: Any,
    nodes: Any,
    best: float,
    step: float,
    budget: int,
    depth: int,
    members: Any,
    order: Any,
    bounds: Any,
    place: Any,
    chosen: Any,
    won: Any,
) -> Any:
    """Search for a set heavier than ``best`` by ``step`` or more, for so many nodes of the tree; it can go on from there.

    Parameters
    ----------
    adjacent : (n, n) bool
    weights : (n,)
    nodes : (n,) int64
        The candidates in their order: those of many neighbours first make better covers.
    depth : int
        That of the tree at which to go on, -1 to begin.
    members : (n,) bool
        Set to the best set found.
    order, bounds, place, chosen, won : (n + 1, n) int64, (n + 1, n), (n + 1,) int64, (n + 1,) int64, (n + 1,)
        The open branch of the tree, kept from call to call.

    Returns
    -------
    tuple
        Weight of the best set, or the given one; the depth, -1 where the search came to its end; nodes of the tree.
    """
    n = len(nodes)
    used, next_nodes = np.empty(n, dtype=np.bool_), np.empty(n, dtype=np.int64)
    rank = np.empty(n, dtype=np.int64)
    inside = np.zeros(n, dtype=np.bool_)
    for i in range(n):
        rank[nodes[i]] = i
    tree = 0
    if depth < 0:
        _cover(adjacent, weights, nodes, n, order[0], bounds[0], used)
        depth, place[0], won[0] = 0, n - 1, 0.0
    while depth >= 0:
        i = place[depth]
        if i < 0 or won[depth] + bounds[depth, i] < best + step:
            depth -= 1
            continue
        if tree >= budget:
            return best, depth, tree
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
    return best, -1, tree


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


def rehearse() -> None:
    """Compile all loops, for the types of arrays that searches give them."""
    adjacent, weights, nodes = np.zeros((1, 1), dtype=np.bool_), np.ones(1), np.zeros(1, dtype=np.int64)
    weights.setflags(write=False)  # as those of graphs are
    cover_bound(adjacent, weights, nodes)
    heaviest(adjacent, weights, nodes, 0.0, 1.0, 1, -1, np.zeros(1, dtype=np.bool_), *branch(1))
    inside = np.zeros(1, dtype=np.bool_)
    tabu_swaps(np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64), weights, inside, 1, 1, inside.copy())


def branch(n: int) -> Any:
    """Arrays for the open branch of :func:`heaviest`."""
    sizes = np.zeros((n + 1, n), dtype=np.int64), np.zeros((n + 1, n))
    return (*sizes, np.zeros(n + 1, dtype=np.int64), np.zeros(n + 1, dtype=np.int64), np.zeros(n + 1))


vars(rehearse)["folder"] = heaviest.stats.cache_path  # beside which it is noted that they are compiled
