"""Indices and factors that users give for arrays of entries, told apart as numpy does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
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


def is_matrix(value: Any, batch: int, width: int) -> bool:
    """Whether it is a matrix, sparse or dense, and no row of costs for each instance."""
    if isinstance(value, Tensor) and value.layout is not torch.strided:
        return True
    shape = getattr(value, "shape", None)
    if shape is None and isinstance(value, list) and value and isinstance(value[0], list):
        shape = (len(value), len(value[0]))
    dense = isinstance(value, Tensor | np.ndarray | list)
    costs = dense and shape is not None and tuple(shape) in ((1, width), (batch, width))
    return shape is not None and len(shape) == 2 and not costs
