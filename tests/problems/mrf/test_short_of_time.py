"""What is left out where there is no time for large energies."""

import time

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import TimeLimitError
from blocklp.problems.mrf import Mrf, heuristics, instance, relaxation, rounding, solve_mrf, solve_mrf_exactly
from blocklp.problems.mrf import exact as mrf_exact
from blocklp.problems.mrf.reductions import reduced
from blocklp.problems.qpbo import Qubo, solve_qpbo

from ..random_mrfs import labellings, random_mrf


def least_entries(mrf: Mrf) -> float:
    return mrf.constant + sum(t.min() for _, t in mrf.factors if np.isfinite(t).any())


@pytest.mark.parametrize("tighten", [False, True])
def test_the_least_entries_are_a_bound_where_no_relaxation_can_be_stated(tighten, monkeypatch):
    mrfs = [random_mrf(seed, n=6, order=3, hard=0.1, least=3) for seed in range(3)]
    whole = solve_mrf(mrfs, tighten=tighten, passes=200)
    monkeypatch.setattr(relaxation, "STATED", 1e6)
    for mrf, found, better in zip(mrfs, solve_mrf(mrfs, tighten=tighten, time_limit=20.0), whole, strict=True):
        assert found.relaxation.status == (bl.Status.TIME_LIMIT,)
        assert found.bound == pytest.approx(least_entries(mrf))
        assert found.bound <= better.bound + 1e-3 and found.energy == mrf.energy(found.labels.numpy())
    best = solve_mrf([Mrf([3, 3], [((0, 1), np.eye(3))])] * 2, time_limit=20.0)
    assert [found.energy for found in best] == [0, 0]  # labels are still looked for


def test_a_time_limit_is_quoted_as_it_was_given():
    late = bl.Deadline(0.01, began=time.perf_counter() - 5.0)
    for solve, given in ((solve_mrf, random_mrf(0)), (solve_qpbo, Qubo.max_cut(2, [(0, 1)], [1.0]))):
        with pytest.raises(TimeLimitError, match=r"the time limit of 0\.01 s was reached while stating"):
            solve(given, time_limit=late)


@pytest.mark.parametrize("seed", range(4))
def test_searches_without_reductions_find_the_minimum(seed, monkeypatch):
    mrf = random_mrf(seed, n=6, order=3, hard=0.05)
    monkeypatch.setattr(mrf_exact, "REDUCING", 1e6)
    monkeypatch.setattr(mrf_exact, "reduced", lambda *_: pytest.fail("reduced"))
    found = solve_mrf_exactly(mrf, time_limit=200.0)
    assert found.proven and found.energy == mrf.energy(labellings(mrf)).min()


def test_all_the_time_goes_to_labellings_where_a_search_cannot_be_afforded(monkeypatch):
    rng = np.random.default_rng(0)
    pairs = [(i, j) for i in range(30) for j in range(i)]
    mrf = Mrf([3] * 30, [(pair, rng.integers(-5, 6, (3, 3))) for pair in pairs])
    monkeypatch.setattr(relaxation, "STATED", 1e6)
    found = solve_mrf_exactly(mrf, time_limit=30.0)
    assert found.status is bl.Status.TIME_LIMIT and found.bound == least_entries(mrf)
    assert found.energy == mrf.energy(found.labels.numpy()) < mrf.energy(np.zeros(30, dtype=int))


def test_energies_made_of_others_are_not_checked_again(monkeypatch):
    mrf = random_mrf(1, n=12, order=3, hard=0.1, least=2)
    monkeypatch.setattr(instance, "_checked", lambda *_: pytest.fail("checked"))
    assert solve_mrf_exactly(mrf).proven
    solve_mrf(mrf, passes=20)


@pytest.mark.parametrize("seed", range(6))
def test_what_reductions_leave_is_as_if_it_were_checked(seed):
    left = reduced(random_mrf(seed, n=14, order=3, hard=0.1, least=2), bl.Deadline())
    for part in left.parts:
        other = Mrf(part.counts, part.factors)
        assert [scope for scope, _ in part.factors] == [scope for scope, _ in other.factors]
        assert all(np.array_equal(own, same) for (_, own), (_, same) in zip(part.factors, other.factors, strict=True))


def test_tables_are_exchanged_in_the_order_of_the_factors():
    mrf = random_mrf(2, n=6, order=3, hard=0.1)
    other = mrf.with_tables([2 * group.tables for group in mrf.groups])
    assert [scope for scope, _ in other.factors] == [scope for scope, _ in mrf.factors]
    np.testing.assert_array_equal(other.energy(labellings(mrf)), 2 * (mrf.energy(labellings(mrf)) - mrf.constant))
    assert other.order == mrf.order == 3


def test_fewer_labellings_are_drawn_where_time_is_short(monkeypatch):
    mrf = random_mrf(3, n=10)
    marginals = torch.zeros(mrf.n, int(mrf.counts.max()), dtype=torch.float64)
    (everything,) = rounding.drawn_in_time(mrf, marginals, bl.Deadline())
    monkeypatch.setattr(rounding, "PER_COST", 1.0)
    seconds = rounding.ROUNDS * heuristics.looked_at(mrf) / rounding.DESCENT
    (few,) = rounding.drawn_in_time(mrf, marginals, bl.Deadline(3.5 * seconds))
    assert len(everything) == rounding.DRAWN and torch.equal(few, everything[:3])
    assert rounding.drawn_in_time(mrf, marginals, bl.Deadline(0.5 * seconds)) == []


def test_descents_whose_time_is_over_prepare_nothing(monkeypatch):
    mrf = random_mrf(4, n=10)
    monkeypatch.setattr(heuristics, "Conditionals", lambda *_: pytest.fail("prepared"))
    labels = torch.zeros(1, mrf.n, dtype=torch.long)
    found = heuristics.descend(mrf, labels, time_limit=bl.Deadline(1.0, began=time.perf_counter() - 1.0))
    assert torch.equal(found.labels, labels) and found.energy.tolist() == [mrf.energy(labels[0].numpy())]
