"""Many instances at once (the question of the thesis's Figure 4.3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bench import curves, ours
from bench.instances import barabasi_albert
from bench.registry import Options, Record, case
from bench.rivals import RIVALS, written_out
from bench.text import ratio, table, tally, verdict
from bench.truth import roof
from blocklp import Status
from blocklp.problems.qpbo import Qubo

NODES = 200
BATCHES = (1, 4, 16, 64, 256, 1024)
TOLS = (1e-2, 1e-3, 1e-4)
COMPARED = 256
"""Size of the batch that is solved again one instance after the other, all of it."""

SAMPLE = 64
"""Instances that others solve one after the other; seconds of larger batches are scaled up from them."""

BATCHED, ALONE, FLOW, HIGHS = "blocklp, one batch", "blocklp, one by one", "thinqpbo, one by one", "HiGHS, one by one"


def page(records: list[Record]) -> str:
    runs = [r for r in records if r["kind"] == "run"]
    mine = {(r["batch"], r["tol"]): r for r in runs if r["solver"] == BATCHED}
    rows, judged = [], []
    for r in runs:
        mate = mine[r["batch"], r["tol"] if r["tol"] is not None else TOLS[-1]]
        times = None if r is mate else ratio(r["total"], mate["total"])
        goal = "exact" if r["tol"] is None else f"{100 * r['tol']:g} %"
        judged.append((f"batch of {r['batch']} to {goal}, {r['solver']}", times))
        scaled = f"from {r['measured']}" if r["measured"] < r["batch"] else "all"
        rows.append(
            [r["batch"], r["solver"], goal, r["passes"], r["build"], r["solve"], r["total"], r["batch"] / r["total"]]
            + [r["optimal"], scaled, times, "–" if r is mate else verdict(times)]
        )
    heads = ["batch", "solver", "to", "passes", "build s", "solve s", "total s", "bounds per s", "optimal", "measured"]
    parts = [
        f"Barabási-Albert graphs of {NODES} nodes, connectivity 4, all different. blocklp to a certified relative gap in each "
        "instance (*optimal*: how many reached it), instances leaving the batch as they are done; *passes* are those of the "
        f"slowest instance. Solvers that go one by one solve {SAMPLE} instances of a larger batch, and their seconds are scaled. "
        "*Ratio*: total seconds over those of the batch to the same gap (to 0.01 % for exact solvers).",
        table([*heads, "ratio", "the batch"], rows),
        tally(judged),
    ]
    for r in records:
        if r["kind"] == "comparison":
            parts.append(
                f"A batch of {r['batch']} against {r['batch']} single runs, all measured, to 0.01 %: {r['single']:.3g} s over "
                f"{r['batched']:.3g} s = **{r['ratio']:.3g}**; largest difference of the bounds {r['difference']:.2g} (relative "
                f"{r['relative_difference']:.2g})."
            )
    return "\n\n".join(parts)


def figures(records: list[Record], out: Path) -> list[str]:
    lines = []
    for solver in (BATCHED, ALONE, FLOW, HIGHS):
        for tol in (None, *TOLS):
            done = [r for r in records if r["kind"] == "run" and r["solver"] == solver and r["tol"] == tol]
            label = solver if tol is None else f"{solver}, {100 * tol:g} %"
            if done and (solver != ALONE or tol == TOLS[-1]):
                lines.append((label, [r["batch"] for r in done], [r["batch"] / r["total"] for r in done]))
    curves.panels(out / "batch.png", ["BA-200"], [("batch", [lines])], "bounds per second")
    return ["batch.png"]


@case("Batches: bounds per second", page, figures)
def batch(options: Options) -> Iterator[Record]:
    """Yield a record a batch size, solver and gap, and the comparison of one batch with single runs."""
    sizes, compared = ((1, 8), 8) if options.quick else (BATCHES, COMPARED)
    qubos = [barabasi_albert(NODES, seed) for seed in range(max(sizes))]
    truths = [roof(q).value for q in qubos]
    ours.solve(qubos[:2], options.device, passes=20)  # what only the first call costs
    for size in sizes:
        head = {"kind": "run", "batch": size}
        for tol in TOLS:
            run = ours.solve(qubos[:size], options.device, tol=tol)
            yield {**head, "solver": BATCHED, "tol": tol, "measured": size, **_ours([run]), "truths": truths[:size]}
            some = min(size, SAMPLE)
            runs = [ours.solve(q, options.device, tol=tol) for q in qubos[:some]]
            yield {**head, "solver": ALONE, "tol": tol, "measured": some, **_ours(runs, size / some), "truths": truths[:some]}
        flows = [roof(q) for q in qubos[:size]]
        build, solve = sum(f.build for f in flows), sum(f.solve for f in flows)
        yield {**head, "solver": FLOW, "measured": size, **_exact(build, solve, size)}
        some = min(size, SAMPLE)
        build, solve = _highs(qubos[:some])
        yield {**head, "solver": HIGHS, "measured": some, **_exact(build * size / some, solve * size / some, size)}
    yield _compare(qubos[:compared], options.device)


def _ours(runs: Sequence[ours.Run], scale: float = 1.0) -> Record:
    build, solve = scale * sum(r.build for r in runs), scale * sum(r.solve for r in runs)
    return {
        "passes": max(int(r.solution.passes.max()) for r in runs),
        "build": build,
        "solve": solve,
        "total": build + solve,
        "optimal": sum(s is Status.OPTIMAL for r in runs for s in r.solution.status),
        "bounds": [b for r in runs for b in r.solution.bound.tolist()],
    }


def _exact(build: float, solve: float, size: int) -> Record:
    return {"tol": None, "passes": None, "build": build, "solve": solve, "total": build + solve, "optimal": size}


def _highs(qubos: Sequence[Qubo]) -> tuple[float, float]:
    answers = [RIVALS["HiGHS simplex"](written_out(q), np.inf) for q in qubos]
    return sum(a.build for a in answers), sum(a.solve for a in answers)


def _compare(qubos: Sequence[Qubo], device: str) -> Record:
    def seconds(work: Callable[[], list[float]]) -> tuple[float, np.ndarray]:
        began = time.perf_counter()
        bounds = work()
        return time.perf_counter() - began, np.array(bounds)

    together, joint = seconds(lambda: ours.solve(qubos, device, tol=TOLS[-1]).solution.bound.tolist())
    alone, apart = seconds(lambda: [float(ours.solve(q, device, tol=TOLS[-1]).solution.bound[0]) for q in qubos])
    return {
        "kind": "comparison",
        "batch": len(qubos),
        "batched": together,
        "single": alone,
        "ratio": alone / together,
        "difference": float(np.abs(joint - apart).max()),
        "relative_difference": float((np.abs(joint - apart) / np.abs(apart)).max()),
    }
