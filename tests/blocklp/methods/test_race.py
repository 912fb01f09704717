"""PDHG and the simplex method in turns: what one of them is slow on, the other one ends."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import diags_array, eye_array, kron

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.step_sizes import StepSizes
from blocklp.methods import Race, as_method
from blocklp.methods.restricted_master import RestrictedMaster
from blocklp.oracles import Polytope, Simplex

from ..random_models import random_model


def unit_commitment(units: int, hours: int, seed: int) -> bl.Model:
    """Power plants with start costs, minimal loads and ramps, which first-order methods are slow on."""
    draw = np.random.default_rng(seed)
    most, price, fixed, start = (draw.uniform(low, high, units) for low, high in ((50, 200), (10, 40), (100, 500), (200, 1000)))
    demand = 0.6 * most.sum() * (1 + 0.3 * np.sin(np.arange(hours) / hours * 4 * np.pi))
    m, shape = bl.Model(), (units, hours)
    p = m.variable("p", shape, lower=0, upper=np.repeat(most[:, None], hours, 1))
    on, started = (m.variable(name, shape, lower=0, upper=1) for name in ("on", "started"))
    every = eye_array(units * hours, format="csr")
    power, running, begun = (v.reshape(units * hours) for v in (p, on, started))
    m.add(every @ power - diags_array(np.repeat(most, hours)) @ running <= 0)
    m.add(every @ power - diags_array(np.repeat(0.3 * most, hours)) @ running >= 0)
    step = kron(eye_array(units), diags_array([-np.ones(hours - 1), np.ones(hours - 1)], offsets=[0, 1], shape=(hours - 1, hours)))
    m.add_rows(step, power, -np.repeat(0.4 * most, hours - 1), np.repeat(0.4 * most, hours - 1), name="ramps")
    m.add(step @ running - kron(eye_array(units), eye_array(hours).tocsr()[1:]) @ begun <= 0)
    m.add(p.sum(0) >= demand)
    m.minimize((price[:, None] * p).sum() + (fixed[:, None] * on).sum() + (start[:, None] * started).sum())
    return m


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_pdhg_does_not_end_the_simplex_method_does(dtype: torch.dtype) -> None:
    m = unit_commitment(20, 12, 0)
    truth = float(reference(m).objective[0])
    assert m.solve(method="pdhg", tol=1e-4, passes=2000).status[0] is bl.Status.PASS_LIMIT
    found = bl.compile(m, dtype=dtype).solve(tol=1e-4, passes=2000)
    assert found.status[0] is bl.Status.OPTIMAL
    assert truth * (1 - 1e-4) <= float(found.bound[0]) <= truth * (1 + 1e-12)
    assert float(found.primal[0]) == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize("upper", [1e1, 1e3, 1e6, 1e9])
def test_bounds_of_variables_that_no_row_needs_cost_nothing(upper: float) -> None:
    draw = np.random.default_rng(0)
    matrix = draw.uniform(size=(60, 90)) * (draw.uniform(size=(60, 90)) < 0.1)
    m = bl.Model()
    x = m.variable("x", 90, lower=0, upper=upper)
    m.add(matrix @ x >= draw.uniform(1, 5, 60) * (matrix.sum(1) > 0))
    m.minimize((draw.uniform(1, 3, 90) * x).sum())
    truth = float(reference(m).objective[0])
    found = m.solve(tol=1e-4)
    assert found.status[0] is bl.Status.OPTIMAL and int(found.passes[0]) <= 3000
    assert truth * (1 - 1.01e-4) <= float(found.bound[0]) <= truth * (1 + 1e-9)


def test_the_master_of_stated_blocks_is_the_lp_itself() -> None:
    """Blocks, rows, boxes and bounds of all kinds: one solution of the master is the optimum, with multipliers that prove it."""
    for seed in range(80):
        m = random_model(np.random.default_rng(seed))
        truth = reference(m).objective
        found = m.solve(method="dantzig-wolfe", tol=1e-6, passes=50)
        sign = -1.0 if m.maximizing else 1.0
        for i in torch.isfinite(truth).nonzero()[:, 0].tolist():
            size = max(float(found.floor[i]), abs(float(truth[i])))
            assert sign * (float(found.bound[i]) - float(truth[i])) <= 1e-9 * size, seed
            assert found.status[i] is bl.Status.OPTIMAL, (seed, found)


def random_polytopes(blocks: int) -> bl.Model:
    """Rows of random signs over random variables: the factors of bases fill up, and PDHG is quick."""
    draw, dim = np.random.default_rng(0), 8
    matrix, inside = draw.normal(size=(blocks, 4, dim)), draw.random(2 * blocks)
    scope = np.stack([draw.permutation(2 * blocks)[:dim] for _ in range(blocks)])
    above = np.einsum("brd,bd->br", matrix, inside[scope]) + draw.random((blocks, 4)) * 0.3
    m = bl.Model()
    x = m.variable("x", 2 * blocks, lower=0, upper=1)
    m.add(Polytope(matrix, np.full((blocks, 4), -np.inf), above, np.zeros((blocks, dim)), np.ones((blocks, dim))), x[scope])
    m.minimize(draw.normal(size=2 * blocks) @ x)
    return m


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_where_pdhg_is_quick_the_simplex_method_has_no_turn(
    backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if backend == "numba":
        pytest.importorskip("numba")
    monkeypatch.setattr(Race, "begins", 0)
    caplog.set_level(logging.INFO, "blocklp")
    quick, slow = random_polytopes(300), unit_commitment(20, 12, 0)
    solver = quick.compile(backend=backend)
    alone, race = (solver.solve(method=method, tol=1e-4, passes=10_000) for method in ("pdhg", "race"))
    assert race.status[0] is bl.Status.OPTIMAL and "the simplex method solved" not in caplog.text
    assert race.passes.tolist() == alone.passes.tolist() and race.bound.tolist() == alone.bound.tolist()
    found = slow.compile(backend=backend).solve(method="race", tol=1e-4, passes=10_000)
    assert found.status[0] is bl.Status.OPTIMAL and "the simplex method solved 1 of 1" in caplog.text


@pytest.mark.parametrize("seed", range(6))
def test_contradicting_rows_are_proved_by_the_ray_of_the_simplex_method(seed: int) -> None:
    """Rows that no point of the box satisfies, by a margin or by little; the same rows with room have an optimum."""
    draw = np.random.default_rng(seed)
    matrix, point = draw.normal(size=(12, 8)), draw.uniform(size=8)
    weights = draw.uniform(0.1, 1, 12)
    last = -(weights @ matrix)  # the rows and this one cannot all be above what the point gives them
    for above, status in ((1e-3, bl.Status.INFEASIBLE), (1.0, bl.Status.INFEASIBLE), (-1e-3, bl.Status.OPTIMAL)):
        m = bl.Model()
        x = m.variable("x", 8, lower=0, upper=draw.uniform(1, 3))
        m.add(matrix @ x >= matrix @ point)
        m.add(last[None] @ x >= last[None] @ point + above)
        m.minimize((draw.normal(size=8) * x).sum())
        found = m.solve(tol=1e-6, passes=400)
        assert reference(m).status[0] == str(status)
        assert found.status[0] is status


def test_entries_that_are_small_beside_wide_bounds_count() -> None:
    """In units of its bounds the second entry is 1e-10 of the first; without it the optimum is another one."""
    m = bl.Model()
    x = m.variable("x", 2, lower=0, upper=np.array([1e8, 1.0]))
    m.add(np.array([[100.0, 1.0], [-100.0, 1.0]]) @ x >= np.array([1.0, -1e9]))
    m.minimize((np.array([1000.0, 1.0]) * x).sum())
    found = m.solve(tol=1e-3, passes=50)
    assert found.status[0] is bl.Status.OPTIMAL
    assert float(found.bound[0]) == pytest.approx(1.0, abs=1e-3)


def test_auto_races() -> None:
    assert type(as_method("auto", unit_commitment(3, 4, 0).compile().decomposition())) is bl.methods.Race


def test_a_callback_may_stop_some_instances_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    m = bl.Model(6)
    x = m.variable("x", (600, 8), lower=0, upper=1)
    m.add(Simplex(8), x)
    m.add(x.sum(0) <= 76.0)
    m.minimize((torch.rand(6, 600, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * x).sum())
    seen: list[int] = []

    def stop(event: bl.Event) -> torch.Tensor:
        seen.append(event.passes)
        return torch.arange(6) < 4 if len(seen) == 1 else torch.zeros(6, dtype=torch.bool)

    monkeypatch.setattr(Race, "hopeless", 1e9)  # no turn of the simplex method, which would end all at once
    found = m.compile(backend="torch").solve(method="race", tol=1e-7, callback=stop)
    assert [str(s) for s in found.status] == ["interrupted"] * 4 + ["optimal"] * 2 and len(seen) > 1


@pytest.fixture
def estimated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Instances for which step sizes were estimated."""
    asked: list[int] = []
    of = StepSizes.of

    def counted(program: Any, problem: Any, deadline: Deadline) -> StepSizes:
        asked.append(problem.batch)
        return of(program, problem, deadline)

    monkeypatch.setattr(StepSizes, "of", counted)
    return asked


