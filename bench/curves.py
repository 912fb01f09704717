"""Curves of errors, one style for all pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#555555", "#E69F00", "#56B4E9")
"""Okabe and Ito's, told apart by colour-blind readers."""


def panels(
    target: Path,
    titles: list[str],
    rows: list[tuple[str, list[list[tuple[str, list[float], list[float]]]]]],
    ylabel: str,
    floor: float | None = None,
) -> None:
    """Draw log-log panels: one row a quantity on the x axis, one column a title, each panel a list of (label, x, y)."""
    size: dict[str, Any] = {"figsize": (3.1 * len(titles), 2.9 * len(rows)), "squeeze": False, "sharey": "row"}
    figure, axes = plt.subplots(len(rows), len(titles), **size)
    labels = list(dict.fromkeys(label for _, columns in rows for lines in columns for label, _, _ in lines))
    for line, (xlabel, columns) in zip(axes, rows, strict=True):
        for axis, title, lines in zip(line, titles, columns, strict=True):
            for label, x, y in lines:
                shown = [v if floor is None else max(v, floor) for v in y]
                marker = "o" if len(x) < 12 else None
                axis.loglog(x, shown, label=label, color=COLOURS[labels.index(label) % len(COLOURS)], marker=marker, ms=3)
            axis.set(title=title, xlabel=xlabel)
            axis.grid(alpha=0.3)
        line[0].set_ylabel(ylabel)
    handles = {h.get_label(): h for axis in axes.flat for h in axis.get_legend_handles_labels()[0]}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(labels), frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(target, dpi=110)
    plt.close(figure)
