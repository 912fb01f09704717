"""Draw the decomposition of the theory page: ``python docs/drawings/decomposition.py`` writes ``docs/_static/decomposition.svg``."""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, PALE = "#1c2733", "#5b6b7a"
BLOCKS = (("block 1", "#1f6feb", (0, 1, 2)), ("block 2", "#b35900", (1, 2, 3)), ("block 3", "#1a7f37", (2, 3, 4)))
"""Name, colour and variables of each block."""


def circle(axes: Axes, x: float, y: float, text: str, colour: str = INK) -> None:
    axes.plot(x, y, "o", markersize=19, color="white", markeredgecolor=colour, markeredgewidth=1.6, zorder=3)
    axes.text(x, y, text, ha="center", va="center", fontsize=9, color=colour, zorder=4)


def box(axes: Axes, x: float, y: float, width: float, text: str, colour: str) -> None:
    axes.add_patch(
        FancyBboxPatch((x - width / 2, y - 0.27), width, 0.54, boxstyle="round,pad=0.08", facecolor=f"{colour}22", edgecolor=colour)
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=9.5, color=colour)


def caption(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="center", va="center", color=PALE, fontsize=9.5)


def shared(axes: Axes) -> None:
    """The LP: blocks that share variables."""
    for number, (name, colour, variables) in enumerate(BLOCKS):
        for variable in variables:
            axes.plot(
                [1 + number * 1.5 + (variable - number - 1) * 0.3, 0.5 + variable], [1.35, 3.1], color=colour, linewidth=1.3, zorder=1
            )
        box(axes, 1 + number * 1.5, 1.0, 1.0, name, colour)
    for variable in range(5):
        circle(axes, 0.5 + variable, 3.1, f"$x_{variable + 1}$")
    axes.text(2.5, 3.75, "costs $c$", ha="center", color=PALE, fontsize=9.5)
    axes.text(
        2.5, 0.05, "each block alone is easy;\ntogether they share variables", ha="center", va="center", color=PALE, fontsize=9.5
    )
    axes.set_title("1  The linear program", color=INK, fontsize=11.5)


def copies(axes: Axes) -> None:
    """Every block with copies of its variables, and what the multipliers of a variable sum to."""
    for number, (name, colour, variables) in enumerate(BLOCKS):
        height = 3.35 - number * 1.05
        axes.text(-0.35, height, name, ha="right", va="center", fontsize=9.5, color=colour)
        axes.plot(
            [variables[0] + 0.5, variables[-1] + 0.5], [height] * 2, color=colour, linewidth=16, alpha=0.13, solid_capstyle="round"
        )
        for variable in variables:
            circle(axes, 0.5 + variable, height, rf"$\lambda_{{{number + 1}{variable + 1}}}$", colour)
    for variable in range(5):
        axes.plot([0.5 + variable] * 2, [0.55, 3.7], color=PALE, linewidth=0.9, linestyle=":", zorder=0)
        axes.text(0.5 + variable, 0.4, f"$= c_{variable + 1}$", ha="center", va="top", fontsize=9.5, color=INK)
    caption(axes, 2.2, -0.15, "multipliers in a column sum to the cost")
    axes.set_title("2  Copies, with multipliers as costs", color=INK, fontsize=11.5)


def one_pass(axes: Axes) -> None:
    """A pass: oracles answer, their values add to the bound, disagreement moves the multipliers."""
    for number, (_, colour, _) in enumerate(BLOCKS):
        height = 3.35 - number * 1.05
        minimum = rf"$\min_{{X_{number + 1}}}\ \langle\lambda_{number + 1}, x\rangle$"
        box(axes, 0.9, height, 1.9, minimum, colour)
        axes.add_patch(FancyArrowPatch((2.0, height), (3.1, 2.3), arrowstyle="-|>", mutation_scale=11, color=PALE))
    axes.text(3.95, 2.3, "sum =\nvalid bound", ha="center", va="center", fontsize=10.5, color=INK, weight="bold")
    axes.add_patch(
        FancyArrowPatch((3.95, 1.85), (0.9, 0.8), arrowstyle="-|>", mutation_scale=13, color=PALE, connectionstyle="arc3,rad=-0.35")
    )
    axes.text(
        2.5, -0.15, "where copies disagree, multipliers move:\nthe bound rises", ha="center", va="center", color=PALE, fontsize=9.5
    )
    axes.set_title("3  One pass", color=INK, fontsize=11.5)


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "blocklp", "svg.fonttype": "path"})
    figure = Figure(figsize=(11, 3.9), layout="constrained", facecolor="white")
    for axes, draw, left in zip(figure.subplots(1, 3), (shared, copies, one_pass), (-0.2, -1.4, -0.3), strict=True):
        draw(axes)
        axes.set(xlim=(left, 5.1), ylim=(-0.55, 4.1))
        axes.axis("off")
    out = Path(__file__).parents[1] / "_static" / "decomposition.svg"
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main()
