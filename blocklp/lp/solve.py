"""Any linear program to a certified answer: presolve, rounds of methods, and a judge of their points."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from blocklp.deadline import Deadline
from blocklp.errors import NonFiniteError, OptionError
from blocklp.general_solvers.linear_program import Array, LinearProgram
from blocklp.general_solvers.small_lp import available
from blocklp.lp.best import Best
from blocklp.lp.presolve import PresolvedProgram, presolved
from blocklp.lp.rays import proves_infeasible, verdict
from blocklp.lp.rounds import Rounds, assume_less
from blocklp.options import flag, of_type, real, whole
from blocklp.status import Status
from blocklp.tables import Table, Tabled, plural

FAR, LOOK = 0.5, 0.5
"""Gap above which rays are looked for after a round; time for that, over all so far and a second."""

CROSSED = 1e-9
"""Excess of a lower bound over the upper one that is rounding, relative to this or to 1."""


@dataclass(frozen=True, repr=False)
class LinearSolution(Tabled):
    """The answer for a linear program.

    Attributes
    ----------
    status : Status
        ``OPTIMAL`` where the point satisfies all rows and bounds within the tolerance, and the gap is
        certified.
    bound : float
        No feasible point is better, as far as ``declared`` variables are within ``reach``; infinite where
        nothing is proved.  Valid with all rounding error.
    primal : float
        The value of ``x``; infinite where no feasible point was found.
    gap : float
        Difference of value and bound, relative to the larger magnitude.
    x : ndarray
        ``(variables,)``: the best point.
    row_price : ndarray
        ``(rows,)``: multipliers that prove the bound, in the sense of the LP: how the value rises with a
        side.
    declared : ndarray
        ``(k,)`` int64: numbers of the variables that the bound takes to be within ``reach`` of zero, for want
        of a bound.
    reach : float
        Largest magnitude of the variables in ``declared`` for which the bound holds; infinite without any.
    passes : int
        Passes over the rows.
    seconds : float
        Time of the solve.
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

    def _tables(self) -> tuple[str, list[Table]]:
        numbers = (
            f"{self.bound:.9g}",
            f"{self.primal:.9g}",
            f"{self.gap:.2g}",
            str(self.passes),
            f"{self.seconds:.3g}",
        )
        size = f"{plural(len(self.x), 'variable')} and {plural(len(self.row_price), 'row')}"
        title = f"Solution of a linear program of {size}"
        if len(self.declared):
            title += f", {len(self.declared)} of them taken to be within {self.reach:.3g} of zero"
        columns = ("status", "bound", "primal", "gap", "passes", "seconds")
        return title, [Table(columns, [(str(self.status), *numbers)], 1)]


