"""Error of the bound after some passes, all methods."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import torch
from matplotlib.figure import Figure

import blocklp as bl
from bench.families import FAMILIES as OTHERS
from bench.instances import ba, er
from bench.registry import Record, case
from bench.rivals import max_flow
from blocklp.errors import OptionError
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.backend import VARIABLE
from blocklp.methods import Method
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model

PASSES = (10, 30, 100, 300, 600, 1000)
FAMILIES: dict[str, Callable[[int], Qubo]] = {
    "BA-200": lambda seed: ba(200, seed),
    "BA-1000": lambda seed: ba(1000, seed),
    "ER-1000, mean degree 3": lambda seed: er(1000, 0.003, seed),
    "ER-1000, mean degree 4": lambda seed: er(1000, 0.004, seed),
    "ER-1000, mean degree 6": lambda seed: er(1000, 0.006, seed),
    "ER-300, p = 0.4": lambda seed: er(300, 0.4, seed),
    "BA-10000": lambda seed: ba(10_000, seed),
}
METHODS = {
    "admm": bl.methods.Admm(),
    "bundle": bl.methods.Bundle(),
    "prox": bl.methods.Prox(),
    "proxbc": bl.methods.ProxBC(),
    "proxfw": bl.methods.ProxFW(),
    "pdhg": bl.methods.Pdhg(),
    "polyak": bl.methods.Polyak(),
    "supergradient": bl.methods.Supergradient(),
    "adam": bl.methods.Adam(),
    "min-marginals": bl.methods.MinMarginals(),
    "smooth": bl.methods.Smooth(),
}
LIMITS = {"bundle": 100}
"""Passes of methods that do much work between oracle calls."""


def draw(records: list[Record], figure: Figure) -> None:
    """Error against passes and against seconds, on the graphs of the thesis."""
    chosen = [r for r in records if r["graphs"] == list(FAMILIES)[min(1, len(records) // len(METHODS) - 1)]]
    for axes, what in zip(figure.subplots(1, 2, sharey=True), ("passes", "seconds"), strict=True):
        for k, r in enumerate(chosen):
            look = "o-" if k < 6 else "s--"  # ten colours do not tell so many methods apart
            made = [p for p in PASSES if r[f"{p} passes"] is not None]
            scale = 1 if what == "passes" else r["seconds"] / made[-1]
            axes.loglog(
                [p * scale for p in made], [max(r[f"{p} passes"], 1e-7) for p in made], look, color=f"C{k % 6}", label=r["method"]
            )
        axes.set_xlabel(what)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel(f"error of the bound in percent, {chosen[0]['graphs']}")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center")


@case(
    "anytime",
    "Error of the bound against passes, all methods",
    "Mean relative error of the best bound in percent over five instances (BA-10000: one). Checks come every ten passes; methods "
    "that do not evaluate pay for each with a pass. First weighted independent sets, one edge a block (BA: connectivity 4), then "
    "other families. All methods run without settings. Seconds are those of all 1000 passes, of 100 for "
    "bundle, which solves a problem over the vertices seen between two of them.",
    draw,
)
def run(quick: bool) -> list[Record]:
    os.environ[VARIABLE] = "numba"
    records = []
    for family, solvers, optima in families(5, quick):
        for name, method in METHODS.items():
            most = LIMITS.get(name, PASSES[-1])
            try:
                found, seconds = errors(solvers, optima, method, PASSES, most)
            except OptionError:  # it needs what the block types of this family do not have
                continue
            row: Record = {"graphs": family, "method": name}
            row |= {f"{p} passes": found.get(p) for p in PASSES}
            row["seconds"] = seconds
            records.append(row)
            print(row, file=sys.stderr, flush=True)
    return records


def families(instances: int, quick: bool) -> Iterator[tuple[str, list[bl.Solver], list[float]]]:
    """Name, solvers and optima of some instances of each family, in one batch or one after the other."""
    for family, make in list(FAMILIES.items())[: 1 if quick else None]:
        qubos = [make(seed) for seed in range(1 if family == "BA-10000" else 2 if quick else instances)]
        yield family, [bl.compile([roof_duality_model(q) for q in qubos])], [max_flow(q)[0] for q in qubos]
    for family, build in list(OTHERS.items())[: 0 if quick else None]:
        models = [build(seed) for seed in range(instances)]
        yield family, [m.compile() for m in models], [reference(m).objective.item() for m in models]


def errors(
    solvers: list[bl.Solver], optima: list[float], method: Method, marks: tuple[int, ...], passes: int
) -> tuple[dict[int, float], float]:
    """Mean relative error in percent after those numbers of passes that were made, and seconds of all."""
    truth, sign = torch.tensor(optima, dtype=torch.float64), -1 if solvers[0].sense.maximizing else 1
    options = {"tol": 0, "history": True, "check_every": 10, "patience": 10**6}
    found = [s.solve(method=method, passes=passes, **options) for s in solvers]
    after = {}
    for mark in (m for m in marks if m <= passes):
        bound = torch.cat([[e.bound for e in f.history or [] if e.passes <= mark][-1] for f in found])
        after[mark] = float((sign * (truth - bound) / truth.abs()).mean()) * 100
    return after, sum(float(f.seconds.max()) for f in found)
