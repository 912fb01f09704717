r"""Derivatives of minimisers on :math:`A y = b` (Gould et al. 2016, section 4.1), in two forms that agree.

Lemma 4.1 moves within the set: the columns of F span the null space of A, :math:`y = y_0 + F z`, and z is
free.  It needs :math:`F^T f_{YY} F` to be invertible, no more.  Lemma 4.2 differentiates the conditions of
Lagrange,

.. math:: f_Y(x, y) + A^T \lambda = 0, \qquad A y = b,

and eliminates the derivative of the multipliers (equations 51 to 59).  It needs :math:`f_{YY}` itself to be
invertible.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blocklp.declarative.derivatives import Function, second_derivatives, solve
from blocklp.declarative.unconstrained import solve_together
from blocklp.errors import ModelError


def null_space_jacobians(
    f: Function, parameters: Sequence[Tensor], y: Tensor, matrix: Tensor
) -> tuple[Tensor, ...]:
    r"""Lemma 4.1: :math:`g'(x) = -F (F^T f_{YY} F)^{-1} F^T f_{XY}`.

    Parameters
    ----------
    f
        As in :func:`blocklp.declarative.unconstrained.unconstrained_jacobians`, and so is what is returned.
    parameters : sequence of Tensor
        ``(batch, *shape)`` float64 each; A and b do not depend on them.
    y : Tensor
        ``(batch, n)`` float64: stationary points of f on the affine set.
    matrix : Tensor
        A, ``(k, n)`` or ``(batch, k, n)`` of rank k.

    Raises
    ------
    ModelError
        If A has less than full rank, or :math:`F^T f_{YY} F` is singular.
    """
    found = second_derivatives(f, parameters, y)
    basis = null_space(matrix.expand(len(y), *matrix.shape[-2:]))
    reduced = [torch.einsum("bnk,bn...->bk...", basis, f_xy) for f_xy in found.f_xy]
    steps = solve_together(-basis.mT @ found.f_yy @ basis, reduced)
    return tuple(torch.einsum("bnk,bk...->bn...", basis, step) for step in steps)


def lagrange_jacobians(
    f: Function, parameters: Sequence[Tensor], y: Tensor, matrix: Tensor
) -> tuple[Tensor, ...]:
    r"""Lemma 4.2: :math:`g' = (H^{-1} A^T (A H^{-1} A^T)^{-1} A H^{-1} - H^{-1}) f_{XY}`.

    H is :math:`f_{YY}`, factored once.

    Parameters
    ----------
    f, parameters, y, matrix
        As in :func:`null_space_jacobians`, and so is what is returned.

    Raises
    ------
    ModelError
        If A has less than full rank, or H is singular: then only Lemma 4.1 may serve.
    """
    found = second_derivatives(f, parameters, y)
    a = matrix.expand(len(y), *matrix.shape[-2:])
    across, *free = solve_together(
        found.f_yy, [a.mT, *found.f_xy]
    )  # H^-1 A' and H^-1 f_XY, by one factorisation
    pulls = solve_together(a @ across, [torch.einsum("bkn,bn...->bk...", a, step) for step in free])
    return tuple(
        torch.einsum("bnk,bk...->bn...", across, pull) - step for pull, step in zip(pulls, free, strict=True)
    )


def null_space(matrix: Tensor) -> Tensor:
    """Return an orthonormal basis ``(batch, n, n - k)`` of the null spaces of ``(batch, k, n)``.

    Raises
    ------
    ModelError
        If a matrix has less than rank k.
    """
    if not matrix.shape[1]:
        return torch.eye(matrix.shape[2], dtype=matrix.dtype, device=matrix.device).repeat(len(matrix), 1, 1)
    q, r = torch.linalg.qr(matrix.mT, mode="complete")
    size = r.diagonal(dim1=1, dim2=2).abs()
    least = 1e-12 * matrix.abs().amax((1, 2))[:, None]
    if matrix.shape[1] > matrix.shape[2] or bool((size <= least).any()):
        raise ModelError("the rows of A depend on each other; leave out those that follow from others")
    basis: Tensor = q[:, :, matrix.shape[1] :]
    return basis


def affine_point(matrix: Tensor, right: Tensor, y: Tensor) -> Tensor:
    """Return the point of ``A y = b`` next to y.

    Parameters
    ----------
    matrix, right : Tensor
        A ``(batch, k, n)`` of rank k, and b ``(batch, k)``.
    y : Tensor
        ``(batch, n)``.

    Returns
    -------
    Tensor
        ``(batch, n)``.
    """
    gap = right - (matrix @ y[:, :, None])[:, :, 0]
    moved: Tensor = y + (matrix.mT @ solve(matrix @ matrix.mT, gap)[:, :, None])[:, :, 0]
    return moved
