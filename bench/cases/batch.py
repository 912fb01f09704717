"""Batches of independent instances, as in Fig. 4.3 of the thesis."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from statistics import median
from unittest import mock

import torch
from matplotlib.figure import Figure

import blocklp as bl
from bench.instances import ba
from bench.registry import Record, case
from bench.rivals import highs, max_flow, on_all_cores
from blocklp.problems.qpbo import QuboBatch, roof_duality_batch, roof_duality_model, solve_qpbo


def draw(records: list[Record], figure: Figure) -> None:
    """Seconds against the number of instances."""
    axes = figure.subplots()
    rows = [r for r in records if r["gap"] == records[0]["gap"]]
    for name in ("seconds", "one after the other", "HiGHS simplex", "max-flow", "max-flow, all cores"):
        axes.loglog([r["instances"] for r in rows], [r[name] for r in rows], marker="o", label=name)
    axes.set_xlabel("instances")
    axes.set_ylabel("seconds")
    axes.grid(alpha=0.3)
    axes.legend()


@case(
    "batch",
    "Batches of BA-200 (shape of Fig. 4.3)",
    "Different graphs, float32 with bounds in float64, a gap certified for each instance; medians of five runs, in turn "
    "with those of max-flow on all cores. `one after the other` is this engine on single models (64 at most, extrapolated),"
    " `ratio` its time over the batch's, `difference` the largest difference of a bound between the two. `build`: seconds "
    "from concatenated arrays to a compiled solver, median of three, and its share of building and solving; `build one by "
    "one`: by a model for each QUBO; `solve_qpbo`: from QUBOs to bounds, labellings and verified persistencies. Max-flow "
    "includes building its graphs, `its solves` do not, HiGHS does not include building the LPs; `all cores`: processes "
    "that share the instances, at the same time. Beyond 64 instances (1024 for max-flow on all cores) all are extrapolated."
    " `of max-flow`, `of HiGHS`: bounds a second against theirs on all cores.",
    draw,
)
def run(quick: bool) -> list[Record]:
    records = []
    for tol in (1e-3,) if quick else (1e-3, 1e-4):
        for batch in (1, 4) if quick else (1, 16, 256, 4096):
            qubos = [ba(200, seed) for seed in range(batch)]
            some, many = min(batch, 64), min(batch, 1024)
            began = time.perf_counter()
            models = [roof_duality_model(q) for q in qubos]
            bl.compile(models, dtype=torch.float32, backend="numba").decomposition()
            one_by_one_built = time.perf_counter() - began
            arrays = QuboBatch.of(qubos)
            building = []
            for _ in range(3):
                began = time.perf_counter()
                solver = roof_duality_batch(arrays).compile(dtype=torch.float32, backend="numba")
                solver.decomposition()
                building.append(time.perf_counter() - began)
            built = median(building)
            singles = [m.compile(dtype=torch.float32, backend="numba") for m in models[:some]]
            for s in singles:
                s.decomposition()
            solver.solve(passes=30)
            taken, theirs = [], []
            with on_all_cores(max_flow, qubos[:many]) as run_flows:
                for _ in range(5):  # in turn: other programs slow the machine down now and then
                    began = time.perf_counter()
                    together = solver.solve(tol=tol)
                    taken.append(time.perf_counter() - began)
                    theirs.append(run_flows()[0] * batch / many)
            seconds, all_flows = median(taken), median(theirs)
            began = time.perf_counter()
            with mock.patch.dict(os.environ, {"BLOCKLP_BACKEND": "numba"}):
                solve_qpbo(qubos, tol=tol, dtype=torch.float32)
            whole = time.perf_counter() - began
            began = time.perf_counter()
            alone = [s.solve(tol=tol) for s in singles]
            one_by_one = (time.perf_counter() - began) * batch / some
            flows = [max_flow(q) for q in qubos[:some]]
            truth = torch.tensor([value for value, *_ in flows], dtype=torch.float64)
            simplex = sum(highs(q, "simplex")[1] for q in qubos[:some]) * batch / some
            with on_all_cores(partial(highs, algorithm="simplex"), qubos[:some]) as run_highs:
                all_simplex = sum(spent for _, spent in run_highs()[1]) / min(some, os.cpu_count() or 1) * batch / some
            records.append(
                {
                    "gap": tol,
                    "instances": batch,
                    "optimal": sum(s is bl.Status.OPTIMAL for s in together.status),
                    "mean passes": float(together.passes.double().mean()),
                    "seconds": seconds,
                    "bounds a second": batch / seconds,
                    "one after the other": one_by_one,
                    "ratio": one_by_one / seconds,
                    "difference": max(abs(a.bound.item() - b) for a, b in zip(alone, together.bound.tolist(), strict=False)),
                    "largest error": float(((truth - together.bound[:some]) / truth.abs()).max()),
                    "build": built,
                    "share of build": built / (built + seconds),
                    "build one by one": one_by_one_built,
                    "solve_qpbo": whole,
                    "max-flow": sum(sum(times) for _, *times in flows) * batch / some,
                    "its solves": sum(last for *_, last in flows) * batch / some,
                    "max-flow, all cores": all_flows,
                    "of max-flow": all_flows / seconds,
                    "HiGHS simplex": simplex,
                    "HiGHS, all cores": all_simplex,
                    "of HiGHS": all_simplex / seconds,
                }
            )
            print(records[-1], file=sys.stderr, flush=True)
    return records
