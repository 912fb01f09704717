"""The ordered filter against divide and conquer: Figures 2.8, A.11 and A.12."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from bench.data import data
from bench.densecrf_data import msrc
from bench.registry import Record, case
from blocklp.oracles.filters.divide_and_conquer import divide_and_conquer
from blocklp.oracles.filters.ordered import ordered_filter
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import image_features
from blocklp.problems.densecrf.readers import read_image


def images() -> dict[str, Tensor]:
    """An MSRC and a VOC image, and crops of them."""
    small, large = msrc("2_14")[0], read_image(data("densecrf/voc/2007_000129_0img.png"))
    return {"MSRC quarter": small[::2, ::2], "MSRC": small, "VOC": large}


def compared(lattice: Lattice, labels: int, clock: Callable[[], float] = time.perf_counter) -> Record:
    """Seconds of the ordered filter (least of three) and of divide and conquer on random scores, their ratio, and the error."""
    scores = torch.rand(lattice.points, labels, generator=torch.Generator().manual_seed(0))
    ordered_filter(lattice, scores)
    times = []
    for _ in range(3):
        began = clock()
        found = ordered_filter(lattice, scores)
        times.append(clock() - began)
    began = clock()
    exact = divide_and_conquer(lattice, scores)
    seconds = clock() - began
    error = 100 * float((found - exact).norm() / exact.norm())
    return {"ordered": min(times), "divide and conquer": seconds, "ratio": seconds / min(times), "error": error}


@case(
    "densecrf_ordered",
    "Dense CRFs: the ordered filter against divide and conquer",
    "Seconds of one answer of the ordered filter at its default levels and of the thesis's divide and conquer on the same kernel "
    "matrix, for uniformly random scores in float32; `error` is the distance of the two relative to the second (which orders "
    "exactly), in percent. sxy 3 is a smoothness kernel (d = 2), the others bilateral ones (d = 5). Divide and conquer is timed "
    "once, the filter is the least of three.",
)
def run(quick: bool) -> list[Record]:
    records: list[Record] = []
    for name, image in images().items():
        if quick and name != "MSRC quarter":
            continue
        height, width, _ = image.shape
        for sxy, srgb in ((3.0, None), (80.0, 13.0), (30.0, 8.0)):
            lattice = Lattice.build(image_features(height, width, sxy, None if srgb is None else image, srgb))
            for labels in (2, 21) if name == "MSRC" else (2,):
                record: Record = {
                    "image": name,
                    "points": height * width,
                    "kernel": f"{sxy:g}" if srgb is None else f"{sxy:g} / {srgb:g}",
                    "labels": labels,
                }
                records.append(record | compared(lattice, labels))
                print(records[-1], file=sys.stderr, flush=True)
    return records
