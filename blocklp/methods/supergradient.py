r"""The projected supergradient method (PSM), the thesis's baseline (4.1.5.1, after Komodakis et al.).

The oracle's points are a supergradient of the dual; subtracting their mean projects it on
:math:`\sum_b \lambda_b = c`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.decomposition.row_sums import dot
from blocklp.errors import OptionError
from blocklp.kernels.plan import Plan
from blocklp.methods.base import Method, MethodState


@dataclass(frozen=True)
class AscentState(MethodState):
    """State of the ascent baselines; ``points`` is the step-weighted average of the oracle's answers."""

    supergradient: Tensor  # (batch, copies): P x at ``duals``
    steps: Tensor  # (batch,): passes so far
    total: Tensor  # (batch,): sum of the step lengths that the average holds


def scale(duals: Tensor, supergradient: Tensor) -> Tensor:
    """Length of a step as long as the multipliers: ``(batch,)``, 1 where that is undefined."""
    length = dot(duals, duals).sqrt() / dot(supergradient, supergradient).sqrt()
    return torch.where(torch.isfinite(length) & (length > 0), length, torch.ones_like(length))


@dataclass(frozen=True)
class Supergradient(Method):
    r"""Steps of length :math:`a / \sqrt{k}` times the scale of the start.

    Parameters
    ----------
    rate : float
        The factor :math:`a`.
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise OptionError(f"rate is {self.rate}; the step length must be positive and finite")

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> AscentState:
        """Ask the oracles once and set the scale.

        Parameters
        ----------
        plan, duals
            As in :meth:`blocklp.methods.base.Method.start`.
        eta : Tensor or None
            ``(batch,)``: step length of a warm start; None for ``rate`` times the length of the multipliers.
        """
        problem = plan.problem
        points, value = problem.min_oracle(duals)
        direction = problem.disagreement(points)
        length = self.rate * scale(duals, direction) if eta is None else eta
        one = torch.ones_like(value)
        return AscentState(duals, value, points, length, direction, one, one)

    def step(self, plan: Plan, state: AscentState) -> AscentState:
        """One step along the projected supergradient."""
        problem = plan.problem
        length = 1 / state.steps.sqrt()
        duals = state.duals + (state.eta * length)[:, None] * state.supergradient
        x, value = problem.min_oracle(duals)
        total = state.total + length
        points = state.points + (length / total)[:, None] * (x - state.points)
        return AscentState(duals, value, points, state.eta, problem.disagreement(x), state.steps + 1, total)
