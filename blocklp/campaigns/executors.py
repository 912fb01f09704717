"""The interface of executors: that of :mod:`concurrent.futures`, and data that tasks share."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

T = TypeVar("T")

KEPT = 4
"""Shared objects that a process keeps once it has loaded them."""

_loaded: OrderedDict[str, Any] = OrderedDict()


class Shared:
    """Data that an executor hands to its workers once, not with every task; it is pickled as a reference.

    Parameters
    ----------
    key : str
        Tells the data of one executor apart from those of all others.
    """

    def __init__(self, key: str) -> None:
        self.key = key

    def load(self) -> Any:
        """Return the data, fetched from wherever they are."""
        raise NotImplementedError

    def get(self) -> Any:
        """Return the data; a process fetches them once, unless it has used several others since."""
        if self.key not in _loaded:
            _loaded[self.key] = self.load()
        _loaded.move_to_end(self.key)
        while len(_loaded) > KEPT:
            _loaded.popitem(last=False)
        return _loaded[self.key]


class Held(Shared):
    """Data in the memory of this process, and files that every worker reads where they are."""

    def __init__(self, value: Any) -> None:
        super().__init__("")
        self._value = value

    def get(self) -> Any:
        """Return the data."""
        return self._value


class Executor(Protocol):
    """Carries campaigns and searches; see :class:`LocalExecutor` and :class:`RayExecutor`."""

    @property
    def workers(self) -> int:
        """How many tasks run at the same time; on a cluster it changes with the nodes."""
        ...

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:
        """Run a function that can be pickled, with arguments that can.

        Returns
        -------
        Future
            Gets the value of the function or the exception that it raises; a
            :class:`blocklp.errors.ProcessError` where the process of the task ended.
        """
        ...

    def share(self, value: Any) -> Shared:
        """Return a reference to data that can be pickled, for the arguments of tasks."""
        ...

    def share_file(self, path: Path) -> Shared:
        """Return a reference to the file: ``get()`` gives its path where the worker is."""
        ...

    def shutdown(self) -> None:
        """End the workers and whatever they are working on."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class InProcess:
    """Runs every task in this process as it is submitted; an interrupt reaches whoever submitted it."""

    workers = 1

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:
        """Run a function, and return its value or exception as a future."""
        answer: Future[T] = Future()
        try:
            answer.set_result(function(*arguments))
        except Exception as error:
            answer.set_exception(error)
        return answer

    def share(self, value: Any) -> Shared:
        """Return a reference to data."""
        return Held(value)

    def share_file(self, path: Path) -> Shared:
        """Return a reference to a file."""
        return Held(path)

    def shutdown(self) -> None:
        """Do nothing: no task is running."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()


numbers = itertools.count()
"""Numbers for the keys of what this process shares."""
