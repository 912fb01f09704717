"""Limits of time in every phase of qpbo, mis and mrf."""

import itertools
import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

import blocklp as bl
from blocklp.errors import TimeLimitError
from blocklp.kernels import compiled
from blocklp.problems.discrete import exact
from blocklp.problems.mis import WeightedGraph, search_kernels, solve_mis, solve_mis_exactly
from blocklp.problems.mrf import Mrf, solve_mrf, solve_mrf_exactly
from blocklp.problems.qpbo import Qubo, solve_qpbo, solve_qpbo_exactly
from blocklp.problems.qpbo import search_kernels as qpbo_kernels


def over() -> bl.Deadline:
    return bl.Deadline(1.0, began=time.perf_counter() - 1.0)


def instances(seed):
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(60) for j in range(i) if rng.random() < 0.4]
    qubo = Qubo.max_cut(60, pairs, rng.integers(-5, 6, len(pairs)))
    graph = WeightedGraph.from_edges(rng.integers(1, 9, 60), pairs)
    mrf = Mrf([3] * 60, [(pair, rng.integers(-5, 6, (3, 3))) for pair in pairs])
    return qubo, graph, mrf


def test_exact_solvers_leave_a_bracket_whenever_time_runs_out():
    for limit in (1e-9, 0.05, 0.3):
        qubo, graph, mrf = instances(0)
        for solve, given in ((solve_qpbo_exactly, qubo), (solve_mis_exactly, graph), (solve_mrf_exactly, mrf)):
            found = solve(given, time_limit=limit)
            assert found.status in (bl.Status.TIME_LIMIT, bl.Status.OPTIMAL)
            assert found.bound >= found.energy if given is graph else found.bound <= found.energy
    assert graph.independent(solve_mis_exactly(graph, time_limit=over()).labels.numpy())


def test_a_deadline_that_is_over_returns_bounds_or_says_so():
    qubo, graph, mrf = instances(1)
    for solve, given in ((solve_qpbo, qubo), (solve_mis, graph), (solve_mrf, mrf)):
        found = solve(given, time_limit=1e-9)
        assert found.relaxation.status == (bl.Status.TIME_LIMIT,)
        with pytest.raises(TimeLimitError, match="while stating"):
            solve(given, time_limit=bl.Deadline(1.0, began=time.perf_counter() - 5.0))
    weak = solve_qpbo(qubo, time_limit=1e-9).persistency.weak
    assert (weak == -1).all()  # there was no time for proofs


def test_loops_that_must_be_compiled_first_are_done_without(monkeypatch):
    monkeypatch.setattr(compiled, "cached", lambda module, kind: False)
    monkeypatch.setattr(exact, "_rehearsed", set())
    for module in (search_kernels, qpbo_kernels):
        monkeypatch.setattr(module, "rehearse", lambda: pytest.fail("compiled"))
        assert exact.affordable_loops(module.__name__, bl.Deadline(1.0)) is None
        assert exact.affordable_loops(module.__name__, bl.Deadline(1000.0)) is module
        assert exact.affordable_loops(module.__name__, bl.Deadline()) is module
    qubo, graph, _ = instances(2)
    settings = exact.ExactSettings(tables_at_once=0, tables=0)
    for solve, given in ((solve_qpbo_exactly, qubo), (solve_mis_exactly, graph)):
        found = solve(given, time_limit=1.0, settings=settings)
        assert found.proven or "compiled" in found.reason


def versions(module):
    """How many types of arguments each loop of a module is compiled for."""
    found = {}
    for name, loop in vars(module).items():
        inside = [cell.cell_contents for cell in getattr(loop, "__closure__", None) or ()]
        for own in (loop, *inside):
            if hasattr(own, "overloads") and not name.startswith("_"):
                found[name] = len(own.overloads)
    return found


def test_rehearsals_compile_all_that_searches_call():
    qubo, graph, _ = instances(3)
    for module in (search_kernels, qpbo_kernels):
        module.rehearse()
    before = [versions(module) for module in (search_kernels, qpbo_kernels)]
    assert all(len(loops) >= 3 and min(loops.values()) >= 1 for loops in before)
    solve_mis_exactly(graph, time_limit=2.0)
    solve_qpbo_exactly(qubo, time_limit=2.0)
    assert before == [versions(module) for module in (search_kernels, qpbo_kernels)]


def test_searches_in_pieces_end_where_whole_ones_do(all_labellings):
    rng = np.random.default_rng(4)
    qubo = Qubo.max_cut(14, list(itertools.combinations(range(14), 2)), rng.integers(-9, 10, 91))
    graph = WeightedGraph.from_edges(rng.integers(1, 5, 24), [p for p in itertools.combinations(range(24), 2) if rng.random() < 0.5])
    least, most = float(qubo.energy(all_labellings(14)).min()), solve_mis_exactly(graph)
    assert most.proven
    pieces = exact.ExactSettings(clock_every=1e-9)
    heaviest = solve_mis_exactly(graph, time_limit=500, settings=pieces)
    found = solve_qpbo_exactly(qubo, time_limit=500, settings=replace(pieces, tables_at_once=0, tables=0, dense=0))
    assert found.proven and found.energy == found.bound == least
    assert heaviest.proven and heaviest.energy == most.energy


def test_gaps_do_not_depend_on_the_scale_of_the_costs():
    qubo, graph, mrf = instances(5)
    for scale in (1e-8, 1.0, 1e8):
        scaled = Qubo(qubo.linear * scale, qubo.edges, qubo.quadratic * scale)
        found = solve_qpbo(scaled, passes=40)
        gap = abs(found.energy - float(found.relaxation.bound[0])) / abs(float(found.relaxation.bound[0]))
        assert found.gap == pytest.approx(gap) and found.gap > 0.1
        sets = solve_mis(WeightedGraph(graph.weights * scale, graph.edges), passes=40)
        assert sets.gap == pytest.approx(1 - sets.weight / float(sets.relaxation.bound[0])) and sets.gap > 0.01
        fields = solve_mrf(Mrf(mrf.counts, [(s, t * scale) for s, t in mrf.factors]), passes=40)
        assert fields.gap > 0.01
    result = exact.ExactResult(torch.zeros(1), 1e-9, 0.5e-9, False, 0, 0.0, bl.Status.TIME_LIMIT)
    assert result.gap == pytest.approx(0.5)
    assert exact.relative_gap(math.inf, math.inf) == 0 and exact.relative_gap(math.inf, 1.0) == math.inf
