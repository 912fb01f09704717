"""Error of the bound while it runs, every method of the package with its default settings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from bench import curves, ours
from bench.instances import barabasi_albert, sparse_erdos_renyi
from bench.registry import Options, Record, case
from bench.text import show, table
from bench.truth import roof
from blocklp import METHODS

SEEDS = 5
PASSES = (10, 30, 100, 300, 600, 1000)
GRAPHS = {
    "BA-200": partial(barabasi_albert, 200),
    "BA-1000": partial(barabasi_albert, 1000),
    "ER-1000, degree 3": partial(sparse_erdos_renyi, 1000, degree=3),
    "ER-1000, degree 4": partial(sparse_erdos_renyi, 1000, degree=4),
    "ER-1000, degree 6": partial(sparse_erdos_renyi, 1000, degree=6),
}
FLOOR = 1e-6
"""Percent; float64 rounding makes what is below meaningless."""


def page(records: list[Record]) -> str:
    passes = records[0]["passes"]
    rows = [[r["graph"], r["method"], *r["error_percent"], r["seconds"]] for r in records]
    return "\n\n".join(
        [
            f"Mean relative error of the best bound over {records[0]['seeds']} seeds, in percent; truth by max-flow. No setting is "
            "tuned: every method runs by its name. Seeds are solved as one batch, and *seconds* are those of all passes.",
            table(["graph", "method", *(f"{k} passes" for k in passes), "seconds"], rows),
            "## Who leads\n\n" + "\n".join(_leads(records)),
        ]
    )


def _leads(records: list[Record]) -> Iterator[str]:
    for graph in dict.fromkeys(r["graph"] for r in records):
        here = [r for r in records if r["graph"] == graph]
        default = next(r for r in here if r["method"] == "prox")
        lost = []
        for column, count in enumerate(default["passes"]):
            best = min(here, key=lambda r: r["error_percent"][column])
            mine, least = default["error_percent"][column], best["error_percent"][column]
            if best is not default and mine > FLOOR:
                lost.append(f"{count} passes ({best['method']} {show(least)} %, prox {show(mine)} %)")
        yield f"- {graph}: the default leads at every count of passes" + (f" but: {'; '.join(lost)}." if lost else ".")


def figures(records: list[Record], out: Path) -> list[str]:
    graphs = list(dict.fromkeys(r["graph"] for r in records))

    def columns(axis: str) -> list[list[tuple[str, list[float], list[float]]]]:
        return [[(r["method"], r[axis], r["curve_percent"]) for r in records if r["graph"] == g] for g in graphs]

    rows = [("passes", columns("curve_passes")), ("seconds", columns("curve_seconds"))]
    curves.panels(out / "anytime.png", graphs, rows, "error of the bound, %", FLOOR)
    return ["anytime.png"]


@case("Anytime bounds: error after a number of passes", page, figures)
def anytime(options: Options) -> Iterator[Record]:
    """Yield a record a graph and method."""
    seeds = 2 if options.quick else SEEDS
    passes = PASSES[:3] if options.quick else PASSES
    for graph, make in list(GRAPHS.items())[: 1 if options.quick else None]:
        qubos = [make(seed=seed) for seed in range(seeds)]
        truths = np.array([roof(q).value for q in qubos])
        for method in METHODS:
            run = ours.to_the_end(qubos, passes[-1], method, options.device)
            bounds = [run.bounds_at(k) for k in passes]
            history = run.solution.history
            yield {
                "graph": graph,
                "method": method,
                "seeds": seeds,
                "passes": list(passes),
                "error_percent": [ours.error(b, truths) for b in bounds],
                "seconds": run.solve,
                "curve_passes": [e.passes for e in history],
                "curve_seconds": [round(e.seconds, 5) for e in history],
                "curve_percent": [ours.error(e.bound.cpu().numpy(), truths) for e in history],
                "bounds": np.concatenate(bounds).tolist(),
                "truths": np.tile(truths, len(passes)).tolist(),
            }
