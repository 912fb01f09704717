"""One LP of millions of blocks."""

from __future__ import annotations

import resource
import sys
import time

import numpy as np
import torch

from bench.registry import Record, case
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model


def preferential(edges: int) -> Qubo:
    """A weighted independent set on a graph of about so many edges: four from each node to earlier ones, with a power law."""
    draw = np.random.default_rng(0)
    n = edges // 4
    later = np.repeat(np.arange(4, n), 4)
    earlier = (later * draw.random(len(later)) ** 1.5).astype(np.int64)
    key = np.unique(earlier * n + later)
    weights = draw.random(n)
    ends = np.stack([key // n, key % n], 1)
    return Qubo.from_terms(-weights, ends, np.maximum(weights[ends[:, 0]], weights[ends[:, 1]]))


@case(
    "large",
    "One LP of millions of blocks",
    "Independent sets on graphs with a power law, four edges a node, float32 with bounds in float64, to a certified gap of "
    "1e-3. `build` is from the QUBO to the compiled solver; an edge takes microseconds of both. `bytes` an edge: growth of the "
    "process's largest resident memory from the QUBO to the end, model and solver together; the smaller ones run first.",
)
def run(quick: bool) -> list[Record]:
    records: list[Record] = []
    for edges in (10_000, 20_000) if quick else (100_000, 1_000_000, 10_000_000):
        qubo = preferential(edges)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        solver = roof_duality_model(qubo).compile(dtype=torch.float32, backend="numba")
        solver.decomposition()
        built = time.perf_counter() - began
        solver.solve(passes=12)
        began = time.perf_counter()
        found = solver.solve(tol=1e-3)
        seconds = time.perf_counter() - began
        records.append(
            {
                "edges": len(qubo.edges),
                "build": built,
                "passes": int(found.passes),
                "seconds": seconds,
                "share of build": built / (built + seconds),
                "microseconds an edge": 1e6 * (built + seconds) / len(qubo.edges),
                "gap": float(found.gap),
                "bytes an edge": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / len(qubo.edges),
            }
        )
        print(records[-1], file=sys.stderr, flush=True)
    return records
