"""Short tables about models and solutions, as text and as HTML for notebooks; they show the first rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

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

        def cut(cell: str) -> str:
            return cell if len(cell) <= LONG else f"{cell[: LONG - 3]}..."

        return [tuple(map(cut, row)) for row in self.rows[:SHOWN]]

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
    """Return a title and tables below it for a notebook; all names are escaped."""
    parts = [f"<div><p>{escape(title)}</p>"]
    for table in tables:
        if not table.total:
            continue
        head = "".join(f"<th>{escape(cell)}</th>" for cell in table.columns)
        lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table.cells()]
        if table.rest():
            lines.append(f'<td colspan="{len(table.columns)}">{escape(table.rest())}</td>')
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    return "".join([*parts, "</div>"])


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a number and its noun; ``nouns`` are those of a plural without s."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def listed(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    every = list(names)
    return ", ".join(every[:SHOWN]) + f" and {len(every) - SHOWN} more" * (len(every) > SHOWN)


class Tabled:
    """A result that prints itself as a title and short tables, as text and in notebooks."""

    def _tables(self) -> tuple[str, list[Table]]:
        """Return the title and the tables below it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return as_text(*self._tables())

    def _repr_html_(self) -> str:
        return as_html(*self._tables())
