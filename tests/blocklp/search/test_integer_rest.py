"""Exact optima of models whose blocks are hulls of integer points, against HiGHS."""

from __future__ import annotations

import math
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

import blocklp as bl
from blocklp.errors import ModelError
from blocklp.general_solvers.integer_program import solved_by_highs
from blocklp.general_solvers.linear_program import export
from blocklp.oracles import Knapsack
from blocklp.search import integer_rest
from blocklp.search.best_first import SearchEvent

pytest.importorskip("highspy")


def truth(m: bl.Model, instance: int = 0) -> float:
    """The optimum by HiGHS, infinite without a point."""
    p = export(m, instance, integers=True)
    whole = np.concatenate([np.full(v.index.numel(), int(v.integer)) for v in m.variables.values()])
    sign = -1 if p.maximize else 1
    rows = LinearConstraint(p.A, p.row_lower, p.row_upper)
    found = milp(sign * p.c, constraints=rows, bounds=Bounds(p.lower, p.upper), integrality=whole, options={"mip_rel_gap": 0})
    return sign * found.fun + p.offset if found.status == 0 else sign * np.inf


def made(seed: int, batch: int = 1) -> bl.Model:
    """Assignments to bins of limited room, or covers; bits or integers; costs whole or not; some with variables beside."""
    rng = np.random.default_rng(seed)
    bins, items = int(rng.integers(2, 5)), int(rng.integers(3, 9))
    most = int(rng.integers(1, 4)) if seed % 3 == 0 else 1
    m = bl.Model(batch)
    x = m.variable("x", (bins, items), lower=0, upper=most, integer=True)
    size = rng.integers(2, 12, (bins, items)).astype(float)
    room = np.floor(size.sum(1) / bins * rng.uniform(0.7, 1.4) * most)
    m.add(Knapsack(size, room, upper=most, integer=True), x)
    value = (torch.as_tensor(rng.integers(1, 30, (batch, bins, items)) * (1.0 if seed % 4 else 0.37)) * x).sum()
    if seed % 5 == 2:
        y = m.variable("y", items, lower=0, upper=0.6)
        for i in range(items):
            m.add(x[:, i].sum() + y[i] >= most)
        value = value + (rng.uniform(5, 40, items) * y).sum()
    else:
        for i in range(items):
            m.add(x[:, i].sum() == most if seed % 2 else x[:, i].sum() >= 1)
    (m.maximize if seed % 7 == 3 else m.minimize)(value + 3)
    return m


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_optima_are_those_of_highs(seed: int) -> None:
    m = made(seed)
    value, found = truth(m), bl.solve_exact(m)
    if math.isinf(value):
        assert found.status == (bl.Status.INFEASIBLE,) and found.primal.item() == found.bound.item() == value
        return
    assert found.status == (bl.Status.OPTIMAL,)
    assert found.primal.item() == pytest.approx(value, rel=2e-6, abs=1e-6) and found.gap.item() <= 2e-6
    sign = -1.0 if m.maximizing else 1.0
    assert sign * found.bound.item() <= sign * value + 1e-6 * max(1.0, abs(value))
    p, x = export(m, integers=True), found.raw_x[0].numpy()
    room = 2e-6 * np.maximum(abs(p.A) @ np.abs(x), 1)
    assert (p.A @ x <= p.row_upper + room).all() and (p.A @ x >= p.row_lower - room).all()
    assert torch.equal(found["x"], found["x"].round())
    assert float(p.c @ x) + p.offset == pytest.approx(found.primal.item(), abs=1e-9)


def hard(seed: int = 0) -> bl.Model:
    rng = np.random.default_rng(seed)
    bins, items = 5, 40
    loads, costs = rng.integers(5, 26, (bins, items)).astype(float), rng.integers(10, 51, (bins, items)).astype(float)
    m = bl.Model()
    x = m.variable("x", (bins, items), lower=0, upper=1, integer=True)
    m.add(Knapsack(loads, np.floor(0.8 * loads.sum(1) / bins), integer=True), x)
    for i in range(items):
        m.add(x[:, i].sum() == 1)
    m.minimize((torch.from_numpy(costs) * x).sum())
    return m


