"""Every lemma against finite differences of minimisers that are found another way, and against each other."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import blocklp as bl
from blocklp.declarative.derivatives import second_derivatives
from blocklp.declarative.equality import null_space
from blocklp.problems.declarative.scalar import (
    barrier_mean,
    barrier_mean_derivative,
    positive_mean,
    quartic,
    quartic_derivative,
    squares,
    stationary_points,
)

d = bl.declarative


@pytest.fixture(autouse=True)
def double() -> None:
    torch.manual_seed(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def objective(x: Tensor, u: Tensor, y: Tensor) -> Tensor:
    """Not quadratic, strictly convex, with both parameters inside nonlinear terms; u is a matrix (batch, n, 2)."""
    return (y - x).square().sum(1) + (1 + x * y).square().log1p().sum(1) + (y + u.prod(2)).cosh().sum(1)


def found_by_scipy(x: Tensor, u: Tensor, start: Tensor, **options: object) -> Tensor:
    """Minimisers of each instance by scipy, which shares no code with what is tested."""

    def one(k: int) -> Tensor:
        def value(y: object) -> tuple[float, object]:
            at = torch.as_tensor(y).requires_grad_()
            f = objective(x[k : k + 1], u[k : k + 1], at[None])[0]
            [slope] = torch.autograd.grad(f, at)
            return f.item(), slope.numpy()

        return torch.as_tensor(minimize(value, start[k].numpy(), jac=True, tol=1e-14, **options).x)

    return torch.stack([one(k) for k in range(len(x))])


def differences(g: Callable[[Tensor, Tensor], Tensor], x: Tensor, u: Tensor, width: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Central differences (batch, n, *shape) of g by both parameters."""
    found = []
    for number, parameter in enumerate((x, u)):
        columns = []
        for entry in range(parameter[0].numel()):
            shift = torch.zeros_like(parameter)
            shift.view(len(shift), -1)[:, entry] = width
            ahead, behind = ((x + s * shift, u) if number == 0 else (x, u + s * shift) for s in (1, -1))
            columns.append((g(*ahead) - g(*behind)) / (2 * width))
        found.append(torch.stack(columns, 2).reshape(*columns[0].shape, *parameter.shape[1:]))
    return found[0], found[1]


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tol: float = 1e-6) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tol, atol=tol)


def test_lemma_3_1_on_the_mean_and_on_the_quartic() -> None:
    # equation 18: h_i = sin(i x), so that g' is the mean of i cos(i x)
    i, x = torch.arange(1.0, 6.0, dtype=torch.float64), randn(7)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return squares((x[:, None] * i).sin(), y[:, None])

    expected = (i * (x[:, None] * i).cos()).mean(1)
    torch.testing.assert_close(d.scalar_derivative(f, x, (x[:, None] * i).sin().mean(1)), expected, rtol=0, atol=1e-12)
    x = torch.linspace(0.3, 4, 9, dtype=torch.float64)
    for g in stationary_points(x):
        assert second_derivatives(lambda x, y: quartic(x, y[:, 0]), [x], g[:, None]).f_y.abs().max() < 1e-10
        torch.testing.assert_close(d.scalar_derivative(quartic, x, g), quartic_derivative(x, g), rtol=1e-12, atol=1e-12)
    for k in range(3):  # and the closed form (24) moves as its derivative says
        g = stationary_points(x + 1e-6)[k] - stationary_points(x - 1e-6)[k]
        torch.testing.assert_close(g / 2e-6, quartic_derivative(x, stationary_points(x)[k]), rtol=1e-6, atol=1e-7)


def test_lemma_3_2_and_equation_14_against_differences() -> None:
    x, u = randn(2, 3), randn(2, 3, 2)
    start = torch.zeros(2, 3, dtype=torch.float64)

    def g(x: Tensor, u: Tensor) -> Tensor:
        return d.argmin(objective, x, u, start=start)

    y = g(x, u)
    torch.testing.assert_close(y, found_by_scipy(x, u, start, method="BFGS"), rtol=0, atol=1e-6)
    found = d.unconstrained_jacobians(objective, (x, u), y)
    assert [f.shape for f in found] == [(2, 3, 3), (2, 3, 3, 2)]
    close(found, differences(g, x, u))
    # Lemma 3.3: a maximiser of -f is the same point with the same derivative
    torch.testing.assert_close(y, d.argmax(lambda *a: -objective(*a), x, u, start=start))
    close(d.unconstrained_jacobians(lambda *a: -objective(*a), (x, u), y), found, 1e-12)


@pytest.mark.parametrize("h", [torch.exp, torch.log, torch.sqrt, lambda v: -v.pow(3), torch.atan])
def test_lemma_3_4_monotone_functions_change_nothing(h: Callable[[Tensor], Tensor]) -> None:
    x, u = 0.3 * randn(3, 2), 0.3 * randn(3, 2, 2)
    y = d.argmin(objective, x, u, start=torch.zeros(3, 2, dtype=torch.float64))
    expected = d.unconstrained_jacobians(objective, (x, u), y)
    assert float(objective(x, u, y).min()) > 0
    close(d.unconstrained_jacobians(lambda *a: h(objective(*a)), (x, u), y), expected, 1e-9)


