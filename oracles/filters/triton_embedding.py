"""Keys of vertices, embedding of points and diagonals on a GPU, in Triton.

Kernels and functions of :mod:`blocklp.oracles.filters.lattice_geometry` and of
:class:`blocklp.oracles.filters.permutohedral.Lattice`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blocklp.kernels.triton_launch import on_its_device
from blocklp.oracles.filters.lattice_geometry import FINEST, KEY_BITS

BLOCK = 64
"""Points of a program."""


@triton.jit
def _elevation(row, column, features):
    """Entries of the elevation map, which are those of ``lattice_geometry.elevation_map``."""
    place = (column + 1).to(tl.float64)
    scale = tl.cast(features + 1, tl.float64) * tl.sqrt(2 / (3 * place * (place + 1)))
    entry = tl.where(column >= row, 1.0, tl.where(column == row - 1, -row.to(tl.float64), 0.0))
    return tl.where(column < features, entry * scale, 0.0)


@triton.jit
def key_steps(least, most, images, steps, record, features, EPS: tl.constexpr, AXES: tl.constexpr):
    """Steps of keys along each axis, key of the origin, extent of an image, and whether keys suffice.

    One program.

    Parameters
    ----------
    least, most : pointer
        ``(d,)`` floating point: the range of the features.
    images : pointer
        ``()`` int64: how many there are.
    steps : pointer
        ``(d + 3,)`` int64, written: the steps, the key of the origin and the extent of an image.
    record : pointer
        ``(2,)`` float64, written: the reach of features in lattice units, times the rounding of their dtype,
        and the number of keys.
    features : int
        Their number d.
    EPS, AXES : float, int
        Rounding of the features' dtype, and a power of 2 from d + 1 on.
    """
    axis, column = tl.arange(0, AXES)[:, None], tl.arange(0, AXES)[None]
    low = tl.load(least + column, mask=column < features, other=0.0).to(tl.float64)
    high = tl.load(most + column, mask=column < features, other=0.0).to(tl.float64)
    # Not finite numbers are refused later; they must not be cast.
    low = tl.where((low == low) & (tl.abs(low) < 1e300), low, 0.0)
    high = tl.where((high == high) & (tl.abs(high) < 1e300), high, 0.0)
    entry = tl.where(axis <= features, _elevation(axis, column, features), 0.0)
    reach = tl.max(tl.sum(tl.abs(entry) * tl.maximum(tl.abs(low), tl.abs(high)), 1), 0)
    # Steps up the first d axes are a basis: coordinates x have (x_i - x_d) / (d + 1) of the i-th.
    basis = (entry - _elevation(axis * 0 + features, column, features)) / tl.cast(features + 1, tl.float64)
    up, down = tl.maximum(basis, 0.0), tl.minimum(basis, 0.0)
    first = tl.floor(tl.sum(up * low + down * high, 1)) - 3
    last = tl.ceil(tl.sum(up * high + down * low, 1)) + 3
    place = tl.arange(0, AXES)
    extent = tl.where(place < features, last - first + 1, 1.0)
    keys = tl.zeros((AXES,), dtype=tl.float64) + tl.load(images).to(tl.float64)
    for i in range(features):
        keys *= tl.sum(tl.where(place == i, extent, 0.0), 0)
    tl.store(record, reach * EPS)
    tl.store(record + 1, tl.max(keys, 0))
    # Of keys that are refused nothing is used; they must not be cast.
    fits = (keys < 4.0e18) & (place < features)
    first = tl.where(fits, first, 0.0).to(tl.int64)
    whole = tl.where(fits, extent, 1.0).to(tl.int64)
    stride, product = whole * 0 + 1, tl.sum(whole * 0, 0) + 1
    for i in range(features):
        factor = tl.sum(tl.where(place == i, whole, 0), 0)
        stride = tl.where(place < i, stride * factor, stride)
        product *= factor
    stride = tl.where(place < features, stride, 0)
    tl.store(steps + place, stride, mask=place < features)
    tl.store(steps + features, -tl.sum(stride, 0))
    tl.store(steps + features + 1, -tl.sum(first * stride, 0))
    tl.store(steps + features + 2, product)


@triton.jit
def embed_points(
    features,
    steps,
    start,
    offsets,
    keys,
    weights,
    points,
    width,
    BLOCK: tl.constexpr,
    AXES: tl.constexpr,
    IMAGES: tl.constexpr,
):
    """Simplices of points: keys of their vertices and weights; see ``lattice_geometry.embed``.

    Parameters
    ----------
    features : pointer
        ``(points, d)`` floating point.
    steps, start, offsets : pointer
        ``(d + 1,)``, ``()`` and ``(points,)`` int64, of :func:`vertex_keys`.
    keys, weights : pointer
        ``(points, d + 1)`` int64 and in the dtype of the features, written.
    points, width : int
        Points, and d.
    BLOCK, AXES : int
        Points of a program, and a power of 2 from d + 1 on.
    IMAGES : bool
        Whether offsets are read.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < points
    axis = tl.arange(0, AXES)
    used = (axis <= width)[None]
    real = features.dtype.element_ty
    lifted = tl.zeros((BLOCK, AXES), dtype=real)
    for j in range(width):
        feature = tl.load(features + point * width + j, mask=inside, other=0.0)
        # Numbers that are refused later must not be cast.
        feature = tl.where(tl.abs(feature) < 1e15, feature, 0.0).to(real)
        lifted += feature[:, None] * _elevation(axis, axis * 0 + j, width).to(real)[None]
    lifted = tl.where(used, lifted, 0.0)
    # The nearest lattice point of remainder 0, then the simplex around it by the order of the residuals.
    inverse = (1.0 / tl.cast(width + 1, tl.float64)).to(real)
    scaled = lifted * inverse
    below = tl.floor(scaled)
    part = scaled - below
    odd = below - 2 * tl.floor(below / 2)  # halves go to the even number
    whole = below + tl.where((part > 0.5) | ((part == 0.5) & (odd == 1)), 1, 0).to(real)
    residual = tl.where(used, lifted - whole * tl.cast(width + 1, real), float("-inf"))
    rank = tl.zeros((BLOCK, AXES), dtype=tl.int32)
    for j in range(width + 1):
        other = tl.sum(tl.where((axis == j)[None] & used, residual, 0.0), 1)[:, None]
        before = (other > residual) | ((other == residual) & (axis > j)[None])
        rank += before.to(tl.int32)
    rank += tl.sum(tl.where(used, whole, 0.0), 1).to(tl.int32)[:, None]
    wrap = (rank < 0).to(tl.int32) - (rank > width).to(tl.int32)
    rank += (width + 1) * wrap
    corner = whole + wrap.to(real)
    position = scaled - corner
    place = tl.where(used, width - rank, -1)
    step = tl.load(steps + axis, mask=axis <= width, other=0)
    key = tl.sum(tl.where(used, corner, 0.0).to(tl.int64) * step[None], 1) + tl.load(start)
    if IMAGES:
        key += tl.load(offsets + point, mask=inside, other=0)
    last = tl.sum(tl.where(place == width, position, 0.0), 1)
    before = last - 1
    for k in range(width + 1):
        here = tl.sum(tl.where(place == k, position, 0.0), 1)
        tl.store(weights + point * (width + 1) + k, here - before, mask=inside)
        tl.store(keys + point * (width + 1) + k, key, mask=inside)
        key -= tl.sum(tl.where(place == k, step[None], 0), 1)
        before = here


