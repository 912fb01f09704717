"""Numbers that users give for the entries of variables, checked and laid out."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from blocklp.errors import NonFiniteError, ShapeError
from blocklp.options import with_gradients


def coefficients(value: object, shape: tuple[int, ...], batch: int, what: str) -> Tensor:
    """Check coefficients of a shape and copy them to ``(batch or 1, *shape)`` float64, with their gradients.

    Parameters
    ----------
    value : array_like
        Finite numbers that broadcast to ``shape`` or to ``(batch, *shape)``.
    shape : tuple of int
        Shape of one instance.
    batch : int
        Number of instances.
    what : str
        Name of the numbers in messages.

    Returns
    -------
    Tensor
        ``(batch or 1, *shape)`` float64.

    Raises
    ------
    ModelError
        If they are no real numbers.
    ShapeError, NonFiniteError
        If they do not broadcast, or hold NaN or infinities.
    """
    if isinstance(value, int | float) and -sys.float_info.max <= value <= sys.float_info.max:
        return constant(shape, float(value))
    return laid_out(with_gradients(value, what), shape, batch, what).clone()


def laid_out(data: Tensor, shape: tuple[int, ...], batch: int, what: str) -> Tensor:
    """Broadcast numbers to ``(batch or 1, *shape)`` and check that all of them are finite.

    Parameters
    ----------
    data : Tensor
        Numbers that broadcast to ``shape`` or to ``(batch, *shape)``.
    shape, batch, what
        As in :func:`coefficients`.

    Returns
    -------
    Tensor
        ``(batch or 1, *shape)``, a view of the numbers.

    Raises
    ------
    ShapeError, NonFiniteError
        If they do not broadcast, or hold NaN or infinities.
    """
    data = broadcast(data, shape, batch, what)
    if not all_finite(data):
        where = tuple(int(i) for i in (~torch.isfinite(data)).nonzero()[0])
        held = float(data[where])
        raise NonFiniteError(f"{what} holds {held} at {where}; every coefficient must be finite")
    return data


def broadcast(data: Tensor, shape: tuple[int, ...], batch: int, what: str) -> Tensor:
    """Broadcast any numbers as :func:`laid_out` does, which asks for finite ones.

    Raises
    ------
    ShapeError
        If they do not broadcast.
    """
    rank = len(shape)
    lead = data.shape[0] if data.dim() == rank + 1 else 1
    if data.dim() > rank + 1 or lead not in (1, batch):
        must = f"it must broadcast to {shape} or to (batch={batch}, {shape})"
        raise ShapeError(f"{what} has shape {tuple(data.shape)}; {must}")
    try:
        return data.expand((lead, *shape)) if data.dim() == rank + 1 else data.expand(shape)[None]
    except RuntimeError as error:
        raise ShapeError(f"{what} has shape {tuple(data.shape)}; it must broadcast to {shape}") from error


def common_shape(first: tuple[int, ...], second: tuple[int, ...], what: str) -> tuple[int, ...]:
    """The shape that two arrays have together, by the rules of numpy.

    Raises
    ------
    ShapeError
        If there is none.
    """
    try:
        return np.broadcast_shapes(first, second)
    except ValueError as error:
        raise ShapeError(
            f"cannot combine {what} of shapes {first} and {second}; sum or index one of them"
        ) from error


def all_finite(data: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinities: its sum shows them at once, unless it overflows."""
    return math.isfinite(data.sum().item()) or bool(torch.isfinite(data).all())


def of_instances(data: Tensor, instances: Sequence[int]) -> Tensor:
    """The part of some instances ``(k, ...)`` of what all may share, ``(batch or 1, ...)``."""
    return data if len(data) == 1 else data[list(instances)]


def constant(shape: tuple[int, ...], value: float = 0.0) -> Tensor:
    """One number in a shape ``(1, *shape)``, which takes no memory."""
    return torch.full((1,) * (len(shape) + 1), value, dtype=torch.float64).expand(1, *shape)


def inner(factor: object, shape: tuple[int, ...]) -> object:
    """Return a factor of a sum of products over a whole shape.

    Raises
    ------
    ShapeError
        If it has fewer dimensions: numpy would give a sum for each row there.
    """
    given = tuple(getattr(factor, "shape", ()))
    if 0 < len(given) < len(shape):
        need = (
            "of a matrix x and a vector w, numpy's x @ w is (x * w).sum(-1), w @ x (w[:, None] * x).sum(0); "
            "one sum for all is (x * w).sum()"
        )
        raise ShapeError(f"@ sums products over equal shapes, not over {shape} and {given}; {need}")
    return factor
