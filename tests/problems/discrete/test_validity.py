"""Exact solvers against enumeration in rational numbers: at every scale, and wherever they are stopped."""

import itertools
import math
import time
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import ModelError
from blocklp.kernels import compiled
from blocklp.problems.discrete import exact as discrete_exact
from blocklp.problems.discrete import tightened_search
from blocklp.problems.discrete.adjacency import sparse_graph
from blocklp.problems.discrete.exact import ExactRun, ExactSettings
from blocklp.problems.discrete.integers import LARGEST, Grid, Unit
from blocklp.problems.discrete.tightened_search import Branching, search_tightened
from blocklp.problems.discrete.tightening import Labelled
from blocklp.problems.mis import WeightedGraph, solve_mis_exactly
from blocklp.problems.mis import exact as mis_module
from blocklp.problems.mis.reductions import ReducedGraph
from blocklp.problems.mrf import Mrf, solve_mrf_exactly
from blocklp.problems.qpbo import Qubo, convex_search, convexify, roof_duality_model, solve_qpbo_exactly
from blocklp.problems.qpbo import exact as qpbo_module
from blocklp.problems.qpbo.convexify import Spins
from blocklp.problems.qpbo.tightening import tightening_of

from ..interrupts import interrupt_anywhere

pytest.importorskip("numba")

KINDS = {
    "integers": lambda rng, k: rng.integers(-9, 10, k).astype(float),
    "ties": lambda rng, k: rng.choice([-1.0, 0.0, 1.0], k),
    "tenths": lambda rng, k: rng.integers(-20, 21, k) / 10,
    "thirds": lambda rng, k: rng.integers(-4, 5, k) / 3,
    "normal": lambda rng, k: rng.normal(size=k),
    "huge": lambda rng, k: rng.normal(size=k) * 1e200,
    "tiny": lambda rng, k: rng.normal(size=k) * 1e-200,
    "subnormal integers": lambda rng, k: rng.integers(-9, 10, k) * 5e-324,
    "subnormal": lambda rng, k: rng.normal(size=k) * 1e-308,
    "common divisor": lambda rng, k: rng.integers(-2000, 2001, k) * float(10**12 + 39),
    "big decimals": lambda rng, k: rng.integers(-8, 9, k) * 1e23,
    "spread": lambda rng, k: rng.integers(-3, 4, k) * 10.0 ** rng.integers(-12, 13, k),
}
OFFSETS = (0.0, 0.25, 0.1, -3e17, 1e20)


def random_pairs(rng, n):
    density = rng.choice([0.3, 0.6, 1.0])
    return np.array([(i, j) for i in range(n) for j in range(i) if rng.random() < density], dtype=np.int64).reshape(-1, 2)


def random_qubo(rng, kind, most=10):
    n = int(rng.integers(1, most + 1))
    pairs = random_pairs(rng, n)
    return Qubo.from_terms(KINDS[kind](rng, n), pairs, KINDS[kind](rng, len(pairs)), offset=float(rng.choice(OFFSETS)))


def random_graph(rng, kind, most=11):
    n = int(rng.integers(1, most + 1))
    return WeightedGraph.from_edges(np.abs(KINDS[kind](rng, n)), random_pairs(rng, n))


def exact_energies(qubo, labellings):
    """Values as integers times a power of two, from Fractions: no rounding."""
    given = [Fraction(c) for c in (qubo.offset, *qubo.linear.tolist(), *qubo.quadratic.tolist())]
    common = math.lcm(*(c.denominator for c in given))
    whole = np.array([int(c * common) for c in given], dtype=object)
    y = labellings.astype(object)
    terms = np.concatenate([np.ones((len(y), 1), dtype=object), y, y[:, qubo.edges[:, 0]] * y[:, qubo.edges[:, 1]]], axis=1)
    return [Fraction(v, common) for v in terms @ whole]


def check_minimum(qubo, found, labellings):
    energies = exact_energies(qubo, labellings)
    (mine,) = exact_energies(qubo, found.labels.numpy()[None])
    size = sum(abs(Fraction(c)) for c in (*qubo.linear.tolist(), *qubo.quadratic.tolist()))
    rounding = abs(mine) / 2**52 + Fraction(5e-324)
    assert Fraction(found.bound) <= min(energies)
    assert abs(Fraction(found.energy) - mine) <= rounding
    if found.proven:
        assert mine - Fraction(found.bound) <= size * Fraction(2, 10**9) + rounding


