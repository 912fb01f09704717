"""Error of the bound after some passes, all methods."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib.figure import Figure

import blocklp as bl
from bench.instances import ba, er
from bench.registry import Record, case
from bench.rivals import max_flow
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model

PASSES = (10, 30, 100, 300, 600, 1000)
FAMILIES: dict[str, Callable[[int], Qubo]] = {
    "BA-200": lambda seed: ba(200, seed),
    "BA-1000": lambda seed: ba(1000, seed),
    "ER-1000, mean degree 3": lambda seed: er(1000, 0.003, seed),
    "ER-1000, mean degree 4": lambda seed: er(1000, 0.004, seed),
    "ER-1000, mean degree 6": lambda seed: er(1000, 0.006, seed),
}
METHODS = {
    "prox": bl.Prox(),
    "proxbc": bl.ProxBC(1.0),
    "proxfw": bl.ProxFW(1.0),
    "supergradient": bl.Supergradient(),
    "adam": bl.Adam(),
}


def draw(records: list[Record], figure: Figure) -> None:
    """Error against passes and against seconds, on the graphs of the thesis."""
    chosen = [r for r in records if r["graphs"] == list(FAMILIES)[min(1, len(records) // len(METHODS) - 1)]]
    for axes, what in zip(figure.subplots(1, 2, sharey=True), ("passes", "seconds"), strict=True):
        for r in chosen:
            scale = 1 if what == "passes" else r["seconds"] / PASSES[-1]
            axes.loglog([p * scale for p in PASSES], [max(r[f"{p} passes"], 1e-7) for p in PASSES], marker="o", label=r["method"])
        axes.set_xlabel(what)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel(f"error of the bound in percent, {chosen[0]['graphs']}")
    figure.axes[0].legend()


@case(
    "anytime",
    "Error of the bound against passes, all methods",
    "Mean relative error of the best bound in percent over five weighted independent sets; BA has connectivity 4. ProxBC and ProxFW "
    "run with weight 1, the others as they are by default. Seconds are those of 1000 passes of the batch of five.",
    draw,
)
def run(quick: bool) -> list[Record]:
    records = []
    for family, make in list(FAMILIES.items())[: 1 if quick else None]:
        qubos = [make(seed) for seed in range(2 if quick else 5)]
        truth = torch.tensor([max_flow(q)[0] for q in qubos], dtype=torch.float64)
        solver = bl.compile([roof_duality_model(q) for q in qubos])
        for name, method in METHODS.items():
            solution = solver.solve(method=method, passes=PASSES[-1], tol=0, history=True, patience=10**6)
            row: Record = {"graphs": family, "method": name}
            for passes in PASSES:
                bound = [e.bound for e in solution.history if e.passes <= passes][-1]
                row[f"{passes} passes"] = float(((truth - bound) / truth.abs()).mean()) * 100
            row["seconds"] = float(solution.seconds.max())
            records.append(row)
    return records
