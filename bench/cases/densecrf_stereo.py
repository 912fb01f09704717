"""Stereo by dense CRFs: energies, bounds and bad pixels of the methods of the thesis, alone and in chains (Table A.1)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bench.data import data
from bench.registry import Record, case
from blocklp.problems.densecrf import DenseCRF, Result, solve_densecrf
from blocklp.problems.densecrf.readers import read_image
from blocklp.problems.densecrf.stereo import bad_pixels, stereo_crf

PAIRS = {
    "tsukuba": (("im3.png", "im4.png", "disp3.pgm"), 16, 16, 1),
    "cones, half size": (("im2.png", "im6.png", "disp2.png"), 32, 4, 2),
}
"""Files of left and right picture and truth, disparities, grey levels of one pixel of the truth, and by what pictures are shrunk."""

CHAINS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "mean-field": [("mean-field", {"steps": 25})],
    "qp-cvx": [("qp-cvx", {})],
    "dc-gen": [("dc-gen", {})],
    "qp-cvx, dc-gen": [("qp-cvx", {}), ("dc-gen", {})],
    "qp-cvx, dc-gen, sg-lp": [("qp-cvx", {}), ("dc-gen", {}), ("sg-lp", {"levels": 10})],
    "prox-lp": [("prox-lp", {})],
    "qp-cvx, dc-gen, prox-lp": [("qp-cvx", {}), ("dc-gen", {}), ("prox-lp", {})],
    "hst": [("hst", {"trees": 2})],
}
"""Methods one after the other, each from the last point of the one before; the first from mean field's marginals."""

LIMIT = 20.0
"""Seconds of each method."""


def pair(name: str) -> tuple[Tensor, Tensor, Tensor, int]:
    """Left and right picture, true disparities ``(height, width)`` with 0 for unknown, and number of disparities."""
    files, disparities, scale, shrunk = PAIRS[name]
    folder = data(f"densecrf/middlebury/{name.partition(',')[0]}")
    left, right, truth = (read_image(folder / file)[::shrunk, ::shrunk].contiguous() for file in files)
    return left, right, truth[:, :, 0].double() / scale / shrunk, disparities


def draw(records: list[Record], figure: Figure) -> None:
    """Energy above the best bound against seconds, one picture a pair."""
    names = list(dict.fromkeys(r["pair"] for r in records))
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        rows = [r for r in records if r["pair"] == name and r["seconds"] is not None]
        bound = max(r["bound"] for r in rows if r["bound"] is not None)
        for k, r in enumerate(rows):
            axes.loglog(r["seconds"], 100 * (r["own energy"] / bound - 1), "o", color=f"C{k}", label=r["methods"])
        axes.set_title(name)
        axes.set_xlabel("seconds")
        axes.grid(alpha=0.3, which="both")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.axes[0].set_ylabel("own energy above the best bound in percent")


@case(
    "densecrf_stereo",
    "Dense CRFs: stereo by the methods of the thesis, alone and one after the other",
    "Middlebury pairs: matching costs after Birchfield and Tomasi, kernels (3, weight 10) and (10 / 10, weight 10), costs of two "
    "disparities linear in their difference up to 2. A chain begins every method at the last point of the one before, the first "
    "at mean field's marginals; each has 20 s, and `sg-lp` ten levels, as printed. `own energy` is that of the last "
    "method's labelling, `bound` the largest of the chain, `gap` their distance in percent. `bad pixels` are percent of those with a "
    "known disparity that are off by more than 1. Seconds are those of all methods of the chain.",
    draw,
)
def run(quick: bool) -> Iterator[Record]:
    for name in list(PAIRS)[:1] if quick else PAIRS:
        left, right, truth, disparities = pair(name)
        if quick:
            left, right, truth, disparities = left[::4, ::4], right[::4, ::4], truth[::4, ::4] / 4, 4
        crf = stereo_crf(left, right, disparities)
        labels = crf.unary.argmin(1)
        alone = _row(name, "matching costs alone", crf, labels, truth)
        yield alone | {"own energy": crf.energy(labels).item()}
        for methods, chain in list(CHAINS.items())[:: 3 if quick else 1]:
            yield _row(name, methods, crf, *_solved(crf, chain, truth, 2.0 if quick else LIMIT))
            print(name, methods, file=sys.stderr, flush=True)


def _solved(
    crf: DenseCRF, chain: list[tuple[str, dict[str, Any]]], truth: Tensor, limit: float
) -> tuple[Tensor, Tensor, list[Result]]:
    """The labels of the last method of a chain, the truth, and the results of all."""
    found: list[Result] = []
    for method, options in chain:
        start = found[-1].y if found else None
        found.append(solve_densecrf(crf, method, start=start, time_limit=limit, **options))
    return found[-1].labelling, truth, found


def _row(pair: str, methods: str, crf: DenseCRF, labels: Tensor, truth: Tensor, found: list[Result] | None = None) -> Record:
    """What is known about a labelling."""
    shape = truth.shape
    row: Record = {"pair": pair, "methods": methods}
    row |= dict.fromkeys(("own energy", "bound", "gap", "seconds", "filter calls"))
    if found:
        energy, bound = found[-1].energy.item(), max(own.bound.item() for own in found)
        row |= {"own energy": energy, "bound": bound, "gap": 100 * (energy - bound) / max(abs(energy), abs(bound))}
        row |= {"seconds": sum(own.seconds for own in found), "filter calls": sum(own.filter_calls for own in found)}
    return row | {"bad pixels": 100 * bad_pixels(labels.view(shape).cpu(), truth.to(torch.float64))}