def check_heaviest(graph, found, labellings):
    weights = [Fraction(w) for w in graph.weights.tolist()]
    sets = labellings[graph.independent(labellings)]
    most = max(sum((w for w, inside in zip(weights, y, strict=True) if inside), Fraction(0)) for y in sets.tolist())
    mine = sum((w for w, inside in zip(weights, found.labels.tolist(), strict=True) if inside), Fraction(0))
    rounding = mine / 2**52 + Fraction(5e-324)
    assert graph.independent(found.labels.numpy())
    assert Fraction(found.bound) >= most
    assert abs(Fraction(found.energy) - mine) <= rounding
    if found.proven:
        assert Fraction(found.bound) - mine <= sum(weights) * Fraction(2, 10**9) + rounding


def search_only(tightened, nodes_below=3):
    """No elimination: branch and bound below tightened relaxations that are weak, or on convex functions in small pieces."""
    dense = math.inf if tightened else 0
    return ExactSettings(tables_at_once=0, tables=0, dense=dense, nodes_below=nodes_below, root_passes=5, shrunk=0.9)


NO_ELIMINATION = ExactSettings(tables=0, leaf_tables=0)
BRANCHED = replace(NO_ELIMINATION, searched_graph=0)
"""Of graphs: no depth-first search either."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["eliminated", "convex", "tightened"])
def test_minima_at_every_scale(kind, way, all_labellings):
    settings = ExactSettings() if way == "eliminated" else search_only(way == "tightened")
    rng = np.random.default_rng(way != "eliminated")
    for _ in range(20 if way == "eliminated" else 10):
        qubo = random_qubo(rng, kind)
        found = solve_qpbo_exactly(qubo, settings=settings)
        assert found.proven
        check_minimum(qubo, found, all_labellings(qubo.n))


@pytest.mark.parametrize("size", [10**11, 10**12, 10**14, 10**15])
def test_whole_numbers_are_proved_to_the_last_unit_or_not_at_all(size, all_labellings):
    """Fractions tell them apart."""
    rng = np.random.default_rng(size % 97)
    for _ in range(25):
        n = int(rng.integers(1, 5))
        pairs = random_pairs(rng, n)
        linear, quadratic = (rng.integers(-1, 2, k) * size + rng.integers(-3, 4, k) * 1.0 for k in (n, len(pairs)))
        qubo = Qubo.from_terms(linear, pairs, quadratic)
        factors = [((i,), [0, a]) for i, a in enumerate(linear)]
        factors += [((i, j), [[0, 0], [0, a]]) for (i, j), a in zip(pairs.tolist(), quadratic, strict=True)]
        least = min(exact_energies(qubo, all_labellings(n)))
        for found in (solve_qpbo_exactly(qubo), solve_mrf_exactly(Mrf([2] * n, factors))):
            assert found.bound <= least
            assert found.energy == least if found.proven else found.energy - found.bound >= 1
        graph = WeightedGraph.from_edges(np.abs(linear), pairs)
        heaviest = solve_mis_exactly(graph)
        check_heaviest(graph, heaviest, all_labellings(n))
        assert heaviest.bound - heaviest.energy < 1 or not heaviest.proven
    assert found.proven or size > 10**11


def test_neighbouring_whole_numbers_are_not_decimals():
    """Both are 3e15 to fifteen digits."""
    found = solve_mis_exactly(WeightedGraph.from_edges([2999999999999998.0, 3000000000000001.0], [(0, 1)]))
    assert found.bound == 3000000000000001 and found.proven == (found.energy == found.bound)
    assert found.proven or "too large for sums without rounding" in found.reason


def test_gaps_of_proved_minima_near_zero_are_small():
    """Logarithms of potentials, which no grid holds, with a least energy of zero."""
    tables = -np.log([[0.2, 0.5, 1e-300], [1.0, 0.1, 0.3]])
    found = solve_mrf_exactly(Mrf([2, 3], [((0, 1), tables)]))
    assert found.proven and found.energy == 0 > found.bound and found.gap < 1e-6


def cut_of_two(seed):
    """Two components without a persistent label, whose roof dual is half of all weights."""
    pairs = [(i, j) for i in range(10) for j in range(i) if (i < 5) == (j < 5)]
    return Qubo.max_cut(10, pairs, np.random.default_rng(seed).integers(5, 10, len(pairs)))


def test_a_rest_that_is_stopped_a_step_from_its_bound_is_no_proof():
    qubo = Qubo.max_cut(5, list(itertools.combinations(range(5), 2)), np.ones(10))
    model, run = roof_duality_model(qubo), ExactRun(bl.Deadline(), None, settings=ExactSettings(root_passes=1, shrunk=0.9))
    one = Labelled(torch.tensor([1, 0, 0, 0, 0]), -4.0)  # the best have two ones, and -6

    def rest(fixings, run):
        run.status = bl.Status.TIME_LIMIT
        return one, -6.0

    problem = replace(tightening_of(model, qubo, 10, bl.Deadline()), rounded=lambda solution: one)
    grid = Grid.of(np.concatenate([qubo.linear, qubo.quadratic]), 0.0)
    assert grid.step == 2
    branching = Branching(model.variables["y"], lambda fixings: int((fixings < 0).sum()), lambda points, deadline: one, rest)
    best, bound = search_tightened(problem, branching, one, grid, run)
    assert (best.energy, run.status) == (-4, bl.Status.TIME_LIMIT) and bound <= -6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [ExactSettings(), BRANCHED], ids=["as they are", "branched"])
def test_heaviest_sets_at_every_scale(kind, settings, all_labellings):
    rng = np.random.default_rng(3 * (settings is BRANCHED))
    for _ in range(20):
        graph = random_graph(rng, kind)
        found = solve_mis_exactly(graph, settings=settings)
        assert found.proven
        check_heaviest(graph, found, all_labellings(graph.n))


def test_bound_and_value_are_equal_where_float64_holds_them(all_labellings):
    rng = np.random.default_rng(2)
    for kind in ("integers", "ties", "subnormal integers"):
        for _ in range(20):
            qubo = random_qubo(rng, kind)
            qubo = Qubo(qubo.linear, qubo.edges, qubo.quadratic)
            found = solve_qpbo_exactly(qubo)
            assert found.energy == found.bound == min(exact_energies(qubo, all_labellings(qubo.n)))


def test_sums_that_overflow_are_refused():
    with pytest.raises(ModelError, match="divide all"):
        solve_qpbo_exactly(Qubo([1e308, -1e308, 1.0], [[0, 1]], [1e308]))
    with pytest.raises(ModelError, match="divide all"):
        solve_qpbo_exactly(Qubo([1e308], np.zeros((0, 2), dtype=int), [], offset=-1.5e308))
    with pytest.raises(ModelError, match="divide all"):
        solve_mis_exactly(WeightedGraph.from_edges([1e308, 1e308], [(0, 1)]))


@pytest.mark.parametrize("kind", KINDS)
def test_integers_stand_for_the_values(kind):
    rng = np.random.default_rng(3)
    for k in (1, 2, 7, 40):
        values = KINDS[kind](rng, k)
        total = float(np.abs(values).sum())
        unit = Unit.of(values, total)
        whole = unit.whole(values)
        assert (whole == np.rint(whole)).all() and np.abs(whole).sum() <= LARGEST
        errors = [Fraction(v) - unit.size * int(i) for v, i in zip(values.tolist(), whole.tolist(), strict=True)]
        assert unit.rounding(values, whole) == (-sum(e for e in errors if e < 0), sum(e for e in errors if e > 0))
        assert not unit.exact or not any(errors)
        assert sum(map(abs, errors)) <= Fraction(total) * (k + 1) / 2**46
        # Of decimals nothing is lost but what float64 loses itself.
        if unit.near == 0:
            assert all(abs(e) <= abs(Fraction(v)) / 2**49 for e, v in zip(errors, values.tolist(), strict=True))
    assert (Unit.of(np.array([0.1, 0.25, -3.0]), 3.35).near, Unit.of(np.array([1e20, 6e20]), 7e20).size) == (0, 10**20)


def test_a_grid_rounds_to_its_multiples():
    grid = Grid.of(np.array([6.0, -9.0, 0.0]), 0.0)
    assert (grid.spacing, grid.step, grid.raised(-4.5), grid.raised(3.0), grid.raised(-6.0)) == (3, 3, -3, 3, -6)
    for nothing in (-math.inf, math.inf):
        assert grid.raised(nothing) == nothing
    loose = Grid.of(np.array([2.0**40, 1.0]), 1e-9)
    assert loose.step == loose.tolerance == math.floor((2**40 + 1) * 1e-9)


def frustrated(seed):
    """Two components, the first with a variable whose label is persistent."""
    rng = np.random.default_rng(seed)
    pairs = np.array([(i, j) for i in range(12) for j in range(i) if (i < 6) == (j < 6)])
    linear = rng.integers(-6, 3, 12).astype(float)
    linear[0] = 40.0
    return Qubo.from_terms(linear, pairs, rng.integers(-5, 10, len(pairs)))


@pytest.mark.parametrize(
    "owner, name",
    [
        *((qpbo_module, name) for name in ("presolve", "one_flip_descent", "cheapest_order", "tabu_search", "solve_qpbo", "fold")),
        *((qpbo_module, name) for name in ("minimise_by_elimination", "search_convex")),
        (convex_search, "convexified"),
        *((convexify, name) for name in ("_regularised", "_factors")),
        (discrete_exact, "branch_and_bound_over"),
        (Spins, "of"),
    ],
)
def test_an_interrupt_anywhere_leaves_a_bracket_of_the_minimum(owner, name, all_labellings, monkeypatch):
    qubo, every = frustrated(0), all_labellings(12)
    settings = ExactSettings() if name == "minimise_by_elimination" else search_only(tightened=False)
    solve = partial(solve_qpbo_exactly, qubo, settings=settings)
    interrupt_anywhere(monkeypatch, owner, name, range(3), solve, lambda found: check_minimum(qubo, found, every))


@pytest.mark.parametrize(
    "owner, name",
    [
        *((qpbo_module, name) for name in ("search_tightened", "round_fractional", "minimised", "fold")),
        *((tightened_search, name) for name in ("tightened", "better")),
        (discrete_exact, "branch_and_bound_over"),
        *((tightened_search._TightenedSearch, name) for name in ("tighten", "branch", "offer")),
        *((tightened_search.TightenedTree, name) for name in ("expand", "expanded")),
        (bl.Nodes, "solve"),
    ],
)
def test_an_interrupt_anywhere_in_a_tightened_search_leaves_a_bracket(owner, name, all_labellings, monkeypatch):
    qubo, every = cut_of_two(0), all_labellings(10)
    settings = search_only(tightened=True)
    # The best labellings at once would leave nothing to offer.
    monkeypatch.setattr(qpbo_module, "_incumbent", lambda part, labels, deadline: np.zeros(part.n, dtype=np.int8))
    solve = partial(solve_qpbo_exactly, qubo, settings=settings)
    interrupt_anywhere(monkeypatch, owner, name, (0, 1, 5), solve, lambda found: check_minimum(qubo, found, every))


def crowded(seed):
    """Two components that no reduction empties."""
    rng = np.random.default_rng(seed)
    return WeightedGraph.from_edges(
        rng.integers(20, 29, 14), [(i, j) for i in range(14) for j in range(i) if (i - j) % 7 in (1, 2, 5, 6)]
    )


@pytest.mark.parametrize(
    "owner, name",
    [
        *((mis_module, name) for name in ("swap_descent", "_kernel", "tabu_swaps", "_orders", "solve_qpbo_exactly", "_graph")),
        (discrete_exact, "branch_and_bound_over"),
        *((ReducedGraph, name) for name in ("reduce", "fix_by_flow", "lift", "drop")),
    ],
)
def test_an_interrupt_anywhere_leaves_a_bracket_of_the_heaviest_set(owner, name, all_labellings, monkeypatch):
    graph, every = crowded(0), all_labellings(14)
    settings = ExactSettings() if name == "solve_qpbo_exactly" else BRANCHED
    solve = partial(solve_mis_exactly, graph, settings=settings)
    interrupt_anywhere(monkeypatch, owner, name, (0, 1, 5), solve, lambda found: check_heaviest(graph, found, every))


def clock(monkeypatch):
    """A clock that goes on by one second whenever it is looked at."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))


