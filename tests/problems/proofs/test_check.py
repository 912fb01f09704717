"""No proof proves too much: any steps bound from below, and forged ones are rejected."""

import ast
import math
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import networkx
import numpy as np
import pytest

from blocklp.errors import FormatError, ModelError, ScopeError, ShapeError
from blocklp.problems.mis import WeightedGraph
from blocklp.problems.mrf import Mrf
from blocklp.problems.proofs import (
    Branch,
    Decomposition,
    Eliminate,
    Parts,
    Semidefinite,
    Split,
    bounds,
    check,
    check_proof,
    function,
    prove_minimum,
    semidefinite,
    steps,
    write_proof,
)
from blocklp.problems.qpbo import Qubo

LEAF = Decomposition()


def exact_minimum(mrf):
    """The least energy in rational numbers, over labels without infinite entries; None where there is none."""
    found = None
    for labels in product(*map(range, mrf.counts.tolist())):
        entries = [table[tuple(labels[i] for i in scope)] for scope, table in mrf.factors]
        if all(map(math.isfinite, entries)):
            value = sum(map(Fraction, entries), Fraction(mrf.constant))
            found = value if found is None else min(found, value)
    return found


def random_mrf(rng, scale, infinite=False):
    counts = rng.integers(1, 4, int(rng.integers(2, 6)))
    factors = []
    for _ in range(int(rng.integers(1, 8))):
        scope = rng.choice(len(counts), int(rng.integers(1, min(4, len(counts) + 1))), replace=False).tolist()
        table = scale * rng.integers(-9, 10, counts[scope])
        if infinite:
            table = np.where(rng.random(table.shape) < 0.2, np.inf, table)
        factors.append((scope, table))
    return Mrf(counts, factors, constant=scale * float(rng.integers(-5, 6)))


def random_leaf(rng, labels, scale):
    """Multipliers of any kind: far from the best ones, huge, tiny."""
    names = list(labels)
    groups = []
    for _ in range(int(rng.integers(0, 4)) if names else 0):
        k = int(rng.integers(1, min(4, len(names)) + 1))
        own = rng.choice(names, k, replace=False)
        sizes = [len(labels[v]) for v in own]
        same = [row for row in (rng.permutation(own) for _ in range(3)) if [len(labels[v]) for v in row] == sizes]
        rows = np.array([own, *same])
        tables = []
        for _ in range(int(rng.integers(1, 4))):
            axes = tuple(rng.choice(k, int(rng.integers(1, k + 1)), replace=False).tolist())
            shape = (len(rows), *(len(labels[own[a]]) for a in axes))
            tables.append((axes, scale * 10.0 ** rng.integers(-12, 3) * rng.normal(size=shape)))
        groups.append(Parts(rows, tuple(tables)))
    two = [v for v in names if len(labels[v]) == 2]
    cliques = []
    for _ in range(int(rng.integers(0, 4))):
        some = rng.choice(two, int(rng.integers(1, len(two) + 1)), replace=False).tolist() if two else ()
        cliques.append((tuple(some), scale * float(rng.exponential(3))))
    removed = []
    if rng.random() < 0.3:
        for v in names:
            if rng.random() < 0.5:
                some = rng.choice(labels[v], int(rng.integers(1, len(labels[v]))), replace=False)
                removed.append((v, tuple(some.tolist())))
    return Decomposition(tuple(groups), tuple(cliques), tuple(removed))


def random_matrix_leaf(rng, free, scale):
    reach = scale * 10.0 ** rng.integers(-3, 3)
    triangles = []
    for _ in range(int(rng.integers(0, 8)) if free >= 2 else 0):
        i, j, k = (int(v) for v in sorted(rng.choice(free + 1, 3, replace=False)))
        triangles.append((i, j, k, int(rng.choice([-1, 1])), int(rng.choice([-1, 1])), float(reach * rng.random())))
    return Semidefinite(tuple((reach * rng.normal(size=free + 1) * rng.integers(0, 2)).tolist()), tuple(triangles))


