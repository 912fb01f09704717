"""Passes of ADMM by Triton: operations against their definitions within solves, bits, launches, traffic and bounds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.backend import Backend, add_backend
from blocklp.kernels.operations import IMPLEMENTATIONS, OPERATIONS, implements
from blocklp.kernels.plan import Plan
from blocklp.methods import Admm
from blocklp.methods.consensus import residuals
from blocklp.methods.proximal_weight import ResidualBalancing
from blocklp.oracles import AtMostOne, Edge, Knapsack, Simplex

from ... import simulated_device
from ...block_types import Oracle
from ...triton_interpreter import compiled_without, patch_once, traffic
from .test_operations import by_definition, compared, copied, forgotten
from .test_prox_block import Ball

pytest.importorskip("triton", reason="triton is not installed")

from blocklp.kernels import triton_admm, triton_checks, triton_tables
from blocklp.kernels.triton_launch import LANES
from blocklp.kernels.triton_tables import TritonTables

assert forgotten is not None
patch_once()

SAME = {torch.float64: {"rtol": 1e-12, "atol": 1e-12}, torch.float32: {"rtol": 1e-5, "atol": 1e-5}}


class Quick(Admm):
    """Anchors from the sixth pass on, and a look at the weight after every other pass."""

    plain = 6
    every = 3


def edges(seed: int, n: int = 10, batch: int = 1, fixed: bool = False) -> bl.Model:
    """Edges, with a product of their own each."""
    draw = np.random.default_rng(seed)
    ends = np.array([(i, (i + step) % n) for i in range(n) for step in (1, 3)])
    m = bl.Model(batch)
    y, z = m.variable("y", n, lower=0, upper=1, grid=0.5), m.variable("z", len(ends), lower=0, upper=1)
    m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
    m.minimize((draw.normal(size=(batch, n)) * y).sum() + (draw.normal(size=(batch, len(ends))) * z).sum())
    return m


def rows_and_columns(*kinds: bl.BlockType, size: int = 3, batch: int = 2) -> bl.Model:
    """Blocks of one type in rows, of another in columns, and of a third on the diagonals."""
    draw, m = np.random.default_rng(0), bl.Model(batch)
    x = m.variable("x", (size, size), lower=-1, upper=1)
    diagonals = np.array([[i * size + (i + k) % size for i in range(size)] for k in range(size)])
    for kind, scope in zip(kinds, (x, x.T, x.reshape(-1)[diagonals]), strict=False):
        m.add(kind, scope)
    m.minimize((draw.normal(size=(batch, size, size)) * x).sum())
    return m


def star(seed: int, leaves: int) -> bl.Model:
    """A variable that is in as many edges as there are leaves, and two more that are in two."""
    draw, m = np.random.default_rng(seed), bl.Model()
    y, z = m.variable("y", leaves + 1, lower=0, upper=1), m.variable("z", leaves + 1, lower=0, upper=1)
    m.add(Edge(), [y[[*[1] * leaves, 2]], y[[0, *range(2, leaves + 1), 0]], z])
    m.minimize(draw.normal(size=leaves + 1) @ y + draw.normal(size=leaves + 1) @ z)
    return m


def chain(seed: int, n: int) -> bl.Model:
    """Choices of one of two, and pairs of which one may be chosen: as many as an instance has."""
    draw, m = np.random.default_rng(seed), bl.Model()
    x = m.variable("x", (n, 2), lower=0, upper=1)
    m.add(Simplex(2), x)
    m.add(AtMostOne(2), [x.reshape(-1)[1:-1:2], x.reshape(-1)[2::2]])
    m.minimize((draw.normal(size=(n, 2)) * x).sum())
    return m


WEIGHTS = np.random.default_rng(1).uniform(0.1, 1.0, (2, 3, 3))
MASSES = np.random.default_rng(2).uniform(0.5, 1.5, (2, 3))
CASES: dict[str, Callable[[], Any]] = {
    "edges": lambda: edges(0, batch=2),
    "edges, ragged": lambda: [edges(seed, n) for seed, n in ((0, 6), (1, 9), (2, 8))],
    "a star": lambda: [star(0, 3), star(1, 140)],
    "choices": lambda: rows_and_columns(Simplex(3, MASSES), AtMostOne(3)),
    "choices, ragged": lambda: [chain(0, 4), chain(1, 9)],
    "knapsacks and boxes": lambda: rows_and_columns(Knapsack(WEIGHTS, 0.8, 0, 1), bl.Box(np.zeros(3), np.ones(3)), AtMostOne(3)),
    "a user's type": lambda: rows_and_columns(Ball(torch.full((1, 3), 0.7)), Knapsack(WEIGHTS - 0.5, 0.8, 0, 1, least=-0.3)),
    "nine coordinates": lambda: rows_and_columns(AtMostOne(9), Simplex(9), size=9, batch=1),
    "a user's oracle": lambda: rows_and_columns(Oracle(), Simplex(3), AtMostOne(3)),
}
WHOLE = {"admm_first_means", "admm_first_iterates", "admm_passes", "admm_settled"}
ADMM = {*WHOLE, "admm_restart", "admm_block_points"}


def settled(tolerance: dict[str, float], function: Callable[..., Any], plan: Plan, state: Any, method: Any) -> Any:
    """Compare a look at the weight with its definition."""
    pure, own = by_definition(plan), copied(state)
    known, found = OPERATIONS["admm_settled"].definition(pure, own, method), function(plan, state, method)
    copies = plan.problem.spread((plan.problem.counts > 1).expand_as(plan.problem.cost).double()) > 0
    for name in ("eta", "ready", "age", "origin", "last"):
        torch.testing.assert_close(getattr(found, name), getattr(known, name), **tolerance, msg=partial("{}: {}".format, name))
    torch.testing.assert_close(found.iterate[copies], known.iterate[copies], **tolerance)
    assert found.anchor.shape == known.anchor.shape
    if known.anchor.shape[1]:
        torch.testing.assert_close(found.anchor[copies], known.anchor[copies], **tolerance)
    return found


@pytest.fixture
def comparing(forgotten: None, dtype: torch.dtype) -> set[str]:
    """A backend "compared" that runs Triton's operations of ADMM beside their definitions; returns those that ran."""
    ran: set[str] = set()
    add_backend("compared", builds_on="triton")

    def both(name: str, *args: Any) -> Any:
        found = next(own for own in IMPLEMENTATIONS[name, "triton"] if own.serves(*args))
        ran.add(name)
        check = settled if name == "admm_settled" else partial(compared, name)
        return check(SAME[dtype], found.function, *args)

    for name in ADMM:

        def serves(*args: Any, name: str = name) -> bool:
            return any(own.serves(*args) for own in IMPLEMENTATIONS[name, "triton"])

        implements(name, "compared", serves)(partial(both, name))
    return ran


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((case, torch.float64) for case in CASES), ("edges, ragged", torch.float32), ("a user's type", torch.float32)],
)
def test_operations_do_what_definitions_say(case: str, dtype: torch.dtype, comparing: set[str]) -> None:
    solver = bl.compile(CASES[case](), backend="compared", dtype=dtype)
    found = solver.solve(method=Quick(), tol=0, passes=13, check_every=6, project=False)
    assert solver.backend == "compared" and bool(torch.isfinite(found.bound).all())
    assert comparing == ({"admm_block_points"} if case == "a user's oracle" else WHOLE)


