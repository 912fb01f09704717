"""Tightened roof duality against brute force, HiGHS on the same rows, and known optima."""

import itertools
import json
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import blocklp as bl
from blocklp.errors import ModelError, OptionError, ShapeError
from blocklp.kernels.compiled import loops
from blocklp.problems.command_line.app import app
from blocklp.problems.qpbo import Qubo, clusters, read_qubo, roof_duality_model, solve_qpbo, tabu_search, violated_cycles
from blocklp.problems.qpbo.clusters import FOUR_CYCLES, TRIANGLES
from blocklp.problems.qpbo.tightening import lifted, tightened_roof_duality


def random_qubo(seed, n=10, density=0.6):
    rng = np.random.default_rng(seed)
    return Qubo.from_matrix(np.triu(rng.integers(-9, 10, (n, n)) * (rng.random((n, n)) < density)))


def ring(n):
    """Max-cut of a cycle; of an odd one all pairs but one can be cut."""
    return Qubo.max_cut(n, [(i, (i + 1) % n) for i in range(n)], np.ones(n))


def at(model, x):
    """A solution of a model with a given primal point."""
    solution = model.solve(passes=1)
    raw = torch.zeros_like(solution.raw_x)
    raw[0, : len(x)] = torch.as_tensor(x, dtype=torch.float64)
    return replace(solution, raw_x=raw)


@pytest.mark.parametrize("seed", range(12))
def test_bounds_between_roof_duality_and_the_optimum(seed, all_labellings):
    qubo = random_qubo(seed, n=7 + seed % 6, density=0.4 + 0.05 * seed)
    best = qubo.energy(all_labellings(qubo.n)).min()
    model = roof_duality_model(qubo)
    roof = bl.reference(model).objective.item()
    found, labels = tightened_roof_duality(model, qubo, bl.search.Budget(passes=50), tol=1e-5)
    lp = bl.reference(model).objective.item()  # of the model as it has grown
    bounds = [r.bound.item() for r in found.rounds]
    assert bounds == sorted(bounds)
    assert found.solution.bound.item() <= min(lp, best) + 1e-6
    assert found.solution.bound.item() >= roof - 1e-3 * abs(roof)
    # Small instances like these are closed by cycles, or by all that cycles can do.
    assert found.solution.bound.item() >= lp - 1e-3 * abs(lp)
    assert labels.energy == best
    assert bl.verify_certificate(model, found.solution.state).bound.item() <= best


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 10, 11])
def test_cycles_of_any_length_are_solved(n):
    found = solve_qpbo(ring(n), tighten=True, tol=1e-6)
    optimum = -(n - n % 2)
    assert found.energy == optimum
    assert float(found.relaxation.bound[0]) == pytest.approx(optimum, abs=1e-4)
    assert float(found.relaxation.bound[0]) <= optimum + 1e-9
    assert found.relaxation.status == (bl.Status.OPTIMAL,) and found.gap < 1e-5
    assert found.rounds[-1].blocks == n + (1 if n == 3 else n % 2 * (n - 2))


def violation(s):
    """The most violated odd-set inequality of a cycle, by all sets."""
    sets = (f for f in itertools.product((0, 1), repeat=len(s)) if sum(f) % 2)
    return max(1 - sum(1 - a if b else a for a, b in zip(s, f, strict=True)) for f in sets)


@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_the_most_violated_triangles_and_four_cycles(seed):
    rng = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(12, 0.4, seed=seed)
    edges = np.array(sorted(graph.edges))
    qubo = Qubo.from_terms(np.zeros(12), edges, np.ones(len(edges)))
    model = roof_duality_model(qubo)
    y, z = rng.random(12) * 0.4 + 0.3, rng.random(len(edges)) * 0.3
    cut = {tuple(e): float(np.clip(y[e[0]] + y[e[1]] - 2 * v, 0, 1)) for e, v in zip(edges.tolist(), z, strict=True)}

    def expected(length):
        found = {}
        for cycle in nx.simple_cycles(graph, length_bound=length):
            if len(cycle) == length and len(graph.subgraph(cycle).edges) == length:
                s = [cut[tuple(sorted(p))] for p in zip(cycle, cycle[1:] + cycle[:1], strict=True)]
                found[frozenset(cycle)] = violation(s)
        return {nodes: v for nodes, v in found.items() if v > 1e-3}

    proposed = violated_cycles(qubo, at(model, np.concatenate([y, z])), most=10**6)
    found = {c.name: c for c in proposed[:2]}  # the others are triangles of longer cycles
    for name, length in ((TRIANGLES, 3), (FOUR_CYCLES, 4)):
        wanted, got = expected(length), found[name]
        seen = {frozenset(row[:length]): v for row, v in zip(got.scope.tolist(), got.score.tolist(), strict=True)}
        assert len(seen) == len(got.scope)
        assert all(seen[nodes] == pytest.approx(wanted[nodes]) for nodes in seen)
        if length == 3:
            assert seen.keys() == wanted.keys()
        elif wanted:  # the two shortest paths of either kind are looked at
            assert max(seen.values()) == pytest.approx(max(wanted.values()))
        for row in got.scope.tolist():  # the products belong to the nodes
            pairs = ((0, 1), (0, 2), (1, 2)) if length == 3 else ((0, 1), (1, 2), (2, 3), (3, 0))
            columns = [12 + edges.tolist().index(sorted((row[a], row[b]))) for a, b in pairs]
            assert row[length:] == columns


