"""Proofs hold for minimisers, and forged ones are rejected."""

import math
from dataclasses import replace

import numpy as np
import pytest

from blocklp.errors import FormatError, OptionError, ShapeError
from blocklp.problems.mis import WeightedGraph, solve_mis_exactly
from blocklp.problems.qpbo import Qubo, solve_qpbo_exactly
from blocklp.problems.qpbo.proof import Branch, Leaf, check_proof, proof_from_json, proof_to_json, prove_minimum

pytest.importorskip("numba")


def frustrated(seed, n=10):
    rng = np.random.default_rng(seed)
    pairs = np.array([(i, j) for i in range(n) for j in range(i) if rng.random() < 0.7])
    return Qubo.from_terms(rng.integers(-9, 4, n), pairs, rng.integers(-5, 10, len(pairs)), offset=0.25)


@pytest.mark.parametrize("seed", range(5))
def test_a_minimiser_is_proved_and_nothing_else_is(seed, all_labellings):
    qubo = frustrated(seed)
    found = solve_qpbo_exactly(qubo)
    proof = prove_minimum(qubo, found.labels)
    verdict = check_proof(qubo, found.labels, proof_from_json(proof_to_json(proof)))
    assert verdict.optimal
    energies = qubo.energy(all_labellings(qubo.n))
    assert float(verdict.energy) == energies.min()
    assert float(verdict.bound) <= energies.min()
    worse = all_labellings(qubo.n)[energies.argmax()]
    assert not check_proof(qubo, worse, proof).optimal


def test_random_multipliers_never_prove_too_much(all_labellings):
    rng = np.random.default_rng(3)
    for seed in range(60):
        qubo = frustrated(seed, 6)
        leaf = Leaf(tuple(map(tuple, (rng.normal(size=(len(qubo.edges), 3)) * 4).tolist())))
        proof = prove_minimum(qubo, solve_qpbo_exactly(qubo).labels) if seed % 3 == 0 else leaf
        bound = check_proof(qubo, np.zeros(6), proof).bound
        assert float(bound) <= qubo.energy(all_labellings(6)).min()


def a_branched_proof():
    for seed in range(50):
        qubo = frustrated(seed)
        labels = solve_qpbo_exactly(qubo).labels
        proof = prove_minimum(qubo, labels)
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
    for text in ("{}", "[1, 2]", "nonsense", '{"multipliers": [[1, 2]]}'):
        with pytest.raises(FormatError):
            proof_from_json(text)


def test_proofs_of_independent_sets():
    graph = WeightedGraph.from_edges([2.0, 3.0, 2.0, 3.0, 4.0], [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])
    found = solve_mis_exactly(graph)
    verdict = check_proof(graph.to_qubo(), found.labels, prove_minimum(graph.to_qubo(), found.labels))
    assert verdict.optimal and -float(verdict.energy) == found.energy == 7


def test_a_proof_that_is_too_long_is_refused():
    qubo, labels, _ = a_branched_proof()
    with pytest.raises(OptionError, match="max_leaves"):
        prove_minimum(qubo, labels, max_leaves=1)
