r"""Projected gradient descent with a line search (Larsson et al. 2017; Le-Huu & Paragios 2018, (84) and (87)).

.. math:: p = \Pi(y - \beta \nabla E(y)), \qquad y \leftarrow y + \alpha (p - y)

with the energy E of :mod:`~blocklp.problems.densecrf.regularized_fw`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import OptionError
from blocklp.problems.densecrf.prox_lp import project_to_simplex
from blocklp.problems.densecrf.regularized_fw import gradient, line_search, linear_costs
from blocklp.problems.densecrf.run import Run
from blocklp.problems.method_options import check_positive


def pgd(run: Run, *, rate: float = 1.0, steps: int = 10, tolerance: float = 0.0) -> None:
    r"""Minimise E over the simplices; it never rises.

    It starts at ``run.start``; the text starts at ``(-unary).softmax(1)``.

    Parameters
    ----------
    run : Run
        The run.
    rate : float
        How far p goes down the gradient before the projection, :math:`\beta`, in the energy's
        :attr:`~blocklp.problems.densecrf.DenseCRF.unit`.
    steps : int
        Most steps, at least 1.
    tolerance : float
        An image counts as stationary, and stays, once :math:`\langle \nabla E(y), y - p \rangle` is at most this many units.

    Raises
    ------
    OptionError
        If a number is out of range.
    """
    check_positive(rate=rate, steps=steps)
    if not tolerance >= 0:
        raise OptionError(f"tolerance is {tolerance}; give 0 or more")
    crf, y = run.crf, run.start
    phi, field = linear_costs(crf), crf.message(y)
    run.filter_calls += 1
    down = rate / crf.per_point(run.unit).to(y)
    for _ in range(steps):
        slope = gradient(crf, phi, field, y)
        p = projected(y, slope, down, crf.deadline)
        towards = crf.message(p)
        run.filter_calls += 1
        gain = crf.per_image(slope * (y - p))
        alpha = line_search(crf, y, p, gain, crf.per_image((p - y) * (towards - field)))
        alpha = torch.where(gain > tolerance * run.unit, alpha, 0.0)
        share = crf.per_point(alpha).to(y)
        y, field = y.lerp(p, share), field.lerp(towards, share)
        if run.step(y, lambda: not bool(alpha.any())):  # noqa: B023 (asked before the next step)
            return


def projected(y: Tensor, slope: Tensor, down: Tensor | float, deadline: Deadline | None = None) -> Tensor:
    r"""The point :math:`p = \Pi(y - \beta \nabla E(y))` that a step goes towards, ``(points, labels)``.

    Parameters
    ----------
    y, slope : Tensor
        ``(points, labels)``: the point, and the gradient there.
    down : Tensor or float
        :math:`\beta`, ``(points, 1)`` or one for all.
    deadline : Deadline, optional
        When to give up.

    Returns
    -------
    Tensor
        ``(points, labels)``, differentiable almost everywhere.

    Raises
    ------
    TimeLimitError
        If the deadline passes.
    """
    return project_to_simplex(y - down * slope, deadline)
