"""Splat, blur and slice on the permutohedral lattice, with gradients.

They are defined here in tensor operations.  On a CPU loops that numba compiles serve instead, on a GPU
kernels in Triton: modules with functions of one set of names, of which :func:`kernels` chooses.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from blocklp.kernels.backend import automatic
from blocklp.kernels.compiled import in_time
from blocklp.oracles.filters.lattice_geometry import elevation_map

Entries = tuple[Tensor | None, Tensor | None, Tensor | None]
"""The entries of vertices in order, as an implementation needs them; None where it needs none."""

BOTH, FORWARD, BACK = 0, 1, -1
"""Orders of the axes in a blur: the mean of both, the first to the last, and its transpose."""

LOOPS = {of: f"blocklp.oracles.filters.{of}_kernels" for of in ("lattice", "ordered")}
"""Modules of compiled loops."""


def kernels(values: Tensor, of: str = "lattice") -> ModuleType | None:
    """The implementation of the filter, or of the ordered filter, for the dtype and device of some values.

    None where tensor operations serve: where there is no other, or no time to compile it.
    """
    kind = torch.float64 if values.dtype == torch.int64 else values.dtype
    if kind not in (torch.float32, torch.float64):
        return None
    if automatic(values.device) == "triton":
        return importlib.import_module(f"blocklp.oracles.filters.triton_{of}")
    if values.device.type != "cpu" or in_time(LOOPS[of], kind) is None:
        return None
    return importlib.import_module(f"blocklp.oracles.filters.numba_{of}")


def splat(
    values: Tensor,
    weights: Tensor,
    vertices: Tensor,
    size: int,
    entries: Entries,
) -> Tensor:
    """Sum the weighted values of points at the vertices of their simplices.

    Parameters
    ----------
    values : Tensor
        ``(points, channels)`` floating point.
    weights, vertices : Tensor
        ``(points, d + 1)``, in the dtype of the values and int64.
    size : int
        Number of vertices.
    entries : tuple of Tensor or None
        Those of :func:`entries_of`.

    Returns
    -------
    Tensor
        ``(size, channels)``.
    """
    operation = _splat_now if _plain(values, weights) else _splat
    result: Tensor = operation(values, weights, vertices, size, *entries)
    return result


def slice_(
    values: Tensor,
    weights: Tensor,
    vertices: Tensor,
    entries: Entries,
) -> Tensor:
    """Interpolate the values of points from those of the vertices of their simplices.

    Parameters
    ----------
    values : Tensor
        ``(size, channels)`` floating point.
    weights, vertices : Tensor
        ``(points, d + 1)``, in the dtype of the values and int64.
    entries : tuple of Tensor or None
        Those of :func:`entries_of`, for the gradient.

    Returns
    -------
    Tensor
        ``(points, channels)``.
    """
    operation = _slice_now if _plain(values, weights) else _slice
    result: Tensor = operation(values, weights, vertices, *entries)
    return result


def blur(values: Tensor, neighbours: Tensor, order: int) -> Tensor:
    """Blur the values of vertices along all axes.

    Parameters
    ----------
    values : Tensor
        ``(size, channels)`` floating point.
    neighbours : Tensor
        ``(d + 1, 2, size)`` int64, ``size`` for none.
    order : int
        :data:`BOTH`, :data:`FORWARD` or :data:`BACK`.

    Returns
    -------
    Tensor
        ``(size, channels)``.
    """
    operation = _blur_now if _plain(values) else _blur
    result: Tensor = operation(values, neighbours, order)
    return result


def embed(
    features: Tensor, steps: Tensor, start: int | Tensor, offsets: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Weights and keys of the vertices of points, by the implementation that :func:`kernels` chooses.

    Parameters
    ----------
    features : Tensor
        ``(points, d)`` floating point.
    steps, start, offsets : Tensor, int or Tensor, and Tensor or None
        Those of :func:`blocklp.oracles.filters.lattice_geometry.vertex_keys`, or of the implementation.

    Returns
    -------
    weights : Tensor
        ``(points, d + 1)``, differentiable by the features.
    keys : Tensor
        ``(points, d + 1)`` int64.
    """
    weights, keys = _Embedding.apply(features, steps, start, offsets)  # type: ignore[no-untyped-call]
    return weights, keys


def entries_of(vertices: Tensor, size: int) -> Entries:
    """The entries ``vertices`` ``(points, d + 1)`` of so many vertices in order, for sums at these."""
    if found := kernels(vertices):
        entries: Entries = found.entries_of(vertices, size)
        return entries
    return *sorted_entries(vertices, size), None


