r"""The convex quadratic relaxation of pairwise energies by Frank-Wolfe, B.2 of Le-Huu & Paragios 2018.

.. math:: E(x) - \sum_i d_i^\top x_i + \sum_i x_i^\top \mathrm{diag}(d_i) x_i, \qquad
          d_i(s) = \sum_{j \in N(i)} \sum_t \tfrac12 |\theta_{ij}(s, t)|

equals E at labellings and is convex, as its Hessian is diagonally dominant (P. Ravikumar and J. Lafferty, Quadratic programming
relaxations for metric labeling and Markov random field MAP estimation, ICML 2006).  It is not tight: rounding
is descent on E from its minimum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.problems.mrf.heuristics import softened
from blocklp.problems.mrf.nonconvex.methods.fw import descend_along
from blocklp.problems.mrf.nonconvex.multilinear import Multilinear
from blocklp.problems.mrf.nonconvex.run import NonconvexRun


def convex_qp(run: NonconvexRun, *, steps: int = 200, tolerance: float = 1e-6) -> None:
    """Minimise the convex relaxation over the simplices; it never rises.

    Parameters
    ----------
    run : NonconvexRun
        The run.
    steps, tolerance
        As in :func:`~blocklp.problems.mrf.nonconvex.methods.fw.frank_wolfe`, for the relaxation.

    Raises
    ------
    OptionError
        If there is no step, or ``tolerance`` is negative.
    """
    descend_along(run, ConvexQp(run.energy), lambda x, slope: run.energy.best_labels(slope), steps, tolerance)


class ConvexQp:
    """The objective (97)."""

    def __init__(self, energy: Multilinear) -> None:
        self.energy = energy
        self.diagonal = torch.zeros(energy.exists.shape, dtype=torch.float64, device=energy.device)
        for group in softened(energy.mrf):
            if group.order == 2:
                tables = torch.tensor(group.tables, device=energy.device).abs() / 2
                for position in (0, 1):
                    variable = torch.tensor(group.scopes[:, position], device=energy.device)
                    self.diagonal[:, : group.shape[position]].index_add_(0, variable, tables.sum(2 - position))

    def value(self, x: Tensor) -> Tensor:
        """Values at points ``(batch, n, most labels)``: ``(batch,)``."""
        return self.energy.value(x) + (self.diagonal * (x * x - x)).sum((1, 2))

    def gradient(self, x: Tensor) -> Tensor:
        """Gradients at points, of their shape."""
        return self.energy.gradient(x) + self.diagonal * (2 * x - 1)

    def segment(self, x: Tensor, direction: Tensor) -> Tensor:
        """Coefficients on the way: (98) to (102)."""
        coefficients = self.energy.segment(x, direction)
        powers = [x * x - x, (2 * x - 1) * direction, direction * direction]
        return coefficients + torch.stack([(self.diagonal * power).sum((1, 2)) for power in powers], 1)


METHOD = convex_qp
MOST_VARIABLES = 2
"""Variables of a factor, at most."""
