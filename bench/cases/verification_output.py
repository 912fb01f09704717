"""The LPs of the outputs, all intermediate bounds fixed."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bench.registry import Record, case
from bench.verification_data import NETS, Problem, error, problem, rival, slopes
from blocklp.problems.verification.exact import planet_lp
from blocklp.problems.verification.relaxation import Relaxation

STEPS = (20, 100, 300)
RATES = (0.1, 0.5)
"""Learning rates of the rival: that of alpha-beta-CROWN and the default of auto_LiRPA."""


def exact(given: Problem, relaxation: Relaxation) -> tuple[Tensor, float]:
    """Values of all rows by HiGHS and its seconds: the quicker of interior point and warm-started dual simplex."""
    boxes = {r: (low[0], high[0]) for r, (low, high) in relaxation.bounds.items()}
    best: tuple[Tensor, float] | None = None
    for algorithm in ("ipm", "simplex"):
        limit = float("inf") if best is None else best[1]
        program = planet_lp(given.network, given.lower, given.upper, boxes, given.node, algorithm=algorithm, time_limit=limit)
        values, began = [], time.perf_counter()
        for row in given.rows:
            values.append(program.minimise(row).value)
            if time.perf_counter() - began >= limit:
                break
        else:
            best = torch.tensor(values, dtype=torch.float64), time.perf_counter() - began
    assert best is not None
    return best


def better(runs: Mapping[float, Mapping[str, Any] | None], crown: Tensor, truth: Tensor) -> tuple[float, float] | None:
    """Mean error and seconds of the rival at its better rate."""
    found = [
        (float(error(torch.tensor(r["values"], dtype=torch.float64), crown, truth).mean()), float(r["seconds"]))
        for r in runs.values()
        if r is not None
    ]
    return min(found, default=None)


@case(
    "verification_output",
    "Networks: nine output LPs on CROWN's intermediate bounds",
    "CIFAR-10 networks, box of valid pixels within the radius around a test image, rows label minus other class, all nine as "
    "one batch. `CROWN` and `exact` are the least of the nine. An error is what is left of (exact - CROWN) in percent, mean of "
    "the nine; seconds are the median of three runs from given intermediate bounds, ours with the evaluation in float64 that "
    "proves the bound. `gap 100`: largest certified relative gap after 100 steps, without knowing the exact value. alpha-CROWN "
    "is auto_LiRPA with the same intermediate bounds, at the better of its learning rates 0.1 and 0.5 each time. `HiGHS` is the"
    " time of one LP, all nine on one model by the quicker of interior point and warm-started simplex; `HiGHS ratio` the time "
    "of nine over 100 of our steps. `above exact`: the largest excess of one of our bounds over the exact value, relative; "
    "HiGHS's tolerance is 1e-9.",
)
def run(quick: bool) -> list[Record]:
    records: list[Record] = []
    for net in ("base",) if quick else NETS:
        for radius in (2,) if quick else (2, 8):
            for row in (0,) if quick else (0, 1):
                records.append(_record(problem(net, radius, row), 1 if quick else 3))
                print(records[-1], file=sys.stderr, flush=True)
    return records


def _record(given: Problem, repeats: int) -> Record:
    layers = given.layers(1)
    relaxation = layers.relaxation()
    of = relaxation, given.node, given.rows, given.relus
    crown, _, _ = slopes(*of, 1)
    truth, highs = exact(given, relaxation)
    mine, above = {}, crown - truth
    for steps in STEPS:
        slopes(*of, 2)
        runs = [slopes(*of, steps) for _ in range(repeats)]
        mine[steps] = float(error(runs[0][0], crown, truth).mean()), statistics.median(r[2] for r in runs)
        above = torch.maximum(above, runs[0][0] - truth)
    bound, value, _ = slopes(*of, 100, gap=True)
    assert value is not None
    theirs: dict[int, tuple[float, float] | None] = dict.fromkeys(STEPS)
    by_rate = {rate: rival(given, relaxation, STEPS, repeats, lr_alpha=rate) for rate in RATES}
    for k, steps in enumerate(STEPS):
        theirs[steps] = better({rate: runs[k] for rate, runs in by_rate.items()}, crown, truth)
    record: Record = {
        "network": given.name,
        "image": given.row,
        "unstable": sum(layer.unstable for layer in layers.layers),
        "CROWN": float(crown.min()),
        "exact": float(truth.min()),
    }
    for steps in STEPS:
        record |= {f"error {steps}": mine[steps][0], f"seconds {steps}": mine[steps][1]}
    record["gap 100"] = float(((value - bound) / bound.abs().clamp(min=1)).max())
    for steps in STEPS:
        found = theirs[steps]
        record |= {
            f"alpha-CROWN error {steps}": None if found is None else found[0],
            f"alpha-CROWN seconds {steps}": None if found is None else found[1],
        }
    for steps in STEPS:
        found = theirs[steps]
        record[f"ratio {steps}"] = None if found is None else found[1] / mine[steps][1]
    return record | {
        "HiGHS": highs / len(truth),
        "HiGHS ratio": highs / mine[100][1],
        "above exact": float((above / truth.abs().clamp(min=1)).max()),
    }
