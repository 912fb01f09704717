"""The LP of every instance, written out and solved by a general solver: the truth that tests and benchmarks compare with.

Nothing here decomposes: the rows are those that the block types state themselves (:meth:`BlockType.constraints`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack
from torch import Tensor

from blocklp.block import Constraints
from blocklp.errors import BlocklpError, MissingDependencyError, ModelError, OptionError
from blocklp.model import Model
from blocklp.solver import Bounds, _bounds

TOLERANCE = 1e-9
"""Feasibility and optimality tolerance that is asked of every solver."""

Array = NDArray[np.float64]
Answer = tuple[str, Array | None]  # the status, and the point where it is "optimal"


@dataclass(frozen=True)
class LinearProgram:
    r"""The LP of one instance.

    .. math:: \min \text{ or } \max \; c^\top x + offset \quad \text{s.t.} \quad row_{lower} \le A x \le row_{upper}, \;
              lower \le x \le upper

    Attributes
    ----------
    c, lower, upper : ndarray
        ``(variables,)`` float64; variables in the order in which the model declared them, arrays row by row.
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

    def sides(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """Numbers of the rows that are equations, that have an upper side, and that have a lower side."""
        equal = self.row_lower == self.row_upper
        above, below = np.isfinite(self.row_upper) & ~equal, np.isfinite(self.row_lower) & ~equal
        return np.flatnonzero(equal), np.flatnonzero(above), np.flatnonzero(below)

    def linprog(self) -> Any:
        """Minimise (or maximise) by ``scipy.optimize.linprog``: its ``OptimizeResult``, upper sides before lower sides."""
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

    def to_cvxpy(self) -> Any:
        """Return a ``cvxpy.Problem`` whose only variable, ``"x"``, holds all variables.

        Raises
        ------
        MissingDependencyError
            If cvxpy is not installed.
        """
        try:
            import cvxpy
        except ImportError as error:
            raise MissingDependencyError("solver 'cvxpy' needs the package cvxpy: pip install 'blocklp[cvxpy]'") from error
        x = cvxpy.Variable(len(self.c), name="x")
        equal, above, below = self.sides()
        rows = [x >= self.lower, x <= self.upper]
        rows += [self.A[equal] @ x == self.row_upper[equal]] if len(equal) else []
        rows += [self.A[above] @ x <= self.row_upper[above]] if len(above) else []
        rows += [self.A[below] @ x >= self.row_lower[below]] if len(below) else []
        value = self.c @ x + self.offset
        return cvxpy.Problem(cvxpy.Maximize(value) if self.maximize else cvxpy.Minimize(value), rows)


@dataclass(frozen=True)
class ReferenceResult:
    """Optima of the instances.

    Attributes
    ----------
    objective : Tensor
        ``(batch,)`` float64: the optimal value; of an infeasible instance, ``inf`` (``-inf`` when maximising); NaN if the
        solver gave up.
    x : dict of str to Tensor
        Name of variable to ``(batch, *shape)`` float64; NaN where there is no optimum.
    status : tuple of str
        ``"optimal"``, ``"infeasible"`` or what else the solver said.
    seconds : float
        Time in the solver, all instances together, without the time to write the LPs out.
    """

    objective: Tensor
    x: dict[str, Tensor]
    status: tuple[str, ...]
    seconds: float


def reference(model: Model, solver: str = "highs", instance: int | None = None, bounds: Bounds | None = None) -> ReferenceResult:
    """Solve the LP of every instance to optimality, one after the other.

    Parameters
    ----------
    model : Model
        Every block type in it must state its ``constraints()``.
    solver : str
        ``"highs"`` (through highspy, or through SciPy where that is missing), ``"highs-simplex"``, ``"highs-ipm"`` (with
        crossover), ``"highs-pdlp"``, ``"gurobi"``, ``"cvxpy"`` (Clarabel), or ``"cvxpy-NAME"`` for another solver of CVXPY.
        All run with tolerances of 1e-9, but solvers chosen by ``"cvxpy-NAME"`` with their own.
    instance : int, optional
        Solve this one alone, as a batch of one.
    bounds : mapping, optional
        Tighter bounds, as in :meth:`blocklp.Solver.solve`.

    Raises
    ------
    ModelError
        If the model has no objective, or a block type states no constraints.
    OptionError
        If the solver is unknown.
    MissingDependencyError
        If its package is not installed.
    BlocklpError
        If Gurobi's licence does not cover the LP.
    """
    solve, given = _solver(solver), range(model.batch) if instance is None else [instance]
    answers, seconds = [], 0.0
    values = torch.full((len(given),), torch.nan, dtype=torch.float64)
    points = torch.full((len(given), model.size), torch.nan, dtype=torch.float64)
    for row, number in enumerate(given):
        program = export(model, number, bounds)
        began = time.perf_counter()
        status, point = solve(program)
        seconds += time.perf_counter() - began
        answers.append(status)
        if point is not None:
            points[row] = torch.as_tensor(point)
            values[row] = float(program.c @ point) + program.offset
        elif status == "infeasible":
            values[row] = -torch.inf if model.maximizing else torch.inf
    return ReferenceResult(values, {k: points[:, v.index] for k, v in model.variables.items()}, tuple(answers), seconds)


def export(model: Model, instance: int = 0, bounds: Bounds | None = None) -> LinearProgram:
    """Write out the LP of one instance, with the present values of parameters.

    Raises
    ------
    ModelError
        If the model has no objective, or a block type states no constraints.
    IndexError
        If there is no such instance.
    """
    if model.objective is None:
        raise ModelError("the model has no objective; call minimize() or maximize() first")
    if not 0 <= instance < model.batch:
        raise IndexError(f"instance {instance} is out of range of a batch of {model.batch}")
    stated = [(b, b.type.constraints()) for b in model.blocks]
    silent = [b.name for b, rows in stated if rows is None]
    if silent:
        raise ModelError(
            f"the LP cannot be written out: blocks {', '.join(map(repr, silent))} state no constraints; "
            f"give their types a method constraints() -> Constraints"
        )
    parts = [block_rows(rows, b.scope.numpy(), model.size, instance) for b, rows in stated if rows is not None]
    cost, constant = model.objective.evaluate()
    lower, upper = (_row(side, instance) for side in _bounds(model, bounds or {}, alone=True))
    return LinearProgram(
        cost[instance].numpy(),
        vstack([csr_array((0, model.size)), *(p[0] for p in parts)], format="csr"),
        np.concatenate([np.zeros(0), *(p[1] for p in parts)]),
        np.concatenate([np.zeros(0), *(p[2] for p in parts)]),
        lower,
        upper,
        float(constant[instance]),
        model.maximizing,
    )


def block_rows(rows: Constraints, scope: NDArray[np.int64], variables: int, instance: int) -> tuple[csr_array, Array, Array]:
    """Rows of all blocks of one type in one instance, block after block: matrix ``(rows, variables)``, lower, upper."""
    blocks, dim = scope.shape
    matrix = _row(rows.matrix, instance)
    count = matrix.shape[1]
    numbers = np.arange(blocks * count).reshape(blocks, count, 1)
    shape = (blocks, count, dim)
    entries, row, column = (np.broadcast_to(v, shape).ravel() for v in (matrix, numbers, scope[:, None]))
    kept = entries != 0
    written = csr_array((entries[kept], (row[kept], column[kept])), shape=(blocks * count, variables))
    low, high = (np.broadcast_to(_row(side, instance), (blocks, count)).ravel() for side in (rows.lower, rows.upper))
    return written, low, high


def _row(data: Tensor, instance: int) -> Array:
    """One instance of ``(batch or 1, ...)``."""
    picked: Array = data[instance if data.shape[0] > 1 else 0].numpy()
    return picked


def _solver(name: str) -> Callable[[LinearProgram], Answer]:
    """Look a solver up by name."""
    first, _, rest = name.partition("-")
    if first == "highs" and rest in ("", "simplex", "ipm", "pdlp"):
        return lambda program: _highs(program, rest)
    if first == "cvxpy":
        return lambda program: _cvxpy(program, rest.upper())
    if name == "gurobi":
        return _gurobi
    raise OptionError(
        f"unknown solver {name!r}; choose 'highs', 'highs-simplex', 'highs-ipm', 'highs-pdlp', 'gurobi', 'cvxpy' or 'cvxpy-NAME'"
    )


def _highs(program: LinearProgram, algorithm: str) -> Answer:
    try:
        import highspy
    except ImportError as error:
        if algorithm:
            raise MissingDependencyError(
                f"solver 'highs-{algorithm}' needs the package highspy: pip install 'blocklp[highs]'"
            ) from error
        found = program.linprog()
        status = {0: "optimal", 2: "infeasible"}.get(found.status, found.message)
        return status, found.x if found.status == 0 else None
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = program.A.shape
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.c, program.lower, program.upper
    lp.row_lower_, lp.row_upper_ = program.row_lower, program.row_upper
    lp.sense_ = highspy.ObjSense.kMaximize if program.maximize else highspy.ObjSense.kMinimize
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = program.A.indptr, program.A.indices, program.A.data
    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    options = {"output_flag": False, "solver": algorithm or "choose", "kkt_tolerance": TOLERANCE}
    for key, value in options.items():
        highs.setOptionValue(key, value)
    highs.passModel(lp)
    highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kOptimal:
        return "optimal", np.array(highs.getSolution().col_value)
    # All variables have finite bounds, so that nothing is unbounded.
    empty = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)
    return ("infeasible" if status in empty else highs.modelStatusToString(status).lower()), None


