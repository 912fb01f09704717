"""Cliques for the bound on independent sets: a greedy edge clique cover, and more of them.

An independent set holds at most one node of a clique.  The bound from "at most one of each clique" over a family of
cliques that covers every edge is at least as strong as the one from the edges alone, and larger cliques make it
stronger.  A cover is the least family that may be used; with few cliques more than that the bound is up to a half lower.

The greedy rule follows A. Conte, R. Grossi and A. Marino, Large-scale clique cover of real-world networks,
Information and Computation 270 (2020): start from an uncovered edge and extend by the candidate with most uncovered
edges to the clique.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations

import numpy as np

from blocklp.deadline import Deadline
from blocklp.errors import OptionError
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.qpbo.arrays import FloatArray, IntArray

Clique = tuple[int, ...]
"""Nodes in increasing order."""
SHARE, EXCESS, STARTS = 1e-6, 0.02, 3000
"""Least share of a node that a violated clique is grown from, by how much it is violated at least, and edges to start at."""
GROWTH = 3
"""Entries of all cliques besides those of the cover, in multiples of its entries: dense graphs have cliques without end."""


def edge_clique_cover(
    graph: WeightedGraph, max_size: int | None = None, *, time_limit: float | Deadline = math.inf
) -> dict[int, IntArray]:
    """Cover every edge by cliques, grouped by their size.

    Deterministic.  Each clique cannot be extended unless it has ``max_size`` nodes, and each covers an edge that the
    earlier ones do not.  Isolated nodes are in no clique.

    Parameters
    ----------
    graph : WeightedGraph
        The graph whose cliques are meant (for a clique problem, its ``complement()``).
    max_size : int, optional
        Largest clique wanted, at least 2; by default any.
    time_limit : float or Deadline
        Seconds; edges that are not covered then become cliques of their own.

    Returns
    -------
    dict of int to numpy.ndarray, shape (count, size), int64
        For each size in increasing order the cliques, nodes increasing within a row; empty without edges.

    Raises
    ------
    OptionError
        ``max_size`` is below 2.
    """
    if max_size is not None and max_size < 2:
        raise OptionError(f"max_size is {max_size}; a clique that covers an edge has at least 2 nodes")
    limit = graph.n if max_size is None else max_size
    return _by_size(_cover(graph, _neighbours(graph), limit, Deadline.of(time_limit)))


def heavy_cliques(graph: WeightedGraph, *, time_limit: float | Deadline = math.inf) -> dict[int, IntArray]:
    """Return the edge clique cover and more maximal cliques, grouped by their size: a stronger bound.

    Deterministic.  One clique is grown from every node, and one from every edge that fewer than two cliques hold, each time by the
    candidate that is heaviest together with the candidates it leaves.  They take at most three times the memory of the cover.

    Parameters
    ----------
    graph : WeightedGraph
        As in :func:`edge_clique_cover`.
    time_limit : float or Deadline
        As there; cliques beyond the cover are left out then.

    Returns
    -------
    dict of int to numpy.ndarray, shape (count, size), int64
        As in :func:`edge_clique_cover`.
    """
    adjacent = _neighbours(graph)
    weights: list[float] = graph.weights.tolist()
    # Keys are cliques, values do not matter: a set that keeps its order.
    deadline = Deadline.of(time_limit)
    family = dict.fromkeys(_cover(graph, adjacent, graph.n, deadline))
    held = Counter(pair for clique in family for pair in combinations(clique, 2))
    room = GROWTH * sum(map(len, family))
    starts = [(node,) for node in range(graph.n) if adjacent[node]] + [(head, tail) for head, tail in graph.edges.tolist()]
    for start in starts:
        if deadline.over():
            break
        if len(start) == 2 and held[start] >= 2:
            continue
        clique = _grow_heavy(start, adjacent, weights)
        if clique not in family:
            room -= len(clique)
            if room < 0:
                break
            family[clique] = None
            held.update(combinations(clique, 2))
    return _by_size(family)


def violated_cliques(graph: WeightedGraph, point: FloatArray, *, time_limit: float | Deadline = math.inf) -> dict[int, IntArray]:
    """Return maximal cliques of which a point holds more than one, grouped by their size.

    Deterministic.  One clique is grown from every node and one from every edge between nodes that the point holds a share of, each
    time by the candidate of the largest share together with the candidates it leaves.

    Parameters
    ----------
    graph : WeightedGraph
        As in :func:`edge_clique_cover`.
    point : ndarray
        ``(n,)`` from 0 to 1: the share of every node.
    time_limit : float or Deadline
        Seconds; later cliques are left out.

    Returns
    -------
    dict of int to numpy.ndarray, shape (count, size), int64
        As in :func:`edge_clique_cover`.
    """
    adjacent, deadline = _neighbours(graph), Deadline.of(time_limit)
    shares: list[float] = point.tolist()
    inside = {node for node in range(graph.n) if shares[node] > SHARE and adjacent[node]}
    starts: list[Clique] = [(node,) for node in sorted(inside)]
    starts += [(head, tail) for head, tail in graph.edges.tolist() if head in inside and tail in inside][:STARTS]
    family = dict[Clique, None]()
    for start in starts:
        if deadline.over():
            break
        clique = _grow_heavy(start, adjacent, shares)
        if sum(map(shares.__getitem__, clique)) > 1 + EXCESS:
            family[clique] = None
    return _by_size(family)


def _neighbours(graph: WeightedGraph) -> list[set[int]]:
    """The neighbours of each node."""
    adjacent: list[set[int]] = [set() for _ in range(graph.n)]
    for head, tail in graph.edges.tolist():
        adjacent[head].add(tail)
        adjacent[tail].add(head)
    return adjacent


def _by_size(cliques: Iterable[Clique]) -> dict[int, IntArray]:
    """Group cliques by their size."""
    groups: dict[int, list[Clique]] = {}
    for clique in cliques:
        groups.setdefault(len(clique), []).append(clique)
    return {size: np.array(groups[size], dtype=np.int64) for size in sorted(groups)}


def _cover(graph: WeightedGraph, adjacent: list[set[int]], limit: int, deadline: Deadline) -> Iterator[Clique]:
    """Cover every edge by cliques of at most ``limit`` nodes, after the deadline by itself."""
    uncovered = [set(nodes) for nodes in adjacent]
    for head, tail in graph.edges.tolist():
        if tail not in uncovered[head]:
            continue
        clique = [head, tail] if deadline.over() else _grow([head, tail], adjacent, uncovered, limit)
        for node in clique:
            uncovered[node].difference_update(clique)
        yield tuple(sorted(clique))


def _grow(clique: list[int], adjacent: list[set[int]], uncovered: list[set[int]], limit: int) -> list[int]:
    """Extend the edge ``clique`` until it is maximal or has ``limit`` nodes."""
    head, tail = clique
    # gain[v]: uncovered edges between candidate v and the clique.
    gain = {node: (node in uncovered[head]) + (node in uncovered[tail]) for node in sorted(adjacent[head] & adjacent[tail])}
    while gain and len(clique) < limit:
        # max keeps the first of equals, that is the smallest node.
        chosen = max(gain, key=gain.__getitem__)
        clique.append(chosen)
        near, fresh = adjacent[chosen], uncovered[chosen]
        gain = {node: value + (node in fresh) for node, value in gain.items() if node in near}
    return clique


def _grow_heavy(start: Clique, adjacent: list[set[int]], weights: list[float]) -> Clique:
    """Extend a clique until it is maximal, by the candidate of most weight including the candidates that it leaves."""
    clique = list(start)
    candidates = set.intersection(*(adjacent[node] for node in clique))
    weight = {node: weights[node] + sum(map(weights.__getitem__, adjacent[node] & candidates)) for node in sorted(candidates)}
    while weight:
        # max keeps the first of equals, that is the smallest node.
        chosen = max(weight, key=weight.__getitem__)
        clique.append(chosen)
        gone = candidates - adjacent[chosen]
        candidates -= gone
        for node in gone:
            del weight[node]
        for node in gone:
            for left in adjacent[node] & candidates:
                weight[left] -= weights[node]
    return tuple(sorted(clique))
