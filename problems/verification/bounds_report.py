"""Bounds of all layers for people and programs: a table, JSON and a picture."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from blocklp import __version__
from blocklp.problems.printing import json_number, print_table
from blocklp.problems.verification.exact import exact_bounds
from blocklp.problems.verification.tightener import LayerBounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blocklp.problems.verification.bounds import NetworkBounds

FEW = 100
"""Neurons up to which each is drawn as a line of its own."""
SIDES = (("C0", "lower"), ("C3", "upper"))


def mean_width(layer: LayerBounds) -> float:
    """Mean distance of upper and lower bounds."""
    return float((layer.upper - layer.lower).mean())


def largest_gap(layer: LayerBounds) -> float | None:
    """Largest distance of a bound from a feasible value of its LP, where known."""
    return None if layer.gap is None else float(layer.gap.max())


def margin(layers: Sequence[LayerBounds], label: int) -> float:
    """Least output of a class minus the greatest of the others, by their bounds alone."""
    lower, upper = layers[-1].lower.flatten(), layers[-1].upper.flatten().clone()
    upper[label] = -math.inf
    return float(lower[label] - upper.max())


def show_layers(layers: Sequence[LayerBounds], console: Console, title: str, gap: bool) -> None:
    """Print one line a layer, and their sum.

    A file or a pipe gets the table at its full width.

    Parameters
    ----------
    layers : sequence of LayerBounds
        Bounds of the layers.
    console : Console
        Where to print.
    title : str
        Of the table.
    gap : bool
        Whether to print the largest gap of every layer.
    """
    table = Table(box=box.SIMPLE_HEAD, title=escape(title), title_justify="left", pad_edge=False)
    table.add_column("layer", overflow="fold")
    headings = ["neurons", "active", "inactive", "unstable", "mean width", *(["largest gap"] if gap else []), "seconds"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in layers:
        signs = [layer.active, layer.inactive, layer.unstable]
        found = largest_gap(layer)
        gaps = [] if not gap else [""] if found is None else [f"{found:.1e}"]
        table.add_row(
            escape(layer.name), str(layer.lower.numel()), *map(str, signs), f"{mean_width(layer):.4g}", *gaps, f"{layer.seconds:.2f}"
        )
    hidden = [layer for layer in layers if layer.name != "output"]
    sums = [sum(of) for of in zip(*((h.lower.numel(), h.active, h.inactive, h.unstable) for h in hidden), strict=True)] or [0] * 4
    table.add_section()
    table.add_row("all ReLUs", *map(str, sums), "", *([""] if gap else []), f"{sum(layer.seconds for layer in layers):.2f}")
    print_table(table, console)


def output_optima(found: NetworkBounds, solver: str) -> dict[str, Any]:
    """Solve the LPs of the outputs, over neurons within their bounds, by another solver; return an object of strict JSON.

    Parameters
    ----------
    found : NetworkBounds
        Bounds over one box.
    solver : str
        One of :func:`blocklp.reference`.

    Returns
    -------
    dict
        ``solver``; ``lower`` and ``upper``, the optima of the LPs; ``difference``, by how much a bound is off at most, relative to
        the larger of 1 and its optimum; ``seconds``.

    Raises
    ------
    ModelError
        If the network has smooth activations.
    OptionError, MissingDependencyError, BlocklpError
        As :func:`blocklp.reference` raises them.
    """
    began, relaxation, output = time.perf_counter(), found.relaxation, found.output
    network, node = relaxation.network, len(relaxation.network.ops) - 1
    bounds = {at: (low[0], high[0]) for at, (low, high) in relaxation.bounds.items()}
    box = relaxation.lower[0], relaxation.upper[0]
    least, most = exact_bounds(network, *box, bounds, node, range(output.lower.numel()), solver=solver)
    off = [(optimum - bound.flatten().cpu().numpy()) for optimum, bound in ((least, output.lower), (-most, -output.upper))]
    sizes = np.maximum(1.0, np.abs(np.concatenate([least, most])))
    return {
        "solver": solver,
        "lower": [json_number(value) for value in least],
        "upper": [json_number(value) for value in most],
        "difference": json_number((np.concatenate(off) / sizes).max()),
        "seconds": time.perf_counter() - began,
    }


def layers_entry(layers: Sequence[LayerBounds]) -> list[dict[str, Any]]:
    """Return a list with one object of strict JSON a layer; infinite bounds are None."""
    return [
        {
            "name": layer.name,
            "neurons": layer.lower.numel(),
            "active": layer.active,
            "inactive": layer.inactive,
            "unstable": layer.unstable,
            "mean_width": json_number(mean_width(layer)),
            "largest_gap": None if layer.gap is None else json_number(layer.gap.max()),
            "seconds": layer.seconds,
            "lower": [json_number(bound) for bound in layer.lower.flatten().tolist()],
            "upper": [json_number(bound) for bound in layer.upper.flatten().tolist()],
        }
        for layer in layers
    ]


def to_entry(layers: Sequence[LayerBounds], **about: Any) -> dict[str, Any]:
    """Return an object of strict JSON about a run."""
    return {"version": __version__, **about, "layers": layers_entry(layers)}


def plot_layers(figure: Figure, before: Sequence[LayerBounds], after: Sequence[LayerBounds], title: str) -> None:
    """Draw the bounds of every layer, neurons in the order of their bounds, and below them their gaps, where known.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Empty.
    before, after : sequence of LayerBounds
        Interval bounds and better ones of the same layers.
    title : str
        Over all.
    """
    gaps = any(layer.gap is not None for layer in after)
    figure.set_size_inches(max(7.0, 3.2 * len(after)), 6.5 if gaps else 4.5)
    axes = figure.subplots(1 + gaps, len(after), squeeze=False, sharex="col", height_ratios=[3, 2][: 1 + gaps])
    for column, (old, new) in enumerate(zip(before, after, strict=True)):
        order = (new.lower + new.upper).flatten().argsort()
        _draw_bounds(axes[0, column], old, new, order)
        if gaps:
            _draw_gaps(axes[1, column], new, order)
        axes[-1, column].set_xlabel("neurons, sorted")
    axes[0, 0].set_ylabel("bounds")
    axes[0, 0].legend(frameon=False, loc="upper left")
    if gaps:
        from matplotlib.lines import Line2D

        axes[1, 0].set_ylabel("distance from the LP's optimum")
        ends = [Line2D([], [], linestyle="", marker=".", color=colour, label=name) for colour, name in SIDES]
        axes[1, -1].legend(handles=ends, frameon=False, ncols=2, loc="best")
    figure.suptitle(title, parse_math=False)  # names of files and layers may hold dollars


def _draw_bounds(axis: Axes, old: LayerBounds, new: LayerBounds, order: Tensor) -> None:
    places = range(len(order))
    for layer, colour, name in ((old, "0.8", "interval"), (new, "C0", "now")):
        low, high = (bound.flatten()[order].tolist() for bound in (layer.lower, layer.upper))
        if len(order) <= FEW:
            axis.vlines(places, low, high, color=colour, linewidth=4, label=name)
        else:
            axis.fill_between(places, low, high, color=colour, step="mid", linewidth=0, label=name)
    axis.axhline(0, color="0.2", linewidth=0.7)
    # Interval bounds of deep layers are so wide that nothing else could be seen beside them; the title has their width.
    least, most = float(new.lower.min()), float(new.upper.max())
    space = 0.25 * (most - least) or 1.0
    axis.set_ylim(least - space, most + space)
    widths = f"mean width {mean_width(new):.3g}, interval {mean_width(old):.3g}"
    axis.set_title(f"{new.name}: {new.unstable} of {len(order)} unstable\n{widths}", fontsize=9, parse_math=False)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_gaps(axis: Axes, layer: LayerBounds, order: Tensor) -> None:
    largest = largest_gap(layer)
    if layer.gap is None or not largest:
        # A logarithmic axis of nothing would show numbers that mean nothing.
        axis.text(0.5, 0.5, "interval bounds are optimal or enough", transform=axis.transAxes, ha="center", fontsize=9, color="0.4")
        axis.set_yticks([])
        return
    for side, (colour, _) in enumerate(SIDES):
        values = layer.gap[side].flatten()[order]
        # Zero stands for neurons that needed no LP.
        axis.plot(values.where(values > 0, math.nan).tolist(), ".", markersize=3, color=colour)
    axis.set_yscale("log")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
