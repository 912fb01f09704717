r"""Bounds of many nodes of a branch and bound over 0/1 variables, which share one model: :class:`Nodes`.

A node fixes some variables.  Nothing is restricted for that: every copy of a variable that is fixed at
:math:`v` pays for the other value, :math:`\lambda_{b,j} (x_j - v)` with :math:`|\lambda_{b,j}|` above all
that the rest of its block can gain.  Where the fixings hold this costs nothing, so that the bound is valid
whatever the size; by its size a block has the value that it has on the face :math:`x_j = v`.  So a child
starts with at least the bound of its parent's multipliers, and nodes are rows of multipliers over one graph,
for blocks of any type.

Where all types list their vertices (:class:`HasVertices`), bounds rise by sweeps of sequential
averaging in compiled loops (:mod:`blocklp.kernels.node_kernels`), a node at a time, which stops at its
cutoff. Passes of a method go on from there with the nodes that are still open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.decomposition.problem import Decomposition
from blocklp.engine.limits import Limits
from blocklp.engine.loop import run
from blocklp.engine.records import Results, Start
from blocklp.errors import ModelError, ShapeError
from blocklp.kernels import compiled
from blocklp.kernels.node_layout import ENOUGH, KERNELS, NodeLayout
from blocklp.kernels.plan import Plan
from blocklp.language.expression import View
from blocklp.language.sense import Sense
from blocklp.methods import Method, as_method
from blocklp.model import Model
from blocklp.options import numbers, of_type, per_instance, real, whole
from blocklp.results.state import State
from blocklp.results.warm_start import fill
from blocklp.search.node_penalties import contradictory, penalised, sides
from blocklp.solver import Solver, compile
from blocklp.status import Status

CHUNK = 4096
"""Nodes between two looks at the clock."""

PASSES = 20
"""Passes where there are no sweeps."""

WRITING, CLOSING = 1e-7, 2.5
"""Seconds to lay out and write a node, for each of its copies, and the ratio of writing to layout."""


@dataclass(frozen=True)
class NodeBounds:
    """Bounds of some nodes; all tensors have the node first, and k variables are branched on.

    Attributes
    ----------
    bound : Tensor
        ``(nodes,)`` float64: no feasible point that has the fixings is better; infinite (minus infinity when
        maximising) where none has.  All rounding is charged, unless a block type states no ``value_error``.
    status : Tensor
        ``(nodes,)`` int64: ``Status.CUTOFF``, ``INFEASIBLE``, ``STALLED``, ``PASS_LIMIT``, ``TIME_LIMIT`` or
        ``INTERRUPTED``.
    sweeps : Tensor
        ``(nodes,)`` int64: sweeps made.
    multipliers : Tensor
        ``(nodes, copies)`` float64: rows for children to start from; zero for nodes that sweeps closed.
    x : Tensor
        ``(nodes, k)`` float64: a primal point to round and to branch on; no feasible one in general.
    if_zero, if_one : Tensor
        ``(nodes, k)`` float64: bounds of the node with one variable more fixed at 0, or at 1.
    given : Tensor
        ``(nodes, k)`` int8: the fixings asked for.
    cutoff : Tensor
        ``(nodes,)`` float64.
    maximizing : bool
        The sense of the model, and of all bounds.
    """

    bound: Tensor
    status: Tensor
    sweeps: Tensor
    multipliers: Tensor
    x: Tensor
    if_zero: Tensor
    if_one: Tensor
    given: Tensor
    cutoff: Tensor
    maximizing: bool

    @property
    def open(self) -> Tensor:
        """``(nodes,)`` bool: nodes that may have a point better than their cutoff."""
        return (self.status != int(Status.CUTOFF)) & (self.status != int(Status.INFEASIBLE))

    @property
    def fixings(self) -> Tensor:
        """``(nodes, k)`` int8: the fixings, and in open nodes further ones by reduced costs.

        Every point that is better than the cutoff has them: a variable is not 1 where the bound with it at 1
        reaches the cutoff.
        """
        turn = Sense(self.maximizing).turn
        goal = turn(self.cutoff)[:, None]
        may = (self.given < 0) & self.open[:, None]
        found = self.given.masked_fill(may & (turn(self.if_one) >= goal), 0)
        return found.masked_fill(may & (turn(self.if_zero) >= goal), 1)

    @property
    def scores(self) -> Tensor:
        """``(nodes, k)`` float64: the product of the bound's gains by both values; -1 where fixed.

        A millionth of the size of the bound is added to each gain.
        """
        least = 1e-6 * self.bound.abs().nan_to_num(posinf=1.0)[:, None]
        zero, one = ((side - self.bound[:, None]).abs() for side in (self.if_zero, self.if_one))
        product = ((zero + least) * (one + least)).nan_to_num(0.0, posinf=0.0)
        return product.masked_fill(self.fixings >= 0, -1.0)


class Nodes:
    """Bounds nodes of one model, thousands a call.

    Parameters
    ----------
    model : Model or Solver
        One model with a batch of one; a solver says where and in which precision passes run.
    variables : View or str, optional
        The variables to branch on, k in all, with bounds that allow 0 and 1; by default all of the model.

    Raises
    ------
    ModelError
        If there is more than one instance, or a variable cannot be 0 and 1.

    Examples
    --------
    >>> import blocklp as bl
    >>> from blocklp.oracles import Edge
    >>> m = bl.Model()
    >>> y, z = m.variable("y", 3, lower=0, upper=1), m.variable("z", 2, lower=0, upper=1)
    >>> edges = m.add(Edge(), scope=[y[[0, 1]], y[[1, 2]], z])
    >>> m.minimize(-y.sum() + 2 * z.sum())
    >>> found = bl.Nodes(m, y).solve([{}, {1: 1}, {0: 1, 1: 1}])
    >>> [round(b, 6) for b in found.bound.tolist()]
    [-2.0, -1.0, 0.0]
    """

    def __init__(self, model: Model | Solver, variables: View | str | None = None) -> None:
        of_type(model, Model | Solver, "model", "a model or a compiled solver", ModelError)
        need = "a variable, a view of one, its name, or None for all"
        of_type(variables, View | str | None, "variables", need, ModelError)
        self.solver = model if isinstance(model, Solver) else compile(model)
        if self.solver.batch != 1:
            count = self.solver.batch
            raise ModelError(f"nodes share one instance, the model has {count}; build it with batch=1")
        owner = self.solver.models[0]
        view = owner.variables.get(variables) if isinstance(variables, str) else variables
        if isinstance(variables, str) and view is None:
            raise ModelError(f"the model has no variable {variables!r}; it has {', '.join(owner.variables)}")
        if view is not None and view.model is not owner:
            raise ModelError("the variables to branch on are of another model")
        if owner.rows:
            need = "use LinearNodes, or state them as blocks, such as Knapsack"
            raise ModelError(f"nodes are bounded by blocks, and the model has rows; {need}")
        self.problem = self.solver.decomposition()
        columns = torch.arange(owner.size) if view is None else view.index.reshape(-1)
        self.columns = columns.to(self.solver.device)
        low, high = self.problem.lower[0, self.columns], self.problem.upper[0, self.columns]
        if bool(((low > 0) | (high < 1)).any()):
            need = "name those that can with variables="
            raise ModelError(f"a variable to branch on cannot be 0 and 1 by its bounds; {need}")
        self.layout = NodeLayout.of(self.problem)
        self._weight: Tensor | None = None

    def __repr__(self) -> str:
        return f"Nodes of {len(self.columns)} variables to branch on, {self.solver!r}"

    def solve(
        self,
        fixings: Tensor | ArrayLike | Sequence[Mapping[int, int]],
        multipliers: Tensor | State | None = None,
        cutoff: float | Tensor | None = None,
        *,
        sweeps: int = 16,
        stall: float = 1e-4,
        passes: int | None = None,
        method: str | Method = "auto",
        time_limit: float | Deadline = math.inf,
    ) -> NodeBounds:
        """Bound nodes; those not reached in time have no bound (minus infinity when minimising).

        Parameters
        ----------
        fixings : array_like or sequence of mappings
            ``(nodes, k)`` of 0, 1 and -1 for free, or for each node ``{position: value}``.
        multipliers : Tensor or State, optional
            ``(nodes or 1, copies)``: rows of ``multipliers`` of earlier nodes, in single precision too; or
            the state of a solution.  Fixings that were added since start with at least the bound of these
            rows.
        cutoff : float or Tensor, optional
            Value of the best point known, ``(nodes,)`` for one each: nodes without a better point may stop.
        sweeps : int
            Most sweeps, forwards and backwards in turn.
        stall : float
            Relative gain of two sweeps below which a node gets no more of them.
        passes : int, optional
            Passes of the method for nodes that sweeps leave open; by default none, or 20 (one for
            ``sweeps=0``) where there are no sweeps (other block types, a GPU, no numba).
        method : str or Method
            As in :meth:`Solver.solve`.
        time_limit : float or Deadline
            Seconds, or what is left of a deadline.

        Returns
        -------
        NodeBounds
            Bounds and states of all nodes, the node first.

        Raises
        ------
        ShapeError, OptionError
            If fixings or multipliers do not fit, or an option is out of range.
        """
        device, deadline = self.solver.device, Deadline.of(time_limit)
        # Costs and block data may have changed since the last call.
        before, self.problem = self.problem, self.solver.decomposition(deadline=deadline)
        if self.problem.groups is not before.groups:
            self.layout = NodeLayout.of(self.problem)
        fixed = self._fixings(fixings).to(device)
        count = len(fixed)
        start = self._multipliers(multipliers, count)
        most = (0 if self.layout is not None else _instead(sweeps)) if passes is None else passes
        whole(sweeps, "sweeps", 0)
        whole(most, "passes", 0)
        real(stall, "stall", positive=False)
        as_method(method, self.problem)
        sense = self.solver.sense
        given = sense.turn(math.inf) if cutoff is None else cutoff
        goal = per_instance(given, "cutoff", self.problem.cost.new_empty(count))
        out = self._unbounded(fixed, sense.turn(goal))
        with compiled.until(deadline):
            found = self._bounded(out, start, sweeps, stall, most, method, deadline)
        found = sense.turned(found, "bound", "multipliers", "if_zero", "if_one", "cutoff")
        return replace(found, maximizing=sense.maximizing)

    def _bounded(
        self,
        out: NodeBounds,
        start: Tensor,
        sweeps: int,
        stall: float,
        most: int,
        method: str | Method,
        deadline: Deadline,
    ) -> NodeBounds:
        """Bound nodes chunk by chunk, by compiled sweeps where there are some, and by passes of a method."""
        count, reached = len(out.bound), 0
        layout = self.layout if compiled.in_time(KERNELS, torch.float64) is not None else None
        most = most if layout is self.layout else max(most, _instead(sweeps))
        try:
            while reached < count:
                rows = slice(reached, min(reached + CHUNK, count))
                given = start[rows] if len(start) > 1 else start
                if layout is not None:
                    self._sweeps(layout, out, rows, given, sweeps, stall)
                else:
                    out.multipliers[rows] = given
                reached = rows.stop
                todo = out.open[rows].nonzero()[:, 0] + rows.start
                passed = most and len(todo)
                writing = WRITING * len(todo) * self.problem.copies
                late = deadline.over() or (passed and not deadline.affords(writing))
                if passed and not late:
                    self._passes(out, todo, method, most, deadline)
                if late or deadline.over() or bool((out.status[rows] == int(Status.INTERRUPTED)).any()):
                    break
        except KeyboardInterrupt:
            out.status[reached:] = int(Status.INTERRUPTED)
        out.multipliers[reached:] = start[reached:] if len(start) > 1 else start
        return out

    def _fixings(self, given: Any) -> Tensor:
        """Fixings as ``(nodes, k)`` int8."""
        width = len(self.columns)
        if isinstance(given, Sequence) and all(isinstance(row, Mapping) for row in given):
            fixed, entries = torch.full((len(given), width), -1, dtype=torch.int8), []
            for row, own in enumerate(given):
                for position, value in own.items():
                    within = isinstance(position, Integral) and 0 <= int(position) < width
                    if not within or not isinstance(value, Real) or value not in (0, 1):
                        need = f"positions are 0 to {width - 1}, values 0 and 1"
                        raise ShapeError(f"fixing {{{position}: {value}}}: {need}")
                    entries.append((row, int(position), int(value == 1)))
            if entries:  # written at once: one by one they take as long as the sweeps
                rows, positions, values = np.array(entries).T
                fixed.numpy()[rows, positions] = values
            return fixed
        table = numbers(given, "fixings")
        if table.dim() != 2 or table.shape[1] != width:
            need = f"give one of the {width} variables a column: (nodes, {width})"
            raise ShapeError(f"fixings have shape {tuple(table.shape)}; {need}")
        if bool(((table != 0) & (table != 1) & (table != -1)).any()):
            raise ShapeError("fixings are 0, 1, or -1 for free")
        return table.to(torch.int8).contiguous()

    def _multipliers(self, given: Tensor | State | None, count: int) -> Tensor:
        """Multipliers ``(nodes or 1, copies)`` float64 of the problem of minimisation."""
        copies = self.problem.copies
        if given is None:
            return self.problem.to_dual(self.problem.cost)
        of_type(given, Tensor | State, "multipliers", "rows of multipliers, or the state of a solution")
        if isinstance(given, State):
            rows = fill(replace(self.problem, cost=self.problem.cost.expand(given.batch, -1)), given)
        else:
            rows = given.to(self.problem.cost)
        if rows.dim() != 2 or rows.shape[1] != copies or rows.shape[0] not in (1, count):
            need = f"give one row, or one a node: ({count}, {copies})"
            raise ShapeError(f"multipliers have shape {tuple(rows.shape)}; {need}")
        if not bool(torch.isfinite(rows.sum())):  # a single pass over what may be large
            raise ShapeError("multipliers hold NaN or infinite entries")
        return self.solver.sense.turn(rows).contiguous()

    def _unbounded(self, fixed: Tensor, goal: Tensor) -> NodeBounds:
        """Nodes ``(nodes, k)`` without bounds, as if time had run out, with cutoffs ``(nodes,)``."""
        count, full = len(fixed), self.problem.cost.new_full
        late = torch.full((count,), int(Status.TIME_LIMIT), device=fixed.device)
        # Memory is taken only where it is written.
        multipliers = self.problem.cost.new_zeros(count, self.problem.copies)
        sides = full(fixed.shape, -math.inf), full(fixed.shape, -math.inf)
        x, bound = torch.where(fixed < 0, 0.5, fixed.double()), full((count,), -math.inf)
        made, goal = torch.zeros_like(late), goal.contiguous()
        return NodeBounds(bound, late, made, multipliers, x, *sides, fixed, goal, False)

    def _sweeps(
        self,
        layout: NodeLayout,
        out: NodeBounds,
        rows: slice,
        given: Tensor,
        sweeps: int,
        stall: float,
    ) -> None:
        """Bound some nodes in compiled loops."""
        kernels, problem = compiled.wanted(KERNELS), self.problem
        assert kernels is not None
        model = (problem.cost[0], float(problem.offset[0]), problem.lower[0], problem.upper[0])
        own = (out.bound, out.status, out.sweeps, out.multipliers, out.if_zero, out.if_one, out.x)
        work = (out.given[rows], given, model, out.cutoff[rows], sweeps, stall, self.columns)
        written = tuple(values[rows] for values in own)
        kernels.bounds(rows.stop - rows.start, *work, layout.arguments(), written)

    def _passes(
        self,
        out: NodeBounds,
        rows: Tensor,
        method: str | Method,
        passes: int,
        deadline: Deadline,
    ) -> None:
        """Let the engine go on with some nodes; write what is better."""
        shape = len(rows), self.problem.coupling.variables
        fixed = torch.full(shape, -1, dtype=torch.int8, device=rows.device)
        fixed[:, self.columns] = out.given[rows]
        began = deadline.elapsed()
        problem, duals = penalised(self.problem, fixed, out.multipliers[rows])
        impossible = contradictory(self.problem, fixed)
        closing = CLOSING * (deadline.elapsed() - began)
        ascent = as_method(method, self.problem)
        limits = Limits(
            tol=torch.full(
                (len(rows),), -1.0, dtype=torch.float64
            ),  # a gap of the problem with penalties says nothing
            cutoff=out.cutoff[rows].cpu(),
            passes=passes,
            deadline=deadline.within(deadline.left() - closing),
            check_every=10,
            feasibility_tol=1e-6,
            patience=max(passes, 1),
            project=False,  # nor are points asked for
        )
        weight = self._first_weight(ascent).expand(len(rows)) if ascent.proximal else None
        found = run(Plan(problem), ascent, self.solver.dtype, limits, Start(duals, weight))
        self._write(out, rows, problem, fixed, found, impossible)

    def _write(
        self,
        out: NodeBounds,
        rows: Tensor,
        problem: Decomposition,
        fixed: Tensor,
        found: Results,
        impossible: Tensor,
    ) -> None:
        """Write bounds, bounds with one fixing more, and multipliers from results of the engine."""
        bound = torch.where(torch.isfinite(found.safe_bound), found.safe_bound, found.bound)
        better = bound > out.bound[rows]
        zero, one = (side[:, self.columns] + bound[:, None] for side in sides(problem, found.duals))
        given = out.given[rows]
        zero, one = zero.masked_fill(given == 1, math.inf), one.masked_fill(given == 0, math.inf)
        zero, one = torch.maximum(out.if_zero[rows], zero), torch.maximum(out.if_one[rows], one)
        best = torch.maximum(torch.maximum(out.bound[rows], bound), torch.minimum(zero, one).amax(1))
        best = best.masked_fill(impossible, math.inf)
        # The engine stops at a bound whose rounding is not charged yet.
        status = found.status.masked_fill(found.status == int(Status.CUTOFF), int(Status.STALLED))
        status = status.masked_fill(best >= out.cutoff[rows], int(Status.CUTOFF))
        status = status.masked_fill(impossible, int(Status.INFEASIBLE))
        held = self.problem.spread((fixed >= 0).double()) > 0
        kept, free = out.multipliers[rows], found.duals.masked_fill(held, 0.0)
        # Multipliers that penalties made grow, where fixings imply others, are no start for children.
        scale = torch.maximum(kept.abs().amax(1), self.problem.cost.abs().amax())
        better &= free.abs().amax(1) <= ENOUGH * scale
        out.multipliers[rows] = torch.where(better[:, None] & ~held, found.duals, kept)
        out.x[rows] = torch.where(given < 0, found.x[:, self.columns], given.double())
        out.bound[rows], out.status[rows], out.if_zero[rows], out.if_one[rows] = best, status, zero, one

    def _first_weight(self, ascent: Method) -> Tensor:
        """The proximal weight of a first solve: that of a last one is too large for what fixings change."""
        if self._weight is None:
            problem = self.problem.to(self.solver.dtype)
            self._weight = ascent.start(Plan(problem), problem.to_dual(problem.cost), None).eta
        return self._weight


def _instead(sweeps: int) -> int:
    """Passes instead of sweeps: one does what loops do before their first one."""
    return PASSES if sweeps else 1
