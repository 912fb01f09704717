"""Train dense-CRF layers on some strips of a real stereo pair and measure them on the others.

Run ``python -m blocklp.problems.densecrf.training_example``; it needs scikit-image, whose motorcycle (Middlebury 2014) comes with the
true disparities.  The labels are whole disparities, the logits compare single pixels of both views, and nothing is random.  What is
learned are weights, widths, the scale of the logits and the numbers of the method.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import skimage.data
import torch
from torch import Tensor

from blocklp.problems.densecrf.layers import METHODS, DenseCRFLayer

SHRINK, STRIPS = 8, 6


class Strips(NamedTuple):
    """Vertical strips: ``(strips, channels, height, width)`` colours and logits, ``(strips, height, width)`` labels or -1."""

    images: Tensor
    logits: Tensor
    truth: Tensor

    def accuracy(self, scores: Tensor) -> float:
        """Share of the known pixels whose label has the largest of the scores ``(strips, labels, height, width)``."""
        return float((scores.argmax(1) == self.truth)[self.truth >= 0].double().mean())


def motorcycle() -> tuple[Strips, Strips]:
    """Every other strip for training, the rest held back."""
    data: Any = skimage.data  # without types
    left, right, disparity = (torch.from_numpy(np.array(a)).float() for a in data.stereo_motorcycle())

    def tiles(a: Tensor) -> Tensor:
        """The pixels of every tile: ``(height, width, pixels, ...)``."""
        return a.unfold(0, SHRINK, SHRINK).unfold(1, SHRINK, SHRINK).flatten(-2)

    left, right = tiles(left).mean(-1).permute(2, 0, 1), tiles(right).mean(-1).permute(2, 0, 1)
    middle = tiles(disparity).median(-1).values / SHRINK  # infinite where unknown
    known = torch.isfinite(middle)
    truth = torch.where(known, middle, -1.0).round().long()
    logits = torch.full((int(truth.max()) + 1, *truth.shape), -6.0)
    for label, scores in enumerate(logits):
        shifted = right[:, :, : right.shape[2] - label]
        scores[:, label:] = -((left[:, :, label:] - shifted).abs().mean(0) / 10).clamp(max=6)

    def cut(a: Tensor) -> Tensor:
        width = a.shape[-1] // STRIPS
        return torch.stack([a[..., k * width : (k + 1) * width] for k in range(STRIPS)])

    images, scores, labels = cut(left), cut(logits), cut(truth)
    return Strips(images[::2], scores[::2], labels[::2]), Strips(images[1::2], scores[1::2], labels[1::2])


def train(layer: DenseCRFLayer, strips: Strips, epochs: int) -> float:
    """Fit by the log-likelihood of the marginals; return the last loss.

    Parameters
    ----------
    layer : DenseCRFLayer
        The layer, whose parameters are changed.
    strips : Strips
        Images, logits and true labels.
    epochs : int
        Steps of Adam, each over all strips.
    """
    layer.log_stretch.requires_grad_()
    layer.compatibility.requires_grad_(False)  # strips of one image tell too little about every pair of labels
    optimizer = torch.optim.Adam([p for p in layer.parameters() if p.requires_grad], lr=0.1)
    loss = torch.zeros(())
    for _ in range(epochs):
        optimizer.zero_grad()
        # Projections give zeros, which have no logarithm.
        marginals = layer(strips.images, strips.logits).clamp(min=1e-3)
        loss = torch.nn.functional.nll_loss(marginals.log(), strips.truth, ignore_index=-1)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item()


def main(epochs: int = 30) -> None:
    """Print the accuracies of the logits, and of each method before and after training."""
    known, held_back = motorcycle()
    print(f"{'right labels, per cent':<24}{'trained on':>12}{'held back':>12}")

    def row(name: str, one: float, other: float) -> None:
        print(f"{name:<24}{100 * one:>12.1f}{100 * other:>12.1f}", flush=True)

    row("logits alone", known.accuracy(known.logits), held_back.accuracy(held_back.logits))
    for method in METHODS:
        layer = DenseCRFLayer(known.logits.shape[1], method=method)
        for name in ("untrained", "trained"):
            if name == "trained":
                train(layer, known, epochs)
            with torch.no_grad():
                row(f"{method}, {name}", *(s.accuracy(layer(s.images, s.logits)) for s in (known, held_back)))


if __name__ == "__main__":
    main()