def random_proof(rng, mrf, scale):
    """Random steps that fit the energy; variables that are connected at first are taken to stay so."""
    near = [{int(j) for e in mrf.edges.tolist() if i in e for j in e} | {i} for i in range(mrf.n)]

    def steps_below(labels, near, depth):
        free = {v: own for v, own in labels.items() if len(own) > 1}
        kind = rng.integers(0, 5) if depth < 4 and free else 4
        if kind == 0:
            v = int(rng.choice(list(free)))
            own = list(free[v])
            cut = int(rng.integers(1, len(own)))
            rng.shuffle(own)
            cases = tuple(own[:cut]), tuple(own[cut:] + own[:1] * int(cut > 1 and rng.integers(0, 2)))  # cases may overlap
            below = [s for case in cases for s in steps_below(labels | {v: tuple(sorted(set(case)))}, near, depth + 1)]
            return [Branch(v, tuple(map(tuple, cases))), *below]
        if kind == 1:
            v = int(rng.choice(list(free)))
            rest = {u: own for u, own in free.items() if u != v}
            new = {u: ((near[u] | near[v]) - {v} if v in near[u] else near[u]) for u in rest}
            return [Eliminate((v,)), *steps_below(rest, new, depth + 1)]
        if kind == 2:
            groups = []
            for v in free:
                own = {v}
                while more := {u for w in own for u in near[w] if u in free} - own:
                    own |= more
                groups.append(tuple(sorted(own)))
            parts = tuple(dict.fromkeys(groups))
            below = [s for part in parts for s in steps_below({v: free[v] for v in part}, near, depth + 1)]
            return [Split(parts), *below]
        pairwise = all(len(own) == 2 for own in free.values()) and mrf.order <= 2 and depth == 0
        if kind == 3 and pairwise:
            return [random_matrix_leaf(rng, len(free), scale)]
        leaf = random_leaf(rng, free, scale)
        removed = dict(leaf.removed)
        left = {v: tuple(label for label in own if label not in removed.get(v, ())) for v, own in free.items()}
        return [leaf, *steps_below(left, near, depth + 1)] if removed else [leaf]

    return steps_below({v: tuple(range(c)) for v, c in enumerate(mrf.counts.tolist())}, near, 0)


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e20, 1e-30])
@pytest.mark.parametrize("infinite", [False, True], ids=["finite", "hard"])
def test_no_random_proof_proves_too_much(scale, infinite):
    rng = np.random.default_rng([int(infinite), round(math.log10(scale)) + 100])
    kinds, valid, removing = set[type](), 0, 0
    for _ in range(200):
        mrf = random_mrf(rng, scale, infinite)
        least, proof = exact_minimum(mrf), random_proof(rng, mrf, scale)
        try:
            verdict = check_proof(mrf, None, proof)
        except FormatError as error:
            assert infinite or "much larger" in str(error)  # or labels that the proof names are dropped
            continue
        valid += 1
        removing += any(step.below for step in proof if isinstance(step, Decomposition))
        kinds |= set(map(type, proof))
        assert least is None or (verdict.bound <= least and not verdict.infeasible)
    assert kinds >= {Branch, Eliminate, Split, Decomposition} and valid > 40 and (removing > 20 or infinite)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.3, 1e15])
def test_no_matrix_proves_too_much(scale):
    rng = np.random.default_rng(0)
    for _ in range(80):
        n = int(rng.integers(2, 7))
        factors = [((i, j), scale * rng.integers(-9, 10, (2, 2))) for j in range(n) for i in range(j)]
        mrf = Mrf([2] * n, [*factors, ((0,), scale * rng.integers(-9, 10, 2))])
        leaf = random_matrix_leaf(rng, n, scale)
        assert check_proof(mrf, None, [leaf]).bound <= exact_minimum(mrf)
        below = [random_matrix_leaf(rng, n - 1, scale), random_matrix_leaf(rng, n - 1, scale)]
        assert check_proof(mrf, None, [Branch(1, ((0,), (1,))), *below]).bound <= exact_minimum(mrf)


def test_no_penalties_of_neighbours_prove_too_much():
    """Whatever stands for infinite entries, the bound is one of sets without neighbours."""
    rng = np.random.default_rng(3)
    for _ in range(80):
        n = int(rng.integers(2, 7))
        edges = [(i, j) for j in range(n) for i in range(j) if rng.random() < 0.5]
        graph = WeightedGraph.from_edges(rng.integers(1, 9, n), edges)
        mrf = Mrf([2] * n, [((i,), [0.0, -w]) for i, w in enumerate(graph.weights)] + [(e, [[0, 0], [0, np.inf]]) for e in edges])
        penalties = tuple((i + 1, j + 1, float(20 * rng.normal())) for i, j in edges if rng.random() < 0.8)
        leaf = replace(random_matrix_leaf(rng, n, 5.0), penalties=penalties)
        verdicts = [check_proof(problem, None, [leaf]) for problem in (graph, mrf)]
        assert verdicts[0].bound == verdicts[1].bound <= exact_minimum(mrf)


