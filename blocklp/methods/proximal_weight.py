r"""Rules for the proximal weight :math:`\eta`, one value an instance.

A rule is applied after every outer step to the actual increase of the dual value, ``increase``
:math:`= D(\lambda) - D(\tilde\lambda)`, the proximal model's increase ``model`` :math:`= |P x|^2 / \eta`, and
the Frank-Wolfe gap ``gap`` at which the inner problem was left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.row_sums import dot
from blocklp.errors import OptionError


@runtime_checkable
class ProximalWeight(Protocol):
    """A rule for the proximal weight."""

    def start(self, problem: Decomposition, duals: Tensor, points: Tensor) -> Tensor:
        """Weight of the first proximal problem.

        Parameters
        ----------
        problem : Decomposition
            The problem.
        duals, points : Tensor
            ``(batch, copies)``: multipliers, and points of the blocks.

        Returns
        -------
        Tensor
            ``(batch,)``.
        """

    def update(
        self, eta: Tensor, origin: Tensor, centres: Tensor, increase: Tensor, model: Tensor, gap: Tensor
    ) -> Tensor:
        """Weight of the next proximal problem.

        Parameters
        ----------
        eta, origin : Tensor
            ``(batch,)``: the present weight, and that at the start.
        centres : Tensor
            ``(batch,)``: the number of proximal problems that were left, this one included.
        increase, model, gap : Tensor
            ``(batch,)``: the actual increase, that of the proximal model, and the Frank-Wolfe gap.

        Returns
        -------
        Tensor
            ``(batch,)``.
        """


REACH, WARM_REACH = 1e6, 10.0
"""Largest factors between an automatic weight, or that of a warm start, and the scale-free weight."""


def scale_free(residual: Tensor, duals: Tensor, dtype: torch.dtype) -> Tensor:
    r"""The weight :math:`|P x_0| / |\lambda_0|`, with which a first step is as long as the multipliers.

    Parameters
    ----------
    residual, duals : Tensor
        ``(batch,)``: the squares :math:`|P x_0|^2` and :math:`|\lambda_0|^2`.
    dtype : torch.dtype
        Of the result.

    Returns
    -------
    Tensor
        ``(batch,)``; 1 where there is no residual, or multipliers are zero.
    """
    size, length, limits = residual.sqrt(), duals.sqrt(), torch.finfo(dtype)
    ratio = (size / length).clamp(limits.tiny, limits.max)
    # Without disagreement or without multipliers the scale is arbitrary.
    return torch.where((size > 0) & (length > 0), ratio, torch.ones_like(ratio)).to(dtype)


def _scale(problem: Decomposition, duals: Tensor, points: Tensor) -> Tensor:
    """The scale-free weight ``(batch,)`` for points and multipliers ``(batch, copies)``."""
    residual = problem.disagreement(points)
    return scale_free(dot(residual, residual), dot(duals, duals), duals.dtype)


def _share(full: float, centres: Tensor) -> Tensor:
    """The factor ``(batch,)`` of changes, below 1 once more than ``full`` centres have been taken."""
    return (full / centres.clamp(min=1)).clamp(max=1.0)


def within(eta: Tensor, origin: Tensor, reach: float) -> Tensor:
    """Clamp weights.

    Parameters
    ----------
    eta, origin : Tensor
        ``(batch,)``: weights, and those to which they stay near.
    reach : float
        Largest factor between both, upwards and downwards.

    Returns
    -------
    Tensor
        ``(batch,)``.
    """
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
            need = "give one for each instance, or a number"
            raise OptionError(f"eta has {len(eta)} weights for a batch of {batch}; {need}")
        return eta.expand(batch)

    def start(self, problem: Decomposition, duals: Tensor, points: Tensor) -> Tensor:
        """The weights given, in the precision of the multipliers.

        Parameters
        ----------
        problem, duals, points
            As in :meth:`ProximalWeight.start`; of the multipliers only the precision is used.
        """
        return self.weights(len(duals)).to(duals)

    def update(
        self, eta: Tensor, origin: Tensor, centres: Tensor, increase: Tensor, model: Tensor, gap: Tensor
    ) -> Tensor:
        """The weight as it is.

        Parameters
        ----------
        eta, origin, centres, increase, model, gap
            As in :meth:`ProximalWeight.update`; only the first one is used.
        """
        return eta


class _ScaleFree:
    """Rules whose first weight is a multiple ``first`` of the scale-free one."""

    first: float

    def start(self, problem: Decomposition, duals: Tensor, points: Tensor) -> Tensor:
        """A multiple of the scale-free weight.

        Parameters
        ----------
        problem, duals, points
            As in :meth:`ProximalWeight.start`.
        """
        return self.first * _scale(problem, duals, points)


@dataclass(frozen=True)
class SeriousStepRule(_ScaleFree):
    r"""Serious-step rule: a lower weight after most of the predicted increase, a higher one after little.

    A test in the spirit of Kiwiel's bundle methods; the predicted increase is :math:`|P x|^2 / \eta` plus the
    gap.  After ``full`` centres it raises the weight ever less: raised in full over and over it froze on
    large graphs.
    """

    first: float = 2.0
    factor: float = 1.3
    full: float = 12.0

    def update(
        self, eta: Tensor, origin: Tensor, centres: Tensor, increase: Tensor, model: Tensor, gap: Tensor
    ) -> Tensor:
        """One multiplication an outer step, up or down.

        Parameters
        ----------
        eta, origin, centres, increase, model, gap
            As in :meth:`ProximalWeight.update`.
        """
        predicted = model + gap
        raised = eta * (1 + (self.factor - 1) * _share(self.full, centres))
        grown = torch.where(increase < 0.25 * predicted, raised, eta)
        return within(torch.where(increase > 0.75 * predicted, eta / self.factor, grown), origin, REACH)


@dataclass(frozen=True)
class InexactRule(_ScaleFree):
    r"""For proximal problems left after few steps: higher weights where these were too few, else lower ones.

    A step to the exact solution increases the dual value by :math:`|P x|^2 / \eta` at least, and by not much
    more where the supergradient hardly changes on the way (by :math:`1 + L / 2 \eta` times as much where the
    dual has curvature :math:`L`).  So the weight is too small where the dual value decreased, or increased by
    more than that, while the gap left is many times :math:`|P x|^2 / \eta`; and whatever the gap where it
    decreased or increased by far more.

    A weight that is raised over and over shortens the steps until nothing moves.  The n-th change therefore
    is by a factor of :math:`1 + O(1/n)`, so that weights grow at most in proportion to n: the lengths of the
    steps then sum to infinity, as supergradient methods need.
    """

    first: float = 6.0
    raised: float = 0.3
    lowered: float = 0.1
    full: float = 10 / 3  # changes that are made in full: raised * full <= 1 keeps the growth in proportion
    rise: float = 1.25
    gap: float = 20.0
    far: tuple[float, float] = (-1.0, 4.0)

    def update(
        self, eta: Tensor, origin: Tensor, centres: Tensor, increase: Tensor, model: Tensor, gap: Tensor
    ) -> Tensor:
        """One multiplication an outer step, up or down, ever less.

        Parameters
        ----------
        eta, origin, centres, increase, model, gap
            As in :meth:`ProximalWeight.update`.
        """
        share = _share(self.full, centres)
        raised = ((increase < 0) | (increase > self.rise * model)) & (gap > self.gap * model)
        raised |= (increase < self.far[0] * model) | (increase > self.far[1] * model)
        changed = torch.where(raised, eta * (1 + self.raised * share), eta / (1 + self.lowered * share))
        return within(changed, origin, REACH)


@dataclass(frozen=True)
class ResidualBalancing:
    r"""Residual balancing: of the primal residual :math:`|P x|` and the dual :math:`|x - z|` of the means.

    As for ADMM in general (Boyd et al. 2011, section 3.4.1), but by roots of the ratio, and ever more softly:
    the method converges for weights that settle.  The constants were chosen on BA graphs of 200 to 10,000
    nodes and ER graphs.
    """

    target: float = 1.7
    settle: int = 100
    most: float = 2.0
    reach: float = 1e4
    single: float = 50.0  # in single precision, where weight times multipliers must leave room for points

    def update(self, eta: Tensor, origin: Tensor, passes: int, primal: Tensor, dual: Tensor) -> Tensor:
        """The next weight, within reach of the first one.

        Parameters
        ----------
        eta, origin : Tensor
            ``(batch,)``: the present weight, and the first one.
        passes : int
            Passes made.
        primal, dual : Tensor
            ``(batch,)``: squared primal and dual residuals.

        Returns
        -------
        Tensor
            ``(batch,)``.
        """
        factor = self.rooted(primal, dual, passes).reciprocal().clamp_(1 / self.most, self.most).to(eta)
        return torch.where(factor.isnan(), eta, within(eta * factor, origin, self._reach(eta.dtype)))

    def rooted(self, primal: Tensor, dual: Tensor, passes: int) -> Tensor:
        """Root of the ratio of two residuals, by which weights are divided.

        Parameters
        ----------
        primal, dual : Tensor
            ``(batch,)``: squared residuals.
        passes : int
            Passes so far: the later, the higher the root.

        Returns
        -------
        Tensor
            ``(batch,)``.
        """
        ratio = (primal / dual).sqrt() / self.target
        # Roots only: they round alike in all positions of a batch, which powers do not.
        for _ in range(self.roots(passes)):
            ratio = ratio.sqrt()
        return ratio

    def constants(self, dtype: torch.dtype) -> tuple[float, float, float] | None:
        """The numbers of :meth:`update`, with :meth:`roots`, for backends that write it again.

        Returns
        -------
        tuple of float or None
            The target, the largest factor of a change, and that between the weight and the first one; None
            in a class with another :meth:`update`.
        """
        own = type(self).update is ResidualBalancing.update
        return (self.target, self.most, self._reach(dtype)) if own else None

    def roots(self, passes: int) -> int:
        """How many square roots are taken of the ratio after some passes."""
        return 1 + max(0, round(math.log2(passes / self.settle)))

    def _reach(self, dtype: torch.dtype) -> float:
        """Largest factor between a weight and the first one in a precision."""
        return self.reach if dtype == torch.float64 else self.single


Eta = float | Tensor | Sequence[float] | ProximalWeight | None
"""A proximal weight as users give it: a number, ``(batch,)`` numbers, a rule, or ``None`` for automatic."""


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
