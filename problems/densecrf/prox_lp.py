r"""PROX-LP, Algorithm 4 of the thesis: proximal minimisation of the LP relaxation of a dense CRF.

.. math:: \min_{y \in M} \; \phi^\top y + \tfrac12 \sum_i \sum_{a<b} K_{ab} |y_{a:i} - y_{b:i}| + \tfrac{1}{2\lambda} |y - y_k|^2

The dual variables enter only by :math:`g` (the thesis's :math:`-A\alpha`), a convex combination of answers of the ordered filter.
For fixed g the best y is the projection of :math:`y_k - \lambda (\phi + g)` on the simplex: that is exactly the minimum over the
thesis's beta and gamma (2.2.4.6-7), found by one sort instead of its multiplicative updates, and every y is feasible.  g moves by
Frank-Wolfe steps of closed-form size (2.2.4.10), and every g gives a lower bound.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.oracles.ordered import LEVELS
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.result import Result


def prox_lp(
    crf: DenseCRF, start: Tensor | None = None, *, weight: float = 0.1, outer: int = 10, inner: int = 5, levels: int = LEVELS
) -> Result:
    r"""Minimise the LP relaxation; round its solution.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    start : Tensor, optional
        ``(points, labels)`` on the simplex; by default the unary argmax.
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
    began = time.perf_counter()
    phi = crf.unary
    y = torch.nn.functional.one_hot(phi.argmin(1), crf.labels).to(phi) if start is None else start.to(phi)
    g = torch.zeros_like(phi)
    bound = crf.lower_bound(g)
    for _ in range(outer):
        centre = y
        for _ in range(inner):
            y = project_to_simplex(centre - weight * (phi + g))
            step = crf.ordered(y, levels) - g
            size = _per_point(crf, crf.per_image(step * y) / (weight * crf.per_image(step * step)))
            g = g + size.to(g) * step
            bound = torch.maximum(bound, crf.lower_bound(g))
        y = project_to_simplex(centre - weight * (phi + g))
    return Result.of(crf, "prox-lp", y, bound, outer * inner, time.perf_counter() - began)


def _per_point(crf: DenseCRF, sizes: Tensor) -> Tensor:
    sizes = sizes.nan_to_num(0.0).clamp(0, 1)
    return sizes[:, None] if crf.image is None else sizes[crf.image][:, None]


def project_to_simplex(y: Tensor) -> Tensor:
    """Nearest points of the simplex to the rows of ``y`` (Held, Wolfe & Crowder 1974): ``(points, labels)``."""
    down = y.sort(1, descending=True).values
    over = (down.cumsum(1) - 1) / torch.arange(1, y.shape[1] + 1, dtype=y.dtype, device=y.device)
    kept = (down > over).sum(1, keepdim=True)
    return (y - over.gather(1, kept - 1)).clamp(min=0)
