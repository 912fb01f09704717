"""Lines below and above smooth activations and signs, by shares of their slopes that an ascent may change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.oracles.curve_lines import SlopeRange, minimum, slope_range
from blocklp.oracles.curves import BESIDE_ZERO, Curve

MIDDLE = 0.5
"""The share of the line that is nearest to the curve in the middle of the interval."""


@dataclass(frozen=True)
class CurveSlopes:
    """The lines that touch a curve over intervals, ``(batch or 1, *shape)``.

    A share of 0 is the least slope of a line that touches the hull of the curve, 1 the greatest.

    Attributes
    ----------
    curve : Curve
        The function.
    lower, upper : Tensor
        Ends of the intervals.
    below, above : SlopeRange
        Slopes of lines on both sides.
    """

    curve: Curve
    lower: Tensor
    upper: Tensor
    below: SlopeRange
    above: SlopeRange

    @classmethod
    def of(cls, curve: Curve, lower: Tensor, upper: Tensor) -> CurveSlopes:
        """Find the slopes over intervals.

        Parameters
        ----------
        curve : Curve
            The function.
        lower, upper : Tensor
            ``(batch, *shape)``: ends of the intervals.
        """
        return cls(curve, lower, upper, *(slope_range(curve, side, lower, upper) for side in (False, True)))

    def lines(self, share: Tensor, above: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return slopes, values at zero, and points where the lines touch the hull.

        In exact arithmetic, and whatever the slopes are, the lines are nowhere in the intervals above the curve, or below it.

        Parameters
        ----------
        share : Tensor
            ``(batch, *shape)`` in [0, 1]: which of the slopes.
        above : Tensor
            ``(batch, *shape)``: 1 for a line above the curve, 0 for one below it.
        """
        least, middle, most = (torch.lerp(below, other, above) for below, other in self._sides())
        slope = torch.lerp(middle, torch.where(share < MIDDLE, least, most), (2 * share - 1).abs())
        sign = 1 - 2 * above
        touch, value = minimum(self.curve, -sign * slope, sign, self.lower, self.upper)
        return slope, sign * value, touch

    def span(self, above: Tensor) -> Tensor:
        """Return how much slopes change from share 0 to 1; ``above`` is as in :meth:`lines`."""
        return torch.lerp(self.below.most - self.below.least, self.above.most - self.above.least, above)

    def paid(self, multiplier: Tensor) -> Tensor:
        """Return what multipliers ``(batch, *shape)`` of the intervals' ends add to the value of a dual: ``(batch,)``."""
        beyond = BESIDE_ZERO if self.curve.jumps else 0.0
        ends = multiplier * (self.lower - beyond), multiplier * (self.upper + beyond)
        return torch.minimum(*ends).flatten(1).sum(1)

    def select(self, rows: Tensor) -> CurveSlopes:
        """Return those of some instances; one row stands for all."""
        parts = (self.lower, self.upper, *(part for side in zip(*self._sides(), strict=True) for part in side))
        lower, upper, *slopes = (t if t.shape[0] == 1 else t.index_select(0, rows) for t in parts)
        return CurveSlopes(self.curve, lower, upper, SlopeRange(*slopes[:3]), SlopeRange(*slopes[3:]))

    def _sides(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Least, middle and greatest slopes below and above."""
        return tuple((getattr(self.below, name), getattr(self.above, name)) for name in ("least", "middle", "most"))
