r"""The smoothed dual: soft minima instead of minima, accelerated gradient steps, a falling temperature.

.. math:: D_t(\lambda) = -t \sum_b \log \sum_k \exp(-\langle \lambda_b, a_{b,k} \rangle / t) \le D(\lambda),
          \qquad \nabla D_t(\lambda) = x(\lambda)

(Nesterov 2005, Smooth minimization of non-smooth functions; on decompositions Jojic, Gould and Koller 2010,
Savchynskyy et al. 2011). Its curvature is at most :math:`\mathrm{diam}^2 / 4 t`, by the widest block in what
it shares. A pass is a step of the accelerated projected gradient method with a restart of its momentum where
it runs against the gradient (O'Donoghue and Candes 2015):

.. math:: x^+ = y + s t \, P \nabla D_t(y), \quad y^+ = x^+ + \frac{k}{k + 3} (x^+ - x)

The length s follows the curvature met on the way, :math:`|\Delta g|^2 / \langle -\Delta g, \Delta y \rangle`,
of which the bound is the worst case. What is left to gain at a temperature is about
:math:`|P x| \, |y - \lambda_0|`; once that is less than a multiple of what the smoothing takes,
:math:`D - D_t`, the temperature falls (continuation, as in Savchynskyy et al. 2012, with another estimate).

The oracle's values come along, so that each pass gives a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.blocks.capabilities import overlap_of
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.decomposition.row_sums import dot
from blocklp.errors import OptionError
from blocklp.kernels.plan import Plan
from blocklp.methods.base import Method, MethodState


@dataclass(frozen=True)
class SmoothState(MethodState):
    """State of :class:`Smooth`; ``points`` are means of vertices at ``duals``, ``eta`` is the temperature."""

    excess: Tensor  # (batch,): D - D_t at ``duals``
    ascent: Tensor  # (batch, copies): P x at ``duals``
    behind: Tensor  # (batch, copies): where the last gradient step ended
    origin: Tensor  # (batch, copies): the multipliers at the start
    run: Tensor  # (batch,): steps since momentum began
    curvature: Tensor  # (batch,): a bound, times the temperature
    length: Tensor  # (batch,): s
    coldest: Tensor  # (batch,): where rounding takes over


@dataclass(frozen=True)
class Smooth(Method):
    """Accelerated ascent on soft minima, automatic temperature.

    For types that are :class:`HasSoftMin`.
    """

    warmth = 0.15
    cooling = 0.8
    eager = 3.0
    growth = 1.25
    longest = 100.0

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> SmoothState:
        """Set the temperature by the spread of the costs of a block's vertices.

        Parameters
        ----------
        plan, duals
            As in :meth:`blocklp.methods.base.Method.start`.
        eta : Tensor or None
            ``(batch,)``: temperature of a warm start, used within a hundredth of that and all of it.

        Raises
        ------
        OptionError
            If a type that shares variables has no soft minimum.
        """
        problem = plan.problem
        warm = self.warmth * width(problem, duals)
        temperature = warm if eta is None else torch.minimum(torch.maximum(eta, warm / 100), warm)
        points, value, excess = soften(problem, duals, temperature)
        curvature = steepest(problem, duals)
        zero = torch.zeros_like(value)
        coldest = 64 * torch.finfo(duals.dtype).eps * warm
        scales = (zero, curvature, 1 / curvature, coldest)
        ascent = problem.disagreement(points)
        return SmoothState(duals, value, points, temperature, excess, ascent, duals, duals, *scales)

    def step(self, plan: Plan, state: SmoothState) -> SmoothState:
        """One accelerated step, then the soft minima there."""
        problem = plan.problem
        end = state.duals + (state.length * state.eta)[:, None] * state.ascent
        momentum = end - state.behind
        # Against the gradient: stop and begin anew.
        run = torch.where(dot(state.ascent, momentum) < 0, 0.0, state.run)
        duals = torch.addcmul(end, (run / (run + 3))[:, None], momentum)
        left = (dot(state.ascent, state.ascent) * dot(duals - state.origin, duals - state.origin)).sqrt()
        colder = left <= self.eager * state.excess
        eta = torch.where(colder, torch.maximum(self.cooling * state.eta, state.coldest), state.eta)
        points, value, excess = soften(problem, duals, eta)
        ascent = problem.disagreement(points)
        turn, move = ascent - state.ascent, duals - state.duals
        curvature = dot(turn, turn) / -dot(turn, move) * eta
        length = torch.minimum(1 / curvature, self.growth * state.length)
        length = length.clamp(min=1 / state.curvature, max=self.longest / state.curvature)
        # Gradients of two temperatures tell nothing about the curvature of one.
        length = torch.where((curvature > 0) & (eta == state.eta), length, state.length)
        return replace(
            state,
            duals=duals,
            value=value,
            points=points,
            eta=eta,
            excess=excess,
            ascent=ascent,
            behind=end,
            run=run + 1,
            length=length,
        )


def soften(problem: Decomposition, duals: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Soft minima of all blocks.

    Parameters
    ----------
    problem : Decomposition
        The problem in the working precision.
    duals : Tensor
        ``(batch, copies)``: the multipliers.
    temperature : Tensor
        ``(batch,)``, positive.

    Returns
    -------
    points, value, excess : Tensor
        ``(batch, copies)``, ``(batch,)``, ``(batch,)``: means of vertices, the dual value, and the dual value
        less the smoothed one.

    Raises
    ------
    OptionError
        If a type that shares variables has no soft minimum.
    """
    points, value = torch.empty_like(duals), torch.zeros_like(temperature)
    excess = torch.zeros_like(temperature)
    for group in problem.groups:
        point, own, above = soft_group(group, group.view(duals), temperature)
        group.view(points).copy_(point)
        value, excess = value + own.sum(-1), excess + above.sum(-1)
    return points, value, excess


