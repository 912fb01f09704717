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

TILE = 32
"""Levels that the ordered filter blurs at a time."""


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


@njit(parallel=True, cache=True, fastmath=True, nogil=True)
def ordered(levels: Any, values: Any, counts: Any, weights: Any, vertices: Any, neighbours: Any, scale: float, out: Any) -> None:
    """The signed ordered filter: a label a thread, and few levels at a time, so that the buffers stay in the cache."""
    points, labels = levels.shape
    axes, _, size = neighbours.shape
    half = values.dtype.type(0.5)
    for label in prange(labels):
        height = counts[label]
        if height < 2:  # all points are level
            for n in range(points):
                out[n, label] = 0
            continue
        total = np.zeros((size, height), values.dtype)
        for n in range(points):
            for k in range(axes):
                total[vertices[n, k], levels[n, label]] += weights[n, k] * values[n, label]
        width = min(height, TILE)
        shape = (size, width)
        one, two, start = np.empty(shape, values.dtype), np.empty(shape, values.dtype), np.empty(shape, values.dtype)
        for first in range(0, height, width):
            count = min(width, height - first)
            for m in range(size):
                for q in range(count):
                    start[m, q] = total[m, first + q]
                    total[m, first + q] = 0
            for way in range(2):
                source, target = start, one
                for step in range(axes):
                    axis = step if way == 0 else axes - 1 - step
                    for m in range(size):
                        a, b = neighbours[axis, 0, m], neighbours[axis, 1, m]
                        if a < size and b < size:
                            for q in range(count):
                                target[m, q] = source[m, q] + half * (source[a, q] + source[b, q])
                        elif a < size or b < size:
                            c = min(a, b)
                            for q in range(count):
                                target[m, q] = source[m, q] + half * source[c, q]
                        else:
                            for q in range(count):
                                target[m, q] = source[m, q]
                    source, target = target, (two if target is one else one)
                for m in range(size):
                    for q in range(count):
                        total[m, first + q] += source[m, q]
        factor = values.dtype.type(0.5 * scale)
        for m in range(size):
            everything = values.dtype.type(0)
            for q in range(height):
                everything += total[m, q]
            below = -everything
            for q in range(height):
                own = total[m, q]
                total[m, q] = factor * (below + own)
                below += 2 * own
        for n in range(points):
            value = values.dtype.type(0)
            for k in range(axes):
                value += weights[n, k] * total[vertices[n, k], levels[n, label]]
            out[n, label] = value
