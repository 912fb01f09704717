"""Verdicts on the instances of the data set."""

from __future__ import annotations

import csv
import math
import os
import sys
from collections import Counter
from pathlib import Path

from matplotlib.figure import Figure

import blocklp as bl
from bench.data import data
from bench.registry import Record, case
from blocklp.problems.verification.answers import Answer, How, Networks, answer
from blocklp.problems.verification.batch import DECIDED, BenchmarkInstance, read_instances

CAP = "BLOCKLP_BENCH_TIMEOUT"
"""Seconds that cap the timeouts of the file."""
PHASES = ("quick bounds", "attack", "bounds", "search")
UNATTACKED = 30.0
LEAST = 0.01
"""Seconds of a search below which it has no speed: one that begins after the deadline bounds nothing."""
QUICK = ("smoke", "marabou-cifar10")


def draw(records: list[Record], figure: Figure) -> None:
    """Number of verdicts within some seconds."""
    axes = figure.subplots()
    rows = [r for r in records if r["compared"] is not None]
    for name, label in (("seconds", "here"), ("fastest tool", "fastest trusted tool, its machine"), ("slowest tool", "slowest one")):
        times = sorted(r[name] for r in rows if r[name] is not None and (name != "seconds" or r["verdict"] in DECIDED))
        axes.step(times, range(1, len(times) + 1), where="post", label=label)
    axes.set_xscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("verdicts")
    axes.grid(alpha=0.3)
    axes.legend()


def _ask(instance: BenchmarkInstance, how: How) -> Answer:
    folder = data("verification")
    return answer(folder / instance.vnnlib, [str(folder / instance.onnx)], how, Networks(), bl.Deadline(how.timeout))


def _compared(status: str, expected: str) -> str:
    if status not in DECIDED:
        return "undecided" if expected in DECIDED else "open"
    return ("right" if status == expected else "wrong") if expected in DECIDED else "new"


@case(
    "verification_instances",
    "Networks: verdicts on instances of VNN-COMP 2021",
    "All instances of the data set with their own timeouts, or with BLOCKLP_BENCH_TIMEOUT seconds if that is less; sums come "
    "last. `compared` with what trusted tools of the competition agree on: right, wrong, undecided, or new and open where none "
    "decided. `nodes/s` are those of the search. `fastest tool` and `slowest tool` are seconds of trusted tools on the "
    "competition's machines, start-up included: they only rank the difficulty. `unattacked`: the verdict of 30 seconds without "
    "attack where a counterexample is known: unsat would be a false proof, and stops the run.",
    draw,
)
def run(quick: bool) -> list[Record]:
    with data("verification/expected.csv").open(newline="") as stream:
        known = {(row["onnx"], row["vnnlib"]): row for row in csv.DictReader(stream)}
    instances = [i for i in read_instances(data("verification/instances.csv")) if not quick or i.onnx.split("/")[0] in QUICK]
    cap = 5.0 if quick else float(os.environ.get(CAP, "inf"))
    unattacked: dict[tuple[str, str], str] = {}
    for instance in instances:
        if known[instance.key]["expected"] == "sat":
            status = _ask(instance, How(2.0 if quick else min(UNATTACKED, cap), attack=False)).verdict.status
            if status == "unsat":
                raise RuntimeError(f"{instance.onnx} {instance.vnnlib}: unsat is said without an attack, and it has a counterexample")
            unattacked[instance.key] = status
    records: list[Record] = []
    for instance in instances:
        row = known[instance.key]
        timeout = min(instance.timeout, cap)
        found = _ask(instance, How(timeout))
        verdict, search = found.verdict, found.verdict.phases.get("search", 0.0)
        records.append(
            {
                "family": instance.onnx.split("/")[0],
                "instance": f"{Path(instance.onnx).stem} {Path(instance.vnnlib).stem}",
                "timeout": timeout,
                "verdict": verdict.status,
                "expected": row["expected"],
                "compared": _compared(verdict.status, row["expected"]),
                "nodes": verdict.nodes,
                "seconds": found.seconds,
                "reading": found.load_seconds,
                **{phase: verdict.phases.get(phase, 0.0) for phase in PHASES},
                "nodes/s": verdict.nodes / search if verdict.nodes and search > LEAST else None,
                "fastest tool": float(row["fastest_s"]) if row.get("fastest_s") else None,
                "slowest tool": float(row["slowest_s"]) if row.get("slowest_s") else None,
                "unattacked": unattacked.get(instance.key),
            }
        )
        print(records[-1], file=sys.stderr, flush=True)
    families = list(dict.fromkeys(r["family"] for r in records))
    return records + [_sum(name, [r for r in records if name in ("all", r["family"])]) for name in (*families, "all")]


def _sum(name: str, rows: list[Record]) -> Record:
    """What became of a family."""
    counts = Counter(r["compared"] for r in rows)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in ("right", "wrong", "undecided", "new", "open"))
    total: Record = dict.fromkeys(rows[0])
    for key in ("timeout", "nodes", "seconds", "reading", *PHASES):
        total[key] = math.fsum(r[key] for r in rows) if key != "nodes" else sum(r[key] for r in rows)
    return total | {"family": name, "instance": f"{len(rows)} instances", "verdict": said}
