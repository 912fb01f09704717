"""Loops compiled by numba for the CPU, where numba is installed.

The tensor operations that they replace serve everywhere else.
Every result is written by one thread in a fixed order, so runs repeat bit for bit whatever the number of
threads.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import install
from blocklp.kernels.compile_once import OnceInAllProcesses, collect_rarely

FAST = {"contract", "arcp", "nsz"}
"""Liberties with rounding that depend on nothing; sums keep their order, NaN and infinities their meaning."""

TILE = 256
"""Blocks at a time: what they need stays in the nearest cache."""

LOADING, COMPILING = 0.5, 15.0
"""Seconds that it takes to load the loops of a module, and to compile them where no cache holds them."""

BUSY = 4
"""Times as long that loading and compiling may take where other processes want the processor too."""

VARIABLE = "BLOCKLP_BACKEND"
"""Environment variable that names the backend where a model is compiled without saying so."""

TURNS = 16
"""Numbers that threads share which take pieces of work in turn (:mod:`blocklp.kernels.turns`)."""

_own = threading.local()
_said: list[str] = []
_deadlines: list[Deadline] = []
_marked: set[tuple[ModuleType, torch.dtype]] = set()
_called: set[str] = set()


@functools.lru_cache
def loops(module: str) -> ModuleType | None:
    """A module of compiled loops, imported on first use; None without numba, or where numba is disabled.

    Raises
    ------
    ModuleNotFoundError
        If there is no such module: tensor operations must not hide a wrong name.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return None
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if (error.name or "").startswith("blocklp"):
            raise
        return None


def wanted(module: str) -> ModuleType | None:
    """A module of compiled loops that much depends on; None without numba, which the log then says once."""
    found = loops(module)
    if found is None and not _said:
        _said.append(module)
        why = "numba is missing or disabled: passes take several times as long"
        logging.getLogger("blocklp").warning(f"{why}: {install('fast')}")
    return found


def in_time(module: str, kind: torch.dtype) -> ModuleType | None:
    """The loops of a module for some precision; None where a deadline (:func:`until`) leaves no time.

    The first answer under a deadline stays, so that nothing changes in the middle of a solve. Who asks
    compiles them, and :func:`until` marks them.  Where ``BLOCKLP_BACKEND`` says "torch" there are none.
    """
    if os.environ.get(VARIABLE) == "torch":
        return None
    found = loaded_in_time(module)
    if found is None or cached(found, kind):
        return found
    ready = all(d.affords_once((module, kind), BUSY * COMPILING) for d in _deadlines)
    return found if ready else None


def loaded_in_time(module: str) -> ModuleType | None:
    """The loops of a module, or None where no deadline leaves time to load them."""
    deadlines = () if module in sys.modules else _deadlines
    if not all(d.affords_once((module, "loading"), BUSY * LOADING) for d in deadlines):
        return None
    return wanted(module)


@contextmanager
def until(deadline: Deadline) -> Iterator[None]:
    """Let no loops be compiled that would not be ready in time; those that were are marked in the end.

    Oracles are pure functions of their costs, so that the deadline of a solve does not reach them in another
    way.
    """
    _deadlines.append(deadline)
    try:
        yield
    finally:
        _deadlines.remove(deadline)
        for key in deadline.afforded:
            if not isinstance(key, tuple) or not isinstance(key[1], torch.dtype):
                continue
            if (found := loops(key[0])) is not None:
                mark(found, key[1])


def mark(module: ModuleType, kind: torch.dtype) -> None:
    """Mark the loops of a module as compiled for some precision, in a file beside the cache."""
    if (module, kind) not in _marked:
        _marked.add((module, kind))
        if (place := _place(module, kind)) is not None:
            with suppress(OSError):  # no place for a cache
                place.touch()
        cached.cache_clear()


def called(module: str) -> bool:
    """Whether a loop of a module has run in this process."""
    return module in _called


