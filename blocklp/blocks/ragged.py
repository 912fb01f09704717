"""Blocks of one kind that differ in their number of variables: one block group for each length, unpadded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.errors import ModelError, ShapeError
from blocklp.options import numbers, with_gradients


@dataclass(frozen=True, eq=False)
class Ragged:
    """Blocks of several lengths, as ``ragged`` of a block type returns them for :meth:`blocklp.Model.add`.

    Attributes
    ----------
    name : str
        Of the block type.
    parts : tuple
        One for each length, the shortest first: the type of its blocks, their numbers ``(k,)``, and their
        positions in the scope, ``(k, length)`` int64.
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
    >>> bins = Knapsack.ragged([1.0, 2.0, 3.0, 1.0], [3, 1], capacity=[2.0, 0.5])
    >>> m.add(bins, x[[0, 2, 4, 1]], name="room")
    (room[1]: 1 x Knapsack(dim=1), room[3]: 1 x Knapsack(dim=3))
    """

    name: str
    parts: tuple[tuple[BlockType, Tensor, Tensor], ...]
    entries: int

    @classmethod
    def of(cls, sizes: object, name: str, make: Callable[[Tensor, Tensor], BlockType]) -> Ragged:
        """Blocks one after the other in their scope.

        Parameters
        ----------
        sizes : array_like
            ``(blocks,)``: the number of variables of each block.
        name : str
            Of the block type.
        make : callable
            Makes the type of blocks of one length from their numbers ``(k,)`` and positions ``(k, length)``.

        Returns
        -------
        Ragged
            The blocks, by length.

        Raises
        ------
        ModelError
            If a size is not a positive integer.
        ShapeError
            If there are no blocks, or the sizes have another shape.
        """
        given = numbers(sizes, f"{name} sizes")
        if given.dim() != 1 or not len(given):
            need = "give the number of variables of each block, (blocks,)"
            raise ShapeError(f"{name} sizes have shape {tuple(given.shape)}; {need}")
        wrong = ((given < 1) | (given != given.round())).nonzero()
        if len(wrong):
            b = int(wrong[0])
            size = float(given[b])
            raise ModelError(f"{name}: the size of block {b} is {size:g}; it must be a positive integer")
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
    """Data of a ragged scope, by positions.

    Parameters
    ----------
    value : array_like
        A number, ``(entries,)`` or ``(batch, entries)``.
    entries : int
        Length of the scope.
    what : str
        Name of the data, for messages.

    Returns
    -------
    callable
        Positions ``(k, length)`` int64 to the data there.

    Raises
    ------
    ShapeError
        If they have another shape.
    """
    data = with_gradients(value, what)
    if data.dim() == 0:
        return lambda places: data
    if data.dim() > 2 or data.shape[-1] != entries:
        need = f"give a number, ({entries},) or (batch, {entries})"
        raise ShapeError(f"{what} has shape {tuple(data.shape)}; {need}")
    return lambda places: data[..., places]
