r"""Activations of neural networks: convex hulls of graphs of sigmoids and the like, and of the sign."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from blocklp.blocks.block_data import as_block_data
from blocklp.blocks.contract import BlockType
from blocklp.errors import ModelError, ShapeError
from blocklp.oracles.curve_lines import minimum
from blocklp.oracles.curves import CURVES, SIGN, ULPS, Curve
from blocklp.rounding import roundoff


class CurveHull(BlockType):
    r"""The convex hull of :math:`\{(z, f(z)) : lower \le z \le upper\}`, one activation a block.

    Its minimum for a linear cost is that of one variable: at an end of the interval, or where the derivative
    of f is minus the ratio of the costs, by a formula or Newton's method. The value is never above the
    minimum in exact arithmetic: what such a point is off, and rounding, is taken off
    (:func:`blocklp.oracles.curve_lines.minimum`). No finite system of rows has such a hull, so that solvers
    of LPs do not know models with it.

    Parameters
    ----------
    lower, upper : array_like
        ``(blocks,)`` or ``(batch, blocks)``, finite.

    Raises
    ------
    ShapeError
        If the bounds do not fit together.
    ModelError
        If a lower bound is above its upper bound or not finite.
    """

    block_data = ("lower", "upper")
    dim = 2
    curve: ClassVar[Curve]

    def __init__(self, lower: object, upper: object) -> None:
        self.lower = as_block_data(lower, 0, f"{self.name} lower")
        self.upper = as_block_data(upper, 0, f"{self.name} upper")
        if self.lower.shape != self.upper.shape:
            shapes = f"{tuple(self.lower.shape)} and {tuple(self.upper.shape)}"
            raise ShapeError(f"{self.name}: bounds of shapes {shapes} do not fit together; give one each")
        if bool((self.lower > self.upper).any()):
            raise ModelError(f"{self.name}: a lower bound is above its upper bound")

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Compare the ends of the interval and points of the right slope."""
        of_z, of_value = cost.unbind(2)
        z, value = minimum(self.curve, of_z, of_value, self.lower.to(cost), self.upper.to(cost))
        return torch.stack(
            [z, self.curve.touching(z, of_value, self.lower.to(cost), self.upper.to(cost))], 2
        ), value

    def value_error(self, cost: Tensor) -> Tensor:
        """Return what is taken off the value, and as much again for the rounding of the point's own cost."""
        point, value = self.min_oracle(cost)
        widest = torch.maximum(self.lower.abs(), self.upper.abs()).to(cost)
        size = cost[..., 0].abs() * widest + cost[..., 1].abs() * self.curve.largest(widest)
        return ((cost * point).sum(2) - value).clamp(min=0) + roundoff(ULPS, size)


def hull(name: str) -> type[CurveHull]:
    """Return the block type of a curve, by the name of the curve."""
    return next(kind for kind in CurveHull.__subclasses__() if kind.curve.name == name)


class SigmoidHull(CurveHull):
    """The hull of the graph of 1 / (1 + exp(-z)): see :class:`CurveHull`."""

    curve = CURVES["sigmoid"]


class TanhHull(CurveHull):
    """The hull of the graph of the hyperbolic tangent: see :class:`CurveHull`."""

    curve = CURVES["tanh"]


class ErfHull(CurveHull):
    """The hull of the graph of the error function: see :class:`CurveHull`."""

    curve = CURVES["erf"]


class SoftplusHull(CurveHull):
    """The hull of the graph of log(1 + exp(z)): see :class:`CurveHull`."""

    curve = CURVES["softplus"]


class SiluHull(CurveHull):
    """The hull of the graph of z sigmoid(z): see :class:`CurveHull`."""

    curve = CURVES["silu"]


class GeluHull(CurveHull):
    """The hull of the graph of z times the normal distribution function of z: see :class:`CurveHull`."""

    curve = CURVES["gelu"]


class SquareHull(CurveHull):
    """The hull of the graph of the square: see :class:`CurveHull`."""

    curve = CURVES["square"]


class SignHull(CurveHull):
    """The hull of the graph of the sign, with -1, 0 and 1 where it jumps: see :class:`CurveHull`.

    Its corners are at the ends of the interval and at zero.
    """

    curve = SIGN
