"""Projections onto blocks of one row each, and their curvature, compiled for the CPU.

Operations and layout are those of :mod:`blocklp.methods.block_program`.  The price of a block is found by
Newton's method on the piecewise linear activity of its row, within a bracket (Cominetti, Mascarenhas and
Silva 2014, A Newton's method for the continuous quadratic knapsack problem).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from blocklp.kernels.compiled import compile, kernel
from blocklp.kernels.row_kernels import EXACT

MOST = 200
"""Newton steps and bisections for the price of a block: far more than it takes."""

ROUNDED, TINY = 4e-16, 1e-300
"""Relative residual of a row at which its price is exact; a sum of entries that are not zero."""


@kernel(fastmath=EXACT)
def project(
    _first: int, _last: int, blocks: Any, columns: Any, at: Any, y: Any, sigma: float, found: Any
) -> None:
    """Project every block, and add up the activities of the rows.

    Parameters
    ----------
    _first, _last : int
        Not used: there is one unit of work.
    blocks : tuple of arrays
        ``first`` (blocks + 1,), ``weight``, ``lower``, ``upper`` (variables,), ``below``, ``above``
        (blocks,).
    columns : tuple of arrays
        ``start`` (variables + 1,), ``row``, ``entry`` (entries,).
    at : ndarray
        (variables,): what is projected at prices of zero.
    y, sigma : ndarray, float
        (rows,): prices of rows; ``at + sigma A^T y`` is projected.
    found : tuple of arrays
        ``x`` (variables,), ``price`` (blocks,), ``activity`` (rows,), which are written.
    """
    first, weight, lower, upper, below, above = blocks
    start, row, entry = columns
    x, price, activity = found
    activity[:] = 0
    for b in range(len(below)):
        begin, end = first[b], first[b + 1]
        total = 0.0
        for i in range(begin, end):
            t = at[i]
            for k in range(start[i], start[i + 1]):
                t += sigma * entry[k] * y[row[k]]
            x[i] = t
            total += weight[i] * min(max(t, lower[i]), upper[i])
        if total > above[b]:
            price[b] = _price(x, weight, lower, upper, begin, end, total, above[b])
        elif total < below[b]:
            price[b] = _price(x, weight, lower, upper, begin, end, total, below[b])
        else:
            price[b] = 0.0
        for i in range(begin, end):
            x[i] = value = min(max(x[i] - price[b] * weight[i], lower[i]), upper[i])
            if value != 0:
                for k in range(start[i], start[i + 1]):
                    activity[row[k]] += entry[k] * value


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _price(
    t: Any, weight: Any, lower: Any, upper: Any, begin: int, end: int, total: float, side: float
) -> float:
    """The price at which a block's activity, which is ``total`` at price 0, is ``side``."""
    low, high, price, left = -np.inf, np.inf, 0.0, total
    slope = 0.0
    for i in range(begin, end):
        if lower[i] < t[i] < upper[i]:
            slope += weight[i] * weight[i]
    for _ in range(MOST):
        if left > side:
            low = price
        else:
            high = price
        new = price + (left - side) / slope if slope > 0 else np.nan
        if not low < new < high:
            new = 0.5 * (low + high)
        if not np.isfinite(new):  # beyond the last price at which a variable leaves its bounds
            new = price
            for i in range(begin, end):
                w = weight[i]
                if w != 0:
                    bound = lower[i] if (w > 0) == (left > side) else upper[i]
                    new = max(new, (t[i] - bound) / w) if left > side else min(new, (t[i] - bound) / w)
        if new == price:
            return price
        price, left, slope, size = new, 0.0, 0.0, abs(side)
        for i in range(begin, end):
            value = t[i] - price * weight[i]
            if value <= lower[i]:
                value = lower[i]
            elif value >= upper[i]:
                value = upper[i]
            else:
                slope += weight[i] * weight[i]
            left += weight[i] * value
            size += abs(weight[i] * value)
        if abs(left - side) <= ROUNDED * size:
            return price
    return price


@kernel(fastmath=EXACT)
def free_count(_first: int, _last: int, blocks: Any, x: Any, price: Any, counts: Any) -> None:
    """Count variables between their bounds, and blocks with such, where a projection can move.

    Parameters
    ----------
    _first, _last : int
        Not used: there is one unit of work.
    blocks, x, price : tuple of arrays, ndarray, ndarray
        As in :func:`project`.
    counts : ndarray
        (2,) int64, written.
    """
    first, _, lower, upper, below, _ = blocks
    variables, several = 0, 0
    for b in range(len(below)):
        own = 0
        for i in range(first[b], first[b + 1]):
            own += lower[i] < x[i] < upper[i]
        if own > (price[b] != 0):
            variables += own
            several += 1
    counts[0], counts[1] = variables, several