def test_the_semidefinite_bound_is_the_formula(all_labellings):
    """Where the matrix is positive definite by far, the bound is the sum of the multipliers."""
    rng = np.random.default_rng(1)
    pairs = [(i, j) for j in range(5) for i in range(j)]
    qubo = Qubo.from_terms(rng.integers(-9, 10, 5), pairs, rng.integers(-9, 10, 10), offset=0.25)
    diagonal = (-40.0, -41.5, -42.0, -43.0, -44.0, -45.0)
    leaf = Semidefinite(diagonal, ((0, 2, 4, 1, -1, 0.75), (1, 2, 3, -1, -1, 0.5)))
    constant = Fraction(np.mean(qubo.energy(all_labellings(5))))  # of all spins the quadratic form has the mean zero
    exact = constant + sum(map(Fraction, diagonal)) - Fraction(1.25)
    stated = function.ExactFunction(qubo).function
    assert exact - Fraction(1, 10**9) <= semidefinite.semidefinite(stated, leaf) * stated.unit <= exact


def test_the_bound_of_a_decomposition_is_the_formula():
    """Two parts share a triangle of three labels; both take a table that the function has not."""
    rng = np.random.default_rng(2)
    mrf = Mrf([3] * 3, [((i, j), rng.integers(0, 9, (3, 3))) for i, j in ((0, 1), (1, 2), (0, 2))])
    first, second, alone = rng.integers(-5, 6, (1, 3, 3)), rng.integers(-5, 6, (1, 3, 3)), rng.integers(-5, 6, (2, 3))
    parts = Parts(np.array([[2, 1, 0]]), (((1, 0), first), ((2, 1), second))), Parts(np.array([[0], [2]]), (((0,), alone),))
    tables = {scope: table.copy() for scope, table in mrf.factors}
    tables[1, 2] -= first[0]
    tables[0, 1] -= second[0]
    chain = min(first[0, b, c] + second[0, a, b] for a, b, c in product(range(3), repeat=3))
    expected = chain + alone.min(1).sum() + sum(t.min() for t in tables.values()) + (-alone[0]).min() + (-alone[1]).min()
    stated = function.ExactFunction(mrf).function
    assert bounds.Decomposed(stated, Decomposition(parts)).bound * stated.unit == expected


def test_bounds_with_a_label_hold():
    """The bound with a label is at most the minimum of the function in which its variable has no other."""
    rng, seen = np.random.default_rng(4), 0
    for _ in range(60):
        mrf = random_mrf(rng, 1.0)
        stated = function.ExactFunction(mrf).function
        try:
            parts = bounds.Decomposed(stated, replace(random_leaf(rng, stated.labels, 0.1), removed=()))
        except FormatError:
            continue
        for v, own in parts.bounds_of(stated.labels).items():
            assert min(own) >= parts.bound
            for label, bound in zip(stated.labels[v], own, strict=True):
                fixed = stated.with_labels({v: (label,)})
                names = sorted(fixed.labels)
                every = (dict(zip(names, x, strict=True)) for x in product(*(fixed.labels[u] for u in names)))
                assert bound <= min(fixed.value([x.get(u, 0) for u in range(mrf.n)]) for x in every)
                seen += bound > parts.bound
    assert seen > 100


@pytest.mark.parametrize("bad", [0, 1])
def test_multipliers_near_infinite_entries_remove_nothing(bad):
    """Sums that are cut off at what stands for infinity depend on the order in which they are added up."""
    qubo = Qubo([-1.0, 1.0, 2.0], [(0, 1)], [0.5])
    size = float(function.ExactFunction(qubo).function.unit) * function.HARD
    for share in (1.0, 0.3, 0.1):
        alone, pair = np.full((1, 2), 0.74 * size * share), np.full((1, 2, 2), -0.5 * size * share)
        alone[0, bad], pair[0, bad] = 0.48 * size * share, 0
        part = Parts(np.array([[0, 1]]), (((0, 1), pair), ((0,), alone), ((0,), alone)))
        step = Decomposition((part,), removed=((0, (bad,)),))
        try:
            assert check_proof(qubo, [0, 0, 0], [step, LEAF]).bound <= -1
        except FormatError as error:
            assert "much larger" in str(error) and share > 0.1


