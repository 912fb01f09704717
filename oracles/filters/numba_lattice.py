"""Splat, blur, slice and embedding by the loops that numba compiles: tensors in, tensors out.

Functions of :mod:`blocklp.oracles.filters.lattice_operations`, with their arguments.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.oracles.filters import lattice_kernels as loops
from blocklp.oracles.filters import lattice_operations
from blocklp.oracles.filters.gaussian import check_features
from blocklp.oracles.filters.lattice_geometry import scales, vertex_keys


def build(features: Tensor, image: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, vertices, in the order of their first points, and neighbours, as a lattice has them.

    Parameters and errors are those of :meth:`blocklp.oracles.filters.permutohedral.Lattice.build`.
    """
    check_features(features, image)
    steps, start, offsets = vertex_keys(features.detach(), image)
    weights, vertices = lattice_operations.embed(features, steps, start, offsets)
    return weights, vertices, torch.from_numpy(loops.number(vertices.numpy(), steps.numpy()))


def entries_of(vertices: Tensor, size: int) -> lattice_operations.Entries:
    """Loops need none."""
    return None, None, None


def splat(
    values: Tensor,
    weights: Tensor,
    vertices: Tensor,
    size: int,
    entries: lattice_operations.Entries,
) -> Tensor:
    """Sum values ``(points, channels)`` at the vertices, point by point: ``(size, channels)``.

    Parameters
    ----------
    values, weights : Tensor
        ``(points, channels)`` and ``(points, d + 1)`` floating point.
    vertices : Tensor
        ``(points, d + 1)`` int64.
    size : int
        Number of vertices.
    entries : tuple
        Not used.
    """
    out = values.new_zeros(size, values.shape[1])
    shares = max(1, min(torch.get_num_threads(), values.shape[1] // 8))
    loops.splat(shares, values.contiguous(), weights.contiguous(), vertices, shares, out)
    return out


def slice_(values: Tensor, weights: Tensor, vertices: Tensor) -> Tensor:
    """Interpolate the values of points ``(points, channels)`` from those of vertices ``(size, channels)``.

    Parameters
    ----------
    values, weights, vertices
        As in :func:`blocklp.oracles.filters.lattice_operations.slice_`.
    """
    out = values.new_empty(len(weights), values.shape[1])
    loops.slice_(len(out), values.contiguous(), weights.contiguous(), vertices, out)
    return out


def products(values: Tensor, others: Tensor, vertices: Tensor) -> Tensor:
    """Inner products of the points' values ``others`` with those of their vertices: ``(points, d + 1)``.

    Parameters
    ----------
    values, others : Tensor
        ``(size, channels)`` and ``(points, channels)`` floating point.
    vertices : Tensor
        ``(points, d + 1)`` int64.
    """
    out = values.new_empty(vertices.shape)
    loops.products(len(out), values.contiguous(), others.contiguous(), vertices, out)
    return out


def blur(values: Tensor, neighbours: Tensor, way: int) -> Tensor:
    """Blur values ``(size, channels)`` along all axes, in the order 1 or -1, or 0 for the mean of both.

    Parameters
    ----------
    values, neighbours
        As in :func:`blocklp.oracles.filters.lattice_operations.blur`.
    way : int
        1 for the first axis to the last, -1 for its transpose, 0 for the mean of both.
    """
    if not way:
        return (blur(values, neighbours, 1) + blur(values, neighbours, -1)) / 2
    for axis in range(len(neighbours))[::way]:
        out = torch.empty_like(values, memory_format=torch.contiguous_format)
        loops.blur(len(out), values.contiguous(), *neighbours[axis], out)
        values = out
    return values


def embed(features: Tensor, steps: Tensor, start: int, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and keys ``(points, d + 1)`` of the vertices of points ``(points, d)``.

    Parameters
    ----------
    features : Tensor
        ``(points, d)`` floating point.
    steps, start, offsets : Tensor, int, Tensor
        ``(d + 1,)`` int64, the key of the origin, and ``(points,)`` int64, of
        :func:`blocklp.oracles.filters.lattice_geometry.vertex_keys`.
    """
    points, d = features.shape
    weights, keys = features.new_empty(points, d + 1), torch.empty(points, d + 1, dtype=torch.int64)
    rest = scales(d).to(features), steps.numpy(), start, offsets, keys, weights
    loops.embed(-(-points // loops.CHUNK), features.contiguous(), *rest)
    return weights, keys


def diagonal(weights: Tensor, vertices: Tensor, neighbours: Tensor, scale: float) -> Tensor:
    """Diagonal of a symmetric kernel matrix, ``(points,)`` float64.

    Parameters
    ----------
    weights, vertices : Tensor
        ``(points, d + 1)`` floating point and int64.
    neighbours : Tensor
        ``(d + 1, 2, size)`` int64, ``size`` for none.
    scale : float
        Factor of the filter.
    """
    entries = torch.empty(len(weights), dtype=torch.float64)
    loops.diagonal(len(entries), weights, vertices, neighbours, scale, entries)
    return entries


def stencil(neighbours: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The blur as a sparse matrix: starts of its rows, columns and entries."""
    starts, columns, entries = loops.stencil(neighbours.numpy())
    return torch.from_numpy(starts), torch.from_numpy(columns), torch.from_numpy(entries)