@kernel(fastmath=EXACT)
def free_variables(_first: int, _last: int, blocks: Any, x: Any, price: Any, free: Any) -> None:
    """List the variables and blocks that :func:`free_count` counts.

    Parameters
    ----------
    _first, _last : int
        Not used: there is one unit of work.
    blocks : tuple of arrays
        As in :func:`project`.
    x, price : ndarray
        (variables,), (blocks,): a projection.
    free : tuple of arrays
        ``index``, the variables; ``last``, where each block ends among them; ``length``, the sum of the
        squared weights of its variables, or 0 where its row is not at a side. All are written.
    """
    first, weight, lower, upper, below, _ = blocks
    index, last, length = free
    n, m = 0, 0
    for b in range(len(below)):
        begin, square = n, 0.0
        for i in range(first[b], first[b + 1]):
            if lower[i] < x[i] < upper[i]:
                if n < len(index):
                    index[n] = i
                n += 1
                square += weight[i] * weight[i]
        if n - begin > (price[b] != 0):
            last[m], length[m] = n, square if price[b] != 0 else 0.0
            m += 1
        else:
            n = begin


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _summed(r: int, term: float, sums: Any, rows: Any, touched: int) -> int:
    """Add a term to the sum of a row, which the list of ``touched`` rows gets if it is new; their number."""
    if sums[r] == 0:
        rows[touched] = r
        touched += 1
    sums[r] += term
    if sums[r] == 0:  # terms cancel: the row stays in the list
        sums[r] = TINY
    return touched


@kernel(fastmath=EXACT)
def curvature(
    _first: int, _last: int, weight: Any, columns: Any, free: Any, sums: Any, rows: Any, out: Any
) -> None:
    """Add up the matrix A P A^T, P the projector onto the directions in which the projection moves.

    Parameters
    ----------
    _first, _last, columns, free
        As in :func:`project` and :func:`free_variables`.
    weight : ndarray
        (variables,).
    sums, rows : ndarray
        (rows,) float64 of zeros, which are zeros again in the end, and int64: scratch.
    out : ndarray
        (rows, rows), of zeros; written.
    """
    start, row, entry = columns
    index, last, length = free
    begin = 0
    for b in range(len(last)):
        touched = 0
        for j in range(begin, last[b]):
            i = index[j]
            for k in range(start[i], start[i + 1]):
                for q in range(start[i], start[i + 1]):
                    out[row[k], row[q]] += entry[k] * entry[q]
                if length[b] > 0:
                    touched = _summed(row[k], weight[i] * entry[k], sums, rows, touched)
        for p in range(touched):
            share = sums[rows[p]] / length[b]
            for q in range(touched):
                out[rows[p], rows[q]] -= share * sums[rows[q]]
        for p in range(touched):
            sums[rows[p]] = 0
        begin = last[b]


@kernel(fastmath=EXACT)
def curvature_product(
    _first: int, _last: int, weight: Any, columns: Any, free: Any, v: Any, out: Any
) -> None:
    """Add A P A^T v to ``out``.

    Parameters
    ----------
    _first, _last, weight, columns, free
        As in :func:`curvature`.
    v, out : ndarray
        (rows,); ``out`` is written.
    """
    start, row, entry = columns
    index, last, length = free
    begin = 0
    for b in range(len(last)):
        mean = 0.0
        if length[b] > 0:
            for j in range(begin, last[b]):
                i = index[j]
                for k in range(start[i], start[i + 1]):
                    mean += weight[i] * entry[k] * v[row[k]]
            mean /= length[b]
        for j in range(begin, last[b]):
            i = index[j]
            along = -mean * weight[i]
            for k in range(start[i], start[i + 1]):
                along += entry[k] * v[row[k]]
            for k in range(start[i], start[i + 1]):
                out[row[k]] += entry[k] * along
        begin = last[b]


@kernel(fastmath=EXACT)
def curvature_diagonal(
    _first: int, _last: int, weight: Any, columns: Any, free: Any, sums: Any, rows: Any, out: Any
) -> None:
    """Add the diagonal of A P A^T to ``out``.

    Parameters
    ----------
    _first, _last, weight, columns, free, sums, rows, out
        As in :func:`curvature`; (rows,) of ``out`` are written.
    """
    start, row, entry = columns
    index, last, length = free
    begin = 0
    for b in range(len(last)):
        touched = 0
        for j in range(begin, last[b]):
            i = index[j]
            for k in range(start[i], start[i + 1]):
                out[row[k]] += entry[k] * entry[k]
                if length[b] > 0:
                    touched = _summed(row[k], weight[i] * entry[k], sums, rows, touched)
        for p in range(touched):
            r = rows[p]
            out[r] -= sums[r] * sums[r] / length[b]
            sums[r] = 0
        begin = last[b]


@functools.cache
def rehearse() -> None:
    """Load all loops, or compile them where no cache has them."""
    one, none = np.ones(2), np.zeros(2)
    blocks = np.array([0, 2]), one, none, one, -one[:1], one[:1]
    columns = np.arange(3), np.zeros(2, dtype=np.int32), one
    found, counts = (np.empty(2), np.empty(1), np.empty(1)), np.empty(2, dtype=np.int64)
    project(1, blocks, columns, one, none[:1], 1.0, found)
    free_count(1, blocks, *found[:2], counts)
    free = np.empty(counts[0], dtype=np.int64), np.empty(counts[1], dtype=np.int64), np.empty(counts[1])
    free_variables(1, blocks, *found[:2], free)
    curvature(1, one, columns, free, np.zeros(1), np.empty(1, dtype=np.int64), np.zeros((1, 1)))
    curvature_product(1, one, columns, free, none[:1], np.zeros(1))
    curvature_diagonal(1, one, columns, free, np.zeros(1), np.empty(1, dtype=np.int64), np.zeros(1))
