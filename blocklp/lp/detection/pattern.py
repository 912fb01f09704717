"""Where a matrix has entries, and what falls apart once rows and columns are taken out of it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix
from scipy.sparse.csgraph import connected_components

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]

HALF = 0.5
"""A block with a larger part of all entries makes a structure worth less; one with all entries, nothing."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """The places of the nonzero entries of a matrix, row by row.

    Attributes
    ----------
    rows, columns : ndarray
        ``(entries,)`` int64.
    shape : tuple of int
        Numbers of rows and of columns.
    """

    rows: Numbers
    columns: Numbers
    shape: tuple[int, int]

    @classmethod
    def of(cls, matrix: csr_array) -> Pattern:
        """The pattern of a matrix without explicit zeros."""
        lengths = np.diff(matrix.indptr)
        return cls(np.repeat(np.arange(len(lengths)), lengths), matrix.indices.astype(np.int64), matrix.shape)

    @cached_property
    def lengths(self) -> Numbers:
        """Entries of each row."""
        return np.bincount(self.rows, minlength=self.shape[0])

    @cached_property
    def heights(self) -> Numbers:
        """Entries of each column."""
        return np.bincount(self.columns, minlength=self.shape[1])

    @cached_property
    def by_row(self) -> list[list[int]]:
        """The columns of each row."""
        return _lists(self.columns, self.lengths)

    @cached_property
    def by_column(self) -> list[list[int]]:
        """The rows of each column."""
        return _lists(self.rows[np.argsort(self.columns, kind="stable")], self.heights)

    def components(self, master: Mask, linking: Mask) -> Numbers:
        """Number of the connected component of each row and then of each column.

        Rows and columns that are taken out, ``master`` and ``linking``, are components of their own.
        """
        m, n = self.shape
        kept = ~(master[self.rows] | linking[self.columns])
        starts = np.zeros(m + n + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.rows[kept], minlength=m + n), out=starts[1:])
        ends = self.columns[kept] + m
        graph = csr_matrix((np.ones(len(ends), dtype=np.int8), ends, starts), shape=(m + n, m + n))
        return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """Blocks of rows and columns.

    Attributes
    ----------
    row_block : ndarray
        ``(rows,)`` int64: number of the block, in the order of their first rows; -1 for rows of the master.
    column_block : ndarray
        ``(columns,)`` int64: likewise; -1 for columns of several blocks, or of rows of the master only.
    blocks : int
        Number of blocks.
    white : float
        Part of the matrix outside of blocks, rows of the master and linking columns.
    score : float
        ``white``, less where one block has most of the entries.
    """

    row_block: Numbers
    column_block: Numbers
    blocks: int
    white: float
    score: float


def split(pattern: Pattern, master: Mask, linking: Mask) -> Split:
    """Split a matrix without some rows and columns into blocks.

    Parameters
    ----------
    pattern : Pattern
        Of the matrix.
    master, linking : ndarray
        ``(rows,)`` and ``(columns,)`` bool: what is taken out.  Other rows without a column that is left go
        to the master too.

    Returns
    -------
    Split
        The connected components with rows and columns.
    """
    m = pattern.shape[0]
    label = pattern.components(master, linking)
    rows, columns = label[:m], label[m:]
    high, wide = (np.bincount(part, minlength=label.max(initial=-1) + 1) for part in (rows, columns))
    real = (high > 0) & (wide > 0)
    # In the order of their first rows; numbers of components already rise with these.
    number = np.where(real, np.cumsum(real) - 1, -1)
    return measured(pattern, number[rows], number[columns], int(real.sum()))


def measured(pattern: Pattern, row_block: Numbers, column_block: Numbers, blocks: int) -> Split:
    """Blocks with their white area, and the score by which structures are compared.

    Parameters
    ----------
    pattern : Pattern
        Of the matrix.
    row_block, column_block : ndarray
        ``(rows,)`` and ``(columns,)`` int64: as in :class:`Split`.
    blocks : int
        Number of blocks.
    """
    inside = row_block[pattern.rows]
    share = np.bincount(inside[inside >= 0], minlength=1).max(initial=0) / max(1, len(inside))
    white = white_area(pattern, row_block, column_block, blocks)
    return Split(row_block, column_block, blocks, white, white * min(1.0, (1 - share) / HALF))


def white_area(pattern: Pattern, row_block: Numbers, column_block: Numbers, blocks: int) -> float:
    r"""Part of a matrix of m rows and n columns that lies outside of blocks and of the border.

    .. math:: 1 - \frac{\sum_k r_k c_k + L m + M (n - L)}{m n}

    with :math:`r_k` rows and :math:`c_k` columns of block k, L columns that rows of blocks share, and M rows
    of the master.  This is the score "max white" of GCG (``score_maxwhite.cpp``: block area and border area);
    the columns that only rows of the master have are no border there either.

    Parameters
    ----------
    pattern : Pattern
        The nonzeros of the matrix.
    row_block, column_block : ndarray
        ``(rows,)`` and ``(columns,)`` int64: block of each, -1 for the master and for shared columns.
    blocks : int
        Number of blocks.

    Returns
    -------
    float
        Between 0 and 1.
    """
    m, n = pattern.shape
    if not m or not n:
        return 0.0
    outside = (row_block[pattern.rows] >= 0) & (column_block[pattern.columns] < 0)
    shared = len(np.unique(pattern.columns[outside]))
    masters = int((row_block < 0).sum())
    high = np.bincount(row_block[row_block >= 0], minlength=blocks).astype(np.float64)
    wide = np.bincount(column_block[column_block >= 0], minlength=blocks)
    taken = float(high @ wide) + float(shared) * m + float(masters) * (n - shared)
    return max(0.0, 1.0 - taken / (float(m) * n))


def common_block(where: Numbers, block: Numbers, size: int) -> Numbers:
    """The block of all entries at a place that lie in blocks, ``(size,)`` int64; -1 if there is not just one.

    Parameters
    ----------
    where : ndarray
        ``(entries,)`` int64: the place, a row or a column, of each entry.
    block : ndarray
        ``(entries,)`` int64: its block, negative for none.
    size : int
        Number of places.
    """
    inside = block >= 0
    least, most = np.full(size, np.iinfo(np.int64).max), np.full(size, -1)
    np.minimum.at(least, where[inside], block[inside])
    np.maximum.at(most, where[inside], block[inside])
    return np.where(least == most, most, -1)


def _lists(values: Numbers, lengths: Numbers) -> list[list[int]]:
    """Values cut into lists."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    flat: list[Any] = values.tolist()
    return [flat[a:b] for a, b in itertools.pairwise(ends)]
