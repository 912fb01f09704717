"""The proximal point method over blocks of one row each, where few rows beside them keep prices.

Of all rows of a problem those that share no variable become blocks (:mod:`blocklp.methods.block_layout`):
the choices of an assignment, of a matching the sources.  The steps of :mod:`blocklp.methods.proximal_point`
then take tens of passes over all variables where PDHG takes hundreds or thousands, and end at an optimum of
the dual, instance by instance.  The duals are multipliers like any others: the engine evaluates them, and
believes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from blocklp.kernels.plan import Plan
from blocklp.methods.base import Memory, Method, MethodState
from blocklp.methods.block_layout import BlockLayout
from blocklp.methods.pdhg import Pdhg
from blocklp.methods.proximal_point import ProximalPoint, first_step

WARM = 16.0
"""Factor of the first step from prices that an earlier solve has found."""


class Solve:
    """The method on one instance: what is no tensor in the state.

    Parameters
    ----------
    plan : Plan
        The problem in the working precision, and how it is executed; scopes by index.
    instance : int
        Its number in the batch.

    Attributes
    ----------
    run : ProximalPoint
        The method, at the bounds next to zero and prices of zero.
    """

    def __init__(self, plan: Plan, instance: int) -> None:
        self.layout = BlockLayout.of(plan.program, plan.problem, instance)
        program, self._rows = self.layout.program, plan.program.lower.shape[1]
        x, price = np.clip(0.0, program.lower, program.upper), np.zeros(len(program.row_lower))
        self.run = ProximalPoint(program, x, price, first_step(program.cost), plan.deadline)

    def begin(self, x: Tensor, y: Tensor) -> None:
        """Go on from a point ``(variables,)``, where it is known, and duals ``(rows,)`` of the program."""
        program, layout = self.layout.program, self.layout
        known = np.nan_to_num(layout.own(x.double().cpu().numpy()), nan=0.0)
        point = np.clip(known, program.lower, program.upper)
        self.run.sigma *= WARM
        self.run.begin(point, y.double().cpu().numpy()[layout.coupling_row])

    def found(self) -> tuple[Tensor, Tensor]:
        """The point ``(variables,)`` and duals ``(rows,)`` of the program, float64."""
        run = self.run
        y = self.layout.duals(run.price, run.block_price, self._rows)
        return torch.from_numpy(self.layout.point(run.program.packed(run.x))), torch.from_numpy(y)


@dataclass(frozen=True)
class Solves:
    """The method on each instance."""

    own: tuple[Solve, ...]

    def select(self, rows: Tensor) -> Solves:
        """Return that on some instances."""
        return Solves(tuple(self.own[i] for i in rows.tolist()))


@dataclass(frozen=True)
class ProximalNewtonState(MethodState):
    """State of :class:`ProximalNewton`; ``eta`` is the step of the proximal point method."""

    x: Tensor  # (batch, variables)
    y: Tensor  # (batch, rows): duals of all rows of the program
    solves: Solves


@dataclass(frozen=True)
class ProximalNewton(Method):
    """Proximal steps by a semismooth Newton method; nothing to set."""

    evaluates = False
    knows_rows = by_index = True
    cadence = 9
    usual = 10_000  # a projection by tensor operations takes as long as many passes

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> ProximalNewtonState:
        """Lay the instances out by blocks, and ask the oracles once.

        Parameters
        ----------
        plan, duals
            As in :meth:`blocklp.methods.base.Method.start`.
        eta : Tensor or None
            Not used: steps find their length, and other methods' weights have another meaning.

        Returns
        -------
        ProximalNewtonState
            Points at the bounds next to zero, prices at zero.

        Raises
        ------
        OptionError
            If a type states no constraints.
        """
        problem, program = plan.problem, plan.program
        points, value = problem.min_oracle(duals)
        solves = Solves(tuple(Solve(plan, i) for i in range(problem.batch)))
        now = value.new_tensor([one.run.sigma for one in solves.own])
        x, y = torch.zeros_like(problem.cost), torch.zeros_like(program.lower)
        return ProximalNewtonState(duals, value, points, now, x, y, solves)

    def resume(self, plan: Plan, state: ProximalNewtonState, memory: Memory) -> ProximalNewtonState:
        """Begin at the point and duals of an earlier solve.

        Parameters
        ----------
        plan, state, memory
            As in :meth:`blocklp.methods.base.Method.resume`; the weight may be another method's, and is not
            taken.
        """
        y = plan.program.part(plan.problem, memory[1].to(plan.program.lower))
        for one, *start in zip(state.solves.own, memory[0], y, strict=True):
            one.begin(*start)
        return replace(state, x=memory[0].to(state.x), y=y)

    def remember(self, plan: Plan, state: ProximalNewtonState) -> Memory:
        """The point and the duals of all rows; there is no weight."""
        weight = torch.full_like(state.eta, torch.nan)
        return state.x, plan.program.whole(plan.problem, state.y), weight

    def step(self, plan: Plan, state: ProximalNewtonState) -> ProximalNewtonState:
        """One projection."""
        return self.finish(plan, self.run(plan, state, 1)[0])

    def run(self, plan: Plan, state: ProximalNewtonState, most: int) -> tuple[ProximalNewtonState, int]:
        """Several projections of every instance, in one proximal step or more.

        Parameters
        ----------
        plan, state, most
            As in :meth:`blocklp.methods.base.Method.run`; the state is used up.
        """
        x, y, eta = state.x.clone(), state.y.clone(), state.eta.clone()
        for i, one in enumerate(state.solves.own):
            last = one.run.projections + most
            while one.run.projections < last and not one.run.ended and not plan.deadline.over():
                one.run.advance(last - one.run.projections)
            x[i], y[i] = one.found()
            eta[i] = one.run.sigma
        return replace(state, x=x, y=y, eta=eta), most

    def finish(self, plan: Plan, state: ProximalNewtonState) -> ProximalNewtonState:
        """The multipliers and points of the last projections."""
        duals = Pdhg().multipliers(plan, state.y)
        return replace(state, duals=duals, points=plan.problem.spread(state.x))
