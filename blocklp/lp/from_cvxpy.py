"""Models from problems of CVXPY: rows as rows, tagged constraints as blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from blocklp.blocks.capabilities import constraints_of
from blocklp.blocks.contract import BlockType
from blocklp.errors import MissingDependencyError, ModelError, install
from blocklp.general_solvers.linear_program import Array, LinearProgram, block_rows
from blocklp.language.expression import View
from blocklp.lp.faces import CVXPY
from blocklp.lp.implied_bounds import implied_bounds
from blocklp.model import Model
from blocklp.options import of_type, real

SAME = 1e-9
"""Relative difference up to which a row of a type is the row of the problem."""


def from_cvxpy(
    problem: Any,
    blocks: Mapping[Any, BlockType] | None = None,
    *,
    reach: float | None = None,
) -> Model:
    """Turn a linear program of CVXPY into a model.

    Constraints on one variable alone become its bounds; the others rows, named by their place among the
    problem's constraints (``constraint_0``), and those that CVXPY adds for its own variables ``auxiliary_0``
    and so on.  Variables keep name and shape.

    Parameters
    ----------
    problem : cvxpy.Problem
        A linear program; parameters are replaced by their values.
    blocks : mapping, optional
        Constraints of the problem to block types that state their rows: these become blocks of the type, one
        for each row of the constraint, or as many consecutive rows as the type states, over the variables
        with entries in the model's order.
    reach : float, optional
        Bound for the magnitudes of variables that neither bounds nor rows bound.  Models need finite bounds.

    Returns
    -------
    Model
        With one instance, of the problem's sense.

    Raises
    ------
    MissingDependencyError
        If cvxpy is not installed.
    ModelError
        If the problem is no LP, a constraint is none of its, a type states other rows or bounds than the
        problem has, or a variable has no bounds and there is no ``reach``.
    """
    try:
        import cvxpy
    except ImportError as error:
        package = f"the package cvxpy: {install('cvxpy')}"
        raise MissingDependencyError(f"blocklp.from_cvxpy needs {package}") from error
    of_type(problem, cvxpy.Problem, "problem", "a problem of CVXPY", ModelError)
    of_type(blocks, Mapping | None, "blocks", "a dict of constraints to block types", ModelError)
    try:
        data = problem.get_problem_data(CVXPY())[0]
    except cvxpy.error.SolverError as error:
        raise ModelError(f"the problem is no linear program that CVXPY can state: {error}") from error
    stated, tagged = data["param_prob"], {constraint.id: kind for constraint, kind in (blocks or {}).items()}
    named = {constraint.id: f"constraint_{k}" for k, constraint in enumerate(problem.constraints)}
    if unknown := [constraint for constraint in blocks or {} if constraint.id not in named]:
        raise ModelError(f"blocks has constraints that are not of the problem: {unknown[0]}")
    constant = float(np.asarray(stated.apply_parameters()[1]).ravel()[-1])
    order, shapes = _order(stated)
    program, groups = _program(data, stated, order, constant)
    low, high = _finite_bounds(program, shapes, reach)
    model, first = Model(), 0
    for name, shape in shapes:
        size = int(np.prod(shape, dtype=int))
        lower, upper = (torch.from_numpy(side[first : first + size]).reshape(shape) for side in (low, high))
        model.variable(name, shape, lower=lower, upper=upper)
        first += size
    everything, extra = View(model, "variables", torch.arange(first)), 0
    for number, rows in groups:
        name = named.get(number, f"auxiliary_{extra}")
        extra += number not in named
        if number in tagged:
            scope = _scope(program, rows, tagged[number], name, low, high)
            model.add(tagged[number], scope=View(model, name, torch.from_numpy(scope)), name=name)
        elif len(rows):
            least, most = program.row_lower[rows], program.row_upper[rows]
            model.add_rows(program.A[rows], everything, least, most, name=name)
    sign = -1.0 if isinstance(problem.objective, cvxpy.Maximize) else 1.0
    value = (everything * torch.from_numpy(sign * program.c)).sum() + sign * program.offset
    (model.maximize if sign < 0 else model.minimize)(value)
    return model


def _order(stated: Any) -> tuple[NDArray[np.int64], list[tuple[str, tuple[int, ...]]]]:
    """CVXPY's columns in the order of a model's variables, and the names and shapes of these.

    A model numbers the entries of a matrix row by row, CVXPY column by column.
    """
    columns, shapes, used = [], [], set[str]()
    for variable in stated.variables:
        places = np.arange(variable.size).reshape(variable.shape, order="F").ravel()
        columns.append(stated.var_id_to_col[variable.id] + places)
        name = variable.name() if variable.name() not in used else f"{variable.name()}_{variable.id}"
        used.add(name)
        shapes.append((name, tuple(variable.shape)))
    return np.concatenate(columns).astype(np.int64), shapes


def _program(
    data: dict[str, Any], stated: Any, order: NDArray[np.int64], constant: float
) -> tuple[LinearProgram, list[tuple[int, NDArray[np.int64]]]]:
    """The LP in the model's order, and the rows of CVXPY's constraints; rows of one entry become bounds."""
    matrix, right = csr_array(data["A"])[:, order], np.asarray(data["b"], dtype=np.float64).ravel()
    matrix.eliminate_zeros()
    equal = np.arange(len(right)) < data["dims"].zero
    lower, upper, lengths = np.full(len(order), -np.inf), np.full(len(order), np.inf), np.diff(matrix.indptr)
    for i in np.flatnonzero(lengths == 1):
        entry, j = matrix.data[matrix.indptr[i]], matrix.indices[matrix.indptr[i]]
        end = right[i] / entry
        upper[j] = min(upper[j], end) if entry > 0 or equal[i] else upper[j]
        lower[j] = max(lower[j], end) if entry < 0 or equal[i] else lower[j]
    groups, first = [], 0
    for constraint in stated.constraints:
        rows = np.arange(first, first + constraint.size)
        groups.append((constraint.id, rows[lengths[rows] != 1]))
        first += constraint.size
    cost = np.asarray(data["c"], dtype=np.float64).ravel()[order]
    return LinearProgram(cost, matrix, np.where(equal, right, -np.inf), right, lower, upper, constant), groups


def _finite_bounds(
    program: LinearProgram,
    shapes: list[tuple[str, tuple[int, ...]]],
    reach: float | None,
) -> tuple[Array, Array]:
    """Finite bounds of all variables, ``(variables,)`` each."""
    low, high = implied_bounds(program)
    open_ = np.isinf(low) | np.isinf(high)
    if open_.any() and reach is None:
        ends = np.cumsum([int(np.prod(shape, dtype=int)) for _, shape in shapes])
        numbers = np.searchsorted(ends, np.flatnonzero(open_), side="right").tolist()
        names = ", ".join(map(repr, dict.fromkeys(shapes[k][0] for k in numbers)))
        raise ModelError(f"variables {names} have no finite bounds; give them some, or reach= for all such")
    far = 0.0 if reach is None else real(reach, "reach")
    lower = np.where(np.isinf(low), np.minimum(-far, high), low)
    return lower, np.where(np.isinf(high), np.maximum(far, low), high)


def _scope(
    program: LinearProgram,
    rows: NDArray[np.int64],
    kind: BlockType,
    name: str,
    low: Array,
    high: Array,
) -> NDArray[np.int64]:
    """The variables ``(blocks, dim)`` of a constraint as blocks of a type.

    The type must state the rows of the constraint, and no tighter bounds.
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
    theirs = _rows(program.A[rows], program.row_lower[rows], program.row_upper[rows])
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
