"""Blocks of one kind that differ in their number of variables: those of one length are a block group each, without padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blocklp.block import BlockType
from blocklp.errors import ModelError, ShapeError
from blocklp.options import numbers


@dataclass(frozen=True, eq=False)
class Ragged:
    """What ``ragged`` of a block type returns, and :meth:`blocklp.Model.add` takes with a scope ``(entries,)``.

    Attributes
    ----------
    name : str
        Of the block type.
    parts : tuple
        One for each length, the shortest first: the type of its blocks, their numbers ``(k,)``, and their positions in the scope,
        ``(k, length)`` int64.
    entries : int
        Length of the scope.

    Examples
    --------
    >>> import blocklp as bl
    >>> from blocklp.oracles import Knapsack, Simplex
    >>> m = bl.Model()
    >>> x = m.variable("x", 6, lower=0, upper=1)
    >>> m.add(Simplex.ragged([2, 1, 3]), x)
    (Simplex[1]: 1 x Simplex(size=1), Simplex[2]: 1 x Simplex(size=2), Simplex[3]: 1 x Simplex(size=3))
    >>> m.add(Knapsack.ragged([1.0, 2.0, 3.0, 1.0], [3, 1], capacity=[2.0, 0.5]), x[[0, 2, 4, 1]], name="room")
    (room[1]: 1 x Knapsack(dim=1), room[3]: 1 x Knapsack(dim=3))
    """

    name: str
    parts: tuple[tuple[BlockType, Tensor, Tensor], ...]
    entries: int

    @classmethod
    def of(cls, sizes: object, name: str, make: Callable[[Tensor, Tensor], BlockType]) -> Ragged:
        """Blocks of given sizes ``(blocks,)``, one after the other; ``make`` builds the type of some from numbers and positions.

        Raises
        ------
        ModelError
            If a size is not a positive integer.
        ShapeError
            If there are no blocks, or the sizes have another shape.
        """
        given = numbers(sizes, f"{name} sizes")
        if given.dim() != 1 or not len(given):
            raise ShapeError(f"{name} sizes have shape {tuple(given.shape)}; give the number of variables of each block, (blocks,)")
        wrong = ((given < 1) | (given != given.round())).nonzero()
        if len(wrong):
            b = int(wrong[0])
            raise ModelError(f"{name}: the size of block {b} is {float(given[b]):g}; it must be a positive integer")
        lengths = given.numpy().astype(np.int64)
        order, starts = np.argsort(lengths, kind="stable"), np.cumsum(lengths) - lengths
        parts = []
        for blocks in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
            places = torch.from_numpy(starts[blocks][:, None] + np.arange(lengths[blocks[0]]))
            own = torch.from_numpy(blocks)
            parts.append((make(own, places), own, places))
        return cls(name, tuple(parts), int(lengths.sum()))


def of_blocks(data: Tensor, blocks: Tensor) -> Tensor:
    """Block data ``(batch or 1, blocks or 1)`` of some blocks."""
    return data if data.shape[1] == 1 else data[:, blocks]


def of_entries(value: object, entries: int, what: str) -> Callable[[Tensor], Tensor]:
    """Data of a ragged scope, a number, ``(entries,)`` or ``(batch, entries)``: a function from positions to data of these blocks.

    Raises
    ------
    ShapeError
        If they have another shape.
    """
    data = numbers(value, what)
    if data.dim() == 0:
        return lambda places: data
    if data.dim() > 2 or data.shape[-1] != entries:
        raise ShapeError(f"{what} has shape {tuple(data.shape)}; give a number, ({entries},) or (batch, {entries})")
    return lambda places: data[..., places]
