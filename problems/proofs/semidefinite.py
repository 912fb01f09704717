r"""Lower bounds of quadratic functions of variables of two labels, by positive semidefinite matrices.

In spins :math:`s = 2 y - 1`, where y = 1 says the second label, and with :math:`s_0 = 1`, the function is :math:`s^\top C s + k`.
For any u, and prices :math:`\gamma_t \ge 0` of triangle inequalities
:math:`1 + a s_i s_j + b s_i s_k + a b\, s_j s_k \ge 0` with :math:`a, b \in \{-1, 1\}`, which all spins satisfy,

.. math:: k + \sum_i u_i - \sum_t \gamma_t - \sum_i d_i, \qquad
          Z = C - \sum_t \gamma_t T_t - \mathrm{Diag}(u), \qquad
          d_i = \max\Bigl(0, \sum_{j \ne i} |E_{ij}| - E_{ii}\Bigr), \quad E = Z - R R^\top

is a lower bound for any matrix R, and for any numbers in place of infinite entries of pairs, which no labels have: Z with d added to
its diagonal is :math:`R R^\top` plus a matrix with a dominant diagonal.  R comes from a Cholesky factorisation in floating point,
rounded to integers; all else is calculated in integers.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from blocklp.errors import FormatError
from blocklp.problems.proofs.function import HARD, IntegerFunction
from blocklp.problems.proofs.steps import Semidefinite

DIGITS = 50
"""Bits of coefficients and of factors."""


def semidefinite(function: IntegerFunction, leaf: Semidefinite) -> int:
    """Return the formula of the module's text, rounded down.

    Raises
    ------
    FormatError
        A variable has more than two labels, or a table more than two variables; or the multipliers do not fit.
    """
    place = {v: k for k, v in enumerate(sorted(function.labels), 1)}
    if any(len(own) != 2 for own in function.labels.values()) or any(len(scope) > 2 for scope in function.tables):
        raise FormatError("a semidefinite leaf is for tables of at most two variables, of two labels each")
    n = len(place) + 1
    penalties = _penalties(function, leaf, n)
    # Eight times the function has whole coefficients in spins; those of the proof are rounded to a grid below them.
    matrix = np.zeros((n, n), dtype=object)
    constant = 8 * function.constant
    for scope, table in function.tables.items():
        if len(scope) == 1:
            (i,), (none, one) = (place[v] for v in scope), table.tolist()
            matrix[0, i] += 2 * (one - none)
            matrix[i, 0] += 2 * (one - none)
            constant += 4 * (none + one)
        else:
            i, j = (place[v] for v in scope)
            (none, second), (first, both) = np.where(table >= HARD // 2, penalties.get((i, j), table), table).tolist()
            for a, b, value in (
                (i, j, none - second - first + both),
                (0, i, first + both - none - second),
                (0, j, second + both - none - first),
            ):
                matrix[a, b] += value
                matrix[b, a] += value
            constant += 2 * (none + second + first + both)
    grid = 1 << max(0, DIGITS - int(abs(matrix).max()).bit_length())
    unit = 8 * grid * Fraction(2) ** function.exponent
    matrix = matrix * grid
    if len(leaf.diagonal) != n:
        raise FormatError(f"a leaf has multipliers of {len(leaf.diagonal)} squares; {n} spins are there")
    bound = constant * grid
    try:
        for i, number in enumerate(leaf.diagonal):
            whole = math.floor(Fraction(number) * unit)
            matrix[i, i] -= whole
            bound += whole
        for i, j, k, a, b, price in leaf.triangles:
            half = math.floor(Fraction(price) * unit / 2)
            if any(type(v) is not int for v in (i, j, k, a, b)) or not 0 <= i < j < k < n or {a, b} - {-1, 1} or half < 0:
                raise ValueError
            for first, second, sign in ((i, j, a), (i, k, b), (j, k, a * b)):
                matrix[first, second] -= half * sign
                matrix[second, first] -= half * sign
            bound -= 2 * half
    except (TypeError, ValueError, OverflowError):
        what = "finite squares, and triangles of three nodes in order, two signs and a price that is not negative"
        raise FormatError(f"a leaf has multipliers that do not fit; give {what}") from None
    return (bound - _missing(matrix)) // (8 * grid)


def _penalties(function: IntegerFunction, leaf: Semidefinite, n: int) -> dict[tuple[int, int], int]:
    """What stands for infinite entries of pairs of nodes."""
    found: dict[tuple[int, int], int] = {}
    values = function.rounded([penalty[-1] for penalty in leaf.penalties]).tolist()
    for penalty, value in zip(leaf.penalties, values, strict=True):
        if len(penalty) != 3 or any(type(v) is not int for v in penalty[:2]) or not 0 < penalty[0] < penalty[1] < n:
            raise FormatError(f"a leaf has the penalty {penalty}; give two nodes in order, and a number")
        found[penalty[:2]] = value
    return found


def _missing(matrix: Any) -> int:
    """What the diagonal of a symmetric matrix of integers lacks at most, in sum, to be positive semidefinite."""
    factor, shift = np.zeros(matrix.shape), 0
    try:
        near = matrix.astype(np.float64)
        # The factorisation is a guess, whose residual is exact.
        with np.errstate(over="ignore", invalid="ignore"):
            guess = np.linalg.cholesky(near + 1e-14 * len(near) * np.eye(len(near)) * abs(near).max())
        if np.isfinite(guess).all():
            factor, shift = guess, max(0, DIGITS - math.frexp(float(abs(guess).max()))[1])
    except (np.linalg.LinAlgError, OverflowError):
        pass  # then nothing but its own diagonal can prove it
    whole = np.vectorize(int, otypes=[object])(np.rint(np.ldexp(factor, shift)))
    residual = matrix * (1 << 2 * shift) - whole.dot(whole.T)
    diagonal = residual.diagonal()
    lacking = np.maximum(0, abs(residual).sum(1) - abs(diagonal) - diagonal)
    return sum(-(-int(d) // (1 << 2 * shift)) for d in lacking)