@pytest.mark.parametrize("dtype", [torch.float64])
def test_edges_with_fixings(dtype: torch.dtype, comparing: set[str]) -> None:
    """Block data that differ by block and instance."""
    lower, upper = torch.zeros(2, 10, dtype=torch.float64), torch.ones(2, 10, dtype=torch.float64)
    lower[0, 2], upper[0, 5], upper[1, 2] = 1.0, 0.0, 0.0
    solver = edges(3, batch=2).compile(backend="compared")
    found = solver.solve(method=Quick(), tol=0, passes=13, project=False, bounds={"y": (lower, upper)})
    assert comparing == WHOLE and bool(torch.isfinite(found.bound).all())


def test_kept_tables_serve_new_costs_and_other_bounds() -> None:
    """A solver that has solved before finds the bits of a new one."""
    ends = np.array([(i, (i + 1) % 5) for i in range(5)])

    def stated(numbers: np.ndarray) -> tuple[bl.Model, bl.Parameter]:
        m = bl.Model()
        y, z = m.variable("y", 5, lower=0, upper=1), m.variable("z", 5, lower=0, upper=1)
        price = m.parameter("price", 5)
        m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
        m.minimize(price @ y + np.linspace(-1, 1, 5) @ z)
        price.value = torch.as_tensor(numbers)
        return m, price

    before, after = np.random.default_rng(0).normal(size=(2, 5))
    tight = {"y": (torch.tensor([0.0, 1, 0, 0, 0]), torch.tensor([1.0, 1, 1, 0.5, 1]))}
    known, price = stated(before)
    solver = known.compile(backend="triton")
    options = {"tol": 0, "passes": 4, "project": False}
    first = solver.solve(**options)
    price.value = torch.as_tensor(after)
    for bounds in (None, tight, None):
        found, fresh = (own.solve(bounds=bounds, **options) for own in (solver, stated(after)[0].compile(backend="triton")))
        assert solver.backend == "triton" and not torch.equal(found.bound, first.bound)
        for name in ("bound", "safe_bound", "primal", "raw_x"):
            assert torch.equal(getattr(found, name), getattr(fresh, name)), name
        assert all(torch.equal(own, fresh.state.duals[name]) for name, own in found.state.duals.items())


