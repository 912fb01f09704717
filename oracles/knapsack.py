"""The fractional knapsack: one type, whose formulas of bounds, points and gradients belong side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor

from blocklp.blocks.block_data import as_block_data, common_shape
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.blocks.ragged import Ragged, of_blocks, of_entries
from blocklp.errors import ModelError, ShapeError
from blocklp.options import flag, numbers
from blocklp.oracles.integer_knapsack import IntegerKnapsack
from blocklp.oracles.knapsack_loads import given_bounds, given_sides, in_range, loads
from blocklp.rounding import roundoff


class Knapsack(BlockType):
    r"""The fractional knapsack.

    .. math:: \{x : lower \le x \le upper, \; least \le \langle w, x \rangle \le capacity\}

    Weights have any sign; there is a capacity, a least load, or both, which may be equal.  Exact greedy
    minimum (Dantzig 1957): from the corner of the box where the load is least, move the variables that gain
    by it in the order of :math:`c_i / w_i` until the capacity is used; the last one stops in between.  Where
    that leaves less than the least load, start from the corner where the load is largest instead.  Ties go to
    the first variable.

    Parameters
    ----------
    weights : array_like
        ``(dim,)``, ``(blocks, dim)`` or ``(batch, blocks, dim)``, finite.
    capacity : array_like, optional
        A number, ``(blocks,)`` or ``(batch, blocks)``, finite; None for no such side.
    lower, upper : array_like, optional
        As ``weights`` or a number, finite, ``lower <= upper``; 0 and 1 by default, and then variables must
        not reach beyond these.
    least : array_like, optional
        As ``capacity``: the least load.
    integer : bool
        Whether the block is the hull of its integer points; it is then an :class:`IntegerKnapsack`.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ModelError
        If there is neither side, an entry is not finite, a lower bound is above its upper bound, a least load
        above its capacity, or no point within the bounds has such a load.

    Examples
    --------
    >>> import torch
    >>> from blocklp.oracles import Knapsack
    >>> budget = Knapsack([3.0, 2.0, -1.0], least=1.0, capacity=1.0)  # 3 a + 2 b - c == 1 in the unit cube
    >>> _, value = budget.min_oracle(torch.tensor([[[1.0, 1.0, 0.0]]], dtype=torch.float64))
    >>> round(value.item(), 6)  # a = 1 / 3
    0.333333
    """

    by_rows = True
    block_data = (
        "weights",
        "capacity",
        "least",
        "lower",
        "upper",
        "turned",
        "load",
        "room",
        "fall",
        "excess",
    )
    capacity: Tensor | None = None
    least: Tensor | None = None
    #: ``(batch or 1, blocks or 1, dim)`` bool: where weights are negative; None where none is.
    turned: Tensor | None = None
    #: Change of the load by moving each variable from one bound to the other, ``(batch or 1, blocks or 1,
    #: dim)``, and the capacity less the load of the corner where that is least, ``(batch or 1, blocks or
    #: 1)``; both in a unit of each block.
    load: Tensor | None = None
    room: Tensor | None = None
    #: As ``load``, and the load of the corner where that is largest less ``least``, as ``room``; in another
    #: unit of each block.
    fall: Tensor | None = None
    excess: Tensor | None = None

    def __new__(
        cls,
        weights: object = None,  # copies are made without
        capacity: object = None,
        lower: object = None,
        upper: object = None,
        *,
        least: object = None,
        integer: bool = False,
    ) -> Self:
        """Make an integer knapsack where one is asked for: a type with other formulas."""
        if flag(integer, "integer"):
            return cast(Self, IntegerKnapsack(weights, capacity, lower, upper, least=least))
        return super().__new__(cls)

    def __init__(
        self,
        weights: object,
        capacity: object = None,
        lower: object = None,
        upper: object = None,
        *,
        least: object = None,
        integer: bool = False,
    ) -> None:
        w = as_block_data(weights, 1, "Knapsack weights", gradients=True)
        cap, need = given_sides(capacity, least, gradients=True)
        low, high, self._default_sides = given_bounds(lower, upper, gradients=True)
        sides = [(*t.shape, 1) for t in (cap, need) if t is not None]
        shape = common_shape("Knapsack", w.shape, low.shape, high.shape, *sides)
        if not shape[2]:
            raise ShapeError(f"Knapsack data have shape {tuple(shape)}; a block needs at least one variable")
        if bool((low > high).any()):
            raise ModelError("Knapsack: a lower bound is above its upper bound")
        if not bool(torch.isfinite(high - low).all()):
            raise ModelError("Knapsack: the difference of two bounds is infinite; bring them closer together")
        if cap is not None and need is not None and bool((need > cap).any()):
            where = tuple((need > cap).nonzero()[0].tolist())
            raise ModelError(f"Knapsack: the least load of (instance, block) {where} is above its capacity")
        self.weights, self.lower, self.upper = (t.expand(shape) for t in (w, low, high))
        self.capacity, self.least = (None if t is None else t.expand(shape[:2]) for t in (cap, need))
        self.dim, self.turned = shape[2], w < 0 if bool((w < 0).any()) else None
        loaded, empty = loads(w, cap, need, low, high)
        over = empty.nonzero()
        if len(over):
            i, b = over[0].tolist()
            raise ModelError(
                f"Knapsack: no point within the bounds of block {b} of instance {i} has a load within its "
                f"capacity and least load; raise the capacity, lower the least load, or widen the bounds"
            )
        vars(self).update(loaded)

    @classmethod
    def ragged(
        cls,
        weights: object,
        sizes: object,
        capacity: object = None,
        lower: object = None,
        upper: object = None,
        *,
        least: object = None,
        integer: bool = False,
    ) -> Ragged:
        """Knapsacks of different sizes, one after the other in the scope; see :class:`blocklp.Ragged`.

        Parameters
        ----------
        weights : array_like
            ``(entries,)`` or ``(batch, entries)``: those of a sparse matrix by rows, ``A.data``.
        sizes : array_like
            ``(blocks,)`` integers, at least 1, that add up to the entries: ``np.diff(A.indptr)``.
        capacity, least : array_like, optional
            A number, ``(blocks,)`` or ``(batch, blocks)``; None for no such side.
        lower, upper : array_like, optional
            A number, or as ``weights``; 0 and 1 by default.
        integer : bool
            As in the class.

        Returns
        -------
        Ragged
            The blocks, by length.
        """
        entries = int(numbers(sizes, "Knapsack sizes").sum())
        rows = (("weights", weights), ("lower", lower), ("upper", upper))
        of_places = [
            own if own is None else of_entries(own, entries, f"Knapsack {name}") for name, own in rows
        ]
        sides = given_sides(capacity, least, gradients=True)

        def of_one_size(blocks: Tensor, places: Tensor) -> BlockType:
            w, low, high = (None if data is None else data(places) for data in of_places)
            most, need = (None if side is None else of_blocks(side, blocks) for side in sides)
            return cls(w, most, low, high, least=need, integer=integer)

        return Ragged.of(sizes, cls.__name__, of_one_size)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        r"""Fill by ratio of cost to weight.

        The value is the one that the multiplier t of the capacity proves, the ratio of the variable that
        stops in between: with :math:`l_i \ge 0` the load and :math:`g_i` the cost of moving a variable from
        its start :math:`s_i`,

        .. math:: \langle c, s \rangle - t \cdot room + \sum_i \min(0, g_i + t l_i)

        is no more than the minimum for any t, so that the rounding of loads and of their order does not raise
        it.
        """
        down, load, room, heavy = self._binding(cost)
        start, end = self.lower, self.upper
        if down is not None:
            start, end = torch.where(down, end, start), torch.where(down, start, end)
        way = end - start
        gain = cost * way
        wanted = (cost if down is None else torch.where(down, -cost, cost)) < 0
        if heavy is not None:  # variables without cost move last, and only to use up the room
            wanted |= heavy & (cost == 0) & (load > 0)
        # Variables without load have ratio -inf and come first; those not wanted come last and load nothing.
        # In the units of the loads ratios stay finite where weights are next to nothing.
        order = torch.where(wanted, -(gain / load).abs(), torch.inf).argsort(dim=-1, stable=True)
        wanted_load, room = torch.where(wanted, load, 0.0), room[..., None]
        load = wanted_load.gather(-1, order)
        full = load.cumsum(-1)
        # The load before each variable is summed without it: subtracting it again would cancel.
        before = torch.nn.functional.pad(full, (1, 0))[..., :-1]
        share = torch.where(full <= room, 1.0, ((room - before) / load).clamp(0, 1))
        share = torch.zeros_like(cost).scatter_(-1, order, share)
        # A variable at its other bound gets that number itself, not the sum.
        moved = torch.where(share == 1, end, start + share * way)
        price = torch.where((wanted_load > 0) & (share < 1), -gain / wanted_load, 0.0).amax(-1, keepdim=True)
        price = price.clamp(max=torch.finfo(cost.dtype).max)
        value = (cost * start + (gain + price * wanted_load).clamp(max=0)).sum(-1) - (price * room)[..., 0]
        return torch.where(wanted, moved, start), value

    def _binding(self, cost: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None]:
        """The side of the load that may bind at a cost; never both, which leave room for all loads together.

        Returns the mask of the variables that start at their upper bounds, loads, room, and the mask of the
        blocks where that side is the least load, None where there is one side only.
        """
        if self.fall is None or self.excess is None:
            assert self.load is not None and self.room is not None
            return self.turned, self.load, self.room, None
        down = self.weights > 0
        if self.load is None or self.room is None:
            return down, self.fall, self.excess, None
        given_up = torch.where(torch.where(down, cost >= 0, cost <= 0), self.fall, 0.0).sum(-1, keepdim=True)
        heavy = given_up > self.excess[..., None]
        start = heavy & down if self.turned is None else torch.where(heavy, down, self.turned)
        room = torch.where(heavy, self.excess[..., None], self.room[..., None])[..., 0]
        return start, torch.where(heavy, self.fall, self.load), room, heavy

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor | None:
        r"""Project onto the knapsack by the multiplier t of the load (Brucker 1984; here by sorting kinks).

        The point is :math:`x(t) = clip(y - t w)` with :math:`y = z - step \cdot c`; t = 0 if that fits.  The
        load :math:`\langle w, x(t) \rangle` is piecewise linear and falls by :math:`w_i^2` where :math:`x_i`
        is between its bounds.  Where the load is too small, that of the weights with the other sign is too
        large.

        Parameters
        ----------
        cost, centre, step, shared
            As in :meth:`blocklp.blocks.HasProx.prox`.

        Returns
        -------
        Tensor or None
            None unless all coordinates are coupled.
        """
        if not bool(shared.all()):
            return None
        y, w = centre - step * cost, self.weights.expand_as(cost)
        # In a unit of each block, for multipliers are finite then where all weights are next to nothing.
        # Powers of two that are floats of any dtype.
        unit = torch.frexp(w.abs().amax(-1, keepdim=True)).exponent.clamp(-100, 100)
        w = torch.ldexp(w, -unit)

        def point_at(t: Tensor) -> Tensor:
            # Two roundings, so that at the kink of a variable nothing is left of it.
            return (y - t * w).clamp(self.lower, self.upper)

        load = (w * point_at(torch.zeros_like(y[..., :1]))).sum(-1, keepdim=True)
        none = torch.full_like(load, torch.inf)
        # Expanded first: ldexp resizes a result that is larger than its first argument, with a warning.
        capacity = none
        if self.capacity is not None:
            capacity = torch.ldexp(self.capacity[..., None].expand_as(load), -unit)
        if self.least is not None:
            least = torch.ldexp(self.least[..., None].expand_as(load), -unit)
            light = load < least
            flips = ((w, w), (load, load), (least, capacity))
            w, load, capacity = (torch.where(light, -a, b) for a, b in flips)
        weighs = w != 0
        begin, end = (torch.where(weighs, (y - side) / w, 0.0) for side in (self.upper, self.lower))
        if self.least is not None or self.turned is not None:
            begin, end = torch.minimum(begin, end), torch.maximum(begin, end)
        kinks = torch.cat([begin, end], -1).clamp(0, torch.finfo(cost.dtype).max).sort(-1).values
        # The last kink where the load is too large begins the piece that holds the solution.  Loads are
        # summed at kinks themselves: sums along the kinks lose what counts where weights differ in size.
        place, most = torch.zeros_like(load, dtype=torch.long), kinks.shape[-1] - 1
        for jump in (1 << k for k in reversed(range(most.bit_length()))):
            further = (place + jump).clamp(max=most)
            reached = (w * point_at(kinks.gather(-1, further))).sum(-1, keepdim=True)
            place = torch.where(reached > capacity, further, place)
        ends = kinks.gather(-1, place), kinks.gather(-1, (place + 1).clamp(max=most))
        above, below = ((w * point_at(t)).sum(-1, keepdim=True) - capacity for t in ends)
        share = torch.where(above > 0, above / (above - below), 0.0).nan_to_num(1.0).clamp(0, 1)
        t = torch.where(load > capacity, ends[0].lerp(ends[1], share), 0.0)
        return point_at(t)

    @staticmethod
    def prox_block(
        cost: Any,
        centre: Any,
        step: float,
        point: Any,
        weights: Any,
        capacity: Any,
        least: Any,
        lower: Any,
        upper: Any,
    ) -> None:
        """Project one point by the multiplier t of its load: Newton steps within a bracket.

        Parameters
        ----------
        cost, centre, step, point, weights, lower, upper
            As in :meth:`blocklp.blocks.Box.prox_block`, and weights ``(dim,)``.
        capacity, least : float or None
            Sides of the load.
        """
        load, furthest = 0.0, 0.0
        for i in range(len(point)):
            y, w = centre[i] - step * cost[i], weights[i]
            load += w * min(max(y, lower[i]), upper[i])
            if w != 0:
                furthest = max(furthest, max(abs(y - lower[i]), abs(y - upper[i])) / abs(w))
        side = load
        if capacity is not None and load > capacity:
            side = capacity
        elif least is not None and load < least:
            side = least
        heavy, t, near, far = load > side, 0.0, 0.0, furthest
        for _ in range(100 if load != side else 0):
            load, slope = 0.0, 0.0
            for i in range(len(point)):
                w = weights[i]
                x = centre[i] - step * cost[i] - (t if heavy else -t) * w
                load += w * min(max(x, lower[i]), upper[i])
                slope += w * w if lower[i] < x < upper[i] else 0.0
            excess = load - side if heavy else side - load
            if excess > 0:
                near = t
            else:
                far = t
            ahead = t + excess / slope if slope > 0 else far
            if not near < ahead < far:
                ahead = 0.5 * (near + far)
            if excess == 0 or ahead == t or not near < ahead < far:
                break
            t = ahead
        for i in range(len(point)):
            x = centre[i] - step * cost[i] - (t if heavy else -t) * weights[i]
            point[i] = min(max(x, lower[i]), upper[i])

    def value_error(self, cost: Tensor) -> Tensor:
        r"""Backward analysis of the greedy with n variables, where :math:`M_i = \max(|lower_i|, |upper_i|)`.

        The computed order is that of costs perturbed by one rounding each; the computed loads are off by
        :math:`\gamma_n` times the room used, which moves the value by as much times the least ratio in use,
        at most :math:`2 \sum_i |c_i| M_i`.  The room is rounded once, whatever cancels in it.  Loads that
        leave the range of the dtype count as none or as too small, which lowers the value by what moving the
        variable gains.
        """
        size, kind = self.weights.shape[-1], torch.finfo(cost.dtype)
        largest = torch.maximum(self.lower.abs(), self.upper.abs())
        gain, rest = (cost * (self.upper - self.lower)).abs(), torch.zeros_like(cost[..., 0])
        for load in (self.load, self.fall):
            if load is not None:
                usual = (load >= kind.tiny) & (load < kind.max)
                ratio = torch.where(usual, gain / load, 0.0).amax(-1).clamp(max=kind.max)
                lost = torch.where(usual | (self.weights == 0), 0.0, gain).sum(-1)
                rest = torch.maximum(rest, lost + kind.tiny * ratio)
        return roundoff(8 * (size + 4), (cost.abs() * largest).sum(-1)) + rest

    def constraints(self) -> Constraints:
        r"""The sides of the load, and bounds.

        No variable moves by more than :math:`room / |w_i|` from its start, which tightens its bounds.  A
        capacity of zero fixes the variables with weight; its row alone would let a variable of small weight
        pass beside large weights.  Data that require gradients have them in the row alone.
        """
        below, above = self.lower, self.upper
        starts = ((self.load, self.room, self.turned), (self.fall, self.excess, self.weights > 0))
        for load, room, down in () if self.carried() else starts:
            if load is None or room is None:
                continue
            kind, room = torch.finfo(load.dtype), room[..., None]
            normal = (load >= kind.tiny) & (load < kind.max) & ((room >= kind.tiny) | (room == 0))
            share = torch.where(normal, room / load, 1.0)
            way = (1 + 8 * kind.eps) * share * (self.upper - self.lower)
            least = self.upper - way - 8 * kind.eps * self.upper.abs()
            most = self.lower + way + 8 * kind.eps * self.lower.abs()
            tight = share < 1
            if down is not None:
                below = torch.where(tight & down, torch.maximum(below, least), below)
                tight &= ~down
            above = torch.where(tight, torch.minimum(above, most), above)
        none = torch.full_like(self.weights[..., 0], torch.inf)
        least = -none if self.least is None else self.least
        most = none if self.capacity is None else self.capacity
        return Constraints(self.weights[..., None, :], least[..., None], most[..., None], below, above)

    def restrict(self, lower: Tensor, upper: Tensor) -> Knapsack | None:
        """The intersection with a box is a knapsack, unless it is empty."""
        low, high = torch.maximum(self.lower, lower), torch.minimum(self.upper, upper)
        shape = common_shape("Knapsack", low.shape, high.shape)  # one side may be that of all instances
        low, high = low.expand(shape), high.expand(shape)
        if bool((low > high).any()):
            return None
        sides, empty = loads(self.weights, self.capacity, self.least, low, high)
        return None if bool(empty.any()) else self.with_data(lower=low, upper=high, **sides)

    @classmethod
    def alike(cls, kinds: Sequence[Self]) -> list[Self]:
        """Make types stackable: where some have a side of the load, all get one, which does not bind."""
        same = list(kinds)
        sides = (("capacity", "load", "room", torch.inf), ("least", "fall", "excess", -torch.inf))
        for side, load, room, beyond in sides:
            if all(getattr(kind, side) is None for kind in kinds):
                continue
            for i, kind in enumerate(same):
                if getattr(kind, side) is None:
                    other = kind.load if kind.fall is None else kind.fall
                    assert other is not None
                    none = torch.full_like(other[..., 0], beyond)
                    same[i] = kind.with_data(**{side: none, load: other, room: 2 * other.sum(-1)})
        return same

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """A copy with its block data on a device; floating-point data in ``dtype``.

        In a dtype of less range, loads and room are in the unit of the room, or of the largest load if that
        is less (of the least one where there is no room): loads that leave the range are then tiny beside the
        room, or do not fit into it.
        """
        moved = super().to(dtype, device)
        if dtype == self.weights.dtype:
            return moved
        if self.load is not None and self.room is not None:
            load, room = in_range(self.load, self.room, moved.weights)
            moved = moved.with_data(load=load, room=room)
        if self.fall is not None and self.excess is not None:
            fall, excess = in_range(self.fall, self.excess, moved.weights)
            moved = moved.with_data(fall=fall, excess=excess)
        return moved

    def __repr__(self) -> str:
        return f"{self.name}(dim={self.dim})"
