r"""A layer of a ReLU network: relaxed activations and the affine map to the next pre-activations (thesis, 4.1.4.12-15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, Self

import torch
from torch import Tensor

from blocklp.block import BlockType, as_block_data
from blocklp.bounds import roundoff
from blocklp.errors import ModelError, ShapeError
from blocklp.factored import FactoredBlock
from blocklp.valid_bounds import NOISE

Kind = Literal["value", "relu"]


class AffineMap(Protocol):
    r"""The map :math:`x_1, ..., x_p \mapsto \sum_i A_i x_i + b` of flat tensors ``(batch, n)``."""

    @property
    def terms(self) -> int:
        """Most terms in one sum."""

    def __call__(self, x: Sequence[Tensor], /) -> Tensor:
        """Return the result ``(batch, out)``."""

    def adjoint(self, y: Tensor) -> list[Tensor]:
        """Return :math:`A_i' y`, ``(batch, n_i)`` each."""

    def shift(self) -> Tensor:
        """Return b, ``(out,)``."""

    def magnitude(self, x: Sequence[Tensor]) -> Tensor:
        r"""Return :math:`\sum_i |A_i| x_i + |b|`."""

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """Return the map in another precision."""


class ReluAffine(FactoredBlock):
    r"""The block :math:`\{(v_1, ..., v_p, z) : z = \sum_i A_i x_i + b\}`.

    A variable of kind "value" is :math:`x_i = v_i \in [lower, upper]` itself; one of kind "relu" is a pre-activation
    :math:`v_i \in [lower, upper]`, and :math:`(v_i, x_i)` is in the convex hull of the ReLU's graph, the triangle of Ehlers
    (2017).  For a cost on z the minimum separates into single neurons: the corners of each hull are compared.

    Parameters
    ----------
    affine : AffineMap
        The map.
    kinds : sequence of str
        "value" or "relu" for every argument.
    sizes : sequence of int
        Lengths of the arguments.
    lower, upper : array_like
        Their bounds one after the other, ``(sum of sizes,)`` or ``(batch, 1, sum of sizes)``, finite.

    Raises
    ------
    ShapeError
        If the lengths do not fit.
    ModelError
        If a lower bound is above its upper bound or not finite.
    """

    block_data = ("lower", "upper")

    #: Bounds and dtype of the last call, the largest magnitudes within them, and what the map makes of these.
    _last: tuple[Tensor, Tensor, torch.dtype, Tensor, Tensor] | None = None

    def __init__(self, affine: AffineMap, kinds: Sequence[Kind], sizes: Sequence[int], lower: object, upper: object) -> None:
        self.affine, self.kinds, self.sizes = affine, tuple(kinds), list(sizes)
        self.lower, self.upper = as_block_data(lower, 1, "ReluAffine lower"), as_block_data(upper, 1, "ReluAffine upper")
        total = sum(sizes)
        if len(self.kinds) != len(self.sizes) or self.lower.shape != self.upper.shape or self.lower.shape[1:] != (1, total):
            raise ShapeError(
                f"ReluAffine: {len(self.kinds)} kinds, {len(self.sizes)} sizes and bounds {tuple(self.lower.shape)} do not fit; "
                f"bounds need one block and {total} entries"
            )
        if bool((self.lower > self.upper).any()):
            raise ModelError("ReluAffine: a lower bound is above its upper bound")
        self.dim = total + len(affine.shift())

    def vertices(self) -> Tensor:
        """Corners of every neuron's hull as pairs of variable and activation: both ends and, between them, the kink."""
        corners = torch.stack([self.lower, torch.zeros_like(self.lower).clamp(self.lower, self.upper), self.upper], 2)
        values, parts = torch.split(corners, self.sizes, 3), []
        for kind, value in zip(self.kinds, values, strict=True):
            ends = value if kind == "relu" else value[:, :, [0, 2, 2]]
            parts.append(torch.stack([ends, ends.clamp(min=0) if kind == "relu" else ends], 3))
        return torch.cat(parts, 4)

    def push(self, parts: Tensor) -> Tensor:
        """Variables as they are, activations through the map."""
        return torch.cat([parts[:, :, 0], self.affine(torch.split(parts[:, 0, 1], self.sizes, 1))[:, None]], 2)

    def pull(self, cost: Tensor) -> Tensor:
        """Costs of the variables, and those of the results at the activations."""
        total = sum(self.sizes)
        return torch.stack([cost[..., :total], torch.cat(self.affine.adjoint(cost[:, 0, total:]), 1)[:, None]], 2)

    def shift(self) -> Tensor:
        """Variables have none."""
        own = self.affine.shift()
        return torch.cat([own.new_zeros(sum(self.sizes)), own])

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Take the best corner of every neuron; the value is less some rounding of all terms, which may be far larger than z."""
        point, value = super().min_oracle(cost)
        return point, value - NOISE * self._size(cost)

    def value_error(self, cost: Tensor) -> Tensor:
        """Rounding of the adjoint, of the corners and of the sums, and what the value is less."""
        return roundoff(self.affine.terms + cost.shape[2] + 8, 2 * self._size(cost)) + NOISE * self._size(cost)

    def _size(self, cost: Tensor) -> Tensor:
        """Magnitudes that the value sums: ``(batch, 1)``."""
        known = self._last
        if known is None or known[0] is not self.lower or known[1] is not self.upper or known[2] != cost.dtype:
            widest = torch.maximum(self.lower.abs(), self.upper.abs())[:, 0].to(cost)
            made = self.affine.magnitude(torch.split(widest, self.sizes, 1))
            self._last = known = self.lower, self.upper, cost.dtype, widest, made
        total = sum(self.sizes)
        mine, out = cost[:, 0, :total].abs(), cost[:, 0, total:].abs()
        return ((mine * known[3]).sum(1) + (out * known[4]).sum(1))[:, None]

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """The map follows the data."""
        other = super().to(dtype, device)
        other.affine = self.affine.to(dtype, device)
        return other

    def __repr__(self) -> str:
        arguments = ", ".join(f"{kind} {size}" for kind, size in zip(self.kinds, self.sizes, strict=True))
        return f"ReluAffine({arguments} -> {len(self.affine.shift())})"


class ReluHull(BlockType):
    r"""The convex hull of :math:`\{(z, \max(z, 0)) : lower \le z \le upper\}`, one neuron a block.

    For activations that several later layers use: each of them then sees the same variable.

    Parameters
    ----------
    lower, upper : array_like
        ``(blocks,)`` or ``(batch, blocks)``, finite.
    """

    block_data = ("lower", "upper")
    dim = 2

    def __init__(self, lower: object, upper: object) -> None:
        self.lower, self.upper = as_block_data(lower, 0, "ReluHull lower"), as_block_data(upper, 0, "ReluHull upper")
        if bool((self.lower > self.upper).any()):
            raise ModelError("ReluHull: a lower bound is above its upper bound")

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Compare the corners."""
        low, high = self.lower.to(cost).expand(cost.shape[:2]), self.upper.to(cost).expand(cost.shape[:2])
        corners = torch.stack([low, torch.zeros_like(low).clamp(low, high), high], 2)
        value, where = (cost[..., :1] * corners + cost[..., 1:] * corners.clamp(min=0)).min(2)
        z = corners.gather(2, where[..., None])
        return torch.cat([z, z.clamp(min=0)], 2), value

    def value_error(self, cost: Tensor) -> Tensor:
        """Two products and a sum."""
        widest = torch.maximum(self.lower.abs(), self.upper.abs()).to(cost)
        return roundoff(3, cost.abs().sum(2) * widest)
