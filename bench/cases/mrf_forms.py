"""Made models of the forms of Tables 4 to 15 and Figure 2 of Le-Huu & Paragios 2018."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from bench.cases.mrf_methods import LIMIT, NAMES, compared, counted
from bench.mrf_models import inclusion, inpainting, matching, second_order_stereo, stereo
from bench.registry import Record, case
from blocklp.problems.mrf import Mrf

MAPS = "disparities"
"""Holds the maps of second-order stereo, by methods."""


def models(quick: bool) -> Iterator[Mrf]:
    """All models but second-order stereo."""
    for neighbours in (4, 8):
        yield inpainting(neighbours, 12 if quick else 120)
    for seed in range(1 if quick else 4):
        yield matching(seed, 8 if quick else 20)
    yield stereo("tsukuba", 16 if quick else 3)
    for seed in range(1 if quick else 4):
        yield inclusion(seed, 6 if quick else 32)


def draw(records: list[Record], figure: Figure) -> None:
    """Disparities of second-order stereo and their energies, as in Figure 2."""
    (record,) = (r for r in records if r[MAPS] is not None)
    maps = record[MAPS]["maps"]
    figure.set_size_inches(11, 5)
    for axes, (name, found) in zip(figure.subplots(2, -(-len(maps) // 2)).flat, maps.items(), strict=False):
        axes.imshow(found)
        axes.set_title(f"{name}: {record[name]['energy']:.6g}", fontsize=9)
    for axes in figure.axes:
        axes.axis("off")


@case(
    "mrf_forms",
    "MRFs: models of the forms of Tables 4 to 15 of Le-Huu & Paragios 2018",
    "Made models of OpenGM's forms. `inpainting` (Tables 4 to 7): a triple point of 120 x 120 pixels, four or eight neighbours. "
    "`matching` (8, 9): 20 points, each to its own, all pairs of them. `stereo` (10, 11): Middlebury's Tsukuba at a third of its "
    "size, truncated linear costs. `inclusion` (12, 13): 32 x 32 pixels, junctions of three labels cost 1000. `second-order stereo` "
    "(14, 15 and Figure 2): Middlebury's Cones at a twelfth of its size, 14 proposals of planes. Columns, starts and limits are "
    "those of the case `mrf_methods`. The picture has the disparities that each method found in second-order stereo, and their "
    "energies.",
    draw,
    limit=LIMIT,
)
def run(quick: bool, limit: float = LIMIT) -> Iterator[Record]:
    print(f"11 models, at most {11 * len(NAMES) * limit:.0f} s", file=sys.stderr, flush=True)
    records: list[Record] = []
    for mrf in models(quick):
        record, _ = compared(mrf.name, mrf, limit)
        records.append(record | {MAPS: None})
        yield records[-1]
    mrf, planes = second_order_stereo("cones, half size", 30 if quick else 6)
    record, labels = compared(mrf.name, mrf, limit)
    maps = {
        name: np.take_along_axis(planes, found.reshape(*planes.shape[:2], 1), 2)[:, :, 0].round(3).tolist()
        for name, found in labels.items()
    }
    records.append(record | {MAPS: {"shown": "picture", "maps": maps}})
    yield records[-1]
    yield counted(records)
