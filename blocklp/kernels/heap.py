"""Memory that the C library keeps once it is free."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def _trim() -> Any:
    """``malloc_trim`` of glibc; None where the C library is another one."""
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):
        return None


def trim() -> None:
    """Give pages of the heap that are free back to the system.

    Tensors of less than 32 MB come from the heap, which keeps the gaps that they leave: some hundred MB where
    vectors take 20 MB each.
    """
    if (trimmed := _trim()) is not None:
        trimmed(0)
