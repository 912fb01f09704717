r"""The fast proximal gradient method (Beck & Teboulle 2009), PGM in Le-Huu & Alahari (2021).

.. math:: y_k = \Pi(z_k - \beta \nabla E(z_k)), \qquad z_{k+1} = y_k + \frac{t_k - 1}{t_{k+1}} (y_k - y_{k-1}), \qquad
          t_{k+1} = \tfrac{1}{2} \left( 1 + \sqrt{1 + 4 t_k^2} \right)

with the energy E of :mod:`~blocklp.problems.densecrf.regularized_fw`; the proximal term is that of the simplices' indicator.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.prox_lp import project_to_simplex
from blocklp.problems.densecrf.regularized_fw import gradient, linear_costs
from blocklp.problems.densecrf.run import Run
from blocklp.problems.method_options import check_positive


def prox_grad(run: Run, *, rate: float = 1.0, steps: int = 10) -> None:
    r"""Minimise E over the simplices; it may rise, and converges where E is convex and :math:`\beta` at most 1 / its curvature.

    It starts at ``run.start``; the text starts at ``(-unary).softmax(1)``.

    Parameters
    ----------
    run, rate
        As in :func:`blocklp.problems.densecrf.projected_gradient.pgd`; the text's rate is 1.
    steps : int
        Steps, at least 1.

    Raises
    ------
    OptionError
        If a number is not positive.
    """
    check_positive(rate=rate, steps=steps)
    crf = run.crf
    phi, down = linear_costs(crf), rate / crf.per_point(run.unit).to(run.start)
    at = Momentum(run.start)
    for _ in range(steps):
        at = fast_step(crf, phi, at, down)
        run.filter_calls += 1
        if run.step(at.y):
            return


class Momentum(NamedTuple):
    """The last two points."""

    y: Tensor
    """``(points, labels)``: the last one."""
    old: Tensor | None = None
    """The one before; None at first."""
    old_field: Tensor | None = None
    """The message there."""
    t: float = 1.0
    before: float = 1.0
    """The last two :math:`t_k`."""


def fast_step(crf: DenseCRF, phi: Tensor, at: Momentum, down: Tensor | float) -> Momentum:
    """One step of the method, with one filter call.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    phi : Tensor
        ``(points, labels)``: its linear part.
    at : Momentum
        Where it is.
    down : Tensor or float
        The gradient's weight, ``(points, 1)`` or one for all.

    Returns
    -------
    Momentum
        Where it is then.

    Raises
    ------
    TimeLimitError
        If the energy's deadline passes.
    """
    ahead = field = crf.message(at.y)
    y = at.y
    if at.old is not None and at.old_field is not None:
        momentum = (at.before - 1) / at.t
        y, ahead = y + momentum * (y - at.old), field + momentum * (field - at.old_field)
    # The point ahead may leave the simplices, where the cliques' products of probabilities mean nothing: they are asked at at.y.
    found = project_to_simplex(y - down * gradient(crf, phi, ahead, at.y), crf.deadline)
    return Momentum(found, at.y, field, (1 + math.sqrt(1 + 4 * at.t * at.t)) / 2, at.t)
