"""One process of the benchmarks of solves over processes: ``python -m bench.distributed_process RANK WORLD STORE JSON``.

The JSON object says which graph (``random`` or ``grid``), how many pairs, how many passes, and ``sums`` as those of the mesh or
``alone`` for a solve without one; ``save`` names a folder for what the solve has come to.  The first process prints one JSON object,
whose CPU time is that of the process in which a pass takes most.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from blocklp.distributed import Mesh, solution_hash
from blocklp.kernels.plan import Plan
from blocklp.language.shard import Shard
from blocklp.methods import Admm
from blocklp.methods.admm import AdmmState
from blocklp.problems.qpbo import roof_duality_shard

FIRST = 20
"""Passes before the clock is read: loops are loaded by then."""

PIECES = 60
"""Parts of a graph that are drawn on their own, so that every number of processes has the same graph, and draws its part alone."""


MARKS: list[tuple[int, float, float]] = []
"""Passes, clock and CPU time of this process, from the first of these passes on."""


class Timed(Admm):
    """ADMM that notes how long its passes take in this process: callbacks are those of the first process alone."""

    def finish(self, plan: Plan, state: AdmmState) -> AdmmState:
        """See :meth:`Admm.finish`."""
        if state.passes >= FIRST:
            MARKS.append((state.passes, time.perf_counter(), time.process_time()))
        return super().finish(plan, state)


def drawn(graph: str, pairs: int, own: range) -> tuple[int, NDArray[np.int64], NDArray[np.float64]]:
    """Number of nodes, and the pairs and costs of some pieces: two random nodes of a quarter as many, or neighbours in a square."""
    nodes = pairs // 4 if graph == "random" else math.isqrt(pairs // 2) ** 2
    side, ends, costs = math.isqrt(nodes), [], []
    for piece in own:
        random = np.random.default_rng([1, piece])
        if graph == "random":
            found = random.integers(0, nodes, (pairs // PIECES, 2))
            found = np.unique(np.sort(found[found[:, 0] != found[:, 1]], 1), axis=0)
        else:
            row, column = np.divmod(np.arange(side * (side * piece // PIECES), side * (side * (piece + 1) // PIECES)), side)
            right, down = column < side - 1, row < side - 1
            here = row * side + column
            found = np.concatenate([np.stack([here[right], here[right] + 1], 1), np.stack([here[down], here[down] + side], 1)])
        ends.append(found)
        costs.append(random.normal(size=len(found)))
    return nodes, np.concatenate(ends), np.concatenate(costs)


def files() -> float:
    """MB of this process that are files in memory, as code is, which processes of one machine share."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssFile"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    """Solve, and print what it took."""
    rank, world, (store, told) = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:5]
    given = json.loads(told)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    shard = Shard(rank, world)
    nodes, edges, costs = drawn(given["graph"], given["pairs"], range(*shard.own(PIECES).indices(PIECES)))
    model = roof_duality_shard(np.random.default_rng(0).normal(size=nodes), edges, costs, shard)
    count = torch.tensor([len(edges)])
    dist.all_reduce(count)
    del edges, costs
    solver = model.compile(backend="numba")
    began = time.perf_counter()
    sums, save = given["sums"], {"save": given["save"], "save_every": given["save_every"]} if "save" in given else {}
    mesh = None if sums == "alone" else Mesh(sums=sums, **save)
    options = {"tol": 0.0, "passes": given["passes"], "patience": given["passes"] + 1}
    found = solver.solve(method=Timed(), mesh=mesh, **options)
    taken = time.perf_counter() - began
    (early, *start), (late, *end) = MARKS[0], MARKS[-1]
    seconds, cpu = (b - a for a, b in zip(start, end, strict=True))
    resident, code = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, files()
    most = torch.tensor([resident, 1e3 * cpu / (late - early), resident - code * (1 - 1 / world)])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    hashed = solution_hash(found, mesh=None if world == 1 else True)
    if rank == 0:
        answer = {"edges": int(count), "passes a second": (late - early) / seconds, "CPU ms a pass": float(most[1])}
        answer |= {
            "seconds before and after": taken - seconds,
            "MB a process": float(most[0]),
            "proportional MB": float(most[2]),
            "bound": float(found.bound[0]),
        }
        print(json.dumps(answer | {"hash": hashed}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
