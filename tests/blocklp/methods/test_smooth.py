"""Soft minima against sums over vertices, the ascent on them, and bounds to differentiate."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.decomposition.row_sums import dot
from blocklp.errors import OptionError, ShapeError
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.plan import Plan
from blocklp.methods.smooth import SmoothState, soften, steepest
from blocklp.oracles import AtMostOne, Edge, Knapsack, Pairwise, Polytope, Simplex, Triangle

from ..random_models import pair_vertices

METHOD = bl.methods.Smooth()


TYPES: list[tuple[Callable[[], bl.BlockType], list[list[float]]]] = [
    (Edge, Edge().table.tolist()),
    (Triangle, Triangle().table.tolist()),
    (lambda: Simplex(3), np.eye(3).tolist()),
    (lambda: AtMostOne(3), [[0.0] * 3, *np.eye(3).tolist()]),
    (lambda: Pairwise(2, 3), pair_vertices(2, 3)),
    (lambda: bl.Box([0.0, 1.0, -1.0], [1.0, 1.0, 0.5]), [[a, 1, b] for a in (0.0, 1) for b in (-1, 0.5)]),
]


@pytest.mark.parametrize(("build", "vertices"), TYPES)
def test_soft_minima_are_sums_over_vertices_also_under_fixings(
    build: Callable[[], bl.BlockType], vertices: list[list[float]]
) -> None:
    rng, table = np.random.default_rng(0), torch.tensor(vertices, dtype=torch.float64)
    blocks, kind = 30, build()
    fixed = torch.tensor(rng.random((1, blocks, table.shape[1])) < 0.2)
    at = table[torch.tensor(rng.integers(len(table), size=(1, blocks)))]
    for lower, upper in ((-5 + 0 * at, 5 + 0 * at), (torch.where(fixed, at, -5.0), torch.where(fixed, at, 5.0))):
        restricted = kind.restrict(lower, upper)
        assert restricted is not None
        cost = torch.tensor(rng.normal(size=at.shape))
        for t in (0.05, 1.0, 30.0):
            found = restricted.soft_min(cost, torch.full((1, 1, 1), t, dtype=torch.float64))
            assert found is not None
            point, value, excess = found
            for b in range(blocks):
                left = table[((table >= lower[0, b]) & (table <= upper[0, b])).all(1)]
                costs = left @ cost[0, b]
                expected = -t * torch.logsumexp(-costs / t, 0)
                assert value[0, b].item() == pytest.approx(costs.min().item(), abs=1e-12)
                assert (value - excess)[0, b].item() == pytest.approx(expected.item(), abs=1e-9)
                torch.testing.assert_close(point[0, b], torch.softmax(-costs / t, 0) @ left, rtol=0, atol=1e-12)


def test_polytopes_weigh_each_listed_vertex_once() -> None:
    """A triangle beside a square: its list is one short."""
    kind = Polytope([[1.0, 1.0]], [-np.inf], [[1.0], [5.0]], [0.0, 0.0], [1.0, 1.0])
    found = kind.soft_min(torch.zeros(1, 2, 2, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64))
    assert found is not None
    torch.testing.assert_close(found[2], torch.tensor([[3.0, 4.0]], dtype=torch.float64).log())
    torch.testing.assert_close(found[0], torch.tensor([[[1 / 3, 1 / 3], [0.5, 0.5]]], dtype=torch.float64))


@pytest.mark.parametrize(("build", "vertices"), TYPES)
def test_soft_minima_are_differentiable(build: Callable[[], bl.BlockType], vertices: list[list[float]]) -> None:
    kind, generator = build(), torch.Generator().manual_seed(0)
    cost = torch.randn(2, 3, len(vertices[0]), generator=generator, dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0.3, 1.2], dtype=torch.float64, requires_grad=True)

    def soft(c: Tensor, t: Tensor) -> Tensor:
        found = kind.soft_min(c, t[:, None, None])
        assert found is not None
        return found[1] - found[2]

    assert torch.autograd.gradcheck(soft, (cost, t))
    assert torch.autograd.gradgradcheck(soft, (cost, t))


def soft_model(rng: np.random.Generator) -> bl.Model:
    """Three instances of random blocks, all with soft minima."""
    m = bl.Model(batch=3)
    x = m.variable("x", 9, lower=0, upper=1)
    for kind in (Edge(), Triangle(), AtMostOne(4), bl.Box([0.0, 0.2], [1.0, 0.9])):
        assert kind.dim is not None
        m.add(kind, x[np.stack([rng.choice(9, kind.dim, replace=False) for _ in range(2)])])
    m.minimize(rng.standard_normal((3, 9)) @ x)
    return m


def solvable(seeds: range) -> list[bl.Model]:
    models = [soft_model(np.random.default_rng(seed)) for seed in seeds]
    return [m for m in models if set(reference(m).status) == {"optimal"}]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bounds_reach_the_optimum(dtype: torch.dtype) -> None:
    models = solvable(range(4))
    assert len(models) >= 2
    for model in models[int(dtype == torch.float32) :: 2]:
        truth = reference(model).objective
        bound = model.solve(method="smooth", dtype=dtype, passes=1200, tol=0).bound
        assert bool((bound <= truth + 1e-8).all())
        torch.testing.assert_close(bound, truth, rtol=0, atol=1e-3)


def test_the_value_is_that_of_the_multipliers_and_they_sum_to_the_cost() -> None:
    for model in solvable(range(8)):
        p = model.compile().decomposition()
        state: SmoothState = METHOD.start(Plan(p), p.to_dual(p.cost), None)
        for _ in range(60):
            assert torch.allclose(state.value, p.value(state.duals), rtol=1e-12)
            assert torch.allclose(p.collect(state.duals), p.cost, atol=1e-10)
            assert bool((state.excess >= 0).all())
            before, state = state.eta, METHOD.step(Plan(p), state)
            assert bool((state.eta <= before).all())


def test_the_curvature_is_bounded() -> None:
    """Gradients at two points are apart by no more than the bound over the temperature says."""
    draw = torch.Generator().manual_seed(0)
    nearest = 0.0
    for model in solvable(range(8)):
        p = model.compile().decomposition()
        bound = steepest(p, p.to_dual(p.cost))
        for scale in (1e-3, 0.1, 1.0):
            t = torch.full((p.batch,), 0.5, dtype=torch.float64)
            first = p.recentred(torch.randn(p.batch, p.copies, generator=draw, dtype=torch.float64))
            move = p.disagreement(torch.randn(p.batch, p.copies, generator=draw, dtype=torch.float64)) * scale
            turn = p.disagreement(soften(p, first + move, t)[0] - soften(p, first, t)[0])
            met = t * (dot(turn, turn) / dot(move, move)).sqrt()
            assert bool((met <= bound * (1 + 1e-9)).all())
            nearest = max(nearest, float((met / bound).max()))
    assert nearest > 0.05


def test_scaled_costs_scale_the_run() -> None:
    """The temperature follows the costs: by a power of two all numbers are the same but for the exponent."""

    def bound(scale: float) -> Tensor:
        rng = np.random.default_rng(5)
        m = bl.Model()
        x = m.variable("x", 8, lower=0, upper=1)
        m.add(AtMostOne(3), x[np.stack([rng.choice(8, 3, replace=False) for _ in range(6)])])
        m.minimize(scale * rng.standard_normal(8) @ x)
        return m.solve(method="smooth", passes=40, tol=0).bound / scale

    assert torch.equal(bound(1.0), bound(2.0**20)) and torch.equal(bound(1.0), bound(2.0**-20))


def test_a_warm_start_keeps_its_bound_and_a_temperature_within_reason() -> None:
    model = solvable(range(4))[0]
    first = model.solve(method="smooth", passes=2000, tol=0)
    again = model.solve(method="smooth", passes=1, tol=0, warm_start=first.state)
    assert bool((again.bound >= first.bound - 1e-9).all())
    p = model.compile().decomposition()
    duals = p.to_dual(p.cost)
    fresh = METHOD.start(Plan(p), duals, None).eta
    for given in (1e-30, 1e30):
        warm = METHOD.start(Plan(p), duals, torch.full_like(fresh, given)).eta
        assert bool((warm <= fresh).all() and (warm >= fresh / 101).all())


def test_types_without_are_refused_by_name_where_they_share() -> None:
    m = bl.Model()
    x = m.variable("x", 6, lower=0, upper=1)
    m.add(Knapsack([1.0, 2.0, 1.0], 1.5), x[[[0, 1, 2]]], name="sack")
    m.add(AtMostOne(3), x[[[3, 4, 5], [4, 5, 3]]], name="cliques")
    m.minimize(-(x.sum()))
    # The knapsack shares nothing: its oracle does.
    assert m.solve(method="smooth", tol=1e-6).bound.item() == pytest.approx(reference(m).objective.item(), abs=1e-5)
    m.add(AtMostOne(2), x[[[2, 3]]], name="link")
    with pytest.raises(OptionError, match="Knapsack has no soft minimum"):
        m.solve(method="smooth")


def priced(maximize: bool = False) -> tuple[bl.Model, bl.Parameter]:
    m = bl.Model(batch=2)
    x = m.variable("x", 5, lower=0, upper=1)
    price = m.parameter("price", 5)
    m.add(AtMostOne(3), x[[[0, 1, 2], [2, 3, 4], [4, 0, 1]]])
    m.add(Edge(), x[[[0, 3, 1]]])
    (m.maximize if maximize else m.minimize)((price * x).sum() + 0.5)
    return m, price


@pytest.mark.parametrize("maximize", [False, True])
def test_soft_bounds_bound_and_have_gradients(maximize: bool) -> None:
    m, price = priced(maximize)
    generator = torch.Generator().manual_seed(1)
    costs = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    price.value = costs
    solver = m.compile()
    solution, truth = solver.solve(tol=1e-9), reference(m).objective
    sign = -1.0 if maximize else 1.0
    for t in (1.0, 1e-2, 1e-4):
        soft = bl.soft_bound(solver, solution.state, t)
        above = sign * (truth - soft)
        # Three blocks of four choices and one of four.
        assert bool((above >= -1e-9).all() and (above <= 4 * np.log(4) * t + 1e-6).all())
    given = {k: v.clone().requires_grad_() for k, v in solution.state.duals.items()}
    names, eta = list(given), solution.state.eta

    def bound(c: Tensor, t: Tensor, *duals: Tensor) -> Tensor:
        return bl.soft_bound(solver, bl.State(dict(zip(names, duals, strict=True)), eta), t, {price: c})

    t = torch.tensor([0.4, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(bound, (costs.clone().requires_grad_(), t, *given.values()))


def test_training_a_cost_raises_the_bound() -> None:
    """Ascent on the gradient by the parameter, with multipliers that stay: every step is a bound of the new costs."""
    m, price = priced()
    weights = torch.full((1, 5), -1.0, dtype=torch.float64, requires_grad=True)
    price.value = weights.detach()
    solver = m.compile()
    state = solver.solve(tol=1e-9).state
    before = -np.inf
    for _ in range(20):
        bound = bl.soft_bound(solver, state, 0.05, {price: weights})
        bound.sum().backward()
        price.value = weights.detach()
        assert bool((bound.detach() <= reference(m).objective + 1e-9).all()) and bound[0].item() > before
        before = bound[0].item()
        assert weights.grad is not None
        weights = (weights.detach() + 0.02 * weights.grad).requires_grad_()


def test_soft_bounds_refuse_bad_input() -> None:
    m, price = priced()
    price.value = torch.zeros(5)
    solver = m.compile()
    state = solver.solve(passes=1).state
    for t in (0.0, -1.0, float("nan"), torch.ones(3)):
        with pytest.raises(OptionError, match="positive"):
            bl.soft_bound(solver, state, t)
    with pytest.raises(ShapeError, match="select, repeat or concatenate"):
        bl.soft_bound(solver, state.repeat(2), 1.0)
    other = bl.Model()
    x = other.variable("x", 2, lower=0, upper=1)
    other.add(Knapsack([1.0, 2.0], 1.5), x[[[0, 1]]])
    other.minimize(x.sum())
    with pytest.raises(OptionError, match="Knapsack has no soft minimum"):
        bl.soft_bound(other.compile(), other.solve(passes=1).state, 1.0)


def test_a_wrong_soft_minimum_gives_no_wrong_bound() -> None:
    class Off(AtMostOne):
        def soft_min(self, cost, temperature):
            point, value, excess = super().soft_min(cost, temperature)
            return point, value + 0.5, excess

    m = bl.Model()
    x = m.variable("x", 4, lower=0, upper=1)
    m.add(Off(2), x[[[0, 1], [1, 2], [2, 3]]])
    m.minimize(np.array([-1.0, -1.1, -0.7, -0.4]) @ x)
    assert bool((m.solve(method="smooth", passes=50, tol=0).bound <= reference(m).objective + 1e-9).all())


def test_values_of_parameters_that_are_not_there_are_refused() -> None:
    m = bl.Model()
    x = m.variable("x", 2, lower=0, upper=1)
    other = m.parameter("other", 2)
    m.add(AtMostOne(2), x[[[0, 1]]])
    m.minimize(-x.sum())
    solver = m.compile()
    state = solver.solve().state
    with pytest.raises(OptionError, match="other"):
        bl.soft_bound(solver, state, 0.1, {other: torch.ones(2)})
    with pytest.raises(OptionError, match="temperature"):
        bl.soft_bound(solver, state, "warm")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="state"):
        bl.soft_bound(solver, None, 0.1)  # type: ignore[arg-type]
