"""Bounds of all layers, then of the outputs."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.cases.verification_output import exact
from bench.registry import Record, case
from bench.verification_data import NETS, Problem, error, problem, rival, slopes
from blocklp.problems.verification.exact import planet_lp
from blocklp.problems.verification.relaxation import Relaxation
from blocklp.problems.verification.windows import window_sizes, windowed

STEPS, ITERATIONS, OUTPUT_STEPS = (10, 20, 40), (20, 100), 100
SAMPLED, AFRESH = 20, 3


@dataclass(frozen=True)
class Layer:
    """Sampled LPs of one layer: errors in percent after each of ``STEPS``, one LP's seconds in HiGHS, excess over exact.

    ``seconds`` are those of a window's LP that HiGHS keeps and warm-starts, ``afresh`` those of the LP of all earlier layers,
    stated and solved for one neuron.
    """

    errors: list[float]
    seconds: float
    afresh: float
    above: float


def sampled(given: Problem, relaxation: Relaxation, relu: int, count: int) -> Layer | None:
    """Solve the LPs of some unstable neurons, all earlier bounds given, by HiGHS and by ascent.

    Neurons of convolutions get the LP of the window that they depend on, as they do in :func:`network_bounds`: it is also what
    HiGHS is quickest on.
    """
    open_ = relaxation.open[relu].flatten().nonzero()[:, 0]
    if not len(open_):
        return None
    chosen = open_[torch.randperm(len(open_), generator=torch.Generator().manual_seed(0))[:count]]
    node = given.network.ops[relu].inputs[0]
    before = Relaxation(given.network, relaxation.lower, relaxation.upper, {r: b for r, b in relaxation.bounds.items() if r < relu})
    sizes, both = window_sizes(given.network, node), chosen.repeat(2)
    index = both
    if sizes is not None:
        before, index, _ = windowed(before, node, torch.zeros_like(both), both, sizes, {})
    cost = torch.zeros(len(both), *before.network.ops[node].shape, dtype=torch.float64)
    sides = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat_interleave(len(chosen))
    cost.view(len(both), -1)[torch.arange(len(both)), index] = sides
    relus = sorted(before.bounds)
    crown, _, _ = slopes(before, node, cost, relus, 1)
    truth, seconds = _highs(before, node, cost)
    errors, above = [], -math.inf
    for steps in STEPS:
        bound, _, _ = slopes(before, node, cost, relus, steps)
        errors.append(float(error(bound.sum(), crown.sum(), truth.sum())))
        above = max(above, float(((bound - truth) / truth.abs().clamp(min=1)).max()))
    return Layer(errors, seconds / len(both), _afresh(given, relaxation, relu, chosen[:AFRESH]), above)


def _afresh(given: Problem, relaxation: Relaxation, relu: int, chosen: Tensor) -> float:
    """Mean seconds of one LP over all layers before, by whichever of HiGHS's methods is quicker for each."""
    node = given.network.ops[relu].inputs[0]
    boxes = {r: (low[0], high[0]) for r, (low, high) in relaxation.bounds.items() if r < relu}
    spent = 0.0
    for neuron in chosen.tolist():
        for sign in (1.0, -1.0):
            cost = torch.zeros(given.network.ops[node].shape, dtype=torch.float64)
            cost.view(-1)[neuron] = sign
            least = math.inf
            for algorithm in ("ipm", "simplex"):
                began = time.perf_counter()
                program = planet_lp(
                    given.network, relaxation.lower[0], relaxation.upper[0], boxes, node, algorithm=algorithm, time_limit=least
                )
                if not math.isnan(program.minimise(cost).value):
                    least = min(least, time.perf_counter() - began)
            spent += least
    return spent / (2 * len(chosen))


def _highs(relaxation: Relaxation, node: int, cost: Tensor) -> tuple[Tensor, float]:
    """Minima and seconds of HiGHS, by whichever of its methods is quicker on the first LPs; stating LPs is not counted."""
    algorithms, single = ["ipm", "simplex"], relaxation.lower.shape[0] == 1
    programs: dict[str, Any] = {}
    values, spent, trial = [], 0.0, dict.fromkeys(algorithms, 0.0)
    for k, objective in enumerate(cost):
        took: dict[str, float] = {}
        value = math.nan
        for algorithm in algorithms:
            if not single or algorithm not in programs:
                at = 0 if single else k
                # Around a window neurons are fixed to zero: for HiGHS, never above zero.
                boxes = {
                    r: (torch.where((low == 0) & (high == 0), -torch.ones_like(low), low)[at], high[at])
                    for r, (low, high) in relaxation.bounds.items()
                }
                limit = 1 + 5 * took["ipm"] if algorithm == "simplex" and took else math.inf
                programs[algorithm] = planet_lp(
                    relaxation.network, relaxation.lower[at], relaxation.upper[at], boxes, node, algorithm=algorithm, time_limit=limit
                )
            began = time.perf_counter()
            found = programs[algorithm].minimise(objective).value
            took[algorithm] = time.perf_counter() - began
            value = found if math.isnan(value) else value
            trial[algorithm] += math.inf if math.isnan(found) else took[algorithm]
        values.append(value)
        spent += min(took.values())
        if k == 2 or math.isinf(trial["simplex"]):
            algorithms = [min(trial, key=lambda a: trial[a])]
    return torch.tensor(values, dtype=torch.float64), spent


