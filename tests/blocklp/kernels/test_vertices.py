"""Vertices of small LPs: optima by HiGHS's judgement, whatever is beside an instance, and only where that pays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.sparse import random_array

import blocklp as bl
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.plan import Plan
from blocklp.kernels.vertices import small, vertices
from blocklp.oracles import AtMostOne, Knapsack, Simplex

from ..random_models import random_model


@pytest.fixture(autouse=True)
def numba(use_backend: Callable[[str], None]) -> None:
    use_backend("numba")


def planned(model: bl.Model) -> Plan:
    return Plan(model.compile().decomposition()).settled(torch.float64, 1)


def mixed(batch: int, seed: int = 0, widest: float = 1e6) -> bl.Model:
    """Blocks with data in common and of their own, and rows beside them with sides that are infinite or differ by instance."""
    draw = np.random.default_rng(seed)
    m = bl.Model(batch)
    x = m.variable("x", 24, lower=-0.1, upper=draw.choice([1.0, 3.0, widest], 24))
    m.add(Simplex(3), x[:12].reshape(4, 3))
    m.add(
        Knapsack(draw.uniform(0.2, 1, (batch, 2, 6)), 1.5, 0, 1, least=0.5), x[np.stack([draw.permutation(24)[:6] for _ in range(2)])]
    )
    matrix = random_array((9, 24), density=0.2, rng=draw, data_sampler=lambda size: draw.normal(size=size))
    m.add_rows(matrix, x, np.where(draw.random((batch, 9)) < 0.5, -np.inf, -1.0), 1.0)
    m.minimize(draw.normal(size=(batch, 24)) @ x)
    return m


def test_vertices_are_optimal_and_duals_prove_it() -> None:
    for seed in range(60):
        model = random_model(np.random.default_rng(seed)) if seed % 2 else mixed(3, seed)
        plan, truth = planned(model), reference(model).objective
        if not small(plan.program, plan.problem):
            continue
        problem, program = plan.problem, plan.program
        x, y, ended = vertices(program, problem)
        assert bool((ended | ~torch.isfinite(truth)).all()), seed
        duals = bl.methods.Pdhg().multipliers(plan, y)
        sign = -1.0 if model.maximizing else 1.0
        size = 1e-8 * (1 + problem.cost_terms[0])
        for values in (problem.primal_value(x), problem.value(duals) + problem.offset):
            off = (values - sign * truth).abs() > size
            assert not bool((off & ended & torch.isfinite(truth)).any()), seed
        assert not bool((ended & torch.isinf(truth)).any()), seed


def test_an_instance_has_the_same_bits_beside_others() -> None:
    model = mixed(40)
    plan = planned(model)
    every = vertices(plan.program, plan.problem)
    for i in range(0, 40, 7):
        one = plan.select(torch.tensor([i]))
        for own, beside in zip(vertices(one.program, one.problem), every, strict=True):
            assert torch.equal(own[0], beside[i])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_auto_ends_small_lps_at_once_and_keeps_its_promises(dtype: torch.dtype) -> None:
    model = mixed(5, widest=3.0)
    truth = reference(model).objective
    found = bl.compile(model, dtype=dtype).solve(tol=1e-5)
    assert all(s is bl.Status.OPTIMAL for s in found.status) and int(found.passes.max()) <= 3
    assert bool((found.bound <= truth + 1e-9 * truth.abs()).all())


def test_vertices_that_rounding_spoils_leave_pdhg_as_it_was() -> None:
    """In single precision a box of 1e6 makes reduced costs of the wrong sign dear."""
    found = bl.compile(mixed(5), dtype=torch.float32).solve(tol=1e-4)
    assert all(s is bl.Status.OPTIMAL for s in found.status) and int(found.passes.max()) > 3


def test_infeasible_instances_are_left_to_passes() -> None:
    m = bl.Model(2)
    x = m.variable("x", 4, lower=0, upper=1)
    m.add(AtMostOne(4), x[None])
    m.add_rows(np.ones((1, 4)), x, np.array([[0.5], [2.0]]), np.inf)
    m.minimize(np.arange(1.0, 5.0) @ x)
    plan = planned(m)
    assert vertices(plan.program, plan.problem)[2].tolist() == [True, False]
    found = m.solve()
    assert found.status[0] is bl.Status.OPTIMAL and found.status[1] is bl.Status.INFEASIBLE


def test_a_warm_start_of_a_solved_instance_stays_at_its_vertex() -> None:
    model = mixed(3)
    first = model.solve(tol=1e-6)
    again = model.solve(tol=1e-6, warm_start=first.state)
    assert all(s is bl.Status.OPTIMAL for s in again.status) and torch.allclose(first.bound, again.bound, rtol=1e-9)


def test_large_lps_are_not_small() -> None:
    m = bl.Model()
    x = m.variable("x", (300, 4), lower=0, upper=1)
    m.add(Simplex(4), x)
    m.add(x.sum(0) <= 100)
    m.minimize((np.sin(np.arange(1200.0)).reshape(300, 4) * x).sum())
    plan = planned(m)
    assert not small(plan.program, plan.problem)