def _gurobi(program: LinearProgram) -> Answer:
    try:
        import gurobipy
    except ImportError as error:
        raise MissingDependencyError("solver 'gurobi' needs the package gurobipy: pip install 'blocklp[gurobi]'") from error
    options = {"OutputFlag": 0, "FeasibilityTol": TOLERANCE, "OptimalityTol": TOLERANCE}
    sense = gurobipy.GRB.MAXIMIZE if program.maximize else gurobipy.GRB.MINIMIZE
    try:
        with gurobipy.Env(params=options) as env, gurobipy.Model(env=env) as lp:
            x = lp.addMVar(len(program.c), lb=program.lower, ub=program.upper)
            lp.setObjective(program.c @ x, sense)
            equal, above, below = program.sides()
            for rows, sign, right in (
                (equal, "=", program.row_upper),
                (above, "<", program.row_upper),
                (below, ">", program.row_lower),
            ):
                if len(rows):
                    lp.addMConstr(program.A[rows], x, sign, right[rows])
            lp.optimize()
            if lp.Status == gurobipy.GRB.OPTIMAL:
                return "optimal", np.array(x.X)
            empty = (gurobipy.GRB.INFEASIBLE, gurobipy.GRB.INF_OR_UNBD)
            return ("infeasible" if lp.Status in empty else f"gurobi status {lp.Status}"), None
    except gurobipy.GurobiError as error:
        rows, variables = program.A.shape
        raise BlocklpError(
            f"Gurobi refused an LP of {variables} variables and {rows} rows: {error}. The licence that comes with gurobipy "
            f"covers 2000 of either; install a full licence, or use solver='highs'"
        ) from error


def _cvxpy(program: LinearProgram, name: str) -> Answer:
    problem = program.to_cvxpy()
    import cvxpy

    tight = {f"tol_{key}": TOLERANCE for key in ("feas", "gap_abs", "gap_rel")}
    try:
        problem.solve(**({"solver": name} if name else {"solver": "CLARABEL", **tight}))
    except cvxpy.SolverError as error:
        known = ", ".join(cvxpy.installed_solvers())  # type: ignore[no-untyped-call]
        raise OptionError(f"CVXPY could not solve the LP: {error} Installed are {known}") from error
    if problem.status == cvxpy.OPTIMAL:
        return "optimal", np.array(problem.variables()[0].value)
    return ("infeasible" if problem.status == cvxpy.INFEASIBLE else problem.status), None
