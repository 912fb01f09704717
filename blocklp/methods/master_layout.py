"""The places of an instance's copies in the restricted master, and rows of blocks that state them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # whose parts are imported where they are used
from numpy.typing import NDArray
from torch import Tensor

from blocklp.blocks.box import BOX
from blocklp.blocks.contract import Constraints
from blocklp.decomposition.problem import Decomposition, Group

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class MasterLayout:
    """The places of an instance's copies in the master.

    Attributes
    ----------
    block : ndarray
        ``(copies in blocks,)`` int64: number of the block that a copy is in, of those known by points; else
        -1.
    variable : ndarray
        ``(copies in blocks,)`` int64: the variable of each copy.
    blocks : int
        Number of blocks known by points.
    first : ndarray
        ``(variables,)`` int64: the copy that stands for each variable, -1 where the master holds the variable
        itself.
    linked : ndarray
        ``(links,)`` int64: copies in blocks known by points that stand for no variable.
    boxed : ndarray
        ``(copies in boxes,)`` int64: their numbers.
    held : ndarray
        ``(variables held,)`` int64: those that are in a box alone or in a block known by its constraints.
    payer : ndarray
        ``(variables held,)`` int64: the copy that gets the reduced cost of each: in a box, or else in a block
        whose constraints imply the bounds.
    stated : tuple of tuple
        Rows of blocks known by their constraints, one group after the other: a matrix
        ``(rows, copies in blocks)``, and their sides.
    """

    block: Numbers
    variable: Numbers
    blocks: int
    first: Numbers
    linked: Numbers
    boxed: Numbers
    held: Numbers
    payer: Numbers
    stated: tuple[scipy.sparse.csr_array, Array, Array]

    @classmethod
    def of(cls, problem: Decomposition, instance: int, *, by_points: bool) -> MasterLayout:
        """The layout of one instance.

        Parameters
        ----------
        problem : Decomposition
            The batch that the instance is in.
        instance : int
            Its number there.
        by_points : bool
            As in :class:`RestrictedMaster`.

        Returns
        -------
        MasterLayout
            The places of the instance's copies, and the rows of its blocks.
        """
        index, width = problem.coupling.index, problem.cost.shape[1]
        variable = index[instance if len(index) > 1 else 0].cpu().numpy()
        bounds = of_instance(problem.lower, instance), of_instance(problem.upper, instance)
        block, boxed, count = np.full(problem.in_blocks, -1), np.zeros(problem.in_blocks, dtype=bool), 0
        nothing = scipy.sparse.csr_array((0, problem.in_blocks))
        payer, stated = np.full(width, -1), [(nothing, np.zeros(0), np.zeros(0))]
        for group in sorted(problem.groups, key=lambda g: g.name == BOX):  # boxes last: they pay
            valid = np.ones(group.blocks, dtype=bool)
            if group.valid is not None:
                valid = group.valid[instance].cpu().numpy() > 0
            copies = np.flatnonzero(np.tile(valid, group.dim)) + group.start
            if group.name == BOX:
                boxed[copies] = True
                payer[variable[copies]] = copies
            elif (own := group.constraints) is not None and not (by_points and group.type.by_points):
                payer[variable[copies]] = copies
                stated.append(_stated(group, own, valid, instance, variable, bounds, problem.in_blocks))
            else:
                block[copies] = np.tile(count + np.arange(valid.sum()), group.dim)
                count += int(valid.sum())
        copies, first = np.flatnonzero(block >= 0), np.full(width, -1)
        first[variable[copies[::-1]]] = copies[::-1]
        # Variables of stated blocks, those in a box too.
        by_rows = payer >= 0
        by_rows[variable[boxed]] = False
        for matrix, _, _ in stated:
            by_rows[variable[matrix.indices]] = True
        first[by_rows] = -1
        linked = copies[first[variable[copies]] != copies]
        held = np.flatnonzero((payer >= 0) & (first < 0))
        matrices, lower, upper = zip(*stated, strict=True)
        rows = stacked(matrices), np.concatenate(lower), np.concatenate(upper)
        return cls(block, variable, count, first, linked, np.flatnonzero(boxed), held, payer[held], rows)


def of_instance(values: Tensor, instance: int) -> Array:
    """One instance of ``(batch or 1, ...)`` in float64."""
    picked: Array = values[instance if len(values) > 1 else 0].double().cpu().numpy()
    return picked


def _stated(
    group: Group,
    rows: Constraints,
    valid: NDArray[np.bool_],
    instance: int,
    variable: Numbers,
    bounds: tuple[Array, Array],
    copies: int,
) -> tuple[scipy.sparse.csr_array, Array, Array]:
    """Rows of a group's valid blocks over their copies, and bounds that those of variables do not imply."""
    number, shift = np.flatnonzero(valid), group.blocks * np.arange(group.dim)

    def each_block(values: Tensor) -> Array:
        return np.broadcast_to(of_instance(values, instance), (group.blocks, values.shape[-1]))[number]

    lower, upper = each_block(rows.lower), each_block(rows.upper)
    own, count = of_instance(rows.matrix, instance), lower.shape[1]
    block, row, column = np.nonzero(own)
    entry = own[block, row, column]
    if len(own) == 1:  # one for all blocks
        each = len(entry)
        entry = np.tile(entry, len(number))
        row, column = (np.tile(t, len(number)) for t in (row, column))
        block = np.repeat(number, each)
    else:
        kept = valid[block]
        entry, block, row, column = entry[kept], block[kept], row[kept], column[kept]
    place = np.cumsum(valid)[block] - 1
    shape = len(number) * count, copies
    matrix = scipy.sparse.csr_array(
        (entry, (place * count + row, group.start + shift[column] + block)), shape=shape
    )
    if rows.below is None or rows.above is None:
        return matrix, lower.ravel(), upper.ravel()
    index = group.start + number[:, None] + shift
    low, high = each_block(rows.below), each_block(rows.above)
    tight = np.flatnonzero((low > bounds[0][variable[index]]) | (high < bounds[1][variable[index]]))
    unit = selection(index.ravel()[tight], copies)
    sides = (np.append(a.ravel(), b.ravel()[tight]) for a, b in ((lower, low), (upper, high)))
    return stacked([matrix, unit]), *sides


def stacked(matrices: Sequence[scipy.sparse.csr_array]) -> scipy.sparse.csr_array:
    """Matrices of one width, one above the other; those without rows cost nothing."""
    some = [m for m in matrices if m.shape[0]] or list(matrices[:1])
    return some[0] if len(some) == 1 else scipy.sparse.csr_array(scipy.sparse.vstack(some, format="csr"))


def selection(index: Numbers, width: int) -> scipy.sparse.csr_array:
    """The matrix that picks entries: ``(len(index), width)``."""
    return scipy.sparse.csr_array(
        (np.ones(len(index)), (np.arange(len(index)), index)), shape=(len(index), width)
    )
