"""Pictures of how bound, LP primal value and gap develop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blocklp as bl
from blocklp.errors import OptionError, needed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEGEND = 12
"""Most instances that a legend names; more would hide the curves."""


def blank_figure(path: Path) -> Figure:
    """Return an empty figure that can be saved under ``path``; to be called before the work whose result it shows.

    Raises
    ------
    MissingDependencyError
        If matplotlib is missing.
    OptionError
        If the folder does not exist or the suffix is not that of a picture.
    """
    with needed("pictures need matplotlib", "plot"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    kinds = sorted(figure.canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in kinds:
        raise OptionError(f"{path}: no picture has the suffix {path.suffix!r}; choose one of {', '.join(kinds)}")
    require_folder(path)
    return figure


def require_folder(path: Path) -> None:
    """Raise an OptionError unless the folder exists that a file is to be written in."""
    if not path.parent.is_dir():
        raise OptionError(f"{path}: the folder {path.parent} does not exist; create it first")


def plot_convergence(figure: Figure, names: Sequence[str], histories: Sequence[Sequence[bl.Event]]) -> None:
    """Draw the histories of instances, each with ``(1,)`` tensors, against passes and against seconds.

    Bound and primal value of several instances are shown relative to the last primal value, to share an axis.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Empty.
    names : sequence of str
        Names of the instances.
    histories : sequence of sequence of Event
        Their events.
    """
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    several = len(histories) > 1
    for number, (name, events) in enumerate(zip(names, histories, strict=True)):
        color = f"C{number % 10}"
        bound = [float(e.bound[0]) for e in events]
        primal = [float(e.primal[0]) for e in events]
        gap = [max(float(e.gap[0]), 1e-16) for e in events]
        if several:
            last = primal[-1] if math.isfinite(primal[-1]) else bound[-1]
            bound, primal = ([(v - last) / max(1.0, abs(last)) for v in values] for values in (bound, primal))
        for column, x in enumerate(([e.passes for e in events], [e.seconds for e in events])):
            top, bottom = axes[:, column]
            top.plot(x, _drawable(bound), color=color, label=name, marker=".")
            top.plot(x, _drawable(primal), color=color, linestyle="--", marker=".")
            bottom.plot(x, _drawable(gap), color=color, marker=".")
    _decorate(axes, several, min(len(histories), 10))
    if several and len(histories) <= LEGEND:
        handles, shown = axes[0, 0].get_legend_handles_labels()
        legend = figure.legend(handles, shown, loc="outside lower center", ncols=min(3, len(shown)), frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)  # names of files may hold dollars
    elif not several:
        figure.suptitle(names[0], parse_math=False)


def _decorate(axes: Any, several: bool, colors: int) -> None:
    """Label the axes and say what the line styles mean."""
    from matplotlib.lines import Line2D

    neutral = "0.3" if colors > 1 else "C0"
    styles = [Line2D([], [], color=neutral, label="bound"), Line2D([], [], color=neutral, linestyle="--", label="LP primal")]
    axes[0, 1].legend(handles=styles, frameon=False)
    axes[0, 0].set_ylabel("(value - last primal) / size" if several else "value of the LP")
    axes[1, 0].set_ylabel("relative gap of the LP")
    axes[1, 0].set_xlabel("oracle passes")
    axes[1, 1].set_xlabel("seconds")
    if several:
        axes[0, 0].set_yscale("symlog", linthresh=1e-3)
    axes[1, 0].set_yscale("log")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)


def _drawable(values: Sequence[float]) -> list[float]:
    """Leave gaps where there is no finite value."""
    return [v if math.isfinite(v) else math.nan for v in values]
