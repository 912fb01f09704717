"""Triangle inequalities: what is violated, what fixed spins leave of them, and bounds that start from them."""

from itertools import combinations, product

import numpy as np

import blocklp as bl
from blocklp.problems.discrete.exact import ExactRun, ExactSettings
from blocklp.problems.qpbo.convex_search import ConvexSearch, search_convex
from blocklp.problems.qpbo.convexify import Spins, convexified
from blocklp.problems.qpbo.triangles import SIGNS, VIOLATED, Triangles

from .test_exact import random_qubo


def spins_of(n):
    """All points of n spins after the constant one."""
    return np.array([(1, *s) for s in product((-1, 1), repeat=n)])


def slack(triangles, points):
    """What the left sides of the inequalities are at points, ``(points, inequalities)``."""
    first, second = triangles.pairs
    return 1 + (triangles.signs * points[:, first] * points[:, second]).sum(-1)


def some_triangles(rng, n, count):
    nodes = np.array([sorted(rng.choice(n + 1, 3, replace=False)) for _ in range(count)], dtype=np.int32)
    return Triangles(nodes, SIGNS[rng.integers(0, 4, count)], rng.random(count))


def test_all_inequalities_hold_for_spins():
    nodes = np.repeat(np.array(list(combinations(range(6), 3)), dtype=np.int32), 4, axis=0)
    every = Triangles(nodes, np.tile(SIGNS, (len(nodes) // 4, 1)), np.ones(len(nodes)))
    values = slack(every, spins_of(5))
    assert values.min() == 0 and values.max() == 4


def test_the_most_violated_are_added_once():
    rng = np.random.default_rng(0)
    for n in (3, 5, 8, 20):
        x = rng.uniform(-1, 1, (n, n))
        x = (x + x.T) / 2
        np.fill_diagonal(x, 1)
        expected = {}
        for (i, j, k), (a, b, c) in product(combinations(range(n), 3), SIGNS.tolist()):
            value = 1 + a * x[i, j] + b * x[i, k] + c * x[j, k]
            if value < -VIOLATED:
                expected[i, j, k, a, b, c] = value
        for count in (1, 5, len(expected) // 2):
            some = Triangles.none().with_violated(x, count)
            listed = [(*nodes, *signs) for nodes, signs in zip(some.nodes.tolist(), some.signs.tolist(), strict=True)]
            assert sorted(listed) == sorted(sorted(expected, key=expected.get)[:count])
        more = some.with_violated(x, 1000)
        listed = [(*nodes, *signs) for nodes, signs in zip(more.nodes.tolist(), more.signs.tolist(), strict=True)]
        assert len(listed) == len(set(listed)) and set(listed) == set(expected)
        assert not more.prices.any()
        assert more.with_violated(x, 1000) is more


def test_fixed_spins_leave_the_same_slack():
    rng = np.random.default_rng(1)
    left = 0
    for _ in range(50):
        n = int(rng.integers(3, 8))
        triangles = some_triangles(rng, n, 12)
        fixed = np.where(rng.random(n) < 0.4, rng.choice([-1, 1], n), 0).astype(np.int8)
        free = np.flatnonzero(fixed == 0)
        folded = triangles.fixed(fixed)
        assert (np.diff(folded.nodes, axis=1) > 0).all()
        # Those with two nodes among the known ones are left out: they say nothing, or bound a single spin.
        kept = (np.isin(triangles.nodes, free + 1).sum(1)) >= 2
        assert np.array_equal(folded.prices, triangles.prices[kept])
        for inner in spins_of(len(free)):
            whole = np.concatenate([[1], fixed])
            whole[free + 1] = inner[1:]
            assert np.array_equal(slack(folded, inner[None])[0], slack(triangles, whole[None])[0, kept])
        left += len(folded.prices)
    assert left > 100


def test_a_price_is_charged_and_paid():
    rng = np.random.default_rng(2)
    for _ in range(30):
        n = int(rng.integers(2, 7))
        coupling = rng.integers(-20, 21, (n + 1, n + 1)) / 8
        coupling = coupling + coupling.T
        triangles = some_triangles(rng, n, 10)
        paid = triangles.paid(coupling)
        s = spins_of(n)
        given, less = (np.einsum("ki,ij,kj->k", s, c, s) for c in (coupling, paid.coupling))
        assert np.allclose(given - less + paid.price, slack(triangles, s) @ triangles.prices, atol=1e-12)
        assert (less - paid.price - paid.error <= given).all()


def test_bounds_that_start_from_others_are_valid_and_hardly_weaker(all_labellings):
    rng = np.random.default_rng(3)
    gained = 0
    for _ in range(40):
        qubo = random_qubo(rng, most=9)
        given = Spins.of(qubo)
        if qubo.n < 4:
            continue
        above = convexified(given, 5)
        fixed = np.zeros(qubo.n, dtype=np.int8)
        fixed[rng.choice(qubo.n, 2, replace=False)] = rng.choice([-1, 1], 2)
        part = given.fixed(fixed)
        s = spins_of(len(part.coupling) - 1)
        true = np.einsum("ki,ij,kj->k", s, part.coupling, s) + part.constant
        for rounds in (0, 1, 8):
            under = convexified(part, rounds, begin=above.multipliers.fixed(fixed))
            below = np.einsum("ki,ij,kj->k", s, under.spins.coupling, s) + under.spins.constant
            size = np.abs(part.coupling).sum()
            assert (below <= true + 1e-13 * size).all()
            assert np.linalg.eigvalsh(under.spins.coupling).min() >= -1e-12 * size
            assert under.bound <= true.min()
        assert under.bound >= above.bound - 0.02 * size  # fixings only raise the minimum
        gained += under.bound > above.bound + 0.01 * size
    assert gained > 5


def test_searches_of_small_budgets_find_minima(all_labellings):
    rng = np.random.default_rng(4)
    for trial in range(60):
        n = int(rng.integers(4, 10))
        coupling = np.triu(rng.integers(-9, 10, (n + 1, n + 1)), 1) / 8
        if trial % 2:  # all spins may be turned
            coupling[0] = 0
        given = Spins(coupling + coupling.T, 0.0)
        s = spins_of(n)
        least = np.einsum("ki,ij,kj->k", s, given.coupling, s).min()
        run = ExactRun(bl.Deadline(), None, settings=ExactSettings(nodes_below=int(rng.choice([1, 3, 40, 20_000]))))
        result, spins = search_convex(given, 0.25, np.ones(n, dtype=np.int8), run)
        whole = np.concatenate([[1], spins])
        assert result.proven and whole @ given.coupling @ whole == least
        assert result.bound <= least


def test_one_spin_is_fixed_where_all_may_be_turned():
    coupling = np.zeros((5, 5))
    coupling[1:, 1:] = 1 - np.eye(4)
    start = np.ones(4, dtype=np.int8)
    turned = ConvexSearch(Spins(coupling, 0.0), 1.0, start, ExactSettings()).root().state
    assert np.count_nonzero(turned.fixed) == 1
    coupling[0, 1] = coupling[1, 0] = 1
    kept = ConvexSearch(Spins(coupling, 0.0), 1.0, start, ExactSettings()).root().state
    assert not kept.fixed.any()
