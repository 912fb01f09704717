"""Exact minimisation of discrete energies."""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("numba", reason="tightened searches bound nodes in compiled loops")

import blocklp as bl
from blocklp.problems.discrete import exact as discrete_exact
from blocklp.problems.discrete import tightened_search
from blocklp.problems.discrete.elimination import cheapest_order, eliminate
from blocklp.problems.discrete.exact import ExactSettings
from blocklp.problems.mrf import Mrf, read_mrf, solve_mrf_exactly
from blocklp.problems.mrf import exact as mrf_exact
from blocklp.problems.mrf.reductions import reduced
from blocklp.status import Status

from ..interrupts import interrupt_anywhere

OVER = bl.Deadline(1.0, began=-10.0)


def random_energy(rng, n=7, most=3, order=3, hard=0.0, scale=1.0, whole=False) -> Mrf:
    counts = rng.integers(1, most + 1, n)
    factors = []
    for _ in range(rng.integers(n, 3 * n)):
        scope = rng.choice(n, rng.integers(0, min(order, n) + 1), replace=False)
        table = rng.integers(-9, 10, counts[scope]) if whole else rng.normal(size=counts[scope]) * scale
        factors.append((scope.tolist(), np.where(rng.random(table.shape) < (hard if len(scope) else 0), np.inf, table)))
    return Mrf(counts, factors, constant=float(rng.normal()) * scale)


def minimum(mrf: Mrf) -> float:
    return float(mrf.energy(np.array(list(itertools.product(*map(range, mrf.counts))))).min())


def by_search(monkeypatch, shrunk):
    """No quadratic functions; returns settings without elimination and with weak relaxations."""
    monkeypatch.setattr(mrf_exact.Mrf, "to_qubo", lambda self: None)
    return ExactSettings(energy_tables=0, root_passes=40, shrunk=shrunk)


