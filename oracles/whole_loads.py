"""Loads of integer knapsacks as integers: weights in a common unit, and moves from the least load on."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.errors import ModelError

Whole = NDArray[np.int64]

DIGITS = 9
"""Most decimals of a weight."""

NEAR = 1e-9
"""Distance to an integer up to which a bound of a variable counts as one."""

LARGEST = 2.0**52
"""Largest load in the unit of the weights."""

NO_SIDE = 2**60
"""Stands for no capacity; its negative for no least load."""

ENTRIES = 200_000_000
"""Most entries of the table of one block."""


def in_units(weights: Tensor, least: Tensor, capacity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights and sides in the largest unit of each block of which all weights are multiples.

    Parameters
    ----------
    weights : Tensor
        ``(batch or 1, blocks or 1, dim)`` float64: integers, or decimals of at most nine digits.
    least, capacity : Tensor
        ``(batch or 1, blocks or 1)`` float64, infinite for no such side.

    Returns
    -------
    weights, least, capacity : Tensor
        int64, in the shapes given; sides are rounded to the next load that they allow.

    Raises
    ------
    ModelError
        If the weights of a block are no such numbers.
    """
    w, sides = weights.numpy(), [side.numpy() for side in (least, capacity)]
    unit = np.zeros(w.shape[:2])
    for digits in range(DIGITS, -1, -1):
        scaled = w * 10.0**digits
        fits = (np.abs(scaled - np.rint(scaled)) <= _rounding(scaled)).all(-1)
        unit = np.where(fits & (np.abs(scaled).sum(-1) < LARGEST), 10.0**digits, unit)
    if not unit.all():
        i, b = np.argwhere(unit == 0)[0]
        raise ModelError(
            f"Knapsack: the weights of block {b} of instance {i} have no common unit: integer=True takes "
            f"integers, or decimals of at most {DIGITS} digits; multiply weights and sides by a constant, "
            f"and round them"
        )
    whole = np.rint(w * unit[..., None]).astype(np.int64)
    divisor = np.maximum(1, np.gcd.reduce(whole, -1))
    found = []
    for side, rounded in zip(sides, (np.ceil, np.floor), strict=True):
        scaled = np.clip(side * unit, -float(NO_SIDE), float(NO_SIDE))
        near = np.rint(scaled)
        scaled = np.where(np.abs(scaled - near) <= _rounding(scaled), near, rounded(scaled))
        none = np.abs(scaled) >= LARGEST
        scaled = np.where(none, np.sign(scaled) * NO_SIDE, scaled).astype(np.int64)
        down = scaled // divisor if rounded is np.floor else -(-scaled // divisor)
        found.append(torch.from_numpy(np.where(none, scaled, down)))
    return torch.from_numpy(whole // divisor[..., None]), found[0], found[1]


def moves(
    weights: Tensor, least: Tensor, capacity: Tensor, lower: Tensor, upper: Tensor
) -> dict[str, Tensor]:
    """Variables as moves from where the load is least, or largest if there is only a least load.

    Parameters
    ----------
    weights : Tensor
        ``(batch or 1, blocks or 1, dim)`` int64.
    least, capacity : Tensor
        ``(batch or 1, blocks or 1)`` int64: sides of the load.
    lower, upper : Tensor
        As ``weights``, float64: bounds of the variables.

    Returns
    -------
    dict
        Block data: ``start`` and ``way``, values of the variables before they move and their direction,
        ``load`` and ``count``, what a move of one loads and how many there are, int64 in the shape of the
        weights; ``need`` and ``room``, the least and the largest load of all moves, int64 in the shape of the
        sides.  Blocks without a point need more than there is room for.
    """
    low, high = (lower - NEAR).ceil().long(), (upper + NEAR).floor().long()
    load, count = weights.abs(), high - low
    total = (load * count).sum(-1)
    first = (weights * torch.where(weights < 0, high, low)).sum(-1)
    room, need = (capacity - first).minimum(total), (least - first).clamp(min=0)
    turned = weights < 0
    # A least load alone: from where all is loaded, moves may take away what is above it.
    cover = (need > 0) & (room >= total)
    room, need = torch.where(cover, total - need, room), torch.where(cover, 0, need)
    turned = turned ^ cover[..., None]
    empty = (room < 0) | (count < 0).any(-1)
    return {
        "start": torch.where(turned, high, low),
        "way": torch.where(turned, -1, 1).expand_as(count),
        "load": load.expand_as(count),
        "count": count.clamp(min=0),
        "need": torch.where(empty, 1, need),
        "room": torch.where(empty, 0, room),
    }


def refuse_large(found: dict[str, Tensor]) -> None:
    """Refuse blocks whose tables would have more than :data:`ENTRIES` entries.

    Raises
    ------
    ModelError
        With the number of entries of the largest one.
    """
    parts = (found["count"].double() + 1).log2().ceil().sum(-1)
    entries = parts * (found["room"].double() + 1)
    if float(entries.max()) > ENTRIES:
        i, b = (int(k) for k in np.argwhere(entries.numpy() == float(entries.max()))[0])
        raise ModelError(
            f"Knapsack: the table of block {b} of instance {i} would have {float(entries.max()):.2g} "
            f"entries, more than {ENTRIES:.0e}; give its weights and sides in a coarser unit, or state the "
            f"row beside the blocks, m.add(weights @ x <= capacity), with integer variables"
        )


def _rounding(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far decimals are off as floats, times a power of ten."""
    return 4 * np.finfo(np.float64).eps * np.abs(values)
