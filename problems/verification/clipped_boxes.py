"""Input boxes of nodes, clipped to where a counterexample may still be (Zhou et al., NeurIPS 2025).

A node has a linear bound of what is asked: where that is above a margin no counterexample is, and the search claims no more than the
margin.  The sign of a split neuron of the first layer is linear in the input as well.  Each cuts a corner off the box, and the
box around what remains takes its place.  The first layer is bounded anew in that box, and where the linear bound leaves room in it:
one constraint and a box are an LP with one multiplier.  Neurons whose sign these bounds tell need no split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from blocklp.problems.verification.operations import Affine, Input, Linear
from blocklp.problems.verification.relaxation import Pair, Relaxation
from blocklp.problems.verification.tightener import intervals
from blocklp.rounding import rounding, roundoff

MOST_INPUTS = 100
"""Inputs beyond which boxes are left alone: one cut takes little off each of many sides (with 784 the search of an MNIST network
had a tenth fewer nodes and took a third longer)."""


ENTRIES = 4_000_000
"""Entries of the first layer's matrix times nodes, of one tensor."""

HALVINGS, SMALL = 6, 1e-6
"""Halvings of the logarithm of a multiplier's interval, and its lower end relative to the upper one.  (With 4 a search had a quarter
more nodes; halving the interval itself, it took 11 for as few.)"""


