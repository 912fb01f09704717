"""Compiled pivots of :mod:`blocklp.oracles.lp.dual_simplex` on a CPU, one block after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import compile, kernel
from blocklp.kernels.tableau_kernels import breakpoints, next_breakpoint


@compile(nogil=True)
def _leaving(t: Any, at: Any, low: Any, high: Any, inside: Any, slack: float, late: int) -> Any:
    """The row of the largest violation over its length, its violation, and whether its value is too low.

    The row is -1 if none is violated.
    """
    best, row, excess, too_low = -1.0, -1, 0.0, False
    for i in range(t.shape[0]):
        value, length, k = 0.0, 1.0, inside[i]
        for j in range(t.shape[1]):
            value += t[i, j] * at[j]
            length += t[i, j] * t[i, j]
        off = max(low[k] - value, value - high[k])
        if off > slack:
            score = off * off / length
            if late:
                score *= 1 + (k * 7919 + late * 104729) % 61
            if score > best:
                best, row, excess, too_low = score, i, off, value < low[k]
    return row, excess, too_low


@compile(nogil=True)
def _entering(
    entries: Any,
    sign: float,
    reduced: Any,
    width: Any,
    above: Any,
    need: float,
    least: float,
    ratio: Any,
) -> int:
    """The column where breakpoints add up to ``need``, -1 if they do not; those before it change sides."""
    breakpoints(entries, sign, reduced, above, least, ratio)
    total = 0.0
    while True:
        column: int = next_breakpoint(entries, ratio)
        if column < 0:
            return -1
        total += abs(entries[column]) * width[column]
        if total >= need:
            return column
        above[column] = not above[column]
        ratio[column] = np.inf


@compile(nogil=True)
def _exchange(t: Any, reduced: Any, row: int, column: int) -> None:
    """The row leaves the basis and the column enters it."""
    rows, dim = t.shape
    pivot = t[row, column]
    step = reduced[column] / pivot
    for j in range(dim):
        reduced[j] -= step * t[row, j]
        t[row, j] /= pivot
    reduced[column] = step
    for i in range(rows):
        factor = t[i, column]
        if i != row and factor != 0:
            for j in range(dim):
                t[i, j] -= factor * t[row, j]
            t[i, column] = factor / pivot
    for j in range(dim):
        t[row, j] = -t[row, j]
    t[row, column] = 1 / pivot


@kernel(grain=64)
def pivoted(
    first: int,
    last: int,
    limit: int,
    stall: int,
    least: float,
    slack: Any,
    tableau: Any,
    reduced: Any,
    low: Any,
    high: Any,
    outside: Any,
    inside: Any,
    above: Any,
    empty: Any,
) -> None:
    """Pivot blocks to their last bases, in place.

    Parameters
    ----------
    first, last : int
        The blocks, from ``first`` to before ``last``.
    limit, stall : int
        Most pivots of a block, and pivots after which rows are preferred in turn, against cycling.
    least : float
        Magnitude up to which entries of the tableau are taken for rounding.
    slack : ndarray
        ``(blocks, 1)`` float64: violation up to which a row counts as satisfied.
    tableau, reduced, low, high, outside, inside, above : ndarray
        The tensors of :class:`blocklp.oracles.lp.dual_simplex.Basis`, written over.
    empty : ndarray
        ``(blocks,)`` bool: blocks that have no point, which are left out; becomes True for more of them.
    """
    dim = tableau.shape[2]
    at, width, ratio = np.empty(dim), np.empty(dim), np.empty(dim)
    for b in range(first, last):
        pivots = 0
        while pivots < limit and not empty[b]:
            for j in range(dim):
                k = outside[b, j]
                at[j] = high[b, k] if above[b, j] else low[b, k]
                width[j] = high[b, k] - low[b, k]
            late = pivots if pivots > stall else 0
            row, excess, too_low = _leaving(tableau[b], at, low[b], high[b], inside[b], slack[b, 0], late)
            if row < 0:
                break
            sign = 1.0 if too_low else -1.0
            need = excess - slack[b, 0]
            column = _entering(tableau[b, row], sign, reduced[b], width, above[b], need, least, ratio)
            if column < 0:
                empty[b] = True
                break
            _exchange(tableau[b], reduced[b], row, column)
            inside[b, row], outside[b, column] = outside[b, column], inside[b, row]
            above[b, column] = not too_low
            pivots += 1
