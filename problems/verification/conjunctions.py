"""Clauses of several rows: each row clips the boxes of nodes, and splits go where most of the first layer is still open.

A counterexample satisfies all rows of its clause.  So a box can be clipped to where the linear bound of each row is not above a
margin, not only to where that of their mix is not; what this tells of the first layer clips more, until nothing follows any more.
In a network that encodes a formula that is unit propagation.  There, the bounds of mixes are about zero down to the last splits
and tell no neuron from another.  Then neurons are chosen by how many open ones share their inputs, and of the first of these by
how many signs both halves would know, as solvers of satisfiability look ahead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from blocklp.problems.verification.clipped_boxes import ENTRIES, ClippedBoxes

MOST_ROWS = 16
"""Rows of a clause beyond which only their mix clips."""

ROUNDS = 30
"""How often all rows clip the box of a node, as long as more signs follow."""

LOOKED_AT = 4
"""Neurons whose halves are looked at before one of them is chosen.  (Of 50 impossible formulas, each decided within 5 s with 4, five
took more than 20 s with 1; with 16 a search took a third longer.)"""

ROUNDS_AHEAD = 4
"""The same as :data:`ROUNDS`, for these halves."""

NEAR = 1e-3
"""Share of its width at the root by which a neuron's interval may go beyond zero for its sign to count as known here: margins leave
boxes a little wider than the rows do."""

RowBounds = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Gets of each node, or copy of one, its number, its ends and its signs; returns coefficients ``(nodes, rows, inputs)`` and least
values ``(nodes, rows)`` of the linear bounds of the rows that :attr:`Conjunctions.rows` lists for it."""


