"""Loops of integer sums, compiled for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import TILE, compile

LOOP = {"nogil": True, "error_model": "numpy"}


@compile(**LOOP)
def largest_of_shared(copies: Any, targets: Any) -> float:
    """Largest magnitude of copies ``(copies,)`` whose target is a sum; infinite where one is not finite."""
    most = 0.0
    for copy in range(len(copies)):
        if targets[copy] >= 0:
            size = abs(np.float64(copies[copy]))
            if not size <= most:  # also for NaN, with which all comparisons fail
                most = size if size == size else np.inf
    return most


@compile(**LOOP)
def add_copies(copies: Any, iterate: Any, targets: Any, scale: float, sums: Any, total: Any) -> float:
    """Add copies, as multiples of a unit, to sums, and copy those that are the only one of their variable.

    Parameters
    ----------
    copies : array
        ``(copies,)``.
    iterate : array
        ``(copies,)``, taken from twice the copies before these are added; or ``(0,)`` to add copies.
    targets : array
        ``(copies,)`` int32: which sum, or -1 less the variable.
    scale : float
        One over the unit.
    sums, total : array
        ``(s,)`` int64 and ``(variables,)``, written.

    Returns
    -------
    float
        The largest magnitude of what is added; infinite where one is not finite.
    """
    most, reflects = 0.0, len(iterate) > 0
    for copy in range(len(copies)):
        target, value = targets[copy], copies[copy]
        if reflects:
            value = value + value - iterate[copy]
        if target >= 0:
            wide = np.float64(value)
            size = abs(wide)
            if not size <= most:
                most = size if size == size else np.inf
            sums[target] += np.int64(np.rint(wide * scale))
        else:
            total[-1 - target] = value
    return most


@compile(**LOOP)
def add_tiles(
    tiles: Any, layout: Any, points: Any, iterate: Any, targets: Any, scale: float, sums: Any, total: Any
) -> float:
    """Add reflections of some tiles of a group as :func:`add_copies` does; returns the largest, as there.

    Parameters
    ----------
    tiles : array
        ``(k,)`` int64: the tiles.
    layout : tuple of int
        First copy of the group, its blocks, and variables of a block.
    points, iterate : array
        ``(copies,)``.
    targets, scale, sums, total
        As in :func:`add_copies`.
    """
    (start, blocks, dim), most = layout, 0.0
    for tile in tiles:
        for i in range(dim):
            at = start + i * blocks
            first, last = at + tile * TILE, at + min(tile * TILE + TILE, blocks)
            own = points[first:last], iterate[first:last], targets[first:last]
            most = max(most, add_copies(*own, scale, sums, total))
    return most


@compile(**LOOP)
def largest_term(terms: Any) -> float:
    """Largest magnitude of terms ``(k,)``; infinite where one is not finite."""
    most = 0.0
    for k in range(len(terms)):
        size = abs(np.float64(terms[k]))
        if not size <= most:
            most = size if size == size else np.inf
    return most


@compile(**LOOP)
def add_terms(terms: Any, scale: float, finer: float) -> Any:
    """Sum of terms ``(k,)`` as multiples of a unit, and of what this leaves as multiples of a finer one.

    Parameters
    ----------
    terms : array
        ``(k,)``.
    scale, finer : float
        One over the unit, and how many finer ones it holds.

    Returns
    -------
    tuple of int
        Both sums.
    """
    whole, rest = np.int64(0), np.int64(0)
    for k in range(len(terms)):
        scaled = np.float64(terms[k]) * scale
        near = np.rint(scaled)
        whole += np.int64(near)
        rest += np.int64(np.rint((scaled - near) * finer))
    return whole, rest


@compile(**LOOP)
def add_entries(rows: Any, x: Any, scale: Any, limit: float, finer: float, sums: Any) -> bool:
    """Add the terms of every row as multiples of a unit, and what this leaves as multiples of a finer one.

    Parameters
    ----------
    rows : tuple of array
        ``(rows + 1,)``: where entries of every row begin; ``(k,)``: columns, and entries.
    x : array
        ``(variables,)``.
    scale : array
        ``(rows,)`` float64: one over the units.
    limit, finer : float
        The largest multiple, and how many finer units one holds.
    sums : array
        ``(1 or 2, rows)`` int64, written; without a second row what is left is left out.

    Returns
    -------
    bool
        Whether a term is beyond the limit.
    """
    starts, columns, entries = rows
    over, twice = False, len(sums) > 1
    for row in range(len(scale)):
        whole, rest, unit = np.int64(0), np.int64(0), scale[row]
        for k in range(starts[row], starts[row + 1]):
            scaled = np.float64(entries[k] * x[columns[k]]) * unit
            near = np.rint(scaled)
            over |= not abs(scaled) <= limit
            whole += np.int64(near)
            if twice:
                rest += np.int64(np.rint((scaled - near) * finer))
        sums[0, row] = whole
        if twice:
            sums[1, row] = rest
    return over
