"""The differentiable nodes: gradients of first and second order, other solvers' solutions, kinks, modules and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import blocklp as bl
from blocklp.problems.densecrf.prox_lp import project_to_simplex

d = bl.declarative


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def f(x: Tensor, y: Tensor) -> Tensor:
    return (y - x).square().sum(1) + 0.1 * y.pow(4).sum(1) + (y.sum(1) - 1).square()


START = torch.full((2, 2), 0.3, dtype=torch.float64)


def half_space(x: Tensor, y: Tensor) -> Tensor:
    """A constraint that depends on the parameter."""
    return torch.cat([y.square().sum(1, keepdim=True) - 1 - x[:, :1].square(), y[:, :1] - x[:, 1:2].exp()], 1)


@pytest.mark.parametrize(
    "constraints",
    [
        {},
        {"inequality": d.box(0.0, 1.0)},
        {"inequality": d.box(0.0, 1.0), "t": 20.0},
        {"inequality": d.ball(), "t": math.inf},
        {"inequality": d.ball(), "t": 5.0},
        {"inequality": half_space},
    ],
)
def test_gradients_of_first_and_second_order(constraints: dict[str, object]) -> None:
    x = randn(2, 2).requires_grad_()

    def node(x: Tensor) -> tuple[Tensor, Tensor]:
        return d.minimise(f, x, start=START, **constraints)[:2]

    assert gradcheck(node, x, atol=1e-6, rtol=1e-6)
    assert gradgradcheck(node, x, atol=1e-5, rtol=1e-5, fast_mode=True)


@pytest.mark.parametrize("inequality", [None, d.ball(2.0), half_space])
def test_gradients_in_the_matrix_and_the_right_hand_side(inequality: object) -> None:
    x, a, b = randn(2, 2).requires_grad_(), randn(1, 2).requires_grad_(), (0.1 * randn(1)).requires_grad_()

    def node(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return d.minimise(f, x, start=START, equality=(a, b), inequality=inequality)

    assert gradcheck(node, (x, a, b), atol=1e-6, rtol=1e-6)
    assert gradgradcheck(node, (x, a, b), atol=1e-5, rtol=1e-5, fast_mode=True)


def test_multipliers_are_the_slopes_of_the_minimum() -> None:
    x, a, b = randn(2, 2), randn(1, 2), torch.tensor([0.2], dtype=torch.float64)

    def value(room: float, shift: float) -> Tensor:
        y = d.argmin(
            f, x, start=0 * START, equality=(a, b + shift), inequality=lambda x, y: y.square().sum(1, keepdim=True) - 0.3 - room
        )
        return f(x, y)

    found = d.minimise(f, x, start=0 * START, equality=(a, b), inequality=lambda x, y: y.square().sum(1, keepdim=True) - 0.3)
    assert (found.inequality_multipliers > 0.01).any()
    by_room, by_b = ((value(w, 0) - value(-w, 0)) / 2e-4 for w in (1e-4,)), (value(0, 1e-4) - value(0, -1e-4)) / 2e-4
    torch.testing.assert_close(found.inequality_multipliers[:, 0], -next(by_room), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.equality_multipliers[:, 0], -by_b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shift", [-2.0, -0.4, 0.0, 0.3, 2.0])
def test_minimisers_are_those_of_scipy(shift: float) -> None:
    x = randn(2, 2) + shift
    constraints = {"type": "ineq", "fun": lambda y: 1 - y @ y}
    y = d.argmin(f, x, start=START, inequality=lambda x, y: torch.cat([d.ball()(y), d.box(lower=-0.2)(y)], 1))
    for k in range(2):
        found = minimize(
            lambda y: f(x[k : k + 1], torch.as_tensor(y)[None]).item(),  # noqa: B023
            START[k].numpy(),
            method="SLSQP",
            constraints=[constraints],
            bounds=[(-0.2, None)] * 2,
            tol=1e-14,
        )
        torch.testing.assert_close(y[k], torch.as_tensor(found.x), rtol=0, atol=1e-5)


def test_a_solution_of_another_solver_gets_the_same_gradients() -> None:
    """Also through active constraints, whose multipliers are not given."""
    x, a = randn(2, 2).requires_grad_(), torch.ones(1, 2, dtype=torch.float64)
    b = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    options = {"equality": (a, b), "inequality": d.box(0.0, 0.4)}
    weights = randn(2, 2)
    ours = d.minimise(f, x, start=torch.full((2, 2), 0.2), **options)
    expected = torch.autograd.grad((ours.y * weights).sum(), (x, b))
    theirs = d.implicit(f, x, y=ours.y.detach(), **options)
    assert (ours.inequality_multipliers > 0.01).any()
    for one, other in zip(theirs, ours, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    for one, other in zip(torch.autograd.grad((theirs.y * weights).sum(), (x, b)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    with pytest.raises(bl.errors.ModelError, match="not stationary"):
        d.implicit(f, x, y=ours.y.detach() + 0.05)


def test_degenerate_vertices_have_the_derivatives_of_y_although_multipliers_are_not_unique() -> None:
    """The simplex stated with superfluous upper bounds: four constraints are active at (1, 0, 0)."""
    x = torch.tensor([[5.0, 0.0, -1.0], [1.0, 0.8, -1.0], [0.5, 0.4, 0.3]], dtype=torch.float64, requires_grad=True)
    options = {"inequality": d.box(0.0, 1.0), "equality": (torch.ones(1, 3), torch.ones(1))}

    def node(x: Tensor) -> Tensor:
        return d.argmin(lambda x, y: (y - x).square().sum(1), x, start=torch.full((3, 3), 1 / 3), **options)

    torch.testing.assert_close(node(x).detach(), project_to_simplex(x.detach()), rtol=0, atol=1e-9)
    assert gradcheck(node, x, atol=1e-6)
    assert gradgradcheck(node, x, atol=1e-5, fast_mode=True)
    found = d.minimise(lambda x, y: (y - x).square().sum(1), x, start=torch.full((3, 3), 1 / 3), **options)
    assert (found.inequality_multipliers >= -1e-10).all()


def test_projections_on_the_simplex_have_the_gradients_of_the_sort() -> None:
    """Corners, edges and the inside, by another algorithm."""
    x = torch.linspace(0.05, 1.5, 60, dtype=torch.float64)[:, None] * randn(60, 4)
    weights = randn(60, 4)
    ones = torch.ones(1, 4, dtype=torch.float64)
    gradients = []
    for project in (
        project_to_simplex,
        lambda x: d.argmin(
            lambda x, y: (y - x).square().sum(1),
            x,
            start=torch.full((60, 4), 0.25),
            inequality=d.box(0.0, 1.0),
            equality=(ones, ones[:, 0]),
        ),
    ):
        at = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad((project(at) * weights).sum(), at)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-7, atol=1e-7)
    assert {int(k) for k in (project_to_simplex(x) > 0).sum(1)} == {1, 2, 3, 4}


def test_all_three_stationary_points_of_the_quartic_may_be_given() -> None:
    from blocklp.problems.declarative.scalar import quartic, quartic_derivative, stationary_points

    x = torch.linspace(0.5, 2, 4, dtype=torch.float64).requires_grad_()
    for g in stationary_points(x.detach()):
        y = d.implicit(lambda x, y: quartic(x, y[:, 0]), x, y=g[:, None]).y
        [slopes] = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(slopes, quartic_derivative(x.detach(), g), rtol=1e-9, atol=1e-9)


def test_a_constraint_without_force_counts_as_inactive_in_a_given_solution() -> None:
    """At the kink of max(x, 0), where the barrier's path would give one half."""
    x = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    y = d.implicit(lambda x, y: (x - y).square().sum(1), x, y=torch.zeros(1, 1), inequality=d.box(lower=0.0)).y
    y.sum().backward()
    assert x.grad.item() == 1


