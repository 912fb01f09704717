r"""The proximal point method over blocks of one row each, its steps by semismooth Newton on the prices.

A proximal step from :math:`x_0` over the blocks' product X (:mod:`blocklp.methods.block_program`),

.. math:: \min_{x \in X} \; \langle c, x \rangle + \tfrac{1}{2 \sigma} |x - x_0|^2 \quad
          \text{s.t.} \quad l \le A x \le u,

has the dual of maximising over prices y of the rows a smooth concave function plus :math:`l_i y_i` where
:math:`y_i > 0` and :math:`u_i y_i` where :math:`y_i < 0`.  Its gradient is the side minus :math:`A x(y)`,

.. math:: x(y) = \mathrm{proj}_X(x_0 - \sigma (c - A^\top y)),

and its generalised Hessian :math:`-\sigma A P A^\top`, where P is the projector onto the face on which
:math:`x(y)` lies.  Newton's direction is taken over the rows whose price is not zero or does not stay there,
with a multiple of the rows' squared norms added that falls after whole steps and rises where a step leads
astray (Levenberg and Marquardt); prices do not cross zero in a step, and a step ends where the derivative
along it has not become too negative.  (Rockafellar 1976, Monotone operators and the proximal point
algorithm; Li, Sun and Toh 2020, An asymptotically superlinearly convergent semismooth Newton augmented
Lagrangian method for linear programming; Bertsekas 1982, Projected Newton methods
for optimization problems with simple constraints.)  On an LP the method ends after finitely many steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # whose parts are imported where they are used
from numpy.typing import NDArray

from blocklp.deadline import Deadline
from blocklp.methods.block_program import Array, BlockProgram, Curvature, Projection, curvature, projected

INEXACT, EXACT, TIGHTER = 1e-2, 1e-11, 0.3
"""Bounds of the residual of a proximal step, relative to the rows, and factor of the first by step."""

MOVED, ENDED = 0.1, 1e-9
"""Part of the last move of the point that the residual is to be; relative move at which the method ends."""

FIRST, LEAST, MOST, FALLING, RAISED = 1e-4, 1e-6, 1e4, 10.0, 100.0
"""The first multiple of the squared norms of rows, its bounds, what a whole step divides it by, and what a
short one multiplies it with."""

AT_ONCE, QUICK, SLOW = 2, 20, 60
"""Projections up to which sigma grows along a ray, and elsewhere; those at which a step is left."""

GROWTH, SHRINKAGE, LARGEST, LONGEST = 4.0, 3.0, 1000.0, 1000.0
"""Factors of sigma, its limit over the first as a rule, and over that along a ray."""

TURNED, SHORTEST = 0.5, 0.1
"""Part of the first derivative, with the other sign, at which a step may end; the least length of one."""

DENSE = 100
"""Rows up to which Newton's equations are solved by a factor; by conjugate gradients beyond."""

SOLVED, TURNS = 1e-2, 200
"""Relative residual of conjugate gradients, and most of their steps."""

STEP = 0.05
"""What a typical cost moves a variable by, in the first step."""


def first_step(cost: Array) -> float:
    """The first step for costs ``(variables,)``: STEP over their median, where variables are about 1."""
    sizes = np.abs(cost[cost != 0])
    return STEP / float(np.median(sizes)) if len(sizes) else 1.0


@dataclass(frozen=True)
class _StepSearch:
    """A step whose end is to be looked at.

    Attributes
    ----------
    gradient, free, matrix : ndarray, ndarray, Curvature
        Where it begins: the gradient ``(rows,)``, which prices move, and the generalised Hessian over sigma.
    direction, length : ndarray, float
        Its direction ``(rows,)``, and how much of it is gone.
    price : ndarray
        ``(rows,)``: the prices at its end.
    slope : float
        Product of the gradient and the move.
    """

    gradient: Array
    free: NDArray[np.bool_]
    matrix: Curvature
    direction: Array
    length: float
    price: Array
    slope: float


