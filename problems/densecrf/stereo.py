"""Stereo: the disparity of every pixel of the left of two rectified images.

A pixel at column x of the left image with disparity d is at column x - d of the right one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import OptionError, ShapeError
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.images import image_crf


def matching_costs(
    left: Tensor, right: Tensor, disparities: int, truncation: float = 20.0, time_limit: float | Deadline = math.inf
) -> Tensor:
    """How badly pixels match: absolute differences that ignore the sampling (Birchfield & Tomasi 1998), truncated.

    A pixel is compared with all that linear interpolation puts within half a pixel of its match, and the other way round; the
    smaller difference counts.

    Parameters
    ----------
    left, right : Tensor
        ``(height, width, channels)``: colours from 0 to 255; differences are means over the channels.
    disparities : int
        Number of labels: disparities 0, 1, ...
    truncation : float
        The largest cost, and that of a match outside of the right image.
    time_limit : float or Deadline
        Seconds after which to give up.

    Returns
    -------
    Tensor
        ``(height, width, disparities)`` float32: unaries.

    Raises
    ------
    ShapeError
        If the images differ in shape.
    OptionError
        If the images are too narrow for so many disparities, or a number is not positive.
    TimeLimitError
        If the time limit is reached.
    """
    deadline = Deadline.of(time_limit)
    if left.dim() != 3 or left.shape != right.shape:
        raise ShapeError(
            f"the left image has shape {tuple(left.shape)} and the right {tuple(right.shape)}; give two of (height, width, channels)"
        )
    height, width, _ = left.shape
    if not 2 <= disparities <= width:
        raise OptionError(f"there are {disparities} disparities; images {width} pixels wide take 2 to {width}")
    if not 0 < truncation < float("inf"):
        raise OptionError(f"truncation is {truncation}; give a positive number")
    left, right = left.float(), right.float()
    costs = torch.full((height, width, disparities), float(truncation), device=left.device)
    (low_left, high_left), (low_right, high_right) = _reach(left), _reach(right)
    for d in range(disparities):
        deadline.check("comparing the images")
        here, there = slice(d, width), slice(0, width - d)
        one = _outside(left[:, here], low_right[:, there], high_right[:, there])
        other = _outside(right[:, there], low_left[:, here], high_left[:, here])
        costs[:, here, d] = torch.minimum(one, other).mean(2).clamp(max=truncation)
    return costs


def _reach(image: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest colour within half a pixel to the left and right of every pixel."""
    before = (image + torch.cat([image[:, :1], image[:, :-1]], 1)) / 2
    after = (image + torch.cat([image[:, 1:], image[:, -1:]], 1)) / 2
    return torch.minimum(image, torch.minimum(before, after)), torch.maximum(image, torch.maximum(before, after))


def _outside(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Distance of values from intervals."""
    return torch.maximum(values - high, low - values).clamp(min=0)


def truncated_linear(labels: int, most: float) -> Tensor:
    r"""The compatibility :math:`\min(|i - j|, t)`, a metric: ``(labels, labels)`` float64.

    Raises
    ------
    OptionError
        If ``most`` is not positive.
    """
    if not 0 < most < float("inf"):
        raise OptionError(f"the largest cost is {most}; give a positive number")
    at = torch.arange(labels, dtype=torch.float64)
    return (at[:, None] - at).abs().clamp(max=most)


def stereo_crf(
    left: Tensor,
    right: Tensor,
    disparities: int,
    *,
    truncation: float = 20.0,
    most: float | None = 2.0,
    smooth: tuple[float, float] | None = (3.0, 10.0),
    bilateral: tuple[float, float, float] | None = (10.0, 10.0, 10.0),
    time_limit: float | Deadline = math.inf,
) -> DenseCRF:
    """The energy of a stereo pair: :func:`matching_costs` and the kernels of :func:`~blocklp.problems.densecrf.image_crf`.

    Parameters
    ----------
    left, right, disparities, truncation
        As for :func:`matching_costs`.
    most : float or None
        Where the cost of two disparities, linear in their difference, ends; None for the Potts model.
    smooth, bilateral : tuple of float or None
        As for :func:`~blocklp.problems.densecrf.image_crf`, over the left image.
    time_limit : float or Deadline
        Seconds after which to give up.

    Raises
    ------
    ShapeError, OptionError, TimeLimitError
        As these functions do.
    """
    deadline = Deadline.of(time_limit)
    costs = matching_costs(left, right, disparities, truncation, deadline)
    compatibility = None if most is None else truncated_linear(disparities, most)
    return image_crf(left, costs, smooth=smooth, bilateral=bilateral, compatibility=compatibility, time_limit=deadline)


def bad_pixels(found: Tensor, truth: Tensor, tolerance: float = 1.0) -> float:
    """Share of the pixels with known truth whose disparity is off by more than a tolerance (Scharstein & Szeliski 2002).

    Parameters
    ----------
    found : Tensor
        ``(height, width)``: disparities.
    truth : Tensor
        ``(height, width)``: true disparities, 0 where unknown.
    tolerance : float
        In pixels.

    Raises
    ------
    ShapeError
        If the sizes differ.
    OptionError
        If no truth is known.
    """
    if found.shape != truth.shape:
        raise ShapeError(f"disparities are {tuple(found.shape)} and the truth {tuple(truth.shape)}; give maps of one size")
    known = truth > 0
    if not bool(known.any()):
        raise OptionError("the truth is 0 everywhere, which is unknown; give another file")
    return float(((found.double() - truth.double()).abs()[known] > tolerance).double().mean())
