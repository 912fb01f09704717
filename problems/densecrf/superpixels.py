r"""Superpixels as P^n-Potts cliques (Joy et al., "Efficient relaxations for dense CRFs with sparse higher order potentials", 9).

A region costs :math:`\Gamma e^{-\sigma^2 / \eta}` unless all its pixels have one label, with :math:`\sigma^2` the variance of its
colours: the more uniform, the more surely it is one thing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import OptionError, ShapeError, needed
from blocklp.problems.densecrf.cliques import Cliques
from blocklp.problems.densecrf.images import arrays

IMPORTING, DIVIDING = 0.5, 3e-6
"""Seconds that it takes to import scikit-image, and to divide an image into regions for every pixel."""


Arrays = Tensor | NDArray[Any] | Sequence[Tensor | NDArray[Any]]
"""A tensor or a numpy array, of one image, or a list of them, of several."""


def superpixels(
    image: Tensor | NDArray[Any], count: int = 400, compactness: float = 10.0, time_limit: float | Deadline = math.inf
) -> Tensor:
    """Divide an image into regions of like colours (SLIC, Achanta et al. 2012).

    Parameters
    ----------
    image : Tensor or numpy.ndarray
        ``(height, width, channels)``, 1 or 3 channels: colours from 0 to 255.
    count : int
        About how many regions.
    compactness : float
        The larger, the squarer they are.
    time_limit
        As in :func:`blocklp.problems.densecrf.mean_shift.mean_shift_regions`, and so is what is returned.

    Raises
    ------
    OptionError, ShapeError
        If a number is not positive, or the image is not of this shape.
    MissingDependencyError
        If scikit-image is missing.
    TimeLimitError
        If they cannot be found in time.
    """
    (image,) = arrays([image], "images")
    Deadline.of(time_limit).check("looking for superpixels", IMPORTING + DIVIDING * image.numel())
    with needed("superpixels need scikit-image", "densecrf"):
        from skimage.segmentation import slic
    if count < 1 or not 0 < compactness < float("inf"):
        raise OptionError(f"count is {count} and compactness {compactness}; both must be positive")
    if image.dim() != 3 or image.shape[2] not in (1, 3):
        raise ShapeError(f"the image has shape {tuple(image.shape)}; give (height, width, channels), of 1 or 3 channels")
    if count > (pixels := image.shape[0] * image.shape[1]):
        raise OptionError(f"count is {count}, and the image has {pixels} pixels; ask for fewer regions than that")
    colours = (image.double() / 255).cpu().numpy()
    gray = colours.shape[2] == 1
    found = slic(
        colours[:, :, 0] if gray else colours,
        n_segments=count,
        compactness=compactness / 100 if gray else compactness,  # grey is in [0, 1], the Lab colours of others in [0, 100]
        channel_axis=None if gray else -1,
        sigma=1,  # noise of single pixels would be merged into few, large regions
        start_label=0,
    )
    return _renumbered(torch.from_numpy(found.astype(np.int64))).to(image.device)


def _renumbered(regions: Tensor) -> Tensor:
    """Number regions from 0 without holes."""
    numbers: Tensor = torch.unique(regions, return_inverse=True)[1]
    return numbers.view(regions.shape)


def region_cliques(images: Arrays, regions: Arrays, weight: float = 50.0, eta: float = 1000.0) -> Cliques:
    r"""One clique a region of at least two pixels.

    Parameters
    ----------
    images : Tensor, numpy.ndarray or sequence of them
        ``(height, width, channels)`` each: colours from 0 to 255.
    regions : Tensor, numpy.ndarray or sequence of them
        ``(height, width)`` int64 each: :func:`superpixels`, :func:`~blocklp.problems.densecrf.mean_shift_regions`, or the regions of
        any other segmentation; negative for none.  Several segmentations, whose regions overlap, are a tensor
        ``(height, width, segmentations)``.
    weight : float
        :math:`\Gamma`, what breaking a region of one colour costs.
    eta : float
        Variance at which it costs 1 / e of that; variances are means over the channels, in squared units of the colours.

    Returns
    -------
    Cliques
        Over the points of :func:`~blocklp.problems.densecrf.image_crf` for these images.

    Raises
    ------
    OptionError
        If the weight is negative, eta is not positive, or something is no array.
    ShapeError
        If images and regions do not fit.
    """
    if not 0 <= weight < float("inf") or not 0 < eta:
        raise OptionError(f"weight is {weight} and eta {eta}; give a weight of at least 0 and a positive eta")
    pictures, areas = arrays(images, "images"), arrays(regions, "regions")
    if not pictures or len(pictures) != len(areas):
        raise ShapeError(f"there are {len(pictures)} images and {len(areas)} maps of regions; give one of each for every image")
    members, costs, first = list[Tensor](), list[Tensor](), 0
    for picture, area in zip(pictures, areas, strict=True):
        fit = area.dim() in (2, 3) and area.shape[:2] == picture.shape[:2] and 0 not in area.shape[2:]
        if picture.dim() != 3 or area.dtype != torch.int64 or not fit:
            raise ShapeError(
                f"an image has shape {tuple(picture.shape)} and its regions {area.dtype} {tuple(area.shape)}; give "
                "(height, width, channels) and int64 (height, width) or (height, width, segmentations)"
            )
        columns = []
        for flat in area.flatten(0, 1).reshape(area.shape[0] * area.shape[1], -1).T:
            member, variance = _variances(picture.double().flatten(0, 1), flat)
            columns.append(torch.where(member < 0, -1, member + first))
            costs.append(weight * torch.exp(-variance / eta))
            first += len(variance)
        members.append(columns[0] if area.dim() == 2 else torch.stack(columns, 1))
    if len({member.shape[1:] for member in members}) > 1:
        raise ShapeError("the images have different numbers of segmentations; fill up with regions of -1")
    return Cliques(torch.cat(members), torch.cat(costs))


def _variances(colours: Tensor, regions: Tensor) -> tuple[Tensor, Tensor]:
    """The clique of every pixel ``(pixels,)``, -1 for none, and the variances of the colours ``(pixels, channels)`` of each."""
    kept = regions >= 0
    kept[kept.clone()] = torch.bincount(regions[kept])[regions[kept]] > 1
    member = torch.full_like(regions, -1)
    member[kept] = _renumbered(regions[kept])
    count = int(member.max()) + 1
    size = torch.bincount(member[kept], minlength=count)[:, None]
    sums = colours.new_zeros(count, colours.shape[1])
    mean = sums.index_add(0, member[kept], colours[kept]) / size
    squares = (colours[kept] - mean[member[kept]]).square()
    return member, (sums.index_add(0, member[kept], squares) / size).mean(1)


def superpixel_cliques(
    images: Arrays,
    weight: float = 50.0,
    eta: float = 1000.0,
    count: int = 400,
    compactness: float = 10.0,
    time_limit: float | Deadline = math.inf,
) -> Cliques:
    """:func:`region_cliques` of the :func:`superpixels` of every image.

    Parameters
    ----------
    images : Tensor, numpy.ndarray or sequence of them
        ``(height, width, 3)`` each.
    weight, eta : float
        As in :func:`region_cliques`.
    count, compactness
        As in :func:`superpixels`.
    time_limit : float or Deadline
        Seconds for all images.
    """
    pictures, deadline = arrays(images, "images"), Deadline.of(time_limit)
    return region_cliques(pictures, [superpixels(picture, count, compactness, deadline) for picture in pictures], weight, eta)
