"""Batches of independent instances, as in Fig. 4.3 of the thesis."""

from __future__ import annotations

import time

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
    for name in ("seconds", "one after the other", "HiGHS simplex", "max-flow"):
        axes.loglog([r["instances"] for r in records], [r[name] for r in records], marker="o", label=name)
    axes.set_xlabel("instances")
    axes.set_ylabel("seconds")
    axes.grid(alpha=0.3)
    axes.legend()


@case(
    "batch",
    "Batches of BA-200 (shape of Fig. 4.3)",
    "Different graphs, float64, a gap of 1e-4 certified for each instance. `one after the other` is this engine on single models, "
    "`ratio` its time over the batch's, `difference` the largest difference of a bound between the two. Max-flow includes building "
    "its graphs, HiGHS does not include building the LPs; beyond 64 instances both are extrapolated from the first 64.",
    draw,
)
def run(quick: bool) -> list[Record]:
    records = []
    for batch in (1, 4) if quick else (1, 4, 16, 64, 256):
        qubos = [ba(200, seed) for seed in range(batch)]
        models = [roof_duality_model(q) for q in qubos]
        solver = bl.compile(models)
        singles = [m.compile() for m in models]
        for s in (solver, *singles):
            s.decomposition()  # building is not timed
        began = time.perf_counter()
        together = solver.solve(tol=1e-4)
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        alone = [s.solve(tol=1e-4) for s in singles]
        one_by_one = time.perf_counter() - began
        truth = torch.tensor([max_flow(q)[0] for q in qubos], dtype=torch.float64)
        some = qubos[:64]
        records.append(
            {
                "instances": batch,
                "optimal": sum(s is bl.Status.OPTIMAL for s in together.status),
                "mean passes": float(together.passes.double().mean()),
                "seconds": seconds,
                "bounds a second": batch / seconds,
                "one after the other": one_by_one,
                "ratio": one_by_one / seconds,
                "difference": max(abs(a.bound.item() - b) for a, b in zip(alone, together.bound.tolist(), strict=False)),
                "largest error": float(((truth - together.bound) / truth.abs()).max()),
                "max-flow": sum(sum(max_flow(q)[1:]) for q in some) * batch / len(some),
                "HiGHS simplex": sum(highs(q, "simplex")[1] for q in some) * batch / len(some),
            }
        )
    return records
