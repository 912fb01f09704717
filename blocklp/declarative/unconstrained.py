r"""Derivatives of unconstrained minimisers and maximisers (Gould et al. 2016, Lemmas 3.1 to 3.4).

Where :math:`g(x)` is a stationary point of :math:`f(x, \cdot)`, :math:`f_Y(x, g(x)) = 0` holds for all x.
Differentiating by x,

.. math:: f_{XY} + f_{YY} \, g'(x) = 0, \qquad g'(x) = -f_{YY}^{-1} f_{XY}.

This is Lemma 3.1 for one variable and Lemma 3.2 for many.  Nothing in it asks for a minimum: maxima (Lemma
3.3), saddle points and stationary points of :math:`h(f(x, y))` for a smooth h with :math:`h' \ne 0` (Lemma
3.4) have the same derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from blocklp.declarative.derivatives import Function, second_derivatives, solve


def scalar_derivative(f: Function, x: Tensor, y: Tensor) -> Tensor:
    r"""Lemma 3.1: :math:`g'(x) = -f_{XY} / f_{YY}` for one parameter and one variable.

    Parameters
    ----------
    f : callable
        ``f(x, y) -> (batch,)`` for ``(batch,)`` both.
    x, y : Tensor
        ``(batch,)`` float64, where :math:`f_Y(x, y) = 0`.

    Returns
    -------
    Tensor
        ``(batch,)``.

    Raises
    ------
    ShapeError
        If f does not return ``(batch,)``.
    """
    found = second_derivatives(lambda x, y: f(x, y[:, 0]), [x], y[:, None])
    return -found.f_xy[0][:, 0] / found.f_yy[:, 0, 0]


def unconstrained_jacobians(f: Function, parameters: Sequence[Tensor], y: Tensor) -> tuple[Tensor, ...]:
    r"""Lemmas 3.2, 3.3, equation 14: :math:`-f_{YY}^{-1} [f_{X_1 Y} \cdots f_{X_m Y}]`, by one factorisation.

    Parameters
    ----------
    f : callable
        ``f(*parameters, y) -> (batch,)``.
    parameters : sequence of Tensor
        ``(batch, *shape)`` float64 each.
    y : Tensor
        ``(batch, n)`` float64, where :math:`f_Y = 0`: a minimum, a maximum or any other stationary point.

    Returns
    -------
    tuple of Tensor
        ``(batch, n, *shape)`` for each parameter.

    Raises
    ------
    ModelError
        If :math:`f_{YY}` is singular.
    ShapeError
        If f does not return ``(batch,)``.
    """
    found = second_derivatives(f, parameters, y)
    return solve_together(-found.f_yy, found.f_xy)


def solve_together(matrix: Tensor, right: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Apply the inverse of ``(batch, n, n)`` to several ``(batch, n, *shape)`` by one factorisation (14)."""
    return apart(solve(matrix, together(right)), right)


def together(right: Sequence[Tensor]) -> Tensor:
    """Return several ``(batch, n, *shape)`` as the columns of one ``(batch, n, k)``."""
    return torch.cat([r.flatten(2) if r.dim() > 2 else r[:, :, None] for r in right], 2)


def apart(columns: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the columns as several ``(batch, n, *shape)`` again, for shapes of ``(batch, any, *shape)``."""
    ends = list(accumulate(one[0, 0].numel() for one in like))
    parts = torch.tensor_split(columns, ends[:-1], 2)
    return tuple(part.reshape(*part.shape[:2], *one.shape[2:]) for part, one in zip(parts, like, strict=True))
