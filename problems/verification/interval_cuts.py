"""Cuts of the pre-activations of smooth functions, in nodes of branch and bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from blocklp.oracles.curve_lines import split_point
from blocklp.oracles.curves import CURVES, Curve
from blocklp.problems.verification.curve_slopes import MIDDLE
from blocklp.problems.verification.operations import SmoothActivation
from blocklp.problems.verification.relaxation import Relaxation

NARROW = 1e-7
"""Width of an interval that is cut no more, relative to its ends."""


class IntervalCuts:
    """Which of the neurons that nodes may split are smooth, and how their intervals are cut.

    Parameters
    ----------
    relaxation : Relaxation
        The bounds at the root.
    free : mapping
        Position of an activation to the numbers ``(k,)`` of the neurons that nodes may split.

    Attributes
    ----------
    curves : mapping
        Position of a smooth activation to its function.
    smooth : Tensor
        ``(neurons,)`` bool: which of all these neurons are smooth.
    root : Tensor
        ``(2, smooth)`` float64: their bounds at the root.
    """

    def __init__(self, relaxation: Relaxation, free: Mapping[int, Tensor]) -> None:
        ops, device = relaxation.network.ops, relaxation.lower.device
        self.curves = {r: op.curve for r in free if isinstance(op := ops[r], SmoothActivation)}
        kinds = [self._kinds.index(self.curves[r]) if r in self.curves else -1 for r, own in free.items() for _ in own]
        # Of every neuron the number of its curve, -1 for a ReLU, and its number among the smooth ones.
        self.kinds = torch.tensor(kinds, dtype=torch.int64, device=device)
        self.smooth = self.kinds >= 0
        self.places = self.smooth.cumsum(0) - 1
        ends = [torch.stack([end.flatten()[free[r]] for end in relaxation.bounds[r]]) for r in self.curves]
        self.root = torch.cat([relaxation.lower.new_zeros(2, 0), *ends], 1)

    @property
    def _kinds(self) -> list[Curve]:
        return [curve for curve in CURVES.values() if curve in self.curves.values()]

    def split(self, parts: Sequence[Tensor], chosen: Tensor, sign: int) -> None:
        """Split each of some nodes at a neuron, in place; what remains is the part above for sign 1, that below for -1.

        A smooth neuron starts anew, from the line that is best in the middle of its new interval.  (Where it keeps its multiplier
        no bound gets worse at first; but the ascent then hardly leaves that point: after 250 nodes of two searches the bounds had
        come from -0.99 to -0.99 and from -1.84 to -0.75, in place of -0.26 and -0.18.)

        Parameters
        ----------
        parts : sequence of Tensor
            Signs, cuts, slopes and multipliers of splits: ``(nodes, neurons)``, cuts ``(nodes, 2, smooth)``.
        chosen : Tensor
            ``(nodes,)``: numbers of the neurons.
        sign : int
            1 or -1.
        """
        signs, cuts, slopes, betas = parts
        kinds = self.kinds[chosen]
        signs.scatter_(1, chosen[:, None], torch.where(kinds < 0, sign, 1).to(signs.dtype)[:, None])
        for number, curve in enumerate(self._kinds):
            rows = (kinds == number).nonzero()[:, 0]
            neuron = chosen[rows]
            at = self.places[neuron]
            cuts[rows, 0 if sign > 0 else 1, at] = split_point(curve, cuts[rows, 0, at], cuts[rows, 1, at])
            slopes[rows, neuron], betas[rows, neuron] = MIDDLE, 0.0

    def done(self, signs: Tensor, cuts: Tensor) -> Tensor:
        """Return which neurons cannot be split any more: of known sign, or of intervals hardly wider than rounding.

        Parameters
        ----------
        signs, cuts : Tensor
            ``(nodes, neurons)`` and ``(nodes, 2, smooth)``: of the nodes.
        """
        found = signs != 0
        if self.curves:
            low, high = cuts.unbind(1)
            found[:, self.smooth] = high - low <= NARROW * (1 + low.abs())
        return found