class ProximalPoint:
    """The method on an LP of minimisation, from a point and prices on.

    Parameters
    ----------
    program : BlockProgram
        The LP.
    x, price : ndarray
        ``(variables,)``, ``(rows,)``: where to start.
    sigma : float
        First step: what a unit of cost moves a variable by.
    deadline : Deadline
        Asked before every projection.

    Attributes
    ----------
    x, price : ndarray
        The last point of the blocks, and prices of the rows, positive where the lower side pays.
    block_price : ndarray
        ``(blocks,)``: prices of the blocks' rows, with the same sign.
    sigma : float
        The next step.
    projections : int
        Passes over all blocks so far.
    ended : bool
        Whether another step would change nothing, or none can be made.
    """

    def __init__(
        self, program: BlockProgram, x: Array, price: Array, sigma: float, deadline: Deadline
    ) -> None:
        self.program, self.sigma, self.deadline = program, sigma, deadline
        self.block_price = np.zeros(len(program.below))
        self.projections, self.ended = 0, False
        self._largest, self._loose, self._move = LARGEST * sigma, INEXACT, 1.0
        self._ridge = FIRST
        self._norms = np.bincount(program.row, program.entry * program.entry, len(price))
        self._norms[self._norms == 0] = 1.0
        sides = (np.where(np.isfinite(s), np.abs(s), 0.0) for s in (program.row_lower, program.row_upper))
        self._two_sided = program.row_lower < program.row_upper
        sizes = np.maximum(np.maximum(*sides), np.sqrt(self._norms))
        costs = np.repeat(np.abs(program.cost), np.diff(program.start))
        prices = np.bincount(program.row, np.abs(program.entry) * costs, len(price)) / self._norms
        total = float(sizes @ prices)
        self._shares = prices / total if total > 0 else 1 / (sizes * max(1, len(sizes)))
        self.begin(x, price)

    def begin(self, x: Array, price: Array) -> None:
        """Begin a proximal step at a point ``(variables,)`` and prices ``(rows,)``."""
        self.x = self._centre = x
        self._at_zero = x - self.sigma * self.program.cost  # what is projected at prices of zero
        self.price, self._taken = price, 0
        self._search: _StepSearch | None = None

    def advance(self, most: int = SLOW) -> bool:
        """Make so many projections, or those to the end of a proximal step; return whether it has ended."""
        for _ in range(most):
            if self.ended or self.deadline.over() or self._projected():
                return True
        return False

    def _projected(self) -> bool:
        """Project once, and say whether that ends the proximal step."""
        price = self.price if self._search is None else self._search.price
        found = projected(self.program, self._at_zero, price, self.sigma)
        self.projections, self._taken = self.projections + 1, self._taken + 1
        if self._search is not None and (shorter := self._shorter(self._search, found)) is not None:
            self._search = shorter
            return self._taken >= SLOW and self._next(exact=False)
        self.x, self.price, self.block_price = found.x, price, found.price * (-1 / self.sigma)
        gradient, free = self._gradient(found.activity)
        residual = float(np.abs(gradient) @ self._shares)
        if residual <= max(EXACT, min(self._loose, MOVED * self._move)):
            return self._next(exact=True)
        if self._taken >= SLOW:
            return self._next(exact=False)
        if self._search is not None and self._search.length == 1.0:
            self._ridge = max(LEAST, self._ridge / FALLING)
        self._search = self._begun(gradient, free, curvature(self.program, found))
        self.ended = not self._search.slope > 0  # only rounding is left
        return self.ended

    def _begun(self, gradient: Array, free: NDArray[np.bool_], matrix: Curvature) -> _StepSearch:
        """A step from the present prices, of which the derivative is positive but for rounding."""
        while True:
            direction = self._direction(matrix, free, self._ridge, gradient / self.sigma)
            made = self._at(gradient, free, matrix, direction, 1.0)
            if made.slope > 0 or self._ridge >= MOST:
                return made
            self._ridge = min(MOST, self._ridge * RAISED)  # prices that end at zero have led astray

    def _next(self, exact: bool) -> bool:
        """Begin another proximal step; ``exact`` says whether the last one is within its tolerance."""
        self._move = float(np.linalg.norm(self.x - self._centre)) / (1 + float(np.linalg.norm(self.x)))
        self._loose *= TIGHTER
        self.ended = exact and self._move <= ENDED
        if exact and self._taken <= AT_ONCE:  # on along a ray
            self.sigma = min(self.sigma * GROWTH, LONGEST * self._largest)
        elif exact and self._taken <= QUICK:
            self.sigma = max(self.sigma, min(self.sigma * GROWTH, self._largest))
        elif not exact:
            self.sigma /= SHRINKAGE
        self.begin(self.x, self.price)
        return True

    def _at(
        self, gradient: Array, free: NDArray[np.bool_], matrix: Curvature, direction: Array, length: float
    ) -> _StepSearch:
        """The end of a step along a direction ``(rows,)``, where ``gradient`` is the present one."""
        price = self.price + length * direction
        # Prices end at zero before another side pays, and leave it as the gradient says.
        price[self._two_sided & (np.where(self.price == 0, gradient, self.price) * price < 0)] = 0.0
        return _StepSearch(
            gradient, free, matrix, direction, length, price, float(gradient @ (price - self.price))
        )

    def _shorter(self, search: _StepSearch, found: Projection) -> _StepSearch | None:
        """A shorter step where the derivative at the end of one is too negative; None where it may stay."""
        step = search.price - self.price
        lower = np.where(search.price == 0, step < 0, search.price > 0)  # the side from where it comes
        side = np.where(lower, self.program.row_lower, self.program.row_upper)
        last = float(np.where(step != 0, side - found.activity, 0.0) @ step)
        if last >= -TURNED * search.slope or (search.length <= SHORTEST and self._ridge >= MOST):
            return None
        start = search.gradient, search.free, search.matrix
        if search.length <= SHORTEST:  # the curvature says too little there
            self._ridge = min(MOST, self._ridge * RAISED)
            return self._begun(*start)
        factor = max(0.1, min(0.7, search.slope / max(search.slope - last, search.slope)))
        return self._at(*start, search.direction, factor * search.length)

    def _gradient(self, activity: Array) -> tuple[Array, NDArray[np.bool_]]:
        """The gradient ``(rows,)``, zero for rows whose price stays at zero, and a mask of all others."""
        low, high, price = self.program.row_lower - activity, self.program.row_upper - activity, self.price
        at_zero = np.where(low > 0, low, np.where(high < 0, high, 0.0))
        gradient = np.where(price > 0, low, np.where(price < 0, high, at_zero))
        return gradient, (price != 0) | (at_zero != 0)

    def _direction(self, matrix: Curvature, free: NDArray[np.bool_], ridge: float, gradient: Array) -> Array:
        """Newton's direction ``(rows,)``, zero beyond ``free``."""
        out, where = np.zeros(len(gradient)), np.flatnonzero(free)
        right, extra = gradient[where], ridge * self._norms[where]
        if len(gradient) <= DENSE:
            whole = matrix.dense()[np.ix_(where, where)]
            whole[np.diag_indices(len(where))] += extra
            try:
                factor = scipy.linalg.cho_factor(whole, lower=True, overwrite_a=True, check_finite=False)
                out[where] = scipy.linalg.cho_solve(factor, right, check_finite=False)
                return out
            except scipy.linalg.LinAlgError:
                pass  # rounding has left it indefinite: conjugate gradients end at that
        diagonal = matrix.diagonal()[where] + extra

        def times(v: Array) -> Array:
            whole = np.zeros(len(gradient))
            whole[where] = v
            return np.asarray(matrix.times(whole)[where] + extra * v)

        shape = (len(where), len(where))
        operator = scipy.sparse.linalg.LinearOperator(shape, matvec=times, dtype=np.float64)
        preconditioner = scipy.sparse.linalg.LinearOperator(
            shape, matvec=lambda v: v / diagonal, dtype=np.float64
        )
        out[where] = scipy.sparse.linalg.cg(operator, right, rtol=SOLVED, maxiter=TURNS, M=preconditioner)[0]
        return out