def test_instances_do_not_depend_on_what_is_beside_them() -> None:
    x = torch.cat([randn(3, 3), 1e3 * randn(2, 3), 1e-3 * randn(2, 3)]).requires_grad_()
    options = {"inequality": d.box(0.0, 1.0), "equality": (torch.ones(1, 3, dtype=torch.float64), torch.ones(1, dtype=torch.float64))}
    together = d.argmin(f, x, start=torch.full((7, 3), 0.3), **options)
    for k in range(7):
        alone = d.argmin(f, x[k : k + 1], start=torch.full((1, 3), 0.3), **options)
        assert torch.equal(alone[0], together[k])


def test_a_module_is_learned() -> None:
    """The weights of f get the gradients that differences give, and a layer is trained by them."""
    torch.manual_seed(1)

    class Energy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor([0.5, -0.3], dtype=torch.float64))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return ((y - self.scale * x).square() + 0.1 * y.pow(4)).sum(1)

    energy = Energy()
    layer = d.ArgminLayer(energy, torch.zeros(2))
    x = randn(5, 2)
    assert [name for name, _ in layer.named_parameters()] == ["f.scale"]
    layer(x).square().sum().backward()
    for k in range(2):
        values = []
        for width in (1e-5, -1e-5):
            with torch.no_grad():
                energy.scale[k] += width
                values.append(layer(x).square().sum().item())
                energy.scale[k] -= width
        assert math.isclose(energy.scale.grad[k].item(), (values[0] - values[1]) / 2e-5, rel_tol=1e-6)
    wanted = d.ArgminLayer(Energy(), torch.zeros(2))(x).detach()
    with torch.no_grad():
        energy.scale += 0.3
    optimizer = torch.optim.LBFGS(layer.parameters(), line_search_fn="strong_wolfe", max_iter=40, tolerance_grad=1e-12)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = (layer(x) - wanted).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    torch.testing.assert_close(energy.scale.detach(), torch.tensor([0.5, -0.3], dtype=torch.float64), rtol=0, atol=1e-4)


