r"""Lines that are certainly below or above functions of one variable.

A :class:`~blocklp.oracles.curves.Curve` is convex on some pieces of the line and concave on the others. The
minimum of :math:`g(x) = c_x x + c_y f(x)` over an interval is then at an end of it, or where
:math:`f'(x) = - c_x / c_y` in a piece on which :math:`c_y f` is convex. There, any point p gives a bound:

.. math:: g(x) \ge g(p) + (c_x + c_y f'(p)) (x - p)

for all x of the piece, so that p may be found by any means; what it is off is charged by its slope. Rounding
of f, of its derivative, and of all of this is charged too. If f jumps, the minimum is there or at an end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blocklp.oracles.curves import ULPS, Curve, Piece

NOWHERE: Piece = (math.inf, -math.inf)

BISECTIONS = 12
"""Steps towards an end of a piece of an envelope that is a line: its slope need not be exact."""

EDGE = 0.05
"""Least share of an interval that is cut off."""


def minimum(
    curve: Curve, of_x: Tensor, of_value: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Minimise :math:`c_x x + c_y f(x)` over intervals.

    Parameters
    ----------
    curve : Curve
        f.
    of_x, of_value : Tensor
        :math:`c_x` and :math:`c_y`; all tensors broadcast.
    lower, upper : Tensor
        Ends of the intervals.

    Returns
    -------
    x : Tensor
        About where the minimum is, in the interval.
    value : Tensor
        A lower bound of it in exact arithmetic, by a few roundings; NaN or minus infinity where numbers
        leave the range of the precision.
    """
    numbers = torch.finfo(of_x.dtype)
    unit, tiny = ULPS * numbers.eps, ULPS * numbers.tiny
    weight, price = of_value.abs(), of_x.abs()
    least = tiny * (((weight > 0) | (price > 0)) + weight)  # for what underflows, unless all is zero
    if curve.rounded:
        least = least + unit * (weight + price)

    def bound(x: Tensor) -> Tensor:
        value = curve.touching(x, of_value, lower, upper)
        terms = of_x * x
        return terms + of_value * value - unit * (terms.abs() + weight * curve.size(x, value)) - least

    points, values = [lower, upper], [bound(lower), bound(upper)]
    if curve.jumps:
        points.append(torch.zeros_like(lower).clamp(lower, upper))
        values.append(bound(points[-1]))
    below = [*values]
    sign = torch.where(of_value < 0, -1.0, 1.0).to(of_x)
    slope = (-of_x / of_value).nan_to_num(0.0)
    for number in range(max(len(curve.convex), len(curve.concave))):
        convex, concave = (_part(pieces, number, lower, upper) for pieces in (curve.convex, curve.concave))
        low, high = (torch.where(sign > 0, one, other) for one, other in zip(convex, concave, strict=True))
        x = torch.maximum(torch.minimum(curve.at_slope(slope, sign, low, high), high), low)
        rise = curve.slope(x)
        off, doubt = of_x + of_value * rise, unit * (price + weight * curve.slope_size(x, rise)) + least
        left = torch.where(x > low, (doubt + off).clamp(min=0) * (x - low), 0.0)
        right = torch.where(x < high, (doubt - off).clamp(min=0) * (high - x), 0.0)
        points.append(x)
        values.append(torch.where(low < high, bound(x), torch.inf))
        # A little more, for the rounding of these products.
        below.append(values[-1] - (1 + unit) * torch.maximum(left, right))
    every, places = _stack(values), _stack([*points, of_x])[:-1]
    return places.gather(0, every.argmin(0, keepdim=True))[0], _stack(below).amin(0)


