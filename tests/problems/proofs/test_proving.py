"""Minima of every exact solver are proved, and nothing else is."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from blocklp.errors import FormatError, ModelError, OptionError, TimeLimitError
from blocklp.problems.discrete.exact import ExactSettings
from blocklp.problems.mis import WeightedGraph, read_graph, solve_mis_exactly
from blocklp.problems.mrf import Mrf, read_mrf, solve_mrf_exactly
from blocklp.problems.proofs import (
    Branch,
    Decomposition,
    Eliminate,
    Parts,
    Semidefinite,
    Split,
    check_proof,
    node_bounds,
    proof_from_log,
    prove_minimum,
)
from blocklp.problems.qpbo import Qubo, read_qubo, solve_qpbo_exactly

pytest.importorskip("numba")

BOUNDS_ALONE = ExactSettings(energy_tables=0, leaf_tables=0, reduced_table=0)
"""So that nothing is eliminated."""


def dense(seed, n=12, share=1.0):
    rng = np.random.default_rng(seed)
    pairs = np.array([(i, j) for j in range(n) for i in range(j) if rng.random() < share])
    return Qubo.from_terms(rng.integers(-9, 10, n), pairs, rng.integers(-9, 10, len(pairs)), offset=0.25)


def odd_clique():
    """Cut far worse than triangle inequalities tell, so that proofs have branches."""
    return Qubo.max_cut(5, [(i, j) for j in range(5) for i in range(j)], 64.0 + np.arange(10) % 4)


def several_labels(seed, n=7, hard=False):
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for j in range(n) for i in range(j) if rng.random() < 0.7]
    factors = [((i, j), rng.integers(0, 20, (3, 3)).astype(float)) for i, j in pairs]
    factors += [((i,), rng.integers(0, 9, 3)) for i in range(n)]
    if hard:
        for _, table in factors[: len(pairs)]:
            table[rng.random(table.shape) < 0.2] = np.inf
    return Mrf([3] * n, factors, constant=-3.5)


def least_energy(mrf):
    return min(float(mrf.energy(np.array(labels))) for labels in product(*map(range, mrf.counts.tolist())))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("settings", [ExactSettings(), BOUNDS_ALONE], ids=["elimination", "bounds"])
def test_minima_of_functions_are_proved_and_nothing_else_is(seed, settings, all_labellings):
    qubo = dense(seed, 10, 0.7)
    labels, lines = solve_qpbo_exactly(qubo).labels, []
    proof = prove_minimum(qubo, labels, log=lines.append, settings=settings)
    verdict = check_proof(qubo, labels, proof)
    energies = qubo.energy(all_labellings(10))
    assert verdict.optimal and float(verdict.value) == float(verdict.bound) == energies.min()
    assert check_proof(qubo, labels, proof_from_log(reversed(lines))) == verdict
    worst = all_labellings(10)[energies.argmax()]
    assert not check_proof(qubo, worst, proof).optimal
    other = Qubo(qubo.linear - 1.0, qubo.edges, qubo.quadratic, offset=qubo.offset)  # the proof is of another function
    try:
        assert float(check_proof(other, labels, proof).bound) <= other.energy(all_labellings(10)).min()
    except FormatError:
        pass


@pytest.mark.parametrize("hard", [False, True], ids=["finite", "hard"])
@pytest.mark.parametrize("seed", range(3))
def test_minima_of_energies_are_proved(seed, hard):
    mrf = several_labels(seed, hard=hard)
    found = solve_mrf_exactly(mrf)
    proof = prove_minimum(mrf, found.labels, settings=BOUNDS_ALONE)
    verdict = check_proof(mrf, found.labels, proof)
    assert verdict.optimal and float(verdict.value) == least_energy(mrf)
    assert any(isinstance(step, Decomposition) and step.parts for step in proof)
    short = prove_minimum(mrf, found.labels)
    assert check_proof(mrf, found.labels, short).optimal and isinstance(short[0], Eliminate)


def test_factors_of_three_variables_are_bounded():
    rng = np.random.default_rng(5)
    scopes = [(0, 1, 2), (1, 2, 3), (2, 3, 4), (0, 3, 4), (0, 1, 4)]
    mrf = Mrf([2, 3, 2, 3, 2], [(s, rng.integers(0, 9, np.array([2, 3, 2, 3, 2])[list(s)])) for s in scopes])
    labels = solve_mrf_exactly(mrf).labels
    verdict = check_proof(mrf, labels, prove_minimum(mrf, labels, settings=BOUNDS_ALONE))
    assert verdict.optimal and float(verdict.value) == least_energy(mrf)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("settings", [ExactSettings(), BOUNDS_ALONE], ids=["elimination", "bounds"])
def test_heaviest_sets_are_proved(seed, settings, all_labellings):
    rng = np.random.default_rng(seed)
    edges = [(i, j) for i in range(10) for j in range(i) if rng.random() < 0.4]
    graph = WeightedGraph.from_edges(rng.integers(1, 9, 10) * rng.choice([1.0, 0.5, 1e20]), edges)
    members = solve_mis_exactly(graph).labels
    verdict = check_proof(graph, members, prove_minimum(graph, members, settings=settings))
    every = all_labellings(10)
    assert verdict.optimal and -float(verdict.bound) == graph.weight(every)[graph.independent(every)].max()


def test_a_set_of_cliques_needs_one_leaf():
    graph = WeightedGraph.from_edges(np.ones(30), [(6 * k + i, 6 * k + j) for k in range(5) for j in range(6) for i in range(j)])
    labels = np.zeros(30)
    labels[::6] = 1
    proof = prove_minimum(graph, labels, settings=BOUNDS_ALONE)
    assert check_proof(graph, labels, proof).optimal and isinstance(proof[0], Split)
    joined = WeightedGraph.from_edges(np.ones(30), [*graph.edges.tolist(), *((6 * k + 1, 6 * k + 8) for k in range(4))])
    (leaf,) = prove_minimum(joined, labels, settings=BOUNDS_ALONE)
    assert leaf.cliques and not leaf.parts and check_proof(joined, labels, [leaf]).optimal


def test_hard_constraints_without_labels_are_proved():
    """Three variables of two labels that all differ, beside two that are free to choose."""
    differ = np.where(np.eye(2), np.inf, 0.0)
    factors = [((i, j), differ) for i, j in ((0, 1), (1, 2), (0, 2))] + [((3, 4), np.arange(4).reshape(2, 2))]
    mrf = Mrf([2] * 5, factors)
    assert math.isinf(solve_mrf_exactly(mrf).energy)
    for settings in (ExactSettings(), BOUNDS_ALONE):
        assert check_proof(mrf, None, prove_minimum(mrf, None, settings=settings)).infeasible
    with pytest.raises(OptionError, match="there are labellings"):
        prove_minimum(Mrf([2] * 2, [((0, 1), differ)]), None)


def test_a_top_that_no_labels_are_below_is_proved():
    mrf = replace_top(several_labels(0), 1.0)
    assert math.isinf(solve_mrf_exactly(mrf).energy)
    assert check_proof(mrf, None, prove_minimum(mrf, None)).infeasible


def replace_top(mrf, top):
    return Mrf(mrf.counts, mrf.factors, mrf.constant, top=top)


def test_logarithms_are_proved_up_to_what_does_not_matter():
    rng = np.random.default_rng(6)
    mrf = Mrf([3] * 6, [((i, j), -np.log(rng.random((3, 3)))) for j in range(6) for i in range(j)])
    found = solve_mrf_exactly(mrf)
    for settings in (ExactSettings(), BOUNDS_ALONE):
        verdict = check_proof(mrf, found.labels, prove_minimum(mrf, found.labels, settings=settings))
        assert float(verdict.value) == pytest.approx(found.energy, rel=1e-14)
        assert 0 <= float(verdict.gap) < 3e-9 * sum(float(table.max()) for _, table in mrf.factors)


@pytest.mark.parametrize("seed", range(4))
def test_dense_functions_are_proved_with_few_leaves(seed):
    qubo = dense(seed)
    labels = solve_qpbo_exactly(qubo).labels
    proof = prove_minimum(qubo, labels, settings=BOUNDS_ALONE)
    verdict = check_proof(qubo, labels, proof)
    assert verdict.optimal and verdict.leaves <= 10 and any(isinstance(step, Semidefinite) for step in proof)


def test_labels_that_are_no_minimiser_are_not_proved():
    qubo = dense(0, 6)
    labels = solve_qpbo_exactly(qubo).labels
    worse = labels.clone()
    worse[0] = 1 - worse[0]
    verdict = check_proof(qubo, worse, prove_minimum(qubo, worse))
    assert not verdict.optimal and verdict.bound <= check_proof(qubo, labels, prove_minimum(qubo, labels)).value
    graph = WeightedGraph.from_edges([1.0, 2.0], [(0, 1)])
    with pytest.raises(ModelError, match="independent"):
        prove_minimum(graph, [1, 1])


def nodes_of(proof):
    """For every step, where its subtree begins and ends."""
    ends, waiting = {}, []
    for k, step in enumerate(proof):
        waiting.append([k, step.below])
        while waiting and not waiting[-1][1]:
            ends[waiting.pop()[0]] = k + 1
            if waiting:
                waiting[-1][1] -= 1
    return [(k, ends[k]) for k in sorted(ends)]


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e20])
def test_no_tampering_proves_too_much(scale, all_labellings):
    clique = odd_clique()
    qubo = Qubo(clique.linear * scale, clique.edges, clique.quadratic * scale, offset=clique.offset)
    labels = solve_qpbo_exactly(qubo).labels
    proof = list(prove_minimum(qubo, labels, settings=BOUNDS_ALONE))
    assert any(isinstance(step, Branch) for step in proof)
    least = min(check_proof(qubo, y, [Decomposition()]).value for y in all_labellings(5))
    rng, weaker, trees = np.random.default_rng(1), 0, nodes_of(proof)
    forged = []
    for begin, end in trees:
        step = proof[begin]
        forged += [(begin, end, [Decomposition()]), (begin, end, proof[slice(*trees[int(rng.integers(len(trees)))])])]
        if isinstance(step, Branch):
            forged.append((begin, begin + 1, [replace(step, cases=step.cases[::-1])]))
            forged.append((begin, begin + 1, [replace(step, variable=(step.variable + 1) % 5)]))
        if isinstance(step, Semidefinite):
            for size in (1e-9, 1.0, 1e9):
                moved = np.array(step.diagonal) + scale * size * rng.normal(size=len(step.diagonal))
                forged.append((begin, end, [replace(step, diagonal=tuple(moved.tolist()))]))
    for begin, end, new in forged:
        try:
            verdict = check_proof(qubo, labels, [*proof[:begin], *new, *proof[end:]])
        except FormatError:
            continue
        weaker += 1
        assert verdict.bound <= least
        assert verdict.optimal == (verdict.bound == verdict.value == least)
    assert weaker > len(trees)


def test_an_interrupt_ends_the_search_for_a_proof(monkeypatch):
    given = node_bounds.roof_duality_model

    class Stopped:
        def __init__(self, model):
            self.model = model

        def __getattr__(self, name):
            return getattr(self.model, name)

        def solve(self, **options):
            return self.model.solve(**options, callback=lambda *_: True)

    monkeypatch.setattr(node_bounds, "clique_model", lambda *args: Stopped(given(odd_clique())))
    cycle = WeightedGraph.from_edges(np.ones(5), [(k, (k + 1) % 5) for k in range(5)])
    with pytest.raises(KeyboardInterrupt):
        prove_minimum(cycle, [1, 0, 1, 0, 0], settings=BOUNDS_ALONE)


def test_multipliers_out_of_proportion_lead_to_a_branch(monkeypatch):
    given = node_bounds.Columns.leaf

    def huge(self, solution, variables):
        leaf = given(self, solution, variables)
        return Decomposition(tuple(Parts(p.variables, tuple((a, t * 1e9) for a, t in p.tables)) for p in leaf.parts))

    monkeypatch.setattr(node_bounds.Columns, "leaf", huge)
    mrf = several_labels(0, n=4)
    labels = solve_mrf_exactly(mrf).labels
    assert check_proof(mrf, labels, prove_minimum(mrf, labels, settings=BOUNDS_ALONE)).optimal


def test_limits():
    qubo = odd_clique()
    labels = solve_qpbo_exactly(qubo).labels
    assert check_proof(qubo, labels, prove_minimum(qubo, labels, settings=BOUNDS_ALONE)).optimal
    with pytest.raises(OptionError, match="max_leaves"):
        prove_minimum(qubo, labels, max_leaves=1, settings=BOUNDS_ALONE)
    with pytest.raises(TimeLimitError, match="proof"):
        prove_minimum(qubo, labels, time_limit=1e-9, settings=BOUNDS_ALONE)


@pytest.mark.slow
def test_real_instances_are_proved(shared_qpbo):
    qubo = read_qubo(shared_qpbo / "maxcut" / "g05_60.0", "maxcut")
    labels = solve_qpbo_exactly(qubo).labels
    verdict = check_proof(qubo, labels, prove_minimum(qubo, labels))
    assert verdict.optimal and verdict.value == -536 and verdict.leaves < 20
    graph = read_graph(shared_qpbo / "mis" / "col" / "2-Insertions_4.col")
    members = solve_mis_exactly(graph).labels
    verdict = check_proof(graph, members, prove_minimum(graph, members))
    assert verdict.optimal and verdict.value == -74 and members.sum() == 74
    mrf = read_mrf(shared_qpbo / "mrf" / "ObjectDetection_28.uai")
    found = solve_mrf_exactly(mrf)
    verdict = check_proof(mrf, found.labels.to(torch.int64), prove_minimum(mrf, found.labels))
    assert float(verdict.gap) < 1e-6