@pytest.mark.parametrize("tightened", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 8, 11, 15, 20, 30, 50, 80, 150, 300, 1000])
def test_whenever_the_time_is_over_there_is_a_bracket(limit, tightened, all_labellings, monkeypatch):
    qubo, graph = cut_of_two(1) if tightened else frustrated(1), crowded(1)
    settings = replace(search_only(tightened), leaf_tables=0, searched_graph=0)
    for solve, given, check in ((solve_qpbo_exactly, qubo, check_minimum), (solve_mis_exactly, graph, check_heaviest)):
        with monkeypatch.context() as patch:
            clock(patch)
            found = solve(given, time_limit=limit, settings=settings)
        check(given, found, all_labellings(len(found.labels)))
        assert found.status is (bl.Status.OPTIMAL if found.proven else bl.Status.TIME_LIMIT)
        assert limit > 1 or not found.proven


@pytest.mark.parametrize("stopped", [True, False])
def test_a_relaxation_that_is_stopped_at_once_still_leaves_a_bracket(stopped, all_labellings, monkeypatch):
    # The simplex method would end before the first check.
    ended = {"method": "admm", **({"callback": lambda *_: True} if stopped else {"time_limit": 1e-9})}
    for module, name in ((qpbo_module, "solve_qpbo"), (mis_module, "solve_mis")):
        given = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, given=given, **options: given(*args, **{**options, **ended}))
    qubo, graph = frustrated(2), paley()
    found = solve_qpbo_exactly(qubo, settings=search_only(tightened=False))
    check_minimum(qubo, found, all_labellings(qubo.n))
    heaviest = solve_mis_exactly(graph, settings=BRANCHED)
    check_heaviest(graph, heaviest, all_labellings(graph.n))
    assert stopped == (found.status is bl.Status.INTERRUPTED) == (heaviest.status is bl.Status.INTERRUPTED)


