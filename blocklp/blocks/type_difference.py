"""Differences between objects of one block type: whether one can stand for the other."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType


def difference(one: BlockType, other: BlockType) -> str | None:
    """Name an attribute in which types differ beside their block data, so that one cannot stand for both.

    ``None`` if there is no such attribute.
    """
    if one is other:
        return None
    if type(one) is not type(other):
        return "class"
    mine, theirs = _stated(one), _stated(other)
    for key in sorted((mine.keys() | theirs.keys()) - set(one.block_data)):
        if key not in mine or key not in theirs or not _equal(mine[key], theirs[key]):
            return key
    return None


def one_for_both(one: BlockType, other: BlockType) -> bool:
    """Whether types are known to differ in nothing but their block data, private attributes included.

    Two types of one model may differ in more than what they name as block data: what cannot be compared
    counts as a difference.
    """
    if one is other:
        return True
    if type(one) is not type(other) or any(vars(kind).get("__slots__") for kind in type(one).__mro__):
        return False
    mine, theirs = _own(one), _own(other)
    return mine.keys() == theirs.keys() and all(_identical(value, theirs[key]) for key, value in mine.items())


def with_other_data(kind: BlockType, data: dict[str, Tensor]) -> BlockType:
    """A copy with other block data; kept properties, which may follow from these, are asked anew."""
    other = kind.with_data(**data)
    for name in [name for name in vars(other) if _cached(other, name)]:
        del vars(other)[name]
    return other


def _own(kind: BlockType) -> dict[str, object]:
    """All attributes but block data and what is kept for as long as these are the same objects."""
    follow = {*kind.block_data, *(kind._kept if of_package(kind) else ())}
    return {k: v for k, v in vars(kind).items() if k not in follow and not _cached(kind, k)}


def of_package(kind: BlockType) -> bool:
    """Whether a class is one of this package."""
    return type(kind).__module__.partition(".")[0] == "blocklp"


def _stated(kind: BlockType) -> dict[str, object]:
    """Attributes that a type was given: private ones and cached properties follow from the others."""
    public = {k: v for k, v in vars(kind).items() if k[0] != "_"}
    return {k: v for k, v in public.items() if not _cached(kind, k)}


def _cached(kind: BlockType, name: str) -> bool:
    """Whether an attribute is a property that is kept."""
    return isinstance(getattr(type(kind), name, None), cached_property)


def _equal(one: object, other: object) -> bool:
    """Whether two values are known to be equal, entry by entry."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):
        return False


PLAIN = bool | int | float | complex | str | bytes | None | type | torch.dtype | torch.device
"""Values that are what their equality says, as those of other classes need not be."""


def _identical(one: object, other: object) -> bool:
    """Whether two values are one object, or equal numbers, plain values or containers of these."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        dense = one.layout == other.layout == torch.strided and one.device == other.device
        return dense and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        plain = one.dtype == other.dtype and one.dtype != np.dtype(object)
        return plain and np.array_equal(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_identical, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(map(_identical, one.values(), other.values()))
    return type(one) in PLAIN.__args__ and one == other
