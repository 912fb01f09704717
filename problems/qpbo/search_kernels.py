"""Depth-first search below nodes of a quadratic function of spins, compiled for the CPU.

A node fixes some spins to -1 or 1.  Its bound is the minimum of the convex underestimator over the box of the others, which
coordinate descent comes near to from the parent's point; whatever point it has reached, the gradient there proves a bound, and
the value there says when no better bound can be hoped for.  So few sweeps are made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.compiled import compile, kernel


@compile(nogil=True, error_model="numpy")
def _bound(h: Any, g: Any, constant: float, fixed: Any, x: Any, slope: Any, goal: float, sweeps: int) -> Any:
    """Descend from x; return the proved bound, and leave the gradient at the last point in ``slope``."""
    n = len(g)
    value = drop = 0.0
    for i in range(n):
        slope[i] = g[i]
    for j in range(n):
        if x[j] != 0.0:
            for i in range(n):
                slope[i] += 2.0 * h[j, i] * x[j]
    for sweep in range(sweeps):
        if sweep:
            for i in range(n):
                if fixed[i] == 0 and h[i, i] > 0.0:
                    to = min(max(x[i] - slope[i] / (2.0 * h[i, i]), -1.0), 1.0)
                    move = to - x[i]
                    if move != 0.0:
                        x[i] = to
                        for j in range(n):
                            slope[j] += 2.0 * h[i, j] * move
        value, drop = constant, 0.0
        for i in range(n):
            value += 0.5 * x[i] * (slope[i] + g[i])
            if fixed[i] == 0:
                drop += slope[i] * x[i] + abs(slope[i])
        if value - drop > goal or value < goal:
            break
    return value - drop


@kernel()
def explore(
    first: int,
    last: int,
    h: Any,
    g: Any,
    constant: Any,
    true_c: Any,
    true_constant: Any,
    sizes: Any,
    charge: Any,
    step: float,
    cutoff: float,
    sweeps: int,
    budget: int,
    fixed: Any,
    points: Any,
    bounds: Any,
    opened: Any,
    best: Any,
    best_value: Any,
    nodes: Any,
) -> None:
    """Search below some nodes by depth-first search, within a budget each; ``sweeps`` of descent at most for a bound.

    Parameters
    ----------
    h, g, constant : (nodes, n, n), (nodes, n), (nodes,)
        The underestimators, of ``sizes[k]`` spins each.
    true_c, true_constant : (nodes, n + 1, n + 1), (nodes,)
        The functions themselves.
    charge : (nodes,)
        Bound of the rounding errors of an evaluation.
    step : float
        Values of labellings are at least this far apart: a node is pruned unless it can hold a value ``cutoff - step``.
    fixed, points, bounds : (nodes, n + 2, n)
        Stacks: row 0 is the root; on return the first ``opened[k]`` rows are open nodes.  ``bounds`` is (nodes, n + 2).
    best, best_value : (nodes, n), (nodes,)
        Best spins met and their value, infinite if none is below the cutoff.
    nodes : (nodes,)
        How many were bounded.
    """
    for k in range(first, last):
        n = sizes[k]
        top = 1
        slope = np.empty(n)
        hk, gk = h[k, :n, :n], g[k, :n]
        count = 0
        incumbent = cutoff
        while top > 0 and count < budget:
            top -= 1
            goal = incumbent - step
            if bounds[k, top] > goal:
                continue
            count += 1
            mine, x = fixed[k, top, :n], points[k, top, :n]
            lower = _bound(hk, gk, constant[k], mine, x, slope, goal + charge[k], sweeps)
            lower -= charge[k]
            if lower > goal:
                continue
            free, chosen, score = 0, -1, -1.0
            for i in range(n):
                if mine[i] == 0:
                    # The bound is that of the better end of the box in each direction; the other end costs the whole width.
                    if lower + 2.0 * abs(slope[i]) > goal:
                        mine[i] = 1 if slope[i] < 0 else -1
                        x[i] = mine[i]
                        continue
                    free += 1
                    reach = (1.0 - abs(x[i])) * hk[i, i] ** 0.5
                    if reach > score:
                        chosen, score = i, reach
            if free == 0:
                exact = true_constant[k] + true_c[k, 0, 0]
                for i in range(n):
                    row = true_c[k, i + 1]
                    part = 2.0 * row[0]
                    for j in range(n):
                        part += row[j + 1] * mine[j]
                    exact += part * mine[i]
                if exact < best_value[k]:
                    best_value[k] = exact
                    best[k, :n] = mine
                    incumbent = min(incumbent, exact)
                continue
            near = 1 if x[chosen] >= 0 else -1
            # The row of this node becomes the farther child, the next one the nearer, which is popped first.
            fixed[k, top + 1, :n] = mine
            points[k, top + 1, :n] = x
            bounds[k, top] = bounds[k, top + 1] = max(lower, bounds[k, top])
            mine[chosen], x[chosen] = -near, -near
            fixed[k, top + 1, chosen], points[k, top + 1, chosen] = near, near
            top += 2
        opened[k] = top
        nodes[k] = count


@kernel()
def tabu(
    first: int,
    last: int,
    c: Any,
    spins: Any,
    rounds: int,
    tenure: int,
    seed: int,
    best: Any,
    best_value: Any,
) -> None:
    """One-flip tabu search from some starts (F. Glover, Z. Lu, J.-K. Hao, 4OR 8 (2010)).

    Parameters
    ----------
    c : (n + 1, n + 1)
        The function ``s' c s`` of spins, node 0 being 1.
    spins : (starts, n)
        Starts, overwritten.
    rounds, tenure, seed : int
        Flips of each start, for how long a spin then stays (and up to ten more), where random numbers begin.
    best, best_value : (starts, n), (starts,)
        The best spins and their values, less the trace of c.
    """
    n = c.shape[0] - 1
    for k in range(first, last):
        state = np.uint64(seed + 1) * np.uint64(2862933555777941757) + np.uint64(k + 1) * np.uint64(3037000493)
        field = np.empty(n)
        for i in range(n):
            field[i] = c[i + 1, 0]
            for j in range(n):
                if j != i:
                    field[i] += c[i + 1, j + 1] * spins[k, j]
        value = 0.0
        for i in range(n):
            value += spins[k, i] * (field[i] + c[i + 1, 0])
        best_value[k] = value
        best[k] = spins[k]
        until = np.zeros(n, dtype=np.int64)
        for t in range(rounds):
            chosen, least = -1, np.inf
            for i in range(n):
                # Flipping changes the value by -4 s_i field_i.
                change = -4.0 * spins[k, i] * field[i]
                if change < least and (until[i] <= t or value + change < best_value[k]):
                    chosen, least = i, change
            if chosen < 0:
                continue
            value += least
            spins[k, chosen] = -spins[k, chosen]
            for j in range(n):
                if j != chosen:
                    field[j] += 2.0 * c[j + 1, chosen + 1] * spins[k, chosen]
            state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            until[chosen] = t + tenure + np.int64((state >> np.uint64(33)) % np.uint64(10))
            if value < best_value[k]:
                best_value[k] = value
                best[k] = spins[k]
