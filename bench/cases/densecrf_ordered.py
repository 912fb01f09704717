"""The ordered filter against divide and conquer: Figures 2.8, A.11 and A.12."""

from __future__ import annotations

import sys
import time

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
                scores = torch.rand(height * width, labels, generator=torch.Generator().manual_seed(0))
                ordered_filter(lattice, scores)
                times = []
                for _ in range(3):
                    began = time.perf_counter()
                    found = ordered_filter(lattice, scores)
                    times.append(time.perf_counter() - began)
                began = time.perf_counter()
                exact = divide_and_conquer(lattice, scores)
                seconds = time.perf_counter() - began
                records.append(
                    {
                        "image": name,
                        "points": height * width,
                        "kernel": f"{sxy:g}" if srgb is None else f"{sxy:g} / {srgb:g}",
                        "labels": labels,
                        "ordered": min(times),
                        "divide and conquer": seconds,
                        "ratio": seconds / min(times),
                        "error": 100 * float((found - exact).norm() / exact.norm()),
                    }
                )
                print(records[-1], file=sys.stderr, flush=True)
    return records
