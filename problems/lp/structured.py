"""A model from a linear program and its block structure: blocks of known types as blocks, the other rows as rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

import blocklp as bl
from blocklp.blocks.contract import BlockType
from blocklp.errors import ModelError
from blocklp.general_solvers.linear_program import Array, LinearProgram
from blocklp.language.expression import View
from blocklp.lp.block_rows import finite_bounds, scope_of_rows
from blocklp.lp.detection.block_structure import BlockStructure
from blocklp.lp.implied_bounds import bounds_of_single_rows, implied_bounds
from blocklp.options import flag, of_type
from blocklp.oracles import AtMostOne, Knapsack, Polytope, Simplex

Numbers = NDArray[np.int64]


def structured_model(
    program: LinearProgram, structure: BlockStructure, *, reach: float | None = None, polytopes: bool = False
) -> bl.Model:
    """Turn a linear program into a model whose blocks are those of a structure.

    Blocks of one row (besides bounds) become ``Simplex``, ``AtMostOne`` or ``Knapsack``, over all variables of the row, linking
    ones too: blocks of a model may share variables.  Other rows stay rows; rows of one entry become bounds.  Every type is
    checked to state just the rows that it stands for.  The model has the optimum of the program.

    Parameters
    ----------
    program : LinearProgram
        The LP, of which the structure is.
    structure : BlockStructure
        As :func:`blocklp.detect` finds it.
    reach : float, optional
        Bound for the magnitudes of variables that neither bounds nor rows bound.  Models need finite bounds.
    polytopes : bool
        Whether blocks of several rows become ``Polytope`` instead of rows; good for small ones.

    Returns
    -------
    Model
        With one instance and the variables ``"x"``, ``(variables,)``, in the order of the program.

    Raises
    ------
    ModelError
        If the structure has another number of rows or columns, a variable has no bounds and there is no ``reach``, or a row
        without entries cannot hold.
    """
    of_type(program, LinearProgram, "program", "a LinearProgram", ModelError)
    of_type(structure, BlockStructure, "structure", "a BlockStructure", ModelError)
    flag(polytopes, "polytopes")
    shape = len(structure.row_block), len(structure.column_block)
    if shape != program.A.shape:
        raise ModelError(f"the structure is one of {shape[0]} rows and {shape[1]} columns, the LP has {program.A.shape}")
    bounded = _bounded(program)
    matrix, sides = bounded.A, (bounded.row_lower, bounded.row_upper)
    bounds = finite_bounds(bounded, reach, lambda j: f"x[{j}]")
    lengths = np.diff(matrix.indptr)
    wrong = np.flatnonzero((lengths == 0) & ((sides[0] > 0) | (sides[1] < 0)))
    if len(wrong):
        raise ModelError(f"row {wrong[0]} has no entries and cannot be within {sides[0][wrong[0]]:g} and {sides[1][wrong[0]]:g}")
    model = bl.Model()
    x = model.variable("x", len(program.c), lower=torch.from_numpy(bounds[0]), upper=torch.from_numpy(bounds[1]))
    left = lengths > 1
    for kind, rows in _typed(bounded, structure, bounds, polytopes):
        scope = scope_of_rows(bounded, rows, kind, f"rows {rows[0]} ... {rows[-1]}", bounds)
        model.add(kind, scope=View(model, kind.name, torch.from_numpy(scope)))
        left[rows] = False
    for name, some in (("linking", left & (structure.row_block < 0)), ("rows", left & (structure.row_block >= 0))):
        if some.any():
            model.add_rows(matrix[some], x, sides[0][some], sides[1][some], name=name)
    value = (x * torch.from_numpy(program.c)).sum() + program.offset
    (model.maximize if program.maximize else model.minimize)(value)
    return model


def model_of_rows(program: LinearProgram, *, reach: float | None = None) -> bl.Model:
    """Turn a linear program into a model without blocks: all rows stay rows, but those of one entry, which become bounds.

    Parameters
    ----------
    program, reach
        As in :func:`structured_model`, and so is what is returned.

    Raises
    ------
    ModelError
        If a variable has no bounds and there is no ``reach``, or a row without entries cannot hold.
    """
    of_type(program, LinearProgram, "program", "a LinearProgram", ModelError)
    rows, columns = (np.full(count, -1) for count in program.A.shape)
    none = BlockStructure(rows, columns, np.zeros(0, np.int64), 0, (), 0.0, "none")
    return structured_model(program, none, reach=reach)


def unbounded_variables(program: LinearProgram) -> Numbers:
    """Return the variables that neither bounds nor rows bound, of which models need ``reach``: ``(k,)`` int64."""
    return np.flatnonzero(~np.isfinite(implied_bounds(_bounded(program))).all(0))


def _bounded(program: LinearProgram) -> LinearProgram:
    """The program without zeros, with rows of one entry as bounds, too."""
    matrix = csr_array(program.A, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    matrix.sort_indices()
    sides = program.row_lower, program.row_upper
    lower, upper = bounds_of_single_rows(matrix, sides, (program.lower, program.upper))
    return LinearProgram(program.c, matrix, *sides, lower, upper, program.offset, program.maximize)


def _typed(
    program: LinearProgram, structure: BlockStructure, bounds: tuple[Array, Array], polytopes: bool
) -> Iterator[tuple[BlockType, Numbers]]:
    """Block types with all their data, and the rows that they state, block after block."""
    lengths, block = np.diff(program.A.indptr), structure.row_block
    long = np.flatnonzero((block >= 0) & (lengths > 1))
    several = np.bincount(block[long], minlength=structure.blocks)
    name = np.full(structure.blocks, "", dtype=object)
    for kind in structure.kinds:
        name[kind.blocks] = kind.name
    alone = long[several[block[long]] == 1]
    low, high = program.row_lower[alone], program.row_upper[alone]
    is_choice = np.isin(name[block[alone]], ("Simplex", "AtMostOne"))
    kinds = np.where(is_choice, name[block[alone]], "Knapsack")
    # Types with the same sides and size share their data's shape.
    keys = np.stack([kinds == "Simplex", kinds == "AtMostOne", np.isfinite(low), np.isfinite(high), lengths[alone]], 1).astype(
        np.int64
    )
    for key in np.unique(keys, axis=0):
        rows = alone[(keys == key).all(1)]
        entries = csr_array(program.A[rows])
        columns, weights = entries.indices.reshape(len(rows), -1), entries.data.reshape(len(rows), -1)
        below, above = program.row_lower[rows], program.row_upper[rows]
        if key[0] or key[1]:
            mass = np.where(weights[:, 0] > 0, above, below) / weights[:, 0]
            yield (Simplex if key[0] else AtMostOne)(int(key[4]), mass), rows
        elif key[2] or key[3]:
            least, most = (side if there else None for side, there in ((below, key[2]), (above, key[3])))
            yield Knapsack(weights, most, bounds[0][columns], bounds[1][columns], least=least), rows
    if polytopes:
        yield from _polytopes(program, block, long[several[block[long]] > 1], bounds)


def _polytopes(
    program: LinearProgram, block: Numbers, rows: Numbers, bounds: tuple[Array, Array]
) -> Iterator[tuple[BlockType, Numbers]]:
    """Blocks of several rows, together where they have as many rows and variables."""
    rows = rows[np.argsort(block[rows], kind="stable")]
    alike: dict[tuple[int, int], list[tuple[Numbers, Numbers]]] = {}
    for some in np.split(rows, np.flatnonzero(np.diff(block[rows])) + 1) if len(rows) else []:
        columns = np.unique(program.A[some].indices)
        alike.setdefault((len(some), len(columns)), []).append((some, columns))
    for parts in alike.values():
        dense = np.stack([program.A[some][:, columns].toarray() for some, columns in parts])
        together, scope = np.stack([some for some, _ in parts]), np.stack([columns for _, columns in parts])
        sides = program.row_lower[together], program.row_upper[together]
        yield Polytope(dense, *sides, bounds[0][scope], bounds[1][scope]), together.ravel()
