"""Splat, blur and slice on a GPU, in Triton.

Kernels and functions of :mod:`blocklp.oracles.filters.lattice_operations`: arrays of points have a row for
each point, those of vertices a row for each vertex, and a program takes a block of rows and of channels.

Sums at a vertex are taken over runs of at most :data:`RUN` of its entries, then over its runs: in a fixed
order, without atomics, and in parallel where thousands of points share a vertex.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from blocklp.kernels.triton_launch import on_its_device
from blocklp.oracles.filters import lattice_operations
from blocklp.oracles.filters.gaussian import check_features
from blocklp.oracles.filters.lattice_geometry import neighbours_by_keys
from blocklp.oracles.filters.lattice_geometry import stencil as stencil
from blocklp.oracles.filters.lattice_geometry import vertex_keys as checked_keys
from blocklp.oracles.filters.triton_embedding import diagonal as diagonal
from blocklp.oracles.filters.triton_embedding import embed as embed
from blocklp.oracles.filters.triton_embedding import number, vertex_keys

RUN = 64
"""Entries of a vertex that one program sums."""
WIDE = 64
"""Channels of a program at most."""
TILE = 1024
"""Numbers of a program, about."""


@triton.jit
def splat_runs(
    values,
    weights,
    order,
    bounds,
    out,
    channels,
    corners,
    RUN: tl.constexpr,
    CHANNELS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """Sum weighted rows of points over a run of entries; with OTHERS rows are their sum less themselves.

    Parameters
    ----------
    values, weights, out : pointer
        ``(points, channels)``, ``(points, corners)``, and ``(runs, channels)``, written, of one dtype.
    order, bounds : pointer
        ``(points * corners,)`` and ``(runs + 1,)`` int64, of :func:`entries_of`.
    channels, corners, RUN, CHANNELS : int
        Channels, d + 1, entries of a run at most, and channels of a program.
    OTHERS : bool
        As in :func:`splat`.
    """
    run = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    at = tl.load(bounds + run) + tl.arange(0, RUN)
    there = at < tl.load(bounds + run + 1)
    entry = tl.load(order + at, mask=there, other=0)
    weight = tl.load(weights + entry, mask=there, other=0.0)
    point = entry // corners
    mask = there[:, None] & (channel < channels)[None]
    rows = tl.load(values + point[:, None] * channels + channel[None], mask=mask, other=0.0)
    if OTHERS:
        rows = tl.sum(rows, 1)[:, None] - rows
    total = tl.sum(weight[:, None] * rows, 0)
    tl.store(out + run * channels + channel, total, mask=channel < channels)


@triton.jit
def sum_runs(parts, groups, out, size, channels, BLOCK: tl.constexpr, CHANNELS: tl.constexpr):
    """Sum the runs of every vertex, in order.

    Parameters
    ----------
    parts, groups, out : pointer
        ``(runs, channels)``, ``(size + 1,)`` int64 of :func:`entries_of`, and ``(size, channels)``, written.
    size, channels, BLOCK, CHANNELS : int
        Vertices and channels, and those of a program.
    """
    vertex = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside, narrow = vertex < size, channel < channels
    first = tl.load(groups + vertex, mask=inside, other=0)
    last = tl.load(groups + vertex + 1, mask=inside, other=0)
    total = tl.zeros((BLOCK, CHANNELS), dtype=parts.dtype.element_ty)
    for k in range(tl.max(last - first, 0)):
        mask = (first + k < last)[:, None] & narrow[None]
        total += tl.load(parts + (first + k)[:, None] * channels + channel[None], mask=mask, other=0.0)
    mask = inside[:, None] & narrow[None]
    tl.store(out + vertex[:, None] * channels + channel[None], total, mask=mask)


@triton.jit
def _blurred(values, neighbours, axis, vertex, channel, size, channels):
    """Values and half of both neighbours along an axis, for a block of vertices and channels."""
    inside, narrow = vertex < size, (channel < channels)[None]
    up = tl.load(neighbours + 2 * axis * size + vertex, mask=inside, other=size)
    down = tl.load(neighbours + (2 * axis + 1) * size + vertex, mask=inside, other=size)
    above = tl.load(
        values + up[:, None] * channels + channel[None], mask=(up < size)[:, None] & narrow, other=0.0
    )
    below = tl.load(
        values + down[:, None] * channels + channel[None], mask=(down < size)[:, None] & narrow, other=0.0
    )
    mask = inside[:, None] & narrow
    here = tl.load(values + vertex[:, None] * channels + channel[None], mask=mask, other=0.0)
    return here + 0.5 * (above + below)


@triton.jit
def blur_axis(
    values,
    neighbours,
    out,
    size,
    channels,
    there,
    back,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
    FIRST: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Blur along one axis of each order, times a factor; those of FIRST begin with one array of values.

    Parameters
    ----------
    values, neighbours, out : pointer
        ``(ways, size, channels)``, or ``(size, channels)`` with FIRST; ``(d + 1, 2, size)`` int64; and
        ``(ways, size, channels)``, written.
    size, channels, there, back, BLOCK, CHANNELS : int
        Vertices, channels, the axis of each order, and vertices and channels of a program.
    FIRST, SCALE : bool, float
        Whether all orders read one array, and the factor.
    """
    vertex = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    way = tl.program_id(2).to(tl.int64)
    array = tl.cast(size, tl.int64) * channels
    source = values if FIRST else values + way * array
    axis = tl.where(way == 0, there, back)
    found = _blurred(source, neighbours, axis, vertex, channel, size, channels)
    mask = (vertex < size)[:, None] & (channel < channels)[None]
    tl.store(out + way * array + vertex[:, None] * channels + channel[None], found * SCALE, mask=mask)


