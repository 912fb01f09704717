"""Triton's operations on rows, in its interpreter: they do what the definitions say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blocklp.kernels.plan import summed_by

from ... import simulated_device, triton_interpreter
from .triton_programs import CASES, EXACT, REAL, definition, graph, in_triton, plan_of, small, triton

pytest.importorskip("triton", reason="Triton is not installed")

from blocklp.kernels import row_tables, triton_projection, triton_rows
from blocklp.kernels.row_tables import LONG, SparseSums

triton_interpreter.patch_once()


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


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("case", CASES)
def test_products(case: str, dtype: torch.dtype) -> None:
    draw = np.random.default_rng(1)
    plan = plan_of(*CASES[case](draw), dtype=dtype)
    problem, program = plan.problem, plan.program
    x = torch.tensor(draw.normal(size=tuple(program.reach.shape))).to(dtype)
    y = torch.tensor(draw.normal(size=tuple(program.lower.shape))).to(dtype)
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


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("case", ["batch", "ragged"])
def test_projection(case: str, dtype: torch.dtype, dealt: str) -> None:
    """Points of all instances, and how many passes each took; one of them needs none."""
    draw = np.random.default_rng(3)
    plan = plan_of(*CASES[case](draw), dtype=dtype)
    shape = tuple(plan.program.reach.shape)
    x = torch.tensor(draw.uniform(0, 1, shape)).to(dtype)
    slack = torch.full_like(plan.program.lower, 2e-2)
    slack[0] = 100
    found, known = (
        way("projection_passes")(own, x, slack, 30) for way, own in ((triton, in_triton(plan, dealt)), (definition, plan))
    )
    assert torch.equal(found[1], known[1]) and int(known[1][0]) == 1 < int(known[1].max()) < 30
    torch.testing.assert_close(found[0], known[0], **EXACT[dtype])
    assert found[1].dtype == known[1].dtype


def test_projection_makes_no_more_passes_than_asked_for(dealt: str) -> None:
    plan = plan_of(small(np.random.default_rng(3)))
    x, slack = torch.ones_like(plan.program.reach), torch.zeros_like(plan.program.lower)
    found, passes = triton("projection_passes")(in_triton(plan, dealt), x, slack, 4)
    known, _ = definition("projection_passes")(plan, x, slack, 4)
    assert passes.tolist() == [4, 4]
    torch.testing.assert_close(found, known, **EXACT[torch.float64])


def test_a_projection_waits_for_nothing_between_looks(device: torch.device, dealt: str) -> None:
    if device.type != simulated_device.NAME:
        pytest.skip("launches are counted on the simulated device")
    simulated_device.count_triton()
    plan = in_triton(plan_of(graph(np.random.default_rng(0), 4), device=str(device)), dealt)
    x = torch.ones_like(plan.program.reach)
    triton("projection_passes")(plan, x, torch.zeros_like(plan.program.lower), 1)  # lays the tables out
    with simulated_device.watch() as trace:
        triton("projection_passes")(plan, x, torch.zeros_like(plan.program.lower), triton_projection.BETWEEN)
    assert trace.syncs == 0
    assert trace.launches <= (3 * triton_projection.BETWEEN + 12 if dealt == "tiles" else 12)
