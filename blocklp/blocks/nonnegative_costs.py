"""Oracles that minimise costs of one sign only, such as shortest paths on graphs with cycles."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from blocklp.blocks.capabilities import constraints_of, value_error_of
from blocklp.blocks.contract import BlockType, Constraints, Rows, pick
from blocklp.rounding import roundoff


class NonnegativeCosts(BlockType):
    r"""A block type that asks another one with the nonnegative part of costs only.

    With the upper bounds u of the variables,

    .. math:: \min_{x \in X_b, \, x \le u} \langle c, x \rangle \; \ge \;
              \min_{x \in X_b} \langle \max(c, 0), x \rangle + \sum_i \min(c_i, 0) \, u_i .

    Parameters
    ----------
    kind : BlockType
        A type whose :attr:`BlockType.nonnegative_costs` is true.
    upper : Tensor
        ``(batch or 1, blocks, dim)``: u.
    """

    def __init__(self, kind: BlockType, upper: Tensor) -> None:
        self.kind, self.upper, self.dim = kind, upper, kind.dim
        self.by_rows = kind.by_rows

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """The minimiser of the nonnegative part of the cost, and a lower bound on the minimum."""
        point, value = self.kind.min_oracle(cost.clamp(min=0))
        return point, value + (cost.clamp(max=0) * self.upper).sum(-1)

    def value_error(self, cost: Tensor) -> Tensor | None:
        """The value error of the wrapped type, and the rounding of the sum over negative costs."""
        error = value_error_of(self.kind, cost.clamp(min=0))
        below = (cost.clamp(max=0) * self.upper).abs().sum(-1)
        if error is None:
            return None
        return error + torch.where(below > 0, roundoff(cost.shape[-1] + 2, below), 0.0)

    def constraints(self) -> Constraints | None:
        """The constraints of the wrapped type."""
        return constraints_of(self.kind)

    def tensors(self) -> dict[str, Tensor]:
        """The upper bounds, and the block data of the wrapped type."""
        return {"upper": self.upper, **self.kind.tensors()}

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """A copy in another precision, or on another device."""
        return type(self)(self.kind.to(dtype, device), self.upper.to(device, dtype))

    def select(self, rows: Rows) -> Self:
        """A copy for some instances."""
        upper = pick(self.upper, rows) if len(self.upper) > 1 else self.upper
        return type(self)(self.kind.select(rows), upper)

    def part(self, blocks: Rows) -> Self:
        """A copy for some blocks."""
        return type(self)(self.kind.part(blocks), self.upper[:, blocks])

    @property
    def name(self) -> str:
        """The name of the wrapped type."""
        return self.kind.name
