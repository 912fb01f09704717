"""The compiled search for heaviest sets, its covers, and the search over workers."""

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from typer.testing import CliRunner

from blocklp.campaigns import InProcess
from blocklp.problems.command_line.app import app
from blocklp.problems.discrete.exact import ExactSettings
from blocklp.problems.mis import WeightedGraph, read_graph, solve_mis_exactly

pytest.importorskip("numba", reason="the search is compiled")

from blocklp.problems.mis import search_kernels


def random_graph(n, density, seed, most):
    edges = list(nx.gnp_random_graph(n, density, seed=seed).edges)
    return WeightedGraph.from_edges(np.random.default_rng(seed).integers(0, most + 1, n), edges)


def searched(graph, piece=10**6, best=-1.0):
    """Weight and members, by calls of so many nodes each."""
    order, adjacent = search_kernels.ordered(graph.n, graph.edges)
    members, branch, depth = np.zeros(graph.n, dtype=bool), search_kernels.branch(graph.n), -1
    while True:
        given = adjacent, graph.weights[order], best, 1.0, piece, depth, members
        best, depth, _ = search_kernels.heaviest(*given, *branch)
        if depth < 0:
            found = np.zeros(graph.n, dtype=bool)
            found[order] = members
            return best, found


@pytest.mark.parametrize(("density", "most"), [(0.1, 1), (0.3, 1), (0.3, 9), (0.6, 1000), (1.0, 5), (0.0, 3)])
def test_the_search_finds_the_heaviest_sets_of_all(density, most):
    labellings = np.array(list(itertools.product((0, 1), repeat=12)))
    for seed in range(10):
        graph = random_graph(12, density, seed, most)
        truth = graph.weight(labellings[graph.independent(labellings)]).max()
        for piece in (1, 3, 10**6):
            best, members = searched(graph, piece)
            assert best == truth == graph.weight(members) and graph.independent(members)
        assert searched(graph, best=truth)[0] == truth  # nothing is heavier
        _, adjacent = search_kernels.ordered(graph.n, graph.edges)
        order, _ = search_kernels.ordered(graph.n, graph.edges)
        assert search_kernels.cover_bound(adjacent, graph.weights[order]) >= truth


@pytest.mark.parametrize("n", [63, 64, 65, 130])
def test_words_end_where_they_should(n):
    # Two complete graphs, joined by a path from the last node of one to the first of the other.
    half = n // 2
    edges = [*itertools.combinations(range(half), 2), *itertools.combinations(range(half, n), 2), (half - 1, half)]
    weights = np.ones(n)
    weights[half - 1], weights[half], weights[-1] = 5, 7, 6
    best, members = searched(WeightedGraph.from_edges(weights, edges))
    assert best == 11 and sorted(np.flatnonzero(members).tolist()) == [half - 1, n - 1]


def test_orders_keep_the_graph():
    graph = random_graph(100, 0.2, 3, 4)
    order, adjacent = search_kernels.ordered(graph.n, graph.edges)
    near = np.unpackbits(adjacent.view(np.uint8), axis=1, bitorder="little")[:, : graph.n].astype(bool)
    expected = {frozenset(edge) for edge in graph.edges.tolist()}
    assert {frozenset(order[[a, b]].tolist()) for a, b in zip(*np.nonzero(near), strict=True)} == expected
    assert sorted(order.tolist()) == list(range(100)) and (near == near.T).all()


# The largest cliques of C125.9 have 34 nodes (second DIMACS challenge); DSJC125.1 is its complement.
def test_a_graph_that_took_three_minutes_takes_none(shared_qpbo):
    found = solve_mis_exactly(read_graph(shared_qpbo / "mis" / "col" / "DSJC125.1.col"), time_limit=30)
    assert found.proven and found.energy == found.bound == 34


@pytest.mark.slow
def test_processes_search_the_same_nodes(two_workers):
    settings = replace(ExactSettings(), leaf_tables=0, tables=0, tables_at_once=0, tree_work=100)
    graph = random_graph(70, 0.2, 2, 1)
    here, there = (solve_mis_exactly(graph, executor=where, settings=settings) for where in (InProcess(), two_workers))
    assert here.nodes == there.nodes > 10 and here.labels.equal(there.labels)
    assert here.proven and there.proven and here.energy == there.energy == searched(graph)[0]


def test_the_command_takes_workers_for_one_tree(tmp_path):
    graph = random_graph(30, 0.3, 2, 1)
    lines = [f"p edge {graph.n} {len(graph.edges)}", *(f"e {a + 1} {b + 1}" for a, b in graph.edges.tolist())]
    (tmp_path / "graph.col").write_text("\n".join(lines))
    ran = CliRunner().invoke(app, ["mis", str(tmp_path / "graph.col"), "--exact", "--workers", "2"])
    assert ran.exit_code == 0 and "proven" in ran.output
