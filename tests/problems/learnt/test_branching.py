from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import FormatError, OptionError, ShapeError
from blocklp.problems.discrete.exact import ExactRun
from blocklp.problems.discrete.integers import Grid
from blocklp.problems.learnt import LearntBranching, train_branching
from blocklp.problems.learnt.branching import features, fresh
from blocklp.problems.learnt.families import independent_set, sparse
from blocklp.problems.qpbo import Qubo, solve_qpbo_exactly
from blocklp.problems.qpbo.node_search import ReducedCosts, StrongBranching, search_nodes
from blocklp.problems.qpbo.relaxation import roof_duality_model
from blocklp.status import Status


def function(seed, n=11, pairs=24):
    draw = np.random.default_rng(seed)
    ends = np.array([(i, j) for i in range(n) for j in range(i + 1, n)])[draw.permutation(n * (n - 1) // 2)[:pairs]]
    return Qubo.from_terms(draw.integers(-9, 10, n).astype(float), ends, draw.integers(-12, 13, pairs).astype(float))


def least(qubo):
    return min(float(qubo.energy(np.array(labels))) for labels in product((0, 1), repeat=qubo.n))


def random_rule(seed, size):
    torch.manual_seed(seed)
    network = fresh()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(size * torch.randn_like(parameter))
    return LearntBranching(network)


def searched(qubo, rule, labels=None, seconds=60.0):
    """The search alone, without the reductions before it."""
    run = ExactRun(bl.Deadline(seconds), None)
    grid = Grid.of(np.concatenate([qubo.linear, qubo.quadratic]), 0.0)
    begun = np.zeros(qubo.n, dtype=np.int8) if labels is None else labels
    found, bound = search_nodes(qubo, begun, grid, run, rule)
    return float(qubo.energy(found)), bound, run


@pytest.mark.parametrize("size", [0.3, 10.0, np.nan])
def test_no_weights_of_the_network_change_a_minimum(size):
    for seed in range(6):
        qubo = function(seed)
        energy, bound, run = searched(qubo, random_rule(seed, size))
        assert energy == bound == least(qubo)
        assert run.status is Status.OPTIMAL


@pytest.mark.parametrize("rule", [ReducedCosts(), StrongBranching()])
def test_searches_by_rules_end_at_the_minimum(rule):
    for seed in range(6):
        qubo = function(seed)
        energy, bound, run = searched(qubo, rule)
        assert energy == bound == least(qubo)
        found = solve_qpbo_exactly(qubo, branching=rule)
        assert found.proven and found.energy == found.bound == energy


def test_functions_of_real_coefficients_are_proved_as_by_the_usual_search():
    for seed in range(3):
        qubo = sparse(45, 8, seed)
        exact = solve_qpbo_exactly(qubo)
        for rule in (StrongBranching(), random_rule(seed, 1.0)):
            found = solve_qpbo_exactly(qubo, branching=rule)
            assert found.proven and found.energy == pytest.approx(exact.energy, abs=1e-8)
            assert found.bound <= exact.energy


def test_strong_branching_gains_what_the_children_gain():
    qubo = independent_set(25, 1)
    nodes = bl.Nodes(roof_duality_model(qubo), "y")
    fixings = torch.full((2, 25), -1, dtype=torch.int8)
    fixings[1, 3] = 1
    goal = float(nodes.solve(fixings[:1], nodes.solver.solve(tol=1e-6).state).bound[0]) + 0.5
    found = nodes.solve(fixings, nodes.solver.solve(tol=1e-6).state.repeat(2), goal)
    gains = StrongBranching().gains(nodes, found, goal)
    assert gains.shape == (2, 25, 2) and bool((gains >= 0).all() and (gains <= 1).all())
    assert not gains[1, 3].any()
    for node, column, value in ((0, 0, 0), (0, 7, 1), (1, 0, 1)):
        if found.fixings[node, column] < 0:
            child = found.fixings[node : node + 1].clone()
            child[0, column] = value
            bound = float(nodes.solve(child, found.multipliers[node : node + 1], goal).bound[0])
            at = float(found.bound[node])
            assert float(gains[node, column, value]) == pytest.approx(min(1, max(0, (bound - at) / (goal - at))), abs=1e-9)


def test_features_follow_the_variables_the_labels_and_no_unit():
    qubo = function(3)
    order = np.random.default_rng(0).permutation(qubo.n)
    place = np.argsort(order)
    unit = Qubo.from_terms(8 * qubo.linear[order], place[qubo.edges], 8 * qubo.quadratic)
    # y to 1 - y in all variables; the constant is left out.
    linear = -qubo.linear - np.bincount(qubo.edges.ravel(), np.repeat(qubo.quadratic, 2), qubo.n)
    exchanged = Qubo(linear, qubo.edges, qubo.quadratic)
    fixings = torch.full((2, qubo.n), -1, dtype=torch.int8)
    fixings[1, 2], fixings[1, 5] = 1, 0
    found = bl.Nodes(roof_duality_model(qubo), "y").solve(fixings, None, 0.0, sweeps=1)
    first = features(qubo, found, 0.0)
    assert bool((first[0, :, :, 0] != first[0, :, :, 1]).any()) and first.shape == (2, qubo.n, 2, 14)
    scaled = {name: 8 * getattr(found, name)[..., order] for name in ("if_zero", "if_one")}
    named = {name: getattr(found, name)[..., order] for name in ("x", "given")}
    other = replace(found, **scaled, **named, bound=8 * found.bound, cutoff=8 * found.cutoff)
    torch.testing.assert_close(features(unit, other, 0.0), first[:, order])
    sides = {"if_zero": found.if_one, "if_one": found.if_zero, "x": 1 - found.x}
    given = torch.where(found.given < 0, found.given, 1 - found.given)
    other = replace(found, **sides, given=given)
    free = found.fixings < 0
    torch.testing.assert_close(features(exchanged, other, 0.0)[free], first[free].flip(1))


@pytest.mark.slow
def test_training_branches_less_on_a_family_and_on_another_one():
    learnt = train_branching(lambda seed: independent_set(60, seed), instances=3, steps=300)
    for draw in (lambda seed: independent_set(80, seed), lambda seed: sparse(60, 6, seed)):
        nodes = {
            name: sum(solve_qpbo_exactly(draw(seed), branching=rule).nodes for seed in range(3))
            for name, rule in (("learnt", learnt), ("reduced", ReducedCosts()))
        }
        assert nodes["learnt"] <= 0.7 * nodes["reduced"]


def test_a_file_holds_the_rule(tmp_path):
    rule, qubo = random_rule(7, 0.5), independent_set(30, 2)
    rule.save(tmp_path / "rule.safetensors")
    again = LearntBranching.load(tmp_path / "rule.safetensors")
    nodes = bl.Nodes(roof_duality_model(qubo), "y")
    found = nodes.solve(torch.full((1, 30), -1, dtype=torch.int8), None, 0.0)
    assert torch.equal(rule.scores(qubo, nodes, found, 0.0), again.scores(qubo, nodes, found, 0.0))
    roof_duality_model(qubo).solve().state.save(tmp_path / "state.safetensors")
    with pytest.raises(FormatError, match="learnt branching"):
        LearntBranching.load(tmp_path / "state.safetensors")


def test_what_is_no_rule_is_refused():
    with pytest.raises(OptionError, match=r"branching\.scores"):
        solve_qpbo_exactly(function(0), branching="strong")

    class Wrong:
        def scores(self, qubo, nodes, found, goal):
            return torch.zeros(1)

    with pytest.raises(ShapeError, match="a branching rule returns one a variable"):
        searched(function(1), Wrong())
    with pytest.raises(OptionError, match="no function was branched on"):
        train_branching(lambda seed: Qubo([1.0, 1.0], [[0, 1]], [1.0]), instances=1, steps=1)


def test_a_search_that_is_out_of_time_has_a_valid_bound():
    qubo = sparse(100, 6, 0)
    whole = Qubo(np.rint(1e4 * qubo.linear), qubo.edges, np.rint(1e4 * qubo.quadratic))
    exact = solve_qpbo_exactly(whole, branching=StrongBranching())
    energy, bound, run = searched(whole, ReducedCosts(), seconds=0.3)
    assert run.status is Status.TIME_LIMIT
    assert bound <= exact.energy <= energy
