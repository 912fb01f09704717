"""Blocks of QPBO: variables y in {0, 1} and a variable z for each product of two of them."""

from __future__ import annotations

import numpy as np

from blocklp.block import Constraints
from blocklp.finite import FiniteVertices, binary_vertices


class Edge(FiniteVertices):
    r"""A pair with its product: the convex hull of :math:`(y_i, y_j, y_i y_j)`.

    The four vertices are those of the McCormick envelope for a cost of either sign; the two-step oracle printed in the
    thesis (4.1.4.3) misses the minimum on about a quarter of random costs.
    """

    vertices = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1))

    def constraints(self) -> Constraints:
        """The McCormick inequalities (thesis, 4.1.4.6), without those that follow from the others."""
        matrix = [[0, 0, 1], [1, 1, -1], [-1, 0, 1], [0, -1, 1]]
        inf = float("inf")
        return Constraints.rows(np.array(matrix, dtype=float), [0, -inf, -inf, -inf], [inf, 1, 0, 0])
