"""Trains the network of this folder: ``python -m blocklp.problems.verification.digits.train [FILE.npz]``.

Ten seconds on one core.  It needs scikit-learn for the digits (the extra ``train``).  Training sees attacked digits
(projected gradient, Madry et al., ICLR 2018), so that something can be proved about the result; a small penalty on the
weights keeps ReLUs from being unstable without need.  Weights are rounded to float16, which halves the file; the network is
the one with the rounded weights.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocklp.errors import needed
from blocklp.problems.verification.digits import GREY, layers

TRAINED = 1500
"""The first so many digits are trained on."""

RADIUS, EPOCHS, BATCH, RATE, PENALTY = 2 * GREY, 30, 50, 5e-3, 1e-4


def attacked(net: nn.Module, images: Tensor, labels: Tensor, radius: float, steps: int) -> Tensor:
    """Return images within a radius and in [0, 1] that gradient steps have made worse to read.

    Parameters
    ----------
    net : Module
        The network.
    images, labels : Tensor
        ``(n, 1, 8, 8)`` in [0, 1], and ``(n,)`` int64.
    radius : float
        Of the box around an image, in every pixel.
    steps : int
        Gradient steps.
    """
    low, high = (images - radius).clamp(0, 1), (images + radius).clamp(0, 1)
    found = low + (high - low) * torch.rand_like(images)
    for _ in range(steps):
        found.requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(net(found), labels), found)
        found = (found.detach() + 0.5 * radius * slope.sign()).clamp(low, high)
    return found


def train(images: Tensor, labels: Tensor, epochs: int = EPOCHS, seed: int = 0) -> nn.Sequential:
    """Train on images; the radius of the attack grows over the first half.

    Parameters
    ----------
    images, labels : Tensor
        ``(n, 1, 8, 8)`` in [0, 1], and ``(n,)`` int64.
    epochs, seed : int
        How often all images are used, and the seed of weights, order and attacks.

    Returns
    -------
    Sequential
        float32, with weights that float16 holds exactly.
    """
    torch.manual_seed(seed)
    net = layers()
    optimiser = torch.optim.Adam(net.parameters())
    batches = -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=epochs * batches)
    matrices = [p for p in net.parameters() if p.dim() > 1]
    for epoch in range(epochs):
        radius = RADIUS * min(1.0, 2 * epoch / epochs)
        for batch in torch.randperm(len(images)).chunk(batches):
            worse = attacked(net, images[batch], labels[batch], radius, 5)
            loss = F.cross_entropy(net(worse), labels[batch]) + PENALTY * torch.stack([m.abs().sum() for m in matrices]).sum()
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            schedule.step()
    return net.half().float().eval()


def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of images that are read right.

    Parameters
    ----------
    net, images, labels
        As in :func:`attacked`.
    """
    with torch.no_grad():
        return float((net(images).argmax(1) == labels).double().mean())


def save(path: Path, net: nn.Sequential, images: Tensor, labels: Tensor) -> None:
    """Write the weights and the first image of every class.

    Parameters
    ----------
    path : Path
        The file, .npz.
    net : Sequential
        The network.
    images, labels : Tensor
        ``(n, 1, 8, 8)`` in [0, 1], and ``(n,)`` int64; all ten classes are there.
    """
    first = torch.stack([(labels == label).nonzero()[0, 0] for label in range(10)])
    weights = {name: tensor.half().numpy() for name, tensor in net.state_dict().items()}
    pictures = (images[first, 0] / GREY).to(torch.uint8).numpy()
    np.savez_compressed(path, allow_pickle=False, images=pictures, labels=labels[first].to(torch.uint8).numpy(), **weights)


def main() -> None:
    """Train, report and save."""
    with needed("training needs scikit-learn", "train"):
        from sklearn.datasets import load_digits
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("digits.npz")
    torch.set_num_threads(1)  # sums in one order
    pixels, classes = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels).float().view(-1, 1, 8, 8) * GREY, torch.from_numpy(classes).long()
    net = train(images[:TRAINED], labels[:TRAINED])
    others, theirs = images[TRAINED:], labels[TRAINED:]
    save(path, net, others, theirs)
    print(f"read right: {accuracy(net, images[:TRAINED], labels[:TRAINED]):.1%} of the {TRAINED} digits trained on")
    print(f"{accuracy(net, others, theirs):.1%} of the {len(others)} others", end="")
    for levels in (1, 2):
        print(f", {accuracy(net, attacked(net, others, theirs, levels * GREY, 50), theirs):.1%} attacked by {levels}/16", end="")
    print(f"\n{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
