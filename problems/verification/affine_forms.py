"""Bounds of results as affine forms of few inputs, forwards through a network.

A result is ``centre + sum_k slope_k e_k`` up to ``error``, with every input moved to e_k in [-1, 1] (affine arithmetic, Comba and
Stolfi 1993, with the remainders of all ReLUs added up, as in Singh et al., NeurIPS 2018, without their new symbols).  It costs
as many forward passes as there are inputs, and two: for a network of 2 inputs and thousands of neurons that is next to nothing
beside a backward pass for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.operations import Add, Affine, Input, Relu, float_error
from blocklp.problems.verification.relaxation import Pair
from blocklp.rounding import rounding, roundoff


@dataclass(frozen=True)
class AffineEnclosure:
    """Affine forms of a result for a batch of boxes.

    Attributes
    ----------
    affine : Tensor
        ``(inputs + 1, batch, *shape)`` float64: the centre, and how much every input adds to it at its upper end.
    error : Tensor
        ``(batch, *shape)`` float64: how far the result may be from that, at least zero.
    """

    affine: Tensor
    error: Tensor

    @property
    def radius(self) -> Tensor:
        """How far the result may be from its centre, ``(batch, *shape)``, before rounding."""
        return self.affine[1:].abs().sum(0) + self.error

    def ends(self) -> Pair:
        """Lower and upper bounds, ``(batch, *shape)`` each; infinite where float64 is left."""
        centre, radius = self.affine[0], self.radius
        radius = radius + rounding(len(self.affine) + 4, radius.dtype) * (centre.abs() + radius)
        low, high = centre - radius, centre + radius
        return torch.where(low.isfinite(), low, -torch.inf), torch.where(high.isfinite(), high, torch.inf)


class AffineForms:
    """Works through a network, operation by operation, as far as it is asked to.

    Parameters
    ----------
    network : Network
        Float64.
    lower, upper : Tensor
        ``(batch, *input_shape)`` float64.
    deadline : Deadline
        When :meth:`at` raises a ``TimeLimitError``.

    Raises
    ------
    ModelError
        From :meth:`at`, at an activation that is no ReLU.
    """

    def __init__(self, network: Network, lower: Tensor, upper: Tensor, deadline: Deadline) -> None:
        self.network, self.deadline, self.found = network, deadline, dict[int, AffineEnclosure]()
        centre, radius = (lower / 2 + upper / 2).flatten(1), (upper / 2 - lower / 2).flatten(1)
        affine = torch.cat([centre[None], torch.diag_embed(radius).transpose(0, 1)])
        error = roundoff(2, centre.abs() + radius)
        self.found[0] = AffineEnclosure(affine.view(-1, *lower.shape), error.view_as(lower))

    def at(self, node: int, bounds: Callable[[int], Pair]) -> AffineEnclosure:
        """The forms of a result.

        Parameters
        ----------
        node : int
            Its position.
        bounds : callable
            Gets the position of an activation and returns the bounds of its argument, ``(batch, *shape)`` each.
        """
        for at in self.network.ancestors(node):
            if at not in self.found:
                self.found[at] = self._form(at, bounds)
        return self.found[node]

    def _form(self, at: int, bounds: Callable[[int], Pair]) -> AffineEnclosure:
        op = self.network.ops[at]
        assert not isinstance(op, Input)
        of = self.found[op.inputs[0]]
        op.ask(self.deadline, of.affine.flatten(0, 1))
        unit = self.network.unit
        if isinstance(op, Relu):
            low, high = (end.clamp(-torch.finfo(of.error.dtype).max, torch.finfo(of.error.dtype).max) for end in bounds(at))
            below, above = low.clamp(max=0), high.clamp(min=0)
            # Between the chord's slope times z and the chord itself; on or off, the identity or zero.
            slope = (above / 2) / (above / 2 - below / 2).clamp(min=torch.finfo(low.dtype).tiny)  # of halves, lest it overflows
            slope = torch.where(high <= 0, torch.zeros_like(slope), torch.where(low >= 0, torch.ones_like(slope), slope))
            half = -slope * below / 2
            affine = of.affine * slope
            affine[0] += half
            error = of.error * slope + half
            size = (of.affine[0].abs() + of.radius) * slope + half
            lost = (slope == 0) & (high > 0)  # nothing is known where the slope underflows
            return AffineEnclosure(affine, (error + roundoff(16, size) * (slope > 0)).masked_fill(lost, torch.inf))
        if isinstance(op, Add):
            other = self.found[op.inputs[1]]
            affine, error = of.affine + other.affine, of.error + other.error
            size = of.affine[0].abs() + of.radius + other.affine[0].abs() + other.radius
            noise = float_error(op, size, unit)
            return AffineEnclosure(affine, error + roundoff(4, size) + (0.0 if noise is None else noise))
        if not isinstance(op, Affine):
            raise ModelError(
                f"{op.name}: affine forms are of networks of affine operations and ReLUs; bound {self.network.name} backwards"
            )
        affine = op.linear(of.affine.flatten(0, 1)).view(*of.affine.shape[:2], *op.shape)
        affine[0] += op.shift()
        absolute, share = op.absolute(), rounding(2 * op.terms + len(affine) + 16, affine.dtype)
        size = of.affine[0].abs() + of.radius + torch.finfo(affine.dtype).tiny  # for what underflows
        error = absolute.linear(of.error + share * size) + share * absolute.shift()
        noise = float_error(op, absolute(size), unit) if unit else None
        return AffineEnclosure(affine, error * (1 + share) + (0.0 if noise is None else noise))