class ClippedBoxes:
    """Boxes ``(nodes, 2, inputs)`` with bounds of the first layers behind them: ``ends`` ``(nodes, 2, inputs + neurons)`` float64.

    Parameters
    ----------
    relaxation : Relaxation
        The root: a batch of 1.
    free : mapping
        Position of an activation to the numbers ``(k,)`` of the neurons that nodes may split.
    wanted : bool
        False to leave all boxes as they are: ``ends`` then has no columns.

    Attributes
    ----------
    first : list of int
        ReLUs of affine functions of the inputs.
    root : Tensor
        ``(2, inputs + neurons)``.
    """

    def __init__(self, relaxation: Relaxation, free: Mapping[int, Tensor], wanted: bool) -> None:
        self.relaxation, self.free = relaxation, free
        network = relaxation.network
        ops, self.inputs = network.ops, network.inputs
        affine = [isinstance(op, (Affine, Input)) for op in ops]
        self.first = [r for r in network.relus if r in free and all(affine[a] for a in network.ancestors(r)[:-1])]
        self.sizes = [math.prod(ops[r].shape) for r in self.first]
        self.on = wanted and bool(self.first) and self.inputs <= MOST_INPUTS
        self.matrix = self._matrix()
        self.root = relaxation.lower.new_zeros(2, 0)
        if self.on:
            self.root = self.ends(relaxation.lower.flatten(1), relaxation.upper.flatten(1))[0]

    def _matrix(self) -> Linear | None:
        """The first layer, if it is one small matrix of the inputs and exact: only intervals charge for float32."""
        ops = self.relaxation.network.ops
        if len(self.first) != 1 or not self.on or self.relaxation.network.unit:
            return None
        op = ops[ops[self.first[0]].inputs[0]]
        return op if isinstance(op, Linear) and op.inputs == (0,) and op.weight.numel() <= ENTRIES else None

    def ends(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Boxes ``(nodes, inputs)`` and the intervals of first layers in them."""
        network = self.relaxation.network
        found: list[Pair] = []
        box = [end.view(-1, *network.input_shape) for end in (lower, upper)]
        pairs = [(lower, upper)]
        for relu in self.first:
            node = network.ops[relu].inputs[0]
            pairs.append(intervals(network, box[0], box[1], {}, node, found, self.relaxation.deadline)[node])
        return torch.stack([torch.cat([pair[side].flatten(1) for pair in pairs], 1) for side in (0, 1)], 1)

    def box(self, ends: Tensor) -> Pair:
        """Lower and upper ends of the inputs, ``(nodes, *input_shape)``; the root's where boxes are left alone."""
        if not self.on:
            return self.relaxation.lower, self.relaxation.upper
        shape = (-1, *self.relaxation.network.input_shape)
        return ends[:, 0, : self.inputs].reshape(shape), ends[:, 1, : self.inputs].reshape(shape)

    def bounds(self, relu: int, ends: Tensor) -> Pair | None:
        """Flat bounds of the pre-activations of a first layer, of nodes; None of another layer."""
        if not self.on or relu not in self.first:
            return None
        number = self.first.index(relu)
        start = self.inputs + sum(self.sizes[:number])
        low, high = ends[:, :, start : start + self.sizes[number]].unbind(1)
        return low, high

    def clip(self, ends: Tensor, cost: Tensor, value: Tensor, within: bool = False) -> Tensor:
        """Clip boxes to where a linear function is not above zero.

        Parameters
        ----------
        ends : Tensor
            Of the nodes.
        cost, value : Tensor
            ``(nodes, inputs)`` and ``(nodes,)``: coefficients, and a lower bound of the least value in the box, at most zero.
        within : bool
            Bound a first layer that is one matrix over what the function leaves of the box, not only over the box around that.
        """
        lower, upper = ends[:, :, : self.inputs].unbind(1)
        # Every input may go as far from its best end as all room alone allows; a little more, for rounding.
        room = (-value.clamp(max=0)[:, None] / cost.abs()).nan_to_num(torch.inf, torch.inf)
        slack = 4 * torch.finfo(room.dtype).eps
        room = room + slack * (room + torch.maximum(lower.abs(), upper.abs())) + torch.finfo(room.dtype).tiny
        high = torch.where(cost > 0, torch.minimum(upper, lower + room), upper)
        low = torch.where(cost < 0, torch.maximum(lower, upper - room), lower)
        found = self.ends(low, high)
        # Earlier bounds of neurons hold for what is left, too.
        found[:, 0] = torch.maximum(found[:, 0], ends[:, 0])
        found[:, 1] = torch.minimum(found[:, 1], ends[:, 1])
        if self.matrix is not None and within:
            for part in torch.split(torch.arange(len(ends), device=ends.device), max(1, ENTRIES // self.matrix.weight.numel())):
                self._tighten(found, part, cost, value)
        return found

    def _tighten(self, ends: Tensor, rows: Tensor, cost: Tensor, value: Tensor) -> None:
        """Bound a first layer over the part of each box where the linear function is not above zero, by the dual of that LP."""
        assert self.matrix is not None
        weight, bias = self.matrix.weight, self.matrix.bias
        lower, upper = ends[rows, :, : self.inputs].unbind(1)
        cost, room, width = cost[rows], -value[rows].clamp(max=0)[:, None], (upper - lower).clamp(min=0)
        corner, steep = torch.where(cost > 0, lower, upper), cost.abs()
        away = weight * torch.where(cost > 0, 1.0, -1.0)[:, None]  # (nodes, neurons, inputs): per unit away from the corner
        base = corner @ weight.T + bias
        size = torch.maximum(lower.abs(), upper.abs()) @ weight.abs().T + bias.abs()
        start = self.inputs
        for side, slope in ((0, away), (1, -away)):
            multiplier = self._multiplier(slope, steep, width, room)
            # What this multiplier gives is a bound whatever it is, if it is at least zero.
            terms = torch.addcmul(slope, multiplier[..., None], steep[:, None]).clamp_(max=0)
            charge = multiplier * (room + (steep * width).sum(1, keepdim=True)) + 2 * size
            least = (terms @ width[..., None])[..., 0] - multiplier * room
            least = least - rounding(2 * self.inputs + 16, least.dtype) * charge - torch.finfo(least.dtype).tiny
            end = base + least if side == 0 else base - least
            end = torch.where(end.isfinite(), end, -torch.inf if side == 0 else torch.inf)
            own = ends[rows, side, start:]
            ends[rows, side, start:] = torch.maximum(own, end) if side == 0 else torch.minimum(own, end)

    def _multiplier(self, slope: Tensor, steep: Tensor, width: Tensor, room: Tensor) -> Tensor:
        """A good multiplier ``(nodes, neurons)`` of each LP, by bisection of its dual, in float32."""
        slope, steep, width, room = (t.float() for t in (slope, steep, width, room))
        ratio = torch.where((steep > 0) & (width > 0), 1 / steep, 0.0).nan_to_num(0.0, 0.0)
        kinks = -slope * ratio[:, None]
        most = kinks.amax(2).clamp(min=0)
        taken = steep * width  # of the room, by an input that goes all the way
        low, high = SMALL * most, most
        for _ in range(HALVINGS):
            middle = (low * high).sqrt()
            used = ((torch.addcmul(slope, middle[..., None], steep[:, None]) < 0).float() @ taken[..., None])[..., 0]
            over = used > room
            low, high = torch.where(over, middle, low), torch.where(over, high, middle)
        # The best multiplier is the last kink of the dual up to the upper end, if the interval holds no other.
        return kinks.masked_fill_(kinks > high[..., None], 0.0).amax(2).clamp(min=0).double()

    def split(self, ends: Tensor, relus: list[int], neurons: list[int], sign: int) -> Tensor:
        """Clip boxes to where one neuron of each node has a sign, if it is a row of a matrix of the inputs.

        Parameters
        ----------
        ends : Tensor
            Of the nodes.
        relus, neurons : list of int
            Of every node its ReLU and its number before that.
        sign : int
            1 or -1.
        """
        if self.matrix is None:
            return ends
        cost, value = ends.new_zeros(len(ends), self.inputs), ends.new_zeros(len(ends))
        own = [k for k, r in enumerate(relus) if r == self.first[0]]
        if own:
            rows, at = torch.tensor(own, device=ends.device), torch.tensor([neurons[k] for k in own], device=ends.device)
            # On: minus the neuron is at most zero.
            weight, bias = -sign * self.matrix.weight[at], -sign * self.matrix.bias[at]
            lower, upper = ends[rows, :, : self.inputs].unbind(1)
            least = torch.minimum(weight * lower, weight * upper).sum(1) + bias
            size = (weight.abs() * torch.maximum(lower.abs(), upper.abs())).sum(1) + bias.abs()
            cost[rows], value[rows] = weight, least - roundoff(self.inputs + 8, size)
        return self.clip(ends, cost, value)

    def implied(self, ends: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
        """Signs ``(nodes, free neurons)`` with those that bounds tell, and which boxes are empty ``(nodes,)``."""
        empty = (ends[:, 0] > ends[:, 1]).any(1) if self.on else torch.zeros(len(signs), dtype=torch.bool, device=signs.device)
        at, signs = 0, signs.clone()
        for relu, free in self.free.items():
            pair, part = self.bounds(relu, ends), slice(at, at + len(free))
            at += len(free)
            if pair is not None:
                low, high = pair[0][:, free], pair[1][:, free]
                own = signs[:, part]
                empty |= (((own > 0) & (high < 0)) | ((own < 0) & (low > 0))).any(1)
                told = (low >= 0).to(own) - ((high <= 0) & (low < 0)).to(own)
                signs[:, part] = torch.where(own == 0, told, own)
        return signs, empty
