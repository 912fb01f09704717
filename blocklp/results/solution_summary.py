"""The summary of a solution: a table with a row for each instance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from blocklp.blocks.capabilities import HasIntegerConstraints, supports
from blocklp.language.statement import Statement
from blocklp.status import Status
from blocklp.tables import SHOWN, Table, plural

LINEAR, LAGRANGEAN = "linear", "Lagrangean"
"""Kinds of relaxations."""

ABOVE = "; bounds are Lagrangean: no worse than the LP's"

MEAN = (
    " The bound is Lagrangean, at least that of the LP; the point is a mean of integer points, and "
    "solve_exact() looks for one that is integral."
)


class Ended(Protocol):
    """The results of any solve, for their summary."""

    @property
    def bound(self) -> Tensor:
        """``(batch,)``."""
        ...

    @property
    def primal(self) -> Tensor:
        """``(batch,)``."""
        ...

    @property
    def gap(self) -> Tensor:
        """``(batch,)``."""
        ...

    @property
    def status(self) -> tuple[Status, ...]:
        """Why each instance ended."""
        ...

    @property
    def passes(self) -> Tensor:
        """``(batch,)``."""
        ...

    @property
    def seconds(self) -> Tensor:
        """``(batch,)``."""
        ...


def relaxation(models: Sequence[Statement]) -> str:
    """Of which kind the bound of models is: Lagrangean where blocks are hulls of integer points."""
    different = {id(model): model for model in models}.values()
    hulls = any(supports(b.type, HasIntegerConstraints) for model in different for b in model.blocks)
    return LAGRANGEAN if hulls else LINEAR


def summary(found: Ended, kind: str = LINEAR) -> tuple[str, list[Table]]:
    """The title of a solution, and its table: a row for each of the first instances.

    ``kind`` is its relaxation.
    """
    title, tables = counted(found, "passes", found.passes)
    return title + ABOVE * (kind == LAGRANGEAN), tables


def counted(found: Any, what: str, counts: Tensor) -> tuple[str, list[Table]]:
    """The title of a solution, and its table with a column of counts.

    Parameters
    ----------
    found : Ended
        The solution, with attributes as in :class:`Ended` but for ``passes``.
    what : str
        What is counted.
    counts : Tensor
        ``(batch,)`` integers.
    """
    total = len(found.status)
    rows = [
        (
            str(i),
            str(found.status[i]),
            f"{float(found.bound[i].detach()):.9g}",
            f"{float(found.primal[i]):.9g}",
            f"{float(found.gap[i]):.2g}",
            str(int(counts[i])),
            f"{float(found.seconds[i]):.3g}",
        )
        for i in range(min(total, SHOWN))
    ]
    columns = ("instance", "status", "bound", "primal", "gap", what, "seconds")
    return f"{type(found).__name__} of {plural(total, 'instance')}", [Table(columns, rows, total)]
