"""Checks of whole instances by Triton: what the definitions in tensor operations do, in double precision and with their charges."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.decomposition.problem import Decomposition
from blocklp.engine.best_bound import NEGLIGIBLE, NOTICED, improved_bounds
from blocklp.engine.points import finish_points, offer_mean
from blocklp.engine.status_record import status_record
from blocklp.kernels.instances import only_one
from blocklp.kernels.plan import Plan
from blocklp.oracles import Edge

from ... import simulated_device
from ...triton_interpreter import compiled_without, patch_once

pytest.importorskip("triton", reason="triton is not installed")

from blocklp.kernels import triton_checks
from blocklp.kernels.triton_checks import CheckTables
from blocklp.kernels.triton_source import functions_of

patch_once()

LIMITS = NOTICED, NEGLIGIBLE
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
KERNELS = {"bounds", "completed", "finished", "recorded"}
BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def graph(seed: int, n: int, edges: int, grid: float = 0.5, fixed: bool = False, batch: int = 1) -> bl.Model:
    """Edges at random, some variables in none of them, and some fixed."""
    draw, m = np.random.default_rng(seed), bl.Model(batch)
    ends = np.stack([draw.permutation(n - 2)[:2] for _ in range(edges)])
    upper = (draw.random(n) < 0.7).astype(float) if fixed else np.ones(n)
    y, z = m.variable("y", n, lower=0, upper=upper, grid=grid), m.variable("z", edges, lower=0, upper=1)
    m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
    m.minimize((draw.normal(size=(batch, n)) * y).sum() + (draw.normal(size=(batch, edges)) * z).sum())
    return m


CASES: dict[str, Callable[[], Any]] = {
    "ragged": lambda: [graph(seed, 8 + 5 * seed, 12 + 9 * seed) for seed in range(3)],
    "one graph, many costs": lambda: graph(1, 12, 20, batch=3),
    "fixings": lambda: [graph(seed, 10 + 4 * seed, 16 + 9 * seed, fixed=True) for seed in range(3)],
    "no grid": lambda: graph(3, 9, 14, grid=0),
}


def laid_out(model: Any) -> tuple[Decomposition, CheckTables]:
    """The problem of a case whose instances couple the same coordinates, and its tables."""
    (_, problem), *others = bl.compile(model).decomposition().alike()[1]
    assert not others
    return problem, of(problem)


def of(problem: Decomposition) -> CheckTables:
    number = only_one(problem)
    assert number is not None
    functions = functions_of(problem.groups[number].type, 3)
    assert functions is not None
    return CheckTables.of(problem, number, functions).priced(problem)


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> tuple[Decomposition, CheckTables]:
    return laid_out(CASES[request.param]())


def multipliers(problem: Decomposition, seed: int, scale: float, dtype: torch.dtype) -> Tensor:
    """Multipliers with a residual of some size; coordinates that are not coupled are at their cost."""
    draw = torch.Generator().manual_seed(seed)
    duals = problem.to_dual(problem.cost)
    for group in problem.groups:
        for (first, last), coupled in zip(group.spans, group.pattern, strict=True):
            noise = torch.randn(len(duals), last - first, generator=draw, dtype=torch.float64)
            duals[:, first:last] += scale * coupled * noise * (1 if group.valid is None else group.valid)
    return duals.to(dtype)


def bounds(problem: Decomposition, tables: CheckTables | None, duals: Tensor, primal: float, best: float) -> list[Tensor]:
    """Bounds, best ones and their multipliers."""
    kept, room = torch.full((len(duals),), best, dtype=torch.float64), torch.zeros_like(duals)
    points = torch.full_like(kept, primal)
    if tables is not None:
        return [tables.bounds(problem, duals, LIMITS, points, (kept, room)), kept, room]
    return [*improved_bounds.definition(Plan(problem), duals, LIMITS, points, kept, room), room]


@BOTH
@pytest.mark.parametrize(("scale", "primal"), [(0.0, 0.0), (0.3, 0.0), (1e-6, float("inf"))])
def test_bounds(case: tuple[Decomposition, CheckTables], scale: float, primal: float, dtype: torch.dtype) -> None:
    problem, tables = case
    duals, coupled = multipliers(problem, 0, scale, dtype), torch.zeros(problem.copies, dtype=torch.bool)
    for group in problem.groups:
        coupled[group.start : group.start + sum(group.pattern) * group.blocks] = True
    for best in (-float("inf"), -1e5 if scale else 1e5):
        mine, definition = bounds(problem, tables, duals, primal, best), bounds(problem, None, duals, primal, best)
        for a, b in zip(mine[:2], definition[:2], strict=True):
            torch.testing.assert_close(a, b, **CLOSE)
        # What is not coupled is written with the first bound, and never changes.
        columns = slice(None) if best == -float("inf") else coupled
        assert torch.equal(mine[2][:, columns], definition[2][:, columns])


@BOTH
@pytest.mark.parametrize("before", [float("inf"), 3.0])
def test_points(case: tuple[Decomposition, CheckTables], before: float, dtype: torch.dtype) -> None:
    problem, tables = case
    draw = torch.Generator().manual_seed(1)
    mean = (torch.rand(problem.cost.shape, generator=draw, dtype=torch.float64) * 1.4 - 0.2).to(dtype)
    bound = torch.full((problem.batch,), -1e3, dtype=torch.float64)
    every, found = torch.arange(problem.batch), []
    for mine in (True, False):
        primal, x = torch.full_like(bound, before), torch.zeros_like(problem.cost)
        if mine:
            tables.completed(problem, (NOTICED, 1e-6), mean, bound, (primal, x))
            if before == float("inf"):
                tables.finished(problem, every, x)
        else:
            offer_mean.definition(Plan(problem), mean, (NOTICED, 1e-6), bound, primal, x)
            finish_points.definition(Plan(problem), every, x)
        found.append((primal, x))
    torch.testing.assert_close(found[0][0], found[1][0], **CLOSE)
    columns = slice(None) if before == float("inf") else tables.met[0]
    torch.testing.assert_close(found[0][1][:, columns], found[1][1][:, columns], **CLOSE)
    assert bool((found[0][0] < before).any())


def test_points_outside_narrow_bounds_are_refused() -> None:
    """Bounds of a product may be tighter than its block, which does not know them."""
    problem, _ = laid_out(CASES["ragged"]())
    group = problem.groups[0]
    upper = problem.upper.expand_as(problem.cost).clone()
    upper[1, problem.coupling.index[1 % len(problem.coupling.index), group.stop - group.blocks]] = 0.05
    problem = replace(problem, upper=upper)
    tables = of(problem)
    assert tables.narrow.tolist() == [False, True, False]
    mean, bound = torch.ones_like(problem.cost), torch.full((3,), -1e3, dtype=torch.float64)
    primal, x = torch.full_like(bound, torch.inf), torch.zeros_like(problem.cost)
    tables.completed(problem, (NOTICED, 1e-6), mean, bound, (primal, x))
    assert torch.isfinite(primal).tolist() == [True, False, True]


def test_means_that_are_no_numbers_give_no_points() -> None:
    problem, tables = laid_out(CASES["one graph, many costs"]())
    mean, bound = torch.full_like(problem.cost, 0.5), torch.full((3,), -1e3, dtype=torch.float64)
    mean[1, int(tables.met[0].nonzero()[0])] = torch.nan
    primal, x = torch.full_like(bound, torch.inf), torch.zeros_like(problem.cost)
    tables.completed(problem, (NOTICED, 1e-6), mean, bound, (primal, x))
    assert torch.isfinite(primal).tolist() == [True, False, True]


@BOTH
def test_records(case: tuple[Decomposition, CheckTables], dtype: torch.dtype) -> None:
    problem, tables = case
    draw = torch.Generator().manual_seed(2)
    bound, value, primal, eta = torch.rand(4, problem.batch, generator=draw, dtype=torch.float64)
    x = torch.rand(problem.cost.shape, generator=draw, dtype=torch.float64) - 2
    mine = tables.recorded(problem, bound, value.to(dtype), primal, x, eta.to(dtype))
    definition = status_record.definition(Plan(problem), bound, value.to(dtype), primal, x, None, eta.to(dtype))
    torch.testing.assert_close(mine, definition, rtol=1e-15, atol=0)


def everything(problem: Decomposition, tables: CheckTables, dtype: torch.dtype) -> list[Tensor]:
    """All that a check writes, for multipliers and means that each instance has wherever it is in a batch."""
    rows = torch.arange(1.0, problem.copies + 1, dtype=torch.float64)
    duals = (problem.to_dual(problem.cost) + 0.01 * (problem.spread(problem.cost) * 7).sin() * (rows > 0)).to(dtype)
    out = bounds(problem, tables, duals, 0.0, -float("inf"))
    mean = ((problem.cost * 5).sin().abs()).to(dtype)
    primal, x = torch.full_like(out[0], torch.inf), torch.zeros_like(problem.cost)
    tables.completed(problem, (NOTICED, 1e-6), mean, out[1], (primal, x))
    tables.finished(problem, torch.arange(problem.batch), x)
    return [out[0], out[1], primal, x.sort(1, descending=True).values[:, :8]]


def test_bits_do_not_depend_on_what_is_beside_an_instance_nor_on_the_run() -> None:
    models, dtype = CASES["ragged"](), torch.float32
    together = everything(*laid_out(models), dtype)
    assert all(map(torch.equal, together, everything(*laid_out(models), dtype)))
    for k, model in enumerate(models):
        for a, b in zip(everything(*laid_out(model), dtype), together, strict=True):
            assert torch.equal(a[0], b[k])


def test_launches_for_each_phase_give_the_bits_of_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, tables = laid_out(graph(7, 4500, 4300))
    together = everything(problem, tables, torch.float32)
    monkeypatch.setattr(triton_checks, "is_small", lambda size: False)
    assert len(tables._phases(4300, 4500)[1]) == 3
    assert all(map(torch.equal, together, everything(problem, tables, torch.float32)))


def test_frozen_instances_keep_what_they_have() -> None:
    problem, tables = laid_out(CASES["ragged"]())
    tables = replace(tables, active=torch.tensor([2]))
    _, best, duals = bounds(problem, tables, multipliers(problem, 0, 0.1, torch.float64), 0.0, -1e5)
    primal, x = torch.full_like(best, torch.inf), torch.full_like(problem.cost, 0.25)
    tables.completed(problem, (NOTICED, 1e-6), torch.rand_like(problem.cost), best, (primal, x))
    assert bool((best[:2] == -1e5).all()) and bool((best[2:] > -1e5).all())
    assert not bool(duals[:2].any()) and bool((x[:2] == 0.25).all())
    assert torch.isinf(primal).tolist() == [True, True, False]


def test_selected_instances_have_tables_of_their_own() -> None:
    problem, tables = laid_out(CASES["ragged"]())
    rows = torch.tensor([2, 0])
    whole = everything(problem, tables, torch.float64)
    for a, b in zip(everything(problem.select(rows), tables.select(rows), torch.float64), whole, strict=True):
        assert torch.equal(a, b[rows])


@pytest.mark.slow
def test_kernels_compile_for_a_gpu() -> None:
    """No spills beyond what a division saves, no fused additions, and no loads that may miss what other threads have written."""
    lines = compiled_without("checks(edges(), torch.float32)")
    assert len(lines) == 10 and {re.findall(r"name='(\w+)'", line)[0] for line in lines} == KERNELS
    for line in lines:
        spilled = int(re.findall(r"spilled=(\d+)", line)[0])
        assert spilled <= 16 and "fused=0, cached=0" in line and "lanes={1}" in line, line


def ring(seed: int, tilt: float = 0.0) -> bl.Model:
    """Edges around a ring, the same for all seeds."""
    draw, m = np.random.default_rng(seed), bl.Model()
    ends = np.array([(i, (i + step) % 9) for i in range(9) for step in (1, 2)])
    y, z = m.variable("y", 9, lower=0, upper=1, grid=0.5), m.variable("z", len(ends), lower=0, upper=1)
    m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
    m.minimize((draw.normal(size=9) + tilt) @ y + draw.normal(size=len(ends)) @ z)
    return m


@pytest.fixture
def simulated() -> torch.device:
    """The simulated device, where kernels are interpreted."""
    if not simulated_device.available():
        pytest.skip("this version of torch takes no devices from Python")
    return simulated_device.install()


@pytest.mark.slow
def test_solves_end_as_by_definitions(simulated: torch.device) -> None:
    """Instances that are done at different checks, at their gaps, at a cutoff, stopped by the caller, or at the last pass."""
    models = [ring(seed) for seed in range(6)]
    tol = torch.tensor([1e-1, 1e-2, 1e-3, 0.0, 0.0, 1e-3])
    cutoff = torch.tensor([9.0, 9.0, 9.0, 9.0, -50.0, 9.0])
    found = {}
    for backend, device in (("torch", "cpu"), ("triton", simulated)):
        solver = bl.compile(models, device=device, backend=backend)
        found[backend] = solver.solve(tol=tol, cutoff=cutoff, passes=60)
        assert solver.backend == backend
    here, there = found["torch"], found["triton"]
    assert here.status == there.status and len(set(here.status)) >= 3
    assert here.passes.tolist() == there.passes.tolist() and len(set(here.passes.tolist())) >= 3
    for name in ("bound", "safe_bound", "primal"):
        torch.testing.assert_close(getattr(there, name).cpu(), getattr(here, name), rtol=1e-9, atol=1e-9)
    proved = bl.verify_certificate(models[2], there.state.select(torch.tensor([2], device=simulated)))
    assert float(proved.bound) == pytest.approx(float(there.bound[2]), abs=1e-9)


def test_callbacks_see_every_check_and_stop_instances(simulated: torch.device) -> None:
    events: list[bl.Event] = []

    def stop(event: bl.Event) -> Tensor:
        events.append(event)
        return torch.tensor([False, len(events) == 2, False], device=simulated)

    solver = bl.compile([ring(seed) for seed in range(3)], device=simulated, backend="triton")
    options = {"tol": 1e-6, "passes": 40}
    watched, alone = solver.solve(**options, callback=stop), solver.solve(**options)
    assert watched.status[1] == bl.Status.INTERRUPTED and int(watched.passes[1]) == events[1].passes + 1
    for k in (0, 2):
        assert watched.status[k] == alone.status[k] and watched.passes[k] == alone.passes[k]
        assert torch.equal(watched.bound[k], alone.bound[k]) and torch.equal(watched.raw_x[k], alone.raw_x[k])
    assert (events[-1].status > 0).tolist() == [True, False, True]  # the last one ends by the answer to this event


def test_an_interrupt_leaves_what_was_found(simulated: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes between two checks, before the host has heard of the first: an instance is then done that was done there."""
    run, calls = bl.methods.Admm.run, []

    def interrupted(method: Any, plan: Plan, state: Any, most: int) -> Any:
        calls.append(state.passes)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run(method, plan, state, most)

    models = [ring(0), ring(1, 50.0)]
    monkeypatch.setattr(bl.methods.Admm, "run", interrupted)
    found = bl.compile(models, device=simulated, backend="triton").solve(tol=torch.tensor([0.0, 1e-3]), passes=400)
    truth = torch.cat([bl.reference(m).objective for m in models])
    assert found.status == (bl.Status.INTERRUPTED, bl.Status.OPTIMAL)
    assert bool((found.bound.cpu() <= truth + 1e-9).all()) and bool((found.primal.cpu() >= truth - 1e-9).all())
    assert float(found.gap[1]) <= 1e-3
