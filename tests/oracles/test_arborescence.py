"""Arborescences against HiGHS, networkx and brute force, with and without compiled loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import blocklp as bl
from blocklp.errors import ModelError, ShapeError
from blocklp.oracles import Arborescence


@pytest.fixture(params=[True, False], ids=["loops", "as written"], autouse=True)
def both(request: pytest.FixtureRequest, use_backend: Callable[[str], None]) -> None:
    if not request.param:
        use_backend("torch")


def network(draw: np.random.Generator, nodes: int, more: int) -> np.ndarray:
    """Tails and heads ``(2, arcs)``: a cycle through all nodes, and further arcs, in parallel too."""
    ring = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes])
    ends = draw.integers(0, nodes, (2, 3 * more + 3))
    return np.concatenate([ring, ends[:, ends[0] != ends[1]][:, :more]], 1)


def lightest(ends: np.ndarray, cost: np.ndarray, root: int) -> float:
    """Value of a cheapest arborescence by HiGHS: one arc into each node, and room for a unit of flow to each from the root.

    The function of networkx finds none in some graphs with ties.
    """
    nodes, arcs = int(ends.max()) + 1, ends.shape[1]
    balance = np.zeros((nodes, arcs))
    np.add.at(balance, (ends[1], np.arange(arcs)), 1)
    entering = balance.copy()
    np.add.at(balance, (ends[0], np.arange(arcs)), -1)
    others = [v for v in range(nodes) if v != root]
    eye, one = sp.eye_array(arcs), sp.csr_array(entering)
    room = sp.hstack([sp.vstack([-eye] * len(others)), sp.block_diag([eye] * len(others))])
    flows = sp.block_diag([one, *[sp.csr_array(balance[others])] * len(others)])
    sides = [(np.arange(nodes) != root).astype(float), *(np.array(others) == np.array(others)[:, None]).astype(float)]
    objective = np.append(cost, np.zeros(arcs * len(others)))
    # Costs in single precision are nearly ties: HiGHS's usual tolerance takes one for the other.
    tight = dict.fromkeys(("primal_feasibility_tolerance", "dual_feasibility_tolerance"), 1e-10)
    given = objective, room, np.zeros(arcs * len(others)), flows, np.concatenate(sides), (0, 1)
    found = linprog(*given, "highs", options=tight)
    return float(found.fun)


def is_arborescence(ends: np.ndarray, root: int) -> bool:
    graph = nx.MultiDiGraph(ends.T.tolist())
    return nx.is_arborescence(graph) and not graph.in_degree(root)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(2, 9),
    more=st.integers(0, 25),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    digits=st.sampled_from([0, 1, 12]),
)
def test_cheapest(seed: int, nodes: int, more: int, dtype: torch.dtype, digits: int) -> None:
    draw = np.random.default_rng(seed)
    ends, roots = network(draw, nodes, more), draw.integers(0, nodes, (2, 3))
    kind = Arborescence(*ends, roots).to(dtype, torch.device("cpu"))
    cost = torch.from_numpy(draw.normal(size=(2, 3, ends.shape[1])).round(digits)).to(dtype)  # ties, and zeros
    (point, value), error = kind.min_oracle(cost), kind.value_error(cost)
    assert point.dtype == value.dtype == dtype and set(point.flatten().tolist()) <= {0.0, 1.0}
    for i, b in np.ndindex(2, 3):
        truth, slack = lightest(ends, cost[i, b].double().numpy(), int(roots[i, b])), 1e-9
        assert -slack <= truth - float(value[i, b]) <= float(error[i, b]) + slack
        assert float(error[i, b]) <= (1e-5 if dtype == torch.float32 else 1e-12)
        own = ends[:, point[i, b].numpy() > 0]
        assert own.shape[1] == nodes - 1 and is_arborescence(own, int(roots[i, b]))
        assert float((point[i, b].double() * cost[i, b].double()).sum()) == pytest.approx(truth, abs=1e-9)


def test_nested_cycles() -> None:
    """Cheap cycles of cheap cycles: two levels of contraction."""
    tails = np.array([0, 1, 2, 2, 3, 3, 4, 0, 0, 0])
    heads = np.array([1, 2, 1, 3, 2, 4, 3, 2, 3, 4])
    cost = np.array([20.0, 2, 1, 3, 2, 2, 3, 19, 21, 22])
    point, value = Arborescence(tails, heads).min_oracle(torch.from_numpy(cost)[None, None])
    assert float(value) == pytest.approx(lightest(np.stack([tails, heads]), cost, 0), abs=1e-9)
    assert is_arborescence(np.stack([tails, heads])[:, point[0, 0].numpy() > 0], 0)


def test_large_graphs() -> None:
    """Hundreds of nodes, many contractions: networkx on different costs, and the value proves the point."""
    draw, nodes = np.random.default_rng(1), 300
    ends = network(draw, nodes, 1500)
    cost = torch.from_numpy(draw.uniform(1, 2, (1, 2, ends.shape[1])))
    kind = Arborescence(*ends, [0, 17])
    value, error = kind.min_oracle(cost)[1], kind.value_error(cost)
    assert float(error.max()) < 1e-9
    own = nx.DiGraph()
    for (u, v), c in sorted(zip(ends.T.tolist(), cost[0, 1].tolist(), strict=True), key=lambda arc: -arc[1]):
        if v != 17:
            own.add_edge(u, v, weight=c)
    truth = nx.minimum_spanning_arborescence(own).size("weight")
    assert float(value[0, 1]) == pytest.approx(truth, rel=1e-12)


def test_constraints_have_the_arborescences_as_vertices() -> None:
    """All 0/1 points of small graphs: those within the constraints are the arborescences."""
    for seed in range(4):
        ends = network(np.random.default_rng(seed), 4, 7)
        rows = Arborescence(*ends, [0, 2]).constraints()
        assert rows is not None
        points = torch.tensor(list(itertools.product((0.0, 1.0), repeat=ends.shape[1])), dtype=torch.float64)
        inside = rows.violation(points[:, None].expand(-1, 2, -1)) == 0
        for x, found in zip(points.numpy(), inside.tolist(), strict=True):
            own = ends[:, x > 0]
            assert found == [own.shape[1] == 3 and is_arborescence(own, r) for r in (0, 2)]
    assert Arborescence(np.arange(20), np.arange(1, 21)).constraints() is None
    assert Arborescence(*np.array(list(itertools.permutations(range(11), 2))).T).constraints() is None


def test_fixings() -> None:
    """Arcs taken or left out, against brute force; with two arcs into a node, or one into the root, there is none."""
    draw = np.random.default_rng(5)
    ends = network(draw, 4, 6)
    kind, cost = Arborescence(*ends, 1), torch.from_numpy(draw.normal(size=(1, 40, 10)))
    points = np.array(list(itertools.product((0.0, 1.0), repeat=10)))
    trees = points[[x.sum() == 3 and is_arborescence(ends[:, x > 0], 1) for x in points]]
    fixed = torch.from_numpy(draw.integers(0, 8, (1, 40, 10)))
    lower, upper = (fixed == 1).double(), (fixed != 0).double()
    found, none = kind.restrict(lower, upper), 0
    assert found is not None
    value = found.min_oracle(cost)[1]
    for b in range(40):
        fit = trees[((trees >= lower[0, b].numpy()) & (trees <= upper[0, b].numpy())).all(1)]
        if len(fit):
            assert float(value[0, b]) == pytest.approx((fit @ cost[0, b].numpy()).min(), abs=1e-12)
        else:
            assert float(value[0, b]) > 1e100
            none += 1
    assert 0 < none < 40
    assert kind.restrict(torch.full_like(lower, 0.5), upper) is None


def test_degrees() -> None:
    """No node has more than two arcs out: the bound is that of the LP with all constraints."""
    draw, nodes = np.random.default_rng(7), 7
    ends = np.array(list(itertools.permutations(range(nodes), 2))).T
    m = bl.Model()
    x = m.variable("x", ends.shape[1], lower=0, upper=1)
    m.add(Arborescence(*ends, 3), x[None])
    m.add((ends[0] == np.arange(nodes)[:, None]).astype(float) @ x <= 2)
    m.minimize(draw.uniform(0, 1, ends.shape[1]) @ x)
    solution, truth = m.solve(tol=1e-6), float(bl.reference(m).objective)
    assert float(solution.bound) == pytest.approx(truth, rel=2e-6) and float(solution.safe_bound) <= truth * (1 + 1e-9)
    assert float(solution.primal) == pytest.approx(truth, rel=2e-6)


def test_bad_arguments() -> None:
    with pytest.raises(ModelError, match="no path leads from the root 2 of block 1 of instance 0 to 0"):
        Arborescence([0, 1], [1, 2], [0, 2])
    with pytest.raises(ModelError, match="no path leads from the root 0 of block 0 of instance 0 to 2"):
        Arborescence([0, 3], [1, 1])
    with pytest.raises(ModelError, match="nodes are integers from 0 on"):
        Arborescence([0], [1], -1)
    with pytest.raises(ShapeError, match="give"):
        Arborescence([0, 1], [1])
