"""Data of the blocks of a type: read from what users give, and picked by instance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from blocklp.errors import ModelError, ShapeError
from blocklp.options import numbers, with_gradients


def common_shape(what: str, *shapes: Sequence[int]) -> tuple[int, ...]:
    """Shape to which all block data of a type broadcast.

    Raises
    ------
    ShapeError
        If there is none.
    """
    try:
        return np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        found = ", ".join(str(tuple(s)) for s in shapes)
        need = "every length must agree or be 1"
        raise ShapeError(f"{what}: data of shapes {found} do not fit together; {need}") from None


def as_block_data(
    value: object,
    trailing: int,
    what: str,
    *,
    scalar: bool = False,
    infinite: bool = False,
    gradients: bool = False,
) -> Tensor:
    """Copy user data to a tensor ``(batch or 1, blocks or 1, ...)`` float64 on the CPU.

    Parameters
    ----------
    value : array_like
        ``(...)`` for all blocks, ``(blocks, ...)`` or ``(batch, blocks, ...)``.
    trailing : int
        Number of dimensions of the data of one block.
    what : str
        Name of the data in messages.
    scalar : bool
        Whether one number stands for a row of length 1.
    infinite : bool
        Whether entries may be infinite.
    gradients : bool
        Whether the copy keeps gradients that the data require; they are refused otherwise.

    Returns
    -------
    Tensor
        ``(batch or 1, blocks or 1, ...)`` float64.

    Raises
    ------
    ShapeError
        If the data have another number of dimensions.
    ModelError
        If they are no array of real numbers, an entry is NaN or infinite, or they require gradients.
    """
    data = (with_gradients if gradients else numbers)(value, what).clone()
    if scalar and data.dim() == 0:
        data = data[None]
    if not trailing <= data.dim() <= trailing + 2:
        raise ShapeError(
            f"{what} has shape {tuple(data.shape)}; give {trailing} dimensions (one for all blocks), "
            f"{trailing + 1} (blocks first) or {trailing + 2} (batch, blocks first)"
        )
    while data.dim() < trailing + 2:
        data = data[None]
    if bool(data.isnan().any()) or not (infinite or bool(data.isfinite().all())):
        held, need = ("NaN", "a number") if infinite else ("NaN or infinite entries", "finite")
        raise ModelError(f"{what} holds {held}; every entry must be {need}")
    return data
