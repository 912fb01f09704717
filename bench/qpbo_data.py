"""The shared QUBOs, max-cut and independent-set graphs and Markov random fields, and what is known of them."""

from __future__ import annotations

import re
from pathlib import Path

from blocklp.problems.mis import WeightedGraph, read_graph
from blocklp.problems.mrf import Mrf, read_mrf
from blocklp.problems.qpbo import Qubo, read_qubo

FOLDER = Path(__file__).parents[1].parent / "shared" / "data" / "qpbo"
OPTIMA = ("optimum", "max cut", "MWIS optimum", "alpha", "min energy")
"""Columns of the manifest's tables that hold optima or the best values known."""

Instance = Qubo | WeightedGraph | Mrf


def read(name: str) -> Instance:
    """Read an instance by its path in the data set.

    Raises
    ------
    FileNotFoundError
        It is not there.
    """
    path = FOLDER / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: this case needs the data set shared/data/qpbo")
    if name.startswith("mrf/"):
        return read_mrf(path, log=name.startswith("mrf/tiny/"))
    return read_graph(path) if name.startswith("mis/") else read_qubo(path, "maxcut" if name.startswith("maxcut/") else None)


def known(name: str) -> float | None:
    """Best value that the manifest has, as an energy: of cuts and sets with a minus."""
    column: int | None = None
    for line in (FOLDER / "MANIFEST.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if cells[1:2] == ["file"]:
            column = next((k for k, cell in enumerate(cells) if cell in OPTIMA), None)
        elif cells[1:2] == [name] and column is not None:
            number = re.match(r"-?\d+(\.\d+)?", cells[column])
            return None if number is None else float(number[0]) * (-1 if name.startswith(("maxcut/", "mis/")) else 1)
    return None
