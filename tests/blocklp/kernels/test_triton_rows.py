"""Triton's operations on rows, in its interpreter: they do what the definitions say, whatever is beside an instance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.kernels.backend import Backend
from blocklp.kernels.operations import IMPLEMENTATIONS, OPERATIONS
from blocklp.kernels.plan import Plan, summed_by
from blocklp.methods.pdhg import Pdhg, PdhgState
from blocklp.oracles import Edge, Knapsack, Simplex

from ... import simulated_device, triton_interpreter

pytest.importorskip("triton", reason="Triton is not installed")

from blocklp.kernels import row_tables, triton_projection, triton_rows
from blocklp.kernels.row_tables import LONG, SparseSums

triton_interpreter.patch_once()

EXACT = {torch.float64: {"rtol": 1e-12, "atol": 1e-12}, torch.float32: {"rtol": 1e-5, "atol": 1e-5}}
"""How far an operation may be from its definition."""

REAL = list(EXACT)


def small(draw: np.random.Generator, batch: int = 2) -> bl.Model:
    """Two groups, one with entries of its own, rows beside them on one side or both, and one of a single entry."""
    m = bl.Model(batch)
    x = m.variable("x", (4, 3), lower=0, upper=1)
    m.add(Simplex(3), x)
    m.add(Knapsack(draw.integers(1, 9, (3, 4)), 10.0), x.T)
    m.add(draw.uniform(-1, 1, (3, 12)) @ x.reshape(-1) <= 0.5)
    m.add(draw.uniform(0, 1, (1, 12)) @ x.reshape(-1) >= 0.5)
    m.add(2 * x[0, 0] + 0 * x[0, 1] <= 1.5)
    m.minimize((draw.normal(size=(batch, 4, 3)) * x).sum())
    return m


def graph(draw: np.random.Generator, nodes: int, degree: int = 2) -> bl.Model:
    """Edges of a graph, as roof duality has them."""
    ends = np.array([(i, (i + step) % nodes) for i in range(nodes) for step in range(1, degree + 1)])
    m = bl.Model()
    y, z = m.variable("y", nodes, lower=0, upper=1), m.variable("z", len(ends), lower=0, upper=1)
    m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
    m.minimize((draw.normal(size=nodes) * y).sum() + (draw.normal(size=len(ends)) * z).sum())
    return m


def long(draw: np.random.Generator) -> bl.Model:
    """A row and a variable of more terms than a thread adds up, beside short ones."""
    count = LONG + 6
    m = bl.Model(2)
    x = m.variable("x", count + 1, lower=0, upper=1)
    m.add(Knapsack(draw.integers(0, 9, (1, count)), 40.0), x[None, :count])
    m.add(np.hstack([np.eye(count), draw.uniform(0.1, 1, (count, 1))]) @ x <= 1.2)
    m.minimize((draw.normal(size=(2, count + 1)) * x).sum())
    return m


def plan_of(*models: bl.Model, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Plan:
    """A plan of definitions, whose program is written."""
    given = models[0] if len(models) == 1 else list(models)
    problem = bl.compile(given, backend="torch", device=device).decomposition()
    plan = Plan(problem.to(dtype))
    assert plan.program.backend.name == "auto"
    return plan


def in_triton(plan: Plan) -> Plan:
    """The plan, with Triton's operations."""
    programs = {kind: replace(own, backend=Backend("triton")) for kind, own in plan.programs.items()}
    return replace(plan, backend=Backend("triton"), programs=programs)


def copied(state: PdhgState) -> PdhgState:
    """A state whose tensors are its own."""

    def own(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(own, value))
        return value.clone() if isinstance(value, Tensor) else value

    return replace(state, **{f.name: own(getattr(state, f.name)) for f in fields(state)})


def triton(name: str) -> Any:
    """Triton's implementation of an operation."""
    return IMPLEMENTATIONS[name, "triton"][0].function


def definition(name: str) -> Any:
    return OPERATIONS[name].definition