def sorted_entries(vertices: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Positions in the flat ``vertices``, vertex by vertex, and where those of each vertex start.

    They are ``(points * (d + 1),)`` and ``(size + 1,)`` int64.
    """
    counts = torch.bincount(vertices.flatten(), minlength=size)
    return vertices.flatten().argsort(stable=True), torch.nn.functional.pad(counts.cumsum(0), (1, 0))


def _plain(*tensors: Tensor) -> bool:
    """Whether no gradient is recorded and nothing traced, so that operations can be called directly.

    Torch's dispatcher of custom operations imports a compiler of its own when it is first called, for
    seconds.
    """
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    traced = torch.compiler.is_compiling() or any(type(t) not in (Tensor, Parameter) for t in tensors)
    return not recorded and not traced


def _splat_now(
    values: Tensor,
    weights: Tensor,
    vertices: Tensor,
    size: int,
    order: Tensor | None,
    starts: Tensor | None,
    groups: Tensor | None = None,
) -> Tensor:
    if found := kernels(values):
        summed: Tensor = found.splat(values, weights, vertices, size, (order, starts, groups))
        return summed
    if order is None or starts is None:
        order, starts = sorted_entries(vertices, size)
    terms = (weights[:, :, None] * values[:, None]).flatten(0, 1)
    return torch.segment_reduce(terms[order], "sum", offsets=starts, axis=0)


def _slice_now(
    values: Tensor,
    weights: Tensor,
    vertices: Tensor,
    order: Tensor | None,
    starts: Tensor | None,
    groups: Tensor | None = None,
) -> Tensor:
    if found := kernels(values):
        sliced: Tensor = found.slice_(values, weights, vertices)
        return sliced
    return (weights[:, :, None] * values[vertices]).sum(1)


@torch.library.custom_op("blocklp::lattice_products", mutates_args=())
def _products(values: Tensor, others: Tensor, vertices: Tensor) -> Tensor:
    """Inner products of the points' values with those of their vertices: the gradient of the weights."""
    if found := kernels(values):
        products: Tensor = found.products(values, others, vertices)
        return products
    return (values[vertices] * others[:, None]).sum(2)


def _blur_now(values: Tensor, neighbours: Tensor, way: int) -> Tensor:
    if found := kernels(values):
        blurred: Tensor = found.blur(values, neighbours, way)
        return blurred
    if way == BOTH:
        return (_one_way(values, neighbours, FORWARD) + _one_way(values, neighbours, BACK)) / 2
    return _one_way(values, neighbours, way)


def _one_way(values: Tensor, neighbours: Tensor, way: int) -> Tensor:
    for before, after in neighbours.unbind(0)[::way]:
        padded = torch.cat([values, values.new_zeros(1, values.shape[1])])
        values = values + 0.5 * (padded[before] + padded[after])
    return values


_splat = torch.library.custom_op("blocklp::lattice_splat", _splat_now, mutates_args=())
_slice = torch.library.custom_op("blocklp::lattice_slice", _slice_now, mutates_args=())
_blur = torch.library.custom_op("blocklp::lattice_blur", _blur_now, mutates_args=())
_splat.register_fake(lambda values, weights, vertices, size, *_: values.new_empty(size, values.shape[1]))
_slice.register_fake(lambda values, weights, *_: values.new_empty(len(weights), values.shape[1]))
_products.register_fake(lambda values, others, vertices: values.new_empty(vertices.shape))
_blur.register_fake(
    lambda values, neighbours, way: torch.empty_like(values, memory_format=torch.contiguous_format),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*(i for i in inputs if not isinstance(i, int)))


def _splat_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    values, weights, vertices, *entries = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    return (
        _slice(gradient, weights, vertices, *entries) if wanted[0] else None,
        _products(gradient, values, vertices) if wanted[1] else None,
        *(None,) * 5,
    )


def _slice_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    values, weights, vertices, *entries = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    return (
        _splat(gradient, weights, vertices, len(values), *entries) if wanted[0] else None,
        _products(values, gradient, vertices) if wanted[1] else None,
        *(None,) * 4,
    )


def _save_way(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.way = inputs[2]


def _blur_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return _blur(gradient, *ctx.saved_tensors, -ctx.way), None, None


_splat.register_autograd(_splat_gradient, setup_context=_save)
_slice.register_autograd(_slice_gradient, setup_context=_save)
_blur.register_autograd(_blur_gradient, setup_context=_save_way)


class _Embedding(torch.autograd.Function):
    """Weights and keys of the vertices of points, of equal bits with gradients and without.

    The weights are linear in the features for as long as the order of the coordinates in the simplex stays,
    and that order is in the differences of the keys.
    """

    @staticmethod
    def forward(
        features: Tensor, steps: Tensor, start: int | Tensor, offsets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        found = kernels(features)
        assert found is not None
        weights, keys = found.embed(features, steps, start, offsets)
        return weights, keys

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Any, ...],
        output: tuple[Tensor, Tensor],
    ) -> None:
        keys, steps = output[1], inputs[1]
        ctx.mark_non_differentiable(keys)
        if not ctx.needs_input_grad[0]:
            return
        # All steps together lead back to the first vertex: the last one closes the cycle.
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
        return coordinates @ elevation_map(d).to(weights), None, None, None
