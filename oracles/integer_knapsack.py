"""The integer knapsack: the hull of integer points within a load."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.blocks.block_data import as_block_data, common_shape
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.blocks.finite import struck_out
from blocklp.errors import ModelError, ShapeError
from blocklp.oracles import knapsack_tables
from blocklp.oracles.graphs import answered_once, lowered, search
from blocklp.oracles.knapsack_loads import given_bounds, given_sides
from blocklp.oracles.whole_loads import ENTRIES, NEAR, in_units, moves, refuse_large
from blocklp.rounding import rounding

KERNELS = "blocklp.oracles.knapsack_kernels"


class IntegerKnapsack(BlockType):
    r"""Integer points within a load: what ``Knapsack(..., integer=True)`` makes.

    .. math:: conv \{x \in Z^n : lower \le x \le upper, \; least \le \langle w, x \rangle \le capacity\}

    The polytope is the hull of its integer points, so that the bound of a model is the Lagrangean one, that
    of Dantzig and Wolfe's reformulation, which is at least that of the LP (Geoffrion 1974).  Its facets are
    not stated; rows whose integer points these are, are (:meth:`integer_constraints`).

    Minimum: what reduced costs of the linear relaxation leave open is decided by dynamic programming over
    loads, in compiled loops where numba is installed.  Weights become integers without loss; sides are
    rounded to loads that integers have.

    Parameters
    ----------
    weights : array_like
        ``(dim,)``, ``(blocks, dim)`` or ``(batch, blocks, dim)``: integers of any sign, or decimals of at
        most nine digits.
    capacity, least : array_like, optional
        A number, ``(blocks,)`` or ``(batch, blocks)``, finite; None for no such side.
    lower, upper : array_like
        As ``weights`` or a number, finite; rounded to integers within.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ModelError
        If there is neither side, the weights of a block have no common unit, a table would be too large, or a
        block has no integer point.

    Examples
    --------
    >>> import torch
    >>> from blocklp.oracles import Knapsack
    >>> bins = Knapsack([5.0, 4.0, 3.0], capacity=8.0, integer=True)
    >>> point, value = bins.min_oracle(torch.tensor([[[-5.0, -4.0, -2.5]]], dtype=torch.float64))
    >>> point.tolist(), value.tolist()
    ([[[1.0, 0.0, 1.0]]], [[-7.5]])
    """

    _kept = ("_answered",)
    block_data = (
        "weights",
        "capacity",
        "least",
        "lower",
        "upper",
        "units",
        "least_units",
        "most_units",
        "start",
        "way",
        "load",
        "count",
        "need",
        "room",
    )
    #: Moves of the variables (:func:`moves`): int64, ``(batch or 1, blocks or 1, dim)``, and sides of their
    #: load, ``(batch or 1, blocks or 1)``.
    start: Tensor
    way: Tensor
    load: Tensor
    count: Tensor
    need: Tensor
    room: Tensor

    def __init__(
        self,
        weights: object,
        capacity: object = None,
        lower: object = None,
        upper: object = None,
        *,
        least: object = None,
    ) -> None:
        w = as_block_data(weights, 1, "Knapsack weights")
        none = torch.full((1, 1), torch.inf, dtype=torch.float64)
        sides = given_sides(capacity, least, gradients=False)
        cap, need = (
            side if side is not None else beyond for side, beyond in zip(sides, (none, -none), strict=True)
        )
        low, high, self._default_sides = given_bounds(lower, upper, gradients=False)
        shape = common_shape("Knapsack", w.shape, low.shape, high.shape, (*cap.shape, 1), (*need.shape, 1))
        if not shape[2]:
            raise ShapeError(f"Knapsack data have shape {tuple(shape)}; a block needs at least one variable")
        self.dim: int = shape[2]
        #: As given: weights ``(batch or 1, blocks or 1, dim)`` and sides ``(batch or 1, blocks or 1)``.
        self.weights, self.lower, self.upper = (t.expand(shape) for t in (w, low, high))
        self.capacity, self.least = cap.expand(shape[:2]), need.expand(shape[:2])
        #: Weights and sides in a unit of each block, int64.
        self.units, self.least_units, self.most_units = in_units(self.weights, self.least, self.capacity)
        found = moves(self.units, self.least_units, self.most_units, self.lower, self.upper)
        refuse_large(found)
        vars(self).update(found)
        empty = (self._cheapest(torch.zeros(shape, dtype=torch.float64))[1]).logical_not().nonzero()
        if len(empty):
            i, b = empty[0].tolist()
            raise ModelError(
                f"Knapsack: no integer point within the bounds of block {b} of instance {i} has a load "
                f"within its capacity and least load; raise the capacity, lower the least load, or widen the "
                f"bounds"
            )

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Minimise by dynamic programming; huge values where restrictions have left no point.

        The value is less by the rounding of the sums that tables compare (:meth:`value_error`), so that no
        rounding raises it above the minimum.
        """
        point, feasible = self._cheapest(cost)
        value = (cost.double() * point).sum(-1) - self._rounding(cost)
        return point.to(cost.dtype), torch.where(
            feasible, lowered(value, cost.dtype).to(cost.dtype), struck_out(cost.dtype)
        )

    @answered_once
    def _cheapest(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Minimisers ``(batch, blocks, dim)`` float64 and which blocks have one, ``(batch, blocks)`` bool."""
        lead = cost.shape[:2]
        gain, start, way, load, count, need, room = self._flat(cost)
        one_sided, gains = (need == 0)[:, None], gain < 0
        most = torch.where(load > 0, torch.minimum(count, room[:, None] // load.clamp(min=1)), 0)
        most = torch.where(one_sided & ~gains, 0, most)
        ratio = torch.where(most > 0, gain / load, torch.inf)
        moved, feasible = torch.empty_like(load), torch.empty(len(load), dtype=torch.bool)
        arguments = gain, load, most, ratio.argsort(dim=-1, stable=True), (need, room), moved, feasible
        search(KERNELS, knapsack_tables, "fill", len(load), *arguments)
        moved = torch.where((load == 0) & gains, count, moved)
        point = (start + way * moved).double().view(cost.shape)
        return point.to(cost.device), feasible.view(lead).to(cost.device)

    def min_marginals(self, cost: Tensor) -> Tensor | None:
        """Least costs with each variable that is 0 or 1 at either, by tables from both ends.

        NaN for other variables; None where the tables would be too large.
        """
        gain, start, way, load, count, need, room = self._flat(cost)
        if self.dim * float(room.max() + 1) > ENTRIES / 8:
            return None
        found = torch.empty(*gain.shape, 2, dtype=torch.float64)
        search(KERNELS, knapsack_tables, "fix_each", len(load), gain, load, count, (need, room), found)
        # Where none moves the only value is the start.
        at_one, at_zero = (found[..., k].clone() for k in (1, 0))
        turned, fixed = way < 0, count == 0
        at_one, at_zero = torch.where(turned, at_zero, at_one), torch.where(turned, at_one, at_zero)
        marginals = torch.where(at_one.isinf() & at_zero.isinf(), torch.nan, at_one - at_zero)
        marginals = torch.where(fixed, torch.where(start == 0, torch.inf, -torch.inf), marginals)
        last = start + way * count
        bits = (torch.minimum(start, last) >= 0) & (torch.maximum(start, last) <= 1)
        marginals = torch.where(bits & torch.isfinite(found).any(-1), marginals, torch.nan)
        return marginals.view(cost.shape).to(cost)

    def _flat(self, cost: Tensor) -> tuple[Tensor, ...]:
        """Gains of moves and the data of moves, block after block: ``(batch * blocks, ...)`` on the CPU."""
        lead = cost.shape[:2]
        data = (self.start, self.way, self.load, self.count, self.need, self.room)
        flat = [t.expand(*lead, *t.shape[2:]).flatten(0, 1).cpu().contiguous() for t in data]
        gain = cost.detach().double().flatten(0, 1).cpu() * flat[1]
        return gain.contiguous(), *flat

    def value_error(self, cost: Tensor) -> Tensor:
        """How far the value may be below the minimum: twice the rounding that it is charged, and its own."""
        error = 2 * self._rounding(cost)
        if cost.dtype != torch.float64:
            reach = torch.maximum(self.lower.abs(), self.upper.abs()).double()
            error = error + 8 * torch.finfo(cost.dtype).eps * (cost.double().abs() * reach).sum(-1)
        kind = torch.finfo(cost.dtype)
        return (error * (1 + 4 * kind.eps)).to(cost.dtype) + 20 * (self.dim + 8) * kind.tiny

    def _rounding(self, cost: Tensor) -> Tensor:
        r"""Rounding error of values in float64, ``(batch, blocks)``.

        Gains that tables compare are partial sums of :math:`|c_i| (u_i - l_i)`, and what they decide is off
        by their rounding twice; the value itself is a sum of :math:`|c_i| \max(|l_i|, |u_i|)`.
        """
        lower, upper = self.lower.double(), self.upper.double()
        size = torch.maximum(lower.abs(), upper.abs()) + (upper - lower).abs()
        return rounding(10 * (self.dim + 8), torch.float64) * (cost.double().abs() * size).sum(-1)

    def integer_constraints(self) -> Constraints:
        """The sides of the load, and integer bounds."""
        below, above = (self.lower - NEAR).ceil(), (self.upper + NEAR).floor()
        sides = self.least[..., None], self.capacity[..., None]
        return Constraints(self.weights[..., None, :], *sides, below, above)

    def restrict(self, lower: Tensor, upper: Tensor) -> IntegerKnapsack:
        """The hull of the integer points within a box; where there are none, values are huge."""
        low, high = torch.maximum(self.lower, lower), torch.minimum(self.upper, upper)
        shape = common_shape("Knapsack", low.shape, high.shape, self.weights.shape)
        low, high = low.expand(shape), high.expand(shape)
        found = moves(self.units, self.least_units, self.most_units, low, high)
        sides = {name: found[name].expand(shape[:2]) for name in ("need", "room")}
        return self.with_data(lower=low, upper=high, **found | sides)

    def __repr__(self) -> str:
        return f"{self.name}(dim={self.dim})"
