r"""The ordered filter: the points below each point less the points above it (thesis, 2.2.5 and A.2.3).

.. math:: g_{a:i} = \sum_b k(f_a, f_b) \, \mathrm{sign}(y_{a:i} - y_{b:i}) \, v_{b:i}

This is the subgradient of the dense CRF's LP and the conditional gradient of its dual.  There are two ways to
it:

- **Levels**: every point splats to the two levels next to its score, in proportion; one blur of all levels
  and a prefix sum over them give both sides at once (the thesis splats to all levels above, then to all
  levels below), and the point slices those two levels.
- **The sweep**, exact: points join in the order of their scores; each reads the blurred vertices before and
  after it joins.

The error of levels averages out over the neighbours of a point: where these are few, there are more levels,
and where the sweep is less work than those, as for labels with most scores at 0 or 1, the sweep.

On levels, g stands for weights :math:`\alpha_{ab} = K_{ab} \sum_{pq} h_p(a) \, h_q(b) \, \mathrm{sign}(p -
q)`, the h of a point not negative and of sum 1: for :math:`v = 1` antisymmetric and within :math:`\pm K_{ab}`
whatever the levels.  So bounds that are built on g hold, and lose only tightness by coarse levels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, OptionError, ShapeError
from blocklp.oracles.filters import lattice_operations
from blocklp.oracles.filters.permutohedral import Lattice

LEVELS = 64
RESOLUTION = 23_000
"""Levels times neighbours of a point at which the error is 1 % for scores spread evenly.

The square of the relative error is 2.2 over that product.
"""
CHUNK = 64
"""Levels that the tensor operations hold at a time."""


@torch.no_grad()
def ordered_filter(
    lattice: Lattice,
    scores: Tensor,
    values: Tensor | None = None,
    levels: int | None = LEVELS,
    deadline: Deadline | None = None,
    resolution: int = RESOLUTION,
) -> Tensor:
    """Points below less points above, for every label.

    Parameters
    ----------
    lattice : Lattice
        The kernel.
    scores : Tensor
        ``(points, labels)`` floating point.
    values : Tensor, optional
        ``(points, labels)``; 1 by default.
    levels : int or None
        Levels of a label in an image where points have many neighbours, at least 2 (there are more where they
        have few, for an error of 1 %); None for the exact order.  Exact for labels with at most so many
        distinct scores.
    deadline : Deadline, optional
        When to give up; it is asked before every few labels, with the time that the last ones took.
    resolution : int
        Levels times neighbours of a point up to which there are more levels than said; 0 for none.

    Returns
    -------
    Tensor
        ``(points, labels)``.

    Raises
    ------
    ShapeError, OptionError, ModelError
        If scores do not fit, levels are fewer than 2, or the lattice is not symmetric.
    TimeLimitError
        If the deadline would pass.

    Notes
    -----
    Of N points and M vertices a label costs, besides sorting, :math:`O(N d + H M d)` on H levels and
    :math:`O(N d s)` in the sweep, where the blur of a vertex reaches s others: 19 for many points in two
    dimensions, some hundreds in five.
    """
    check_scores(lattice, scores, values)
    if levels is not None and levels < 2:
        raise OptionError(f"levels is {levels}; an order needs at least 2")
    values = torch.ones_like(scores) if values is None else values
    sizes = [part.points for part in lattice.images]

    def most_levels(part: Lattice) -> int:
        return part.points if levels is None else max(levels, math.ceil(resolution / part.seen))

    parts = zip(lattice.images, torch.split(scores, sizes), torch.split(values, sizes), strict=True)
    return torch.cat([_of_image(part, s, v, most_levels(part), deadline) for part, s, v in parts])


def check_scores(lattice: Lattice, scores: Tensor, values: Tensor | None) -> None:
    """Check the arguments of an ordered filter.

    Parameters
    ----------
    lattice, scores, values
        As in :func:`ordered_filter`.

    Raises
    ------
    ShapeError, ModelError
        If scores or values have other shapes, or the lattice is not symmetric.
    """
    fits = scores.dim() == 2 and scores.shape[0] == lattice.points
    if not fits or (values is not None and values.shape != scores.shape):
        raise ShapeError(
            f"scores have shape {tuple(scores.shape)}; the lattice has {lattice.points} points, "
            f"give (points, labels), and values of the same shape"
        )
    if not lattice.symmetric:
        raise ModelError("an ordered filter needs a symmetric kernel; build the lattice with symmetric=True")


def ordered_error(
    lattice: Lattice,
    scores: Tensor,
    levels: int = LEVELS,
    resolution: int = RESOLUTION,
) -> Tensor:
    """Relative error of the ordered filter on levels, for every label.

    It takes the exact filter, so measure some labels of some iterates.

    Parameters
    ----------
    lattice, scores, levels, resolution
        As in :func:`ordered_filter`.

    Returns
    -------
    Tensor
        ``(labels,)`` float64: length of the error over that of the exact answer, zero for equal scores.

    Raises
    ------
    ShapeError, OptionError, ModelError
        If scores do not fit, levels are fewer than 2, or the lattice is not symmetric.
    """
    exact = ordered_filter(lattice, scores.double(), levels=None)
    error = ordered_filter(lattice, scores.double(), levels=levels, resolution=resolution) - exact
    relative: Tensor = error.norm(dim=0) / exact.norm(dim=0).clamp(min=torch.finfo(torch.float64).tiny)
    return relative


def _of_image(
    lattice: Lattice, scores: Tensor, values: Tensor, most: int, deadline: Deadline | None
) -> Tensor:
    """The ordered filter of the points of one image, on so many levels at most."""
    found = lattice_operations.kernels(values, "ordered")
    on_image = found.ordered_filter if found else _on_levels
    column: Tensor = on_image(lattice, scores, values, most, deadline)
    return column


def _on_levels(
    lattice: Lattice, scores: Tensor, values: Tensor, most: int, deadline: Deadline | None
) -> Tensor:
    """The ordered filter on levels by tensor operations, on any device."""
    at, counts, _ = assign_levels(scores, most)
    columns = []
    for place, value, count in zip(at.T, values.T, counts.tolist(), strict=True):
        whole = lattice.blur(lattice.splat(value[:, None]))
        below, column = torch.zeros_like(whole), torch.zeros_like(value)
        for first in range(0, count, CHUNK):
            if deadline is not None:
                deadline.check("ordering scores")
            level = torch.arange(first, min(first + CHUNK, count), device=place.device)
            share = (1 - (place[:, None] - level).abs()).clamp(min=0).to(values)
            tile = lattice.blur(lattice.splat(share * value[:, None]))
            upto = below + tile.cumsum(1)
            column += (lattice.slice(2 * upto - tile - whole) * share).sum(1)
            below = upto[:, -1:]
        columns.append(column * lattice.scale)
    return torch.stack(columns, 1)


def assign_levels(scores: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Place the scores of every label on at most ``most`` levels.

    Where there are more distinct scores than levels, a score that many points have gets a level to itself,
    and each run of others between those shares its levels evenly among its points: a score that lies between
    two levels counts on both.

    Parameters
    ----------
    scores : Tensor
        ``(points, labels)`` floating point.
    most : int
        Most levels of a label, at least 2.

    Returns
    -------
    at : Tensor
        ``(points, labels)`` float32: positions from 0 to the number of levels - 1, equal for equal scores.
    counts : Tensor
        ``(labels,)`` int64: numbers of levels.
    light : Tensor
        ``(labels,)`` int64: numbers of points whose scores may share a level with others; 0 if every score
        has a level to itself.
    """
    if found := lattice_operations.kernels(scores, "ordered"):
        levels: tuple[Tensor, Tensor, Tensor] = found.assign_levels(scores, most)
        return levels
    rows = scores.T if scores.device.type == "cpu" else scores.T[None].contiguous()  # of labels in the cache
    places, counts, light = zip(*(place(row.view(-1, len(scores)), most) for row in rows), strict=True)
    return torch.cat(places).T, torch.cat(counts), torch.cat(light)


