r"""The restricted master: the LP over the points that the oracles have returned (Dantzig and Wolfe 1960).

Every block is a convex combination of its points :math:`a_{b,k}`, and all copies of a variable agree:

.. math:: \min_{x, w \ge 0} \; \langle c, x \rangle \quad \text{s.t.} \quad
          x_{C_b} = \sum_k w_{b,k} a_{b,k}, \quad \sum_k w_{b,k} = 1, \quad l \le A x \le u, \quad lo \le x \le hi

Its solution is a primal point of the whole problem, for any oracle, and its duals are multipliers: those of the equations belong to
the copies, those of :math:`l \le A x \le u` are the prices of the rows.  Both forms of the dual come from it: the thesis's
Lagrangean decomposition where blocks share variables, Dantzig and Wolfe's where rows couple them.

The copy of a variable in its first block stands for the variable, so that nothing is added where blocks share none.  Bounds become
rows once a point leaves them.  All rows may be violated at a penalty, which grows while the solution pays it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array, hstack, vstack
from torch import Tensor

from blocklp.box import Box
from blocklp.decomposition import Decomposition
from blocklp.small_lp import PRIMAL_SIMPLEX, quiet_highs

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]

FIRST_PENALTY, GROWTH = 1.0, 10.0
"""Of what the costs of variables come to at most, in the unit of a row; and what it is multiplied by where a solution pays it."""

ALONE, ELASTIC = -2, -1
"""What columns are that are no points: variables that only a box holds, and violations of rows."""


@dataclass(frozen=True)
class MasterSolution:
    """A solution of the restricted master.

    Attributes
    ----------
    value : float
        Its value, penalties included.
    points : ndarray
        ``(copies in blocks,)``: the combination of the points of every block.
    duals : ndarray
        ``(copies and prices of rows,)``: multipliers that sum to the cost.
    convexity : ndarray
        ``(blocks,)``: duals of the convexity rows, the values that blocks have in the master.
    violation : float
        Largest violation of a row, in its unit.
    """

    value: float
    points: Array
    duals: Array
    convexity: Array
    violation: float


@dataclass(frozen=True)
class Layout:
    """Where copies of an instance belong.

    Attributes
    ----------
    block : ndarray
        ``(copies in blocks,)`` int64: number of the block that a copy is in; -1 in boxes and in blocks that only pad.
    variable : ndarray
        ``(copies in blocks,)`` int64: the variable of each copy.
    blocks : int
        Number of blocks.
    first : ndarray
        ``(variables,)`` int64: the copy that stands for each variable, -1 where only a box holds it.
    boxed : ndarray
        ``(copies in boxes,)`` int64: their numbers.
    linked : ndarray
        ``(links,)`` int64: copies in blocks that stand for no variable.
    """

    block: Numbers
    variable: Numbers
    blocks: int
    first: Numbers
    boxed: Numbers
    linked: Numbers

    @classmethod
    def of(cls, problem: Decomposition, instance: int) -> Layout:
        """The layout of one instance."""
        index = problem.coupling.index
        variable = index[instance if len(index) > 1 else 0].cpu().numpy()
        block, boxed, count = np.full(problem.in_blocks, -1), [np.zeros(0, np.int64)], 0
        for group in problem.groups:
            valid = np.ones(group.blocks, dtype=bool) if group.alive is None else group.alive[instance].cpu().numpy() > 0
            if type(group.type) is Box:
                boxed.append(np.flatnonzero(np.tile(valid, group.dim)) + group.start)
                continue
            own = np.where(valid, count + np.cumsum(valid) - 1, -1)
            block[group.start : group.stop] = np.tile(own, group.dim)
            count += int(valid.sum())
        copies = np.flatnonzero(block >= 0)
        first = np.full(problem.cost.shape[1], -1)
        first[variable[copies[::-1]]] = copies[::-1]
        linked = copies[first[variable[copies]] != copies]
        return cls(block, variable, count, first, np.concatenate(boxed), linked)


class RestrictedMaster:
    """The master of one instance, solved by HiGHS's simplex method, warm from one set of points to the next.

    Parameters
    ----------
    problem : Decomposition
        The batch that the instance is in.
    instance : int
        Its number there.
    """

    def __init__(self, problem: Decomposition, instance: int) -> None:
        self.layout = layout = Layout.of(problem, instance)
        self.cost = _instance(problem.cost, instance)
        self.lower, self.upper = _instance(problem.lower, instance), _instance(problem.upper, instance)
        self.in_blocks, self.copies, width = problem.in_blocks, problem.copies, len(self.cost)
        rows, sides = csr_array((0, width)), (np.zeros(0), np.zeros(0))
        if problem.rows is not None:
            coords = tuple(t.cpu().numpy() for t in (problem.rows.row, problem.rows.column))
            rows = csr_array((problem.rows.entry.double().cpu().numpy(), coords), shape=(problem.rows.count, width))
            sides = _instance(problem.rows.lower, instance), _instance(problem.rows.upper, instance)
        linked, self.priced = layout.linked, rows.shape[0]
        self.row_lower, self.row_upper = (np.append(side, np.zeros(len(linked))) for side in sides)
        # Coupling rows, and a row for each linked copy: the variable less the copy.
        links = _selection(layout.variable[linked], width)
        self.by_variable = csr_array(vstack([rows, links], format="csr"))
        self.by_copy = csr_array(
            vstack([csr_array((self.priced, self.in_blocks)), -_selection(linked, self.in_blocks)], format="csr")
        )
        self.stands = np.flatnonzero(layout.first >= 0)  # variables that are in blocks
        self.values = csr_array((np.ones(len(self.stands)), (self.stands, layout.first[self.stands])), shape=(width, self.in_blocks))
        self.bounded = np.zeros(0, np.int64)  # variables whose bounds are rows
        self.points: list[csc_array] = []  # (copies in blocks, points)
        self.owner = np.zeros(0, np.int64)  # block of each column, or what it is
        self.penalty = FIRST_PENALTY
        self.highs: Any = None

    def add(self, points: Array, blocks: Numbers) -> None:
        """Add points of blocks: those entries of ``points`` ``(copies in blocks,)`` that belong to ``blocks``, in rising order."""
        if self.highs is None:
            self._begin(points)
        number = np.full(self.layout.blocks + 1, -1)
        number[blocks] = np.arange(len(blocks))
        column = number[self.layout.block]  # boxes and blocks that only pad read the last one
        copies = np.flatnonzero((column >= 0) & (points != 0))
        own = csc_array((points[copies], (copies, column[copies])), shape=(self.in_blocks, len(blocks)))
        values = csr_array(self.values @ own)
        self._bound(values)
        convexity = csr_array((np.ones(len(blocks)), (blocks, np.arange(len(blocks)))), shape=(self.layout.blocks, len(blocks)))
        rows = _scaled(self.by_variable @ values + self.by_copy @ own, self.row_unit)
        bounds = _scaled(values[self.bounded], self.unit[self.bounded])
        self._columns(
            csc_array(vstack([convexity, rows, bounds], format="csc")), self.cost @ values / self.scale, 0.0, np.inf, owner=blocks
        )
        self.points.append(own)

    def solve(self, seconds: float) -> MasterSolution | None:
        """Solve the master for at most so many seconds; None where that does not suffice."""
        import highspy

        self.highs.setOptionValue("time_limit", self.highs.getRunTime() + max(0.0, min(seconds, 1e9)))  # its clock runs on
        self.highs.run()
        if self.highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        found = self.highs.getSolution()
        x, dual = np.array(found.col_value), np.array(found.row_dual)
        owner = self.owner[self.owner >= 0]
        weights = np.maximum(x[self.owner >= 0], 0)
        weights /= np.bincount(owner, weights, self.layout.blocks)[owner]
        points = csc_array(hstack(self.points, format="csc")) @ weights
        values = self.values @ points
        alone = self.alone
        values[alone] = np.clip(x[self.owner == ALONE] * self.unit[alone], self.lower[alone], self.upper[alone])
        boxed = self.layout.boxed
        points[boxed] = values[self.layout.variable[boxed]]
        value, violation = self.highs.getInfo().objective_function_value, x[self.owner == ELASTIC].max(initial=0.0)
        return MasterSolution(value * self.scale, points, *self._multipliers(dual * self.scale), float(violation))

    def raise_penalty(self) -> None:
        """Make violations of rows cost more."""
        self.penalty *= GROWTH
        columns = np.flatnonzero(self.owner == ELASTIC).astype(np.int32)
        self.highs.changeColsCost(len(columns), columns, np.full(len(columns), self.penalty))

    def reduced_costs(self, solution: MasterSolution, points: Array) -> Array:
        """What a point of every block costs beyond what the block is worth in the master: ``(copies in blocks,) -> (blocks,)``.

        Negative for points that improve the master.
        """
        mine = np.flatnonzero(self.layout.block >= 0)
        value = np.bincount(self.layout.block[mine], solution.duals[mine] * points[mine], self.layout.blocks)
        return np.asarray(value - solution.convexity)

    def _begin(self, points: Array) -> None:
        """State the rows, in units that the first points suggest, and the variables that only a box holds."""
        self.highs = quiet_highs()
        for name, value in {"presolve": "off", "solver": "simplex", "simplex_strategy": PRIMAL_SIMPLEX}.items():
            self.highs.setOptionValue(name, value)
        mine, seen = self.layout.block >= 0, np.zeros(len(self.cost))
        np.maximum.at(seen, self.layout.variable[mine], np.abs(points[mine]))
        reach = np.minimum(np.maximum(np.abs(self.lower), np.abs(self.upper)), seen.max(initial=0.0) or np.inf)
        self.unit = _power_of_two(np.where(seen > 0, seen, reach))
        self.scale = float(_power_of_two(np.abs(self.cost * self.unit).max(initial=0.0, keepdims=True))[0])
        self.row_unit = _power_of_two(abs(self.by_variable).multiply(self.unit[None]).tocsr().max(axis=1).toarray().reshape(-1))
        one = np.ones(self.layout.blocks)
        self._rows(one, one)
        first = self.highs.getNumRow()
        lower, upper = self.row_lower / self.row_unit, self.row_upper / self.row_unit
        self._rows(lower, upper)
        boxed = self.layout.variable[self.layout.boxed]
        self.alone = alone = boxed[self.layout.first[boxed] < 0]
        own = _scaled(self.by_variable[:, alone].multiply(self.unit[alone][None]), self.row_unit)
        columns = csc_array(vstack([csr_array((first, len(alone))), own], format="csc"))
        cost, low, high = self.cost[alone] * self.unit[alone] / self.scale, self.lower[alone], self.upper[alone]
        self._columns(columns, cost, low / self.unit[alone], high / self.unit[alone], owner=np.full(len(alone), ALONE))
        self._elastic(first, lower, upper)

    def _bound(self, values: csr_array) -> None:
        """State the bounds of variables that new points ``(variables, points)`` leave."""
        slack, outside = 1e-9 * self.unit, np.zeros(len(self.cost), dtype=bool)
        least, most = values.min(axis=1).toarray().reshape(-1), values.max(axis=1).toarray().reshape(-1)
        outside[self.stands] = ((least < self.lower - slack) | (most > self.upper + slack))[self.stands]
        outside[self.bounded] = False
        new = np.flatnonzero(outside)
        if not len(new):
            return
        first, unit = self.highs.getNumRow(), self.unit[new]
        before = csr_array((len(new), 0))
        if self.points:
            before = _scaled((self.values @ csc_array(hstack(self.points, format="csc"))).tocsr()[new], unit)
        lower, upper = self.lower[new] / unit, self.upper[new] / unit
        self._rows(lower, upper, before, np.flatnonzero(self.owner >= 0))
        self._elastic(first, lower, upper)
        self.bounded = np.append(self.bounded, new)

    def _elastic(self, first: int, lower: Array, upper: Array) -> None:
        """Let the rows from ``first`` on be violated, for a penalty."""
        below, above = np.flatnonzero(np.isfinite(lower)), np.flatnonzero(np.isfinite(upper))
        row, entry = np.append(below, above) + first, np.repeat([1.0, -1.0], [len(below), len(above)])
        columns = csc_array((entry, (row, np.arange(len(row)))), shape=(self.highs.getNumRow(), len(row)))
        self._columns(columns, self.penalty, 0.0, np.inf, owner=np.full(len(row), ELASTIC))

    def _rows(self, lower: Array, upper: Array, entries: csr_array | None = None, columns: Numbers | None = None) -> None:
        """Add rows, with entries in some columns."""
        count = len(lower)
        entries = csr_array((count, 0)) if entries is None else entries
        index = entries.indices if columns is None else columns[entries.indices]
        self.highs.addRows(
            count, lower, upper, entries.nnz, entries.indptr[:-1].astype(np.int32), index.astype(np.int32), entries.data
        )

    def _columns(self, entries: csc_array, cost: Array | float, lower: Array | float, upper: Array | float, owner: Numbers) -> None:
        """Add columns."""
        count = len(owner)
        sides = (np.broadcast_to(np.asarray(t, dtype=np.float64), count).copy() for t in (cost, lower, upper))
        starts, index = entries.indptr[:-1].astype(np.int32), entries.indices.astype(np.int32)
        self.highs.addCols(count, *sides, entries.nnz, starts, index, entries.data)
        self.owner = np.append(self.owner, owner)

    def _multipliers(self, dual: Array) -> tuple[Array, Array]:
        """Multipliers of copies and prices of rows, and values of blocks, from the duals of the rows of the master."""
        layout, first = self.layout, self.layout.blocks
        price = dual[first : first + len(self.row_unit)] / self.row_unit
        bound = np.zeros(len(self.cost))
        price = np.where(np.isfinite(np.where(price > 0, self.row_lower, self.row_upper)), price, 0.0)
        bound[self.bounded] = dual[first + len(self.row_unit) :] / self.unit[self.bounded]
        left = self.cost - self.by_variable.T @ price
        duals, boxed = np.zeros(self.copies), layout.variable[layout.boxed]
        duals[layout.first[self.stands]] = (left - bound)[self.stands]
        duals[layout.linked] = price[self.priced :]
        duals[layout.boxed] = np.where(layout.first[boxed] >= 0, bound[boxed], left[boxed])
        duals[self.in_blocks :] = price[: self.priced]
        return duals, dual[:first]


def available() -> bool:
    """Whether highspy is installed, which solves the master."""
    return find_spec("highspy") is not None


def _instance(values: Tensor, instance: int) -> Array:
    """One instance of ``(batch or 1, ...)`` in float64."""
    picked: Array = values[instance if len(values) > 1 else 0].double().cpu().numpy()
    return picked


def _selection(index: Numbers, width: int) -> csr_array:
    """The matrix that picks entries: ``(len(index), width)``."""
    return csr_array((np.ones(len(index)), (np.arange(len(index)), index)), shape=(len(index), width))


def _scaled(matrix: Any, unit: Array) -> csr_array:
    """Rows divided by their units."""
    return csr_array(csr_array(matrix).multiply(1 / unit[:, None]))


def _power_of_two(size: Array) -> Array:
    """The powers of two next to sizes; 1 for zero and infinity."""
    sound = (size > 0) & np.isfinite(size)
    return np.asarray(np.exp2(np.round(np.log2(np.where(sound, size, 1.0)))))