def test_what_the_simplex_method_ends_needs_no_step_sizes(estimated: list[int]) -> None:
    """A warm start from there has no weight, and PDHG takes that of the data."""
    m = unit_commitment(20, 12, 0)
    truth = float(reference(m).objective[0])
    found = m.solve(tol=1e-4)
    assert found.status[0] is bl.Status.OPTIMAL and not estimated
    assert found.state.saddle is not None and bool(found.state.saddle.weight.isnan().all())
    again = m.solve(method="pdhg", tol=0, passes=100, warm_start=found)
    assert estimated == [1] and float(again.bound[0]) <= truth * (1 + 1e-12)
    assert again.state.saddle is not None and bool((again.state.saddle.weight > 0).all())


def test_small_lps_begin_with_the_simplex_method_and_warm_starts_with_its_point() -> None:
    m, seen = unit_commitment(20, 12, 0), list[float]()
    found = m.solve(tol=1e-4, callback=lambda event: seen.append(float(event.gap[0])))
    assert len(seen) == 1 and seen[0] <= 1e-4  # nothing was checked before its answer
    assert float(found.primal[0]) == pytest.approx(float(reference(m).objective[0]), rel=1e-6)
    again = m.solve(tol=1e-4, warm_start=found)
    assert again.status[0] is bl.Status.OPTIMAL and int(again.passes[0]) <= 2


