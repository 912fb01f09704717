import networkx as nx
import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import ModelError, OptionError
from blocklp.general_solvers.solvers import reference
from blocklp.problems.mis import WeightedGraph, clique_model, read_graph, solve_mis


def random_graph(seed, n=10, edges=16):
    rng = np.random.default_rng(seed)
    return WeightedGraph.from_edges(rng.integers(1, 10, n), list(nx.gnm_random_graph(n, edges, seed=seed).edges))


def heaviest(graph, labellings):
    return graph.weight(labellings[graph.independent(labellings)]).max()


@pytest.mark.parametrize("blocks", ["edges", "cliques"])
@pytest.mark.parametrize("seed", range(4))
def test_bound_gap_and_set_against_brute_force_and_highs(seed, blocks, all_labellings):
    graph = random_graph(seed)
    found = solve_mis(graph, blocks, tol=1e-6)
    lp = reference(clique_model(graph, blocks)).objective[0]
    best = heaviest(graph, all_labellings(graph.n))
    assert found.relaxation.status == (bl.Status.OPTIMAL,)
    assert float(found.relaxation.bound[0]) == pytest.approx(float(lp), rel=2e-6)
    assert float(found.relaxation.safe_bound[0]) >= float(lp) - 1e-9 * float(lp)
    assert float(found.relaxation.primal[0]) <= float(lp) * (1 + 1e-6)
    assert graph.independent(found.members.numpy())
    assert found.weight == graph.weight(found.members.numpy()) <= best
    assert found.gap == pytest.approx((float(found.relaxation.bound[0]) - found.weight) / float(found.relaxation.bound[0]))


@pytest.mark.parametrize("blocks", ["edges", "cliques"])
@pytest.mark.parametrize("seed", range(4))
def test_fixed_nodes_are_right(seed, blocks, all_labellings):
    graph = random_graph(seed)
    labellings = all_labellings(graph.n)
    sets = labellings[graph.independent(labellings)]
    best = sets[graph.weight(sets) == graph.weight(sets).max()]
    proved = solve_mis(graph, blocks).persistency
    weak, strong = proved.weak >= 0, proved.strong >= 0
    assert (best[:, weak] == proved.weak[weak]).all(1).any()
    assert (best[:, strong] == proved.strong[strong]).all()


