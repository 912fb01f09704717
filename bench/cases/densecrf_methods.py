"""Energies, bounds and accuracies of all methods on one energy, in the terms of Tables 2.1, 2.2 and A.3."""

from __future__ import annotations

import sys
from typing import Any

from matplotlib.figure import Figure

from bench.densecrf_data import OTHERS, RELEASED, accuracy, energy_of, msrc
from bench.registry import Record, case
from blocklp.problems.densecrf import METHODS, Result, solve_densecrf

BASELINES: dict[str, tuple[str, dict[str, Any]]] = {
    "mean-field, 5": ("mean-field", {"steps": 5}),
    "mean-field, 25": ("mean-field", {"steps": 25}),
}
LEFT_OUT = ("mean-field", "hst")
"""The first is a baseline; trees are for other compatibilities than Potts."""


def draw(records: list[Record], figure: Figure) -> None:
    """Energy above the best bound by method, one mark an image."""
    axes = figure.subplots()
    methods = list(dict.fromkeys(r["method"] for r in records))
    for k, image in enumerate(dict.fromkeys(r["image"] for r in records)):
        rows = [r for r in records if r["image"] == image]
        bound = max(r["bound"] for r in rows if r["bound"] is not None)
        at = [methods.index(r["method"]) + 0.06 * (k - 3) for r in rows]
        axes.semilogy(at, [100 * (r["own energy"] / bound - 1) for r in rows], "o", markersize=4, color=f"C{k}", label=image)
    axes.set_xticks(range(len(methods)), methods, rotation=40, ha="right")
    axes.set_ylabel("own energy above the best bound in percent")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


@case(
    "densecrf_methods",
    "Dense CRFs: energies, bounds and accuracies of all methods",
    "MSRC images, 21 labels, one energy for all: smoothness kernel (3, weight 3), bilateral kernel (80 / 13, weight 10), "
    "symmetrically normalised, every pair once. Images 2_14, 1_9 and 1_27 have the TextonBoost unaries of Kraehenbuehl & Koltun, "
    "minus logarithms of probabilities clipped at 0.001; the others noisy ones made from their ground truth. All methods with "
    "their default settings in float32; all but the simple labellings and mean field start from mean field's marginals. `own "
    "energy` is that of the method's own labelling, `energy` that of the best one seen (never worse than unary, constant and mean "
    "field), `from` where it is from; `gap` is its distance to the bound of the same run in percent; `best gap` that of the least "
    "energy and largest bound of all runs on the image. `accuracy` is the percentage of points with a ground truth that have the "
    "own labelling's label.",
    draw,
)
def run(quick: bool) -> list[Record]:
    records: list[Record] = []
    for name in RELEASED[:1] if quick else RELEASED + OTHERS:
        image, unary, truth = msrc(name)
        if quick:
            image, unary, truth = image[::4, ::4], unary[::4, ::4].contiguous(), truth[::4, ::4]
        crf = energy_of(image, unary)
        rows: list[Record] = []
        for label, x in (("unary", crf.unary.argmin(1)), ("constant", crf.best_constant())):
            value = crf.energy(x).item()
            rows.append(_row(name, label) | {"own energy": value, "energy": value, "accuracy": accuracy(x, truth)})
        runs = BASELINES | {m: (m, {}) for m in METHODS if m not in LEFT_OUT}
        for label, (method, options) in runs.items():
            found = solve_densecrf(crf, method, **options)
            rows.append(_row(name, label) | _figures(found, accuracy(found.labelling, truth)))
            print(rows[-1], file=sys.stderr, flush=True)
        bound = max(r["bound"] for r in rows if r["bound"] is not None)
        best = min(r["energy"] for r in rows)
        records += [r | {"best gap": 100 * (best - bound) / abs(best)} for r in rows]
    return records


def _row(image: str, method: str) -> Record:
    names = ("own energy", "energy", "from", "bound", "gap", "seconds", "filter calls", "accuracy", "best gap")
    return {"image": image, "method": method} | dict.fromkeys(names)


def _figures(found: Result, share: float) -> Record:
    return {
        "own energy": found.energy.item(),
        "energy": found.best_energy.item(),
        "from": found.best_source[0],
        "bound": found.bound.item(),
        "gap": 100 * found.best_gap.item(),
        "seconds": found.seconds,
        "filter calls": found.filter_calls,
        "accuracy": share,
    }
