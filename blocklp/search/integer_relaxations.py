"""Relaxations of the nodes of an integer program: passes of the engine, or pivots of the simplex method.

The simplex method solves small LPs of models whose block types all state their constraints: a node takes it
some hundredths of a millisecond to a few milliseconds, and passes a tenth of a second.  Bounds have all
rounding charged either way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.box import BOX
from blocklp.blocks.capabilities import constraints_of
from blocklp.deadline import Deadline
from blocklp.errors import ModelError
from blocklp.general_solvers.linear_program import LinearProgram, export, without_single_entries
from blocklp.kernels import compiled
from blocklp.language.sense import Sense
from blocklp.model import Model
from blocklp.results.solution import Solution
from blocklp.results.state import State
from blocklp.search.linear_nodes import KERNELS, LinearNodes
from blocklp.status import Status

ENTRIES = 1_000_000
"""Rows times variables up to which the simplex method is asked."""

PIVOTS = 2000
"""Most pivots of a node."""

ROOM = 1e-5
"""Relative violation from which on a point is refused without a closer look."""

UNCOMPILED = 8
"""Tasks that the engine takes before the loops of the simplex method are compiled, where no process has on
this machine: that takes as long as some hundred nodes of the engine."""


@dataclass(frozen=True)
class Bases:
    """Where nodes of the simplex method start: ``(nodes, variables + rows)`` int8."""

    at: Tensor

    def select(self, nodes: Sequence[int] | Tensor) -> Bases:
        """Those of some nodes, by number or by a mask."""
        return Bases(self.at[nodes])

    def repeat(self, times: int) -> Bases:
        """Every basis ``times`` times in a row."""
        return Bases(self.at.repeat_interleave(times, 0))


@dataclass(frozen=True)
class Relaxed:
    """Relaxations of some nodes, in the sense of minimisation; tensors have the node first.

    Attributes
    ----------
    bound : Tensor
        ``(nodes,)`` float64: no feasible point of the node is better; infinite where there is none.
    primal : Tensor
        ``(nodes,)`` float64: value of ``x`` where that is feasible for the relaxation, otherwise infinite.
    x : Tensor
        ``(nodes, variables)`` float64.
    price : Tensor
        ``(nodes, variables)`` float64: what the bound rises by, at least, for each unit away from the end of
        its range where a variable is cheapest; negative where that is the upper one.
    state : State or Bases
        Where the children start.
    """

    bound: Tensor
    primal: Tensor
    x: Tensor
    price: Tensor
    state: State | Bases

    @classmethod
    def of(cls, found: Solution, sense: Sense) -> Relaxed:
        """The relaxations that the engine has solved."""
        state = with_box(found.state, found.raw_x.shape[1])
        price = sense.turn(state.duals[BOX][..., 0])
        return cls(bounds(found, sense), sense.turn(found.primal), found.raw_x, price, state)


@dataclass
class SimplexRelaxations:
    """The simplex method on the nodes of one instance.

    Attributes
    ----------
    program : LinearProgram
        The LP of the instance, to be minimised, within whose bounds nodes are.
    ready : bool
        Whether its loops were compiled when the search began.
    """

    program: LinearProgram
    ready: bool
    _made: list[LinearNodes | None] = field(default_factory=list)

    @classmethod
    def of(cls, model: Model, instance: int, low: Tensor, high: Tensor) -> SimplexRelaxations | None:
        """Write out the LP; None where it is large, or a block type states no constraints.

        Parameters
        ----------
        model : Model
            The model.
        instance : int
            Which of its instances.
        low, high : Tensor
            ``(variables,)`` float64: bounds.
        """
        if any(constraints_of(blocks.type) is None for blocks in model.blocks):
            return None
        loops = compiled.loops(KERNELS)
        if loops is None:
            return None
        program = replace(export(model, instance), lower=low.numpy(), upper=high.numpy())
        program = without_single_entries(program)
        rows, variables = program.A.shape
        if rows * variables > ENTRIES:
            return None
        return cls(program, compiled.cached(loops, torch.float64))

    def nodes(self, task: int, deadline: Deadline) -> LinearNodes | None:
        """The solver of nodes in a task by its number; None where it is the engine."""
        if not self.ready and task < UNCOMPILED:
            return None
        if not self._made:
            self._made.append(self._loaded(deadline))
        return self._made[0]

    def _loaded(self, deadline: Deadline) -> LinearNodes | None:
        """Factor the first basis; None where its loops are not ready in time, or it has no bounded LP."""
        with compiled.until(deadline):
            if compiled.in_time(KERNELS, torch.float64) is None:
                return None
            try:
                made = LinearNodes(self.program)
            except ModelError:
                return None
        return None if made.first is None else made

    def may_hold(self, points: Tensor) -> Tensor:
        """Points ``(k, variables)`` that no row refuses clearly, ``(k,)`` bool."""
        program, x = self.program, points.numpy()
        activity, room = x @ program.A.T, ROOM * (1 + np.abs(x) @ abs(program.A).T)
        inside = (activity >= program.row_lower - room) & (activity <= program.row_upper + room)
        return torch.from_numpy(inside.all(1))

    def solve(
        self,
        nodes: LinearNodes,
        low: Tensor,
        high: Tensor,
        state: State | Bases | None,
        goal: float,
        deadline: Deadline,
    ) -> Relaxed:
        """Solve nodes; those that reach a goal stop.

        Parameters
        ----------
        nodes : LinearNodes
            Those of :meth:`nodes`.
        low, high : Tensor
            ``(nodes, variables)`` float64: bounds of the variables.
        state : State, Bases or None
            Bases to start from; others are of no use here.
        goal : float
            Value from which on a node holds no better point.
        deadline : Deadline
            When to stop.

        Raises
        ------
        KeyboardInterrupt
            If the solve was interrupted.
        """
        basis = state.at if isinstance(state, Bases) else None
        found = nodes.solve(low, high, cutoff=goal, basis=basis, pivots=PIVOTS, time_limit=deadline)
        if bool((found.status == int(Status.INTERRUPTED)).any()):  # the search ends as its solves do
            raise KeyboardInterrupt
        lost = ((found.status == int(Status.STALLED)) | (found.status == int(Status.PASS_LIMIT))).nonzero()[
            :, 0
        ]
        if basis is not None and len(lost):  # pivots from a parent's basis may be too small to go on
            again = nodes.solve(low[lost], high[lost], cutoff=goal, pivots=PIVOTS, time_limit=deadline)
            better = again.bound > found.bound[lost]
            for name in ("bound", "primal", "status", "x", "row_price", "basis"):
                getattr(found, name)[lost[better]] = getattr(again, name)[better]
        program = self.program
        price = torch.from_numpy(program.c - found.row_price.numpy() @ program.A)
        # Where the end that a price counts from is infinite, the bound uses one that rows imply.
        near = torch.where(price < 0, high, low)
        return Relaxed(
            found.bound,
            found.primal,
            found.x,
            torch.where(torch.isfinite(near), price, 0.0),
            Bases(found.basis),
        )


def bounds(found: Solution, sense: Sense) -> Tensor:
    """Lower bounds ``(nodes,)`` of what the engine has found; infinite where there is no feasible point."""
    bound = sense.turn(torch.where(torch.isfinite(found.safe_bound), found.safe_bound, found.bound))
    empty = torch.tensor([status is Status.INFEASIBLE for status in found.status])
    return bound.masked_fill(empty, math.inf)


def with_box(state: State, variables: int) -> State:
    """A state that has multipliers of boxes, zero where there were none: nodes differ in what is boxed."""
    none = torch.zeros(state.batch, variables, 1, dtype=torch.float64)
    return replace(state, duals={BOX: none, **state.duals})


def joined(states: Sequence[State | Bases | None]) -> State | Bases | None:
    """The starts of several nodes as one; None where one of them has none, or they are of two kinds."""
    engine = [state for state in states if isinstance(state, State)]
    bases = [state.at for state in states if isinstance(state, Bases)]
    if len(bases) == len(states):
        return Bases(torch.cat(bases))
    return State.concatenate(engine) if len(engine) == len(states) else None


def bytes_of(state: State | Bases) -> int:
    """Memory of a start."""
    return state.at.nbytes if isinstance(state, Bases) else sum(t.nbytes for t in state.duals.values())
