"""A picture that ships with scikit-image, cut out by a dense CRF: the part of ``blocklp demo`` about them."""

from __future__ import annotations

from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from blocklp.problems.densecrf import DenseCRF, Result, image_crf, solve_densecrf

METHODS = ("mean-field", "dc-neg", "prox-lp")
SPREAD = 60.0
"""Standard deviation of the colours of a label."""


def coffee_crf() -> DenseCRF:
    """A cup of coffee at a quarter of its size, and what its pixels' colours say: porcelain, red glaze, or wood and coffee."""
    import skimage.data

    data: Any = skimage.data  # without types
    image = torch.from_numpy(data.coffee()[::4, ::4].copy())
    typical = torch.tensor([[215.0, 205.0, 190.0], [130.0, 35.0, 15.0], [165.0, 100.0, 60.0]])
    return image_crf(image, colour_costs(image, typical), smooth=(3.0, 2.0), bilateral=(20.0, 20.0, 4.0))


def colour_costs(image: Tensor, typical: Tensor) -> Tensor:
    """Unaries, in nats, of an image ``(height, width, 3)`` and labels with typical colours ``(labels, 3)``, from 0 to 255."""
    return (image[:, :, None].float() - typical).square().sum(3) / (2 * SPREAD**2)


def segment_coffee(crf: DenseCRF) -> list[Result]:
    """One result a method."""
    return [solve_densecrf(crf, method) for method in METHODS]


def show_coffee(crf: DenseCRF, results: list[Result], console: Console) -> None:
    """Print what was found, and what it means.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    results : list of Result
        Those of the methods.
    console : Console
        Where to print.
    """
    title = f"A cup of coffee cut out by a dense CRF:\n{crf.points} pixels, all pairs connected, {crf.labels} labels"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, collapse_padding=True)
    for heading in ("method", "energy", "bound", "gap", "seconds"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for r in results:
        numbers = (f"{r.energy.item():.2f}", f"{r.bound.item():.2f}", f"{100 * r.gap.item():.2f} %", f"{r.seconds:.2f}")
        table.add_row(r.method, *numbers)
    console.print(table)
    best = max(r.bound.item() for r in results)
    least = min(r.best_energy.item() for r in results)
    console.print(
        "[bold]energy[/]: of the method's labelling; unaries alone would have "
        f"{crf.energy(crf.unary.argmin(1)).item():.2f}. [bold]bound[/]: no labelling of this energy has less, which no other tool "
        f"for dense CRFs tells; the best of these labellings is within {100 * (least - best) / abs(least):.2f} % of it.\n",
        highlight=False,
    )
