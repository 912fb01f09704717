"""Exact minimisation of polynomials on the unit interval, many at once."""

from __future__ import annotations

import torch
from torch import Tensor

BISECTIONS = 55
"""Halvings of an interval within [0, 1] until its ends are neighbours in float64."""


def minimiser(coefficients: Tensor) -> Tensor:
    """Where polynomials are least on [0, 1]; the leftmost such point.

    Between two roots of its derivative a polynomial is monotone, so that bisection finds its root there.  So the roots of every
    derivative, from the linear one to the first, follow from those of the next, and neither vanishing leading coefficients nor double
    roots need care, as they would with the eigenvalues of companion matrices.

    Parameters
    ----------
    coefficients : Tensor, shape (batch, degree + 1), float64
        Constant first.

    Returns
    -------
    Tensor, shape (batch,), float64
    """
    # A common constant would hide small differences.
    polynomials = [torch.cat([torch.zeros_like(coefficients[:, :1]), coefficients[:, 1:]], 1)]
    while polynomials[-1].shape[1] > 1:
        powers = torch.arange(1, polynomials[-1].shape[1], device=coefficients.device, dtype=coefficients.dtype)
        polynomials.append(polynomials[-1][:, 1:] * powers)
    points = coefficients.new_tensor([0.0, 1.0]).expand(len(coefficients), 2)
    for derivative in reversed(polynomials[1:-1]):
        roots = _roots_between(derivative, points)
        points = torch.cat([points[:, :1], roots, points[:, -1:]], 1)
    return points.gather(1, evaluate(polynomials[0], points).argmin(1, keepdim=True))[:, 0]


def evaluate(coefficients: Tensor, points: Tensor) -> Tensor:
    """Values of polynomials ``(batch, degree + 1)`` at points ``(batch, count)``, by Horner's rule."""
    value = torch.zeros_like(points)
    for power in range(coefficients.shape[1] - 1, -1, -1):
        value = value * points + coefficients[:, power, None]
    return value


def _roots_between(coefficients: Tensor, points: Tensor) -> Tensor:
    """The root between each two ascending points, or the first of them if there is none: ``(batch, count - 1)``."""
    low, high = points[:, :-1], points[:, 1:]
    values = evaluate(coefficients, points)
    if coefficients.shape[1] == 2:
        root = -coefficients[:, :1] / coefficients[:, 1:]
        return torch.where((root > low) & (root < high), root, low)
    falling = values[:, :-1] > 0
    crossed = values[:, :-1].sign() * values[:, 1:].sign() < 0
    high = torch.where(crossed, high, low)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        left = (evaluate(coefficients, middle) > 0) == falling
        low, high = torch.where(left, middle, low), torch.where(left, high, middle)
    return low
