"""The ordered filter on a GPU, in Triton: all labels at once, and nothing that the host waits for.

Functions of :mod:`blocklp.oracles.filters.ordered`, with their arguments.  On levels a level of a label is a
channel of the filter: points splat to the two next to their score, one blur serves all levels of all labels,
and prefix sums over them turn into what is below less what is above.

The exact order is a sweep in parts.  A part is a run of scores; parts are levels, so that one blur and its
prefix sums give what each part begins with, and then all parts of all labels are swept at once, each by one
program: point after point joins it by its row of the blur (:func:`stencil`).  Points of the last score of a
part read what the next one begins with, so that a score of many points makes no part long.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.kernels.triton_launch import on_its_device
from blocklp.oracles.filters import ordered
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.oracles.filters.triton_lattice import RUN, blocks, blur, sum_runs

ROOM = 2**29
"""Bytes of the levels of labels that are filtered together, about."""
MOST = 1024
"""Levels of a label; where more are asked for, the order is exact."""
PARTS = 64
"""Parts of the sweep of a label at most."""
LEVELS = 64
"""Levels of a program."""
POINTS = 256
"""Points of a program."""


@triton.jit
def splat_levels(
    places,
    values,
    weights,
    order,
    bounds,
    out,
    points,
    levels,
    corners,
    RUN: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Sum weighted values over a run of entries on the levels next to the places of their points.

    Parameters
    ----------
    places, values : pointer
        ``(labels, points)`` float32 and floating point.
    weights : pointer
        ``(points, corners)`` in the dtype of the values.
    order, bounds : pointer
        ``(points * corners,)`` and ``(runs + 1,)`` int64: entries of the lattice.
    out : pointer
        ``(runs, labels, levels)``, written.
    points, levels, corners : int
        Points, levels of a label, and d + 1.
    RUN, LEVELS : int
        Entries of a run at most, and levels of a program.
    """
    run, label = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    level = tl.program_id(2) * LEVELS + tl.arange(0, LEVELS)
    at = tl.load(bounds + run) + tl.arange(0, RUN)
    there = at < tl.load(bounds + run + 1)
    entry = tl.load(order + at, mask=there, other=0)
    weight = tl.load(weights + entry, mask=there, other=0.0)
    point = label * points + entry // corners
    value = tl.load(values + point, mask=there, other=0.0)
    place = tl.load(places + point, mask=there, other=0.0)
    share = tl.maximum(1 - tl.abs(place[:, None] - level[None].to(tl.float32)), 0.0).to(weight.dtype)
    total = tl.sum((weight * value)[:, None] * share, 0)
    channel = (run * tl.num_programs(1) + label) * levels + level
    tl.store(out + channel, total, mask=level < levels)


@triton.jit
def pile_levels(
    values,
    size,
    levels,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
    SIGNS: tl.constexpr,
):
    """Replace each level by the sum of all up to it; with SIGNS by what is below it less what is above.

    Parameters
    ----------
    values : pointer
        ``(size, labels, levels)``, written.
    size, levels : int
        Vertices, and levels of a label.
    BLOCK, LEVELS : int
        Vertices of a program, and levels at a time.
    SIGNS : bool
        Whether what is above counts against a level.
    """
    vertex = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = values + (vertex * tl.num_programs(1) + tl.program_id(1)) * levels
    inside = vertex < size
    below = tl.zeros((BLOCK,), dtype=values.dtype.element_ty)
    if SIGNS:
        for first in range(0, levels, LEVELS):
            level = first + tl.arange(0, LEVELS)
            mask = inside[:, None] & (level < levels)[None]
            below -= tl.sum(tl.load(row[:, None] + level[None], mask=mask, other=0.0), 1)
    for first in range(0, levels, LEVELS):
        level = first + tl.arange(0, LEVELS)
        mask = inside[:, None] & (level < levels)[None]
        own = tl.load(row[:, None] + level[None], mask=mask, other=0.0)
        upto = tl.cumsum(own, 1)
        if SIGNS:
            tl.store(row[:, None] + level[None], below[:, None] + 2 * upto - own, mask=mask)
            below += 2 * tl.sum(own, 1)
        else:
            tl.store(row[:, None] + level[None], below[:, None] + upto, mask=mask)
            below += tl.sum(own, 1)


