"""What a solve on a device costs beside bytes, by counts on the simulated device: kernel launches, and waits of the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.kernels.settings import DEFAULT, EngineSettings
from blocklp.language.compiled_models import ModelList
from blocklp.methods import METHODS
from blocklp.oracles import Edge, Simplex
from blocklp.problems.qpbo import Qubo, QuboBatch, roof_duality_batch

from . import simulated_device
from .test_devices import FAMILIES, qpbo
from .triton_interpreter import patch_once

HOST = {"dantzig-wolfe", "bundle", "newton"}
"""Methods of which the host decides in every pass how it goes on: by simplex or Newton steps, or by what a model is worth."""


@pytest.fixture
def device() -> torch.device:
    """The simulated device, which counts."""
    if not simulated_device.available():
        pytest.skip("this version of torch takes no devices from Python")
    return simulated_device.install()


def counts(solver: bl.Solver, method: str, passes: int, every: int) -> simulated_device.Trace:
    """A solve with so many passes and a check every so often."""
    with simulated_device.watch("blocklp") as trace:
        solver.solve(method=method, passes=passes, check_every=every, tol=0, patience=10**6, project=False)
    return trace


@pytest.mark.parametrize("method", sorted(METHODS.keys() - HOST))
@pytest.mark.parametrize("family", ["QPBO, ragged", "two types", "clusters", "choices and rows"])
def test_the_host_waits_once_a_check(family: str, method: str, device: torch.device) -> None:
    """And not between checks."""
    try:
        solver = bl.compile(FAMILIES[family](), device=device)
        counts(solver, method, 5, 5)
    except OptionError:  # the type lacks what the method needs
        return
    few, many, often = counts(solver, method, 5, 1000), counts(solver, method, 9, 1000), counts(solver, method, 9, 3)
    assert many.syncs == few.syncs, (few.sites(), many.sites())
    assert 0 < often.syncs - many.syncs <= 3, (many.sites(), often.sites())


@pytest.mark.parametrize(("method", "a_pass", "a_check"), [("admm", 75, 340), ("prox", 195, 470), ("pdhg", 80, 470)])
def test_launches_by_tensor_operations(method: str, a_pass: int, a_check: int, device: torch.device) -> None:
    solver = bl.compile([qpbo(seed) for seed in range(3)], device=device)
    counts(solver, method, 3, 5)
    few, many, often = counts(solver, method, 21, 1000), counts(solver, method, 41, 1000), counts(solver, method, 41, 10)
    assert (many.launches - few.launches) / 20 <= a_pass
    assert (often.launches - many.launches) / 4 <= a_check


def test_what_a_check_finds_does_not_wait_for_the_next_one(device: torch.device) -> None:
    """Bounds, points, statuses and passes are those of the check that found an instance done, whenever the host heard of it."""

    def solved(callback: object) -> bl.Solution:
        models = [qpbo(seed, 10 + 2 * (seed % 3)) for seed in range(9)]
        return bl.compile(models, device=device).solve(tol=torch.logspace(-6, -2, 9), passes=400, callback=callback)

    later, at_once = solved(None), solved(lambda event: None)
    assert later.status == at_once.status and len(set(later.passes.tolist())) > 2
    for name in ("bound", "safe_bound", "primal", "passes", "raw_x", "gap"):
        assert torch.equal(getattr(later, name).cpu(), getattr(at_once, name).cpu()), name
    assert torch.equal(later.state.eta.cpu(), at_once.state.eta.cpu())


def test_instances_without_a_point_are_proved_infeasible_there(device: torch.device) -> None:
    m = bl.Model(3)
    x = m.variable("x", (3, 3), lower=0, upper=1)
    m.add(Simplex(3), x)
    m.add(Simplex(3), x.T)
    m.minimize((np.random.default_rng(0).normal(size=(3, 3, 3)) * x).sum())
    upper = torch.ones(3, 3, 3)
    upper[1, :2, 1:] = 0  # two rows have one column between them
    found = bl.compile(m, device=device).solve(bounds={x: (0, upper)}, tol=1e-3, passes=3000)
    here = bl.compile(m).solve(bounds={x: (0, upper)}, tol=1e-3, passes=3000)
    assert [str(s) for s in found.status] == [str(s) for s in here.status]
    assert found.status[1] == bl.Status.INFEASIBLE and found.status[0] == bl.Status.OPTIMAL


def graphs(count: int, settings: EngineSettings = DEFAULT) -> bl.Solver:
    """Graphs of one pattern for kernels that take whole instances, on the simulated device."""
    ends = np.array([(i, (i + step) % 9) for i in range(9) for step in (1, 2)])
    models = []
    for seed in range(count):
        draw, m = np.random.default_rng(seed), bl.Model()
        y, z = m.variable("y", 9, lower=0, upper=1, grid=0.5), m.variable("z", len(ends), lower=0, upper=1)
        m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
        m.minimize(draw.normal(size=9) @ y + draw.normal(size=len(ends)) @ z)
        models.append(m)
    return bl.Solver(ModelList(models), simulated_device.install(), torch.float32, "triton", settings)


@pytest.fixture
def counted_kernels() -> None:
    """Triton's kernels count too."""
    pytest.importorskip("triton", reason="triton is not installed")
    patch_once()
    simulated_device.count_triton()


