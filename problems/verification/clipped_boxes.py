"""Input boxes of nodes, clipped to where a counterexample may still be (relaxed clipping of Zhou et al., NeurIPS 2025).

A node has a linear bound of what is asked: where that is above a margin no counterexample is, and the search claims no more than the
margin.  The sign of a split neuron of the first layer is linear in the input as well.  Each cuts a corner off the box; the box around
what remains gives the first layer new bounds, and neurons whose sign these tell need no split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from blocklp.problems.verification.operations import Affine, Input, Linear
from blocklp.problems.verification.relaxation import Pair, Relaxation
from blocklp.problems.verification.tightener import intervals

MOST_INPUTS = 100
"""Inputs beyond which boxes are left alone: one cut takes little off each of many sides (with 784 the search of an MNIST network
had a tenth fewer nodes and took a third longer; with 30 a fifth of the nodes and a third of the time)."""


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
        self.root = relaxation.lower.new_zeros(2, 0)
        if self.on:
            self.root = self.ends(relaxation.lower.flatten(1), relaxation.upper.flatten(1))[0]

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

    def clip(self, ends: Tensor, cost: Tensor, value: Tensor) -> Tensor:
        """Clip boxes to where a linear function is not above zero.

        Parameters
        ----------
        ends : Tensor
            Of the nodes.
        cost, value : Tensor
            ``(nodes, inputs)`` and ``(nodes,)``: coefficients, and a lower bound of the least value in the box, at most zero.
        """
        lower, upper = ends[:, :, : self.inputs].unbind(1)
        # Every input may go as far from its best end as all room alone allows; a little more, for rounding.
        room = (-value.clamp(max=0)[:, None] / cost.abs()).nan_to_num(torch.inf, torch.inf)
        slack = 4 * torch.finfo(room.dtype).eps
        room = room + slack * (room + torch.maximum(lower.abs(), upper.abs())) + torch.finfo(room.dtype).tiny
        high = torch.where(cost > 0, torch.minimum(upper, lower + room), upper)
        low = torch.where(cost < 0, torch.maximum(lower, upper - room), lower)
        return self.ends(low, high)

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
        ops, count = self.relaxation.network.ops, len(ends)
        cost, value = ends.new_zeros(count, self.inputs), ends.new_zeros(count)
        for relu in self.first if self.on else ():
            op, own = ops[ops[relu].inputs[0]], [k for k, r in enumerate(relus) if r == relu]
            if not (own and isinstance(op, Linear) and isinstance(ops[op.inputs[0]], Input)):
                continue
            rows, at = torch.tensor(own, device=ends.device), torch.tensor([neurons[k] for k in own], device=ends.device)
            low, high = self.bounds(relu, ends) or (ends, ends)
            # On: minus the neuron is at most zero.
            cost[rows] = -sign * op.weight[at]
            value[rows] = -high[rows, at] if sign > 0 else low[rows, at]
        return self.clip(ends, cost, value) if self.on else ends

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
