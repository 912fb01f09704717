r"""Balls of inputs in the Euclidean norm: what a property states of them, and the minimum of a linear function over one.

A ball may be stretched along the axes, so that it is one of pixels while the network takes ``(pixels - mean) / std``: with the
centre c and half axes s it holds the inputs c + s u with :math:`\|u\|_2 \le 1`.  The minimum of <y, x> over it is
:math:`\langle y, c \rangle - \|s y\|_2`, by the norm's dual; intervals of the inputs, such as those of pixels, make it larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from blocklp.errors import ModelError, ShapeError
from blocklp.problems.qpbo.arrays import FloatArray, as_finite

ROUNDS = 4
"""Steps towards the best multiplier of a ball; each leaves out the inputs that their intervals stop."""

WITHIN = 1e-4
"""Share of a ball's radius that points which are moved into it keep to its border: they are rounded to float32 afterwards."""


@dataclass(frozen=True, eq=False)
class Ball:
    """Inputs within a Euclidean distance of one of them, each measured by an axis of its own.

    Parameters
    ----------
    centre, axes : array_like
        ``(inputs,)`` float64: the centre, and how far each input may be from it if all others are as there; at least 0.

    Raises
    ------
    NonFiniteError, ShapeError, ModelError
        A number is not finite, the shapes differ, or an axis is negative.
    """

    centre: FloatArray
    axes: FloatArray

    def __post_init__(self) -> None:
        centre, axes = as_finite(self.centre, "centre"), as_finite(self.axes, "axes")
        if centre.ndim != 1 or axes.shape != centre.shape:
            raise ShapeError(f"the centre has shape {centre.shape} and the axes {axes.shape}; give (inputs,) twice")
        if (axes < 0).any():
            raise ModelError(f"axis {int((axes < 0).argmax())} is negative; give lengths of at least 0")
        object.__setattr__(self, "centre", centre)
        object.__setattr__(self, "axes", axes)

    @classmethod
    def of(cls, centre: ArrayLike, radius: float) -> Ball:
        """All inputs ``(inputs,)`` within a radius of one."""
        point = np.asarray(centre, dtype=np.float64)
        return cls(point, np.full(point.shape, float(radius)))

    @property
    def box(self) -> tuple[FloatArray, FloatArray]:
        """Ends of the box around it, rounded outwards."""
        return np.nextafter(self.centre - self.axes, -np.inf), np.nextafter(self.centre + self.axes, np.inf)

    def holds(self, x: FloatArray) -> bool:
        """Whether a point ``(inputs,)`` is certainly in it: the distance is rounded upwards."""
        off = x - self.centre
        if (off[self.axes == 0] != 0).any():
            return False
        share = np.divide(off, self.axes, out=np.zeros_like(off), where=self.axes > 0)
        # Both operations before the square are rounded; so are the squares and their sum.
        return bool(share @ share * (1 + (len(x) + 8) * 4 * np.finfo(np.float64).eps) + np.finfo(np.float64).tiny <= 1)


def picked(t: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a tensor; one row stands for all."""
    return t if t.shape[0] == 1 else t.index_select(0, rows)


@dataclass(frozen=True)
class Balls:
    """Balls of a batch of inputs: ``(batch or 1, *input_shape)`` each."""

    centre: Tensor
    axes: Tensor

    @classmethod
    def stacked(cls, balls: Sequence[Ball], shape: tuple[int, ...], device: torch.device) -> Balls:
        """One for each of some properties, in float64.

        Parameters
        ----------
        balls : sequence of Ball
            Those of the properties.
        shape : tuple of int
            Of an input of the network.
        device : torch.device
            Where to put them.
        """
        ends = (np.stack([getattr(ball, name) for ball in balls]) for name in ("centre", "axes"))
        return cls(*(torch.as_tensor(np.array(end), device=device).view(-1, *shape) for end in ends))

    def are(self, ball: Ball | None) -> bool:
        """Whether the only one is this."""
        parts = ((self.centre, "centre"), (self.axes, "axes"))
        return ball is not None and all(np.array_equal(own.cpu().numpy().ravel(), getattr(ball, name)) for own, name in parts)

    def select(self, rows: Tensor) -> Balls:
        """Those of some instances; one stands for all."""
        return Balls(picked(self.centre, rows), picked(self.axes, rows))

    def to(self, dtype: torch.dtype, device: torch.device | str | None = None) -> Balls:
        """In another precision, and on another device if one is given."""
        place = self.centre.device if device is None else device
        return Balls(self.centre.to(place, dtype), self.axes.to(place, dtype))

    def least(self, y: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Least values of linear functions over what balls and boxes share, or less.

        They are least values where boxes hold the centres.

        With a multiplier t of the ball's constraint the inputs part:
        :math:`\min_x \langle y, x \rangle + \frac t 2 (\|(x - c) / s\|^2 - 1)` over the box is a bound for every t > 0, and the
        best one where t is such that the minimiser lies on the ball's border.

        Parameters
        ----------
        y : Tensor
            ``(batch, *input_shape)``: coefficients.
        lower, upper : Tensor
            ``(batch or 1, *input_shape)``: ends of the boxes.

        Returns
        -------
        tuple of Tensor
            ``(batch,)``: the values, and what their rounding is relative to; ``(batch, *input_shape)``: the minimisers.
        """
        tiny = torch.finfo(y.dtype).tiny
        step = torch.where(y > 0, lower - self.centre, upper - self.centre)  # how far each input may go
        steep = (self.axes * y).abs().flatten(1)
        scale = steep.amax(1, keepdim=True).clamp(min=tiny)
        steep = steep / scale  # between 0 and 1, so that no square is lost
        most = torch.where(self.axes > 0, step.abs() / self.axes.clamp(min=tiny), 0.0).flatten(1)
        t = steep.square().sum(1, keepdim=True).sqrt().clamp(min=tiny)
        for _ in range(ROUNDS):
            free = steep < t * most
            room = 1 - (most.square() * ~free).sum(1, keepdim=True)
            better = ((steep.square() * free).sum(1, keepdim=True) / room.clamp(min=tiny)).sqrt()
            t = torch.where((room > 0) & (better > 0), torch.minimum(better, t), t)
        share = torch.minimum(steep / t, most)
        off = -y.sign() * self.axes * share.view_as(y)
        off = torch.where((share == most).view_as(y), step, off)
        used, t = share.square().sum(1), (t * scale)[:, 0]
        value = (y * self.centre).flatten(1).sum(1) + (y * off).flatten(1).sum(1) + t / 2 * (used - 1)
        size = 4 * (y.abs() * (self.centre.abs() + off.abs())).flatten(1).sum(1) + 2 * t * (used + 1)
        return value, size, self.centre + off

    def pulled(self, x: Tensor) -> Tensor:
        """Move points ``(batch, *input_shape)`` towards the centres until they are in the balls."""
        off = (x - self.centre) * (self.axes > 0)
        far = (off / self.axes.clamp(min=torch.finfo(x.dtype).tiny)).flatten(1).square().sum(1).sqrt()
        share = ((1 - WITHIN) / far.clamp(min=1 - WITHIN)).view(-1, *[1] * (x.dim() - 1))
        return self.centre + off * share
