"""Which rows of a program are blocks of their own for the proximal point method, and which keep a price.

Rows that share no variable become blocks: classes of many rows first, as block types and kinds of constraints
make them, and short rows of a matrix before long ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy  # whose parts are imported where they are used
from numpy.typing import NDArray

from blocklp.decomposition.problem import Decomposition
from blocklp.kernels.program import Program
from blocklp.methods.block_program import Array, BlockProgram, Numbers
from blocklp.methods.master_layout import of_instance

ROUNDS = 8
"""Rounds in which rows of a class that overlap are taken: one of those that overlap in each."""


@dataclass(frozen=True)
class BlockLayout:
    """An instance of a program as an LP over blocks of one row.

    Attributes
    ----------
    program : BlockProgram
        The LP, its variables in units of :attr:`unit` and in the order of their blocks.
    variable : ndarray
        ``(variables,)`` int64: the number in the instance of each variable there.
    unit : ndarray
        ``(variables,)``: their units.
    rest : ndarray
        ``(variables of the instance,)``: the best bounds of variables that no row has.
    block_row, coupling_row : ndarray
        int64: the rows of the program that are those of the first blocks, and those that keep a price.
    """

    program: BlockProgram
    variable: Numbers
    unit: Array
    rest: Array
    block_row: Numbers
    coupling_row: Numbers

    @classmethod
    def of(cls, program: Program, problem: Decomposition, instance: int) -> BlockLayout:
        """Choose blocks, and lay an instance out by them.

        Parameters
        ----------
        program, problem : Program, Decomposition
            The rows of all blocks, and the problem; scopes by index.
        instance : int
            Number in the batch.
        """
        matrix, kinds = _rows(program, problem, instance)
        row_lower, row_upper = of_instance(program.lower, instance), of_instance(program.upper, instance)
        used = np.isfinite(row_lower) | np.isfinite(row_upper)
        block = _blocks(matrix, kinds, used)
        block_row, coupling_row = np.flatnonzero(block), np.flatnonzero(~block & used)
        box = program.box
        low, high, cost = (of_instance(t, instance) for t in (box.lower, box.upper, problem.cost))
        # What rows ask for is a guess, of use where bounds are beyond all that any row asks for.
        reach, bound = of_instance(program.reach, instance), np.maximum(np.abs(low), np.abs(high))
        unit = np.where(bound <= reach.max(initial=0.0), bound, reach)
        unit = np.where(unit > 0, unit, 1.0)
        own, beside = matrix[block_row], matrix[coupling_row]
        # Variables without entries, as those that pad an instance, take their best bounds.
        owner, weight = np.full(len(cost), -1), np.ones(len(cost))
        alone = np.unique(beside.indices)
        owner[alone] = len(block_row) + np.arange(len(alone))
        owner[own.indices] = np.repeat(np.arange(len(block_row)), np.diff(own.indptr))
        weight[own.indices] = own.data
        variable = np.flatnonzero(owner >= 0)
        variable = variable[np.argsort(owner[variable], kind="stable")]
        blocks, first = np.unique(owner[variable], return_index=True)
        below, above = (
            np.append(side[block_row], np.full(len(alone), end))
            for side, end in ((row_lower, -np.inf), (row_upper, np.inf))
        )
        columns = scipy.sparse.csc_array(beside)[:, variable]
        columns.sort_indices()
        unit = unit[variable]
        made = BlockProgram(
            np.append(first, len(variable)),
            weight[variable] * unit,
            low[variable] / unit,
            high[variable] / unit,
            cost[variable] * unit,
            below[blocks],
            above[blocks],
            columns.indptr.astype(np.int64),
            columns.indices.astype(np.int32),
            columns.data * np.repeat(unit, np.diff(columns.indptr)),
            row_lower[coupling_row],
            row_upper[coupling_row],
            program.backend,
        )
        return cls(made, variable, unit, np.where(cost > 0, low, high), block_row, coupling_row)

    def point(self, x: Array) -> Array:
        """A point ``(variables,)`` of the LP in units and order of the instance."""
        out = self.rest.copy()
        out[self.variable] = x * self.unit
        return out

    def own(self, x: Array) -> Array:
        """The point of the LP that is a point ``(variables,)`` of the instance."""
        return x[self.variable] / self.unit

    def duals(self, price: Array, block_price: Array, rows: int) -> Array:
        """Duals of the rows of the program from prices of the LP.

        Parameters
        ----------
        price, block_price : ndarray
            ``(rows,)``, ``(blocks,)``: prices of rows and blocks of the LP.
        rows : int
            Number of rows of the program.

        Returns
        -------
        ndarray
            ``(rows of the program,)``.
        """
        y = np.zeros(rows)
        y[self.coupling_row] = price
        y[self.block_row] = block_price[: len(self.block_row)]
        return y


def _rows(program: Program, problem: Decomposition, instance: int) -> tuple[scipy.sparse.csr_array, Numbers]:
    """All rows of an instance, and where those of each class begin and end."""
    index = problem.coupling.index
    variable = index[instance if len(index) > 1 else 0].cpu().numpy()
    parts: list[tuple[NDArray[Any], ...]] = []
    kinds, first = [0], 0
    for group, matrix in zip(problem.groups, program.matrices, strict=True):
        own = of_instance(matrix, instance)
        r, i, b = np.nonzero(own)
        values, count = own[r, i, b], group.blocks
        if own.shape[2] < count:  # shared by all blocks
            r, i, values = np.repeat(r, count), np.repeat(i, count), np.repeat(values, count)
            b = np.tile(np.arange(count), len(b))
        parts.append((first + r * count + b, variable[group.start + i * count + b], values))
        kinds += [first + (k + 1) * count for k in range(own.shape[0])]
        first += own.shape[0] * count
    if (rows := program.coupling) is not None:
        parts.append(
            (first + rows.row.cpu().numpy(), rows.column.cpu().numpy(), rows.entry.double().cpu().numpy())
        )
        kinds.append(first + rows.count)
    row, column, entry = map(np.concatenate, zip(*parts, strict=True))
    shape = program.lower.shape[1], problem.cost.shape[1]
    found = scipy.sparse.csr_array((entry, (row, column)), shape=shape)
    found.eliminate_zeros()
    return found, np.array(kinds)


def _blocks(matrix: scipy.sparse.csr_array, kinds: Numbers, used: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows are blocks, ``(rows,)`` bool; ``kinds`` are the ends of their classes."""
    lengths, taken = np.diff(matrix.indptr), np.zeros(matrix.shape[1], dtype=bool)
    used, chosen = used & (lengths > 1), np.zeros(matrix.shape[0], dtype=bool)
    classes = [np.arange(a, b)[used[a:b]] for a, b in pairwise(kinds.tolist())]
    for rows in sorted((c for c in classes if len(c)), key=len, reverse=True):
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        own = matrix[rows]
        owner = np.repeat(np.arange(len(rows)), lengths[rows])
        for _ in range(ROUNDS):
            closed = np.zeros(len(rows), dtype=bool)
            closed[owner[taken[own.indices]]] = True
            least = np.full(matrix.shape[1], len(rows))
            open_entries = ~closed[owner]
            np.minimum.at(least, own.indices[open_entries], owner[open_entries])
            closed[owner[least[own.indices] < owner]] = True
            if closed.all():
                break
            chosen[rows[~closed]] = True
            taken[own.indices[~closed[owner]]] = True
    return chosen
