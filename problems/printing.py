"""Tables on the terminal, and numbers of strict JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import SupportsFloat

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from blocklp.status import Status

WIDE = Console(width=10_000)


def print_table(table: Table, console: Console) -> None:
    """Print a table; a file or a pipe gets it at its full width."""
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, table_width(table)))
    console.print(table)


def table_width(table: Table) -> int:
    """Return the columns of a terminal that a table takes where nothing is cut."""
    return Measurement.get(WIDE, WIDE.options, table).maximum


def print_values(title: str, values: Mapping[str, object]) -> None:
    """Print what is known of one instance, a line each."""
    table = Table(title=Text(title), show_header=False)
    for key, value in values.items():
        if key == "status":
            value = str(value).replace("_", " ")
        # As text: what stands in brackets would be taken for markup.
        table.add_row(key.replace("_", " "), Text(f"{value:.9g}" if isinstance(value, float) else str(value)))
    Console().print(table)


def json_status(status: Status) -> str:
    """Return the word for a status in JSON, such as ``time_limit``; tables have its words."""
    return status.name.lower()


def json_number(value: SupportsFloat) -> float | None:
    """Return a number as strict JSON holds it: None in place of infinities and NaN."""
    number = float(value)
    return number if math.isfinite(number) else None
