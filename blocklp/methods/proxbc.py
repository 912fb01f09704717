r"""ProxBC, Algorithm 5 of the thesis: block-coordinate descent on the dual of the proximal problem.

.. math:: \min_{\beta,\, x_b \in X_b} \sum_b \langle \tilde\lambda_b, x_b \rangle + \tfrac{1}{2\eta} |x_b + \beta|^2
          \quad (4.1.5.8)

The printed step size has the wrong sign: with the Frank-Wolfe gap :math:`\sum_b \langle \lambda_b, x_b - \tilde x_b \rangle` as
numerator it is the exact line search; as printed it is always clipped to zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.decomposition import Decomposition, dot
from blocklp.errors import OptionError
from blocklp.methods.base import Method, MethodState, where
from blocklp.weight import ProximalWeight, as_weight, first


@dataclass(frozen=True)
class ProxState(MethodState):
    """State of ProxBC and ProxFW; ``points`` are the :math:`x_b`."""

    centre: Tensor  # (batch, copies): the proximal centre
    centre_value: Tensor  # (batch,): the dual value there
    inner: Tensor  # (batch,): steps taken on the current proximal problem


@dataclass(frozen=True)
class ProxBC(Method):
    """Algorithm 5, errata applied.

    Parameters
    ----------
    eta : float or ProximalWeight, optional
        The proximal weight; ``None`` chooses it automatically.
    inner : int
        Frank-Wolfe steps on each proximal problem (5 in the thesis's experiments).
    """

    eta: float | ProximalWeight | None = None
    inner: int = 5

    proximal = True

    def __post_init__(self) -> None:
        if self.inner < 1:
            raise OptionError(f"inner is {self.inner}; a proximal problem needs at least one step")
        as_weight(self.eta)

    def start(self, problem: Decomposition, duals: Tensor, eta: Tensor | None) -> ProxState:
        """Lines 1 and 2: any valid multipliers, and the oracle's answer to them."""
        x, value = problem.min_oracle(duals)
        weight = first(self.eta, problem, duals, x, eta)
        return ProxState(duals, value, x, weight, duals, value, torch.zeros_like(value))

    def step(self, problem: Decomposition, state: ProxState) -> ProxState:
        """Lines 6 to 13: one Frank-Wolfe step, and line 4 after every ``inner`` of them."""
        x, eta = state.points, state.eta
        minus_beta = problem.mean(x)
        duals = state.centre + (x - problem.spread(minus_beta)) / eta[:, None]
        x_tilde, value = problem.min_oracle(duals)
        gap = dot(duals, x - x_tilde)
        gamma = (eta * gap / self.curvature(problem, x_tilde - x)).nan_to_num(0.0).clamp(0, 1)
        outer = state.inner + 1 >= self.inner
        model = eta * dot(duals - state.centre, duals - state.centre)
        new_eta = as_weight(self.eta).update(eta, value - state.centre_value, model, gap)
        return ProxState(
            duals=duals,
            value=value,
            points=x + gamma[:, None] * (x_tilde - x),
            eta=torch.where(outer, new_eta, eta),
            centre=where(outer, duals, state.centre),
            centre_value=torch.where(outer, value, state.centre_value),
            inner=torch.where(outer, torch.zeros_like(state.inner), state.inner + 1),
        )

    def curvature(self, problem: Decomposition, d: Tensor) -> Tensor:
        r"""Denominator of the step: :math:`\sum_b |d_b|^2` with :math:`\beta` held fixed (4.1.6.6).

        Copies of variables in one block only have no multiplier to move and are left out.
        """
        shared = problem.spread((problem.counts > 1).to(d).expand(d.shape[0], -1))
        return dot(shared * d, d)