@pytest.mark.parametrize("seed", range(3))
def test_labellings_violate_nothing_and_are_points_of_the_tightened_lp(seed):
    qubo = random_qubo(seed, n=12, density=0.4)
    model = roof_duality_model(qubo)
    found, _ = tightened_roof_duality(model, qubo, bl.search.Budget(passes=30), passes=300)
    y = torch.randint(0, 2, (20, 12), generator=torch.Generator().manual_seed(seed)).double()
    points = lifted(qubo, found.solution, y)
    for blocks in model.blocks:
        constraints = blocks.type.constraints()
        assert constraints is not None
        assert float(constraints.violation(points[:, blocks.scope]).max()) < 1e-9
    assert (points @ model.objective.evaluate()[0][0] + qubo.offset).tolist() == pytest.approx(qubo.energy(y.numpy()).tolist())
    for x in points[:5]:
        proposed = violated_cycles(qubo, replace(found.solution, raw_x=x[None]), 100)
        assert sum(len(c.scope) for c in proposed) == 0


@pytest.mark.parametrize(("name", "optimum"), [("bqp100-1", -7970), ("bqp100-2", -11036), ("gka1d", -6333), ("bqp50-3", -4626)])
def test_real_instances_are_closed_at_the_root(shared_qpbo, name, optimum):
    qubo = read_qubo(shared_qpbo / "qubo" / f"{name}.sparse")
    found = solve_qpbo(qubo, tighten=True, time_limit=60)
    assert found.energy == optimum
    bound = float(found.relaxation.bound[0])
    assert optimum - 0.003 * abs(optimum) <= bound <= optimum + 1e-6
    assert float(found.relaxation.safe_bound[0]) <= optimum
    assert found.relaxation.status == (bl.Status.OPTIMAL,)


def test_several_instances_limits_and_options():
    qubos = [ring(5), Qubo.from_terms([1.0, -2.0], np.zeros((0, 2), dtype=int), []), random_qubo(3)]
    seen = []
    found = solve_qpbo(qubos, tighten=True, told=lambda r, e: seen.append((r.number, e)))
    assert [f.energy for f in found[:2]] == [-4, -2]
    assert [n for n, _ in seen].count(0) == 3
    assert all(f.rounds for f in found)
    none = solve_qpbo(ring(5), tighten=bl.search.Budget(rounds=0))
    assert len(none.rounds) == 1 and float(none.relaxation.bound[0]) == pytest.approx(-5, abs=1e-3)
    stopped = solve_qpbo(ring(5), tighten=True, told=lambda *_: True)
    assert len(stopped.rounds) == 1
    with pytest.raises(OptionError, match="one number for all"):
        solve_qpbo(ring(5), tighten=True, tol=torch.ones(1))


def test_command_line(tmp_path):
    file = tmp_path / "ring.mc"
    file.write_text("5 5\n" + "".join(f"{i + 1} {(i + 1) % 5 + 1} 1\n" for i in range(5)))
    result = CliRunner().invoke(app, ["qpbo", str(file), "--tighten", "--json"])
    assert result.exit_code == 0
    (entry,) = json.loads(result.stdout)
    assert entry["bound"] == pytest.approx(-4, abs=1e-3) and entry["energy"] == -4
    assert [r["blocks"] for r in entry["rounds"]] == [5, 8]
    assert "round 1 | 8 blocks, 3 new" in result.stderr and "labelling -4" in result.stderr
    assert CliRunner().invoke(app, ["qpbo", str(file), "--tighten", "--quiet"]).stderr == ""
    compared = CliRunner().invoke(app, ["qpbo", str(file), "--tighten", "--reference", "highs", "--json"])
    assert json.loads(compared.stdout)[0]["reference"]["value"] == pytest.approx(-4)  # of the LP with its cycles, -5 without


@pytest.mark.parametrize("seed", range(5))
def test_tabu_search_finds_the_optimum_of_small_instances(seed, all_labellings):
    qubo = random_qubo(seed, n=12)
    starts = torch.randint(0, 2, (8, 12), generator=torch.Generator().manual_seed(seed))
    found = tabu_search(qubo, starts)
    assert found.energy.tolist() == qubo.energy(found.y.numpy()).tolist()
    assert (found.energy.numpy() <= qubo.energy(starts.numpy())).all()
    assert found.energy.min() == qubo.energy(all_labellings(12)).min()
    still = tabu_search(qubo, starts, moves=0)
    assert (still.energy.numpy() <= qubo.energy(starts.numpy())).all()


