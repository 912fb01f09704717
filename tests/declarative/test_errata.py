"""What the fifth source prints wrongly, by finite differences of what it defines; each with the numbers of one example."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import blocklp as bl
from blocklp.problems.declarative.scalar import barrier_mean_derivative
from blocklp.problems.declarative.softmax import derivatives, hessian, in_the_ball, log_likelihood, log_likelihood_of, on_the_plane

d = bl.declarative


def classifier() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(size, dtype=torch.float64, generator=generator) for size in ((1, 3, 2), (1, 3)))
    return a, b


def maximum(a: Tensor, b: Tensor, k: int, t: float, **constraints: object) -> Tensor:
    start = torch.zeros(1, 2, dtype=torch.float64)
    if not constraints:
        constraints = {"inequality": d.ball()}
    return d.argmax(log_likelihood_of(torch.tensor([k])), a, b, start=start, t=t, **constraints)


def differences(a: Tensor, b: Tensor, k: int, t: float, **constraints: object) -> tuple[Tensor, Tensor]:
    """Central differences of the maximiser by a and by b."""
    found = []
    for number, parameter in enumerate((a, b)):
        columns = []
        for entry in range(parameter.numel()):
            shift = torch.zeros_like(parameter).flatten()
            shift[entry] = 1e-5
            shift = shift.view_as(parameter)
            ends = [
                maximum(a + s * shift, b, k, t, **constraints) if number == 0 else maximum(a, b + s * shift, k, t, **constraints)
                for s in (1, -1)
            ]
            columns.append((ends[0] - ends[1])[0] / 2e-5)
        found.append(torch.stack(columns, 1).reshape(1, 2, *parameter.shape[1:]))
    return found[0], found[1]


def test_62_and_63_carry_the_signs_of_minus_phi() -> None:
    """For c = (y1^2 + y2 - 4, y1 - 3) at (1, -2): the first entry of the gradient of phi is -0.9, and 0.9 in print."""
    y = torch.tensor([[1.0, -2.0]], dtype=torch.float64)

    def c(y: Tensor) -> Tensor:
        return torch.stack([y[:, 0].square() + y[:, 1] - 4, y[:, 0] - 3], 1)

    def phi(y: Tensor) -> Tensor:
        return (-c(y)).log().sum(1)

    found = d.log_barrier_derivatives(c, (), y)
    steps = 1e-4 * torch.eye(2, dtype=torch.float64)
    gradient = torch.stack([(phi(y + s) - phi(y - s))[0] / 2e-4 for s in steps])
    curved = torch.stack(
        [(d.log_barrier_derivatives(c, (), y + s).f_y - d.log_barrier_derivatives(c, (), y - s).f_y)[0] / 2e-4 for s in steps]
    )
    torch.testing.assert_close(found.f_y[0], gradient, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.f_yy[0], curved, rtol=1e-6, atol=1e-6)
    value, slopes = c(y)[0], torch.tensor([[2.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    bends = torch.tensor([[[2.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    printed_62 = -(slopes / value[:, None]).sum(0)
    outer = slopes[:, :, None] * slopes[:, None, :]
    printed_63 = (outer / value[:, None, None] ** 2).sum(0) - (bends / value[:, None, None]).sum(0)
    torch.testing.assert_close(printed_62, -gradient, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(printed_63, -curved, rtol=1e-6, atol=1e-6)
    assert found.f_y[0, 0].item() == -0.9


def test_72_leaves_out_a_mean_of_zero() -> None:
    """There the limit is half of the mean slope, for every t."""
    zero = torch.zeros(1, 1, dtype=torch.float64)
    for t in (1.0, 1e4, 1e8):
        assert abs(barrier_mean_derivative(zero, zero + 1, t).item() - 0.5) < 1e-12
    x = zero.clone().requires_grad_()
    y = d.argmin(lambda x, y: (x - y).square().sum(1), x, start=zero + 1, inequality=d.box(lower=0.0))
    y.sum().backward()
    assert abs(x.grad.item() - 0.5) < 1e-6


def test_33_and_34_hold_at_a_free_maximum_and_74_and_75_on_the_plane() -> None:
    """The last two drop terms too, but the inverse on the plane takes them to zero."""
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(size, dtype=torch.float64, generator=generator) for size in ((1, 6, 2), (1, 6)))
    a[:, 0] = a.mean(1)
    k = torch.tensor([0])
    ones = torch.ones(1, 2, dtype=torch.float64)
    for constraints, inverse in (({"equality": None}, torch.linalg.inv), ({"equality": (ones, ones[:, 0])}, on_the_plane)):
        x = maximum(a, b, 0, math.inf, **constraints)
        matrix = inverse(hessian(a, b, x))
        by_a, by_b = derivatives(a, b, x, k, matrix)
        share = log_likelihood(a, b, x).exp()[0, 0]
        printed = (share - 1) * matrix  # i = j: without the term of a_i - mean
        torch.testing.assert_close(by_a[:, :, 0], printed, rtol=0, atol=1e-9)
        assert by_b[:, :, 0].abs().max() < 1e-9
        for one, other in zip((by_a, by_b), differences(a, b, 0, math.inf, **constraints), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_80_has_the_opposite_sign_before_the_outer_product() -> None:
    """At x = (0.8, 0.4): the first entry of the Hessian of log(1 - |x|^2) is -74, and 54 in print."""
    x = torch.tensor([[0.8, 0.4]], dtype=torch.float64)
    steps = 1e-6 * torch.eye(2, dtype=torch.float64)

    def slope(x: Tensor) -> Tensor:
        return -2 * x / (1 - x.square().sum(1, keepdim=True))

    true = torch.stack([(slope(x + s) - slope(x - s))[0] / 2e-6 for s in steps])
    outer, eye = 4 / 0.2**2 * x.mT @ x, 2 / 0.2 * torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(-outer - eye, true, rtol=1e-6, atol=1e-6)
    assert round(true[0, 0].item(), 4) == -74 and round((outer - eye)[0, 0].item(), 4) == 54
    torch.testing.assert_close(torch.linalg.inv(in_the_ball(0 * outer[None], x, 1.0))[0], true, rtol=1e-6, atol=1e-6)


def test_78_and_79_leave_out_t_and_terms_of_order_1_over_t() -> None:
    """True are differences of the barrier's maximiser.

    With t = 1000, the derivative of the second coordinate by its own parameter is 0.557, and 0.0021 in print.  With t = 10, that of
    the first coordinate by b_i is 0.053, and 0 in print.
    """
    a, b = classifier()
    k = torch.tensor([1])
    left_out = []
    for t in (10.0, 1000.0):
        x = maximum(a, b, 1, t)
        true_a, true_b = differences(a, b, 1, t)
        inverse = in_the_ball(hessian(a, b, x), x, t)
        for one, other in zip(derivatives(a, b, x, k, inverse), (true_a, true_b), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
        share = log_likelihood(a, b, x).exp()[0, 1]
        room, eye = 1 - x.square().sum(), torch.eye(2, dtype=torch.float64)
        outer = 4 / room**2 * x.mT @ x
        # i = j as printed, and with the sign corrected: both far too small, since the barrier counts without 1/t.
        for sign in (1, -1):
            printed = (share - 1) * torch.linalg.inv(hessian(a, b, x) + sign * outer - 2 / room * eye)
            assert printed.abs().max() < (0.3 if t == 10 else 0.01) * true_a[:, :, 1].abs().max()
            if t == 1000:
                assert (round(true_a[0, 1, 1, 1].item(), 3), round(printed[0, 1, 1].item(), 4)) == (0.557, 0.0021)
        left_out.append(true_b[:, :, 1].abs().max().item())
        torch.testing.assert_close((share - 1) * inverse + true_b[:, :, 1, None] * x[:, None], true_a[:, :, 1], rtol=1e-6, atol=1e-8)
    assert round(left_out[0], 3) == 0.053 and 0.1 < 100 * left_out[1] / left_out[0] < 10
    # At the constrained maximum itself, which lies on the sphere, the terms vanish: a_i - mean is a multiple of x there.
    b = b.clone().requires_grad_()
    [by_b] = torch.autograd.grad(maximum(a, b, 1, math.inf)[0, 0], b)
    assert by_b[0, 1].abs() < 1e-9 < by_b.abs().max()
