r"""An LP over a product of blocks with one row each, and the projection that the proximal point method makes.

.. math:: \min_x \; \langle c, x \rangle \quad \text{s.t.} \quad l \le A x \le u, \quad
          x_b \in X_b = \{ x : below_b \le \langle w_b, x \rangle \le above_b, \; lo_b \le x \le hi_b \}

A choice (all weights 1), a budget, a knapsack and a box are such blocks.  They are projected onto as they
are, so that prices are needed for the rows of A alone, however many blocks there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy  # whose parts are imported where they are used
from numpy.typing import NDArray

from blocklp.kernels.backend import AUTO, Backend
from blocklp.kernels.operations import implements, operation

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]

LOOPS = "blocklp.kernels.newton_kernels"
"""Module of compiled loops."""

HALVINGS = 2200
"""Halvings of a bracket of prices that leave no number in between, whatever its size; as a rule sixty do."""


@dataclass(frozen=True)
class BlockProgram:
    """An LP over a product of blocks with one row each; the variables of a block follow one another.

    Attributes
    ----------
    first : ndarray
        ``(blocks + 1,)`` int64: the first variable of every block.
    weight, lower, upper, cost : ndarray
        ``(variables,)`` float64: entries of the blocks' rows, finite bounds and costs.
    below, above : ndarray
        ``(blocks,)`` float64: sides of the blocks' rows, infinite where there is none.
    start, row, entry : ndarray
        ``(variables + 1,)`` int64, ``(entries,)`` int32 and ``(entries,)`` float64: the columns of A.
    row_lower, row_upper : ndarray
        ``(rows,)`` float64: sides, infinite where there is none.
    backend : Backend
        What runs the operations.
    """

    first: Numbers
    weight: Array
    lower: Array
    upper: Array
    cost: Array
    below: Array
    above: Array
    start: Numbers
    row: NDArray[np.int32]
    entry: Array
    row_lower: Array
    row_upper: Array
    backend: Backend = AUTO

    def __post_init__(self) -> None:
        # Loops are compiled for one layout alone.
        for name in self.__dataclass_fields__.keys() - {"backend"}:
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name)))

    @property
    def blocks(self) -> tuple[NDArray[Any], ...]:
        """The arrays of the blocks that loops take."""
        return self.first, self.weight, self.lower, self.upper, self.below, self.above

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """The arrays of the rows that loops take."""
        return self.start, self.row, self.entry

    @cached_property
    def packing(self) -> bool:
        """Whether every point of the blocks and rows stays one where variables are made smaller."""
        sides = (self.below <= 0).all() and (self.row_lower == -np.inf).all() and (self.row_upper >= 0).all()
        return bool(sides and not self.lower.any() and (self.weight >= 0).all() and (self.entry >= 0).all())

    def packed(self, x: Array) -> Array:
        """A point of the blocks ``(variables,)``, scaled into the rows where these are a packing.

        Each variable is multiplied by the least share that one of its rows has room for.
        """
        if not self.packing or not len(self.entry):
            return x
        activity = self.matrix @ x
        share = np.divide(
            self.row_upper, activity, out=np.ones(len(activity)), where=activity > self.row_upper
        )
        factor, some = np.ones(len(x)), np.diff(self.start) > 0
        factor[some] = np.minimum.reduceat(share[self.row], self.start[:-1][some])
        return x * factor

    @property
    def matrix(self) -> scipy.sparse.csc_array:
        """A, ``(rows, variables)``, a view."""
        shape = len(self.row_lower), len(self.weight)
        return scipy.sparse.csc_array((self.entry, self.row, self.start), shape=shape)


@dataclass(frozen=True)
class Projection:
    """The point of the blocks nearest to another one.

    Attributes
    ----------
    x : ndarray
        ``(variables,)``: the point.
    price : ndarray
        ``(blocks,)``: what was subtracted of it, times the weights, before bounds clip it; 0 where the row
        is not at a side.
    activity : ndarray
        ``(rows,)``: A x.
    """

    x: Array
    price: Array
    activity: Array


class Curvature(Protocol):
    """The matrix :math:`A P A^T`, where P projects onto the directions in which a projection moves.

    P keeps the variables between their bounds, and takes their weights out where the row of a block is at a
    side.
    """

    def dense(self) -> Array:
        """All entries, ``(rows, rows)``, a new array."""

    def times(self, v: Array) -> Array:
        """The product with ``(rows,)``."""

    def diagonal(self) -> Array:
        """The diagonal, ``(rows,)``."""


@operation
def projected(program: BlockProgram, at: Array, y: Array, sigma: float) -> Projection:
    """Project a point that prices have moved onto the blocks.

    Parameters
    ----------
    program : BlockProgram
        The blocks and rows.
    at : ndarray
        ``(variables,)``: the point at prices of zero.
    y : ndarray
        ``(rows,)``: prices.
    sigma : float
        Step: ``at + sigma A^T y`` is projected.

    Returns
    -------
    Projection
        The point, and the activities there.
    """
    t = at + sigma * (program.matrix.T @ y)
    owner = np.repeat(np.arange(len(program.below)), np.diff(program.first))

    def activity(price: Array) -> Array:
        x = np.clip(t - price[owner] * program.weight, program.lower, program.upper)
        return np.asarray(np.bincount(owner, program.weight * x, len(program.below)))

    free = activity(np.zeros(len(program.below)))
    side = np.clip(free, program.below, program.above)
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.array([(t - program.lower) / program.weight, (t - program.upper) / program.weight])
    ends = np.where(program.weight != 0, ends, 0.0)
    low, high = (np.zeros(len(side)) for _ in range(2))
    np.minimum.at(low, owner, ends.min(0))
    np.maximum.at(high, owner, ends.max(0))
    low[free == side] = high[free == side] = 0.0  # a bracket of zero would be halved down to the least number
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        if bool(((middle == low) | (middle == high)).all()):
            break
        over = activity(middle) > side
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    price = np.where(free == side, 0.0, high)
    x = np.clip(t - price[owner] * program.weight, program.lower, program.upper)
    return Projection(x, price, program.matrix @ x)


@operation
def curvature(program: BlockProgram, found: Projection) -> Curvature:
    """How the activities of a projection move with prices, over the step.

    Parameters
    ----------
    program : BlockProgram
        The blocks and rows.
    found : Projection
        A projection onto them.

    Returns
    -------
    Curvature
        The matrix of this point.
    """
    return _Sparse(program, found)


class _Sparse:
    """The definition: a sparse matrix."""

    def __init__(self, program: BlockProgram, found: Projection) -> None:
        blocks, free = len(program.below), (program.lower < found.x) & (found.x < program.upper)
        owner = np.repeat(np.arange(blocks), np.diff(program.first))[free]
        inside, weight = program.matrix[:, free], program.weight[free]
        length = np.where(found.price != 0, np.bincount(owner, weight * weight, blocks), 0.0)
        root = np.divide(1.0, np.sqrt(length), out=np.zeros(blocks), where=length > 0)
        sums = scipy.sparse.coo_array((weight, (np.arange(len(owner)), owner)), shape=(len(owner), blocks))
        along = inside @ sums.tocsc() @ scipy.sparse.diags_array(root)
        self._matrix = scipy.sparse.csc_array(inside @ inside.T - along @ along.T)

    def dense(self) -> Array:
        return np.asarray(self._matrix.toarray())

    def times(self, v: Array) -> Array:
        return np.asarray(self._matrix @ v)

    def diagonal(self) -> Array:
        return np.asarray(self._matrix.diagonal())


@implements("projected", "numba", lambda program, *_: program.backend.loops(LOOPS) is not None)
def _projected(program: BlockProgram, at: Array, y: Array, sigma: float) -> Projection:
    loops: Any = program.backend.loops(LOOPS)
    x, price, activity = np.empty(len(at)), np.empty(len(program.below)), np.empty(len(y))
    loops.project(1, program.blocks, program.columns, at, y, sigma, (x, price, activity))
    return Projection(x, price, activity)


@implements("curvature", "numba", lambda program, *_: program.backend.loops(LOOPS) is not None)
def _curvature(program: BlockProgram, found: Projection) -> Curvature:
    return _Listed(program, found, program.backend.loops(LOOPS))


class _Listed:
    """Loops over lists of the variables between their bounds."""

    def __init__(self, program: BlockProgram, found: Projection, loops: Any) -> None:
        self._program, self._loops = program, loops
        counts = np.empty(2, np.int64)
        loops.free_count(1, program.blocks, found.x, found.price, counts)
        variables, blocks = counts
        self._free = np.empty(variables, np.int64), np.empty(blocks, np.int64), np.empty(blocks)
        loops.free_variables(1, program.blocks, found.x, found.price, self._free)

    def dense(self) -> Array:
        rows = len(self._program.row_lower)
        out = np.zeros((rows, rows))
        self._loops.curvature(
            1, self._program.weight, self._program.columns, self._free, *self._scratch(), out
        )
        return out

    def times(self, v: Array) -> Array:
        out = np.zeros(len(v))
        self._loops.curvature_product(1, self._program.weight, self._program.columns, self._free, v, out)
        return out

    def diagonal(self) -> Array:
        out = np.zeros(len(self._program.row_lower))
        self._loops.curvature_diagonal(
            1, self._program.weight, self._program.columns, self._free, *self._scratch(), out
        )
        return out

    def _scratch(self) -> tuple[Array, Numbers]:
        rows = len(self._program.row_lower)
        return np.zeros(rows), np.empty(rows, np.int64)
