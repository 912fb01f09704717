"""Models from problems of CVXPY: rows as rows, tagged constraints as blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from blocklp.blocks.contract import BlockType
from blocklp.errors import ModelError, needed
from blocklp.general_solvers.linear_program import LinearProgram
from blocklp.language.expression import View
from blocklp.lp.block_rows import finite_bounds, scope_of_rows
from blocklp.lp.faces import CVXPY
from blocklp.lp.implied_bounds import bounds_of_single_rows
from blocklp.model import Model
from blocklp.options import of_type


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
    with needed("blocklp.from_cvxpy needs the package cvxpy", "cvxpy"):
        import cvxpy
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
    ends = np.cumsum([int(np.prod(shape, dtype=int)) for _, shape in shapes])
    low, high = finite_bounds(
        program, reach, lambda j: shapes[int(np.searchsorted(ends, j, side="right"))][0]
    )
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
            scope = scope_of_rows(program, rows, tagged[number], name, (low, high))
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
    sides, free = (np.where(equal, right, -np.inf), right), np.full(len(order), np.inf)
    lower, upper = bounds_of_single_rows(matrix, sides, (-free, free))
    lengths = np.diff(matrix.indptr)
    groups, first = [], 0
    for constraint in stated.constraints:
        rows = np.arange(first, first + constraint.size)
        groups.append((constraint.id, rows[lengths[rows] != 1]))
        first += constraint.size
    cost = np.asarray(data["c"], dtype=np.float64).ravel()[order]
    return LinearProgram(cost, matrix, *sides, lower, upper, constant), groups
