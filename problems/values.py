"""A table of one instance on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_values(title: str, values: Mapping[str, object]) -> None:
    """Print what is known of one instance, a line each."""
    table = Table(title=Text(title), show_header=False)
    for key, value in values.items():
        # As text: what stands in brackets would be taken for markup.
        table.add_row(key.replace("_", " "), Text(f"{value:.9g}" if isinstance(value, float) else str(value)))
    Console().print(table)
