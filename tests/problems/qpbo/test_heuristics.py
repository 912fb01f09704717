from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch

from blocklp.errors import NonFiniteError, OptionError, ShapeError
from blocklp.problems.discrete.adjacency import Adjacency
from blocklp.problems.qpbo import Qubo, heuristics, one_flip_descent, read_qubo, round_fractional, tabu_search


def random_qubo(n, density, seed, integer=False):
    graph = nx.gnp_random_graph(n, density, seed=seed)
    rng = np.random.default_rng(seed)
    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    linear, quadratic = rng.normal(size=n), rng.normal(size=len(edges))
    if integer:
        linear, quadratic = np.rint(3 * linear), np.rint(3 * quadratic)
    return Qubo.from_terms(linear, edges, quadratic, offset=1.5)


@pytest.fixture(params=[(30, 0.1, False), (60, 0.5, True), (200, 0.02, True), (5, 0.0, False)], ids=str)
def qubo(request):
    n, density, integer = request.param
    return random_qubo(n, density, seed=7, integer=integer)


def starts(qubo, batch, seed=8):
    return torch.randint(0, 2, (batch, qubo.n), generator=torch.Generator().manual_seed(seed))


def test_descent_ends_where_no_flip_improves(qubo):
    y = starts(qubo, 6)
    found = one_flip_descent(qubo, y)
    labels = found.y.numpy().astype(float)
    np.testing.assert_allclose(found.energy.numpy(), qubo.energy(labels), rtol=1e-12)
    assert (qubo.energy(labels) <= qubo.energy(y.numpy()) + 1e-12).all()
    for node in range(qubo.n):
        flipped = labels.copy()
        flipped[:, node] = 1 - flipped[:, node]
        assert (qubo.energy(flipped) >= qubo.energy(labels) - 1e-9).all()


def test_batch_elements_do_not_see_each_other(qubo):
    y = starts(qubo, 4)
    together = one_flip_descent(qubo, y)
    for element in range(4):
        alone = one_flip_descent(qubo, y[element : element + 1])
        assert torch.equal(alone.y[0], together.y[element])


def test_descent_stops_at_its_round_limit(qubo):
    y = starts(qubo, 2)
    assert torch.equal(one_flip_descent(qubo, y, max_rounds=0).y, y.to(torch.int8))
    energies = [one_flip_descent(qubo, y, max_rounds=rounds).energy for rounds in range(4)]
    assert all((later <= earlier + 1e-12).all() for earlier, later in pairwise(energies))


def test_descent_leaves_its_start_unchanged():
    qubo = Qubo.from_terms([-1.0, 1.0], [], [])
    y = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert one_flip_descent(qubo, y).y.tolist() == [[1, 0]]
    assert y.tolist() == [[0.0, 1.0]]


def test_a_long_row_of_equals_falls_in_few_rounds():
    # Every delta is -1 and every neighbour a rival.  One winner for each round would need 2500 rounds.
    n = 5000
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    qubo = Qubo.from_terms(-np.ones(n), edges, np.full(n - 1, 2.0))
    y = torch.zeros(1, n)
    limited = one_flip_descent(qubo, y, max_rounds=30)
    assert torch.equal(limited.y, one_flip_descent(qubo, y).y)


@pytest.mark.parametrize("integer", [False, True])
def test_winners_are_independent_and_beat_their_neighbours(integer):
    graph = nx.gnp_random_graph(40, 0.2, seed=9)
    edges = np.array(graph.edges)
    adjacency = Adjacency.build(40, edges, torch.device("cpu"))
    rng = np.random.default_rng(9)
    priority = rng.integers(0, 3, (5, 40)).astype(float) if integer else rng.normal(size=(5, 40))
    eligible = rng.random((5, 40)) < 0.6
    winners = adjacency.winners(torch.tensor(priority), torch.tensor(eligible)).numpy()
    assert not (winners & ~eligible).any()
    assert not (winners[:, edges[:, 0]] & winners[:, edges[:, 1]]).any()
    for element in range(5):
        best = priority[element][eligible[element]].max()
        assert (winners[element] & (priority[element] == best)).any()
        for node in np.flatnonzero(winners[element]):
            rivals = [other for other in graph[node] if eligible[element, other]]
            assert all(priority[element, node] >= priority[element, other] for other in rivals)


