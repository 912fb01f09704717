"""The box: each block is a product of intervals."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.block_data import as_block_data, common_shape
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.errors import ModelError
from blocklp.rounding import roundoff

BOX = "box"
"""Name of the blocks that the compiler adds for variables whose bounds no block implies."""


class Box(BlockType):
    r"""The box :math:`\{x : lower \le x \le upper\}`.

    Parameters
    ----------
    lower, upper : array_like
        ``(dim,)``, ``(blocks, dim)`` or ``(batch, blocks, dim)``, finite, ``lower <= upper``.
    """

    block_data = ("lower", "upper")

    def __init__(self, lower: object, upper: object) -> None:
        low, high = (
            as_block_data(lower, 1, "Box lower", gradients=True),
            as_block_data(upper, 1, "Box upper", gradients=True),
        )
        shape = common_shape("Box", low.shape, high.shape)
        self.lower, self.upper = low.expand(shape), high.expand(shape)
        if bool((self.lower > self.upper).any()):
            raise ModelError("Box: a lower bound is above its upper bound")
        self.dim = self.lower.shape[-1]

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Each coordinate goes to the bound that its cost prefers (the lower one on ties)."""
        point = torch.where(cost < 0, self.upper, self.lower)
        return point, (cost * point).sum(-1)

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor:
        """The nearest point of the box; coordinates that no other block shares go to a bound.

        Parameters
        ----------
        cost, centre, step, shared
            As in :meth:`blocklp.blocks.HasProx.prox`.
        """
        near = torch.minimum(torch.maximum(centre - step * cost, self.lower), self.upper)
        if bool(shared.all()):
            return near
        return torch.where(shared.to(cost.device) > 0, near, torch.where(cost < 0, self.upper, self.lower))

    @staticmethod
    def prox_block(cost: Any, centre: Any, step: float, point: Any, lower: Any, upper: Any) -> None:
        """The nearest point of one box.

        Parameters
        ----------
        cost, centre, step, point
            As in :meth:`blocklp.blocks.HasProxBlock.prox_block`.
        lower, upper : array
            ``(dim,)``.
        """
        for i in range(len(point)):
            point[i] = min(max(centre[i] - step * cost[i], lower[i]), upper[i])

    def complete(self, cost: Tensor, point: Tensor, shared: Tensor) -> Tensor:
        """The bounds that the costs prefer, of the coordinates that no other block shares.

        Parameters
        ----------
        cost, point, shared
            As in :meth:`blocklp.blocks.HasCompletion.complete`; the point is not read, since coordinates do
            not depend on each other.
        """
        best = torch.where(cost < 0, self.upper, self.lower)
        return best[..., (shared == 0).to(cost.device)] if bool(shared.any()) else best

    def min_marginals(self, cost: Tensor) -> Tensor:
        """The costs between 0 and 1."""
        found = torch.where((self.lower == 0) & (self.upper == 1), cost, torch.nan)
        fixed = torch.where(self.lower == 1, -torch.inf, torch.nan)
        fixed = torch.where(self.lower == 0, torch.inf, fixed).to(cost)
        return torch.where(self.lower == self.upper, fixed, found)

    def overlap(self, shared: Tensor) -> int:
        """Coordinates do not depend on each other."""
        return 1

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Coordinate by coordinate, between the two bounds; where they are equal there is one vertex."""
        width = self.upper - self.lower
        slope = cost * width / temperature
        point = self.lower + width * (-slope).sigmoid()
        excess = torch.where(width > 0, torch.nn.functional.softplus(-slope.abs()), 0.0)
        value = torch.minimum(cost * self.lower, cost * self.upper).sum(-1)
        return point, value, temperature[..., 0] * excess.sum(-1)

    def intervals(self) -> tuple[Tensor, Tensor]:
        """The bounds."""
        return self.lower, self.upper

    def value_error(self, cost: Tensor) -> Tensor:
        """Dot products of length ``dim``."""
        largest = torch.maximum(self.lower.abs(), self.upper.abs())
        return roundoff(cost.shape[-1] + 1, (cost.abs() * largest).sum(-1))

    def constraints(self) -> Constraints:
        """The bounds."""
        return Constraints.box(self.lower, self.upper)

    def restrict(self, lower: Tensor, upper: Tensor) -> Box | None:
        """The intersection of two boxes is a box, unless it is empty."""
        low, high = torch.maximum(self.lower, lower), torch.minimum(self.upper, upper)
        return None if bool((low > high).any()) else self.with_data(lower=low, upper=high)