def test_lemma_3_4_needs_a_derivative_that_does_not_vanish() -> None:
    """The cube is increasing, but flat at zero: a minimum of value zero becomes one without second derivatives."""
    x = torch.ones(1, 1, dtype=torch.float64)
    [found] = d.unconstrained_jacobians(lambda x, y: (y - x).square().sum(1), (x,), x)
    assert found.item() == 1
    with pytest.raises(bl.errors.ModelError, match="singular"):
        d.unconstrained_jacobians(lambda x, y: (y - x).square().sum(1).pow(3), (x,), x)


def test_lemmas_4_1_and_4_2_agree_with_each_other_and_with_differences() -> None:
    x, u, a, b = randn(2, 4), randn(2, 4, 2), randn(2, 2, 4), randn(2, 2)
    start = torch.zeros(2, 4, dtype=torch.float64)

    def g(x: Tensor, u: Tensor) -> Tensor:
        return d.argmin(objective, x, u, start=start, equality=(a, b))

    y = g(x, u)
    torch.testing.assert_close((a @ y[:, :, None])[:, :, 0], b)
    slope = second_derivatives(objective, (x, u), y).f_y
    assert (null_space(a).mT @ slope[:, :, None]).abs().max() < 1e-10 < slope.abs().max()
    free, lagrange = d.null_space_jacobians(objective, (x, u), y, a), d.lagrange_jacobians(objective, (x, u), y, a)
    close(free, lagrange, 1e-11)
    close(free, differences(g, x, u))
    for found in free:  # in the null space of A
        assert torch.einsum("bkn,bn...->bk...", a, found).abs().max() < 1e-11


def test_lemma_4_1_serves_where_f_is_flat_across_the_set() -> None:
    """Curvature within the set is enough for Lemma 4.1; Lemma 4.2 needs all of it."""
    x, a = randn(1, 2), torch.ones(1, 2, dtype=torch.float64)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return (y[:, 0] - y[:, 1] - x[:, 0]).square()  # no curvature along (1, 1)

    y = torch.stack([0.5 + x[:, 0] / 2, 0.5 - x[:, 0] / 2], 1)
    [found] = d.null_space_jacobians(f, (x,), y, a)
    torch.testing.assert_close(found[0], torch.tensor([[0.5, 0], [-0.5, 0]], dtype=torch.float64))
    with pytest.raises(bl.errors.ModelError, match="singular"):
        d.lagrange_jacobians(f, (x,), y, a)
    with pytest.raises(bl.errors.ModelError, match="rows of A"):
        d.null_space_jacobians(f, (x,), y, torch.ones(2, 2, dtype=torch.float64))


def within(x: Tensor, u: Tensor, y: Tensor) -> Tensor:
    """Two curved constraints that depend on a parameter, and one that never binds."""
    ball = y.square().sum(1) - 0.4 - 0.1 * x[:, 0].square()
    return torch.stack([ball, y[:, 0].exp() - 1.2 - 0.1 * u[:, 0, 0], y.sum(1) - 100], 1)


def test_equation_64_is_the_derivative_of_the_barriers_minimiser_and_of_the_limit() -> None:
    x, u = randn(3, 2), randn(3, 2, 1)
    start = torch.zeros(3, 2, dtype=torch.float64)

    def g(t: float) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, u: d.argmin(objective, x, u, start=start, inequality=within, t=t)

    for t in (3.0, 300.0):
        y = g(t)(x, u)
        slope = second_derivatives(d.barrier_objective(objective, within, t), (x, u), y).f_y
        assert slope.abs().max() < 1e-8 * t  # equation 61
        found = d.barrier_jacobians(objective, within, (x, u), y, t)
        close(found, differences(g(t), x, u))
        close(found, d.unconstrained_jacobians(d.barrier_objective(objective, within, t), (x, u), y), 1e-9)
        close(found, d.kkt_jacobians(objective, within, (x, u), y, -1 / (t * within(x, u, y)), t), 1e-8)
    exact = d.minimise(objective, x, u, start=start, inequality=within)
    limit = d.kkt_jacobians(objective, within, (x, u), exact.y, exact.inequality_multipliers)
    assert (exact.inequality_multipliers[:, :2] > 1e-3).any() and (exact.inequality_multipliers[:, 2] < 1e-9).all()
    close(limit, differences(g(math.inf), x, u))
    y = g(1e7)(x, u)
    close(d.barrier_jacobians(objective, within, (x, u), y, 1e7), limit, 1e-4)


@pytest.mark.parametrize("t", [0.5, 10.0, 1e4])
def test_the_positive_mean_has_its_closed_forms(t: float) -> None:
    h, start = 2 * randn(9, 4), torch.ones(9, 1, dtype=torch.float64)
    shifted = h + torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    for at in (t, math.inf):
        p = shifted.clone().requires_grad_()
        y = d.argmin(squares, p, start=start, inequality=d.box(lower=0.0), t=at)
        [slopes] = torch.autograd.grad(y.sum(), p)
        if at == t:
            closed = barrier_mean(shifted, t)
            root = 2 * t * 4 * closed**2 - 2 * t * shifted.sum(1) * closed - 1  # equation 68 times y
            assert root.abs().max() < 1e-9 * t
            derivative = barrier_mean_derivative(shifted, torch.ones_like(shifted), t)
        else:
            closed, derivative = positive_mean(shifted), (shifted.mean(1) > 0).double()
        torch.testing.assert_close(y.detach()[:, 0], closed, rtol=0, atol=1e-9)
        torch.testing.assert_close(slopes.sum(1), derivative, rtol=0, atol=1e-9)
    assert (positive_mean(shifted) == 0).any() and (positive_mean(shifted) > 0).any()
