r"""Prices changed by so little that reduced costs pay for no open side of a variable: the bound then assumes nothing.

A variable without an upper bound costs the bound everything unless its reduced cost is at least zero, and one without any unless it
is zero exactly.  At the optimum many are zero, and rounding decides.  So prices move by the least squares that make reduced costs
of the first kind a little positive.  For the second kind no prices in floating point need exist, but real ones do, near those at
hand: with a matrix G that nearly inverts the columns F of free variables, :math:`|I - A_F^\top G| \le \rho < 1` in the
maximum norm, :math:`d = G z` solves :math:`A_F^\top d = r_F` for a z with :math:`|z| \le |r_F| / (1 - \rho)`.  The bound is then the
least one over all prices that near (after Jansson 2004, Rigorous lower and upper bounds in linear programming).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, diags_array, eye_array
from scipy.sparse.linalg import splu

from blocklp.linear_program import Array, LinearProgram
from blocklp.lp.judge import EPS, of_sides, proved, reduced_costs

ROUNDS = 6
"""Corrections; each may spoil other columns, which the next one takes too."""

MARGIN = 1e-10
"""What reduced costs become, relative to their terms."""

TRACE = 1e-9
"""Part of the largest price up to which one counts as zero: its row stays out, since its sign may not change."""

RIDGE = 1e-12
"""What is added to the diagonal of the normal equations, relative to it."""

LARGEST = 2000
"""Free variables up to which the inverse is written out."""


@dataclass(frozen=True)
class Closed:
    """Prices of which some, within ``slack`` of them, have reduced costs of zero exactly.

    Attributes
    ----------
    price, slack : ndarray
        ``(rows,)``.
    zero : ndarray
        ``(variables,)`` bool: whose reduced costs those prices make zero.
    """

    price: Array
    slack: Array
    zero: NDArray[np.bool_]


def proved_closed(program: LinearProgram, price: Array, lower: Array, upper: Array) -> tuple[float, Array]:
    """The best bound of prices as they are and changed, without assumptions; and those."""
    value, changed = proved(program, price, lower, upper), closed(program, of_sides(program, price), lower, upper)
    if changed is not None:
        better = proved(program, changed.price, lower, upper, changed.slack, changed.zero)
        if better > value:
            return better, changed.price
    return value, price


def closed(program: LinearProgram, price: Array, lower: Array, upper: Array) -> Closed | None:
    """Change prices of an LP of minimisation so that no open side is paid for; None where that does not succeed.

    Parameters
    ----------
    program : LinearProgram
        The LP.
    price : ndarray
        ``(rows,)``, zero for sides that rows do not have.
    lower, upper : ndarray
        ``(variables,)``: what is known of the variables, infinite where a side is open.
    """
    below, above, matrix = np.isinf(lower), np.isinf(upper), csc_array(program.A)
    sign = np.where(above, 1.0, -1.0)  # which reduced costs must have where they are not free
    reduced, doubt = reduced_costs(program, price, below | above)
    zero, basis = _free(program, matrix, below, above, (below | above) & (sign * reduced < doubt))
    moving = np.flatnonzero(
        np.isfinite(program.row_lower) & np.isfinite(program.row_upper) | (np.abs(price) > TRACE * np.abs(price).max(initial=0.0))
    )
    largest = abs(program.A).max(axis=1).toarray().ravel()[moving]
    weight = 1 / np.where(largest > 0, largest, 1.0) ** 2
    taken = basis
    for _ in range(ROUNDS):
        margin = MARGIN / EPS * np.maximum(doubt, EPS * np.abs(program.c)) / np.maximum(1, np.diff(matrix.indptr))
        wrong = (below | above) & ~zero & (sign * reduced < np.where(basis.any(), margin / 2, doubt))
        if not wrong.any() and (np.abs(reduced[basis]) <= 4 * doubt[basis]).all():
            break
        taken = taken | wrong
        missing = (reduced - np.where(zero, 0.0, sign * margin))[taken]
        moved = _least(csc_array(matrix[:, np.flatnonzero(taken)][moving]), weight, missing)
        if moved is None:
            return None
        price = price.copy()
        price[moving] += moved
        price = of_sides(program, price)
        reduced, doubt = reduced_costs(program, price, below | above)
    slack = _slack(csc_array(matrix[:, np.flatnonzero(basis)][moving]), weight, np.abs(reduced[basis]) + doubt[basis])
    if slack is None:
        return None
    whole = np.zeros_like(price)
    whole[moving] = slack
    return Closed(price, whole, zero)


def _free(
    program: LinearProgram, matrix: csc_array, below: NDArray[np.bool_], above: NDArray[np.bool_], wrong: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which reduced costs must be zero, and of which of them the others then are.

    Those are of free variables and of two columns that are the negatives of each other, where one has the ``wrong`` sign: a free
    variable in two parts.
    """
    zero, basis, seen = below & above, below & above, dict[tuple[bytes, ...], int]()
    for j in np.flatnonzero((below ^ above) & wrong.any()):
        own = slice(matrix.indptr[j], matrix.indptr[j + 1])
        where, entries = matrix.indices[own].tobytes(), np.append(matrix.data[own], program.c[j]) + 0.0
        other = seen.pop((where, (0.0 - entries).tobytes()), None)
        if other is None or not (wrong[j] or wrong[other]):
            seen[where, entries.tobytes()] = int(j)
        else:
            zero[j] = zero[other] = basis[j] = True
    return zero, basis


def _normal(part: csc_array, weight: Array) -> csc_array:
    """The matrix of the normal equations."""
    normal = csc_array(part.T @ (diags_array(weight) @ part))
    return csc_array(normal + RIDGE * float(normal.diagonal().max(initial=0.0) or 1.0) * eye_array(normal.shape[0]))


def _least(part: csc_array, weight: Array, missing: Array) -> Array | None:
    """The least change of prices that changes reduced costs by as much; None where there is none."""
    normal = _normal(part, weight)
    try:
        solve = splu(normal, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}).solve
    except RuntimeError:  # singular
        return None
    moved = np.zeros(part.shape[0])
    for _ in range(3):
        moved = moved + weight * (part @ solve(missing - part.T @ moved))
    return moved if np.isfinite(moved).all() else None


def _slack(part: csc_array, weight: Array, residual: Array) -> Array | None:
    """How far from prices others are at most that leave no residual ``(free variables,)``; None where they may not exist."""
    rows, count = part.shape
    if not count:
        return np.zeros(rows)
    if count > min(LARGEST, rows):
        return None
    try:
        solve = splu(_normal(part, weight)).solve
    except RuntimeError:
        return None
    inverse = diags_array(weight) @ (part @ solve(np.eye(count)))
    error = np.abs(np.eye(count) - part.T @ inverse)
    terms = float(np.diff(part.indptr).max() + 2)
    size = error + terms * EPS * (1 + abs(part).T @ np.abs(inverse))
    rho = float(size.sum(1).max()) * (1 + count * EPS)
    if not rho < 0.5:
        return None
    return np.asarray(np.abs(inverse).sum(1) * (float(residual.max()) / (1 - rho)) * (1 + 4 * (count + 4) * EPS))
