"""A picture of a counterexample: the input, the middle of its box, their difference, and the outputs of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from blocklp.problems.verification.bounds import network_bounds
from blocklp.problems.verification.images import as_picture
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.properties import Clause, Property

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_SIDE = 4
"""Height and width from which an input is drawn as an image."""


def plot_verdict(figure: Figure, network: Network, prop: Property, x: NDArray[Any] | None, y: NDArray[Any] | None) -> None:
    """Draw a counterexample beside the middle of its box, and the bounds of the outputs over that box.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Empty.
    network : Network
        Float64.
    prop : Property
        What a counterexample is; without one, the box of its first clause is drawn.
    x, y : ndarray or None
        ``(inputs,)`` and its outputs, in any shape.
    """
    clause = prop.clauses[0]
    if x is not None and y is not None:
        clause = prop.clauses[prop.violated(x, y) or 0]
    middle = clause.lower / 2 + clause.upper / 2
    point = None if x is None else np.asarray(x, np.float64).ravel()
    rows = figure.subplots(1 if point is None else 2, 1, squeeze=False)[:, 0]
    if point is not None:
        rows[0].axis("off")
        _draw_inputs(rows[0], network, clause, middle, point)
    _draw_outputs(rows[-1], network, clause, middle, point)


def _draw_inputs(place: Axes, network: Network, clause: Clause, middle: NDArray[np.float64], x: NDArray[np.float64]) -> None:
    """Three images, or every input with its interval."""
    pictures = [as_picture(values, network.input_shape) for values in (middle, x, x - middle)]
    if min(pictures[0].shape[:2]) < LEAST_SIDE:
        axes = place.inset_axes((0, 0, 1, 1))
        numbers = np.arange(len(x))
        axes.vlines(numbers, clause.lower, clause.upper, color="0.75", linewidth=4, label="the box")
        axes.plot(numbers, middle, "o", color="C0", label="middle of the box")
        axes.plot(numbers, x, "x", color="C3", label="counterexample")
        _finish(axes, "input")
        return
    low, high = min(p.min() for p in pictures[:2]), max(p.max() for p in pictures[:2])
    scale = max(float(high - low), np.finfo(np.float64).tiny)
    widest = max(float(abs(pictures[2]).max()), np.finfo(np.float64).tiny)
    shown = [(pictures[0] - low) / scale, (pictures[1] - low) / scale, pictures[2] / (2 * widest) + 0.5]
    titles = ("middle of the box", "counterexample", f"difference, at most {widest:.3g}")
    for number, (picture, title) in enumerate(zip(shown, titles, strict=True)):
        axes = place.inset_axes((number / 3, 0, 0.32, 1))
        axes.imshow(picture.clip(0, 1).squeeze(), cmap="gray", vmin=0, vmax=1)
        axes.set_title(title, fontsize="medium")
        axes.axis("off")


def _draw_outputs(axes: Axes, network: Network, clause: Clause, middle: NDArray[np.float64], x: NDArray[np.float64] | None) -> None:
    """Outputs in float64, before a softmax at the end, and their bounds over the box by CROWN."""
    shape = network.input_shape
    lower, upper, point = (torch.tensor(np.array(end)).view(shape) for end in (clause.lower, clause.upper, middle))
    output = network_bounds(network, lower, upper, method="crown").output
    numbers = np.arange(network.outputs)
    ends = output.lower.flatten().cpu().numpy(), output.upper.flatten().cpu().numpy()
    axes.vlines(numbers, *ends, color="0.75", linewidth=6, label="bounds over the box (CROWN)")
    inputs = [(point, "o", "C0", "at the middle of the box")]
    if x is not None:
        inputs.append((torch.tensor(x).view(shape), "x", "C3", "at the counterexample"))
    for values, marker, color, label in inputs:
        axes.plot(numbers, network(values[None].to(network.device)).flatten().cpu().numpy(), marker, color=color, label=label)
    axes.grid(axis="y", alpha=0.3)
    _finish(axes, "output")


def _finish(axes: Axes, name: str) -> None:
    """Whole numbers below, and the legend above, where it hides nothing."""
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel(name)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
