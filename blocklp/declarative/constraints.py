"""Inequalities of many problems: ``c(*parameters, y) -> (batch, m)``, at most zero where y is allowed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blocklp.declarative.derivatives import Function
from blocklp.errors import OptionError


def box(lower: float = -math.inf, upper: float = math.inf) -> Function:
    """Each variable between two numbers (Gould et al. 2016, section 4.3 with ``lower=0``).

    Parameters
    ----------
    lower, upper : float
        Bounds of all variables; an infinite one is no constraint.

    Returns
    -------
    callable
        ``(batch, n)`` constraints for each finite bound, the lower ones first.

    Raises
    ------
    OptionError
        If there is no room between the bounds, or neither is finite.
    """
    if not lower < upper or (math.isinf(lower) and math.isinf(upper)):
        raise OptionError(
            f"the box is from {lower} to {upper}; give a lower bound below the upper one, one of them finite"
        )

    def inequality(*arguments: Tensor) -> Tensor:
        y = arguments[-1]
        sides = [lower - y] * math.isfinite(lower) + [y - upper] * math.isfinite(upper)
        return torch.cat(sides, 1)

    return inequality


def ball(radius: float = 1.0) -> Function:
    r"""The ball :math:`\lVert y \rVert^2 \le r^2` (Gould et al. 2016, equation 77).

    Parameters
    ----------
    radius : float
        r, positive.

    Returns
    -------
    callable
        One constraint for each instance, ``(batch, 1)``.

    Raises
    ------
    OptionError
        If the radius is not positive and finite.
    """
    if not 0 < radius < math.inf:
        raise OptionError(f"radius is {radius}; it must be positive and finite")

    def inequality(*arguments: Tensor) -> Tensor:
        return arguments[-1].square().sum(1, keepdim=True) - radius**2

    return inequality
