"""Mean field against pydensecrf2."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import numpy as np
import torch

from bench.data import data
from bench.densecrf_data import has_pydensecrf, least, msrc
from bench.registry import Record, case
from blocklp.oracles.filters import lattice_operations
from blocklp.problems.densecrf import DenseCRF, image_crf, solve_densecrf
from blocklp.problems.densecrf.mean_field import mean_field_update
from blocklp.problems.densecrf.readers import read_image


@case(
    "densecrf_mean_field",
    "Dense CRFs: time of mean field",
    "Two kernels, 3 and 80 / 13, normalised; `build` is seconds for both lattices and their normalisation, `ns` nanoseconds "
    "per pixel, label and iteration (ten iterations, least of three), `tensors ns` the same in tensor operations of torch "
    "only. pydensecrf2 is built from its sources, and runs one thread. `labels alike` is the percentage of points with the "
    "same label after ten iterations.",
)
def run(quick: bool) -> list[Record]:
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
