"""Piecewise-linear activations and maxima, exactly, by affine operations and ReLUs.

Of the ways to write one, these are the ones whose relaxation is tightest: intervals of a clamp and the triangles of a leaky
ReLU and of an absolute value are exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from blocklp.problems.verification.lowering import Array, Lowering, Value
from blocklp.problems.verification.sparse_maps import reduced


def leaky(lowering: Lowering, value: Value, slope: Tensor | float, name: str) -> Value:
    """``max(x, 0) + slope min(x, 0)``, as ``slope x + (1 - slope) relu(x)``.

    Parameters
    ----------
    lowering, value, name
        As in :func:`absolute`.
    slope : Tensor or float
        Any sign; broadcasts.
    """
    slope = torch.as_tensor(slope, dtype=torch.float64)
    above = lowering.scale(lowering.relu(value, name), 1 - slope, 0.0, name)
    return lowering.add(lowering.scale(value, slope, 0.0, name), above, name)


def absolute(lowering: Lowering, value: Value, name: str) -> Value:
    """``2 relu(x) - x``, the absolute value: one neuron each.

    Parameters
    ----------
    lowering, value : Lowering, Value
        The network so far, and the argument.
    name : str
        Of the operations.
    """
    doubled = lowering.scale(lowering.relu(value, name), 2.0, 0.0, name)
    return lowering.subtract(doubled, value, name)


def clip(lowering: Lowering, value: Value, low: Tensor | float | None, high: Tensor | float | None, name: str) -> Value:
    """``min(max(x, low), high)``.

    Parameters
    ----------
    lowering, value, name
        As in :func:`absolute`.
    low, high : Tensor, float or None
        Finite, or None for no bound; they broadcast.
    """
    if low is not None:
        value = maximum(lowering, value, torch.as_tensor(low, dtype=torch.float64), name)
    return value if high is None else minimum(lowering, value, torch.as_tensor(high, dtype=torch.float64), name)


def soft_shrink(lowering: Lowering, value: Value, limit: float, name: str) -> Value:
    """``relu(x - limit) - relu(-x - limit)``.

    Parameters
    ----------
    lowering, value, name
        As in :func:`absolute`.
    limit : float
        At least 0.
    """
    above = lowering.relu(lowering.scale(value, 1.0, -limit, name), name)
    return lowering.subtract(above, lowering.relu(lowering.scale(value, -1.0, -limit, name), name), name)


def maximum(lowering: Lowering, a: Value | Tensor, b: Value | Tensor, name: str) -> Value:
    """``a + relu(b - a)``; a constant takes the place of a.

    Parameters
    ----------
    lowering : Lowering
        The network so far.
    a, b : Value or Tensor
        Of which at least one is a value; they broadcast.
    name : str
        Of the operations.
    """
    if isinstance(a, Value) and isinstance(b, Value):
        return lowering.add(a, lowering.relu(lowering.subtract(b, a, name), name), name)
    return _beside_constant(lowering, a, b, 1.0, name)


def minimum(lowering: Lowering, a: Value | Tensor, b: Value | Tensor, name: str) -> Value:
    """``a - relu(a - b)``; a constant takes the place of a.

    Parameters
    ----------
    lowering, a, b, name
        As in :func:`maximum`.
    """
    if isinstance(a, Value) and isinstance(b, Value):
        return lowering.subtract(a, lowering.relu(lowering.subtract(a, b, name), name), name)
    return _beside_constant(lowering, a, b, -1.0, name)


def _beside_constant(lowering: Lowering, a: Value | Tensor, b: Value | Tensor, sign: float, name: str) -> Value:
    """The maximum (``sign`` 1) or minimum (-1) of a value and a constant."""
    value, constant = (a, b) if isinstance(a, Value) else (b, a)
    assert isinstance(value, Value) and isinstance(constant, Tensor)
    over = lowering.relu(lowering.scale(value, sign, -sign * constant.double(), name), name)
    return lowering.scale(over, sign, constant, name)


def largest(lowering: Lowering, value: Value, elements: Array, name: str) -> Value:
    """Maximum of elements, as a knock-out tournament in which all games of a round are one operation.

    Parameters
    ----------
    lowering, value : Lowering, Value
        The network so far, and the argument.
    elements : ndarray
        ``(*shape, count)`` int64: the flat positions of the elements of which each result is the maximum.
    name : str
        Of the operations.
    """
    lowering.builder.take(4 * elements.size, name)
    while (count := elements.shape[-1]) > 1:
        half = (count + 1) // 2
        if count % 2:
            elements = np.concatenate([elements, elements[..., half - 1 : half]], -1)
        one, other = elements[..., :half], elements[..., half:]
        # Against itself an element wins by a neuron that is off, not by one whose sign rounding leaves open.
        itself = one == other
        game = np.flatnonzero(~itself)
        ends = np.repeat([1.0, -1.0], len(game))
        entries = np.tile(game, 2), np.concatenate([other.reshape(-1)[game], one.reshape(-1)[game]]), ends
        ahead = lowering.sparse(value, one.shape, entries, np.where(itself, -1.0, 0.0), name)
        value = lowering.add(lowering.pick(value, one, name), lowering.relu(ahead, name), name)
        elements = value.numbers
    return lowering.pick(value, elements[..., 0], name)


def reduce_largest(lowering: Lowering, value: Value, axes: Sequence[int] | None, keep: bool, name: str) -> Value:
    """Maximum over axes.

    Parameters
    ----------
    lowering, value : Lowering, Value
        The network so far, and the argument.
    axes : sequence of int or None
        Negative ones count from the end; None for all.
    keep : bool
        Keep them with size one.
    name : str
        Of the operations.
    """
    kept, shape = reduced(value, axes, keep)
    gone = [axis for axis, (n, m) in enumerate(zip(value.shape, kept, strict=True)) if n != m]
    last = np.moveaxis(value.numbers, gone, range(len(kept) - len(gone), len(kept)))
    return largest(lowering, value, last.reshape(*shape, -1), name)


def negative(lowering: Lowering, value: Value, name: str) -> Value:
    """``-x``.

    Parameters
    ----------
    lowering, value, name
        As in :func:`absolute`.
    """
    return lowering.scale(value, -1.0, 0.0, name)
