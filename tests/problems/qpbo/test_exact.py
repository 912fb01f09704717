"""Exact minimisation against enumeration and the manifest's optima."""

from itertools import product

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.problems.discrete.elimination import cheapest_order
from blocklp.problems.discrete.exact import ExactSettings
from blocklp.problems.qpbo import Qubo, convexify, read_qubo, solve_qpbo, solve_qpbo_exactly
from blocklp.problems.qpbo.convex_search import _Call
from blocklp.problems.qpbo.convexify import Spins, convexified
from blocklp.problems.qpbo.presolve import fold, minimise_by_elimination, presolve

from ..interrupts import interrupt

pytest.importorskip("numba")


def random_qubo(rng, most=13):
    n = int(rng.integers(1, most + 1))
    density = rng.choice([0.2, 0.5, 1.0])
    pairs = np.array([(i, j) for i in range(n) for j in range(i) if rng.random() < density], dtype=np.int64).reshape(-1, 2)
    kinds = [lambda k: rng.integers(-9, 10, k), lambda k: rng.normal(size=k) * 10, lambda k: rng.integers(-3, 4, k) * 0.5]
    draw = kinds[rng.integers(3)]
    return Qubo.from_terms(draw(n), pairs, draw(len(pairs)), offset=float(draw(1)[0]))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("searched", [False, True])
def test_random_functions_against_enumeration(seed, searched, all_labellings):
    # Without elimination, which would solve all of these.
    settings = ExactSettings(tables_at_once=0, tables=0) if searched else ExactSettings()
    rng = np.random.default_rng(seed)
    for _ in range(40 if searched else 150):
        qubo = random_qubo(rng)
        least = qubo.energy(all_labellings(qubo.n)).min()
        found = solve_qpbo_exactly(qubo, settings=settings)
        assert found.proven and found.reason == "The labelling is optimal."
        assert qubo.energy(found.labels.numpy()) == pytest.approx(found.energy, abs=1e-12)
        assert found.energy == pytest.approx(least, abs=1e-7)
        assert least - 1e-5 <= found.bound <= least


def test_an_exact_result_is_a_table_of_its_value_and_first_labels(all_labellings):
    qubo = random_qubo(np.random.default_rng(4))
    found = solve_qpbo_exactly(qubo)
    least = qubo.energy(all_labellings(qubo.n)).min()
    assert qubo.n > 8 and f"... {qubo.n - 8} more" in repr(found)
    assert "proven" in repr(found) and f"{least:.6g}" in repr(found) and found.reason in repr(found)
    assert found._repr_html_().count("<table>") == 2 and "tensor" not in found._repr_html_()


def magnitude(qubo):
    return np.abs(qubo.linear).sum() + np.abs(qubo.quadratic).sum()


def test_minimising_out_a_variable_never_raises_the_magnitude():
    # Every variable but the first has three neighbours or more, so that it alone goes.
    rest = [(i, j) for i in range(1, 6) for j in range(i) if j > 0]
    for alone, a, b in product(range(-7, 8), repeat=3):
        linear, quadratic = np.zeros(6), np.full(len(rest), 100.0)
        linear[0] = alone
        (part,) = presolve(Qubo.from_terms(linear, [(0, 1), (0, 2), *rest], [a, b, *quadratic])).parts
        assert magnitude(part) - quadratic.sum() <= abs(alone) + abs(a) + abs(b)


def test_presolve_keeps_the_minimum_and_lifts(all_labellings):
    rng = np.random.default_rng(7)
    gone = 0
    for _ in range(1000):
        qubo = random_qubo(rng, most=9)
        reduced = presolve(qubo)
        gone += len(reduced.lift.rules)
        minima = []
        for part in reduced.parts:
            every = all_labellings(part.n)
            minima.append(every[part.energy(every).argmin()].astype(np.int8))
        value = reduced.constant + sum(float(p.energy(y)) for p, y in zip(reduced.parts, minima, strict=True))
        least = qubo.energy(all_labellings(qubo.n)).min()
        # Integers stay small enough for exact sums.
        assert sum(map(magnitude, reduced.parts)) <= magnitude(qubo) + 1e-9
        assert value == pytest.approx(least, abs=1e-9)
        assert qubo.energy(reduced.lift(minima)) == pytest.approx(least, abs=1e-9)
    assert gone > 1000