def test_fixing_leaves_a_small_core_with_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    m, seen = hard(), []
    inner = integer_rest.solved_by_highs

    def watched(program, *given, **options):
        seen.append(int((program.lower < program.upper).sum()))
        return inner(program, *given, **options)

    monkeypatch.setattr(integer_rest, "solved_by_highs", watched)
    found = bl.solve_exact(m)
    assert found.status == (bl.Status.OPTIMAL,) and found.primal.item() == found.bound.item() == pytest.approx(truth(m))
    assert seen and max(seen) < m.size


def test_dives_help_where_cores_take_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    dives = []
    dive = integer_rest.IntegerProgram.dive
    monkeypatch.setattr(integer_rest.IntegerProgram, "dive", lambda self, *given: (dives.append(1), dive(self, *given)))
    m = hard(3)
    program = integer_rest.IntegerProgram(m, 0, "auto", bl.Deadline(), 1e-6)
    found = integer_rest.Rest(program, lambda event: None, first_nodes=1).solve()
    assert found.status is bl.Status.OPTIMAL and found.incumbent == pytest.approx(truth(m)) and len(dives) <= 1


def test_limits_and_callbacks_keep_valid_bounds() -> None:
    m = hard(1)
    value, events = truth(m), list[SearchEvent]()
    stopped = bl.solve_exact(m, callback=lambda event: bool(events.append(event) or True))
    assert stopped.status == (bl.Status.INTERRUPTED,) and len(events) == 1
    assert value - 0.05 * value <= stopped.bound.item() <= value
    few = bl.solve_exact(m, max_nodes=1)
    assert few.status == (bl.Status.PASS_LIMIT,) and few.bound.item() <= value
    short = bl.solve_exact(m, time_limit=1e-3)
    assert short.bound.item() <= value and short.status[0] in (bl.Status.TIME_LIMIT, bl.Status.OPTIMAL)


def test_batches_and_models_without_highs(monkeypatch: pytest.MonkeyPatch) -> None:
    m = made(8, batch=3)
    found = bl.solve_exact(m)
    values = [truth(m, i) for i in range(3)]
    assert found.primal.tolist() == pytest.approx(values)
    monkeypatch.setattr(integer_rest, "available", lambda: False)
    alone = bl.solve_exact(m)  # by nodes of its own
    assert alone.primal.tolist() == pytest.approx(values) and set(alone.status) == {bl.Status.OPTIMAL}


def test_programs_of_hulls_are_not_written_out_as_linear_ones() -> None:
    with pytest.raises(ModelError, match="hulls of integer points"):
        bl.reference(made(1))


def test_an_interrupt_ends_the_search_with_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(integer_rest, "solved_by_highs", interrupted)
    m = hard(1)
    found = bl.solve_exact(m)
    assert found.status == (bl.Status.INTERRUPTED,) and 0 < found.bound.item() <= truth(m)


def test_highs_ends_by_an_interrupt() -> None:
    rng = np.random.default_rng(0)
    n, bins = 60, 45
    size = rng.integers(30, 70, n).astype(float)
    m = bl.Model()
    x = m.variable("x", (bins, n), lower=0, upper=1, integer=True)
    y = m.variable("y", bins, lower=0, upper=1, integer=True)
    for b in range(bins):
        m.add((size * x[b]).sum() - 100 * y[b] <= 0)
    for i in range(n):
        m.add(x[:, i].sum() == 1)
    m.minimize(y.sum())
    program = export(m)
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        solved_by_highs(program, np.ones(len(program.c), dtype=bool), seconds=60)
    assert time.perf_counter() - began < 20
