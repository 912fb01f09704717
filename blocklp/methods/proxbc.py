r"""ProxBC, Algorithm 5 of the thesis: block-coordinate descent on the dual of the proximal problem.

.. math:: \min_{\beta,\, x_b \in X_b} \sum_b \langle \tilde\lambda_b, x_b \rangle + \tfrac{1}{2\eta}
          |x_b + \beta|^2 \quad (4.1.5.8)

The printed step size has the wrong sign: with the Frank-Wolfe gap
:math:`\sum_b \langle \lambda_b, x_b - \tilde x_b \rangle` as numerator it is the exact line search; as
printed it is always clipped to zero.

The inner loop is left by a gap (4.1.6.2).  At :math:`\lambda = \tilde\lambda + P x / \eta` the dual value is

.. math:: D(\lambda) = D(\tilde\lambda) + \frac{|P x|^2}{\eta} + \varepsilon - \mathrm{gap}, \quad
          \varepsilon = \sum_b \langle \tilde\lambda_b, x_b \rangle - D(\tilde\lambda) \ge 0,

so that it has risen as soon as :math:`\mathrm{gap} \le |P x|^2 / \eta`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.row_sums import dot
from blocklp.errors import OptionError
from blocklp.kernels.plan import Plan
from blocklp.methods.base import where
from blocklp.methods.proximal import Proximal, ProximalState
from blocklp.methods.proximal_weight import InexactRule


@dataclass(frozen=True)
class ProxState(ProximalState):
    """State of ProxBC and ProxFW; ``points`` are the :math:`x_b`."""

    inner: Tensor  # (batch,): steps taken on the current proximal problem


@dataclass(frozen=True)
class ProxBC(Proximal):
    r"""Algorithm 5, errata applied.

    Parameters
    ----------
    eta : float, Tensor, array or ProximalWeight, optional
        The proximal weight: one for all instances, ``(batch,)`` or a rule; ``None`` chooses it automatically.
    inner : int, optional
        Most Frank-Wolfe steps on one proximal problem; it is left before where its gap falls to
        :math:`|P x|^2 / \eta` (4.1.6.2). At least 2: with one, points would step on a problem that has just
        been left, so that the multipliers are never those that they were made for, and nothing converges.
        ``None`` leaves it to the gap alone: every centre then raises the bound, and takes many passes near
        the optimum.

    Raises
    ------
    OptionError
        If a weight is not positive and finite, or ``inner`` is no integer from 2 on.
    """

    inner: int | None = 5

    automatic = InexactRule()

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.inner, int) and not isinstance(self.inner, bool)
        if self.inner is not None and (not number or self.inner < 2):
            raise OptionError(
                f"inner is {self.inner!r}; give the most steps on one proximal problem, at least 2, or None: "
                "a point that steps once steps on a problem that has been left"
            )

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> ProxState:
        """Lines 1 and 2: any valid multipliers, and the oracle's answer to them.

        Parameters
        ----------
        plan, duals, eta
            As in :meth:`blocklp.methods.base.Method.start`.
        """
        problem = plan.problem
        x, value = problem.min_oracle(duals)
        weight, origin = self.first_weight(problem, duals, x, eta)
        none = torch.zeros_like(value)
        return ProxState(duals, value, x, weight, duals, value, origin, none, none)

    def step(self, plan: Plan, state: ProxState) -> ProxState:
        """Lines 6 to 13: one Frank-Wolfe step, and line 4 where the inner loop is left."""
        problem = plan.problem
        x, eta = state.points, state.eta
        spread = problem.disagreement(x)
        duals = state.centre + spread / eta[:, None]
        x_tilde, value = problem.min_oracle(duals)
        gap, model = dot(duals, x - x_tilde), dot(spread, spread) / eta
        d = x_tilde - x
        gamma = (eta * gap / self.curvature(problem, d)).nan_to_num(0.0).clamp(0, 1)
        outer = gap <= model
        if self.inner is not None:
            outer |= state.inner + 1 >= self.inner
        new_eta = self.next_weight(state, value - state.centre_value, model, gap)
        return ProxState(
            duals=duals,
            value=value,
            points=x + gamma[:, None] * d,
            eta=torch.where(outer, new_eta, eta),
            centre=where(outer, duals, state.centre),
            centre_value=torch.where(outer, value, state.centre_value),
            origin=state.origin,
            centres=state.centres + outer,
            inner=torch.where(outer, torch.zeros_like(state.inner), state.inner + 1),
        )

    def curvature(self, problem: Decomposition, d: Tensor) -> Tensor:
        r"""Denominator of the step: :math:`\sum_b |d_b|^2` with :math:`\beta` held fixed (4.1.6.6).

        Copies of variables in one block only have no multiplier to move and are left out.
        """
        shared = problem.spread((problem.counts > 1).to(d).expand(d.shape[0], -1))
        return dot(shared * d, d)
