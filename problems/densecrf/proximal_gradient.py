r"""The fast proximal gradient method (Beck & Teboulle 2009), PGM in Le-Huu & Alahari (2021).

.. math:: y_k = \Pi(z_k - \beta \nabla E(z_k)), \qquad z_{k+1} = y_k + \frac{t_k - 1}{t_{k+1}} (y_k - y_{k-1}), \qquad
          t_{k+1} = \tfrac{1}{2} \left( 1 + \sqrt{1 + 4 t_k^2} \right)

with the energy E of :mod:`~blocklp.problems.densecrf.regularized_fw`; the proximal term is that of the simplices' indicator.
"""

from __future__ import annotations

import math

from blocklp.problems.densecrf.prox_lp import project_to_simplex
from blocklp.problems.densecrf.regularized_fw import check_positive, gradient, linear_costs
from blocklp.problems.densecrf.run import Run


def prox_grad(run: Run, *, rate: float = 1.0, steps: int = 10) -> None:
    r"""Minimise E over the simplices; it may rise, and converges where E is convex and :math:`\beta` at most 1 / its curvature.

    It starts at ``run.start``; the text starts at ``(-unary).softmax(1)``.

    Parameters
    ----------
    run : Run
        The run.
    rate : float
        The gradient's weight :math:`\beta`, in the energy's :attr:`~blocklp.problems.densecrf.DenseCRF.unit`; the text's is 1.
    steps : int
        Steps, at least 1.

    Raises
    ------
    OptionError
        If a number is not positive.
    """
    check_positive(rate=rate, steps=steps)
    crf, y = run.crf, run.start
    phi, field = linear_costs(crf), crf.message(y)
    run.filter_calls += 1
    down = rate / crf.per_point(run.unit).to(y)
    ahead, field_ahead, t = y, field, 1.0
    for _ in range(steps):
        old, field_old = y, field
        # The point ahead may leave the simplices, where the cliques' products of probabilities mean nothing: they are asked at y.
        y = project_to_simplex(ahead - down * gradient(crf, phi, field_ahead, y), crf.deadline)
        field = crf.message(y)
        run.filter_calls += 1
        following = (1 + math.sqrt(1 + 4 * t * t)) / 2
        momentum, t = (t - 1) / following, following
        ahead, field_ahead = y + momentum * (y - old), field + momentum * (field - field_old)
        if run.step(y):
            return
