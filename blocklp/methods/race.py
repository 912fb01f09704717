r"""PDHG, and the simplex method on the whole LP for instances that are small or on which PDHG is slow.

Instances whose dense tableau takes fewer numbers than 1500 passes read are given to a dual simplex method in
compiled loops first (:mod:`blocklp.kernels.vertices`), whose vertices end most of them at the first check.

First-order methods take few cheap passes on random LPs, whose bases fill up, and many on LPs with structure
(production plans with fixed costs, long chains of rows), which the simplex method solves at once. Where the
work of 1500 passes is enough as a rule, HiGHS begins, unless there is a warm start, before the first check.
Else the fixed-point residual tells the two apart: after 196 passes, 392, 784 and so on, instances whose
residual has fallen by less than :math:`(passes / 98)^{3/2}` since pass 98 are given to HiGHS for eight times
the work that their passes took, and ever less where LPs are large. It is counted in iterations, not in
seconds: what is chosen does not depend on the machine, nor on what is beside an instance in its batch.

The LP is the restricted master of blocks that all state their constraints
(:mod:`blocklp.methods.restricted_master`). Its duals are multipliers like any others: the engine evaluates
them, and believes nothing.

Where HiGHS does not end in time, it goes on from there at the next turn, and PDHG goes on as well.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocklp.general_solvers.simplex_turns import affordable, pass_time, typical_iterations
from blocklp.kernels.backend import PER_COPY, PER_PASS
from blocklp.kernels.plan import Plan
from blocklp.kernels.program import Program
from blocklp.kernels.vertices import small, vertices
from blocklp.methods.base import Memory, Method, MethodState, where
from blocklp.methods.dantzig_wolfe import Column, Columns
from blocklp.methods.pdhg import Pdhg, PdhgState
from blocklp.methods.proximal_newton import Solve, Solves
from blocklp.methods.restricted_master import RestrictedMaster
from blocklp.violation import known_empty

Iterates = tuple[Tensor, ...]


@dataclass(frozen=True)
class RaceState(MethodState):
    """State of :class:`Race`; multipliers and points are PDHG's or, where ``solved``, a simplex method's."""

    inner: PdhgState
    blocks: Solves | None  # of the proximal point method, from its first turn on
    masters: Columns | None  # from the first turn of the simplex method on
    solved: Tensor  # (batch,) bool, until a check has seen the answer
    ended: Tensor  # (batch,) bool: instances that HiGHS has solved
    answer: tuple[Tensor, Tensor]  # (batch, copies): multipliers and points of another method
    fresh: bool  # whether another method gave some that were not looked at yet
    turn: int  # passes at which the simplex method has its next turn
    since: int  # passes at the first turn; 0 before
    residual: Tensor  # (batch,) float64: the square of PDHG's at the first turn; NaN before
    opening: bool  # whether no pass of PDHG was made yet


@dataclass(frozen=True)
class Race(Method):
    """PDHG with turns of the simplex method: ``method="auto"`` where types are dealt with by rows."""

    evaluates = False
    knows_rows = True
    advised = True
    cadence, regular = Pdhg.cadence, Pdhg.regular
    usual = 1000  # where LPs are small the simplex method needs few or none
    first, growth = 2 * Pdhg.cadence - 1, 2  # turns fall on checks, which count one pass more
    begins = 1500  # passes of whose work the simplex method begins, where that is enough as a rule
    power = 1.5  # of the passes by which the residual should fall
    most = 8.0  # work of a turn over that of all passes, where a pass reads few numbers
    level = 6_000_000  # numbers of a pass at which it is as much as that of the passes
    largest = 20_000_000  # numbers of a pass up to which the simplex method is tried
    longest = 0.25  # part of the time that is left which a turn of the simplex method may take
    hopeful = 0.5  # part of it where the method begins, as its typical iterations are few
    hopeless = 0.01  # part of typical iterations up to which a turn is not worth stating the LP
    # Variables for each row with a price from which on the proximal point method opens, projections that it
    # may take, and those in which it should gain a digit.
    coupling, patient, digit = 8, 60, 50
    ahead = 3  # its first steps, which are short: a check is not worth it before

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> RaceState:
        """PDHG's start, with the answers of optimal vertices where LPs are small.

        Parameters
        ----------
        plan, duals, eta
            As in :meth:`blocklp.methods.pdhg.Pdhg.start`.

        Returns
        -------
        RaceState
            The state at the first multipliers, or at those of optimal vertices.
        """
        inner = Pdhg().start(plan, duals, eta)
        if not small(plan.program, plan.problem):
            return self._around(plan, inner)
        x, y, solved = vertices(plan.program, plan.problem)
        proving = Pdhg().multipliers(plan, y)
        value = plan.problem.value(proving)
        better = solved & (value >= inner.value)  # a warm start may prove as much
        duals, value = where(better, proving, inner.duals), torch.where(better, value, inner.value)
        points = where(solved, plan.problem.spread(x), inner.points)
        inner = replace(inner, bar=_kept(solved, (x, y, inner.bar[2]), inner.bar))  # to be remembered
        state = replace(self._around(plan, inner), solved=solved, answer=(duals, points))
        return replace(state, duals=duals, value=value, points=points)

    def opened(self, plan: Plan, state: RaceState) -> RaceState:
        """The answers of the simplex method where that begins: a check of PDHG's start would be in vain."""
        if state.turn:
            return state
        if not (state := self._by_simplex(plan, state, self.begins)).fresh:
            return state
        solved, (duals, points) = state.solved, state.answer
        duals, points = where(solved, duals, state.duals), where(solved, points, state.points)
        return replace(state, duals=duals, points=points, value=plan.problem.value(duals))

    def resume(self, plan: Plan, state: RaceState, memory: Memory) -> RaceState:
        """Begin PDHG at the point, duals and weight of an earlier solve.

        Parameters
        ----------
        plan, state, memory
            As in :meth:`blocklp.methods.base.Method.resume`; of the state vertices are kept.
        """
        inner = Pdhg().resume(plan, state.inner, memory)
        inner = replace(inner, bar=_kept(state.solved, state.inner.bar, inner.bar))
        # PDHG is quick from near a solution, and the simplex method has none to start from.
        return replace(state, inner=inner, eta=inner.eta, turn=max(state.turn, self.first))

    def remember(self, plan: Plan, state: RaceState) -> Memory:
        """The point and duals of PDHG."""
        return Pdhg().remember(plan, state.inner)

    def step(self, plan: Plan, state: RaceState) -> RaceState:
        """One pass of PDHG."""
        return self.finish(plan, self.run(plan, state, 1)[0])

    def run(self, plan: Plan, state: RaceState, most: int) -> tuple[RaceState, int]:
        """Several passes of PDHG.

        Parameters
        ----------
        plan, state, most
            As in :meth:`blocklp.methods.base.Method.run`; the state is used up.
        """
        inner, passes = Pdhg().run(plan, state.inner, most)
        return replace(state, inner=inner, eta=inner.eta, opening=False), passes

    def finish(self, plan: Plan, state: RaceState) -> RaceState:
        """The multipliers and points of whoever has an answer."""
        inner = Pdhg().finish(plan, state.inner)
        duals = where(state.solved, state.answer[0], inner.duals)
        points = where(state.solved, state.answer[1], inner.points)
        value, eta = inner.value, inner.eta
        return replace(state, inner=inner, duals=duals, points=points, value=value, eta=eta, fresh=False)

    def in_loops(self, plan: Plan) -> bool:
        """Whether PDHG's passes are."""
        return Pdhg().in_loops(plan)

    def due(self, state: Any) -> bool:
        """Whether the simplex method has ended since the last check."""
        return bool(state.fresh)

    def checked(self, plan: Plan, state: RaceState, gap: Tensor) -> RaceState:
        """Give instances whose residual falls slowly to the simplex method, when it is its turn.

        Parameters
        ----------
        plan, state, gap
            As in :meth:`blocklp.methods.base.Method.checked`.
        """
        if not known_empty(state.solved):  # an answer that was not good enough: PDHG goes on
            state = replace(state, solved=torch.zeros_like(state.solved))
        if state.opening and (state := self._by_blocks(plan, state, gap)).fresh:
            return state
        passes, residual = state.inner.passes, state.inner.residual
        if passes < state.turn:
            return state
        if not state.since:
            return replace(state, since=passes, residual=residual.clone(), turn=self.growth * passes)
        share = min(self.most, self.level / max(1, plan.program.work))
        fallen = residual < state.residual * (passes / state.since) ** (-2 * self.power)
        return self._by_simplex(plan, state, int(share * passes), ~fallen & ~state.ended)

    def _by_simplex(
        self, plan: Plan, state: RaceState, passes: int, given: Tensor | None = None
    ) -> RaceState:
        """A turn of the simplex method, for the work of so many passes, on some instances or all."""
        problem = plan.problem
        state = replace(state, turn=max(self.first, self.growth * state.inner.passes))
        iterations, _ = self._affordable(plan, passes)
        given = ~(state.ended | state.solved) if given is None else given
        hopeless = iterations < self.hopeless * typical_iterations(*_size(plan.program))
        hopeless |= plan.program.work > self.largest or plan.deadline.over()
        if hopeless or not bool(given.any()):
            return state
        numbers = range(problem.batch)
        masters = state.masters or Columns(tuple(Column(RestrictedMaster(problem, i)) for i in numbers))
        solved, (duals, points) = state.solved.clone(), (t.clone() for t in state.answer)
        part = self.longest if state.inner.passes else self.hopeful
        for i in given.nonzero()[:, 0].tolist():
            master = masters.own[i].master
            master.begin()
            found = master.solve(part * plan.deadline.left(), iterations)
            if found is not None:
                solved[i] = True
                duals[i] = torch.from_numpy(found.duals).to(duals)
                points[i, : problem.in_blocks] = torch.from_numpy(found.points).to(points)
            elif (ray := master.ray()) is not None:  # no point is feasible
                solved[i] = True
                duals[i], points[i] = torch.from_numpy(ray).to(duals), state.points[i]
        message = "pass %d: the simplex method solved %d of %d instances, up to %d iterations each"
        new = solved & given
        counts = state.inner.passes, int(new.sum()), int(given.sum()), iterations
        logging.getLogger("blocklp").info(message, *counts)
        x, *rest = state.inner.bar
        inner = replace(state.inner, bar=(where(new, problem.mean(points), x), *rest))  # to be remembered
        ended, fresh = state.ended | new, bool(new.any())
        state = replace(state, inner=inner, masters=masters, solved=solved, ended=ended, fresh=fresh)
        return replace(state, answer=(duals, points))

    def _by_blocks(self, plan: Plan, state: RaceState, gap: Tensor) -> RaceState:
        """A proximal step of every instance for which that promises to be quick."""
        problem = plan.problem
        if (blocks := state.blocks) is None:
            begun = state.turn == 0 or state.masters is not None
            if begun or plan.program.layout is None:  # by map, or on a device, where passes are quick
                return state
            blocks = Solves(tuple(Solve(plan, i) for i in range(problem.batch)))
            for one, x, y in zip(blocks.own, *state.inner.bar[:2], strict=True):
                if bool(y.any()):  # of a warm start
                    one.begin(x, y)
            state = replace(state, blocks=blocks)
        (x, y, reached), solved = (t.clone() for t in state.inner.bar), torch.zeros_like(state.solved)
        for i, (one, left) in enumerate(zip(blocks.own, gap.tolist(), strict=True)):
            run = one.run
            few = self.coupling * len(run.price) <= len(run.x)
            slow = run.projections > self.patient and not left <= 10.0 ** (-run.projections / self.digit)
            if not few or slow or run.ended or plan.deadline.over():
                continue
            for _ in range(1 if run.projections else self.ahead):
                run.advance()
            x[i], y[i] = one.found()
            solved[i] = True
        if known_empty(solved):
            return state
        duals = where(solved, Pdhg().multipliers(plan, y), state.answer[0])
        points = where(solved, problem.spread(x), state.answer[1])
        inner = replace(state.inner, bar=(x, y, reached))  # to be remembered
        return replace(state, inner=inner, solved=solved, answer=(duals, points), fresh=True)

    def _affordable(self, plan: Plan, passes: int) -> tuple[int, bool]:
        """Iterations that take as long as so many passes, and whether that is enough as a rule."""
        program, one = plan.program, pass_time(plan.program.work)
        if not plan.backend.builds_on:
            one = 1e6 * (PER_PASS + PER_COPY * plan.problem.copies)
        return affordable(passes * one, *_size(program))

    def _around(self, plan: Plan, inner: PdhgState) -> RaceState:
        turn = 0 if self._affordable(plan, self.begins)[1] else self.first
        none = torch.zeros_like(inner.eta, dtype=torch.bool)
        unknown = torch.full_like(inner.residual, torch.nan)
        blank = inner.duals.new_zeros(()).expand_as(inner.duals)
        own = inner.duals, inner.value, inner.points, inner.eta
        return RaceState(
            *own, inner, None, None, none, none, (blank, blank), False, turn, 0, unknown, opening=True
        )


def _kept(mask: Tensor, own: Iterates, other: Iterates) -> Iterates:
    """Iterates ``(batch, ...)`` of their own for some instances ``(batch,)``, others for the rest."""
    return tuple(where(mask, a, b) for a, b in zip(own, other, strict=True))


def _size(program: Program) -> tuple[int, int]:
    """Rows and entries of an instance."""
    return program.lower.shape[1], program.nonzeros
