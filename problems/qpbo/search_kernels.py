"""Depth-first search below nodes of a quadratic function of spins, compiled for the CPU.

A node fixes some spins to -1 or 1.  Its bound is the minimum of the convex underestimator over the box of the others, which
coordinate descent comes near to from the parent's point; whatever point it has reached, the gradient there proves a bound, and
the value there says when no better bound can be hoped for.  So few sweeps are made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import compile, kernel

SECONDS = 20.0
"""What it takes to compile all of these loops, on a busy machine."""


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
    under: tuple[Any, ...],
    true: tuple[Any, ...],
    sizes: Any,
    charge: Any,
    step: float,
    cutoff: float,
    sweeps: int,
    budget: int,
    stacks: tuple[Any, ...],
    found: tuple[Any, ...],
) -> None:
    """Search below some nodes by depth-first search.

    A call goes on where another has left off.

    Parameters
    ----------
    first, last : int
        Nodes to search below.
    under : (nodes, n, n), (nodes, n), (nodes,)
        The underestimators: quadratic and linear coefficients and constants, of ``sizes[k]`` spins each.
    true : (nodes, n + 1, n + 1), (nodes,)
        The functions themselves: coefficients and constants.
    sizes, charge : (nodes,)
        Numbers of spins, and bounds of the rounding errors of an evaluation.
    step, cutoff : float
        Values of labellings are at least a step apart: a node is pruned unless it can hold a value
        ``cutoff - step``.
    sweeps, budget : int
        Sweeps of descent for a bound, and nodes bounded below each, at most.
    stacks : (nodes, n + 2, n), (nodes, n + 2, n), (nodes, n + 2), (nodes, n + 2), (nodes,)
        Fixed spins, points, bounds, and parts of the whole (each child has half of its parent's), whose first ``opened[k]``
        rows are open nodes, and ``opened``: at first row 0, the root, is open.
    found : (nodes, n), (nodes,), (nodes,)
        Best spins met; their value, infinite if none is below the cutoff; and to what the number of nodes
        that were bounded is added.
    """
    h, g, constant = under
    true_c, true_constant = true
    fixed, points, bounds, parts, opened = stacks
    best, best_value, nodes = found
    for k in range(first, last):
        n = sizes[k]
        top = opened[k]
        slope = np.empty(n)
        hk, gk = h[k, :n, :n], g[k, :n]
        count = 0
        incumbent = min(cutoff, best_value[k])
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
            parts[k, top] = parts[k, top + 1] = 0.5 * parts[k, top]
            mine[chosen], x[chosen] = -near, -near
            fixed[k, top + 1, chosen], points[k, top + 1, chosen] = near, near
            top += 2
        opened[k] = top
        nodes[k] += count


@kernel()
def descend(
    begin: int,
    end: int,
    first: Any,
    degree: Any,
    neighbour: Any,
    coupling: Any,
    rank: Any,
    noise: Any,
    rounds: int,
    labels: Any,
    field: Any,
) -> None:
    """The rounds of :func:`blocklp.problems.qpbo.heuristics.one_flip_descent`, flip for flip those of its tensor operations.

    Parameters
    ----------
    first, degree, neighbour, coupling : (n,), (n,), (2 m,), (2 m,)
        Neighbour lists with the coefficients of the pairs.
    rank, noise : (n,)
        What orders equals, and what a gain has to exceed.
    rounds : int
        The most of them.
    labels, field : (lanes, n)
        Labels 0 and 1 and their fields, overwritten.
    """
    n = labels.shape[1]
    gain, winners = np.empty(n), np.empty(n, np.int64)
    for k in range(begin, end):
        for _ in range(rounds):
            for i in range(n):
                here = (2 * labels[k, i] - 1) * field[k, i]
                gain[i] = here if here > noise[i] else -np.inf
            count = 0
            for i in range(n):
                wins = gain[i] > -np.inf
                for entry in range(first[i], first[i] + degree[i] * wins):
                    j = neighbour[entry]
                    if gain[j] > gain[i] or (gain[j] == gain[i] and rank[j] > rank[i]):
                        wins = False
                        break
                if wins:
                    winners[count] = i
                    count += 1
            if count == 0:
                break
            for i in winners[:count]:
                change = 1 - 2 * labels[k, i]
                labels[k, i] += change
                for entry in range(first[i], first[i] + degree[i]):
                    field[k, neighbour[entry]] += change * coupling[entry]


@kernel()
def flips(
    begin: int,
    end: int,
    first: Any,
    degree: Any,
    neighbour: Any,
    coupling: Any,
    tenure: int,
    moves: int,
    side: Any,
    field: Any,
    found: Any,
) -> None:
    """The moves of :func:`blocklp.problems.qpbo.heuristics.tabu_search`, flip for flip those of its tensor operations.

    Parameters
    ----------
    first, degree, neighbour, coupling
        As in :func:`descend`.
    tenure, moves : int
        For how many moves a variable of the first lane stays, and how many there are.
    side, field : (lanes, n)
        Labels as -1 and 1 and their fields, overwritten.
    found : (lanes, n)
        The best labels met.
    """
    n = side.shape[1]
    for k in range(begin, end):
        until = np.zeros(n, dtype=np.int64)
        value = best = 0.0
        found[k] = side[k]
        for move in range(1, moves + 1):
            goal = value - best + 1e-9 * abs(value)
            chosen, most = 0, -np.inf
            for i in range(n):
                gain = side[k, i] * field[k, i]
                if gain > most and (until[i] < move or gain > goal):
                    chosen, most = i, gain
            value -= side[k, chosen] * field[k, chosen]
            change = -side[k, chosen]
            side[k, chosen] = change
            for e in range(first[chosen], first[chosen] + degree[chosen]):
                field[k, neighbour[e]] += change * coupling[e]
            until[chosen] = move + tenure + k % 10
            if value < best:
                best = value
                found[k] = side[k]


def rehearse() -> None:
    """Compile all loops, for the types of arrays that searches give them."""

    def ints(*shape: int) -> Any:
        return np.zeros(shape, dtype=np.int64)

    def floats(*shape: int) -> Any:
        return np.zeros(shape)

    spins = np.zeros((1, 3, 1), dtype=np.int8)
    under, true = (floats(1, 1, 1), floats(1, 1), floats(1)), (floats(1, 2, 2), floats(1))
    stacks = spins, floats(1, 3, 1), floats(1, 3), floats(1, 3), ints(1)
    found = spins[:, 0].copy(), floats(1), ints(1)
    explore(1, under, true, np.ones(1, dtype=np.int64), floats(1), 1.0, 0.0, 1, 1, stacks, found)
    lists = (ints(1), ints(1), ints(0), floats(0))
    descend(1, *lists, ints(1), floats(1), 1, floats(1, 1), floats(1, 1))
    flips(1, *lists, 1, 1, np.ones((1, 1)), floats(1, 1), floats(1, 1))