@pytest.mark.parametrize("seed", range(60))
def test_minima_of_random_energies(seed):
    rng = np.random.default_rng(seed)
    kind = {"hard": [0, 0.2, 0.6][seed % 3], "scale": [1.0, 1e-9, 1e9][seed // 3 % 3], "whole": seed % 2 == 0, "order": 2 + seed % 3}
    mrf = random_energy(rng, **kind)
    best, found = minimum(mrf), solve_mrf_exactly(mrf)
    size = sum(np.abs(t[np.isfinite(t)]).max(initial=0) for _, t in mrf.factors) + abs(mrf.constant)
    assert found.proven
    if best == math.inf:
        assert found.status is Status.INFEASIBLE and found.energy == found.bound == math.inf
    else:
        assert found.energy == pytest.approx(best, abs=1e-12 * size)
        assert float(mrf.energy(found.labels.numpy())) == pytest.approx(found.energy, abs=1e-12 * size)
        assert best - 3e-9 * size <= found.bound <= best + 1e-15 * size


@pytest.mark.parametrize("seed", range(24))
def test_minima_of_random_energies_by_search(seed, monkeypatch):
    """No elimination, and rests are problems of their own late: the tree does the work."""
    settings = by_search(monkeypatch, [0.9, 0.5, 0.0][seed % 3])
    rng = np.random.default_rng(seed)
    mrf = random_energy(rng, hard=[0, 0.15][seed % 2], order=2 + seed // 2 % 2, n=8, whole=seed % 4 > 1)
    best, found = minimum(mrf), solve_mrf_exactly(mrf, settings=settings)
    assert found.proven
    assert found.energy == pytest.approx(best, abs=1e-9)
    assert best == math.inf or best - 1e-6 <= found.bound <= best + 1e-12


@pytest.mark.parametrize("seed", range(40))
def test_reductions_keep_the_minimum(seed):
    rng = np.random.default_rng(seed)
    mrf = random_energy(rng, n=8, hard=[0, 0.3][seed % 2], order=2 + seed // 2 % 2, whole=True)
    mrf = Mrf(mrf.counts, mrf.factors)
    left = reduced(mrf) if seed % 5 else reduced(mrf, OVER)
    labels, total = [], left.constant
    for part in left.parts:
        every = np.array(list(itertools.product(*map(range, part.counts))))
        values = part.energy(every)
        labels.append(every[values.argmin()])
        total += values.min()
    assert total == minimum(mrf)
    if total < math.inf:
        assert mrf.energy(left.lift(labels)) == total


def test_labels_that_are_equal_everywhere_are_not_both_dropped():
    mrf = Mrf([2, 2, 2, 2], [(pair, np.ones((2, 2))) for pair in itertools.combinations(range(4), 2)])
    left = reduced(mrf)
    assert left.constant == 6 and not left.parts


@pytest.mark.parametrize("seed", range(20))
def test_elimination(seed):
    rng = np.random.default_rng(seed)
    mrf = random_energy(rng, n=8, hard=[0, 0.2][seed % 2], whole=True)
    counts, edges = mrf.counts.tolist(), mrf.edges
    for rule in ("table", "band", "fill"):
        order = cheapest_order(counts, edges, rules=[rule])
        assert sorted(order.variables) == list(range(8))
        found = eliminate(counts, mrf.factors, order, bl.Deadline())
        assert float(mrf.energy(found)) == minimum(mrf)
        assert eliminate(counts, mrf.factors, order, OVER) is None
        assert cheapest_order(counts, edges, 1.0, rules=[rule]).work == math.inf
        assert cheapest_order(counts, edges, deadline=OVER, rules=[rule]).work == math.inf


@pytest.mark.parametrize("hard", [0.0, 0.1])
def test_a_deadline_leaves_a_bracket(hard):
    settings = ExactSettings(reduced_table=0)
    rng = np.random.default_rng(1)
    edges = list(itertools.combinations(range(14), 2))
    mrf = Mrf(np.full(14, 3), [(e, np.where(rng.random((3, 3)) < hard, np.inf, rng.normal(size=(3, 3)))) for e in edges])
    exact = solve_mrf_exactly(mrf, settings=settings)
    assert exact.proven
    for limit in (1e-9, 0.05, 0.3):
        found = solve_mrf_exactly(mrf, time_limit=limit, settings=settings)
        assert found.bound <= exact.energy + 1e-9 and found.energy >= exact.energy - 1e-9
        assert found.proven or found.status is Status.TIME_LIMIT


@pytest.mark.parametrize(
    ("place", "name"),
    [
        *((mrf_exact, name) for name in ("reduced", "cheapest_order", "incumbent", "relax", "tightening_of", "improved")),
        *((tightened_search, name) for name in ("tightened", "better")),
        (discrete_exact, "branch_and_bound_over"),
        *((tightened_search._TightenedSearch, name) for name in ("tighten", "branch", "offer")),
        *((tightened_search.TightenedTree, name) for name in ("expand", "expanded")),
        (bl.Nodes, "solve"),
    ],
)
def test_an_interrupt_anywhere_leaves_a_bracket(place, name, monkeypatch):
    settings = replace(by_search(monkeypatch, shrunk=0.9), root_passes=1)
    rng = np.random.default_rng(2)
    mrf = Mrf(np.full(6, 3), [(e, rng.normal(size=(3, 3))) for e in itertools.combinations(range(6), 2)])
    best = minimum(mrf)

    def check(found):
        assert found.bound <= best <= found.energy + 1e-9

    interrupt_anywhere(monkeypatch, place, name, (0, 2), partial(solve_mrf_exactly, mrf, settings=settings), check)


def test_that_no_labelling_is_feasible_is_proved_by_search(monkeypatch):
    """Four variables of three labels, all different: the local polytope does not know."""
    settings = by_search(monkeypatch, shrunk=0.5)
    mrf = Mrf(np.full(4, 3), [(pair, np.where(np.eye(3), np.inf, 1.0)) for pair in itertools.combinations(range(4), 2)])
    found = solve_mrf_exactly(mrf, settings=settings)
    assert (found.energy, found.bound, found.gap, found.status, found.proven) == (math.inf, math.inf, 0, Status.INFEASIBLE, True)
    late = solve_mrf_exactly(mrf, time_limit=1e-9, settings=settings)
    assert (late.energy, late.gap, late.status, late.proven) == (math.inf, math.inf, Status.TIME_LIMIT, False)
    assert math.isfinite(late.bound)


def test_more_labels_than_sixteen_bits_hold():
    rng = np.random.default_rng(0)
    alone, pair = rng.integers(10, 99, 70_000), rng.integers(0, 3, (70_000, 2))
    alone[69_000] = -5
    found = solve_mrf_exactly(Mrf([70_000, 2], [((0,), alone), ((0, 1), pair)]))
    assert found.labels[0] == 69_000 and found.energy == found.bound == -5 + pair[69_000].min()


@pytest.mark.parametrize(
    ("file", "minimum"),
    [
        ("Segmentation_13", 82.6695),
        ("Grids_11", -387.8948),
        ("ObjectDetection_11", 241.3590),
        ("ObjectDetection_14", 237.8937),
        ("DBN_15", -351.4015),
    ],
)
def test_minima_of_the_manifest(shared_qpbo, file, minimum):
    mrf = read_mrf(shared_qpbo / "mrf" / f"{file}.uai")
    found = solve_mrf_exactly(mrf)
    assert found.proven and found.energy == pytest.approx(minimum, abs=1e-4)
    assert float(mrf.energy(found.labels.numpy())) == pytest.approx(found.energy, rel=1e-12)
    size = sum(np.abs(table[np.isfinite(table)]).max(initial=0) for _, table in mrf.factors)
    assert found.energy - 2e-9 * size <= found.bound <= found.energy
