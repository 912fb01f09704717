"""Memory that glibc keeps once it is free, where each of several processes shall need little."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from blocklp.decomposition.problem import Decomposition
from blocklp.kernels.settings import KEPT_BYTES

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of malloc.h
_LOW, _HIGHEST = 4 * 2**20, 32 * 2**20  # the second is what glibc comes to by itself


@cache
def _library() -> Any:
    """The C library, if it is glibc."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


@contextmanager
def little_kept(problem: Decomposition) -> Iterator[None]:
    """Have freed tensors of a large instance return to the system at once, while the context lasts.

    By default tensors of less than 32 MB come from the heap, which keeps the gaps that they leave: some
    hundred MB where vectors take 20 MB each.  Here those of 4 MB and more do not, and gaps that are there
    already go back.
    """
    library = _library() if 8 * problem.copies > KEPT_BYTES else None
    if library is None:
        yield
        return
    library.malloc_trim(0)
    library.mallopt(_TRIM_THRESHOLD, 2 * _HIGHEST)  # it is no longer found out for small tensors, either
    library.mallopt(_MMAP_THRESHOLD, _LOW)
    try:
        yield
    finally:
        library.mallopt(_MMAP_THRESHOLD, _HIGHEST)