def test_labels_that_cost_too_much_are_removed():
    """Of a chain of three the reduced costs remove all labels but one path, whose value the leaf below is."""
    mrf = Mrf([3] * 3, [((0,), [0, 5, 9]), ((2,), [4, 4, 0]), ((0, 1), 7 * (1 - np.eye(3))), ((1, 2), 7 * (1 - np.eye(3)))])
    least = exact_minimum(mrf)
    step = Decomposition(removed=((0, (1, 2)),))
    assert check_proof(mrf, None, [step, Eliminate((1, 2)), LEAF]).bound == min(least, 5)
    assert check_proof(mrf, None, [step, LEAF]).bound == 0


def test_cliques_prove_what_pairs_do_not():
    """Of a clique of five one node is in a set at most: with a price of its own, its bound is 1, that of its edges 2.5."""
    graph = WeightedGraph.from_edges(np.ones(5), [(i, j) for j in range(5) for i in range(j)])
    verdict = check_proof(graph, [0, 0, 1, 0, 0], [Decomposition(cliques=((tuple(range(5)), 1.0),))])
    assert verdict.optimal and verdict.value == verdict.bound == -1
    # A price that pairs do not pay for is charged, and so is a clique that is none.
    path = WeightedGraph.from_edges(np.ones(3), [(0, 1), (1, 2)])
    assert check_proof(path, [1, 0, 1], [Decomposition(cliques=(((0, 1, 2), 1.0),))]).bound == -2


def test_parts_are_raised_to_values_that_are_possible():
    """Each part's bound rises from -1.4 to -1, so that the sum is the minimum; the sum of bounds, -5.6, is far below it."""
    rows = [(3 * k + i, 3 * k + j) for k in range(4) for i, j in ((0, 1), (0, 2), (1, 2))]
    qubo = Qubo(np.full(12, -1.0), rows, np.ones(12))
    leaves = [Decomposition(cliques=(((3 * k, 3 * k + 1, 3 * k + 2), 0.8),)) for k in range(4)]
    split = Split(tuple((3 * k, 3 * k + 1, 3 * k + 2) for k in range(4)))
    labels = np.tile([1, 0, 0], 4)
    assert check_proof(qubo, labels, [split, *leaves]).optimal
    together = Decomposition(cliques=tuple(leaves[k].cliques[0] for k in range(4)))
    assert not check_proof(qubo, labels, [together]).optimal


def test_parts_share_infinite_entries():
    """On a chain of three, all labels but one path are forbidden: two parts that take those entries meet in the middle."""
    equal = np.where(np.eye(2), 0.0, np.inf)
    mrf = Mrf([2] * 3, [((0,), [0, 9]), ((2,), [7, 0]), ((0, 1), equal), ((1, 2), equal)])
    hard = np.where(np.eye(2), 0.0, np.nan)[None]
    ends = Parts(np.array([[0, 1, 2]]), (((0, 1), hard), ((1, 2), hard), ((0,), np.array([[0.0, 9]])), ((2,), np.array([[7.0, 0]]))))
    again = Parts(np.array([[0, 1]]), (((0, 1), hard),))
    assert check_proof(mrf, [0, 0, 0], [Decomposition((ends, again))]).optimal
    finite = Mrf([2] * 3, [((0, 1), np.eye(2))])
    with pytest.raises(FormatError, match="infinite"):
        check_proof(finite, [0, 0, 0], [Decomposition((again,))])


def test_labels_that_hard_constraints_exclude_are_proved_not_to_be():
    equal = np.where(np.eye(2), 0.0, np.inf)
    mrf = Mrf([2, 2], [((0, 1), equal), ((0, 1), np.where(np.eye(2), np.inf, 3.0))])
    verdict = check_proof(mrf, None, [Branch(0, ((0,), (1,))), LEAF, LEAF])
    assert verdict.infeasible and verdict.value is None and not verdict.optimal
    assert not check_proof(Mrf([2, 2], [((0, 1), equal)]), None, [LEAF]).infeasible


