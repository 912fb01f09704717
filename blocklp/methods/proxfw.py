r"""ProxFW, Algorithm 6 of the thesis: Frank-Wolfe on the dual of the proximal problem without :math:`\beta`.

.. math:: \min_{x_b \in X_b} \sum_b \langle \tilde\lambda_b, x_b \rangle + \tfrac{1}{2\eta} |P x|^2
          \quad (4.1.6.7)

:math:`\beta` is eliminated. :math:`P x = x - \mathrm{mean}(x)` is an orthogonal projector, so the gradient is
:math:`\tilde\lambda + P x / \eta`, the same direction as in ProxBC: the printed factor :math:`(1 - n)` of
(4.1.6.8) does not belong there. What differs is the line search.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.row_sums import dot
from blocklp.methods.proxbc import ProxBC


@dataclass(frozen=True)
class ProxFW(ProxBC):
    """Algorithm 6, errata applied: Algorithm 5 with the longer step of (4.1.6.10)."""

    def curvature(self, problem: Decomposition, d: Tensor) -> Tensor:
        r"""Denominator of the step: :math:`|P d|^2` (4.1.6.10)."""
        spread = problem.disagreement(d)
        return dot(spread, spread)