def test_argmax_of_a_module_has_its_gradients_too() -> None:
    energy = torch.nn.Linear(1, 1, dtype=torch.float64)

    class Hill(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, y: Tensor) -> Tensor:
            return -(y - self.top).square().sum(1)

    hill = Hill()
    d.argmax(hill, start=torch.zeros(1, 1)).sum().backward()
    assert hill.top.grad.item() == 1 and energy.weight.grad is None


def test_float32_parameters_are_computed_in_float64() -> None:
    x = torch.tensor([[3.0, -1.0, 0.2]], requires_grad=True)
    y = d.argmin(f, x, start=torch.zeros(1, 3))
    y.sum().backward()
    assert y.dtype == torch.float64 and x.grad.dtype == torch.float32


def test_what_has_no_answer_is_refused() -> None:
    x, start = randn(1, 2), torch.zeros(1, 2, dtype=torch.float64)
    hidden = torch.ones(2, dtype=torch.float64, requires_grad=True)

    def apart(x: Tensor, y: Tensor) -> Tensor:
        return (y - x).square().sum(1)

    with pytest.raises(bl.errors.ModelError, match="pass it as a parameter"):
        d.argmin(lambda x, y: (hidden * (y - x)).square().sum(1), x, start=start)
    with pytest.raises(bl.errors.ModelError, match="strictly"):
        d.argmin(apart, x, start=start - 1, inequality=d.box(lower=0.0))
    with pytest.raises(bl.errors.ModelError, match="next to start"):
        ones = torch.ones(1, 2, dtype=torch.float64)
        d.argmin(apart, x, start=start + 0.5, inequality=d.box(0.0, 1.0), equality=(ones, 3 * ones[:, 0]))
    with pytest.raises(bl.errors.ModelError, match="no minimum"):
        d.argmin(lambda x, y: (x * y).sum(1), x, start=start)
    with pytest.raises(bl.errors.ShapeError, match="f returned"):
        d.argmin(lambda x, y: (x * y).sum(), x, start=start)
    with pytest.raises(bl.errors.ShapeError, match="inequality returned"):
        d.argmin(apart, x, start=start, inequality=lambda x, y: y.sum(1))
    with pytest.raises(bl.errors.ShapeError, match="not empty"):
        d.argmin(apart, x, start=start[0])
    with pytest.raises(bl.errors.ShapeError, match="A is"):
        d.argmin(apart, x, start=start, equality=(torch.ones(1, 3), torch.ones(1)))
    with pytest.raises(bl.errors.NonFiniteError, match="not finite"):
        d.argmin(lambda x, y: (y - 1).log().sum(1), x, start=start)
    with pytest.raises(bl.errors.ModelError, match="t is"):
        d.argmin(apart, x, start=start, t=0.0)
    for bounds in ((1.0, 0.0), (-math.inf, math.inf)):
        with pytest.raises(bl.errors.OptionError, match="box"):
            d.box(*bounds)
    with pytest.raises(bl.errors.OptionError, match="radius"):
        d.ball(0.0)
    # the quartic of Figure 1 has a maximum at zero, where Newton's steps would stay
    with pytest.raises(bl.errors.ModelError, match="maximum or saddle point of instance 1"):
        d.argmin(lambda y: y[:, 0] ** 4 + 2 * y[:, 0] ** 3 - 12 * y[:, 0] ** 2, start=torch.tensor([[0.5], [0.0]]))
    # f is flat along one direction: there is a minimiser, and it has no derivative
    flat = x.clone().requires_grad_()
    y = d.argmin(lambda x, y: (y[:, 0] - x[:, 0]).square(), flat, start=start)
    with pytest.raises(bl.errors.ModelError, match="singular"):
        y.sum().backward()
