"""Figures 1 to 6 of Gould et al. (2016), and for each how far derivatives by lemma are from the closed form or from differences.

Run ``python -m blocklp.problems.declarative.figures --output FOLDER``; pictures need matplotlib.  The text chose the parameters of
its classifiers at random; those here are random too, from fixed seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from blocklp.declarative import argmax, argmin, ball, box, scalar_derivative
from blocklp.problems.declarative.bilevel import maximum_likelihood_features, place_maxima, targets_on_the_circle
from blocklp.problems.declarative.scalar import (
    barrier_mean,
    barrier_mean_derivative,
    positive_mean,
    quartic,
    quartic_derivative,
    squares,
    stationary_points,
)
from blocklp.problems.declarative.softmax import log_likelihood, log_likelihood_of
from blocklp.problems.plot import blank_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARRIERS = (1.0, 10.0, 100.0)
"""t of the curves of Figure 3."""
MOVE = 0.4
"""How far the step of Figures 2, 4 and 5 moves the maximum to the left, to first order."""
CLASSES, CLASS = 10, 0
"""Of Figures 2, 4 and 5: how many classes there are, and whose likelihood is drawn."""


class Number(NamedTuple):
    """A line of the table that the command prints."""

    figure: int
    what: str
    value: float


def figure_1(figure: Figure) -> list[Number]:
    """The quartic with three stationary points: its contours, its course at x = 1, and each point with its derivative."""
    x = torch.linspace(0.5, 3, 251, dtype=torch.float64)
    axes = figure.subplots(2, 4)
    xs, ys = torch.meshgrid(x, torch.linspace(-7, 4, 301, dtype=torch.float64), indexing="ij")
    levels = [-400, -300, -200, -100, -50, -25, -10, -5, 0, 25, 100, 200, 400]
    axes[0, 0].contour(xs, ys, quartic(xs, ys), levels=levels, cmap="viridis")
    for points in stationary_points(x):
        axes[0, 0].plot(x, points, color="black", linestyle="--", linewidth=1)
    decorate(axes[0, 0], "f(x, y)", "x", "y")
    y = torch.linspace(-5.5, 3, 301, dtype=torch.float64)
    axes[1, 0].plot(y, quartic(torch.ones_like(y), y))
    decorate(axes[1, 0], "f(1, y)", "y", "")
    numbers = []
    for panel in axes[:, 1]:  # the first point is zero for every x
        panel.set_ylim(-1, 1)
    for column, points in enumerate(stationary_points(x), 1):
        slopes = scalar_derivative(quartic, x, points)
        axes[0, column].plot(x, points)
        axes[1, column].plot(x, slopes)
        decorate(axes[0, column], f"g(x), point {column}", "x", "")
        decorate(axes[1, column], "g'(x)", "x", "")
        error = (slopes - quartic_derivative(x, points)).abs().max()
        numbers.append(Number(1, f"point {column}: Lemma 3.1 against equation 23", float(error)))
    return numbers


def figure_2(figure: Figure) -> list[Number]:
    """The likelihood of one of ten classes before and after a step, without constraints."""
    return likelihood_step(2, figure)


def figure_3(figure: Figure) -> list[Number]:
    """The nearest number that is not negative, its barrier approximations, and the derivatives of both."""
    x = torch.arange(-200, 201, dtype=torch.float64)[:, None] / 100
    start = torch.ones_like(x)
    left, right = figure.subplots(1, 2)
    numbers = []

    def curve(name: str, t: float, color: str) -> tuple[Tensor, Tensor]:
        """Draw the minimiser by the node and its derivative."""
        h = x.clone().requires_grad_()
        y = argmin(squares, h, start=start, inequality=box(lower=0.0), t=t)
        [slope] = torch.autograd.grad(y.sum(), h)
        for axes, values in ((left, y.detach()[:, 0]), (right, slope[:, 0])):
            axes.plot(x[:, 0], values, label=name, color=color)
        return y.detach()[:, 0], slope[:, 0]

    for number, t in enumerate(BARRIERS):
        y, slope = curve(f"t = {t:g}", t, f"C{number}")
        numbers.append(Number(3, f"t = {t:g}: g against the root of equation 67", float((y - barrier_mean(x, t)).abs().max())))
        error = (slope - barrier_mean_derivative(x, torch.ones_like(x), t)).abs().max()
        numbers.append(Number(3, f"t = {t:g}: g' against equation 71", float(error)))
    y, slope = curve("exact", float("inf"), "black")
    numbers.append(Number(3, "exact: g against equation 66", float((y - positive_mean(x)).abs().max())))
    numbers.append(
        Number(
            3, "exact: g' against equation 72, where x is not 0", float((slope - (x[:, 0] > 0).double())[x[:, 0] != 0].abs().max())
        )
    )
    numbers.append(Number(3, "exact: g'(0), which equation 72 leaves out", slope[200].item()))
    decorate(left, "g(x)", "x", "")
    decorate(right, "g'(x)", "x", "")
    left.legend(frameon=False)
    return numbers


def figure_4(figure: Figure) -> list[Number]:
    """The likelihood before and after a step, with the maximum on the line where the features sum to one."""
    ones = torch.ones(1, 2, dtype=torch.float64)
    numbers = likelihood_step(4, figure, equality=(ones, ones[:, 0]))
    for axes in figure.axes:
        axes.axline((1, 0), (0, 1), color="white", linestyle="--")
    return numbers


def figure_5(figure: Figure) -> list[Number]:
    """The likelihood before and after a step, with the maximum in the unit ball."""
    numbers = likelihood_step(5, figure, inequality=ball())
    for axes in figure.axes:
        circle(axes)
    return numbers


def likelihood_step(number: int, figure: Figure, **constraints: Any) -> list[Number]:
    r"""Draw a likelihood before and after :math:`\theta \leftarrow \theta - \eta \, \partial x^\star_1 / \partial \theta`.

    Parameters
    ----------
    number : int
        Of the figure.
    figure : matplotlib.figure.Figure
        Empty.
    **constraints
        As of :func:`argmax`.

    Returns
    -------
    list of Number
        The maximum before and after, and the derivative against central differences along the step.
    """
    a, b = ten_classes()
    objective = log_likelihood_of(torch.tensor([CLASS]))

    def maximum(a: Tensor, b: Tensor) -> Tensor:
        return argmax(objective, a[None], b[None], start=torch.zeros(1, 2, dtype=torch.float64), **constraints)[0]

    a, b = a.requires_grad_(), b.requires_grad_()
    before = maximum(a, b)
    by_a, by_b = torch.autograd.grad(before[0], (a, b))
    with torch.no_grad():
        slope = by_a.square().sum() + by_b.square().sum()
        rate = MOVE / slope
        after = maximum(a - rate * by_a, b - rate * by_b)
        width = 1e-5 / slope.sqrt()
        ahead, behind = (maximum(a + s * by_a, b + s * by_b)[0] for s in (width, -width))
        for axes, theta, x, title in zip(
            figure.subplots(1, 2), ((a, b), (a - rate * by_a, b - rate * by_b)), (before, after), ("before", "after"), strict=True
        ):
            surface(axes, *theta, CLASS, reach=2.0)
            axes.plot(*x.detach().tolist(), "wo", markeredgecolor="black")
            decorate(axes, f"likelihood {title} the step", "x1", "x2")
    return [
        Number(number, "first coordinate of the maximum before the step", before[0].item()),
        Number(number, "and after it", after[0].item()),
        Number(number, "derivative against differences, relative", float(((ahead - behind) / (2 * width) / slope - 1).abs())),
    ]


def ten_classes() -> tuple[Tensor, Tensor]:
    """Random parameters of ten classes, the first of which lies between the others: else its likelihood has no maximum."""
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(CLASSES, 2, dtype=torch.float64, generator=generator)
    a[CLASS] = a.mean(0)
    return a, torch.randn(CLASSES, dtype=torch.float64, generator=generator)


def figure_6(figure: Figure) -> list[Number]:
    """Three maxima placed on the unit circle: likelihoods before and after, and the objective by iterations."""
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(size, dtype=torch.float64, generator=generator) for size in ((3, 2), (3,)))
    found = place_maxima(a, b, targets_on_the_circle(3))
    axes = figure.subplot_mosaic([["a0", "a1", "a2", "c"], ["b0", "b1", "b2", "c"]], width_ratios=[1, 1, 1, 1.5])
    first = maximum_likelihood_features(a, b)
    for row, theta, maxima, title in (("a", (a, b), first, "initial"), ("b", (found.a, found.b), found.maxima, "final")):
        for k in range(3):
            panel = axes[f"{row}{k}"]
            surface(panel, *theta, k, reach=1.5)
            circle(panel)
            panel.plot(*maxima[k].tolist(), "wo", markeredgecolor="black")
            decorate(panel, f"{title}, class {k + 1}", "", "")
    axes["c"].semilogy(found.objectives)
    decorate(axes["c"], "objective", "iteration", "")
    return [
        Number(6, "iterations", len(found.objectives) - 1),
        Number(6, "objective at first", found.objectives[0]),
        Number(6, "objective at last", found.objectives[-1]),
    ]


def surface(axes: Axes, a: Tensor, b: Tensor, k: int, reach: float) -> None:
    """Draw the likelihood of a class as colours.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Where.
    a, b : Tensor
        ``(classes, 2)`` and ``(classes,)``.
    k : int
        The class.
    reach : float
        Largest coordinate.
    """
    line = torch.linspace(-reach, reach, 121, dtype=torch.float64)
    points = torch.cartesian_prod(line, line)
    values = log_likelihood(a.detach().expand(len(points), -1, -1), b.detach().expand(len(points), -1), points)[:, k].exp()
    axes.contourf(line, line, values.reshape(121, 121).T, levels=20, cmap="viridis")
    axes.set_aspect("equal")


def circle(axes: Axes) -> None:
    """Draw the unit circle."""
    angles = torch.linspace(0, 2 * torch.pi, 181)
    axes.plot(angles.cos(), angles.sin(), color="white", linestyle="--")


def decorate(axes: Axes, title: str, x: str, y: str) -> None:
    """Name the axes, and leave out the upper and the right line of the frame.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Those of a panel.
    title, x, y : str
        Over the panel, below it and beside it; empty for none.
    """
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)


FIGURES: tuple[Callable[[Figure], list[Number]], ...] = (figure_1, figure_2, figure_3, figure_4, figure_5, figure_6)


def main(
    output: Annotated[Path, typer.Option(help="Folder for figure_1.png to figure_6.png; it is made.")] = Path("figures"),
) -> None:
    """Draw Figures 1 to 6 and print how exact they are."""
    output.mkdir(parents=True, exist_ok=True)
    table = Table("figure", "number", "value")
    for number, draw in enumerate(FIGURES, 1):
        path = output / f"figure_{number}.png"
        figure = blank_figure(path)
        figure.set_size_inches(12, 5.5)
        for line in draw(figure):
            table.add_row(str(line.figure), line.what, f"{line.value:.6g}")
        figure.savefig(path, dpi=100)
    Console().print(table)
    Console().print(f"figures 1 to {len(FIGURES)} are in {output}", soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
