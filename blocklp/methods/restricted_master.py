r"""The restricted master: the LP over the points that the oracles have returned (Dantzig and Wolfe 1960).

Every block is a convex combination of its points :math:`a_{b,k}`, and all copies of a variable agree:

.. math:: \min_{x, w \ge 0} \; \langle c, x \rangle \quad \text{s.t.} \quad
          x_{C_b} = \sum_k w_{b,k} a_{b,k}, \quad \sum_k w_{b,k} = 1, \quad
          l \le A x \le u, \quad lo \le x \le hi

Its solution is a primal point of the whole problem, for any oracle, and its duals are multipliers: those of
the equations belong to the copies, those of :math:`l \le A x \le u` are the prices of the rows.  Both forms
of the dual come from it: the thesis's Lagrangean decomposition where blocks share variables, Dantzig and
Wolfe's where rows couple them.

Blocks of types that state their constraints are in the master by these, not by points, unless points serve
better (:attr:`BlockType.by_points`); where all are, the master is the LP itself.  Else the copy of a variable
in its first block stands for the variable, so that nothing is added where blocks share none.  Bounds of such
variables become rows once a point leaves them.
Rows between blocks known by points may be violated in both ways, at prices that keep their duals within a
box around a centre (Marsten, Hogan and Blankenship 1975; du Merle, Villeneuve, Desrosiers and Hansen 1999).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # whose parts are imported where they are used
import torch

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.rows import CouplingRows
from blocklp.general_solvers import small_lp
from blocklp.general_solvers.simplex_turns import run_within
from blocklp.methods.master_layout import Array, MasterLayout, Numbers, of_instance, selection, stacked
from blocklp.methods.shrinking import shrinking

Entries = tuple[Numbers, Numbers, Array]
"""Entries of columns: where those of each begin, their rows, and their values."""

TINY = 1e-150
"""Least unit of a variable."""

LEAST_ENTRY = 1e-12
"""Least entry that HiGHS keeps, the least that it can: units by wide bounds make small ones that matter."""

HELD, ELASTIC = -2, -1
"""Marks of columns that are no points: variables, and violations of rows."""


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
        Largest violation of a row that is paid for, in its unit; zero where no side of the box binds.
    prices : ndarray
        ``(rows,)``: duals of the rows that may be violated, in units of the master.
    paid : float
        The part of the dual value that the bounds of variables have which are in no box.
    """

    value: float
    points: Array
    duals: Array
    convexity: Array
    violation: float
    prices: Array
    paid: float


