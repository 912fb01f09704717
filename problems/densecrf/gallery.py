"""Pictures that ship with scikit-image, labelled by a dense CRF: ``python -m blocklp.problems.densecrf.gallery OUT.png``.

Labels are the groups that k-means finds among an image's colours, seen through noise, or the disparities of a stereo pair; nothing is
trained.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import skimage.data
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from blocklp.problems.densecrf.demo import colour_costs
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.images import image_crf
from blocklp.problems.densecrf.pictures import overlay
from blocklp.problems.densecrf.solve import solve_densecrf
from blocklp.problems.densecrf.stereo import stereo_crf
from blocklp.problems.plot import blank_figure

GROUPS = {"coffee": 4, "chelsea": 4, "astronaut": 5}
"""Images, and the groups of their colours."""
NOISE = 1.5
"""Standard deviation of what is added to every unary, in nats."""


def grouped(image: Tensor, groups: int) -> DenseCRF:
    """The energy of labels that are groups of colours, seen through noise."""
    draw = np.random.default_rng(0)
    typical, _ = kmeans2(image.reshape(-1, 3).double().numpy(), groups, minit="++", seed=draw)  # rng= is newer than the oldest SciPy
    costs = colour_costs(image, torch.from_numpy(typical).float())
    noise = torch.from_numpy(draw.normal(0, NOISE, costs.shape)).float()
    return image_crf(image, costs + noise, smooth=(3.0, 2.0), bilateral=(40.0, 13.0, 5.0))


def gallery(out: Path, groups: Mapping[str, int] = GROUPS, *, shrink: int = 4, disparities: int = 18) -> None:
    """Write the pictures: every image, the labels of its unaries, and those of PROX-LP.

    Parameters
    ----------
    out : Path
        The picture to write.
    groups : mapping
        Names of images in ``skimage.data``, and the groups of their colours.
    shrink : int
        Pixels of the stereo pair along a side of a pixel of what is matched.
    disparities : int
        Disparities of the stereo pair in such pixels, from 0 on.
    """
    figure = blank_figure(out)
    data: Any = skimage.data  # without types
    rows: list[tuple[str, Tensor, DenseCRF]] = []
    for name, count in groups.items():
        image = torch.from_numpy(getattr(data, name)()[::2, ::2].copy())
        rows.append((name, image, grouped(image, count)))
    left, right, _ = (np.array(a) for a in data.stereo_motorcycle())
    pair = [torch.from_numpy(a).float().movedim(2, 0)[None] for a in (left, right)]
    small, other = (torch.nn.functional.avg_pool2d(a, shrink)[0].movedim(0, 2) for a in pair)
    rows.append(("motorcycle", small, stereo_crf(small, other, disparities)))

    figure.set_size_inches(11, 3.1 * len(rows))
    for line, (name, image, crf) in zip(figure.subplots(len(rows), 3), rows, strict=True):
        result = solve_densecrf(crf, "prox-lp")
        unary = crf.unary.argmin(1)
        shown = [("", image.numpy() / 255)]
        for title, labels in (
            (f"unaries: {crf.energy(unary).item():.0f}", unary),
            (
                f"{result.best_source[0]}: {result.best_energy.item():.0f}, at most {100 * result.best_gap.item():.2f} % too much",
                result.best_labelling,
            ),
        ):
            at = labels.view(image.shape[:2])
            if name == "motorcycle":
                shown.append((title, at.numpy()))
            else:
                shown.append((title, overlay(image, at, crf.labels, 0.7)))
        shown[0] = (f"{name}, {crf.labels} labels", shown[0][1])
        for axes, (title, pixels) in zip(line, shown, strict=True):
            axes.imshow(pixels, interpolation="nearest", vmin=0, vmax=disparities - 1)
            axes.set_title(title, fontsize=10)
            axes.set_axis_off()
        print(f"{name}: energy {result.best_energy.item():.1f}, bound {result.bound.item():.1f}, {result.seconds:.1f} s")
    figure.savefig(out, dpi=90)


if __name__ == "__main__":
    gallery(Path(sys.argv[1]))
