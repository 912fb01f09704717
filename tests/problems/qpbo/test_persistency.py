from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

from blocklp.errors import NonFiniteError, ShapeError
from blocklp.problems.mis import read_graph
from blocklp.problems.qpbo import Qubo, persistency, read_qubo, verified_persistency


def random_qubo(rng, kind):
    n = int(rng.integers(1, 8))
    pairs = np.array(list(combinations(range(n), 2)), dtype=np.int64).reshape(-1, 2)
    pairs = pairs[rng.random(len(pairs)) < rng.random()]

    def draw(k):
        return {
            "integer": lambda: rng.integers(-3, 4, k).astype(float),
            "tenths": lambda: rng.integers(-3, 4, k) * 0.1,
            "normal": lambda: rng.normal(size=k),
            "scattered": lambda: rng.normal(size=k) * 10.0 ** rng.integers(-12, 12, k),
            "huge": lambda: rng.integers(-2, 3, k) * 2.0 ** rng.integers(960, 1000, k),
            "tiny": lambda: rng.integers(-2, 3, k) * 2.0 ** rng.integers(-1070, -1040, k),
        }[kind]()

    # Strong unary terms now and then, so that something is persistent.
    return Qubo.from_terms(draw(n) * rng.choice([1, 4]), pairs, draw(len(pairs)))


def exact_energies(qubo, y):
    """Rational values; also of coefficients whose float sums would overflow or round."""
    linear, quadratic = [Fraction(c) for c in qubo.linear], [Fraction(p) for p in qubo.quadratic]
    return [
        sum(c for c, v in zip(linear, labels, strict=True) if v)
        + sum(p for p, (i, j) in zip(quadratic, qubo.edges.tolist(), strict=True) if labels[i] and labels[j])
        for labels in y.tolist()
    ]


@pytest.mark.parametrize("kind", ["integer", "tenths", "normal", "scattered", "huge", "tiny"])
def test_fixed_labels_are_those_of_minimisers_whatever_the_point(kind, all_labellings):
    rng = np.random.default_rng(5)
    fixed = 0
    for _ in range(150):
        qubo = random_qubo(rng, kind)
        y = all_labellings(qubo.n)
        energies = exact_energies(qubo, y)
        minimisers = y[[energy == min(energies) for energy in energies]]
        worst = y[energies.index(max(energies))]
        for point in (minimisers[0], worst, 1 - minimisers[0], rng.random(qubo.n), rng.integers(0, 2, qubo.n)):
            found = verified_persistency(qubo, point)
            weak, strong = found.weak >= 0, found.strong >= 0
            assert (minimisers[:, weak] == found.weak[weak]).all(axis=1).any()
            assert (minimisers[:, strong] == found.strong[strong]).all()
            assert (found.weak[strong] == found.strong[strong]).all()
            fixed += weak.sum()
    assert fixed > 150


def passes(qubo, inside, labels, strict):
    """Tell whether h >= 0 (strict: > 0 off zero) by enumeration, with h as the module's text defines it."""
    sign = 1 - 2 * labels
    slack = qubo.linear * sign
    products = []
    for (i, j), p in zip(qubo.edges.tolist(), qubo.quadratic, strict=True):
        for a, b in ((i, j), (j, i)):
            slack[a] += sign[a] * p * labels[b] if b in inside else min(0, sign[a] * p)
        if i in inside and j in inside:
            products.append((i, j, min(0, sign[i] * sign[j] * p)))
    values = [
        sum(slack[i] for i in flipped) + sum(d for i, j, d in products if i in flipped and j in flipped)
        for size in range(1, len(inside) + 1)
        for flipped in combinations(inside, size)
    ]
    return all(value > 0 for value in values) if strict else all(value >= 0 for value in values)


def test_result_is_the_largest_certified_subset_on_integer_data():
    rng = np.random.default_rng(6)
    for _ in range(150):
        n = 5
        pairs = [pair for pair in combinations(range(n), 2) if rng.random() < 0.7]
        qubo = Qubo.from_terms(rng.integers(-6, 7, n), pairs, rng.integers(-4, 5, len(pairs)))
        labels = rng.integers(0, 2, n)
        found = verified_persistency(qubo, labels)
        for strict, result in ((False, found.weak), (True, found.strong)):
            certified = [
                inside for size in range(1, n + 1) for inside in combinations(range(n), size) if passes(qubo, inside, labels, strict)
            ]
            assert set(np.flatnonzero(result >= 0)) == set().union(*certified)


def test_a_chain_falls_from_one_end():
    # Only the first variable wants to leave the labels 1, and each next one only holds because of the one before.
    n = 2000
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    linear = np.bincount(edges.ravel(), minlength=n) + 1.0
    qubo = Qubo.from_terms(linear, edges, np.full(n - 1, -2.0))
    assert (verified_persistency(qubo, np.ones(n)).weak == -1).all()
    assert (verified_persistency(qubo, np.zeros(n)).strong == 0).all()


def test_a_tie_is_weak_and_not_strong():
    # Minimisers are 00 and 11.
    found = verified_persistency(Qubo.from_terms([1, 1], [(0, 1)], [-2]), [1, 1])
    assert found.weak.tolist() == [1, 1]
    assert found.strong.tolist() == [-1, -1]