@triton.jit
def slice_levels(
    places,
    values,
    weights,
    vertices,
    out,
    points,
    levels,
    SCALE: tl.constexpr,
    CORNERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Slice every point off the two levels next to its place.

    Parameters
    ----------
    places, weights, points, levels : pointer and int
        As in :func:`splat_levels`.
    values, vertices : pointer
        ``(size, labels, levels)``, and ``(points, CORNERS)`` int64.
    out : pointer
        ``(labels, points)``, written.
    SCALE, CORNERS, BLOCK : float and int
        Factor of the filter, d + 1, and points of a program.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    label, labels = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    inside = point < points
    place = tl.load(places + label * points + point, mask=inside, other=0.0)
    low = tl.floor(place)
    # Shares of the bits that they have in the splat: what points say to each other is antisymmetric.
    low_share, high_share = 1 - tl.abs(place - low), tl.maximum(1 - tl.abs(place - (low + 1)), 0.0)
    between = inside & (high_share > 0)
    below = tl.zeros((BLOCK,), dtype=values.dtype.element_ty)
    above = tl.zeros((BLOCK,), dtype=values.dtype.element_ty)
    for k in tl.static_range(CORNERS):
        vertex = tl.load(vertices + point * CORNERS + k, mask=inside, other=0)
        weight = tl.load(weights + point * CORNERS + k, mask=inside, other=0.0)
        at = values + (vertex * labels + label) * levels + low.to(tl.int64)
        below += weight * tl.load(at, mask=inside, other=0.0)
        above += weight * tl.load(at + 1, mask=between, other=0.0)
    found = low_share.to(below.dtype) * below + high_share.to(below.dtype) * above
    tl.store(out + label * points + point, SCALE * found, mask=inside)


@triton.jit
def _read(seen, stride, point, there, weights, vertices, CORNERS: tl.constexpr):
    """Slice points off the vertices."""
    total = tl.zeros(point.shape, dtype=tl.float64)
    for k in tl.static_range(CORNERS):
        vertex = tl.load(vertices + point * CORNERS + k, mask=there, other=0)
        weight = tl.load(weights + point * CORNERS + k, mask=there, other=0.0)
        total += weight * tl.load(seen + vertex * stride, mask=there, other=0.0)
    return total


@triton.jit
def sweep_parts(
    order,
    ends,
    bounds,
    upto,
    seen,
    values,
    weights,
    vertices,
    stencil,
    out,
    points,
    size,
    SCALE: tl.constexpr,
    CORNERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sweep a part of a label: points join in the order of their scores, those of equal scores together.

    Parameters
    ----------
    order, ends : pointer
        ``(labels, points)`` int64: points by score, and where those of equal scores end.
    bounds : pointer
        ``(labels, parts + 1)`` int64: where parts begin.
    upto, seen : pointer
        ``(size, labels, parts)`` float64: sums of the parts up to each; ``(labels, parts, size)``, written.
    values, out : pointer
        ``(labels, points)`` float64; out is written.
    weights, vertices : pointer
        ``(points, CORNERS)`` float64 and int64.
    stencil : tuple of pointers
        Rows ``(size + 1,)`` int64, columns ``(entries,)`` int32, and entries ``(entries,)`` float32.
    points, size : int
        Points and vertices.
    SCALE, CORNERS, BLOCK : float and int
        Factor of the filter, d + 1, and lanes of a program.
    """
    part, parts = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    label, labels = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    lane = tl.arange(0, BLOCK)
    rows, columns, entries = stencil  # not in one with the lanes: Triton 3.7 takes no targets within targets
    stride = labels * parts
    upto += label * parts
    seen += (label * parts + part) * size
    order, ends, values, out = (
        order + label * points,
        ends + label * points,
        values + label * points,
        out + label * points,
    )
    first = tl.load(bounds + label * (parts + 1) + part)
    stop = tl.load(bounds + label * (parts + 1) + part + 1)
    if first < stop:
        for vertex in range(0, size, BLOCK):
            here = vertex + lane
            mask = (here < size) & (here * 0 + part > 0)
            tl.store(
                seen + here,
                tl.load(upto + here.to(tl.int64) * stride + part - 1, mask=mask, other=0.0),
                mask=here < size,
            )
    while first < stop:
        last = tl.load(ends + first)
        tl.debug_barrier()
        for begin in range(first, last, BLOCK):
            there = begin + lane < last
            point = tl.load(order + begin + lane, mask=there, other=0)
            sums = _read(seen, 1, point, there, weights, vertices, CORNERS)
            sums -= _read(upto + parts - 1, stride, point, there, weights, vertices, CORNERS)
            if last == stop:  # what the next part begins with
                sums += _read(upto + part, stride, point, there, weights, vertices, CORNERS)
            tl.store(out + point, SCALE * sums, mask=there)
        if last < stop:
            for position in range(first, last):
                joined = tl.load(order + position)
                value = tl.load(values + joined)
                for k in range(CORNERS):
                    vertex = tl.load(vertices + joined * CORNERS + k)
                    amount = value * tl.load(weights + joined * CORNERS + k)
                    tl.debug_barrier()
                    for entry in range(tl.load(rows + vertex), tl.load(rows + vertex + 1), BLOCK):
                        mask = entry + lane < tl.load(rows + vertex + 1)
                        column = tl.load(columns + entry + lane, mask=mask, other=0)
                        more = amount * tl.load(entries + entry + lane, mask=mask, other=0.0)
                        tl.store(
                            seen + column, tl.load(seen + column, mask=mask, other=0.0) + more, mask=mask
                        )
            tl.debug_barrier()
            for begin in range(first, last, BLOCK):
                there = begin + lane < last
                point = tl.load(order + begin + lane, mask=there, other=0)
                sums = SCALE * _read(seen, 1, point, there, weights, vertices, CORNERS)
                tl.store(out + point, tl.load(out + point, mask=there, other=0.0) + sums, mask=there)
        first = last


@on_its_device
def ordered_filter(
    lattice: Lattice, scores: Tensor, values: Tensor, most: int, deadline: Deadline | None
) -> Tensor:
    """The ordered filter of the points of one image: ``(points, labels)``.

    Parameters
    ----------
    lattice, scores, values
        As in :func:`blocklp.oracles.filters.numba_ordered.ordered_filter`.
    most : int
        Levels of a label; from the number of points, or :data:`MOST`, on the exact order.
    deadline : Deadline or None
        When to give up; it is asked before labels that are filtered together.

    Raises
    ------
    TimeLimitError
        If the deadline has passed.
    """
    if not scores.numel():
        return torch.zeros_like(values)
    exact = most >= min(lattice.points, MOST)
    levels = min(PARTS, -(-lattice.points // 8)) if exact else most
    kind = torch.float64 if exact else values.dtype
    width = 8 if exact else values.element_size()
    bounds = lattice.entries[1]
    assert bounds is not None
    together = max(1, ROOM // (width * levels * (len(bounds) + 2 * lattice.size)))
    columns = []
    for y, v in zip(torch.split(scores, together, 1), torch.split(values, together, 1), strict=True):
        if deadline is not None:
            deadline.check("ordering scores")
        by_label = v.T.to(kind).contiguous()
        if exact:
            columns.append(_swept(lattice, y.T.contiguous(), by_label, levels).to(values.dtype))
            continue
        places = ordered.place(y.T.contiguous(), most)[0]
        piled = _piled(lattice, places, by_label, levels, signs=True)
        out = torch.empty_like(by_label)
        weights, corners = lattice.weights_as(by_label).contiguous(), lattice.features + 1
        given = places, piled, weights, lattice.vertices, out, lattice.points, levels, lattice.scale
        slice_levels[triton.cdiv(lattice.points, POINTS), len(out)](*given, corners, POINTS)
        columns.append(out)
    return torch.cat(columns).T.contiguous()


def _piled(lattice: Lattice, places: Tensor, values: Tensor, levels: int, signs: bool) -> Tensor:
    """Blurred sums ``(size, labels, levels)`` of what is on each level, summed up by ``pile_levels``."""
    order, bounds, groups = lattice.entries
    assert bounds is not None
    labels, points = values.shape
    weights = lattice.weights_as(values).contiguous()
    parts, summed = (values.new_empty(n, labels * levels) for n in (len(bounds) - 1, lattice.size))
    given = places, values, weights, order, bounds, parts, points, levels, lattice.features + 1
    splat_levels[len(parts), labels, triton.cdiv(levels, LEVELS)](*given, RUN, LEVELS)
    grid, block = blocks(*summed.shape)
    sum_runs[grid](parts, groups, summed, *summed.shape, **block)
    blurred = blur(summed, lattice.neighbours, 0)
    pile_levels[triton.cdiv(lattice.size, 16), labels](blurred, lattice.size, levels, 16, LEVELS, signs)
    return blurred


def _swept(lattice: Lattice, scores: Tensor, values: Tensor, parts: int) -> Tensor:
    """The exact order of labels ``(labels, points)``, in parts."""
    labels, points = scores.shape
    _, order, first, last, _ = ordered.ties(scores)
    # A score of many points is in one part, with those that begin where it does.
    part = first * parts // points
    bounds = torch.searchsorted(
        part, torch.arange(parts + 1, device=part.device).expand(labels, -1).contiguous()
    )
    places = torch.empty_like(part, dtype=torch.float32).scatter_(1, order, part.float())
    upto = _piled(lattice, places, values, parts, signs=False)
    seen, out = values.new_empty(labels, parts, lattice.size), torch.empty_like(values)
    given = order, last, bounds, upto, seen, values, lattice.weights.double().contiguous(), lattice.vertices
    rest = lattice.stencil, out, points, lattice.size, lattice.scale, lattice.features + 1, 128
    sweep_parts[parts, labels](*given, *rest)
    return out


def assign_levels(scores: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions on levels, numbers of levels and of light points, as the definition has them."""
    at, counts, light = ordered.place(scores.T.contiguous(), most)
    return at.T, counts, light
