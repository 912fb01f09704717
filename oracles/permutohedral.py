r"""Gaussian filtering on the permutohedral lattice (Adams, Baek & Davis, 2010).

.. math:: (K v)_a = \sum_b k(f_a, f_b) \, v_b, \qquad k(f, g) \approx e^{-|f - g|^2 / 2}

Points are embedded in the hyperplane of the lattice :math:`A_d^*`; every point splats its values to the d + 1 vertices of its
simplex, the vertices are blurred along the d + 1 axes, and the points slice their values back.  Only vertices that some point
touches exist; they are found by sorting packed keys, on a CPU with numba by hashing them, so that building and filtering are
deterministic on every device.

The blurs along different axes do not commute on such a truncated lattice, and one order gives a kernel that is not symmetric (by 2 %
to 10 % in practice).  The kernel here is the mean of both orders, :math:`S^\top (B + B^\top) S / 2`: symmetric by construction, and
positive semi-definite up to the truncation.  The published filter, one order only, is there for comparison with others' results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from blocklp.compiled import in_time
from blocklp.errors import ModelError, ShapeError
from blocklp.oracles.gaussian import check_features

KEY_BITS = 62
"""Bits of the key of a vertex."""
FINEST = 1 / 64
"""Largest rounding of a coordinate, in lattice units."""
BOTH, FORWARD, BACK = 0, 1, -1
"""Orders of the axes in a blur: the mean of both, the first to the last, and its transpose."""

LOOPS = {of: f"blocklp.oracles.{of}_kernels" for of in ("lattice", "ordered")}
"""Modules of compiled loops."""


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
    sizes : tuple of int
        Numbers of points of the images, which come one after another; empty for one image.
    symmetric : bool
        Whether the blur is the mean of both orders of the axes, or the first order only.
    """

    weights: Tensor
    vertices: Tensor
    neighbours: Tensor
    sizes: tuple[int, ...] = ()
    symmetric: bool = True

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
    def entries(self) -> tuple[Tensor | None, Tensor | None]:
        """Positions in the flat ``vertices``, vertex by vertex, and where each vertex's start; compiled loops do not need them."""
        return (None, None) if kernels(self.vertices) else _entries(self.vertices, self.size)

    @property
    def scale(self) -> float:
        """The factor with which values come out as those of the Gaussian (Kraehenbuehl & Koltun's constant)."""
        return 1 / (1 + 2.0**-self.features)

    @property
    def device(self) -> torch.device:
        """Where the lattice is."""
        return self.vertices.device

    @cached_property
    def images(self) -> list[Lattice]:
        """The lattices of the single images."""
        if len(self.sizes) < 2:
            return [self]
        return [self.restrict(points) for points in torch.split(torch.arange(self.points, device=self.device), list(self.sizes))]

    def restrict(self, points: Tensor) -> Lattice:
        """The lattice of some points ``(count,)`` int64, ascending: the same kernel between them.

        It has the vertices on the paths of the blur from one of the points to another.
        """
        vertices = self.vertices[points]
        here = torch.zeros(self.size + 1, dtype=torch.bool, device=self.device)  # the last stands for neighbours that do not exist
        here[vertices] = True
        # Where a blur along the first k axes leads to, and from where one along the others leads back.
        ahead, back = [here], [here]
        for axis in range(len(self.neighbours)):
            ahead.append(_grow(ahead[-1], self.neighbours[axis]))
            back.append(_grow(back[-1], self.neighbours[-1 - axis]))
        kept = torch.stack([a & b for a, b in zip(ahead, reversed(back), strict=True)]).any(0)[:-1].nonzero()[:, 0]
        number = torch.full((self.size + 1,), len(kept), device=self.device)
        number[kept] = torch.arange(len(kept), device=self.device)
        sizes = ()
        if self.sizes:
            image = torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes)).to(self.device)
            sizes = tuple(n for n in torch.bincount(image[points]).tolist() if n)
        return Lattice(self.weights[points], number[vertices], number[self.neighbours[:, :, kept]], sizes, self.symmetric)

    @cached_property
    def seen(self) -> float:
        r"""How many others a point sees, :math:`(\sum_b K_{ab})^2 / \sum_b K_{ab}^2` in the mean, from one random probe."""
        draw = torch.rand(self.points, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        sign = (draw - 0.5).sign().to(self.device)
        sums, noise = self.filter(torch.stack([torch.ones_like(sign), sign], 1)).detach().square().sum(0)
        return float(sums / noise) if noise > 0 else float(self.points)

    @cached_property
    def stencil(self) -> tuple[Tensor, Tensor, Tensor]:
        """The blur as a sparse matrix, by the compiled loops only: starts of its rows, columns and entries."""
        compiled = kernels(self.neighbours)
        assert compiled is not None
        starts, columns, entries = compiled.stencil(self.neighbours.numpy())
        return torch.from_numpy(starts), torch.from_numpy(columns), torch.from_numpy(entries)

    @cached_property
    def diagonal(self) -> Tensor:
        r"""What every point counts for itself: ``(points,)`` float64.

        Of all blurs, only two paths lead from a vertex of a simplex to another: along the axes J between them, or back along all
        others, since the steps along all d + 1 axes add up to nothing.  A path is lost where a vertex on it does not exist.

        Raises
        ------
        ModelError
            If the lattice is not symmetric: then this is no part of its results.
        """
        if not self.symmetric:
            raise ModelError("the diagonal is that of the symmetric kernel; build the lattice with symmetric=True")
        d, size, vertices = self.features, self.size, self.vertices
        weights = self.weights.detach().double()
        if compiled := kernels(weights):
            own = torch.empty(self.points, dtype=torch.float64)
            compiled.diagonal(len(own), weights, vertices, self.neighbours, self.scale, own)
            return own
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
    def build(cls, features: Tensor, image: Tensor | None = None, symmetric: bool = True) -> Lattice:
        """Embed points and find the vertices that they touch.

        Parameters
        ----------
        features : Tensor
            ``(points, d)`` floating point, finite: positions in units of the kernel's standard deviations.
        image : Tensor, optional
            ``(points,)`` int64, from 0, never falling: points of different images do not see each other.
        symmetric : bool
            Whether to blur by the mean of both orders of the axes.  The first order only is the filter as published (Kraehenbuehl &
            Koltun 2011) in half the time, but no energy's: the ordered filter and the diagonal need the symmetric one.

        Raises
        ------
        ShapeError, NonFiniteError
            If features do not have this shape or hold NaN or infinities.
        ModelError
            If the features or their range are too large for the packed keys, or the images are not in order.
        """
        check_features(features, image)
        if image is not None and (bool((image.diff() < 0).any()) or int(image[0]) < 0):
            raise ModelError("image must hold numbers from 0 that never fall; sort the points by their image")
        points, d = features.shape
        sizes = () if image is None else tuple(torch.unique_consecutive(image, return_counts=True)[1].tolist())
        steps, start, offsets = _keys(features.detach(), image)
        if compiled := kernels(features):
            weights, vertices = _Embedding.apply(features, steps, start, offsets)  # type: ignore[no-untyped-call]
            neighbours = torch.from_numpy(compiled.number(vertices.numpy(), steps.numpy()))
        else:
            weights, coordinates = _embed(features)
            keys = ((coordinates[..., :d] - coordinates[..., d:]) // (d + 1) @ steps[:d] + start + offsets[:, None]).flatten()
            unique, vertices = torch.unique(keys, return_inverse=True)
            vertices, neighbours = vertices.view(points, d + 1), _neighbours(unique, steps)
        return cls(weights, vertices, neighbours, sizes, symmetric)

    def splat(self, values: Tensor) -> Tensor:
        """Collect values ``(points, channels)`` at the vertices: ``(size, channels)``.

        Raises
        ------
        ShapeError
            If they have another shape; :meth:`slice`, :meth:`blur` and :meth:`filter` raise it too.
        """
        _check_rows(values, self.points, "points")
        weights = self.weights.to(values)
        splat = _splat_now if _plain(values, weights) else _splat
        result: Tensor = splat(values, weights, self.vertices, self.size, *self.entries)
        return result

    def slice(self, values: Tensor) -> Tensor:
        """Read the points' values ``(points, channels)`` off those of the vertices ``(size, channels)``."""
        _check_rows(values, self.size, "vertices")
        weights = self.weights.to(values)
        read = _slice_now if _plain(values, weights) else _slice
        result: Tensor = read(values, weights, self.vertices, *self.entries)
        return result

    def blur(self, values: Tensor) -> Tensor:
        """Blur values ``(size, channels)`` along all axes."""
        _check_rows(values, self.size, "vertices")
        blur = _blur_now if _plain(values) else _blur
        result: Tensor = blur(values, self.neighbours, BOTH if self.symmetric else FORWARD)
        return result

    def filter(self, values: Tensor) -> Tensor:
        """Apply the kernel to values ``(points, channels)``."""
        return self.slice(self.blur(self.splat(values)) * self.scale)

    def scaled(self, factors: Tensor) -> Lattice:
        """The kernel with its rows and columns multiplied by factors ``(points, 1)``."""
        return replace(self, weights=self.weights * factors.to(self.weights))


def _plain(*tensors: Tensor) -> bool:
    """Whether there is nothing to record or trace: then operations are called directly.

    Torch's dispatcher of custom operations imports a compiler of its own when it is first called, for seconds.
    """
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return not recorded and not torch.compiler.is_compiling() and all(type(t) in (Tensor, Parameter) for t in tensors)


def _splat_now(values: Tensor, weights: Tensor, vertices: Tensor, size: int, order: Tensor | None, starts: Tensor | None) -> Tensor:
    if compiled := kernels(values):
        out = values.new_zeros(size, values.shape[1])
        shares = max(1, min(torch.get_num_threads(), values.shape[1] // 8))
        compiled.splat(shares, values.contiguous(), weights.contiguous(), vertices, shares, out)
        return out
    if order is None or starts is None:
        order, starts = _entries(vertices, size)
    spread = (weights[:, :, None] * values[:, None]).flatten(0, 1)
    return torch.segment_reduce(spread[order], "sum", offsets=starts, axis=0)


def _slice_now(values: Tensor, weights: Tensor, vertices: Tensor, order: Tensor | None, starts: Tensor | None) -> Tensor:
    if compiled := kernels(values):
        out = values.new_empty(len(weights), values.shape[1])
        compiled.slice_(len(out), values.contiguous(), weights.contiguous(), vertices, out)
        return out
    return (weights[:, :, None] * values[vertices]).sum(1)


@torch.library.custom_op("blocklp::lattice_products", mutates_args=())
def _products(values: Tensor, others: Tensor, vertices: Tensor) -> Tensor:
    """Inner products of the points' values with those of their vertices: the gradient of the weights."""
    if compiled := kernels(values):
        out = values.new_empty(vertices.shape)
        compiled.products(len(out), values.contiguous(), others.contiguous(), vertices, out)
        return out
    return (values[vertices] * others[:, None]).sum(2)


def _blur_now(values: Tensor, neighbours: Tensor, way: int) -> Tensor:
    if way == BOTH:
        return (_one_way(values, neighbours, FORWARD) + _one_way(values, neighbours, BACK)) / 2
    return _one_way(values, neighbours, way)


def _one_way(values: Tensor, neighbours: Tensor, way: int) -> Tensor:
    for axis in range(len(neighbours))[::way]:
        values = _blur_axis(values, neighbours[axis])
    return values


def _blur_axis(values: Tensor, neighbours: Tensor) -> Tensor:
    if compiled := kernels(values):
        out = torch.empty_like(values, memory_format=torch.contiguous_format)
        compiled.blur(len(out), values.contiguous(), *neighbours, out)
        return out
    padded = torch.cat([values, values.new_zeros(1, values.shape[1])])
    return values + 0.5 * (padded[neighbours[0]] + padded[neighbours[1]])


def kernels(values: Tensor, of: str = "lattice") -> ModuleType | None:
    """The compiled loops of the lattice or of the ordered filter, where there are some for the device and time to compile them."""
    kind = torch.float64 if values.dtype == torch.int64 else values.dtype
    known = kind in (torch.float32, torch.float64) and values.device.type == "cpu"
    return in_time(LOOPS[of], kind) if known else None


_splat = torch.library.custom_op("blocklp::lattice_splat", _splat_now, mutates_args=())
_slice = torch.library.custom_op("blocklp::lattice_slice", _slice_now, mutates_args=())
_blur = torch.library.custom_op("blocklp::lattice_blur", _blur_now, mutates_args=())
_splat.register_fake(lambda values, weights, vertices, size, order, starts: values.new_empty(size, values.shape[1]))
_slice.register_fake(lambda values, weights, vertices, order, starts: values.new_empty(len(weights), values.shape[1]))
_products.register_fake(lambda values, others, vertices: values.new_empty(vertices.shape))
_blur.register_fake(lambda values, neighbours, way: torch.empty_like(values, memory_format=torch.contiguous_format))


def _entries(vertices: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """See :attr:`Lattice.entries`: ``(points * (d + 1),)`` and ``(size + 1,)``."""
    counts = torch.bincount(vertices.flatten(), minlength=size)
    return vertices.flatten().argsort(stable=True), torch.nn.functional.pad(counts.cumsum(0), (1, 0))


class _Embedding(torch.autograd.Function):
    """Weights and keys of the points' vertices by the compiled loops, the same bits with gradients as without.

    The weights are linear in the features for as long as the order of the coordinates in the simplex stays, and that order is in
    the differences of the keys.
    """

    @staticmethod
    def forward(features: Tensor, steps: Tensor, start: int, offsets: Tensor) -> tuple[Tensor, Tensor]:
        points, d = features.shape
        compiled = kernels(features)
        assert compiled is not None
        weights, keys = features.new_empty(points, d + 1), torch.empty(points, d + 1, dtype=torch.int64)
        chunks = -(-points // compiled.CHUNK)
        compiled.embed(chunks, features.contiguous(), _scales(d).to(features), steps.numpy(), start, offsets, keys, weights)
        return weights, keys

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, Tensor], output: tuple[Tensor, Tensor]) -> None:
        keys, steps = output[1], inputs[1]
        ctx.mark_non_differentiable(keys)
        if not ctx.needs_input_grad[0]:
            return
        # All steps together lead back to the first vertex: the last one's, which no key is reached by, is the rest.
        taken = torch.cat([keys[:, :-1] - keys[:, 1:], keys[:, -1:] - keys[:, :1]], 1)
        rising = steps.argsort()
        ctx.save_for_backward(rising[torch.searchsorted(steps[rising], taken)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (axes,) = ctx.saved_tensors
        weights, d = gradients[0], gradients[0].shape[1] - 1
        # A weight is a coordinate less the one before it in the order.
        ordered = weights - weights.roll(-1, 1)
        coordinates = torch.zeros_like(ordered).scatter(1, axes, ordered) / (d + 1)
        return coordinates @ _elevation(d).to(weights), None, None, None


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*(i for i in inputs if not isinstance(i, int)))


def _splat_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    values, weights, vertices, *entries = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    return (
        _slice(gradient, weights, vertices, *entries) if wanted[0] else None,
        _products(gradient, values, vertices) if wanted[1] else None,
        *(None,) * 4,
    )


def _slice_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    values, weights, vertices, *entries = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    return (
        _splat(gradient, weights, vertices, len(values), *entries) if wanted[0] else None,
        _products(values, gradient, vertices) if wanted[1] else None,
        *(None,) * 3,
    )


def _save_way(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.way = inputs[2]


def _blur_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return _blur(gradient, *ctx.saved_tensors, -ctx.way), None, None


_splat.register_autograd(_splat_gradient, setup_context=_save)
_slice.register_autograd(_slice_gradient, setup_context=_save)
_blur.register_autograd(_blur_gradient, setup_context=_save_way)


def _grow(marked: Tensor, neighbours: Tensor) -> Tensor:
    """The marked vertices and their neighbours along one axis: ``(size + 1,)``."""
    grown = marked.clone()
    grown[:-1] |= marked[neighbours[0]] | marked[neighbours[1]]
    return grown


def _keys(features: Tensor, image: Tensor | None) -> tuple[Tensor, int, Tensor]:
    """Integers for the vertices that points can touch, linear in coordinates so that a step along an axis always adds the same.

    Returns ``steps`` (d + 1,), what a step up each axis adds to a key; the key of the origin; and what each point's image adds to
    its keys, ``(points,)``.
    """
    points, d = features.shape
    least, most = torch.stack([torch.stack(column.aminmax()) for column in features.double().unbind(1)], 1)
    elevation = _elevation(d).to(least)
    reach = float((elevation.abs() @ torch.maximum(least.abs(), most.abs())).max())
    if not reach * torch.finfo(features.dtype).eps < FINEST:
        raise ModelError(
            f"the features reach {reach:.3g} lattice units, where {features.dtype} no longer tells neighbours apart; take their mean "
            "off, or use larger kernel widths"
        )
    # Steps up the first d axes are a basis of the lattice: a point with coordinates x has (x_i - x_d) / (d + 1) of the i-th.
    basis = (elevation[:d] - elevation[d]) / (d + 1)
    # The vertices of a simplex differ by at most one in each, and their neighbours are one further.
    low = (basis.clamp(min=0) @ least + basis.clamp(max=0) @ most).floor().long() - 3
    high = (basis.clamp(min=0) @ most + basis.clamp(max=0) @ least).ceil().long() + 3
    extents = (high - low + 1).tolist()
    images = 1 if image is None else int(image.max()) + 1
    if math.prod(extents) * images >= 2**KEY_BITS:
        raise ModelError(
            f"the features range over {', '.join(map(str, extents))} lattice steps, too many for keys of {KEY_BITS} bits; use larger "
            "kernel widths"
        )
    strides = torch.tensor([math.prod(extents[i + 1 :]) for i in range(d)])
    start = -int(low.cpu() @ strides)
    offsets = features.new_zeros(points, dtype=torch.int64) if image is None else image * math.prod(extents)
    return torch.cat([strides, -strides.sum(0, keepdim=True)]).to(features.device), start, offsets


def _embed(features: Tensor) -> tuple[Tensor, Tensor]:
    """Barycentric weights ``(points, d + 1)`` and vertices' coordinates ``(points, d + 1, d + 1)``, in lattice units."""
    count, d = features.shape
    # Not by a matrix product: its rounding of a row may depend on the number of rows.
    elevated = (features[:, None] * _elevation(d).to(features)).sum(2)
    with torch.no_grad():
        # The nearest lattice point of remainder 0, then the simplex around it by the order of the residuals.
        nearest = (elevated * (1 / (d + 1))).round()
        excess = nearest.sum(1, keepdim=True).long()
        residual = elevated - nearest * (d + 1)
        order = residual.argsort(dim=1, descending=True, stable=True)
        rank = torch.empty_like(order).scatter_(1, order, torch.arange(d + 1, device=order.device).expand(count, -1)) + excess
        wrap = (rank < 0).long() - (rank > d).long()
        rank = rank + (d + 1) * wrap
        corner = nearest.long() + wrap
        steps = torch.arange(d + 1, device=rank.device)[:, None]
        coordinates = (corner * (d + 1))[:, None] + steps - (d + 1) * (rank[:, None] > d - steps)
    position = elevated * (1 / (d + 1)) - corner.to(elevated)
    ranked = torch.empty_like(position).scatter(1, rank, position)
    weights = torch.cat([1 + ranked[:, d:] - ranked[:, :1], (ranked[:, :-1] - ranked[:, 1:]).flip(1)], 1)
    return weights, coordinates


def _check_rows(values: Tensor, count: int, what: str) -> None:
    if values.dim() != 2 or values.shape[0] != count or not values.is_floating_point():
        raise ShapeError(
            f"values are {values.dtype} {tuple(values.shape)}; give floating-point numbers ({count}, channels), a row for each of "
            f"the {what}"
        )


def _scales(d: int) -> Tensor:
    """What features are multiplied by, ``(d,)`` float64: units in which the filter has unit variance."""
    return torch.tensor([(d + 1) * math.sqrt(2 / 3) / math.sqrt((i + 1) * (i + 2)) for i in range(d)], dtype=torch.float64)


def _elevation(d: int) -> Tensor:
    """The map ``(d + 1, d)`` to the hyperplane, float64."""
    rows = torch.ones(d + 1, d, dtype=torch.float64).triu()
    rows[1:] -= torch.diag(torch.arange(1.0, d + 1, dtype=torch.float64))
    return rows * _scales(d)


def _neighbours(unique: Tensor, steps: Tensor) -> Tensor:
    """Positions of the neighbours along all axes of vertices with rising keys: ``(d + 1, 2, size)``."""
    size = len(unique)
    found = unique.new_empty(len(steps), 2, size)
    for axis, step in enumerate(steps.tolist()):
        for side, sign in enumerate((1, -1)):
            wanted = unique + sign * step
            at = torch.searchsorted(unique, wanted).clamp_(max=size - 1)
            found[axis, side] = torch.where(unique[at] == wanted, at, size)
    return found
