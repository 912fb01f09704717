r"""SG-LP, Algorithm 3 of the thesis: projected subgradient descent on the LP relaxation of a dense CRF, in the exact order.

.. math:: y_{t+1} = P_M \big(y_t - \beta_t \, (\phi + g_t)\big), \qquad g_t \in \partial f(y_t), \qquad
          \beta_t = \frac{\phi^\top y_t + f(y_t) - l_t}{|\phi + g_t|^2}

The thesis takes :math:`\beta_t = 1 / (1 + t)`, whatever the scale of the costs (and its released code searches the step of the best
rounding).  Here it is Polyak's step towards the best lower bound :math:`l_t`.  The means of all subgradients, weighted by their
steps, give bounds as well, and these converge: with :math:`D` the diameter of :math:`M`,

.. math:: \bar f_t - l_{t+1} \le \frac{D^2}{2 \sum_s \beta_s} + \frac{\bar f_t - \bar l_t}{2}

for the weighted means :math:`\bar f, \bar l` of energies and bounds.  So energies and bounds meet, and nothing has to be tuned.
"""

from __future__ import annotations

import torch

from blocklp.problems.densecrf.prox_lp import project_to_simplex
from blocklp.problems.densecrf.run import Run
from blocklp.problems.method_options import check_counts


def sg_lp(run: Run, *, steps: int = 5) -> None:
    """Minimise the LP relaxation; round every point on the way.

    Parameters
    ----------
    run : Run
        The run; a filter call is one exact order of all labels, which costs some hundred times the 64 levels of PROX-LP.
    steps : int
        Subgradients, at least 1.

    Raises
    ------
    OptionError
        If there is no step.
    ModelError
        If a compatibility has no metric below it.
    """
    check_counts(steps=steps)
    crf, y = run.crf, run.start
    phi = crf.unary
    mean = crf.subgradient(crf.level, 2)
    run.bounded(crf.lower_bound(mean, torch.float64))
    total = torch.zeros_like(run.best_bound)
    for _ in range(steps):
        g = crf.subgradient(y, None)
        run.filter_calls += 1
        # On the simplices a constant over the labels of a point has no part in it.
        down = phi + g
        down = down - down.mean(1, keepdim=True)
        value = crf.per_image(y.double() * (phi.double() + g)) + crf.constant
        size = ((value - run.best_bound).clamp(min=0) / crf.per_image(down * down)).nan_to_num(0.0, posinf=0.0)
        total = total + size
        mean += crf.per_point((size / total).nan_to_num(0.0)) * (g - mean)
        run.bounded(crf.lower_bound(g, phi.dtype))
        run.bounded(crf.lower_bound(mean, phi.dtype))
        y = project_to_simplex(y - crf.per_point(size).to(phi) * down, crf.deadline)
        if run.step(y):
            return
