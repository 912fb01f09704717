"""Rows of an LP as blocks of a type that states just these rows, and finite bounds, as models need them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from blocklp.blocks.capabilities import constraints_of
from blocklp.blocks.contract import BlockType
from blocklp.errors import ModelError
from blocklp.general_solvers.linear_program import Array, LinearProgram, block_rows
from blocklp.lp.implied_bounds import implied_bounds, tightened
from blocklp.options import of_type, real

SHOWN = 5
"""Most variables that a message names."""

SAME = 1e-9
"""Relative difference up to which a row of a type is the row of the LP."""


def finite_bounds(
    program: LinearProgram, reach: float | None, name_of: Callable[[int], str]
) -> tuple[Array, Array]:
    """Finite bounds of all variables, ``(variables,)`` float64 each.

    Parameters
    ----------
    program : LinearProgram
        The LP.
    reach : float, optional
        Bound for the magnitudes of variables that neither bounds nor rows bound.
    name_of : callable
        The name of a variable by its number, for messages.

    Raises
    ------
    ModelError
        If a variable has no finite bounds and there is no ``reach``.
    """
    low, high = implied_bounds(program)
    open_ = np.isinf(low) | np.isinf(high)
    if open_.any() and reach is None:
        names = list(dict.fromkeys(name_of(j) for j in np.flatnonzero(open_).tolist()))
        listed = ", ".join(map(repr, names[:SHOWN])) + (
            f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        )
        raise ModelError(f"variables {listed} have no finite bounds; give them some, or reach= for all such")
    far = 0.0 if reach is None else real(reach, "reach")
    lower = np.where(np.isinf(low), np.minimum(-far, high), low)
    return lower, np.where(np.isinf(high), np.maximum(far, low), high)


def scope_of_rows(
    program: LinearProgram,
    rows: NDArray[np.int64],
    kind: BlockType,
    name: str,
    bounds: tuple[Array, Array],
) -> NDArray[np.int64]:
    """The variables of some rows as blocks of a type.

    Parameters
    ----------
    program : LinearProgram
        The LP.
    rows : ndarray
        ``(blocks * rows of the type,)`` int64: numbers of the rows, block after block.
    kind : BlockType
        States the rows.
    name : str
        Of the rows, for messages.
    bounds : tuple of ndarray
        ``(variables,)`` float64 each: lower and upper bounds.

    Returns
    -------
    ndarray
        ``(blocks, dim)`` int64: the variables with entries, in their order.

    Raises
    ------
    ModelError
        If the type states other rows or no rows, or tighter bounds.
    """
    of_type(kind, BlockType, f"the type of {name}", "a block type", ModelError)
    stated = constraints_of(kind)
    count = 0 if stated is None else stated.matrix.shape[2]
    rule = "tag it with another type"
    if stated is None or not count or not len(rows) or len(rows) % count:
        raise ModelError(f"{name} has {len(rows)} rows, its type {kind.name} states {count} a block; {rule}")
    parts = [np.unique(program.A[block].indices) for block in rows.reshape(-1, count)]
    if any(len(part) != kind.dim for part in parts):
        sizes = ", ".join(map(str, sorted({len(part) for part in parts})))
        have = f"blocks of {name} have {sizes} variables"
        raise ModelError(f"{have}, its type {kind.name} has {kind.dim}; {rule}")
    scope = np.stack(parts)
    matrix, least, most = block_rows(stated, scope, len(program.c), 0)
    some = program.A[rows], program.row_lower[rows], program.row_upper[rows]
    theirs = _rows(*some)
    # A type may state bounds that its rows imply.
    low, high = tightened(some[0], some[1:], bounds)
    ours = _rows(matrix, least, most)
    for columns, entries, below, above in ours:
        if len(columns) == 1:
            j, slack = columns[0], SAME * max(1.0, abs(low[columns[0]]), abs(high[columns[0]]))
            if low[j] < below / entries[0] - slack or high[j] > above / entries[0] + slack:
                what = f"type {kind.name} of {name}"
                raise ModelError(f"{what} bounds variables more than the problem does; {rule}")
    left = [row for row in ours if len(row[0]) > 1]
    if len(left) != len(theirs) or not all(_equal(a, b) for a, b in zip(left, theirs, strict=True)):
        raise ModelError(f"type {kind.name} states other rows than {name} has; {rule}")
    return scope


Row = tuple[NDArray[np.int64], Array, float, float]


def _rows(matrix: csr_array, lower: Array, upper: Array) -> list[Row]:
    """Columns, entries and sides of every nonempty row, divided by its first entry."""
    normalised = []
    matrix = csr_array(matrix)
    matrix.sort_indices()
    for i in np.flatnonzero(np.diff(matrix.indptr)):
        row = slice(matrix.indptr[i], matrix.indptr[i + 1])
        unit = matrix.data[row][0]
        ends = sorted((lower[i] / unit, upper[i] / unit))
        normalised.append((matrix.indices[row], matrix.data[row] / unit, ends[0], ends[1]))
    return normalised


def _equal(a: Row, b: Row) -> bool:
    """Whether two rows are equal within rounding."""
    if not np.array_equal(a[0], b[0]):
        return False
    ours, theirs = (np.append(row[1], row[2:]) for row in (a, b))
    return bool(np.allclose(ours, theirs, rtol=SAME, atol=SAME))
