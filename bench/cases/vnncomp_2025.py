"""Verdicts on sets of VNN-COMP 2025, beside those of the competition's tools."""

from __future__ import annotations

import csv
import random
import sys
import time
from collections.abc import Iterator

import blocklp as bl
from bench.data import data
from bench.registry import Record, case
from blocklp.problems.verification.answers import How, Networks, answer
from blocklp.problems.verification.batch import DECIDED, BenchmarkInstance, read_instances

FOLDER = "verification_2025"
SETS = ("safenlp", "tllverifybench", "linearizenn", "sat_relu")
SIZES = {"safenlp": 1080, "tllverifybench": 32, "linearizenn": 60}
LIMITS = {"safenlp": 20, "tllverifybench": 600, "linearizenn": 900, "sat_relu": 100}
"""Seconds that the competition allows for an instance."""

PUBLISHED = {
    "alpha-beta-CROWN": ((1080, 0), (32, 0), (60, 0)),
    "CORA": ((983, 0), (32, 0), (60, 0)),
    "NeuralSAT": ((1070, 0), (32, 0), (60, 0)),
    "nnenum": ((976, 0), (18, 0), (60, 0)),
    "NNV": ((348, 0), (17, 0), (41, 0)),
    "PyRAT": ((978, 0), (32, 0), (60, 0)),
    "Rover": ((768, 0), (28, 0), (1, 0)),
    "SobolBox": ((1031, 403), (32, 0), (60, 0)),
}
"""Verdicts of each tool, and how many of them every other tool that has one contradicts: ``TOOL/2025_SET/results.csv`` in
VNN-COMP/vnncomp2025_results at 7a4d1ffae5ab47675601d345b80c85250c4d6cf0, without the competition's test instance."""

CAP, SAMPLE = 100.0, 1080.0
QUICK, SHORT = 4, 5.0


@case(
    "vnncomp_2025",
    "Networks: sets of VNN-COMP 2025",
    "All instances of four sets with the competition's timeouts, or with `--limit` seconds if that is less, one after the other on "
    "one thread; `--count` draws so many of safenlp by seed 0. `wrong`: verdicts that the published ones contradict; one stops the "
    "run. `slowest`: seconds of the slowest verdict, reading included; `CPU seconds`: of all instances together. The lines of tools "
    "are what they published of 2025, on the competition's machines, their start counted in their seconds; `wrong` there: verdicts "
    "that all other tools contradict. The thresholds of tllverifybench are those of 2024: verdicts here are compared with what "
    "tools published in that year, and the lines of tools are those of 2025, of the same networks. The instances of "
    "sat_relu are 100 that its authors drew, whose verdicts are known by construction; the competition drew others, so that no tool "
    "published results of these.",
    limit=CAP,
    count=SAMPLE,
)
def run(quick: bool, limit: float = CAP, count: float = SAMPLE) -> Iterator[Record]:
    with data(f"{FOLDER}/expected.csv").open(newline="") as stream:
        known = {(row["onnx"], row["vnnlib"]): row["expected"] for row in csv.DictReader(stream)}
    instances = read_instances(data(f"{FOLDER}/instances.csv"))
    for number, name in enumerate(SETS):
        own = [i for i in instances if i.onnx.split("/")[0] == name]
        if quick or (name == "safenlp" and count < len(own)):
            own = random.Random(0).sample(own, QUICK if quick else int(count))
        yield _ours(name, own, known, SHORT if quick else limit)
        for tool, results in PUBLISHED.items() if name in SIZES else ():
            decided, wrong = results[number]
            yield _record(name, tool, SIZES[name], decided, wrong, LIMITS[name])


def _record(name: str, tool: str, instances: int, decided: int, wrong: int, limit: float) -> Record:
    """A line of the table."""
    counts = {"instances": instances, "decided": decided, "wrong": wrong, "share": decided / instances}
    return {"set": name, "tool": tool, **counts, "limit": limit, "slowest": None, "CPU seconds": None, "undecided": None}


def _ours(name: str, instances: list[BenchmarkInstance], known: dict[tuple[str, str], str], limit: float) -> Record:
    """Verdicts of blocklp on some instances of a set."""
    folder, networks = data(FOLDER), Networks()
    decided, slowest, undecided, began = 0, 0.0, list[str](), time.process_time()
    most = min(limit, LIMITS[name])
    for instance in instances:
        found = answer(
            folder / instance.vnnlib, [str(folder / instance.onnx)], How(most, real_semantics=True), networks, bl.Deadline(most)
        )
        status, expected = found.verdict.status, known[instance.key]
        print(name, instance.vnnlib, status, expected, f"{found.seconds:.2f}", file=sys.stderr, flush=True)
        if status not in DECIDED:
            undecided.append(instance.vnnlib.split("/")[-1].split(".")[0])
            continue
        decided += 1
        if expected in DECIDED and status != expected:
            raise RuntimeError(f"{instance.onnx} {instance.vnnlib}: {status} is said, and tools agree on {expected}")
        slowest = max(slowest, found.seconds)
    seconds = time.process_time() - began
    return _record(name, "blocklp", len(instances), decided, 0, most) | {
        "slowest": slowest,
        "CPU seconds": seconds,
        "undecided": " ".join(undecided) or None,
    }
