"""Message passing: its bounds against exact LPs and brute force, its multipliers in the engine, and whole solves from there."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import blocklp as bl
from blocklp.problems.mrf import Mrf, relax, solve_mrf
from blocklp.problems.mrf.messages import Messages, passed
from blocklp.search.tightening import Budget

pytest.importorskip("numba")

from blocklp.problems.mrf import messages_kernels as kernels


def random_model(seed: int, order: int, hard: float = 0.0, nodes: int = 7) -> Mrf:
    """Unary costs, and factors of up to ``order`` variables on random scopes, squares with the pairs inside among them."""
    random = np.random.default_rng(seed)
    counts = random.integers(2, 4, nodes)
    scopes = {tuple(sorted(random.choice(nodes, 2, replace=False).tolist())) for _ in range(2 * nodes)}
    for size in range(3, order + 1):
        scope = tuple(sorted(random.choice(nodes, size, replace=False).tolist()))
        scopes |= {scope, *(p for p in itertools.combinations(scope, 2) if random.random() < 0.7)}
    factors = [((i,), random.normal(size=counts[i])) for i in range(nodes)]
    for scope in sorted(scopes):
        table = random.normal(size=counts[list(scope)])
        free = random.random(table.shape) >= hard
        free.flat[0] = True  # label 0 of all is always allowed
        factors.append((scope, np.where(free, table, np.inf)))
    return Mrf(counts, factors, constant=3.0)


def brute_force(mrf: Mrf) -> float:
    labels = np.stack(np.unravel_index(np.arange(mrf.counts.prod()), mrf.counts), 1)
    return float(mrf.energy(labels).min())


@pytest.mark.parametrize(("order", "hard"), [(2, 0.0), (2, 0.3), (3, 0.0), (3, 0.3), (4, 0.0)])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_rise_to_no_more_than_the_lp_and_are_those_of_the_engine(seed: int, order: int, hard: float) -> None:
    mrf = random_model(seed, order, hard)
    relaxation = relax(mrf, "edges")
    optimum = float(bl.reference(relaxation.model).objective[0])
    messages = Messages(relaxation, kernels)
    known = [messages.bound]
    for _ in range(200):
        messages.sweep()
        known.append(messages.bound)
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(known))
    assert known[0] < known[-1] <= optimum + 1e-7
    proved = float(relaxation.model.solve(method="admm", passes=1, tol=0, warm_start=messages.state()).bound[0])
    assert known[-1] - 1e-7 <= proved <= optimum + 1e-7
    labels = messages.labelling()
    assert ((0 <= labels) & (labels < mrf.counts)).all() and mrf.energy(labels) >= brute_force(mrf) >= optimum - 1e-7


@pytest.mark.parametrize("seed", range(4))
def test_one_sweep_solves_chains(seed: int) -> None:
    random = np.random.default_rng(seed)
    mrf = Mrf(
        [3] * 8, [((i,), random.normal(size=3)) for i in range(8)] + [((i, i + 1), random.normal(size=(3, 3))) for i in range(7)]
    )
    messages = Messages(relax(mrf, "edges"), kernels)
    messages.sweep()
    assert messages.bound == pytest.approx(brute_force(mrf)) == pytest.approx(float(mrf.energy(messages.labelling())))


def test_clusters_raise_the_bound_of_a_frustrated_triangle() -> None:
    differ = [((i, j), np.eye(2)) for i, j in ((0, 1), (1, 2), (0, 2))]
    mrf = Mrf([2, 2, 2], differ)
    bounds = []
    for clusters in ([], [(0, 1, 2)]):
        messages = Messages(relax(mrf, "edges", clusters), kernels)
        for _ in range(50):
            messages.sweep()
        bounds.append(messages.bound)
    assert bounds == pytest.approx([0.0, 1.0])


def test_loops_do_what_their_source_says() -> None:
    plain = SimpleNamespace(sweep=kernels.sweep.py_func, label_in_turn=kernels.label_in_turn.py_func)
    relaxation = relax(random_model(5, 3, 0.2), "edges")
    one, other = Messages(relaxation, kernels), Messages(relaxation, plain)
    for _ in range(3):
        one.sweep()
        other.sweep()
    assert one.bound == pytest.approx(other.bound, abs=1e-12)
    assert (one.labelling() == other.labelling()).all()
    for name, duals in one.state().duals.items():
        assert np.allclose(duals, other.state().duals[name], atol=1e-12)


def large_model(seed: int, order: int) -> Mrf:
    """All pairs of three variables of 90 labels, or one factor of three variables of 28 with pairs inside."""
    random, labels = np.random.default_rng(seed), 90 if order == 2 else 28
    scopes = [*itertools.combinations(range(3), 2), *([(0, 1, 2)] if order == 3 else [])]
    factors = [(scope, random.normal(size=(labels,) * len(scope))) for scope in [(0,), (1,), (2,), *scopes]]
    factors[-1][1][random.random((labels,) * order) < 0.2] = np.inf
    return Mrf([labels] * 3, factors)


@pytest.mark.parametrize("tighten", [False, True])
@pytest.mark.parametrize("order", [2, 3])
def test_solves_that_begin_with_messages_enclose_the_optimum(order: int, tighten: bool) -> None:
    models = [large_model(seed, order) for seed in range(2)] + [Mrf([2, 2], [((0, 1), [[0, 1], [2, 3]])])]
    assert [passed(relax(mrf, "edges"), bl.Deadline()) is None for mrf in models] == [False, False, True]
    options = {"tighten": Budget(rounds=2)} if tighten else {}
    for mrf, found in zip(models, solve_mrf(models, "edges", tol=1e-5, time_limit=30, **options), strict=True):
        best = brute_force(mrf)
        assert found.bound <= best + 1e-9 <= found.energy + 2e-9
        assert found.energy == mrf.energy(found.labels.numpy())
        if order == 3:  # one factor has all variables, so that the relaxation is tight
            assert found.energy == pytest.approx(best) and found.bound >= best - 1e-4


def test_paths_chains_and_roof_duality_begin_without() -> None:
    equal = Mrf([100] * 4, [((i, i + 1), np.eye(100)) for i in range(3)])
    assert passed(relax(equal, "edges"), bl.Deadline()) is not None
    assert passed(relax(equal, "chains"), bl.Deadline()) is None
    binary = Mrf([2] * 6000, [((i, i + 1), [[0, 1], [1, 0]]) for i in range(5999)])
    assert passed(relax(binary), bl.Deadline()) is None


def test_an_interrupt_leaves_a_bound_and_a_labelling(monkeypatch: pytest.MonkeyPatch) -> None:
    mrf = large_model(1, 3)
    sweep, calls = Messages.sweep, itertools.count()

    def interrupted(self: Messages) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt
        sweep(self)

    monkeypatch.setattr(Messages, "sweep", interrupted)
    found = solve_mrf(mrf, "edges")
    assert next(calls) == 3 and np.isfinite(found.bound)
    assert found.bound <= brute_force(mrf) <= found.energy < np.inf