def test_rounding_keeps_the_best_threshold(qubo):
    y = torch.rand(3, qubo.n, generator=torch.Generator().manual_seed(10))
    found = round_fractional(qubo, y, thresholds=(0.2, 0.5, 0.8))
    each = torch.stack([one_flip_descent(qubo, y > cut).energy for cut in (0.2, 0.5, 0.8)])
    torch.testing.assert_close(found.energy, each.min(dim=0).values)
    np.testing.assert_allclose(found.energy.numpy(), qubo.energy(found.y.numpy()), rtol=1e-12)


def test_rounding_never_loses_an_integral_point(qubo):
    y = starts(qubo, 3).to(torch.float64)
    assert (round_fractional(qubo, y).energy.numpy() <= qubo.energy(y.numpy()) + 1e-12).all()


def test_wrong_points_are_refused_by_name():
    qubo = Qubo.from_terms([0, 0], [], [])
    with pytest.raises(ShapeError, match=r"y has shape \(2,\)"):
        one_flip_descent(qubo, torch.zeros(2))
    with pytest.raises(NonFiniteError, match=r"y\[0, 1\] is nan"):
        round_fractional(qubo, torch.tensor([[0.0, torch.nan]]))
    with pytest.raises(OptionError, match="max_rounds is -1"):
        one_flip_descent(qubo, torch.zeros(1, 2), max_rounds=-1)
    with pytest.raises(OptionError, match="thresholds is empty"):
        round_fractional(qubo, torch.zeros(1, 2), thresholds=())


# Proven optima of the library; random starts of one-flip descent reach them on these small instances.
@pytest.mark.parametrize(("name", "optimum"), [("gka1b", -133), ("bqp50-1", -2098), ("gka1c", -5058)])
def test_many_starts_reach_the_optimum_of_small_instances(shared_qpbo, name, optimum):
    qubo = read_qubo(shared_qpbo / "qubo" / f"{name}.sparse")
    assert one_flip_descent(qubo, starts(qubo, 200)).energy.min() == optimum


def test_descent_on_a_device_agrees_on_integer_data(device):
    qubo = random_qubo(60, 0.3, seed=11, integer=True)
    y = starts(qubo, 8)
    assert torch.equal(one_flip_descent(qubo, y.to(device)).y.cpu(), one_flip_descent(qubo, y).y)


@pytest.mark.parametrize("moves", [0, 1, 7, 400])
def test_tabu_moves_are_the_same_with_and_without_compiled_loops(qubo, moves, monkeypatch):
    pytest.importorskip("numba")
    y = torch.cat([starts(qubo, 12), torch.zeros(12, qubo.n)])
    compiled = tabu_search(qubo, y, moves)
    monkeypatch.setattr(heuristics, "affordable_loops", lambda module, deadline: None)
    tensors = tabu_search(qubo, y, moves)
    assert torch.equal(compiled.y, tensors.y) and torch.equal(compiled.energy, tensors.energy)


@pytest.mark.parametrize("rounds", [0, 1, 3, 1000])
def test_descents_are_the_same_with_and_without_compiled_loops(qubo, rounds, monkeypatch):
    pytest.importorskip("numba", reason="numba is not installed")
    y = starts(qubo, 30)
    compiled = one_flip_descent(qubo, y, rounds)
    monkeypatch.setattr(heuristics, "affordable_loops", lambda module, deadline: None)
    tensors = one_flip_descent(qubo, y, rounds)
    assert torch.equal(compiled.y, tensors.y) and torch.equal(compiled.energy, tensors.energy)
    assert rounds or torch.equal(compiled.y, y.to(torch.int8))
