"""Batches of independent instances, as in Fig. 4.3 of the thesis."""

from __future__ import annotations

import sys
import time
from statistics import median

import torch
from matplotlib.figure import Figure

import blocklp as bl
from bench.instances import ba
from bench.registry import Record, case
from bench.rivals import highs, max_flow
from blocklp.problems.qpbo.relaxation import roof_duality_model


def draw(records: list[Record], figure: Figure) -> None:
    """Seconds against the number of instances."""
    axes = figure.subplots()
    rows = [r for r in records if r["gap"] == records[0]["gap"]]
    for name in ("seconds", "one after the other", "HiGHS simplex", "max-flow"):
        axes.loglog([r["instances"] for r in rows], [r[name] for r in rows], marker="o", label=name)
    axes.set_xlabel("instances")
    axes.set_ylabel("seconds")
    axes.grid(alpha=0.3)
    axes.legend()


@case(
    "batch",
    "Batches of BA-200 (shape of Fig. 4.3)",
    "Different graphs, float32 with bounds in float64, a gap certified for each instance; the median of three runs. `one after "
    "the other` is this engine on single models (64 at most, extrapolated), `ratio` its time over the batch's, `difference` the "
    "largest difference of a bound between the two. Max-flow includes building its graphs, HiGHS does not include building the "
    "LPs; beyond 64 instances both are extrapolated from the first 64, and given for one core; `of HiGHS` compares bounds a "
    "second with HiGHS on both cores.",
    draw,
)
def run(quick: bool) -> list[Record]:
    records = []
    for tol in (1e-3, 1e-4):
        for batch in (1, 4) if quick else (1, 16, 256, 4096):
            qubos = [ba(200, seed) for seed in range(batch)]
            models = [roof_duality_model(q) for q in qubos]
            some = min(batch, 64)
            solver = bl.compile(models, dtype=torch.float32)
            singles = [m.compile(dtype=torch.float32) for m in models[:some]]
            for s in (solver, *singles):
                s.decomposition()  # building is not timed
            solver.solve(passes=30)  # nor is loading loops
            taken = []
            for _ in range(3):
                began = time.perf_counter()
                together = solver.solve(tol=tol)
                taken.append(time.perf_counter() - began)
            seconds = median(taken)
            began = time.perf_counter()
            alone = [s.solve(tol=tol) for s in singles]
            one_by_one = (time.perf_counter() - began) * batch / some
            truth = torch.tensor([max_flow(q)[0] for q in qubos[:some]], dtype=torch.float64)
            simplex = sum(highs(q, "simplex")[1] for q in qubos[:some]) * batch / some
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
                    "max-flow": sum(sum(max_flow(q)[1:]) for q in qubos[:some]) * batch / some,
                    "HiGHS simplex": simplex,
                    "of HiGHS": simplex / 2 / seconds,
                }
            )
            print(records[-1], file=sys.stderr, flush=True)
    return records