def soft_group(group: Group, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Soft minima of a group that shares variables, minima of any other; padding gives zero.

    Parameters
    ----------
    group, cost : Group, Tensor
        The blocks, and their costs ``(batch, blocks, dim)``.
    temperature : Tensor
        ``(batch,)``, positive.

    Returns
    -------
    point, value, excess : Tensor
        ``(batch, blocks, dim)``, ``(batch, blocks)``, ``(batch, blocks)``: as :meth:`HasSoftMin.soft_min`.

    Raises
    ------
    OptionError
        If the type shares variables and has no soft minimum.
    """
    if not group.shares:
        point, value = group.min_oracle(cost)
        return point, value, torch.zeros_like(value)
    found = None if group.soft_min is None else group.soft_min(cost, temperature[:, None, None])
    if found is None:
        raise OptionError(
            f"{group.type.name} has no soft minimum, which smooth needs of every type that shares variables; "
            f"state soft_min(cost, temperature), or choose another method, such as admm"
        )
    point, value, excess = found
    if group.valid is None:
        return found
    return point * group.valid[..., None], value * group.valid, excess * group.valid


def width(problem: Decomposition, duals: Tensor) -> Tensor:
    """Mean spread of the values of a block that shares variables: ``(batch,)``, 1 where that is 0."""
    total, count = torch.zeros_like(duals[:, 0]), torch.zeros_like(duals[:, 0])
    for group in problem.groups:
        if group.shares:
            cost = group.view(duals)
            # Blocks that are left without a vertex have huge values of either sign.
            reach = (-group.block_values(cost) - group.block_values(-cost)).clamp(min=0)
            total = total + reach.sum(-1)
            count = count + (group.blocks if group.valid is None else group.valid.sum(-1))
    mean = total / count
    return torch.where(mean > 0, mean, torch.ones_like(mean))


def steepest(problem: Decomposition, duals: Tensor) -> Tensor:
    r"""A bound :math:`\max_b \mathrm{diam}_b^2 / 4` of the curvature times the temperature: ``(batch,)``.

    Vertices differ in as many coordinates as :meth:`HasOverlap.overlap` says (which holds for all types of
    this package), each by the width of its variable.
    """
    largest = torch.zeros_like(duals[:, 0])
    widths = problem.spread((problem.upper - problem.lower).square().expand(len(duals), -1))
    for group in problem.groups:
        if group.shares:
            widest = (group.view(widths) * group.coupled).amax((1, 2))
            largest = torch.maximum(largest, widest * overlap_of(group.type, group.shared) / 4)
    return torch.where(largest > 0, largest, torch.ones_like(largest))