def test_a_warm_start_without_a_weight_is_as_one_with_that_of_the_data(estimated: list[int]) -> None:
    m = unit_commitment(4, 6, 0)
    plain, found = (m.solve(method="pdhg", tol=0, passes=passes) for passes in (1, 60))
    assert plain.state.saddle is not None and bool(plain.state.saddle.weight.isnan().all())
    assert found.state.saddle is not None and bool((found.state.saddle.weight > 0).all()) and estimated == [1]
    warm = m.solve(method="pdhg", tol=0, passes=60, warm_start=plain)
    assert bool(torch.isfinite(warm.bound).all()) and float(warm.bound[0]) <= float(reference(m).objective[0]) + 1e-6


def test_a_time_limit_while_step_sizes_are_estimated_keeps_the_first_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(program: Any, problem: Any, deadline: Deadline) -> StepSizes:
        while not deadline.over():
            time.sleep(0.01)
        deadline.check("estimating the norm of the rows")
        raise AssertionError

    m = unit_commitment(4, 6, 0)
    first = m.solve(method="pdhg", tol=0, passes=1)
    monkeypatch.setattr(StepSizes, "of", late)
    for method in ("pdhg", "race"):
        found = m.solve(method=method, tol=0, time_limit=1.0, backend="torch")
        assert found.status[0] is bl.Status.TIME_LIMIT
        assert float(found.bound[0]) >= float(first.bound[0]) - 1e-9


def test_under_a_limit_the_simplex_method_has_half_of_the_time_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[float] = []

    def late(master: RestrictedMaster, seconds: float, iterations: int) -> None:
        allowed.append(seconds)

    monkeypatch.setattr(RestrictedMaster, "solve", late)
    m, deadline = unit_commitment(20, 12, 0), Deadline(100.0)
    m.solve(tol=1e-4, passes=1000, time_limit=deadline)
    assert 40 < allowed[0] <= 50 and 10 < allowed[1] <= 25


def test_a_warm_start_opens_with_the_prices_of_the_last_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Race, "begins", 0)  # the simplex method is not the first
    m = bl.Model()
    x = m.variable("x", (600, 8), lower=0, upper=1)
    m.add(Simplex(8), x)
    m.add(x.sum(0) <= 76.0)
    price = m.parameter("price", (600, 8))
    m.minimize((price * x).sum())
    solver = m.compile(backend="torch")
    draw = torch.Generator().manual_seed(0)
    price.value = torch.rand(600, 8, generator=draw, dtype=torch.float64)
    first = solver.solve(tol=1e-6)
    price.value = price.value[0] + 1e-3 * torch.rand(600, 8, generator=draw, dtype=torch.float64)
    cold, warm = solver.solve(tol=1e-6), solver.solve(tol=1e-6, warm_start=first.state)
    assert warm.status[0] is bl.Status.OPTIMAL and warm.passes.item() < 0.8 * cold.passes.item() < 40
    torch.testing.assert_close(warm.bound, cold.bound, rtol=1e-5, atol=0)
