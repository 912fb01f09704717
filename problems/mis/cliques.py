"""Greedy edge clique cover.

An independent set holds at most one node of a clique.  The bound from "at most one of each clique" over a family of
cliques that covers every edge is at least as strong as the one from the edges alone, and larger cliques make it
stronger.

The greedy rule follows A. Conte, R. Grossi and A. Marino, Large-scale clique cover of real-world networks,
Information and Computation 270 (2020): start from an uncovered edge and extend by the candidate with most uncovered
edges to the clique.
"""

from __future__ import annotations

import numpy as np

from blocklp.errors import OptionError
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.qpbo.arrays import IntArray


def edge_clique_cover(graph: WeightedGraph, max_size: int | None = None) -> dict[int, IntArray]:
    """Cover every edge by cliques, grouped by their size.

    Deterministic.  Each clique cannot be extended unless it has ``max_size`` nodes, and each covers an edge that the
    earlier ones do not.  Isolated nodes are in no clique.

    Parameters
    ----------
    graph : WeightedGraph
        The graph whose cliques are meant (for a clique problem, its ``complement()``).
    max_size : int, optional
        Largest clique wanted, at least 2; by default any.

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
    adjacent: list[set[int]] = [set() for _ in range(graph.n)]
    for head, tail in graph.edges.tolist():
        adjacent[head].add(tail)
        adjacent[tail].add(head)
    uncovered = [set(nodes) for nodes in adjacent]
    cliques: dict[int, list[list[int]]] = {}
    for head, tail in graph.edges.tolist():
        if tail not in uncovered[head]:
            continue
        clique = _grow([head, tail], adjacent, uncovered, limit)
        for node in clique:
            uncovered[node].difference_update(clique)
        cliques.setdefault(len(clique), []).append(sorted(clique))
    return {size: np.array(cliques[size], dtype=np.int64) for size in sorted(cliques)}


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
