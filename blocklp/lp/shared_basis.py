"""One basis of an LP with its tableau, from which the dual simplex method starts at many nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array, diags_array, eye_array, hstack
from scipy.sparse.linalg import splu

from blocklp.errors import ModelError
from blocklp.general_solvers.linear_program import Array, LinearProgram, loaded_highs
from blocklp.general_solvers.small_lp import available
from blocklp.kernels.dual_simplex_layout import BASIC, FAR, LOWER, UPPER, ZERO
from blocklp.lp.implied_bounds import implied_bounds
from blocklp.lp.judge import EPS, of_sides
from blocklp.lp.scaling import Scaled
from blocklp.lp.solve import solve_linear_program

DROPPED = 1e-11
"""Entries of the tableau that count as rounding, over the largest of their columns."""

LARGEST = 30_000_000
"""Most entries of a tableau."""

COLUMNS = 256
"""Columns of the tableau that are computed at once."""

INTERIOR = 1e-3, 1e-5, 1e-7
"""Reduced costs in the interior that are tried in turn, over the mean cost."""


@dataclass(frozen=True)
class SharedProgram:
    """An LP of minimisation in units in which its entries are near 1, all powers of two.

    Attributes
    ----------
    program : LinearProgram
        The scaled LP, in which every variable has a lower bound.
    lower, upper : ndarray
        ``(variables,)``: bounds before scaling.
    row, column : ndarray
        ``(rows,)``, ``(variables,)``: factors; negative for a variable that has an upper bound only.
    implied : ndarray
        ``(variables,)``: upper bounds, also those that rows imply.
    inner, margin : ndarray
        ``(rows,)``, ``(variables,)``: prices with reduced costs that are positive where these are infinite;
        zero where no such prices are needed.
    objective : bool
        Whether these are reduced costs of the LP's objective; as a rule they are those of no costs, which
        there are where rows bound all variables, and which serve for all costs and for proofs that there is
        no point.
    """

    program: LinearProgram
    lower: Array
    upper: Array
    row: Array
    column: Array
    implied: Array
    inner: Array
    margin: Array
    objective: bool

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """The argument ``program`` of :func:`blocklp.kernels.dual_simplex_kernels.bounds`."""
        stated, columns = self.program, csc_array(self.program.A)
        count = np.diff(columns.indptr)
        errors = np.where(count > 0, EPS * (count + 2), 0.0)
        inner = self.inner, self.margin, self.objective
        judged = (_entries(stated.A), errors, self.implied, *inner)
        units = self.column, self.row, self.lower, self.upper
        sides = stated.row_lower, stated.row_upper
        return stated.c, (stated.lower, stated.upper), sides, _entries(columns), judged, units

    @classmethod
    def of(cls, program: LinearProgram) -> SharedProgram:
        """Scale an LP of minimisation, and give bounds to its free variables.

        Raises
        ------
        ModelError
            If a variable has no bound, and rows imply none; or variables without an upper bound and a value
            that falls along them.
        """
        low, high = implied_bounds(program)
        free = np.isinf(program.lower) & np.isinf(program.upper)
        bad = np.flatnonzero(free & np.isinf(low) & np.isinf(high))
        if len(bad):
            need = "give it a bound that no feasible point passes"
            raise ModelError(f"variable {bad[0]} has no bounds, and its rows imply none; {need}")
        lower, upper = np.where(free, low, program.lower), np.where(free, high, program.upper)
        scaled = Scaled.of(program)
        turn = np.where(np.isinf(lower), -1.0, 1.0)
        row, column = _power_of_two(scaled.row), turn * _power_of_two(scaled.column)
        ends = np.stack([lower / column, upper / column])
        made = LinearProgram(
            program.c * column,
            csr_array(diags_array(row) @ program.A @ diags_array(column)),
            program.row_lower * row,
            program.row_upper * row,
            ends.min(0),
            ends.max(0),
            program.offset,
        )
        implied = np.where(np.isinf(made.upper), np.stack([low / column, high / column]).max(0), made.upper)
        return cls(
            made, program.lower, program.upper, row, column, implied, *_interior(made, np.isinf(implied))
        )

    def bounds(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Bounds ``(nodes, variables)`` of the LP given as those of the scaled one."""
        first, second = lower / self.column, upper / self.column
        low, high = np.where(self.column > 0, (first, second), (second, first))
        # Free variables have bounds that rows imply.
        return np.maximum(low, self.program.lower), np.minimum(high, self.program.upper)


def _interior(program: LinearProgram, missing: NDArray[np.bool_]) -> tuple[Array, Array, bool]:
    """Prices ``(rows,)`` and their reduced costs ``(variables,)``, positive where bounds are ``missing``.

    Those of no costs, and else of the objective, as the third result says.
    """
    rows, n = program.A.shape
    if not missing.any():
        return np.zeros(rows), np.zeros(n), False
    size = float(np.abs(program.c).mean()) or 1.0
    tries = [(np.zeros(n), 1.0, False), *((program.c, part * size, True) for part in INTERIOR)]
    for cost, least, objective in tries:
        price = of_sides(program, _prices(replace(program, c=cost - least * missing)))
        margin = np.where(missing, cost - program.by_column @ price, 0.0)
        if (margin[missing] > 0.1 * least).all():
            return price, margin, objective
    first = np.flatnonzero(missing)[0]
    need = "give it one that no feasible point passes"
    raise ModelError(f"variable {first} has no upper bound, and nothing keeps it from growing; {need}")


