"""Depth-first search for heaviest independent sets with clique-cover bounds, and tabu search, compiled for the CPU.

Sets of nodes are rows of 64-bit words, so that a clique of the cover grows by one operation for 64 nodes (P. San Segundo,
D. Rodríguez-Losada, A. Jiménez, An exact bit-parallel algorithm for the maximum clique problem, Computers & Operations Research 38
(2011), for cliques of the complement).  The weight of a clique is the least that is left of its nodes' weights, and the rest of
these is for later cliques: a heaviest set takes at most one node of each, so that it weighs no more than all cliques together
(S. Held, W. Cook, E. Sewell, Maximum-weight stable sets and safe lower bounds for graph coloring, Mathematical Programming
Computation 4 (2012)).  Without weights that is a greedy cover by disjoint cliques.  A node is covered once nothing of its weight is
left; nodes are taken in the reverse of that order, each with the bound of itself and of all covered before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blocklp.kernels.compiled import compile

SECONDS = 30.0
"""What it takes to compile all of these loops, on a busy machine."""

ONE, SEQUENCE, SHIFT = np.uint64(1), np.uint64(0x03F79D71B4CB0A89), np.uint64(58)
"""A de Bruijn sequence: the upper six bits of its multiple by a power of two tell which power that is."""
PLACES = np.zeros(64, dtype=np.int64)
PLACES[[((int(SEQUENCE) << place) % 2**64) >> 58 for place in range(64)]] = np.arange(64)


@compile(nogil=True, error_model="numpy")
def _lowest(word: Any) -> Any:
    """Place of the lowest bit that is set."""
    return PLACES[np.int64(((word & (~word + ONE)) * SEQUENCE) >> SHIFT)]


@compile(nogil=True, error_model="numpy")
def _cover(adjacent: Any, weights: Any, nodes: Any, left: Any, open: Any, rest: Any, clique: Any, order: Any, bounds: Any) -> Any:
    """Greedy weighted clique cover of ``nodes`` (words,): returns how many these are.

    ``order`` lists them as they are covered, ``bounds`` has what cliques weigh together by then.
    ``left``, ``open`` (words,), ``rest`` and ``clique`` (n,) are overwritten.
    """
    words = len(nodes)
    for k in range(words):
        left[k] = nodes[k]
        word = nodes[k]
        while word:
            v = 64 * k + _lowest(word)
            rest[v] = weights[v]
            word &= word - ONE
    covered, total = 0, 0.0
    while True:
        open[:] = left
        size, least = 0, np.inf
        k = 0
        while k < words:
            word = open[k]
            if not word:
                k += 1
                continue
            v = 64 * k + _lowest(word)
            clique[size] = v
            size += 1
            least = min(least, rest[v])
            open[k] = word & (word - ONE)
            for j in range(k, words):
                open[j] &= adjacent[v, j]
        if size == 0:
            return covered
        total += least
        for c in range(size):
            v = clique[c]
            rest[v] -= least
            if rest[v] <= 0.0:
                left[v >> 6] &= ~(ONE << np.uint64(v & 63))
                order[covered], bounds[covered] = v, total
                covered += 1


@compile(nogil=True, error_model="numpy")
def cover_bound(adjacent: Any, weights: Any) -> Any:
    """Bound of the heaviest independent set of a graph.

    Parameters
    ----------
    adjacent : (n, words) uint64
        The neighbours of every node: bit ``v % 64`` of word ``v // 64`` stands for node v.
    weights : (n,)
        Whole numbers, not negative.
    """
    n, words = adjacent.shape
    nodes, left, open = np.zeros(words, dtype=np.uint64), np.zeros(words, dtype=np.uint64), np.zeros(words, dtype=np.uint64)
    for v in range(n):
        nodes[v >> 6] |= ONE << np.uint64(v & 63)
    bounds, places = np.zeros(n), np.zeros(n, dtype=np.int64)
    _cover(adjacent, weights, nodes, left, open, np.zeros(n), np.zeros(n, dtype=np.int64), places, bounds)
    return bounds[n - 1]


@compile(nogil=True, error_model="numpy")
def heaviest(
    adjacent: Any,
    weights: Any,
    best: float,
    step: float,
    budget: int,
    depth: int,
    members: Any,
    nodes: Any,
    order: Any,
    bounds: Any,
    place: Any,
    chosen: Any,
    won: Any,
) -> Any:
    """Search for a set heavier than ``best`` by ``step`` or more, for so many nodes of the tree; it can go on from there.

    Parameters
    ----------
    adjacent : (n, words) uint64
        The neighbours of every node, in an order of nodes in which covers are good: :func:`ordered`.
    weights : (n,)
        Whole numbers, not negative.
    depth : int
        That of the tree at which to go on, -1 to begin.
    members : (n,) bool
        Set to the best set found.
    nodes, order, bounds, place, chosen, won : arrays
        The open branch of the tree, kept from call to call: those of :func:`branch`.

    Returns
    -------
    tuple
        Weight of the best set, or the given one; the depth, -1 where the search came to its end; nodes of the tree.
    """
    n, words = adjacent.shape
    left, open = np.zeros(words, dtype=np.uint64), np.zeros(words, dtype=np.uint64)
    rest, clique = np.zeros(n), np.zeros(n, dtype=np.int64)
    tree = 0
    if depth < 0:
        nodes[0] = np.uint64(0)
        for v in range(n):
            nodes[0, v >> 6] |= ONE << np.uint64(v & 63)
        depth, won[0] = 0, 0.0
        place[0] = _cover(adjacent, weights, nodes[0], left, open, rest, clique, order[0], bounds[0]) - 1
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
        # The node is tried once, and what it leaves are the nodes before it that are no neighbours.
        nodes[depth, v >> 6] &= ~(ONE << np.uint64(v & 63))
        empty = True
        for k in range(words):
            nodes[depth + 1, k] = nodes[depth, k] & ~adjacent[v, k]
            empty = empty and not nodes[depth + 1, k]
        tree += 1
        if weight >= best + step or (weight > best and empty):
            best = weight
            members[:] = False
            for j in range(depth + 1):
                members[chosen[j]] = True
        if not empty:
            depth += 1
            won[depth] = weight
            count = _cover(adjacent, weights, nodes[depth], left, open, rest, clique, order[depth], bounds[depth])
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


def ordered(n: int, edges: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return an order of the nodes for :func:`heaviest`, and their neighbours as bits, in that order.

    The last node is one of most neighbours, the one before it is one of most among the others, and so on: nodes that are in few
    cliques are covered first.

    Parameters
    ----------
    n, edges : int, ndarray
        Number of nodes, and ``(m, 2)`` int64.

    Returns
    -------
    order, adjacent : ndarray
        ``(n,)`` int64, the nodes, and ``(n, words)`` uint64.
    """
    near = np.zeros((n, n), dtype=bool)
    near[edges[:, 0], edges[:, 1]] = near[edges[:, 1], edges[:, 0]] = True
    degree, order = near.sum(1), np.empty(n, dtype=np.int64)
    for last in range(n - 1, -1, -1):
        order[last] = chosen = int(degree.argmax())
        degree -= near[chosen]
        degree[chosen] = -1 - n
    bits = np.zeros((n, -(-n // 64) * 64), dtype=bool)
    bits[:, :n] = near[np.ix_(order, order)]
    return order, np.packbits(bits, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def rehearse() -> None:
    """Compile all loops, for the types of arrays that searches give them."""
    _, adjacent = ordered(1, np.zeros((0, 2), dtype=np.int64))
    weights = np.ones(1)
    cover_bound(adjacent, weights)
    heaviest(adjacent, weights, 0.0, 1.0, 1, -1, np.zeros(1, dtype=np.bool_), *branch(1))
    weights = weights.copy()
    weights.setflags(write=False)  # as those of graphs are
    inside = np.zeros(1, dtype=np.bool_)
    tabu_swaps(np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64), weights, inside, 1, 1, inside.copy())


def branch(n: int) -> Any:
    """Arrays for the open branch of :func:`heaviest`."""
    sizes = np.zeros((n + 1, -(-n // 64)), dtype=np.uint64), np.zeros((n + 1, n), dtype=np.int64), np.zeros((n + 1, n))
    return (*sizes, np.zeros(n + 1, dtype=np.int64), np.zeros(n + 1, dtype=np.int64), np.zeros(n + 1))


vars(rehearse)["folder"] = heaviest.stats.cache_path  # beside which it is noted that they are compiled
