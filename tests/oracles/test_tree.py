"""Spanning trees and forests against networkx, brute force and HiGHS, with and without compiled loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import blocklp as bl
from blocklp.errors import ModelError, OptionError, ShapeError
from blocklp.oracles import Tree


@pytest.fixture(params=[True, False], ids=["loops", "as written"], autouse=True)
def both(request: pytest.FixtureRequest, use_backend: Callable[[str], None]) -> None:
    if not request.param:
        use_backend("torch")


def network(draw: np.random.Generator, nodes: int, more: int) -> np.ndarray:
    """Ends ``(2, edges)``: a random tree and further edges, in parallel too."""
    tree = np.array([(draw.integers(0, v), v) for v in range(1, nodes)]).T
    ends = draw.integers(0, nodes, (2, 3 * more + 3))
    return np.concatenate([tree, ends[:, ends[0] != ends[1]][:, :more]], 1)


def lightest(ends: np.ndarray, cost: np.ndarray, forest: bool) -> float:
    """Value of a cheapest tree, or forest, by networkx."""
    own = nx.MultiGraph()
    own.add_nodes_from(range(int(ends.max()) + 1))
    own.add_weighted_edges_from((u, v, c) for (u, v), c in zip(ends.T.tolist(), cost.tolist(), strict=True) if c < 0 or not forest)
    return sum(data["weight"] for *_, data in nx.minimum_spanning_edges(own))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(2, 9),
    more=st.integers(0, 12),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    forest=st.booleans(),
    whole=st.booleans(),
)
def test_cheapest(seed: int, nodes: int, more: int, dtype: torch.dtype, forest: bool, whole: bool) -> None:
    draw = np.random.default_rng(seed)
    ends = network(draw, nodes, more)
    kind = Tree(*ends, forest=forest)
    cost = torch.from_numpy(draw.normal(size=(2, 3, ends.shape[1]))).to(dtype)
    cost = (2 * cost).round() if whole else cost  # ties, and zeros
    (point, value), error = kind.min_oracle(cost), kind.value_error(cost)
    assert point.dtype == value.dtype == dtype and set(point.flatten().tolist()) <= {0.0, 1.0}
    for i, b in np.ndindex(2, 3):
        truth, own = lightest(ends, cost[i, b].double().numpy(), forest), ends[:, point[i, b].numpy() > 0]
        assert abs(float(value[i, b]) - truth) <= float(error[i, b]) + 1e-14 * float(cost[i, b].abs().sum())
        assert float((point[i, b] * cost[i, b]).double().sum()) == pytest.approx(truth, abs=1e-5 if dtype == torch.float32 else 1e-12)
        graph = nx.MultiGraph(own.T.tolist())
        assert not len(graph) or nx.is_forest(graph)
        assert forest or own.shape[1] == nodes - 1
        assert not forest or float((point[i, b] * cost[i, b]).max()) <= 0


def test_of_equal_edges_the_first() -> None:
    point, value = Tree([0, 1, 2, 0], [1, 2, 0, 1]).min_oracle(torch.ones(1, 1, 4, dtype=torch.float64))
    assert point.tolist() == [[[1, 1, 0, 0]]] and value.tolist() == [[2]]
    assert not Tree([0, 1, 2], [1, 2, 0], forest=True).min_oracle(torch.zeros(1, 1, 3))[0].any()


@pytest.mark.parametrize("forest", [False, True])
def test_constraints_have_the_trees_as_vertices(forest: bool) -> None:
    """All 0/1 points of small graphs: those within the constraints are the trees, or the forests."""
    for seed in range(4):
        ends = network(np.random.default_rng(seed), 5, 5)
        rows = Tree(*ends, forest=forest).constraints()
        assert rows is not None
        points = torch.tensor(list(itertools.product((0.0, 1.0), repeat=ends.shape[1])), dtype=torch.float64)
        inside = rows.violation(points[None])[0] == 0
        for x, found in zip(points.numpy(), inside.tolist(), strict=True):
            graph = nx.MultiGraph(ends[:, x > 0].T.tolist())
            is_forest = not len(graph) or nx.is_forest(graph)
            assert found == (is_forest and (forest or x.sum() == 4))


def test_large_graphs_state_no_constraints() -> None:
    assert Tree(np.zeros(16, int), np.arange(1, 17)).constraints() is None
    complete = np.array(list(itertools.combinations(range(14), 2))).T
    assert Tree(*complete).constraints() is None
    star = Tree(np.zeros(15, int), np.arange(1, 16)).constraints()
    assert star is not None and star.matrix.shape[2] == 1  # bounds and the number of edges say all


@pytest.mark.parametrize("forest", [False, True])
def test_fixings(forest: bool) -> None:
    """Edges taken or left out, against brute force; a cycle of taken edges is no tree."""
    draw = np.random.default_rng(5)
    ends = network(draw, 5, 4)
    kind, cost = Tree(*ends, forest=forest), torch.from_numpy(draw.normal(size=(1, 6, 8)))
    points = np.array(list(itertools.product((0.0, 1.0), repeat=8)))
    trees = points[[not (x.any()) or nx.is_forest(nx.MultiGraph(ends[:, x > 0].T.tolist())) for x in points]]
    trees = trees if forest else trees[trees.sum(1) == 4]
    fixed = torch.from_numpy(draw.integers(0, 4, (1, 6, 8)))
    lower, upper = (fixed == 1).double(), (fixed != 0).double()
    found = kind.restrict(lower, upper)
    assert found is not None
    value = found.min_oracle(cost)[1]
    for b in range(6):
        fit = trees[((trees >= lower[0, b].numpy()) & (trees <= upper[0, b].numpy())).all(1)]
        if len(fit):
            assert float(value[0, b]) == pytest.approx((fit @ cost[0, b].numpy()).min(), abs=1e-12)
        else:
            assert float(value[0, b]) > 1e100
    again = found.restrict(lower, upper)
    assert again is not None and torch.equal(again.fixed, found.fixed)
    assert kind.restrict(lower / 2, upper) is None or not bool(lower.any())
    assert found.restrict(torch.zeros_like(lower), 1 - lower) is None  # taken edges left out


@pytest.mark.parametrize("nodes", [6, 20])
def test_degrees(nodes: int) -> None:
    """A tree with at most two edges at each node, with and without stated constraints: the bound of the LP by HiGHS."""
    draw = np.random.default_rng(nodes)
    ends = np.array(list(itertools.combinations(range(nodes), 2))).T
    place = draw.random((nodes, 2))
    cost = np.linalg.norm(place[ends[0]] - place[ends[1]], axis=1)
    incidence = np.zeros((nodes, ends.shape[1]))
    incidence[ends[0], np.arange(ends.shape[1])] = incidence[ends[1], np.arange(ends.shape[1])] = 1
    m = bl.Model()
    x = m.variable("x", ends.shape[1], lower=0, upper=1)
    tree = Tree(*ends)
    m.add(tree, x[None])
    m.add(incidence @ x <= 2, name="degrees")
    m.minimize(cost @ x)
    assert (tree.constraints() is None) == (nodes == 20)
    solution = m.solve(tol=1e-6)
    truth = tree_of_degrees(ends, cost, incidence)
    assert float(solution.bound) == pytest.approx(truth, rel=1e-5) and float(solution.safe_bound) <= truth * (1 + 1e-9)
    assert float(bl.verify_certificate(m, solution.state).bound) <= truth * (1 + 1e-9)
    assert float(solution.primal) == pytest.approx(truth, rel=1e-5)


def tree_of_degrees(ends: np.ndarray, cost: np.ndarray, incidence: np.ndarray) -> float:
    """Least cost of a point of the tree polytope with degrees up to two, by HiGHS on an extended formulation.

    Martin 1991: for every root the edges have directions, in which each other node has one edge towards it.
    """
    import highspy

    nodes, edges = incidence.shape
    h = highspy.Highs()
    h.setOptionValue("output_flag", False)
    x = [h.addVariable(0, 1, float(c)) for c in cost]
    h.addConstr(sum(x) == nodes - 1)
    for v in range(nodes):
        h.addConstr(sum(x[e] for e in np.flatnonzero(incidence[v])) <= 2)
    for root in range(nodes):
        into: list[list[object]] = [[] for _ in range(nodes)]
        for e, (u, v) in enumerate(ends.T.tolist()):
            one, other = h.addVariable(0, 1, 0.0), h.addVariable(0, 1, 0.0)
            h.addConstr(one + other == x[e])
            into[u].append(one)
            into[v].append(other)
        for v in range(nodes):
            h.addConstr(sum(into[v]) <= (0 if v == root else 1))
    h.run()
    return float(h.getInfo().objective_function_value)


def test_bad_arguments() -> None:
    with pytest.raises(ModelError, match="no path joins the nodes 0 and 2"):
        Tree([0, 2], [1, 3])
    with pytest.raises(ModelError, match="no path joins the nodes 0 and 1"):
        Tree([0, 0], [2, 3])
    assert Tree([0, 2], [1, 3], forest=True).dim == 2
    with pytest.raises(ModelError, match="enters the node that it leaves"):
        Tree([0, 1], [1, 1])
    with pytest.raises(ShapeError, match="give"):
        Tree([0, 1], [1])
    with pytest.raises(OptionError, match="forest"):
        Tree([0], [1], forest=1)  # type: ignore[arg-type]
