r"""Correction of prices for a bound without assumptions on variables that lack bounds.

A variable without an upper bound costs the bound everything unless its reduced cost is at least zero, and one
without any unless it is zero exactly.  At the optimum many are zero, and rounding decides.  So prices move by
the least squares that make reduced costs of the first kind a little positive.  For the second kind no prices
in floating point need exist, but real ones do, near those at hand: with a matrix G that nearly inverts the
columns F of free variables, scaled by S, :math:`|I - S A_F^\top G| \le \rho < 1` in the maximum norm,
:math:`d = G z` solves :math:`A_F^\top d = r_F` for a z with :math:`|z| \le |S r_F| / (1 - \rho)`.  The bound
is then the least one over all prices that near (after Jansson 2004, Rigorous lower and upper bounds in
linear programming).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, diags_array, eye_array
from scipy.sparse.linalg import splu

from blocklp.general_solvers.linear_program import Array, LinearProgram
from blocklp.lp.judge import EPS, of_sides, proved, reduced_costs
from blocklp.lp.newton import symmetric_factor

ROUNDS = 6
"""Corrections; each may spoil other columns, which the next one takes too."""

MARGINS = (1e-10, 1e-12)
"""Reduced costs after corrections, relative to their terms, one after the other.

What is too little drowns in rounding, and what is too much is lost to the bound.
"""

TRACE = 1e-9
"""Part of the largest price up to which one counts as zero and stays, since its sign must not change."""

RIDGE = 1e-12
"""Multiple of the identity in the normal equations, whose diagonal is 1."""

LARGEST = 2000
"""Most free variables for which the inverse is formed."""


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
    """The better bound of prices as given and corrected, without assumptions.

    Parameters
    ----------
    program : LinearProgram
        An LP of minimisation.
    price : ndarray
        ``(rows,)``.
    lower, upper : ndarray
        ``(variables,)``: bounds of the variables, infinite where a side is open.

    Returns
    -------
    value : float
        The bound.
    price : ndarray
        ``(rows,)``: the prices that prove it.
    """
    value, best = proved(program, price, lower, upper), price
    for changed in closed(program, of_sides(program, price), lower, upper):
        better = proved(program, changed.price, lower, upper, changed.slack, changed.zero)
        if better > value:
            value, best = better, changed.price
    return value, best


def closed(program: LinearProgram, price: Array, lower: Array, upper: Array) -> Iterator[Closed]:
    """Correct prices until no reduced cost has the sign of an open side, by one of :data:`MARGINS` each.

    Parameters
    ----------
    program : LinearProgram
        An LP of minimisation.
    price : ndarray
        ``(rows,)``, zero for sides that rows do not have.
    lower, upper : ndarray
        ``(variables,)``: bounds of the variables, infinite where a side is open.

    Yields
    ------
    Closed
        One for every margin with which that succeeds.
    """
    for margin in MARGINS:
        if (corrected := _corrected(program, price, lower, upper, margin)) is not None:
            yield corrected


def _corrected(
    program: LinearProgram,
    price: Array,
    lower: Array,
    upper: Array,
    size: float,
) -> Closed | None:
    """Prices with reduced costs of ``size`` or more, relative to their terms; None without success."""
    below, above, matrix = np.isinf(lower), np.isinf(upper), csc_array(program.A)
    sign = np.where(above, 1.0, -1.0)  # of reduced costs of variables with one open side
    reduced, error = reduced_costs(program, price, below | above)
    zero, basis = _free(program, matrix, below, above, (below | above) & (sign * reduced < error))
    two_sided = np.isfinite(program.row_lower) & np.isfinite(program.row_upper)
    moving = np.flatnonzero(two_sided | (np.abs(price) > TRACE * np.abs(price).max(initial=0.0)))
    largest = abs(program.A).max(axis=1).toarray().ravel()[moving]
    weight = 1 / np.where(largest > 0, largest, 1.0) ** 2
    corrected = basis
    for _ in range(ROUNDS):
        margin = size * (np.abs(program.c) + program.sizes_by_column @ np.abs(price))
        wrong = (below | above) & ~zero & (sign * reduced < np.where(basis.any(), margin / 2, error))
        if not wrong.any() and (np.abs(reduced[basis]) <= 4 * error[basis]).all():
            break
        corrected = corrected | wrong
        missing = (reduced - np.where(zero, 0.0, sign * margin))[corrected]
        change = _least(csc_array(matrix[:, np.flatnonzero(corrected)][moving]), weight, missing)
        if change is None:
            return None
        price = price.copy()
        price[moving] += change
        price = of_sides(program, price)
        reduced, error = reduced_costs(program, price, below | above)
    residual = np.abs(reduced[basis]) + error[basis]
    slack = _slack(csc_array(matrix[:, np.flatnonzero(basis)][moving]), weight, residual)
    if slack is None:
        return None
    whole = np.zeros_like(price)
    whole[moving] = slack
    return Closed(price, whole, zero)


def _free(
    program: LinearProgram,
    matrix: csc_array,
    below: NDArray[np.bool_],
    above: NDArray[np.bool_],
    wrong: NDArray[np.bool_],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of the reduced costs that must be zero, and of those of them that make the others zero.

    Those are of free variables and of two columns that are the negatives of each other, where one has the
    ``wrong`` sign: a free variable in two parts.
    """
    zero, basis, seen = below & above, below & above, dict[tuple[bytes, ...], int]()
    for j in np.flatnonzero((below ^ above) & wrong.any()):
        column = slice(matrix.indptr[j], matrix.indptr[j + 1])
        rows, entries = matrix.indices[column].tobytes(), np.append(matrix.data[column], program.c[j]) + 0.0
        other = seen.pop((rows, (0.0 - entries).tobytes()), None)
        if other is None or not (wrong[j] or wrong[other]):
            seen[rows, entries.tobytes()] = int(j)
        else:
            zero[j] = zero[other] = basis[j] = True
    return zero, basis


