r"""Derivatives of minimisers within inequalities by a logarithmic barrier (Gould et al. 2016, section 4.2).

The minimiser of f(x, y) over :math:`c_i(x, y) \le 0` is the limit, for a growing t, of that of

.. math:: t f(x, y) - \phi(x, y), \qquad \phi(x, y) = \sum_i \log(-c_i(x, y)),

(equation 61), which has no constraints: Lemma 3.2 gives its derivative, equation 64.  The derivatives of
:math:`\phi` are

.. math::
    \nabla \phi = \sum_i \frac{1}{c_i} \nabla c_i, \qquad
    \nabla^2 \phi = \sum_i \frac{1}{c_i} \nabla^2 c_i - \sum_i \frac{1}{c_i^2} \nabla c_i \nabla c_i^T.

Equations 62 and 63 print them with the opposite signs, those of :math:`-\phi`, against equations 61 and 64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blocklp.declarative.derivatives import Derivatives, Function, jacobian, second_derivatives
from blocklp.declarative.unconstrained import solve_together


def barrier_objective(f: Function, inequality: Function, t: float | Tensor) -> Function:
    r"""Equation 61: :math:`t f - \sum_i \log(-c_i)`, infinite where an inequality does not hold strictly.

    Parameters
    ----------
    f : callable
        ``f(*parameters, y) -> (batch,)``.
    inequality : callable
        ``c(*parameters, y) -> (batch, m)``.
    t : float or Tensor
        Positive, ``(batch,)`` for one each; the larger, the nearer to the constrained minimum.

    Returns
    -------
    callable
        Of the same arguments as f.
    """

    def objective(*arguments: Tensor) -> Tensor:
        slack = -inequality(*arguments)
        # Outside, the logarithm is taken of 1: it counts as infinite, and NaN would spoil the gradients of
        # other instances.
        inside = (slack > 0).all(1)
        barrier = torch.where(inside[:, None], slack, 1.0).log().sum(1)
        return torch.where(inside, t * f(*arguments) - barrier, torch.inf)

    return objective


def log_barrier_derivatives(inequality: Function, parameters: Sequence[Tensor], y: Tensor) -> Derivatives:
    r"""Equations 62 and 63 with their signs corrected: derivatives of :math:`\phi = \sum_i \log(-c_i)`.

    Parameters
    ----------
    inequality : callable
        ``c(*parameters, y) -> (batch, m)``.
    parameters : sequence of Tensor
        ``(batch, *shape)`` float64 each.
    y : Tensor
        ``(batch, n)`` float64, where all c are negative.

    Returns
    -------
    Derivatives
        :math:`\phi_Y`, :math:`\phi_{YY}` and :math:`\phi_{XY}`.
    """
    parameters, y = [p.detach().requires_grad_() for p in parameters], y.detach().requires_grad_()
    with torch.enable_grad():
        c = inequality(*parameters, y)
        c_y, *c_x = jacobian(c, [y, *parameters])
    weight = 1 / c.detach()
    # The terms with second derivatives of c are the derivatives of a weighted sum of the c.
    curved = second_derivatives(lambda *arguments: (weight * inequality(*arguments)).sum(1), parameters, y)
    scaled = weight[:, :, None] * c_y
    return Derivatives(
        curved.f_y,
        curved.f_yy - scaled.mT @ scaled,
        tuple(
            f_xy - torch.einsum("bmn,bm...->bn...", scaled, torch.einsum("bm,bm...->bm...", weight, by))
            for f_xy, by in zip(curved.f_xy, c_x, strict=True)
        ),
    )


def barrier_jacobians(
    f: Function, inequality: Function, parameters: Sequence[Tensor], y: Tensor, t: float
) -> tuple[Tensor, ...]:
    r"""Equation 64: :math:`-(t f_{YY} - \phi_{YY})^{-1} (t f_{XY} - \phi_{XY})`.

    It is the derivative of the barrier's minimiser, and that of the constrained one in the limit.

    Parameters
    ----------
    f, inequality
        As in :func:`barrier_objective`.
    parameters
        As in :func:`blocklp.declarative.unconstrained.unconstrained_jacobians`, and so is what is returned.
    y : Tensor
        ``(batch, n)`` float64: minimisers of :func:`barrier_objective`.
    t : float
        That of the barrier.

    Raises
    ------
    ModelError
        If the matrix is singular.
    """
    of_f, of_phi = second_derivatives(f, parameters, y), log_barrier_derivatives(inequality, parameters, y)
    right = [t * one - other for one, other in zip(of_f.f_xy, of_phi.f_xy, strict=True)]
    return solve_together(of_phi.f_yy - t * of_f.f_yy, right)
