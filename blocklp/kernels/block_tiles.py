"""Functions of tiles of blocks, which stand in the templates for those of a block type.

The files ``instance_*.py`` are templates: for each block type :mod:`blocklp.kernels.block_source` writes a
module of their text in which the functions and numbers below are made of the functions that the type states
for one block (:class:`HasProxBlock`, :class:`HasMinBlock`, :class:`HasCompleteBlock`).

In all of them ``tile`` is ``(first copy of the group, blocks of the group, first block, count)``, and
``data`` ``(block data, instance)``.
"""

from __future__ import annotations

from typing import Any

DIM = 3
"""Variables of a block."""

COUPLED = 2
"""How many of them, the first ones, other blocks share."""

CHAINS = min(COUPLED, 2)
"""Sums of the copies of a variable that are added up side by side."""

RUN = 1024
"""Blocks at a time in passes over whole instances."""


def points(step: Any, costs: Any, centres: Any, tile: Any, out: Any, data: Any) -> None:
    """Write the proximal points of a tile.

    Parameters
    ----------
    step : float
        Proximal weight of the instance.
    costs, centres : array
        ``(copies,)``; costs are read where no other block shares the coordinate.
    tile : tuple of int
        The blocks.
    out : array
        ``(DIM, at least count)``, written.
    data : tuple
        Block data.
    """
    raise NotImplementedError


def reflect(step: Any, relaxation: Any, costs: Any, centres: Any, tile: Any, out: Any, data: Any) -> None:
    """Write reflections ``2 x - t`` of the coupled copies of a tile, and ``t - relaxation x`` over t.

    Parameters
    ----------
    step, relaxation : float
        Proximal weight of the instance, and relaxation.
    costs, centres : array
        ``(copies,)``: costs, and t, which is written.
    tile : tuple of int
        The blocks.
    out : array
        ``(at least COUPLED, at least count)``, written.
    data : tuple
        Block data.
    """
    raise NotImplementedError


def least(costs: Any, tile: Any, out: Any, data: Any) -> None:
    """Write the least values of a tile.

    Parameters
    ----------
    costs : array
        ``(DIM, at least count)``.
    tile : tuple of int
        The blocks.
    out : array
        ``(at least count,)``, written.
    data : tuple
        Block data.
    """
    raise NotImplementedError


def complete(costs: Any, values: Any, tile: Any, out: Any, data: Any) -> None:
    """Complete the points of a tile, and measure how far they leave their blocks.

    Parameters
    ----------
    costs, values : array
        ``(DIM, at least count)``; coordinates of the values that no other block shares are written.
    tile : tuple of int
        The blocks.
    out : array
        ``(at least count,)``, written: violations.
    data : tuple
        Block data.
    """
    raise NotImplementedError
