"""Short tables about models and solutions, as text and as HTML for notebooks; of many rows they show the first ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blocklp.model import Model

SHOWN = 8
"""Most rows of a table."""

LONG = 80
"""Most characters of a cell."""


@dataclass(frozen=True)
class Table:
    """A table of strings.

    Attributes
    ----------
    columns : tuple of str
        Heads of the columns.
    rows : sequence of tuple of str
        The first rows; only :data:`SHOWN` of them need be made.
    total : int
        Number of rows that there are.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    total: int

    def cells(self) -> list[tuple[str, ...]]:
        """Return the rows to show, long cells cut."""
        return [tuple(cell if len(cell) <= LONG else f"{cell[: LONG - 3]}..." for cell in row) for row in self.rows[:SHOWN]]

    def rest(self) -> str:
        """How many more rows there are, in words; empty for none."""
        return f"... {self.total - SHOWN} more" if self.total > SHOWN else ""


def as_text(title: str, tables: Sequence[Table]) -> str:
    """Return a title and tables below it, columns aligned; empty tables are left out."""
    lines = [title]
    for table in tables:
        if not table.total:
            continue
        rows = [table.columns, *table.cells()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        lines += [f"  {table.rest()}"] * bool(table.rest())
    return "\n".join(lines)


def as_html(title: str, tables: Sequence[Table]) -> str:
    """Return the same for a notebook; all names are escaped."""
    parts = [f"<div><p>{escape(title)}</p>"]
    for table in tables:
        if not table.total:
            continue
        head = "".join(f"<th>{escape(cell)}</th>" for cell in table.columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.cells())
        rest = f'<tr><td colspan="{len(table.columns)}">{escape(table.rest())}</td></tr>' if table.rest() else ""
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}{rest}</tbody></table>")
    return "".join([*parts, "</div>"])


def plural(count: int, noun: str) -> str:
    """Return a number and its noun."""
    return f"{count} {noun}{'s' * (count != 1)}"


def listed(names: Iterable[str]) -> str:
    """Return the first names of a few or of thousands."""
    known = list(names)
    return ", ".join(known[:SHOWN]) + f" and {len(known) - SHOWN} more" * (len(known) > SHOWN)


def of_model(model: Model) -> tuple[str, list[Table]]:
    """The title and the tables of the model."""
    sizes = model.sizes()
    sense = "no objective" if model.objective is None else "maximize" if model.maximizing else "minimize"
    alone = sizes["coupling"].get(0, 0) + sizes["coupling"].get(1, 0)
    title = (
        f"Model of {plural(model.batch, 'instance')}, {sense}: {plural(model.size, 'variable')}, {model.size - alone} of them "
        f"shared by several blocks; {sizes['copies']} copies; {sizes['rows']} rows"
    )
    variables = [
        (f"{v.name}{list(v.shape)}", f"{float(v.lower.min()):g}", f"{float(v.upper.max()):g}", "integer" * v.integer)
        for v in islice(model.variables.values(), SHOWN)
    ]
    blocks = [(b.name, str(len(b.scope)), str(b.scope.shape[1]), repr(b.type)) for b in model.blocks[:SHOWN]]
    rows = [(r.name, str(r.count), str(r.constraint.matrix.nnz)) for r in model.rows[:SHOWN]]
    return title, [
        Table(("variables", "least", "largest", ""), variables, len(model.variables)),
        Table(("blocks", "number", "variables each", "type"), blocks, len(model.blocks)),
        Table(("rows", "number", "entries"), rows, len(model.rows)),
    ]
