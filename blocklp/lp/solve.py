"""Any linear program to a certified answer: presolve, bounds that rows imply, restarted PDHG, and a judge on the LP as given."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from blocklp.deadline import Deadline
from blocklp.linear_program import Array, LinearProgram
from blocklp.lp.implied_bounds import implied_bounds
from blocklp.lp.judge import EPS, proved, violation
from blocklp.lp.presolve import Presolved, presolved
from blocklp.lp.rays import proves_infeasible, verdict
from blocklp.model import ROWS, Model
from blocklp.options import flag, real, whole
from blocklp.solution import Solution
from blocklp.state import Saddle, State
from blocklp.status import Status

DECLARED, BEYOND = 1e6, 1e3
"""Bounds that are declared for variables without any: of solves in the largest number that a row asks of a variable, of what is
proved in the largest entry of the point."""

CANCELLED = 1e-3
"""Part of the terms of an objective below which its value counts as zero."""


@dataclass(frozen=True)
class LinearSolution:
    """What is known of a linear program.

    Attributes
    ----------
    status : Status
        ``OPTIMAL`` where the point satisfies all rows and bounds within the tolerance, and value and bound are as near as asked.
    bound : float
        No feasible point is better, but for what ``declared`` says; infinite where nothing is proved.  All rounding is charged.
    primal : float
        The value of ``x``; infinite where no feasible point was found.
    gap : float
        Between them, relative to the larger magnitude.
    x : ndarray
        ``(variables,)``: the best point.
    row_price : ndarray
        ``(rows,)``: multipliers that prove the bound, in the sense of the LP: how the value rises with a side.
    declared : ndarray
        ``(k,)`` int64: numbers of the variables that the bound takes to be within ``reach`` of zero, for want of a bound.
    reach : float
        That number.
    passes : int
        Passes over the rows.
    seconds : float
        All time, from the LP on.
    """

    status: Status
    bound: float
    primal: float
    gap: float
    x: Array
    row_price: Array
    declared: NDArray[np.int64]
    reach: float
    passes: int
    seconds: float


def solve_linear_program(
    program: LinearProgram,
    *,
    tol: float = 1e-4,
    time_limit: float | Deadline = math.inf,
    passes: int = 10_000_000,
    presolve: bool = True,
) -> LinearSolution:
    """Solve an LP whose variables may lack bounds.

    Parameters
    ----------
    program : LinearProgram
        Any, of either sense.
    tol : float
        Relative gap to be certified.
    time_limit : float or Deadline
        Seconds for everything.
    passes : int
        Most passes of each solve.
    presolve : bool
        Whether HiGHS reduces the LP first, where highspy is installed, and looks for rays.

    Returns
    -------
    LinearSolution
        The best point and bound that were found, judged on the LP as given.

    Raises
    ------
    OptionError
        If an option is of another kind.
    """
    deadline, tol = Deadline.of(time_limit), real(tol, "tol", positive=False)
    whole(passes, "passes")
    flag(presolve, "presolve")
    began = deadline.elapsed()
    sign = -1.0 if program.maximize else 1.0
    least = replace(program, c=sign * program.c, offset=sign * program.offset, maximize=False)
    reduced = presolved(least, deadline.left()) if presolve else None
    doubted = reduced is not None and reduced.program is None
    ends = verdict(least, deadline.left()) if doubted else None
    best, status, spent = _Best(least, deadline), Status.TIME_LIMIT, 0
    if ends is None:
        status, spent = _search(best, reduced, tol, passes, deadline)
        # Bounds that rows imply may contradict each other, and prices that grow without end are a ray.
        if best.bound == math.inf or (status is Status.INFEASIBLE and proves_infeasible(least, best.last)):
            ends = Status.INFEASIBLE
        elif best.gap() > tol and not doubted and reduced is not None:
            ends = verdict(least, deadline.left())
        status = Status.STALLED if status is Status.INFEASIBLE else status
    seconds = deadline.elapsed() - began
    if ends is not None:
        return _without_optimum(ends, program, seconds)
    bound, primal, price = sign * best.bound, sign * best.primal, sign * best.price
    return LinearSolution(status, bound, primal, best.gap(), best.x, price, best.declared, best.reach, spent, seconds)


def _search(best: _Best, reduced: Presolved | None, tol: float, passes: int, deadline: Deadline) -> tuple[Status, int]:
    """Solve an LP after presolve, then as given from there: what was solved may prove less of it than it should.

    Returns the status, and the passes of all solves.
    """
    status, state, spent, least = Status.TIME_LIMIT, None, 0, best.program
    after = [] if reduced is None or reduced.program is None else [(reduced.program, 1.0)]
    for inner, share in [*after, *((least, share) for share in (1.0, 0.1, 0.01))]:
        x, price, status = np.zeros(0), np.zeros(len(inner.row_lower)), Status.OPTIMAL
        if len(inner.c):  # else presolve has left nothing
            found = _solved(inner, best.box(inner), share * tol, deadline, passes, state)
            x, status, state, spent = found.x["x"][0].numpy(), found.status[0], found.state, spent + int(found.passes)
            price = found.duals[ROWS][0, :, 0].numpy() if ROWS in found.duals else price
        if reduced is not None and inner is reduced.program:
            x, price = reduced.restore(x, price)
            state = _state(x, price)
        best.offer(x, price)
        if best.gap() <= tol:
            return Status.OPTIMAL, spent
        if status is not Status.OPTIMAL and (inner is least or status is Status.INTERRUPTED or deadline.over()):
            return status, spent
    return Status.STALLED, spent


def _without_optimum(status: Status, program: LinearProgram, seconds: float) -> LinearSolution:
    """What is known of an LP that is infeasible or unbounded."""
    value = math.inf if (status is Status.INFEASIBLE) != program.maximize else -math.inf
    x, price = np.full(len(program.c), np.nan), np.full(len(program.row_lower), np.nan)
    return LinearSolution(status, value, value, 0.0, x, price, np.zeros(0, dtype=np.int64), math.inf, 0, seconds)


def _state(x: Array, price: Array) -> State:
    """Where a solve of the rows goes on from a point and multipliers."""
    unknown, rows = torch.full((1,), torch.nan, dtype=torch.float64), {ROWS: torch.from_numpy(price)[None, :, None]}
    return State(rows, unknown, Saddle(torch.from_numpy(x)[None], rows, unknown))


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


def _solved(
    program: LinearProgram, box: tuple[Array, Array], tol: float, deadline: Deadline, passes: int, state: State | None
) -> Solution:
    """Solve an LP of minimisation in a box."""
    model = Model()
    x = model.variable("x", len(program.c), lower=box[0], upper=box[1])
    if program.A.shape[0]:
        model.add_rows(program.A, x, program.row_lower, program.row_upper, name=ROWS)
    model.minimize(torch.from_numpy(program.c) @ x + program.offset)
    return model.solve(tol=tol, time_limit=deadline, passes=passes, warm_start=state)


class _Best:
    """The best point and bound of an LP of minimisation so far."""

    def __init__(self, program: LinearProgram, deadline: Deadline) -> None:
        self.program, self.deadline = program, deadline
        self.bound, self.primal, self.terms = -math.inf, math.inf, 0.0
        self.x, self.price = np.clip(np.zeros(len(program.c)), program.lower, program.upper), np.zeros(len(program.row_lower))
        self.declared: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.reach, self.last = math.inf, self.price

    def gap(self) -> float:
        """Relative to the values or, where their terms cancel, to a small part of these; infinite without a point or a bound."""
        if math.isinf(self.bound) or math.isinf(self.primal):
            return math.inf
        size = max(abs(self.bound), abs(self.primal), CANCELLED * self.terms)
        return abs(self.primal - self.bound) / size if size > 0 else 0.0

    def box(self, inner: LinearProgram) -> tuple[Array, Array]:
        """Bounds for a solve: those that rows imply, and declared ones where they imply none."""
        low, high = implied_bounds(_below(inner, self.primal), self.deadline)
        if (low > high).any():  # what is known of the best value contradicts the rows within rounding
            low, high = implied_bounds(inner, self.deadline)
        far = DECLARED * needed(inner)
        low, high = (
            np.where(np.isinf(low), np.minimum(-far, high - far), low),
            np.where(np.isinf(high), np.maximum(far, low + far), high),
        )
        return np.minimum(low, high), high

    def offer(self, x: Array, price: Array) -> None:
        """Judge a point and multipliers.

        Bounds of variables may be those of points that are no worse than the best one: all others have a larger value.
        """
        x, self.last = np.clip(x, self.program.lower, self.program.upper), price
        value = float(self.program.c @ x) + self.program.offset
        if violation(self.program, x) <= 1e-6 and value < self.primal:
            self.primal, self.x = value, x
        low, high = implied_bounds(_below(self.program, self.primal), self.deadline)
        sides = np.maximum(*(np.where(np.isfinite(s), np.abs(s), 0.0) for s in (self.program.row_lower, self.program.row_upper)))
        self.terms = float(np.abs(self.program.c) @ np.abs(x) + np.abs(price) @ sides)
        if (low > high).any():
            self._prove(self.primal, price)
            return
        self._prove(min(self.primal, proved(self.program, price, low, high)), price)
        declared = np.isinf(low) | np.isinf(high)
        if declared.any() and (math.isinf(self.bound) or len(self.declared)):
            far = BEYOND * np.abs(x).max() or DECLARED * needed(self.program)
            box = np.where(np.isinf(low), -far, low), np.where(np.isinf(high), far, high)
            self._prove(min(self.primal, proved(self.program, price, *box)), price, np.flatnonzero(declared).astype(np.int64), far)

    def _prove(self, bound: float, price: Array, declared: NDArray[np.int64] | None = None, reach: float = math.inf) -> None:
        if bound > self.bound or (bound == self.bound and declared is None):
            self.bound, self.price, self.reach = bound, price, reach
            self.declared = np.zeros(0, dtype=np.int64) if declared is None else declared


def _below(program: LinearProgram, value: float) -> LinearProgram:
    """The LP with a row more: no point that is worse than one that is known."""
    if math.isinf(value):
        return program
    matrix = csr_array(vstack([program.A, csr_array(program.c[None])], format="csr"))
    side = value - program.offset + 4 * EPS * (abs(value) + abs(program.offset))
    lower, upper = np.append(program.row_lower, -np.inf), np.append(program.row_upper, side)
    return replace(program, A=matrix, row_lower=lower, row_upper=upper)
