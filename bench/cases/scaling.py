"""Seconds against size, as in Fig. 4.2 of the thesis."""

from __future__ import annotations

import os
import time

import torch
from matplotlib.figure import Figure

import blocklp as bl
from bench.instances import ba, er
from bench.registry import Record, case
from bench.rivals import highs, max_flow, mpax, or_tools_pdlp
from blocklp.errors import BlocklpError
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.backend import VARIABLE
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model


def reached(solution: bl.Solution, truth: float, error: float) -> tuple[int | None, float | None]:
    """Passes and seconds after which the bound is within a relative error of the truth."""
    for e in solution.history:
        if truth - e.bound.item() <= error * abs(truth):
            return e.passes, e.seconds
    return None, None


def one(qubo: Qubo, quick: bool) -> Record:
    """All solvers on one instance; the slow ones only where they take at most some minutes."""
    truth, build, solve = max_flow(qubo)
    began = time.perf_counter()
    solver = roof_duality_model(qubo).compile(dtype=torch.float32)
    solver.decomposition()
    built = time.perf_counter() - began
    solver.solve(passes=22)  # compiles or loads what large instances use
    ready = time.perf_counter() - began - built
    solution = solver.solve(tol=1e-4, passes=3000, history=True)
    row: Record = {"graph": qubo.name, "edges": len(qubo.edges), "build": built, "warm-up": ready}
    for error, name in ((1e-2, "1 %"), (1e-3, "0.1 %"), (2e-4, "0.02 %"), (1e-4, "0.01 %")):
        row[f"passes to {name}"], row[f"seconds to {name}"] = reached(solution, truth, error)
    row["gap 1e-4 certified"] = solution.seconds.item() if solution.status[0] is bl.Status.OPTIMAL else None
    row["max-flow build"], row["max-flow solve"] = build, solve
    most = {"simplex": 50_000, "ipm": 1_000_000, "pdlp": 5_000}
    for algorithm, edges in most.items():
        row[f"HiGHS {algorithm}"] = highs(qubo, algorithm)[1] if len(qubo.edges) <= (1000 if quick else edges) else None
    row["OR-tools PDLP, 1e-4"] = or_tools_pdlp(qubo, 1e-4) if len(qubo.edges) <= 100_000 else None
    few = len(qubo.edges) <= (1000 if quick else 20_000)
    row["MPAX, 1e-4"] = mpax(roof_duality_model(qubo), 1e-4) if few else None
    row["CVXPY"] = reference(roof_duality_model(qubo), "cvxpy").seconds if few else None
    try:
        row["Gurobi"] = reference(roof_duality_model(qubo), "gurobi").seconds
    except BlocklpError:  # its free licence is limited in size
        row["Gurobi"] = None
    return row


def draw(records: list[Record], figure: Figure) -> None:
    """Seconds against edges on the BA graphs."""
    axes = figure.subplots()
    rows = [r for r in records if r["graph"].startswith("BA")]
    names = [k for k in rows[0] if k.startswith(("seconds to", "HiGHS", "OR-tools", "MPAX", "CVXPY"))] + [
        "gap 1e-4 certified",
        "max-flow solve",
    ]
    for name in names:
        ours = name.startswith(("seconds", "gap"))
        some = [r for r in rows if r[name] is not None]
        if some:
            color = {"max-flow solve": "0.2", "gap 1e-4 certified": "gold"}.get(name)  # the others take all ten of the cycle
            axes.loglog([r["edges"] for r in some], [r[name] for r in some], "o-" if ours else "s--", label=name, color=color)
    axes.set_xlabel("edges (BA graphs)")
    axes.set_ylabel("seconds")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


@case(
    "scaling",
    "Seconds against size (shape of Fig. 4.2)",
    "One instance, float32 with bounds in float64. Ours: passes and seconds until the bound is within 1, 0.1, 0.02 and 0.01"
    " % of the optimum, and until a gap of 1e-4 is certified, after a `warm-up` of 22 passes with compiled loops. HiGHS,"
    " CVXPY (Clarabel) and Gurobi run at tolerance 1e-9, OR-tools PDLP and MPAX (in the folder that `BLOCKLP_MPAX` names,"
    " without compiling) at 1e-4; `-` means not reached, or not run for its size or licence. Max-flow computes roof duality"
    " only, and exactly.",
    draw,
)
def run(quick: bool) -> list[Record]:
    os.environ[VARIABLE] = "numba"
    qubos = [ba(n, 0) for n in ((100, 200) if quick else (100, 300, 1000, 3000, 10_000, 100_000))]
    if not quick:
        qubos += [er(1000, d / 1000, 0) for d in (3, 4, 6)] + [er(300, 0.4, 0), er(1000, 0.4, 0), er(2000, 0.4, 0)]
    return [one(q, quick) for q in qubos]
