"""Sums over the copies of variables for :mod:`blocklp.methods.admm`, compiled for the CPU.

They do what the tensor operations do, in the same order and without liberties, so that both give the same
bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.compiled import kernel


@kernel()
def collect(begin: int, stop: int, used: int, places: Any, segments: Any, copies: Any, sums: Any) -> None:
    """Sum the copies of the first ``used`` variables, one segment of copies after the other.

    To scatter beats to gather: there are fewer variables than copies, so that their sums stay in the cache.

    Parameters
    ----------
    begin, stop : int
        Units to deal with; a unit is an instance.
    used : int
        Number of variables.
    places : array
        ``(batch or 1, copies)``: the variable of each copy.
    segments : array
        ``(k, 2)`` int64: first copy and one past the last of each segment, whose sums are added in turn.
    copies : array
        ``(batch, copies)``.
    sums : array
        ``(batch, variables)``, written.
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
