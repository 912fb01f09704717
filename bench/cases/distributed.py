"""One LP over processes: passes a second and memory against their number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.registry import Record, case

FIXED = ("fixed", 1), ("fixed", 2)
RUNS = (
    ("random", 500_000, 80, (("alone", 1), *FIXED, ("float", 1), ("float", 2))),
    ("grid", 500_000, 80, (("alone", 1), *FIXED)),
    ("random", 1_000_000, 60, FIXED),
    ("grid", 1_000_000, 60, FIXED),
    ("grid", 10_000_000, 40, FIXED),
)
"""Graphs, pairs and passes, and with which sums and how many processes."""

REPEATS = 3
"""Measurements of both sides of `weak`, in turn."""


def started(world: int, folder: str, **given: Any) -> list[subprocess.Popen[str]]:
    """Start some processes of one thread each, whose large tensors have pages of 2 MB as those of commands have."""
    own = os.environ | {"OMP_NUM_THREADS": "1", "THP_MEM_ALLOC_ENABLE": "1"}
    store = str(Path(folder) / f"store-{time.monotonic_ns()}")
    command = [sys.executable, "-m", "bench.distributed_process"]
    rest = [str(world), store, json.dumps(given)]
    return [
        subprocess.Popen([*command, str(rank), *rest], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own)
        for rank in range(world)
    ]


def measured(world: int, folder: str, **given: Any) -> Record:
    """What the first of some processes prints.

    Raises
    ------
    RuntimeError
        If a process fails.
    """
    return _said(started(world, folder, **given))


def apart(folder: str, **given: Any) -> Record:
    """The mean of what two solves of a process each take at the same time."""
    pair = [started(1, folder, **given) for _ in range(2)]
    first, second = [_said(running) for running in pair]
    return {name: (first[name] + second[name]) / 2 for name in ("CPU ms a pass", "passes a second")}


def _said(running: list[subprocess.Popen[str]]) -> Record:
    """What the first of some processes prints."""
    said = [process.communicate() for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError(f"a process of {len(running)} failed: {said[0][1]}")
    found: Record = json.loads(said[0][0])
    return found


def median(records: list[Record]) -> Record:
    """The record of the median CPU time."""
    return sorted(records, key=lambda record: record["CPU ms a pass"])[len(records) // 2]


@case(
    "distributed",
    "One LP over processes: passes a second and memory",
    "Roof duality of random graphs of average degree eight, whose blocks in any order have most variables in common, and of "
    "square grids, whose blocks in their order have few, in float64, by ADMM in compiled loops. Every process draws and "
    "states its own pairs alone. Processes have one thread each, and gloo connects them on one machine. `alone` is the "
    "solve without a mesh, whose loops take several passes at once. A pass is measured from the 20th on, checks every ten "
    "passes included; `CPU ms a pass` is that of the busiest process. `strong` is the CPU time of a pass of one process over "
    "that of this row, on the same graph. `weak` is that of two solves of half the edges, a process each, that run at the same "
    "time and share nothing but the machine, by the clock in brackets: 1 where agreement takes no time; both are medians of "
    "three in turn. `seconds before and after` are those of joining parts, the first passes and final bounds. `MB a process` is "
    "the largest resident size of a process, of which some 375 are Python, torch and compiled loops; `proportional MB` counts of "
    "files in memory, as code is, which processes of one machine share, the share of one process. `same bits` says whether the "
    "hash is that of `fixed` with one process.",
)
def run(quick: bool) -> Iterator[Record]:
    alone: dict[tuple[str, int], Record] = {}
    for graph, pairs, passes, how in RUNS[:2] if quick else RUNS:
        for sums, world in how[:3] if quick else how:
            given = {"graph": graph, "passes": passes, "sums": sums}
            several, halves = list[Record](), list[Record]()
            weak = pairs >= 1_000_000 and world > 1
            for _ in range(REPEATS if weak else 1):  # in turn
                with tempfile.TemporaryDirectory() as folder:
                    several.append(measured(world, folder, pairs=4000 if quick else pairs, **given))
                if weak:
                    with tempfile.TemporaryDirectory() as folder:
                        halves.append(apart(folder, pairs=pairs // 2, **given))
            found = median(several)
            if (sums, world) == ("fixed", 1):
                alone[graph, pairs] = found
            same = alone.get((graph, pairs))
            bits = "yes" if same is not None and found["hash"] == same["hash"] else "no"
            record = {"graph": graph, "sums": sums, "processes": world, **found, "strong": None, "weak": None, "same bits": bits}
            if same is not None and world > 1:
                record["strong"] = same["CPU ms a pass"] / found["CPU ms a pass"]
            if weak:
                half = median(halves)
                cpu, clock = half["CPU ms a pass"] / found["CPU ms a pass"], found["passes a second"] / half["passes a second"]
                record["weak"] = f"{cpu:.2f} ({clock:.2f})"
            yield {name: value for name, value in record.items() if name != "hash"}
