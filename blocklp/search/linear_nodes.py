"""Bounds of many nodes of a branch and bound over a general LP: :class:`LinearNodes`.

A node is the LP with narrower bounds of its variables, or with costs of its own.  All nodes start from one
basis, whose tableau is computed once, or go on from the bases of their parents; each makes the few pivots of
the dual simplex method that it needs (:mod:`blocklp.kernels.dual_simplex_kernels`) and stops at its cutoff.
What they report is evaluated from the prices alone, with all rounding charged, as for any other LP of
:mod:`blocklp.lp`: the simplex method decides how tight a bound is, never whether it holds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, NonFiniteError, ShapeError
from blocklp.general_solvers.linear_program import Array, LinearProgram
from blocklp.kernels import compiled
from blocklp.kernels.dual_simplex_layout import (
    BASIC,
    EMPTY,
    ENDED,
    INTERRUPTED,
    LOWER,
    OUTSIDE,
    PASSED,
    UNFINISHED,
    UNREACHED,
    UPPER,
    NodeAnswers,
    NodeArrays,
)
from blocklp.language.sense import Sense
from blocklp.lp.judge import EPS
from blocklp.lp.node_passes import bounded_by_passes
from blocklp.lp.shared_basis import SharedBasis, SharedProgram, basis_by_highs, slack_basis
from blocklp.lp.solve import checked
from blocklp.model import Model
from blocklp.options import numbers, of_type, per_instance, whole
from blocklp.search.linear_node_bounds import LinearNodeBounds, StrongBranchingBounds
from blocklp.status import Status

KERNELS = "blocklp.kernels.dual_simplex_kernels"

CHUNK = 1024
"""Nodes between two looks at the clock."""

STATUS = [Status.STALLED] * 7
"""Status of a node by what the loops say of it."""
STATUS[ENDED], STATUS[EMPTY], STATUS[PASSED] = Status.OPTIMAL, Status.INFEASIBLE, Status.CUTOFF
STATUS[UNREACHED], STATUS[INTERRUPTED] = Status.TIME_LIMIT, Status.INTERRUPTED

FACTORED = 64
"""Pivots after which the first basis is factored anew while it is being looked for."""

ROOT = 1000
"""Most pivots of the LP itself."""

GAP, SMALL = 1e-6, 1e-3
"""Gap relative to the value of a node's point up to which the point is optimal, and the least such value."""


