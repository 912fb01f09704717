"""Nodes of a branch and bound: valid bounds, inherited multipliers, cutoffs and fixings, against enumeration."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import ModelError, OptionError, ShapeError
from blocklp.oracles import AtMostOne, Edge, Knapsack, Simplex
from blocklp.oracles.boolean_quadric import FourCycle, Triangle

COUNT = 240


@lru_cache
def assignments(n: int) -> Tensor:
    return torch.tensor(list(itertools.product((0, 1), repeat=n)), dtype=torch.float64)


def random_qubo(n: int, seed: int, clusters: bool = False) -> tuple[bl.Model, Tensor]:
    """A model of a random QUBO, and its value at all assignments."""
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for i, j in itertools.combinations(range(n), 2) if rng.random() < 0.5] or [(0, 1)]
    number = {pair: k for k, pair in enumerate(pairs)}
    scale = 10.0 ** rng.integers(-2, 3)
    linear, quadratic = (torch.tensor(scale * rng.normal(size=k)) for k in (n, len(pairs)))
    m = bl.Model()
    y, z = m.variable("y", n, lower=0, upper=1), m.variable("z", len(pairs), lower=0, upper=1)
    first, second = torch.tensor(pairs).T
    m.add(Edge(), scope=[y[first], y[second], z])
    if clusters:

        def product(i: int, j: int) -> int | None:
            return number.get((min(i, j), max(i, j)))

        for kind, size in ((Triangle(), 3), (FourCycle(), 4)):
            rows = []
            for nodes in itertools.combinations(range(n), size):
                found = [product(nodes[a], nodes[b]) for a, b in kind.pairs]
                if None not in found:
                    rows.append([*nodes, *(n + k for k in found)])
            if rows:
                table = torch.tensor(rows)
                ends, products = table[:, :size], table[:, size:] - n
                m.add(kind, scope=[*(y[c] for c in ends.T), *(z[c] for c in products.T)])
    m.minimize(linear @ y + quadratic @ z + scale)
    points = assignments(n)
    return m, points @ linear + (points[:, first] * points[:, second]) @ quadratic + scale


def random_packing(n: int, seed: int) -> tuple[bl.Model, Tensor]:
    """Heaviest sets with at most one node of each clique, exactly one of some; minus infinity where not feasible."""
    rng = np.random.default_rng(seed)
    weights = torch.tensor(rng.random(n) * 5)
    m = bl.Model()
    y = m.variable("y", n, lower=0, upper=1)
    points, feasible = assignments(n), torch.ones(2**n, dtype=torch.bool)
    for size in (2, 3):
        cliques = torch.tensor(np.array([rng.choice(n, size, replace=False) for _ in range(n // 2 + 1)]))
        m.add(AtMostOne(size), scope=y[cliques])
        feasible &= (points[:, cliques].sum(-1) <= 1).all(1)
    some = torch.tensor(rng.choice(n, 3, replace=False))
    m.add(Simplex(3), scope=y[some])
    feasible &= points[:, some].sum(-1) == 1
    m.maximize(weights @ y)
    return m, torch.where(feasible, points @ weights, -math.inf)


def random_fixings(n: int, count: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    depth = torch.randint(0, n + 1, (count, 1), generator=draw)
    values = torch.randint(0, 2, (count, n), generator=draw)
    return torch.where(torch.rand(count, n, generator=draw).argsort(1) < depth, values, -1).to(torch.int8)


def optima(values: Tensor, fixings: Tensor, maximizing: bool = False) -> Tensor:
    """The best value of each node by enumeration."""
    points = assignments(fixings.shape[1])
    agrees = ((fixings[:, None] < 0) | (fixings[:, None] == points)).all(-1)
    worst = -math.inf if maximizing else math.inf
    table = torch.where(agrees, values, worst)
    return table.amax(1) if maximizing else table.amin(1)


def assert_valid(found: bl.search.NodeBounds, values: Tensor, fixings: Tensor) -> None:
    sign = -1.0 if found.maximizing else 1.0
    best = optima(values, fixings, found.maximizing)
    assert bool((sign * found.bound <= sign * best).all())
    for i in range(fixings.shape[1]):
        for value, side in ((0, found.if_zero), (1, found.if_one)):
            child = fixings.clone()
            child[:, i] = value
            true = optima(values, child, found.maximizing)
            true[(fixings[:, i] >= 0) & (fixings[:, i] != value)] = sign * math.inf
            assert bool((sign * side[:, i] <= sign * true).all())


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("kind", ["edges", "clusters", "packing"])
def test_bounds_hold_for_thousands_of_fixings(kind: str, loops: bool) -> None:
    for seed in range(5 if loops else 2):
        n = 5 + seed % 5 if kind == "clusters" else 4 + seed
        m, values = random_packing(n, seed) if kind == "packing" else random_qubo(n, seed, kind == "clusters")
        nodes = bl.Nodes(m, "y")
        assert nodes.layout is not None
        if not loops:
            nodes.layout = None
        fixings = random_fixings(n, COUNT if loops else COUNT // 4, seed)
        start = nodes.solve([{}])
        for multipliers in (None, start.multipliers, start.multipliers.float()):
            assert_valid(nodes.solve(fixings, multipliers, sweeps=6), values, fixings)
        if loops:
            assert_valid(nodes.solve(fixings, start.multipliers, sweeps=2, passes=15), values, fixings)


def test_fixed_leaves_are_exact_and_contradictions_infeasible() -> None:
    for seed in range(4):
        for m, values in (random_qubo(7, seed), random_packing(7, seed)):
            leaves = assignments(7).to(torch.int8)
            found = bl.Nodes(m, "y").solve(leaves, sweeps=0)
            possible = torch.isfinite(values)
            assert torch.allclose(found.bound[possible], values[possible], rtol=1e-9, atol=1e-9)
            assert torch.equal(found.status == int(bl.Status.INFEASIBLE), ~possible)
            assert not found.open[~possible].any()


def test_a_type_without_vertex_table_takes_passes() -> None:
    m = bl.Model()
    y = m.variable("y", 6, lower=0, upper=1)
    size = torch.tensor([3.0, 2, 4, 1, 5, 2], dtype=torch.float64)
    m.add(Knapsack(size, torch.tensor(6.0)), scope=y)
    m.add(Knapsack(size.flip(0), torch.tensor(7.0)), scope=y, name="other")
    m.maximize(torch.tensor([4.0, 3, 6, 1, 6, 3], dtype=torch.float64) @ y)
    nodes = bl.Nodes(m)
    assert nodes.layout is None
    points, worth = assignments(6), torch.tensor([4.0, 3, 6, 1, 6, 3], dtype=torch.float64)
    feasible = (points @ size <= 6) & (points @ size.flip(0) <= 7)
    values = torch.where(feasible, points @ worth, -math.inf)
    fixings = random_fixings(6, 200, 0)
    found = nodes.solve(fixings)
    assert bool((found.bound >= optima(values, fixings, True)).all())
    assert bool((found.bound[(fixings < 0).all(1)] <= worth.sum()).all())
    free = fixings[:1].clone().fill_(-1)
    start = nodes.solve(free)
    assert torch.allclose(nodes.solve(free, start.multipliers, sweeps=0).bound, start.bound)  # a pass, and no more
    unsolved = nodes.solve(free, sweeps=0).bound
    assert torch.equal(unsolved, nodes.solve(free, passes=1).bound) and bool((unsolved > start.bound + 0.1).all())


@pytest.mark.parametrize("kind", ["edges", "clusters", "packing"])
def test_children_start_no_lower_than_their_parents_multipliers(kind: str) -> None:
    for seed in range(5):
        m, _ = random_packing(9, seed) if kind == "packing" else random_qubo(8, seed, kind == "clusters")
        nodes = bl.Nodes(m, "y")
        sign = -1.0 if nodes.solver.sense.maximizing else 1.0
        n = len(nodes.columns)
        fixings = random_fixings(n, 200, seed)
        parent = nodes.solve(fixings)
        row, column = (fixings < 0).nonzero().T
        child, value = fixings[row].clone(), torch.arange(len(row)) % 2
        child[torch.arange(len(row)), column] = value.to(torch.int8)
        found = nodes.solve(child, parent.multipliers[row], sweeps=0)
        # And no lower than what the parent's marginals promised for that fixing.
        promised = torch.where(value == 0, parent.if_zero[row, column], parent.if_one[row, column])
        plain = sign * found.bound
        scale = 1e-9 * (1 + plain.abs().nan_to_num(posinf=0))
        assert bool((plain >= sign * promised - scale).all())
        # More sweeps never lower a bound.
        more = nodes.solve(child, parent.multipliers[row], sweeps=8)
        assert bool((sign * more.bound >= plain - scale).all())


def test_a_node_alone_gives_the_bits_of_a_batch() -> None:
    m, _ = random_qubo(12, 3, clusters=True)
    nodes, fixings = bl.Nodes(m, "y"), random_fixings(12, 40, 1)
    start = nodes.solve(fixings, sweeps=2).multipliers
    together = nodes.solve(fixings, start, cutoff=0.0)
    for i in range(0, 40, 3):
        alone = nodes.solve(fixings[i : i + 1], start[i : i + 1], cutoff=0.0)
        for name in ("bound", "status", "multipliers", "if_zero", "if_one", "x"):
            assert torch.equal(getattr(alone, name)[0], getattr(together, name)[i])


def test_nodes_stop_one_by_one_at_their_cutoffs() -> None:
    m, values = random_qubo(12, 5)
    nodes, fixings = bl.Nodes(m, "y"), random_fixings(12, 300, 2)
    free = nodes.solve(fixings, sweeps=30, stall=0.0)
    goal = free.bound - 0.05 * free.bound.abs()
    found = nodes.solve(fixings, cutoff=goal, sweeps=30, stall=0.0)
    assert bool((found.status == int(bl.Status.CUTOFF)).all())
    assert bool((found.bound >= goal).all() & (found.bound <= optima(values, fixings)).all())
    assert bool((found.sweeps <= free.sweeps).all()) and found.sweeps.sum() < free.sweeps.sum() / 2
    by_passes = nodes.solve(fixings, cutoff=goal, sweeps=0, passes=300)
    assert bool((by_passes.bound[~by_passes.open] >= goal[~by_passes.open]).all())
    assert (~by_passes.open).sum() > 250


def test_nodes_that_passes_close_have_bounds_that_reach_the_cutoff() -> None:
    """The engine stops at a bound whose rounding is not charged yet, which proves nothing about the node."""
    model, _ = random_qubo(12, 0)
    nodes = bl.Nodes(model, model.variables["y"])
    free = torch.full((1, 12), -1, dtype=torch.int8)
    level = nodes.solve(free, sweeps=0, passes=300).bound
    goals = level + level.abs() * 1e-15 * torch.arange(-20, 20)
    found = nodes.solve(free.expand(40, -1), cutoff=goals, sweeps=0, passes=300)
    assert bool(found.open.any()) and not bool(found.open.all())
    assert bool((found.bound >= goals)[~found.open].all())


@pytest.mark.parametrize("kind", ["edges", "clusters", "packing"])
def test_reduced_costs_keep_all_better_points(kind: str) -> None:
    cut = 0
    for seed in range(10):
        m, values = random_packing(9, seed) if kind == "packing" else random_qubo(8, seed, kind == "clusters")
        n = int(math.log2(len(values)))
        nodes, fixings = bl.Nodes(m, "y"), random_fixings(n, 150, seed)
        sense = nodes.solver.sense
        best = values.max() if sense.maximizing else values.min()
        slack = (0.5 if seed % 2 else 0.0) * float(values[torch.isfinite(values)].std())
        cutoff = float(best) + sense.turn(slack)
        found = nodes.solve(fixings, cutoff=cutoff)
        sign = -1.0 if found.maximizing else 1.0
        before, after = optima(values, fixings, found.maximizing), optima(values, found.fixings, found.maximizing)
        better = sign * before < sign * cutoff
        assert torch.equal(before[better], after[better])
        assert bool(found.open[better].all())
        cut += int((found.fixings != fixings).sum())
        kept = (found.fixings < 0) | (found.fixings == fixings) | (fixings < 0)
        assert bool(kept.all()) and bool((found.scores[found.fixings >= 0] < 0).all())
    assert cut > 20


def test_limits_and_wrong_input() -> None:
    m, values = random_qubo(6, 0)
    nodes = bl.Nodes(m, "y")
    late = nodes.solve([{}, {0: 1}], time_limit=1e-9)
    assert bool((late.bound <= values.min()).all() | (late.status == int(bl.Status.TIME_LIMIT)).all())
    solution = m.solve(tol=1e-6)
    root = nodes.solve([{}], solution.state, sweeps=0)
    assert root.bound.item() == pytest.approx(solution.bound.item(), rel=1e-9)
    pair = nodes.solve([{}, {}], solution.state.repeat(2), sweeps=0)
    assert torch.equal(pair.bound, root.bound.expand(2))
    for wrong in (torch.zeros(2, 5), torch.full((2, 6), 2)):
        with pytest.raises(ShapeError, match="fixings"):
            nodes.solve(wrong)
    with pytest.raises(ShapeError, match="positions"):
        nodes.solve([{7: 1}])
    with pytest.raises(ShapeError, match="multipliers"):
        nodes.solve([{}], torch.zeros(3, 4))
    with pytest.raises(OptionError, match="sweeps"):
        nodes.solve([{}], sweeps=-1)
    with pytest.raises(OptionError, match="cutoff"):
        nodes.solve([{}], cutoff=math.nan)
    with pytest.raises(ModelError, match="no variable"):
        bl.Nodes(m, "w")
    several = bl.Model(batch=2)
    several.minimize(several.variable("y", 2, lower=0, upper=1).sum())
    with pytest.raises(ModelError, match="batch=1"):
        bl.Nodes(several)
    wide = bl.Model()
    wide.minimize(wide.variable("y", 2, lower=1, upper=3).sum())
    with pytest.raises(ModelError, match="cannot be 0 and 1"):
        bl.Nodes(wide)
