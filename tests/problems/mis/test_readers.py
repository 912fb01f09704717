import bz2
import gzip
import lzma

import networkx as nx
import numpy as np
import pytest

from blocklp.errors import FormatError, ModelError, OptionError
from blocklp.problems.mis import WeightedGraph, read_graph, solve_mis_exactly

GRAPH = "c a comment\ncomment without blank\n\np edge 4 3\nn 1 2.5\nn 2 1\nn 4 3\nn 3 1\ne 1 2\ne 4 2\ne 3 4\n"


def write(path, text):
    path.write_text(text)
    return path


def test_weights_edges_and_name_are_read(tmp_path):
    graph = read_graph(write(tmp_path / "toy.mwvc", GRAPH))
    assert graph.weights.tolist() == [2.5, 1, 1, 3]
    assert graph.edges.tolist() == [[0, 1], [1, 3], [2, 3]]
    assert (graph.name, graph.objective) == ("toy", "independent-set")


@pytest.mark.parametrize(
    ("suffix", "objective"),
    [(".clq", "clique"), (".CLQ", "clique"), (".wclq", "clique")]
    + [(suffix, "independent-set") for suffix in (".col", ".mis", ".mwis", ".Mwvc")],
)
def test_suffix_states_the_objective_in_any_case_below_any_compression(tmp_path, suffix, objective):
    for packed, pack in (("", bytes), (".gz", gzip.compress), (".BZ2", bz2.compress), (".xz", lzma.compress)):
        (tmp_path / f"toy{suffix}{packed}").write_bytes(pack(GRAPH.encode()))
        graph = read_graph(tmp_path / f"toy{suffix}{packed}")
        assert (graph.name, graph.objective) == ("toy", objective)


def test_a_weighted_clique_is_found(tmp_path):
    """Nodes 1, 2 and 4 are a triangle; the other nodes and pairs weigh less."""
    graph = read_graph(write(tmp_path / "toy.wclq", GRAPH.replace("p edge 4 3", "p clq 4 4") + "e 1 4\n"))
    assert solve_mis_exactly(graph.complement()).energy == 2.5 + 1 + 3


@pytest.mark.parametrize("name", ["toy.txt", "toy", "toy.xz", "toy.edges"])
def test_a_suffix_that_does_not_tell_cliques_from_independent_sets_is_refused(tmp_path, name):
    path = write(tmp_path / name, GRAPH)
    with pytest.raises(FormatError, match="--objective"):
        read_graph(path)
    asked = ["clique", "independent-set"]
    assert [read_graph(path, objective=objective).objective for objective in asked] == asked
    with pytest.raises(OptionError, match="'col'"):
        read_graph(path, "col")
    with pytest.raises(OptionError, match="'cover'"):
        read_graph(path, objective="cover")


def test_memory_is_asked_for_before_it_is_taken(tmp_path):
    path = write(tmp_path / "a.clq", "p edge 100000000 1\ne 1 2\n")
    with pytest.raises(FormatError, match=r"100000000 nodes would take .*raise max_bytes"):
        read_graph(path)
    graph = read_graph(write(path, "p edge 100000 1\ne 1 2\n"))
    with pytest.raises(ModelError, match=r"4999949999 edges, .*raise max_bytes"):
        graph.complement()
    assert len(WeightedGraph.from_edges([1, 1, 1], [[0, 1]]).complement(max_bytes=1000).edges) == 2


@pytest.mark.parametrize("word", ["edge", "edges", "col"])
@pytest.mark.parametrize("announced", [1, 2])
def test_edges_listed_in_both_directions_are_merged(tmp_path, word, announced):
    graph = read_graph(write(tmp_path / "twice.col", f"p {word} 2 {announced}\ne 1 2\ne 2 1\n"))
    assert graph.edges.tolist() == [[0, 1]]
    assert graph.weights.tolist() == [1, 1]


def test_graph_without_edges_is_read(tmp_path):
    assert read_graph(write(tmp_path / "empty.col", "p edge 3 0\n")).n == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("c nothing\n", "no problem line"),
        ("", "the file is empty"),
        ("e 1 2\n", "no problem line"),
        ("p edge 2 1\np edge 2 1\ne 1 2\n", "line 2 .*second problem line"),
        ("p cnf 2 1\n", "line 1 .*not a problem line of a graph"),
        ("p edge 2\n", "line 1 .*not a problem line"),
        ("p edge two 1\n", "line 1 .*'two' is not a whole number"),
        ("p edge 0 0\n", "line 1 .*no node"),
        ("p edge 3 2\ne 1 2\n", "line 1 .*2 edges are announced but 1 lines with 1 different"),
        ("p edge 3 1\ne 1 2\ne 2 3\n", "line 1 .*1 edges are announced but 2 lines"),
        ("p edge 3 1\ne 1 4\n", r"line 2 .*node 4 is outside 1 \.\. 3"),
        ("p edge 3 1\ne 1 1\n", "line 2 .*self-loop"),
        ("p edge 3 1\ne 1\n", "line 2 .*2 fields where 3 are needed"),
        ("p edge 3 1\ne 1 x\n", "line 2 .*'x' is not a whole number"),
        ("p edge 3 1\nedge 1 2\n", "line 2 .*unknown kind"),
        ("p edge 2 0\nn 1 1\n", "node 2 has no 'n' line"),
        ("p edge 2 0\nn 1 1\nn 2 1\nn 1 2\n", "line 4 .*already has a weight"),
        ("p edge 2 0\nn 1 1\nn 2 -1\n", "line 3 .*negative weight"),
        ("p edge 2 0\nn 1 1\nn 2 inf\n", "line 3 .*not finite"),
        ("p edge 2 0\nn 1 1\nn 2\n", "line 3 .*2 fields"),
    ],
)
def test_faulty_file_is_refused_with_its_line(tmp_path, text, message):
    path = write(tmp_path / "bad.col", text)
    with pytest.raises(FormatError, match=message) as caught:
        read_graph(path)
    assert str(path) in str(caught.value)


