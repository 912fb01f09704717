"""Violations of sides and bounds, relative to the numbers that they are made of."""

from __future__ import annotations

import torch
from torch import Tensor


def known_empty(mask: Tensor) -> bool:
    """Whether a mask is known to hold nothing: only a CPU is asked, where nobody waits."""
    return mask.device.type == "cpu" and not bool(mask.any())


def relative_excess(excess: Tensor, side: Tensor, terms: Tensor, size: Tensor) -> Tensor:
    """Positive part of a violation, relative to its side or to the terms of its row.

    Parameters
    ----------
    excess : Tensor
        How far a value is beyond its side; all arguments are of shapes that broadcast.
    side : Tensor
        Magnitude of the side.
    terms : Tensor
        Magnitude of the terms of the row; the larger one of ``side`` and ``terms`` is the scale.
    size : Tensor
        The scale where ``side`` is zero.

    Returns
    -------
    Tensor
        Zero where nothing is violated, infinite where something is and the scale is zero.
    """
    outside = excess > 0
    if known_empty(outside):  # as a rule
        views = torch.broadcast_tensors(excess, side, terms, size)  # type: ignore[no-untyped-call]
        return excess.new_zeros(()).expand(views[0].shape)
    scale = torch.where(side > 0, torch.maximum(side, terms), size)
    return torch.where(outside, excess / scale, 0.0)


def distance_outside(values: Tensor, lower: Tensor, upper: Tensor, terms: Tensor) -> Tensor:
    """How far values are outside their sides, relative to the side or the terms, whichever is more.

    Parameters
    ----------
    values, lower, upper : Tensor
        The values and their sides; all arguments are of shapes that broadcast.
    terms : Tensor
        Magnitudes of the terms of the values.

    Returns
    -------
    Tensor
        In the common shape: zero within the sides.
    """
    below = relative_excess(lower - values, torch.maximum(lower.abs(), terms), terms, terms)
    above = relative_excess(values - upper, torch.maximum(upper.abs(), terms), terms, terms)
    return torch.maximum(below, above)