class RestrictedMaster:
    """The master of one instance, solved by HiGHS's simplex method, warm from one set of points to the next.

    Parameters
    ----------
    problem, instance
        As in :meth:`MasterLayout.of`.
    by_points : bool
        Whether blocks of types that say so (:attr:`BlockType.by_points`) are known by points, though they
        state their constraints. Without it the master is the LP itself where all types state theirs.
    """

    def __init__(self, problem: Decomposition, instance: int, *, by_points: bool = False) -> None:
        self.layout = layout = MasterLayout.of(problem, instance, by_points=by_points)
        self.cost = of_instance(problem.cost, instance)
        self.lower, self.upper = of_instance(problem.lower, instance), of_instance(problem.upper, instance)
        self.in_blocks, self.copies, width = problem.in_blocks, problem.copies, len(self.cost)
        rows, sides, self.required = None, (np.zeros(0), np.zeros(0)), np.zeros(width)
        if problem.rows is not None:
            coords = tuple(t.cpu().numpy() for t in (problem.rows.row, problem.rows.column))
            entries = problem.rows.entry.double().cpu().numpy()
            rows = scipy.sparse.csr_array((entries, coords), shape=(problem.rows.count, width))
            sides = of_instance(problem.rows.lower, instance), of_instance(problem.rows.upper, instance)
            self.required = of_instance(problem.rows.asked(width), instance)
        linked, self.priced = layout.linked, len(sides[0])
        self.elastic = self.priced + len(linked)  # rows of blocks are kept
        # Coupling rows, then a row for each linked copy, the variable less the copy, then rows of blocks.
        matrix, *own = layout.stated
        zero, pairs = np.zeros(len(linked)), zip(sides, own, strict=True)
        self.row_lower, self.row_upper = (np.concatenate([s, zero, t]) for s, t in pairs)
        # Rows of blocks have no variable twice.
        stated = scipy.sparse.csr_array(
            (matrix.data, layout.variable[matrix.indices], matrix.indptr), (len(own[0]), width)
        )
        some = [rows] if rows is not None else []
        some += [selection(layout.variable[linked], width)] if len(linked) else []
        self.by_variable = stacked([*some, stated])
        self.priced_variables, self.priced_copies = self.by_variable.T, matrix.T
        self.stands = np.flatnonzero(layout.first >= 0)  # variables that are in blocks
        self.bounded = np.zeros(0, np.int64)  # variables whose bounds are rows
        # Entries of the points: their copies, numbers, and numbers of the points.
        self.copy, self.entry, self.point = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64)
        self.count = 0
        self.owner = np.zeros(0, np.int64)  # block of each column, or what it is
        self.centre, self.radius = np.zeros(0), np.inf  # of the box, in units of the master
        self.parts = list[int]()  # numbers of rows that may be violated, by when they were added
        self.one_sided = np.zeros(0, dtype=bool)  # whether a row lacks the side that a column works against
        self.highs: Any = None
        self.refused = self.infeasible = False  # by HiGHS, and according to it

    def add(self, points: Array, blocks: Numbers) -> None:
        """Add points of blocks.

        Parameters
        ----------
        points : ndarray
            ``(points, copies in blocks)``: several points of each block; other blocks' entries are not read.
        blocks : ndarray
            ``(blocks,)`` int64: their numbers, rising.
        """
        self.begin(points)
        if not len(blocks):
            return
        number = np.full(self.layout.blocks + 1, -1)
        number[blocks] = np.arange(len(blocks))
        taken = number[self.layout.block]  # copies that are in no such block read the last one
        point, copies = np.nonzero((taken >= 0) & (points != 0))
        entry, column = points[point, copies], taken[copies] + point * len(blocks)
        owner, count = np.tile(blocks, len(points)), len(points) * len(blocks)
        self._bound(copies, entry)
        # The row of convexity comes before the others of each column, which add up what copies contribute.
        counts = np.diff(self.table.indptr)[copies]
        at = np.arange(counts.sum()) + np.repeat(
            self.table.indptr[copies] - np.cumsum(counts) + counts, counts
        )
        height = self.highs.getNumRow()
        place = np.repeat(column, counts) * height + self.table.indices[at] + self.layout.blocks
        first = np.arange(count) * height + owner
        place, own = np.unique(np.append(first, place), return_inverse=True)
        data = np.append(np.ones(count), self.table.data[at] * np.repeat(entry, counts))
        starts, index = np.searchsorted(place, np.arange(count) * height), place % height
        cost = np.bincount(column, self.copy_cost[copies] * entry, count) / self.scale
        self._columns(
            (starts, index, np.bincount(own, data).astype(np.float64)), cost, 0.0, np.inf, owner=owner
        )
        self.copy, self.entry = np.append(self.copy, copies), np.append(self.entry, entry)
        self.point = np.append(self.point, column + self.count)
        self.count += count

    def solve(self, seconds: float, iterations: int = 2**31 - 1) -> MasterSolution | None:
        """Solve the master within limits; None where these do not suffice, or it is infeasible or refused."""
        import highspy

        if self.refused:
            return None
        kinds = highspy.HighsModelStatus
        status = run_within(self.highs, seconds, iterations)
        if self.layout.blocks and status not in (kinds.kTimeLimit, kinds.kIterationLimit):
            self.highs.setOptionValue("simplex_strategy", small_lp.PRIMAL_SIMPLEX)
            if status == kinds.kUnknown:  # the dual simplex method may end with reduced costs of a wrong sign
                status = run_within(self.highs, seconds, iterations)
        self.infeasible = status == kinds.kInfeasible
        if status != kinds.kOptimal:
            return None
        found = self.highs.getSolution()
        x, dual = np.array(found.col_value), np.array(found.row_dual)
        owner = self.owner[self.owner >= 0]
        weights = np.maximum(x[self.owner >= 0], 0)
        weights /= np.bincount(owner, weights, self.layout.blocks)[owner]
        sums = np.bincount(self.copy, self.entry * weights[self.point], self.in_blocks)
        points: Array = sums.astype(np.float64)
        values, held = np.where(self.layout.first >= 0, points[self.layout.first], 0.0), self.layout.held
        values[held] = np.clip(x[self.owner == HELD] * self.unit[held], self.lower[held], self.upper[held])
        points = np.where(self.layout.block < 0, values[self.layout.variable], points)
        value = self.highs.getInfo().objective_function_value * self.scale
        violation = float(x[self.owner == ELASTIC].max(initial=0.0))
        first = self.layout.blocks
        priced = dual[first : first + self.elastic], dual[first + len(self.row_unit) :]
        duals, convexity, paid = self._multipliers(dual * self.scale)
        return MasterSolution(value, points, duals, convexity, violation, np.concatenate(priced), paid)

    def ray(self) -> Array | None:
        """Multipliers ``(copies and prices,)`` along the ray by which HiGHS finds the master infeasible.

        They are worth more than any point costs within the bounds of variables: a proof for whoever evaluates
        them.  None where HiGHS has no ray, or one that proves nothing.  Rows of blocks known by points may be
        violated, so that the others contradict each other alone.
        """
        if not self.infeasible:
            return None
        ray = np.array(self.highs.getDualRay()[2])
        ends = np.sort([self.cost * self.lower, self.cost * self.upper], axis=0).sum(1)
        for dual in (ray, -ray) if len(ray) else ():
            price = dual[self.layout.blocks :][: len(self.row_unit)] / self.row_unit
            side = np.where(price > 0, self.row_lower, np.where(price < 0, self.row_upper, 0.0))
            price, side = np.where(np.isfinite(side), price, 0.0), np.where(np.isfinite(side), side, 0.0)
            left = -(self.priced_variables @ price)
            gain = price @ side + np.minimum(left * self.lower, left * self.upper).sum()
            if gain > 0:
                return self._multipliers(dual * (2 * (ends[1] - ends[0]) + 1) / gain)[0]
        return None

    def prices(self, duals: Array) -> Array:
        """The prices ``(rows,)`` of the rows that may be violated, at multipliers ``(copies and prices,)``.

        Those of bounds of variables are not told from multipliers, and are zero.
        """
        price = np.append(duals[self.in_blocks :], duals[self.layout.linked])
        bounds = np.zeros(len(self.bounded))
        return np.append(price * self.row_unit[: self.elastic] / self.scale, bounds)

    def stabilise(self, centre: Array, radius: float) -> None:
        """Keep the duals of rows within a box.

        Parameters
        ----------
        centre : ndarray
            ``(rows,)``: prices, in units of the master; those of rows that were added since are zero.
        radius : float
            In these units, in which the largest cost of a variable is about 1.
        """
        if not self.parts:  # the master is the LP itself
            return
        self.centre, self.radius = np.pad(centre, (0, len(self.one_sided) // 2 - len(centre))), radius
        columns = np.flatnonzero(self.owner == ELASTIC).astype(np.int32)
        # Pairs of columns, one part of the rows after the other: first those that raise activities.
        first, sides = 0, []
        for count in self.parts:
            own = self.centre[first : first + count]
            sides += [own + radius, radius - own]
            first += count
        cost = np.concatenate([np.zeros(0), *sides])
        cost = np.where(self.one_sided, np.maximum(cost, 0), cost)
        self.highs.changeColsCost(len(columns), columns, cost)

    def reduced_costs(self, solution: MasterSolution, points: Array) -> Array:
        """Reduced cost of a point of every block, negative where it improves the master.

        ``points`` are ``(copies in blocks,)``, the result is ``(blocks,)``.
        """
        mine = np.flatnonzero(self.layout.block >= 0)
        value = np.bincount(self.layout.block[mine], solution.duals[mine] * points[mine], self.layout.blocks)
        return np.asarray(value - solution.convexity)

    def begin(self, points: Array | None = None) -> None:
        """State the rows and the variables that the master holds, once, in units by the first points."""
        if self.highs is not None:
            return
        self.highs = small_lp.quiet_highs()
        tight = {f"{kind}_feasibility_tolerance": small_lp.TOLERANCE for kind in ("primal", "dual")}
        # Units make the largest entry of each row 1, which HiGHS takes for well scaled.
        scaled = {"simplex_scale_strategy": small_lp.EQUILIBRATED, "small_matrix_value": LEAST_ENTRY}
        # Without a basis the dual simplex method is quicker; points that join leave the basis feasible.
        strategy = {"simplex_strategy": small_lp.DUAL_SIMPLEX} if self.layout.blocks else scaled
        options = {"presolve": "off", "solver": "simplex", **tight, **strategy}
        for name, value in options.items():
            self.highs.setOptionValue(name, value)
        mine, width = self.layout.block >= 0, len(self.cost)
        seen = np.zeros(width)
        if points is not None:
            np.maximum.at(seen, self.layout.variable[mine], np.abs(points[:, mine]).max(0))
        size = np.where(seen > 0, seen, self._reach(seen.max(initial=0.0)))
        self.unit = _power_of_two(np.maximum(size, TINY))  # bounds are divided by it
        self.scale = float(_power_of_two(np.abs(self.cost * self.unit).max(initial=0.0, keepdims=True))[0])
        sizes, largest = (
            np.abs(self.by_variable.data) * self.unit[self.by_variable.indices],
            np.zeros(len(self.row_lower)),
        )
        np.maximum.at(largest, np.repeat(np.arange(len(largest)), np.diff(self.by_variable.indptr)), sizes)
        self.row_unit = _power_of_two(largest)
        if self.layout.blocks:
            self._tabulate()
        held = self.layout.held
        unit, mark, none = self.unit[held], np.full(len(held), HELD), np.zeros(0, np.int64)
        cost, bounds = self.cost[held] * unit / self.scale, (self.lower[held] / unit, self.upper[held] / unit)
        self._columns((np.zeros(len(held), np.int64), none, np.zeros(0)), cost, *bounds, owner=mark)
        one = np.ones(self.layout.blocks)
        self._rows(one, one)
        first = self.highs.getNumRow()
        lower, upper = self.row_lower / self.row_unit, self.row_upper / self.row_unit
        own = self.by_variable if len(held) == width else self.by_variable[:, held]
        scale = np.repeat(1 / self.row_unit, np.diff(own.indptr))
        self._rows(lower, upper, _with_data(own, own.data * unit[own.indices] * scale))
        if self.layout.blocks:
            self._elastic(first, lower[: self.elastic], upper[: self.elastic])

    def _tabulate(self) -> None:
        """The activities of copies in the rows, and their costs, for the columns of points."""
        places = self.stands, self.layout.first[self.stands]
        values = scipy.sparse.csr_array(
            (np.ones(len(self.stands)), places), shape=(len(self.cost), self.in_blocks)
        )
        linked = self.layout.linked
        places = self.priced + np.arange(len(linked)), linked
        copies = scipy.sparse.csr_array(
            (-np.ones(len(linked)), places), shape=(len(self.row_unit), self.in_blocks)
        )
        self.table = scipy.sparse.csc_array(_scaled(self.by_variable @ values + copies, self.row_unit))
        self.copy_cost = values.T @ self.cost

    def _reach(self, most: float) -> Array:
        """Magnitudes that bounds of variables allow and rows require (:meth:`CouplingRows.asked`).

        ``most`` where no row requires any; where that is zero, the largest of the others.
        """
        required = self.required
        if count := len(self.layout.stated[1]):
            own = self.by_variable[-count:].tocoo()
            row, column = (torch.from_numpy(t.astype(np.int64)) for t in own.coords)
            sides = (torch.from_numpy(side[-count:])[None] for side in (self.row_lower, self.row_upper) * 2)
            rows = CouplingRows(row, column, torch.from_numpy(own.data), *sides)
            required = np.maximum(required, rows.asked(len(self.cost))[0].numpy())
        required = np.where(required > 0, required, most or required.max(initial=0.0) or np.inf)
        return np.minimum(np.maximum(np.abs(self.lower), np.abs(self.upper)), required)

    def _bound(self, copies: Numbers, entry: Array) -> None:
        """State the bounds of variables that new points leave, of those that zero is outside of too."""
        stands, outside = self.layout.first >= 0, np.zeros(len(self.cost), dtype=bool)
        variable = self.layout.variable[copies]
        low, high = self.lower[variable], self.upper[variable]
        slack = 1e-9 * self.unit[variable]
        outside[variable[(entry < low - slack) | (entry > high + slack)]] = True
        outside |= (self.lower > 0) | (self.upper < 0)
        outside[self.bounded] = False
        new = np.flatnonzero(outside & stands)
        if not len(new):
            return
        first, unit = self.highs.getNumRow(), self.unit[new]
        pick = _scaled(selection(self.layout.first[new], self.in_blocks), unit)
        points = scipy.sparse.csc_array(
            (self.entry, (self.copy, self.point)), shape=(self.in_blocks, self.count)
        )
        before = scipy.sparse.csr_array(pick @ points)
        lower, upper = self.lower[new] / unit, self.upper[new] / unit
        self._rows(lower, upper, before, np.flatnonzero(self.owner >= 0))
        self._elastic(first, lower, upper)
        self.bounded = np.append(self.bounded, new)
        self.table = scipy.sparse.csc_array(scipy.sparse.vstack([self.table, pick], format="csc"))

    def _elastic(self, first: int, lower: Array, upper: Array) -> None:
        """Let the rows from ``first`` on be violated in both ways, for what :meth:`stabilise` says."""
        count = len(lower)
        row, entry = np.tile(np.arange(count) + first, 2), np.repeat([1.0, -1.0], count)
        self._columns((np.arange(2 * count), row, entry), 0.0, 0.0, np.inf, owner=np.full(2 * count, ELASTIC))
        missing = ~np.isfinite(lower), ~np.isfinite(upper)
        self.one_sided, self.parts = np.concatenate([self.one_sided, *missing]), [*self.parts, count]

    def _rows(
        self,
        lower: Array,
        upper: Array,
        entries: scipy.sparse.csr_array | None = None,
        columns: Numbers | None = None,
    ) -> None:
        """Add rows, with entries in some columns."""
        if not (count := len(lower)):
            return
        entries = scipy.sparse.csr_array((count, 0)) if entries is None else entries
        index = entries.indices if columns is None else columns[entries.indices]
        starts, index = entries.indptr[:-1].astype(np.int32), index.astype(np.int32)
        self._note(self.highs.addRows(count, lower, upper, entries.nnz, starts, index, entries.data))

    def _columns(
        self,
        entries: Entries,
        cost: Array | float,
        lower: Array | float,
        upper: Array | float,
        owner: Numbers,
    ) -> None:
        """Add columns, ``owner`` being the block of each, or a mark."""
        count, (starts, index, data) = len(owner), entries
        sides = (np.broadcast_to(np.asarray(t, dtype=np.float64), count).copy() for t in (cost, lower, upper))
        index, starts = index.astype(np.int32), starts.astype(np.int32)
        self._note(self.highs.addCols(count, *sides, len(data), starts, index, data))
        self.owner = np.append(self.owner, owner)

    def _note(self, status: Any) -> None:
        """Note that HiGHS refused numbers, as those that are too large."""
        import highspy

        self.refused |= status == highspy.HighsStatus.kError

    def _multipliers(self, dual: Array) -> tuple[Array, Array, float]:
        """Multipliers with prices of rows, values of blocks, and :attr:`MasterSolution.paid`."""
        layout, first = self.layout, self.layout.blocks
        price = dual[first : first + len(self.row_unit)] / self.row_unit
        bound = np.zeros(len(self.cost))
        price = np.where(np.isfinite(np.where(price > 0, self.row_lower, self.row_upper)), price, 0.0)
        bound[self.bounded] = dual[first + len(self.row_unit) :] / self.unit[self.bounded]
        if not layout.blocks:
            price = price * self._shrinking(price)
        left = self.cost - self.priced_variables @ price
        links = self.priced + len(layout.linked)
        duals = np.zeros(self.copies)
        duals[: self.in_blocks] = self.priced_copies @ price[links:]
        duals[layout.first[self.stands]] = (left - bound)[self.stands]
        duals[layout.linked] = price[self.priced : links]
        stands = layout.boxed[layout.first[layout.variable[layout.boxed]] >= 0]
        duals[stands] = bound[layout.variable[stands]]
        duals[layout.payer] += left[layout.held]
        duals[self.in_blocks :] = price[: self.priced]
        bound[layout.variable[stands]] = 0.0
        return duals, dual[:first], float(np.minimum(bound * self.lower, bound * self.upper).sum())

    def _shrinking(self, price: Array) -> float:
        """The best factor of the prices of rows (:func:`shrinking`) in a master without points."""
        side = np.where(price > 0, self.row_lower, self.row_upper)
        value = float(price @ np.where(price != 0, side, 0.0))
        tables = (self.priced_variables @ price, self.cost, self.lower, self.upper)
        pulled, cost, lower, upper = (torch.from_numpy(np.asarray(t))[None] for t in tables)
        return float(shrinking(torch.tensor([value]).double(), pulled, cost, lower, upper))


def _scaled(matrix: Any, unit: Array) -> scipy.sparse.csr_array:
    """Rows divided by their units."""
    rows = matrix if isinstance(matrix, scipy.sparse.csr_array) else scipy.sparse.csr_array(matrix)
    return _with_data(rows, rows.data * np.repeat(1 / unit, np.diff(rows.indptr)))


def _with_data(matrix: scipy.sparse.csr_array, data: Array) -> scipy.sparse.csr_array:
    """A matrix with the same places and other entries; places are copied, since some operations sort them."""
    return scipy.sparse.csr_array((data, matrix.indices.copy(), matrix.indptr.copy()), shape=matrix.shape)


def _power_of_two(size: Array) -> Array:
    """The powers of two next to sizes; 1 for zero and infinity."""
    sound = (size > 0) & np.isfinite(size)
    return np.asarray(np.exp2(np.round(np.log2(np.where(sound, size, 1.0)))))
