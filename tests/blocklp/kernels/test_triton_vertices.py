"""Triton's pairwise steps on vertices, in its interpreter: they do what the definitions say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.kernels.backend import Backend
from blocklp.kernels.operations import IMPLEMENTATIONS, OPERATIONS
from blocklp.kernels.plan import Plan
from blocklp.methods import active_set as atom
from blocklp.methods.prox import Prox, ProxStepState
from blocklp.methods.sweeps import Asked, OracleQuery
from blocklp.oracles import AtMostOne, Edge

from ... import simulated_device, triton_interpreter
from ...block_types import Oracle

pytest.importorskip("triton", reason="Triton is not installed")

from blocklp.methods import triton_prox, triton_vertices

assert triton_prox and triton_vertices
triton_interpreter.patch_once()

EXACT = {torch.float64: {"rtol": 1e-12, "atol": 1e-12}, torch.float32: {"rtol": 1e-5, "atol": 2e-5}}
"""How far an operation may be from its definition."""

REAL = list(EXACT)


class Many(bl.FiniteVertices):
    """A table of 24 vertices in general position."""

    vertices = np.random.default_rng(7).uniform(-1, 1, (24, 3)).tolist()


def graph(draw: np.random.Generator, nodes: int = 5, batch: int = 1) -> bl.Model:
    """Edges of a graph; one of its nodes is fixed, so that vertices are excluded."""
    ends = np.array([(i, (i + step) % nodes) for i in range(nodes) for step in (1, 2)])
    upper = np.ones(nodes)
    upper[2] = 0
    m = bl.Model(batch)
    y, z = m.variable("y", nodes, lower=0, upper=upper), m.variable("z", len(ends), lower=0, upper=1)
    m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
    m.minimize((draw.normal(size=(batch, nodes)) * y).sum() + (draw.normal(size=(batch, len(ends))) * z).sum())
    return m


def crossed(*kinds: bl.BlockType) -> Callable[[np.random.Generator], list[bl.Model]]:
    """Blocks in rows, and of another type in columns, which share all variables."""

    def stated(draw: np.random.Generator) -> list[bl.Model]:
        m = bl.Model(2)
        x = m.variable("x", (6, 3), lower=-1, upper=1)
        for kind, scope in zip(kinds, (x, x.T.reshape(6, 3)), strict=True):
            m.add(kind, scope)
        m.minimize((draw.normal(size=(2, 6, 3)) * x).sum())
        return [m]

    return stated


CASES: dict[str, Callable[[np.random.Generator], list[bl.Model]]] = {
    "batch": lambda draw: [graph(draw, batch=2)],
    "ragged": lambda draw: [graph(draw, 5), graph(draw, 7)],
    "groups": crossed(Many(), AtMostOne(3)),
    "oracles": crossed(Oracle(), Oracle()),
}


def plans(case: str, seed: int, dtype: torch.dtype, device: str = "cpu") -> tuple[Plan, Plan]:
    """A plan of definitions, and one of Triton's operations."""
    models = CASES[case](np.random.default_rng(seed))
    given = models[0] if len(models) == 1 else models
    problem = bl.compile(given, backend="torch", device=device).decomposition().to(dtype)
    return Plan(problem), Plan(problem, backend=Backend("triton"))


def triton(name: str, *args: Any) -> Any:
    """Triton's implementation of an operation, which must serve these arguments."""
    found = IMPLEMENTATIONS[name, "triton"][0]
    assert found.serves(*args)
    return found.function(*args)


def definition(name: str, *args: Any) -> Any:
    return OPERATIONS[name].definition(*args)


def begun(plan: Plan, passes: int) -> ProxStepState:
    """A state of Prox after some passes by definitions."""
    plan = Plan(plan.problem)
    problem = plan.problem
    state = Prox().start(plan, problem.to_dual(problem.cost), None)
    for _ in range(passes):
        state = Prox().step(plan, state)
    return state


