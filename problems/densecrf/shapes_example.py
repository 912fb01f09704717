"""Train a small convolutional network and a dense-CRF layer together, for each method, on pictures that are made here.

Run ``python -m blocklp.problems.densecrf.shapes_example``.  Pictures of discs, squares and triangles on a ground have noise of the
size of the colours' differences.  As in Le-Huu & Alahari (2021, section 5.3) the network is trained by itself first, then with a
layer of five steps, whose result is the mean with the network's own marginals for all methods but mean field.  The table has the
mean intersection over union (mIoU) on held-back pictures: of the layer put on the network, and of both trained together, by
epochs (Figure 1c) and in the end (Table 2), mean and standard deviation over seeds; its first row is the network trained on
without a layer.
"""

from __future__ import annotations

import copy
from typing import Annotated, NamedTuple

import torch
import typer
from torch import Tensor

from blocklp.problems.densecrf.layers import METHODS, DenseCRFLayer

LABELS, SIZE, PICTURES, HELD_BACK = 4, 32, 16, 64
NOISE, OFFSET = 60.0, 10.0


class Pictures(NamedTuple):
    """Colours from 0 to 255 ``(pictures, 3, size, size)`` and labels ``(pictures, size, size)``."""

    images: Tensor
    truth: Tensor


def shapes(count: int, seed: int) -> Pictures:
    """Make pictures: three to five objects each, a disc, square or triangle with the label 1, 2 or 3, over the ground 0.

    Parameters
    ----------
    count : int
        How many.
    seed : int
        The same seed gives the same pictures.

    Returns
    -------
    Pictures
        float32 and int64.
    """
    draw = torch.Generator().manual_seed(seed)
    colours = torch.tensor([[90.0, 90, 90], [150, 100, 90], [90, 150, 100], [100, 90, 150]])
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    images, truth = torch.empty(count, 3, SIZE, SIZE), torch.zeros(count, SIZE, SIZE, dtype=torch.int64)
    for image, labels in zip(images, truth, strict=True):
        image[:] = (colours[0] + OFFSET * torch.randn(3, generator=draw))[:, None, None]
        for _ in range(int(torch.randint(3, 6, (), generator=draw))):
            label = int(torch.randint(1, LABELS, (), generator=draw))
            across, down = (SIZE * torch.rand(2, generator=draw)).tolist()
            radius = 4 + 5 * float(torch.rand((), generator=draw))
            inside = {
                1: (x - across).square() + (y - down).square() < radius**2,
                2: torch.maximum((x - across).abs(), (y - down).abs()) < 0.85 * radius,
                3: ((x - across).abs() < (y - down + radius) / 2) & (y - down < radius),
            }[label]
            labels[inside] = label
            image[:, inside] = (colours[label] + OFFSET * torch.randn(3, generator=draw))[:, None]
    return Pictures((images + NOISE * torch.randn(images.shape, generator=draw)).clamp(0, 255), truth)


def mean_iou(found: Tensor, truth: Tensor, labels: int) -> float:
    """Mean over labels of the intersection of found and true pixels over their union, all pictures together.

    Parameters
    ----------
    found, truth : Tensor
        Labels, int64, of the same shape; where the truth is negative it is unknown and does not count.
    labels : int
        How many; one that is neither found nor true anywhere does not count.

    Returns
    -------
    float
        From 0 to 1.
    """
    known = truth >= 0
    counts = torch.bincount(truth[known] * labels + found[known], minlength=labels * labels).view(labels, labels).double()
    both, either = counts.diagonal(), counts.sum(0) + counts.sum(1) - counts.diagonal()
    return float((both / either)[either > 0].mean())


