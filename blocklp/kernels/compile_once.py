"""Processes that start together compile a loop once: the others wait, and load it from numba's cache."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

WAIT = 120.0
"""Seconds after which a process compiles a loop itself: another one that was to do so has been stopped."""


class OnceInAllProcesses:
    """The cache of a function, locked from the moment that a version is missing until it is there.

    Parameters
    ----------
    cache : numba.core.caching.FunctionCache
        The cache, which does all else.
    name : str
        Of the function and its module.
    """

    def __init__(self, cache: Any, name: str) -> None:
        self._cache, self._name = cache, name
        self._held: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load a version; where it is missing, wait for whoever compiles it."""
        found = self._cache.load_overload(sig, target_context)
        if found is None:
            self._acquire()
            found = self._cache.load_overload(sig, target_context)
            if found is not None:
                self._release()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save a version, and let the others load it."""
        try:
            self._cache.save_overload(sig, data)
        finally:
            self._release()

    def _acquire(self) -> None:
        import filelock

        self._release()  # of a compilation that ended in an error
        folder = Path(self._cache.cache_path)
        with suppress(OSError, filelock.Timeout):  # no place for a lock, or nobody gives it back
            os.makedirs(folder, exist_ok=True)
            lock = filelock.FileLock(folder / f"{self._name}.lock")
            lock.acquire(timeout=WAIT, poll_interval=0.2)
            self._held = lock

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None
