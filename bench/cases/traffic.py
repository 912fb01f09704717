"""Time and memory traffic of one pass over edges, with and without compiled loops."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import blocklp as bl
from bench.cases.large import preferential
from bench.registry import Record, case
from blocklp.kernels.backend import Backend
from blocklp.kernels.compiled import loops_only
from blocklp.kernels.plan import Plan
from blocklp.problems.qpbo.relaxation import roof_duality_model

PASSES, ANCHORED = 9, 107
"""Passes up to a check, and the pass from which on runs of so many have an anchor."""

OF_EDGE, OF_VARIABLE = 9 * PASSES + 7, 7 * PASSES + 8
"""Numbers of an edge and of a variable that go from and to memory in as many passes, see docs/methods.md."""


def times(work: Callable[[], Any], count: int) -> list[float]:
    """Seconds of some runs."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found


@case(
    "traffic",
    "One pass over edges: compiled loops against tensor operations",
    "ADMM on independent sets of graphs with a power law. Milliseconds of a pass, least and median of 48 runs of nine passes (four "
    "of tensor operations, in turn) as a solve does them between checks: the last one shows means and multipliers. `tensors`: "
    "the same in tensor operations. `GB/s`: the traffic model (88 numbers an edge and 71 a variable in nine passes) over the median; "
    "`copy`: what a copy of tensors of 160 MB reads and writes a second, median of 12 in turn with them; `share`: of that.",
)
def run(quick: bool) -> list[Record]:
    records: list[Record] = []
    source = torch.zeros(4_000_000 if quick else 40_000_000)
    target = torch.empty_like(source)
    for edges in (5_000,) if quick else (20_000, 200_000, 2_000_000):
        for dtype in (torch.float32, torch.float64):
            qubo = preferential(edges)
            solver, variables = roof_duality_model(qubo).compile(dtype=dtype), qubo.n
            problem = solver.decomposition().to(dtype)
            plan = Plan(problem)
            row: Record = {"edges": problem.groups[0].blocks, "dtype": str(dtype).removeprefix("torch.")}
            method, plans = bl.methods.Admm(), {}
            for name, backend in (("loops", "numba"), ("tensors", "torch")):
                chosen = Plan(problem, backend=Backend(backend)).settled(dtype, PASSES)
                plans[name] = chosen.laid_out(whole=True).begun()
            state = [method.start(plan, problem.recentred(torch.zeros(1, problem.copies, dtype=dtype)), None)]

            def until(last: int, plan: Plan, state: list[Any] = state, method: bl.methods.Admm = method) -> None:
                while state[0].passes < last:
                    state[0], _ = method.run(plan, state[0], last - state[0].passes)

            def nine(name: str, state: list[Any] = state, plans: dict[str, Plan] = plans) -> None:
                until(state[0].passes + PASSES, plans[name])

            with loops_only():
                until(ANCHORED, plans["loops"])
            nine("tensors")
            taken: dict[str, list[float]] = {"loops": [], "tensors": [], "copies": []}
            for _ in range(4):  # in turn: other programs slow the machine down now and then
                with loops_only():
                    taken["loops"] += times(lambda: nine("loops"), 12)
                taken["tensors"] += times(lambda: nine("tensors"), 1)
                taken["copies"] += times(lambda: target.copy_(source), 3)
            for name in plans:
                seconds = taken[name]
                row[f"{name}, least"], row[f"{name}, median"] = (1000 / PASSES * of(seconds) for of in (min, median))
            row["ratio"] = row["tensors, median"] / row["loops, median"]
            numbers = row["edges"] * OF_EDGE + variables * OF_VARIABLE
            row["GB/s"] = numbers / PASSES * torch.finfo(dtype).bits / 8 / row["loops, median"] / 1e6
            row["copy"] = 2 * source.nbytes / median(taken["copies"]) / 1e9
            row["share"] = row["GB/s"] / row["copy"]
            records.append(row)
            print(row, file=sys.stderr, flush=True)
    return records
