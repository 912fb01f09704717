"""ProxBC and ProxFW against size and number of instances, as in Figs. 4.2 and 4.3 of the thesis."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import torch
from matplotlib.figure import Figure

import blocklp as bl
from bench.instances import ba, er
from bench.registry import Record, case
from bench.rivals import max_flow
from blocklp.kernels.backend import VARIABLE
from blocklp.methods import Method
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model

METHODS = {"proxbc": bl.methods.ProxBC(), "proxfw": bl.methods.ProxFW(), "prox": bl.methods.Prox(), "admm": bl.methods.Admm()}
LEVELS = {"1 %": 1e-2, "0.1 %": 1e-3}


def draw(records: list[Record], figure: Figure) -> None:
    """Passes against edges, seconds of a pass against edges and against instances."""
    left, middle, right = figure.subplots(1, 3)
    for k, method in enumerate(METHODS):
        panels = (left, "passes to 1 %", "edges"), (middle, "ms a pass", "edges"), (right, "ms a pass", "instances")
        for axes, what, across in panels:
            for family, line in (("BA", "o-"), ("ER", "s--")):
                own = [r for r in records if r["method"] == method and r["graphs"].startswith(family)]
                rows = [r for r in own if r["grows"] == across and r[what] is not None]
                if rows:
                    label = f"{method}, {family}" if axes is left else None
                    axes.loglog([r[across] for r in rows], [r[what] for r in rows], line, color=f"C{k}", label=label)
            axes.set_xlabel("instances of BA-200" if across == "instances" else "edges, one instance")
            axes.set_ylabel(what)
            axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize=8)


@case(
    "size_and_batch",
    "ProxBC and ProxFW against size and batch (shape of Figs. 4.2 and 4.3)",
    "Without settings, in double precision: passes until the mean error of the best bound is at most 1 and 0.1 % (`-`: not within "
    "1000), and milliseconds a pass, checks every ten passes included, over 250 passes. Fig. 4.2: one instance of growing size "
    "(BA: connectivity 4; ER: p = 0.4); Fig. 4.3: a batch of BA-200. The times are from a machine that other programs kept busy: "
    "they show how they grow, no more; passes do not depend on it. ProxBC and ProxFW run in tensor operations, `admm` in "
    "compiled loops.",
    draw,
)
def run(quick: bool) -> Iterator[Record]:
    os.environ[VARIABLE] = "numba"
    sizes = [[ba(n, 0)] for n in ((100,) if quick else (100, 300, 1000, 3000, 10_000))]
    sizes += [] if quick else [[er(n, 0.4, 0)] for n in (50, 100, 200)]
    batches = [[ba(200, seed) for seed in range(count)] for count in ((2,) if quick else (1, 4, 16, 64))]
    for grows, drawn in (("edges", sizes), ("instances", batches)):
        for qubos in drawn:
            for name, method in METHODS.items():
                row = {"grows": grows, **measured(qubos, name, method)}
                print(row, file=sys.stderr, flush=True)
                yield row


def measured(qubos: list[Qubo], name: str, method: Method) -> Record:
    """Passes to each level, and the time of a pass."""
    solver = bl.compile([roof_duality_model(q) for q in qubos])
    truth = torch.tensor([max_flow(q)[0] for q in qubos], dtype=torch.float64)
    solver.solve(method=method, passes=22)
    began = time.perf_counter()
    solver.solve(method=method, passes=250, tol=0, patience=10**6, check_every=10)
    seconds = time.perf_counter() - began
    history = solver.solve(method=method, passes=1000, tol=0, patience=10**6, check_every=10, history=True).history
    row: Record = {"graphs": qubos[0].name, "instances": len(qubos), "edges": len(qubos[0].edges), "method": name}
    for level, error in LEVELS.items():
        reached = [e.passes for e in history if float(((truth - e.bound) / truth.abs()).mean()) <= error]
        row[f"passes to {level}"] = reached[0] if reached else None
    row["ms a pass"] = seconds / 250 * 1000
    return row
