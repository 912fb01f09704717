"""Campaigns: many tasks that know nothing of each other, some of which may fail, crash or never end."""

from __future__ import annotations

import math
import signal
import threading
import time
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from blocklp.campaigns.executors import Executor
from blocklp.deadline import Deadline
from blocklp.errors import ProcessError

WATCHED = 1.0
"""Seconds between two looks at the number of workers, and at the clock of whoever draws progress."""

_THIS = uuid.uuid4().hex
"""Tells this process apart from those of all machines."""


def hard_limit(seconds: float) -> float:
    """Return the limit of a task whose function looks at the clock and should end after some seconds."""
    return 1.5 * seconds + 30.0


@dataclass(frozen=True)
class Task:
    """A call that a campaign makes once.

    Attributes
    ----------
    key : hashable
        Tells tasks apart; of several with the same key the first is done.
    function : callable
        What is called; it can be pickled by its name.
    arguments : tuple
        Its arguments, which can be pickled.
    title : str
        A name for progress lines.
    limit : float
        Seconds from its start after which the process of the task is ended, where it is not this one: for
        functions that do not look at the clock as they should.
    """

    key: Hashable
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    title: str = ""
    limit: float = math.inf


@dataclass(frozen=True)
class Outcome:
    """The end of a task: its value, or the exception that it raised or that says how its process ended."""

    key: Any
    value: Any
    error: Exception | None
    seconds: float


@dataclass(frozen=True)
class CampaignEvent:
    """The state of a campaign, for callbacks; ``str(event)`` is one line.

    Attributes
    ----------
    done, failed : int
        Tasks that have ended, and those of them that have no value.
    total : int or None
        Number of all tasks, where it is known.
    running : tuple of str
        Titles of the tasks under way, the longest running first.
    workers : int
        How many tasks may run at the same time.
    seconds : float
        Since the start.
    """

    done: int
    failed: int
    total: int | None
    running: tuple[str, ...]
    workers: int
    seconds: float

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {self.total}"
        parts = [f"{self.done}{of} done"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        parts += [f"{self.workers} workers", f"{self.seconds:.1f} s"]
        if self.running:
            parts.append("running: " + ", ".join(self.running))
        return " | ".join(parts)


def completed(
    executor: Executor,
    tasks: Iterable[Task],
    *,
    total: int | None = None,
    time_limit: float | Deadline = math.inf,
    callback: Callable[[CampaignEvent], Any] | None = None,
) -> Iterator[Outcome]:
    """Carry out tasks, and yield each as it ends.

    Tasks are taken one by one as workers become free, so that an iterator of tasks may depend on what has
    ended.  At the deadline no task begins any more, and those under way are left to ``executor.shutdown()``;
    so they are after an interrupt.

    Parameters
    ----------
    executor : Executor
        Where they run.
    tasks : iterable of Task
        The tasks.
    total : int, optional
        How many there are, for the events.
    time_limit : float or Deadline
        Seconds for all of them.
    callback : callable, optional
        Gets a :class:`CampaignEvent` at every beginning and end of a task, and every second.

    Yields
    ------
    Outcome
        Exactly one for each key that has ended.

    Examples
    --------
    >>> from blocklp.campaigns import InProcess, Task, completed
    >>> squares = [Task(k, pow, (k, 2)) for k in range(3)]
    >>> [outcome.value for outcome in completed(InProcess(), squares)]
    [0, 1, 4]
    """
    deadline, began = Deadline.of(time_limit), time.perf_counter()
    given, seen = iter(tasks), set[Hashable]()
    running: dict[Future[Any], tuple[Task, float]] = {}
    done = failed = 0
    more = True

    def tell(workers: int) -> None:
        if callback is not None:
            titles = tuple(task.title for task, _ in running.values() if task.title)
            callback(CampaignEvent(done, failed, total, titles, workers, time.perf_counter() - began))

    while True:
        workers = executor.workers
        while more and len(running) < workers and not deadline.over():
            task = next(given, None)
            if task is None:
                more = False
            elif task.key not in seen:
                seen.add(task.key)
                start = time.perf_counter()
                call = _THIS, task.limit, task.function, task.arguments
                running[executor.submit(_limited, *call)] = task, start
                tell(workers)
        if not running or deadline.over():
            return
        ended, _ = wait(running, min(WATCHED, deadline.left()), FIRST_COMPLETED)
        for future in ended:
            task, start = running.pop(future)
            error, seconds = future.exception(), time.perf_counter() - start
            if isinstance(error, ProcessError) and seconds >= task.limit:
                said = f"{error}, {seconds:.3g} s after it was handed out"
                error = ProcessError(f"{said}; its limit is {task.limit:.3g} s")
            if not isinstance(error, Exception | None):
                raise error
            done, failed = done + 1, failed + (error is not None)
            tell(workers)
            yield Outcome(task.key, None if error is not None else future.result(), error, seconds)
        tell(workers)


def _limited(caller: str, seconds: float, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a function; a process other than that of the campaign ends where this takes too long."""
    timed = hasattr(signal, "setitimer")  # not on Windows
    timed = timed and threading.current_thread() is threading.main_thread()  # Dask has threads
    if caller == _THIS or math.isinf(seconds) or not timed:
        return function(*arguments)
    # The system ends the process, so that loops of compiled code end too.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
