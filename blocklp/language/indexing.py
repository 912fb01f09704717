"""Indices that users give, as numpy takes them, on arrays of entries."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blocklp.errors import ScopeError
from blocklp.options import as_tensor, shown


def indexed(entries: Tensor, key: Any, name: str) -> Tensor:
    """Pick entries by integers, slices, masks or arrays of integers.

    Parameters
    ----------
    entries : Tensor
        Any shape.
    key : object
        Given by the caller.
    name : str
        Of the array, for messages.

    Returns
    -------
    Tensor
        The entries, in the shape that the index gives.

    Raises
    ------
    ScopeError
        If it is no such index, or is out of range.
    """
    keys = key if isinstance(key, tuple) else (key,)
    try:
        plain = tuple(map(_position, keys))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        need = "give integers, slices or arrays of integers"
        raise ScopeError(f"{name}: {shown(key)} is no index; {need}") from error
    for k in plain:
        if isinstance(k, Tensor) and (k.is_floating_point() or k.is_complex()):
            raise ScopeError(f"{name}: indices must be integers or booleans, got {k.dtype}")
    try:
        return entries[plain]
    except (IndexError, TypeError, ValueError, RuntimeError) as error:
        wrong = f"index out of range or too many indices ({error})"
        raise ScopeError(f"{name} of shape {tuple(entries.shape)}: {wrong}") from error


def _position(key: Any) -> Any:
    """A part of an index: integers, slices, None and the ellipsis as they are, all else as a tensor."""
    return key if isinstance(key, int | slice) or key is None or key is Ellipsis else as_tensor(key).cpu()
