"""The lattice against brute force (Figure A.1)."""

from __future__ import annotations

import sys
from functools import partial

import torch

from bench.densecrf_data import least, msrc
from bench.registry import Record, case
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import image_features


@case(
    "densecrf_lattice",
    "Dense CRFs: the lattice against the Gaussian (Figure A.1)",
    "Crops of an MSRC image; 21 channels in float32; `lattice` and `Gaussian` are seconds of a filter, `build` those of building "
    "the lattice. `exact / lattice` is the mean ratio of the sums of rows; the thesis's constant 0.6 was a missing 1/2 in the "
    "exponent. `difference` is the distance of the two answers to random values after scaling, relative, in percent: a lattice is "
    "another kernel, and an energy names which one it has.",
)
def run(quick: bool) -> list[Record]:
    image = msrc("2_14")[0]
    records: list[Record] = []
    for side in (20, 40) if quick else (20, 40, 80, 160):
        crop = image[:side, :side]
        for sxy, srgb in ((3.0, None), (80.0, 13.0)):
            features = image_features(*crop.shape[:2], sxy, None if srgb is None else crop, srgb)
            values = torch.rand(len(features), 21, generator=torch.Generator().manual_seed(0))
            build = least(partial(Lattice.build, features))
            fast, exact = Lattice.build(features), Gaussian(features)
            one, two = fast.filter(values), exact.filter(values)
            sums = exact.filter(torch.ones(len(features), 1)) / fast.filter(torch.ones(len(features), 1))
            scale = float((one * two).sum() / (one * one).sum())
            records.append(
                {
                    "points": len(features),
                    "kernel": f"{sxy:g}" if srgb is None else f"{sxy:g} / {srgb:g}",
                    "build": build,
                    "lattice": least(partial(fast.filter, values)),
                    "Gaussian": least(partial(exact.filter, values), 1),
                    "exact / lattice": float(sums.mean()),
                    "difference": 100 * float((scale * one - two).norm() / two.norm()),
                }
            )
            print(records[-1], file=sys.stderr, flush=True)
    return records
