"""Schedules of one machine, against enumeration, Smith's rule and HiGHS."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import ModelError, ShapeError
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import Schedule


def cheapest(kind: Schedule, cost: torch.Tensor) -> float:
    """The least cost of starts that do not overlap, by enumeration of subsets."""
    best = 0.0
    for chosen in itertools.product((False, True), repeat=int(kind.dim or 0)):
        own = torch.tensor(chosen)
        busy = [t for a, b in zip(kind.start[own].tolist(), kind.end[own].tolist(), strict=True) for t in range(a, b)]
        if len(busy) == len(set(busy)):
            best = min(best, float(cost[own].sum()))
    return best


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_minimum_is_that_of_all_pseudo_schedules(seed: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(seed)
    durations, horizon = rng.integers(1, 4, 3), int(rng.integers(4, 6))
    release = rng.integers(0, 2, 3)
    kind = Schedule(durations, horizon, release, np.minimum(release + durations + 2, horizon))
    cost = torch.from_numpy(rng.integers(-4, 2, (2, 2, kind.dim))).to(dtype)
    point, value = kind.min_oracle(cost)
    expected = torch.tensor([[cheapest(kind, own) for own in each] for each in cost], dtype=dtype)
    assert torch.equal(value, expected) and torch.equal((point * cost).sum(-1), expected)
    rows = kind.constraints()
    assert rows is not None and not rows.relative_violation(point.double(), torch.ones_like(point).double()).any()


def weighted(durations: np.ndarray, weights: np.ndarray, machines: int, release: np.ndarray | None = None) -> bl.Model:
    """Weighted ends of jobs on some machines, each job done once."""
    horizon = int(durations.sum()) + (0 if release is None else int(release.max()))
    kind = Schedule(durations, horizon, release)
    m = bl.Model()
    x = m.variable("x", (machines, int(kind.dim or 0)), lower=0, upper=1, integer=True)
    m.add(kind, x)
    once = np.tile(kind.job.numpy() == np.arange(len(durations))[:, None], machines)
    m.add(once.astype(float) @ x.reshape(-1) == 1)
    m.minimize((torch.from_numpy(weights)[kind.job] * kind.end * x).sum())
    return m


def test_one_machine_without_releases_is_smiths_rule() -> None:
    rng = np.random.default_rng(1)
    durations, weights = rng.integers(1, 6, 8), rng.integers(1, 9, 8)
    m = weighted(durations, weights, 1)
    order = np.argsort(durations / weights)
    optimum = float((weights[order] * np.cumsum(durations[order])).sum())
    found = m.solve(tol=1e-6)
    assert found.status == (bl.Status.OPTIMAL,)
    assert found.bound.item() == pytest.approx(optimum, rel=1e-5) and found.bound.item() <= optimum * (1 + 1e-9)


@pytest.mark.parametrize("machines", [1, 2])
def test_the_bound_is_that_of_the_time_indexed_lp(machines: int) -> None:
    rng = np.random.default_rng(machines)
    durations, weights, release = rng.integers(1, 5, 6), rng.integers(1, 9, 6), rng.integers(0, 6, 6)
    m = weighted(durations, weights, machines, release)
    found = m.solve(tol=1e-6)
    lp = reference(m, solver="highs").objective.item()
    assert found.bound.item() == pytest.approx(lp, rel=1e-5) and found.bound.item() <= lp + 1e-6
    if machines == 1:
        best = min(_ends(order, durations, weights, release) for order in itertools.permutations(range(6)))
        exact = bl.solve_exact(m, time_limit=60)
        assert exact.status == (bl.Status.OPTIMAL,) and exact.primal.item() == pytest.approx(best)


def _ends(order: tuple[int, ...], durations: np.ndarray, weights: np.ndarray, release: np.ndarray) -> float:
    """Weighted ends of jobs that are done in some order, each as soon as it may be."""
    now, total = 0, 0.0
    for j in order:
        now = max(now, int(release[j])) + int(durations[j])
        total += float(weights[j]) * now
    return total


def test_bad_jobs_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match="job 1 takes 5 periods and fits nowhere"):
        Schedule([1, 5], 4)
    with pytest.raises(ModelError, match=r"durations of job 0 is 1\.5"):
        Schedule([1.5], 4)
    with pytest.raises(ModelError, match="job 0 takes no period"):
        Schedule([0], 4)
    with pytest.raises(ShapeError, match="give 2 numbers, one a job"):
        Schedule([1, 2], 4, release=[0])
