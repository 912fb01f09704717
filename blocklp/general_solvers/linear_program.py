"""The LP of an instance, written out: nothing here decomposes.

The rows are those that the block types state themselves (:class:`HasConstraints`), with auxiliary variables
where these are too many (:class:`HasExtendedFormulation`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csc_array, csr_array, vstack
from torch import Tensor

from blocklp.blocks.capabilities import (
    HasExtendedFormulation,
    HasIntegerConstraints,
    stated_rows_of,
    supports,
)
from blocklp.blocks.contract import Constraints, ExtendedFormulation
from blocklp.errors import FormatError, ModelError, needed
from blocklp.general_solvers.small_lp import TOLERANCE, quiet_highs
from blocklp.language.expression import Values
from blocklp.language.handles import Blocks
from blocklp.language.statement import Statement
from blocklp.language.variable_bounds import Bounds, variable_bounds
from blocklp.options import instance_number

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LinearProgram:
    r"""The LP of one instance.

    .. math:: \min \text{ or } \max \; c^\top x + offset \quad \text{s.t.} \quad
              row_{lower} \le A x \le row_{upper}, \; lower \le x \le upper

    Attributes
    ----------
    c, lower, upper : ndarray
        ``(variables,)`` float64; variables in the order in which the model declared them, arrays row by row,
        and behind them the auxiliary ones of extended formulations.
    A : csr_array
        ``(rows, variables)`` float64.
    row_lower, row_upper : ndarray
        ``(rows,)`` float64; infinities mark one-sided rows.
    offset : float
        Constant of the objective.
    maximize : bool
        The sense.
    """

    c: Array
    A: csr_array
    row_lower: Array
    row_upper: Array
    lower: Array
    upper: Array
    offset: float = 0.0
    maximize: bool = False

    @cached_property
    def by_column(self) -> csr_array:
        """The matrix transposed, ``(variables, rows)``."""
        return csr_array(self.A.T)

    @cached_property
    def sizes(self) -> csr_array:
        """Magnitudes of the entries, ``(rows, variables)``."""
        return abs(self.A)

    @cached_property
    def sizes_by_column(self) -> csr_array:
        """Magnitudes of the entries, transposed: ``(variables, rows)``."""
        return abs(self.by_column)

    def sides(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """Numbers of the rows that are equations, that have an upper side, and that have a lower side."""
        equal = self.row_lower == self.row_upper
        above, below = np.isfinite(self.row_upper) & ~equal, np.isfinite(self.row_lower) & ~equal
        return np.flatnonzero(equal), np.flatnonzero(above), np.flatnonzero(below)

    def linprog(self) -> Any:
        """Solve by ``scipy.optimize.linprog``: its ``OptimizeResult``, upper sides before lower sides."""
        equal, above, below = self.sides()
        return linprog(
            -self.c if self.maximize else self.c,
            A_ub=vstack([self.A[above], -self.A[below]]),
            b_ub=np.concatenate([self.row_upper[above], -self.row_lower[below]]),
            A_eq=self.A[equal],
            b_eq=self.row_upper[equal],
            bounds=np.stack([self.lower, self.upper], 1),
            method="highs",
            options={"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE},
        )

    @property
    def bounded(self) -> bool:
        """Whether all variables have finite bounds."""
        return bool(np.isfinite(self.lower).all() and np.isfinite(self.upper).all())

    def value(self, x: Array) -> float:
        """The objective at a point ``(columns,)``."""
        return float(self.c @ x) + self.offset

    def to_mps(self, path: str | Path) -> None:
        """Write the LP to an MPS file (``.mps``); rows and columns get HiGHS's names, by number.

        Raises
        ------
        FormatError
            If the suffix is another one, or HiGHS cannot write there.
        MissingDependencyError
            If highspy is not installed.
        """
        with needed("LP files are written by the package highspy", "highs"):
            import highspy
        if Path(path).suffix != ".mps":
            raise FormatError(f"{path}: linear programs are written to .mps files; change the suffix")
        highs = loaded_highs(self)
        highs.changeObjectiveOffset(self.offset)
        if highs.writeModel(str(path)) == highspy.HighsStatus.kError:
            raise FormatError(f"{path}: HiGHS cannot write there; does the folder exist?")

    def to_cvxpy(self, integer: NDArray[np.bool_] | None = None) -> Any:
        """Return a ``cvxpy.Problem`` whose variable ``"x"`` holds all variables.

        Parameters
        ----------
        integer : ndarray, optional
            ``(variables,)``: whether a variable is an integer, by default none; these are equal to a variable
            ``"integers"``.

        Raises
        ------
        MissingDependencyError
            If cvxpy is not installed.
        """
        with needed("solver 'cvxpy' needs the package cvxpy", "cvxpy"):
            import cvxpy
        x = cvxpy.Variable(len(self.c), name="x")
        equal, above, below = self.sides()
        least, most = np.flatnonzero(np.isfinite(self.lower)), np.flatnonzero(np.isfinite(self.upper))
        rows = [x[least] >= self.lower[least], x[most] <= self.upper[most]]
        rows += [self.A[equal] @ x == self.row_upper[equal]] if len(equal) else []
        rows += [self.A[above] @ x <= self.row_upper[above]] if len(above) else []
        rows += [self.A[below] @ x >= self.row_lower[below]] if len(below) else []
        if integer is not None:
            rows.append(x[integer] == cvxpy.Variable(int(integer.sum()), name="integers", integer=True))
        value = self.c @ x + self.offset
        return cvxpy.Problem(cvxpy.Maximize(value) if self.maximize else cvxpy.Minimize(value), rows)


def export(
    model: Statement,
    instance: int = 0,
    bounds: Bounds | None = None,
    *,
    integers: bool = False,
    values: Values | None = None,
) -> LinearProgram:
    """Write out the LP of one instance, with the present values of parameters.

    Parameters
    ----------
    model : Model
        With an objective; all block types state their constraints, or an extended formulation.
    instance : int
        Number of the instance.
    bounds : mapping, optional
        Tighter bounds of variables, as in :meth:`blocklp.Solver.solve`.
    integers : bool
        Whether blocks that are hulls of integer points are written as the rows of these.
    values : mapping, optional
        Parameters to values, instead of their present ones.

    Returns
    -------
    LinearProgram
        The variables and rows of the instance, float64.

    Raises
    ------
    ModelError
        If the model has no objective, or a block type states no constraints.
    IndexError
        If there is no such instance.
    """
    if model.objective is None:
        raise ModelError("the model has no objective; call minimize() or maximize() first")
    if model.part is not None:
        model.part.refuse_alone()
    instance = instance_number(instance, model.batch)
    stated = [(b, stated_rows_of(b.type)) for b in model.blocks]
    extended = {b.name: _extended(b, instance) for b, rows in stated if rows is None}
    hulls = [b.name for b in model.blocks if supports(b.type, HasIntegerConstraints)]
    if hulls and not integers:
        raise ModelError(
            f"the LP cannot be written out: blocks {', '.join(map(repr, hulls))} are hulls of integer "
            f"points, whose facets are unknown; solve() bounds them, and solve_exact() finds integer points"
        )
    silent = [name for name, found in extended.items() if found is None]
    if silent:
        raise ModelError(
            f"the LP cannot be written out: blocks {', '.join(map(repr, silent))} state no constraints; "
            f"give their types a method constraints() -> Constraints"
        )
    further = [made for found in extended.values() for made in found or []]
    size = model.size + sum(len(formulation.below) for _, formulation in further)
    written_out = ((b.scope.numpy(), rows) for b, rows in stated if rows is not None)
    parts = [block_rows(rows, scope, size, instance) for scope, rows in written_out]
    for rows in (r.constraint for r in model.rows):
        written = csr_array((rows.matrix.data, rows.matrix.coords), shape=(rows.matrix.shape[0], size))
        parts.append((written, _row(rows.lower, instance), _row(rows.upper, instance)))
    parts += _extended_rows(further, model.size, size)
    cost, constant = (part.detach() for part in model.objective.evaluate(values))
    sides = variable_bounds(model, {} if bounds is None else bounds)
    lower, upper = (_row(side.detach(), instance) for side in sides)
    return LinearProgram(
        np.concatenate([cost[instance].numpy(), np.zeros(size - model.size)]),
        vstack([csr_array((0, size)), *(p[0] for p in parts)], format="csr"),
        np.concatenate([np.zeros(0), *(p[1] for p in parts)]),
        np.concatenate([np.zeros(0), *(p[2] for p in parts)]),
        np.concatenate([lower, *(formulation.below for _, formulation in further)]),
        np.concatenate([upper, *(formulation.above for _, formulation in further)]),
        float(constant[instance]),
        model.maximizing,
    )


def _extended(blocks: Blocks, instance: int) -> list[tuple[NDArray[np.int64], ExtendedFormulation]] | None:
    """Scopes and extended formulations of all blocks of one type; None if there are none."""
    kind, made = blocks.type, []
    if not supports(kind, HasExtendedFormulation):
        return None
    for number, scope in enumerate(blocks.scope.numpy()):
        if (formulation := kind.extended_formulation(instance, number)) is None:
            return None
        made.append((scope, formulation))
    return made


def _extended_rows(
    further: list[tuple[NDArray[np.int64], ExtendedFormulation]], first: int, variables: int
) -> list[tuple[csr_array, Array, Array]]:
    """Rows of extended formulations, each with auxiliary variables of its own, from ``first`` on."""
    parts = []
    for scope, formulation in further:
        entries = formulation.matrix.tocoo()
        columns = np.concatenate([scope, first + np.arange(len(formulation.below))])
        first += len(formulation.below)
        place = entries.row, columns[entries.col]
        written = csr_array((entries.data, place), shape=(entries.shape[0], variables))
        parts.append((written, formulation.lower.numpy(), formulation.upper.numpy()))
    return parts


def block_rows(
    rows: Constraints,
    scope: NDArray[np.int64],
    variables: int,
    instance: int,
) -> tuple[csr_array, Array, Array]:
    """Rows of all blocks of one type in one instance, block after block, the bounds of each after its rows.

    Parameters
    ----------
    rows : Constraints
        The constraints of the type.
    scope : ndarray
        ``(blocks, dim)`` int64: the variables of each block.
    variables : int
        Number of variables of an instance.
    instance : int
        Number of the instance.

    Returns
    -------
    matrix : csr_array
        ``(rows of all blocks, variables)`` float64.
    lower, upper : ndarray
        ``(rows of all blocks,)`` float64.
    """
    blocks, dim = scope.shape
    matrix = _row(rows.matrix, instance)
    count, bounds = matrix.shape[1], 0 if rows.below is None else dim
    first = np.arange(blocks)[:, None, None] * (count + bounds)
    shape = (blocks, count, dim)
    parts = (matrix, first + np.arange(count)[:, None], scope[:, None])
    entries, row, column = (np.broadcast_to(v, shape).ravel() for v in parts)
    kept = entries != 0
    entries, row, column = entries[kept], row[kept], column[kept]
    low, high = (np.broadcast_to(_row(side, instance), (blocks, count)) for side in (rows.lower, rows.upper))
    if rows.below is not None and rows.above is not None:
        entries = np.concatenate([entries, np.ones(scope.size)])
        row = np.concatenate([row, (first[:, 0] + count + np.arange(dim)).ravel()])
        column = np.concatenate([column, scope.ravel()])
        sides = rows.below, rows.above
        below, above = (np.broadcast_to(_row(side, instance), scope.shape) for side in sides)
        low, high = np.concatenate([low, below], 1), np.concatenate([high, above], 1)
    written = csr_array((entries, (row, column)), shape=(blocks * (count + bounds), variables))
    return written, low.ravel(), high.ravel()


def _row(data: Tensor, instance: int) -> Array:
    """One instance of ``(batch or 1, ...)``."""
    picked: Array = data[instance if data.shape[0] > 1 else 0].numpy()
    return picked


def without_single_entries(program: LinearProgram) -> LinearProgram:
    """State rows of one entry as bounds of their variables, outside of which no point of these rows is."""
    counts = np.diff(program.A.indptr)
    single = np.flatnonzero(counts == 1)
    at = program.A.indptr[single]
    column, entry = program.A.indices[at], program.A.data[at]
    ends = np.stack([program.row_lower[single] / entry, program.row_upper[single] / entry])
    exact = np.abs(entry) == 1  # other quotients are rounded
    below, above = ends.min(0), ends.max(0)
    lower, upper = program.lower.copy(), program.upper.copy()
    np.maximum.at(lower, column, np.where(exact, below, np.nextafter(below, -np.inf)))
    np.minimum.at(upper, column, np.where(exact, above, np.nextafter(above, np.inf)))
    # Rows without entries stay where they say that there is no point.
    rest = (counts > 1) | ((counts == 0) & ((program.row_lower > 0) | (program.row_upper < 0)))
    sides = {"row_lower": program.row_lower[rest], "row_upper": program.row_upper[rest]}
    return replace(program, A=csr_array(program.A[rest]), lower=lower, upper=upper, **sides)


def program_of(lp: Any) -> LinearProgram:
    """The LP that a ``highspy.HighsLp`` holds, with integers relaxed, semi-continuous ones as far as zero."""
    import highspy

    shape = lp.num_row_, lp.num_col_
    parts = tuple(np.array(part) for part in (lp.a_matrix_.value_, lp.a_matrix_.index_, lp.a_matrix_.start_))
    by_rows = lp.a_matrix_.format_ == highspy.MatrixFormat.kRowwise
    if by_rows:
        filled = csr_array(parts, shape=shape)
    else:
        filled = csc_array(parts, shape=shape).tocsr() if shape[1] else csr_array(shape)
    stated = lp.col_cost_, lp.row_lower_, lp.row_upper_, lp.col_lower_, lp.col_upper_
    cost, above, below, low, high = (np.array(side, dtype=np.float64) for side in stated)
    kinds = highspy.HighsVarType.kSemiContinuous, highspy.HighsVarType.kSemiInteger
    or_zero = np.array([kind in kinds for kind in lp.integrality_] or [False] * len(cost), dtype=bool)
    low, high = np.where(or_zero, np.minimum(low, 0), low), np.where(or_zero, np.maximum(high, 0), high)
    maximize = lp.sense_ == highspy.ObjSense.kMaximize
    return LinearProgram(cost, filled, above, below, low, high, float(lp.offset_), maximize)


def loaded_highs(program: LinearProgram, **options: Any) -> Any:
    """Return a quiet ``highspy.Highs`` that knows the LP, with tolerances of 1e-9; it must be installed."""
    import highspy

    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = program.A.shape
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.c, program.lower, program.upper
    lp.row_lower_, lp.row_upper_ = program.row_lower, program.row_upper
    lp.sense_ = highspy.ObjSense.kMaximize if program.maximize else highspy.ObjSense.kMinimize
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = program.A.indptr, program.A.indices
    lp.a_matrix_.value_ = program.A.data
    highs = quiet_highs()
    tolerances = "primal_feasibility", "dual_feasibility", "ipm_optimality", "pdlp_optimality"
    tight = dict.fromkeys(tolerances, TOLERANCE)
    for key, value in {**{f"{k}_tolerance": v for k, v in tight.items()}, **options}.items():
        highs.setOptionValue(key, value)
    highs.passModel(lp)
    return highs
