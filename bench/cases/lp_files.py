"""Linear programs from files against HiGHS: a folder of MPS and LP files, such as Netlib's."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

import blocklp as bl
from bench.data import data
from bench.registry import Record, case
from blocklp.errors import FormatError, NonFiniteError
from blocklp.general_solvers.linear_program import loaded_highs
from blocklp.problems.lp import read_linear_program

LIMIT, TOLERANCE = 60.0, 1e-4
NAMES = ("file", "rows", "columns", "entries", "HiGHS", "value", "HiGHS seconds", "PDLP seconds")
EMPTY: Record = dict.fromkeys((*NAMES, "blocklp", "bound", "gap", "declared", "passes", "seconds", "findings"))
"""A row that says nothing yet."""

QUICK = "Minimize\n x + 2 y\nSubject To\n a: x + y >= 3\n b: x - y <= 1\nEnd\n"


def record(path: Path, limit: float) -> Record:
    """One file by HiGHS's choice of methods and by its PDLP, and by ours."""
    import highspy

    name = ("highs-" if path.parent.name == "highs" else "") + path.name.split(".")[0]
    try:
        program = read_linear_program(path).program
    except FormatError:
        return EMPTY | {"file": name, "HiGHS": "cannot read it, or no LP"}
    rows, columns = program.A.shape
    seen = EMPTY | {"file": name, "rows": rows, "columns": columns, "entries": program.A.nnz}
    sign = -1.0 if program.maximize else 1.0
    exact = loaded_highs(program, time_limit=limit)
    exact.run()
    status = exact.modelStatusToString(exact.getModelStatus())
    value, seconds = exact.getInfo().objective_function_value + program.offset, exact.getRunTime()
    loose = {f"{key}_tolerance": TOLERANCE for key in ("primal_feasibility", "dual_feasibility", "pdlp_optimality")}
    pdlp = loaded_highs(program, solver="pdlp", time_limit=limit, **loose)
    pdlp.run()
    # PDLP ends by its own measure; HiGHS then calls most of its answers unknown, since they miss absolute tolerances.
    ended = (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kUnknown)
    there = status == "Optimal" and pdlp.getModelStatus() in ended and pdlp.getRunTime() < limit
    seen |= {"HiGHS": status.lower(), "value": value if status == "Optimal" else None, "HiGHS seconds": seconds}
    seen |= {"PDLP seconds": pdlp.getRunTime() if there else None}
    try:
        found = bl.lp.solve_linear_program(program, tol=TOLERANCE, time_limit=limit)
    except NonFiniteError:
        return seen | {"HiGHS": f"{status.lower()}, but it holds NaN", "blocklp": "refused", "value": None}
    wrong = status == "Optimal" and found.status in (bl.Status.INFEASIBLE, bl.Status.UNBOUNDED)
    if status == "Optimal":
        wrong |= sign * (found.bound - value) > 1e-7 * abs(value) + 1e-7
    wrong |= status in ("Infeasible", "Unbounded") and found.status is bl.Status.OPTIMAL
    return seen | {
        "blocklp": str(found.status),
        "bound": found.bound,
        "gap": found.gap,
        "declared": len(found.declared),
        "passes": found.passes,
        "seconds": found.seconds,
        "findings": int(wrong),
    }


def summary(records: list[Record]) -> Record:
    """How many of those that PDLP solves, and of all with an optimum, are certified; what is proved of the others."""
    read = [r for r in records if r["seconds"] is not None]
    solved, optimal = [r for r in read if r["PDLP seconds"] is not None], [r for r in read if r["HiGHS"] == "optimal"]
    none = [r for r in read if r["HiGHS"] in ("infeasible", "unbounded")]
    done = [sum(r["blocklp"] == "optimal" for r in some) for some in (solved, optimal)]
    proofs = sum(r["blocklp"] == r["HiGHS"] for r in none)
    said = f"{done[0]} of {len(solved)} that PDLP solves, {done[1]} of all optima, {proofs} of {len(none)} proved to have none"
    return EMPTY | {
        "file": "all",
        "HiGHS": f"{len(optimal)} optima, {len(none)} without",
        "blocklp": said,
        "declared": sum(r["declared"] > 0 for r in optimal),
        "findings": sum(r["findings"] for r in read),
    }


@case(
    "lp_files",
    "Linear programs from files",
    "All MPS and LP files of `blocklp data fetch lp/netlib lp/highs` (coin-or-tools/Data-Netlib, and `check/instances` of "
    "ERGO-Code/HiGHS, marked `highs-`; integers are relaxed), one thread, a minute each. HiGHS by its "
    "choice of methods to 1e-9 and by PDLP to 1e-4, by its own measure; ours to a certified gap of 1e-4, presolve included. "
    "`declared`: variables that our bound assumes to be bounded, in the last row LPs with any. `findings`: a bound above HiGHS's "
    "value, or a status that contradicts it.",
)
def run(quick: bool) -> Iterator[Record]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        limit, folders = (10.0, [Path(made)]) if quick else (LIMIT, [data("lp/netlib"), data("lp/highs")])
        if quick:
            Path(made, "quick.lp").write_text(QUICK)
        records = []
        for path in sorted((p for folder in folders for p in folder.iterdir()), key=lambda p: p.stat().st_size):
            records.append(record(path, limit))
            print(records[-1], file=sys.stderr, flush=True)
            yield records[-1]
    yield summary(records)
