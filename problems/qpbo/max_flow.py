"""Roof duality by maximum flow, for small binary problems that only want labels.

Source: E. Boros, P. L. Hammer and X. Sun, Network flows and minimization of quadratic pseudo-Boolean functions, RUTCOR 1991; V.
Kolmogorov and C. Rother, PAMI 29 (2007).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blocklp.problems.discrete.minimum_cut import minimum_cut
from blocklp.problems.qpbo.instance import Qubo

CAPACITY = 2**30
"""Sum of the capacities in whole numbers: flows are 32-bit integers."""


def roof_dual_labels(qubo: Qubo) -> NDArray[np.int8]:
    """Label the variables that roof duality decides.

    Coefficients are rounded to a share ``2 ** -30`` of their sum.  For the rounded function, setting the labelled variables of any y
    to their labels never raises its value.

    Parameters
    ----------
    qubo : Qubo

    Returns
    -------
    numpy.ndarray, shape (n,), int8
        0, 1, or -1 where undecided.
    """
    # Literals: y_i is node i, its complement n + i, then "true" and "false".  A term a u v (a > 0) makes arcs u -> not v and v -> not
    # u.
    n, (first, second), q = qubo.n, qubo.edges.T, qubo.quadratic
    # Halves twice, and powers instead of quotients: neither the sum nor a factor overflows.  A power of two keeps whole coefficients,
    # and their ties, as they are.
    total = np.abs(qubo.linear / 4).sum() + np.abs(q / 2).sum()
    if total == 0:
        return np.full(n, -1, dtype=np.int8)
    power = int(np.floor(np.log2(CAPACITY / 8) - np.log2(total)))
    quadratic, linear = (np.rint(np.ldexp(c, power)).astype(np.int64) for c in (q, qubo.linear))
    # For q < 0: q y_i y_j = q y_i + |q| y_i (1 - y_j).
    np.add.at(linear, first, np.minimum(quadratic, 0))
    tail = np.concatenate([np.where(linear > 0, np.arange(n), np.arange(n, 2 * n)), first])
    other = np.concatenate([np.full(n, 2 * n), np.where(quadratic > 0, second, second + n)])
    weight = np.abs(np.concatenate([linear, quadratic]))
    rows, columns = np.concatenate([tail, other]), np.concatenate([_complement(other, n), _complement(tail, n)])
    _, reached = minimum_cut(2 * n + 2, rows, columns, np.tile(weight, 2))
    return np.where(reached[:n], 1, np.where(reached[n : 2 * n], 0, -1)).astype(np.int8)


def _complement(literal: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """The opposite literal."""
    return np.where(literal < 2 * n, (literal + n) % (2 * n), 4 * n + 1 - literal)
