"""A picture of a matrix, as given and with rows and columns in the order of its blocks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blocklp.lp.detection.block_structure import BlockStructure
from blocklp.problems.plot import blank_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00")
"""Colours of the entries of blocks, by kind; those of all further kinds have the next one (Okabe and Ito 2008)."""

OTHERS, ROWS, COLUMNS = "#56b4e9", "#d55e00", "#444444"
TINT = 0.15
"""How much of its colour the area of a block or border has."""

CELLS = 450
"""Most cells of the picture in either direction; several rows or columns share one in larger matrices."""

ROOM = 0.01
"""Margin of the picture, relative to its sides."""

OUTLINED = 400
"""Most blocks whose area is shown."""


def write_picture(path: str | Path, matrix: Any, structure: BlockStructure, name: str = "") -> None:
    """Draw where a matrix has entries, before and after, blocks by kind and the border last.

    Parameters
    ----------
    path : str or Path
        The picture, of any suffix that matplotlib knows.
    matrix : csr_array
        ``(rows, columns)``.
    structure : BlockStructure
        Of the matrix.
    name : str
        Of the matrix, for the title.

    Raises
    ------
    MissingDependencyError, OptionError
        As :func:`blocklp.problems.plot.blank_figure` does.
    """
    figure = blank_figure(Path(path))
    draw_structure(figure, matrix, structure, name)
    figure.savefig(path, dpi=150)


def draw_structure(figure: Figure, matrix: Any, structure: BlockStructure, name: str = "") -> None:
    """Draw where a matrix has entries, before and after, on an empty figure.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        It gets two panels and a legend.
    matrix, structure, name
        As in :func:`write_picture`.
    """
    from matplotlib.patches import Patch

    entries = matrix.tocoo()
    rows, columns = (place[entries.data != 0] for place in entries.coords)
    m, n = matrix.shape
    paint, labels = _paint(structure, rows, columns)
    used = [label for label in labels if label[2]]
    row_order, column_order = structure.order()
    row_place, column_place = np.empty(m, dtype=np.int64), np.empty(n, dtype=np.int64)
    row_place[row_order], column_place[column_order] = np.arange(m), np.arange(n)
    before, after = figure.subplots(1, 2)
    for axis, i, j in ((before, rows, columns), (after, row_place[rows], column_place[columns])):
        _show(axis, i, j, paint, [label[1] for label in labels], (m, n))
    _areas(after, structure, labels)
    before.set_title(f"as given: {m:,} rows, {n:,} columns", fontsize=11)
    blocks = _count(structure.blocks, "block") if structure.blocks else "no blocks"
    after.set_title(f"by block: {blocks}, white area {100 * structure.white:.1f} %", fontsize=11)
    figure.suptitle(name, fontsize=12, parse_math=False)
    handles = [Patch(color=color, label=text) for text, color, _ in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(3, max(1, len(used))), frameon=False, fontsize=10)


def _paint(structure: BlockStructure, rows: NDArray[Any], columns: NDArray[Any]) -> tuple[NDArray[Any], list[tuple[str, str, int]]]:
    """The number of the colour of each entry, and label, colour and count of each colour."""
    kind_of = np.full(structure.blocks + 1, len(KINDS))
    labels = []
    for k, kind in enumerate(structure.kinds[: len(KINDS)]):
        kind_of[kind.blocks] = k
        named = "" if kind.name in ("rows", "one row") else f"{kind.name} "
        labels.append((f"{_count(len(kind.blocks), f'{named}block')} of {kind.rows:,} × {kind.columns:,}", KINDS[k]))
    labels += [("", color) for color in KINDS[len(labels) :]]
    others = sum(len(kind.blocks) for kind in structure.kinds[len(KINDS) :])
    masters, linking = len(structure.linking_rows), len(structure.linking_columns)
    labels += [(_count(others, "other block"), OTHERS), (_count(masters, "linking row"), ROWS)]
    labels.append((_count(linking, "linking column"), COLUMNS))
    paint = kind_of[structure.row_block[rows]]
    links = np.zeros(len(structure.column_block), dtype=bool)
    links[structure.linking_columns] = True
    paint[links[columns]] = len(KINDS) + 2
    paint[structure.row_block[rows] < 0] = len(KINDS) + 1
    counts = np.bincount(paint, minlength=len(labels))
    return paint, [(text, color, int(count)) for (text, color), count in zip(labels, counts, strict=True)]


def _count(number: int, what: str) -> str:
    """A number of things, in words."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _show(
    axis: Any, rows: NDArray[Any], columns: NDArray[Any], paint: NDArray[Any], colors: list[str], shape: tuple[int, int]
) -> None:
    """Paint the cells with entries, those of the border over those of blocks."""
    from matplotlib.colors import to_rgba

    high, wide = (min(CELLS, max(1, size)) for size in shape)
    image = np.zeros((high, wide, 4))
    palette = np.array([to_rgba(color) for color in colors])
    order = np.argsort(paint, kind="stable")
    image[rows[order] * high // max(1, shape[0]), columns[order] * wide // max(1, shape[1])] = palette[paint[order]]
    extent = (0, max(1, shape[1]), max(1, shape[0]), 0)
    axis.imshow(image, extent=extent, aspect="auto", interpolation="nearest", zorder=2)
    # Some room, or the frame would hide a single linking row.
    axis.set_xlim(-ROOM * shape[1], (1 + ROOM) * shape[1])
    axis.set_ylim((1 + ROOM) * shape[0], -ROOM * shape[0])
    axis.set_xlabel("columns")
    axis.set_ylabel("rows")


def _areas(axis: Any, structure: BlockStructure, labels: list[tuple[str, str, int]]) -> None:
    """Tint the areas of blocks and border of the matrix in the order of its blocks."""
    from matplotlib.patches import Rectangle

    m, n = len(structure.row_block), len(structure.column_block)
    masters, linking = len(structure.linking_rows), len(structure.linking_columns)
    areas = [(0, m - masters, n, masters, ROWS), (n - linking, 0, linking, m - masters, COLUMNS)]
    if structure.blocks <= OUTLINED:
        high = np.bincount(structure.row_block[structure.row_block >= 0], minlength=structure.blocks)
        wide = np.bincount(structure.column_block[structure.column_block >= 0], minlength=structure.blocks)
        top, left = (np.cumsum(size) - size for size in (high, wide))
        for number, kind in enumerate(structure.kinds):
            color = labels[min(number, len(KINDS))][1]
            areas += [(left[k], top[k], wide[k], high[k], color) for k in kind.blocks]
    for x, y, width, height, color in areas:
        axis.add_patch(Rectangle((x, y), width, height, facecolor=color, alpha=TINT, linewidth=0, zorder=1))
