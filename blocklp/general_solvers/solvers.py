"""The LP of every instance, solved by a general solver: the truth that tests and benchmarks compare with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blocklp.errors import LicenceError, MissingDependencyError, ModelError, OptionError, install, needed
from blocklp.general_solvers.linear_program import Array, LinearProgram, export, loaded_highs
from blocklp.general_solvers.small_lp import TOLERANCE
from blocklp.language.variable_bounds import Bounds
from blocklp.model import Model
from blocklp.options import instance_number, of_type
from blocklp.tables import SHOWN, Table, Tabled, plural

__all__ = ["LinearProgram", "ReferenceResult", "export", "reference"]

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
) -> ReferenceResult:
    """Solve the LP of every instance to optimality, one after the other.

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

    Returns
    -------
    ReferenceResult
        Optimal values ``(batch,)`` and points ``(batch, *shape)`` float64, in the sense of the model.

    Raises
    ------
    ModelError
        If the model has no objective, or a block type states no constraints.
    OptionError
        If the solver is unknown.
    MissingDependencyError
        If its package is not installed.
    LicenceError
        If Gurobi's licence does not cover the LP.
    """
    need = "a model, as network_bounds(...).model(cost), explicit_model(crf) and roof_duality_model(qubo) are"
    of_type(model, Model, "model", need, ModelError)
    of_type(solver, str, "solver", "the name of a solver")
    solve = lp_solver(solver)
    given = range(model.batch) if instance is None else [instance_number(instance, model.batch)]
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
            points[row] = torch.as_tensor(point[: model.size])
            values[row] = program.value(point)
        elif status == "infeasible":
            values[row] = -torch.inf if model.maximizing else torch.inf
    x = {k: points[:, v.index] for k, v in model.variables.items()}
    return ReferenceResult(values, x, tuple(answers), seconds)


def lp_solver(name: str) -> Callable[[LinearProgram], Answer]:
    """Look a solver up by name; errors, at once and when it runs, are those of :func:`reference`."""
    first, _, rest = name.partition("-")
    if first == "highs" and rest in ("", "simplex", "ipm", "pdlp"):
        return lambda program: _highs(program, rest)
    if first == "cvxpy":
        return lambda program: _cvxpy(program, rest.upper())
    if name == "gurobi":
        return _gurobi
    names = "'highs', 'highs-simplex', 'highs-ipm', 'highs-pdlp', 'gurobi', 'cvxpy' or 'cvxpy-NAME'"
    raise OptionError(f"unknown solver {name!r}; choose {names}")


def _highs(program: LinearProgram, algorithm: str) -> Answer:
    try:
        import highspy
    except ImportError as error:
        if algorithm:
            need = f"needs the package highspy: {install('highs')}"
            raise MissingDependencyError(f"solver 'highs-{algorithm}' {need}") from error
        found = program.linprog()
        status = {0: "optimal", 2: "infeasible"}.get(found.status, found.message)
        return status, found.x if found.status == 0 else None
    highs = loaded_highs(program, solver=algorithm or "choose")
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


def _gurobi(program: LinearProgram) -> Answer:
    with needed("solver 'gurobi' needs the package gurobipy", "gurobi"):
        import gurobipy
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
            either = "infeasible" if program.bounded else "infeasible or unbounded"
            words = {
                gurobipy.GRB.INFEASIBLE: "infeasible",
                gurobipy.GRB.INF_OR_UNBD: either,
                gurobipy.GRB.UNBOUNDED: "unbounded",
            }
            return words.get(lp.Status, f"gurobi status {lp.Status}"), None
    except gurobipy.GurobiError as error:
        rows, variables = program.A.shape
        raise LicenceError(
            f"Gurobi refused an LP of {variables} variables and {rows} rows: {error}. The licence that comes "
            f"with gurobipy covers 2000 of either; install a full licence, or use solver='highs'"
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
