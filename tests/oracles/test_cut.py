"""Cuts against networkx and brute force, with and without compiled loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import ModelError, ShapeError
from blocklp.oracles import Cut, Simplex


@pytest.fixture(params=[True, False], ids=["loops", "as written"], autouse=True)
def both(request: pytest.FixtureRequest, use_backend: Callable[[str], None]) -> None:
    if not request.param:
        use_backend("torch")


@pytest.mark.parametrize("seed", range(3))
def test_smallest_cuts(seed: int) -> None:
    """Capacities of all sizes, between pairs of nodes of a random graph."""
    draw = np.random.default_rng(seed)
    directed = nx.gnp_random_graph(12, 0.3, seed=seed, directed=True)
    ends = np.array(directed.edges).T
    capacity = draw.uniform(0, 1, (2, 3, ends.shape[1])) * 10.0 ** draw.integers(-3, 4, (2, 3, ends.shape[1]))
    capacity = capacity.round(1) if seed else capacity
    source, sink = np.array([0, 5, 11]), np.array([11, 3, 2])
    kind = Cut(*ends, source, sink)
    cost = torch.from_numpy(np.concatenate([np.zeros((2, 3, 12)), capacity], -1))
    point, value = kind.min_oracle(cost)
    for i, b in np.ndindex(2, 3):
        nx.set_edge_attributes(directed, dict(zip(map(tuple, ends.T.tolist()), capacity[i, b].tolist(), strict=True)), "capacity")
        truth, _ = nx.minimum_cut(directed, int(source[b]), int(sink[b]))
        assert float(value[i, b]) == pytest.approx(truth, rel=1e-10, abs=1e-10)
        assert float((point[i, b] * cost[i, b]).sum()) == pytest.approx(truth, rel=1e-10, abs=1e-10)
        assert point[i, b, source[b]] == 1 and point[i, b, sink[b]] == 0


def test_nodes_choose_by_their_costs() -> None:
    """Costs of nodes and arcs, of either sign, against all 2^7 sides."""
    draw = np.random.default_rng(3)
    ends = np.array([(u, v) for u, v in itertools.permutations(range(7), 2) if draw.random() < 0.4]).T
    kind, cost = Cut(*ends), draw.normal(size=(1, 40, 7 + ends.shape[1]))
    value, sides = kind.min_oracle(torch.from_numpy(cost))[1], np.array(list(itertools.product((0, 1), repeat=7)))
    across = np.maximum(sides[:, ends[0]] - sides[:, ends[1]], 0)
    for b in range(40):
        node, arc = cost[0, b, :7], cost[0, b, 7:]
        truth = (sides @ node + across @ np.maximum(arc, 0)).min() + np.minimum(arc, 0).sum()
        assert float(value[0, b]) == pytest.approx(truth, abs=1e-12)


def test_labels_of_a_grid() -> None:
    """Three labels a pixel, a cut for each, one label a pixel: a bound below every labelling, and what HiGHS says of the LP."""
    draw, (h, w) = np.random.default_rng(4), (4, 4)
    number = np.arange(h * w).reshape(h, w)
    across, down = np.stack([number[:, :-1], number[:, 1:]]), np.stack([number[:-1], number[1:]])
    pairs = np.concatenate([across.reshape(2, -1), down.reshape(2, -1)], 1)
    ends = np.concatenate([pairs, pairs[::-1]], 1)
    m = bl.Model()
    label = m.variable("label", (3, h * w), lower=0, upper=1)
    arcs = m.variable("arcs", (3, ends.shape[1]), lower=0, upper=1)
    m.add(Cut(*ends), [label[:, [k]] for k in range(h * w)] + [arcs[:, [a]] for a in range(ends.shape[1])])
    m.add(Simplex(3), label.T)
    unary = torch.from_numpy(draw.random((3, h * w)))
    m.minimize((unary * label).sum() + 0.2 * arcs.sum())
    solution, truth = m.solve(tol=1e-4), float(bl.reference(m).objective)
    assert float(solution.bound) == pytest.approx(truth, rel=2e-4) and float(solution.safe_bound) <= truth
    labels = unary.argmin(0).numpy()
    energy = unary.min(0).values.sum() + 0.4 * (labels[pairs[0]] != labels[pairs[1]]).sum()
    assert float(solution.bound) <= energy


def test_fixings() -> None:
    kind, cost = Cut([0, 1], [1, 2], source=0), torch.tensor([[[0.0, 0.5, 0.0, 2.0, 3.0]]], dtype=torch.float64)
    low, high = torch.zeros(1, 1, 5, dtype=torch.float64), torch.ones(1, 1, 5, dtype=torch.float64)
    assert float(kind.min_oracle(cost)[1]) == pytest.approx(0.5, rel=1e-12)
    high[..., 2] = 0
    cut = kind.restrict(low, high)
    assert cut is not None and float(cut.min_oracle(cost)[1]) == pytest.approx(2, rel=1e-12)
    low[..., 1] = 1
    cut = kind.restrict(low, high)
    assert cut is not None and float(cut.min_oracle(cost)[1]) == pytest.approx(3.5, rel=1e-12)
    high[..., 0] = 0
    assert kind.restrict(low, high) is None
    high[..., 3] = 0.5
    assert kind.restrict(low, high) is None


def test_bad_arguments() -> None:
    with pytest.raises(ModelError, match="the source of block 1 of instance 0 is its sink"):
        Cut([0, 1], [1, 2], [0, 2], 2)
    with pytest.raises(ModelError, match="nodes are integers from 0 on"):
        Cut([0, -1], [1, 2])
    with pytest.raises(ShapeError, match="do not fit together"):
        Cut([0, 1], [1, 2], [0, 0, 1], [1, 2])
