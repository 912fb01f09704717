"""Gradients of optimal values, against central differences of values that are exact to rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import ModelError, OptionError
from blocklp.oracles import Knapsack, Path, Polytope, Simplex, Transport
from blocklp.oracles.relu import ReluHull

TIGHT = {"tol": 1e-11, "passes": 20000}

Stated = tuple[Callable[..., bl.Model], list[Tensor]]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def knapsacks() -> Stated:
    """Two knapsacks of three that share variables, in two instances, of which each has weights of its own."""

    def state(price: Tensor, weight: Tensor, capacity: Tensor, low: Tensor, high: Tensor) -> bl.Model:
        m = bl.Model(batch=2)
        x = m.variable("x", 5, lower=low, upper=high)
        m.add(Knapsack(weight, capacity), x[[[0, 1, 2], [2, 3, 4]]])
        m.maximize((price * x).sum() + 1.5)
        return m

    return state, [1 + random(2, 5), 1 + random(2, 2, 3, seed=1), 1.4 + random(2, seed=2), 0.1 * random(5), 1 - 0.2 * random(2, 5)]


def rows() -> Stated:
    """A simplex a person, and a capacity of each good."""

    def state(cost: Tensor, least: Tensor, most: Tensor, mass: Tensor) -> bl.Model:
        m = bl.Model(batch=2)
        x = m.variable("x", (4, 3), lower=0, upper=3)
        m.add(Simplex(3, mass), x)
        goods = torch.eye(3).repeat(1, 4)
        m.add_rows(goods, x.reshape(12), least, most, name="goods")
        m.minimize((cost * x).sum())
        return m

    return state, [random(2, 4, 3), 0.4 + random(3, seed=1), 2.4 + 0.2 * random(2, 3, seed=2), 1 + random(2, 4, seed=3)]


def hulls() -> Stated:
    """Hulls of vertices that share a variable with hulls of ReLUs."""

    def state(vertices: Tensor, cost: Tensor, low: Tensor, high: Tensor) -> bl.Model:
        m = bl.Model()
        x = m.variable("x", 4, lower=-5, upper=5)
        z = m.variable("z", 2, lower=-5, upper=5)
        m.add(bl.FiniteVertices(vertices), x[[[0, 1, 2], [1, 2, 3]]])
        m.add(ReluHull(low, high), [x[[0, 3]], z])
        m.minimize((cost[:4] * x).sum() + (cost[4:] * z).sum())
        return m

    return state, [2 * random(7, 3) - 1, random(6, seed=1) - 0.5, -1 - random(2, seed=2), 1 + random(2, seed=3)]


def polytopes() -> Stated:
    def state(matrix: Tensor, most: Tensor, low: Tensor, high: Tensor, cost: Tensor) -> bl.Model:
        m = bl.Model()
        x = m.variable("x", 5, lower=-3, upper=3)
        m.add(Polytope(matrix, torch.full_like(most, -torch.inf), most, low, high), x[[[0, 1, 2], [2, 3, 4]]])
        m.minimize((cost * x).sum())
        return m

    return state, [
        random(2, 4, 3) + 0.1,
        0.5 + random(2, 4, seed=1),
        -random(2, 3, seed=2),
        1 + random(2, 3, seed=3),
        -random(5, seed=4),
    ]


def flows() -> Stated:
    """A path and a transport beside it, tied by rows."""

    def state(demand: Tensor, supply: Tensor, need: Tensor, cost: Tensor, side: Tensor) -> bl.Model:
        m = bl.Model()
        x = m.variable("x", 5, lower=0, upper=4)
        y = m.variable("y", (2, 2), lower=0, upper=4)
        m.add(Path([0, 0, 1, 1, 2], [1, 2, 2, 3, 3], 0, 3, demand), x)
        m.add(Transport(supply, need), y.reshape(1, 4))
        m.add(x[:2] + y[0] <= side)
        m.minimize((cost[:5] * x).sum() + (cost[5:] * y.reshape(4)).sum())
        return m

    side = torch.tensor([1.9, 1.95], dtype=torch.float64)
    return state, [1 + random(1), 1 + random(2, seed=1), 0.5 + 0.4 * random(2, seed=5), random(9, seed=2), side]


class Scaled(bl.BlockType):
    """A user's own: a box whose corners depend on data in a way that no constraints say."""

    dim = 3
    block_data = ("scale",)

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Plus or minus the squared scale."""
        point = torch.where(cost < 0, 1.0, -1.0).to(cost) * (self.scale.to(cost) ** 2)
        return point, (cost * point).sum(-1)


class Stepped(bl.BlockType):
    """A user's own, whose points do not change with data as a derivative would have it."""

    dim = 3

    def __init__(self, step: Tensor) -> None:
        self.step = step

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Zero, or the rounded step."""
        point = (cost < 0).to(cost) * self.step.detach().round()
        return point, (cost * point).sum(-1)


def own() -> Stated:
    def state(scale: Tensor, cost: Tensor) -> bl.Model:
        m = bl.Model()
        x = m.variable("x", 5, lower=-9, upper=9)
        m.add(Scaled(scale), x[[[0, 1, 2], [2, 3, 4]]])
        m.add(Knapsack([1.0, 2.0, 1.5], 1.0, -9, 9), x[[[1, 2, 3]]])
        m.minimize((cost * x).sum())
        return m

    return state, [1 + random(1, 2, 3), -random(5, seed=1)]


CASES: dict[str, Callable[[], Stated]] = {
    "knapsacks, maximised": knapsacks,
    "rows": rows,
    "hulls": hulls,
    "polytopes": polytopes,
    "flows": flows,
    "an oracle of a user's": own,
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_all_data_are_those_of_central_differences(name: str) -> None:
    """Entry by entry where a solve is quick, else along random directions of each tensor."""
    state, data = CASES[name]()
    leaves = [t.clone().requires_grad_() for t in data]

    def value(*given: Tensor) -> Tensor:
        return bl.value(state(*given), **TIGHT)

    slow = sum(t.numel() for t in data) > 30
    assert torch.autograd.gradcheck(value, leaves, eps=1e-5, atol=1e-6, rtol=1e-6, nondet_tol=1e-12, fast_mode=slow)


def test_gradients_stay_within_their_instance_and_batches_of_models_have_them() -> None:
    """Several models of other sizes, compiled together: each has the gradient that it has alone."""
    weights = [(1 + random(1, n, 2, seed=n)).requires_grad_() for n in (2, 4)]
    models = []
    for weight in weights:
        m = bl.Model()
        x = m.variable("x", weight.shape[1] + 1, lower=0, upper=1)
        first = torch.arange(weight.shape[1])
        m.add(Knapsack(weight, 1.3), [x[first], x[first + 1]], name="pack")
        m.minimize(-(1 + random(weight.shape[1] + 1)) @ x)
        models.append(m)
    together = bl.compile(models).solve(**TIGHT).bound
    for i, (m, weight) in enumerate(zip(models, weights, strict=True)):
        there = torch.autograd.grad(together[i], weights, retain_graph=True, allow_unused=True)
        (alone,) = torch.autograd.grad(bl.value(m, **TIGHT).sum(), weight)
        assert float(alone.abs().max()) > 0.1
        assert torch.allclose(there[i], alone, atol=1e-7)
        assert there[1 - i] is None or not bool(there[1 - i].any())


def test_parameters_and_bounds_given_to_a_solve_have_gradients() -> None:
    m = bl.Model(batch=3)
    x = m.variable("x", 4, lower=0, upper=1)
    cost = m.parameter("cost", 4)
    m.add(Simplex(4), x)
    m.minimize(cost @ x + 2.0)
    solver = m.compile()
    costs, most = random(3, 4).requires_grad_(), (0.3 + 0.1 * random(4, seed=1)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda costs, most: bl.value(solver, values={cost: costs}, bounds={x: (0, most)}, **TIGHT), (costs, most), eps=1e-5, atol=1e-6
    )
    cost.value = costs
    assert torch.equal(m.solve().bound, bl.value(solver, values={cost: costs.detach()}))
    with torch.no_grad():
        assert not m.solve().bound.requires_grad


def test_kinks_have_a_gradient_of_one_of_their_sides() -> None:
    """Two costs tie: the value is the least of both, and any mean of their gradients is a supergradient."""
    cost = torch.tensor([1.0, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(Simplex(3), x)
    m.minimize(cost @ x)
    bl.value(m).sum().backward()
    assert cost.grad is not None
    assert cost.grad.sum().item() == pytest.approx(1.0) and cost.grad[2] == 0
    again = cost.grad.clone()
    cost.grad = None
    m.minimize(cost @ x)
    bl.value(m).sum().backward()
    assert torch.equal(cost.grad, again)


def test_what_has_no_gradient_is_refused() -> None:
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    one = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ModelError, match=r"Knapsack weights requires gradients.*detach"):
        m.add(Knapsack(one, 2.0, integer=True), x)
    with pytest.raises(ModelError, match=r"Stepped: step requires gradients.*detach"):
        m.add(Stepped(one), x)
    assert not m.blocks
    with pytest.raises(ModelError, match="the matrix of rows requires gradients"):
        m.add_rows(one[None], x, 0, 1)
    with pytest.raises(OptionError, match="model or a compiled solver"):
        bl.value(x)  # type: ignore[arg-type]
    m.add(Knapsack(one, 2.0), x)
    m.minimize(-one @ x)
    (slope,) = torch.autograd.grad(bl.value(m, **TIGHT).sum(), one, create_graph=True)
    with pytest.raises(ModelError, match="piecewise linear"):
        slope.sum().backward()


def test_bounds_without_time_to_build_blocks_do_not_depend_on_their_data() -> None:
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(Knapsack(weight, 2.0), x)
    m.minimize(x.sum() + weight.sum())
    bound = m.solve(time_limit=1e-9).bound
    assert bound.item() == pytest.approx(3.0)
    bound.sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [1.0] * 3


def test_what_is_asked_of_a_model_beside_its_value_has_no_gradients() -> None:
    """Exports, certificates, nodes and saved files of a model whose data require gradients are those without."""
    cost = random(3).requires_grad_()
    m = bl.Model()
    x = m.variable("x", 3, lower=(-random(3)).requires_grad_(), upper=1)
    m.add(Knapsack(random(3, seed=1).requires_grad_(), random(1, seed=2)[0].requires_grad_(), 0.0, 1.0), x)
    m.add(x[0] + x[1] >= cost[0])
    m.minimize(-cost @ x)
    found = m.solve()
    assert bl.reference(m).objective.item() == pytest.approx(found.bound.item(), abs=1e-3)
    assert float(bl.verify_certificate(m, found.state).bound) == pytest.approx(found.bound.item(), abs=1e-9)
    assert not found.value(cost @ x).requires_grad
    assert not found.primal.requires_grad and not found.gap.requires_grad and not found.raw_x.requires_grad
    assert "optimal" in repr(found)
