"""Loops compiled by numba for the CPU, where numba is installed; the tensor operations that they replace serve everywhere else.

Every result is written by one thread in a fixed order, so runs repeat bit for bit whatever the number of threads.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

FAST = {"contract", "arcp", "nsz"}
"""Liberties with rounding that depend on nothing; sums keep their order, NaN and infinities their meaning."""

_lock = threading.Lock()


@functools.lru_cache
def loops(module: str) -> ModuleType | None:
    """A module of compiled loops, imported on first use (a compiler takes its time); None without numba."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def kernel(**options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Compile a function of arrays and numbers for tensors and numbers: on one thread, or with ``prange`` on as many as torch has.

    Compiled code is cached beside the source.  Options are numba's.
    """
    # As many threads as torch may use: idle ones beyond those cost milliseconds a call.
    os.environ.setdefault("NUMBA_NUM_THREADS", str(torch.get_num_threads()))
    import numba

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        assert isinstance(function, FunctionType)
        # Under a name of its own: the cache knows functions by their names, not by these options.
        single = FunctionType(function.__code__, function.__globals__, function.__name__ + "_on_one_thread")
        single.__qualname__ = single.__name__
        alone = numba.njit(cache=True, nogil=True, error_model="numpy", **options)(single)
        together = numba.njit(parallel=True, cache=True, nogil=True, error_model="numpy", **options)(function)

        @functools.wraps(function)
        def run(*arguments: Tensor | float) -> None:
            arrays = [a.detach().numpy() if isinstance(a, Tensor) else a for a in arguments]
            threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
            if threads == 1:
                alone(*arrays)
                return
            with _lock:  # numba's threads serve one caller at a time
                numba.set_num_threads(threads)
                together(*arrays)

        return run

    return decorate
