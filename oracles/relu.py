r"""A layer of a ReLU network: relaxed activations and an affine map (thesis, 4.1.4.12-15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.block_data import as_block_data
from blocklp.blocks.contract import BlockType, Constraints, ExtendedFormulation
from blocklp.blocks.factored import FactoredBlock
from blocklp.decomposition.valid_bounds import NOISE
from blocklp.errors import ModelError, ShapeError
from blocklp.rounding import roundoff

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Kind = Literal["value", "relu"]

TIED = 1e-6
"""Costs, relative to the largest, and widths of hulls, relative to their neurons', that count for none."""

MAP = "affine."
"""What names of weights of the map begin with among the data of a block."""


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

    def matrix(self) -> csr_array:
        """Return :math:`(A_1, ..., A_p)`, ``(out, sum of n_i)`` float64."""

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """Return the map in another precision."""

    def tensors(self) -> dict[str, Tensor]:
        """Weights that may require gradients, by names of any kind."""

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """Return the map with some of :meth:`tensors` replaced."""


class ReluAffine(FactoredBlock):
    r"""The block :math:`\{(v_1, ..., v_p, z) : z = \sum_i A_i x_i + b\}`.

    A variable of kind "value" is :math:`x_i = v_i \in [lower, upper]` itself; one of kind "relu" is a
    pre-activation :math:`v_i \in [lower, upper]`, and :math:`(v_i, x_i)` is in the convex hull of the ReLU's
    graph, the triangle of Ehlers (2017).  For a cost on z the minimum separates into single neurons: the
    corners of each hull are compared.

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

    #: Bounds and dtype of the last call, the largest magnitudes within them, and those of the map's results.
    _kept = ("_last",)
    _last: tuple[Tensor, Tensor, torch.dtype, Tensor, Tensor] | None = None

    def __init__(
        self,
        affine: AffineMap,
        kinds: Sequence[Kind],
        sizes: Sequence[int],
        lower: object,
        upper: object,
    ) -> None:
        self.affine, self.kinds, self.sizes = affine, tuple(kinds), list(sizes)
        self.lower = as_block_data(lower, 1, "ReluAffine lower", gradients=True)
        self.upper = as_block_data(upper, 1, "ReluAffine upper", gradients=True)
        total, shape = sum(sizes), tuple(self.lower.shape)
        if len(self.kinds) != len(self.sizes) or shape != self.upper.shape or shape[1:] != (1, total):
            raise ShapeError(
                f"ReluAffine: {len(self.kinds)} kinds, {len(self.sizes)} sizes and bounds {shape} do not "
                f"fit; bounds need one block and {total} entries"
            )
        if bool((self.lower > self.upper).any()):
            raise ModelError("ReluAffine: a lower bound is above its upper bound")
        self.dim = total + len(affine.shift())

    def vertices(self) -> Tensor:
        """Corners of every neuron's hull, pairs of variable and activation: lower end, kink and upper end."""
        kink = torch.zeros_like(self.lower).clamp(self.lower, self.upper)
        corners = torch.stack([self.lower, kink, self.upper], 2)
        values, parts = torch.split(corners, self.sizes, 3), []
        for kind, value in zip(self.kinds, values, strict=True):
            ends = value if kind == "relu" else value[:, :, [0, 2, 2]]
            parts.append(torch.stack([ends, ends.clamp(min=0) if kind == "relu" else ends], 3))
        return torch.cat(parts, 4)

    def apply(self, parts: Tensor) -> Tensor:
        """Variables unchanged, and the affine map of the activations."""
        results = self.affine(torch.split(parts[:, 0, 1], self.sizes, 1))
        return torch.cat([parts[:, :, 0], results[:, None]], 2)

    def adjoint(self, cost: Tensor) -> Tensor:
        """Costs of the variables, and the adjoint of the map at the costs of its results."""
        total = sum(self.sizes)
        back = torch.cat(self.affine.adjoint(cost[:, 0, total:]), 1)
        return torch.stack([cost[..., :total], back[:, None]], 2)

    def shift(self) -> Tensor:
        """The constant of the map, after zeros for the variables."""
        constant = self.affine.shift()
        return torch.cat([constant.new_zeros(sum(self.sizes)), constant])

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Take the best corner of every neuron.

        The value is lowered by the rounding error of all terms, which may be far larger than z.
        """
        point, value = super().min_oracle(cost)
        return point, value - NOISE * self._size(cost)

    curvature = FactoredBlock.curvature

    def value_error(self, cost: Tensor) -> Tensor:
        """Rounding error of the adjoint, of corners and sums, and the amount taken off the value."""
        size = self._size(cost)
        return roundoff(self.affine.terms + cost.shape[2] + 8, 2 * size) + NOISE * size

    def value_at(self, cost: Tensor, point: Tensor) -> Tensor:
        """Cost of the corners of all hulls, weighed so that variables and results are those of the point."""
        pulled = self.adjoint(cost)
        with torch.no_grad():
            weights = self._corner_weights(point, pulled.detach())
        parts = (weights[..., None, :] * self.vertices()).sum(2)
        return (pulled * parts).sum((-1, -2)) + cost @ self.shift()

    def _corner_weights(self, point: Tensor, pulled: Tensor) -> Tensor:
        """Weights of lower end, kink and upper end of every neuron at a point: ``(batch, 1, 3, neurons)``.

        A cost on an activation puts it on the upper or the lower side of its hull.  Where there is none, the
        results decide: least squares within the hulls.
        """
        total, (low, high) = sum(self.sizes), (self.lower, self.upper)
        values, results = point[..., :total], point[..., total:]
        named = zip(self.kinds, self.sizes, strict=True)
        plain = torch.cat([torch.full((n,), kind == "value") for kind, n in named])
        share = torch.where(high > low, (values - low) / (high - low), 0.0).clamp(0, 1)
        bent = (low < 0) & (high > 0) & ~plain
        least, most = values.clamp(min=0), torch.where(bent, share * high, 0.0)
        slope = pulled[..., 1, :]
        active = torch.where(bent, torch.where(slope < 0, most, least), torch.where(plain, values, least))
        size = slope.abs().amax(-1, keepdim=True)
        free = bent & (slope.abs() <= TIED * size) & (most - least > TIED * (high - low))
        for i in free.flatten(1).any(1).nonzero()[:, 0].tolist():
            own = free[i, 0].nonzero()[:, 0]
            columns = self._results(torch.eye(total, dtype=point.dtype)[own]) - self._results(
                point.new_zeros(1, total)
            )
            left = results[i] - self._results(active[i].index_fill(-1, own, 0.0))
            ends = (least[i, 0, own].numpy(), most[i, 0, own].numpy())
            from scipy.optimize import lsq_linear  # importing it takes as long as solving a small model

            found = lsq_linear(columns.T.numpy(), left[0].numpy(), ends, method="bvls")
            active[i, 0, own] = torch.from_numpy(found.x)
        at_high = torch.where(bent, active / torch.where(bent, high, 1.0), share)
        at_low = torch.where(bent, (values - active) / torch.where(bent, low, 1.0), 1 - share)
        return torch.stack([at_low, 1 - at_low - at_high, at_high], 2)

    def _results(self, activations: Tensor) -> Tensor:
        """The affine map of activations ``(k, neurons)``: ``(k, results)``."""
        return self.affine(torch.split(activations, self.sizes, 1))

    def carried(self) -> dict[str, Tensor]:
        """Bounds, and weights of the map, that require gradients."""
        weights = {f"{MAP}{k}": t for k, t in self.affine.tensors().items() if t.requires_grad}
        return super().carried() | weights

    def with_data(self, **data: Tensor | None) -> Self:
        """A copy with other bounds, or other weights of the map."""
        weights = {k.removeprefix(MAP): t for k, t in data.items() if k.startswith(MAP) and t is not None}
        other = super().with_data(**{k: t for k, t in data.items() if not k.startswith(MAP)})
        if weights:
            other.affine = self.affine.with_tensors(weights)
        return other

    def extended_formulation(self, instance: int, block: int) -> ExtendedFormulation:
        """The map, and the triangles of unstable neurons, whose activations are the auxiliary variables.

        Parameters
        ----------
        instance, block : int
            Numbers of the instance and, always 0, of the block.
        """
        from scipy.sparse import block_array, csr_array, diags_array, eye_array

        total, matrix = sum(self.sizes), self.affine.matrix()
        low, high = (side[instance % len(side), block].numpy() for side in (self.lower, self.upper))
        bent = np.repeat([kind == "relu" for kind in self.kinds], self.sizes)
        unstable = np.flatnonzero(bent & (low < 0) & (high > 0))
        # Without a variable of their own: activations that are the pre-activation, or zero.
        same = diags_array(np.where(bent & ((high <= 0) | ((low < 0) & (high > 0))), 0.0, 1.0))
        own, count = eye_array(total, format="csr")[unstable], len(unstable)
        slope = high[unstable] / (high[unstable] - low[unstable])
        results = matrix.shape[0]
        rows = block_array(
            [
                [eye_array(total), csr_array((total, results)), csr_array((total, count))],
                [-own, None, eye_array(count)],
                [-diags_array(slope) @ own, None, eye_array(count)],
                [-matrix @ same, eye_array(results), -matrix[:, unstable]],
            ],
            format="csr",
        )
        shift = self.affine.shift().double().cpu().numpy()
        none, cut = np.full(count, np.inf), -slope * low[unstable]
        lower, upper = [low, np.zeros(count), -none, shift], [high, none, cut, shift]
        sides = (torch.from_numpy(np.concatenate(side)) for side in (lower, upper))
        ends = (torch.from_numpy(side) for side in (np.zeros(count), high[unstable]))
        return ExtendedFormulation(csr_array(rows), *sides, *ends)

    def _size(self, cost: Tensor) -> Tensor:
        """Magnitude of the terms of the value: ``(batch, 1)``."""
        last = self._last
        same = last is not None and last[0] is self.lower and last[1] is self.upper and last[2] == cost.dtype
        if last is None or not same:
            widest = torch.maximum(self.lower.abs(), self.upper.abs())[:, 0].to(cost)
            results = self.affine.magnitude(torch.split(widest, self.sizes, 1))
            self._last = last = self.lower, self.upper, cost.dtype, widest, results
        total = sum(self.sizes)
        of_variables, of_results = cost[:, 0, :total].abs(), cost[:, 0, total:].abs()
        return ((of_variables * last[3]).sum(1) + (of_results * last[4]).sum(1))[:, None]

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """A copy with its block data and its map on a device, in ``dtype``."""
        other = super().to(dtype, device)
        other.affine = self.affine.to(dtype, device)
        return other

    def __repr__(self) -> str:
        arguments = ", ".join(f"{kind} {size}" for kind, size in zip(self.kinds, self.sizes, strict=True))
        return f"ReluAffine({arguments} -> {len(self.affine.shift())})"


class ReluHull(BlockType):
    r"""The convex hull of :math:`\{(z, \max(z, 0)) : lower \le z \le upper\}`, one neuron a block.

    For activations that several later layers use, so that all have one variable.

    Parameters
    ----------
    lower, upper : array_like
        ``(blocks,)`` or ``(batch, blocks)``, finite.

    Raises
    ------
    ShapeError, ModelError
        As :class:`ReluAffine` does.
    """

    block_data = ("lower", "upper")
    dim = 2

    def __init__(self, lower: object, upper: object) -> None:
        self.lower = as_block_data(lower, 0, "ReluHull lower", gradients=True)
        self.upper = as_block_data(upper, 0, "ReluHull upper", gradients=True)
        if bool((self.lower > self.upper).any()):
            raise ModelError("ReluHull: a lower bound is above its upper bound")

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Compare the costs of the corners."""
        low, high = (side.to(cost).expand(cost.shape[:2]) for side in (self.lower, self.upper))
        corners = torch.stack([low, torch.zeros_like(low).clamp(low, high), high], 2)
        value, where = (cost[..., :1] * corners + cost[..., 1:] * corners.clamp(min=0)).min(2)
        z = corners.gather(2, where[..., None])
        return torch.cat([z, z.clamp(min=0)], 2), value

    def value_error(self, cost: Tensor) -> Tensor:
        """Rounding error of two products and a sum."""
        widest = torch.maximum(self.lower.abs(), self.upper.abs()).to(cost)
        return roundoff(3, cost.abs().sum(2) * widest)

    def constraints(self) -> Constraints:
        """The graph lies above zero and the identity, below its chord, and within its ends."""
        none = 0 * (self.lower + self.upper)
        low, high = self.lower + none, self.upper + none
        first, last = low.clamp(min=0), high.clamp(min=0)
        slope = torch.where(high > low, (last - first) / (high - low), 0.0)
        one, free = torch.ones_like(low), torch.full_like(low, torch.inf)
        rows = torch.stack([torch.stack([-one, one], -1), torch.stack([-slope, one], -1)], -2)
        sides = torch.stack([none, -free], -1), torch.stack([free, first - slope * low], -1)
        return Constraints(rows, *sides, torch.stack([low, first], -1), torch.stack([high, last], -1))