# Nodes and different edges as published with the instances.
@pytest.mark.parametrize(
    ("file", "n", "edges", "total"),
    [
        ("col/anna.col", 138, 493, 138),
        ("col/2-FullIns_4.col", 212, 1621, 212),
        ("frb/frb40-19-1.mis", 760, 41314, 760),
        ("mwvc/MMAP_Grids_20.mwvc", 25341, 31581, 139903.6414),
        ("mwvc/Segmentation_11.mwvc", 845, 1234, 3273.6358),
        # Weights are (i mod 200) + 1.
        ("dimacs_weighted/brock400_2.clq", 400, 59786, 2 * 200 * 201 // 2),
    ],
)
def test_library_files_have_their_size(shared_qpbo, file, n, edges, total):
    graph = read_graph(shared_qpbo / "mis" / file)
    assert (graph.n, len(graph.edges)) == (n, edges)
    assert graph.weights.sum() == pytest.approx(total, abs=1e-3)


# Proven maximum weights of a clique.
@pytest.mark.parametrize(("name", "optimum"), [("johnson8-2-4", 66), ("hamming6-4", 134), ("c-fat200-1", 1284), ("hamming6-2", 1072)])
def test_heaviest_clique_is_the_published_one(shared_qpbo, name, optimum):
    graph = read_graph(shared_qpbo / "mis" / "dimacs_weighted" / f"{name}.clq")
    weighted = nx.Graph(graph.edges.tolist())
    nx.set_node_attributes(weighted, {node: int(graph.weights[node]) for node in weighted}, "weight")
    clique, weight = nx.max_weight_clique(weighted)
    assert weight == optimum
    assert graph.complement().independent(np.isin(np.arange(graph.n), clique))


def test_large_weights_are_read_where_they_are_large_alike(shared_qpbo, tmp_path):
    graph = read_graph(shared_qpbo / "mis" / "mwvc" / "sat-grid-pbl-0010.cnf.mwvc")
    assert graph.weights.min() == 1e20 and graph.weights.max() == 8e20
    path = tmp_path / "spread.mwvc"
    path.write_text("p edges 2 1\nn 1 1e20\nn 2 1\ne 1 2\n")
    with pytest.raises(FormatError, match=r"spread\.mwvc, line 2 .*1e\+20.*hard constraints"):
        read_graph(path)


METIS = "% a path, a lonely node, and an edge\n6 3\n2\n% between\n1 3\n2\n\n6\n5\n"


def test_metis_graphs_are_read(tmp_path):
    """Nodes are lines, the empty one too; comments are none."""
    graph = read_graph(write(tmp_path / "toy.graph", METIS))
    assert graph.edges.tolist() == [[0, 1], [1, 2], [4, 5]] and graph.weights.tolist() == [1] * 6
    assert (graph.name, graph.objective) == ("toy", "independent-set")
    weighted = read_graph(write(tmp_path / "toy.txt", "3 2 10 1\n2.5 2\n1 1 3\n4 2\n"), "metis", "clique")
    assert weighted.edges.tolist() == [[0, 1], [1, 2]] and weighted.weights.tolist() == [2.5, 1, 4]
    assert weighted.objective == "clique"
    assert read_graph(tmp_path / "toy.txt", "metis").objective == "independent-set"


def test_metis_and_dimacs_state_the_same_graph(tmp_path):
    drawn = nx.gnm_random_graph(40, 200, seed=3)
    lines = [" ".join(str(j + 1) for j in sorted(drawn[i])) for i in range(40)]
    metis = read_graph(write(tmp_path / "a.graph", "40 200\n" + "\n".join(lines) + "\n"))
    edges = "".join(f"e {i + 1} {j + 1}\n" for i, j in drawn.edges)
    dimacs = read_graph(write(tmp_path / "a.mis", f"p edge 40 200\n{edges}"))
    assert np.array_equal(metis.edges, dimacs.edges) and np.array_equal(metis.edges, np.array(sorted(map(sorted, drawn.edges))))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("% none\n", "no header"),
        ("0 0\n", "no node"),
        ("2\n2\n1\n", "not a header"),
        ("2 1 1\n2 5\n1 5\n", "only nodes may have weights"),
        ("2 1 100\n1 2\n1 1\n", "only nodes may have weights"),
        ("2 1 10 2\n1 1 2\n1 1 1\n", "only nodes may have weights"),
        ("2 1\n2\n", "2 neighbours, but 1 follow"),
        ("2 1\n2\n1\n1\n", "line of node 3, but the header announces 2"),
        ("2 1\n3\n1\n", "node 3 is outside 1 .. 2"),
        ("2 1\n1\n2\n", "self-loop"),
        ("3 2\n2 2\n1\n1\n", "listed twice"),
        ("3 1\n2\n3\n", "node 1 has node 2 for a neighbour, but not the other way round"),
        ("2 1 10\n1 2\n", "node 2 has no line"),
        ("2 1 10\n1 2\n-1 1\n", "negative weight"),
        ("2 1\n2\nx\n", "line 3"),
    ],
)
def test_wrong_metis_graphs_are_refused(tmp_path, text, problem):
    with pytest.raises(FormatError, match=problem):
        read_graph(write(tmp_path / "a.graph", text))
