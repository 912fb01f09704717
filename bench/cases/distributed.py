"""One LP over processes: passes a second and memory against their number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.registry import Record, case

RUNS = (("alone", 1), ("fixed", 1), ("fixed", 2), ("float", 1), ("float", 2))


def measured(sums: str, world: int, edges: int, passes: int) -> Record:
    """What the first of some processes prints, each of one thread.

    Raises
    ------
    RuntimeError
        If a process fails.
    """
    own = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.distributed_process"]
        rest = [str(world), str(Path(folder) / "store"), str(edges), str(passes), sums]
        running = [
            subprocess.Popen([*command, str(rank), *rest], stdout=subprocess.PIPE, text=True, env=own) for rank in range(world)
        ]
        said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError(f"a process of {world} failed")
    found: Record = json.loads(said[0])
    return found


@case(
    "distributed",
    "One LP over processes: passes a second and memory",
    "Roof duality of a random graph of average degree eight, in float64, by ADMM in compiled loops; processes have one thread each, "
    "and gloo connects them on one machine. `alone` is the solve without a mesh, whose loops take several passes at once. A pass is "
    "measured from the 20th on, checks every ten passes included; `CPU ms a pass` is that of the first process. `seconds before and "
    "after` are those of comparing models, cutting out parts, the first passes, final bounds and putting results together. `MB a "
    "process` is the largest resident size of a process, in which every process states the whole model. The machine has two cores, "
    "which other programs kept busy: read the CPU time, and the clock with care. `same bits` says whether the hash is that of "
    "`fixed` with one process.",
)
def run(quick: bool) -> Iterator[Record]:
    edges, passes = (4000, 60) if quick else (1_000_000, 120)
    known: str | None = None
    for sums, world in RUNS:
        found = measured(sums, world, edges, passes)
        told = found.pop("hash")
        known = told if (sums, world) == ("fixed", 1) else known
        yield {"sums": sums, "processes": world, **found, "same bits": "yes" if told == known else "no"}
