"""Blocks that are known by their constraints: bounds on their minima that any prices of rows prove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import block_diag, csr_array, diags_array, eye_array, hstack

from blocklp.blocks.contract import Constraints
from blocklp.certify.exact_arithmetic import Exact
from blocklp.general_solvers.linear_program import Array, LinearProgram, block_rows


@dataclass(frozen=True)
class StatedBlocks:
    """Blocks of a name that are known by their constraints.

    Attributes
    ----------
    program : LinearProgram
        All of them, which are separate: multipliers are its costs.
    power : ndarray
        ``(blocks,)`` int64: every block in a unit of its own, for the solver's tolerances are absolute.
    """

    program: LinearProgram
    power: NDArray[np.intp]

    @classmethod
    def of(cls, rows: Constraints, duals: Array, low: Array, high: Array, instance: int) -> StatedBlocks:
        """State blocks at their multipliers.

        Parameters
        ----------
        rows : Constraints
            Of their type.
        duals, low, high : ndarray
            ``(blocks, dim)`` float64: multipliers, and bounds of the variables.
        instance : int
            Which of the rows' instances.

        Returns
        -------
        StatedBlocks
            The blocks.
        """
        copies = np.arange(duals.size).reshape(duals.shape)
        matrix, row_low, row_high = block_rows(rows, copies, duals.size, instance)
        program = LinearProgram(duals.ravel(), matrix, row_low, row_high, low.ravel(), high.ravel())
        largest = np.abs(duals * _widths(program).reshape(duals.shape)).max(1)
        return cls(program, np.where(largest > 0, np.frexp(largest)[1], 0))

    def scaled(self) -> LinearProgram:
        """The program with costs in the units of blocks."""
        costs = np.ldexp(self.program.c.reshape(len(self.power), -1), -self.power[:, None])
        return replace(self.program, c=costs.ravel())

    def proved(self, prices: Array | None) -> Fraction | None:
        """Bound on the sum of the blocks' minima within the variables' bounds; ``None`` if a block is empty.

        If HiGHS finds no optimum, they are asked for the least sum of violations: a bound above zero on that
        proves one of them empty.
        """
        program, matrix = self.program, self.program.A
        if prices is not None:
            prices = np.ldexp(prices.reshape(len(self.power), -1), self.power[:, None]).ravel()
            return _proved(program, prices)
        unit, count = eye_array(matrix.shape[0], format="csr"), 2 * matrix.shape[0]
        elastic = LinearProgram(
            np.concatenate([np.zeros(len(program.c)), np.ones(count)]),
            hstack([matrix, unit, -unit], format="csr"),
            program.row_lower,
            program.row_upper,
            np.concatenate([program.lower, np.zeros(count)]),
            np.concatenate([program.upper, np.full(count, np.inf)]),
        )
        least = _prices(elastic)
        if least is not None and _proved(replace(program, c=np.zeros(len(program.c))), least) > 0:
            return None
        return _proved(program, np.zeros(matrix.shape[0]))


def bounded_below(stated: Sequence[StatedBlocks]) -> Fraction | None:
    """Bound on the sum of the minima of all blocks that are known by constraints; ``None`` if one is empty.

    They are one LP, as far as HiGHS finds its optimum, else one for each name.
    """
    if not stated:
        return Fraction(0)
    parts = [own.scaled() for own in stated]
    matrix = csr_array(block_diag([part.A for part in parts], format="csr"))
    sides = "c", "row_lower", "row_upper", "lower", "upper"
    c, row_lower, row_upper, lower, upper = (np.concatenate([getattr(p, s) for p in parts]) for s in sides)
    together = _prices(LinearProgram(c, matrix, row_lower, row_upper, lower, upper))
    stops = np.cumsum([part.A.shape[0] for part in parts])[:-1]
    prices = map(_prices, parts) if together is None else np.split(together, stops)
    total = Fraction(0)
    for own, y in zip(stated, prices, strict=True):
        if (value := own.proved(y)) is None:
            return None
        total += value
    return total


def _prices(program: LinearProgram) -> Array | None:
    """Dual values of the rows by HiGHS, zero where their sign speaks of a side that the row does not have.

    Variables and rows are scaled by powers of two, so that intervals and rows are about as large as 1.
    """
    column = _widths(program)
    sums = abs(program.A) @ column
    row = np.ldexp(1.0, -np.frexp(sums)[1])
    scaled = LinearProgram(
        program.c * column,
        diags_array(row) @ program.A @ diags_array(column),
        program.row_lower * row,
        program.row_upper * row,
        program.lower / column,
        program.upper / column,
    )
    found = scaled.linprog()
    if found.status != 0:
        return None
    y = np.zeros(len(program.row_lower))
    equal, above, below = scaled.sides()
    y[equal] = found.eqlin.marginals
    y[above] += found.ineqlin.marginals[: len(above)]
    y[below] -= found.ineqlin.marginals[len(above) :]
    y = y * row
    side = np.where(y > 0, program.row_lower, program.row_upper)
    return np.where(np.isfinite(side) & np.isfinite(y), y, 0.0)


def _widths(program: LinearProgram) -> Array:
    """Powers of two about as large as the intervals that bounds and rows leave to variables.

    They are 1 for intervals that are empty, single points or infinite.
    A row leaves to a variable what its other terms do not use of it at least.
    """
    width = program.upper - program.lower
    entries = program.A.tocoo()
    with np.errstate(invalid="ignore", divide="ignore"):
        ends = entries.data * program.lower[entries.col], entries.data * program.upper[entries.col]
        count, parts = len(program.row_lower), (np.minimum(*ends), np.maximum(*ends))
        least, most = (np.bincount(entries.row, part, count) for part in parts)
        room = np.minimum(program.row_upper - least, most - program.row_lower)
        room = room[entries.row] / np.abs(entries.data)
    np.minimum.at(width, entries.col, np.where(room > 0, room, np.inf))
    usual = (width > 0) & np.isfinite(width)
    return np.where(usual, np.ldexp(1.0, np.frexp(np.where(usual, width, 1.0))[1] - 1), 1.0)


def _proved(program: LinearProgram, y: Array) -> Fraction:
    r"""Bound on the optimum that any prices :math:`y` of the rows prove.

    .. math:: \sum_{i : y_i > 0} y_i l_i + \sum_{i : y_i < 0} y_i u_i
              + \min_{lo \le x \le hi} \langle c - A^\top y, x \rangle
    """
    entries = program.A.tocoo()
    used = (Exact.of(entries.data) * Exact.of(y)[entries.row]).scatter(entries.col, len(program.c))
    side = np.where(y > 0, program.row_lower, np.where(y < 0, program.row_upper, 0.0))
    reduced = Exact.of(program.c) - used
    return (Exact.of(y) * Exact.of(side)).total() + least(reduced, program.lower, program.upper)


def least(cost: Exact, low: Array, high: Array) -> Fraction:
    r"""Minimum over a box, :math:`\sum_j \min(c_j lo_j, c_j hi_j)`."""
    return (cost * Exact.of(low)).minimum(cost * Exact.of(high)).total()
