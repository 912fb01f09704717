"""Exact independent sets against enumeration and the manifest's optima."""

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

import blocklp as bl
from blocklp.errors import ModelError, OptionError
from blocklp.problems.discrete.exact import ExactSettings
from blocklp.problems.mis import WeightedGraph, read_graph, solve_mis_exactly
from blocklp.problems.mis.reductions import Fold, ReducedGraph

pytest.importorskip("numba")


def random_graph(rng, most):
    n = int(rng.integers(1, most + 1))
    density = rng.choice([0.15, 0.3, 0.6])
    edges = np.array([(i, j) for i in range(n) for j in range(i) if rng.random() < density], dtype=np.int64).reshape(-1, 2)
    weights = [np.ones(n), rng.integers(0, 7, n).astype(float), rng.random(n) * 10][rng.integers(3)]
    return WeightedGraph.from_edges(weights, edges)


def heaviest(graph, all_labellings):
    every = all_labellings(graph.n)
    return graph.weight(every)[graph.independent(every)].max()


@pytest.mark.parametrize("without", [(), ("leaf_tables", "tables"), ("leaf_tables", "tables", "searched_graph")])
def test_random_graphs_against_enumeration(without, all_labellings):
    settings = ExactSettings(**dict.fromkeys(without, 0))  # without the easy ways out
    rng = np.random.default_rng(len(without))
    for _ in range(150):
        graph = random_graph(rng, 13)
        most, found = heaviest(graph, all_labellings), solve_mis_exactly(graph, settings=settings)
        assert found.proven
        assert graph.independent(found.labels.numpy())
        assert found.energy == pytest.approx(most, abs=1e-7)
        assert most - 1e-9 <= found.bound <= most + 1e-6


def reduced_and_lifted(graph):
    """A kernel whose heaviest set, by networkx, is lifted to a heaviest one of the graph, by enumeration."""
    near = {v: set() for v in range(graph.n)}
    for a, b in graph.edges.tolist():
        near[a].add(b)
        near[b].add(a)
    kernel = ReducedGraph(dict(enumerate(graph.weights.tolist())), near)
    kernel.reduce()
    left_over = kernel.fix_by_flow()
    bound = kernel.won + left_over
    rest = nx.complement(nx.from_dict_of_lists(kernel.near))
    best = max((c for c in nx.enumerate_all_cliques(rest)), key=lambda c: sum(kernel.weights[v] for v in c), default=[])
    inside = np.zeros(graph.n)
    inside[list(kernel.lift(best))] = 1
    assert graph.independent(inside)
    weight = kernel.won + sum(kernel.weights[v] for v in best)
    assert graph.weight(inside) == pytest.approx(weight, abs=1e-9)
    every = ((np.arange(2**graph.n)[:, None] >> np.arange(graph.n)) & 1).astype(float)
    assert weight == pytest.approx(graph.weight(every)[graph.independent(every)].max(), abs=1e-9)
    assert bound >= weight - 1e-9
    return kernel


def test_reductions_keep_the_maximum_and_lift():
    rng = np.random.default_rng(5)
    assert sum(bool(reduced_and_lifted(random_graph(rng, 11)).weights) for _ in range(2000)) > 20


@pytest.mark.parametrize("whole", [True, False])
def test_stars_fold(whole):
    rng = np.random.default_rng(6)
    folded = 0
    for _ in range(400):
        # Bipartite but for a few edges, and heavy on one side, so that independent neighbourhoods are many.
        edges = [(i, j) for i in range(11) for j in range(i) if rng.random() < (0.5 if i >= 6 > j else 0.05)]
        weights = np.concatenate([rng.integers(2, 5, 6), rng.integers(5, 12, 5)]) + (0.0 if whole else rng.random(11))
        kernel = reduced_and_lifted(WeightedGraph.from_edges(weights, np.array(edges, dtype=np.int64).reshape(-1, 2)))
        folded += any(isinstance(step, Fold) and len(step.others) > 1 for step in kernel.steps)
    assert folded > 50


@pytest.mark.parametrize(
    "name, optimum",
    [
        ("col/1-Insertions_4.col", 32),
        ("col/2-FullIns_4.col", 105),
        ("col/2-Insertions_4.col", 74),
        ("col/3-Insertions_4.col", 139),
        ("col/games120.col", 22),
        ("col/miles250.col", 44),
        ("mwvc/DBN_15.mwvc", 1396.5993),
        ("mwvc/Grids_13.mwvc", 4708.094),
        ("mwvc/Segmentation_15.mwvc", 1878.8239),
    ],
)
def test_optima_of_the_manifest(shared_qpbo, name, optimum):
    graph = read_graph(shared_qpbo / "mis" / name)
    found = solve_mis_exactly(graph)
    assert found.proven and graph.independent(found.labels.numpy())
    assert found.energy == pytest.approx(optimum, abs=1e-3)


@pytest.mark.slow
def test_weights_of_1e20_are_no_obstacle(shared_qpbo):
    graph = read_graph(shared_qpbo / "mis" / "mwvc" / "sat-grid-pbl-0010.cnf.mwvc")
    found = solve_mis_exactly(graph)
    ends = coo_array((np.ones(2 * len(graph.edges)), (np.repeat(np.arange(len(graph.edges)), 2), graph.edges.ravel())))
    small = graph.weights / 1e20  # whole numbers, which HiGHS solves
    other = milp(-small, constraints=LinearConstraint(ends, ub=1), integrality=np.ones(graph.n), bounds=Bounds(0, 1))
    assert found.proven and graph.independent(found.labels.numpy())
    assert small @ found.labels.numpy() == round(-other.fun)
    assert found.energy == 1e20 * round(-other.fun) <= found.bound <= np.nextafter(found.energy, np.inf)


def test_limits_return_a_bracket(shared_qpbo):
    graph = read_graph(shared_qpbo / "mis" / "frb" / "frb40-19-1.mis")
    found = solve_mis_exactly(graph, callback=lambda event: True)
    assert found.status is bl.Status.INTERRUPTED and not found.proven
    assert graph.independent(found.labels.numpy())
    assert 33 <= found.energy <= 40 <= found.bound < 100  # forty nodes by construction, of forty cliques


def test_bad_input_is_refused():
    graph = WeightedGraph.from_edges([1.0, 1.0], [(0, 1)])
    with pytest.raises(OptionError, match="time_limit"):
        solve_mis_exactly(graph, time_limit=-1)
    with pytest.raises(ModelError, match="complement"):
        solve_mis_exactly(WeightedGraph.from_edges([1.0, 1.0], [(0, 1)], objective="clique"))
