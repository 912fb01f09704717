r"""Rules for the proximal weight :math:`\eta`, one value an instance.

A rule is asked after every outer step with the increase of the dual value ``rise`` :math:`= D(\lambda) - D(\tilde\lambda)`, the
proximal model's increase ``model`` :math:`= |P x|^2 / \eta`, and the Frank-Wolfe gap ``gap`` at which the inner problem was left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from blocklp.decomposition import Decomposition, dot, in_order
from blocklp.errors import OptionError


@runtime_checkable
class ProximalWeight(Protocol):
    """A rule for the proximal weight."""

    def start(self, problem: Decomposition, duals: Tensor, points: Tensor) -> Tensor:
        """Weight of the first proximal problem: ``(batch,)``."""

    def update(self, eta: Tensor, origin: Tensor, centres: Tensor, rise: Tensor, model: Tensor, gap: Tensor) -> Tensor:
        """Weight of the next proximal problem.

        All arguments are ``(batch,)``; ``origin`` is the weight at the start, ``centres`` the number of proximal problems that were
        left, this one included.
        """


REACH, WARM_REACH = 1e6, 10.0
"""How far an automatic weight may go from its scale-free start, and how far from that a warm start may begin."""


def scale_free(apart: Tensor, duals: Tensor, dtype: torch.dtype) -> Tensor:
    r""":math:`|P x_0| / |\lambda_0|`, from the squares of both: the first step then moves the multipliers by their own length."""
    size, length, limits = apart.sqrt(), duals.sqrt(), torch.finfo(dtype)
    ratio = (size / length).clamp(limits.tiny, limits.max)
    # Without disagreement or without multipliers the scale is arbitrary.
    return torch.where((size > 0) & (length > 0), ratio, torch.ones_like(ratio)).to(dtype)


def _scale(problem: Decomposition, duals: Tensor, points: Tensor) -> Tensor:
    apart = problem.disagreement(points)
    return scale_free(dot(apart, apart), dot(duals, duals), duals.dtype)


def _share(full: float, centres: Tensor) -> Tensor:
    """What is left of a change once more than ``full`` centres have been taken: ``(batch,)``."""
    return (full / centres.clamp(min=1)).clamp(max=1.0)


def within(eta: Tensor, origin: Tensor, reach: float) -> Tensor:
    """The weight, or the nearest one that is at most ``reach`` times or one ``reach``-th of ``origin``, all ``(batch,)``."""
    return torch.minimum(torch.maximum(eta, origin / reach), origin * reach)


@dataclass(frozen=True)
class Fixed:
    """The thesis's choice (4.1.6.3): one weight, or one for each instance, that stays.

    Parameters
    ----------
    eta : float, Tensor or array
        A number, or ``(batch,)``; it is copied.

    Raises
    ------
    OptionError
        If it has another shape, or an entry is not positive and finite.
    """

    eta: float | Tensor | Sequence[float]

    def __post_init__(self) -> None:
        wanted = "give a number, or a tensor (batch,) with one for each instance"
        try:
            given = self.eta if isinstance(self.eta, Tensor) else torch.as_tensor(np.asarray(self.eta))
        except (TypeError, ValueError, RuntimeError) as error:
            raise OptionError(f"eta is {self.eta!r}; {wanted}") from error
        if given.dtype == torch.bool or given.is_complex():
            raise OptionError(f"eta is {self.eta!r}; {wanted}")
        eta = given.to("cpu", torch.float64)
        if eta.dim() > 1 or not eta.numel():
            raise OptionError(f"eta has shape {tuple(eta.shape)}; {wanted}")
        if not bool(((eta > 0) & (eta < math.inf)).all()):
            raise OptionError(f"eta is {self.eta}; the proximal weight must be positive and finite")
        object.__setattr__(self, "eta", tuple(eta.tolist()) if eta.dim() else float(eta))

    def weights(self, batch: int) -> Tensor:
        """The weight of every instance: ``(batch,)`` float64.

        Raises
        ------
        OptionError
            If there are more or fewer weights than instances.
        """
        eta = torch.as_tensor(self.eta, dtype=torch.float64)
        if eta.dim() and len(eta) != batch:
            raise OptionError(f"eta has {len(eta)} weights for a batch of {batch}; give one for each instance, or a number")
        return eta.expand(batch)

    def start(self, problem: Decomposition, duals: Tensor, points: Tensor) -> Tensor:
        """The weights given, in the precision of ``duals``."""
        return self.weights(len(duals)).to(duals)

    def update(self, eta: Tensor, origin: Tensor, centres: Tensor, rise: Tensor, model: Tensor, gap: Tensor) -> Tensor:
        """No change."""
        return eta


@dataclass(frozen=True)
class RatioRule:
    r"""Lower the weight where the dual rose by most of what the model promised, raise it where it rose by little.

    A serious-step test in the spirit of Kiwiel's bundle methods: the model's promise is :math:`|P x|^2 / \eta` plus the gap.
    After ``full`` centres it raises the weight ever less: raised in full over and over it froze on large graphs.
    """

    first: float = 2.0
    factor: float = 1.3
    full: float = 12.0

    def start(self, problem: Decomposition, duals: Tensor, points: Tensor) -> Tensor:
        """A multiple of the scale-free weight."""
        return self.first * _scale(problem, duals, points)

    def update(self, eta: Tensor, origin: Tensor, centres: Tensor, rise: Tensor, model: Tensor, gap: Tensor) -> Tensor:
        """One multiplication an outer step, up or down."""
        promise = model + gap
        raised = eta * (1 + (self.factor - 1) * _share(self.full, centres))
        grown = torch.where(rise < 0.25 * promise, raised, eta)
        return within(torch.where(rise > 0.75 * promise, eta / self.factor, grown), origin, REACH)


@dataclass(frozen=True)
class InexactRule:
    r"""For proximal problems that are left after few steps: raise the weight where these were too few for it, else lower it.

    A step to the exact solution raises the dual value by :math:`|P x|^2 / \eta` at least, and by not much more where the
    supergradient hardly changes on the way (by :math:`1 + L / 2 \eta` times as much where the dual has curvature :math:`L`).  So
    the weight is too small where the dual value fell, or rose by more than that, while the gap left is many times
    :math:`|P x|^2 / \eta`; and whatever the gap where it fell or rose by far more.

    A weight that is raised over and over shortens the steps until nothing moves.  The n-th change therefore is by a factor of
    :math:`1 + O(1/n)`, so that weights grow at most in proportion to n: the lengths of the steps then sum to infinity, as
    supergradient methods need.
    """

    first: float = 6.0
    raised: float = 0.3
    lowered: float = 0.1
    full: float = 10 / 3  # changes that are made in full: raised * full <= 1 keeps the growth in proportion
    rise: float = 1.25
    gap: float = 20.0
    far: tuple[float, float] = (-1.0, 4.0)

    def start(self, problem: Decomposition, duals: Tensor, points: Tensor) -> Tensor:
        """A multiple of the scale-free weight."""
        return self.first * _scale(problem, duals, points)

    def update(self, eta: Tensor, origin: Tensor, centres: Tensor, rise: Tensor, model: Tensor, gap: Tensor) -> Tensor:
        """One multiplication an outer step, up or down, ever less."""
        share = _share(self.full, centres)
        raised = ((rise < 0) | (rise > self.rise * model)) & (gap > self.gap * model)
        raised |= (rise < self.far[0] * model) | (rise > self.far[1] * model)
        changed = torch.where(raised, eta * (1 + self.raised * share), eta / (1 + self.lowered * share))
        return within(changed, origin, REACH)


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
        return torch.where(factor.isnan(), eta, within(eta * factor, origin, reach))


Eta = float | Tensor | Sequence[float] | ProximalWeight | None
"""How a method is given its weight: a number, ``(batch,)`` numbers, a rule, or ``None`` for the automatic one."""


def as_weight(eta: Eta) -> ProximalWeight | None:
    """Read what a user gives: numbers are fixed weights.

    Raises
    ------
    OptionError
        If it is neither numbers nor a rule.
    """
    if eta is None or isinstance(eta, ProximalWeight):
        return eta
    return Fixed(eta)
