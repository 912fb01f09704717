r"""PROX-LP, Algorithm 4 of the thesis: proximal minimisation of the LP relaxation of a dense CRF.

.. math:: \min_{y \in M} \; \phi^\top y + f(y) + \tfrac{1}{2\lambda} |y - y_k|^2, \qquad
          f(y) = \sum_S c_S \sum_{a<b} K_{ab} |y_a(S) - y_b(S)| + \text{cliques}

The dual variables enter only by :math:`g` (the thesis's :math:`-A\alpha`), a convex combination of subgradients of f.  For fixed g
the best y is the projection of :math:`y_k - \lambda (\phi + g)` on the simplex: that is exactly the minimum over the thesis's beta
and gamma (2.2.4.6-7), found by one sort instead of its multiplicative updates, and every y is feasible.  g moves by Frank-Wolfe
steps of closed-form size (2.2.4.10), and every g gives a lower bound.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.oracles.ordered import LEVELS
from blocklp.problems.densecrf.run import Run


def prox_lp(run: Run, *, weight: float = 0.1, outer: int = 10, inner: int = 5, levels: int = LEVELS) -> None:
    r"""Minimise the LP relaxation; round its solution.

    Parameters
    ----------
    run : Run
        The run.
    weight : float
        The proximal weight :math:`\lambda`.
    outer, inner : int
        Proximal problems, and Frank-Wolfe steps on each (K and T of the algorithm).
    levels : int
        Levels of the ordered filter.

    Raises
    ------
    OptionError
        If a number is not positive.
    """
    if not 0 < weight < float("inf") or outer < 1 or inner < 1:
        raise OptionError(f"weight is {weight}, outer {outer}, inner {inner}; all must be positive")
    crf, y = run.crf, run.start
    phi = crf.unary
    g = torch.zeros_like(phi, dtype=torch.float64)  # a long sum of small steps
    run.bounded(crf.lower_bound(g))
    for _ in range(outer):
        centre = y
        for _ in range(inner):
            y = project_to_simplex(centre - weight * (phi + g.to(phi)))
            step = crf.subgradient(y, levels) - g
            run.filter_calls += 1
            size = crf.per_image(step * y) / (weight * crf.per_image(step * step))
            g += crf.per_point(size.nan_to_num(0.0).clamp(0, 1)) * step
            run.bounded(crf.lower_bound(g, phi.dtype))
        y = project_to_simplex(centre - weight * (phi + g.to(phi)))
        if run.step(y):
            return


def project_to_simplex(y: Tensor) -> Tensor:
    """Nearest points of the simplex to the rows of ``y`` (Held, Wolfe & Crowder 1974): ``(points, labels)``."""
    y = y - y.amax(1, keepdim=True)  # large numbers would lose the digits that tell labels apart
    down = y.sort(1, descending=True).values
    over = (down.cumsum(1) - 1) / torch.arange(1, y.shape[1] + 1, dtype=y.dtype, device=y.device)
    kept = (down > over).sum(1, keepdim=True)
    return (y - over.gather(1, kept - 1)).clamp(min=0)
