"""Every instance by a general solver, as an LP or with its integers: the truth for tests and benchmarks."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import LicenceError, MissingDependencyError, ModelError, OptionError, install, needed
from blocklp.general_solvers.integer_program import solved_by_highs
from blocklp.general_solvers.linear_program import Array, LinearProgram, export, loaded_highs
from blocklp.general_solvers.small_lp import TOLERANCE
from blocklp.language.variable_bounds import Bounds
from blocklp.model import Model
from blocklp.options import flag, instance_number, of_type
from blocklp.tables import SHOWN, Table, Tabled, plural

__all__ = ["LinearProgram", "ReferenceResult", "export", "reference"]

Marks = NDArray[np.bool_]
Answer = tuple[str, Array | None]  # the status, and the point where it is "optimal"


@dataclass(frozen=True, repr=False)
class ReferenceResult(Tabled):
    """Optima of the instances.

    Attributes
    ----------
    objective : Tensor
        ``(batch,)`` float64: the optimal value; of an infeasible instance, ``inf`` (``-inf`` when
        maximising); NaN if the solver gave up.
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

    def _tables(self) -> tuple[str, list[Table]]:
        values = zip(self.status, self.objective[:SHOWN].tolist(), strict=False)
        rows = [(str(i), status, f"{value:.9g}") for i, (status, value) in enumerate(values)]
        title = f"Reference of {plural(len(self.status), 'instance')}, {self.seconds:.3g} s"
        return title, [Table(("instance", "status", "objective"), rows, len(self.status))]


def reference(
    model: Model,
    solver: str = "highs",
    instance: int | None = None,
    bounds: Bounds | None = None,
    *,
    integers: bool = False,
    time_limit: float | Deadline = math.inf,
) -> ReferenceResult:
    """Solve the LP of every instance, or with ``integers`` the instance itself, one after the other.

    Parameters
    ----------
    model : Model
        Every block type in it must state its ``constraints()``, or an ``extended_formulation()``.
    solver : str
        ``"highs"`` (through highspy, or through SciPy where that is missing), ``"highs-simplex"``,
        ``"highs-ipm"`` (with crossover), ``"highs-pdlp"``, ``"gurobi"``, ``"cvxpy"`` (Clarabel), or
        ``"cvxpy-NAME"`` for another solver of CVXPY. All run with tolerances of 1e-9, but solvers chosen by
        ``"cvxpy-NAME"`` with their own.
    instance : int, optional
        Solve this one alone, as a batch of one; negative numbers count from the end.
    bounds : mapping, optional
        Tighter bounds, as in :meth:`blocklp.Solver.solve`.
    integers : bool
        Whether integer variables are integers, as in :func:`blocklp.solve_exact`: by HiGHS, Gurobi, or HiGHS
        through CVXPY, to a gap of zero, or by a solver of CVXPY that takes integers.
    time_limit : float or Deadline
        Seconds for all instances, which solvers chosen by ``"cvxpy-NAME"`` are not told, nor SciPy's where
        highspy is missing; of instances that are not done there is a status, and no value.

    Returns
    -------
    ReferenceResult
        Optimal values ``(batch,)`` and points ``(batch, *shape)`` float64, in the sense of the model.

    Raises
    ------
    ModelError
        If the model has no objective, or a block type states no constraints.
    OptionError
        If the solver is unknown, or an option is of another kind.
    MissingDependencyError
        If its package is not installed.
    LicenceError
        If Gurobi's licence does not cover the LP.
    """
    need = "a model, as network_bounds(...).model(cost), explicit_model(crf) and roof_duality_model(qubo) are"
    of_type(model, Model, "model", need, ModelError)
    of_type(solver, str, "solver", "the name of a solver")
    solve, deadline = lp_solver(solver), Deadline.of(time_limit)
    whole = _integers(model, solver) if flag(integers, "integers") else None
    given = range(model.batch) if instance is None else [instance_number(instance, model.batch)]
    answers, seconds = [], 0.0
    values = torch.full((len(given),), torch.nan, dtype=torch.float64)
    points = torch.full((len(given), model.size), torch.nan, dtype=torch.float64)
    for row, number in enumerate(given):
        program = export(model, number, bounds, integers=integers)
        marks = None if whole is None else np.pad(whole, (0, len(program.c) - len(whole)))
        began = time.perf_counter()
        status, point = solve(program, marks, deadline.left())
        seconds += time.perf_counter() - began
        answers.append(status)
        if point is not None:
            points[row] = torch.as_tensor(point[: model.size])
            values[row] = program.value(point)
        elif status == "infeasible":
            values[row] = -torch.inf if model.maximizing else torch.inf
    x = {k: points[:, v.index] for k, v in model.variables.items()}
    return ReferenceResult(values, x, tuple(answers), seconds)


class GeneralSolver(Protocol):
    """Solves a program, whose integer variables ``(variables,)`` bool are marked, within so many seconds."""

    def __call__(
        self, program: LinearProgram, integer: Marks | None = None, seconds: float = math.inf
    ) -> Answer: ...


