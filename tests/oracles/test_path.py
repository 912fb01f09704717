"""Paths against networkx and HiGHS, in graphs with and without cycles, with and without compiled loops."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog

import blocklp as bl
from blocklp.errors import ModelError, ShapeError
from blocklp.methods import as_method
from blocklp.oracles import Knapsack, Path


@pytest.fixture(params=[True, False], ids=["loops", "as written"], autouse=True)
def both(request: pytest.FixtureRequest, use_backend: Callable[[str], None]) -> None:
    if not request.param:
        use_backend("torch")


def graph(seed: int, nodes: int, arcs: int, cycles: bool) -> np.ndarray:
    """Tails and heads ``(2, arcs)``: a path through all nodes, and arcs anywhere, parallel ones too."""
    draw = np.random.default_rng(seed)
    ends = draw.integers(0, nodes, (2, 4 * arcs))
    ends = ends[:, ends[0] != ends[1]][:, : arcs - nodes + 1]
    ends = np.concatenate([np.stack([np.arange(nodes - 1), np.arange(1, nodes)]), ends], 1)
    return ends if cycles else np.sort(ends, 0)


def flow(ends: np.ndarray, nodes: int, cost: np.ndarray, source: int, target: int, demand: float) -> float:
    """Cheapest flow by HiGHS, no arc with more than the demand."""
    matrix, balance = np.zeros((nodes, len(cost))), np.zeros(nodes)
    np.add.at(matrix, (ends[0], np.arange(len(cost))), 1)
    np.add.at(matrix, (ends[1], np.arange(len(cost))), -1)
    balance[[source, target]] = demand, -demand
    return float(linprog(cost, A_eq=matrix, b_eq=balance, bounds=(0, demand), method="highs").fun)


@pytest.mark.parametrize("cycles", [False, True])
def test_costs_of_either_sign(cycles: bool) -> None:
    for seed in range(4):
        draw, nodes = np.random.default_rng(seed), 9
        ends = graph(seed, nodes, 25, cycles)
        source, target, demand = draw.integers(0, 4, 3), draw.integers(5, 9, 3), draw.uniform(0.5, 2, (2, 3))
        kind = Path(*ends, source, target, demand)
        cost = draw.normal(size=(2, 3, ends.shape[1]))
        cost = cost.round() if seed % 2 else cost
        (point, value), error = kind.min_oracle(torch.from_numpy(cost)), kind.value_error(torch.from_numpy(cost))
        for i, b in np.ndindex(2, 3):
            truth = flow(ends, nodes, cost[i, b], source[b], target[b], demand[i, b])
            assert float(value[i, b]) == pytest.approx(truth, abs=1e-8)
            assert float((point[i, b] * torch.from_numpy(cost[i, b])).sum()) == pytest.approx(truth, abs=1e-8)
            assert 0 <= float(error[i, b]) < 1e-12
            assert set((point[i, b] / demand[i, b]).tolist()) <= {0.0, 1.0}


def test_shortest_paths_of_a_grid() -> None:
    """Nonnegative costs on streets both ways: what Dijkstra finds, between many pairs at once."""
    streets = nx.grid_2d_graph(7, 6).to_directed()
    number = {v: i for i, v in enumerate(streets)}
    ends = np.array([[number[u], number[v]] for u, v in streets.edges]).T
    draw = np.random.default_rng(1)
    cost, source, target = draw.uniform(0, 1, ends.shape[1]), draw.integers(0, 20, 8), draw.integers(20, 42, 8)
    kind = Path(*ends, source, target)
    found = kind.min_oracle(torch.from_numpy(cost).expand(1, 8, -1))[1][0]
    weighted = nx.DiGraph()
    weighted.add_weighted_edges_from((*line, c) for line, c in zip(ends.T.tolist(), cost, strict=True))
    truth = [nx.dijkstra_path_length(weighted, s, t) for s, t in zip(source, target, strict=True)]
    assert found.tolist() == pytest.approx(truth, rel=1e-11)


def test_multi_commodity_flow() -> None:
    """Commodities that share capacities, against HiGHS on the model written out."""
    draw, nodes = np.random.default_rng(2), 8
    ends = graph(2, nodes, 30, True)
    m = bl.Model()
    x = m.variable("x", (4, 30), lower=0, upper=2)
    demand = draw.uniform(0.5, 1, 4)
    m.add(Path(*ends, [0, 0, 1, 2], [7, 6, 5, 7], demand), x)
    m.add(Knapsack(np.ones(4), np.where(np.arange(30) < nodes - 1, 4.0, 0.6), upper=2.0), x.T)
    m.minimize((torch.from_numpy(np.where(np.arange(30) < nodes - 1, 5.0, draw.uniform(0, 1, 30))) * x).sum())
    solution, truth = m.solve(tol=1e-5), float(bl.reference(m).objective)
    assert float(solution.bound) == pytest.approx(truth, rel=2e-5) and float(solution.safe_bound) <= truth
    assert float(bl.verify_certificate(m, solution.state).bound) <= truth * (1 + 1e-12)


@pytest.mark.parametrize("nodes", [8, 24])
def test_capacities_as_rows(nodes: int) -> None:
    """Commodities that share capacities, stated as rows: points of the oracles in a master, against HiGHS on the whole LP."""
    draw, arcs = np.random.default_rng(3), 4 * nodes
    ends, demand = graph(3, nodes, arcs, True), draw.uniform(0.5, 1, 4)
    m = bl.Model()
    flow = m.variable("flow", (4, arcs), lower=0, upper=2)
    m.add(Path(*ends, [0, 0, 1, 2], [nodes - 1, nodes - 2, nodes - 3, nodes - 1], demand), flow)
    ways = np.arange(arcs) < nodes - 1  # the long way has room for all
    capacity = m.add(flow.sum(0) <= np.where(ways, 4.0, 0.6), name="capacity")
    m.minimize((torch.from_numpy(np.where(ways, 5.0, draw.uniform(0, 1, arcs))) * flow).sum())
    assert isinstance(as_method("auto", m.compile().decomposition()), bl.methods.DantzigWolfe)
    solution, truth = m.solve(tol=1e-6), float(bl.reference(m).objective)
    assert float(solution.bound) == pytest.approx(truth, rel=2e-6) and float(solution.safe_bound) <= truth * (1 + 1e-9)
    assert float(solution.primal) == pytest.approx(truth, rel=2e-6)
    assert (solution.slack(capacity) >= -1e-6).all() and (solution.price(capacity) <= 1e-9).all()
    assert int(solution.passes) < 30
    race = m.solve(tol=1e-4, method="race")  # on the rows of the blocks
    assert float(race.bound) == pytest.approx(truth, rel=2e-4)
    alone = bl.Model()
    only = alone.variable("flow", (4, arcs), lower=0, upper=2)
    alone.add(Path(*ends, [0, 0, 1, 2], [nodes - 1, nodes - 2, nodes - 3, nodes - 1], demand), only)
    alone.minimize(only.sum())
    assert not isinstance(as_method("auto", alone.compile().decomposition()), bl.methods.DantzigWolfe)


def test_assignments() -> None:
    """The cheapest assignment as a flow of n through a graph of people and jobs, and by SciPy."""
    cost = np.random.default_rng(6).normal(size=(5, 5)).round(1)
    people, jobs = np.repeat(np.arange(5), 5) + 2, np.tile(np.arange(5), 5) + 7
    tails = np.concatenate([np.zeros(5, int), people, np.arange(5) + 7])
    heads = np.concatenate([np.arange(5) + 2, jobs, np.ones(5, int)])
    m = bl.Model()
    x = m.variable("x", 35, lower=0, upper=np.repeat([1.0, 5.0, 1.0], [5, 25, 5]))
    m.add(Path(tails, heads, 0, 1, 5.0), x[None])
    m.minimize((np.concatenate([np.zeros(5), cost.ravel(), np.zeros(5)])) @ x)
    solution, truth = m.solve(tol=1e-7), cost[linear_sum_assignment(cost)].sum()
    assert float(solution.bound) == pytest.approx(truth, abs=1e-6) and float(solution.primal) == pytest.approx(truth, abs=1e-6)


def test_fixings() -> None:
    """Closed arcs give detours, or prove that there is no way."""
    for tails, heads in (([0, 0, 1], [1, 2, 2]), ([0, 0, 1, 2], [1, 2, 2, 0])):
        kind, arcs = Path(tails, heads, 0, 2), len(tails)
        cost, high = torch.ones(1, 1, arcs, dtype=torch.float64), torch.ones(1, 1, arcs, dtype=torch.float64)
        high[..., 1] = 0
        detour = kind.restrict(torch.zeros_like(high), high)
        assert detour is not None and float(detour.min_oracle(cost)[1]) == pytest.approx(2, rel=1e-12)
        high[..., 0] = 0
        none = kind.restrict(torch.zeros_like(high), high)
        assert none is not None and float(none.min_oracle(cost)[1]) > 1e100
        assert kind.restrict(high, torch.ones_like(high)) is None or not bool(high.any())


def test_bad_arguments() -> None:
    with pytest.raises(ModelError, match="the source 2 of block 0 of instance 0 has no path to its target"):
        Path([0, 1], [1, 2], 2, 0)
    with pytest.raises(ModelError, match="the source 1 of block 1 of instance 0 is its target"):
        Path([0, 1], [1, 2], [0, 1], [1, 1])
    with pytest.raises(ModelError, match="arc 1 enters the node that it leaves"):
        Path([0, 1], [1, 1], 0, 1)
    with pytest.raises(ModelError, match="nodes are integers from 0 on"):
        Path([0, 1.5], [1, 2], 0, 2)
    with pytest.raises(ModelError, match="demands must be positive"):
        Path([0], [1], 0, 1, demand=0.0)
    with pytest.raises(ShapeError, match="give"):
        Path([0, 1], [1], 0, 1)
