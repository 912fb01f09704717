"""Memory of a device: bytes of a block, batches that are larger than it, and what happens when it is out of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.engine import division
from blocklp.errors import DeviceError
from blocklp.problems.qpbo import QuboBatch, roof_duality_batch

from . import simulated_device as simulated
from .triton_interpreter import patch_once

pytestmark = pytest.mark.skipif(not simulated.available(), reason="torch cannot register devices from Python")

BYTES_OF_EDGE = {
    ("admm", torch.float32): 490,
    ("admm", torch.float64): 530,
    ("prox", torch.float32): 510,
    ("prox", torch.float64): 690,
    ("pdhg", torch.float32): 940,
    ("pdhg", torch.float64): 1340,
}
"""What docs/gpu.md states: the peak of building and solving, by method and precision of the iterates."""


@pytest.fixture
def sim() -> torch.device:
    return simulated.install()


def graph(edges: int) -> QuboBatch:
    """A graph of four edges a node, with costs that take dozens of passes."""
    draw, n = np.random.default_rng(0), edges // 4
    later = np.repeat(np.arange(4, n), 4)
    key = np.unique((later * draw.random(len(later)) ** 1.5).astype(np.int64) * n + later)
    ends, weights = np.stack([key // n, key % n], 1), draw.random(n)
    arrays = -weights, ends, weights[ends].max(1), [0, n], [0, len(ends)]
    return QuboBatch(*(torch.as_tensor(part) for part in arrays))


def copies(count: int) -> QuboBatch:
    """So many graphs of one size with different costs."""
    one = graph(400)
    draw = torch.Generator().manual_seed(0)
    linear = one.linear * (0.5 + torch.rand(count, 1, generator=draw, dtype=torch.float64))
    first = torch.arange(count + 1)
    edges, quadratic = one.edges.repeat(count, 1), one.quadratic.repeat(count)
    return QuboBatch(linear.flatten(), edges, quadratic, first * len(one.linear), first * len(one.edges))


@pytest.mark.parametrize(("method", "dtype"), BYTES_OF_EDGE)
def test_bytes_of_an_edge(method: str, dtype: torch.dtype, sim: torch.device) -> None:
    """The same for every size: by ADMM ten million edges take less than 8 GB, a hundred million less than 80 GB."""
    found = []
    for edges in (4_000, 16_000):
        given = graph(edges)
        with simulated.limited(10**9) as memory:
            there = given.to(sim)
            solution = roof_duality_batch(there).compile(dtype=dtype).solve(method=method, passes=41, tol=0)
        assert bool(torch.isfinite(solution.bound).all())
        found.append((memory.peak, len(given.edges)))
    small, large = (peak / count for peak, count in found)
    assert small == pytest.approx(large, rel=0.05)
    assert large <= BYTES_OF_EDGE[method, dtype], large
    more = (found[1][0] - found[0][0]) / (found[1][1] - found[0][1])
    if (method, dtype) == ("admm", torch.float32):
        assert 1e7 * more <= 8e9 and 1e8 * more <= 80e9


def test_bytes_of_an_edge_by_kernels(sim: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """By those of large graphs, whose index tables are wider."""
    pytest.importorskip("triton", reason="triton is not installed")
    patch_once()
    monkeypatch.setattr("blocklp.kernels.triton_admm._together", lambda plan, tables: False)
    for module in ("triton_checks", "triton_check_operations"):
        monkeypatch.setattr(f"blocklp.kernels.{module}.is_small", lambda size: False)
    for module in ("triton_checks", "triton_tables"):
        monkeypatch.setattr(f"blocklp.kernels.{module}.index_dtype", lambda problem: torch.int32)
    given = graph(16_000)
    with simulated.limited(10**9) as memory:
        solver = roof_duality_batch(given.to(sim)).compile(dtype=torch.float32, backend="triton")
        solver.solve(passes=3, tol=0)
    assert solver.backend == "triton" and memory.peak <= 380 * len(given.edges), memory.peak / len(given.edges)


@pytest.fixture
def whole(sim: torch.device) -> Iterator[tuple[bl.Solver, bl.Solution]]:
    """A batch, compiled for the device, and its solution with all memory that it likes."""
    yield _solved(copies(8).to(sim))


def _solved(given: QuboBatch) -> tuple[bl.Solver, bl.Solution]:
    solver = roof_duality_batch(given).compile(dtype=torch.float32)
    return solver, solver.solve(passes=61, tol=1e-4)


@pytest.mark.parametrize("told", [True, False], ids=["free memory is known", "memory runs out"])
def test_a_batch_larger_than_memory_is_solved_in_parts(
    told: bool, whole: tuple[bl.Solver, bl.Solution], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instances have the bits that they have together."""
    solver, before = whole
    sizes: list[int] = []
    started = division.in_turn

    def noted(pieces: Any, work: Any) -> None:
        started(pieces, lambda plan, rows, after: (sizes.append(plan.problem.batch), work(plan, rows, after))[1])

    monkeypatch.setattr("blocklp.engine.loop.in_turn", noted)
    if not told:
        monkeypatch.delattr(simulated._Module, "mem_get_info")
    room = 160 * 8 * solver.decomposition().copies if told else 60 * 8 * solver.decomposition().copies
    with simulated.limited(room) as memory:
        found = solver.solve(passes=61, tol=1e-4)
        assert memory.peak <= room
    assert (memory.refused == 0) == told
    assert max(sizes[1:]) < 8 and sum(sizes) >= 8
    for name in ("bound", "safe_bound", "primal", "raw_x", "passes"):
        assert torch.equal(getattr(found, name).cpu(), getattr(before, name).cpu()), name
    assert found.status == before.status


def test_an_instance_that_does_not_fit_is_named(whole: tuple[bl.Solver, bl.Solution]) -> None:
    solver, _ = whole
    with (
        simulated.limited(70 * solver.decomposition().copies),
        pytest.raises(DeviceError, match=r"memory of sim:0 does not suffice .*on the CPU"),
    ):
        solver.solve(passes=61)


def test_primal_dual_warm_starts_of_parts_are_joined(sim: torch.device) -> None:
    solver = roof_duality_batch(copies(6).to(sim)).compile()
    before = solver.solve(method="pdhg", passes=101, tol=1e-5)
    with simulated.limited(170 * 6 * solver.decomposition().copies):
        found = solver.solve(method="pdhg", passes=101, tol=1e-5)
    assert found.state.saddle is not None and before.state.saddle is not None
    assert torch.equal(found.state.saddle.x.cpu(), before.state.saddle.x.cpu())
    assert torch.equal(found.bound.cpu(), before.bound.cpu())
