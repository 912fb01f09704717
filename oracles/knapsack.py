"""The fractional knapsack."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.block import BlockType, Constraints, as_block_data, common_shape
from blocklp.bounds import rounding
from blocklp.errors import ModelError


class Knapsack(BlockType):
    r"""The fractional knapsack :math:`\{x : lower \le x \le upper, \; \langle w, x \rangle \le capacity\}`, :math:`w \ge 0`.

    Exact greedy minimum (Dantzig 1957): from ``lower``, raise the variables of negative cost in the order of
    :math:`c_i / w_i` until the capacity is used; the last one stops in between.  Ties go to the first variable.

    Parameters
    ----------
    weights : array_like
        ``(dim,)``, ``(blocks, dim)`` or ``(batch, blocks, dim)``, finite, nonnegative.
    capacity : array_like
        A number, ``(blocks,)`` or ``(batch, blocks)``, finite.
    lower, upper : array_like
        As ``weights`` or a number, finite, ``lower <= upper``.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ModelError
        If a weight is negative, an entry is not finite, a lower bound is above its upper bound, or the lower bounds alone
        exceed the capacity.
    """

    by_rows = True
    block_data = ("weights", "capacity", "lower", "upper")

    def __init__(self, weights: object, capacity: object, lower: object = 0.0, upper: object = 1.0) -> None:
        w, cap = as_block_data(weights, 1, "Knapsack weights"), as_block_data(capacity, 0, "Knapsack capacity")
        low, high = (
            as_block_data(t[None] if t.dim() == 0 else t, 1, f"Knapsack {side}")
            for t, side in ((torch.as_tensor(lower), "lower"), (torch.as_tensor(upper), "upper"))
        )
        shape = common_shape("Knapsack", w.shape, low.shape, high.shape, (*cap.shape, 1))
        self.weights, self.lower, self.upper = (t.expand(shape) for t in (w, low, high))
        self.capacity, self.dim = cap.expand(shape[:2]), shape[2]
        if bool((self.weights < 0).any()):
            where = tuple(int(i) for i in (self.weights < 0).nonzero()[0])
            raise ModelError(f"Knapsack: the weight at (batch, block, variable) {where} is negative; weights must be >= 0")
        if bool((self.lower > self.upper).any()):
            raise ModelError("Knapsack: a lower bound is above its upper bound")
        over = ((self.weights * self.lower).sum(-1) > self.capacity).nonzero()
        if len(over):
            raise ModelError(
                f"Knapsack: the lower bounds of block {int(over[0, 1])} of instance {int(over[0, 0])} exceed its capacity; "
                f"raise the capacity or lower the bounds"
            )

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Fill by ratio of cost to weight."""
        wanted = cost < 0
        width = self.upper - self.lower
        # Variables without weight have ratio -inf and come first; those not wanted come last and load nothing.
        ratio = torch.where(wanted, cost / self.weights, torch.inf)
        order = ratio.argsort(dim=-1, stable=True)
        load = torch.where(wanted, self.weights * width, 0.0).gather(-1, order)
        # The load before each variable is summed without it: subtracting it again would cancel.
        before = torch.nn.functional.pad(load, (1, 0))[..., :-1].cumsum(-1)
        room = (self.capacity - (self.weights * self.lower).sum(-1)).clamp(min=0)[..., None]
        share = torch.where(load > 0, ((room - before) / load).clamp(0, 1), 1.0)
        share = torch.zeros_like(cost).scatter_(-1, order, share)
        # A variable at its upper bound gets that number itself, not lower + width.
        raised = torch.where(share == 1, self.upper, self.lower + share * width)
        point = torch.where(wanted, raised, self.lower)
        return point, (cost * point).sum(-1)

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor | None:
        r"""The multiplier t of the capacity solves a piecewise linear equation (Brucker 1984; here by sorting its kinks).

        The point is :math:`x(t) = clip(y - t w)` with :math:`y = z - step \cdot c`; t = 0 if that fits.  The load
        :math:`\langle w, x(t) \rangle` falls by :math:`w_i^2` where :math:`x_i` is between its bounds.
        """
        if not bool(shared.all()):
            return None
        y, w = centre - step * cost, self.weights.expand_as(cost)
        load = (w * torch.minimum(torch.maximum(y, self.lower), self.upper)).sum(-1, keepdim=True)
        weighs = w > 0
        begin, end = (torch.where(weighs, (y - side) / w, 0.0).clamp(min=0) for side in (self.upper, self.lower))
        kinks, order = torch.cat([begin, end], -1).sort(-1)
        slopes = torch.cat([w.square(), -w.square()], -1).gather(-1, order).cumsum(-1).clamp(min=0)
        lengths = torch.nn.functional.pad(kinks.diff(dim=-1), (0, 1))
        # The load at each kink; the last kink where it does not fit begins the piece that holds the solution.
        loads = load - torch.nn.functional.pad((slopes * lengths).cumsum(-1), (1, 0))[..., :-1]
        over = loads - self.capacity[..., None]
        piece = ((over > 0).sum(-1, keepdim=True) - 1).clamp(min=0)
        rest = over.gather(-1, piece).clamp(min=0) / slopes.gather(-1, piece).clamp(min=torch.finfo(cost.dtype).tiny)
        room = lengths.gather(-1, piece)
        t = kinks.gather(-1, piece) + torch.where(piece + 1 < kinks.shape[-1], torch.minimum(rest, room), 0.0)
        t = torch.where(load > self.capacity[..., None], t, 0.0)
        return torch.minimum(torch.maximum(y - t * w, self.lower), self.upper)

    def value_error(self, cost: Tensor) -> Tensor:
        r"""Backward analysis of the greedy, with :math:`n` variables and :math:`M_i = \max(|lower_i|, |upper_i|)`.

        The computed order is that of costs perturbed by one rounding each; the computed loads are off by
        :math:`\gamma_n` times the capacity used, which moves the value by as much times the least ratio in use, at most
        :math:`\sum_i |c_i| M_i`.  The load of the lower bounds cancels against the capacity: its error is paid at the
        largest ratio.  Underflow is not covered.
        """
        size = self.weights.shape[-1]
        largest = torch.maximum(self.lower.abs(), self.upper.abs())
        ratio = torch.where((cost < 0) & (self.weights > 0), -cost / self.weights, 0.0).amax(-1)
        fixed = (self.weights * self.lower.abs()).sum(-1)
        return (
            rounding(8 * (size + 4), cost.dtype) * (cost.abs() * largest).sum(-1) + rounding(2 * size + 4, cost.dtype) * fixed * ratio
        )

    def constraints(self) -> Constraints:
        """One row a variable and the capacity."""
        lead = common_shape("Knapsack", self.weights.shape[:2], self.lower.shape[:2])  # bounds may come from restrict
        unit = torch.eye(self.weights.shape[-1]).to(self.weights).expand(*lead, -1, -1)
        matrix = torch.cat([unit, self.weights.expand(*lead, -1)[..., None, :]], -2)
        capacity = self.capacity.expand(lead)[..., None]
        lower = torch.cat([self.lower, torch.full_like(capacity, -torch.inf)], -1)
        return Constraints(matrix, lower, torch.cat([self.upper, capacity], -1))

    def restrict(self, lower: Tensor, upper: Tensor) -> Knapsack | None:
        """The intersection with a box is a knapsack, unless it is empty."""
        low, high = torch.maximum(self.lower, lower), torch.minimum(self.upper, upper)
        empty = (low > high).any(-1) | ((self.weights * low).sum(-1) > self.capacity)
        return None if bool(empty.any()) else self.with_data(lower=low, upper=high)

    def __repr__(self) -> str:
        return f"{self.name}(dim={self.dim})"