def test_the_top_of_a_network_excludes_labels():
    costs = [((0,), [5, 7])]
    assert check_proof(Mrf([2], costs, top=5), None, [LEAF]).infeasible
    assert not check_proof(Mrf([2], costs, top=6), None, [LEAF]).infeasible
    assert check_proof(Mrf([2], costs, top=6), [0], [LEAF]).optimal
    assert check_proof(Mrf([2], costs, top=-np.inf), None, [LEAF]).infeasible
    with pytest.raises(ModelError, match="top"):
        check_proof(Mrf([2], costs, top=6), [1], [LEAF])


def test_labels_must_fit():
    mrf = Mrf([2, 3], [((0, 1), [[0, 1, np.inf], [2, 3, 4]])])
    with pytest.raises(ModelError, match="hard constraint"):
        check_proof(mrf, [0, 2], [LEAF])
    with pytest.raises(ScopeError):
        check_proof(mrf, [0, 3], [LEAF])
    with pytest.raises(ShapeError):
        check_proof(mrf, [0], [LEAF])
    for labels in ([[0, 1]], [[0, 1], [1, 1]], np.zeros((0, 2), int), [[0], [0, 1]]):
        with pytest.raises(ShapeError):
            check_proof(mrf, labels, [LEAF])
    graph = WeightedGraph.from_edges([1.0, 1.0], [(0, 1)])
    with pytest.raises(ModelError, match="independent"):
        check_proof(graph, [1, 1], [LEAF])
    with pytest.raises(ModelError, match="complement"):
        check_proof(WeightedGraph.from_edges([1.0, 1.0], [(0, 1)], objective="clique"), [1, 0], [LEAF])
    with pytest.raises(ShapeError, match="0 or 1"):
        check_proof(graph, [0, 2], [LEAF])


def one_part(variables, *tables):
    return Decomposition((Parts(np.array(variables), tables),))