@triton.jit
def _walk(neighbours, at, axes, side, size, corners):
    """The vertices that steps along the axes whose bits are set lead to, ``size`` for none."""
    for axis in range(corners):
        going = (at < size) & (((axes >> axis) & 1) == 1)
        beside = tl.load(neighbours + (2 * axis + side) * size + at, mask=going, other=0)
        at = tl.where(going, beside, at)
    return at


@triton.jit
def diagonal_entries(
    weights, vertices, neighbours, out, points, size, SCALE: tl.constexpr, corners, BLOCK: tl.constexpr
):
    """Diagonal of the kernel matrix, by the walks that ``Lattice.diagonal`` explains.

    Parameters
    ----------
    weights, vertices, neighbours : pointer
        As in :func:`diagonal`.
    out : pointer
        ``(points,)`` float64, written.
    points, size, corners : int
        Points, vertices, and d + 1.
    SCALE, BLOCK : float, int
        Factor of the filter, and points of a program.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < points
    everything = (1 << corners) - 1
    around = tl.zeros((BLOCK,), dtype=tl.float64) + 1
    for _ in range(corners):
        around *= 0.5
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for first in range(corners):
        start = tl.load(vertices + point * corners + first, mask=inside, other=0)
        weight = tl.load(weights + point * corners + first, mask=inside, other=0.0).to(tl.float64)
        between = tl.zeros((BLOCK,), dtype=tl.int32)
        stay = tl.zeros((BLOCK,), dtype=tl.float64) + 1
        for side in range(2):
            back = _walk(neighbours, start, everything - between, side, size, corners)
            stay += tl.where(back == start, around, 0.0)
        total += weight * weight * stay
        straight, about, before = around * 0 + 1, around, start
        for last in range(first + 1, corners):
            end = tl.load(vertices + point * corners + last, mask=inside, other=0)
            # The axis between consecutive corners; from corner to corner a point goes down it.
            for axis in range(corners):
                down = tl.load(neighbours + (2 * axis + 1) * size + before, mask=inside, other=size)
                between = tl.where(down == end, between | (1 << axis), between)
            straight, about, before = straight * 0.5, about * 2, end
            share = tl.zeros((BLOCK,), dtype=tl.float64)
            for side in range(2):  # from the first to the last, and back
                one, other = tl.where(side == 0, end, start), tl.where(side == 0, start, end)
                there = _walk(neighbours, one, between, side, size, corners)
                share += tl.where(there == other, straight, 0.0)
                there = _walk(neighbours, one, everything - between, 1 - side, size, corners)
                share += tl.where(there == other, about, 0.0)
            more = tl.load(weights + point * corners + last, mask=inside, other=0.0).to(tl.float64)
            total += weight * more * share
    tl.store(out + point, SCALE * total, mask=inside)


@on_its_device
def vertex_keys(features: Tensor, image: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Integer keys of vertices, as ``lattice_geometry.vertex_keys``, without waiting for the device.

    Parameters
    ----------
    features : Tensor
        ``(points, d)`` floating point.
    image : Tensor or None
        ``(points,)`` int64, never falling.

    Returns
    -------
    steps : Tensor
        ``(d + 1,)`` int64: change of a key by a step up each axis.
    start : Tensor
        ``()`` int64: key of the origin.
    offsets : Tensor or None
        ``(points,)`` int64: change of the keys by the image of each point.
    sound : Tensor
        ``()`` bool: whether features are finite, and neither they nor their range too large for keys.
    """
    d = features.shape[1]
    least, most = features.aminmax(dim=0)
    images = torch.ones((), dtype=torch.int64, device=features.device) if image is None else image[-1] + 1
    numbers = torch.empty(d + 3, dtype=torch.int64, device=features.device)
    record = torch.empty(2, dtype=torch.float64, device=features.device)
    eps = torch.finfo(features.dtype).eps
    key_steps[1,](least, most, images, numbers, record, d, eps, triton.next_power_of_2(d + 1))
    sound = (record[0] < FINEST) & (record[1] < 2**KEY_BITS) & (most - least).isfinite().all()
    offsets = None if image is None else image * numbers[d + 2]
    return numbers[: d + 1], numbers[d + 1], offsets, sound