@pytest.mark.parametrize("blocks", ["edges", "cliques"])
def test_repaired_points_are_feasible_from_anywhere(blocks):
    graph = random_graph(7, n=20, edges=60)
    model = clique_model(graph, blocks)
    start = torch.randn(30, graph.n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    repaired = model.repair({"y": start})["y"]
    assert ((repaired >= 0) & (repaired <= 1)).all()
    for group in model.blocks:
        assert (repaired[:, group.scope].sum(-1) <= 1 + 1e-12).all()


@pytest.mark.parametrize("blocks", ["edges", "cliques"])
def test_isolated_nodes_are_in_the_set(blocks):
    graph = WeightedGraph.from_edges([2, 3, 5, 7], [(0, 1)])
    found = solve_mis(graph, blocks)
    assert found.members.tolist() == [False, True, True, True]
    assert float(found.relaxation.bound[0]) == pytest.approx(15, rel=1e-4)


def test_graph_without_edges():
    found = solve_mis(WeightedGraph.from_edges([2, 3], np.zeros((0, 2), dtype=int)))
    assert (found.weight, found.gap) == pytest.approx((5, 0), abs=1e-12)
    assert found.persistency.strong.tolist() == [1, 1]


def test_several_graphs_keep_their_order_and_values():
    graphs = [
        random_graph(1),
        WeightedGraph.from_edges([4, 1], np.zeros((0, 2), dtype=int)),
        WeightedGraph.from_networkx(nx.complete_graph(5), weight=None),
        random_graph(2, n=6, edges=5),
    ]
    for blocks in ("edges", "cliques"):
        together = solve_mis(graphs, blocks, tol=1e-6, history=True)
        for graph, found in zip(graphs, together, strict=True):
            alone = solve_mis(graph, blocks, tol=1e-6)
            assert found.weight == alone.weight
            assert float(found.relaxation.bound[0]) == pytest.approx(float(alone.relaxation.bound[0]), rel=2e-6)
            events = found.relaxation.history
            assert events[-1].passes <= int(found.relaxation.passes[0])
            assert {tuple(e.bound.shape) for e in events} == {(1,)}
            assert int(events[-1].status[0]) == bl.Status.OPTIMAL


def test_interrupt_leaves_later_batches_with_valid_bounds():
    graphs = [WeightedGraph.from_networkx(nx.complete_graph(k), weight=None) for k in (3, 4, 5)]
    found = solve_mis(graphs, callback=lambda event: True, tol=0)
    assert {f.relaxation.status[0] for f in found} == {bl.Status.INTERRUPTED}

    def interrupt(event):
        raise KeyboardInterrupt

    found = solve_mis(graphs, callback=interrupt, tol=0)
    assert [f.relaxation.status[0] for f in found] == [bl.Status.INTERRUPTED] * 3
    assert all(float(f.relaxation.bound[0]) >= 1 for f in found)


def test_time_limit_holds_for_all_batches_together():
    graphs = [WeightedGraph.from_networkx(nx.complete_graph(k), weight=None) for k in (3, 4, 5)]
    found = solve_mis(graphs, time_limit=1e-9, tol=0)
    assert {f.relaxation.status[0] for f in found} == {bl.Status.TIME_LIMIT}
    assert all(float(f.relaxation.bound[0]) >= 1 for f in found)


def test_time_limit_is_shared_by_instances(monkeypatch: pytest.MonkeyPatch):
    given: list[float] = []
    solve = bl.Solver.solve

    def recorded(self, **options):
        given.append(options["time_limit"].left())
        return solve(self, **options)

    monkeypatch.setattr(bl.Solver, "solve", recorded)
    solve_mis([WeightedGraph.from_networkx(nx.complete_graph(k), weight=None) for k in (3, 4, 4, 5)], time_limit=3600)
    # Batches of one, two and one instance: a quarter, two thirds of what is left, the rest.
    assert given == pytest.approx([900, 2400, 3600], rel=0.05)


def test_clique_problem_is_refused_and_its_complement_solved():
    graph = WeightedGraph.from_edges([1, 2, 3], [(0, 1)], objective="clique")
    with pytest.raises(ModelError, match="complement"):
        solve_mis(graph)
    assert solve_mis(graph.complement()).weight == 3


def test_unknown_blocks_are_refused():
    with pytest.raises(OptionError, match="'edges', 'cliques' or 'separated'"):
        clique_model(random_graph(0), "triangles")


@pytest.mark.parametrize(("name", "roof", "alpha"), [("games120", 60, 22), ("david", 48, 36), ("anna", 83.5, 80)])
def test_real_graphs(shared_qpbo, name, roof, alpha):
    graph = read_graph(shared_qpbo / "mis" / "col" / f"{name}.col")
    edges, cliques = solve_mis(graph, "edges"), solve_mis(graph, "cliques")
    assert float(edges.relaxation.bound[0]) == pytest.approx(roof, rel=1e-4)
    assert alpha <= float(cliques.relaxation.bound[0]) <= roof
    assert float(cliques.relaxation.bound[0]) == pytest.approx(float(reference(clique_model(graph)).objective[0]), rel=1e-4)
    assert edges.weight <= alpha and cliques.weight == alpha


@pytest.mark.parametrize(("name", "roof"), [("DBN_15", 1396.5993), ("Grids_11", 2499.4467), ("Segmentation_15", 1878.8239)])
def test_real_weighted_graphs(shared_qpbo, name, roof):
    graph = read_graph(shared_qpbo / "mis" / "mwvc" / f"{name}.mwvc")
    assert float(solve_mis(graph, "edges").relaxation.bound[0]) == pytest.approx(roof, rel=1e-4)
