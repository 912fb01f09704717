"""Another exact solver on an instance in a file: ``python -m bench.exact_process FILE SOLVER SECONDS`` prints JSON.

Only the solver is loaded, because some do not load together.  All run on one thread, to a relative gap of 1e-9, otherwise with
the settings that they come with.  Building their model counts, importing and reading do not.

The file holds a quadratic function of labels 0 and 1 with pairs that exclude each other, a function of discrete variables, or both
(:func:`bench.contest.write`).  What comes back is labels, the bound, nodes, seconds, and whether the solver says that it is done.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bench.exact_forms import decimals, linearised, tables
from blocklp.general_solvers.small_lp import quiet_highs

GAP = 1e-9

Answer = dict[str, Any]


class TooLargeError(Exception):
    """The licence does not cover the instance."""


def main(file: str, solver: str, seconds: str) -> None:
    """Read, solve, print."""
    given = dict(np.load(file))
    try:
        answer = SOLVERS[solver](given, float(seconds))
    except ModuleNotFoundError:
        answer = {"fault": "missing"}
    except TooLargeError:
        answer = {"fault": "size"}
    print(json.dumps(answer))


def toulbar2(given: Answer, seconds: float) -> Answer:
    """Tables of costs, decimals as they fit."""
    from pytoulbar2 import CFN

    began = time.perf_counter()
    counts, constant, factors = tables(given)
    digits = decimals(table for _, group in factors for table in group)
    network = CFN(resolution=digits)
    for i, count in enumerate(counts.tolist()):
        network.AddVariable(f"x{i}", list(range(count)))
    network.AddFunction([], constant)
    for scopes, group in factors:
        for scope, table in zip(scopes.tolist(), group, strict=True):
            network.AddFunction(scope, table.ravel().tolist())
    # Whole seconds.
    found = network.Solve(timeLimit=max(1, round(seconds - (time.perf_counter() - began))))
    taken = time.perf_counter() - began
    bound = float(network.GetDDualBound())
    done = found is not None and bound >= found[1] - 0.5 * 10.0**-digits
    return {
        "labels": None if found is None else list(found[0]),
        "bound": bound,
        "nodes": int(network.GetNbNodes()),
        "seconds": taken,
        "done": bool(done),
    }


def cp_sat(given: Answer, seconds: float) -> Answer:
    """A literal for every product, or for every pair of labels; coefficients as integers."""
    from ortools.sat.python import cp_model

    began = time.perf_counter()
    model = cp_model.CpModel()
    if "linear" in given:
        linear, edges, quadratic = given["linear"], given["edges"], given["quadratic"]
        scale = 10 ** decimals([linear, quadratic])
        offset = float(given["offset"])
        y = [model.new_bool_var("") for _ in linear]
        z = [model.new_bool_var("") for _ in quadratic]
        for (i, j), p, product in zip(edges.tolist(), quadratic, z, strict=True):
            if p > 0:
                model.add_bool_or(~y[i], ~y[j], product)
            else:
                model.add_implication(product, y[i])
                model.add_implication(product, y[j])
        for i, j in given["conflicts"].tolist():
            model.add_bool_or(~y[i], ~y[j])
        literals, costs = y + z, np.concatenate([linear, quadratic])
    else:
        counts, offset, factors = tables(given)
        scale = 10 ** decimals(table for _, group in factors for table in group)
        x = [[model.new_bool_var("") for _ in range(count)] for count in counts]
        for own in x:
            model.add_exactly_one(own)
        literals, costs = [], []
        for scopes, group in factors:
            for scope, table in zip(scopes.tolist(), group, strict=True):
                held = _joint(model, x, scope, table)
                for literal, cost in held:
                    literals.append(literal)
                    costs.append(cost)
        y = [literal for own in x for literal in own]
    whole = np.rint(np.asarray(costs) * scale).astype(np.int64).tolist()
    model.minimize(sum(c * v for c, v in zip(whole, literals, strict=True) if c))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = max(0.1, seconds - (time.perf_counter() - began))
    status = solver.solve(model)
    taken = time.perf_counter() - began
    some = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    point = np.array([solver.value(v) for v in y]) if some else None
    return {
        "labels": None if point is None else _labels(given, point),
        "bound": solver.best_objective_bound / scale + offset,
        "nodes": int(solver.num_branches),
        "seconds": taken,
        "done": status == cp_model.OPTIMAL,
    }


def _joint(model: Any, x: list[Any], scope: list[int], table: Any) -> list[tuple[Any, float]]:
    """Literals of the labels of a factor that are not forbidden, with their costs."""
    if len(scope) == 1:
        for k in np.flatnonzero(np.isinf(table)):
            model.add(x[scope[0]][k] == 0)
        return [(literal, cost) for literal, cost in zip(x[scope[0]], table.tolist(), strict=True) if np.isfinite(cost)]
    allowed = np.argwhere(np.isfinite(table))
    held = [model.new_bool_var("") for _ in allowed]
    for axis, i in enumerate(scope):
        for k, literal in enumerate(x[i]):
            model.add(sum(held[row] for row in np.flatnonzero(allowed[:, axis] == k)) == literal)
    return [(literal, float(table[tuple(entry)])) for literal, entry in zip(held, allowed, strict=True)]


def highs(given: Answer, seconds: float, **options: Any) -> Answer:
    """The linearised program."""
    import highspy

    began = time.perf_counter()
    program = linearised(given)
    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = program["A"].shape
    model.col_cost_, model.offset_ = program["c"], program["offset"]
    model.col_lower_, model.col_upper_ = np.zeros(len(program["c"])), program["upper"]
    model.row_lower_, model.row_upper_ = program["low"], program["high"]
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_, model.a_matrix_.index_ = program["A"].indptr, program["A"].indices
    model.a_matrix_.value_ = program["A"].data
    whole = options.pop("whole", True)
    if whole:
        kinds = np.where(program["whole"], highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous)
        model.integrality_ = kinds.tolist()
    solver = quiet_highs()
    settings = {"threads": 1, "mip_rel_gap": GAP, "mip_abs_gap": 0.0, **options}
    for key, value in settings.items():
        solver.setOptionValue(key, value)
    solver.passModel(model)
    solver.setOptionValue("time_limit", max(0.1, seconds - (time.perf_counter() - began)))
    solver.run()
    taken = time.perf_counter() - began
    info, done = solver.getInfo(), solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    some = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    bound = info.mip_dual_bound if whole else info.objective_function_value if done else -np.inf
    point = np.array(solver.getSolution().col_value)[: program["labels"]] if some and whole else None
    return {
        "labels": None if point is None else _labels(given, np.rint(point).astype(int)),
        "bound": float(bound),
        "nodes": int(info.mip_node_count) if whole else None,
        "seconds": taken,
        "done": done,
    }


def highs_lp(given: Answer, seconds: float) -> Answer:
    """The LP of the linearised program, by the interior point method without crossover."""
    return highs(given, seconds, whole=False, solver="ipm", run_crossover="off")


def highs_root(given: Answer, seconds: float) -> Answer:
    """The bound of its cuts at the root node."""
    return highs(given, seconds, mip_max_nodes=1)


def gurobi(given: Answer, seconds: float) -> Answer:
    """The quadratic program where the licence takes it, else the linearised one."""
    import gurobipy

    options = {"OutputFlag": 0, "Threads": 1, "MIPGap": GAP, "MIPGapAbs": 0.0}
    forms = (_quadratic, _linear) if "linear" in given and len(given["quadratic"]) else (_linear,)
    for form in forms:
        began = time.perf_counter()
        try:
            with gurobipy.Env(params=options) as env, gurobipy.Model(env=env) as model:
                x, offset, count = form(model, given)
                model.Params.TimeLimit = max(0.1, seconds - (time.perf_counter() - began))
                model.optimize()
                taken = time.perf_counter() - began
                point = np.rint(x.X[:count]).astype(int) if model.SolCount else None
                return {
                    "labels": None if point is None else _labels(given, point),
                    "bound": float(model.ObjBound) + offset,
                    "nodes": int(model.NodeCount),
                    "seconds": taken,
                    "done": model.Status == gurobipy.GRB.OPTIMAL,
                }
        except gurobipy.GurobiError as error:
            if error.errno != gurobipy.GRB.Error.SIZE_LIMIT_EXCEEDED:
                raise
    raise TooLargeError


def _quadratic(model: Any, given: Answer) -> tuple[Any, float, int]:
    linear, edges, quadratic = given["linear"], given["edges"], given["quadratic"]
    y = model.addMVar(len(linear), vtype="B")
    matrix = csr_array((quadratic, edges.T), shape=(len(linear), len(linear)))
    model.setObjective(y @ matrix @ y + linear @ y)
    if len(given["conflicts"]):
        model.addConstr(y[given["conflicts"][:, 0]] + y[given["conflicts"][:, 1]] <= 1)
    return y, float(given["offset"]), len(linear)


def _linear(model: Any, given: Answer) -> tuple[Any, float, int]:
    program = linearised(given)
    x = model.addMVar(len(program["c"]), ub=program["upper"], vtype=np.where(program["whole"], "B", "C"))
    model.setObjective(program["c"] @ x)
    equal = program["low"] == program["high"]
    for rows, sense in ((equal, "="), (~equal, "<")):
        if rows.any():
            model.addMConstr(program["A"][np.flatnonzero(rows)], x, sense, program["high"][rows])
    return x, program["offset"], program["labels"]


def _labels(given: Answer, point: Any) -> list[int]:
    """Labels of indicators, which a function of labels 0 and 1 has as they are."""
    if "linear" in given:
        return [int(v) for v in point]
    first = np.concatenate([[0], np.cumsum(given["counts"])])
    return [int(np.argmax(point[a:b])) for a, b in itertools.pairwise(first)]


SOLVERS = {"toulbar2": toulbar2, "CP-SAT": cp_sat, "HiGHS": highs, "Gurobi": gurobi, "HiGHS LP": highs_lp, "HiGHS root": highs_root}

if __name__ == "__main__":
    main(*sys.argv[1:])
