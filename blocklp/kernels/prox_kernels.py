"""A pass of ADMM over blocks of any type that brings a proximal point of one block.

:mod:`blocklp.kernels.prox_source` writes a module for each type, in which :func:`prox` is that of the type, and
compiles it there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import TILE


def prox(cost: Any, centre: Any, step: Any, point: Any, data: Any, instance: int, block: int) -> None:
    """Write the proximal point of one block: stands for the function of a type.

    Parameters
    ----------
    cost, centre, point : array
        ``(dim,)``; the point is written.
    step : float
        Positive.
    data : tuple of array
        Block data of all blocks.
    instance, block : int
        The block.
    """
    raise NotImplementedError


def pass_over_blocks(
    begin: int,
    stop: int,
    layout: Any,
    eta: Any,
    target: Any,
    relaxation: float,
    anchors: Any,
    iterates: Any,
    points: Any,
    data: Any,
) -> None:
    """Update the Douglas-Rachford iterate of every copy, and find the proximal point of every block.

    Parameters
    ----------
    begin, stop : int
        Units to deal with; a unit is a tile of blocks of one instance.
    layout : tuple
        ``(batch or 1, copies)``, the variable of each copy; first copy of the group; blocks; variables of a
        block; and ``(batch or 1,)``, blocks that are no padding.
    eta : array
        ``(batch,)``: proximal weights.
    target : array
        ``(batch, variables)``: the reflected consensus.
    relaxation : float
        Relaxation of the pass.
    anchors : tuple of array
        ``(batch, copies)``, anchors of Halpern steps, or ``(batch, 0)`` for none; ``(batch,)`` int64, passes
        since they were set; ``(batch,)`` bool, instances whose iterate is up to date.
    iterates, points : array
        ``(batch, copies)``: Douglas-Rachford iterates and points, written.
    data : tuple of array
        Block data that :func:`prox` reads.
    """
    places, start, blocks, dim, filled = layout
    anchor, age, ready = anchors
    kind, tiles = points.dtype.type, (blocks + TILE - 1) // TILE
    cost = np.zeros(dim, points.dtype)
    centre, point = np.empty(dim, points.dtype), np.empty(dim, points.dtype)
    for unit in range(begin, stop):
        row, first = unit // tiles, unit % tiles * TILE
        count, speed = min(TILE, blocks - first), kind(relaxation)
        place, goal, t, x = places[row % len(places)], target[row], iterates[row], points[row]
        if not ready[row]:
            for i in range(dim):
                at = start + i * blocks + first
                for q in range(at, at + count):
                    t[q] += speed * (goal[place[q]] - x[q])
                if anchor.shape[1] > 0:
                    share, fixed = kind(age[row]) / kind(age[row] + 1), anchor[row]
                    for q in range(at, at + count):
                        t[q] = (t[q] - fixed[q]) * share + fixed[q]
        for block in range(first, first + count):
            for i in range(dim):
                centre[i] = t[start + i * blocks + block]
            if block < filled[row % len(filled)]:
                prox(cost, centre, eta[row], point, data, row, block)
            else:
                point[:] = 0
            for i in range(dim):
                x[start + i * blocks + block] = point[i]
