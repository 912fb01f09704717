r"""The feature vector that a softmax classifier gives the highest likelihood, as a function of the classifier (sections 3.3 and 4.4).

.. math:: g_i(\Theta) = \arg\max_x \; \log \ell_i(x), \qquad \log \ell_i(x) = a_i^T x + b_i - \log \sum_j \exp(a_j^T x + b_j)

With H the Hessian of :math:`\log \ell_i`, :math:`\bar a = \sum_j \ell_j a_j` and the right inverse M for the constraints, all of the
text's derivatives are one formula,

.. math::
    \frac{\partial g_i}{\partial a_{jk}} = \ell_j M (x_k (a_j - \bar a) + e_k) - [\![i = j]\!] M e_k, \qquad
    \frac{\partial g_i}{\partial b_j} = \ell_j M (a_j - \bar a).

- Without constraints, :math:`M = H^{-1}` (equations 33, 34; there :math:`a_i = \bar a`, which the text uses).
- On :math:`1^T x = 1`, :math:`M = H^\dagger` (equations 74, 75; :math:`H^\dagger (a_i - \bar a) = 0` there).
- In the unit ball with a barrier, :math:`M = (H + \nabla^2 \phi / t)^{-1}` (equations 78, 79).  The text has M without 1/t, which
  makes all derivatives too small, the opposite sign before :math:`x x^T` in equation 80, and drops the terms of
  :math:`a_i - \bar a`, which are of order 1/t where the ball is active.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.declarative.derivatives import Function


def log_likelihood(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Equations 25 to 28: the logarithm of the likelihood of every class.

    Parameters
    ----------
    a, b : Tensor
        ``(batch, classes, n)`` and ``(batch, classes)``.
    x : Tensor
        ``(batch, n)``.

    Returns
    -------
    Tensor
        ``(batch, classes)``.
    """
    return torch.log_softmax((a @ x[:, :, None])[:, :, 0] + b, 1)


def log_likelihood_of(classes: Tensor) -> Function:
    """Return the objective ``f(a, b, x) -> (batch,)`` for one class ``(batch,)`` of each instance."""
    return lambda a, b, x: log_likelihood(a, b, x).gather(1, classes[:, None])[:, 0]


def hessian(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Equation 30: the Hessian of the log-likelihood by x, of whichever class.

    Parameters
    ----------
    a, b, x
        As in :func:`log_likelihood`.

    Returns
    -------
    Tensor
        ``(batch, n, n)``: minus the covariance of the a by the likelihoods.
    """
    share = log_likelihood(a, b, x).exp()[:, :, None]
    mean = (share * a).sum(1)
    return mean[:, :, None] * mean[:, None, :] - a.mT @ (share * a)


def on_the_plane(curvature: Tensor) -> Tensor:
    r"""The inverse on :math:`1^T x = 1`: :math:`H^\dagger = H^{-1} - H^{-1} 1 1^T H^{-1} / (1^T H^{-1} 1)`.

    For ``(batch, n, n)``, ``(batch, n, n)``.
    """
    inverse: Tensor = torch.linalg.inv(curvature)
    sums = inverse.sum(2)
    return inverse - sums[:, :, None] * sums[:, None, :] / sums.sum(1)[:, None, None]


def in_the_ball(curvature: Tensor, x: Tensor, t: float) -> Tensor:
    r"""The inverse in the unit ball: :math:`(H + \nabla^2 \phi / t)^{-1}`, with the sign of equation 80 corrected.

    .. math:: \nabla^2 \phi(x) = -\frac{4}{(1 - \lVert x \rVert^2)^2} x x^T - \frac{2}{1 - \lVert x \rVert^2} I

    Parameters
    ----------
    curvature : Tensor
        H, ``(batch, n, n)``.
    x : Tensor
        ``(batch, n)``: maximisers of the log-likelihood with the barrier, inside the ball.
    t : float
        That of the barrier.

    Returns
    -------
    Tensor
        ``(batch, n, n)``.
    """
    room = 1 - x.square().sum(1)[:, None, None]
    barrier = -4 / room.square() * x[:, :, None] * x[:, None, :] - 2 / room * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    inverse: Tensor = torch.linalg.inv(curvature + barrier / t)
    return inverse


def derivatives(a: Tensor, b: Tensor, x: Tensor, classes: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Equations 33, 34, 74, 75 and, with the terms that the text drops, 78 and 79: derivatives of the maximiser.

    Parameters
    ----------
    a, b : Tensor
        ``(batch, classes, n)`` and ``(batch, classes)``.
    x : Tensor
        ``(batch, n)``: the maximisers.
    classes : Tensor
        ``(batch,)`` int64: i of each instance.
    inverse : Tensor
        M, ``(batch, n, n)``.

    Returns
    -------
    by_a, by_b : Tensor
        ``(batch, n, classes, n)`` and ``(batch, n, classes)``.
    """
    share = log_likelihood(a, b, x).exp()
    apart = a - (share[:, :, None] * a).sum(1, keepdim=True)
    by_b = torch.einsum("bj,bnk,bjk->bnj", share, inverse, apart)
    chosen = torch.nn.functional.one_hot(classes, a.shape[1]).to(a.dtype)
    by_a = by_b[:, :, :, None] * x[:, None, None, :] + torch.einsum("bj,bnk->bnjk", share - chosen, inverse)
    return by_a, by_b
