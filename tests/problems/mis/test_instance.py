import networkx as nx
import numpy as np
import pytest

from blocklp.errors import ModelError, NonFiniteError, OptionError, ScopeError, ShapeError
from blocklp.problems.mis import WeightedGraph


def random_graph(n, density, seed, zeros=False):
    edges = list(nx.gnp_random_graph(n, density, seed=seed).edges)
    return WeightedGraph.from_edges(np.random.default_rng(seed).integers(0 if zeros else 1, 6, n), edges)


def heaviest(graph, y):
    return graph.weight(y)[graph.independent(y)].max()


def test_edges_are_oriented_sorted_and_merged():
    graph = WeightedGraph.from_edges([1, 1, 1], [(2, 0), (0, 2), (1, 0)])
    assert graph.edges.tolist() == [[0, 1], [0, 2]]


@pytest.mark.parametrize("seed", range(5))
def test_qubo_minimum_is_minus_the_heaviest_set_and_its_minimisers_are_independent(seed, all_labellings):
    graph = random_graph(8, 0.4, seed, zeros=True)
    y = all_labellings(8)
    energies = graph.to_qubo().energy(y)
    assert energies.min() == -heaviest(graph, y)
    assert graph.to_qubo(penalty=5.5).energy(y).min() == -heaviest(graph, y)


def test_qubo_penalties_are_the_larger_weights():
    graph = WeightedGraph.from_edges([3, 5, 0, 0], [(0, 1), (1, 2), (2, 3)], labels=("a", "b", "c", "d"), name="path")
    qubo = graph.to_qubo()
    assert qubo.linear.tolist() == [-3, -5, 0, 0]
    assert qubo.quadratic.tolist() == [5, 5, 1]
    assert (qubo.labels, qubo.name) == (graph.labels, "path")


def test_least_exact_penalty_is_the_smaller_end():
    graph = WeightedGraph.from_edges([3, 5], [(0, 1)])
    assert graph.to_qubo(penalty=3).energy([1, 1]) == -5
    with pytest.raises(ModelError, match=r"penalty is 2.*give 3.0 or more"):
        graph.to_qubo(penalty=2)
    with pytest.raises(ModelError, match="penalty is nan"):
        graph.to_qubo(penalty=float("nan"))
    assert len(WeightedGraph.from_edges([1], []).to_qubo(penalty=1).edges) == 0


def test_complement_exchanges_cliques_and_independent_sets(all_labellings):
    graph = random_graph(7, 0.5, seed=3)
    other = graph.complement()
    assert (other.objective, other.complement().objective) == ("clique", "independent-set")
    np.testing.assert_array_equal(other.complement().edges, graph.edges)
    every = {tuple(edge) for edge in graph.edges.tolist()} | {tuple(edge) for edge in other.edges.tolist()}
    assert len(every) == 7 * 6 // 2
    clique, size = nx.max_weight_clique(nx.Graph(other.edges.tolist()), weight=None)
    assert graph.independent(np.isin(np.arange(7), clique))
    assert size == max(y.sum() for y in all_labellings(7) if graph.independent(y))


def test_independence_and_vertex_covers_are_complementary(all_labellings):
    graph = random_graph(7, 0.4, seed=4)
    y = all_labellings(7)
    covers = (y[:, graph.edges[:, 0]] | y[:, graph.edges[:, 1]]).all(axis=1)
    np.testing.assert_array_equal(graph.independent(1 - y), covers)
    assert graph.weights.sum() - graph.weight(y[covers]).min() == heaviest(graph, y)


def test_networkx_graph_with_weights_and_without():
    graph = nx.DiGraph([("a", "b"), ("b", "a")])
    assert WeightedGraph.from_networkx(graph, weight=None).weights.tolist() == [1, 1]
    with pytest.raises(ModelError, match="node 'a' has no attribute 'weight'"):
        WeightedGraph.from_networkx(graph)
    nx.set_node_attributes(graph, {"a": 2, "b": 3}, "w")
    read = WeightedGraph.from_networkx(graph, weight="w")
    assert (read.labels, read.weights.tolist(), read.edges.tolist()) == (("a", "b"), [2, 3], [[0, 1]])


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: WeightedGraph.from_edges([], []), ModelError, "weights is empty"),
        (lambda: WeightedGraph.from_edges([1, -2], []), ModelError, r"weights\[1\] is -2.0.*drop it"),
        (lambda: WeightedGraph.from_edges([1, np.nan], []), NonFiniteError, r"weights\[1\] is nan"),
        (lambda: WeightedGraph.from_edges([1, 1], [(0, 0)]), ModelError, "joins node 0 to itself"),
        (lambda: WeightedGraph.from_edges([1, 1], [(0, 2)]), ScopeError, r"edges\[0\] is \(0, 2\)"),
        (lambda: WeightedGraph.from_edges([1, 1], [], labels=("a",)), ModelError, "labels holds 1"),
        (lambda: WeightedGraph.from_edges([1], [], objective="cover"), OptionError, "'cover'"),
        (lambda: WeightedGraph(np.ones(2), np.array([[1, 0]])), ModelError, "i < j"),
        (lambda: WeightedGraph.from_edges([1, 1], []).weight([1]), ShapeError, "length 2"),
        (lambda: WeightedGraph.from_edges([1, 1], []).independent(1), ShapeError, "length 2"),
        (lambda: WeightedGraph.from_edges([1], [], objective="clique").to_qubo(), ModelError, "complement"),
    ],
)
def test_wrong_statements_are_refused_by_name(build, error, message):
    with pytest.raises(error, match=message):
        build()