def paley():
    """The Paley graph of 17 nodes, which neither reductions nor half-integral points get a hold of."""
    squares = {k * k % 17 for k in range(1, 17)}
    return WeightedGraph.from_edges(np.full(17, 0.3), [(i, j) for i in range(17) for j in range(i) if (i - j) % 17 in squares])


@pytest.mark.parametrize("tightened", [False, True])
def test_callbacks_get_values_and_not_the_integers_that_stand_for_them(tightened, all_labellings):
    rng = np.random.default_rng(5)
    pairs = [(i, j) for i in range(10) for j in range(i)]
    qubo = Qubo.max_cut(10, pairs, rng.integers(1, 10, 45) * 0.3)  # of which roof duality says nothing
    least, events = qubo.energy(all_labellings(10)).min(), []
    solve_qpbo_exactly(qubo, callback=events.append, settings=search_only(tightened, nodes_below=1))
    assert events and all(event.bound <= least + 1e-9 and event.incumbent >= least - 1e-9 for event in events)
    assert events[-1].incumbent == pytest.approx(least, abs=1e-9)


@pytest.mark.slow
def test_without_compiled_loops_searches_are_slow_and_right(all_labellings, monkeypatch):
    monkeypatch.setattr(compiled, "loops", lambda name: None)
    rng = np.random.default_rng(0)
    qubo = Qubo.max_cut(8, list(itertools.combinations(range(8), 2)), rng.integers(5, 10, 28))
    found = solve_qpbo_exactly(qubo, settings=search_only(tightened=True))
    assert found.proven
    check_minimum(qubo, found, all_labellings(8))
    tables = [(pair, rng.integers(-9, 10, (3, 3))) for pair in itertools.combinations(range(5), 2)]
    mrf = Mrf([3] * 5, tables)
    slow = solve_mrf_exactly(mrf, settings=replace(search_only(tightened=True), energy_tables=0))
    assert slow.proven and slow.energy == slow.bound == mrf.energy(list(itertools.product(range(3), repeat=5))).min()
    found = solve_qpbo_exactly(qubo, settings=search_only(tightened=False))
    assert found.proven
    check_minimum(qubo, found, all_labellings(8))
    heaviest = solve_mis_exactly(paley())
    assert heaviest.proven and heaviest.energy == pytest.approx(0.9)


def test_graphs_are_numbered_as_every_scipy_takes_them() -> None:
    """Two arcs of one name are added up, and indices are int32, for which alone its spanning trees and flows are compiled."""
    tails, heads = np.array([0, 2, 0]), np.array([1, 1, 1])
    graph = sparse_graph([3, 4, 5], tails, heads, 3)
    assert graph.indices.dtype == graph.indptr.dtype == np.int32
    assert graph.toarray().tolist() == [[0, 8, 0], [0, 0, 0], [0, 4, 0]]
