"""The proximal point method over blocks of one row each, where few rows beside them keep prices.

Of all rows of a problem those that share no variable become blocks (:mod:`blocklp.methods.block_layout`): the choices
of an assignment, of a matching the sources.  The steps of :mod:`blocklp.methods.proximal_point` then take tens of
passes over all variables where PDHG takes hundreds or thousands, and end at a vertex of the dual, instance by
instance.  The duals are multipliers like any others: the engine evaluates them, and believes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.kernels.plan import Plan
from blocklp.methods.base import Memory, Method, MethodState
from blocklp.methods.block_layout import BlockLayout
from blocklp.methods.pdhg import Pdhg
from blocklp.methods.proximal_point import SLOW, ProximalPoint


@dataclass(frozen=True)
class Solve:
    """The method on one instance: what is no tensor in the state."""

    layout: BlockLayout
    run: ProximalPoint


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
    fresh: bool  # whether a step was made since the last check


@dataclass(frozen=True)
class ProximalNewton(Method):
    """Proximal steps by a semismooth Newton method; nothing to set."""

    evaluates = False
    knows_rows = by_index = True
    cadence = SLOW
    usual = 1000

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> ProximalNewtonState:
        """Lay the instances out by blocks, and ask the oracles once.

        Parameters
        ----------
        plan : Plan
            The problem in the working precision, and how it is executed.
        duals : Tensor
            ``(batch, copies)``: the first multipliers.
        eta : Tensor or None
            ``(batch,)``: the first step, in the units of :class:`BlockLayout`; None for one that a typical cost
            moves a variable by its reach with.

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
        own = []
        for i in range(problem.batch):
            layout = BlockLayout.of(program, problem, i)
            lp = layout.program
            sizes = np.abs(lp.cost[lp.cost != 0])
            sigma = (1 / float(np.median(sizes)) if len(sizes) else 1.0) if eta is None else float(eta[i])
            x, price = np.clip(0.0, lp.lower, lp.upper), np.zeros(len(lp.row_lower))
            own.append(Solve(layout, ProximalPoint(lp, x, price, sigma, plan.deadline)))
        solves, x = Solves(tuple(own)), torch.zeros_like(problem.cost)
        steps = value.new_tensor([one.run.sigma for one in own])
        return ProximalNewtonState(duals, value, points, steps, x, torch.zeros_like(program.row), solves, fresh=False)

    def resume(self, plan: Plan, state: ProximalNewtonState, memory: Memory) -> ProximalNewtonState:
        """Begin at the point and duals of an earlier solve.

        Parameters
        ----------
        plan : Plan
            The problem in the working precision, and how it is executed.
        state : ProximalNewtonState
            The state of :meth:`start`.
        memory : tuple of Tensor
            x, y and the weight (:data:`Memory`); the weight may be another method's, and is not taken.

        Returns
        -------
        ProximalNewtonState
            The state there.
        """
        y = plan.program.part(plan.problem, memory[1].to(plan.program.row))
        for i, one in enumerate(state.solves.own):
            layout, lp = one.layout, one.layout.program
            x = np.clip(layout.own(memory[0][i].double().cpu().numpy()), lp.lower, lp.upper)
            one.run.begin(x, y[i].double().cpu().numpy()[layout.coupling_row])
        return replace(state, x=memory[0].to(state.x), y=y)

    def remember(self, plan: Plan, state: ProximalNewtonState) -> Memory:
        """The point, the duals of all rows, and the step."""
        return state.x, plan.program.whole(plan.problem, state.y), state.eta

    def step(self, plan: Plan, state: ProximalNewtonState) -> ProximalNewtonState:
        """One proximal step."""
        return self.finish(plan, self.run(plan, state, SLOW)[0])

    def run(self, plan: Plan, state: ProximalNewtonState, most: int) -> tuple[ProximalNewtonState, int]:
        """Passes of every instance, to the end of a proximal step at most.

        Parameters
        ----------
        plan : Plan
            The problem in the working precision, and how it is executed.
        state : ProximalNewtonState
            The state before, which is used up.
        most : int
            Number of projections at most, at least 1.

        Returns
        -------
        state, passes : ProximalNewtonState, int
            The state, which :meth:`finish` completes, and the most projections that an instance took.
        """
        x, y, eta = state.x.clone(), state.y.clone(), state.eta.clone()
        before = [one.run.projections for one in state.solves.own]
        fresh = state.fresh
        for i, one in enumerate(state.solves.own):
            run, layout = one.run, one.layout
            fresh |= run.advance(most)
            x[i] = torch.from_numpy(layout.point(run.x)).to(x)
            y[i] = torch.from_numpy(layout.duals(run.price, run.block_price, y.shape[1])).to(y)
            eta[i] = run.sigma
        made = (one.run.projections - k for one, k in zip(state.solves.own, before, strict=True))
        return replace(state, x=x, y=y, eta=eta, fresh=fresh), max(1, *made, 1)

    def finish(self, plan: Plan, state: ProximalNewtonState) -> ProximalNewtonState:
        """The multipliers and points of the last steps."""
        duals = Pdhg().multipliers(plan, state.y)
        return replace(state, duals=duals, points=plan.problem.spread(state.x), fresh=False)

    def due(self, state: Any) -> bool:
        """Whether a step was made since the last check: it takes as long as many checks."""
        return bool(state.fresh)