MRF = Mrf([2, 3, 2], [((0, 1), np.arange(6).reshape(2, 3)), ((1, 2), np.arange(6).reshape(3, 2))])
GOOD = Semidefinite((-9.0,) * 4, ((0, 1, 2, 1, -1, 0.5),))
TREES = {
    "nothing": [],
    "a subtree is missing": [Branch(0, ((0,), (1,))), LEAF],
    "a subtree too many": [Branch(0, ((0,), (1,))), LEAF, LEAF, LEAF],
    "a label is missing": [Branch(1, ((0,), (1,))), LEAF, LEAF],
    "a label too many": [Branch(0, ((0,), (1, 2))), LEAF, LEAF],
    "no cases": [Branch(0, ()), LEAF],
    "an empty case": [Branch(0, ((0, 1), ())), LEAF, LEAF],
    "a case that is above": [Branch(1, ((0, 1), (2,))), Branch(1, ((0,), (1, 2))), LEAF, LEAF, LEAF],
    "fixed above": [Branch(0, ((0,), (1,))), Branch(0, ((0,), (1,))), LEAF, LEAF, LEAF],
    "no such variable": [Branch(3, ((0,), (1,))), LEAF, LEAF],
    "a negative variable": [Branch(-1, ((0,), (1,))), LEAF, LEAF],
    "half a variable": [Branch(0.5, ((0,), (1,))), LEAF, LEAF],
    "eliminated twice": [Eliminate((0, 0)), LEAF],
    "eliminated, then a branch": [Eliminate((0,)), Branch(0, ((0,), (1,))), LEAF, LEAF],
    "connected parts": [Split(((0,), (1, 2))), LEAF, LEAF],
    "parts without a variable": [Split(((0, 1),)), LEAF],
    "parts with one twice": [Split(((0, 1, 2), (2,))), LEAF, LEAF],
    "an empty part": [Split(((0, 1, 2), ())), LEAF, LEAF],
    "no parts": [Split(()), LEAF],
    "no such part variable": [one_part([[3]], ((0,), np.zeros((1, 2))))],
    "one twice in a part": [one_part([[0, 0]], ((0, 1), np.zeros((1, 2, 2))))],
    "unlike parts": [one_part([[0], [1]], ((0,), np.zeros((2, 2))))],
    "a table of another shape": [one_part([[0]], ((0,), np.zeros((1, 3))))],
    "a table too few": [one_part([[0], [2]], ((0,), np.zeros((1, 2))))],
    "no such position": [one_part([[0]], ((1,), np.zeros((1, 2))))],
    "a negative position": [one_part([[0]], ((-1,), np.zeros((1, 2))))],
    "a position twice": [one_part([[0, 2]], ((0, 0), np.zeros((1, 2, 2))))],
    "no position": [one_part([[0]], ((), np.zeros(1)))],
    "multipliers far too large": [one_part([[0]], ((0,), np.array([[1e9, 0]])))],
    "infinite multipliers": [one_part([[0]], ((0,), np.array([[np.inf, 0]])))],
    "entries that are not infinite": [one_part([[0]], ((0,), np.array([[np.nan, 0]])))],
    "all labels removed": [Decomposition(removed=((0, (0, 1)),)), LEAF],
    "no labels removed": [Decomposition(removed=((0, ()),)), LEAF],
    "a label removed that is not there": [Decomposition(removed=((0, (2,)),)), LEAF],
    "a variable removed twice": [Decomposition(removed=((1, (0,)), (1, (1,)))), LEAF],
    "a variable removed that is not there": [Decomposition(removed=((3, (0,)),)), LEAF],
    "a label removed that is used below": [Decomposition(removed=((1, (0,)),)), Branch(1, ((0,), (1, 2))), LEAF, LEAF],
    "nothing below labels that are removed": [Decomposition(removed=((1, (0,)),))],
    "an infinite entry made of a finite one": [
        Decomposition(tuple(Parts(np.array([[0]]), (((0,), np.array([[number, 0.0]])),)) for number in (-300.0, np.nan)))
    ],
    "a clique of three labels": [Decomposition(cliques=(((0, 1), 1.0),))],
    "a clique with a node twice": [Decomposition(cliques=(((0, 0), 1.0),))],
    "a clique of none": [Decomposition(cliques=(((5,), 1.0),))],
    "a negative price": [Decomposition(cliques=(((0, 2), -1.0),))],
    "a price that is NaN": [Decomposition(cliques=(((0, 2), math.nan),))],
    "a price that is text": [Decomposition(cliques=(((0, 2), "x"),))],
    "a matrix for three labels": [GOOD],
    "text": ["trust me"],
    "cases that share out nothing": [Branch(0, ((0, 1), (0,))), LEAF, LEAF],
    "no list of variables": [Eliminate(5), LEAF],
    "lists of lists": [Eliminate(([0],)), LEAF],
    "a list for an array": [Decomposition((Parts([[0]], (((0,), [[0.0, 0.0]]),)),))],
    "a clique without a price": [Decomposition(cliques=((0, 1),))],
    "a removal without labels": [Decomposition(removed=(1,)), LEAF],
    "no squares": [Semidefinite(None, ())],
    "an empty penalty": [replace(GOOD, penalties=((),))],
}


@pytest.mark.parametrize("forged", TREES.values(), ids=TREES)
def test_forged_trees_are_rejected(forged):
    with pytest.raises(FormatError):
        check_proof(MRF, [0, 0, 0], forged)


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
    "a penalty of a node that does not exist": replace(GOOD, penalties=((1, 4, 0.5),)),
    "a penalty of the constant": replace(GOOD, penalties=((0, 1, 0.5),)),
    "a penalty of nodes that are not in order": replace(GOOD, penalties=((2, 1, 0.5),)),
    "a penalty that is infinite": replace(GOOD, penalties=((1, 2, math.inf),)),
    "a triangle is short": replace(GOOD, triangles=((0, 1, 2, 1, -1),)),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_forged_matrices_are_rejected(forged):
    qubo = Qubo([1, -2, 3], [(0, 1), (0, 2), (1, 2)], [-4, 5, 6])
    assert check_proof(qubo, [0, 0, 0], [GOOD]).leaves == 1
    with pytest.raises(FormatError, match=r"leaf has|multipliers"):
        check_proof(qubo, [0, 0, 0], [forged])


def test_a_matrix_is_for_pairs_alone():
    with pytest.raises(FormatError, match="two variables"):
        check_proof(Mrf([2] * 3, [((0, 1, 2), np.arange(8).reshape(2, 2, 2))]), [0, 0, 0], [GOOD])


