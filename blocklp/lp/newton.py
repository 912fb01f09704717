r"""The proximal point method on an LP, its steps by a semismooth Newton method, to high accuracy.

With activities :math:`s = A x` of the rows, a step from :math:`(x_0, s_0)`

.. math:: \min \; \langle c, x \rangle + \tfrac{1}{2 \sigma} (|x - x_0|^2 + |s - s_0|^2) \quad
          \text{s.t.} \quad A x = s, \; l \le s \le u, \; lo \le x \le hi

has the dual of maximising over prices y a smooth concave function with the gradient :math:`s(y) - A x(y)`,

.. math:: x(y) = \mathrm{clip}(x_0 - \sigma (c - A^\top y), lo, hi), \quad
          s(y) = \mathrm{clip}(s_0 - \sigma y, l, u),

and the generalised Hessian :math:`-\sigma (A D_x A^\top + D_s)`, where the diagonals mark who is not at a
bound.  Newton's direction comes from one factor of that, with a multiple of the identity added that falls
with the gradient; along it the derivative is monotone and needs no product with A, so that the step is found
by bisection.  (Rockafellar 1976, Monotone operators and the proximal point algorithm; Li, Sun and Toh 2020,
An asymptotically superlinearly convergent semismooth Newton augmented Lagrangian method for linear
programming, from where the inexact steps and the regularisation are.)  On an LP the method ends after
finitely many steps, with point and prices exact but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse import csc_array, csr_array, diags_array
from scipy.sparse.linalg import splu

from blocklp.deadline import Deadline
from blocklp.general_solvers.linear_program import Array, LinearProgram

EXACT, ENDED = 1e-14, 1e-11
"""Residual, relative to activities, at which a step is exact; move over sigma at which the method ends."""

ROUNDED = 1e-12
"""Residual from which on a step is exact too where the residual no longer halves: only rounding is left."""

INEXACT = 1e-3
"""Part of the last move of the points that the residual of a step may be."""

LEAST, MOST, FALLING = 1e-9, 1e-3, 1e-2
"""Bounds of the multiple of the identity, and its ratio to the length of the gradient."""

QUICK, SLOW = 25, 100
"""Newton steps up to which sigma grows, and at which a proximal step is left as it is and sigma falls."""

GROWTH, SHRINKAGE, LARGEST, LEAST = 5.0, 3.0, 1e6, 1e-12
"""Factors of sigma, and its largest and least value: below it rounding decides, and nothing is gained."""

FLAT = 0.1
"""Part of the first derivative along a direction at which a step ends; three times that for a full step."""

DENSE, SMALL, LARGE, WORK = 0.1, 4000, 2e7, 5e7
"""Limits of dense and sparse matrices.

A matrix with this part of the products or entries is taken as a dense one, up to so many rows and entries;
most products of a sparse one with more rows.
"""

FIRST, FACTORED, DENSER = 500, 2e10, 1.5
"""Estimates of the work of a factor.

