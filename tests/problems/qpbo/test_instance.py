from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch

from blocklp.errors import ModelError, NonFiniteError, ScopeError, ShapeError
from blocklp.problems.mis import WeightedGraph
from blocklp.problems.mrf import Mrf
from blocklp.problems.qpbo import Qubo


def random_matrix(n, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(-5, 6, (n, n)) * (rng.random((n, n)) < 0.6)


@pytest.mark.parametrize("shape", ["full", "upper", "lower", "symmetric"])
@pytest.mark.parametrize("wrap", [np.asarray, scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_matrix_of_any_shape_means_the_quadratic_form(shape, wrap, all_labellings):
    matrix = random_matrix(6, seed=1).astype(float)
    matrix = {"full": matrix, "upper": np.triu(matrix), "lower": np.tril(matrix), "symmetric": matrix + matrix.T}[shape]
    y = all_labellings(6)
    np.testing.assert_array_equal(Qubo.from_matrix(wrap(matrix)).energy(y), np.einsum("bi,ij,bj->b", y, matrix, y))


def test_terms_are_merged_without_changing_the_function(all_labellings):
    rng = np.random.default_rng(2)
    edges, values, linear = rng.integers(0, 5, (40, 2)), rng.integers(-3, 4, 40), rng.integers(-3, 4, 5)
    qubo = Qubo.from_terms(linear, edges, values, offset=7)
    y = all_labellings(5)
    np.testing.assert_array_equal(qubo.energy(y), 7 + y @ linear + (y[:, edges[:, 0]] * y[:, edges[:, 1]]) @ values)
    assert (qubo.edges[:, 0] < qubo.edges[:, 1]).all()
    assert sorted(set(map(tuple, qubo.edges.tolist()))) == list(map(tuple, qubo.edges.tolist()))


def test_self_pairs_go_to_linear_and_cancelled_pairs_vanish():
    qubo = Qubo.from_terms([1, 2], [(0, 0), (0, 1), (1, 0)], [5, 3, -3])
    assert qubo.linear.tolist() == [6, 2]
    assert qubo.edges.shape == (0, 2)


def test_energy_is_batched_over_leading_axes_and_multilinear():
    qubo = Qubo.from_terms([1, -2, 0], [(0, 2), (1, 2)], [4, 5])
    y = np.random.default_rng(3).random((2, 3, 3))
    expected = y[..., 0] - 2 * y[..., 1] + 4 * y[..., 0] * y[..., 2] + 5 * y[..., 1] * y[..., 2]
    np.testing.assert_allclose(qubo.energy(y), expected, rtol=1e-14)
    assert qubo.energy(y[0, 0]).shape == ()


def test_networkx_graph_keeps_its_labels():
    graph = nx.Graph(name="pair")
    graph.add_node("a", bias=1.0)
    graph.add_node("b", bias=-2.0)
    graph.add_node("alone", bias=-1.0)
    graph.add_edge("b", "a", weight=3.0)
    qubo = Qubo.from_networkx(graph, linear="bias")
    assert (qubo.labels, qubo.name) == (("a", "b", "alone"), "pair")
    assert qubo.energy([1, 1, 1]) == 1.0


def test_networkx_attribute_that_is_missing_is_named():
    graph = nx.path_graph(2)
    with pytest.raises(ModelError, match="node 0 has no attribute 'weight'"):
        Qubo.from_networkx(graph)
    nx.set_node_attributes(graph, 1.0, "weight")
    with pytest.raises(ModelError, match=r"edge \(0, 1\) has no attribute 'weight'"):
        Qubo.from_networkx(graph)


@pytest.mark.parametrize("vartype", ["BINARY", "SPIN"])
def test_dimod_model_has_the_same_energies(vartype, all_labellings):
    dimod = pytest.importorskip("dimod")
    bqm = dimod.BinaryQuadraticModel({"x": 1, "y": -2, "z": 0}, {"xy": 3, "yz": -1}, 0.5, vartype)
    qubo = Qubo.from_bqm(bqm)
    for y in all_labellings(3):
        values = y if vartype == "BINARY" else 2 * y - 1
        assert qubo.energy(y) == bqm.energy(dict(zip(qubo.labels, values.tolist(), strict=True)))


def test_models_of_dimod_that_are_not_quadratic_functions_of_bits_are_refused_by_name():
    dimod = pytest.importorskip("dimod")
    x, y = dimod.Binaries("xy")
    constrained = dimod.ConstrainedQuadraticModel()
    constrained.set_objective(x + y)
    constrained.add_constraint(x + y <= 1)
    discrete = dimod.DiscreteQuadraticModel()
    discrete.add_variable(3)
    for model in (constrained, discrete, dimod.QuadraticModel(), 5, None):
        with pytest.raises(ModelError, match=f"{type(model).__name__} is not a BinaryQuadraticModel.*cqm_to_bqm"):
            Qubo.from_bqm(model)


@pytest.mark.parametrize("wrap", [np.array, np.ndarray.tolist, scipy.sparse.csr_array, torch.tensor])
def test_complex_numbers_are_refused_wherever_numbers_are_taken(wrap):
    pair = wrap(np.array([[0, 1 + 2j], [0, 1]]))
    row = [1 + 0j, 2] if wrap is np.ndarray.tolist else np.array([1 + 0j, 2])
    statements = [
        lambda: Qubo.from_matrix(pair),
        lambda: Qubo(row, [], []),
        lambda: Qubo.from_terms([1, 2], [[0, 1]], row[:1]),
        lambda: Qubo.max_cut(2, [[0, 1]], row[:1]),
        lambda: WeightedGraph(row, []),
        lambda: Mrf([2], [((0,), row)]),
        lambda: Mrf.from_arrays([row, row], [], np.zeros((0, 2, 2))),
    ]
    for build in statements:
        with pytest.raises(ModelError, match="complex"):
            build()


@pytest.mark.parametrize("value", ["abc", [["a", "b"], ["c", "d"]], [[1, None], [1, 2]], [[1], [1, 2]]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ModelError):
        Qubo.from_matrix(value)
    with pytest.raises(ModelError):
        Qubo(value, [], [])


def test_tables_of_a_factor_never_add_up_to_infinity_by_rounding():
    with pytest.raises(NonFiniteError, match="add up to more than float64 holds"):
        Mrf([2], [((0,), [1e308, 0]), ((0,), [1e308, np.inf])])
    assert Mrf([2], [((0,), [1e300, 0]), ((0,), [1e300, np.inf])]).energy([[0], [1]]).tolist() == [2e300, np.inf]


def test_max_cut_energy_is_minus_the_cut(all_labellings):
    graph = nx.gnp_random_graph(7, 0.6, seed=4)
    edges = np.array(graph.edges)
    weights = np.random.default_rng(4).integers(-4, 5, len(edges))
    y = all_labellings(7)
    cut = (y[:, edges[:, 0]] != y[:, edges[:, 1]]) @ weights
    np.testing.assert_array_equal(Qubo.max_cut(7, edges, weights).energy(y), -cut)


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
@pytest.mark.parametrize("seed", range(3))
def test_max_cut_of_a_graph_is_the_heaviest_of_all_cuts(kind, seed, all_labellings):
    rng = np.random.default_rng(seed)
    graph = kind(name="cut me")
    graph.add_nodes_from("gfedcba")
    for head, tail in rng.integers(0, 7, (20, 2)).tolist():
        if head != tail:
            graph.add_edge("abcdefg"[head], "abcdefg"[tail], **({"cost": int(rng.integers(-4, 5))} if rng.random() < 0.7 else {}))
    qubo = Qubo.max_cut_from_networkx(graph, "cost")
    assert (qubo.labels, qubo.name) == (tuple("gfedcba"), "cut me")
    y = all_labellings(7)
    sides = [dict(zip(qubo.labels, own, strict=True)) for own in y.tolist()]
    for weight, energies in (("cost", qubo.energy(y)), (None, Qubo.max_cut_from_networkx(graph, None).energy(y))):
        edges = graph.edges(data=weight, default=1) if weight else [(*ends, 1) for ends in graph.edges()]
        cuts = [sum(value for head, tail, value in edges if side[head] != side[tail]) for side in sides]
        np.testing.assert_array_equal(energies, np.negative(cuts))


def test_self_loops_are_in_no_cut(all_labellings):
    graph = nx.Graph([("a", "b", {"weight": 3}), ("b", "b", {"weight": 5}), ("c", "c")])
    np.testing.assert_array_equal(Qubo.max_cut_from_networkx(graph).energy(all_labellings(3)), [0, 0, -3, -3, -3, -3, 0, 0])


def test_graphs_without_a_max_cut_are_refused():
    with pytest.raises(ModelError, match="at least one variable"):
        Qubo.max_cut_from_networkx(nx.Graph())
    with pytest.raises(ModelError, match="weights does not hold real numbers"):
        Qubo.max_cut_from_networkx(nx.Graph([("a", "b", {"weight": "heavy"})]))


def test_coefficients_by_pairs_are_no_matrix(all_labellings):
    with pytest.raises(ModelError, match=r"the matrix is a dict; .*Qubo\.from_bqm.*Qubo\.from_terms"):
        Qubo.from_matrix({("a", "b"): 2})
    assert Qubo.from_matrix(scipy.sparse.dok_array(np.array([[1.0, 2.0], [0.0, 0.0]]))).energy([1, 1]) == 3


def test_instance_without_pairs_is_allowed_and_exact():
    linear = [0.1, -0.2, 0.3]
    qubo = Qubo.from_terms(linear, [], [])
    assert qubo.n == 3
    assert Fraction(float(qubo.energy([0, 1, 0]))) == Fraction(-0.2)


def test_instance_does_not_share_memory_with_its_source():
    linear = np.ones(2)
    qubo = Qubo.from_terms(linear, [(0, 1)], [1.0])
    linear[0] = 9
    assert qubo.linear[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        qubo.linear[0] = 9


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Qubo.from_terms([], [], []), ModelError, "linear is empty"),
        (lambda: Qubo.from_matrix(np.zeros((0, 0))), ModelError, "linear is empty"),
        (lambda: Qubo.from_matrix(np.zeros((2, 3))), ShapeError, r"shape \(2, 3\)"),
        (lambda: Qubo.from_matrix([[0, np.nan], [0, 0]]), NonFiniteError, r"matrix\[0, 1\] is nan"),
        (lambda: Qubo.from_terms([0, np.inf], [], []), NonFiniteError, r"linear\[1\] is inf"),
        (lambda: Qubo.from_terms([0, 0], [(0, 1)], [np.nan]), NonFiniteError, r"quadratic\[0\] is nan"),
        (lambda: Qubo.from_terms([0], [], [], offset=np.inf), NonFiniteError, "offset"),
        (lambda: Qubo.from_terms([0, 0], [(0, 1), (1, 2)], [1, 1]), ScopeError, r"edges\[1\] is \(1, 2\)"),
        (lambda: Qubo.from_terms([0, 0], [(-1, 1)], [1]), ScopeError, r"edges\[0\]"),
        (lambda: Qubo.from_terms([0, 0], [(0.0, 1.0)], [1]), ShapeError, "float64"),
        (lambda: Qubo.from_terms([0, 0], [(0, 1)], [1, 2]), ShapeError, "2 entries for 1 edges"),
        (lambda: Qubo.from_terms([[0, 0]], [], []), ShapeError, r"linear has shape \(1, 2\)"),
        (lambda: Qubo.from_terms([0, 0], [], [], labels=("a", "a")), ModelError, "labels holds 1 different"),
        (lambda: Qubo(np.zeros(3), np.array([[1, 2], [0, 1]]), np.ones(2)), ModelError, r"edges\[1\] is \(0, 1\)"),
        (lambda: Qubo(np.zeros(3), np.array([[1, 0]]), np.ones(1)), ModelError, "i < j"),
        (lambda: Qubo(np.zeros(3), np.array([[0, 1]]), np.ones(2)), ShapeError, "2 entries for 1 edges"),
        (lambda: Qubo.max_cut(2, [(1, 1)], [1]), ModelError, "joins node 1 to itself"),
        (lambda: Qubo.max_cut(2, [(0, 1)], [1, 1]), ShapeError, "2 entries for 1 edges"),
        (lambda: Qubo.from_terms([0, 0], [], []).energy([1]), ShapeError, "length 2"),
    ],
)
def test_wrong_statements_are_refused_by_name(build, error, message):
    with pytest.raises(error, match=message):
        build()
