"""cuPDLPx or cuOpt's PDLP on an LP in a folder: ``python -m bench.gpu_process FOLDER SECONDS TOLERANCE SOLVER`` prints JSON.

Both need a CUDA device.  Neither could be run where this was written: calls are those that their pages show.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, load_npz

from bench.lp_answer import worth


def cupdlpx(given: Any, rows: Any, seconds: float, tolerance: float) -> tuple[dict[str, Any], Any, Any]:
    """Restarted Halpern PDHG (MIT-Lu-Lab/cuPDLPx)."""
    from cupdlpx import Model

    began = time.perf_counter()
    model = Model(
        objective_vector=given["c"],
        constraint_matrix=csr_matrix(rows),
        constraint_lower_bound=given["above"],
        constraint_upper_bound=given["below"],
        variable_lower_bound=given["low"],
        variable_upper_bound=given["high"],
    )
    model.setParams(OutputFlag=False, TimeLimit=seconds, OptimalityTol=tolerance, FeasibilityTol=tolerance)
    built = time.perf_counter()
    model.optimize()
    answer = {"build": built - began, "solve": time.perf_counter() - built, "iterations": int(model.IterCount)}
    return answer | {"status": str(model.Status).lower()}, model.X, model.Pi


def cuopt(given: Any, rows: Any, seconds: float, tolerance: float) -> tuple[dict[str, Any], Any, Any]:
    """PDLP of NVIDIA's cuOpt."""
    from cuopt.linear_programming import DataModel, Solve, SolverSettings

    began, matrix = time.perf_counter(), csr_matrix(rows)
    model, settings = DataModel(), SolverSettings()
    model.set_csr_constraint_matrix(matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32))
    model.set_constraint_lower_bounds(given["above"])
    model.set_constraint_upper_bounds(given["below"])
    model.set_objective_coefficients(given["c"])
    model.set_variable_lower_bounds(given["low"])
    model.set_variable_upper_bounds(given["high"])
    settings.set_optimality_tolerance(tolerance)
    settings.set_parameter("time_limit", seconds)
    settings.set_parameter("method", 1)
    settings.set_parameter("log_to_console", False)
    built = time.perf_counter()
    found = Solve(model, settings)
    answer = {"build": built - began, "solve": time.perf_counter() - built, "iterations": None}
    x, y = found.get_primal_solution(), found.get_dual_solution()
    return answer | {"status": str(found.get_termination_reason()).lower()}, np.asarray(x), np.asarray(y)


def main(folder: str, seconds: str, tolerance: str, solver: str) -> None:
    """Read, solve, print."""
    given, rows = np.load(Path(folder) / "vectors.npz"), load_npz(Path(folder) / "rows.npz")
    answer, x, y = {"cupdlpx": cupdlpx, "cuopt": cuopt}[solver](given, rows, float(seconds), float(tolerance))
    print(json.dumps(answer | worth(given, rows, x, y)))


if __name__ == "__main__":
    main(*sys.argv[1:])
