r"""Rows, columns and units of an LP scaled, as a reduction with an inverse.

Rows and columns are divided by the roots of their largest entries, again and again, until all of these are
near 1 (Ruiz 2001, A scaling algorithm to equilibrate both rows and columns norms in matrices); then costs and
sides are divided by their lengths, as PDLP does (Applegate et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from blocklp.general_solvers.linear_program import Array, LinearProgram

ROUNDS = 10
"""Rounds of Ruiz's scaling, PDLP's number."""


@dataclass(frozen=True)
class Scaled:
    """A scaled LP, and the inverse of the scaling.

    Attributes
    ----------
    program : LinearProgram
        The scaled LP, of minimisation like the one given; its offset is zero.
    row, column : ndarray
        ``(rows,)``, ``(variables,)``: factors of rows and columns.
    sides, costs : float
        Divisors of sides and bounds, and of costs.
    """

    program: LinearProgram
    row: Array
    column: Array
    sides: float
    costs: float

    @classmethod
    def of(cls, program: LinearProgram) -> Scaled:
        """Scale an LP of minimisation."""
        matrix = program.A
        row, column = (np.ones(k) for k in matrix.shape)
        data, across_of = np.abs(matrix.data), matrix.indices
        row_of = np.repeat(np.arange(len(row)), np.diff(matrix.indptr))
        for _ in range(ROUNDS if matrix.nnz else 0):
            largest = np.zeros(len(row)), np.zeros(len(column))
            np.maximum.at(largest[0], row_of, data)
            np.maximum.at(largest[1], across_of, data)
            down, across = map(_root, largest)
            data = data * down[row_of] * across[across_of]
            row, column = row * down, column * across
        matrix = csr_array(
            (np.copysign(data, matrix.data), matrix.indices.copy(), matrix.indptr.copy()), matrix.shape
        )
        cost = program.c * column
        low, high = program.row_lower * row, program.row_upper * row
        lower, upper = program.lower / column, program.upper / column
        sides = _length(low, high) or _length(lower, upper) or 1.0
        costs = float(np.linalg.norm(cost)) or 1.0
        bounds = (low / sides, high / sides, lower / sides, upper / sides)
        return cls(LinearProgram(cost / costs, matrix, *bounds), row, column, sides, costs)

    def apply(self, x: Array, price: Array) -> tuple[Array, Array]:
        """Point ``(variables,)`` and prices ``(rows,)`` of the scaled LP, from those of the LP given."""
        return x / (self.column * self.sides), price / (self.row * self.costs)

    def restore(self, x: Array, price: Array) -> tuple[Array, Array]:
        """Point ``(variables,)`` and prices ``(rows,)`` of the LP given, from those of the scaled one."""
        return x * (self.column * self.sides), price * (self.row * self.costs)


def _root(largest: Array) -> Array:
    """Inverse square roots of the largest entries, 1 where these are zero."""
    return np.asarray(1 / np.sqrt(np.where(largest > 0, largest, 1.0)))


def _length(low: Array, high: Array) -> float:
    """Euclidean norm of the larger magnitudes of finite sides."""
    below, above = (np.where(np.isfinite(side), np.abs(side), 0.0) for side in (low, high))
    return float(np.linalg.norm(np.maximum(below, above)))
