"""Smooth functions of one variable, and the sign: values, and where they are convex and concave."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Piece = tuple[float, float]

ULPS = 16
"""Units in the last place that values of a curve, and slopes, are charged, relative to their ``size``.

Libraries state 1 to 2 for exp, log1p, tanh and erf; formulas here take a handful of operations more.
"""

WHOLE: Piece = (-math.inf, math.inf)

NEWTON = 2
"""Steps to a point of given slope from where a table says that it is about."""

KNOTS, REACH = 1024, 40.0
"""Numbers of a table, and up to where its points are; curves are straight beyond."""

SILU_BEND = 2.399357280515467
"""Where x tanh(x / 2) = 2."""


class Curve:
    """A function of one variable, with two derivatives; all methods work element by element.

    Attributes
    ----------
    name : str
        What messages call it.
    convex, concave : tuple of pairs of float
        Ascending pieces on which it is convex, and concave: together the whole line.
    rounded : bool
        Whether ends of pieces are rounded to the precision.
    bounded : bool
        Whether its values are between -1 and 1.
    cut : float
        How far torch's own function is from it, but for rounding.
    jumps : bool
        Whether it is constant on both sides of zero, and jumps there.
    """

    name = ""
    convex: tuple[Piece, ...] = ()
    concave: tuple[Piece, ...] = ()
    rounded = False
    bounded = False
    cut = 1e-30
    jumps = False

    def value(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        raise NotImplementedError

    def slope(self, x: Tensor) -> Tensor:
        """Return the derivative of f."""
        raise NotImplementedError

    def touching(self, x: Tensor, price: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Return the value at x that costs least: f(x), or at a jump what f tends to within an interval.

        Parameters
        ----------
        x, price : Tensor
            The points, and costs of values.
        lower, upper : Tensor
            Ends of the intervals.
        """
        return self.value(x)

    def ascent(self, x: Tensor) -> Tensor:
        """Return what a search that follows gradients takes for the derivative."""
        return self.slope(x)

    def size(self, x: Tensor, value: Tensor) -> Tensor:
        """Return what errors of ``value`` are relative to, for x and f(x)."""
        return value.abs()

    def slope_size(self, x: Tensor, slope: Tensor) -> Tensor:
        """Return what errors of ``slope`` are relative to, for x and the derivative there."""
        return slope.abs()

    def largest(self, widest: Tensor) -> Tensor:
        """Return a bound on the magnitude of f between ``-widest`` and ``widest``, at least 1."""
        return torch.ones_like(widest) if self.bounded else widest + 1

    def at_slope(self, slope: Tensor, sign: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Return about where f has a slope, within parts ``lower`` to ``upper`` of pieces.

        Parameters
        ----------
        slope : Tensor
            The slopes.
        sign : Tensor
            1 where the piece is convex, -1 where it is concave.
        lower, upper : Tensor
            Ends of these parts; results need not keep within.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<curve {self.name}>"


class _Step(Curve):
    """A bounded curve, convex up to zero and concave from there on."""

    convex = ((-math.inf, 0.0),)
    concave = ((0.0, math.inf),)
    bounded = True


class Sigmoid(_Step):
    """The logistic function 1 / (1 + exp(-x))."""

    name = "sigmoid"

    def value(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        return torch.sigmoid(x)

    def slope(self, x: Tensor) -> Tensor:
        """Return the derivative, without cancellation."""
        return torch.sigmoid(x) * torch.sigmoid(-x)

    def at_slope(self, slope: Tensor, sign: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Return the logit of the smaller root y of y (1 - y) = slope, or its mirror image.

        Parameters
        ----------
        slope, sign, lower, upper : Tensor
            As in :meth:`Curve.at_slope`.
        """
        slope = slope.clamp(torch.finfo(slope.dtype).tiny, 0.25)
        root = 2 * slope / (1 + (1 - 4 * slope).clamp(min=0).sqrt())
        return sign * (root.log() - torch.log1p(-root))


class Tanh(_Step):
    """The hyperbolic tangent."""

    name = "tanh"

    def value(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        return torch.tanh(x)

    def slope(self, x: Tensor) -> Tensor:
        """Return the derivative, by the logistic function and so without cancellation."""
        return 4 * torch.sigmoid(2 * x) * torch.sigmoid(-2 * x)

    def at_slope(self, slope: Tensor, sign: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Return that of the logistic function, since tanh(x) = 2 sigmoid(2 x) - 1.

        Parameters
        ----------
        slope, sign, lower, upper : Tensor
            As in :meth:`Curve.at_slope`.
        """
        return CURVES["sigmoid"].at_slope(slope / 4, sign, lower, upper) / 2


class Erf(_Step):
    """The error function."""

    name = "erf"

    def value(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        return torch.erf(x)

    def slope(self, x: Tensor) -> Tensor:
        """Return the derivative."""
        return (2 / math.sqrt(math.pi)) * (-x * x).exp()

    def slope_size(self, x: Tensor, slope: Tensor) -> Tensor:
        """Return more than the slope: the square in the exponent is rounded."""
        return slope * (1 + torch.where(slope > 0, x * x, 0.0))

    def at_slope(self, slope: Tensor, sign: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Invert the derivative.

        Parameters
        ----------
        slope, sign, lower, upper : Tensor
            As in :meth:`Curve.at_slope`.
        """
        share = (slope * (math.sqrt(math.pi) / 2)).clamp(torch.finfo(slope.dtype).tiny, 1.0)
        return -sign * (-share.log()).sqrt()


class Softplus(Curve):
    """The integral log(1 + exp(x)) of the logistic function."""

    name = "softplus"
    convex = (WHOLE,)
    cut = math.exp(-20)

    def value(self, x: Tensor) -> Tensor:
        """Return f(x); torch's own is x from 20 on, and off by 2e-9 there."""
        return x.clamp(min=0) + torch.log1p((-x.abs()).exp())

    def slope(self, x: Tensor) -> Tensor:
        """Return the derivative."""
        return torch.sigmoid(x)

    def at_slope(self, slope: Tensor, sign: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Return the logit.

        Parameters
        ----------
        slope, sign, lower, upper : Tensor
            As in :meth:`Curve.at_slope`.
        """
        numbers = torch.finfo(slope.dtype)
        slope = slope.clamp(numbers.tiny, 1 - numbers.eps)
        return slope.log() - torch.log1p(-slope)


class Gated(Curve):
    """A product of x and a distribution function that is symmetric: slopes at x and -x have sum 1.

    It is convex around zero and concave beyond.
    """

    def __init__(self) -> None:
        self._tables: dict[tuple[torch.dtype, torch.device], tuple[Tensor, ...]] = {}

    def curvature(self, x: Tensor) -> Tensor:
        """Return the second derivative of f."""
        raise NotImplementedError

    def slope_size(self, x: Tensor, slope: Tensor) -> Tensor:
        """Return more than the terms of the slope."""
        return torch.full_like(slope, 2.0)

    def at_slope(self, slope: Tensor, sign: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Look slopes up in a table, and improve by Newton's method.

        Parameters
        ----------
        slope, sign, lower, upper : Tensor
            As in :meth:`Curve.at_slope`.
        """
        centre, centre_slopes, outer, outer_slopes = self._table(slope)
        right = lower >= 0
        x = torch.where(right, 1.0, -1.0) * _interpolated(
            torch.where(right, -slope, slope - 1), outer_slopes, outer
        )
        x = torch.where(sign > 0, _interpolated(slope, centre_slopes, centre), x)
        for _ in range(NEWTON):
            step = (self.slope(x) - slope) / self.curvature(x)
            x = x - step.nan_to_num(0.0).clamp(-0.1, 0.1)
        return x

    def _table(self, like: Tensor) -> tuple[Tensor, ...]:
        """Ascending points of the convex piece and their slopes, of the right one and theirs, negated."""
        place = like.dtype, like.device
        if place not in self._tables:
            bend = self.convex[0][1]
            share = torch.linspace(0, 1, KNOTS, dtype=torch.float64)
            centre, outer = bend * (2 * share - 1), bend + (REACH - bend) * share**2
            made = centre, self.slope(centre), outer, -self.slope(outer)
            self._tables[place] = tuple(t.to(*place[::-1]).contiguous() for t in made)
        return self._tables[place]


def _interpolated(value: Tensor, values: Tensor, points: Tensor) -> Tensor:
    """Invert a function by ascending values at points; beyond them, their ends."""
    after = torch.searchsorted(values, value.contiguous()).clamp(1, len(values) - 1)
    low, high = values[after - 1], values[after]
    share = ((value - low) / (high - low)).nan_to_num(0.0).clamp(0, 1)
    return torch.lerp(points[after - 1], points[after], share)


class Silu(Gated):
    """The product x sigmoid(x)."""

    name = "silu"
    convex = ((-SILU_BEND, SILU_BEND),)
    concave = ((-math.inf, -SILU_BEND), (SILU_BEND, math.inf))
    rounded = True

    def value(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        return x * torch.sigmoid(x)

    def slope(self, x: Tensor) -> Tensor:
        """Return the derivative."""
        s = torch.sigmoid(x)
        return s + x * s * torch.sigmoid(-x)

    def curvature(self, x: Tensor) -> Tensor:
        """Return the second derivative."""
        s, t = torch.sigmoid(x), torch.sigmoid(-x)
        return s * t * (2 + x * (t - s))


class Gelu(Gated):
    """The product of x and the normal distribution function."""

    name = "gelu"
    convex = ((-math.sqrt(2), math.sqrt(2)),)
    concave = ((-math.inf, -math.sqrt(2)), (math.sqrt(2), math.inf))
    rounded = True

    def value(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        return x * (0.5 * torch.erfc(x * -math.sqrt(0.5)))

    def slope(self, x: Tensor) -> Tensor:
        """Return the derivative."""
        return 0.5 * torch.erfc(x * -math.sqrt(0.5)) + x * self._density(x)

    def size(self, x: Tensor, value: Tensor) -> Tensor:
        """Return x: the argument of the distribution function is rounded."""
        return x.abs()

    def curvature(self, x: Tensor) -> Tensor:
        """Return the second derivative."""
        return self._density(x) * (2 - x * x)

    def _density(self, x: Tensor) -> Tensor:
        return math.sqrt(0.5 / math.pi) * (-0.5 * x * x).exp()


class Square(Curve):
    """The square, of which products of two variables are made."""

    name = "square"
    convex = (WHOLE,)

    def value(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        return x * x

    def slope(self, x: Tensor) -> Tensor:
        """Return the derivative."""
        return 2 * x

    def largest(self, widest: Tensor) -> Tensor:
        """Return that at the largest x, and a little more."""
        return widest * widest + 1

    def at_slope(self, slope: Tensor, sign: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Return half of it.

        Parameters
        ----------
        slope, sign, lower, upper : Tensor
            As in :meth:`Curve.at_slope`.
        """
        return slope / 2


CURVES: dict[str, Curve] = {
    curve.name: curve for curve in (Sigmoid(), Tanh(), Erf(), Softplus(), Silu(), Gelu(), Square())
}
"""All smooth curves, by name."""


class Sign(Curve):
    """The sign: -1, 0 or 1; convex and concave nowhere around its jump."""

    name = "sign"
    bounded = True
    cut = 0.0
    jumps = True

    def value(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        return torch.sign(x)

    def slope(self, x: Tensor) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(x)

    def touching(self, x: Tensor, price: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Return at zero -1 or 1, too, if there are points below it, or above.

        Parameters
        ----------
        x, price, lower, upper : Tensor
            As in :meth:`Curve.touching`.
        """
        at_zero = torch.where(price > 0, torch.where(lower < 0, -1.0, 0.0), torch.where(upper > 0, 1.0, 0.0))
        return torch.where(x == 0, at_zero.to(x), torch.sign(x))

    def ascent(self, x: Tensor) -> Tensor:
        """Return that of x / (1 + abs(x)): a derivative of zero leads nowhere."""
        return (1 + x.abs()) ** -2

    def size(self, x: Tensor, value: Tensor) -> Tensor:
        """Return zeros: values are exact."""
        return torch.zeros_like(x)


SIGN = Sign()

BESIDE_ZERO = float(torch.finfo(torch.float32).tiny)
"""End of an interval that begins beside zero, where a sign is constant, and stands for all beyond zero."""
