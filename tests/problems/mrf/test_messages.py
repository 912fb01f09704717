"""Message passing: its bounds against exact LPs and brute force, its multipliers in the engine, and whole solves from there."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.engine.records import Event
from blocklp.problems.discrete.exact import ExactSettings
from blocklp.problems.mrf import Mrf, exact, relax, solve_mrf, solve_mrf_exactly
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


@pytest.mark.parametrize("hard", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_sweeps_go_on_from_multipliers_of_a_smaller_relaxation(seed: int, hard: float) -> None:
    mrf = random_model(seed, 2, hard)
    before = Messages(relax(mrf, "edges"), kernels)
    for _ in range(20):
        before.sweep()
    grown = relax(mrf, "edges", itertools.combinations(range(5), 3))
    after = Messages(grown, kernels, before.state())
    assert after.bound == pytest.approx(before.bound, abs=1e-9)
    bounds = [after.bound]
    for _ in range(100):
        after.sweep()
        bounds.append(after.bound)
    optimum = float(bl.reference(grown.model).objective[0])
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(bounds)) and bounds[-1] <= optimum + 1e-7
    proved = grown.model.solve(method="prox", passes=1, tol=0, warm_start=after.state())
    assert bounds[-1] - 1e-7 <= proved.bound.item() <= optimum + 1e-7
    assert bounds[-1] - 1e-7 <= Messages(grown, kernels, proved.state).bound <= optimum + 1e-7


def strip(seed: int, nodes: int = 30, labels: int = 20) -> tuple[Mrf, float]:
    """A strip of triangles, and its least energy by dynamic programming over the labels of two neighbours."""
    random = np.random.default_rng(seed)
    near, far = random.normal(size=(nodes, labels, labels)), random.normal(size=(nodes, labels, labels))
    pairs = [((i, i + 1), near[i]) for i in range(nodes - 1)] + [((i, i + 2), far[i]) for i in range(nodes - 2)]
    least = near[0]
    for i in range(nodes - 2):
        least = (least[:, :, None] + far[i][:, None, :]).min(0) + near[i + 1]
    return Mrf([labels] * nodes, pairs), float(least.min())


def test_tightening_goes_on_by_messages() -> None:
    mrf, best = strip(0)
    found = solve_mrf(mrf, tighten=True)
    assert found.bound <= best + 1e-9 and found.bound == pytest.approx(best, rel=1e-4)
    assert found.energy == pytest.approx(best)
    bounds = [float(r.bound[0]) for r in found.rounds]
    assert bounds == sorted(bounds) and bounds[0] < best - 1


def test_slack_of_tables_is_the_gap_between_bound_and_labelling() -> None:
    mrf, best = strip(1, nodes=9, labels=5)
    messages = Messages(relax(mrf, "edges", [(0, 1, 2), (5, 6, 7)]), kernels)
    for _ in range(20):
        messages.sweep()
    labels = torch.from_numpy(messages.labelling())
    messages = Messages(messages.relaxation, kernels, messages.state())  # what nodes hold is in tables then
    slack = messages.slack(labels)
    assert set(slack) == {scope for scope in messages.relaxation.views if len(scope) > 1}
    assert min(slack.values()) >= 0 and messages.bound < best - 0.05
    assert sum(slack.values()) == pytest.approx(mrf.energy(labels.numpy()) - messages.bound)


@pytest.mark.parametrize("seed", [1, 2])
def test_clusters_join_where_none_gains_by_itself(seed: int) -> None:
    """Of a complete graph of few labels, solved in passes of the engine."""
    random, scopes = np.random.default_rng(seed), [(i,) for i in range(7)] + [*itertools.combinations(range(7), 2)]
    mrf = Mrf([4] * 7, [(scope, random.normal(size=(4,) * len(scope))) for scope in scopes])
    found = solve_mrf(mrf, tighten=True)
    assert found.bound <= brute_force(mrf) + 1e-9 and found.gap < 1e-4
    assert found.energy == pytest.approx(brute_force(mrf))


def test_an_exact_search_begins_with_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    mrf, best = strip(0)
    begun = []
    monkeypatch.setattr(exact, "passed", lambda *given: begun.append(passed(*given)) or begun[-1])
    settings = ExactSettings(energy_tables=1.0, reduced_table=1)  # neither elimination nor reductions
    found = solve_mrf_exactly(mrf, settings=settings)
    assert found.proven and found.energy == pytest.approx(best) and len(begun) >= 1


def test_callbacks_hear_of_sweeps_and_stop_them() -> None:
    mrf, best = strip(0)
    events: list[Event] = []
    whole = solve_mrf(mrf, passes=30, callback=events.append)
    sweeps = [e for e in events if e.passes == 0]
    bounds, energies = (
        np.concatenate([t.numpy() for t in values]) for values in ([e.bound for e in sweeps], [e.primal for e in sweeps])
    )
    assert len(sweeps) > 5 and (np.diff(bounds) >= -1e-9).all() and bounds[-1] <= whole.bound + 1e-6
    assert (np.diff(energies) <= 0).all() and (energies >= best - 1e-9).all() and (np.diff([e.seconds for e in sweeps]) > 0).all()
    heard = itertools.count()
    stopped = solve_mrf(mrf, callback=lambda event: next(heard) == 2)
    assert next(heard) <= 6 and stopped.relaxation.status == (bl.Status.INTERRUPTED,)
    assert np.isfinite(stopped.bound) and stopped.bound <= best <= stopped.energy + 1e-9


def test_an_interrupt_between_rounds_leaves_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    mrf, best = strip(0)
    begin, calls = Messages.__init__, itertools.count()

    def interrupted(self: Messages, *given: object) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt
        begin(self, *given)

    monkeypatch.setattr(Messages, "__init__", interrupted)
    found = solve_mrf(mrf, tighten=True)
    assert next(calls) == 3 and found.relaxation.status == (bl.Status.INTERRUPTED,)
    assert len(found.rounds) == 2 and found.bound == float(found.rounds[-1].bound[0]) <= best <= found.energy + 1e-9


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
    options = {"tighten": Budget(rounds=2), "passes": 60} if tighten else {}
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
