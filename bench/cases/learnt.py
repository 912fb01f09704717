"""Learnt starts on held-out instances of three families: passes, and seconds apart."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import torch

import blocklp as bl
from bench.registry import Record, case
from blocklp.kernels.backend import VARIABLE
from blocklp.problems.learnt import FAMILIES, LearntStart, train_start
from blocklp.problems.learnt.training import passes_to

METHODS = ("admm", "smooth", "prox", "pdhg", "min-marginals")
SECONDS = 600.0
TOLERANCE, CHECK, MOST = 1e-3, 5, 1000


def measured(solver: bl.Solver, method: str, optimum: float, start: LearntStart | None) -> dict[str, float]:
    """Passes to an error of the bound and to a certified gap, those of the start counted in, and seconds."""
    began = time.process_time()
    state = None if start is None else start(solver, method)
    starting = time.process_time() - began
    found = solver.solve(method=method, warm_start=state, tol=TOLERANCE, passes=MOST, check_every=CHECK, history=True)
    seconds = time.process_time() - began - starting
    before = 0 if start is None else start.passes
    first = abs(float(found.history[0].bound[0]) - optimum) / abs(optimum)
    return {
        "bound": before + passes_to(found, optimum, TOLERANCE),
        "gap": before + int(found.passes[0]),
        "first": 100 * first,
        "starting": starting,
        "seconds": seconds,
    }


@case(
    "learnt",
    "Learnt starts: passes to 1e-3",
    "Starts of `blocklp train`, trained for `--limit` seconds at most, on "
    "instances that were not trained on (seeds 0 to 9; means). `bound` are passes until the bound is within 1e-3 of the "
    "optimum, `gap` until the certified gap is (at most 1000), with a check every 5 passes, for the same method without a "
    "start and with it; passes of the start are counted in. `first` is the error in percent of the bound with which the "
    "method begins. Seconds are of one thread and for the gap: `start` to make the start, `solve` of the solve after it. "
    "Other processes shared the machine. `admm` is what `auto` takes for the first two families.",
    limit=SECONDS,
)
def run(quick: bool, limit: float = SECONDS) -> Iterator[Record]:
    os.environ[VARIABLE] = "numba"
    torch.set_num_threads(1)
    for name, family in FAMILIES.items():
        begun = time.process_time()
        steps = {"steps": 20} if quick else {}
        start = train_start(family.training, target=family.target, family=name, rounds=family.rounds, seconds=limit, **steps)
        print(f"{name}: trained in {time.process_time() - begun:.0f} s", file=sys.stderr, flush=True)
        solvers = [family.target(seed).compile() for seed in range(2 if quick else 10)]
        optima = [float(solver.solve(method="admm", tol=1e-7).bound) for solver in solvers]
        for method in METHODS[:1] if quick else METHODS:
            cold, learnt = (
                mean([measured(s, method, o, given) for s, o in zip(solvers, optima, strict=True)]) for given in (None, start)
            )
            row: Record = {"family": name, "method": method}
            for what in ("bound", "gap"):
                row |= {f"{what}, cold": cold[what], f"{what}, learnt": learnt[what], f"{what}, ratio": learnt[what] / cold[what]}
            row |= {"first, cold": cold["first"], "first, learnt": learnt["first"]}
            row |= {"seconds, cold": cold["seconds"], "start": learnt["starting"], "solve": learnt["seconds"]}
            print(row, file=sys.stderr, flush=True)
            yield row


def mean(rows: list[dict[str, float]]) -> dict[str, float]:
    """Means of all numbers."""
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}
