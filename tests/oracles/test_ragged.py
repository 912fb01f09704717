"""Blocks of one kind and several lengths, stated in one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import ModelError, ScopeError, ShapeError
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import AtMostOne, Knapsack, Simplex


def skewed(seed: int, destinations: int, edges: int) -> tuple[np.ndarray, np.ndarray]:
    """Destinations of edges by a skewed law, sorted, and how many each has."""
    draw = np.random.default_rng(seed)
    share = draw.lognormal(sigma=1.5, size=destinations)
    destination = np.sort(np.concatenate([np.arange(destinations), draw.choice(destinations, edges, p=share / share.sum())]))
    return destination, np.bincount(destination)


def matching(seed: int, batch: int = 1) -> tuple[bl.Model, np.ndarray, np.ndarray]:
    """Edges from sources of any degree to destinations of any degree; loads and capacities by instance."""
    draw = np.random.default_rng(seed)
    destination, sizes = skewed(seed, 6, 60)
    source = draw.integers(0, 20, len(destination))
    weights = draw.uniform(0.5, 2, (batch, len(destination)))
    capacity = 0.3 * np.stack([np.bincount(destination, w) for w in weights])
    value = draw.uniform(1, 3, (batch, len(destination)))
    m = bl.Model(batch)
    x = m.variable("x", len(destination), lower=0, upper=1)
    m.add(Knapsack.ragged(weights, sizes, capacity), x, name="room")
    order = np.argsort(source, kind="stable")
    m.add(AtMostOne.ragged(np.unique(source, return_counts=True)[1]), x[order])
    m.maximize((torch.from_numpy(value) * x).sum())
    return m, destination, source


@pytest.mark.parametrize("method", ["auto", "admm"])
def test_a_matching_reaches_the_optimum(method: str) -> None:
    m, _, _ = matching(0, batch=3)
    solution, truth = m.solve(method=method, tol=1e-4, passes=20_000), reference(m).objective
    assert bool((solution.bound >= truth - 1e-9).all()) and bool((solution.gap <= 1e-4).all())
    assert torch.allclose(solution.primal, truth, rtol=2e-4)


def test_blocks_are_those_stated_one_by_one() -> None:
    m, destination, source = matching(1)
    rows = np.arange(len(destination))
    held = sorted(tuple(line) for b in m.blocks if b.name.startswith("room") for line in b.scope.tolist())
    assert held == sorted(tuple(rows[destination == d]) for d in range(6))
    chosen = sorted(tuple(sorted(line)) for b in m.blocks if b.name.startswith("AtMostOne") for line in b.scope.tolist())
    assert chosen == sorted(tuple(rows[source == s]) for s in np.unique(source))


def test_data_follow_their_blocks() -> None:
    """Weights, bounds, both sides and masses of every block are its own, by instance too."""
    draw = np.random.default_rng(2)
    sizes, batch = np.array([3, 1, 2, 3, 1]), 2
    ends = np.cumsum(sizes)
    weights, upper = draw.normal(size=(batch, 10)), draw.uniform(1, 2, 10)
    least, capacity = np.full((batch, 5), -5.0), draw.uniform(4, 5, 5)
    found = Knapsack.ragged(weights, sizes, capacity, upper=upper, least=least)
    seen = []
    for kind, blocks, places in found.parts:
        assert isinstance(kind, Knapsack) and kind.least is not None and kind.capacity is not None
        for k, b in enumerate(blocks.tolist()):
            own = slice(ends[b] - sizes[b], ends[b])
            assert places[k].tolist() == list(range(10))[own]
            assert np.array_equal(kind.weights[:, k], weights[:, own]) and np.array_equal(kind.upper[0, k], upper[own])
            assert np.array_equal(kind.capacity[:, k], [capacity[b]] * batch) and np.array_equal(kind.least[:, k], least[:, b])
            seen.append(b)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    masses = [
        float(kind.mass[0, k]) for kind, blocks, _ in Simplex.ragged(sizes, [1.0, 2, 3, 4, 5]).parts for k in range(len(blocks))
    ]
    assert masses == [2.0, 5.0, 3.0, 1.0, 4.0]


def test_masses_in_a_model() -> None:
    """Supplies of several sizes, shared among destinations with room."""
    draw = np.random.default_rng(3)
    sizes, mass = np.array([2, 4, 3]), np.array([1.5, 2.0, 0.5])
    destination = np.array([0, 1, 0, 1, 2, 3, 1, 2, 3])
    m = bl.Model()
    x = m.variable("x", 9, lower=0, upper=2)
    m.add(Simplex.ragged(sizes, mass), x)
    for d in range(4):
        m.add(AtMostOne(int((destination == d).sum()), 1.2), x[np.flatnonzero(destination == d)])
    m.minimize(x @ draw.uniform(size=9))
    for method in ("auto", "admm"):
        solution, truth = m.solve(method=method, tol=1e-6, passes=20_000), float(reference(m).objective)
        assert float(solution.bound) <= truth and float(solution.bound) == pytest.approx(truth, rel=1e-5)
        assert float(bl.verify_certificate(m, solution.state).bound) == pytest.approx(truth, rel=1e-5)


def test_models_with_and_without_masses_compile_together() -> None:
    models = []
    for mass in (1.0, 0.5, [2.0, 1.0]):
        m = bl.Model()
        x = m.variable("x", (2, 3), lower=0, upper=2)
        m.add(Simplex(3, mass), x)
        m.add(Knapsack(np.ones(2), 2.5, upper=2.0), x.T)
        m.minimize((torch.tensor([[1.0, 2, 3], [1, 5, 2]]) * x).sum())
        models.append(m)
    together = bl.compile(models).solve(tol=1e-7)
    assert together.bound.tolist() == pytest.approx([float(reference(m).objective) for m in models], rel=1e-6)


def test_bad_arguments() -> None:
    m = bl.Model()
    x = m.variable("x", 5, lower=0, upper=1)
    with pytest.raises(ScopeError, match=r"sizes of the blocks add up to 4, the scope has shape \(5,\)"):
        m.add(Simplex.ragged([1, 3]), x)
    with pytest.raises(ModelError, match="the size of block 1 is 0"):
        Simplex.ragged([2, 0])
    with pytest.raises(ModelError, match=r"the size of block 0 is 1\.5"):
        Simplex.ragged([1.5])
    with pytest.raises(ShapeError, match=r"Knapsack weights has shape \(3,\); give a number, \(5,\)"):
        Knapsack.ragged([1.0, 2.0, 3.0], [2, 3], 1.0)
    with pytest.raises(ModelError, match="the mass of block 1 of instance 0 is -1; it must be positive"):
        Simplex(3, [1.0, -1.0])
    with pytest.raises(ModelError, match="already has blocks or rows named"):
        m.add(Simplex(2), x[:2], name="a[2]")
        m.add(Simplex.ragged([1, 2, 2]), x, name="a")
    assert [b.name for b in m.blocks] == ["a[2]"]  # none of those that were added before
    assert [b.name for b in m.add(Simplex.ragged([2, 3]), x)] == ["Simplex[2]", "Simplex[3]"]
    assert [b.name for b in m.add(Simplex.ragged([1, 1, 3]), x)] == ["Simplex_2[1]", "Simplex_2[3]"]
