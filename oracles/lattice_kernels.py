"""Splat, blur and slice on a CPU, compiled by numba on first use and cached: the loops of :mod:`blocklp.oracles.permutohedral`.

Every result is written by one thread in a fixed order, so runs repeat bit for bit whatever the number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import config, njit, prange, set_num_threads
from torch import Tensor

_lock = threading.Lock()


def run(kernel: Callable[..., None], *arguments: Tensor | float) -> None:
    """Call a kernel on tensors, with as many threads as torch uses."""
    arrays = [a.detach().numpy() if isinstance(a, Tensor) else a for a in arguments]
    with _lock:  # numba's threads serve one caller at a time
        set_num_threads(min(torch.get_num_threads(), config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
        kernel(*arrays)


@njit(parallel=True, cache=True, fastmath=True, nogil=True)
def splat(values: Any, weights: Any, order: Any, starts: Any, out: Any) -> None:
    """``out[m] = sum of weights * values`` over the entries of vertex m."""
    channels, corners, flat = values.shape[1], np.uint32(weights.shape[1]), weights.reshape(-1)
    for m in prange(out.shape[0]):
        for c in range(channels):
            out[m, c] = 0
        for e in range(starts[m], starts[m + 1]):
            point, weight = np.uint32(order[e]) // corners, flat[order[e]]
            for c in range(channels):
                out[m, c] += weight * values[point, c]


@njit(parallel=True, cache=True, fastmath=True, nogil=True)
def blur(values: Any, before: Any, after: Any, out: Any) -> None:
    """``out = values + half of both neighbours``."""
    size, channels = values.shape
    half = values.dtype.type(0.5)
    for m in prange(size):
        a, b = before[m], after[m]
        if a < size and b < size:
            for c in range(channels):
                out[m, c] = values[m, c] + half * (values[a, c] + values[b, c])
        elif a < size or b < size:
            other = min(a, b)
            for c in range(channels):
                out[m, c] = values[m, c] + half * values[other, c]
        else:
            for c in range(channels):
                out[m, c] = values[m, c]


@njit(parallel=True, cache=True, fastmath=True, nogil=True)
def slice_(values: Any, weights: Any, vertices: Any, out: Any) -> None:
    """``out[n] = sum of weights[n] * values[vertices[n]]``."""
    corners, channels = weights.shape[1], values.shape[1]
    for n in prange(out.shape[0]):
        weight, m = weights[n, 0], vertices[n, 0]
        for c in range(channels):
            out[n, c] = weight * values[m, c]
        for k in range(1, corners):
            weight, m = weights[n, k], vertices[n, k]
            for c in range(channels):
                out[n, c] += weight * values[m, c]


@njit(parallel=True, cache=True, fastmath=True, nogil=True)
def products(values: Any, others: Any, vertices: Any, out: Any) -> None:
    """``out[n, k] = <values[vertices[n, k]], others[n]>``."""
    for n in prange(out.shape[0]):
        for k in range(out.shape[1]):
            total = values.dtype.type(0)
            for c in range(values.shape[1]):
                total += values[vertices[n, k], c] * others[n, c]
            out[n, k] = total
