import networkx as nx
import numpy as np
import pytest
import torch

from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.problems.mis import (
    WeightedGraph,
    greedy_independent_set,
    read_graph,
    round_independent_set,
    solve_mis,
    solve_mis_exactly,
    swap_descent,
    tabu_swaps,
)


@pytest.fixture(params=[(30, 0.15, True), (40, 0.4, False), (20, 0.0, True), (12, 1.0, False)], ids=str)
def graph(request):
    n, density, integer = request.param
    rng = np.random.default_rng(13)
    weights = rng.integers(0, 4, n) if integer else rng.random(n)
    return WeightedGraph.from_edges(weights, list(nx.gnp_random_graph(n, density, seed=13).edges))


def points(graph, batch, seed=14):
    return torch.rand(batch, graph.n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def adjacency_matrix(graph):
    matrix = np.zeros((graph.n, graph.n), dtype=np.int64)
    matrix[graph.edges[:, 0], graph.edges[:, 1]] = 1
    return matrix + matrix.T


def check_maximal(graph, sets):
    members = sets.members.numpy()
    assert graph.independent(members).all()
    assert (members | (members @ adjacency_matrix(graph) > 0)).all()
    np.testing.assert_allclose(sets.weight.numpy(), graph.weight(members), rtol=1e-12)


def test_greedy_sets_are_maximal_and_keep_their_guarantee(graph):
    scores = points(graph, 5)
    sets = greedy_independent_set(graph, scores)
    check_maximal(graph, sets)
    degree = torch.tensor(adjacency_matrix(graph).sum(axis=0))
    reached = (sets.members * scores).sum(dim=1)
    assert (reached >= (scores / (degree + 1)).sum(dim=1) - 1e-12).all()


def test_greedy_follows_an_independent_indicator(graph):
    indicator = greedy_independent_set(graph, points(graph, 1)).members
    assert torch.equal(greedy_independent_set(graph, indicator.to(torch.float64)).members, indicator)


def test_no_single_swap_improves(graph):
    for start in (torch.zeros(4, graph.n, dtype=torch.bool), greedy_independent_set(graph, points(graph, 4)).members):
        sets = swap_descent(graph, start)
        check_maximal(graph, sets)
        assert (sets.weight.numpy() >= graph.weight(start.numpy())).all()
        members = sets.members.numpy()
        lost = (members * graph.weights) @ adjacency_matrix(graph)
        assert (members | (graph.weights <= lost + 1e-9)).all()


def test_swap_takes_the_heavy_centre_of_a_star():
    star = WeightedGraph.from_edges([10, 3, 3, 3], [(0, 1), (0, 2), (0, 3)])
    sets = swap_descent(star, torch.tensor([[False, True, True, True], [True, False, False, False]]))
    assert sets.members.tolist() == [[True, False, False, False]] * 2
    assert sets.weight.tolist() == [10, 10]


def test_rounding_gives_the_heaviest_of_its_tries(graph):
    y = points(graph, 3)
    sets = round_independent_set(graph, y)
    check_maximal(graph, sets)
    weights = torch.tensor(graph.weights)
    for scores in (y, y * weights, weights.expand(3, -1)):
        assert (sets.weight >= greedy_independent_set(graph, scores).weight).all()


def test_batch_elements_do_not_see_each_other(graph):
    y = points(graph, 3)
    together = round_independent_set(graph, y)
    for element in range(3):
        assert torch.equal(round_independent_set(graph, y[element : element + 1]).members[0], together.members[element])


def test_wrong_input_is_refused_by_name():
    graph = WeightedGraph.from_edges([1, 1], [(0, 1)])
    with pytest.raises(ShapeError, match=r"scores has shape \(2,\)"):
        greedy_independent_set(graph, torch.zeros(2))
    with pytest.raises(NonFiniteError, match=r"y\[0, 0\] is inf"):
        round_independent_set(graph, torch.tensor([[torch.inf, 0.0]]))
    with pytest.raises(ModelError, match=r"members\[1\] holds two adjacent nodes"):
        swap_descent(graph, torch.tensor([[True, False], [True, True]]))
    for function in (greedy_independent_set, swap_descent, round_independent_set):
        with pytest.raises(ModelError, match="clique problem"):
            function(graph.complement(), torch.zeros(1, 2))


# Proven maximum weights; an uninformed point suffices on these easy graphs.
@pytest.mark.parametrize(("file", "optimum"), [("col/anna.col", 80), ("col/david.col", 36), ("dimacs_weighted/johnson8-2-4.clq", 66)])
def test_easy_graphs_are_solved_from_the_centre(shared_qpbo, file, optimum):
    graph = read_graph(shared_qpbo / "mis" / file)
    if graph.objective == "clique":
        graph = graph.complement()
    assert round_independent_set(graph, torch.full((1, graph.n), 0.5)).weight.item() == optimum


def test_rounding_on_a_device_agrees_on_integer_data(device):
    graph = WeightedGraph.from_networkx(nx.gnp_random_graph(50, 0.2, seed=15), weight=None)
    y = (8 * points(graph, 4)).round()
    assert torch.equal(round_independent_set(graph, y.to(device)).members.cpu(), round_independent_set(graph, y).members)


def test_tabu_swaps_are_independent_never_lighter_and_find_the_optimum(graph):
    pytest.importorskip("numba", reason="tabu search is compiled")
    start = greedy_independent_set(graph, points(graph, 3)).members
    found, again = tabu_swaps(graph, start, 2000), tabu_swaps(graph, start, 2000)
    assert graph.independent(found.members.numpy()).all() and torch.equal(found.members, again.members)
    assert (found.weight.numpy() >= graph.weight(start.numpy()) - 1e-12).all()
    exact = solve_mis_exactly(graph, time_limit=20)
    assert not exact.proven or found.weight.max().item() == pytest.approx(exact.energy)


def test_wrong_tabu_swaps_are_refused(graph):
    with pytest.raises(OptionError, match="rounds is -1"):
        tabu_swaps(graph, torch.zeros(1, graph.n, dtype=torch.bool), -1)


# By construction an independent set of frb30-15 has 30 nodes.
def test_plain_mis_is_within_one_node_of_the_hidden_set(shared_qpbo):
    pytest.importorskip("numba", reason="tabu search is compiled")
    graph = read_graph(shared_qpbo / "mis" / "frb" / "frb30-15-2.mis")
    found = solve_mis(graph)
    assert 29 <= found.weight <= 30 <= found.relaxation.bound.item() and graph.independent(found.members.numpy())


def test_conflicts_lose_their_lighter_nodes():
    graph = WeightedGraph.from_edges([3.0, 1.0, 2.0, 5.0], [(0, 1), (1, 2), (2, 3)])
    assert graph.without_conflicts([1, 1, 1, 1]).tolist() == [True, False, False, True]
    assert graph.without_conflicts([1, 0, 1, 0]).tolist() == [True, False, True, False]
