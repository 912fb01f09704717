"""The compiled sweeps do what the tensor operations do, and keep the promises of the package."""

from __future__ import annotations

import logging
from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.decomposition.problem import Decomposition
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.plan import Plan
from blocklp.methods import sweeps
from blocklp.methods.prox import Prox, ProxStepState
from blocklp.oracles import Edge, Simplex, Triangle

from ..random_models import random_model

pytest.importorskip("numba")


@pytest.fixture
def compiled(use_backend: Callable[[str], None]) -> None:
    use_backend("numba")


def model(batch: int, fixed: bool) -> bl.Model:
    """Edges, triangles and one-hot blocks on 300 variables, more blocks than a tile holds."""
    rng = np.random.default_rng(batch)
    m = bl.Model(batch)
    low, high = np.zeros(300), np.ones(300)
    if fixed:
        high[rng.choice(300, 30, replace=False)] = 0
        low[[5, 200]] = high[[5, 200]] = 1
    x = m.variable("x", 300, lower=low, upper=high)
    for kind, count in ((Edge(), 700), (Triangle(), 90), (Simplex(3), 20)):
        assert kind.dim is not None
        m.add(kind, x[np.stack([rng.choice(300, kind.dim, replace=False) for _ in range(count)])])
    m.minimize(rng.standard_normal((batch, 300)) @ x if batch > 1 else rng.standard_normal(300) @ x)
    return m


def state(problem: Decomposition) -> ProxStepState:
    """A state in the middle of a run, its weights scattered so that no two atoms tie."""
    found = Prox().start(Plan(problem), problem.to_dual(problem.cost), None)
    for _ in range(3):
        found = Prox().step(Plan(problem), found)
    draw = torch.Generator().manual_seed(0)
    duals = found.centre + torch.randn(found.centre.shape, generator=draw, dtype=torch.float64).to(found.centre)

    def scatter(weights: Tensor) -> Tensor:
        mixed = weights + 0.3 * torch.rand(weights.shape, generator=draw, dtype=torch.float64).to(weights) * (weights > 0)
        return mixed / mixed.sum(1, keepdim=True).clamp(min=1e-30)

    weights = tuple(scatter(w) for w in found.weights)
    points = torch.empty_like(found.points)
    for group, atoms, w in zip(problem.groups, found.atoms, weights, strict=True):
        group.rows(points).copy_(atoms.combine(w))
    return ProxStepState(**{**vars(found), "centre": duals, "weights": weights, "points": points})


def answers(plan: Plan, now: ProxStepState) -> sweeps.Asked:
    """Answers with weights of their own, which the next sweep may write over."""
    weights, earlier = (tuple(w.clone() for w in ws) for ws in (now.weights, now.earlier))
    return sweeps.ask(plan, now.points, now.centre, now.eta, now.atoms, weights, earlier)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_sweeps_are_the_tensor_operations(batch: int, fixed: bool, dtype: torch.dtype, use_backend: Callable[[str], None]) -> None:
    problem = model(batch, fixed).compile().decomposition().to(dtype)
    now = state(problem)
    asked, advanced = [], []
    push = torch.linspace(0.2, 0.9, batch, dtype=dtype)
    for backend in ("torch", "numba"):
        use_backend(backend)
        plan = Plan(problem).settled(dtype, 1)
        asked.append(answers(plan, now))
        advanced.append(sweeps.advance(plan, answers(plan, now), now.points.clone(), now.eta, push, 1))
    assert asked[0].answers[0].values.numel() and not asked[1].answers[0].values.numel()  # they did run
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
    for name in ("duals", "model", "value", "cost"):
        torch.testing.assert_close(getattr(asked[1], name), getattr(asked[0], name), **close)
    torch.testing.assert_close(advanced[1], advanced[0], **close)
    # A step of the best length makes two atoms tie, so that rounding chooses the second one: it must descend all the same.
    twice = sweeps.advance(plan, answers(plan, now), now.points.clone(), now.eta, push, 2)
    for k, group in enumerate(problem.groups):
        answer, gram = asked[0].answers[k], getattr(now.atoms[k], "gram", None)
        if gram is None:
            continue

        def cost(w: Tensor, values: Tensor = answer.values, start: Tensor = now.weights[k], gram: Tensor = gram) -> Tensor:
            move = w - start
            return (values * move).sum(1) + (move * (gram @ move)).sum(1) / (2 * now.eta[:, None])

        once = cost(advanced[1][1][k])
        assert bool((once <= 1e-5).all()) and bool((cost(twice[1][k]) <= once + 1e-5 * (1 + once.abs())).all()), group
        assert float((once < -1e-3).double().mean()) > 0.2  # most blocks do move
    for w in advanced[1][2]:
        assert bool((w >= 0).all())
        torch.testing.assert_close(w.sum(1), torch.ones_like(w[:, 0]), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("compiled")
def test_padded_blocks_count_nothing() -> None:
    sizes = (40, 25)
    models = []
    for n in sizes:
        m = bl.Model()
        x = m.variable("x", n, lower=0, upper=1)
        m.add(Edge(), x[np.array([[i, (i + 1) % n, (i + 2) % n] for i in range(0, n, 2)])])
        m.minimize(np.linspace(-1, 1, n) @ x)
        models.append(m)
    together = bl.compile(models).solve(tol=1e-8, passes=2000)
    for k, m in enumerate(models):
        truth = reference(m)
        assert float(together.bound[k]) == pytest.approx(float(truth.objective[0]), rel=1e-5)
        assert float(together.bound[k]) <= float(truth.objective[0]) + 1e-9


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_hold(dtype: torch.dtype) -> None:
    for seed in range(int(dtype == torch.float32), 300, 2):
        m = random_model(np.random.default_rng(seed))
        solution, truth = m.solve(dtype=dtype, tol=1e-6, passes=(1, 7, 40, 150)[seed // 2 % 4]), reference(m)
        sign = -1.0 if m.maximizing else 1.0
        for i in range(m.batch):
            if truth.status[i] == "infeasible":
                assert solution.status[i] != bl.Status.OPTIMAL, seed
            else:
                optimum = sign * float(truth.objective[i])
                assert sign * float(solution.bound[i]) <= optimum + 1e-8 * max(1.0, abs(optimum)), seed


@pytest.mark.usefixtures("compiled")
def test_nothing_depends_on_threads_or_on_other_instances() -> None:
    solver, threads = model(3, True).compile(), torch.get_num_threads()
    try:
        found = []
        for count in (1, 3, 1):
            torch.set_num_threads(count)
            found.append(solver.solve(passes=40, tol=1e-9).bound)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_without_numba_large_problems_say_so_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("BLOCKLP_BACKEND", "numba")
    monkeypatch.setattr("blocklp.kernels.compiled.loops", lambda module: None)
    monkeypatch.setattr("blocklp.kernels.compiled._said", [])
    graph = nx.path_graph(6)
    m = bl.Model()
    x = m.variable("x", 6, lower=0, upper=1)
    m.add(bl.FiniteVertices([[0, 0], [1, 0], [0, 1]]), x[np.array(graph.edges)])
    m.maximize(np.ones(6) @ x)
    with caplog.at_level(logging.WARNING, logger="blocklp"):
        bounds = [float(m.solve(method="prox").bound[0]) for _ in range(2)]
    assert bounds == pytest.approx([3.0, 3.0], rel=1e-3)
    assert [r.getMessage() for r in caplog.records] == [
        "numba is missing or disabled: passes take several times as long: pip install -e '.[fast]' in a clone of blocklp"
    ]
