"""Rounds of two methods on one LP: proximal points by Newton steps, and restarted PDHG where these are dear or slow.

Each goes on from the better point of the two, by the residuals of the optimality conditions, and what it finds is judged on the LP as
given.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from blocklp.deadline import Deadline
from blocklp.linear_program import Array, LinearProgram
from blocklp.lp import passes as passing
from blocklp.lp.best import Best
from blocklp.lp.newton import DenseFactorError, Iterate, proximal_points, serves, work
from blocklp.lp.scaling import Scaled
from blocklp.state import State
from blocklp.status import Status

STEPS, PASSES = 300, 5000
"""Newton steps and passes of PDHG in the first round; each further one has twice as many."""

NEAR = 1e-2
"""Residual up to which a point is worth judging, and tells how far variables go."""

SHIFT = 1e-9
"""Of the costs of variables with an open side, in scaled units, where reduced costs must not be negative by rounding."""

SHARES = (1.0, 0.1, 0.01)
"""Parts of the tolerance that PDHG is asked for, one after the other, as it says that it has reached them."""


class Rounds:
    """The rounds on an LP of minimisation.

    Parameters
    ----------
    best : Best
        Where points and prices are offered.
    program : LinearProgram
        What presolve left of the LP, or the LP.
    back : callable
        Point and prices of that to those of the LP.
    start : tuple of ndarray or None
        Point and prices to start from; zero otherwise.
    tol : float
        Relative gap that is asked for.
    deadline : Deadline
        Of everything.
    """

    def __init__(
        self,
        best: Best,
        program: LinearProgram,
        back: Callable[[Array, Array], tuple[Array, Array]],
        start: tuple[Array, Array] | None,
        tol: float,
        deadline: Deadline,
    ) -> None:
        self.best, self.program, self.back, self.tol, self.deadline = best, program, back, tol, deadline
        self.scaled = Scaled.of(program)
        self.spent, self.over, self.interrupted = 0, False, False
        self._numbers, self._shares = itertools.count(), iter(SHARES)
        self._share = next(self._shares)
        self._state: State | None = None
        self._iterates: Iterator[Iterate] | None = None  # goes on where it was, unless PDHG has found a better point
        self._before, self._factored = 0, serves(program)
        first = np.clip(np.zeros(len(program.c)), program.lower, program.upper), np.zeros(len(program.row_lower))
        self._now = self.scaled.apply(*(first if start is None else start))
        self._residual = residual(self.scaled.program, *self._now)

    @property
    def point(self) -> tuple[Array, Array]:
        """Point and prices, the best so far."""
        return self.scaled.restore(*self._now)

    def turn(self, most: int) -> None:
        """One round, of so many passes and Newton steps at most."""
        factor = 2 ** next(self._numbers)
        if not self.program.A.size:
            self._separate()
            return
        methods: list[tuple[Callable[[int], None], int]] = [(self._newton, STEPS * factor)] if self._factored else []
        methods.append((self._pdhg, PASSES * factor))
        if work(self.program) > PASSES * 2 * self.program.A.nnz:  # a step costs more than all the passes, which leave it less to do
            methods.reverse()
        for method, count in methods:
            if most > 0 and not self.over and self.best.gap() > self.tol and not self.deadline.over():
                method(min(most, count))
                most -= count

    def _separate(self) -> None:
        """Without rows every variable goes to the end that costs least."""
        cost = self.program.c
        x = np.where(cost > 0, self.program.lower, np.where(cost < 0, self.program.upper, 0.0))
        x = np.clip(np.where(np.isfinite(x), x, 0.0), self.program.lower, self.program.upper)
        self.best.offer(*self.back(x, np.zeros(len(self.program.row_lower))))
        self.over = True

    def _newton(self, steps: int) -> None:
        if self._iterates is None:
            self._before, self._iterates = 0, proximal_points(self.scaled.program, *self._now, self.deadline)
        begun = self._before
        try:
            for found in self._iterates:
                self._before, self.over = found.steps, found.ended
                if self._keep(found.x, found.price):
                    self._state = None
                if self.over or self._residual <= NEAR:
                    self.best.offer(*self.back(*self.scaled.restore(found.x, found.price)))
                if self.best.gap() <= self.tol or self.over or found.steps - begun >= steps:
                    break
            else:  # stuck
                self._iterates = None
        except DenseFactorError:
            self._iterates, self._factored = None, False
        self.spent += self._before - begun

    def _pdhg(self, passes: int) -> None:
        program, near = self.scaled.program, self._residual <= NEAR
        units = self.scaled.column * self.scaled.sides
        low, high = self.best.box(self.program, self.point[0] if near else None)
        box, sides = (low[None] / units, high[None] / units), (program.row_lower[None], program.row_upper[None])
        state = self._state or passing.state(*(part[None] for part in self._now))
        found = passing.solved(program.A, program.c[None], sides, box, self._share * self.tol, self.deadline, passes, state)
        x, price = (part[0] for part in passing.points(found))
        self.spent += int(found.passes)
        # The point in hand may be the best feasible one, which is not where the method is.
        self._state = None
        if self._keep(x, price):
            self._state, self._iterates = found.state, None
        self.best.offer(*self.back(*self.scaled.restore(x, price)))
        self.interrupted = found.status[0] is Status.INTERRUPTED
        if found.status[0] in (Status.OPTIMAL, Status.STALLED, Status.INFEASIBLE):
            share = next(self._shares, None)
            self.over, self._share = share is None and not self._factored, share or self._share

    def _keep(self, x: Array, price: Array) -> bool:
        """Take a point and prices where their residual is the least so far, and say whether it is."""
        own = residual(self.scaled.program, x, price)
        if own <= self._residual:
            self._now, self._residual = (x, price), own
        return own <= self._residual


def assume_less(best: Best) -> None:
    """Look for prices that prove nearly as much without assumptions, where those at hand need some.

    They are those of the LP whose costs of variables with one open side are a little less: their reduced costs, at the optimum of
    that not negative, are a little more than zero.
    """
    scaled = Scaled.of(best.program)
    low, high = best.known()
    shift = SHIFT * (np.where(np.isinf(low), 1.0, 0.0) - np.where(np.isinf(high), 1.0, 0.0))
    shifted = replace(scaled.program, c=scaled.program.c + shift)
    start = scaled.apply(best.x, best.proof.price)
    if not shift.any() or not serves(shifted) or best.deadline.over():
        return
    with suppress(DenseFactorError):
        for found in proximal_points(shifted, *start, best.deadline):
            if found.ended or residual(shifted, found.x, found.price) <= best.tol:
                best.offer(*scaled.restore(found.x, found.price))
            if not len(best.proof.declared) or found.steps >= STEPS:
                return


def residual(program: LinearProgram, x: Array, price: Array) -> float:
    """The largest relative residual of the optimality conditions of an LP of minimisation, as PDLP measures them.

    Those of rows and bounds, of reduced costs, and the gap.
    """
    activity, reduced = program.A @ x, program.c - program.A.T @ price
    rows = activity - np.clip(activity, program.row_lower, program.row_upper)
    columns = x - np.clip(x, program.lower, program.upper)
    lower, upper = (np.where(np.isfinite(side), side, 0.0) for side in (program.lower, program.upper))
    least = np.where(reduced > 0, np.isfinite(program.lower), np.isfinite(program.upper))
    side = np.where(price > 0, program.row_lower, program.row_upper)
    paid, wrong = np.isfinite(side), np.where(np.isfinite(side), 0.0, price)
    value, dual = (
        float(program.c @ x),
        float(price[paid] @ side[paid] + (np.where(reduced > 0, lower, upper) * reduced)[least].sum()),
    )
    sizes = np.concatenate([np.where(np.isfinite(s), s, 0.0) for s in (program.row_lower, program.row_upper)])
    primal = float(np.hypot(np.linalg.norm(rows), np.linalg.norm(columns))) / (1 + float(np.abs(sizes).max(initial=0.0)))
    doubt = float(np.hypot(np.linalg.norm(reduced[~least]), np.linalg.norm(wrong))) / (1 + float(np.abs(program.c).max(initial=0.0)))
    worst = max(primal, doubt, abs(value - dual) / (1 + abs(value) + abs(dual)))
    return worst if np.isfinite(worst) else np.inf