class Conjunctions:
    """Clips boxes by all rows of a clause, and chooses splits by what follows from them.

    Parameters
    ----------
    boxes : ClippedBoxes
        The boxes of nodes.
    owned : Tensor
        ``(clauses, rows)`` bool: the rows of every clause.
    margin : float
        What a row must be above for a point to be clipped.

    Attributes
    ----------
    on : bool
        Whether a clause has several rows, and boxes are clipped behind a first layer that is one matrix.
    rows : Tensor
        ``(clauses, most rows)``: the numbers of their rows; the last one is repeated.
    """

    def __init__(self, boxes: ClippedBoxes, owned: Tensor, margin: float) -> None:
        self.boxes, self.margin = boxes, margin
        most = int(owned.sum(1).max())
        self.on = boxes.on and boxes.matrix is not None and 1 < most <= MOST_ROWS
        numbers = [row.nonzero()[:, 0] for row in owned]
        self.rows = torch.stack([torch.cat([n, n[-1:].expand(most - len(n))]) for n in numbers])
        if self.on:
            first, free = boxes.first[0], boxes.free
            before = [len(own) for r, own in free.items() if r < first]
            self.part = slice(sum(before), sum(before) + len(free[first]))
            ends = self._intervals(boxes.root[None])
            self.near = NEAR * (ends[1] - ends[0])

    def _intervals(self, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds ``(nodes, neurons)`` of the first layer's free neurons."""
        first = self.boxes.first[0]
        pair = self.boxes.bounds(first, ends)
        assert pair is not None
        return pair[0][:, self.boxes.free[first]], pair[1][:, self.boxes.free[first]]

    def _open(self, ends: Tensor) -> Tensor:
        """Which of these have intervals that go well beyond zero on both sides."""
        low, high = self._intervals(ends)
        return torch.minimum(-low, high) > self.near

    def propagate(self, bounds: RowBounds, ends: Tensor, signs: Tensor, rounds: int = ROUNDS) -> Tensor:
        """Clip the boxes of nodes by all rows until nothing follows, in place.

        Parameters
        ----------
        bounds : callable
            :data:`RowBounds` of the nodes.
        ends, signs : Tensor
            Of the nodes, as :class:`ClippedBoxes` and the search have them; changed in place.
        rounds : int
            How often, at most.

        Returns
        -------
        Tensor
            ``(nodes,)`` bool: where a row, or a sign, shows that there is no counterexample.
        """
        impossible = torch.zeros(len(ends), dtype=torch.bool, device=ends.device)
        at = torch.arange(len(ends), device=ends.device)
        for _ in range(rounds):
            cost, value = bounds(at, ends[at], signs[at])
            box, before = ends[at], (signs[at] != 0).sum(1)
            for row_cost, row_value in zip(cost.unbind(1), value.unbind(1), strict=True):
                box = self.boxes.clip(box, row_cost, row_value - self.margin, within=rounds == ROUNDS)
            ends[at] = box
            signs[at], empty = self.boxes.implied(box, signs[at])
            empty = empty | (value > self.margin).any(1)
            impossible[at] |= empty
            at = at[~empty & ((signs[at] != 0).sum(1) > before)]
            if not len(at):
                break
        return impossible

    def choose(self, bounds: RowBounds, ends: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
        """Choose neurons of the first layer to split.

        Parameters
        ----------
        bounds : callable
            :data:`RowBounds` of the nodes.
        ends, signs : Tensor
            Of the nodes; they are left as they are.

        Returns
        -------
        tuple of Tensor
            ``(nodes,)``: numbers among all free neurons; and bool: where there is one whose interval goes well beyond zero.
        """
        assert self.boxes.matrix is not None
        rows = torch.arange(len(ends), device=ends.device)
        if self.part.start == self.part.stop:  # all of that layer is known
            return torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
        parts = torch.split(rows, max(1, ENTRIES // self.boxes.matrix.weight.numel()))
        found = [self._best(lambda at, *own, p=p: bounds(p[at], *own), ends[p], signs[p]) for p in parts]
        chosen, there = (torch.cat(some) for some in zip(*found, strict=True))
        return chosen, there

    def _best(self, bounds: RowBounds, ends: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
        matrix, free = self.boxes.matrix, self.boxes.free[self.boxes.first[0]]
        assert matrix is not None
        width = (ends[:, 1] - ends[:, 0])[:, : self.boxes.inputs].clamp(min=0)
        parts = matrix.weight[free].abs() * width[:, None]  # of each neuron's width: (nodes, neurons, inputs)
        total = parts.sum(2).clamp(min=torch.finfo(width.dtype).tiny)
        open_ = self._open(ends) & (signs[:, self.part] == 0)
        # An input counts the open neurons that it moves; a neuron the mean of its inputs.
        counts = ((parts > self.near[:, :, None]) * open_[..., None]).sum(1).to(width.dtype)
        degree = ((parts @ counts[..., None])[..., 0] / total).masked_fill(~open_, -1.0)
        best = degree.topk(min(LOOKED_AT, degree.shape[1]), 1)
        chosen = torch.where(best.values > 0, best.indices, best.indices[:, :1])
        count, flat = chosen.shape[1], chosen.flatten()
        # Both halves of each, one after the other.
        owners = torch.arange(len(ends), device=ends.device).repeat_interleave(2 * count)
        halves, known = ends[owners], signs[owners]
        relus, neurons = [self.boxes.first[0]] * len(flat), free[flat].tolist()
        for half, sign in enumerate((1, -1)):
            known[half::2].scatter_(1, self.part.start + flat[:, None], sign)
            halves[half::2] = self.boxes.split(halves[half::2], relus, neurons, sign)
        known, empty = self.boxes.implied(halves, known)
        empty |= self.propagate(lambda at, box, own: bounds(owners[at], box, own), halves, known, ROUNDS_AHEAD)
        told = (open_[owners] & ~self._open(halves)).sum(1).masked_fill(empty, 2 * len(free)).view(-1, count, 2).double()
        score = told.prod(2) + told.sum(2) / (4 * len(free) + 1)
        return self.part.start + chosen.gather(1, score.argmax(1, keepdim=True))[:, 0], open_.any(1)
