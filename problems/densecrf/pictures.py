"""Pictures of labellings, disparities and runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.errors import OptionError, needed
from blocklp.problems.densecrf.result import Result
from blocklp.problems.plot import require_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEGEND = 30
"""Most labels that a legend names: those of most pixels."""


def check_png(path: Path) -> None:
    """Raise unless a PNG can be written there; to be called before the work whose result it shows.

    Raises
    ------
    MissingDependencyError
        If Pillow is missing.
    OptionError
        If the folder does not exist or the suffix is another one.
    """
    with needed("pictures need Pillow", "densecrf"):
        import PIL.Image  # noqa: F401
    if path.suffix.lower() != ".png":
        raise OptionError(f"{path}: labels are written without loss; give a name that ends in .png")
    require_folder(path)


def write_grey(path: Path, values: Tensor) -> None:
    """Write whole numbers ``(height, width)`` as grey levels: a PNG of 8 bits, or of 16 if one is above 255."""
    from PIL import Image

    kind = np.uint8 if int(values.max()) < 256 else np.uint16
    Image.fromarray(values.cpu().numpy().astype(kind)).save(path)


def label_colours(labels: int) -> NDArray[np.float64]:
    """Colours that tell labels apart, as far as there are such: ``(labels, 3)`` from 0 to 1."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    for name in ("tab10", "tab20"):
        listed = colormaps[name]
        assert isinstance(listed, ListedColormap)
        if labels <= listed.N:
            return np.array(listed.colors)[:labels, :3]
    # Neighbours in number are far apart in colour: steps of the golden ratio.
    turns = np.arange(labels) * (math.sqrt(5) - 1) / 2 % 1
    return colormaps["turbo"](turns)[:, :3]


def overlay(image: Tensor, labels: Tensor, count: int, strength: float = 0.55) -> NDArray[np.float64]:
    """Colours from 0 to 1 of a labelling over its image, with borders between labels: ``(height, width, 3)``.

    Parameters
    ----------
    image, labels, count
        As in :func:`draw_overlay`.
    strength : float
        From 0, only the image, to 1, only the labels.
    """
    at = labels.cpu().numpy()
    # Grey below, so that every hue is a label's.
    grey = image.double().mean(2, keepdim=True).cpu().numpy() / 255
    blend = (1 - strength) * grey + strength * label_colours(count)[at]
    border = np.zeros(at.shape, bool)
    border[:, 1:] |= at[:, 1:] != at[:, :-1]
    border[1:] |= at[1:] != at[:-1]
    blend[border] *= 0.45
    clipped: NDArray[np.float64] = blend.clip(0, 1)
    return clipped


def draw_overlay(figure: Figure, image: Tensor, labels: Tensor, count: int, names: Sequence[str] | None = None) -> None:
    """Draw a labelling over its image, with borders between labels and a legend of the labels and their shares.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Empty.
    image : Tensor
        ``(height, width, channels)``, 1 or 3 channels: colours from 0 to 255.
    labels : Tensor
        ``(height, width)`` int64.
    count : int
        Number of labels.
    names : sequence of str, optional
        Of the labels; their numbers by default.
    """
    from matplotlib.patches import Patch

    colours = label_colours(count)
    names = [str(k) for k in range(count)] if names is None else names
    height, width = labels.shape
    figure.set_size_inches(9.5, max(3.0, min(12.0, 7.5 * height / width)))
    axis = figure.subplots()
    axis.imshow(overlay(image, labels, count), interpolation="nearest")
    axis.set_axis_off()
    pixels = torch.bincount(labels.flatten().cpu(), minlength=count)
    most = [int(k) for k in pixels.argsort(descending=True, stable=True) if pixels[k] > 0][:LEGEND]
    handles = [
        Patch(color=tuple(colours[k]), label=f"{names[k]}: {100 * float(pixels[k]) / labels.numel():.1f} %") for k in sorted(most)
    ]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, title="label: pixels")


def draw_disparities(figure: Figure, image: Tensor, found: Tensor, truth: Tensor | None = None) -> None:
    """Draw the left image and its disparities side by side, and the true ones if they are known.

    Parameters
    ----------
    figure, image
        As in :func:`draw_overlay`.
    found : Tensor
        ``(height, width)``: disparities.
    truth : Tensor, optional
        ``(height, width)``: true disparities, 0 where unknown.
    """
    maps = [("disparity", found)] if truth is None else [("disparity", found), ("truth", truth)]
    height, width = found.shape
    figure.set_size_inches(4.6 * (1 + len(maps)), 0.5 + 4.3 * height / width)
    axes = figure.subplots(1, 1 + len(maps))
    axes[0].imshow((image.double().mean(2) / 255).cpu().numpy(), cmap="gray", vmin=0, vmax=1)
    axes[0].set_title("left image")
    largest = max(float(values.max()) for _, values in maps)
    for axis, (name, values) in zip(axes[1:], maps, strict=True):
        shown = values.double().cpu().numpy()
        if name == "truth":
            shown = np.where(shown > 0, shown, np.nan)
        drawn = axis.imshow(shown, cmap="viridis", vmin=0, vmax=largest, interpolation="nearest")
        axis.set_title(name)
    for axis in axes:
        axis.set_axis_off()
    figure.colorbar(drawn, ax=axes[-1], label="pixels", shrink=0.85)


def draw_trace(figure: Figure, result: Result) -> None:
    """Draw energy and bound of a run of one image against its steps and against seconds, on an empty figure."""
    history = result.history
    energy, bound = history.energy[:, 0].tolist(), history.bound[:, 0].tolist()
    best, least = float(result.best_energy[0]), float(result.bound[0])
    figure.set_size_inches(10, 4.2)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, x, name in ((axes[0], list(range(1, 1 + len(energy))), "steps"), (axes[1], history.seconds.tolist(), "seconds")):
        axis.plot(x, energy, color="C0", marker=".", label="energy of the method's labelling")
        axis.plot(x, [b if math.isfinite(b) else math.nan for b in bound], color="C1", marker=".", label="bound")
        axis.axhline(best, color="C2", linestyle=":", label=f"best energy seen {best:.6g} ({result.best_source[0]})")
        axis.axhline(least, color="C1", linestyle=":", label=f"best bound {least:.6g}")
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("energy")
    axes[1].set_xlim(left=0)
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    gaps = f"gap {100 * float(result.gap[0]):.2g} %, of the best labelling {100 * float(result.best_gap[0]):.2g} %"
    figure.suptitle(f"{result.method}: {gaps}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
