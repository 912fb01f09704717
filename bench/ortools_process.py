"""OR-tools' PDLP on an LP in a folder: ``python -m bench.ortools_process FOLDER SECONDS TOLERANCE`` prints JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from ortools.pdlp import solve_log_pb2, solvers_pb2
from ortools.pdlp.python import pdlp
from scipy.sparse import csc_matrix, load_npz

from bench.lp_answer import worth


def main(folder: str, seconds: str, tolerance: str) -> None:
    """Read, solve, print."""
    given = np.load(Path(folder) / "vectors.npz")
    rows = load_npz(Path(folder) / "rows.npz")
    began = time.perf_counter()
    lp = pdlp.QuadraticProgram()
    lp.resize_and_initialize(rows.shape[1], rows.shape[0])
    lp.objective_vector = given["c"]
    lp.variable_lower_bounds, lp.variable_upper_bounds = given["low"], given["high"]
    lp.constraint_lower_bounds, lp.constraint_upper_bounds = given["above"], given["below"]
    lp.constraint_matrix = csc_matrix(rows)
    params = solvers_pb2.PrimalDualHybridGradientParams()
    criteria = params.termination_criteria
    criteria.time_sec_limit = float(seconds)
    criteria.simple_optimality_criteria.eps_optimal_relative = float(tolerance)
    criteria.simple_optimality_criteria.eps_optimal_absolute = float(tolerance)
    built = time.perf_counter()
    found = pdlp.primal_dual_hybrid_gradient(lp, params)
    done = time.perf_counter()
    reason = solve_log_pb2.TerminationReason.Name(found.solve_log.termination_reason)
    status = reason.removeprefix("TERMINATION_REASON_").lower().replace("_", " ")
    answer = worth(given, rows, found.primal_solution, found.dual_solution) | {"iterations": found.solve_log.iteration_count}
    print(json.dumps({**answer, "build": built - began, "solve": done - built, "status": status}))


if __name__ == "__main__":
    main(*sys.argv[1:])
