"""Models of the forms of Tables 4 to 15 of Le-Huu & Paragios 2018, whose own are files of OpenGM.

Their laws follow J. H. Kappes et al., International Journal of Computer Vision 115 (2015), where these sets are described.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from bench.cases.densecrf_stereo import pair
from blocklp.problems.densecrf.stereo import matching_costs, truncated_linear
from blocklp.problems.densecrf.superpixels import superpixels
from blocklp.problems.mrf import Mrf
from blocklp.problems.mrf.instance import Factor
from blocklp.problems.qpbo.arrays import FloatArray, IntArray

FORBIDDEN = 1000.0
"""What a junction of three segments costs, as in OpenGM's files."""


def inpainting(neighbours: int, size: int = 120) -> Mrf:
    """A triple point: a disc without data in a ring of three colours, before a fourth; edges cost the length they stand for.

    Parameters
    ----------
    neighbours : int
        Of a pixel, 4 or 8.
    size : int
        Pixels of a side.
    """
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    radius, sector = np.hypot(x, y) / size, np.arctan2(y, x) / (2 * math.pi) + 0.13
    seen = np.where(radius > 0.45, 3, np.floor(3 * (sector % 1)).astype(int))
    costs = np.where((radius < 0.35)[:, :, None], 0.0, 1.0 - np.eye(4)[seen])
    straight, slanted = (1.0, 0.0) if neighbours == 4 else (math.pi / 8, math.pi / 8 / math.sqrt(2))  # Boykov & Kolmogorov 2003
    potts = 1 - np.eye(4)
    lengths = {(0, 1): straight, (1, 0): straight, (1, 1): slanted, (1, -1): slanted}
    edges = ((scope, length * potts) for step, length in lengths.items() if length for scope in _along((size, size), [(0, 0), step]))
    return Mrf(np.full(size * size, 4), [*_unary(costs), *edges], name=f"inpainting-n{neighbours}")


def matching(seed: int, points: int = 20) -> Mrf:
    """Points of one picture to those of another, each to its own, so that distances between them stay.

    Parameters
    ----------
    seed : int
        Of the places, the noise and the order.
    points : int
        How many.
    """
    random = np.random.default_rng(seed)
    here, order = random.random((points, 2)), random.permutation(points)
    there = (here + 0.05 * random.standard_normal(here.shape))[order]
    looks = random.random((points, 4))
    costs = np.abs(looks[:, None] - (looks + 0.3 * random.standard_normal(looks.shape))[order]).mean(2)
    first, second = (np.linalg.norm(p[:, None] - p, axis=2) for p in (here, there))
    same = np.where(np.eye(points, dtype=bool), np.inf, 0.0)
    pairs = [((i, j), np.abs(first[i, j] - second) + same) for i in range(points) for j in range(i)]
    return Mrf(np.full(points, points), [*_unary(costs[None]), *pairs], name=f"matching{seed}")


def stereo(name: str, every: int) -> Mrf:
    """Disparities of a Middlebury pair with truncated linear costs, twice as large where the picture is even.

    Parameters
    ----------
    name : str
        A pair of the case ``densecrf_stereo``.
    every : int
        One of so many pixels is kept in each direction.
    """
    left, right, disparities = _shrunk(name, every)
    shape, grey = left.shape[:2], left.mean(2).flatten()
    costs, linear = matching_costs(left, right, disparities).double().numpy(), truncated_linear(disparities, 2.0).numpy()
    edges = [
        (scope, (6.0 if abs(grey[scope[0]] - grey[scope[1]]) < 8 else 3.0) * linear)
        for step in ((0, 1), (1, 0))
        for scope in _along(shape, [(0, 0), step])
    ]
    return Mrf(np.full(math.prod(shape), disparities), [*_unary(costs), *edges], name=f"stereo, {name}")