@functools.lru_cache
def cached(module: ModuleType, kind: torch.dtype) -> bool:
    """Whether the loops of a module, as its source is now, have been compiled for some precision."""
    if (module, kind) in _marked:
        return True
    place, source = _place(module, kind), Path(str(module.__file__))
    return place is not None and place.exists() and place.stat().st_mtime >= source.stat().st_mtime


def _place(module: ModuleType, kind: torch.dtype) -> Path | None:
    """File that says that loops are compiled, beside numba's own, which serve the same versions only."""
    loops = vars(module).values()
    folders = (
        getattr(loop, "folder", None) or getattr(getattr(loop, "stats", None), "cache_path", None)
        for loop in loops
    )
    folder = next((found for found in folders if found is not None), None)
    versions = f"{sys.implementation.cache_tag}-{importlib.metadata.version('numba')}"
    return None if folder is None else Path(folder) / f"{module.__name__}.{kind}.{versions}.compiled"


def tiles(blocks: int) -> int:
    """Tiles that hold so many blocks: the units of work of an instance."""
    return -(-blocks // TILE)


def kernel(grain: int = 1, **options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Compile a function ``(first, last, ...)`` that does units of work from ``first`` to before ``last``.

    Its other arguments are arrays and numbers.
    The result is called as ``(units, ...)`` with tensors, arrays, tuples of them and numbers. It deals the
    units out to as many threads as torch has, at least ``grain`` to each: waking a thread takes some fifty
    microseconds. Units must not depend on each other. Compiled code is cached beside the source. Options are
    numba's.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        compiled = compile(nogil=True, error_model="numpy", **options)(function)

        @functools.wraps(function)
        def run(units: int, *arguments: Any) -> None:
            given = arrays(arguments)
            _called.add(function.__module__)
            known, began = len(compiled.overloads), time.perf_counter()
            threads = min(getattr(_own, "threads", torch.get_num_threads()), units // grain)
            if threads <= 1:
                compiled(0, units, *given)
                _tell(function.__name__, len(compiled.overloads) - known, time.perf_counter() - began)
                return
            ends = [units * k // threads for k in range(threads + 1)]
            others = [_pool().submit(compiled, *part, *given) for part in itertools.pairwise(ends[1:])]
            try:
                compiled(*ends[:2], *given)
            finally:  # an interrupt must not leave others writing
                wait(others)
            for other in others:
                other.result()
            _tell(function.__name__, len(compiled.overloads) - known, time.perf_counter() - began)

        vars(run)["folder"] = compiled.stats.cache_path
        return run

    return decorate


def _tell(name: str, versions: int, seconds: float) -> None:
    """Say how long it took to compile a loop, if it was not in the cache."""
    if versions and seconds > 1:
        logging.getLogger("blocklp").info("compiled %s in %.1f s", name, seconds)


def arrays(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert what compiled code takes: tensors, also in tuples within, to arrays; others stay.

    To convert a tensor takes half a microsecond: what many calls are given is better kept as an array.
    """
    return tuple(
        [
            (v.detach() if v.requires_grad else v).numpy()
            if isinstance(v, Tensor)
            else arrays(v)
            if isinstance(v, tuple)
            else v
            for v in values
        ]
    )


@contextmanager
def loops_only() -> Iterator[None]:
    """Tensor operations on one thread, compiled loops on as many as those had.

    Between tensor operations the threads of OpenMP spin for milliseconds, on the cores that the loops want.
    """
    threads = torch.get_num_threads()
    before = getattr(_own, "threads", None)  # a callback may solve another problem
    _own.threads = before or threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if before is None:
            del _own.threads


def compile(**options: Any) -> Callable[[Any], Any]:
    """``numba.njit`` with its cache, or without one where nothing can be written."""
    import numba

    collect_rarely()

    def decorate(function: Any) -> Any:
        try:
            found = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # no place for a cache
            return numba.njit(**options)(function)
        found._cache = OnceInAllProcesses(found._cache, f"{function.__module__}.{function.__qualname__}")
        return found

    return decorate


@functools.lru_cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="blocklp")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # its threads are the parent's
