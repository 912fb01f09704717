"""Loads of knapsacks: how far each variable moves the sum, and what there is room for, in fitting units."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.block_data import as_block_data
from blocklp.certify.exact_arithmetic import sums_of_products
from blocklp.errors import ModelError


def given_sides(capacity: object, least: object, *, gradients: bool) -> tuple[Tensor | None, Tensor | None]:
    """Sides of the load of knapsacks as block data.

    Parameters
    ----------
    capacity, least : array_like or None
        Largest and least load of each block: a number, ``(blocks,)`` or ``(batch, blocks)``.
    gradients : bool
        Whether they may require gradients.

    Returns
    -------
    most, need : Tensor or None
        ``(batch or 1, blocks or 1)`` float64, None for a side that is not given.

    Raises
    ------
    ModelError
        If there is neither.
    """
    if capacity is None and least is None:
        raise ModelError("Knapsack has neither a capacity nor a least load; give one of them, or use Box")
    sides = ((capacity, "capacity"), (least, "least"))
    most, need = (
        None if v is None else as_block_data(v, 0, f"Knapsack {name}", gradients=gradients)
        for v, name in sides
    )
    return most, need


def given_bounds(lower: object, upper: object, *, gradients: bool) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Bounds of knapsacks as block data.

    Parameters
    ----------
    lower, upper : array_like or None
        As ``weights``, or numbers.
    gradients : bool
        Whether they may require gradients.

    Returns
    -------
    low, high : Tensor
        ``(batch or 1, blocks or 1, dim or 1)`` float64: 0 and 1 where none were given.
    unstated : tuple of str
        Which were not.
    """
    sides = ((lower, 0.0, "lower"), (upper, 1.0, "upper"))
    low, high = (
        as_block_data(usual if own is None else own, 1, f"Knapsack {name}", scalar=True, gradients=gradients)
        for own, usual, name in sides
    )
    return low, high, tuple(name for own, _, name in sides if own is None)


def in_range(load: Tensor, room: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Loads and room in a unit of each block that suits the dtype of another tensor.

    Parameters
    ----------
    load, room : Tensor
        ``(batch or 1, blocks, dim)`` and ``(batch or 1, blocks)``.
    like : Tensor
        Whose dtype the results have.

    Returns
    -------
    load, room : Tensor
        In the shapes given.
    """
    load, room, limit = load.double(), room.double(), torch.finfo(like.dtype).max
    exponents = torch.frexp(load).exponent
    most, least = (torch.where(load > 0, exponents, none) for none in (-2000, 2000))
    unit = torch.where(room > 0, torch.minimum(torch.frexp(room).exponent, most.amax(-1)), least.amin(-1))
    unit = torch.where((load > 0).any(-1), unit, 0)
    load = torch.ldexp(load, -unit[..., None]).clamp(max=limit).to(like)
    room = torch.ldexp(room, -unit).clamp(max=limit).to(like)
    return load, room


def loads(
    weights: Tensor, capacity: Tensor | None, least: Tensor | None, lower: Tensor, upper: Tensor
) -> tuple[dict[str, Tensor | None], Tensor]:
    """Loads and rooms of both sides.

    Parameters
    ----------
    weights, lower, upper : Tensor
        ``(batch or 1, blocks or 1, dim)`` float64.
    capacity, least : Tensor or None
        ``(batch or 1, blocks or 1)`` float64: sides of the load.

    Returns
    -------
    data, empty : dict, Tensor
        Attributes of the type, and the mask of blocks without a point.
    """
    data: dict[str, Tensor | None] = {"load": None, "room": None, "fall": None, "excess": None}
    empty = torch.zeros(1, 1, dtype=torch.bool)
    if capacity is not None:
        data["load"], data["room"], empty = _loaded(weights, capacity, lower, upper)
    if least is not None:
        data["fall"], data["excess"], short = _loaded(-weights, -least, lower, upper)
        empty = empty | short
    return data, empty


def _loaded(weights: Tensor, capacity: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Load of each variable, the room of the corner of the least load, and whether that exceeds the capacity.

    Loads and room are in a unit of each block, the power of two for which the largest load is as far above 1
    as the smallest is below.  The room is rounded once, and up: it may cancel, and its error would count at
    the largest ratio of cost to weight.
    """
    w, cap, low, high = (t.detach().numpy() for t in (weights, capacity, lower, upper))
    (share, power), (width, widths) = np.frexp(np.abs(w)), np.frexp(high - low)
    load, power = share * width, power + widths
    used = load != 0
    most, least = (np.where(used, power, -sign * 10**6) for sign in (1, -1))
    middle = np.where(used.any(-1), (most.max(-1) + least.min(-1)) // 2, 0)
    load = np.ldexp(load, np.where(used, power - middle[..., None], 0))
    room, exponent = cap, np.zeros_like(middle)
    start = np.where(w < 0, high, low)
    if start.any():
        factors = np.broadcast_arrays(-w, start, cap[..., None])
        ones = np.ones((*factors[0].shape[:-1], 1))
        room, exponent = sums_of_products(
            np.concatenate([factors[0], ones], -1), np.concatenate([factors[1], factors[2][..., :1]], -1)
        )
    with np.errstate(over="ignore"):
        fits = np.minimum(np.ldexp(room, exponent - middle), 2 * load.sum(-1))
    return torch.from_numpy(load), torch.from_numpy(np.maximum(fits, 0)), torch.from_numpy(room < 0)
