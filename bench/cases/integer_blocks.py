"""Integer knapsacks as blocks: Lagrangean bounds, and proofs beside HiGHS's branch and cut."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch

import blocklp as bl
from bench.data import data
from bench.integer_models import Instance, assignment, median, of_file, packing
from bench.registry import Record, case
from blocklp.general_solvers.integer_program import solved_by_highs
from blocklp.general_solvers.linear_program import loaded_highs

LIMIT = 90.0
CLOSED = 0.99

PLACES = tuple((n, p, seed) for n, p in ((40, 4), (50, 5), (60, 6), (80, 8)) for seed in (1, 2))
PACKINGS = ((50, 100, 40, 1), (50, 120, 35, 2), (50, 150, 28, 3), (80, 100, 60, 4))


def instances(quick: bool) -> Iterator[Instance]:
    """Those of GCG, and those that are made."""
    if quick:
        yield from (assignment("C", 3, 20), median(12, 3, 1), packing(12, 150, 10, 1))
        return
    for path in sorted(data("lp/gcg").glob("*/*.lp")):
        if (found := of_file(path)) is not None:
            yield found
    yield from (assignment(kind, agents, 100) for kind in "ABCD" for agents in (5, 10, 20))
    yield from (median(*sizes) for sizes in PLACES)
    yield from (packing(*sizes) for sizes in PACKINGS)


def record(instance: Instance, limit: float) -> Record:
    """One instance: the bound of its LP, the Lagrangean one, and both searches; seconds are those of the processor."""
    program = instance.program
    sign = -1.0 if program.maximize else 1.0
    lp = loaded_highs(program)
    lp.run()
    linear, began = lp.getInfo().objective_function_value + program.offset, time.process_time()
    bounds: list[tuple[int, float]] = []
    root = instance.model().solve(
        tol=1e-7, passes=2000, time_limit=limit, callback=lambda e: bounds.append((e.passes, float(e.bound))) and None
    )
    lagrangean, taken = root.bound.item(), time.process_time() - began
    enough = linear + CLOSED * (lagrangean - linear)
    # Where there is nothing to close, the first pass has closed it.
    passes = next((p for p, b in bounds if sign * b >= sign * enough - 1e-7 * abs(enough)), None)
    began = time.process_time()
    whole = np.ones(len(program.c), dtype=bool)
    minimised = program if not program.maximize else type(program)(**{**vars(program), "c": -program.c, "maximize": False})
    rival = solved_by_highs(minimised, whole, seconds=limit)
    theirs = time.process_time() - began
    value = math.inf if rival.x is None else sign * float(minimised.c @ np.round(rival.x)) + program.offset
    began = time.process_time()
    found = bl.solve_exact(instance.model(), time_limit=limit)
    ours = time.process_time() - began
    proved = found.status[0] is bl.Status.OPTIMAL
    wrong = root.status[0] is not bl.Status.OPTIMAL
    wrong |= proved and rival.ended and abs(found.primal.item() - value) > 1e-6 * max(1.0, abs(value))
    best = max(sign * lagrangean, sign * found.bound.item())
    wrong |= rival.ended and best - sign * value > 1e-6 * max(1.0, abs(value))
    return {
        "instance": instance.name,
        "blocks x variables": f"{len(instance.blocks)} x {len(program.c)}",
        "LP": linear,
        "Lagrangean": lagrangean,
        "99 % after": passes,
        "passes": int(root.passes),
        "bound seconds": taken,
        "value": found.primal.item(),
        "HiGHS": "proved" if rival.ended else f"{sign * rival.bound + program.offset:.6g} to {value:.6g}",
        "HiGHS seconds": theirs,
        "blocklp": "proved" if proved else f"{found.bound.item():.6g} to {found.primal.item():.6g}",
        "seconds": ours,
        "times HiGHS": ours / theirs,
        "findings": int(wrong),
    }


def summary(records: list[Record]) -> Record:
    """How many each proves, and within twice the other's time."""
    ours, theirs = ([r for r in records if r[who] == "proved"] for who in ("blocklp", "HiGHS"))
    twice = [r for r in ours if r["HiGHS"] != "proved" or r["times HiGHS"] <= 2]
    closed = [r for r in records if r["99 % after"] is not None and r["99 % after"] <= 300]
    return dict.fromkeys(records[0]) | {
        "instance": f"all {len(records)}",
        "99 % after": f"{len(closed)} within 300",
        "HiGHS": f"{len(theirs)} proved",
        "HiGHS seconds": sum(r["HiGHS seconds"] for r in records),
        "blocklp": f"{len(ours)} proved, {len(twice)} within twice HiGHS's time",
        "seconds": sum(r["seconds"] for r in records),
        "findings": sum(r["findings"] for r in records),
    }


@case(
    "integer_blocks",
    "Integer knapsacks as blocks",
    "GCG's own instances whose rows have knapsacks (`blocklp data fetch lp/gcg`: bin packing, p-median with capacities, "
    "cutting stock, generalised assignment, multiple knapsack), and made ones: generalised assignment by the laws of Chu and "
    "Beasley, p-median, bin packing. Every knapsack is a block `Knapsack(..., integer=True)`, all else rows. `Lagrangean` is the "
    "bound of `solve(tol=1e-7)`, with the passes after which 99 % of its distance from the LP's are closed, of those at which the "
    "bound was looked at, and all passes. Then HiGHS's branch and cut on all rows, and `solve_exact`; seconds of the processor, "
    "stating the model included, with a limit on the clock for each. `findings`: a Lagrangean bound that was not reached, a bound "
    "above the optimum, or an optimum other than HiGHS's.",
    limit=LIMIT,
)
def run(quick: bool, limit: float) -> Iterator[Record]:
    torch.set_num_threads(1)
    bl.solve_exact(assignment("C", 2, 8).model())  # loads and compiles
    records = []
    for instance in instances(quick):
        records.append(record(instance, min(limit, 10.0) if quick else limit))
        print(records[-1], file=sys.stderr, flush=True)
        yield records[-1]
    yield summary(records)
