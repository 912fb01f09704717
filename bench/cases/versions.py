"""The present version against an older one, in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.registry import Record, case
from bench.version_tasks import FIRST, TASKS

ROOT = Path(__file__).parents[2]
ROUNDS = 2


def seconds_of(checkout: Path, python: str, name: str) -> Record:
    """Run a task in a checkout."""
    command = [python, str(ROOT / "bench" / "version_tasks.py"), name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: Record = json.loads(done.stdout.splitlines()[-1])
    return found


@case(
    "versions",
    "Old and new in turn",
    "Seconds of the processor on one thread, the best of three after one run to warm up, in two rounds in turn with 0.1.0 (commit "
    "`52ad214`), whose checkout with an environment of its own `BLOCKLP_OLD` names; both with loops of numba at once, but for the "
    "first solves of a process, which take what the version chooses. `ratio`: new over old.",
)
def run(quick: bool) -> list[Record]:
    old = Path(os.environ.get("BLOCKLP_OLD", ""))
    if not (old / ".venv" / "bin" / "python").exists():
        raise SystemExit("BLOCKLP_OLD must name a checkout of an older version with its environment in .venv")
    made: list[Record] = []
    for name in list(TASKS)[:2] if quick else [*TASKS, *FIRST]:
        row: Record = {"task": name}
        for _ in range(5 if name in FIRST else ROUNDS):
            for what, checkout, python in (("new", ROOT, sys.executable), ("old", old, str(old / ".venv" / "bin" / "python"))):
                found = seconds_of(checkout, python, name)
                row[what] = min(row.get(what, float("inf")), found["seconds"])
                row |= {f"passes, {what}": found["passes"], f"bound, {what}": found["bound"]}
        row["ratio"] = row["new"] / row["old"]
        made.append(row)
        print(row, file=sys.stderr, flush=True)
    return made
