r"""SG-LP, Algorithm 3 of the thesis: projected subgradient descent on the LP relaxation of a dense CRF, in the exact order.

.. math:: y_{t+1} = P_M \big(y_t - \beta_t \, (\phi + g_t)\big), \qquad g_t \in \partial f(y_t), \qquad
          \beta_t = \frac{\phi^\top y_t + f(y_t) - l_t}{|\phi + g_t|^2}

The thesis takes :math:`\beta_t = 1 / (1 + t)`, whatever the scale of the costs (and its released code searches the step of the best
rounding): ``step="printed"``.  By default it is Polyak's step towards the best lower bound :math:`l_t`.  The means of all
subgradients, weighted by their steps, give bounds as well, and with Polyak's steps these converge: with :math:`D` the diameter of
:math:`M`,

.. math:: \bar f_t - l_{t+1} \le \frac{D^2}{2 \sum_s \beta_s} + \frac{\bar f_t - \bar l_t}{2}

for the weighted means :math:`\bar f, \bar l` of energies and bounds.  So energies and bounds meet, and nothing has to be tuned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.problems.densecrf.prox_lp import project_to_simplex
from blocklp.problems.densecrf.prox_lp_variants import absent_labels
from blocklp.problems.densecrf.run import Run
from blocklp.problems.method_options import check_counts

STEPS = "polyak", "printed"
"""Lengths of steps: towards the best bound, and 1 / (1 + t)."""


def sg_lp(run: Run, *, steps: int = 5, step: str = "polyak", levels: int | None = None) -> None:
    """Minimise the LP relaxation; round every point on the way.

    Parameters
    ----------
    run : Run
        The run; a filter call is one exact order of all labels, which costs some hundred times the 64 levels of PROX-LP.
    steps : int
        Subgradients, at least 1.
    step : str
        Length of the steps: "polyak", or "printed" for 1 / (1 + t) with t = 1, 2, ..
    levels : int, optional
        Levels of scores that subgradients tell apart, at least 2, instead of the exact order.

    Raises
    ------
    OptionError
        If there is no step, or an option is none of these.
    ModelError
        If a compatibility has no metric below it.
    """
    _descend(run, steps, step, levels, None)


def sg_lp_l(run: Run, *, steps: int = 5, step: str = "polyak", levels: int | None = None, least: float = 0.01) -> None:
    """Minimise the LP relaxation on the labels that the start takes: SG-LP_l (thesis, 2.2.7.3); bounds are those of all labels.

    Parameters
    ----------
    run, steps, step, levels
        As in :func:`sg_lp`; in print ``run.start`` is the solution of DCneg.
    least : float
        Labels whose scores at the start are below it at all points of an image are left out there.

    Raises
    ------
    OptionError, ModelError
        As :func:`sg_lp`.
    """
    _descend(run, steps, step, levels, absent_labels(run.crf, run.start, least))


def _descend(run: Run, steps: int, step: str, levels: int | None, absent: Tensor | None) -> None:
    """Make the steps, without the labels that are absent ``(points, labels)``."""
    check_counts(steps=steps)
    if step not in STEPS or (levels is not None and levels < 2):
        raise OptionError(f"step is {step!r} and levels {levels}; give 'polyak' or 'printed', and 2 levels or more, or None")
    crf, y = run.crf, run.start
    phi = crf.unary
    mean = crf.subgradient(crf.level, 2)
    run.bounded(crf.lower_bound(mean, torch.float64))
    total = torch.zeros_like(run.best_bound)
    for k in range(steps):
        g = crf.subgradient(y, levels)
        run.filter_calls += 1
        # On the simplices a constant over the labels of a point has no part in it.
        down = phi + g
        down = down - down.mean(1, keepdim=True)
        value = crf.per_image(y.double() * (phi.double() + g)) + crf.constant
        size = ((value - run.best_bound).clamp(min=0) / crf.per_image(down * down)).nan_to_num(0.0, posinf=0.0)
        if step == "printed":
            size = torch.full_like(size, 1 / (k + 2))
        total = total + size
        mean += crf.per_point((size / total).nan_to_num(0.0)) * (g - mean)
        run.bounded(crf.lower_bound(g, phi.dtype))
        run.bounded(crf.lower_bound(mean, phi.dtype))
        y = y - crf.per_point(size).to(phi) * down
        y = project_to_simplex(y if absent is None else y.masked_fill(absent, -torch.inf), crf.deadline)
        if run.step(y):
            return
