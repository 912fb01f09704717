"""Where cases register themselves: one file in ``bench/cases`` each."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
Run = Callable[..., Iterable[Record]]
CASES: dict[str, Case] = {}


@dataclass(frozen=True)
class Case:
    """A benchmark: ``run(quick, **options)`` returns its records, all with the same keys.

    ``options`` are numbers that the command line sets, with their defaults.  A record with ``findings`` above zero makes a run fail.
    ``appendix`` is the end of the page.
    """

    name: str
    title: str
    note: str
    run: Run
    draw: Callable[[list[Record], Figure], None] | None
    options: dict[str, float]
    appendix: str


def case(
    name: str,
    title: str,
    note: str,
    draw: Callable[[list[Record], Figure], None] | None = None,
    appendix: str = "",
    **options: float,
) -> Callable[[Run], Run]:
    """Register a function as a case; ``draw`` makes a picture of its records."""

    def register(run: Run) -> Run:
        CASES[name] = Case(name, title, note, run, draw, options, appendix)
        return run

    return register


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Have torch work in so many threads within the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def names() -> list[str]:
    """Names of all cases, each in the module of its name."""
    from bench import cases

    return sorted(module.name for module in pkgutil.iter_modules(cases.__path__))


def load(name: str) -> Case:
    """Import a case."""
    importlib.import_module(f"bench.cases.{name}")
    return CASES[name]
