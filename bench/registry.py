"""Where cases register themselves: one file in ``bench/cases`` each."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
CASES: dict[str, Case] = {}


@dataclass(frozen=True)
class Case:
    """A benchmark: ``run(quick)`` returns its records, all with the same keys."""

    name: str
    title: str
    note: str
    run: Callable[[bool], list[Record]]
    draw: Callable[[list[Record], Figure], None] | None


def case(
    name: str, title: str, note: str, draw: Callable[[list[Record], Figure], None] | None = None
) -> Callable[[Callable[[bool], list[Record]]], Callable[[bool], list[Record]]]:
    """Register a function as a case; ``draw`` makes a picture of its records."""

    def register(run: Callable[[bool], list[Record]]) -> Callable[[bool], list[Record]]:
        CASES[name] = Case(name, title, note, run, draw)
        return run

    return register


def load() -> dict[str, Case]:
    """Import every case and return them by name."""
    from bench import cases

    for module in pkgutil.iter_modules(cases.__path__):
        importlib.import_module(f"bench.cases.{module.name}")
    return CASES