def lp_solver(name: str) -> GeneralSolver:
    """Look a solver up by name; errors, at once and when it runs, are those of :func:`reference`."""
    first, _, rest = name.partition("-")
    if first == "highs" and rest in ("", "simplex", "ipm", "pdlp"):
        return partial(_highs, rest)
    if first == "cvxpy":
        return partial(_cvxpy, rest.upper())
    if name == "gurobi":
        return _gurobi
    names = "'highs', 'highs-simplex', 'highs-ipm', 'highs-pdlp', 'gurobi', 'cvxpy' or 'cvxpy-NAME'"
    raise OptionError(f"unknown solver {name!r}; choose {names}")


def _integers(model: Model, solver: str) -> Marks:
    """Whether a variable ``(variables,)`` is an integer."""
    found = np.zeros(model.size, dtype=bool)
    for v in model.variables.values():
        found[v.columns] = v.integer
    if not found.any():
        raise ModelError(
            "no variable is integer; declare some by m.variable(..., integer=True), or leave integers= out"
        )
    if solver.startswith("highs-"):
        raise OptionError(
            f"{solver!r} is an algorithm for LPs; with integers choose 'highs', 'gurobi' or 'cvxpy'"
        )
    return found


def _highs(
    algorithm: str, program: LinearProgram, integer: Marks | None = None, seconds: float = math.inf
) -> Answer:
    try:
        import highspy
    except ImportError as error:
        if algorithm or integer is not None:
            need = f"needs the package highspy: {install('highs')}"
            what = "integers" if integer is not None else f"solver 'highs-{algorithm}'"
            raise MissingDependencyError(f"{what} {need}") from error
        found = program.linprog()
        status = {0: "optimal", 2: "infeasible"}.get(found.status, found.message)
        return status, found.x if found.status == 0 else None
    if integer is not None:
        sign = -1.0 if program.maximize else 1.0
        answer = solved_by_highs(
            replace(program, c=sign * program.c, maximize=False), integer, seconds=seconds
        )
        status = "optimal" if answer.x is not None else "infeasible"
        return (status, answer.x) if answer.ended else ("time limit reached", None)
    highs = loaded_highs(program, solver=algorithm or "choose", time_limit=min(seconds, 1e9))
    highs.run()
    if algorithm == "pdlp" and highs.getModelStatus() == highspy.HighsModelStatus.kUnknown:
        # An LP that presolve solves whole comes back from this algorithm without duals, hence undecided.
        highs.clearSolver()
        highs.setOptionValue("presolve", "off")
        highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kOptimal:
        return "optimal", np.array(highs.getSolution().col_value)
    if program.bounded and status == highspy.HighsModelStatus.kUnboundedOrInfeasible:
        status = highspy.HighsModelStatus.kInfeasible
    return highs.modelStatusToString(status).lower(), None


def _gurobi(program: LinearProgram, integer: Marks | None = None, seconds: float = math.inf) -> Answer:
    with needed("solver 'gurobi' needs the package gurobipy", "gurobi"):
        import gurobipy
    options = {"OutputFlag": 0, "FeasibilityTol": TOLERANCE, "OptimalityTol": TOLERANCE, "MIPGap": 0.0}
    kinds = np.where(np.zeros(len(program.c), dtype=bool) if integer is None else integer, "I", "C")
    sense = gurobipy.GRB.MAXIMIZE if program.maximize else gurobipy.GRB.MINIMIZE
    try:
        with gurobipy.Env(params=options) as env, gurobipy.Model(env=env) as lp:
            lp.Params.TimeLimit = seconds
            x = lp.addMVar(len(program.c), lb=program.lower, ub=program.upper, vtype=kinds)
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
            either = "infeasible" if program.bounded else "infeasible or unbounded"
            words = {
                gurobipy.GRB.INFEASIBLE: "infeasible",
                gurobipy.GRB.INF_OR_UNBD: either,
                gurobipy.GRB.UNBOUNDED: "unbounded",
                gurobipy.GRB.TIME_LIMIT: "time limit reached",
            }
            return words.get(lp.Status, f"gurobi status {lp.Status}"), None
    except gurobipy.GurobiError as error:
        rows, variables = program.A.shape
        raise LicenceError(
            f"Gurobi refused an LP of {variables} variables and {rows} rows: {error}. The licence that comes "
            f"with gurobipy covers 2000 of either; install a full licence, or use solver='highs'"
        ) from error


def _cvxpy(
    name: str, program: LinearProgram, integer: Marks | None = None, seconds: float = math.inf
) -> Answer:
    problem = program.to_cvxpy(integer)
    import cvxpy

    tight = {f"tol_{key}": TOLERANCE for key in ("feas", "gap_abs", "gap_rel")}
    limit = min(seconds, 1e9)
    own: dict[str, Any] = {"solver": "CLARABEL", "time_limit": limit, **tight}
    if integer is not None:
        own = {"solver": "HIGHS", "highs_options": {"mip_rel_gap": 0.0, "time_limit": limit}}
    try:
        problem.solve(**({"solver": name} if name else own))
    except cvxpy.SolverError as error:
        known = ", ".join(cvxpy.installed_solvers())  # type: ignore[no-untyped-call]
        raise OptionError(f"CVXPY could not solve the LP: {error} Installed are {known}") from error
    if problem.status == cvxpy.OPTIMAL:
        return "optimal", np.array(problem.var_dict["x"].value)
    return ("infeasible" if problem.status == cvxpy.INFEASIBLE else problem.status), None