class PixelNetwork(torch.nn.Module):
    """Two convolutions, which see 3 x 3 pixels, and a layer or none after them."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, LABELS, 1))
        self.crf: DenseCRFLayer | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Return the logarithms of marginals ``(pictures, labels, size, size)``."""
        logits: Tensor = self.scores(images / 64 - 2)
        # Projections give zeros, which have no logarithm.
        return logits.log_softmax(1) if self.crf is None else self.crf(images, logits).clamp(min=1e-3).log()

    def measure(self, pictures: Pictures) -> float:
        """The mIoU on pictures."""
        with torch.no_grad():
            return mean_iou(self(pictures.images).argmax(1), pictures.truth, LABELS)


def train(network: PixelNetwork, known: Pictures, held_back: Pictures, epochs: int, rates: tuple[float, float]) -> list[float]:
    """Fit by cross entropy and Adam, all pictures in a batch of their own four.

    Parameters
    ----------
    network : PixelNetwork
        Whose parameters are changed.
    known, held_back : Pictures
        To train on, and to measure on.
    epochs : int
        Rounds over all pictures.
    rates : pair of float
        Step sizes for the convolutions and for the layer.

    Returns
    -------
    list of float
        The mIoU on the pictures held back, after each epoch.
    """
    groups = [{"params": network.scores.parameters(), "lr": rates[0]}]
    if network.crf is not None:
        groups.append({"params": [p for p in network.crf.parameters() if p.requires_grad], "lr": rates[1]})
    optimizer = torch.optim.Adam(groups)
    found = []
    for _ in range(epochs):
        for images, truth in zip(torch.split(known.images, 4), torch.split(known.truth, 4), strict=True):
            optimizer.zero_grad()
            torch.nn.functional.nll_loss(network(images), truth).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found.append(network.measure(held_back))
    return found


def compare(seeds: int, epochs: int, skip: bool = True) -> dict[str, list[list[float]]]:
    """Train networks alone, and on with a layer of each method.

    Parameters
    ----------
    seeds : int
        Networks to train.
    epochs : int
        Epochs with the layer.
    skip : bool
        Whether results are means with the network's marginals, but for mean field.

    Returns
    -------
    dict
        Names of methods to the mIoU of each network on pictures held back: before these epochs, and after each.
    """
    # The settings above were chosen on pictures of seed 1, which therefore say nothing of them.
    known, held_back = shapes(PICTURES, 0), shapes(HELD_BACK, 2)
    rows: dict[str, list[list[float]]] = {name: [] for name in ("no layer", *METHODS)}
    for seed in range(seeds):
        torch.manual_seed(seed)
        network = PixelNetwork()
        train(network, known, held_back, 40, (0.01, 0.0))
        for name, runs in rows.items():
            joint = copy.deepcopy(network)
            if name in METHODS:
                steady = skip and name != "mean-field"
                joint.crf = DenseCRFLayer(LABELS, method=name, smooth=(2.0, 1.0), bilateral=(8.0, 100.0, 1.0), skip=steady)
            untrained = joint.measure(held_back)
            runs.append([untrained, *train(joint, known, held_back, epochs, (0.001, 0.05))])
    return rows


def _command(
    seeds: Annotated[int, typer.Option(help="Networks to train.")] = 5,
    epochs: Annotated[int, typer.Option(help="Epochs with the layer.")] = 20,
    skip: Annotated[bool, typer.Option(help="Whether results are means with the network's marginals, but for mean field.")] = True,
) -> None:
    """Print the mIoU of the network and of each method, before and after training together."""
    rows = compare(seeds, epochs, skip)
    shown = sorted({0, *range(1, epochs + 1, max(1, epochs // 4)), epochs})
    print(f"{'mIoU, per cent':<14}" + "".join(f"{f'epoch {k}' if k else 'untrained':>14}" for k in shown))
    for name, runs in rows.items():
        print(f"{name:<14}" + "".join(f"{_spread([run[k] for run in runs]):>14}" for k in shown))


def _spread(values: list[float]) -> str:
    """Mean and standard deviation in per cent."""
    numbers = 100 * torch.tensor(values)
    return f"{numbers.mean():.1f} ± {numbers.std(correction=0):.1f}"


if __name__ == "__main__":
    typer.run(_command)