class LinearNodes:
    """Bounds nodes of one LP, thousands a call.

    Parameters
    ----------
    program : LinearProgram or Model
        The LP; a model has one instance, and all its block types state their constraints.  Integers are not
        regarded.
    basis : array_like, optional
        ``(variables + rows,)``: the basis that nodes start from, in HiGHS's numbers; by default an optimal
        one, found by HiGHS where highspy is installed and else by the same loops.

    Attributes
    ----------
    root : LinearNodeBounds
        Of the LP itself.

    Raises
    ------
    ModelError
        If a variable is free and rows imply no bound for it, or lacks one bound and nothing keeps it from
        growing at no cost, or the value of the LP is not bounded.
    NonFiniteError
        If costs or entries are not finite, or a side or bound is NaN.
    ShapeError
        If the basis has another shape, or not as many basic variables as there are rows.

    Examples
    --------
    >>> import numpy as np
    >>> import blocklp as bl
    >>> m = bl.Model()
    >>> x = m.variable("x", 3, lower=0, upper=1)
    >>> rows = m.add(np.array([[3.0, 2.0, 2.0]]) @ x <= 4)
    >>> m.maximize(5 * x[0] + 4 * x[1] + 3 * x[2])
    >>> nodes = bl.LinearNodes(m)
    >>> upper = np.array([[1.0, 1, 1], [0, 1, 1], [1, 0, 1]])
    >>> [round(b, 6) for b in nodes.solve(upper=upper).bound.tolist()]
    [7.333333, 7.0, 6.5]
    """

    def __init__(self, program: LinearProgram | Model, basis: ArrayLike | None = None) -> None:
        of_type(program, LinearProgram | Model, "program", "a linear program or a model", ModelError)
        if isinstance(program, Model):
            if program.batch != 1:
                count = program.batch
                raise ModelError(f"nodes share one instance, the model has {count}; build it with batch=1")
            program = program.linear_program()
        checked(program)
        self.program, self.sense = program, Sense(program.maximize)
        turn = self.sense.turn(1.0)
        self.shared = SharedProgram.of(
            replace(program, c=turn * program.c, offset=turn * program.offset, maximize=False)
        )
        self.first = self._first(basis)
        self.root = self.solve(pivots=ROOT)
        if self.root.bound.item() == self.sense.turn(-math.inf):
            need = "give bounds to variables that no feasible point worth looking at passes"
            raise ModelError(f"nothing was found that bounds the value of the LP; {need}")

    def __repr__(self) -> str:
        rows, variables = self.program.A.shape
        return f"LinearNodes of {variables} variables and {rows} rows"

    def solve(
        self,
        lower: ArrayLike | Tensor | None = None,
        upper: ArrayLike | Tensor | None = None,
        *,
        cost: ArrayLike | Tensor | None = None,
        cutoff: float | Tensor | None = None,
        basis: Tensor | None = None,
        pivots: int = 200,
        time_limit: float | Deadline = math.inf,
    ) -> LinearNodeBounds:
        """Bound nodes; those not reached in time have no bound (minus infinity when minimising).

        Parameters
        ----------
        lower, upper : array_like, optional
            ``(nodes, variables)`` or ``(variables,)``: bounds within those of the LP, which they are by
            default.
        cost : array_like, optional
            ``(nodes, variables)``: costs of the nodes; by default that of the LP.
        cutoff : float or Tensor, optional
            Value of the best point known, ``(nodes,)`` for one each: nodes without a better point may stop.
        basis : Tensor, optional
            ``(nodes or 1, variables + rows)``: bases of parents, to start from; zeros for that of the LP.
        pivots : int
            Most pivots of a node, at least 1.
        time_limit : float or Deadline
            Seconds, or what is left of a deadline.

        Returns
        -------
        LinearNodeBounds
            Bounds and states of all nodes, the node first.

        Raises
        ------
        ShapeError
            If shapes do not fit together, or a bound is outside those of the LP.
        NonFiniteError
            If costs are not finite, or a bound is NaN.
        OptionError
            If an option is out of range.
        """
        deadline = Deadline.of(time_limit)
        whole(pivots, "pivots")
        n = len(self.program.c)
        tables = {"lower": lower, "upper": upper, "cost": cost}
        given = {name: _table(value, name, n) for name, value in tables.items() if value is not None}
        counts = {len(table) for table in given.values()}
        count = 0 if 0 in counts else max(counts, default=1)
        for name, table in given.items():
            if len(table) not in (1, count):
                raise ShapeError(f"{name} has {len(table)} nodes, others have {count}; give each node a row")
        stated = self.program.lower[None], self.program.upper[None]
        low, high = (np.ascontiguousarray(given.get(k, v)) for k, v in zip(tables, stated, strict=False))
        costs = np.empty((0, n))
        if "cost" in given:
            scaled = self.sense.turn(1.0) * given["cost"] * self.shared.column
            costs = np.repeat(scaled, count // len(scaled), 0) if count else costs
        worst, each = self.sense.turn(math.inf), torch.empty(count, dtype=torch.float64)
        goal = per_instance(worst if cutoff is None else cutoff, "cutoff", each)
        bases = np.empty((0, n + len(self.program.row_lower)), np.int8)
        bases = bases if basis is None else self._bases(basis, count)
        offset, goals = self.shared.program.offset, self.sense.turn(goal).numpy()
        with np.errstate(invalid="ignore"):
            goals = goals - offset + (4 * EPS * (np.abs(goals) + abs(offset)) if offset else 0.0)
        nodes = NodeArrays(low, high, costs, goals, bases)
        return self._report(self._found(nodes, pivots, deadline), goal, pivots)

    def strong_branching(
        self,
        columns: ArrayLike | Tensor,
        *,
        lower: ArrayLike | Tensor | None = None,
        upper: ArrayLike | Tensor | None = None,
        **options: Any,
    ) -> StrongBranchingBounds:
        """Bound both children of every candidate of one node, in one call.

        Parameters
        ----------
        columns : array_like
            ``(k,)`` integers: candidates.  Those that are at an integer at the node's point have one child as
            it.
        lower, upper : array_like, optional
            ``(variables,)``: the node's bounds.
        **options
            ``cutoff``, ``basis`` (that of the node), ``pivots`` and ``time_limit`` of :meth:`solve`.

        Returns
        -------
        StrongBranchingBounds
            The children.

        Raises
        ------
        ShapeError
            If a candidate is no number of a variable.
        """
        n = len(self.program.c)
        picked = numbers(columns, "columns").reshape(-1)
        if bool(((picked != picked.round()) | (picked < 0) | (picked >= n)).any()):
            raise ShapeError(f"columns are integers from 0 to {n - 1}")
        k, number = len(picked), picked.long()
        parent = self.solve(lower, upper, **{name: v for name, v in options.items() if name != "cutoff"})
        at = parent.x[0, number]
        sides = (
            self.program.lower if lower is None else lower,
            self.program.upper if upper is None else upper,
        )
        low, high = (numbers(side, "bounds").reshape(1, n).repeat(2 * k, 1) for side in sides)
        row = torch.arange(k)
        high[row, number] = torch.minimum(high[row, number], at.floor())
        low[row + k, number] = torch.maximum(low[row + k, number], at.floor() + 1)
        found = self.solve(low, high, **{"basis": parent.basis, **options})
        return StrongBranchingBounds(number, at, found.select(row), found.select(row + k))

    def tighten(
        self,
        columns: ArrayLike | Tensor | None = None,
        cutoff: float | None = None,
        *,
        pivots: int = 1000,
        time_limit: float | Deadline = math.inf,
    ) -> tuple[Tensor, Tensor]:
        """Bounds of variables over all feasible points that are no worse than a cutoff (bound tightening).

        Two LPs a variable minimise and maximise it under the rows of the LP and, with a cutoff, its objective
        as one more.

        Parameters
        ----------
        columns : array_like, optional
            ``(k,)`` integers; by default all variables.
        cutoff : float, optional
            Value of the best point known.
        pivots : int
            Most pivots of an LP.
        time_limit : float or Deadline
            Seconds; the bounds given stay for what is not reached.

        Returns
        -------
        lower, upper : Tensor
            ``(k,)`` float64: valid with all rounding; a lower bound above its upper one proves that there is
            no such point.

        Raises
        ------
        ShapeError
            If a column is no number of a variable.
        """
        program, n = self.program, len(self.program.c)
        picked = (
            np.arange(n)
            if columns is None
            else numbers(columns, "columns").numpy().reshape(-1).astype(np.int64)
        )
        if ((picked < 0) | (picked >= n)).any():
            raise ShapeError(f"columns are integers from 0 to {n - 1}")
        if cutoff is not None:
            side = self.sense.turn(float(cutoff)) - self.shared.program.offset
            side += 4 * EPS * (abs(side) + abs(self.shared.program.offset))
            row = csr_array(self.sense.turn(1.0) * program.c[None])
            program = replace(
                program,
                A=csr_array(vstack([program.A, row])),
                row_lower=np.append(program.row_lower, -np.inf),
                row_upper=np.append(program.row_upper, side),
            )
        k, cost = len(picked), np.zeros((2 * len(picked), n))
        cost[np.arange(k), picked], cost[np.arange(k) + k, picked] = 1.0, -1.0
        nodes = LinearNodes(replace(program, maximize=False, offset=0.0))
        found = nodes.solve(cost=cost, pivots=pivots, time_limit=time_limit)
        low, high = found.bound[:k], -found.bound[k:]
        given = torch.from_numpy(self.program.lower[picked]), torch.from_numpy(self.program.upper[picked])
        return torch.maximum(low, given[0]), torch.minimum(high, given[1])

    def _first(self, basis: ArrayLike | Tensor | None) -> SharedBasis | None:
        """The basis that nodes start from; None where its tableau is too large, or there are no loops."""
        program = self.shared.program
        if basis is not None:
            given = SharedBasis.of(program, self._bases(numbers(basis, "basis").reshape(1, -1), 1)[0])
            if given is None:
                raise ModelError("the basis is singular, or its tableau too large; leave basis= out")
            return given
        if compiled.in_time(KERNELS, torch.float64) is None:
            return None
        optimal = basis_by_highs(program)
        found = None if optimal is None else SharedBasis.of(program, optimal)
        if found is not None:
            return found
        found, (rows, n) = SharedBasis.of(program, slack_basis(program)), program.A.shape
        none = np.empty((0, n)), np.full(1, np.inf), np.empty((0, n + rows), np.int8)
        nodes = NodeArrays(self.program.lower[None], self.program.upper[None], *none)
        for _ in range(n + rows):  # more than it takes, were it not for cycles
            if found is None:
                break
            self.first = found
            ended = self._found(nodes, FACTORED, Deadline.of(math.inf))
            if not ended.pivots[0] or ended.status[0] == EMPTY:
                break
            found = SharedBasis.of(program, self._turned(ended.basis)[0])
        return self.first if found is None else found

    def _refuse_outside(self, nodes: NodeArrays) -> None:
        """Raise where a bound of a node is outside those of the LP."""
        sides = ("lower", nodes.lower, self.program.lower), ("upper", nodes.upper, self.program.upper)
        for name, own, stated in sides:
            outside = own < stated if name == "lower" else own > stated
            if outside.any():
                i, j = np.argwhere(outside)[0].tolist()
                what = f"{name} bound {own[i, j]:g} of variable {j} in node {i}"
                raise ShapeError(f"{what} is outside those of the LP; nodes narrow the bounds of the LP")

    def _bases(self, given: Tensor, count: int) -> NDArray[np.int8]:
        """Bases ``(nodes or 1, variables + rows)`` of the scaled LP."""
        rows, n = self.program.A.shape
        if given.dim() != 2 or given.shape[1] != n + rows or len(given) not in (1, count):
            need = f"({count} or 1, {n + rows}), variables before rows, is needed"
            raise ShapeError(f"basis has shape {tuple(given.shape)}; {need}")
        found = given.to(torch.int8).numpy()
        basic = (found == BASIC).sum(1)
        wrong = ((basic != rows) & (basic > 0)) | ((found < LOWER) | (found > UPPER)).any(1)
        if wrong.any():
            need = f"give {rows} ones, as many as rows, and 0 or 2 elsewhere"
            raise ShapeError(f"basis {int(np.argmax(wrong))} is none; {need}")
        return self._turned(found)

    def _turned(self, basis: NDArray[np.int8]) -> NDArray[np.int8]:
        """Bases of the scaled LP from those of the LP given, or back: some variables are negated."""
        negated = np.concatenate([self.shared.column < 0, np.zeros(self.program.A.shape[0], bool)])
        return np.where(negated, UPPER - basis, basis) if negated.any() else basis

    def _found(self, nodes: NodeArrays, pivots: int, deadline: Deadline) -> NodeAnswers:
        """Bounds of nodes in the sense of minimisation, chunk by chunk."""
        count, reached, kernels = len(nodes.goal), 0, compiled.in_time(KERNELS, torch.float64)
        if self.first is None or kernels is None:
            self._refuse_outside(nodes)
        out = NodeAnswers.nothing(count, *self.program.A.shape)
        try:
            while reached < count and not (reached and deadline.over()):
                part = slice(reached, min(reached + CHUNK, count))
                given, own = nodes.part(part), out.part(part)
                if self.first is None or kernels is None:
                    bounded_by_passes(self.shared, given, own, deadline)
                else:
                    first = self.first
                    basis = self.shared.arguments, first.arguments, first.at
                    kernels.bounds(part.stop - reached, *basis, given.arguments(), pivots, own.arguments())
                    compiled.mark(kernels, torch.float64)  # they are ready from now on, for searches too
                    if (own.status == OUTSIDE).any():
                        self._refuse_outside(nodes)
                reached = part.stop
        except KeyboardInterrupt:
            out.status[reached:] = INTERRUPTED
        return out

    def _report(self, found: NodeAnswers, cutoff: Tensor, pivots: int) -> LinearNodeBounds:
        """Bounds of nodes of the LP given."""
        turn, shared = self.sense.turn, self.shared
        bound, primal = found.bound + shared.program.offset, found.primal + shared.program.offset
        bound -= (
            EPS
            * np.abs(bound, where=np.isfinite(bound), out=np.zeros_like(bound))
            * (shared.program.offset != 0)
        )
        with np.errstate(invalid="ignore"):
            size = np.maximum(np.maximum(np.abs(primal), np.abs(bound)), SMALL)
            close = np.isfinite(bound) & (primal - bound <= GAP * size)
        status = np.array([int(status) for status in STATUS])[found.status]
        status[(found.status == ENDED) & ~close] = int(Status.STALLED)
        status[(found.status == UNFINISHED) & (found.pivots >= pivots)] = int(Status.PASS_LIMIT)
        status[(status != int(Status.INFEASIBLE)) & (bound >= turn(cutoff).numpy())] = int(Status.CUTOFF)
        return LinearNodeBounds(
            bound=turn(torch.from_numpy(bound)),
            primal=turn(torch.from_numpy(primal)),
            status=torch.from_numpy(status),
            x=torch.from_numpy(found.x),
            row_price=turn(torch.from_numpy(found.price)),
            basis=torch.from_numpy(found.basis),
            pivots=torch.from_numpy(found.pivots),
            cutoff=cutoff,
            maximizing=self.sense.maximizing,
        )


def _table(value: object, name: str, width: int) -> Array:
    """Numbers ``(nodes, variables)``; bounds may be infinite.

    Raises
    ------
    ShapeError, NonFiniteError
        If the shape is another one, or there is NaN, or an infinite cost.
    """
    table = np.atleast_2d(numbers(value, name).numpy())
    if table.ndim != 2 or table.shape[1] != width:
        need = f"(nodes, {width}) or ({width},) is needed"
        raise ShapeError(f"{name} has shape {table.shape}; {need}")
    bad = ~np.isfinite(table) if name == "cost" else np.isnan(table)
    if bad.any():
        i, j = np.argwhere(bad)[0]
        raise NonFiniteError(f"{name} of variable {j} in node {i} is {table[i, j]}; give numbers")
    return table