def own(atoms: atom.Atoms) -> atom.Atoms:
    """Vertices that may be written over."""
    return atom.VertexCache(atoms.points.clone(), atoms.coupled) if isinstance(atoms, atom.VertexCache) else atoms


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("passes", [0, 3])
@pytest.mark.parametrize("case", CASES)
def test_oracles_are_asked(case: str, passes: int, dtype: torch.dtype) -> None:
    plain, ours = plans(case, 0, dtype)
    state = begun(plain, passes)
    for group, atoms, weights, earlier in zip(plain.problem.groups, state.atoms, state.weights, state.earlier, strict=True):
        found, known = [], []
        for kept, way, plan in ((found, triton, ours), (known, definition, plain)):
            duals = torch.full_like(state.duals, torch.nan)
            query = OracleQuery(plan.problem, state.points, state.centre, state.eta, duals)
            answer, values = way("ask_group", plan, group, query, own(atoms), weights.clone(), earlier.clone())
            kept += [values, duals[:, group.start : group.stop], answer.weights, answer.earlier]
            kept += [answer.atoms.points] if isinstance(answer.atoms, atom.VertexCache) else []
        for one, other in zip(found, known, strict=True):
            torch.testing.assert_close(one, other, **EXACT[dtype])


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("case", CASES)
def test_blocks_advance(case: str, dtype: torch.dtype) -> None:
    """Weights, points and extrapolation after a step; a second one would be between vertices that tie, by rounding."""
    plain, ours = plans(case, 1, dtype)
    state = begun(plain, 4)
    momentum = torch.linspace(0.1, 0.7, len(state.eta), dtype=dtype)
    for group, atoms, weights, earlier in zip(plain.problem.groups, state.atoms, state.weights, state.earlier, strict=True):
        answer = atoms.answer(group, state.duals, weights, earlier)
        found = []
        for way, plan in ((triton, ours), (definition, plain)):
            points, steps = state.points.clone(), (state.duals, state.eta, momentum, 1)
            mine = answer._replace(weights=answer.weights.clone(), earlier=answer.earlier.clone())
            stepped, ahead = way("advance_group", plan, group, mine, steps, points)
            assert torch.equal(points[:, : group.start], state.points[:, : group.start])
            found.append((stepped, ahead, points))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, **EXACT[dtype])


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("case", CASES)
def test_steps_to_points(case: str, dtype: torch.dtype) -> None:
    """Passes at other slopes, so that caches keep answers that they have and that they have not; all from the definition's state."""
    plain, ours = plans(case, 2, dtype)
    state = begun(plain, 0)
    draw = torch.Generator().manual_seed(0)
    for number, group in enumerate(plain.problem.groups):
        kept = [(own(state.atoms[number]), state.weights[number].clone()) for _ in range(2)]
        for _ in range(4):
            slopes = torch.randn(state.points.shape, generator=draw, dtype=dtype)
            found = []
            for k, (way, plan) in enumerate(((triton, ours), (definition, plain))):
                points = state.points.clone()
                kept[k] = way("steps_to_points", plan, group, *kept[k], (points, slopes, state.eta), 1)
                found.append(points)
            torch.testing.assert_close(*found, **EXACT[dtype])
            torch.testing.assert_close(kept[0][1], kept[1][1], **EXACT[dtype])
            if isinstance(kept[0][0], atom.VertexCache):
                torch.testing.assert_close(kept[0][0].points, kept[1][0].points, **EXACT[dtype])
            kept[0] = own(kept[1][0]), kept[1][1].clone()


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("eta", [None, 0.7])
def test_instances_leave_their_proximal_problems(eta: float | None, dtype: torch.dtype) -> None:
    """By the gap, by the number of steps, after a fall and after much or little of the increase that was predicted."""
    plain, ours = plans("batch", 0, dtype)
    draw = torch.Generator().manual_seed(0)

    def drawn(low: float, high: float, count: int = 400) -> torch.Tensor:
        return torch.rand(count, generator=draw, dtype=dtype) * (high - low) + low

    model, value, gap = drawn(0, 1), drawn(-1, 1), drawn(0, 1)
    answers = torch.stack([model, value, value + gap], 1)
    asked = Asked(value, *answers.unbind(1), ())
    numbers = {"eta": drawn(0.1, 2), "origin": drawn(0.1, 2), "centres": drawn(0, 40).round(), "inner": drawn(0, 60).round()}
    numbers |= {"effort": drawn(1, 6), "momentum": drawn(1, 9), "centre_value": value - drawn(-0.3, 2)}
    state = replace(begun(plain, 0), **numbers)
    found, known = (way("prox_schedule", plan, Prox(eta), state, asked) for way, plan in ((triton, ours), (definition, plain)))
    assert torch.equal(found[0], known[0]) and 50 < int(known[0].sum()) < 350
    torch.testing.assert_close(found[1:], known[1:], **EXACT[dtype])


def test_an_instance_has_its_bits_whatever_is_beside_it() -> None:
    """In a batch whose other graph has more blocks, and in every run."""
    models = CASES["ragged"](np.random.default_rng(0))
    kept: list[ProxStepState] = []
    for given in (models, models, models[:1]):
        problem = bl.compile(given, backend="torch").decomposition()
        plan = Plan(problem, backend=Backend("triton"))
        state = Prox().start(plan, problem.to_dual(problem.cost), None)
        for _ in range(4):
            state = Prox().step(plan, state)
        kept.append(state)
    beside, again, alone = kept
    assert torch.equal(beside.points, again.points)
    blocks = alone.weights[0].shape[2]
    assert torch.equal(beside.weights[0][:1, :, :blocks], alone.weights[0])
    assert torch.equal(beside.value[:1], alone.value)


def test_a_solve_by_prox_finds_the_optimum() -> None:
    m = graph(np.random.default_rng(3), batch=2)
    solver = m.compile(backend="triton", dtype=torch.float64)
    found, optimum = solver.solve(method="prox", tol=1e-4, passes=60), bl.reference(m).objective
    assert solver.backend == "triton"
    assert bool((found.bound <= optimum + 1e-9).all())
    assert bool((optimum - found.bound <= 1e-3 * (1 + optimum.abs())).all())


@pytest.mark.slow
def test_instances_leave_a_solve_on_a_device(device: torch.device) -> None:
    """Graphs of three sizes, each done at another check, end as they do by the definitions."""
    models = [graph(np.random.default_rng(k), nodes) for k, nodes in enumerate((4, 6, 5))]
    ours, theirs = (
        bl.compile(models, backend=name, device=where, dtype=torch.float64).solve(method="prox", tol=1e-3, passes=45)
        for name, where in (("triton", device), ("torch", "cpu"))
    )
    assert torch.equal(ours.passes.cpu(), theirs.passes) and len(set(theirs.passes.tolist())) > 1
    torch.testing.assert_close(ours.bound.cpu(), theirs.bound, rtol=1e-9, atol=1e-9)


def test_a_pass_waits_for_nothing(device: torch.device) -> None:
    if device.type != simulated_device.NAME:
        pytest.skip("launches are counted on the simulated device")
    simulated_device.count_triton()
    plan = plans("batch", 0, torch.float32, str(device))[1].settled(torch.float32, 10**9)
    state = Prox().step(plan, begun(plan, 0))
    with simulated_device.watch() as trace:
        Prox().step(plan, state)
    assert trace.syncs == 0
    launched = [event.operator for event in trace.events if event.operator.startswith("vertex")]
    assert launched == ["vertex_ask", "vertex_totals", "vertex_steps"]
    assert trace.launches <= 10
