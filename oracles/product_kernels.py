"""Passes of ADMM over blocks of :mod:`blocklp.oracles.products`, compiled for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.compiled import TILE, kernel


@kernel(grain=32)
def edge_pass(
    begin: int,
    stop: int,
    places: Any,
    mean: Any,
    consensus: Any,
    rate: Any,
    eta: Any,
    start: int,
    blocks: int,
    duals: Any,
    points: Any,
) -> None:
    """Multipliers and proximal points of all edges: :meth:`Edge.prox` and the update before it, in the same operations.

    An edge reads its product's cost, two multipliers, two points, two places and four numbers there, and writes two multipliers and
    three points: 16 numbers, 64 bytes in single precision.
    """
    kind = points.dtype.type
    zero, one, half = kind(0), kind(1), kind(0.5)
    tiles = (blocks + TILE - 1) // TILE
    means, centres = np.empty((2, TILE), points.dtype), np.empty((2, TILE), points.dtype)
    for unit in range(begin, stop):
        row, first = unit // tiles, unit % tiles * TILE
        count = min(TILE, blocks - first)
        place, m, z = places[row % len(places)], mean[row], consensus[row]
        step, speed = eta[row], rate[row]
        for i in range(2):
            at = start + i * blocks + first
            where, near, centre = place[at : at + count], means[i], centres[i]
            for q in range(count):
                near[q] = m[where[q]]
                centre[q] = z[where[q]]
        a, b, c = start + first, start + blocks + first, start + 2 * blocks + first
        dual_a, dual_b, cost = duals[row, a : a + count], duals[row, b : b + count], duals[row, c : c + count]
        x_a, x_b, x_c = points[row, a : a + count], points[row, b : b + count], points[row, c : c + count]
        mean_a, mean_b, z_a, z_b = means[0], means[1], centres[0], centres[1]
        for q in range(count):
            l_a = (x_a[q] - mean_a[q]) * speed + dual_a[q]
            l_b = (x_b[q] - mean_b[q]) * speed + dual_b[q]
            dual_a[q] = l_a
            dual_b[q] = l_b
            u, v, p = z_a[q] - step * l_a, z_b[q] - step * l_b, step * cost[q]
            gain = min(p, zero)
            side = -one if p < zero else one
            kink = min(max((u + side * v + (-p if p < zero else -one)) * half, zero), abs(p))
            y_a = min(max(u - kink - gain, zero), one)
            y_b = min(max(v - side * kink, zero), one)
            x_a[q] = y_a
            x_b[q] = y_b
            x_c[q] = min(y_a, y_b) if p < zero else max(y_a + y_b - one, zero)
