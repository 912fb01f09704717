r"""Gaussian filtering on the permutohedral lattice (Adams, Baek & Davis, 2010).

.. math:: (K v)_a = \sum_b k(f_a, f_b) \, v_b, \qquad k(f, g) \approx e^{-|f - g|^2 / 2}

Points are embedded in the hyperplane of the lattice :math:`A_d^*`; every point splats its values to the d + 1 vertices of its
simplex, the vertices are blurred along the d + 1 axes, and the points slice their values back.  Only vertices that some point
touches exist; they are found by sorting packed keys, so that building and filtering are deterministic and the same code runs on
every device.

The blurs along different axes do not commute on such a truncated lattice, and one order gives a kernel that is not symmetric (by 2 %
to 10 % in practice).  The kernel here is the mean of both orders, :math:`S^\top (B + B^\top) S / 2`: symmetric by construction, and
positive semi-definite up to the truncation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from blocklp.errors import ModelError
from blocklp.oracles.gaussian import check_features

try:
    from blocklp.oracles import lattice_kernels
except ImportError:  # without numba the same in tensor operations
    lattice_kernels = None  # type: ignore[assignment]

KEY_BITS = 62
"""Bits of the packed coordinates of a vertex."""


@dataclass(frozen=True)
class Lattice:
    """The lattice of some points, built once and used for any number of values.

    Attributes
    ----------
    weights : Tensor
        ``(points, d + 1)`` floating point: barycentric coordinates of the points, a differentiable function of the features.
    vertices : Tensor
        ``(points, d + 1)`` int64: the vertices that they belong to.
    neighbours : Tensor
        ``(d + 1, 2, size)`` int64: the next vertex on each side along every axis, ``size`` where it does not exist.
    """

    weights: Tensor
    vertices: Tensor
    neighbours: Tensor

    @property
    def points(self) -> int:
        """Number of points."""
        return self.weights.shape[0]

    @property
    def features(self) -> int:
        """Number of features d."""
        return self.weights.shape[1] - 1

    @property
    def size(self) -> int:
        """Number of vertices."""
        return self.neighbours.shape[2]

    @cached_property
    def order(self) -> Tensor:
        """Positions in the flat ``vertices``, vertex by vertex: ``(points * (d + 1),)``."""
        return self.vertices.flatten().argsort(stable=True)

    @cached_property
    def starts(self) -> Tensor:
        """First position in ``order`` of every vertex, and the end: ``(size + 1,)``."""
        counts = torch.bincount(self.vertices.flatten(), minlength=self.size)
        return torch.nn.functional.pad(counts.cumsum(0), (1, 0))

    @property
    def scale(self) -> float:
        """The factor with which values come out as those of the Gaussian (Kraehenbuehl & Koltun's constant)."""
        return 1 / (1 + 2.0**-self.features)

    @property
    def device(self) -> torch.device:
        """Where the lattice is."""
        return self.vertices.device

    @cached_property
    def diagonal(self) -> Tensor:
        r"""What every point counts for itself: ``(points,)`` float64.

        Of all blurs, only two paths lead from a vertex of a simplex to another: along the axes J between them, or back along all
        others, since the steps along all d + 1 axes add up to nothing.  A path is lost where a vertex on it does not exist.
        """
        d, size, vertices = self.features, self.size, self.vertices
        weights = self.weights.detach().double()
        steps = torch.cat([self.neighbours, self.neighbours.new_full((d + 1, 2, 1), size)], 2)  # no way back from nowhere
        # The axis between consecutive corners; from corner to corner a point goes down it.
        axis = torch.stack([(steps[:, 1][:, vertices[:, k]] == vertices[:, k + 1]).long().argmax(0) for k in range(d)])
        total = torch.zeros(self.points, dtype=torch.float64, device=self.device)
        for first in range(d + 1):
            for last in range(d + 1):
                low, high = min(first, last), max(first, last)
                between = torch.zeros(d + 1, self.points, dtype=torch.bool, device=self.device)
                between.scatter_(0, axis[low:high], True)
                forward = 1 if first < last else 0
                ways = [(forward, between), (1 - forward, ~between)]
                if first == last:
                    ways.append((forward, ~between))
                for side, walked in ways:
                    at = vertices[:, first]
                    for along in range(d + 1):
                        at = torch.where(walked[along], steps[along, side][at], at)
                    share = 0.5 ** walked.sum(0) * (at == vertices[:, last])
                    total += weights[:, first] * weights[:, last] * share
        return total * self.scale

    @classmethod
    def build(cls, features: Tensor, image: Tensor | None = None) -> Lattice:
        """Embed points and find the vertices that they touch.

        Parameters
        ----------
        features : Tensor
            ``(points, d)`` floating point, finite: positions in units of the kernel's standard deviations.
        image : Tensor, optional
            ``(points,)`` int64, not negative: points of different images do not see each other.

        Raises
        ------
        ShapeError, NonFiniteError
            If features do not have this shape or hold NaN or infinities.
        ModelError
            If the range of the features is too large for the packed keys.
        """
        check_features(features, image)
        weights, keys = _embed(features)
        packed, strides = _pack(keys, image)
        unique, vertices = torch.unique(packed.flatten(), return_inverse=True)
        return cls(weights, vertices.view(packed.shape), _neighbours(unique, strides))

    def splat(self, values: Tensor) -> Tensor:
        """Collect values ``(points, channels)`` at the vertices: ``(size, channels)``."""
        result: Tensor = _splat(values, self.weights.to(values), self.vertices, self.order, self.starts)
        return result

    def slice(self, values: Tensor) -> Tensor:
        """Read the points' values ``(points, channels)`` off those of the vertices ``(size, channels)``."""
        result: Tensor = _slice(values, self.weights.to(values), self.vertices, self.order, self.starts)
        return result

    def blur(self, values: Tensor) -> Tensor:
        """Blur values ``(size, channels)`` by the mean of both orders of the axes."""
        result: Tensor = _blur(values, self.neighbours)
        return result

    def filter(self, values: Tensor) -> Tensor:
        """Apply the kernel to values ``(points, channels)``."""
        return self.slice(self.blur(self.splat(values))) * self.scale


@torch.library.custom_op("blocklp::lattice_splat", mutates_args=())
def _splat(values: Tensor, weights: Tensor, vertices: Tensor, order: Tensor, starts: Tensor) -> Tensor:
    if loops := kernels(values):
        out = values.new_empty(len(starts) - 1, values.shape[1])
        loops.run(loops.splat, values.contiguous(), weights.contiguous(), order, starts, out)
        return out
    spread = (weights[:, :, None] * values[:, None]).flatten(0, 1)
    return torch.segment_reduce(spread[order], "sum", offsets=starts, axis=0)


@torch.library.custom_op("blocklp::lattice_slice", mutates_args=())
def _slice(values: Tensor, weights: Tensor, vertices: Tensor, order: Tensor, starts: Tensor) -> Tensor:
    if loops := kernels(values):
        out = values.new_empty(len(weights), values.shape[1])
        loops.run(loops.slice_, values.contiguous(), weights.contiguous(), vertices, out)
        return out
    return (weights[:, :, None] * values[vertices]).sum(1)


@torch.library.custom_op("blocklp::lattice_products", mutates_args=())
def _products(values: Tensor, others: Tensor, vertices: Tensor) -> Tensor:
    """Inner products of the points' values with those of their vertices: the gradient of the weights."""
    if loops := kernels(values):
        out = values.new_empty(vertices.shape)
        loops.run(loops.products, values.contiguous(), others.contiguous(), vertices, out)
        return out
    return (values[vertices] * others[:, None]).sum(2)


@torch.library.custom_op("blocklp::lattice_blur", mutates_args=())
def _blur(values: Tensor, neighbours: Tensor) -> Tensor:
    one_way, other_way = values, values
    for axis in range(len(neighbours)):
        one_way = _blur_axis(one_way, neighbours[axis])
        other_way = _blur_axis(other_way, neighbours[len(neighbours) - 1 - axis])
    return (one_way + other_way) / 2


def _blur_axis(values: Tensor, neighbours: Tensor) -> Tensor:
    if loops := kernels(values):
        out = torch.empty_like(values, memory_format=torch.contiguous_format)
        loops.run(loops.blur, values.contiguous(), *neighbours, out)
        return out
    padded = torch.cat([values, values.new_zeros(1, values.shape[1])])
    return values + 0.5 * (padded[neighbours[0]] + padded[neighbours[1]])


def kernels(values: Tensor) -> ModuleType | None:
    """The compiled loops, where there are some for the device."""
    return lattice_kernels if values.device.type == "cpu" else None


_splat.register_fake(lambda values, weights, vertices, order, starts: values.new_empty(len(starts) - 1, values.shape[1]))
_slice.register_fake(lambda values, weights, vertices, order, starts: values.new_empty(len(weights), values.shape[1]))
_products.register_fake(lambda values, others, vertices: values.new_empty(vertices.shape))
_blur.register_fake(lambda values, neighbours: torch.empty_like(values, memory_format=torch.contiguous_format))


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _splat_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    values, weights, vertices, order, starts = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    return (
        _slice(gradient, weights, vertices, order, starts) if wanted[0] else None,
        _products(gradient, values, vertices) if wanted[1] else None,
        *(None,) * 3,
    )


def _slice_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    values, weights, vertices, order, starts = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    return (
        _splat(gradient, weights, vertices, order, starts) if wanted[0] else None,
        _products(values, gradient, vertices) if wanted[1] else None,
        *(None,) * 3,
    )


def _blur_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return _blur(gradient, ctx.saved_tensors[1]), None


_splat.register_autograd(_splat_gradient, setup_context=_save)
_slice.register_autograd(_slice_gradient, setup_context=_save)
_blur.register_autograd(_blur_gradient, setup_context=_save)


def _embed(features: Tensor) -> tuple[Tensor, Tensor]:
    """Barycentric weights ``(points, d + 1)`` and vertices' coordinates ``(points, d + 1, d)``, without the last one (sums are 0)."""
    count, d = features.shape
    # Not by a matrix product: its rounding of a row may depend on the number of rows.
    elevated = (features[:, None] * _elevation(d).to(features)).sum(2)
    with torch.no_grad():
        # The nearest lattice point of remainder 0, then the simplex around it by the order of the residuals.
        nearest = (elevated / (d + 1)).round()
        excess = nearest.sum(1, keepdim=True).long()
        residual = elevated - nearest * (d + 1)
        order = residual.argsort(dim=1, descending=True, stable=True)
        rank = torch.empty_like(order).scatter_(1, order, torch.arange(d + 1, device=order.device).expand(count, -1)) + excess
        wrap = (rank < 0).long() - (rank > d).long()
        rank = rank + (d + 1) * wrap
        corner = nearest.long() + wrap
        steps = torch.arange(d + 1, device=rank.device)[:, None]
        keys = (corner * (d + 1))[:, None, :d] + steps - (d + 1) * (rank[:, None, :d] > d - steps)
    position = elevated / (d + 1) - corner.to(elevated)
    ranked = torch.empty_like(position).scatter(1, rank, position)
    weights = torch.cat([1 + ranked[:, d:] - ranked[:, :1], (ranked[:, :-1] - ranked[:, 1:]).flip(1)], 1)
    return weights, keys


def _elevation(d: int) -> Tensor:
    """The map ``(d + 1, d)`` to the hyperplane, in units in which the filter has unit variance."""
    scale = torch.tensor([(d + 1) * math.sqrt(2 / 3) / math.sqrt((i + 1) * (i + 2)) for i in range(d)], dtype=torch.float64)
    rows = torch.ones(d + 1, d, dtype=torch.float64).triu()
    rows[1:] -= torch.diag(torch.arange(1.0, d + 1, dtype=torch.float64))
    return rows * scale


def _pack(keys: Tensor, image: Tensor | None) -> tuple[Tensor, Tensor]:
    """One integer for every vertex, and what a step in each coordinate adds to it: ``(points, d + 1)``, ``(d,)``."""
    d = keys.shape[2]
    # Room for neighbours on both sides, so that no step runs into another row of keys.
    low, high = keys.amin((0, 1)) - (d + 1), keys.amax((0, 1)) + (d + 1)
    sizes = [int(n) for n in (high - low + 1).tolist()]
    images = 1 if image is None else int(image.max()) + 1
    if math.prod(sizes) * images >= 2**KEY_BITS:
        raise ModelError(
            f"the features range over {', '.join(str(n) for n in sizes)} lattice units, too many for keys of {KEY_BITS} bits; "
            "use larger kernel widths"
        )
    strides = [math.prod(sizes[i + 1 :]) for i in range(d)]
    step = torch.tensor(strides, device=keys.device)
    packed = ((keys - low) * step).sum(2)
    return packed if image is None else packed + (image * math.prod(sizes))[:, None], step


def _neighbours(unique: Tensor, strides: Tensor) -> Tensor:
    """Positions of the vertices' neighbours along all axes: ``(d + 1, 2, size)``."""
    size, d = len(unique), len(strides)
    found = unique.new_empty(d + 1, 2, size)
    for axis in range(d + 1):
        # A step along an axis adds d to its coordinate and takes 1 from all others.
        step = -strides.sum() + (strides[axis] * (d + 1) if axis < d else 0)
        for side, sign in enumerate((1, -1)):
            wanted = unique + sign * step
            at = torch.searchsorted(unique, wanted).clamp_(max=size - 1)
            found[axis, side] = torch.where(unique[at] == wanted, at, size)
    return found