@pytest.fixture(params=["whole", "tiles"])
def dealt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One program makes all passes of an instance, or each tile is a program of its own."""
    if request.param == "tiles":
        monkeypatch.setattr(triton_rows, "CACHED", 0)
        monkeypatch.setattr(triton_rows, "SMALL", 0)
    yield request.param


def begun(plan: Plan, passes: int = 0) -> PdhgState:
    """A state of PDHG some passes from its start, by definitions."""
    problem = plan.problem
    state = Pdhg().start(plan, problem.to_dual(problem.cost), None)
    return definition("pdhg_passes")(plan, state, Pdhg(longest=passes), passes)[0] if passes else state


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_sums_of_any_lengths(seed: int, shared: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty sums, single terms, several tiles and long sums, with tables of one instance or of all."""
    draw = np.random.default_rng(seed)
    lengths = draw.choice([0, 1, 2, 5, LONG, LONG + 1, 3 * row_tables.TILE], size=9, p=[0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1])
    runs = [4, 5]
    if seed == 2:
        lengths, runs = draw.integers(0, 3, 2 * row_tables.TILE + 3), [row_tables.TILE + 1, row_tables.TILE + 2]
    batch, places = 3, 11
    each = np.repeat(np.arange(len(lengths)), lengths)
    targets = torch.tensor(np.array([draw.permutation(each) for _ in range(1 if shared else batch)]))
    count = targets.shape[1]
    sources = torch.tensor(draw.integers(0, places, (len(targets), count)))
    numbers = torch.tensor(draw.permutation(count))
    entries = torch.tensor(draw.normal(size=(1 if shared else batch, count)) * (draw.random(count) < 0.8)).to(dtype)
    zero = (entries == 0).all(0)[numbers]
    sums = SparseSums.of(targets, sources, numbers, zero, runs)
    values = torch.tensor(draw.normal(size=(batch, places))).to(dtype)
    found = triton_rows.products(sums, entries, values, len(lengths))
    terms = entries[:, numbers] * values.gather(1, sources.expand(batch, -1))
    known = values.new_zeros(batch, len(lengths)).scatter_add_(1, targets.expand(batch, -1), terms)
    torch.testing.assert_close(found, known, **EXACT[dtype])
    picked = torch.tensor([2, 0])
    own = entries if shared else entries[picked]
    some = triton_rows.products(sums.select(picked), own, values[picked], len(lengths))
    assert torch.equal(some, found[picked])


CASES = {
    "batch": lambda draw: [small(draw)],
    "ragged": lambda draw: [graph(draw, 4), graph(draw, 5)],
    "long": lambda draw: [long(draw)],
}


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("case", CASES)
def test_products(case: str, dtype: torch.dtype) -> None:
    draw = np.random.default_rng(1)
    plan = plan_of(*CASES[case](draw), dtype=dtype)
    problem, program = plan.problem, plan.program
    x = torch.tensor(draw.normal(size=tuple(program.column.shape))).to(dtype)
    y = torch.tensor(draw.normal(size=tuple(program.row.shape))).to(dtype)
    absolute = program.coupling and program.coupling.absolute()
    for rows in ((program.entries, program.coupling), (program.entries.abs(), absolute)):
        given = program, problem, rows, x
        torch.testing.assert_close(triton("row_products")(*given), definition("row_products")(*given), **EXACT[dtype])
    blocks = slice(0, problem.in_blocks)
    found, known = (way("row_adjoints")(program, problem, y) for way in (triton, definition))
    assert found.shape == known.shape
    torch.testing.assert_close(found[:, blocks], known[:, blocks], **EXACT[dtype])
    found, known = (way("row_extremes")(program, problem, y) for way in (triton, definition))
    assert torch.equal(found[0], known[0]) and torch.equal(found[1], known[1])


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("case", CASES)
def test_copies_are_summed(case: str, dtype: torch.dtype) -> None:
    """As the definition sums them, for some instances too, and with prices of rows beside the copies."""
    plan = plan_of(*CASES[case](np.random.default_rng(1)), dtype=dtype)
    sums, problem = triton("copy_sums")(plan), plan.problem
    ours = summed_by(problem, sums)
    copies = torch.randn(problem.batch, problem.copies, generator=torch.Generator().manual_seed(0), dtype=dtype)
    torch.testing.assert_close(ours.collect(copies), problem.collect(copies), **EXACT[dtype])
    second = torch.tensor([1])
    assert torch.equal(ours.select(second).collect(copies[1:]), ours.collect(copies)[1:])


def test_a_device_sums_copies_in_one_launch(device: torch.device) -> None:
    """From the incidence that it has sorted for the tensor operations."""
    if device.type != simulated_device.NAME:
        pytest.skip("launches are counted on the simulated device")
    simulated_device.count_triton()
    plan = plan_of(graph(np.random.default_rng(0), 5), device=str(device))
    sums, problem = triton("copy_sums")(plan), plan.problem
    copies = problem.spread(problem.cost)
    with simulated_device.watch() as trace:
        found = sums(copies)
    assert trace.launches == 1 and trace.syncs == 0
    torch.testing.assert_close(found.cpu(), problem.collect(copies).cpu(), rtol=1e-12, atol=1e-12)


NAMES = "now", "first", "bar", "eta", "age", "residual", "first_residual"


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("case", CASES)
def test_passes_of_pdhg(case: str, dtype: torch.dtype, dealt: str) -> None:
    """The first pass, the one after which a new epoch begins, and those in which it does, are those of the definition."""
    plan, method = plan_of(*CASES[case](np.random.default_rng(2)), dtype=dtype), Pdhg()
    states = [begun(plan)]
    while not bool((states[-1].age == 0).any()) or len(states) == 1:
        states.append(definition("pdhg_passes")(plan, copied(states[-1]), method, 1)[0])
    assert len(states) < 100
    for state, many in ((states[0], 1), (states[-2], 1), (states[-2], 4)):
        found, count = triton("pdhg_passes")(in_triton(plan), copied(state), method, many)
        known, _ = definition("pdhg_passes")(plan, copied(state), method, many)
        assert count == many and found.passes == known.passes
        for name in NAMES:
            torch.testing.assert_close(getattr(found, name), getattr(known, name), **EXACT[dtype], msg=partial("{}: {}".format, name))
        torch.testing.assert_close(found.pulled.sum(1), known.pulled.sum(1), **EXACT[dtype])


