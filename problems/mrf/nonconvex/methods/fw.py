r"""Frank-Wolfe with an exact line search, B.1 of Le-Huu & Paragios 2018.

.. math:: s = \operatorname{argmin}_{s \in X} \langle \nabla E(x), s \rangle, \qquad
          \alpha = \operatorname{argmin}_{0 \le \alpha \le 1} E(x + \alpha (s - x)), \qquad x \leftarrow x + \alpha (s - x)

On the segment E is a polynomial of its order's degree.  The text minimises it in closed form up to degree 3 and on a grid beyond;
here it is exact for all (:mod:`~blocklp.problems.mrf.nonconvex.polynomial`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.problems.method_options import check_positive
from blocklp.problems.mrf.nonconvex.polynomial import evaluate, minimiser
from blocklp.problems.mrf.nonconvex.run import NonconvexRun
from blocklp.status import Status


class PolynomialObjective(Protocol):
    """A function that is a polynomial on segments."""

    def value(self, x: Tensor) -> Tensor:
        """Values at points ``(batch, n, most labels)``: ``(batch,)``."""

    def gradient(self, x: Tensor) -> Tensor:
        """Gradients at points, of their shape."""

    def segment(self, x: Tensor, direction: Tensor) -> Tensor:
        """Coefficients on the way, constant first: ``(batch, degree + 1)``."""


def frank_wolfe(run: NonconvexRun, *, steps: int = 200, tolerance: float = 1e-6) -> None:
    r"""Minimise E over the simplices; it never rises.

    Parameters
    ----------
    run : NonconvexRun
        The run.
    steps : int
        Most steps, at least 1.
    tolerance : float
        A point counts as stationary, and stays, once :math:`\langle \nabla E(x), x - s \rangle` is at most this share of
        :math:`|E(x)|`.

    Raises
    ------
    OptionError
        If there is no step, or ``tolerance`` is negative.
    """
    descend_along(run, run.energy, lambda x, slope: run.energy.best_labels(slope), steps, tolerance)


def descend_along(
    run: NonconvexRun, objective: PolynomialObjective, target: Callable[[Tensor, Tensor], Tensor], steps: int, tolerance: float
) -> None:
    """Go from points towards the targets that ``target(points, gradients)`` names, as far as the exact line search says.

    Parameters
    ----------
    run : NonconvexRun
        Has the first points, and gets those of every step.
    objective : PolynomialObjective
        The function on ``(batch, n, most labels)``.
    target : callable
        Takes points and gradients, and returns points to go towards, all of one shape.
    steps : int
        Steps at most.
    tolerance : float
        A slope, relative to the value, from which on an instance rests.

    Raises
    ------
    OptionError
        If there is no step, or ``tolerance`` is negative.
    """
    check_positive(steps=steps)
    if not tolerance >= 0:
        raise OptionError(f"tolerance is {tolerance}; give 0 or more")
    x, value = run.point, objective.value(run.point)
    for _ in range(steps):
        slope = objective.gradient(x)
        way = target(x, slope) - x
        going = -(slope * way).sum((1, 2)) > tolerance * value.abs()
        coefficients = objective.segment(x, way)
        share = torch.where(going, minimiser(coefficients), 0.0)
        # A vertex is reached exactly.
        x = torch.where(share[:, None, None] == 1, x + way, x + share[:, None, None] * way)
        value = evaluate(coefficients, share[:, None])[:, 0]
        if run.step(x, value):
            return
        if not bool((share > 0).any()):
            run.status = Status.STALLED
            return


METHOD = frank_wolfe
