"""What exact solvers return, and what they show while they run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text
from torch import Tensor

from blocklp.compiled import loops
from blocklp.errors import MissingDependencyError, install
from blocklp.progress import INTERVAL
from blocklp.search import SearchEvent
from blocklp.status import Status

REASONS = {
    Status.OPTIMAL: "The labelling is optimal.",
    Status.INFEASIBLE: "No labelling respects the hard constraints.",
    Status.TIME_LIMIT: "The time limit was reached; the bound is valid. Raise time_limit=.",
    Status.INTERRUPTED: "Interrupted; the bound is the best so far.",
    Status.STALLED: "Some part could not be solved; the bound counts it.",
}

Callback = Callable[[SearchEvent], Any]


def search_loops(module: str) -> Any:
    """Import compiled loops that a search cannot do without.

    Raises
    ------
    MissingDependencyError
        numba is not installed.
    """
    found = loops(module)
    if found is None:
        raise MissingDependencyError(f"exact search runs in loops that numba compiles: {install('fast')}")
    return found


def in_units(callback: Callback | None, unit: float) -> Callback | None:
    """Return a callback for searches on integers that stand for ``unit`` each: it gets the values themselves."""
    if callback is None:
        return None
    return lambda event: callback(replace(event, bound=event.bound * unit, incumbent=event.incumbent * unit))


@dataclass
class Run:
    """One call: its limits, and what it has spent on all parts of a problem.

    Attributes
    ----------
    deadline : float
        By ``time.perf_counter()``.
    callback : callable, optional
        Gets a :class:`blocklp.search.SearchEvent` after every batch of nodes; True stops.
    nodes : int
        Nodes bounded so far.
    status : Status
        ``OPTIMAL`` until a part could not be solved.
    """

    deadline: float
    callback: Callback | None
    nodes: int = 0
    status: Status = Status.OPTIMAL

    def left(self) -> float:
        """Seconds, never zero: that is for ``over`` to tell, and solvers refuse a limit of zero."""
        return max(self.deadline - time.perf_counter(), 1e-6)

    def over(self) -> bool:
        """Whether to stop, by an interrupt or the deadline."""
        if self.status is not Status.INTERRUPTED and time.perf_counter() >= self.deadline:
            self.status = Status.TIME_LIMIT
        return self.status in (Status.INTERRUPTED, Status.TIME_LIMIT)


@dataclass(frozen=True)
class ExactResult:
    """A solution, and whether it is proved to be the best.

    Attributes
    ----------
    labels : Tensor
        ``(n,)`` int8, of a Markov random field int64: labels, or members of the set.
    energy : float
        Value of the labels; of a set, its weight; rounded once.
    bound : float
        No labels have a smaller energy, no set a larger weight, in exact arithmetic.
    proven : bool
        Whether energy and bound agree: but for their last digits if all coefficients are multiples of a common number, in binary or
        in decimals, that their sum is not too large for, and else within two billionths of the sum of all magnitudes (of up to a
        hundred thousand coefficients).
    nodes : int
        Nodes bounded.
    seconds : float
        Time taken.
    status : Status
        ``OPTIMAL``, ``INFEASIBLE``, ``TIME_LIMIT``, ``INTERRUPTED`` or ``STALLED``; ``reason`` is the sentence.
    """

    labels: Tensor
    energy: float
    bound: float
    proven: bool
    nodes: int
    seconds: float
    status: Status

    @property
    def reason(self) -> str:
        """Why the search ended, in one sentence."""
        return REASONS[self.status]

    @property
    def gap(self) -> float:
        """``|energy - bound| / max(1, |energy|, |bound|)``; zero where both are infinite, infinite where the energy alone is."""
        if not math.isfinite(self.energy):
            return 0.0 if self.energy == self.bound else math.inf
        return abs(self.energy - self.bound) / max(1.0, abs(self.energy), abs(self.bound))


class SearchProgress:
    """Shows nodes, bound and incumbent of a running search on standard error, if that is a terminal.

    Drawn inside its ``with`` statement only.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._drawn = -math.inf

    def __enter__(self) -> SearchProgress:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, event: SearchEvent) -> None:
        """Draw the event, unless another was drawn a moment ago."""
        now = time.perf_counter()
        if self._live is None or now - self._drawn < INTERVAL:
            return
        self._drawn = now
        size = max(1.0, abs(event.incumbent), abs(event.bound))
        self._live.update(Text(f"{event} | gap {abs(event.incumbent - event.bound) / size:.1e}", no_wrap=True), refresh=True)