@triton.jit
def blur_last(
    values,
    neighbours,
    out,
    size,
    channels,
    there,
    back,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Blur along the last axis of both orders, and take the mean times a factor.

    Parameters
    ----------
    values, neighbours, out : pointer
        ``(2, size, channels)``, ``(d + 1, 2, size)`` int64, and ``(size, channels)``, written.
    size, channels, there, back, BLOCK, CHANNELS, SCALE : int, and float
        As in :func:`blur_axis`.
    """
    vertex = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    array = tl.cast(size, tl.int64) * channels
    found = _blurred(values, neighbours, there, vertex, channel, size, channels)
    found += _blurred(values + array, neighbours, back, vertex, channel, size, channels)
    mask = (vertex < size)[:, None] & (channel < channels)[None]
    at = vertex[:, None] * channels + channel[None]
    tl.store(out + at, found / 2 * SCALE, mask=mask)


@triton.jit
def sliced(values, weights, vertices, point, channel, points, channels, CORNERS: tl.constexpr):
    """Sum of the weighted values of the vertices of a block of points.

    Parameters
    ----------
    values, weights, vertices : pointer
        ``(size, channels)``, ``(points, CORNERS)``, and ``(points, CORNERS)`` int64.
    point, channel : block
        ``(BLOCK,)`` int64 and ``(CHANNELS,)`` int32: those of the program.
    points, channels, CORNERS : int
        Points, channels, and d + 1.
    """
    inside, narrow = point < points, channel < channels
    mask = inside[:, None] & narrow[None]
    total = tl.zeros((point.shape[0], channel.shape[0]), dtype=values.dtype.element_ty)
    for k in tl.static_range(CORNERS):
        vertex = tl.load(vertices + point * CORNERS + k, mask=inside, other=0)
        weight = tl.load(weights + point * CORNERS + k, mask=inside, other=0.0)
        row = tl.load(values + vertex[:, None] * channels + channel[None], mask=mask, other=0.0)
        total += weight[:, None] * row
    return total


@triton.jit
def slice_points(
    values,
    weights,
    vertices,
    out,
    points,
    channels,
    CORNERS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Interpolate points from their vertices.

    Parameters
    ----------
    values, weights, vertices, points, channels, CORNERS : pointer and int
        As in :func:`sliced`.
    out, BLOCK, CHANNELS : pointer and int
        ``(points, channels)``, written, and points and channels of a program.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    total = sliced(values, weights, vertices, point, channel, points, channels, CORNERS)
    mask = (point < points)[:, None] & (channel < channels)[None]
    tl.store(out + point[:, None] * channels + channel[None], total, mask=mask)


@triton.jit
def corner_products(
    values,
    others,
    vertices,
    out,
    entries,
    channels,
    corners,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Inner products of the points' rows with those of their vertices, entry by entry.

    Parameters
    ----------
    values, others, vertices, out : pointer
        ``(size, channels)``, ``(points, channels)``, ``(points, corners)`` int64, and ``(points, corners)``,
        written.
    entries, channels, corners, BLOCK, CHANNELS : int
        Points times corners, channels, d + 1, entries of a program, and channels at a time.
    """
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < entries
    vertex = tl.load(vertices + entry, mask=inside, other=0)
    point = entry // corners
    total = tl.zeros((BLOCK,), dtype=values.dtype.element_ty)
    for first in range(0, channels, CHANNELS):
        channel = first + tl.arange(0, CHANNELS)
        mask = inside[:, None] & (channel < channels)[None]
        row = tl.load(values + vertex[:, None] * channels + channel[None], mask=mask, other=0.0)
        other = tl.load(others + point[:, None] * channels + channel[None], mask=mask, other=0.0)
        total += tl.sum(row * other, 1)
    tl.store(out + entry, total, mask=inside)


def blocks(rows: int, channels: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid over rows and channels, and the sizes of a program's block."""
    wide = min(WIDE, triton.next_power_of_2(channels))
    tall = min(TILE // wide, triton.next_power_of_2(rows))
    return (triton.cdiv(rows, tall), triton.cdiv(channels, wide)), {"BLOCK": tall, "CHANNELS": wide}


def build(features: Tensor, image: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, vertices, in the order of their keys, and neighbours; the host waits once.

    Parameters and errors are those of :meth:`blocklp.oracles.filters.permutohedral.Lattice.build`.
    """
    steps, start, offsets, sound = vertex_keys(features.detach(), image)
    weights, keys = lattice_operations.embed(features, steps, start, offsets)
    found = number(keys, sound)
    if found is None:  # these say why
        check_features(features, image)
        checked_keys(features.detach(), image)
        raise AssertionError("features were refused for no reason")
    vertices, unique = found
    return weights, vertices, neighbours_by_keys(unique, steps)


def entries_of(vertices: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions in the flat ``vertices``, vertex by vertex, and their runs.

    Parameters
    ----------
    vertices : Tensor
        ``(points, d + 1)`` int64.
    size : int
        Number of vertices.

    Returns
    -------
    order : Tensor
        ``(points * (d + 1),)`` int64.
    bounds : Tensor
        ``(runs + 1,)`` int64: where runs start; the last ones may be empty, so that nobody waits for their
        number.
    groups : Tensor
        ``(size + 1,)`` int64: the first run of every vertex.
    """
    flat, order = vertices.flatten().sort(stable=True)
    starts = torch.searchsorted(flat, torch.arange(size + 1, device=flat.device))
    groups = torch.nn.functional.pad(
        (starts.diff() + (RUN - 1)).div_(RUN, rounding_mode="floor").cumsum(0), (1, 0)
    )
    run = torch.arange(size + len(flat) // RUN + 1, device=flat.device)
    home = torch.searchsorted(groups, run, right=True).sub_(1)
    return order, (starts[home] + (run - groups[home]) * RUN).clamp_(max=len(flat)), groups


@on_its_device
def splat(
    values: Tensor,
    weights: Tensor,
    vertices: Tensor,
    size: int,
    entries: tuple[Tensor | None, ...],
    others: bool = False,
) -> Tensor:
    """Sum the weighted values of points at the vertices of their simplices.

    Parameters
    ----------
    values, weights, vertices, size
        As in :func:`blocklp.oracles.filters.lattice_operations.splat`.
    entries : tuple of Tensor or None
        Those of :func:`entries_of`; None to find them here.
    others : bool
        Whether each row of values stands for its sum less itself; for at most :data:`WIDE` channels.

    Returns
    -------
    Tensor
        ``(size, channels)``.
    """
    order, bounds, groups = entries_of(vertices, size) if entries[-1] is None else entries
    assert bounds is not None
    values, channels = values.contiguous(), values.shape[1]
    parts, out = values.new_empty(len(bounds) - 1, channels), values.new_empty(size, channels)
    if channels:
        grid, block = blocks(size, channels)
        shape = channels, vertices.shape[1], RUN, block["CHANNELS"], others
        splat_runs[len(parts), grid[1]](values, weights.contiguous(), order, bounds, parts, *shape)
        sum_runs[grid](parts, groups, out, size, channels, **block)
    return out


@on_its_device
def slice_(values: Tensor, weights: Tensor, vertices: Tensor) -> Tensor:
    """Interpolate the values of points ``(points, channels)`` from those of vertices ``(size, channels)``.

    Parameters
    ----------
    values, weights, vertices
        As in :func:`blocklp.oracles.filters.lattice_operations.slice_`.
    """
    out = values.new_empty(len(weights), values.shape[1])
    if out.numel():
        grid, block = blocks(*out.shape)
        given = values.contiguous(), weights.contiguous(), vertices.contiguous(), out, *out.shape
        slice_points[grid](*given, weights.shape[1], **block)
    return out


@on_its_device
def products(values: Tensor, others: Tensor, vertices: Tensor) -> Tensor:
    """Inner products of the points' values ``others`` with those of their vertices: ``(points, d + 1)``.

    Parameters
    ----------
    values, others, vertices
        As in :func:`blocklp.oracles.filters.numba_lattice.products`.
    """
    out = values.new_empty(vertices.shape)
    (grid, _), block = blocks(out.numel(), max(1, values.shape[1]))
    given = values.contiguous(), others.contiguous(), vertices.contiguous(), out, out.numel()
    corner_products[grid,](*given, values.shape[1], out.shape[1], **block)
    return out


@on_its_device
def blur(values: Tensor, neighbours: Tensor, way: int, scale: float = 1.0) -> Tensor:
    """Blur the values of vertices along all axes, in one launch an axis: ``(size, channels)``.

    Parameters
    ----------
    values, neighbours
        As in :func:`blocklp.oracles.filters.lattice_operations.blur`.
    way : int
        0 for the mean of both orders of the axes, 1 for the first to the last, -1 for its transpose.
    scale : float
        Factor of the result.
    """
    size, channels = values.shape
    if not values.numel():
        return torch.empty_like(values)
    ways = 1 if way else 2
    grid, block = blocks(size, channels)
    here: Any = values.contiguous()
    neighbours, last = neighbours.contiguous(), len(neighbours) - 1
    for k in range(last + 1):
        axes = (last - k if way < 0 else k), last - k
        if k == last and not way:
            out = torch.empty_like(here[0])
            blur_last[grid](here, neighbours, out, size, channels, *axes, **block, SCALE=scale)
            return out
        out = values.new_empty(ways, size, channels)
        constants = {"FIRST": k == 0, "SCALE": scale if k == last else 1.0}
        blur_axis[*grid, ways](here, neighbours, out, size, channels, *axes, **block, **constants)
        here = out
    result: Tensor = here[0]
    return result