def inclusion(seed: int, size: int = 32) -> Mrf:
    """Segments each of which is in one other: no four pixels in a square have three labels.

    Parameters
    ----------
    seed : int
        Of the noise, 0.8 of the distance of two colours.
    size : int
        Pixels of a side.
    """
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size] / size
    centres = ((0.5, 0.5, 0.42), (0.45, 0.5, 0.3), (0.4, 0.5, 0.16))
    label = sum((np.hypot(x - a, y - b) < r).astype(int) for a, b, r in centres)
    costs = (label + 0.8 * random.standard_normal(label.shape))[:, :, None] - np.arange(4)
    shape, potts = (size, size), 0.8 * (1 - np.eye(4))
    edges = [(scope, potts) for step in ((0, 1), (1, 0)) for scope in _along(shape, [(0, 0), step])]
    several = np.array([len(set(labels)) > 2 for labels in np.ndindex(4, 4, 4, 4)]).reshape((4,) * 4)
    squares = [(scope, FORBIDDEN * several) for scope in _along(shape, [(0, 0), (0, 1), (1, 0), (1, 1)])]
    return Mrf(np.full(size * size, 4), [*_unary(np.abs(costs)), *edges, *squares], name=f"inclusion{seed}")


def second_order_stereo(name: str, every: int, proposals: int = 14) -> tuple[Mrf, FloatArray]:
    """Second-order stereo (Woodford et al. 2008): a label of a pixel is a proposal, and bends of the disparity cost.

    Parameters
    ----------
    name, every
        As for :func:`stereo`.
    proposals : int
        Planes fitted to the regions of as many segmentations.

    Returns
    -------
    tuple
        The model, and the disparities ``(height, width, proposals)`` of its labels.
    """
    left, right, disparities = _shrunk(name, every)
    costs = matching_costs(left, right, disparities).double().numpy()
    best = costs.argmin(2).astype(float)
    counts = np.geomspace(4, best.size / 8, proposals).astype(int)
    planes = np.stack([_planes(best, superpixels(left, int(k)).numpy(), disparities) for k in counts], 2)
    low = np.minimum(planes.astype(int), disparities - 2)
    part = planes - low
    seen = (1 - part) * np.take_along_axis(costs, low, 2) + part * np.take_along_axis(costs, low + 1, 2)
    flat = planes.reshape(-1, proposals)
    triples = [
        ((a, b, c), 5 * np.abs(flat[a][:, None, None] - 2 * flat[b][:, None] + flat[c]).clip(max=2.0))
        for step in ((0, 1), (1, 0))
        for a, b, c in _along(best.shape, [(0, 0), step, (2 * step[0], 2 * step[1])])
    ]
    return Mrf(np.full(best.size, proposals), [*_unary(seen), *triples], name=f"second-order stereo, {name}"), planes


def _planes(disparity: FloatArray, regions: IntArray, disparities: int) -> FloatArray:
    """The least-squares plane of each region, refitted four times without what is far from it."""
    y, x = np.mgrid[: disparity.shape[0], : disparity.shape[1]]
    found = np.empty_like(disparity)
    for region in range(regions.max() + 1):
        inside = regions == region
        terms, values = np.stack([x[inside], y[inside], np.ones(inside.sum())], 1), disparity[inside]
        weights = np.ones(len(values))
        for _ in range(5):
            plane = np.linalg.lstsq(terms * weights[:, None], values * weights, rcond=None)[0]
            weights = 1.0 / (1.0 + (terms @ plane - values) ** 2)
        found[inside] = terms @ plane
    return found.clip(0, disparities - 1)


def _shrunk(name: str, every: int) -> tuple[Tensor, Tensor, int]:
    left, right, _, disparities = pair(name)
    left, right = (picture[::every, ::every].float().contiguous() for picture in (left, right))
    return left, right, max(2, math.ceil(disparities / every))


def _unary(costs: FloatArray) -> Iterator[Factor]:
    """A factor for each pixel of ``(height, width, labels)``."""
    return (((k,), table) for k, table in enumerate(costs.reshape(-1, costs.shape[2])))


def _along(shape: Sequence[int], steps: Sequence[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
    """The pixels at all steps from every pixel that has them in the picture, by their numbers."""
    height, width = shape
    for y, x in np.ndindex(height, width):
        places = [(y + down, x + right) for down, right in steps]
        if all(0 <= a < height and 0 <= b < width for a, b in places):
            yield tuple(a * width + b for a, b in places)