def test_tabu_search_refuses_what_it_cannot_use():
    with pytest.raises(ShapeError, match="y has shape"):
        tabu_search(ring(3), torch.zeros(1, 4))
    with pytest.raises(OptionError, match="moves"):
        tabu_search(ring(3), torch.zeros(1, 3), moves=-1)


def odd_cycle_lengths(qubo, s, starts):
    """Shortest ways from a node round to its copy on the other side, by n rounds of Bellman and Ford."""
    n, found = qubo.n, []
    for start in starts:
        length = np.full((n, 2), np.inf)
        length[start, 0] = 0
        for _ in range(2 * n):
            for (i, j), own in zip(qubo.edges.tolist(), s.tolist(), strict=True):
                for a, b in ((i, j), (j, i)):
                    for side in (0, 1):
                        length[b, side] = min(length[b, side], length[a, side] + own)
                        length[b, 1 - side] = min(length[b, 1 - side], length[a, side] + 1 - own)
        found.append(length[start, 1])
    return np.array(found)


@pytest.mark.parametrize("seed", range(8))
def test_odd_cycles_are_shortest_with_and_without_compiled_loops(seed, monkeypatch):
    qubo = random_qubo(seed, n=9, density=0.5)
    rng = np.random.default_rng(seed)
    s = rng.choice([rng.random(len(qubo.edges)), rng.choice([0.0, 0.5, 1.0], len(qubo.edges))], axis=0)
    # z = (y_i + y_j - s) / 2 with y = 1/2.
    solution = at(roof_duality_model(qubo), np.concatenate([np.full(qubo.n, 0.5), (1 - s) / 2]))
    pairs = clusters.Pairs.of(qubo, solution)
    cut = pairs.cut(solution.raw_x[0])
    np.testing.assert_allclose(cut.numpy(), s, atol=1e-12)
    starts = torch.arange(qubo.n)
    wanted = odd_cycle_lengths(qubo, s, range(qubo.n))
    wanted[wanted >= 1 - clusters.LEAST] = np.inf
    ways = {"scipy": clusters._by_scipy(pairs, cut, starts, bl.Deadline())}
    kernels = loops("blocklp.problems.qpbo.cycle_kernels")
    if kernels is not None:
        near = pairs.adjacency
        first = torch.cat([near.first, near.degree.sum()[None]])
        distance, paths = torch.empty(qubo.n, dtype=torch.float64), torch.empty(qubo.n, clusters.LONGEST, dtype=torch.int32)
        graph = (starts, first, near.neighbour, cut[near.edge])
        kernels.odd_cycles(qubo.n, *graph, 1 - clusters.LEAST, clusters.TIE, distance, paths)
        ways["compiled"] = distance, paths
    own = {frozenset(pair): v for pair, v in zip(qubo.edges.tolist(), s.tolist(), strict=True)}
    for distance, paths in ways.values():
        np.testing.assert_allclose(distance.numpy(), wanted, atol=1e-6)
        for start in distance.isfinite().nonzero()[:, 0].tolist():
            path = [v for v in paths[start].tolist() if v >= 0]
            assert path[0] == start  # its other copy, from which the way leads back
            # The cheapest choice of sides along the path with an odd number of crossings is what its length says.
            sides = {0: 0.0, 1: np.inf}
            for a, b in zip(path, [*path[1:], start], strict=True):
                v = own[frozenset((a, b))]
                sides = {k: min(sides[k] + v, sides[1 - k] + 1 - v) for k in (0, 1)}
            assert sides[1] == pytest.approx(float(distance[start]), abs=1e-6)


def test_paths_too_long_to_write_are_left_out_by_both(monkeypatch):
    for n, there in ((clusters.LONGEST, True), (clusters.LONGEST + 1, False)):
        qubo = ring(n)
        solution = at(roof_duality_model(qubo), np.full(2 * n, 0.0))  # nothing is cut: going round with one crossing costs 1
        pairs = clusters.Pairs.of(qubo, solution)
        cut = torch.full((n,), 1e-4, dtype=torch.float64)
        cut[0] = 1 - 1e-4
        for compiled in (True, False):
            with monkeypatch.context() as patch:
                if not compiled:
                    patch.setattr(clusters, "rehearsed_loops", lambda *_: None)
                assert bool(len(clusters._long_cycles(pairs, cut, 10, 10**6, bl.Deadline()).scope)) == there


@pytest.mark.parametrize("scale", [1e160, 1e200, 1e300])
def test_coefficients_that_tightening_cannot_bear_are_named(scale):
    with pytest.raises(ModelError, match=r"has a coefficient of magnitude .*e\+.*; divide all of them by a power of two"):
        solve_qpbo(Qubo.from_matrix(np.random.default_rng(4).normal(size=(4, 4)) * scale), tighten=True)