def _joined(numbers: list[float] | list[int]) -> str:
    return " / ".join(f"{n:.2g}" if isinstance(n, float) else str(n) for n in numbers)


@case(
    "verification_layers",
    "Networks: bounds of all layers",
    "Both bounds of every unstable neuron, layer by layer, k steps each, each layer with the bounds of those before it; then "
    "the nine rows label minus other class, 100 steps; `seconds` is all of it, `worst output` the least of the nine. "
    "alpha-CROWN is auto_LiRPA with its intermediate bounds optimised too, for the same nine rows, at its default learning "
    "rate. `exact LP` solves the nine rows on CROWN's intermediate bounds by HiGHS. `ratio`: time of alpha-CROWN with 100 "
    "iterations over ours. `LP error by layer`, from the second layer on (intervals are exact in the first): what is left of "
    "the sum of (exact - CROWN) in percent, over a random sample of up to 20 unstable neurons a layer, both sides, all given "
    "the bounds of the run with 20 steps; exact by HiGHS on the window a neuron depends on. `HiGHS, all` is its mean time of a "
    "layer's sample times the LPs of the layer, summed, each layer's program stated once and warm-started; `afresh` the same "
    "without windows, every LP stated over all layers before it (the mean of three neurons). Both ratios are to `layer "
    "seconds`, the time without the nine rows. `above exact` is the largest excess of one of these bounds over the "
    "exact value.",
)
def run(quick: bool) -> list[Record]:
    records: list[Record] = []
    for net in ("base",) if quick else NETS:
        for radius in (2,) if quick else (2, 8):
            for record in _records(problem(net, radius, 0), 2 if quick else SAMPLED, (2,) if quick else ITERATIONS):
                records.append(record)
                print(record, file=sys.stderr, flush=True)
    return records


def _records(given: Problem, count: int, iterations: tuple[int, ...]) -> list[Record]:
    def record(method: str, seconds: float, unstable: list[int], worst: float) -> Record:
        return {
            "network": given.name,
            "method": method,
            "seconds": seconds,
            "layer seconds": None,
            "unstable by layer": _joined(unstable),
            "unstable": sum(unstable),
            "worst output": worst,
            "ratio": None,
            "LP error by layer": None,
            "HiGHS, all": None,
            "HiGHS ratio": None,
            "afresh": None,
            "afresh ratio": None,
            "above exact": None,
        }

    def whole(steps: int, output_steps: int) -> tuple[Record, Relaxation]:
        began = time.perf_counter()
        layers = given.layers(steps)
        hidden = time.perf_counter() - began
        relaxation = layers.relaxation()
        value, _, _ = slopes(relaxation, given.node, given.rows, given.relus, output_steps)
        seconds = time.perf_counter() - began
        name = "CROWN" if steps == 1 else f"slopes, {steps}"
        found = record(name, seconds, [layer.unstable for layer in layers.layers], float(value.min()))
        return found | {"layer seconds": hidden}, relaxation

    whole(1, 1)
    first, relaxation = whole(1, 1)
    truth, seconds = exact(given, relaxation)
    unstable = [int(relaxation.open[r].sum()) for r in given.relus]
    records = [first, record("exact LP", first["seconds"] + seconds, unstable, float(truth.min()))]
    theirs = [
        record(f"alpha-CROWN, {k}", a["seconds"], a["unstable"], min(a["values"]))
        for k, a in zip(iterations, rival(given, None, iterations), strict=True)
        if a is not None
    ]
    mine, samples, all_lps, afresh = [], [], 0.0, 0.0
    for steps in STEPS:
        found, relaxation = whole(steps, OUTPUT_STEPS)
        mine.append(found)
        if steps == 20:
            open_ = [int(relaxation.open[r].sum()) for r in given.relus]
            for relu, many in zip(given.relus[1:], open_[1:], strict=True):
                sample = sampled(given, relaxation, relu, count)
                if sample is not None:
                    samples.append(sample)
                    all_lps += sample.seconds * 2 * many
                    afresh += sample.afresh * 2 * many
    for k, found in enumerate(mine):
        found["ratio"] = theirs[-1]["seconds"] / found["seconds"] if theirs else None
        found["LP error by layer"] = _joined([s.errors[k] for s in samples])
        found["HiGHS, all"], found["HiGHS ratio"] = all_lps, all_lps / found["layer seconds"]
        found["afresh"], found["afresh ratio"] = afresh, afresh / found["layer seconds"]
        found["above exact"] = max((s.above for s in samples), default=None)
    return records + theirs + mine
