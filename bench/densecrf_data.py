"""Images, unaries and truths of the dense CRF cases."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.io import loadmat
from torch import Tensor

from bench.data import data
from bench.registry import Record
from blocklp.problems.densecrf import DenseCRF, image_crf
from blocklp.problems.densecrf.readers import read_image, read_unary
from blocklp.problems.densecrf.shapes_example import mean_iou

RELEASED = ("2_14", "1_9", "1_27")
"""MSRC images whose TextonBoost unaries were released."""
OTHERS = ("3_12", "5_8", "6_15", "9_10", "16_7")
"""MSRC images with a ground truth only: their unaries are made from it, with noise."""
VOID, LABELS = 255, 21
DROPPED = (5, 8)
"""Horse and mountain, which are among the 23 classes of MSRC, from 1 on, and not among the 21."""

KERNELS = {
    "reference": {"smooth": (3.0, 3.0), "bilateral": (80.0, 13.0, 10.0), "normalise": True},
    # Table A.2, tuned for DCneg and for MF on MSRC: widths of exp(-d^2 / 2) as the released code reads them, no normalisation.
    "DCneg": {"smooth": (3.535267, 2.247081), "bilateral": (31.232626, 7.949970, 1.699011), "normalise": False},
    "MF": {"smooth": (1.0, 7.467846), "bilateral": (35.865959, 11.209644, 4.028773), "normalise": False},
    # Table 2 of the text on cliques, for MSRC: tuned for QP and for five steps of mean field, without cliques and with them.
    "QP": {"smooth": (2.36, 22.89), "bilateral": (48.73, 6.52, 60.5), "normalise": False},
    "QPclique": {"smooth": (3.74, 17.67), "bilateral": (39.76, 9.49, 54.56), "normalise": False},
    "MF5": {"smooth": (4.1, 77.047), "bilateral": (47.79, 4.69, 100.0), "normalise": False},
    "MF5clique": {"smooth": (6.53, 4.46), "bilateral": (50.0, 9.74, 11.56), "normalise": False},
}
"""Kernels by name: sxy and weight; sxy, srgb and weight.  Every pair counts once."""


def msrc(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Image ``(height, width, 3)``, unaries ``(height, width, 21)`` float32 and truth ``(height, width)`` int64, 255 for none."""
    image, truth = read_image(data(f"densecrf/msrc/{name}_s.bmp")), truth_of(name)
    if name in RELEASED:
        return image, read_unary(data(f"densecrf/msrc/{name}_s.c_unary"), image.shape[:2]).float(), truth
    draw = torch.Generator().manual_seed(0)
    # Scores that favour the truth by less than their noise; a void point favours nothing.
    scores = torch.randn(*truth.shape, LABELS, generator=draw)
    known = truth != VOID
    scores += 2.0 * torch.nn.functional.one_hot(truth * known, LABELS) * known[:, :, None]
    return image, -scores.log_softmax(2), truth


def truth_of(name: str) -> Tensor:
    """The cleaned-up ground truth of an MSRC image, ``(height, width)`` int64: classes from 0 on, 255 for none."""
    found = loadmat(data(f"densecrf/msrc/{name}_s_GT.mat"))
    segment, label = found["newseg"].astype(np.int64), found["newlabels"].ravel().astype(np.int64)
    kept = [k for k in range(1, LABELS + len(DROPPED) + 1) if k not in DROPPED]
    number = np.full(kept[-1] + 1, VOID)
    number[kept] = np.arange(LABELS)
    of_segment = np.full(max(segment.max(), len(label)) + 1, VOID)
    of_segment[1 : len(label) + 1] = number[label]
    return torch.from_numpy(of_segment[segment])


def energy_of(image: Tensor, unary: Tensor, kernels: str = "reference", pairs: int = 1, normalise: bool | None = None) -> DenseCRF:
    """The energy with kernels by name; ``pairs=2`` counts every pair twice, as the thesis does.

    ``normalise`` stands in for what the kernels say about it.
    """
    chosen = KERNELS[kernels]
    *widths, weight = chosen["bilateral"]
    sxy, first = chosen["smooth"]
    return image_crf(
        image,
        unary,
        smooth=(sxy, pairs * first),
        bilateral=(widths[0], widths[1], pairs * weight),
        normalise=chosen["normalise"] if normalise is None else normalise,
    )


def reference_energy(quick: bool) -> tuple[DenseCRF, Tensor]:
    """The reference energy of MSRC's image 2_14, or of every fourth row and column, and the softmax of its unaries."""
    image, unary, _ = msrc("2_14")
    if quick:
        image, unary = image[::4, ::4], unary[::4, ::4].contiguous()
    crf = energy_of(image, unary)
    return crf, (-crf.unary).softmax(1)


class Labelled(NamedTuple):
    """A labelling ``(points,)`` of an image, with its energy, the bound of its run and seconds."""

    labels: Tensor
    energy: float
    bound: float | None = None
    seconds: float | None = None


def simple_labellings(crf: DenseCRF) -> dict[str, Labelled]:
    """That of the least unary of every point, and the best one of a single label, by name."""
    simple = {"unary": crf.unary.argmin(1), "constant": crf.best_constant()}
    return {name: Labelled(x, crf.energy(x).item()) for name, x in simple.items()}


def averages(runs: list[Labelled], truths: list[Tensor]) -> Record:
    """Mean energy, bound and seconds of a method's labellings of images, and the scores of all of them together."""
    means = {what: mean([getattr(own, what) for own in runs]) for what in ("energy", "bound", "seconds")}
    return means | scores(torch.cat([own.labels for own in runs]), torch.cat([truth.flatten() for truth in truths]))


def mean(values: list[float | None]) -> float | None:
    """The mean of numbers, or None if there is one missing."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def scores(labels: Tensor, truth: Tensor) -> Record:
    """Accuracy and mean intersection over union of a labelling ``(points,)``, in percent; points without a truth do not count."""
    truth = truth.flatten()
    union = mean_iou(labels, torch.where(truth == VOID, -1, truth), LABELS)
    return {"accuracy": accuracy(labels, truth), "IoU": 100 * union}


def accuracy(labelling: Tensor, truth: Tensor) -> float:
    """Percent of the points with a truth that are labelled so."""
    known = truth.flatten() != VOID
    return 100 * float((labelling[known] == truth.flatten()[known]).double().mean())


def has_pydensecrf() -> bool:
    """Whether the rival can be imported."""
    return importlib.util.find_spec("pydensecrf") is not None


def least(work: Callable[[], Any], times: int = 3) -> float:
    """Least seconds of several runs."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)
