"""Memory that the C library keeps once it is free."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from blocklp.decomposition.problem import Decomposition
from blocklp.kernels.settings import KEPT_BYTES


@cache
def _trim() -> Any:
    """``malloc_trim`` of glibc; None where the C library is another one."""
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):
        return None


def trim(problem: Decomposition) -> None:
    """Give pages of the heap that are free back to the system, where processes share a large instance.

    Tensors of less than 32 MB come from the heap, which keeps the gaps that they leave: some hundred MB where
    vectors take 20 MB each, and each of several processes shall need little.
    """
    if problem.totals.whole or 8 * problem.copies <= KEPT_BYTES:
        return
    if (trimmed := _trim()) is not None:
        trimmed(0)
