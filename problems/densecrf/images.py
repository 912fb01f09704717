"""From images and unaries to an energy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import OptionError, ShapeError
from blocklp.options import of_type, shown
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.kernel import Kernel
from blocklp.problems.densecrf.warm_up import loops_in_time

BUILDING = 1.5e-7
"""Seconds that it takes to find the vertices of a lattice, for every point and corner."""


def image_features(height: int, width: int, sxy: float, image: Tensor | None = None, srgb: float | None = None) -> Tensor:
    """Positions, and colours if given, in units of the kernel's widths (the parameters of pydensecrf).

    Parameters
    ----------
    height, width : int
        Size of the image.
    sxy : float
        Width in pixels.
    image : Tensor, optional
        ``(height, width, channels)``: colours from 0 to 255.
    srgb : float, optional
        Width in units of the colours.

    Returns
    -------
    Tensor
        ``(height * width, features)`` float64, row by row.

    Raises
    ------
    OptionError, ShapeError
        If a width is not positive, or the image has another size.
    """
    if image is not None and (image.dim() != 3 or tuple(image.shape[:2]) != (height, width)):
        raise ShapeError(f"the image has shape {tuple(image.shape)}; give ({height}, {width}, channels)")
    return grid_features((height, width), sxy, image, srgb)


def grid_features(
    shape: Sequence[int], sxy: float | Sequence[float], image: Tensor | None = None, srgb: float | None = None
) -> Tensor:
    """Positions on a grid of any dimension, and colours if given, in units of the kernel's widths.

    Parameters
    ----------
    shape : sequence of int
        Size of the grid, such as depth, height and width of a volume.
    sxy : float or sequence of float
        Width in grid points, one for all axes or one for each in the order of the shape.
    image : Tensor, optional
        ``(*shape, channels)``: colours.
    srgb : float, optional
        Width in units of the colours.

    Returns
    -------
    Tensor
        ``(points, axes + channels)`` float64, the last axis of the shape first, as x is before y.

    Raises
    ------
    OptionError, ShapeError
        If a width is not positive, there are too few or too many, or the image has another size.
    """
    given = torch.as_tensor(sxy, dtype=torch.float64)
    widths: list[float] = (given if given.dim() else given.expand(len(shape))).tolist()
    if len(widths) != len(shape):
        raise ShapeError(f"sxy has {len(widths)} widths for a grid of {len(shape)} axes; give one number, or one for each axis")
    for name, value in (*(("sxy", width) for width in widths), ("srgb", srgb)):
        if value is not None and not 0 < value < float("inf"):
            raise OptionError(f"{name} is {value:g}; a kernel's width must be positive and finite")
    if (image is None) != (srgb is None):
        raise OptionError("give image and srgb together: colours need a width")
    axes = torch.meshgrid(*(torch.arange(size) for size in shape), indexing="ij")
    features = torch.stack([axis.double() / width for axis, width in zip(axes[::-1], widths[::-1], strict=True)], -1)
    if image is not None and srgb is not None:
        if tuple(image.shape[:-1]) != tuple(shape):
            raise ShapeError(f"the image has shape {tuple(image.shape)}; give {tuple(shape)} and the channels")
        features = torch.cat([features.to(image.device), image.double() / srgb], -1)
    return features.flatten(0, -2)


def image_crf(
    images: ArrayLike | Tensor | Sequence[Tensor],
    unaries: ArrayLike | Tensor | Sequence[Tensor],
    *,
    smooth: tuple[float | Sequence[float], float] | None = (3.0, 3.0),
    bilateral: tuple[float | Sequence[float], float, float] | None = (80.0, 13.0, 10.0),
    normalise: bool = True,
    exact: bool = False,
    compatibility: Tensor | None = None,
    time_limit: float | Deadline = math.inf,
) -> DenseCRF:
    """The usual energy of one image, or of several of any sizes in one batch: one smoothness and one bilateral kernel.

    Parameters
    ----------
    images : Tensor, array_like or sequence of them
        ``(height, width, channels)`` each: colours from 0 to 255; of volumes ``(depth, height, width, channels)``, and so on for
        grids of any dimension.
    unaries : Tensor, array_like or sequence of them
        ``(height, width, labels)``, or ``(depth, height, width, labels)``, each: costs, minus log-probabilities as a rule, in
        floating point or in whole numbers, which become float64; not in uint8, as images are.  The energy lies on their device,
        wherever the images do.
    smooth : pair of float or None
        ``(sxy, weight)`` of the smoothness kernel; None for none.  A width for each axis, in the order of the axes, may stand for
        sxy: slices of a volume are often further apart than pixels.
    bilateral : triple of float or None
        ``(sxy, srgb, weight)`` of the bilateral kernel, sxy as for the smoothness kernel; None for none.
    normalise : bool
        Whether the kernels are normalised symmetrically, as pydensecrf does.
    exact : bool
        Whether the kernels are the Gaussians themselves, for up to some ten thousand points in all.
    compatibility : Tensor, optional
        ``(labels, labels)`` for both kernels; the Potts model by default.
    time_limit : float or Deadline
        Seconds after which to give up.

    Raises
    ------
    ShapeError, OptionError
        If there are not as many unaries as images, they have other sizes, or something is no array or no kernel.
    TimeLimitError
        If the lattices cannot be built in time.
    """
    deadline = Deadline.of(time_limit)
    pictures, costs = arrays(images, "images"), [_costs(cost) for cost in arrays(unaries, "unaries")]
    for name, given, parts in (("smooth", smooth, "(sxy, weight)"), ("bilateral", bilateral, "(sxy, srgb, weight)")):
        if given is not None and (not isinstance(given, Sequence) or len(given) != parts.count(",") + 1):
            raise OptionError(f"{name} is {shown(given)}; give {parts}, or None for no such kernel")
    if not pictures or len(pictures) != len(costs):
        raise ShapeError(f"there are {len(pictures)} images and {len(costs)} unaries; give one of each for every image")
    for picture, cost in zip(pictures, costs, strict=True):
        if picture.dim() < 3 or picture.dim() != cost.dim() or picture.shape[:-1] != cost.shape[:-1]:
            raise ShapeError(
                f"an image has shape {tuple(picture.shape)} and its unaries {tuple(cost.shape)}; give (height, width, channels) "
                "and (height, width, labels), or the same with a depth before"
            )
        if cost.shape[-1] != costs[0].shape[-1] or cost.dim() != costs[0].dim():
            raise ShapeError(
                f"unaries of one batch have shapes {tuple(costs[0].shape)} and {tuple(cost.shape)}; give as many labels and axes"
            )
    sizes = torch.tensor([math.prod(p.shape[:-1]) for p in pictures])
    image = torch.arange(len(pictures)).repeat_interleave(sizes).to(costs[0].device) if len(pictures) > 1 else None

    def kernel(weight: float, features: list[Tensor]) -> Kernel:
        points = _join(features).to(costs[0].device)
        if exact:
            return Kernel(Gaussian(points, image), weight, normalise, compatibility)
        with loops_in_time(deadline, costs[0]):
            deadline.check("building a lattice", BUILDING * (points.numel() + len(points)))
            return Kernel(Lattice.build(points, image), weight, normalise, compatibility)

    kernels = []
    if smooth is not None:
        sxy, weight = smooth
        kernels.append(kernel(weight, [grid_features(p.shape[:-1], sxy) for p in pictures]))
    if bilateral is not None:
        sxy, srgb, weight = bilateral
        if srgb > 1 and all(p.is_floating_point() and bool((p <= 1).all()) for p in pictures):
            told = f"no colour is above 1, and srgb is {srgb:g}: colours go from 0 to 255, so that the kernel sees hardly any"
            warnings.warn(f"{told}; give 255 * image", stacklevel=2)
        kernels.append(kernel(weight, [grid_features(p.shape[:-1], sxy, p, srgb) for p in pictures]))
    return DenseCRF(_join([c.flatten(0, -2) for c in costs]), tuple(kernels), image)


def _costs(given: Tensor) -> Tensor:
    """Costs in floating point; whole numbers become float64."""
    if given.is_floating_point():
        return given
    if given.is_complex() or given.dtype in (torch.bool, torch.uint8):
        need = "give floating-point costs of labels, or signed integers, and images before them"
        raise ShapeError(f"unaries are {given.dtype}; {need}")
    return given.double()


def arrays(given: Any, name: str) -> list[Tensor]:
    """Images, unaries or maps of regions, of one image or of several, as tensors.

    Parameters
    ----------
    given : Tensor, numpy.ndarray or sequence of them
        What a caller gave; arrays share their memory with the tensors.
    name : str
        What they are called in messages.

    Raises
    ------
    OptionError
        If it is neither an array nor a list of arrays.
    """
    several = [given] if isinstance(given, Tensor | np.ndarray) else given
    of_type(several, list | tuple, name, "an array, or a list of them")
    for number, own in enumerate(several):
        of_type(own, Tensor | np.ndarray, f"{name}[{number}]", "a numpy array or a tensor, as an image reader makes it")
    return [torch.as_tensor(own) for own in several]


def _join(parts: list[Tensor]) -> Tensor:
    """One after another; one alone is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
