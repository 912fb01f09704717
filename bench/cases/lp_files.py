"""Linear programs from files against HiGHS: a folder of MPS and LP files, such as Netlib's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import blocklp as bl
from bench.registry import Record, case
from blocklp.problems.lp import read_linear_program
from blocklp.reference import loaded_highs

FOLDER = "BLOCKLP_LP_FILES"
"""Environment variable with the folder; the files are not part of the project."""

LIMIT, TOLERANCE = 60.0, 1e-4
QUICK = "Minimize\n x + 2 y\nSubject To\n a: x + y >= 3\n b: x - y <= 1\nEnd\n"


def record(path: Path, limit: float) -> Record:
    """One file by HiGHS's simplex and PDLP, and by ours."""
    import highspy

    given = read_linear_program(path)
    program = given.program
    sign = -1.0 if program.maximize else 1.0
    exact = loaded_highs(program, time_limit=limit)
    exact.run()
    status = exact.modelStatusToString(exact.getModelStatus())
    value, seconds = exact.getInfo().objective_function_value + program.offset, exact.getRunTime()
    loose = {f"{key}_tolerance": TOLERANCE for key in ("primal_feasibility", "dual_feasibility", "pdlp_optimality")}
    pdlp = loaded_highs(program, solver="pdlp", time_limit=limit, **loose)
    pdlp.run()
    there = pdlp.getModelStatus() == highspy.HighsModelStatus.kOptimal
    found = bl.solve_linear_program(program, tol=TOLERANCE, time_limit=limit)
    above = sign * (found.bound - value)
    wrong = status == "Optimal" and (above > 1e-7 * abs(value) + 1e-7 or found.status in (bl.Status.INFEASIBLE, bl.Status.UNBOUNDED))
    wrong |= status == "Infeasible" and found.status is bl.Status.OPTIMAL
    return {
        "file": path.name.split(".")[0],
        "rows": program.A.shape[0],
        "columns": program.A.shape[1],
        "HiGHS": status.lower(),
        "value": value if status == "Optimal" else None,
        "HiGHS seconds": seconds,
        "PDLP seconds": pdlp.getRunTime() if there else None,
        "blocklp": str(found.status),
        "bound": found.bound,
        "gap": found.gap,
        "declared": len(found.declared),
        "passes": found.passes,
        "seconds": found.seconds,
        "findings": int(wrong),
    }


@case(
    "lp_files",
    "Linear programs from files",
    "All MPS and LP files of the folder that `BLOCKLP_LP_FILES` names (Netlib's LPs of coin-or-tools/Data-Netlib for this page), one "
    "thread, a minute each. HiGHS by its choice of methods to 1e-9 and by PDLP to 1e-4; ours to a certified gap of 1e-4, presolve "
    "included. `declared`: variables for which no finite bound is implied, so that our bound assumes one. `findings`: a bound above "
    "HiGHS's value, or a status that contradicts it.",
)
def run(quick: bool) -> list[Record]:
    torch.set_num_threads(1)
    if quick:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "quick.lp"
            path.write_text(QUICK)
            return [record(path, 10.0)]
    folder = os.environ.get(FOLDER)
    if folder is None:
        sys.exit(f"set {FOLDER} to a folder with .mps and .lp files")
    made = []
    for path in sorted(Path(folder).iterdir(), key=lambda p: p.stat().st_size):
        made.append(record(path, LIMIT))
        print(made[-1], file=sys.stderr, flush=True)
    return made
