from itertools import combinations

import networkx as nx
import numpy as np
import pytest

from blocklp.errors import OptionError
from blocklp.general_solvers.solvers import reference
from blocklp.problems.mis import WeightedGraph, clique_model, edge_clique_cover, heavy_cliques, read_graph, violated_cliques


def check_cover(graph, cover, max_size=None):
    edges = set(map(tuple, graph.edges.tolist()))
    adjacent = nx.Graph(list(edges))
    covered = set()
    assert list(cover) == sorted(cover)
    for size, cliques in cover.items():
        assert cliques.dtype == np.int64
        assert cliques.shape == (len(cliques), size)
        for clique in cliques.tolist():
            pairs = set(combinations(clique, 2))
            assert pairs <= edges
            covered |= pairs
            if size != max_size:
                common = set.intersection(*(set(adjacent[node]) for node in clique))
                assert not common, "the clique could be extended"
    assert covered == edges


@pytest.mark.parametrize("max_size", [None, 2, 3, 5])
@pytest.mark.parametrize("density", [0.0, 0.2, 0.6, 1.0])
def test_every_edge_is_in_a_clique_that_cannot_be_extended(density, max_size):
    edges = list(nx.gnp_random_graph(25, density, seed=12).edges)
    graph = WeightedGraph.from_edges(np.ones(25), edges)
    cover = edge_clique_cover(graph, max_size)
    check_cover(graph, cover, max_size)
    assert sum(map(len, cover.values())) <= len(edges)


def test_disjoint_cliques_are_found_whole():
    graph = WeightedGraph.from_networkx(nx.disjoint_union_all(map(nx.complete_graph, (4, 3, 3, 1))), weight=None)
    cover = edge_clique_cover(graph)
    assert {size: rows.tolist() for size, rows in cover.items()} == {3: [[4, 5, 6], [7, 8, 9]], 4: [[0, 1, 2, 3]]}


def test_triangle_free_graph_has_its_edges_as_cover():
    graph = WeightedGraph.from_networkx(nx.petersen_graph(), weight=None)
    cover = edge_clique_cover(graph)
    assert list(cover) == [2]
    np.testing.assert_array_equal(cover[2], graph.edges)


def test_size_below_an_edge_is_refused():
    with pytest.raises(OptionError, match="max_size is 1"):
        edge_clique_cover(WeightedGraph.from_edges([1, 1], [(0, 1)]), max_size=1)


@pytest.mark.parametrize("file", ["frb/frb40-19-1.mis", "mwvc/MMAP_Grids_20.mwvc", "col/DSJR500.1.col"])
def test_real_graphs_are_covered(shared_qpbo, file):
    graph = read_graph(shared_qpbo / "mis" / file)
    check_cover(graph, edge_clique_cover(graph))


@pytest.mark.parametrize("density", [0.0, 0.2, 0.6, 1.0])
def test_heavy_cliques_hold_the_cover_and_each_clique_once(density):
    rng = np.random.default_rng(3)
    graph = WeightedGraph.from_edges(rng.integers(1, 9, 25), list(nx.gnp_random_graph(25, density, seed=12).edges))
    cover, family = edge_clique_cover(graph), heavy_cliques(graph)
    check_cover(graph, family)
    for size, cliques in family.items():
        rows = set(map(tuple, cliques.tolist()))
        assert len(rows) == len(cliques)
        assert rows >= set(map(tuple, cover.get(size, cliques[:0]).tolist()))
    assert sum(c.size for c in family.values()) <= 4 * sum(c.size for c in cover.values())


# Optima of the LP over greedy clique covers, from the manifest of the instances.
@pytest.mark.parametrize(
    ("file", "known"),
    [
        ("col/games120.col", 22.0),
        ("col/DSJR500.1.col", 83.506),
        ("col/DSJC125.1.col", 43.168),
        ("col/queen8_8.col", 8.0),
        ("dimacs_weighted/C125.9.clq", 2922.129),
        ("dimacs_weighted/hamming6-4.clq", 203.663),
        ("dimacs_weighted/johnson8-2-4.clq", 66.0),
        ("dimacs_weighted/johnson8-4-4.clq", 511.0),
        ("dimacs_weighted/keller4.clq", 1440.515),
        ("dimacs_weighted/brock200_3.clq", 3326.723),
    ],
)
def test_cliques_bound_real_graphs_as_well_as_known_covers(shared_qpbo, file, known):
    graph = read_graph(shared_qpbo / "mis" / file)
    if graph.objective == "clique":
        graph = graph.complement()
    assert float(reference(clique_model(graph)).objective[0]) <= known + 5e-4


def test_separated_cliques_are_violated_and_lower_the_bound():
    """On a dense graph; the bound stays above the heaviest set, and below that of the cliques before."""
    graph = WeightedGraph.from_networkx(nx.gnp_random_graph(30, 0.6, seed=2), weight=None)
    adjacent = nx.Graph(graph.edges.tolist())
    model = clique_model(graph)
    known = reference(model)
    point = known.x["y"][0].numpy()
    found = violated_cliques(graph, point)
    assert found
    for size, cliques in found.items():
        assert cliques.shape[1] == size and len(set(map(tuple, cliques.tolist()))) == len(cliques)
        for clique in cliques.tolist():
            assert point[clique].sum() > 1.02
            assert all(adjacent.has_edge(*pair) for pair in combinations(clique, 2))
            assert not set.intersection(*(set(adjacent[node]) for node in clique))
    stronger = float(reference(clique_model(graph, "separated")).objective[0])
    heaviest = max(map(len, nx.find_cliques(nx.complement(adjacent))))
    assert heaviest <= stronger + 1e-9 < float(known.objective[0]) - 0.1
    assert not violated_cliques(graph, point, time_limit=1e-9)
