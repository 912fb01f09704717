"""Lovász's theta function: published values, and between the heaviest set and the cover by cliques."""

import math

import networkx as nx
import numpy as np
import pytest

from blocklp.deadline import Deadline
from blocklp.problems.mis import WeightedGraph, solve_mis_exactly
from blocklp.problems.proofs.theta import theta

pytest.importorskip("numba")

VALUES = {
    "cycle of five": (nx.cycle_graph(5), math.sqrt(5)),
    "cycle of seven": (nx.cycle_graph(7), 7 * math.cos(math.pi / 7) / (1 + math.cos(math.pi / 7))),
    "Petersen": (nx.petersen_graph(), 4.0),
    "complete": (nx.complete_graph(6), 1.0),
    "path": (nx.path_graph(5), 3.0),
    "Hamming 4": (nx.complement(nx.hypercube_graph(4)), 2.0),
}


def weighted(graph, weights=None):
    plain = nx.convert_node_labels_to_integers(graph)
    return WeightedGraph.from_edges(np.ones(len(plain)) if weights is None else weights, sorted(plain.edges))


@pytest.mark.parametrize(("graph", "value"), VALUES.values(), ids=VALUES)
def test_known_values(graph, value):
    t, _, shares = theta(weighted(graph), 0.0, Deadline())
    assert value - 1e-9 <= t <= value * 1.003
    assert shares.sum() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_every_result_is_feasible_and_bounds_the_heaviest_set(seed):
    rng = np.random.default_rng(seed)
    graph = weighted(nx.gnp_random_graph(30, 0.3, seed=seed), rng.integers(1, 20, 30))
    heaviest = solve_mis_exactly(graph).energy
    for goal in (0.0, 1.5 * heaviest):
        t, entries, _ = theta(graph, goal, Deadline())
        root = np.sqrt(graph.weights)
        matrix = t * np.eye(30) - np.outer(root, root)
        matrix[graph.edges[:, 0], graph.edges[:, 1]] += entries
        matrix[graph.edges[:, 1], graph.edges[:, 0]] += entries
        assert np.linalg.eigvalsh(matrix)[0] > -1e-9 * t
        assert t >= heaviest - 1e-9
    assert t < 1.5 * heaviest