def test_an_instance_has_its_bits_whatever_is_beside_it(dealt: str) -> None:
    """In a batch whose other graph needs more blocks and variables, and in every run."""
    models = [graph(np.random.default_rng(k), nodes) for k, nodes in enumerate((4, 6))]
    kept: list[PdhgState] = []
    for given in (models, models, models[:1]):
        plan = plan_of(*given)
        kept.append(triton("pdhg_passes")(in_triton(plan), begun(plan), Pdhg(), 6)[0])
    beside, again, alone = kept
    assert torch.equal(beside.now[0], again.now[0]) and torch.equal(beside.residual, again.residual)
    for name in ("eta", "age", "residual", "first_residual"):
        assert torch.equal(getattr(beside, name)[:1], getattr(alone, name)), name
    assert torch.equal(beside.bar[0][:1, : alone.bar[0].shape[1] - 1], alone.bar[0][:, :-1])


def test_tiles_and_whole_instances_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(small(np.random.default_rng(0)))
    state, found = begun(plan), []
    for tiles in (0, 10**9):
        monkeypatch.setattr(triton_rows, "CACHED", tiles)
        monkeypatch.setattr(triton_rows, "SMALL", tiles)
        found.append(triton("pdhg_passes")(in_triton(plan), copied(state), Pdhg(), 6)[0])
    for name in NAMES:
        torch.testing.assert_close(getattr(found[0], name), getattr(found[1], name), rtol=0, atol=0)
    assert torch.equal(found[0].pulled, found[1].pulled)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("case", ["batch", "ragged"])
def test_projection(case: str, dtype: torch.dtype, dealt: str) -> None:
    """Points of all instances, and how many passes each took; one of them needs none."""
    draw = np.random.default_rng(3)
    plan = plan_of(*CASES[case](draw), dtype=dtype)
    shape = tuple(plan.program.column.shape)
    x = torch.tensor(draw.uniform(0, 1, shape)).to(dtype)
    slack = torch.full_like(plan.program.row, 2e-2)
    slack[0] = 100
    found, known = (way("projection_passes")(own, x, slack, 30) for way, own in ((triton, in_triton(plan)), (definition, plan)))
    assert torch.equal(found[1], known[1]) and int(known[1][0]) == 1 < int(known[1].max()) < 30
    torch.testing.assert_close(found[0], known[0], **EXACT[dtype])
    assert found[1].dtype == known[1].dtype


def test_projection_makes_no_more_passes_than_asked_for(dealt: str) -> None:
    plan = plan_of(small(np.random.default_rng(3)))
    x, slack = torch.ones_like(plan.program.column), torch.zeros_like(plan.program.row)
    found, passes = triton("projection_passes")(in_triton(plan), x, slack, 4)
    known, _ = definition("projection_passes")(plan, x, slack, 4)
    assert passes.tolist() == [4, 4]
    torch.testing.assert_close(found, known, **EXACT[torch.float64])


def test_a_solve_by_pdhg_finds_the_optimum() -> None:
    m = graph(np.random.default_rng(5), 3, 1)
    solver = m.compile(backend="triton", dtype=torch.float64)
    found, optimum = solver.solve(method="pdhg", tol=1e-4, passes=150), bl.reference(m).objective
    assert solver.backend == "triton"
    assert bool(found.bound <= optimum + 1e-9) and bool(found.primal >= optimum - 1e-9)
    assert bool(found.primal - found.bound <= 2e-4 * (1 + optimum.abs()))


def test_passes_launch_three_kernels_at_most_and_wait_for_nothing(device: torch.device, dealt: str) -> None:
    if device.type != simulated_device.NAME:
        pytest.skip("launches are counted on the simulated device")
    simulated_device.count_triton()
    plan = in_triton(plan_of(graph(np.random.default_rng(0), 5), device=str(device)))
    state, passes = begun(plan), 20
    triton("pdhg_passes")(plan, copied(state), Pdhg(), 1)  # lays the tables out
    with simulated_device.watch() as trace:
        state, count = triton("pdhg_passes")(plan, state, Pdhg(), passes)
    assert count == passes and trace.syncs == 0
    assert trace.launches <= (3 * passes if dealt == "tiles" else 20)
    x = torch.ones_like(plan.program.column)
    with simulated_device.watch() as trace:
        triton("projection_passes")(plan, x, torch.zeros_like(plan.program.row), triton_projection.BETWEEN)
    assert trace.syncs == 0
    assert trace.launches <= (3 * triton_projection.BETWEEN + 12 if dealt == "tiles" else 12)
