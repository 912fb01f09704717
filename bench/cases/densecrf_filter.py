"""The lattice against brute force (Figure A.1), and mean field against pydensecrf2."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch

from bench.data import data
from bench.densecrf_data import has_pydensecrf, msrc
from bench.registry import Record, case
from blocklp.oracles.filters import lattice_operations
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import DenseCRF, image_crf, image_features, solve_densecrf
from blocklp.problems.densecrf.mean_field import mean_field_update
from blocklp.problems.densecrf.readers import read_image


def least(work: Callable[[], Any], times: int = 3) -> float:
    """Least seconds of several runs."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


@case(
    "densecrf_lattice",
    "Dense CRFs: the lattice against the Gaussian (Figure A.1)",
    "Crops of an MSRC image; 21 channels in float32; `lattice` and `Gaussian` are seconds of a filter, `build` those of building "
    "the lattice. `exact / lattice` is the mean ratio of the sums of rows; the thesis's constant 0.6 was a missing 1/2 in the "
    "exponent. `difference` is the distance of the two answers to random values after scaling, relative, in percent: a lattice is "
    "another kernel, and an energy names which one it has.",
)
def lattice(quick: bool) -> list[Record]:
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


@case(
    "densecrf_mean_field",
    "Dense CRFs: time of mean field",
    "Two kernels, 3 and 80 / 13, normalised; `build` is seconds for both lattices and their normalisation, `ns` nanoseconds "
    "per pixel, label and iteration (ten iterations, least of three), `tensors ns` the same in tensor operations of torch "
    "only. pydensecrf2 is built from its sources, and runs one thread. `labels alike` is the percentage of points with the "
    "same label after ten iterations.",
)
def mean_field(quick: bool) -> list[Record]:
    records: list[Record] = []
    pictures = {"MSRC": msrc("2_14")[0], "VOC": read_image(data("densecrf/voc/2007_000129_0img.png"))}
    for name, image in pictures.items():
        height, width, _ = image.shape
        points = height * width
        for labels in (2, 21):
            draw = torch.Generator().manual_seed(0)
            unary = 3 * torch.rand(height, width, labels, generator=draw)

            def build(image: torch.Tensor = image, unary: torch.Tensor = unary) -> DenseCRF:
                crf = image_crf(image, unary)
                for kernel in crf.kernels:
                    assert len(kernel.scale)
                return crf

            crf = build()  # loads compiled loops
            built = least(build, 9)
            # What an iteration is: message and softmax; energies of the trace are not part of it.
            q = (-crf.unary).softmax(1)

            def iterate(q: torch.Tensor = q, crf: DenseCRF = crf) -> None:
                for _ in range(10):
                    q = mean_field_update(crf, q)

            iterate()
            ns = 1e9 * least(iterate) / (10 * points * labels)
            with mock.patch.object(lattice_operations, "kernels", lambda *_: None):
                tensors = 1e9 * least(iterate, 1) / (10 * points * labels)
            record: Record = {
                "image": name,
                "points": points,
                "labels": labels,
                "build": built,
                "ns": ns,
                "tensors ns": tensors,
                "pydensecrf2 build": None,
                "pydensecrf2 ns": None,
                "ratio": None,
                "labels alike": None,
            }
            if has_pydensecrf():
                record |= _theirs(image.numpy(), unary, solve_densecrf(crf, "mean-field", steps=10).y.argmax(1), ns)
            records.append(record)
            print(record, file=sys.stderr, flush=True)
            if quick:
                return records
    return records


def _theirs(image: Any, unary: torch.Tensor, mine: torch.Tensor, ns: float) -> Record:
    import pydensecrf.densecrf as rival

    height, width, labels = unary.shape
    costs = np.ascontiguousarray(unary.numpy().reshape(-1, labels).T)

    def build() -> Any:
        crf = rival.DenseCRF2D(width, height, labels)
        crf.setUnaryEnergy(costs)
        crf.addPairwiseGaussian(sxy=3, compat=3)
        crf.addPairwiseBilateral(sxy=80, srgb=13, rgbim=np.ascontiguousarray(image.astype(np.uint8)), compat=10)
        return crf

    crf, built = build(), least(build, 9)
    # Two runs of different length: the difference leaves out what both do once.
    short, long = least(lambda: crf.inference(2)), least(lambda: crf.inference(12))
    theirs = 1e9 * (long - short) / (10 * height * width * labels)
    alike = np.argmax(np.array(crf.inference(10)), axis=0) == mine.numpy()
    return {"pydensecrf2 build": built, "pydensecrf2 ns": theirs, "ratio": theirs / ns, "labels alike": 100 * float(alike.mean())}
