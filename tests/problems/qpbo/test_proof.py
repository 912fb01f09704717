"""Proofs hold for minimisers, and forged ones are rejected."""

import ast
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from blocklp.errors import FormatError, OptionError, ShapeError
from blocklp.problems.mis import WeightedGraph, solve_mis_exactly
from blocklp.problems.qpbo import Qubo, proving, solve_qpbo_exactly
from blocklp.problems.qpbo import proof as checker
from blocklp.problems.qpbo.proof import Branch, Leaf, check_proof, proof_from_log
from blocklp.problems.qpbo.proving import prove_minimum, roof_leaf

pytest.importorskip("numba")


def frustrated(seed, n=10):
    rng = np.random.default_rng(seed)
    pairs = np.array([(i, j) for i in range(n) for j in range(i) if rng.random() < 0.7])
    return Qubo.from_terms(rng.integers(-9, 4, n), pairs, rng.integers(-5, 10, len(pairs)), offset=0.25)


@pytest.mark.parametrize("seed", range(5))
def test_a_minimiser_is_proved_and_nothing_else_is(seed, all_labellings):
    qubo = frustrated(seed)
    found = solve_qpbo_exactly(qubo)
    lines = []
    proof = prove_minimum(qubo, found.labels, log=lines.append)
    verdict = check_proof(qubo, found.labels, proof)
    assert verdict.optimal and proof_from_log(lines) == proof
    energies = qubo.energy(all_labellings(qubo.n))
    assert float(verdict.energy) == energies.min()
    assert float(verdict.bound) <= energies.min()
    worse = all_labellings(qubo.n)[energies.argmax()]
    assert not check_proof(qubo, worse, proof).optimal


@pytest.mark.parametrize("seed", range(5))
def test_multipliers_of_a_tight_relaxation_prove_all(seed):
    """Without frustration roof duality is tight, so that its multipliers, in the order of the pairs, need no branch."""
    rng = np.random.default_rng(seed)
    pairs = np.array([(i, j) for i in range(20) for j in range(i) if rng.random() < 0.5])
    qubo = Qubo.from_terms(rng.integers(-60, 200, 20), pairs, -rng.integers(1, 60, len(pairs)))
    labels = solve_qpbo_exactly(qubo).labels
    proof = roof_leaf(qubo, np.full(20, -1, np.int8))[0]
    verdict = check_proof(qubo, labels, proof)
    assert len(proof.multipliers) == len(qubo.edges) > 16 and labels.any()
    assert float(verdict.bound) == pytest.approx(float(verdict.energy), rel=1e-5)


def test_random_multipliers_never_prove_too_much(all_labellings):
    rng = np.random.default_rng(3)
    for seed in range(60):
        qubo = frustrated(seed, 6)
        leaf = Leaf(tuple(map(tuple, (rng.normal(size=(len(qubo.edges), 3)) * 4).tolist())))
        proof = prove_minimum(qubo, solve_qpbo_exactly(qubo).labels) if seed % 3 == 0 else leaf
        bound = check_proof(qubo, np.zeros(6), proof).bound
        assert float(bound) <= qubo.energy(all_labellings(6)).min()


def by_roof_duality(qubo, fixed, goal):
    """A proof that nothing is at most the goal, by roof duality alone."""
    leaf, _ = roof_leaf(qubo, fixed)
    if checker.Rational(qubo).leaf(fixed.tolist(), leaf) > goal:
        return leaf
    v = int((fixed < 0).argmax())
    parts = [np.where(np.arange(qubo.n) == v, value, fixed).astype(np.int8) for value in (0, 1)]
    return Branch(v, *(by_roof_duality(qubo, part, goal) for part in parts))


def a_branched_proof():
    for seed in range(50):
        qubo = frustrated(seed)
        labels, rational = solve_qpbo_exactly(qubo).labels, checker.Rational(qubo)
        proof = by_roof_duality(qubo, np.full(qubo.n, -1, np.int8), rational.energy(labels) - rational.spacing)
        if isinstance(proof, Branch):
            return qubo, labels, proof
    raise AssertionError("no function needs a branch")


def test_forged_proofs_are_rejected():
    qubo, labels, proof = a_branched_proof()
    assert check_proof(qubo, labels, proof).optimal
    # One side is left out, or proved twice.
    assert (
        not check_proof(qubo, labels, replace(proof, zero=Leaf(()))).optimal
        or not check_proof(qubo, labels, replace(proof, one=Leaf(()))).optimal
    )
    pairs = len(qubo.edges)
    with pytest.raises(FormatError, match="pairs"):
        check_proof(qubo, labels, Leaf(((0.0, 0.0, 0.0),) * (pairs - 1)))
    for number in (math.inf, -math.inf, math.nan):
        with pytest.raises(FormatError, match="finite"):
            check_proof(qubo, labels, Leaf(((number, 0.0, 0.0),) * pairs))
    for variable in (-1, qubo.n, 0.5):
        with pytest.raises(FormatError, match="variable"):
            check_proof(qubo, labels, replace(proof, variable=variable))
    with pytest.raises(FormatError, match="fixed"):
        check_proof(qubo, labels, Branch(proof.variable, proof, proof))
    # The proof of another function.
    cheaper = Qubo(qubo.linear - 1.0, qubo.edges, qubo.quadratic, offset=qubo.offset)
    assert float(check_proof(cheaper, labels, proof).bound) <= solve_qpbo_exactly(cheaper).energy
    with pytest.raises(FormatError, match="made of"):
        check_proof(qubo, labels, "trust me")
    with pytest.raises(ShapeError):
        check_proof(qubo, labels[:-1], proof)
    for text in ("{}", "[]", "3", "[1, 2]", "nonsense", "[[], [[1, 2]]]", "[[], 0.0]", "[[], true]", f"[[], [[0, 0, {10**400}]]]"):
        with pytest.raises(FormatError):
            proof_from_log([text])


