"""Rounds of three methods on one LP: proximal points by Newton steps, restarted PDHG, and a simplex method.

The first two go on from the better point of theirs, by the residuals of the optimality conditions; HiGHS's
simplex method goes on from its own basis.  What they find is judged on the LP as given.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from blocklp.deadline import Deadline
from blocklp.general_solvers.linear_program import Array, LinearProgram, loaded_highs
from blocklp.general_solvers.simplex_turns import affordable, pass_time, run_within
from blocklp.lp import passes as passing
from blocklp.lp.best import Best
from blocklp.lp.newton import DenseFactorError, Iterate, proximal_points, serves, work
from blocklp.lp.scaling import Scaled
from blocklp.results.state import State
from blocklp.status import Status

STEPS, PASSES = 300, 5000
"""Newton steps and passes of PDHG in the first round; each further one has twice as many.

The simplex method has as many iterations as take as long as the passes.
"""

MULTIPLICATIONS = 2000.0
"""Of the factors of Newton steps in a microsecond: those of a round take as long as its passes, in all.

A proximal step that takes more is paid for in further rounds, which make none before.
"""

NEAR = 1e-2
"""Residual up to which a point is worth judging, and its largest entry a measure for declared bounds."""

NUMBERS = 4
"""Numbers that a pass of PDHG reads and writes for each entry, about."""

SHIFT = 1e-9
"""Shift of the costs of variables with an open side, in scaled units, for reduced costs of the right sign."""

SHARES = (1.0, 0.1, 0.01)
"""Tolerances of PDHG, relative to the one asked for; each follows when PDHG has reached the one before."""


class Rounds:
    """The rounds on an LP of minimisation.

    Parameters
    ----------
    best : Best
        Best point and bound, which judges all others.
    program : LinearProgram
        The presolved LP, or the LP.
    back : callable
        Maps point ``(variables,)`` and prices ``(rows,)`` of ``program`` to those of the LP.
    start : tuple of ndarray or None
        Point ``(variables,)`` and prices ``(rows,)`` to start from; zero otherwise.
    tol : float
        Relative gap to be certified.
    deadline : Deadline
        End of the solve.
    simplex : bool
        Whether the simplex method has turns.

    Attributes
    ----------
    doubted : bool
        Whether the LP may have no optimum: the simplex method found none, or has no turns.
    """

    def __init__(
        self,
        best: Best,
        program: LinearProgram,
        back: Callable[[Array, Array], tuple[Array, Array]],
        start: tuple[Array, Array] | None,
        tol: float,
        deadline: Deadline,
        *,
        simplex: bool,
    ) -> None:
        self.best, self.program, self.back, self.tol, self.deadline = best, program, back, tol, deadline
        self.spent, self.over, self.interrupted = 0, False, False
        self._numbers, self._shares = itertools.count(), iter(SHARES)
        self._share = next(self._shares)
        self._state: State | None = None
        # Newton steps go on from the last one, unless PDHG finds a better point.
        self._iterates: Iterator[Iterate] | None = None
        self._before, self._credit, self._factored = 0, 0.0, serves(program)
        self._pivots, self.doubted = simplex, not simplex
        self._highs: Any = None
        self._start = start

    @cached_property
    def scaled(self) -> Scaled:
        """The scaled LP, which the simplex method does not need."""
        return Scaled.of(self.program)

    @cached_property
    def _best(self) -> tuple[Array, Array]:
        """Point and prices of the least residual so far, of the scaled LP."""
        if self._start is not None:
            return self.scaled.apply(*self._start)
        program = self.scaled.program
        x = np.clip(np.zeros(len(program.c)), program.lower, program.upper)
        return x, np.zeros(len(program.row_lower))

    @cached_property
    def _residual(self) -> float:
        return residual(self.scaled.program, *self._best)

    @property
    def point(self) -> tuple[Array, Array]:
        """Point ``(variables,)`` and prices ``(rows,)`` of the least residual so far."""
        return self.scaled.restore(*self._best)

    def run(self, most: int) -> None:
        """Run one round, of so many passes and Newton steps at most."""
        factor = 2 ** next(self._numbers)
        if not self.program.A.size:
            self._separate()
            return
        # The simplex method goes first where its turn is enough, as a rule, and others do not have a start.
        iterations, enough = simplex_turn(self.program, PASSES * factor)
        first, doubted = enough and self._start is None, self.doubted
        counts = {self._simplex: iterations, self._newton: STEPS * factor, self._pdhg: PASSES * factor}
        for method in self._order(first):
            if most <= 0 or self.over or self.best.gap() <= self.tol or self.deadline.over():
                return
            method(min(most, counts[method]))
            most -= counts[method]
            if self.doubted and not doubted:
                return  # a ray is looked for first

    def _order(self, simplex_first: bool) -> Iterator[Callable[[int], None]]:
        """The methods that have turns, in an order that depends on what the first one finds."""
        opening = simplex_first and self._pivots
        if opening:
            yield self._simplex
        # Passes go before Newton steps, and leave them less to do, where they cost less than one of them, and
        # where the simplex method takes longer than as a rule: then factors fill up, here as there.
        steps_first = work(self.program) <= PASSES * 2 * self.program.A.nnz and not (opening and self._pivots)
        if self._factored and steps_first:
            yield self._newton
        yield self._pdhg
        if self._factored and not steps_first:
            yield self._newton
        if self._pivots and not opening:
            yield self._simplex

    def _separate(self) -> None:
        """Solve an LP without rows: every variable goes to its cheaper bound."""
        cost = self.program.c
        x = np.where(cost > 0, self.program.lower, np.where(cost < 0, self.program.upper, 0.0))
        x = np.clip(np.where(np.isfinite(x), x, 0.0), self.program.lower, self.program.upper)
        self.best.offer(*self.back(x, np.zeros(len(self.program.row_lower))))
        self.over = True

    def _simplex(self, iterations: int) -> None:
        """Make so many iterations of the simplex method at most."""
        import highspy

        if self._highs is None:
            self._highs = loaded_highs(self.program, presolve="off", solver="simplex")
        status, statuses = run_within(self._highs, self.deadline.left(), iterations), highspy.HighsModelStatus
        self.spent += max(0, self._highs.getInfo().simplex_iteration_count)
        self._pivots = status in (statuses.kIterationLimit, statuses.kTimeLimit)
        if status != statuses.kOptimal:
            self.doubted = not self._pivots
            return
        found = self._highs.getSolution()
        x, price = np.array(found.col_value), np.array(found.row_dual)
        self.best.offer(*self.back(x, price))
        if self.best.gap() > self.tol and self._keep(*self.scaled.apply(x, price)):
            self._state, self._iterates = None, None

    def _newton(self, steps: int) -> None:
        """Make so many Newton steps at most."""
        self._credit += MULTIPLICATIONS * steps / STEPS * PASSES * pass_time(NUMBERS * self.program.A.nnz)
        if self._credit <= 0:
            return
        if self._iterates is None:
            self._before, self._work = 0, 0.0
            self._iterates = proximal_points(self.scaled.program, *self._best, self.deadline)
        begun = self._before
        try:
            for iterate in self._iterates:
                self._credit -= iterate.multiplications - self._work
                self._before, self._work, self.over = iterate.steps, iterate.multiplications, iterate.ended
                if self._keep(iterate.x, iterate.price):
                    self._state = None
                if self.over or self._residual <= NEAR:
                    self.best.offer(*self.back(*self.scaled.restore(iterate.x, iterate.price)))
                spent = iterate.steps - begun >= steps or self._credit <= 0
                if self.best.gap() <= self.tol or self.over or spent:
                    break
            else:  # stuck
                self._iterates = None
        except DenseFactorError:
            self._iterates, self._factored = None, False
        self.spent += self._before - begun

    def _pdhg(self, passes: int) -> None:
        """Make so many passes of PDHG at most."""
        program, near = self.scaled.program, self._residual <= NEAR
        units = self.scaled.column * self.scaled.sides
        low, high = self.best.box(self.program, self.point[0] if near else None)
        solution = passing.solved(
            program.A,
            program.c[None],
            (program.row_lower[None], program.row_upper[None]),
            (low[None] / units, high[None] / units),
            self._share * self.tol,
            self.deadline,
            passes,
            self._state or passing.state(*(part[None] for part in self._best)),
        )
        x, price = (part[0] for part in passing.points(solution))
        self.spent += int(solution.passes)
        # The returned point is the best feasible one, which may not be the iterate of the state.
        self._state = None
        if self._keep(x, price):
            self._state, self._iterates = solution.state, None
        self.best.offer(*self.back(*self.scaled.restore(x, price)))
        self.interrupted = solution.status[0] is Status.INTERRUPTED
        if solution.status[0] in (Status.OPTIMAL, Status.STALLED, Status.INFEASIBLE):
            share = next(self._shares, None)
            self._share = share or self._share
            self.over = share is None and not (self._factored or self._pivots)

    def _keep(self, x: Array, price: Array) -> bool:
        """Keep a point and prices if their residual is the least so far, and return whether it is."""
        new = residual(self.scaled.program, x, price)
        if new <= self._residual:
            self._best, self._residual = (x, price), new
        return new <= self._residual


def simplex_turn(program: LinearProgram, passes: int) -> tuple[int, bool]:
    """Iterations of the simplex method that take as long as so many passes, and whether these are enough.

    Parameters
    ----------
    program : LinearProgram
        An LP.
    passes : int
        Passes of PDHG over its rows.
    """
    nonzeros = program.A.nnz
    return affordable(passes * pass_time(NUMBERS * nonzeros), len(program.row_lower), nonzeros)


def assume_less(best: Best) -> None:
    """Look for prices whose bound is nearly as good without assumptions, where the best one needs some.

    They are those of the LP with slightly lower costs of variables with one open side: reduced costs, not
    negative at its optimum, are a little above zero for the original costs.
    """
    scaled = Scaled.of(best.program)
    low, high = best.implied()
    shift = SHIFT * (np.where(np.isinf(low), 1.0, 0.0) - np.where(np.isinf(high), 1.0, 0.0))
    shifted = replace(scaled.program, c=scaled.program.c + shift)
    start = scaled.apply(best.x, best.proof.price)
    if not shift.any() or not serves(shifted) or best.deadline.over():
        return
    with suppress(DenseFactorError):
        for iterate in proximal_points(shifted, *start, best.deadline):
            if iterate.ended or residual(shifted, iterate.x, iterate.price) <= best.tol:
                best.offer(*scaled.restore(iterate.x, iterate.price))
            if not len(best.proof.declared) or iterate.steps >= STEPS:
                return


def residual(program: LinearProgram, x: Array, price: Array) -> float:
    """The largest relative residual of the optimality conditions of an LP, as PDLP measures them.

    The largest of the primal residual (rows and bounds), the dual residual (reduced costs) and the gap.

    Parameters
    ----------
    program : LinearProgram
        An LP of minimisation.
    x, price : ndarray
        ``(variables,)`` and ``(rows,)``: point and prices.

    Returns
    -------
    float
        Infinite where one of them is not finite.
    """
    activity, reduced = program.A @ x, program.c - program.A.T @ price
    rows = activity - np.clip(activity, program.row_lower, program.row_upper)
    columns = x - np.clip(x, program.lower, program.upper)
    lower, upper = (np.where(np.isfinite(side), side, 0.0) for side in (program.lower, program.upper))
    least = np.where(reduced > 0, np.isfinite(program.lower), np.isfinite(program.upper))
    side = np.where(price > 0, program.row_lower, program.row_upper)
    finite, wrong = np.isfinite(side), np.where(np.isfinite(side), 0.0, price)
    value = float(program.c @ x)
    bound = float(price[finite] @ side[finite] + (np.where(reduced > 0, lower, upper) * reduced)[least].sum())
    sizes = np.concatenate([np.where(np.isfinite(s), s, 0.0) for s in (program.row_lower, program.row_upper)])
    primal = float(np.hypot(np.linalg.norm(rows), np.linalg.norm(columns)))
    dual = float(np.hypot(np.linalg.norm(reduced[~least]), np.linalg.norm(wrong)))
    worst = max(
        primal / (1 + float(np.abs(sizes).max(initial=0.0))),
        dual / (1 + float(np.abs(program.c).max(initial=0.0))),
        abs(value - bound) / (1 + abs(value) + abs(bound)),
    )
    return worst if np.isfinite(worst) else np.inf
