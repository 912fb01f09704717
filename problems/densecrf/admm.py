r"""The alternating direction method of multipliers (Le-Huu & Paragios 2018, supplement B.3, for pairs).

A quadratic energy is bilinear in two copies of y, which must agree:

.. math:: \min_{x, z} \; \tfrac{1}{2} \phi^\top (x + z) + \tfrac{1}{2} \sum_m x^\top K^m z \mu^m, \qquad x = z

By (109) and (111) each copy is a projection, with multipliers v of the constraint:

.. math:: x = \Pi \! \left( z - \tfrac{1}{\rho} \left( \tfrac{1}{2} (\phi + K z \mu) + v \right) \right), \qquad
          z = \Pi \! \left( x - \tfrac{1}{\rho} \left( \tfrac{1}{2} (\phi + K x \mu) - v \right) \right), \qquad
          v \leftarrow v + \rho (x - z)

Cliques are of higher order than two copies: each copy has half of their cost, by its tangent at the other one.  For cliques of two
points that is the bilinear form, and where the copies agree it is the gradient of the energy, so that they stop where it is
stationary.

A step here is one of the two projections, so that it filters once, as the steps of the other methods do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.prox_lp import project_to_simplex
from blocklp.problems.densecrf.regularized_fw import gradient, linear_costs
from blocklp.problems.densecrf.run import Run
from blocklp.problems.method_options import check_positive


def admm(run: Run, *, penalty: float = 1.0, steps: int = 10) -> None:
    r"""Look for a stationary point of E of :mod:`~blocklp.problems.densecrf.regularized_fw` over the simplices.

    It starts at ``run.start``; the text starts at ``(-unary).softmax(1)``.

    Parameters
    ----------
    run : Run
        The run.
    penalty : float
        The weight :math:`\rho` of the copies' agreement, in the energy's :attr:`~blocklp.problems.densecrf.DenseCRF.unit`; the
        larger, the surer to converge, and the slower.
    steps : int
        Projections, at least 1.

    Raises
    ------
    OptionError
        If a number is not positive.
    """
    check_positive(penalty=penalty, steps=steps)
    crf, y = run.crf, run.start
    phi = linear_costs(crf)
    multipliers, weight = torch.zeros_like(y), penalty * crf.per_point(run.unit).to(y)
    for k in range(steps):
        y, multipliers = half_step(crf, phi, (y, multipliers), weight, k)
        run.filter_calls += 1
        if run.step(y):
            return


def half_step(crf: DenseCRF, phi: Tensor, at: tuple[Tensor, Tensor], weight: Tensor | float, turn: int) -> tuple[Tensor, Tensor]:
    """One of the two projections, x in even turns and z in odd ones, after which the multipliers follow.

    Parameters
    ----------
    crf, phi
        As in :func:`blocklp.problems.densecrf.proximal_gradient.fast_step`.
    at : pair of Tensor
        ``(points, labels)``: the other copy, and the multipliers.
    weight : Tensor or float
        The penalty, ``(points, 1)`` or one for all.
    turn : int
        From 0 on.

    Returns
    -------
    pair of Tensor
        This copy, and the multipliers.

    Raises
    ------
    TimeLimitError
        If the energy's deadline passes.
    """
    other, multipliers = at
    sign = -1 if turn % 2 else 1
    y = project_to_simplex(other - (gradient(crf, phi, crf.message(other), other) / 2 + sign * multipliers) / weight, crf.deadline)
    return y, multipliers + weight * (other - y) if turn % 2 else multipliers
