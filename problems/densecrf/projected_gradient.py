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
from blocklp.problems.densecrf.regularized_fw import line_search, walk
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
    crf = run.crf
    down = rate / crf.per_point(run.unit).to(run.start)

    def length(_: int, slope: Tensor, y: Tensor, p: Tensor, bend: Tensor) -> Tensor:
        gain = crf.per_image(slope * (y - p))
        alpha = line_search(crf, y, p, gain, crf.per_image((p - y) * bend))
        return torch.where(gain > tolerance * run.unit, alpha, 0.0)

    walk(run, steps, lambda y, slope: projected(y, slope, down, crf.deadline), length)


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
