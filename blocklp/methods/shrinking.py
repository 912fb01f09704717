"""Shrinking multipliers of rows: wide bounds of variables make reduced costs of the wrong sign dear."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.decomposition.totals import WHOLE, Totals
from blocklp.decomposition.valid_bounds import charges
from blocklp.violation import known_empty

STEPS = 12
"""Halvings of the range of the exponent of 1 - s: to a fiftieth of a power of two."""


def shrinking(
    value: Tensor, pulled: Tensor, cost: Tensor, lower: Tensor, upper: Tensor, totals: Totals = WHOLE
) -> Tensor:
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
    totals : Totals
        Sums over variables.

    Returns
    -------
    Tensor
        ``(batch,)``: s.
    """
    ends, add = (pulled * lower, pulled * upper), totals.over_variables_in_order

    def slope(s: Tensor) -> Tensor:
        return value - add(torch.where(cost > s[:, None] * pulled, *ends))

    def bound(s: Tensor) -> Tensor:
        return s * value + add(charges(cost - s[:, None] * pulled, lower, upper))

    one = torch.ones_like(value)
    if known_empty(slope(one) < 0):
        return one
    least, most = torch.full_like(value, -52.0), torch.zeros_like(value)  # of the logarithm of 1 - s
    for _ in range(STEPS):
        middle = (least + most) / 2
        rises = slope(1 - middle.exp2()) >= 0
        least, most = torch.where(rises, least, middle), torch.where(rises, middle, most)
    tried = torch.stack([one, 1 - most.exp2(), 1 - least.exp2()])
    bounds = torch.stack([bound(s) for s in tried])
    return tried.gather(0, bounds.argmax(0, keepdim=True))[0]