def plan_of(given: Any, dtype: torch.dtype = torch.float64, device: str | torch.device = "cpu") -> Plan:
    """The plan of models, with tables of Triton's."""
    solver = bl.compile(given, backend="triton", dtype=dtype, device=device)
    plan = Plan(solver.decomposition(), backend=Backend("triton")).laid_out(whole=True).begun()
    assert isinstance(plan.tables, TritonTables) and plan.whole
    return plan.to(dtype)


def passed(plan: Plan, passes: int, method: Admm | None = None) -> Any:
    """The state after some passes from the first multipliers."""
    method = method or Quick()
    state = method.start(plan, plan.problem.to_dual(plan.problem.cost), None)
    while state.passes <= passes:
        state, _ = method.run(plan, state, passes)
    return state


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_launch_and_many_give_the_same_bits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """For more than one tile, and several groups."""
    for given, passes in ((edges(0, n=LANES // 2 + 5), 4), (star(0, 140), 4), (CASES["choices, ragged"](), 7)):
        plan, found = plan_of(given, dtype), []
        for together in (True, False):
            monkeypatch.setattr(triton_admm, "_together", lambda *_, own=together: own)
            found.append(passed(plan, passes))
        for name in ("iterate", "points", "duals", "reflected", "mean", "eta", "age", "origin", "last", "primal_residual"):
            assert torch.equal(getattr(found[0], name), getattr(found[1], name)), name


def test_wider_index_tables_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that only large instances need."""
    options = {"method": Quick(), "tol": 0, "passes": 7, "project": False}
    narrow = star(0, 140).compile(backend="triton").solve(**options)
    for module in (triton_checks, triton_tables):
        monkeypatch.setattr(module, "index_dtype", lambda problem: torch.int32)
    wide = star(0, 140).compile(backend="triton").solve(**options)
    for name in ("bound", "safe_bound", "primal", "raw_x"):
        assert torch.equal(getattr(narrow, name), getattr(wide, name)), name


@pytest.mark.slow
def test_more_tiles_than_lanes() -> None:
    """Squares are then added up in several rounds."""
    plan = plan_of(edges(0, n=LANES * LANES // 2 + 40))
    method = Quick()
    assert plan.problem.groups[0].blocks > LANES * LANES
    state = passed(plan, 1, method)
    primal, dual = residuals(by_definition(plan), state)
    torch.testing.assert_close(state.primal_residual, primal, rtol=1e-12, atol=0)
    torch.testing.assert_close(state.dual_residual, dual, rtol=1e-12, atol=0)


@pytest.mark.parametrize("case", ["a star", "choices, ragged"])
def test_an_instance_has_the_same_bits_in_a_batch_and_again(case: str) -> None:
    models = CASES[case]()
    options = {"method": Quick(), "tol": 0, "passes": 5, "project": False}
    together, again = (bl.compile(models, backend="triton").solve(**options) for _ in range(2))
    assert torch.equal(together.bound, again.bound) and torch.equal(together.raw_x, again.raw_x)
    among = passed(plan_of(models), 7)
    for k, m in enumerate(models):
        alone = m.compile(backend="triton").solve(**options)
        assert torch.equal(alone.bound[0], together.bound[k])
        own = passed(plan_of([m]), 7)
        for name in ("eta", "age", "origin", "last", "primal_residual", "dual_residual"):
            assert torch.equal(getattr(own, name)[0], getattr(among, name)[k]), name


def test_some_instances_go_on_as_they_would_have() -> None:
    """Tables follow instances that stay, and frozen ones keep their iterates."""
    method, plan = Quick(), plan_of(CASES["edges, ragged"]())
    state = passed(plan, 6, method)
    rows = torch.tensor([0, 2])
    few, some = plan.select(rows), copied(state).select(rows)
    held, kept = plan.with_active(rows), copied(state)
    frozen = {name: getattr(kept, name)[1].clone() for name in ("iterate", "duals")}
    (ours, _), (theirs, _), (whole, _) = (
        method.run(own, given, 3) for own, given in ((few, some), (held, kept), (plan, copied(state)))
    )
    for name in ("iterate", "duals", "mean", "eta", "age", "primal_residual"):
        wanted = getattr(whole, name)[rows]
        assert torch.equal(getattr(ours, name), wanted) and torch.equal(getattr(theirs, name)[rows], wanted), name
    for name, before in frozen.items():
        assert torch.equal(getattr(theirs, name)[1], before), name


def test_counts_decide_which_form_it_is() -> None:
    plan = plan_of(edges(0, n=8 * LANES))
    one, many = torch.arange(1), torch.arange(plan.settings.busy_tiles)
    assert triton_admm._together(plan, replace(plan.tables, active=one))
    assert not triton_admm._together(plan, replace(plan.tables, active=many))
    small = plan_of(edges(0))
    assert triton_admm._together(small, replace(small.tables, active=many))


def test_several_passes_are_one_after_the_other() -> None:
    """The definition, pass by pass, beside leaps of several passes: points and multipliers after two dozen."""
    solvers = [bl.compile(CASES["edges, ragged"](), backend=name) for name in ("triton", "torch")]
    found = [s.solve(method=Quick(), tol=0, passes=25, check_every=25, project=False) for s in solvers]
    assert solvers[0].backend == "triton" and solvers[1].backend == "torch"
    torch.testing.assert_close(found[0].bound, found[1].bound, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", ["edges, ragged", "a ball"])
def test_bounds_close_in_on_the_optimum(case: str) -> None:
    given = CASES[case]() if case in CASES else [rows_and_columns(Ball(torch.full((1, 3), 0.7)), AtMostOne(3), batch=1)]
    found = bl.compile(given, backend="triton").solve(method=Quick(), tol=1e-4, passes=60)
    truth = torch.cat([reference(m).objective for m in given])
    scale = truth.abs().clamp(min=1)
    assert bool((found.bound <= truth + 1e-9 * scale).all()) and bool((truth - found.bound <= 1e-2 * scale).all())


def test_a_function_without_translation_is_left_to_tensor_operations(caplog: pytest.LogCaptureFixture) -> None:
    class Sorted(AtMostOne):
        @staticmethod
        def prox_block(cost: Any, centre: Any, step: float, point: Any, excluded: Any, mass: Any) -> None:
            point[:] = np.sort(centre)

    m = rows_and_columns(Sorted(3), Sorted(3))
    with caplog.at_level(logging.INFO, "blocklp"):
        found = m.compile(backend="triton").solve(method="admm", tol=0, passes=20, project=False)
    assert "Sorted.prox_block is not translated to Triton, for it has `np.sort`" in caplog.text
    known = m.compile(backend="torch").solve(method="admm", tol=0, passes=20, project=False)
    assert torch.equal(found.bound, known.bound)


def test_another_rule_of_the_weight_is_asked() -> None:
    class Doubling(ResidualBalancing):
        def update(self, eta: Tensor, origin: Tensor, passes: int, primal: Tensor, dual: Tensor) -> Tensor:
            return eta * 2

    class Doubled(Quick):
        balance = Doubling()

    plan = plan_of(edges(0))
    state = passed(plan, 4, Doubled())
    assert torch.equal(state.eta, state.first * 4)


# Counts


def test_traffic_of_a_pass() -> None:
    """At most 1.3 times 52 bytes an edge in single precision, where nodes have eight edges.

    Of those 40 are for edges: two places in 16 bits, targets and anchors, t read and written, and a cost; 12 for
    sums.
    """
    n, each = LANES // 4, 4
    draw, m = np.random.default_rng(0), bl.Model()
    ends = np.array([(i, (i + step) % n) for i in range(n) for step in (1, 3, 7, 12)])
    y, z = m.variable("y", n, lower=0, upper=1), m.variable("z", len(ends), lower=0, upper=1)
    m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
    m.minimize(draw.normal(size=n) @ y + draw.normal(size=len(ends)) @ z)
    plan, method = plan_of(m, torch.float32), Admm()
    state = method.start(plan, plan.problem.to_dual(plan.problem.cost), None)
    state = replace(state, anchor=state.iterate.clone(), ready=torch.zeros_like(state.ready))
    found = []
    for passes in (2, 5):
        with traffic() as counted:
            triton_admm._admm_passes(plan, copied(state), 1.8, 3, passes)
        found.append(counted[0])
    assert 40 + 12 <= (found[1] - found[0]) / (3 * n * each) <= 1.3 * 52


def on_device(given: Any, device: torch.device) -> Plan:
    simulated_device.count_triton()
    return plan_of(given, torch.float32, device)


@pytest.mark.parametrize(
    ("case", "together", "most"),
    [("edges, ragged", True, 3), ("edges, ragged", False, 3 * 8), ("knapsacks and boxes", False, 3 * 8)],
)
def test_launches_and_waits(case: str, together: bool, most: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine passes and a look at the weight: three launches in one form, three a pass in the other; no waits.

    However many types there are: independent blocks of different types are in one launch.
    """
    if device.type != simulated_device.NAME:
        pytest.skip("counts are those of the simulated device")
    monkeypatch.setattr(triton_admm, "_together", lambda *_: together)
    plan, method = on_device(CASES[case](), device), Admm()
    state = method.start(plan, plan.problem.to_dual(plan.problem.cost), None)
    for anchored in (False, True):
        passes = 7 + 100 * anchored
        state = replace(state, passes=passes)
        with simulated_device.watch(prefix="blocklp") as trace:
            state, made = method.run(plan, state, 9)
        assert trace.syncs == 0 and trace.launches <= most and made == (9 if anchored else 9 - (passes + 1) % 9)


def test_a_solve_on_a_device(device: torch.device) -> None:
    given = CASES["a user's type"]()
    solver = bl.compile(given, device=device, backend="triton")
    found = solver.solve(method=Quick(), tol=0, passes=12, project=False)
    here = bl.compile(given, backend="torch").solve(method=Quick(), tol=0, passes=12, project=False)
    assert solver.backend == "triton" and found.bound.device.type == device.type
    torch.testing.assert_close(found.bound.cpu(), here.bound, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_kernels_compile_for_a_gpu() -> None:
    """Without the interpreter, which leaves out types: no spills, no fused additions, one lane a thread."""
    lines = compiled_without("admm(edges(), torch.float64, (True,))")
    assert any("name='leap'" in line for line in lines) and any("name='block_pass'" in line for line in lines)
    for line in lines:
        assert "spilled=0" in line and "fused=0, cached=0, singles=0, lanes={1}" in line, line
