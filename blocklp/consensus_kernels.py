"""Sums over the copies of variables for :mod:`blocklp.methods.admm`, compiled for the CPU.

They do what the tensor operations do, in the same order and without liberties, so that both give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.compiled import kernel


@kernel()
def collect(begin: int, stop: int, used: int, places: Any, segments: Any, copies: Any, sums: Any) -> None:
    """Sum copies of the first ``used`` variables, those from ``segments[k, 0]`` to before ``segments[k, 1]`` for every k apart.

    An instance is a unit.
    To scatter beats to gather: there are fewer variables than copies, so that their sums stay in the cache.
    """
    own = np.empty(used, copies.dtype)
    for row in range(begin, stop):
        place, copy, total = places[row % len(places)], copies[row], sums[row]
        total[:used] = 0
        for s in range(len(segments)):
            own[:] = 0
            for k in range(segments[s, 0], segments[s, 1]):
                own[place[k]] += copy[k]
            for v in range(used):
                total[v] += own[v]
