"""The first solves of a process, on a machine that has compiled loops before and on a new one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import blocklp as bl
from bench.families import polytopes
from bench.instances import ba
from bench.registry import Record, case
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.backend import VARIABLE
from blocklp.problems.qpbo.relaxation import roof_duality_model

SOLVES = 3

MODELS: dict[str, Callable[[], bl.Model]] = {
    "BA-100": lambda: roof_duality_model(ba(100, 0)),
    "BA-1000": lambda: roof_duality_model(ba(1000, 0)),
    "BA-30000": lambda: roof_duality_model(ba(30_000, 0)),
    "100 polytopes in 4 variables": lambda: polytopes(0, 4, 100, 200),
    "500 polytopes in 4 variables": lambda: polytopes(0, 4, 500, 1000),
    "1000 polytopes in 8 variables": lambda: polytopes(0, 8, 1000, 2000),
}


def child(name: str, at_once: bool, folder: str | None) -> list[float]:
    """Seconds of the first solves of a new process, with loops whatever comes if ``at_once``, with numba's cache in a folder."""
    environment = os.environ | {VARIABLE: "numba" if at_once else "auto"}
    environment |= {} if folder is None else {"NUMBA_CACHE_DIR": folder}
    command = [sys.executable, "-m", __spec__.name, name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: list[float] = json.loads(done.stdout)
    return found


@case(
    "first",
    "The first solves of a process",
    "Seconds of the first and the third of three solves of one model in a new process, to a certified gap of 1e-3, float64, without "
    "building the model: on a machine where another process has compiled the loops (`known`), on one where none has (`new`), and "
    "there with loops compiled at once (`compiled`). HiGHS's interior point solves the same LP, its import not counted.",
)
def run(quick: bool) -> list[Record]:
    records: list[Record] = []
    for name, build in list(MODELS.items())[: 1 if quick else None]:
        row: Record = {"model": name}
        with tempfile.TemporaryDirectory() as known:
            fresh = child(name, True, known) if not quick else None
            for where, folder in (("known", known), ("new", None)):
                with tempfile.TemporaryDirectory() as empty:
                    seconds = child(name, False, folder or empty)
                row[f"{where}, first"], row[f"{where}, third"] = seconds[0], seconds[-1]
        row["compiled, first"] = None if fresh is None else fresh[0]
        row["HiGHS"] = reference(build(), "highs-ipm").seconds
        records.append(row)
        print(row, file=sys.stderr, flush=True)
    return records


def main(name: str) -> None:
    """Solve, print."""
    solver, seconds = MODELS[name]().compile(), []
    solver.decomposition()
    for _ in range(SOLVES):
        began = time.perf_counter()
        solver.solve(tol=1e-3, passes=20_000)
        seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
