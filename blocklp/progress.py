"""A progress line of a running solve."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Self

import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text

from blocklp.campaigns.campaign import CampaignEvent
from blocklp.engine.records import Event
from blocklp.search.best_first import SearchEvent
from blocklp.search.best_first import relative_gap as search_gap
from blocklp.status import Status

INTERVAL = 0.1
"""Seconds between two drawings: looking at an event's tensors may wait for the device."""


class LiveLine:
    """A line on standard error, drawn anew inside its ``with`` statement, on terminals and in notebooks.

    Parameters
    ----------
    console : rich.console.Console, optional
        Where to draw instead.
    interval : float
        Seconds between two drawings at least.
    """

    def __init__(self, console: Console | None = None, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._console = Console(stderr=True) if console is None else console
        self._live: Live | None = None
        self._drawn = -math.inf

    def __enter__(self) -> Self:
        if self._console.is_terminal or self._console.is_jupyter:
            # Drawn by callbacks alone: a refreshing thread would compete with the solve.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._drawn = -math.inf
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}, " + ("not shown" if self._live is None else "shown")

    def reset(self) -> None:
        """Have the next line drawn whenever the last one was."""
        self._drawn = -math.inf

    def draw(self, line: Callable[[], str]) -> None:
        """Draw a line, unless another was drawn a moment ago."""
        now = time.perf_counter()
        if self._live is None or now - self._drawn < self._interval:
            return
        self._drawn = now
        self._live.update(Text(line(), no_wrap=True, overflow="ellipsis"), refresh=True)


class Progress(LiveLine):
    """Shows passes, seconds, bound, primal value, gap and the number of finished instances on standard error.

    Of a batch it shows the instance with the largest gap.  It draws inside its ``with`` statement only, and
    nothing if standard error is neither a terminal nor a notebook.

    Parameters
    ----------
    console : rich.console.Console, optional
        Where to draw instead.

    Examples
    --------
    >>> import blocklp as bl
    >>> from blocklp.progress import Progress
    >>> m = bl.Model()
    >>> x = m.variable("x", 3, lower=0, upper=1)
    >>> m.minimize(-x.sum())
    >>> with Progress() as progress:
    ...     solution = m.solve(callback=progress)
    >>> round(solution.bound.item(), 6)
    -3.0
    """

    def __call__(self, event: Event) -> None:
        """Draw the event, unless another was drawn a moment ago."""
        self.draw(lambda: describe(event))


class SearchProgress(LiveLine):
    """Shows nodes, bound, incumbent and gap of a running search on standard error, as :class:`Progress`."""

    def __call__(self, event: SearchEvent) -> None:
        """Draw the event, unless another was drawn a moment ago."""
        self.draw(lambda: f"{event} | gap {search_gap(event.incumbent, event.bound):.1e}")


class CampaignProgress(LiveLine):
    """Shows what is done and what runs of a campaign on standard error, as :class:`Progress`."""

    def __call__(self, event: CampaignEvent) -> None:
        """Draw the event, unless another was drawn a moment ago."""
        self.draw(lambda: str(event))


class ElapsedTime(LiveLine):
    """Shows what is done and for how long, for work that reports nothing itself, as :class:`Progress`.

    It draws inside its ``with`` statement, once that has taken a second.

    Parameters
    ----------
    what : str
        What is done, such as "reading model.mps".
    console : rich.console.Console, optional
        Where to draw instead.
    after : float
        Seconds before the first drawing, and between two of them.
    """

    def __init__(self, what: str, console: Console | None = None, after: float = 1.0) -> None:
        super().__init__(console)
        self._what, self._after = what, after
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        if self._live is not None:
            # It wakes once a second, so that it takes nothing from the work.
            self._ended.clear()
            self._thread = threading.Thread(target=self._tick, daemon=True)
            self._thread.start()
        return self

    def _tick(self) -> None:
        began = time.perf_counter()
        while not self._ended.wait(self._after):
            self.draw(lambda: f"{self._what} | {time.perf_counter() - began:.0f} s")

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        super().__exit__(*raised)


def describe(event: Event) -> str:
    """Return one line about an event."""
    worst = int(torch.where(event.status == int(Status.RUNNING), event.gap, -1.0).argmax())
    numbers = torch.stack([event.bound[worst], event.primal[worst], event.gap[worst]])
    bound, primal, gap = numbers.tolist()
    parts = [f"{event.passes} passes", f"{event.seconds:.1f} s"]
    if len(event.status) > 1:
        finished = int((event.status != int(Status.RUNNING)).sum())
        parts.append(f"{finished} of {len(event.status)} instances finished")
        parts.append(f"largest gap: instance {worst}")
    parts += [f"bound {bound:.9g}", f"primal {primal:.9g}", f"gap {gap:.1e}"]
    return " | ".join(parts)
