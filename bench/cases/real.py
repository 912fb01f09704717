"""QUBO and vertex-cover instances of the literature."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench import ours
from bench.registry import Options, Record, case
from bench.rivals import RIVALS, written_out
from bench.text import ratio, skipped, table, tally, verdict
from bench.truth import roof
from blocklp.problems.mis import read_graph
from blocklp.problems.qpbo import Qubo, read_qubo

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "qpbo"
PASSES = 5000
TOL = 1e-4
RIVAL_SECONDS = 120.0
QUICK = ("bqp50-1", "Grids_11")


def page(records: list[Record]) -> str:
    done = [r for r in records if not r["skipped"]]
    rows, flow, simplex = [], [], []
    for r in done:
        total = r["build"] + r["solve"]
        against = [ratio(r["flow_seconds"], total), None if r["highs_error"] else ratio(r["highs_seconds"], total)]
        flow.append((f"{r['name']}, thinqpbo", against[0]))
        simplex.append((f"{r['name']}, HiGHS", against[1]))
        rows.append(
            [r["name"], r["n"], r["edges"], r["truths"][0], r["bounds"][0], r["error_percent"], r["gap"], r["status"]]
            + [r["passes"], r["build"], r["solve"], r["flow_seconds"], r["highs_error"] or r["highs_seconds"]]
            + [verdict(t) for t in against]
        )
    heads = ["instance", "n", "pairs", "roof dual", "bound", "error %", "gap", "status", "passes", "build s", "solve s"]
    parts = [
        f"Default method, stopped at a relative gap of {TOL:g} or after {PASSES} passes. *Roof dual*: max-flow (thinqpbo, exact). "
        "*gap* is blocklp's own certificate between its bound and its primal point of the LP. Seconds of the rivals are build "
        "and solve; HiGHS is its simplex on the smaller LP, writing it out not counted. Vertex covers (`mwvc`) are stated as "
        "independent sets.",
    ]
    if done:
        reached = sum(r["status"] == "optimal" for r in done)
        least = max(r["error_percent"] for r in done)
        parts += [
            table([*heads, "thinqpbo s", "HiGHS s", "against thinqpbo", "against HiGHS"], rows),
            f"{reached} of {len(done)} instances optimal to {TOL:g}; largest error {least:.3g} %.",
            "Against thinqpbo: " + tally(flow),
            "Against HiGHS: " + tally(simplex),
        ]
    if left := skipped(records):
        parts.append("Left out:\n\n" + left)
    return "\n\n".join(parts)


@case("Instances of the literature", page)
def real(options: Options) -> Iterator[Record]:
    """Yield a record an instance."""
    if not FOLDER.is_dir():
        yield {"name": "all instances", "skipped": "the instance folder shared/data/qpbo beside the checkout is absent"}
        return
    files = sorted((FOLDER / "qubo").glob("*.sparse")) + sorted((FOLDER / "mis" / "mwvc").glob("*.mwvc"))
    for file in files:
        if not options.quick or file.stem in QUICK:
            qubo = read_qubo(file) if file.suffix == ".sparse" else read_graph(file).to_qubo()
            yield _measure(f"{file.parent.name}/{file.stem}", qubo, options.device)


def _measure(name: str, qubo: Qubo, device: str) -> Record:
    exact = roof(qubo)
    run = ours.solve(qubo, device, tol=TOL, passes=PASSES)
    highs = RIVALS["HiGHS simplex"](written_out(qubo), RIVAL_SECONDS)
    bound = float(run.solution.bound[0])
    return {
        "name": name,
        "skipped": None,
        "n": qubo.n,
        "edges": len(qubo.edges),
        "bounds": [bound],
        "truths": [exact.value],
        "error_percent": 100 * (exact.value - bound) / max(abs(exact.value), 1e-12),
        "gap": float(run.solution.gap[0]),
        "status": run.solution.status[0].name.lower(),
        "passes": int(run.solution.passes[0]),
        "build": run.build,
        "solve": run.solve,
        "flow_seconds": exact.build + exact.solve,
        "highs_seconds": highs.build + highs.solve,
        "highs_error": None if highs.objective is not None else highs.status,
    }
