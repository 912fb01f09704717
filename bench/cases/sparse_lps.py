"""Sparse random LPs of polytopes against general LP solvers."""

from __future__ import annotations

import math
import sys
import time

import torch

import blocklp as bl
from bench.families import polytopes
from bench.registry import Record, case
from bench.rivals import or_tools_pdlp_on
from blocklp.general_solvers.solvers import reference

OURS = {
    "auto, float64": ("auto", torch.float64),
    "auto, float32": ("auto", torch.float32),
    "admm, float64": ("admm", torch.float64),
}
TOLERANCE = 1e-4
LIMIT = 60.0
CHECKS = 200


def records(dim: int, blocks: int, rivals: tuple[str, ...], ours: tuple[str, ...]) -> list[Record]:
    """One row a solver."""
    model = polytopes(0, dim, blocks, 2 * blocks)
    made: list[Record] = []

    def record(solver: str, seconds: float | None, passes: int | None, gap: float | None, off: float | None, bound: float) -> None:
        made.append({"variables": dim, "blocks": blocks, "solver": solver, "seconds": seconds})
        made[-1] |= {"passes": passes, "gap": gap, "violation": off, "error": bound}
        print(made[-1], file=sys.stderr, flush=True)

    for tolerance in (TOLERANCE / 10, TOLERANCE):
        pdlp = or_tools_pdlp_on(model, tolerance, LIMIT)
        gap = (pdlp["value"] - pdlp["bound"]) / max(1.0, abs(pdlp["value"]), abs(pdlp["bound"]))
        record(f"OR-tools PDLP, {tolerance:.0e}", pdlp["seconds"], pdlp["iterations"], gap, pdlp["violation"], pdlp["bound"])
    for name in ours:
        method, dtype = OURS[name]
        solver = model.compile(dtype=dtype, backend="numba")
        solver.decomposition()
        solver.solve(method=method, passes=12)
        for often, label in ((CHECKS, name), (None, f"{name}, checks by default")):
            began = time.perf_counter()
            found = solver.solve(method=method, tol=TOLERANCE, passes=100_000, check_every=often, time_limit=LIMIT)
            seconds = time.perf_counter() - began
            done = found.status[0] is bl.Status.OPTIMAL
            record(label, seconds if done else None, int(found.passes), float(found.gap), None, found.bound.item())
    for rival in rivals:
        answer = reference(model, rival)
        optimal = answer.status[0] == "optimal"
        record(rival, answer.seconds if optimal else None, None, None, None, answer.objective.item())
    truth = made[-1]["error"] if rivals else None
    for row in made:
        unknown = truth is None or math.isnan(row["error"])
        row["error"] = None if unknown else (truth - row["error"]) / abs(truth)
        row["over PDLP"] = row["seconds"] / pdlp["seconds"] if row["seconds"] and pdlp["seconds"] else None
    return made


@case(
    "sparse_lps",
    "Sparse random LPs of polytopes against general LP solvers",
    "Blocks of 4, 8 and 16 variables with four dense rows each, twice as many variables as blocks. Ours to a certified gap of "
    "1e-4 (a point feasible to 1e-6, a bound with rounding charged), checks every two hundred passes, or as they come by default; "
    "OR-tools PDLP to relative tolerances of 1e-4 and 1e-5 on gap and residuals, HiGHS to 1e-9, both without the time to read the "
    "LP; CVXPY with Clarabel to 1e-9. `gap` of PDLP is that of its value and of the bound that its duals prove, `violation` its "
    "largest violation of a row, which no certificate admits above 2e-6; `error` that of the bound, of HiGHS and CVXPY that of the "
    "value. `over PDLP`: seconds over those of PDLP to 1e-4. Empty: not within a minute, or an answer that CVXPY calls inaccurate; "
    "HiGHS did not end within four minutes on the largest.",
)
def run(quick: bool) -> list[Record]:
    if quick:
        return records(4, 60, ("cvxpy", "highs-simplex", "highs-ipm"), tuple(OURS))
    found = []
    for dim in (4, 8, 16):
        found += records(dim, 500, ("cvxpy", "highs-simplex", "highs-ipm"), tuple(OURS))
        # HiGHS takes more than four minutes on the largest.
        found += records(dim, 5000, ("cvxpy", "highs-ipm") if dim < 16 else (), ("auto, float64", "auto, float32"))
    return found
