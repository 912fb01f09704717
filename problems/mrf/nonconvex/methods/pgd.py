r"""Projected gradient descent with an exact line search, B.1 of Le-Huu & Paragios 2018.

.. math:: s = \Pi_X (x - \beta \nabla E(x)), \qquad x \leftarrow x + \alpha (s - x)

with the line search of :mod:`~blocklp.problems.mrf.nonconvex.methods.fw`.  The text leaves :math:`\beta` open; here each variable
has its own, relative to how much the costs of its labels differ, so that units and hard constraints elsewhere do not matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.oracles.simplex import threshold
from blocklp.problems.method_options import check_positive
from blocklp.problems.mrf.nonconvex.methods.fw import descend_along
from blocklp.problems.mrf.nonconvex.run import NonconvexRun


def projected_gradient(run: NonconvexRun, *, rate: float = 1.0, steps: int = 200, tolerance: float = 1e-6) -> None:
    r"""Minimise E over the simplices; it never rises.

    Parameters
    ----------
    run : NonconvexRun
        The run.
    rate : float
        :math:`\beta_i` times the difference of the largest and the least entry of :math:`\partial E / \partial x_i`: how far a step
        goes before the projection.
    steps, tolerance
        As in :func:`~blocklp.problems.mrf.nonconvex.methods.fw.frank_wolfe`.

    Raises
    ------
    OptionError
        If a number is out of range.
    """
    check_positive(rate=rate)
    energy = run.energy

    def target(x: Tensor, slope: Tensor) -> Tensor:
        spread = energy.spread(slope).clamp(min=torch.finfo(torch.float64).tiny)[..., None]
        # From the best label on, so that a constant over all labels stays nothing.
        above = slope - slope.masked_fill(~energy.exists, torch.inf).amin(-1, keepdim=True)
        return project(x - rate * (above / spread), energy.exists)

    descend_along(run, energy, target, steps, tolerance)


def project(y: Tensor, exists: Tensor) -> Tensor:
    """Nearest points of the simplices to ``(batch, n, most labels)``; 0 where a label does not exist."""
    y = y.masked_fill(~exists, -torch.inf)
    largest, excess = threshold(y)
    return (y - largest - excess).clamp(min=0)


METHOD = projected_gradient
