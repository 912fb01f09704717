"""Least costs of integer knapsacks by tables, block by block; :mod:`knapsack_kernels` compiles them."""

from __future__ import annotations

from typing import Any

import numpy as np

MARGIN = 1e-15
"""Rounding error of values, over the number of variables and the magnitudes that they sum."""


def fill(
    first: int,
    last: int,
    gain: Any,
    load: Any,
    most: Any,
    order: Any,
    sides: Any,
    moved: Any,
    feasible: Any,
) -> None:
    r"""Minimise :math:`\langle g, z \rangle` over integers :math:`0 \le z \le m` within a load.

    Of blocks without a least load only those variables get a table of which the linear relaxation leaves open
    how often they move: with its multiplier t, each unit off the side that :math:`r_i = g_i + t l_i` wants
    costs :math:`|r_i|` at least, and what there is to gain on a greedy choice is known (Dembo and Hammer
    1980).

    Parameters
    ----------
    first, last : int
        The blocks, from ``first`` to before ``last``.
    gain : ndarray
        ``(blocks, dim)`` float64: g.
    load, most : ndarray
        ``(blocks, dim)`` int64, not negative: l, and m.  Of blocks without a least load, variables that load
        nothing or gain nothing have m = 0.
    order : ndarray
        ``(blocks, dim)`` int64: variables by rising gain over load.
    sides : tuple of ndarray
        ``(blocks,)`` int64 each, not negative: least and largest load.
    moved : ndarray
        ``(blocks, dim)`` int64: written over by z.
    feasible : ndarray
        ``(blocks,)`` bool: written over by whether there is such a z.
    """
    dim = gain.shape[1]
    base, free = np.empty(dim, np.int64), np.empty(dim, np.int64)
    for b in range(first, last):
        g, l, m, z = gain[b], load[b], most[b], moved[b]  # noqa: E741
        need, room = sides[0][b], sides[1][b]
        left, price, size, best = room, 0.0, 0.0, 0.0
        base[:], free[:], z[:] = 0, m, 0
        feasible[b] = need <= room
        if not feasible[b]:
            continue
        if need == 0:
            # Greedy: the first variable that does not fit gives the price of the load; others may fit.
            split, value = False, 0.0
            for i in order[b]:
                if m[i] > 0:
                    size += abs(g[i]) * m[i]
                    units = min(m[i], left // l[i])
                    z[i], left = units, left - units * l[i]
                    best += g[i] * units
                    if units < m[i] and not split:
                        split, price = True, -g[i] / l[i]
            for i in range(dim):
                value += min(0.0, g[i] + price * l[i]) * m[i]
            margin = MARGIN * (dim + 8) * (size + price * room)
            slack, left = best - (value - price * room) + margin, room
            if not split or slack <= 2 * margin:  # the greedy choice is as good as the relaxation
                continue
            for i in range(dim):
                reduced = g[i] + price * l[i]
                if abs(reduced) * m[i] > slack:
                    free[i] = min(m[i], int(slack / abs(reduced)))
                if reduced < 0:
                    base[i] = m[i] - free[i]
                left -= base[i] * l[i]
        # Each variable as parts of 1, 2, 4, ... units and the rest.
        count = 0
        for i in range(dim):
            free[i] = min(free[i], left // max(1, l[i]))
            rest, unit = free[i], 1
            while rest > 0:
                count, rest, unit = count + 1, rest - min(unit, rest), 2 * unit
        variable, units = np.empty(count, np.int64), np.empty(count, np.int64)
        count = 0
        for i in range(dim):
            rest, unit = free[i], 1
            while rest > 0:
                variable[count], units[count] = i, min(unit, rest)
                count, rest, unit = count + 1, rest - min(unit, rest), 2 * unit
        least, taken = np.zeros(left + 1), np.zeros((count, left + 1), np.bool_)
        if need > 0:
            least[1:] = np.inf
        for k in range(count):
            i = variable[k]
            weight, own = units[k] * l[i], g[i] * units[k]
            for s in range(left, weight - 1, -1):
                value = least[s - weight] + own
                if value < least[s]:
                    least[s], taken[k, s] = value, True
        at = left
        for s in range(left, need - 1, -1):
            if least[s] < least[at]:
                at = s
        feasible[b] = least[at] < np.inf
        z[:] = base
        for k in range(count - 1, -1, -1):
            if taken[k, at]:
                z[variable[k]] += units[k]
                at -= units[k] * l[variable[k]]


def fix_each(
    first: int,
    last: int,
    gain: Any,
    load: Any,
    most: Any,
    sides: Any,
    found: Any,
) -> None:
    """Least costs with each variable at 0 and at 1: by a table from each end of the variables.

    Parameters
    ----------
    first, last : int
        The blocks, from ``first`` to before ``last``.
    gain : ndarray
        ``(blocks, dim)`` float64: cost of a move of each variable.
    load, most : ndarray
        ``(blocks, dim)`` int64, not negative: what a move loads, and how many moves there are.
    sides : tuple of ndarray
        ``(blocks,)`` int64 each, not negative: least and largest load.
    found : ndarray
        ``(blocks, dim, 2)`` float64: written over by the least costs, infinite where there is no point.
    """
    dim = gain.shape[1]
    for b in range(first, last):
        g, l, m = gain[b], load[b], most[b]  # noqa: E741
        need, room = sides[0][b], sides[1][b]
        found[b] = np.inf
        if need > room:
            continue
        # after[k, s]: the best of the variables from k on, where those before load s.
        after = np.full((dim + 1, room + 1), np.inf)
        after[dim, need:] = 0.0
        for k in range(dim - 1, -1, -1):
            for s in range(room + 1):
                for units in range(m[k] + 1):
                    to = s + units * l[k]
                    if to > room:
                        break
                    after[k, s] = min(after[k, s], after[k + 1, to] + units * g[k])
        before, ahead = np.full(room + 1, np.inf), np.empty(room + 1)
        before[0] = 0.0
        for k in range(dim):
            for units in range(min(m[k], 1) + 1):
                for s in range(room + 1 - units * l[k]):
                    value = before[s] + units * g[k] + after[k + 1, s + units * l[k]]
                    found[b, k, units] = min(found[b, k, units], value)
            ahead[:] = np.inf
            for s in range(room + 1):
                for units in range(m[k] + 1):
                    to = s + units * l[k]
                    if to > room:
                        break
                    ahead[to] = min(ahead[to], before[s] + units * g[k])
            before[:] = ahead
