"""Find the blocks of a matrix, or take them as given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from blocklp.errors import ModelError, NonFiniteError, install
from blocklp.general_solvers.linear_program import Array, LinearProgram
from blocklp.lp.detection.block_structure import BlockStructure, described
from blocklp.lp.detection.candidates import CLASSES, GROWN, StructureCandidates
from blocklp.lp.detection.partitions import installed
from blocklp.lp.detection.pattern import Numbers, Pattern, Split, common_block, measured
from blocklp.lp.detection.row_classes import RowFacts, row_facts
from blocklp.lp.detection.scores import EQUAL_COEFFICIENTS, score_of
from blocklp.lp.implied_bounds import bounds_of_single_rows
from blocklp.options import real

NEAR = 1e-3
"""Scores that differ by less are equal: structures of known block types are preferred then."""

LARGE = "no partitions were tried: they take more work than the effort allows"
MISSING = f"no partitions were tried: mtkahypar is not installed ({install('structure')})"

SHOWN = 8
"""Most structures that :func:`structures` returns."""


def detect(program: Any, *, score: str = "white", effort: float = 1.0) -> BlockStructure:
    """Find the block structure of a linear program or a matrix.

    Blocks of rows and columns that nothing links but some rows, the master, and some columns.  Classes of
    rows that are alike are tried as master and as blocks, then partitions of a hypergraph where the package
    mtkahypar is installed; rows and columns are put back into blocks where that leaves more white area.

    Parameters
    ----------
    program : LinearProgram, scipy sparse matrix or ndarray
        ``(rows, columns)``: the rows, with sides and bounds or without.  Bounds matter for names of kinds
        only, integers not at all.
    score : str
        By what the structure is chosen: ``"white"``, the white area (GCG's "max white"), less where one block
        has more than half of all entries, or ``"spfwh"``, GCG's default, which rewards a master of rows with
        equal coefficients: what Dantzig-Wolfe decomposition of an integer program wants.
    effort : float
        How much work: 1 is about a second of one core at most for a matrix of 50,000 entries.  Counted, not
        measured, so that the answer is always the same one.

    Returns
    -------
    BlockStructure
        The best one; without any, all rows are linking rows and there are no blocks.

    Raises
    ------
    ModelError
        If the matrix is none.
    NonFiniteError
        If it holds NaN or infinity.
    OptionError
        If the score has another name, or the effort is not positive.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> import blocklp as bl
    >>> blocks = sp.block_diag([sp.coo_array(np.ones((2, 3)))] * 4)
    >>> matrix = sp.vstack([blocks, np.ones((1, 12))])
    >>> found = bl.detect(matrix)
    >>> found.row_block.tolist()
    [0, 0, 1, 1, 2, 2, 3, 3, -1]
    >>> round(found.white, 3)
    0.667
    """
    return structures(program, score=score, effort=effort)[0]


def structures(program: Any, *, score: str = "white", effort: float = 1.0) -> list[BlockStructure]:
    """Several structures of a linear program or a matrix, the best first.

    Parameters
    ----------
    program, score, effort
        As in :func:`detect`.

    Returns
    -------
    list of BlockStructure
        At least one, at most eight.
    """
    worth, work = score_of(score), real(effort, "effort")
    rows = _Rows.of(program)
    pattern, facts = rows.pattern, rows.facts
    candidates = StructureCandidates(pattern, facts, worth, work)
    found: dict[tuple[bytes, bytes], tuple[float, Split, str]] = {}

    def keep(how: str, candidate: Split) -> None:
        if candidate.blocks > 1 and candidate.white > 0:
            key = candidate.row_block.tobytes(), candidate.column_block.tobytes()
            found.setdefault(key, (worth(pattern, facts, candidate), candidate, how))

    for how, candidate in candidates.by_classes():
        keep(how, candidate)
    note = ""
    if not (found and _decided(rows, found.values())):
        note = LARGE if installed() else MISSING
        for how, candidate in candidates.by_partitions() if installed() else ():
            keep(how, candidate)
            note = ""
    if not found:
        m, n = pattern.shape
        none = measured(pattern, np.full(m, -1), np.full(n, -1), 0)
        return [described(pattern, facts, rows.bounds, none, "no structure found", note)]
    ranked = sorted(found.values(), key=lambda entry: -entry[0])[:SHOWN]
    listed = [described(pattern, facts, rows.bounds, candidate, how, note) for _, candidate, how in ranked]
    near = [k for k, entry in enumerate(ranked) if entry[0] >= ranked[0][0] - NEAR]
    first = max(near, key=lambda k: (listed[k].known, _equal_master(facts, listed[k]), -k))
    return [listed[first], *(found for k, found in enumerate(listed) if k != first)]


def block_structure(
    program: Any, row_block: Any, column_block: Any = None, *, found: str = "as given"
) -> BlockStructure:
    """A structure whose blocks are known.

    Parameters
    ----------
    program : LinearProgram, scipy sparse matrix or ndarray
        As in :func:`detect`.
    row_block : array_like
        ``(rows,)`` integers: number of the block of each row, negative for linking rows.  Blocks are numbered
        anew in the order of these numbers.
    column_block : array_like, optional
        ``(columns,)`` integers: likewise; by default each column is in the block that has all its rows but
        linking ones.
    found : str
        Where it comes from.

    Returns
    -------
    BlockStructure
        With kinds and white area.

    Raises
    ------
    ModelError
        If a number is missing, or a row of one block has a column of another.
    """
    rows = _Rows.of(program)
    pattern = rows.pattern
    m, n = pattern.shape
    given = _numbers(row_block, m, "row_block")
    if column_block is None:
        own = common_block(pattern.columns, given[pattern.rows], n)
    else:
        own = _numbers(column_block, n, "column_block")
    theirs, its = given[pattern.rows], own[pattern.columns]
    wrong = (theirs >= 0) & (its >= 0) & (theirs != its)
    if wrong.any():
        i, j = pattern.rows[wrong][0], pattern.columns[wrong][0]
        where = f"row {i} of block {given[i]} has an entry in column {j} of block {own[j]}"
        raise ModelError(f"{where}; give the column or the row the number -1")
    used = np.unique(given[given >= 0])
    number = np.full(max(given.max(initial=-1), own.max(initial=-1)) + 2, -1)  # the last one serves -1
    number[used] = np.arange(len(used))
    split_up = measured(pattern, number[given], number[own], len(used))
    return described(pattern, rows.facts, rows.bounds, split_up, found)


@dataclass(frozen=True, eq=False)
class _Rows:
    """A matrix, and what is known of its rows and columns."""

    pattern: Pattern
    facts: RowFacts
    bounds: tuple[Array, Array] | None

    @classmethod
    def of(cls, program: Any) -> _Rows:
        """Of a linear program or a matrix alone."""
        whole = program if isinstance(program, LinearProgram) else None
        given = program.A if whole is not None else program
        if not issparse(given) and not isinstance(given, np.ndarray):
            raise ModelError(f"detect needs a LinearProgram or a sparse matrix, got {type(given).__name__}")
        if given.ndim != 2 or given.dtype.kind not in "biuf":
            got = f"{given.dtype} of shape {given.shape}"
            raise ModelError(f"detect needs a matrix of real numbers, got {got}")
        matrix = csr_array(given, dtype=np.float64, copy=True)
        if not np.isfinite(matrix.data).all():
            raise NonFiniteError("the matrix holds NaN or infinity")
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        pattern = Pattern.of(matrix)
        if whole is None:
            return cls(pattern, row_facts(matrix, pattern, None, None), None)
        sides = whole.row_lower, whole.row_upper
        bounds = bounds_of_single_rows(matrix, sides, (whole.lower, whole.upper))
        return cls(pattern, row_facts(matrix, pattern, *sides), bounds)


def _decided(rows: _Rows, found: Iterable[tuple[float, Split, str]]) -> bool:
    """Whether classes of rows make blocks of known types, and nothing that grew is better."""
    _, best, how = max(found, key=lambda entry: entry[0])
    whole = how.startswith(CLASSES) and not how.endswith(GROWN)
    return whole and described(rows.pattern, rows.facts, rows.bounds, best, how).known == 1


def _equal_master(facts: RowFacts, found: BlockStructure) -> bool:
    """Whether all linking rows have equal coefficients."""
    return bool(np.isin(facts.form[found.linking_rows], EQUAL_COEFFICIENTS).all())


def _numbers(given: Any, size: int, name: str) -> Numbers:
    """Numbers of blocks, -1 for all negative ones."""
    numbers = np.asarray(given)
    if numbers.shape != (size,) or numbers.dtype.kind not in "iu":
        has = f"{name} has shape {numbers.shape} and type {numbers.dtype}"
        raise ModelError(f"{has}; it must hold {size} integers")
    return np.maximum(numbers.astype(np.int64), -1)
