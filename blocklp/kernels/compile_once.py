"""Processes that start together compile a loop once: the others wait, and load it from numba's cache.

While numba compiles, garbage is looked for rarely: going through all objects again and again is a quarter of
the time.
"""

from __future__ import annotations

import functools
import gc
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

WAIT = 120.0
"""Seconds after which a process compiles a loop itself: another one that was to do so has been stopped."""


COLLECTIONS = 50_000, 20, 20
"""Thresholds of the garbage collector meanwhile; where the present one is higher, it stays."""


@functools.lru_cache
def collect_rarely() -> None:
    """Have compilations raise the threshold of the garbage collector; the first call has an effect."""
    from numba.core import event

    class Rarely(event.Listener):
        depth, before = 0, gc.get_threshold()

        def on_start(self, _event: Any) -> None:
            if self.depth == 0:
                self.before = gc.get_threshold()
                if 0 < self.before[0] < COLLECTIONS[0]:
                    gc.set_threshold(*COLLECTIONS)
            self.depth += 1

        def on_end(self, _event: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                gc.set_threshold(*self.before)

    event.register("numba:compile", Rarely())  # type: ignore[no-untyped-call]


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