def watched(solver: bl.Solver, **options: object) -> simulated_device.Trace:
    with simulated_device.watch("blocklp") as trace:
        found = solver.solve(**{"tol": 0, "patience": 10**6, **options})
    assert solver.backend == "triton" and bool((found.passes <= options["passes"] + 1).all())
    return trace


def test_launches_of_a_whole_solve(device: torch.device, counted_kernels: None) -> None:
    """Passes, a look at the weight and a check are a launch, one and three; 277 passes take 4,096 BA-200 to a gap of 0.1 %."""
    short, long = (watched(graphs(1), passes=passes) for passes in (21, 111))
    checks, most = 9, 277
    assert long.launches - short.launches <= 5 * checks, long.report(40)
    assert long.syncs - short.syncs <= checks, long.sites()
    assert long.launches + 5 * (most - 111) / 10 < 600, long.report(40)
    assert long.syncs + (most - 111) / 10 < 60, long.sites()


def test_launches_of_a_graph_that_fills_a_device(
    device: torch.device, counted_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two launches a pass, three a look at the weight and 17 a check."""
    for module in ("triton_checks", "triton_check_operations"):
        monkeypatch.setattr(f"blocklp.kernels.{module}.is_small", lambda size: False)
    settings = EngineSettings(cached_tiles=0, launched_tiles=0)
    short, long = (watched(graphs(1, settings), passes=passes) for passes in (11, 31))
    assert long.launches - short.launches <= 2 * 20 + 2 * (3 + 17), long.report(40)
    assert long.syncs - short.syncs <= 2, long.sites()


@pytest.mark.slow
def test_launches_do_not_depend_on_the_batch_nor_on_who_is_done(device: torch.device, counted_kernels: None) -> None:
    alone, together = (watched(graphs(count), passes=31) for count in (2, 4))
    assert (alone.launches, alone.syncs) == (together.launches, together.syncs)
    leaving = watched(graphs(4), passes=31, tol=torch.tensor([1.0, 0.3, 0.0, 0.0]))
    assert leaving.launches == together.launches and leaving.syncs == together.syncs


def paths(size: int) -> bl.Solver:
    """Two paths of so many nodes, from arrays on the simulated device."""
    ends = np.array([(i, i + 1) for i in range(size - 1)])
    draw = np.random.default_rng(0)
    qubos = QuboBatch.of([Qubo(draw.normal(size=size), ends, draw.normal(size=size - 1)) for _ in range(2)])
    there = roof_duality_batch(qubos.to(simulated_device.install()))
    return there.compile(dtype=torch.float32, backend="triton")


def test_start_and_end_of_a_solve(device: torch.device, counted_kernels: None) -> None:
    """Tables are laid out in the first solve, and no solve moves the problem between host and device."""
    solver = paths(8)
    first, later = (watched(solver, passes=2) for _ in range(2))
    assert later.launches <= 250, later.report(40)
    assert first.launches - later.launches >= 80, later.report(40)
    assert first.syncs - later.syncs >= 5 and later.syncs <= 10, later.sites()
    larger = paths(24)
    assert watched(larger, passes=2).moved == first.moved and watched(larger, passes=2).moved == later.moved
