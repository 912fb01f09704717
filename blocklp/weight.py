r"""Rules for the proximal weight :math:`\eta`, one value an instance.

A rule is asked after every outer step with the increase of the dual value ``rise`` :math:`= D(\lambda) - D(\tilde\lambda)`, the
proximal model's increase ``model`` :math:`= |P x|^2 / \eta`, and the Frank-Wolfe gap ``gap`` at which the inner problem was left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from blocklp.decomposition import Decomposition, dot, in_order
from blocklp.errors import OptionError


class ProximalWeight(Protocol):
    """What a method asks of its proximal weight."""

    def start(self, problem: Decomposition, duals: Tensor, points: Tensor) -> Tensor:
        """Weight of the first proximal problem: ``(batch,)``."""

    def update(self, eta: Tensor, rise: Tensor, model: Tensor, gap: Tensor) -> Tensor:
        """Weight of the next proximal problem, all arguments ``(batch,)``."""


def scale_free(apart: Tensor, duals: Tensor, dtype: torch.dtype) -> Tensor:
    r""":math:`|P x_0| / |\lambda_0|`, from the squares of both: the first step then moves the multipliers by their own length."""
    size, length, limits = apart.sqrt(), duals.sqrt(), torch.finfo(dtype)
    ratio = (size / length).clamp(limits.tiny, limits.max)
    # Without disagreement or without multipliers the scale is arbitrary.
    return torch.where((size > 0) & (length > 0), ratio, torch.ones_like(ratio)).to(dtype)


@dataclass(frozen=True)
class Fixed:
    """The thesis's choice: one weight for all (4.1.6.3)."""

    eta: float

    def __post_init__(self) -> None:
        if not 0 < self.eta < float("inf"):
            raise OptionError(f"eta is {self.eta}; the proximal weight must be positive and finite")

    def start(self, problem: Decomposition, duals: Tensor, points: Tensor) -> Tensor:
        """The same weight everywhere."""
        return torch.full_like(duals[:, 0], self.eta)

    def update(self, eta: Tensor, rise: Tensor, model: Tensor, gap: Tensor) -> Tensor:
        """No change."""
        return eta


@dataclass(frozen=True)
class RatioRule:
    r"""Lower the weight where the dual rose by most of what the model promised, raise it where it rose by little.

    A serious-step test in the spirit of Kiwiel's bundle methods: the model's promise is :math:`|P x|^2 / \eta` plus the gap.
    """

    first: float = 2.0
    factor: float = 1.3

    def start(self, problem: Decomposition, duals: Tensor, points: Tensor) -> Tensor:
        """A multiple of the scale-free weight."""
        apart = problem.disagreement(points)
        return self.first * scale_free(dot(apart, apart), dot(duals, duals), duals.dtype)

    def update(self, eta: Tensor, rise: Tensor, model: Tensor, gap: Tensor) -> Tensor:
        """One multiplication an outer step, up or down."""
        promise = model + gap
        grown = torch.where(rise < 0.25 * promise, eta * self.factor, eta)
        return torch.where(rise > 0.75 * promise, eta / self.factor, grown)


@dataclass(frozen=True)
class BalanceRule:
    r"""Balance how far the blocks are apart, :math:`|P x|`, with how far the consensus moves, :math:`|x - z|` of the means.

    Residual balancing as for ADMM in general (Boyd et al. 2011, section 3.4.1), but by roots of the ratio, and ever more softly:
    the method converges for weights that settle.  The constants were chosen on BA graphs of 200 to 10,000 nodes and ER graphs.
    """

    target: float = 1.7
    settle: int = 100
    most: float = 2.0
    reach: float = 1e4
    single: float = 50.0  # the reach in single precision: products of weight and multipliers must leave room for points

    def start(self, problem: Decomposition, duals: Tensor, apart: Tensor) -> Tensor:
        """The scale-free weight of what blocks share, for points that are ``apart`` ``(batch, copies)`` from their mean."""
        shared = problem.spread((problem.counts > 1).to(duals).expand(len(duals), -1)).mul_(duals)
        return scale_free(in_order(apart.double().square()), in_order(shared.double().square()), duals.dtype)

    def update(self, eta: Tensor, origin: Tensor, passes: int, apart: Tensor, moved: Tensor) -> Tensor:
        """The next weight, within reach of the first one, from the squares of both distances, all ``(batch,)``."""
        ratio = (apart / moved).sqrt() / self.target
        # Roots only: they round alike in all positions of a batch, which powers do not.
        for _ in range(1 + max(0, round(math.log2(passes / self.settle)))):
            ratio = ratio.sqrt()
        factor = (1 / ratio).clamp(1 / self.most, self.most).to(eta)
        reach = self.reach if eta.dtype == torch.float64 else self.single
        moved = torch.minimum(torch.maximum(eta * factor, origin / reach), origin * reach)
        return torch.where(factor.isnan(), eta, moved)


def as_weight(eta: float | ProximalWeight | None) -> ProximalWeight:
    """A number is a fixed weight, ``None`` the automatic rule.

    Raises
    ------
    OptionError
        If it is neither of these nor a rule.
    """
    if eta is None:
        return RatioRule()
    if isinstance(eta, int | float):
        return Fixed(float(eta))
    if not all(callable(getattr(eta, verb, None)) for verb in ("start", "update")):
        raise OptionError(f"eta is {eta!r}; give a number, a rule such as RatioRule(), or None for the automatic one")
    return eta


def first(eta: float | ProximalWeight | None, problem: Decomposition, duals: Tensor, points: Tensor, known: Tensor | None) -> Tensor:
    """The first weight: what a warm start knows, unless it is fixed, or that of the rule."""
    rule = as_weight(eta)
    return rule.start(problem, duals, points) if known is None or isinstance(rule, Fixed) else known