def test_tables_too_large_to_be_checked_are_refused():
    n = 30
    star = Qubo(np.zeros(n), [(0, j) for j in range(1, n)], np.ones(n - 1))
    assert check_proof(star, np.zeros(n), [Eliminate(tuple(range(1, n))), LEAF]).optimal
    with pytest.raises(FormatError, match="too large"):
        check_proof(star, np.zeros(n), [Eliminate((0,)), LEAF])
    wide = one_part([list(range(n))], *(((0, j), np.ones((1, 2, 2))) for j in range(1, n)))
    assert check_proof(star, np.zeros(n), [wide]).leaves == 1
    every = one_part([list(range(n))], *(((i, j), np.zeros((1, 2, 2))) for j in range(n) for i in range(j)))
    with pytest.raises(FormatError, match="too large"):
        check_proof(star, np.zeros(n), [every])


@pytest.mark.slow
def test_eliminations_of_many_large_tables_are_refused():
    """Each table is small enough, not all together: forged parts may take any tables."""
    left, right = 60, 20
    tables = tuple(((i, left + j), np.zeros((1, 2, 2))) for i in range(left) for j in range(right))
    part = Parts(np.arange(left + right)[None], tables)
    with pytest.raises(FormatError, match="too large"):
        check_proof(Qubo(np.zeros(left + right), [], []), None, [Decomposition((part,))])
    with pytest.raises(FormatError, match="too large"):
        check_proof(Qubo(np.zeros(6000), [], []), None, [Decomposition(cliques=((tuple(range(6000)), 1.0),))])


def test_a_split_of_nothing_is_no_tree():
    for proof in ([Split(())], [Eliminate((0,)), Split(())], [Branch(0, ((0,), (1,))), Split(()), LEAF]):
        with pytest.raises(FormatError):
            check_proof(Qubo([1.0], [], []), [0], proof)


def test_hard_constraints_propagate_along_any_chain():
    n, equal = 1100, np.where(np.eye(2), 0.0, np.inf)
    chain = [((i, i + 1), equal) for i in range(n - 1)]
    assert check_proof(Mrf([2] * n, [((0,), [0, np.inf]), *chain]), np.zeros(n, int), [LEAF]).optimal


@pytest.mark.parametrize("scale", [1.7e308, 1e-310])
def test_coefficients_of_any_size_are_taken(scale):
    assert check_proof(Qubo([scale, -scale], [], []), [0, 1], [LEAF]).optimal
    leaf = Semidefinite((-2.5e291, 0.0, 0.0), ())
    assert check_proof(Qubo([1.0, -2.0], [(0, 1)], [1.0]), [0, 1], [leaf]).bound <= -2


def test_the_checker_uses_nothing_of_the_solver():
    own = {"check", "bounds", "function", "semidefinite", "steps"}
    allowed = {f"blocklp.problems.proofs.{name}" for name in own} | {"blocklp.errors"}
    allowed |= {f"blocklp.problems.{kind}.instance" for kind in ("qpbo", "mrf", "mis")}
    allowed |= {"blocklp.problems.discrete.given"}  # which refuses what is none of them
    for module in (check, bounds, function, semidefinite, steps):
        tree = ast.parse(Path(module.__file__).read_text())
        used = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {name for name in used if name.startswith("blocklp")} <= allowed


@pytest.mark.parametrize("given", [np.eye(3), None, networkx.path_graph(3)])
def test_what_is_no_problem_is_refused(given, tmp_path):
    for call in (
        lambda: check_proof(given, None, [LEAF]),
        lambda: prove_minimum(given, None),
        lambda: write_proof(tmp_path / "a.gz", given, None, [LEAF]),
    ):
        with pytest.raises(
            ModelError, match=r"the instance is .*Qubo\.from_matrix.*; or an Mrf.*WeightedGraph\.from_networkx\(graph\)"
        ):
            call()


def test_checking_imports_no_torch():
    code = (
        "import sys; from blocklp.problems.qpbo import Qubo; from blocklp.problems.proofs import Decomposition, check_proof; "
        "assert check_proof(Qubo([1.0], [], []), [0], [Decomposition()]).optimal; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_proofs_deeper_than_the_stack_are_checked():
    n = 1200
    qubo = Qubo(np.ones(n), np.zeros((0, 2), dtype=int), [])
    proof = [s for v in range(n) for s in (Branch(v, ((1,), (0,))), LEAF)]
    assert check_proof(qubo, np.zeros(n), [*proof, LEAF]).optimal