@on_its_device
def embed(features: Tensor, steps: Tensor, start: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights and keys ``(points, d + 1)`` of points ``(points, d)``; see :func:`vertex_keys`.

    Parameters
    ----------
    features : Tensor
        ``(points, d)`` floating point.
    steps, start, offsets : Tensor, and Tensor or None
        ``(d + 1,)``, ``()`` and ``(points,)`` int64, of :func:`vertex_keys`.
    """
    points, d = features.shape
    weights = features.new_empty(points, d + 1)
    keys = torch.empty(points, d + 1, dtype=torch.int64, device=features.device)
    given = (
        features.contiguous(),
        steps,
        start,
        steps if offsets is None else offsets,
        keys,
        weights,
        points,
        d,
    )
    embed_points[triton.cdiv(points, BLOCK),](
        *given, BLOCK, triton.next_power_of_2(d + 1), offsets is not None
    )
    return weights, keys


def number(keys: Tensor, sound: Tensor) -> tuple[Tensor, Tensor] | None:
    """Number the vertices in the order of their keys; the host waits once, for how many there are.

    Parameters
    ----------
    keys : Tensor
        ``(points, d + 1)`` int64.
    sound : Tensor
        ``()`` bool: whether keys are what they should be.

    Returns
    -------
    vertices : Tensor
        ``(points, d + 1)`` int64.
    unique : Tensor
        ``(size,)`` int64: the keys, ascending.
        None in place of both if the keys are not sound.
    """
    ascending, order = keys.flatten().sort()
    new = torch.nn.functional.pad((ascending.diff() != 0).long(), (1, 0))
    numbers = new.cumsum(0)
    last, valid = torch.stack([numbers[-1], sound.long()]).tolist()
    if not valid:
        return None
    vertices = torch.empty_like(ascending).scatter_(0, order, numbers).view(keys.shape)
    return vertices, ascending.new_empty(last + 1).scatter_(0, numbers, ascending)


@on_its_device
def diagonal(weights: Tensor, vertices: Tensor, neighbours: Tensor, scale: float) -> Tensor:
    """Diagonal of a symmetric kernel matrix, ``(points,)`` float64.

    Parameters
    ----------
    weights, vertices, neighbours, scale
        As in :func:`blocklp.oracles.filters.numba_lattice.diagonal`.
    """
    points, corners = weights.shape
    out = torch.empty(points, dtype=torch.float64, device=weights.device)
    given = weights.contiguous(), vertices.contiguous(), neighbours.contiguous(), out, points
    diagonal_entries[triton.cdiv(points, BLOCK),](*given, neighbours.shape[2], scale, corners, BLOCK)
    return out
