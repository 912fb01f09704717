"""The best point and bound of an LP so far, judged on the LP as given."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from blocklp.deadline import Deadline
from blocklp.linear_program import Array, LinearProgram
from blocklp.lp.closing import closed
from blocklp.lp.implied_bounds import implied_bounds
from blocklp.lp.judge import EPS, FEASIBLE, of_sides, proved, violation

DECLARED, BEYOND = 1e6, 1e3
"""Bounds that are declared for variables without any: while no point is known in the largest number that a row asks of a variable,
then in the largest entry of the point."""

CANCELLED = 1e-3
"""Part of the terms of an objective below which its value counts as zero."""

ROUNDED = 1e-9
"""Part of the costs, every variable at the largest number that a row asks of any, below which a value counts as zero."""

WORSE = 0.01
"""Points whose value is worse than the best one by more, relative to its size, need not be bounded from below again."""


@dataclass(frozen=True)
class _Bound:
    """A value that is proved, the prices that do it, and which variables are assumed to be within ``reach`` of zero for it."""

    value: float = -math.inf
    price: Array = field(default_factory=lambda: np.zeros(0))
    declared: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reach: float = math.inf

    def better(self, other: _Bound) -> _Bound:
        """The larger one."""
        return other if other.value > self.value else self


class Best:
    """The best point and bound of an LP of minimisation so far.

    Attributes
    ----------
    primal : float
        The value of :attr:`x`; infinite where no feasible point is known.
    x : ndarray
        The best point.
    terms : float
        Size of the terms of the values.
    last : ndarray
        The prices that were offered last.
    """

    def __init__(self, program: LinearProgram, tol: float, deadline: Deadline) -> None:
        self.program, self.tol, self.deadline = program, tol, deadline
        self.primal, self.terms = math.inf, 0.0
        self.x = np.clip(np.zeros(len(program.c)), program.lower, program.upper)
        self.last = np.zeros(len(program.row_lower))
        self._always, self._assuming = _Bound(price=self.last), _Bound(price=self.last)
        self._least = ROUNDED * float(np.abs(program.c).sum()) * needed(program)

    @property
    def proof(self) -> _Bound:
        """What is proved: without assumptions where that is near enough, or as good."""
        enough = self._gap(self._always.value) <= self.tol or self._always.value >= self._assuming.value
        return self._always if enough else self._assuming

    @property
    def bound(self) -> float:
        """The value that is proved."""
        return self.proof.value

    def gap(self) -> float:
        """Relative to the values or, where their terms cancel, to a small part of these; infinite without a point or a bound."""
        return self._gap(self.bound)

    def _gap(self, bound: float) -> float:
        if math.isinf(bound) or math.isinf(self.primal):
            return math.inf
        size = max(abs(bound), abs(self.primal), CANCELLED * self.terms, self._least)
        return abs(self.primal - bound) / size if size > 0 else 0.0

    def cut(self) -> float:
        """A value that the least one does not exceed by much: the best one known and a little more, as points satisfy rows nearly."""
        return self.primal + WORSE * max(abs(self.primal), CANCELLED * self.terms)

    def known(self) -> tuple[Array, Array]:
        """Bounds of the variables at all points whose value is below :meth:`cut`; lower ones above upper ones where there is none."""
        return implied_bounds(below(self.program, self.cut()), self.deadline)

    def box(self, inner: LinearProgram, x: Array | None) -> tuple[Array, Array]:
        """Bounds for a solve: those that rows imply, and declared ones where they imply none.

        Parameters
        ----------
        inner : LinearProgram
            What presolve left of the LP, or the LP.
        x : ndarray or None
            A point of that which is feasible, or nearly so.
        """
        low, high = implied_bounds(below(inner, self.cut()), self.deadline)
        if (low > high).any():  # what is known of the best value contradicts the rows within rounding
            low, high = implied_bounds(inner, self.deadline)
        far = DECLARED * needed(inner) if x is None or not x.any() else BEYOND * float(np.abs(x).max())
        low, high = (
            np.where(np.isinf(low), np.minimum(-far, high - far), low),
            np.where(np.isinf(high), np.maximum(far, low + far), high),
        )
        return np.minimum(low, high), high

    def offer(self, x: Array, price: Array) -> None:
        """Judge a point and multipliers.

        Bounds of variables may be those of points whose value is below :meth:`cut`: all others have a larger one.
        """
        x, self.last = np.clip(x, self.program.lower, self.program.upper), price
        if not (np.isfinite(x).all() and np.isfinite(price).all()):
            return
        value = float(self.program.c @ x) + self.program.offset
        feasible = violation(self.program, x) <= FEASIBLE
        if feasible and math.isinf(self.primal):
            self.primal, self.x = value, x
        sides = np.maximum(*(np.where(np.isfinite(s), np.abs(s), 0.0) for s in (self.program.row_lower, self.program.row_upper)))
        self.terms = float(np.abs(self.program.c) @ np.abs(x) + np.abs(price) @ sides)
        cut = self.cut()
        low, high = self.known()
        if (low > high).any():
            self._always = self._always.better(_Bound(cut, price))
        else:
            self._prove(x, of_sides(self.program, price), cut, low, high)
        # A point may be below the bound by what its violation of rows is worth: the better one is nearer to it, not lower.
        bound = self.bound
        if feasible and (abs(value - bound) < abs(self.primal - bound) or (math.isinf(bound) and value < self.primal)):
            self.primal, self.x = value, x

    def _prove(self, x: Array, price: Array, cut: float, low: Array, high: Array) -> None:
        """Take what prices prove within bounds of the variables, of which some may be open or far beyond the point."""
        far = BEYOND * float(np.abs(x).max(initial=0.0)) or DECLARED * needed(self.program)
        open_ = np.isinf(low) | np.isinf(high)
        self._always = self._always.better(_Bound(min(cut, proved(self.program, price, low, high)), price))
        beyond = np.where(low < -far, -np.inf, low), np.where(high > far, np.inf, high)
        if not (np.isinf(beyond[0]) | np.isinf(beyond[1])).any() or self._gap(self._always.value) <= self.tol:
            return
        if (made := closed(self.program, price, *beyond)) is not None:
            value = proved(self.program, made.price, low, high, made.slack, made.zero)
            self._always = self._always.better(_Bound(min(cut, value), made.price))
        if open_.any() and self._gap(self._always.value) > self.tol:
            box = np.where(np.isinf(low), -far, low), np.where(np.isinf(high), far, high)
            value = min(cut, proved(self.program, price, *box))
            self._assuming = self._assuming.better(_Bound(value, price, np.flatnonzero(open_), far))


def below(program: LinearProgram, value: float) -> LinearProgram:
    """The LP with a row more: no point that is worse than one that is known."""
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
            own = np.abs(side[rows] / program.A.data)
            largest = max(largest, own[np.isfinite(own)].max(initial=0.0))
    for side in (program.lower, program.upper):
        largest = max(largest, np.abs(side[np.isfinite(side)]).max(initial=0.0))
    return largest or 1.0