def _prices(program: LinearProgram) -> Array:
    """Optimal prices of the rows, by HiGHS where highspy is installed; any where there are none."""
    if available():
        highs = loaded_highs(program)
        highs.run()
        found = np.array(highs.getSolution().row_dual)
    else:
        found = solve_linear_program(program, tol=1e-6).row_price
    return np.nan_to_num(found) if len(found) == len(program.row_lower) else np.zeros(len(program.row_lower))


def _power_of_two(size: Array) -> Array:
    """The powers of two next to sizes."""
    return np.asarray(2.0 ** np.round(np.log2(size)))


@dataclass(frozen=True)
class SharedBasis:
    """A basis and its tableau.

    Attributes
    ----------
    at : ndarray
        ``(variables + rows,)`` int8: 0 at the lower bound, 1 basic, 2 at the upper bound.
    arguments : tuple
        The argument ``root`` of :func:`blocklp.kernels.dual_simplex_kernels.bounds`.
    """

    at: NDArray[np.int8]
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, program: LinearProgram, at: NDArray[np.int8]) -> SharedBasis | None:
        """Factor a basis; None where it is singular, or its tableau has too many entries.

        Parameters
        ----------
        program : LinearProgram
            The scaled LP.
        at : ndarray
            ``(variables + rows,)``: as many basic ones as there are rows.
        """
        m, n = program.A.shape
        matrix = csc_array(hstack([program.A, -eye_array(m)]))
        head, outside = np.flatnonzero(at == BASIC), np.flatnonzero(at != BASIC)
        cost = np.concatenate([program.c, np.zeros(m)])
        try:
            factor = splu(csc_array(matrix[:, head]))
        except RuntimeError:  # singular
            return None
        parts, size = list[csc_array](), 0
        for k in range(0, n, COLUMNS):
            some = factor.solve(matrix[:, outside[k : k + COLUMNS]].toarray())
            some[np.abs(some) <= DROPPED * np.maximum(np.abs(some).max(0, initial=0.0), 1.0)] = 0.0
            parts.append(csc_array(some))
            size += parts[-1].nnz
            if size > LARGEST or not np.isfinite(parts[-1].data).all():
                return None
        tableau = csr_array(hstack(parts)) if parts else csr_array((m, 0))
        place = np.full(n + m, -1)
        place[head] = np.arange(m)
        reduced = np.zeros(n + m)
        reduced[outside] = cost[outside] - tableau.T @ cost[head]
        # A column for every variable, empty where it is basic.
        by_row = csr_array((tableau.data, outside[tableau.indices], tableau.indptr), shape=(m, n + m))
        by_column = csc_array(by_row)
        # The rows of the basis inverse are the columns of activities, and a unit where one is basic.
        weights = np.maximum(_squares(by_row, n) + (head >= n), 1e-4)
        at, x = _placed(program, at, reduced)
        x[head] = -(tableau @ x[outside])
        return cls(at, ((head, place, weights, reduced, x), _entries(by_row), _entries(by_column)))


def _placed(program: LinearProgram, at: NDArray[np.int8], reduced: Array) -> tuple[NDArray[np.int8], Array]:
    """Nonbasic variables at the bounds that reduced costs ask for, and values of all: zero where basic.

    A bound that is asked for and missing is held to be far away.
    """
    low = np.concatenate([program.lower, program.row_lower])
    high = np.concatenate([program.upper, program.row_upper])
    up = np.where(reduced < -ZERO, True, np.where(reduced > ZERO, False, at == UPPER))
    idle = np.abs(reduced) <= ZERO
    up = np.where(idle & up & np.isinf(high), False, np.where(idle & ~up & np.isinf(low), True, up))
    end = np.where(up, np.minimum(high, FAR), np.maximum(low, -FAR))
    end = np.where(idle & np.isinf(low) & np.isinf(high) | (at == BASIC), 0.0, end)
    return np.where(at == BASIC, BASIC, np.where(up, UPPER, LOWER)).astype(np.int8), end


def _entries(matrix: csr_array | csc_array) -> tuple[Any, ...]:
    """Starts of rows or columns, indices and entries of a matrix."""
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data


def _squares(by_row: csr_array, first: int) -> Array:
    """Sums of squares of the entries of rows from a column on."""
    return np.asarray(by_row[:, first:].power(2).sum(axis=1)).ravel()


def slack_basis(program: LinearProgram) -> NDArray[np.int8]:
    """The basis of all activities."""
    m, n = program.A.shape
    return np.concatenate([np.full(n, LOWER), np.full(m, BASIC)]).astype(np.int8)


def basis_by_highs(program: LinearProgram) -> NDArray[np.int8] | None:
    """The last basis of HiGHS's simplex method; None without highspy, or where it finds no optimum."""
    if not available():
        return None
    import highspy

    highs = loaded_highs(program, solver="simplex")
    highs.run()
    basis = highs.getBasis()
    if not basis.valid or highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    stated = [int(status) for status in (*basis.col_status, *basis.row_status)]
    at = np.array(stated, dtype=np.int8)
    at[at > UPPER] = LOWER
    return at if (at == BASIC).sum() == program.A.shape[0] else None
