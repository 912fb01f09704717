"""Random trials of everything, against exact truth, for as long as one likes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from bench.registry import Record, case
from bench.soak.trial import load
from bench.soak.workers import Outcome, outcomes

WORKERS = max(1, min(2, os.cpu_count() or 1))

FAULTS = Path(__file__).parents[1] / "soak" / "faults.md"

NOTE = """Trials are functions of a seed that state a property: random models of every block type with exact optima in
fractions, all methods, both precisions, warm starts, batches, certificates, exact solvers, networks, dense CRFs, files that are
damaged on purpose, wrong options, time limits.  A finding is a property that does not hold; it is printed when it comes, made small
where a few seconds suffice, with the line that repeats it (`python -m bench.soak TRIAL SEED`).  A trial is skipped where the truth
cannot be proved, such as where a basis is feasible for HiGHS and not in exact arithmetic.  `limits` runs beside other trials: what
is late there by three times the bar of the benchmark `deadlines` is a finding; how late calls are is in the last
column."""


@case("soak", "Random trials of everything", NOTE, appendix=FAULTS.read_text(), minutes=10.0, seed=0)
def run(quick: bool, minutes: float, seed: float) -> list[Record]:
    began, found = time.perf_counter(), list[Outcome]()
    for outcome in outcomes(20.0 if quick else 60 * minutes, int(seed), WORKERS):
        found.append(outcome)
        if outcome.message is not None:
            print(f"{outcome.trial.name}: {outcome.message}\n    {outcome.command}", file=sys.stderr, flush=True)
    print(f"{len(found)} trials in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    records = []
    for trial in sorted(load().values(), key=lambda t: (t.family, t.name)):
        own = [o for o in found if o.trial is trial]
        wrong = [o for o in own if o.message is not None]
        late = [over for o in own for _, _, over in o.late]
        records.append(
            {
                "family": trial.family,
                "trial": trial.name,
                "property": trial.claim,
                "runs": len(own),
                "skipped": sum(o.skipped is not None for o in own),
                "seconds": round(sum(o.seconds for o in own), 1),
                "findings": len(wrong),
                "first finding": _cell(wrong[0]) if wrong else None,
                "seconds late": _late(late),
            }
        )
    return records


def _cell(outcome: Outcome) -> str:
    text = " ".join(f"{outcome.message}".split()).replace("|", "\\|")
    return f"{text[:300]} (`{outcome.command}`)"


def _late(seconds: list[float]) -> str | None:
    if not seconds:
        return None
    middle, most = np.quantile(np.maximum(seconds, 0.0), (0.5, 0.95)).tolist()
    return f"median {middle:.2f}, 95 % {most:.2f}, most {max(seconds):.2f}"
