r"""Adam on the dual (Kingma and Ba 2015), the baseline of Bunel et al. 2020 for network bounds.

The direction is projected, so that :math:`\sum_b \lambda_b = c` holds at every pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.kernels.plan import Plan
from blocklp.methods.base import Method
from blocklp.methods.supergradient import AscentState


@dataclass(frozen=True)
class AdamState(AscentState):
    """Adds Adam's moments."""

    first: Tensor  # (batch, copies)
    second: Tensor  # (batch, copies)


@dataclass(frozen=True)
class Adam(Method):
    r"""Adam with a rate that falls as :math:`1/\sqrt{k}`, in units of the largest multiplier of the start.

    Parameters
    ----------
    rate : float
        First step of a multiplier relative to the largest one.
    beta1, beta2 : float
        Decay of the moments, in [0, 1).
    """

    rate: float = 0.04
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise OptionError(f"rate is {self.rate}; the step length must be positive and finite")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise OptionError(f"beta1 = {self.beta1} and beta2 = {self.beta2} must lie in [0, 1)")

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> AdamState:
        """Ask the oracles once and set the scale.

        Parameters
        ----------
        plan, duals
            As in :meth:`blocklp.methods.base.Method.start`.
        eta : Tensor or None
            ``(batch,)``: step lengths of a warm start; None for ``rate`` times the largest multiplier.
        """
        problem = plan.problem
        points, value = problem.min_oracle(duals)
        if eta is None:
            largest = duals.abs().amax(1)
            eta = self.rate * torch.where(largest > 0, largest, torch.ones_like(largest))
        one, zero = torch.ones_like(value), torch.zeros_like(duals)
        return AdamState(duals, value, points, eta, problem.disagreement(points), one, one, zero, zero)

    def step(self, plan: Plan, state: AdamState) -> AdamState:
        """One Adam step, projected."""
        problem = plan.problem
        first = self.beta1 * state.first + (1 - self.beta1) * state.supergradient
        second = self.beta2 * state.second + (1 - self.beta2) * state.supergradient**2
        unbiased = first / (1 - self.beta1**state.steps)[:, None]
        size = (second / (1 - self.beta2**state.steps)[:, None]).sqrt() + 1e-8
        length = 1 / state.steps.sqrt()
        duals = state.duals + problem.disagreement((state.eta * length)[:, None] * unbiased / size)
        x, value = problem.min_oracle(duals)
        total = state.total + length
        points = state.points + (length / total)[:, None] * (x - state.points)
        direction, steps = problem.disagreement(x), state.steps + 1
        return AdamState(duals, value, points, state.eta, direction, steps, total, first, second)
