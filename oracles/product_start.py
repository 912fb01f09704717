"""The start of ADMM over blocks of :mod:`blocklp.oracles.boolean_quadric`, compiled for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import kernel


@kernel()
def edge_answers(
    begin: int,
    stop: int,
    places: Any,
    start: int,
    blocks: int,
    filled: Any,
    used: int,
    cost: Any,
    counts: Any,
    duals: Any,
    points: Any,
    mean: Any,
    value: Any,
    apart: Any,
    size: Any,
) -> None:
    """The oracle's answers, an instance a unit, and what :meth:`blocklp.methods.Admm.start` makes of them up to the weight.

    Multipliers of products become their costs; points, means of ends, values, and the squares that the weight depends on, are found.
    """
    zero = points.dtype.type(0)
    for row in range(begin, stop):
        place, number, c, m = places[row % len(places)], counts[row % len(counts)], cost[row], mean[row]
        dual, point, own, total = duals[row], points[row], filled[row % len(filled)], 0.0
        for first in (start, start + blocks):
            for k in range(first, first + own):
                m[place[k]] = 0
        for a in range(start, start + own):
            b, product = a + blocks, a + 2 * blocks
            dual[product] = c[place[product]]
            best = min(min(dual[a], dual[b]), dual[a] + dual[b] + dual[product], zero)
            if best < 0:
                point[a] = dual[a] == best or dual[b] != best
                point[b] = dual[a] != best
                point[product] = point[a] * point[b]
            m[place[a]] += point[a]
            m[place[b]] += point[b]
            total += np.float64(best)
        value[row] += points.dtype.type(total)
        for v in range(used):
            m[v] /= number[v]
        for first in (start, start + blocks):
            for k in range(first, first + own):
                v = place[k]
                if number[v] > 1:
                    away, long = np.float64(point[k] - m[v]), np.float64(dual[k])
                    apart[row], size[row] = apart[row] + away * away, size[row] + long * long


@kernel()
def edge_start(
    begin: int,
    stop: int,
    places: Any,
    start: int,
    blocks: int,
    filled: Any,
    eta: Any,
    mean: Any,
    rate: float,
    duals: Any,
    points: Any,
    governing: Any,
) -> None:
    """The first t, an instance a unit."""
    speed = points.dtype.type(rate)
    for row in range(begin, stop):
        place, weight, m = places[row % len(places)], eta[row], mean[row]
        dual, point, t, own = duals[row], points[row], governing[row], filled[row % len(filled)]
        for first in (start, start + blocks):
            for k in range(first, first + own):
                v = place[k]
                t[k] = m[v] - weight * dual[k] - (point[k] - m[v]) * speed