def test_a_small_joint_margin_is_strong():
    # h(t) = 1 at t = 11 although both flips share one coupling: the margin must not ask for 2.
    found = verified_persistency(Qubo.from_terms([1, 1], [(0, 1)], [-1]), [0, 0])
    assert found.strong.tolist() == [0, 0]


def test_points_between_the_thirds_are_no_candidates():
    qubo = Qubo.from_terms([1, 1, -1, -1], [], [])
    assert verified_persistency(qubo, [0.3, 0.4, 0.6, 0.7]).strong.tolist() == [0, -1, -1, 1]


def test_hub_with_more_charge_than_one_arc_holds():
    # All leaves charge the hub at once; the sum of their couplings is far beyond int32.
    leaves = 3000
    edges = [(0, leaf) for leaf in range(1, leaves + 1)]
    linear = np.r_[4e9 * leaves, np.full(leaves, 0.5)]
    found = verified_persistency(Qubo.from_terms(linear, edges, np.full(leaves, -3e9)), np.zeros(leaves + 1))
    assert (found.strong == 0).all()


def test_wrong_points_are_refused_by_name():
    qubo = Qubo.from_terms([0, 0], [], [])
    with pytest.raises(ShapeError, match=r"shape \(3,\)"):
        verified_persistency(qubo, np.zeros(3))
    with pytest.raises(NonFiniteError, match=r"y\[1\] is nan"):
        verified_persistency(qubo, [0, np.nan])


def roof_dual_labels(qubo):
    """Strong and weak labels from max-flow, -1 where there is none."""
    pytest.importorskip("thinqpbo")
    from bench.rivals import flow_graph

    graph = flow_graph(qubo)
    graph.solve()
    strong = np.array([graph.get_label(node) for node in range(qubo.n)])
    graph.compute_weak_persistencies()
    return strong, np.array([graph.get_label(node) for node in range(qubo.n)])


# Numbers of strong and weak roof-dual persistencies as published with the instances.
@pytest.mark.parametrize(
    ("file", "strong", "weak"),
    [
        ("qubo/bqp50-1.sparse", 46, 50),
        ("qubo/bqp50-2.sparse", 45, 50),
        ("qubo/bqp50-3.sparse", 50, 50),
        ("qubo/bqp50-4.sparse", 48, 50),
        ("qubo/bqp50-5.sparse", 49, 50),
        ("qubo/bqp100-5.sparse", 2, 4),
        ("qubo/be250.1.sparse", 1, 1),
        ("qubo/gka4b.sparse", 0, 1),
        ("mis/col/anna.col", 75, 119),
        ("mis/mwvc/DBN_15.mwvc", 483, 483),
        ("mis/mwvc/Segmentation_13.mwvc", 882, 882),
        ("mis/mwvc/MMAP_Grids_20.mwvc", 26, 26),
    ],
)
def test_every_roof_dual_persistency_is_verified(shared_qpbo, file, strong, weak):
    path = shared_qpbo / file
    qubo = read_qubo(path) if path.suffix == ".sparse" else read_graph(path).to_qubo()
    strong_labels, weak_labels = roof_dual_labels(qubo)
    found = verified_persistency(qubo, np.where(weak_labels < 0, 0.5, weak_labels))
    assert ((found.weak >= 0).sum(), (found.strong >= 0).sum()) == (weak, strong)
    np.testing.assert_array_equal(found.weak, weak_labels)
    found = verified_persistency(qubo, np.where(strong_labels < 0, 0.5, strong_labels))
    np.testing.assert_array_equal(found.strong, strong_labels)


# Proven optima of the library.
@pytest.mark.parametrize(("name", "optimum"), [("bqp50-1", -2098), ("bqp50-2", -3702), ("bqp50-3", -4626), ("gka2a", -6063)])
def test_persistency_alone_proves_the_optimum(shared_qpbo, name, optimum):
    qubo = read_qubo(shared_qpbo / "qubo" / f"{name}.sparse")
    weak = verified_persistency(qubo, roof_dual_labels(qubo)[1]).weak
    assert (weak >= 0).all()
    assert qubo.energy(weak) == optimum


def test_enumerated_points_of_a_frustrated_triangle_fix_nothing():
    # Max-cut of a triangle: six minimisers and no label common to a pair of flips.
    qubo = Qubo.max_cut(3, [(0, 1), (0, 2), (1, 2)], [1, 1, 1])
    for point in product((0, 1), repeat=3):
        assert (verified_persistency(qubo, point).weak == -1).all()


@pytest.mark.parametrize("together", [1, 40, 10**6])
def test_functions_that_share_a_flow_keep_their_own_scale(together):
    """Of very different magnitudes, in one flow or several, some without pairs: the labels that each has alone."""
    rng = np.random.default_rng(9)
    kinds = rng.permutation(["integer", "tenths", "normal", "scattered", "huge", "tiny"] * 12)
    qubos = [random_qubo(rng, kind) for kind in kinds]
    points = [rng.choice([0.0, 0.5, 1.0], qubo.n) for qubo in qubos]
    assert min(len(qubo.edges) for qubo in qubos) == 0
    found = persistency.verified_persistencies(qubos, points, together)
    fixed = 0
    for qubo, point, mine in zip(qubos, points, found, strict=True):
        alone = verified_persistency(qubo, point)
        assert mine.weak.tolist() == alone.weak.tolist() and mine.strong.tolist() == alone.strong.tolist()
        fixed += (mine.weak >= 0).sum()
    assert fixed > 50
    assert persistency.verified_persistencies([], []) == []
