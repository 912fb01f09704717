"""Processes that say what CPU time they have taken, for the benchmark of searches; workers import it by name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from blocklp.campaigns import LocalExecutor

T = TypeVar("T")


def timed(function: Callable[..., T], *arguments: Any) -> tuple[int, float, T]:
    """Run a function; return the process, its CPU time so far, and what the function returns."""
    found = function(*arguments)
    return os.getpid(), time.process_time(), found


class TimedExecutor(LocalExecutor):
    """Processes of one thread each, whose CPU time is noted after every task.

    Attributes
    ----------
    used : dict
        Processes to their CPU time after the last task, in seconds.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(workers, 1)
        self.used: dict[int, float] = {}

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:
        """See :meth:`LocalExecutor.submit`."""
        inner, outer = super().submit(timed, function, *arguments), Future[T]()

        def end(done: Future[tuple[int, float, T]]) -> None:
            if not outer.set_running_or_notify_cancel():
                return
            if (error := done.exception()) is not None:
                outer.set_exception(error)
                return
            process, used, found = done.result()
            self.used[process] = used
            outer.set_result(found)

        inner.add_done_callback(end)
        return outer

    def busiest(self, before: dict[int, float]) -> float:
        """CPU seconds of the process that has taken most since an earlier reading of :attr:`used`."""
        return max((after - before.get(process, 0.0) for process, after in self.used.items()), default=0.0)
