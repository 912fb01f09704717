"""The block structure of a matrix: what :func:`blocklp.detect` returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blocklp.general_solvers.linear_program import Array
from blocklp.lp.detection.pattern import Numbers, Pattern, Split
from blocklp.lp.detection.row_classes import Form, RowFacts, coefficients_of, multiset, numbered

KNOWN = ("Simplex", "AtMostOne", "Knapsack")
"""Names of kinds whose single row is that of a block type of :mod:`blocklp.oracles`."""

OTHER = ("Box", "differences", "one row", "rows")
NAMES = (*KNOWN, *OTHER)


@dataclass(frozen=True, eq=False)
class BlockKind:
    """Blocks that are alike.

    Attributes
    ----------
    name : str
        ``"Simplex"``, ``"AtMostOne"`` or ``"Knapsack"`` where the one row of each block, with the bounds of
        its variables, is that of the block type; ``"Box"`` if there are bounds only, ``"differences"`` if all
        rows have two coefficients of different signs, else ``"one row"`` or ``"rows"``.
    blocks : ndarray
        ``(k,)`` int64: numbers of the blocks.
    rows, columns : int
        Of each block.
    identical : bool
        Whether the rows of all blocks have the same coefficients and sides, in some order and scale; which
        variables rows share is not compared.
    """

    name: str
    blocks: Numbers
    rows: int
    columns: int
    identical: bool

    def __repr__(self) -> str:
        equal = ", identical" if self.identical and len(self.blocks) > 1 else ""
        return f"{len(self.blocks)} x {self.name}({self.rows} x {self.columns}{equal})"


@dataclass(frozen=True, eq=False)
class BlockStructure:
    """Blocks of a matrix, and what links them.

    Attributes
    ----------
    row_block : ndarray
        ``(rows,)`` int64: number of the block of each row, in the order of their first rows; -1 for linking
        rows, the rows of the master.
    column_block : ndarray
        ``(columns,)`` int64: likewise; -1 for linking columns, which rows of several blocks have, and for
        columns of linking rows alone.
    linking_columns : ndarray
        ``(k,)`` int64: columns that rows of blocks have and that belong to none.
    blocks : int
        How many.
    kinds : tuple of BlockKind
        Blocks by kind, kinds with the most entries first.
    white : float
        Part of the matrix outside of blocks and border, GCG's score "max white": one less the areas of all
        blocks, of all linking rows and of all linking columns.
    found : str
        How, in words.
    note : str
        What was not tried and why, or empty.
    """

    row_block: Numbers
    column_block: Numbers
    linking_columns: Numbers
    blocks: int
    kinds: tuple[BlockKind, ...]
    white: float
    found: str
    note: str = ""

    @property
    def linking_rows(self) -> Numbers:
        """``(k,)`` int64: rows of no block."""
        return np.flatnonzero(self.row_block < 0)

    @property
    def known(self) -> float:
        """Part of the blocks whose kind is a known block type."""
        return sum(len(kind.blocks) for kind in self.kinds if kind.name in KNOWN) / max(1, self.blocks)

    def order(self) -> tuple[Numbers, Numbers]:
        """Rows and columns by block, what links them last: ``(rows,)`` and ``(columns,)`` int64.

        Columns of linking rows alone come before linking columns.
        """
        last = np.where(self.column_block < 0, self.blocks, self.column_block)
        last[self.linking_columns] = self.blocks + 1
        rows = np.where(self.row_block < 0, self.blocks, self.row_block)
        return np.argsort(rows, kind="stable"), np.argsort(last, kind="stable")

    def __repr__(self) -> str:
        links = f"{len(self.linking_rows)} linking rows, {len(self.linking_columns)} linking columns"
        listed = ", ".join(map(repr, self.kinds[:4])) + (", ..." if len(self.kinds) > 4 else "")
        blocks = f"{self.blocks} blocks ({listed})" if self.blocks else "no blocks"
        return f"BlockStructure: {blocks}, {links}, white {self.white:.3f}; {self.found}"


def described(
    pattern: Pattern,
    facts: RowFacts,
    bounds: tuple[Array, Array] | None,
    found: Split,
    how: str,
    note: str = "",
) -> BlockStructure:
    """A structure with the kinds of its blocks.

    Parameters
    ----------
    pattern, facts, bounds
        As in :func:`row_names`.
    found : Split
        The blocks.
    how, note : str
        As in :class:`BlockStructure`.
    """
    outside = (found.row_block[pattern.rows] >= 0) & (found.column_block[pattern.columns] < 0)
    linking = np.unique(pattern.columns[outside])
    kinds = _kinds(pattern, facts, row_names(pattern, facts, bounds), found)
    blocks = found.row_block, found.column_block, linking, found.blocks
    return BlockStructure(*blocks, kinds, found.white, how, note)


def row_names(pattern: Pattern, facts: RowFacts, bounds: tuple[Array, Array] | None) -> Numbers:
    """Number in ``NAMES`` of the kind that each row alone makes of a block.

    Parameters
    ----------
    pattern, facts : Pattern, RowFacts
        Nonzeros of the matrix, and what its rows are like.
    bounds : tuple of ndarray or None
        ``(columns,)`` float64: lower and upper bounds; None where they are not known.

    Returns
    -------
    ndarray
        ``(rows,)`` int64.
    """
    m, rows, columns = pattern.shape[0], pattern.rows, pattern.columns
    name = np.full(m, NAMES.index("one row"))
    if bounds is not None:
        low, high = bounds

        def none(bad: np.ndarray) -> np.ndarray:
            return np.asarray(np.bincount(rows[bad], minlength=m) == 0)

        finite = none(~np.isfinite(low[columns]) | ~np.isfinite(high[columns]))
        name[finite & (facts.form != Form.EMPTY)] = NAMES.index("Knapsack")
        full = none((low[columns] != 0) | (high[columns] < facts.mass[rows]))
        name[full & (facts.form == Form.PARTITION)] = NAMES.index("Simplex")
        name[full & (facts.form == Form.PACKING)] = NAMES.index("AtMostOne")
    name[facts.form == Form.SINGLE] = NAMES.index("Box")
    return name


def _kinds(pattern: Pattern, facts: RowFacts, names: Numbers, found: Split) -> tuple[BlockKind, ...]:
    """Blocks by name, size and forms and lengths of their rows."""
    count, inside = found.blocks, found.row_block >= 0
    block = found.row_block[inside]
    long = inside & (facts.form != Form.SINGLE)
    several = np.bincount(found.row_block[long], minlength=count)
    differences = np.bincount(found.row_block[long & (facts.form == Form.DIFFERENCE)], minlength=count)
    name = np.full(count, NAMES.index("rows"))
    name[several == 0] = NAMES.index("Box")
    alone = np.flatnonzero(long)[several[found.row_block[long]] == 1]
    name[found.row_block[alone]] = names[alone]
    name[(differences == several) & (several > 1)] = NAMES.index("differences")
    high = np.bincount(block, minlength=count)
    wide = np.bincount(found.column_block[found.column_block >= 0], minlength=count)
    forms = multiset(block, numbered(facts.form, pattern.lengths)[inside], count)
    values = multiset(block, coefficients_of(pattern, facts)[inside], count)
    # Blocks of a known type are told apart by nothing but their size: bounds may be rows or not.
    single = several <= 1
    keys = numbered(name, np.where(single, 1, high), wide, np.where(single, 0, forms))
    kinds = []
    ends = np.cumsum(np.bincount(keys))[:-1]
    for members in np.split(np.argsort(keys, kind="stable"), ends) if count else []:
        first, same = members[0], len(np.unique(values[members])) == 1
        kinds.append(BlockKind(NAMES[name[first]], members, int(high[members].max()), int(wide[first]), same))
    return tuple(sorted(kinds, key=lambda kind: -len(kind.blocks) * kind.rows * kind.columns))
