"""Checks of whole instances by Triton: what the definitions in tensor operations do, in double precision and with their charges."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
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

pytest.importorskip("triton", reason="triton is not installed")

from blocklp.kernels import triton_checks
from blocklp.kernels.triton_checks import CheckTables
from blocklp.kernels.triton_source import functions_of

LIMITS = NOTICED, NEGLIGIBLE
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
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
    return CheckTables.of(problem, number, functions)


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
        return [tables.bounds(problem, duals, LIMITS, points, kept, room), kept, room]
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
            tables.completed(problem, (NOTICED, 1e-6), mean, bound, primal, x)
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
    tables.completed(problem, (NOTICED, 1e-6), mean, bound, primal, x)
    assert torch.isfinite(primal).tolist() == [True, False, True]


def test_means_that_are_no_numbers_give_no_points() -> None:
    problem, tables = laid_out(CASES["one graph, many costs"]())
    mean, bound = torch.full_like(problem.cost, 0.5), torch.full((3,), -1e3, dtype=torch.float64)
    mean[1, int(tables.met[0].nonzero()[0])] = torch.nan
    primal, x = torch.full_like(bound, torch.inf), torch.zeros_like(problem.cost)
    tables.completed(problem, (NOTICED, 1e-6), mean, bound, primal, x)
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
    tables.completed(problem, (NOTICED, 1e-6), mean, out[1], primal, x)
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
    monkeypatch.setattr(triton_checks, "WHOLE", 0)
    assert len(tables._phases(4300, 4500)[1]) == 3
    assert all(map(torch.equal, together, everything(problem, tables, torch.float32)))


def test_frozen_instances_keep_what_they_have() -> None:
    problem, tables = laid_out(CASES["ragged"]())
    tables = replace(tables, active=torch.tensor([2]))
    _, best, duals = bounds(problem, tables, multipliers(problem, 0, 0.1, torch.float64), 0.0, -1e5)
    primal, x = torch.full_like(best, torch.inf), torch.full_like(problem.cost, 0.25)
    tables.completed(problem, (NOTICED, 1e-6), torch.rand_like(problem.cost), best, primal, x)
    assert bool((best[:2] == -1e5).all()) and bool((best[2:] > -1e5).all())
    assert not bool(duals[:2].any()) and bool((x[:2] == 0.25).all())
    assert torch.isinf(primal).tolist() == [True, True, False]


def test_selected_instances_have_tables_of_their_own() -> None:
    problem, tables = laid_out(CASES["ragged"]())
    rows = torch.tensor([2, 0])
    whole = everything(problem, tables, torch.float64)
    for a, b in zip(everything(problem.select(rows), tables.select(rows), torch.float64), whole, strict=True):
        assert torch.equal(a, b[rows])


def test_kernels_compile_for_a_gpu() -> None:
    """Without spills, without fused additions, and without loads that may miss what other threads have written."""
    script = Path(__file__).with_name("compile_checks.py")
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=plain, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    for line in lines:
        found = {name: int(n) for name, n in re.findall(r"(\w+)=(\d+)", line)}
        assert found["registers"] <= 64 and not found["local"] and not found["fused"] and not found["incoherent"], line
