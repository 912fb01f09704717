r"""Rows, columns and units of an LP scaled, as a reduction with an inverse.

Rows and columns are divided by the roots of their largest entries, again and again, until all of these are near 1 (Ruiz 2001, A
scaling algorithm to equilibrate both rows and columns norms in matrices); then costs and sides are divided by their lengths, as PDLP
does (Applegate et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, diags_array

from blocklp.linear_program import Array, LinearProgram

ROUNDS = 10
"""Rounds of Ruiz's scaling, PDLP's number."""


@dataclass(frozen=True)
class Scaled:
    """A scaled LP, and the way back.

    Attributes
    ----------
    program : LinearProgram
        The scaled LP, of minimisation like the one given; its offset is zero.
    row, column : ndarray
        ``(rows,)``, ``(columns,)``: what rows and columns were multiplied by.
    sides, costs : float
        What sides and bounds, and costs, were divided by.
    """

    program: LinearProgram
    row: Array
    column: Array
    sides: float
    costs: float

    @classmethod
    def of(cls, program: LinearProgram) -> Scaled:
        """Scale an LP of minimisation."""
        matrix = program.A.copy()
        row, column = (np.ones(k) for k in matrix.shape)
        for _ in range(ROUNDS if matrix.nnz else 0):
            size = abs(matrix)
            down, across = (_root(size.max(axis=axis).toarray().ravel()) for axis in (1, 0))
            matrix = csr_array(diags_array(down) @ matrix @ diags_array(across))
            row, column = row * down, column * across
        cost = program.c * column
        ends = [program.row_lower * row, program.row_upper * row, program.lower / column, program.upper / column]
        rows, bounds = _length(*ends[:2]), _length(*ends[2:])
        sides, costs = rows or bounds or 1.0, float(np.linalg.norm(cost)) or 1.0
        low, high, least, most = (end / sides for end in ends)
        made = LinearProgram(cost / costs, matrix, low, high, least, most)
        return cls(made, row, column, sides, costs)

    def apply(self, x: Array, price: Array) -> tuple[Array, Array]:
        """A point and prices of the LP given, as those of the scaled one."""
        return x / (self.column * self.sides), price / (self.row * self.costs)

    def restore(self, x: Array, price: Array) -> tuple[Array, Array]:
        """The inverse of :meth:`apply`."""
        return x * (self.column * self.sides), price * (self.row * self.costs)


def _root(largest: Array) -> Array:
    """Inverse roots of the largest entries, one where there are none."""
    return np.asarray(1 / np.sqrt(np.where(largest > 0, largest, 1.0)))


def _length(low: Array, high: Array) -> float:
    """The length of the larger magnitudes of finite sides."""
    return float(np.linalg.norm(np.maximum(*(np.where(np.isfinite(side), np.abs(side), 0.0) for side in (low, high)))))
