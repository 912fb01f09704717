"""The best point and bound of an LP so far, judged on the LP as given."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from blocklp.deadline import Deadline
from blocklp.general_solvers.linear_program import Array, LinearProgram
from blocklp.lp.closing import closed
from blocklp.lp.implied_bounds import implied_bounds
from blocklp.lp.judge import EPS, FEASIBLE, of_sides, proved, violation

DECLARED, BEYOND = 1e6, 1e3
"""Declared bounds of variables that have none.

In units of the largest number that a row asks of a variable while no point is known, then of the largest
entry of the point.
"""

CANCELLED = 1e-3
"""Part of the terms of an objective below which its value counts as zero."""

ROUNDED = 1e-9
"""Magnitude up to which a value counts as zero, relative to the costs of variables of size :func:`needed`.

Of variables no larger than ``BEYOND`` times the largest entry of the point: bounds may be far from it.
"""

WORSE = 0.01
"""Excess of a value over the best one, relative to its size, beyond which points are cut off."""


@dataclass(frozen=True)
class _Bound:
    """A valid bound, the prices that prove it, and variables assumed to be within ``reach`` of zero."""

    value: float = -math.inf
    price: Array = field(default_factory=lambda: np.zeros(0))
    declared: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reach: float = math.inf

    def better(self, other: _Bound) -> _Bound:
        """The larger one."""
        return other if other.value > self.value else self


class Best:
    """The best point and bound of an LP of minimisation so far.

    Parameters
    ----------
    program : LinearProgram
        An LP of minimisation.
    tol : float
        Relative gap to be certified.
    deadline : Deadline
        End of all work on bounds.

    Attributes
    ----------
    primal : float
        The value of :attr:`x`; infinite where no feasible point is known.
    x : ndarray
        The best point.
    terms : float
        Size of the terms of the value that was offered last.
    last : ndarray
        The prices that were offered last.
    """

    def __init__(self, program: LinearProgram, tol: float, deadline: Deadline) -> None:
        self.program, self.tol, self.deadline = program, tol, deadline
        self.primal, self.terms = math.inf, 0.0
        self.x = np.clip(np.zeros(len(program.c)), program.lower, program.upper)
        self.last = np.zeros(len(program.row_lower))
        self._always, self._assuming = _Bound(price=self.last), _Bound(price=self.last)
        self._needed, self._costs = needed(program), float(np.abs(program.c).sum())

    @property
    def proof(self) -> _Bound:
        """The bound with its prices: without assumptions where that is within the tolerance, or as good.

        The assumption that variables are within reach is of no use where the best point goes to its end: the
        value may fall for ever.
        """
        assuming = self._assuming
        enough = self._gap(self._always.value) <= self.tol or self._always.value >= assuming.value
        at_end = np.abs(self.x[assuming.declared]).max(initial=0.0) > assuming.reach / 2
        return self._always if enough or at_end else assuming

    @property
    def bound(self) -> float:
        """The best valid bound."""
        return self.proof.value

    def gap(self) -> float:
        """Gap between value and bound, relative to the larger or, where their terms cancel, to part of these.

        Infinite without a point or a bound.
        """
        return self._gap(self.bound)

    def _gap(self, bound: float) -> float:
        if math.isinf(bound) or math.isinf(self.primal):
            return math.inf
        least = ROUNDED * self._costs * min(self._needed, _far(self.x) or math.inf)
        size = max(abs(bound), abs(self.primal), CANCELLED * self.terms, least)
        return abs(self.primal - bound) / size if size > 0 else 0.0

    def cut(self) -> float:
        """An upper bound on the least value: the best value and a margin, as points satisfy rows nearly."""
        return self.primal + WORSE * max(abs(self.primal), CANCELLED * self.terms)

    def implied(self) -> tuple[Array, Array]:
        """Bounds of the variables ``(variables,)`` at all points whose value is below :meth:`cut`.

        A lower bound above its upper one proves that there is no such point.  Bounds far beyond the best
        point give way to tighter ones that rows imply.
        """
        low, high, far = self.program.lower, self.program.upper, _far(self.x) or math.inf
        below_far, above_far = np.where(low < -far, -np.inf, low), np.where(high > far, np.inf, high)
        near = replace(self.program, lower=below_far, upper=above_far)
        implied = implied_bounds(below(near, self.cut()), self.deadline)
        return np.maximum(low, implied[0]), np.minimum(high, implied[1])

    def box(self, inner: LinearProgram, x: Array | None) -> tuple[Array, Array]:
        """Finite bounds for a solve: those that rows imply, and declared ones where they imply none.

        Parameters
        ----------
        inner : LinearProgram
            The presolved LP, or the LP.
        x : ndarray or None
            ``(variables,)``: a point of that LP, feasible or nearly so.

        Returns
        -------
        lower, upper : ndarray
            ``(variables,)``.
        """
        low, high = implied_bounds(below(inner, self.cut()), self.deadline)
        if (low > high).any():  # the best value contradicts the rows within rounding
            low, high = implied_bounds(inner, self.deadline)
        far = (0.0 if x is None else _far(x)) or DECLARED * needed(inner)
        low, high = (
            np.where(np.isinf(low), np.minimum(-far, high - far), low),
            np.where(np.isinf(high), np.maximum(far, low + far), high),
        )
        return np.minimum(low, high), high

    def offer(self, x: Array, price: Array) -> None:
        """Judge a point ``(variables,)`` and multipliers ``(rows,)``, and keep them if they are better.

        The bound may use bounds of variables at points whose value is below :meth:`cut`: other points have a
        larger value.
        """
        x, self.last = np.clip(x, self.program.lower, self.program.upper), price
        if not (np.isfinite(x).all() and np.isfinite(price).all()):
            return
        value = self.program.value(x)
        feasible = violation(self.program, x) <= FEASIBLE
        if feasible and math.isinf(self.primal):
            self.primal, self.x = value, x
        outside = np.abs(x[self._assuming.declared]).max(initial=0.0) > self._assuming.reach
        if feasible and outside and value < self.primal:  # better than all points that were assumed
            self._assuming = _Bound(price=self.last)
        self.terms = float(np.abs(self.program.c) @ np.abs(x))
        cut = self.cut()
        low, high = self.implied()
        if (low > high).any():
            self._always = self._always.better(_Bound(cut, price))
        else:
            self._prove(x, of_sides(self.program, price), cut, low, high)
        # A point that violates rows a little may be below the bound: the better one is nearer to it, not
        # lower.
        bound = self.bound
        better = abs(value - bound) < abs(self.primal - bound) or (math.isinf(bound) and value < self.primal)
        if feasible and better:
            self.primal, self.x = value, x

    def _prove(self, x: Array, price: Array, cut: float, low: Array, high: Array) -> None:
        """Improve the bounds by prices and bounds of variables, some of them open or far beyond the point."""
        far = _far(x) or DECLARED * self._needed
        open_ = np.isinf(low) | np.isinf(high)
        self._always = self._always.better(_Bound(min(cut, proved(self.program, price, low, high)), price))
        beyond = np.where(low < -far, -np.inf, low), np.where(high > far, np.inf, high)
        if not (np.isinf(beyond[0]) | np.isinf(beyond[1])).any() or self._gap(self._always.value) <= self.tol:
            return
        for corrected in closed(self.program, price, *beyond):
            value = proved(self.program, corrected.price, low, high, corrected.slack, corrected.zero)
            self._always = self._always.better(_Bound(min(cut, value), corrected.price))
            if self._gap(self._always.value) <= self.tol:
                return
        if open_.any() and self._gap(self._always.value) > self.tol:
            box = np.where(np.isinf(low), -far, low), np.where(np.isinf(high), far, high)
            value = min(cut, proved(self.program, price, *box))
            self._assuming = self._assuming.better(_Bound(value, price, np.flatnonzero(open_), far))


def _far(x: Array) -> float:
    """Magnitude beyond which entries are far from a point ``(variables,)``; 0 for the origin."""
    return BEYOND * float(np.abs(x).max(initial=0.0))


def below(program: LinearProgram, value: float) -> LinearProgram:
    """The LP with a further row: the value is at most ``value``, with rounding error."""
    if math.isinf(value):
        return program
    matrix = csr_array(vstack([program.A, csr_array(program.c[None])], format="csr"))
    side = value - program.offset + 4 * EPS * (abs(value) + abs(program.offset))
    lower, upper = np.append(program.row_lower, -np.inf), np.append(program.row_upper, side)
    return replace(program, A=matrix, row_lower=lower, row_upper=upper)


def needed(program: LinearProgram) -> float:
    """The largest number that a side of a row, or a bound, asks of a variable alone; 1 if there is none."""
    rows = np.repeat(np.arange(program.A.shape[0]), np.diff(program.A.indptr))
    largest = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        for side in (program.row_lower, program.row_upper):
            ratio = np.abs(side[rows] / program.A.data)
            largest = max(largest, ratio[np.isfinite(ratio)].max(initial=0.0))
    for side in (program.lower, program.upper):
        largest = max(largest, np.abs(side[np.isfinite(side)]).max(initial=0.0))
    return largest or 1.0