def extremes(curve: Curve, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Bound the values of a curve over intervals, which may be infinite.

    Parameters
    ----------
    curve : Curve
        The curve.
    lower, upper : Tensor
        Ends of the intervals.

    Returns
    -------
    tuple of Tensor
        Lower and upper bounds; infinite where nothing is known.
    """
    one = torch.ones((), dtype=lower.dtype, device=lower.device)
    # Products of infinity and zero would be no numbers; beyond, curves that are bounded are level.
    far = torch.finfo(lower.dtype).max ** 0.4
    low, high = lower.clamp(-far, far), upper.clamp(-far, far)
    least, greatest = (sign * minimum(curve, 0 * one, sign * one, low, high)[1] for sign in (1, -1))
    open_ = low.isnan() | high.isnan() | (low != lower) | (high != upper)
    if not curve.bounded:
        least, greatest = least.masked_fill(open_, -torch.inf), greatest.masked_fill(open_, torch.inf)
    most = greatest.nan_to_num(torch.inf, torch.inf, torch.inf)
    return least.nan_to_num(-torch.inf, torch.inf, -torch.inf), most


@dataclass(frozen=True)
class SlopeRange:
    """Slopes of the lines that touch a curve over intervals from below, or from above.

    Attributes
    ----------
    least : Tensor
        Of lines that touch it at one end of the interval; lesser ones are no better within.
    middle : Tensor
        Of the line that is nearest to the curve in the middle of the interval.
    most : Tensor
        As ``least``, at the other end.
    """

    least: Tensor
    middle: Tensor
    most: Tensor


def slope_range(curve: Curve, above: bool, lower: Tensor, upper: Tensor) -> SlopeRange:
    """Find the slopes of lines that touch a curve; they are approximate.

    Parameters
    ----------
    curve, lower, upper
        As in :func:`extremes`.
    above : bool
        Whether of lines above it.
    """
    if curve.jumps:
        return _jump_slopes(above, lower, upper)
    pieces = curve.concave if above else curve.convex
    middle, chord = lower / 2 + upper / 2, _chord(curve, lower, upper)
    ends = [_end_slope(curve, pieces, above, side, chord, lower, upper) for side in (0, 1)]
    least, most = torch.minimum(*ends), torch.maximum(*ends)
    at_middle = curve.slope(middle)
    inside, left, right = (torch.zeros_like(chord, dtype=torch.bool) for _ in range(3))
    for number, (start, end) in enumerate(pieces):
        low, high = _part(pieces, number, lower, upper)
        there = low < high
        inside |= (start <= middle) & (middle <= end)
        left |= there & (end < middle)
        right |= there & (start > middle)
    straight = torch.where(left & ~right, ends[1], torch.where(right & ~left, ends[0], chord))
    chosen = torch.where(inside, at_middle, straight)
    return SlopeRange(least, torch.minimum(torch.maximum(chosen, least), most), most)


def split_point(curve: Curve, lower: Tensor, upper: Tensor) -> Tensor:
    """Return where to cut intervals: between the points where lines parallel to the chord touch the curve.

    Parameters
    ----------
    curve, lower, upper
        As in :func:`extremes`.
    """
    middle, chord, width = lower / 2 + upper / 2, _chord(curve, lower, upper), upper - lower
    one = torch.ones_like(chord)
    touching = [minimum(curve, -sign * chord, sign * one, lower, upper)[0] for sign in (1, -1)]
    # At an end, the line is the chord itself.
    inner = [(x > lower + EDGE * width) & (x < upper - EDGE * width) for x in touching]
    first, second = (torch.where(is_inner, x, middle) for is_inner, x in zip(inner, touching, strict=True))
    both = first / 2 + second / 2
    cut = torch.where(inner[0] & ~inner[1], first, torch.where(inner[1] & ~inner[0], second, both))
    return torch.minimum(torch.maximum(cut, lower + EDGE * width), upper - EDGE * width)


def _jump_slopes(above: bool, lower: Tensor, upper: Tensor) -> SlopeRange:
    """Slopes of lines at the sign: 0, and from its jump to an end; 0 where it is constant."""
    far, near = (-lower, upper) if above else (upper, -lower)  # from the jump
    height = (near > 0).to(lower) + 1
    # An end next to zero: any slope gives a line, and this one a finite one.
    steep = (height / far.clamp(min=torch.finfo(far.dtype).tiny ** 0.5)).masked_fill(
        (far <= 0) | (near < 0), 0.0
    )
    # At its other end, the one with values of its own, the interval has lines of slope 0.
    level = torch.where(near > 0, 0.0, steep)
    return SlopeRange(level, torch.where(far > near, steep, level), steep)


def _chord(curve: Curve, lower: Tensor, upper: Tensor) -> Tensor:
    """Slope of the line through both ends; of the curve, where they are too near."""
    middle, width = lower / 2 + upper / 2, upper - lower
    short = width <= 1e-3 * (1 + middle.abs()) * torch.finfo(width.dtype).eps ** 0.5
    chord = (curve.value(upper) - curve.value(lower)) / torch.where(short, 1.0, width)
    return torch.where(short, curve.slope(middle), chord)


def _end_slope(
    curve: Curve,
    pieces: Sequence[Piece],
    above: bool,
    side: int,
    chord: Tensor,
    lower: Tensor,
    upper: Tensor,
) -> Tensor:
    """Slope of the envelope at one end: that of the chord, of a tangent through the end, or of the curve."""
    end = (lower, upper)[side]
    value, best = curve.value(end), chord
    for number, (start, stop) in enumerate(pieces):
        low, high = _part(pieces, number, lower, upper)
        there, slope = low < high, curve.slope(end)
        if not math.isinf((start, stop)[side]):
            # From outside of the piece, a tangent to it.
            below, beyond = low, high
            for _ in range(BISECTIONS):
                x = below / 2 + beyond / 2
                off = value - curve.value(x) - curve.slope(x) * (end - x)
                further = (off > 0) ^ above ^ (side == 0)
                below, beyond = torch.where(further, x, below), torch.where(further, beyond, x)
            x = below / 2 + beyond / 2
            inside = (start <= end) & (end <= stop)
            slope = torch.where(inside, slope, (value - curve.value(x)) / torch.where(inside, 1.0, end - x))
        better = torch.maximum(best, slope) if (side == 1) ^ above else torch.minimum(best, slope)
        best = torch.where(there, better, best)
    return best


def _part(pieces: Sequence[Piece], number: int, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of the part of intervals in one of some pieces; crossed if it is empty, or there are no more."""
    start, end = pieces[number] if number < len(pieces) else NOWHERE
    return torch.maximum(lower, lower.new_tensor(start)), torch.minimum(upper, upper.new_tensor(end))


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors that broadcast."""
    shape = np.broadcast_shapes(*(tuple(t.shape) for t in tensors))
    return torch.stack([t.expand(shape) for t in tensors])