def test_folding_keeps_values(all_labellings):
    rng = np.random.default_rng(8)
    for _ in range(100):
        qubo = random_qubo(rng, most=7)
        labels = rng.integers(-1, 2, qubo.n).astype(np.int8)
        rest, free, constant = fold(qubo, labels)
        for y in all_labellings(len(free)):
            whole = labels.copy()
            whole[free] = y
            assert qubo.energy(whole) == pytest.approx(constant + (0 if rest is None else rest.energy(y)), abs=1e-9)


def test_elimination_finds_minima(all_labellings):
    rng = np.random.default_rng(9)
    for _ in range(100):
        qubo = random_qubo(rng, most=9)
        labels = minimise_by_elimination(qubo, cheapest_order([2] * qubo.n, qubo.edges), bl.Deadline())
        assert qubo.energy(labels) == pytest.approx(qubo.energy(all_labellings(qubo.n)).min(), abs=1e-9)


def test_underestimators_are_below_and_convex(all_labellings):
    rng = np.random.default_rng(10)
    for _ in range(30):
        qubo = random_qubo(rng, most=8)
        given = Spins.of(qubo)
        fixed = np.where(rng.random(qubo.n) < 0.3, rng.choice([-1, 1], qubo.n), 0).astype(np.int8)
        if not (fixed == 0).any():
            continue
        part = given.fixed(fixed)
        under = convexified(part, 4)
        s = np.column_stack([np.ones(2 ** (len(part.coupling) - 1)), 2 * all_labellings(len(part.coupling) - 1) - 1])
        true = np.einsum("ki,ij,kj->k", s, part.coupling, s) + part.constant
        below = np.einsum("ki,ij,kj->k", s, under.spins.coupling, s) + under.spins.constant
        assert (below <= true + 1e-12 * np.abs(true).max()).all()
        assert under.bound <= true.min()
        assert np.linalg.eigvalsh(under.spins.coupling).min() >= -1e-12 * np.abs(part.coupling).max()


@pytest.mark.parametrize(
    "name, optimum",
    [("bqp50-1", -2098), ("bqp50-3", -4626), ("bqp100-5", -9083), ("gka2b", -121), ("gka3a", -6037), ("gka2c", -6213)],
)
def test_optima_of_the_library(shared_qpbo, name, optimum):
    found = solve_qpbo_exactly(read_qubo(shared_qpbo / "qubo" / f"{name}.sparse"))
    assert (found.energy, found.bound, found.proven) == (optimum, optimum, True)


def test_limits_return_a_bracket(shared_qpbo):
    qubo = read_qubo(shared_qpbo / "qubo" / "gka5d.sparse")
    found = solve_qpbo_exactly(qubo, time_limit=1e-3)
    assert found.status is bl.Status.TIME_LIMIT and not found.proven
    assert found.bound <= -11626 <= found.energy
    assert qubo.energy(found.labels.numpy()) == found.energy
    stopped = solve_qpbo_exactly(qubo, callback=lambda event: True)
    assert stopped.status is bl.Status.INTERRUPTED and not stopped.proven
    assert -11626 * 1.03 <= stopped.bound <= -11626 == stopped.energy


def test_an_interrupt_returns_a_bracket(shared_qpbo):
    qubo = read_qubo(shared_qpbo / "qubo" / "gka5d.sparse")

    def interrupt(event):
        raise KeyboardInterrupt

    found = solve_qpbo_exactly(qubo, callback=interrupt)
    assert found.status is bl.Status.INTERRUPTED
    assert found.bound <= -11626 <= found.energy


@pytest.mark.parametrize("owner, name, after", [(convexify, "_factors", 400), (convexify, "_regularised", 2), (_Call, "_search", 0)])
def test_an_interrupt_keeps_the_underestimator_under_way(shared_qpbo, monkeypatch, owner, name, after):
    qubo = read_qubo(shared_qpbo / "qubo" / "gka5d.sparse")
    roof_dual = float(solve_qpbo(qubo, tol=1e-6).relaxation.bound[0])
    pressed = interrupt(monkeypatch, owner, name, after)
    found = solve_qpbo_exactly(qubo)
    assert pressed and found.status is bl.Status.INTERRUPTED
    assert -11626 * 1.1 <= found.bound <= -11626 <= found.energy
    assert roof_dual < -11626 * 1.3


def test_a_time_limit_must_be_positive():
    with pytest.raises(OptionError, match="time_limit"):
        solve_qpbo_exactly(Qubo([1.0], np.zeros((0, 2), dtype=int), []), time_limit=0)


def test_labels_are_a_tensor_of_zeros_and_ones():
    found = solve_qpbo_exactly(Qubo([1.0, -1.0], [[0, 1]], [5.0]))
    assert torch.equal(found.labels, torch.tensor([0, 1], dtype=torch.int8))
