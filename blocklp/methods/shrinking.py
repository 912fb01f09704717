"""Shrinking multipliers of rows: wide bounds of variables make reduced costs of the wrong sign dear."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from blocklp.decomposition.row_sums import in_order
from blocklp.decomposition.valid_bounds import charges
from blocklp.violation import known_empty

STEPS = 12
"""Halvings of the range of the exponent of 1 - s on a device: to a fiftieth of a power of two."""

ASIDE = 1 / 64
"""What 1 - s is enlarged by beyond a change of sign, where rounding decides the sign."""

NOTICED = 1e-12
"""Relative differences of slopes and of bounds that rounding may make."""


def shrinking(value: Tensor, pulled: Tensor, cost: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    r"""The factor :math:`s \in [0, 1]` of row multipliers y that gives the best bound.

    .. math:: s \, v(y) + \sum_j \min_{lo_j \le x_j \le hi_j} (c - s A^\top y)_j x_j .

    Where bounds of variables are wide, a reduced cost of the wrong sign is dear however small it is, and
    smaller multipliers often leave none.  The bound is concave in s; where it still increases at 1, nothing
    is gained.

    Parameters
    ----------
    value : Tensor
        ``(batch,)``: :math:`v(y)`, the rows' part of the dual value.
    pulled : Tensor
        ``(batch, variables)``: :math:`A^\top y`.
    cost, lower, upper : Tensor
        ``(batch, variables)``.

    Returns
    -------
    Tensor
        ``(batch,)``: s.
    """
    ends = pulled * lower, pulled * upper

    def slope(s: Tensor) -> Tensor:
        return value - in_order(torch.where(cost > s[:, None] * pulled, *ends))

    def bound(s: Tensor) -> Tensor:
        return s * value + in_order(charges(cost - s[:, None] * pulled, lower, upper))

    one = torch.ones_like(value)
    if known_empty((falls := slope(one)) < 0):
        return one
    if value.device.type == "cpu":
        least = _breakpoint(falls, pulled, cost, upper - lower)
        most = (least * (1 + ASIDE) + 2.0**-51).clamp(max=1.0)
    else:  # where sums of a sorted row are not reproducible
        least, most = _halved(slope, value)
    near, far = bound(1 - least), bound(1 - most)
    found = torch.where(far - near > NOTICED * near.abs(), 1 - most, 1 - least)
    return torch.where(falls < 0, found, one)


def _breakpoint(slope: Tensor, pulled: Tensor, cost: Tensor, width: Tensor) -> Tensor:
    """1 - s where the slope at 1 and its jumps, where reduced costs change sign, first add up to zero."""
    missing = (1 - cost / pulled).clamp(min=0)
    inside = ((cost > pulled) == (pulled < 0)) & (missing < 1)  # as the slope at 1 tells signs
    jumps = torch.where(inside, pulled.abs() * width, 0.0)
    missing, order = torch.where(inside, missing, 1.0).sort(1)
    falls = (1 - NOTICED) * slope[:, None]  # rounding does not tell a slope of zero from a small one
    at = (falls + jumps.gather(1, order).cumsum(1) < 0).sum(1, keepdim=True)
    return torch.cat([missing, torch.ones_like(missing[:, :1])], 1).gather(1, at)[:, 0]


def _halved(slope: Callable[[Tensor], Tensor], value: Tensor) -> tuple[Tensor, Tensor]:
    """1 - s on both sides of where the slope changes sign, by bisection of the exponent."""
    least, most = torch.full_like(value, -52.0), torch.zeros_like(value)
    for _ in range(STEPS):
        middle = (least + most) / 2
        rises = slope(1 - middle.exp2()) >= 0
        least, most = torch.where(rises, least, middle), torch.where(rises, middle, most)
    return least.exp2(), most.exp2()
