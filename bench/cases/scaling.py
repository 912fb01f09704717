"""Seconds to a certified error against the size of the graph (the question of the thesis's Figure 4.2)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench import curves, ours
from bench.instances import barabasi_albert, erdos_renyi, sparse_erdos_renyi
from bench.registry import Options, Record, case
from bench.rivals import RIVALS, written_out
from bench.text import ratio, skipped, table, tally, verdict
from bench.truth import Exact, all_halves, roof
from blocklp.problems.qpbo import Qubo

FAMILIES = {
    "BA, connectivity 4": (barabasi_albert, (100, 300, 1000, 3000, 10_000, 30_000, 100_000)),
    "ER, mean degree 4": (partial(sparse_erdos_renyi, degree=4), (100, 300, 1000, 3000, 10_000, 30_000, 100_000)),
    "ER, probability 0.4": (erdos_renyi, (100, 300, 1000)),
}
QUICK = {"BA, connectivity 4": (barabasi_albert, (100, 200)), "ER, probability 0.4": (erdos_renyi, (60,))}
DENSE = 3000
LARGEST_FLOW = 300_000
"""Edges above which max-flow takes minutes on a dense graph."""

GAPS = (1e-2, 1e-3, 1e-4)
PASSES = 5000
RIVAL_SECONDS = 120.0
"""Limit of one rival on one LP; larger ones of the family are then left out."""

OURS = "blocklp"


def page(records: list[Record]) -> str:
    mine = [r for r in records if r["solver"] == OURS]
    ours_by = {(r["family"], r["n"]): r for r in mine}
    own = [[r["family"], r["n"], r["edges"], r["build"], *r["seconds"], *r["passes"], r["error_percent"], r["gap"]] for r in mine]
    rows, judged = [], []
    for r in records:
        if r["solver"] != OURS and not r["skipped"]:
            mate = ours_by[r["family"], r["n"]]
            # The rival's whole time against our whole time to 0.01 %.
            last = mate["seconds"][-1]
            times = ratio(r["total"], None if last is None else mate["build"] + last)
            whole = None if r["error_percent"] is None else times
            judged.append((f"{r['family']}, n = {r['n']}, {r['solver']}", whole))
            rows.append(
                [r["family"], r["n"], r["solver"], r["build"], r["solve"], r["error_percent"], r["status"], times, verdict(whole)]
            )
    seconds = [f"s to {100 * g:g} %" for g in GAPS]
    passes = [f"passes to {100 * g:g} %" for g in GAPS]
    parts = [
        "Weighted maximum independent set, one instance a size. A *certified* error is blocklp's own relative gap between its "
        "bound and its primal point: it knows when it is there. The seconds to a gap leave out building, and hold setting up and "
        "the final certificate.",
        "## blocklp",
        table(["family", "n", "edges", "build s", *seconds, *passes, "true error %", "last gap"], own),
        "## Rivals",
        "Building and solving are apart; *ratio* is the rival's build and solve over blocklp's build and solve to 0.01 %. LP "
        "solvers get the smaller LP, without rows that cannot bind, and writing it out is not counted against them. First-order "
        "solvers stop at 1e-4; the error is that of their objective, which unlike blocklp's bound may err to either side. "
        "thinqpbo is exact; its wheel takes one Python call a term, which is most of *build*. OR-tools runs in a process of its "
        "own, since its library and highspy's clash in one; its seconds are measured in there.",
        table(["family", "n", "solver", "build s", "solve s", "error %", "status", "ratio", "blocklp"], rows),
        tally(judged),
    ]
    if left := skipped(records):
        parts.append("Left out:\n\n" + left)
    return "\n\n".join(parts)


def figures(records: list[Record], out: Path) -> list[str]:
    families = list(dict.fromkeys(r["family"] for r in records))
    panels = []
    for family in families:
        here = [r for r in records if r["family"] == family and not r["skipped"]]
        lines = []
        for column, gap in enumerate(GAPS):
            done = [r for r in here if r["solver"] == OURS and r["seconds"][column] is not None]
            whole = [r["build"] + r["seconds"][column] for r in done]
            lines.append((f"blocklp to {100 * gap:g} %", [r["n"] for r in done], whole))
        for solver in ("thinqpbo", *RIVALS):
            done = [r for r in here if r["solver"] == solver and r["error_percent"] is not None]
            lines.append((solver, [r["n"] for r in done], [r["total"] for r in done]))
        panels.append([line for line in lines if line[1]])
    curves.panels(out / "scaling.png", families, [("nodes", panels)], "seconds, build and solve")
    return ["scaling.png"]


@case("Scaling: seconds to a certified error against size", page, figures)
def scaling(options: Options) -> Iterator[Record]:
    """Yield a record a size and solver."""
    families = QUICK if options.quick else FAMILIES
    ours.solve(barabasi_albert(50, 0), options.device, passes=20)  # what only the first call costs
    for family, (make, sizes) in families.items():
        late: dict[str, str] = {}
        extra = (DENSE,) if options.dense and make is erdos_renyi else ()
        for n in (*sizes, *extra):
            qubo = make(n, seed=0)
            head = {"family": family, "n": n, "edges": len(qubo.edges), "name": f"{family}, n = {n}", "skipped": None}
            # Exact by symmetry on dense random graphs, and never below the optimum.
            closed = make is erdos_renyi and len(qubo.edges) > LARGEST_FLOW
            exact = Exact(all_halves(qubo), 0.0, 0.0) if closed else roof(qubo)
            yield {**head, "solver": OURS, **_ours(qubo, exact.value, options.device)}
            if closed:
                yield {**head, "solver": "thinqpbo", "skipped": "thinqpbo takes minutes; the truth is -sum(w)/2"}
            else:
                flow = {"build": exact.build, "solve": exact.solve, "total": exact.build + exact.solve}
                yield {**head, "solver": "thinqpbo", **flow, "error_percent": 0.0, "status": "exact"}
            yield from _rivals(head, qubo, exact.value, late)


def _ours(qubo: Qubo, truth: float, device: str) -> Record:
    run = ours.solve(qubo, device, tol=GAPS[-1], passes=PASSES, patience=PASSES)
    reached = [run.reached(g) for g in GAPS]
    bound = float(run.solution.bound[0])
    return {
        "build": run.build,
        "seconds": [s for s, _ in reached],
        "passes": [p for _, p in reached],
        "solve": run.solve,
        "gap": float(run.solution.gap[0]),
        "error_percent": 100 * (truth - bound) / abs(truth),
        "status": run.solution.status[0].name.lower(),
        "bounds": [bound],
        "truths": [truth],
    }


def _rivals(head: Record, qubo: Qubo, truth: float, late: dict[str, str]) -> Iterator[Record]:
    began = time.perf_counter()
    lp = written_out(qubo)
    export = time.perf_counter() - began
    for name, run in RIVALS.items():
        if name in late:
            yield {**head, "solver": name, "name": f"{name} on {head['name']}", "skipped": late[name]}
            continue
        answer = run(lp, RIVAL_SECONDS)
        if "too large" in answer.status:
            late[name] = "the size-limited licence that comes with gurobipy covers 2000 variables and rows"
            yield {**head, "solver": name, "name": f"{name} on {head['name']}", "skipped": late[name]}
            continue
        if answer.objective is None:
            late[name] = f"no answer within {RIVAL_SECONDS:g} s at a smaller size"
        yield {
            **head,
            "solver": name,
            "export": export,
            "build": answer.build,
            "solve": answer.solve,
            "total": answer.build + answer.solve,
            "error_percent": None if answer.objective is None else 100 * abs(truth - answer.objective) / abs(truth),
            "status": answer.status,
        }