def nodes_of(proof):
    """All nodes with their paths from the root."""
    work = [((), proof)]
    while work:
        path, node = work.pop()
        yield path, node
        if isinstance(node, Branch):
            work += [((*path, "zero"), node.zero), ((*path, "one"), node.one)]


def grafted(proof, path, new):
    """The proof with another node at the end of a path."""
    return replace(proof, **{path[0]: grafted(getattr(proof, path[0]), path[1:], new)}) if path else new


def exact_minimum(qubo, all_labellings):
    rational = checker.Rational(qubo)
    return min(map(rational.energy, all_labellings(qubo.n)))


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e20])
def test_no_tampering_proves_too_much(scale, all_labellings):
    qubo, labels, proof = a_branched_proof()
    qubo = Qubo(qubo.linear * scale, qubo.edges, qubo.quadratic * scale, offset=qubo.offset)
    least, rng, weaker = exact_minimum(qubo, all_labellings), np.random.default_rng(1), 0
    nodes = list(nodes_of(proof))
    leaves = [(path, node) for path, node in nodes if isinstance(node, Leaf)]
    forged = []
    for path, leaf in leaves:
        for size in (1e-9, 1.0, 1e9):
            moved = np.array(leaf.multipliers).reshape(-1, 3)
            forged.append((path, Leaf(tuple(map(tuple, (moved * scale + size * rng.normal(size=moved.shape)).tolist())))))
        forged += [
            (path, Leaf(())),
            (path, Leaf(leaf.multipliers[:-1])),
            (path, rng.choice(np.array([n for _, n in nodes], dtype=object))),
        ]
    for path, node in nodes:
        if isinstance(node, Branch):
            forged.append((path, Branch(node.variable, node.one, node.zero)))
            forged.append((path, Branch((node.variable + 1) % qubo.n, node.zero, node.one)))
            forged.append((path, node.zero))
    for path, new in forged:
        try:
            verdict = check_proof(qubo, labels, grafted(proof, path, new))
        except FormatError:
            continue
        weaker += 1
        assert verdict.bound <= least
        assert verdict.optimal == (verdict.bound == verdict.energy == least)
    assert weaker > len(leaves)


def test_random_trees_never_prove_too_much(all_labellings):
    rng = np.random.default_rng(4)

    def tree(free, depth):
        if depth == 0 or not free:
            pairs = sum(a in free and b in free for a, b in qubo.edges.tolist())
            return Leaf(tuple(map(tuple, (rng.normal(size=(pairs, 3)) * 3).tolist())))
        v = int(rng.choice(sorted(free)))
        return Branch(v, tree(free - {v}, depth - 1), tree(free - {v}, depth - 1))

    for seed in range(100):
        qubo = frustrated(seed, 6)
        qubo = Qubo(qubo.linear + rng.normal(size=6), qubo.edges, qubo.quadratic * rng.choice([1.0, 0.1]), offset=0.1)
        proof = tree(set(range(6)), int(rng.integers(0, 7)))
        assert check_proof(qubo, np.zeros(6), proof).bound <= exact_minimum(qubo, all_labellings)


def test_the_checker_uses_nothing_of_the_solver():
    tree = ast.parse(Path(checker.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in modules if name.startswith("blocklp")} == {"blocklp.errors", "blocklp.problems.qpbo.instance"}


def test_proofs_deeper_than_the_stack_are_checked():
    n = 3000
    qubo = Qubo(np.ones(n), np.zeros((0, 2), dtype=int), [])
    proof = Leaf(())
    for v in range(n):
        proof = Branch(v, proof, Leaf(()))
    assert check_proof(qubo, np.zeros(n), proof).optimal


def test_an_interrupt_ends_the_search_for_a_proof(monkeypatch):
    qubo, labels, _ = a_branched_proof()
    given = proving.roof_duality_model

    class Stopped:
        def __init__(self, model):
            self.model = model

        def solve(self, **options):
            return self.model.solve(**options, callback=lambda *_: True)

    monkeypatch.setattr(proving, "roof_duality_model", lambda qubo: Stopped(given(qubo)))
    with pytest.raises(KeyboardInterrupt):
        prove_minimum(qubo, labels)


@pytest.mark.parametrize("seed", range(5))
def test_proofs_of_independent_sets(seed, all_labellings):
    rng = np.random.default_rng(seed)
    edges = [(i, j) for i in range(10) for j in range(i) if rng.random() < 0.4]
    graph = WeightedGraph.from_edges(rng.integers(1, 9, 10) * rng.choice([1.0, 0.5, 1e20]), edges)
    found, qubo = solve_mis_exactly(graph), graph.to_qubo()
    verdict = check_proof(qubo, found.labels, prove_minimum(qubo, found.labels))
    every = all_labellings(10)
    assert verdict.optimal and graph.independent(found.labels.numpy())
    assert -verdict.bound == max(map(Fraction, graph.weight(every)[graph.independent(every)].tolist()))


def test_a_proof_that_is_too_long_is_refused():
    # Odd cliques of nearly equal weights are cut far worse than triangle inequalities tell.
    pairs = [(i, j) for j in range(5) for i in range(j)]
    qubo = Qubo.max_cut(5, pairs, 64.0 + np.arange(10) % 4)
    labels = solve_qpbo_exactly(qubo).labels
    assert check_proof(qubo, labels, prove_minimum(qubo, labels)).optimal
    with pytest.raises(OptionError, match="max_leaves"):
        prove_minimum(qubo, labels, max_leaves=1)
