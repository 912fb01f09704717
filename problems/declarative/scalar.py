"""The examples with one variable and one parameter: the mean, the quartic of Figure 1 and the mean that is not negative."""

from __future__ import annotations

import torch
from torch import Tensor


def squares(h: Tensor, y: Tensor) -> Tensor:
    r"""Section 3.1: :math:`\sum_i (h_i - y)^2`, whose minimiser is the mean, with the derivative :math:`h'_i / m` (equation 18).

    For h ``(batch, m)`` and y ``(batch, 1)``, ``(batch,)``.
    """
    return (h - y).square().sum(1)


def quartic(x: Tensor, y: Tensor) -> Tensor:
    """Equation 19: ``x y^4 + 2 x^2 y^3 - 12 y^2``."""
    return x * y**4 + 2 * x**2 * y**3 - 12 * y**2


def stationary_points(x: Tensor) -> Tensor:
    """Equation 24: the three stationary points of the quartic for each x > 0, ``(3, *x.shape)``.

    Zero is a local maximum, and the other two are local minima.
    """
    root = (9 * x**4 + 96 * x).sqrt()
    return torch.stack([torch.zeros_like(x), (-3 * x**2 + root) / (4 * x), (-3 * x**2 - root) / (4 * x)])


def quartic_derivative(x: Tensor, y: Tensor) -> Tensor:
    """Equation 23: the derivative of a stationary point y by x."""
    return -(y**3 + 3 * x * y**2) / (3 * x * y**2 + 3 * x**2 * y - 6)


def positive_mean(h: Tensor) -> Tensor:
    """Equation 66: the minimiser of :func:`squares` over y >= 0, for h ``(batch, m)``."""
    return h.mean(1).clamp(min=0)


def barrier_mean(h: Tensor, t: float) -> Tensor:
    r"""The minimiser of :math:`t \sum_i (h_i - y)^2 - \log y` (equation 67): the exercise that the text leaves to its readers.

    Parameters
    ----------
    h : Tensor
        ``(batch, m)``.
    t : float
        Positive.

    Returns
    -------
    Tensor
        ``(batch,)``: the positive root of :math:`2 t m y^2 - 2 t (\sum_i h_i) y - 1`, without cancellation for negative sums.
    """
    total = t * h.sum(1)
    root = (total.square() + 2 * t * h.shape[1]).sqrt()
    return torch.where(total > 0, (total + root) / (2 * t * h.shape[1]), 1 / (root - total))


def barrier_mean_derivative(h: Tensor, slopes: Tensor, t: float) -> Tensor:
    r"""Equation 71: :math:`2 t \sum_i h'_i / (2 t m + 1 / g_t^2)`.

    Its limit for a growing t is equation 72, and half the mean of the slopes where the mean of h is zero, which is not printed.

    Parameters
    ----------
    h, slopes : Tensor
        ``(batch, m)``: values and derivatives by x.
    t : float
        Positive.

    Returns
    -------
    Tensor
        ``(batch,)``.
    """
    return 2 * t * slopes.sum(1) / (2 * t * h.shape[1] + 1 / barrier_mean(h, t).square())
