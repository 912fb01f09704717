r"""Linear systems at degenerate solutions, where multipliers are not unique.

More constraints may be active at y than single it out, such as the bounds and the equation of a corner of the
simplex.  :math:`F_Z` is singular then, although y has a derivative: what is free are multipliers.  The system
of the derivative is consistent, and its solution of least norm has the right y.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.declarative.derivatives import SINGULAR
from blocklp.errors import ModelError

DOUBT, INCONSISTENT = 1e-12, 1e-6
"""Pivots, relative to the largest, that count as zero; what is left of a right-hand side and no rounding."""


def balanced(residual: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Divide each equation by its largest derivative, so that equations near a kink count like others.

    Parameters
    ----------
    residual : Tensor
        ``(batch, n)``.
    matrix : Tensor
        ``(batch, n, n)``: its derivatives.

    Returns
    -------
    residual, matrix : Tensor
        Of the same solution.
    """
    size = matrix.detach().abs().amax(2)
    size = torch.where(size > 0, size, 1.0)
    return residual / size, matrix / size[:, :, None]


def consistent_solution(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve systems by one factorisation each, or by least norm where they are singular and have solutions.

    Parameters
    ----------
    matrix : Tensor
        ``(batch, n, n)``, balanced.
    right : Tensor
        ``(batch, n, k)``.

    Returns
    -------
    Tensor
        ``(batch, n, k)``, differentiable.

    Raises
    ------
    ModelError
        If a system has no solution: the minimiser is not isolated.
    """
    plain = matrix.detach()
    factor, pivots, info = torch.linalg.lu_factor_ex(plain)
    size = factor.diagonal(dim1=1, dim2=2).abs()
    doubtful = (info > 0) | ~(size.amin(1) > DOUBT * size.amax(1))
    inverse = torch.linalg.pinv(plain[doubtful], rtol=DOUBT)
    if bool(doubtful.any()):  # whose factors would give NaN, in gradients too
        eye = torch.eye(plain.shape[1], dtype=plain.dtype, device=plain.device)
        factor, pivots, _ = torch.linalg.lu_factor_ex(torch.where(doubtful[:, None, None], eye, plain))

    def applied(values: Tensor) -> Tensor:
        found: Tensor = torch.linalg.lu_solve(factor, pivots, values)
        return found.index_put((doubtful,), inverse @ values[doubtful])

    solution = applied(right.detach())
    left = (plain @ solution - right.detach()).abs().amax((1, 2))
    wrong = doubtful & ~(left <= INCONSISTENT * right.detach().abs().amax((1, 2)))
    if bool(wrong.any()):
        raise ModelError(SINGULAR.format(int(wrong.nonzero()[0])))
    if matrix.requires_grad or right.requires_grad:
        # What is added is zero, and has the derivatives of the solution.
        solution = solution + applied(right - matrix @ solution)
    return solution
