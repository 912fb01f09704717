"""The summary of a solution: a table with a row for each instance."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from blocklp.status import Status
from blocklp.tables import SHOWN, Table, plural


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


def summary(found: Ended) -> tuple[str, list[Table]]:
    """The title of a solution, and its table: a row for each of the first instances."""
    count = len(found.status)
    rows = [
        (
            str(i),
            str(found.status[i]),
            f"{float(found.bound[i]):.9g}",
            f"{float(found.primal[i]):.9g}",
            f"{float(found.gap[i]):.2g}",
            str(int(found.passes[i])),
            f"{float(found.seconds[i]):.3g}",
        )
        for i in range(min(count, SHOWN))
    ]
    columns = ("instance", "status", "bound", "primal", "gap", "passes", "seconds")
    return f"{type(found).__name__} of {plural(count, 'instance')}", [Table(columns, rows, count)]
