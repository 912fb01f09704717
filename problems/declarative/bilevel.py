r"""A classifier whose maximum-likelihood features lie where they are wanted (Gould et al. 2016, section 5): bi-level optimisation.

.. math::
    \min_\Theta \; \frac{1}{2} \sum_i \lVert g_i(\Theta) - t_i \rVert^2 \quad \text{where} \quad
    g_i(\Theta) = \arg\max_{\lVert x \rVert \le 1} \; \log \ell_i(x; \Theta)

by gradient descent (equation 82): the lower problems are one node, all classes of it in a batch, and the upper gradient is theirs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from blocklp.declarative.constraints import ball
from blocklp.declarative.node import argmax
from blocklp.problems.declarative.softmax import log_likelihood_of


class Descent(NamedTuple):
    """A run of gradient descent."""

    a: Tensor
    """``(classes, n)``: the last parameters."""
    b: Tensor
    """``(classes,)``."""
    maxima: Tensor
    """``(classes, n)``: their maximum-likelihood features."""
    objectives: tuple[float, ...]
    """The upper objective before each step, and after the last."""


def maximum_likelihood_features(a: Tensor, b: Tensor) -> Tensor:
    """The lower problems of equation 81: for each class, the feature in the unit ball with the highest likelihood.

    Parameters
    ----------
    a, b : Tensor
        ``(classes, n)`` and ``(classes,)`` float64.

    Returns
    -------
    Tensor
        ``(classes, n)``, differentiable.
    """
    m = len(a)
    start = torch.zeros(m, a.shape[1], dtype=a.dtype)
    return argmax(log_likelihood_of(torch.arange(m)), a.expand(m, -1, -1), b.expand(m, -1), start=start, inequality=ball())


def targets_on_the_circle(classes: int) -> Tensor:
    """Points with even spaces between them on the unit circle, ``(classes, 2)``."""
    angles = 2 * math.pi * torch.arange(classes, dtype=torch.float64) / classes
    return torch.stack([angles.cos(), angles.sin()], 1)


def place_maxima(
    a: Tensor, b: Tensor, targets: Tensor, rate: float | None = None, steps: int = 100, tolerance: float = 1e-9
) -> Descent:
    r"""Equation 82: :math:`\theta \leftarrow \theta - \eta \sum_i (g_i(\theta) - t_i)^T g'_i(\theta)` for all parameters.

    Parameters
    ----------
    a, b : Tensor
        ``(classes, n)`` and ``(classes,)`` float64: the first parameters.
    targets : Tensor
        ``(classes, n)``: where the maxima have to be.
    rate : float, optional
        The step size :math:`\eta`; by default Polyak's, the objective over the squared norm of its gradient, which knows that the
        least objective is zero.
    steps : int
        The most steps.
    tolerance : float
        An objective at which to stop.

    Returns
    -------
    Descent
        Parameters, maxima and objectives.

    Raises
    ------
    ModelError
        If a lower problem has no isolated maximum.
    """
    a, b = a.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()
    objectives: list[float] = []
    while True:
        maxima = maximum_likelihood_features(a, b)
        objective = 0.5 * (maxima - targets).square().sum()
        objectives.append(objective.item())
        if objectives[-1] <= tolerance or len(objectives) > steps:
            return Descent(a.detach(), b.detach(), maxima.detach(), tuple(objectives))
        by_a, by_b = torch.autograd.grad(objective, (a, b))
        step = objectives[-1] / float(by_a.square().sum() + by_b.square().sum()) if rate is None else rate
        with torch.no_grad():
            a -= step * by_a
            b -= step * by_b
