r"""Regions by mean shift (Comaniciu & Meer 2002), as Joy et al. have them ("Efficient relaxations for dense CRFs", 9).

Every pixel climbs to a mode of the density of places and colours: again and again it moves to the mean of the pixels within
:math:`h_s` of its place and :math:`h_r` of its colour (in Luv).  Neighbours whose modes are within these widths are one region, and
regions of few pixels join the neighbour of the most similar colour.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import MissingDependencyError, NonFiniteError, OptionError, ShapeError, install
from blocklp.language.coefficients import all_finite
from blocklp.problems.densecrf.images import arrays

SETTLED = 0.01
"""A pixel rests once it moves by less than this, in units of the widths."""
SHIFTS = 100
"""Most moves of a pixel."""


def mean_shift_regions(
    image: Tensor | NDArray[Any],
    spatial: float = 8.0,
    colour: float = 4.0,
    least: int = 100,
    time_limit: float | Deadline = math.inf,
) -> Tensor:
    """Divide an image into regions of like colours.

    Parameters
    ----------
    image : Tensor or numpy.ndarray
        ``(height, width, channels)``, 1 or 3 channels: colours from 0 to 255.
    spatial, colour : float
        Widths in pixels and in units of Luv, whose lightness is from 0 to 100; 8 and 4 in the text.
    least : int
        Regions of fewer pixels are joined to others; the text chooses it by validation.
    time_limit : float or Deadline
        Seconds after which to give up.

    Returns
    -------
    Tensor
        ``(height, width)`` int64: the region of every pixel, from 0 without holes.

    Raises
    ------
    OptionError, ShapeError, NonFiniteError
        If a number is not positive, or the image is not of this shape or not finite.
    MissingDependencyError
        If scikit-image is missing.
    TimeLimitError
        If they cannot be found in time.
    """
    if not (0 < spatial < math.inf and 0 < colour < math.inf) or least < 1:
        raise OptionError(f"spatial is {spatial}, colour {colour} and least {least}; all must be positive and finite")
    (image,) = arrays([image], "images")
    if image.dim() != 3 or image.shape[2] not in (1, 3):
        raise ShapeError(f"the image has shape {tuple(image.shape)}; give (height, width, channels), of 1 or 3 channels")
    if not all_finite(image := image.detach()):
        raise NonFiniteError("the image holds NaN or infinities; its colours must be finite")
    deadline = Deadline.of(time_limit)
    deadline.check("looking for regions")
    try:
        from skimage.color.colorconv import rgb2luv
    except ImportError as error:
        raise MissingDependencyError(f"regions by mean shift need scikit-image: {install('densecrf')}") from error
    height, width, _ = image.shape
    luv = torch.from_numpy(rgb2luv((image.double() / 255).cpu().expand(-1, -1, 3).numpy()).astype(np.float32))
    modes = _climb(luv, spatial, colour, deadline)
    numbers = torch.arange(height * width).view(height, width)
    sides = ((numbers[:, :-1], numbers[:, 1:]), (numbers[:-1], numbers[1:]))
    pairs = torch.cat([torch.stack([one.flatten(), other.flatten()]) for one, other in sides], 1)
    regions = _joined(pairs[:, _distance(*modes[pairs]) <= 1], height * width)
    return _merge_small(regions, luv.view(-1, 3), pairs, least, deadline).view(height, width).to(image.device)


def _climb(luv: Tensor, spatial: float, colour: float, deadline: Deadline) -> Tensor:
    """The modes that pixels of the colours ``(height, width, 3)`` come to, in units of the widths: ``(pixels, 5)``."""
    height, width, _ = luv.shape
    places = torch.cartesian_prod(torch.arange(height), torch.arange(width)).float()
    points = torch.cat([places / spatial, luv.view(-1, 3) / colour], 1)
    modes, moving, reach = points.clone(), torch.arange(height * width), math.ceil(spatial)
    offsets = torch.cartesian_prod(torch.arange(-reach, reach + 1), torch.arange(-reach, reach + 1))
    for _ in range(SHIFTS):
        at = modes[moving]
        nearest = (at[:, :2] * spatial).round().long()
        total, count = torch.zeros_like(at), torch.zeros(len(at), 1)
        for y, x in offsets.tolist():
            deadline.check("shifting pixels to means")
            row, column = nearest[:, 0] + y, nearest[:, 1] + x
            there = points[row.clamp(0, height - 1) * width + column.clamp(0, width - 1)]
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            near = (inside & (_distance(there, at) <= 1)).float()[:, None]
            total += near * there
            count += near
        found = torch.where(count > 0, total / count.clamp(min=1), at)
        modes[moving] = found
        moving = moving[_distance(found, at) > SETTLED]
        if not len(moving):
            break
    return modes


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """The larger one of the distances of places and of colours, in units of the widths, ``(..., 5)`` each: ``(...)``."""
    squares = (one - other).square()
    return torch.maximum(squares[..., :2].sum(-1), squares[..., 2:].sum(-1)).sqrt()


def _joined(pairs: Tensor, count: int) -> Tensor:
    """Numbers of the connected components that pairs ``(2, pairs)`` make of so many things: ``(count,)`` int64."""
    first, second = pairs.numpy()
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(count, count))
    return torch.from_numpy(connected_components(graph, directed=False)[1].astype(np.int64))


def _merge_small(regions: Tensor, colours: Tensor, pairs: Tensor, least: int, deadline: Deadline) -> Tensor:
    """Join regions ``(pixels,)`` of fewer pixels with the neighbour whose mean colour is the most similar, while there are any."""
    while True:
        deadline.check("joining small regions")
        size = torch.bincount(regions)
        around = torch.unique(regions[pairs].sort(0).values, dim=1)
        around = around[:, around[0] != around[1]]
        around = torch.cat([around, around.flip(0)], 1)
        around = around[:, size[around[0]] < least]
        if not around.numel():
            return regions
        mean = torch.zeros(len(size), 3).index_add(0, regions, colours) / size[:, None]
        apart = (mean[around[0]] - mean[around[1]]).square().sum(1)
        # The nearest first, then by region: the first entry of each region is its nearest neighbour.
        order = apart.argsort(stable=True)
        order = order[around[0, order].argsort(stable=True)]
        first = torch.cat([torch.ones(1, dtype=torch.bool), around[0, order].diff() != 0])
        regions = _joined(around[:, order[first]], len(size))[regions]
