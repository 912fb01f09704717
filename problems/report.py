"""Results of the command line, as a table and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

import blocklp as bl
from blocklp.problems.mis.relaxation import MisSolution
from blocklp.problems.qpbo.relaxation import QpboSolution

STYLES = {bl.Status.OPTIMAL: "green", bl.Status.NUMERICAL_ERROR: "red", bl.Status.INTERRUPTED: "red"}


@dataclass(frozen=True)
class Reference:
    """What another solver says about the same LP: its optimum, and the seconds it took."""

    solver: str
    value: float
    seconds: float


@dataclass(frozen=True)
class Row:
    """One instance and all that is known about it.

    Attributes
    ----------
    file : str
        The file, or the name of an instance without one.
    n, pairs : int
        Numbers of variables and of coupled pairs (nodes and edges).
    found : QpboSolution or MisSolution
        Bound, labelling and proofs.
    note : str
        A remark for the reader, or empty.
    reference : Reference, optional
        The LP's optimum by another solver.
    """

    file: str
    n: int
    pairs: int
    found: QpboSolution | MisSolution
    note: str = ""
    reference: Reference | None = None

    @property
    def relaxation(self) -> bl.Solution:
        """The LP's solution."""
        return self.found.relaxation

    @property
    def labelling(self) -> tuple[str, float, list[int]]:
        """What the value of the labelling is called, the value, and the labels."""
        if isinstance(self.found, MisSolution):
            return "weight", self.found.weight, self.found.members.int().tolist()
        return "energy", self.found.energy, self.found.labels.tolist()

    @property
    def proved(self) -> tuple[int, int]:
        """Numbers of labels in some and in all optimal labellings."""
        persistency = self.found.persistency
        return int((persistency.weak >= 0).sum()), int((persistency.strong >= 0).sum())


def table(rows: Sequence[Row], title: str = "") -> Table:
    """Return the table for people: one line an instance."""
    named = rows[0].labelling[0]
    compared = next((row.reference.solver for row in rows if row.reference is not None), None)
    result = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    result.add_column("instance", overflow="fold")
    headings = ["n", "pairs", "bound", named, "gap", "LP gap", "fixed", "passes", "seconds"]
    headings += [f"LP by {compared}", "difference", "its seconds"] if compared else []
    for heading in headings:
        result.add_column(heading, justify="right")
    result.add_column("status")
    for row in rows:
        lp = row.relaxation
        cells = [
            row.file,
            str(row.n),
            str(row.pairs),
            f"{float(lp.bound[0]):.8g}",
            f"{row.labelling[1]:.8g}",
            f"{100 * row.found.gap:.2f} %",
            f"{float(lp.gap[0]):.1e}",
            str(row.proved[0]),
            str(int(lp.passes[0])),
            f"{float(lp.seconds[0]):.2f}",
        ]
        if row.reference is not None:
            cells += [f"{row.reference.value:.8g}", f"{_difference(row):+.1e}", f"{row.reference.seconds:.2f}"]
        status = lp.status[0]
        style = STYLES.get(status, "yellow")
        result.add_row(*cells, f"[{style}]{status.name.lower().replace('_', ' ')}[/]")
    return result


def _difference(row: Row) -> float:
    """Bound minus the LP's optimum, relative to their size."""
    assert row.reference is not None
    bound, value = float(row.relaxation.bound[0]), row.reference.value
    return (bound - value) / max(1.0, abs(bound), abs(value))


def to_json(rows: Sequence[Row], method: str) -> str:
    """Return strict JSON: a list with one object an instance, where infinities and NaN are null."""
    return json.dumps([_entry(row, method) for row in rows], allow_nan=False, indent=2)


def _entry(row: Row, method: str) -> dict[str, Any]:
    lp, (named, value, labels), (weak, strong) = row.relaxation, row.labelling, row.proved
    entry: dict[str, Any] = {
        "file": row.file,
        "n": row.n,
        "pairs": row.pairs,
        "method": method,
        "version": bl.__version__,
        "status": lp.status[0].name.lower(),
        "bound": _number(lp.bound[0]),
        "safe_bound": _number(lp.safe_bound[0]),
        "primal": _number(lp.primal[0]),
        "gap": _number(lp.gap[0]),
        "passes": int(lp.passes[0]),
        "seconds": _number(lp.seconds[0]),
        named: _number(value),
        f"{named}_gap": _number(row.found.gap),
        "persistency": {"weak": weak, "strong": strong},
        "solution": labels,
    }
    if row.note:
        entry["note"] = row.note
    if row.reference is not None:
        by = row.reference
        entry["reference"] = {
            "solver": by.solver,
            "value": _number(by.value),
            "seconds": by.seconds,
            "difference": _number(_difference(row)),
        }
    return entry


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
