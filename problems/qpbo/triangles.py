r"""Triangle inequalities of the products of spins.

.. math:: 1 + a s_i s_j + b s_i s_k + a b\, s_j s_k \ge 0, \qquad a, b \in \{-1, 1\}

hold for all spins, so that a function less priced inequalities nowhere exceeds it by more than the sum of the prices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blocklp.problems.qpbo.arrays import FloatArray, IntArray

EPS = float(np.finfo(np.float64).eps)
SIGNS = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=np.int8)
"""Of the products of nodes 0 and 1, 0 and 2, 1 and 2 of a triangle."""
BETWEEN = np.array([[0, 0, 1], [0, 0, 2], [1, 2, 0]])
"""Which of these products is that of two nodes of a triangle."""
VIOLATED = 0.01
"""Inequalities that are violated by less are let be."""


@dataclass(frozen=True)
class Triangles:
    """Triangle inequalities and their prices.

    Attributes
    ----------
    nodes : numpy.ndarray, shape (m, 3), int32
        Increasing in each row; node 0 is the constant spin 1.
    signs : numpy.ndarray, shape (m, 3), int8
        Rows of :data:`SIGNS`.
    prices : numpy.ndarray, shape (m,), float64
        Not negative.
    """

    nodes: NDArray[np.int32]
    signs: NDArray[np.int8]
    prices: FloatArray

    @classmethod
    def none(cls) -> Triangles:
        """No inequalities."""
        return cls(np.zeros((0, 3), dtype=np.int32), np.zeros((0, 3), dtype=np.int8), np.zeros(0))

    @property
    def pairs(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The nodes of the three products, ``(m, 3)`` each."""
        return self.nodes[:, [0, 0, 1]], self.nodes[:, [1, 2, 2]]

    def above(self, least: float) -> Triangles:
        """Those of larger prices."""
        dear = self.prices > least
        return Triangles(self.nodes[dear], self.signs[dear], self.prices[dear])

    def fixed(self, spins: NDArray[np.int8]) -> Triangles:
        """Replace the nodes of known spins by node 0, as :meth:`Spins.fixed` does; what says nothing any more is left out.

        Parameters
        ----------
        spins : numpy.ndarray, shape (n,), int8
            -1 or 1 where fixed, 0 elsewhere.
        """
        known = np.concatenate([[1], spins]).astype(np.int8)
        places = np.where(spins == 0, np.cumsum(spins == 0), 0)
        nodes = np.concatenate([[0], places]).astype(np.int32)[self.nodes]
        left = (nodes == 0).sum(1) < 2
        factors = np.where(known == 0, 1, known)
        first, second = (ends[left] for ends in self.pairs)
        signs = self.signs[left] * factors[first] * factors[second]
        order = np.argsort(nodes[left], axis=1)
        columns = np.stack([BETWEEN[order[:, a], order[:, b]] for a, b in ((0, 1), (0, 2), (1, 2))], axis=1)
        return Triangles(np.take_along_axis(nodes[left], order, 1), np.take_along_axis(signs, columns, 1), self.prices[left])

    def with_violated(self, x: FloatArray, count: int) -> Triangles:
        """Add those that estimated products violate most, at price zero; the same object is returned if there are none.

        Parameters
        ----------
        x : numpy.ndarray, shape (n + 1, n + 1), float64
            The products.
        count : int
            How many are added at most.
        """
        n, most = len(x), max(1, count + len(self.prices))
        cut, size = -1 - VIOLATED, 0
        found: list[FloatArray] = []
        for i in range(n - 2):  # in slices of the first node, and no more than a few times what can be added: memory of order n^2
            later = np.triu_indices(n - i - 1, 1)
            inner = x[i + 1 :, i + 1 :][later]
            one, other = x[i, i + 1 :][later[0]], x[i, i + 1 :][later[1]]
            for code, (a, b, c) in enumerate(SIGNS.tolist()):
                value = a * one + b * other + c * inner
                worst = np.flatnonzero(value < cut)
                if len(worst):
                    j, k = later[0][worst] + i + 1, later[1][worst] + i + 1
                    found.append(np.stack([value[worst], np.full(len(worst), i), j, k, np.full(len(worst), code)], 1))
                    size += len(worst)
            if size > 4 * most:
                rows = _least(np.concatenate(found), most)
                found, size, cut = [rows], most, rows[-1, 0]
        if not found:
            return self
        rows = np.concatenate(found)
        nodes, signs = rows[:, 1:4].astype(np.int32), SIGNS[rows[:, 4].astype(np.int64)]
        new = np.flatnonzero(~np.isin(_numbers(nodes, signs, n), _numbers(self.nodes, self.signs, n)))
        if not len(new):
            return self
        new = new[np.argsort(rows[new, 0], kind="stable")[:count]]
        return Triangles(
            np.concatenate([self.nodes, nodes[new]]),
            np.concatenate([self.signs, signs[new]]),
            np.concatenate([self.prices, np.zeros(len(new))]),
        )

    def charged(self, coupling: FloatArray, prices: FloatArray) -> FloatArray:
        """A symmetric matrix ``(n + 1, n + 1)`` less the inequalities at some prices ``(m,)``."""
        charged = np.zeros_like(coupling)
        np.add.at(charged, self.pairs, prices[:, None] * self.signs / 2)
        return coupling - charged - charged.T

    def paid(self, coupling: FloatArray) -> Paid:
        r"""Subtract the inequalities from a function.

        The charge of an entry is a sum of k halves of prices (exact) whose magnitudes add up to A: its error is below
        :math:`\gamma_{k-1} A`, that of the difference below :math:`u (|C| + A (1 + \gamma_k))`, with u = EPS / 2.  A price is in
        three entries, so that over all of them, each counted for both of its places, the magnitudes A add up to three times the
        sum of the prices.  Twice as much is charged, for the products of rounding errors and the rounding of these sums.
        """
        paid = math.fsum(self.prices)
        if not paid:
            return Paid(coupling, 0.0, 0.0)
        count = np.zeros(coupling.shape, dtype=np.int64)
        np.add.at(count, self.pairs, 1)
        error = EPS * (3 * (int(count.max()) + 1) * paid + float(np.abs(coupling).sum()))
        return Paid(self.charged(coupling, self.prices), math.nextafter(paid, math.inf), error)


@dataclass(frozen=True)
class Paid:
    """A function less priced triangle inequalities.

    Attributes
    ----------
    coupling : numpy.ndarray, shape (n + 1, n + 1), float64
        What is left.
    price : float
        Sum of the prices, rounded up.
    error : float
        No spins have a value that all rounding changes by more.
    """

    coupling: FloatArray
    price: float
    error: float


def _least(rows: FloatArray, count: int) -> FloatArray:
    """The rows with the least first entries, in order."""
    least: FloatArray = rows[np.argsort(rows[:, 0], kind="stable")[:count]]
    return least


def _numbers(nodes: NDArray[np.int32], signs: NDArray[np.int8], n: int) -> IntArray:
    """A number for each inequality."""
    i, j, k = nodes.astype(np.int64).T
    code = 2 * (signs[:, 0] < 0) + (signs[:, 1] < 0)
    numbers: IntArray = ((i * n + j) * n + k) * 4 + code
    return numbers
