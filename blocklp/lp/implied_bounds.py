r"""Bounds of variables that the rows of an LP imply: finite ones for as many variables as possible.

A row :math:`\sum_j a_j x_j \le u` bounds each of its variables by the activity that the others must have
(activity propagation; Brearley, Mitra and Williams 1975),

.. math:: a_k x_k \; \le \; u - \sum_{j \ne k} \min(a_j lo_j, a_j hi_j),

and a bound that was found may help other rows.  Rounding is charged, so that every feasible point satisfies
the bounds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from blocklp.deadline import Deadline
from blocklp.general_solvers.linear_program import Array, LinearProgram
from blocklp.lp.judge import EPS

ROUNDS = 100
"""Most rounds over all rows: each may pass a bound on by one row."""


def implied_bounds(program: LinearProgram, deadline: Deadline | None = None) -> tuple[Array, Array]:
    """Bounds of the variables, infinite sides replaced by finite ones where the rows imply some.

    Parameters
    ----------
    program : LinearProgram
        The LP.
    deadline : Deadline, optional
        When to stop with the bounds so far.

    Returns
    -------
    lower, upper : ndarray
        ``(variables,)`` float64; finite sides are those given.  A lower bound above its upper one proves the
        LP infeasible.
    """
    entries = _Entries.of(program.A)
    negated = _Entries(-entries.entry, entries.row, entries.column)  # lower sides are upper sides of these
    low, high = program.lower.copy(), program.upper.copy()
    for _ in range(ROUNDS):
        missing = int(np.isinf(low).sum() + np.isinf(high).sum())
        if not missing or (deadline is not None and deadline.over()):
            break
        below, above = entries.limits(low, high, program.row_upper)
        also_below, also_above = negated.limits(low, high, -program.row_lower)
        low = np.where(np.isinf(low), np.maximum(below, also_below), low)
        high = np.where(np.isinf(high), np.minimum(above, also_above), high)
        if np.isinf(low).sum() + np.isinf(high).sum() == missing:
            break
    return low, high


def tightened(
    matrix: csr_array, sides: tuple[Array, Array], bounds: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Bounds of the variables, as tight as each row alone makes them.

    Parameters
    ----------
    matrix : csr_array
        ``(rows, variables)``.
    sides : tuple of ndarray
        ``(rows,)`` float64 each: lower and upper sides.
    bounds : tuple of ndarray
        ``(variables,)`` float64 each: lower and upper bounds.
    """
    entries = _Entries.of(matrix)
    negated = _Entries(-entries.entry, entries.row, entries.column)
    below, above = entries.limits(*bounds, sides[1])
    also_below, also_above = negated.limits(*bounds, -sides[0])
    lower, upper = np.maximum(below, also_below), np.minimum(above, also_above)
    return np.maximum(bounds[0], lower), np.minimum(bounds[1], upper)


def bounds_of_single_rows(
    matrix: csr_array, sides: tuple[Array, Array], bounds: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Bounds of the variables, those that rows with one entry state included.

    Parameters
    ----------
    matrix : csr_array
        ``(rows, variables)`` without explicit zeros.
    sides : tuple of ndarray
        ``(rows,)`` float64 each: lower and upper sides.
    bounds : tuple of ndarray
        ``(variables,)`` float64 each: lower and upper bounds.
    """
    rows = np.flatnonzero(np.diff(matrix.indptr) == 1)
    places = matrix.indptr[rows]
    entry, column = matrix.data[places], matrix.indices[places]
    first, second = (side[rows] / entry for side in sides)
    lower, upper = (side.copy() for side in bounds)
    np.maximum.at(lower, column, np.where(entry > 0, first, second))
    np.minimum.at(upper, column, np.where(entry > 0, second, first))
    return lower, upper


class _Entries:
    """The nonzero entries of a matrix."""

    def __init__(self, entry: Array, row: NDArray[np.int64], column: NDArray[np.int64]) -> None:
        self.entry, self.row, self.column = entry, row, column

    @classmethod
    def of(cls, matrix: csr_array) -> _Entries:
        """Those of a matrix, row by row."""
        matrix = matrix.copy()
        matrix.eliminate_zeros()
        return cls(matrix.data, np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), matrix.indices)

    def limits(self, low: Array, high: Array, side: Array) -> tuple[Array, Array]:
        """Bounds of the variables that rows with upper sides imply.

        Parameters
        ----------
        low, high : ndarray
            ``(variables,)``: the bounds so far.
        side : ndarray
            ``(rows,)``: upper sides, infinite for none.

        Returns
        -------
        lower, upper : ndarray
            ``(variables,)``, infinite for none.
        """
        positive = self.entry > 0
        least = self.entry * np.where(positive, low[self.column], high[self.column])
        open_ = np.isinf(least)
        finite = np.where(open_, 0.0, least)
        count = len(side)
        summands = (finite, np.abs(finite), np.ones_like(finite), open_)
        total, size, terms, opens = (np.bincount(self.row, part, count)[self.row] for part in summands)
        bounded = (opens - open_ == 0) & np.isfinite(side[self.row])
        with np.errstate(invalid="ignore", over="ignore"):
            room = side[self.row] - (total - finite)
            room += EPS * (terms + 4) * (2 * size + np.abs(side[self.row]))
            limit = room / self.entry
            limit += np.where(positive, 1, -1) * 4 * EPS * np.abs(limit)
        below, above = np.full(len(low), -np.inf), np.full(len(low), np.inf)
        up, down = bounded & positive & np.isfinite(limit), bounded & ~positive & np.isfinite(limit)
        np.minimum.at(above, self.column[up], limit[up])
        np.maximum.at(below, self.column[down], limit[down])
        return below, above