def ties(scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Scores of labels ``(labels, points)`` in order, and which are equal; without waiting for a device.

    Returns
    -------
    ascending, order : Tensor
        ``(labels, points)``: the scores in order, and the points that have them, int64.
    first, last : Tensor
        ``(labels, points)`` int64: where those of equal scores begin and end.
    number : Tensor
        ``(labels, points)`` int64: how many scores are below.
    """
    ascending, order = scores.sort(dim=1, stable=True)
    new = torch.nn.functional.pad(ascending[:, 1:] != ascending[:, :-1], (1, 0), value=True)
    number = new.cumsum(1) - 1
    first, last = _ends(new, number)
    return ascending, order, first, last, number


def _ends(new: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Where runs begin and end, ``(labels, points)`` int64 each, of which ``new`` tells the first points."""
    points = new.shape[1]
    starts = torch.full((len(new), points + 1), points, device=new.device)
    # The last place is for points that do not begin a run: with some of those nobody asks for it.
    at = torch.arange(points, device=new.device).expand_as(number)
    starts.scatter_(1, number.masked_fill(~new, points), at.masked_fill(~new, points))
    return starts.gather(1, number), starts.gather(1, number + 1)


def place(scores: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions on levels of scores ``(labels, points)``; no device is waited for.

    Returns
    -------
    at : Tensor
        ``(labels, points)`` float32.
    counts, light : Tensor
        ``(labels,)`` int64.
    """
    points = scores.shape[1]
    _, order, first, last, number = ties(scores)
    few = number[:, -1:] < most
    heavy = last - first > 4 * points // most
    light = (~heavy).sum(1, keepdim=True)
    # Runs of light scores, and each heavy one.
    after = torch.nn.functional.pad(heavy[:, :-1], (1, 0), value=True)
    begins = (heavy | after) & (first == torch.arange(points, device=scores.device))
    run = begins.cumsum(1) - 1
    start, end = _ends(begins, run)
    below = number.gather(1, start)
    members = number.gather(1, end - 1) - below + 1
    shared = 1 + (end - start) * (most - 1 - run[:, -1:]) // light.clamp(min=1)
    levels = shared.masked_fill(heavy, 1)
    rate = (levels - 1).double() / (2 * (end - start))
    middle = rate * (first + last - 2 * start)
    within = torch.where(members > levels, middle, (number - below).double())
    used = torch.minimum(members, levels)
    base = (used * begins).cumsum(1) - used
    found = torch.where(few, number.float(), (base + within).float())
    counts = torch.where(few[:, 0], number[:, -1] + 1, base[:, -1] + used[:, -1])
    return torch.empty_like(found).scatter_(1, order, found), counts, torch.where(few, 0, light)[:, 0]
