"""Cuts of the pre-activations of smooth functions and signs, in nodes of branch and bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from blocklp.oracles.curve_lines import split_point
from blocklp.oracles.curves import BESIDE_ZERO, Curve
from blocklp.problems.verification.curve_slopes import MIDDLE
from blocklp.problems.verification.operations import SmoothActivation
from blocklp.problems.verification.relaxation import Pair, Relaxation
from blocklp.problems.verification.tightener import intervals

NARROW = 1e-7
"""Width of an interval that is cut no more, relative to its ends."""

INNER = (1e-3, 1e-5)
"""How far from zero arguments of signs are kept where a leaf is searched for counterexamples, as shares of the largest of them."""


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
        Position of a smooth activation, or a sign, to its function.
    smooth : Tensor
        ``(neurons,)`` bool: which of all these neurons are no ReLUs.
    root : Tensor
        ``(2, smooth)`` float64: their bounds at the root.
    last : bool
        Whether splits fix all neurons in the end.
    """

    def __init__(self, relaxation: Relaxation, free: Mapping[int, Tensor]) -> None:
        ops, device = relaxation.network.ops, relaxation.lower.device
        self.curves = {r: op.curve for r in free if isinstance(op := ops[r], SmoothActivation)}
        kinds = [self._kinds.index(self.curves[r]) if r in self.curves else -1 for r, own in free.items() for _ in own]
        # Of every neuron the number of its curve, -1 for a ReLU, and its number among the smooth ones.
        self.kinds = torch.tensor(kinds, dtype=torch.int64, device=device)
        self.smooth = self.kinds >= 0
        self.places = self.smooth.cumsum(0) - 1
        self.relaxation, self.free = relaxation, free
        self.last = all(curve.jumps for curve in self.curves.values())
        steps = [self.curves[r].jumps for r in self.curves for _ in free[r]]
        self.jumps = torch.tensor(steps, dtype=torch.bool, device=device)
        ends = [torch.stack([end.flatten()[free[r]] for end in relaxation.bounds[r]]) for r in self.curves]
        self.root = torch.cat([relaxation.lower.new_zeros(2, 0), *ends], 1)

    @property
    def _kinds(self) -> list[Curve]:
        return list(dict.fromkeys(self.curves.values()))

    def jumping(self, chosen: Tensor) -> Tensor:
        """Return which of some nodes are split at a sign, and have a third part where its argument is zero.

        Parameters
        ----------
        chosen : Tensor
            ``(nodes,)``: numbers of the neurons.
        """
        kinds = [number for number, curve in enumerate(self._kinds) if curve.jumps]
        return torch.isin(self.kinds[chosen], torch.tensor(kinds, dtype=torch.int64, device=chosen.device)).nonzero()[:, 0]

    def split(self, parts: Sequence[Tensor], chosen: Tensor, sign: int) -> None:
        """Split each of some nodes at a neuron, in place; what remains is the part above for sign 1, that below for -1.

        A sign is split into three: above zero, below it, and at zero for sign 0.

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
            1, -1, or 0 for nodes that are all split at signs.
        """
        signs, cuts, slopes, betas = parts
        kinds = self.kinds[chosen]
        signs.scatter_(1, chosen[:, None], torch.where(kinds < 0, sign, 1).to(signs.dtype)[:, None])
        for number, curve in enumerate(self._kinds):
            rows = (kinds == number).nonzero()[:, 0]
            neuron = chosen[rows]
            at = self.places[neuron]
            low, high = cuts[rows, 0, at], cuts[rows, 1, at]
            if curve.jumps:
                # An interval that ends at zero leaves zero itself for the part that would be empty.
                cuts[rows, 0, at] = low if sign < 0 else torch.minimum(low.new_tensor(sign * BESIDE_ZERO), high)
                cuts[rows, 1, at] = high if sign > 0 else torch.maximum(low.new_tensor(sign * BESIDE_ZERO), low)
            else:
                cuts[rows, 0 if sign > 0 else 1, at] = split_point(curve, low, high)
            slopes[rows, neuron], betas[rows, neuron] = MIDDLE, 0.0

    def propagate(self, cuts: Tensor) -> Tensor:
        """Narrow the arguments of signs by intervals behind what nodes have fixed, in place; return which nodes are empty.

        Parameters
        ----------
        cuts : Tensor
            ``(nodes, 2, smooth)``: of the nodes.
        """
        empty = torch.zeros(len(cuts), dtype=torch.bool, device=cuts.device)
        if not bool(self.jumps.any()):
            return empty
        network, root, found, at = self.relaxation.network, self.relaxation, list[Pair](), 0
        bounds = dict(root.bounds)
        lower, upper = (end.expand(len(cuts), *network.input_shape) for end in (root.lower, root.upper))
        for r, curve in self.curves.items():
            free, own = self.free[r], slice(at, at + len(self.free[r]))
            at += len(free)
            if curve.jumps:
                argument = network.ops[r].inputs[0]
                low, high = intervals(network, lower, upper, bounds, argument, found, root.deadline)[argument]
                low, high = (
                    torch.maximum(low.flatten(1)[:, free], cuts[:, 0, own]),
                    torch.minimum(high.flatten(1)[:, free], cuts[:, 1, own]),
                )
                # Ends beside zero stand for all beyond it.
                empty |= (low - BESIDE_ZERO > high + BESIDE_ZERO).any(1)
                cuts[:, 0, own], cuts[:, 1, own] = torch.minimum(low, high), high
            ends = [end.flatten(1).repeat(len(cuts), 1) for end in root.bounds[r]]
            for side, end in enumerate(ends):
                end[:, free] = cuts[:, side, own]
            bounds[r] = (ends[0].view(-1, *network.ops[r].shape), ends[1].view(-1, *network.ops[r].shape))
        return empty

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
            narrow, fixed = high - low <= NARROW * (1 + low.abs()), (low > 0) | (high < 0) | (low == high)
            found[:, self.smooth] = torch.where(self.jumps, fixed, narrow)
        return found
