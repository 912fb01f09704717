"""Triton's passes of PDHG, in its interpreter: those of the definition, whatever is beside an instance."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.methods.pdhg import Pdhg, PdhgState

from ... import simulated_device, triton_interpreter
from .triton_programs import CASES, EXACT, REAL, begun, copied, definition, graph, in_triton, plan_of, small, triton

pytest.importorskip("triton", reason="Triton is not installed")


triton_interpreter.patch_once()

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
        found, count = triton("pdhg_passes")(in_triton(plan, dealt), copied(state), method, many)
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
        kept.append(triton("pdhg_passes")(in_triton(plan, dealt), begun(plan), Pdhg(), 6)[0])
    beside, again, alone = kept
    assert torch.equal(beside.now[0], again.now[0]) and torch.equal(beside.residual, again.residual)
    for name in ("eta", "age", "residual", "first_residual"):
        assert torch.equal(getattr(beside, name)[:1], getattr(alone, name)), name
    assert torch.equal(beside.bar[0][:1, : alone.bar[0].shape[1] - 1], alone.bar[0][:, :-1])


def test_tiles_and_whole_instances_give_the_same_bits() -> None:
    plan = plan_of(small(np.random.default_rng(0)))
    state, found = begun(plan), []
    for dealt in ("tiles", "whole"):
        found.append(triton("pdhg_passes")(in_triton(plan, dealt), copied(state), Pdhg(), 6)[0])
    for name in NAMES:
        torch.testing.assert_close(getattr(found[0], name), getattr(found[1], name), rtol=0, atol=0)
    assert torch.equal(found[0].pulled, found[1].pulled)


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
    plan = in_triton(plan_of(graph(np.random.default_rng(0), 5), device=str(device)), dealt)
    state, passes = begun(plan), 20
    triton("pdhg_passes")(plan, copied(state), Pdhg(), 1)  # lays the tables out
    with simulated_device.watch() as trace:
        state, count = triton("pdhg_passes")(plan, state, Pdhg(), passes)
    assert count == passes and trace.syncs == 0
    assert trace.launches <= (3 * passes if dealt == "tiles" else 20)


def test_traffic_of_a_pass(dealt: str) -> None:
    """At most 1.3 times what a pass over variables and one over rows read and write, in single precision.

    A term of a product is 16 bytes: an entry, its number, and the place and value of its other factor; there are two products. A
    variable is 36 bytes: where its terms begin, two iterates, its step, a cost and bounds read, two iterates written. A row is 52:
    where its terms begin, two iterates and two activities, two steps and sides read, two iterates and two activities written.
    """
    nodes, degree = 96, 4
    plan = in_triton(plan_of(graph(np.random.default_rng(0), nodes, degree), dtype=torch.float32))
    state, found = begun(plan), []
    for passes in (2, 12):
        with triton_interpreter.traffic() as counted:
            triton("pdhg_passes")(plan, copied(state), Pdhg(), passes)
        found.append(counted[0])
    edges = nodes * degree
    terms, variables, rows = 7 * edges, nodes + edges, 3 * edges
    model = 2 * 16 * terms + 36 * variables + 52 * rows
    assert model <= (found[1] - found[0]) / 10 <= 1.3 * model