def solve_linear_program(
    program: LinearProgram,
    *,
    tol: float = 1e-4,
    time_limit: float | Deadline = math.inf,
    passes: int = 10_000_000,
    presolve: bool = True,
    simplex: bool = True,
    warm_start: LinearSolution | None = None,
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
        Most passes over the rows, Newton steps and simplex iterations; a proximal step that has begun ends,
        after a hundred Newton steps at most.
    presolve : bool
        Whether HiGHS reduces the LP first, where highspy is installed, and looks for rays.
    simplex : bool
        Whether HiGHS's simplex method takes turns with the other methods, where highspy is installed.
    warm_start : LinearSolution, optional
        The answer of an LP of this shape, to start from, without presolve.

    Returns
    -------
    LinearSolution
        The best point and bound that were found, judged on the LP as given.

    Raises
    ------
    OptionError
        If an option is of another kind, or the warm start has another shape.
    NonFiniteError
        If costs or entries are not finite, or a side or bound is NaN.
    """
    deadline, tol = Deadline.of(time_limit), real(tol, "tol", positive=False)
    whole(passes, "passes")
    flag(presolve, "presolve")
    flag(simplex, "simplex")
    checked(program)
    began = deadline.elapsed()
    sign = -1.0 if program.maximize else 1.0
    cost, offset = sign * program.c, sign * program.offset
    least = replace(program, c=cost, offset=offset, maximize=False, lower=_uncrossed(program))
    start = _start(program, warm_start, sign)
    reduced = presolved(least, deadline.left()) if presolve and start is None else None
    doubted = reduced is not None and reduced.program is None
    best, status, ends, spent = Best(least, tol, deadline), Status.INTERRUPTED, None, 0
    with suppress(KeyboardInterrupt):
        ends = verdict(least, deadline.left()) if doubted else None
        if ends is None:
            best.offer(*((best.x, best.last) if start is None else start))
            rays, turns = presolve and not doubted, simplex and available()
            status, ends, spent = _search(best, reduced, start, tol, passes, deadline, rays, turns)
    if status is Status.OPTIMAL and len(best.proof.declared):
        assume_less(best)
    seconds = deadline.elapsed() - began
    if ends is not None:
        return _without_optimum(ends, program, seconds)
    proof = best.proof
    return LinearSolution(
        status,
        bound=sign * proof.value,
        primal=sign * best.primal,
        gap=best.gap(),
        x=best.x,
        row_price=sign * proof.price,
        declared=proof.declared,
        reach=proof.reach,
        passes=spent,
        seconds=seconds,
    )


def checked(program: LinearProgram) -> None:
    """Raise if costs or entries are not finite, or a side or bound is NaN."""
    for name, value in (("c", program.c), ("A", program.A.data)):
        if not np.isfinite(value).all():
            raise NonFiniteError(f"{name} of the linear program holds NaN or infinities; give finite numbers")
    for name in ("row_lower", "row_upper", "lower", "upper", "offset"):
        if np.isnan(getattr(program, name)).any():
            rule = "give numbers, infinite ones where there is no bound"
            raise NonFiniteError(f"{name} of the linear program holds NaN; {rule}")


def _uncrossed(program: LinearProgram) -> Array:
    """Lower bounds, those at the upper ones that are above these by rounding alone."""
    low, high = program.lower, program.upper
    return np.where((low > high) & (low - high <= CROSSED * np.maximum(1.0, np.abs(high))), high, low)


def _start(program: LinearProgram, given: LinearSolution | None, sign: float) -> tuple[Array, Array] | None:
    """Point and prices of a warm start, in the sense of minimisation; None where there are none."""
    of_type(given, LinearSolution | None, "warm_start", "the answer of an LP")
    if given is None:
        return None
    if (len(given.row_price), len(given.x)) != program.A.shape:
        raise OptionError(
            f"warm_start is of an LP with {len(given.row_price)} rows and {len(given.x)} variables, this one "
            f"has {program.A.shape[0]} and {program.A.shape[1]}"
        )
    finite = np.isfinite(given.x).all() and np.isfinite(given.row_price).all()
    return (given.x, sign * given.row_price) if finite else None


def _search(
    best: Best,
    reduced: PresolvedProgram | None,
    start: tuple[Array, Array] | None,
    tol: float,
    passes: int,
    deadline: Deadline,
    rays: bool,
    simplex: bool,
) -> tuple[Status, Status | None, int]:
    """Solve an LP after presolve, then as given from there, where the bound of the first is too weak for it.

    Returns the status, that of an LP without optimum where one is proved, and the passes of all solves.
    """
    least, spent = best.program, 0
    stages = [least] if reduced is None or reduced.program is None else [reduced.program, least]
    for inner in stages:
        back = reduced.restore if reduced is not None and inner is reduced.program else _as_it_is
        rounds = Rounds(best, inner, back, start, tol, deadline, simplex=simplex)
        while not rounds.over:
            if deadline.over() or rounds.spent + spent >= passes:
                return Status.TIME_LIMIT if deadline.over() else Status.PASS_LIMIT, None, spent + rounds.spent
            try:
                rounds.run(passes - spent - rounds.spent)
            except KeyboardInterrupt:
                return Status.INTERRUPTED, None, spent + rounds.spent
            if best.gap() <= tol:
                return Status.OPTIMAL, None, spent + rounds.spent
            if rounds.interrupted:
                return Status.INTERRUPTED, None, spent + rounds.spent
            # Bounds that rows imply may contradict each other, and prices that grow without end are a ray.
            if best.bound == math.inf or (math.isinf(best.primal) and proves_infeasible(least, best.last)):
                return Status.INFEASIBLE, Status.INFEASIBLE, spent + rounds.spent
            # No point yet, or points that go on for ever.
            if rays and rounds.doubted and best.gap() > FAR and not deadline.over():
                ends = verdict(least, min(deadline.left(), LOOK * (1 + deadline.elapsed())))
                if ends is not None:
                    return ends, ends, spent + rounds.spent
        spent, start = spent + rounds.spent, back(*rounds.point)
    return Status.STALLED, None, spent


def _as_it_is(x: Array, price: Array) -> tuple[Array, Array]:
    return x, price


def _without_optimum(status: Status, program: LinearProgram, seconds: float) -> LinearSolution:
    """The answer for an LP that is infeasible or unbounded."""
    value = math.inf if (status is Status.INFEASIBLE) != program.maximize else -math.inf
    return LinearSolution(
        status,
        bound=value,
        primal=value,
        gap=0.0,
        x=np.full(len(program.c), np.nan),
        row_price=np.full(len(program.row_lower), np.nan),
        declared=np.zeros(0, dtype=np.int64),
        reach=math.inf,
        passes=0,
        seconds=seconds,
    )