Rows of the first part of a matrix that is factored to see how the work grows, most multiplications of the
factor of the whole, and growth of the number of entries after which the work is estimated again.
"""


class DenseFactorError(Exception):
    """A factor would take longer than the deadline allows, or more than :data:`FACTORED` multiplications."""


def serves(program: LinearProgram) -> bool:
    """Whether the matrix of the rows is small or sparse enough to be factored again and again."""
    return 0 < program.A.shape[0] and (program.A.shape[0] <= SMALL or products(program) <= WORK)


def work(program: LinearProgram) -> float:
    """Operations of a Newton step, about."""
    rows, sparse = program.A.shape[0], products(program)
    return sparse + (rows**3 / 3 if rows <= SMALL and sparse > DENSE * rows**2 else 0.0)


def products(program: LinearProgram) -> float:
    """Number of products of entries in the matrix of the rows times its transpose."""
    lengths = np.bincount(program.A.indices, minlength=program.A.shape[1]).astype(float)
    return float(lengths @ lengths)


@dataclass(frozen=True)
class Iterate:
    """An iterate of the method.

    Attributes
    ----------
    x, price : ndarray
        ``(variables,)``, ``(rows,)``: point and prices.
    steps : int
        Newton steps and proximal steps so far: along a ray these take none of the former.
    multiplications : float
        Of all factors so far, about.
    ended : bool
        Whether the next step would change nothing.
    """

    x: Array
    price: Array
    steps: int
    multiplications: float
    ended: bool


def proximal_points(program: LinearProgram, x: Array, price: Array, deadline: Deadline) -> Iterator[Iterate]:
    """Proximal points of an LP of minimisation, from a point and prices on.

    Parameters
    ----------
    program : LinearProgram
        A scaled one: costs and sides are about 1.
    x, price : ndarray
        ``(variables,)``, ``(rows,)``: where to start.
    deadline : Deadline
        Asked before every one; a factor that takes longer than is left is not begun.

    Yields
    ------
    Iterate
        After every proximal step.

    Raises
    ------
    DenseFactorError
        If a factor would fill up so much that there is no time for it, or never would be.
    """
    newton, sigma, move = _Newton(program, deadline), 1.0, 1.0
    x = np.clip(x, program.lower, program.upper)
    activity = np.clip(program.A @ x, program.row_lower, program.row_upper)
    for taken in count(1):
        before = newton.steps
        tolerance = max(EXACT, INEXACT * move)
        new, reached, price, exact = newton.solve(x, activity, price, sigma, SLOW, tolerance)
        move = float(np.linalg.norm(new - x) + np.linalg.norm(reached - activity)) / sigma
        x, activity, steps = new, reached, newton.steps - before
        ended = exact and tolerance <= EXACT and move <= ENDED
        yield Iterate(x, price, newton.steps + taken, newton.multiplications, ended)
        if deadline.over() or ended or newton.stuck or sigma < LEAST:
            return
        if exact and steps <= QUICK:
            sigma = min(sigma * GROWTH, LARGEST)
        elif not exact:
            sigma /= SHRINKAGE


class _Newton:
    """Newton steps on the dual of a proximal step."""

    def __init__(self, program: LinearProgram, deadline: Deadline) -> None:
        self.program, self.deadline = program, deadline
        self.columns, self.back = csc_array(program.A), csr_array(program.A.T)
        rows, work = program.A.shape[0], products(program)
        entries = np.prod(program.A.shape)
        whole = entries <= LARGE and rows <= SMALL and work > DENSE * rows * entries
        self.dense = np.ascontiguousarray(self.back.toarray()) if whole else None
        self.steps, self.multiplications, self.longest, self.stuck = 0, 0.0, 0.0, False
        self._entries = 0.0  # of the last matrix of which the work of a factor was estimated

    def solve(
        self,
        x0: Array,
        s0: Array,
        price: Array,
        sigma: float,
        most: int,
        tolerance: float,
    ) -> tuple[Array, Array, Array, bool]:
        """Solve a proximal step.

        Parameters
        ----------
        x0, s0 : ndarray
            ``(variables,)`` and ``(rows,)``: proximal centre, of points and activities.
        price : ndarray
            ``(rows,)``: prices to start from.
        sigma : float
            Step of the proximal point method.
        most : int
            Most Newton steps.
        tolerance : float
            Residual that is asked for, relative to the activities.

        Returns
        -------
        x, s, price : ndarray
            ``(variables,)``, ``(rows,)`` and ``(rows,)``.
        exact : bool
            Whether the residual is within the tolerance.
        """
        program, start, at_price = self.program, x0 - sigma * self.program.c, self.back @ price
        last = math.inf
        for step in range(most + 1):
            free_x, free_s = start + sigma * at_price, s0 - sigma * price
            x = np.clip(free_x, program.lower, program.upper)
            s = np.clip(free_s, program.row_lower, program.row_upper)
            gradient = s - program.A @ x
            residual = float(np.linalg.norm(gradient))
            size = 1 + float(np.linalg.norm(s))
            exact = residual <= max(tolerance, ROUNDED * (residual > last / 2)) * size
            last = residual
            if exact or step == most or self.deadline.left() <= self.longest or not math.isfinite(residual):
                break
            began = self.deadline.elapsed()
            columns = (free_x > program.lower) & (free_x < program.upper)
            rows = (free_s > program.row_lower) & (free_s < program.row_upper)
            ridge = min(MOST, max(LEAST, FALLING * residual))
            try:
                direction = self._direction(columns, rows, ridge, gradient / sigma)
            except (RuntimeError, LinAlgError):  # singular within rounding
                self.stuck = True
                break
            along = self.back @ direction
            first = float(gradient @ direction)
            self.stuck = not first > 0
            if self.stuck:
                break

            def slope(length: float, ends: tuple[Array, ...] = (free_x, free_s, direction, along)) -> float:
                x_start, s_start, of_rows, of_columns = ends
                at_rows = np.clip(s_start - length * sigma * of_rows, program.row_lower, program.row_upper)
                at_columns = np.clip(x_start + length * sigma * of_columns, program.lower, program.upper)
                return float(of_rows @ at_rows - of_columns @ at_columns)

            length = _length(slope, first)
            price, at_price = price + length * direction, at_price + length * along
            self.steps += 1
            self.longest = max(self.longest, self.deadline.elapsed() - began)
        return x, s, price, exact

    def _direction(
        self,
        columns: NDArray[np.bool_],
        rows: NDArray[np.bool_],
        ridge: float,
        gradient: Array,
    ) -> Array:
        """Newton's direction ``(rows,)``, refined once; ``columns`` and ``rows`` are between their bounds."""
        matrix: Any
        solve: Callable[[Any], Any]
        if self.dense is not None:
            matrix = self.dense[columns].T @ self.dense[columns]
            matrix[np.diag_indices(len(rows))] += rows + ridge
        else:
            part = csc_array(self.columns[:, np.flatnonzero(columns)])
            matrix = csc_array(part @ part.T + diags_array(rows + ridge))
        if self.dense is not None or (len(rows) <= SMALL and matrix.nnz > DENSE * len(rows) ** 2):
            whole = matrix if self.dense is not None else matrix.toarray()
            solve = partial(cho_solve, cho_factor(whole, check_finite=False), check_finite=False)
            self.multiplications += len(rows) ** 3 / 6
        else:
            if matrix.nnz > DENSER * self._entries:
                self._estimate(matrix)
                self._entries = matrix.nnz
            factor = symmetric_factor(matrix)
            solve = factor.solve
            self.multiplications += _multiplications(factor)
        direction: Array = solve(gradient)
        return np.asarray(direction + solve(gradient - matrix @ direction))

    def _estimate(self, matrix: csc_array) -> None:
        """Raise if a factor would take too long, judging by those of the first rows and columns."""
        size, growth, before = FIRST, 8.0, 0.0
        while size < matrix.shape[0]:
            began = self.deadline.elapsed()
            work = _multiplications(symmetric_factor(csc_array(matrix[:size, :size])))
            seconds = self.deadline.elapsed() - began
            growth = min(max(work / before, 2.0), 16.0) if before else growth
            total = (matrix.shape[0] / size) ** math.log2(growth)
            if total * work > FACTORED or min(total, growth) * seconds > self.deadline.left():
                raise DenseFactorError
            size, before = 2 * size, work


def symmetric_factor(matrix: csc_array) -> Any:
    """A factor of a symmetric positive definite matrix, in a sparse order."""
    return splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})


def _multiplications(factor: Any) -> float:
    """Multiplications that a factor took, about."""
    lengths = np.diff(factor.L.indptr).astype(float)
    return float(lengths @ lengths)


def _length(slope: Callable[[float], float], first: float) -> float:
    """Length of a step: to where the falling derivative has nearly vanished, or 1 where it is small there."""
    if abs(slope(1.0)) <= 3 * FLAT * first:
        return 1.0
    low, high = 0.0, 1.0
    while slope(high) > 0 and high < 1e6:
        low, high = high, 4 * high
    for _ in range(40):
        middle = (low + high) / 2
        there = slope(middle)
        if abs(there) <= FLAT * first:
            break
        low, high = (middle, high) if there > 0 else (low, middle)
    return middle
