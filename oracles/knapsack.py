"""The fractional knapsack."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor

from blocklp.block import BlockType, Constraints, as_block_data, common_shape
from blocklp.bounds import roundoff
from blocklp.errors import ModelError, ShapeError
from blocklp.exact import sums_of_products


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
    block_data = ("weights", "capacity", "lower", "upper", "load", "room")
    #: What raising each variable from its lower to its upper bound loads, ``(batch or 1, blocks or 1, dim)``, and the room
    #: that the lower bounds leave, ``(batch or 1, blocks or 1)``, both in units of the block's own.
    load: Tensor
    room: Tensor

    def __init__(self, weights: object, capacity: object, lower: object = 0.0, upper: object = 1.0) -> None:
        w, cap = as_block_data(weights, 1, "Knapsack weights"), as_block_data(capacity, 0, "Knapsack capacity")
        low, high = (as_block_data(side, 1, f"Knapsack {name}", scalar=True) for side, name in ((lower, "lower"), (upper, "upper")))
        shape = common_shape("Knapsack", w.shape, low.shape, high.shape, (*cap.shape, 1))
        if 0 in shape:
            raise ShapeError(f"Knapsack weights and bounds have shape {tuple(shape)}; a block needs at least one variable")
        if bool((w < 0).any()):
            where = tuple(int(i) for i in (w < 0).nonzero()[0])
            raise ModelError(f"Knapsack: the weight at (batch, block, variable) {where} is negative; weights must be >= 0")
        if bool((low > high).any()):
            raise ModelError("Knapsack: a lower bound is above its upper bound")
        if not bool(torch.isfinite(high - low).all()):
            raise ModelError("Knapsack: a lower and an upper bound are so far apart that their difference is infinite")
        self.load, self.room, empty = _loaded(w, cap, low, high)
        over = empty.nonzero()
        if len(over):
            raise ModelError(
                f"Knapsack: the lower bounds of block {int(over[0, 1])} of instance {int(over[0, 0])} exceed its capacity; "
                f"raise the capacity or lower the bounds"
            )
        self.weights, self.lower, self.upper = (t.expand(shape) for t in (w, low, high))
        self.capacity, self.dim = cap.expand(shape[:2]), shape[2]

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        r"""Fill by ratio of cost to weight.

        The value is the one that the multiplier t of the capacity proves, the ratio of the variable that stops in between:

        .. math:: \langle c, lower \rangle - t \cdot room + \sum_i \min(0, (c_i + t w_i) (upper_i - lower_i))

        is no more than the minimum for any t, so that the rounding of loads and of their order does not raise it.
        """
        wanted = cost < 0
        width = self.upper - self.lower
        # Variables without weight have ratio -inf and come first; those not wanted come last and load nothing.
        order = torch.where(wanted, cost / self.weights, torch.inf).argsort(dim=-1, stable=True)
        own = torch.where(wanted, self.load, 0.0)
        load, room = own.gather(-1, order), self.room[..., None]
        full = load.cumsum(-1)
        # The load before each variable is summed without it: subtracting it again would cancel.
        before = torch.nn.functional.pad(full, (1, 0))[..., :-1]
        share = torch.where(full <= room, 1.0, ((room - before) / load).clamp(0, 1))
        share = torch.zeros_like(cost).scatter_(-1, order, share)
        # A variable at its upper bound gets that number itself, not lower + width.
        raised = torch.where(share == 1, self.upper, self.lower + share * width)
        gain = cost * width
        price = torch.where((own > 0) & (share < 1), -gain / own, 0.0).amax(-1, keepdim=True)
        price = price.clamp(max=torch.finfo(cost.dtype).max)
        value = (cost * self.lower + (gain + price * own).clamp(max=0)).sum(-1) - (price * room)[..., 0]
        return torch.where(wanted, raised, self.lower), value

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
        # Load and slope there are summed anew: what the sums along the kinks have lost counts where weights differ in size.
        t, room = kinks.gather(-1, piece), lengths.gather(-1, piece)
        there = torch.minimum(torch.maximum(y - t * w, self.lower), self.upper)
        slope = torch.where((begin <= t) & (t < end), w.square(), 0.0).sum(-1, keepdim=True)
        rest = ((w * there).sum(-1, keepdim=True) - self.capacity[..., None]).clamp(min=0) / slope.clamp(
            min=torch.finfo(cost.dtype).tiny
        )
        t = t + torch.where(piece + 1 < kinks.shape[-1], torch.minimum(rest, room), 0.0)
        t = torch.where(load > self.capacity[..., None], t, 0.0)
        return torch.minimum(torch.maximum(y - t * w, self.lower), self.upper)

    def value_error(self, cost: Tensor) -> Tensor:
        r"""Backward analysis of the greedy, with :math:`n` variables and :math:`M_i = \max(|lower_i|, |upper_i|)`.

        The computed order is that of costs perturbed by one rounding each; the computed loads are off by
        :math:`\gamma_n` times the room used, which moves the value by as much times the least ratio in use, at most
        :math:`2 \sum_i |c_i| M_i`.  The room is rounded once, whatever cancels in it.  Loads that leave the range of the dtype count
        as none or as too small, which lowers the value by what raising the variable gains.
        """
        size, kind = self.weights.shape[-1], torch.finfo(cost.dtype)
        largest = torch.maximum(self.lower.abs(), self.upper.abs())
        gain = (cost * (self.upper - self.lower)).abs()
        usual = (self.load >= kind.tiny) & (self.load < kind.max)
        ratio = torch.where(usual, gain / self.load, 0.0).amax(-1).clamp(max=kind.max)
        beyond = torch.where(usual | (self.weights == 0), 0.0, gain).sum(-1)
        return roundoff(8 * (size + 4), (cost.abs() * largest).sum(-1)) + beyond + kind.tiny * ratio

    def constraints(self) -> Constraints:
        r"""The capacity, and the bounds that it leaves: no variable is above :math:`lower_i + room / w_i`.

        A capacity of zero fixes what has weight; its row alone would let a variable of small weight pass beside large weights.
        """
        capacity, kind, room = self.capacity[..., None], torch.finfo(self.load.dtype), self.room[..., None]
        normal = (self.load >= kind.tiny) & (self.load < kind.max) & ((room >= kind.tiny) | (room == 0))
        share = torch.where(normal, room / self.load, 1.0)
        reach = self.lower + (1 + 8 * kind.eps) * share * (self.upper - self.lower) + 8 * kind.eps * self.lower.abs()
        above = torch.where(share < 1, torch.minimum(reach, self.upper), self.upper)
        return Constraints(self.weights[..., None, :], torch.full_like(capacity, -torch.inf), capacity, self.lower, above)

    def restrict(self, lower: Tensor, upper: Tensor) -> Knapsack | None:
        """The intersection with a box is a knapsack, unless it is empty."""
        low, high = torch.maximum(self.lower, lower), torch.minimum(self.upper, upper)
        shape = common_shape("Knapsack", low.shape, high.shape)  # one side may be that of all instances
        low, high = low.expand(shape), high.expand(shape)
        if bool((low > high).any()):
            return None
        load, room, empty = _loaded(self.weights, self.capacity, low, high)
        return None if bool(empty.any()) else self.with_data(lower=low, upper=high, load=load, room=room)

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """As for every type.

        In a dtype of less range, loads and room are in the unit of the room, or of the largest load if that is less (of the least one
        where there is no room): what leaves the range then hardly counts beside the room, or has no part in it.
        """
        if dtype == self.load.dtype:
            return super().to(dtype, device)
        load, room = self.load.double(), self.room.double()
        exponents = torch.frexp(load).exponent
        most, least = (torch.where(load > 0, exponents, none) for none in (-2000, 2000))
        unit = torch.where(room > 0, torch.minimum(torch.frexp(room).exponent, most.amax(-1)), least.amin(-1))
        unit = torch.where((load > 0).any(-1), unit, 0)
        moved, limit = super().to(dtype, device), torch.finfo(dtype).max
        scaled = (torch.ldexp(t, -e).clamp(max=limit).to(moved.load) for t, e in ((load, unit[..., None]), (room, unit)))
        load, room = scaled
        return moved.with_data(load=load, room=room)

    def __repr__(self) -> str:
        return f"{self.name}(dim={self.dim})"


def _loaded(weights: Tensor, capacity: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Load of each variable, room, and whether the lower bounds exceed the capacity.

    Loads and room are in a unit of each block, the power of two for which the largest load is as far above 1 as the smallest is
    below.  The room is rounded once, and up: it may cancel, and what it is off by would count at the largest ratio of cost to
    weight.
    """
    w, cap, low, high = (t.numpy() for t in (weights, capacity, lower, upper))
    (share, power), (width, widths) = np.frexp(w), np.frexp(high - low)
    load, power = share * width, power + widths
    used = load != 0
    most, least = (np.where(used, power, -sign * 10**6) for sign in (1, -1))
    middle = np.where(used.any(-1), (most.max(-1) + least.min(-1)) // 2, 0)
    load = np.ldexp(load, np.where(used, power - middle[..., None], 0))
    room, exponent = cap, np.zeros_like(middle)
    if low.any():
        factors = np.broadcast_arrays(-w, low, cap[..., None])
        ones = np.ones((*factors[0].shape[:-1], 1))
        room, exponent = sums_of_products(
            np.concatenate([factors[0], ones], -1), np.concatenate([factors[1], factors[2][..., :1]], -1)
        )
    with np.errstate(over="ignore"):
        fits = np.minimum(np.ldexp(room, exponent - middle), 2 * load.sum(-1))
    return torch.from_numpy(load), torch.from_numpy(np.maximum(fits, 0)), torch.from_numpy(room < 0)
