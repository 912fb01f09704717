"""Semidefinite leaves of proofs: any multipliers bound, and those that are found prove dense functions."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from blocklp.errors import FormatError
from blocklp.problems.qpbo import Qubo, read_qubo, solve_qpbo_exactly
from blocklp.problems.qpbo.proof import Branch, Leaf, Rational, SemidefiniteLeaf, check_proof, proof_from_log
from blocklp.problems.qpbo.proving import prove_minimum

pytest.importorskip("numba")


def dense(seed, n=12, scale=1.0):
    rng = np.random.default_rng(seed)
    pairs = np.array([(i, j) for j in range(n) for i in range(j)])
    return Qubo.from_terms(scale * rng.integers(-9, 10, n), pairs, scale * rng.integers(-9, 10, len(pairs)), offset=scale / 4)


def random_leaf(rng, free, size):
    """Multipliers of any kind: far from feasible, huge, tiny, all zero."""
    reach = size * 10.0 ** rng.integers(-3, 3)
    triangles = []
    for _ in range(int(rng.integers(0, 8)) if free >= 2 else 0):
        i, j, k = (int(v) for v in sorted(rng.choice(free + 1, 3, replace=False)))
        triangles.append((i, j, k, int(rng.choice([-1, 1])), int(rng.choice([-1, 1])), float(reach * rng.random())))
    return SemidefiniteLeaf(tuple((reach * rng.normal(size=free + 1) * rng.integers(0, 2)).tolist()), tuple(triangles))


@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.3, 1e15])
def test_no_multipliers_prove_too_much(scale, all_labellings):
    rng = np.random.default_rng(0)
    for seed in range(60):
        qubo = dense(seed, int(rng.integers(2, 8)), scale)
        rational = Rational(qubo)
        fixed = np.where(rng.random(qubo.n) < 0.3, rng.integers(0, 2, qubo.n), -1)
        free = int((fixed < 0).sum())
        leaf = random_leaf(rng, free, float(np.abs(qubo.quadratic).max()))
        whole = np.tile(np.maximum(fixed, 0), (2**free, 1))
        whole[:, fixed < 0] = all_labellings(free) if free else 0
        least = min(rational.energy(y) for y in whole)
        assert rational.semidefinite(fixed.tolist(), leaf) <= least


def test_the_bound_is_the_formula(all_labellings):
    """Where the matrix is positive definite by far, the bound is the sum of the multipliers."""
    qubo = dense(1, 5)
    rational = Rational(qubo)
    diagonal = (-40.0, -41.5, -42.0, -43.0, -44.0, -45.0)
    leaf = SemidefiniteLeaf(diagonal, ((0, 2, 4, 1, -1, 0.75), (1, 2, 3, -1, -1, 0.5)))
    constant = Fraction(np.mean(qubo.energy(all_labellings(5))))  # of all spins the quadratic form has the mean zero
    exact = constant + sum(map(Fraction, diagonal)) - Fraction(1.25)
    assert exact - Fraction(1, 10**9) <= rational.semidefinite([-1] * 5, leaf) <= exact


@pytest.mark.parametrize("seed", range(4))
def test_dense_functions_are_proved_with_few_leaves(seed, all_labellings):
    qubo = dense(seed)
    labels = solve_qpbo_exactly(qubo).labels
    lines = []
    proof = prove_minimum(qubo, labels, log=lines.append)
    verdict = check_proof(qubo, labels, proof)
    assert verdict.optimal and verdict.leaves <= 10 and proof_from_log(lines) == proof
    energies = qubo.energy(all_labellings(qubo.n))
    assert float(verdict.bound) == energies.min()
    assert not check_proof(qubo, all_labellings(qubo.n)[energies.argmax()], proof).optimal


def test_a_cut_of_the_library_is_proved(shared_qpbo):
    qubo = read_qubo(shared_qpbo / "maxcut" / "g05_60.0", "maxcut")
    labels = solve_qpbo_exactly(qubo).labels
    verdict = check_proof(qubo, labels, prove_minimum(qubo, labels))
    assert verdict.optimal and verdict.energy == -536 and verdict.leaves < 20


GOOD = SemidefiniteLeaf((-9.0, -9.0, -9.0, -9.0), ((0, 1, 2, 1, -1, 0.5),))
FORGED = {
    "a square is missing": replace(GOOD, diagonal=(-9.0, -9.0, -9.0)),
    "a square is not finite": replace(GOOD, diagonal=(-9.0, math.inf, -9.0, -9.0)),
    "a square is no number": replace(GOOD, diagonal=(-9.0, "x", -9.0, -9.0)),
    "a price is negative": replace(GOOD, triangles=((0, 1, 2, 1, -1, -0.5),)),
    "a price is NaN": replace(GOOD, triangles=((0, 1, 2, 1, -1, math.nan),)),
    "a sign is 2": replace(GOOD, triangles=((0, 1, 2, 2, -1, 0.5),)),
    "a sign is a float": replace(GOOD, triangles=((0, 1, 2, 1.0, -1, 0.5),)),
    "a sign is 0": replace(GOOD, triangles=((0, 1, 2, 0, -1, 0.5),)),
    "nodes repeat": replace(GOOD, triangles=((0, 1, 1, 1, -1, 0.5),)),
    "nodes are not in order": replace(GOOD, triangles=((1, 0, 2, 1, -1, 0.5),)),
    "a node does not exist": replace(GOOD, triangles=((0, 1, 4, 1, -1, 0.5),)),
    "a node is negative": replace(GOOD, triangles=((-1, 1, 2, 1, -1, 0.5),)),
    "a node is a float": replace(GOOD, triangles=((0.0, 1, 2, 1, -1, 0.5),)),
    "a triangle is short": replace(GOOD, triangles=((0, 1, 2, 1, -1),)),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_forged_leaves_are_rejected(forged):
    qubo = dense(2, 3)
    assert check_proof(qubo, [0, 0, 0], GOOD).leaves == 1
    with pytest.raises(FormatError, match="leaf has multipliers"):
        check_proof(qubo, [0, 0, 0], forged)


def test_leaves_where_all_is_fixed_are_the_energy():
    qubo = dense(3, 2)
    ends = [SemidefiniteLeaf((0.0,), ())] * 4
    tree = Branch(0, Branch(1, *ends[:2]), Branch(1, *ends[2:]))
    plain = Branch(0, Branch(1, Leaf(()), Leaf(())), Branch(1, Leaf(()), Leaf(())))
    assert check_proof(qubo, [0, 0], tree).bound == check_proof(qubo, [0, 0], plain).bound


@pytest.mark.parametrize(
    "line", ['[[], {"diagonal": [0.0]}]', '[[], {"diagonal": [0.0], "triangles": [[0, 1, 2, 1, 1]]}]', "[[], {}]"]
)
def test_broken_logs_are_refused(line):
    with pytest.raises(FormatError, match="not the log of a proof"):
        proof_from_log([line])
