"""Annealing and the short search that follows a relaxation."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
import torch

from blocklp.errors import OptionError, ShapeError
from blocklp.problems.qpbo import Qubo, annealing, read_qubo, solve_qpbo
from blocklp.problems.qpbo.annealing import anneal, short_search

numba = pytest.importorskip("numba", reason="annealing is compiled")


def torus(side, seed):
    """A spin glass on a torus."""
    edges = nx.convert_node_labels_to_integers(nx.grid_2d_graph(side, side, periodic=True)).edges
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], len(edges))
    return Qubo.max_cut(side**2, list(edges), signs)


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_annealing_finds_minima_in_any_unit(scale, all_labellings):
    rng = np.random.default_rng(0)
    pairs = list(itertools.combinations(range(14), 2))
    qubo = Qubo.from_terms(scale * rng.integers(-9, 10, 14), pairs, scale * rng.integers(-9, 10, len(pairs)))
    found = anneal(qubo, torch.zeros(8, 14), 300)
    assert found.energy.min().item() == pytest.approx(qubo.energy(all_labellings(14)).min(), rel=1e-12)


def test_annealing_never_loses_what_it_starts_at_and_repeats():
    qubo = torus(12, 1)
    start = torch.randint(0, 2, (4, qubo.n), generator=torch.Generator().manual_seed(0))
    for sweeps in (0, 1, 50):
        found, again = anneal(qubo, start, sweeps), anneal(qubo, start, sweeps)
        assert (found.energy.numpy() <= qubo.energy(start.numpy())).all()
        np.testing.assert_array_equal(found.energy.numpy(), qubo.energy(found.y.numpy().astype(float)))
        assert torch.equal(found.y, again.y)
    parted = anneal(qubo, torch.zeros(4, qubo.n), 50).y
    assert len(torch.unique(parted, dim=0)) > 1


def test_cold_annealing_keeps_an_optimum_and_hot_annealing_leaves_it():
    chain = Qubo.from_terms(np.zeros(50), [(i, i + 1) for i in range(49)], np.where(np.arange(49) % 2, 1.0, -1.0))
    optimum = torch.tensor([[1 if i % 4 < 2 else 0 for i in range(50)]])
    assert chain.energy(optimum.numpy()).item() == anneal(chain, optimum, 20, 1e-3).energy.item()
    assert anneal(chain, torch.zeros(1, 50), 200).energy.item() == chain.energy(optimum.numpy()).item() == -13


def test_wrong_annealing_is_refused():
    qubo = torus(3, 0)
    with pytest.raises(ShapeError, match="give"):
        anneal(qubo, torch.zeros(2))
    with pytest.raises(OptionError, match="sweeps is -1"):
        anneal(qubo, torch.zeros(1, qubo.n), -1)
    with pytest.raises(OptionError, match="positive temperatures"):
        anneal(qubo, torch.zeros(1, qubo.n), hot=0.0)


def test_without_compiled_loops_or_time_a_short_search_is_a_descent(monkeypatch):
    qubo = torus(16, 2)
    start = torch.zeros(1, qubo.n)
    assert short_search(qubo, start, work=1.0).energy.item() <= qubo.energy(start.numpy()).item()
    assert short_search(qubo, start, time_limit=1e-9).energy.item() <= qubo.energy(start.numpy()).item()
    monkeypatch.setattr(annealing, "affordable_loops", lambda module, deadline: None)
    assert math.isfinite(short_search(qubo, start).energy.item())


# Best cuts known (of U. Benlic and J.-K. Hao, 2013); each was 2 to 25 % away before there was a search.
@pytest.mark.parametrize(("name", "best"), [("G1", 11624), ("G11", 564), ("G14", 3064), ("G43", 6660)])
def test_plain_qpbo_finds_cuts_within_a_percent_of_the_best(shared_qpbo, name, best):
    qubo = read_qubo(shared_qpbo / "maxcut" / f"{name}.txt", "maxcut")
    found = solve_qpbo(qubo, passes=50)
    assert 0.99 * best <= -found.energy <= best
    assert found.relaxation.bound.item() <= found.energy == qubo.energy(found.labels.numpy())


def test_tightening_starts_from_a_labelling_that_was_searched_for(all_labellings):
    qubo = torus(4, 5)
    assert solve_qpbo(qubo, tighten=True, passes=100).energy == qubo.energy(all_labellings(16)).min()
