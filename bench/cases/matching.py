"""Matching of sources to destinations with capacities, by DuaLip's law, against DuaLip and general LP solvers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

import blocklp as bl
from bench.registry import Record, case
from bench.rivals import or_tools_pdlp_on
from blocklp.general_solvers.solvers import reference
from blocklp.problems.matching import Matching, matching_model, solve_matching, write_matching

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = ((1_000, 50, 0.1), (10_000, 100, 0.05), (100_000, 1_000, 0.01), (1_000_000, 10_000, 0.001))
TOLERANCE = 1e-4
LIMIT = 200.0
SMALL, MIDDLE = 200_000, 2_000_000
"""Edges up to which HiGHS is asked, and up to which all others but ourselves are."""

ITERATIONS = {50_000: 1000, MIDDLE: 300}
"""Iterations of DuaLip, by edges; it has no stopping test."""


def dualip(data: Matching, iterations: int) -> tuple[float, float, float] | None:
    """CPU seconds of DuaLip, and what the judge makes of its prices and point; None where no checkout is named."""
    if "BLOCKLP_DUALIP" not in os.environ:
        return None
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "given.npz", Path(folder) / "out.npz"
        write_matching(given, data)
        command = [sys.executable, "-W", "ignore", "-m", "bench.dualip_process", str(given), str(iterations), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        answer = np.load(out)
        seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]
        return seconds, data.bound(answer["price"])[1], data.worth(data.repaired(answer["x"]))


def records(size: tuple[int, int, float]) -> list[Record]:
    """One row a solver."""
    data = Matching.random(*size)
    common = {"sources": size[0], "destinations": size[1], "edges": data.edges}
    made: list[Record] = []

    def record(solver: str, seconds: float | None, passes: int | None, bound: float | None, value: float | None) -> None:
        gap = None if bound is None or value is None else (bound - value) / abs(bound)
        made.append({**common, "solver": solver, "seconds": seconds, "passes": passes, "gap": gap, "bound": bound, "value": value})
        print(made[-1], file=sys.stderr, flush=True)

    for tolerance in (TOLERANCE, 1e-8):
        began = time.process_time()
        found = solve_matching(data, tol=tolerance, time_limit=LIMIT)
        seconds = time.process_time() - began if found.status is bl.Status.OPTIMAL else None
        record(f"blocklp, {tolerance:.0e}", seconds, found.passes, found.safe_bound, found.primal)
    if data.edges > MIDDLE:
        return made
    began = time.process_time()
    m = matching_model(data)
    answer = m.solve(tol=TOLERANCE, time_limit=LIMIT)
    seconds = time.process_time() - began if answer.status[0] is bl.Status.OPTIMAL else None
    price, x = answer.price("capacity")[0].numpy(), answer.x["x"][0].numpy()
    record("blocklp, as a model", seconds, int(answer.passes), data.bound(price)[1], data.worth(data.repaired(x)))
    for tolerance in (TOLERANCE, TOLERANCE / 10):
        pdlp = or_tools_pdlp_on(m, tolerance, LIMIT)
        record(f"OR-tools PDLP, {tolerance:.0e}", pdlp["seconds"], pdlp["iterations"], pdlp["bound"], pdlp["value"])
    iterations = next(most for edges, most in ITERATIONS.items() if data.edges <= edges)
    if (theirs := dualip(data, iterations)) is not None:
        record("DuaLip", theirs[0], iterations, *theirs[1:])
    if data.edges <= SMALL:
        for rival in ("highs-ipm", "highs-simplex"):
            exact = reference(m, rival)
            record(rival, exact.seconds, None, exact.objective.item(), data.worth(data.repaired(exact.x["x"][0].numpy())))
    return made


def draw_picture(records: list[Record], figure: Figure) -> None:
    """Seconds against edges."""
    axes = figure.subplots()
    for solver in dict.fromkeys(r["solver"] for r in records):
        own = [r for r in records if r["solver"] == solver and r["seconds"] is not None]
        axes.plot([r["edges"] for r in own], [r["seconds"] for r in own], "o-", label=solver)
    axes.set(xscale="log", yscale="log", xlabel="edges", ylabel="seconds")
    axes.legend()


@case(
    "matching",
    "Matching with capacities, against DuaLip and general LP solvers",
    "Random matchings by the law of DuaLip's generator: lognormal breadth, scale and worth of destinations, affinity of "
    "sources and noise of edges, capacities of half to all of the load where every source takes its largest. One thread, CPU "
    "seconds of ours and of DuaLip, seconds in the solver of the others. `bound` and `value` of ours and of DuaLip are what a "
    "judge of a few lines makes of prices and of points scaled into the limits; those of PDLP what its duals prove by the "
    "bounds of variables and what its point is worth, feasible or not; HiGHS is exact. DuaLip (in the folder that "
    "`BLOCKLP_DUALIP` names; float32, regularisation 1e-4, Jacobi preconditioning) makes as many iterations as its column "
    "says, as it has no stopping test.",
    draw=draw_picture,
)
def run(quick: bool) -> list[Record]:
    torch.set_num_threads(1)
    solve_matching(Matching.random(*SIZES[0]))  # loops are loaded
    return [row for size in (SIZES[:1] if quick else SIZES) for row in records(size)]
