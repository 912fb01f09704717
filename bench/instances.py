"""The thesis's random instances: weighted independent sets (4.1.7.3) as QUBOs."""

from __future__ import annotations

import networkx as nx
import numpy as np

from blocklp.problems.qpbo import Qubo


def independent_set(graph: nx.Graph, seed: int, name: str) -> Qubo:
    """Weights uniform in [0, 1], penalty of an edge: the larger weight of its ends."""
    weights = np.random.default_rng(seed).random(graph.number_of_nodes())
    edges = np.array(graph.edges(), dtype=np.int64).reshape(-1, 2)
    return Qubo.from_terms(-weights, edges, np.maximum(weights[edges[:, 0]], weights[edges[:, 1]]), name=name)


def ba(n: int, seed: int) -> Qubo:
    """Barabasi-Albert, connectivity 4."""
    return independent_set(nx.barabasi_albert_graph(n, 4, seed=seed), seed, f"BA-{n}")


def er(n: int, p: float, seed: int) -> Qubo:
    """Erdos-Renyi with edge probability ``p``."""
    return independent_set(nx.fast_gnp_random_graph(n, p, seed=seed), seed, f"ER-{n}")
