import networkx
import numpy as np
import pytest

from blocklp.errors import ModelError, NonFiniteError, ScopeError, ShapeError
from blocklp.problems.mrf import Mrf, solve_mrf, solve_mrf_exactly
from blocklp.status import Status

from ..random_mrfs import labellings, random_mrf


@pytest.mark.parametrize("seed", range(5))
def test_energies_are_sums_of_table_entries(seed):
    mrf = random_mrf(seed, order=3, hard=0.1)
    every = labellings(mrf)
    for x, energy in zip(every, mrf.energy(every), strict=True):
        assert energy == mrf.constant + sum(float(table[tuple(x[list(scope)])]) for scope, table in mrf.factors)


@pytest.mark.parametrize("scope", [0, None, "a", np.int64(0)])
def test_scopes_that_are_no_sequences_of_variables_are_refused(scope):
    with pytest.raises(ScopeError, match=r"factor 0 has the scope .*; give its variables as a tuple, such as \(0,\)"):
        Mrf([2], [(scope, [1.0, 0.5])])


def test_scopes_are_sorted_and_factors_on_the_same_variables_added_up():
    table = np.arange(6.0).reshape(3, 2)
    mrf = Mrf([2, 3], [((1, 0), table), ((0, 1), np.ones((2, 3))), ((), 4.0)], constant=1)
    assert [scope for scope, _ in mrf.factors] == [(0, 1)]
    for a in range(2):
        for b in range(3):
            assert mrf.energy([a, b]) == table[b, a] + 1 + 4 + 1


def test_evidence_forbids_other_labels():
    mrf = random_mrf(3, least=2)
    every = labellings(mrf)
    given = mrf.condition({1: 1}).energy(every)
    assert np.array_equal(given, np.where(every[:, 1] == 1, mrf.energy(every), np.inf))


@pytest.mark.parametrize("seed", range(5))
def test_binary_pairwise_models_are_qubos(seed):
    mrf = random_mrf(seed, n=6, least=2, most=2)
    every = labellings(mrf)
    assert mrf.to_qubo().energy(every) == pytest.approx(mrf.energy(every))


def test_other_models_are_no_qubos():
    assert random_mrf(0, least=3).to_qubo() is None
    assert Mrf([2, 2], [((0, 1), [[0, np.inf], [0, 0]])]).to_qubo() is None
    assert Mrf([2, 2, 2], [((0, 1, 2), np.zeros((2, 2, 2)))]).to_qubo() is None


def test_arrays_and_graphs_state_the_same_model():
    unary, table = np.array([[0, 1, 5], [2, 0, 1], [3, 1, 0]]), np.array([[0, 1, 2], [3, 0, 1], [5, 4, 0]])
    graph = networkx.Graph()
    for node, costs in zip("abc", unary, strict=True):
        graph.add_node(node, unary=costs)
    graph.add_edge("b", "a", pairwise=table)
    graph.add_edge("b", "c", pairwise=table)
    by_graph, by_arrays = Mrf.from_networkx(graph), Mrf.from_arrays(unary, [(0, 1), (1, 2)], table)
    every = labellings(by_arrays)
    assert np.array_equal(by_graph.energy(every), by_arrays.energy(every))
    assert by_arrays.energy([1, 0, 2]) == 1 + 2 + 0 + table[1, 0] + table[0, 2]


@pytest.mark.parametrize(
    ("counts", "factors", "error", "names"),
    [
        ([], [], ModelError, "counts"),
        ([2, 0], [], ModelError, "counts"),
        ([2, 2], [((0, 0), np.zeros((2, 2)))], ScopeError, "factor 0"),
        ([2, 2], [((0,), [1, 2]), ((0, 2), np.zeros((2, 2)))], ScopeError, "factor 1"),
        ([2, 3], [((1, 0), np.zeros((2, 3)))], ShapeError, r"\(3, 2\)"),
        ([2], [((0,), [0, -np.inf])], NonFiniteError, "factor 0"),
        ([2], [((0,), [0, np.nan])], NonFiniteError, "factor 0"),
    ],
)
def test_bad_models_are_refused(counts, factors, error, names):
    with pytest.raises(error, match=names):
        Mrf(counts, factors)


def test_bad_labels_are_refused():
    mrf = Mrf([2, 3], [])
    with pytest.raises(ShapeError, match="labels"):
        mrf.energy([[0, 1, 0]])
    with pytest.raises(ShapeError, match="integers"):
        mrf.energy([0.5, 1.0])
    with pytest.raises(ScopeError, match="variable 1"):
        mrf.energy([1, 3])
    with pytest.raises(ScopeError, match="evidence"):
        mrf.condition({0: 2})


def test_an_infinite_constant_forbids_all_labellings():
    mrf = Mrf([2, 3], [((), np.array(np.inf)), ((0,), [1.0, 2.0])])
    assert np.isinf(mrf.energy(labellings(mrf))).all() and mrf.constant == 0
    assert solve_mrf_exactly(mrf).status is Status.INFEASIBLE
    assert solve_mrf(mrf).energy == np.inf
    for bad in (np.nan, -np.inf):
        with pytest.raises(NonFiniteError, match=r"factor 0 on .* holds NaN or -inf"):
            Mrf([2], [((), np.array(bad))])