def _normal(part: csc_array, weight: Array) -> tuple[csc_array, Array]:
    """The regularised matrix of the normal equations, of columns scaled to length 1, and their scales."""
    normal = csc_array(part.T @ (diags_array(weight) @ part))
    length = np.sqrt(normal.diagonal())
    scale = 1 / np.where(length > 0, length, 1.0)
    scaled = diags_array(scale) @ normal @ diags_array(scale)
    return csc_array(scaled + RIDGE * eye_array(normal.shape[0])), scale


def _least(part: csc_array, weight: Array, missing: Array) -> Array | None:
    """The least change of prices that changes reduced costs by ``missing``; None where there is none."""
    normal, scale = _normal(part, weight)
    try:
        solve = symmetric_factor(normal).solve
    except RuntimeError:  # singular
        return None
    change = np.zeros(part.shape[0])
    for _ in range(3):
        change = change + weight * (part @ (scale * solve(scale * (missing - part.T @ change))))
    return change if np.isfinite(change).all() else None


def _slack(part: csc_array, weight: Array, residual: Array) -> Array | None:
    """Largest distance ``(rows,)`` to prices without residual; None where there may be none.

    Residuals of the given prices are ``(free variables,)``.
    """
    rows, count = part.shape
    if not count:
        return np.zeros(rows)
    if count > min(LARGEST, rows):
        return None
    normal, scale = _normal(part, weight)
    try:
        solve = splu(normal).solve
    except RuntimeError:
        return None
    inverse = diags_array(weight) @ (part @ (scale[:, None] * solve(np.eye(count))))
    error = np.abs(np.eye(count) - scale[:, None] * (part.T @ inverse))
    terms = float(np.diff(part.indptr).max() + 4)
    size = error + terms * EPS * (1 + scale[:, None] * (abs(part).T @ np.abs(inverse)))
    rho = float(size.sum(1).max()) * (1 + count * EPS)
    if not rho < 0.5:
        return None
    rounded_up = 1 + 4 * (count + 4) * EPS
    largest = float((scale * residual).max())
    return np.asarray(np.abs(inverse).sum(1) * (largest / (1 - rho)) * rounded_up)
