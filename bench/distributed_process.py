"""One process of the benchmark of solves over processes: ``python -m bench.distributed_process RANK WORLD STORE EDGES PASSES SUMS``.

``SUMS`` is that of the mesh, or ``alone`` for a solve without one.  The first process prints one JSON object.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np
import torch
import torch.distributed as dist

import blocklp as bl
from blocklp.distributed import Mesh, solution_hash
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model

FIRST = 20
"""Passes before the clock is read: loops are loaded by then."""


def drawn(pairs: int) -> Qubo:
    """Normal costs on a random graph with a quarter as many nodes as pairs, about."""
    random = np.random.default_rng(0)
    ends = random.integers(0, pairs // 4, (pairs, 2))
    edges = np.unique(np.sort(ends[ends[:, 0] != ends[:, 1]], 1), axis=0)
    return Qubo.from_terms(random.normal(size=pairs // 4), edges, random.normal(size=len(edges)))


def main() -> None:
    """Solve, and print what it took."""
    rank, world, store, pairs, passes, sums = sys.argv[1:7]
    first = rank == "0"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, int(world)), rank=int(rank), world_size=int(world))
    qubo = drawn(int(pairs))
    solver = roof_duality_model(qubo).compile(backend="numba")
    marks: list[tuple[int, float, float]] = []

    def mark(event: bl.Event) -> None:
        if event.passes >= FIRST:
            marks.append((event.passes, time.perf_counter(), time.process_time()))

    began = time.perf_counter()
    mesh = None if sums == "alone" else Mesh(sums=sums)
    found = solver.solve(method="admm", mesh=mesh, tol=0.0, passes=int(passes), callback=mark)
    taken = time.perf_counter() - began
    most = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if first:  # whose callback is called
        (early, *start), (late, *end) = marks[0], marks[-1]
        seconds, cpu = (b - a for a, b in zip(start, end, strict=True))
        answer = {"edges": len(qubo.edges), "passes a second": (late - early) / seconds, "CPU ms a pass": 1e3 * cpu / (late - early)}
        answer |= {"seconds before and after": taken - seconds, "MB a process": float(most), "bound": float(found.bound[0])}
        print(json.dumps(answer | {"hash": solution_hash(found)}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
