r"""The dual simplex method from one basis that many LPs share, compiled for the CPU.

Variables are those of :math:`A x - s = 0`: first x, then the activities s of the rows, all with bounds.  The
tableau of the first basis is shared (:mod:`blocklp.kernels.basis_kernels`), and siblings of a search need few
pivots from there, so that a node costs little more than one look at its bounds.  Nodes with costs of their
own whose basis is feasible go by the primal method (:mod:`blocklp.kernels.primal_simplex_kernels`).

Rows leave by their squared violation over a reference weight (Forrest and Goldfarb 1992), which is exact in
the first basis and Devex's afterwards.  The ratio test passes breakpoints of variables with two bounds and
takes the largest pivot among those within a tolerance (Maros 2003; Harris 1973).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.basis_kernels import PIVOT, SATISFIED, add_column, combine, eliminate, exchange, fill_row
from blocklp.kernels.compiled import compile, kernel
from blocklp.kernels.dual_simplex_layout import (
    BASIC,
    EMPTY,
    ENDED,
    FAR,
    LOWER,
    OUTSIDE,
    PASSED,
    UNFINISHED,
    UPPER,
    ZERO,
)
from blocklp.kernels.price_kernels import certified, value_of
from blocklp.kernels.primal_simplex_kernels import improved
from blocklp.kernels.row_kernels import EXACT


@compile(nogil=True)
def _copy(given: Any, own: Any, first: int) -> None:
    """Write an array into another from a place on; a slice takes several times as long to compile."""
    for i in range(len(given)):
        own[first + i] = given[i]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _leaving(basic: Any, x: Any, low: Any, high: Any, weight: Any, late: int) -> int:
    """The row of the largest squared violation over its weight; -1 if none is violated."""
    best, row = 0.0, -1
    for p in range(len(basic)):
        k = basic[p]
        off = max(low[k] - x[k], x[k] - high[k])
        if off > SATISFIED and off > SATISFIED * abs(x[k]):
            score = off * off / weight[p]
            if late:  # degenerate pivots may cycle: prefer other rows every time
                score *= 1 + (k * 7919 + late * 104729) % 61
            if score > best:
                best, row = score, p
    return row


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _entering(sign: float, need: float, many: int, vectors: Any, low: Any, high: Any, room: Any) -> Any:
    """The variable where breakpoints add up to ``need`` or -1, the rise of the value, and how many passed.

    Those that are passed, and change sides, are the first of the candidates in ``room`` afterwards.
    """
    (reduced, alpha, at), (touched, own, able) = vectors, room
    count = 0
    for t in range(many):
        k = touched[t]
        slope = sign * alpha[k] * (1 - at[k])  # LOWER, BASIC and UPPER are 0, 1 and 2
        if slope > PIVOT and low[k] < high[k]:
            able[count], own[0, count], own[1, count] = k, slope, abs(reduced[k])
            count += 1
    passed, value, last = 0, 0.0, 0.0
    while passed < count:
        least = np.inf
        for t in range(passed, count):
            least = min(least, (own[1, t] + ZERO) / own[0, t])
        total, group, chosen, best = 0.0, passed, -1, 0.0
        for t in range(passed, count):
            k, slope, size = able[t], own[0, t], own[1, t]
            if size / slope <= least:  # true of the least one, whatever is rounded
                total += slope * (high[k] - low[k])
                able[t], own[0, t], own[1, t] = able[group], own[0, group], own[1, group]
                able[group], own[0, group], own[1, group] = k, slope, size
                if slope > best:
                    best, chosen = slope, group
                group += 1
        if chosen < 0:  # reduced costs are not finite
            break
        ratio = max(own[1, chosen] / own[0, chosen], last)
        value += (ratio - last) * need
        last = ratio
        if total >= need:
            return able[chosen], value, passed
        need -= total
        passed = group
    return -1, value, 0


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _pivoted(node: Any, root: Any, goal: float, vectors: Any, basis: Any, etas: Any, room: Any) -> int:
    """Pivot to the last basis, or until the value passes a goal: what was reached.

    Where there is no point, ``alpha`` has the row that proves it, and ``room`` its sign.
    """
    (x, low, high), (_, alpha, at), (basic, weight, counts) = node, vectors, basis
    touched, seen, w, value, own, able = room
    while True:
        row = _leaving(basic, x, low, high, weight, counts[0] if counts[0] > len(basic) else 0)
        if row < 0:
            return ENDED
        if value[0] >= goal:
            return PASSED
        if counts[0] >= counts[2]:
            return UNFINISHED
        leaves = basic[row]
        below = x[leaves] < low[leaves]
        side, sign = (low[leaves], -1.0) if below else (high[leaves], 1.0)
        many = fill_row(w, seen, combine(row, w, seen, etas, counts[0]), root, alpha, touched)
        need = abs(x[leaves] - side)
        k, rise, passed = _entering(sign, need, many, vectors, low, high, (touched, own, able))
        if k < 0:
            value[1], value[2], counts[1] = sign, need, many
            return EMPTY
        value[0] += rise
        if passed:
            for t in range(passed):
                j = able[t]
                other = UPPER if at[j] == LOWER else LOWER
                end = high[j] if other == UPPER else low[j]
                add_column(j, end - x[j], root, w)
                x[j], at[j] = end, other
            eliminate(w, etas, counts[0])
            for p in range(len(w)):
                x[basic[p]] -= w[p]
                w[p] = 0
        add_column(k, 1.0, root, w)
        eliminate(w, etas, counts[0])
        exact = abs(w[row] - alpha[k]) <= PIVOT * (1 + abs(w[row])) and abs(w[row]) > 0.5 * PIVOT
        if exact:
            step = (x[leaves] - side) / w[row]
            for p in range(len(w)):
                if w[p] != 0:
                    x[basic[p]] -= step * w[p]
            x[k] += step
            x[leaves], at[leaves] = side, LOWER if below else UPPER
            if low[leaves] == high[leaves]:
                at[leaves] = LOWER
            exchange(k, row, vectors, touched, many, basis, w, etas)
        for t in range(many):
            alpha[touched[t]] = 0
        w[:] = 0
        if not exact:
            return UNFINISHED


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _replayed(given: Any, root: Any, vectors: Any, basis: Any, etas: Any, room: Any, column: Any) -> bool:
    """Exchange variables until the basis is a given one ``(variables,)``; False where that is singular."""
    (_, alpha, at), (basic, _, counts) = vectors, basis
    touched, seen, w, _, _, _ = room
    for k in range(len(given)):
        if given[k] != BASIC or at[k] == BASIC:
            continue
        add_column(k, 1.0, root, w)
        eliminate(w, etas, counts[0])
        best, row = PIVOT, -1
        for p in range(len(basic)):
            if given[basic[p]] != BASIC and abs(w[p]) > best:
                best, row = abs(w[p]), p
            column[p], w[p] = w[p], 0
        if row < 0:
            return False
        many = fill_row(w, seen, combine(row, w, seen, etas, counts[0]), root, alpha, touched)
        at[basic[row]] = LOWER
        exchange(k, row, vectors, touched, many, basis, column, etas)
        for t in range(many):
            alpha[touched[t]] = 0
    return True


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _placed(
    node: Any, given: Any, which: Any, root: Any, vectors: Any, basis: Any, etas: Any, room: Any, free: bool
) -> None:
    """Values of all variables in a basis: nonbasic ones at the bounds that they are given.

    Where they are ``free`` they move to those that reduced costs ask for.  Where the basis and the costs are
    the first ones, ``which`` are the variables with other bounds; else all.
    """
    (x, low, high), (reduced, _, at), (basic, _, counts) = node, vectors, basis
    (head, place, _, _, before), w, value = root[0], room[2], room[3]
    known = 1.0 if len(which) < len(x) else 0.0  # part of the value before that is in value[0]
    _copy(before, x, 0)
    for p in range(len(w)):
        w[p] = -before[head[p]]
    for t in range(len(which)):
        k = which[t]
        if at[k] == BASIC:
            end = 0.0
        else:
            up = given[k] == UPPER
            if (free and reduced[k] > ZERO) or (up and high[k] == np.inf):
                up = False
            elif (free and reduced[k] < -ZERO) or (not up and low[k] == -np.inf):
                up = True
            end = high[k] if up else low[k]
            if abs(end) == np.inf and free:  # the other end asks for nothing, or is the one that is missing
                end = FAR if up else -FAR
                if abs(reduced[k]) <= ZERO and low[k] == -np.inf and high[k] == np.inf:
                    end = 0.0
            x[k], at[k] = end, UPPER if up else LOWER
            value[0] += reduced[k] * (end - known * before[k])
        change = end if place[k] >= 0 else end - before[k]
        if change != 0:
            add_column(k, change, root, w)
    eliminate(w, etas, counts[0])
    for p in range(len(w)):
        x[basic[p]], w[p] = -w[p], 0


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _read(lower: Any, upper: Any, units: Any, base: Any, low: Any, high: Any, changed: Any) -> int:
    """Scaled bounds of a node, where they are not those of the LP: the number of such variables.

    Minus one where a bound is NaN or outside those of the LP.
    """
    (column, _, first, last), (least, most) = units, base
    count = 0
    for j in range(len(column)):
        if lower[j] != first[j] or upper[j] != last[j]:
            if not (lower[j] >= first[j] and upper[j] <= last[j]):
                return -1
            a, c = lower[j] / column[j], upper[j] / column[j]
            low[j], high[j] = max(min(a, c), least[j]), min(max(a, c), most[j])
            if lower[j] > upper[j]:
                low[j], high[j] = np.inf, -np.inf
            changed[count], count = j, count + 1
    return count


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _costs_changed(cost: Any, before: Any, root: Any, reduced: Any) -> None:
    """Reduced costs in the first basis after a change of costs ``(variables,)``."""
    (head, _, _, _, _), (start, column, entry), _ = root
    for k in range(len(cost)):
        reduced[k] += cost[k] - before[k]
    for p in range(len(head)):
        change = cost[head[p]] - before[head[p]] if head[p] < len(cost) else 0.0
        if change != 0:
            reduced[head[p]] = 0.0
            for e in range(start[p], start[p + 1]):
                reduced[column[e]] -= change * entry[e]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _ray(t: float, vectors: Any, room: Any, counts: Any, price: Any, n: int) -> None:
    """Prices of the present basis and t times the row that proves that there is no point."""
    reduced, alpha, _ = vectors
    touched, sign = room[0], room[3][1]
    for i in range(len(price)):
        price[i] = reduced[n + i] if t != np.inf else 0.0
    step = 1.0 if t == np.inf else t
    for s in range(counts[1]):
        k = touched[s]
        if k >= n:
            price[k - n] -= sign * step * alpha[k]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _bounded(
    node: Any,
    root: Any,
    goal: float,
    vectors: Any,
    basis: Any,
    etas: Any,
    room: Any,
    judge: Any,
    feasible: bool,
) -> Any:
    """Pivot until the optimum, the goal or the limit, and say how it ended and what is proved.

    From a ``feasible`` basis by the primal simplex method, else by the dual one.
    """
    (_, low, high), (reduced, alpha, _), (_, _, counts) = node, vectors, basis
    (cost, judged, scratch, price), value, target = judge, room[3], goal
    y, ray = price[0], price[1]
    n = len(cost)
    while True:
        if feasible:
            ended = improved(node, root, vectors, basis, etas, room)
        else:
            ended = _pivoted(node, root, target, vectors, basis, etas, room)
        for i in range(len(y)):
            y[i] = reduced[n + i]
        bound = certified(cost, 1.0, y, low, high, judged, scratch)
        if ended != PASSED or bound >= goal:
            break
        if target == np.inf:  # numbers have overflowed
            ended = UNFINISHED
            break
        # What is proved is less than the value by rounding, as a rule: a little further, then to the end.
        target = value[0] + 1e-6 * (1 + abs(value[0])) if target == goal else np.inf
    if ended == EMPTY:
        _ray(np.inf, vectors, room, counts, ray, n)
        if certified(cost, 0.0, ray, low, high, judged, scratch) > 0:
            bound = np.inf
        else:
            gap = max(goal - value[0], 0.0) if goal < np.inf else 1e3 * (1 + abs(value[0]))
            _ray(2 * gap / value[2] + 1e-6, vectors, room, counts, ray, n)
            stretched = certified(cost, 1.0, ray, low, high, judged, scratch)
            if stretched > bound:
                bound = stretched
                _copy(ray, y, 0)
            ended = PASSED if bound >= goal else UNFINISHED
        for t in range(counts[1]):
            alpha[room[0][t]] = 0
    return ended, bound


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _write(b: int, wanted: bool, price: Any, x: Any, at: Any, units: Any, found: Any) -> None:
    """Write prices of a node, and where it is ``wanted`` its point and basis, in the units of the LP."""
    (column, row, _, _), (points, prices, ends) = units, found[4:]
    n = len(column)
    for i in range(len(row)):
        prices[b, i] = price[i] * row[i]
    if wanted:
        for j in range(n):
            points[b, j] = x[j] * column[j]
            ends[b, j] = at[j] if column[j] > 0 else UPPER - at[j]
        for i in range(len(row)):
            ends[b, n + i] = at[n + i]


@kernel(fastmath=EXACT)
def bounds(
    begin: int, stop: int, program: Any, root: Any, first: Any, nodes: Any, most: int, found: Any
) -> None:
    """Bound nodes, a node a unit.

    Parameters
    ----------
    begin, stop : int
        The first node, and one past the last.
    program : tuple
        Cost ``(variables,)``; bounds of variables and of rows, two each; the matrix by columns (starts, rows,
        entries); what :func:`certified` reads; factors ``(variables,)`` and ``(rows,)``, and the bounds
        before scaling.
    root : tuple
        The first basis: variable of each row, row of each variable or -1, weights of rows, reduced costs and
        values; the tableau by rows and by columns (starts, indices, entries).
    first : ndarray
        ``(variables + rows,)`` int8: where the variables are in the first basis.
    nodes : tuple
        What :class:`blocklp.kernels.dual_simplex_layout.NodeArrays` holds.
    most : int
        Most pivots of a node.
    found : tuple
        What :class:`blocklp.kernels.dual_simplex_layout.NodeAnswers` holds: written.
    """
    cost, base, sides, columns, judged, units = program
    head, _, weights, start_reduced, start_x = root[0]
    m, n = len(head), len(cost)
    lower, upper, costs, goals, bases = nodes
    bound, primal, status, pivots = found[:4]
    x, low, high = np.empty(n + m), np.empty(n + m), np.empty(n + m)
    reduced, alpha, at = np.empty(n + m), np.zeros(n + m), np.empty(n + m, np.int8)
    basic, weight, counts = np.empty(m, np.int64), np.empty(m), np.zeros(3, np.int64)
    touched, seen, changed = np.empty(n + m, np.int64), np.empty(m, np.int64), np.arange(n + m)
    w, value, price, scratch = np.zeros(m), np.zeros(3), np.empty((2, m)), np.empty((2, n))
    room_for = most + (m if len(bases) else 0)  # pivots, and exchanges to a basis that is given
    etas = (
        np.zeros(room_for + 1, np.int64),
        np.empty(room_for, np.int64),
        np.empty(room_for),
        np.empty(room_for * m, np.int32),
        np.empty(room_for * m),
    )
    node, vectors, basis = (x, low, high), (reduced, alpha, at), (basic, weight, counts)
    room = touched, seen, w, value, np.empty((2, n + m)), np.empty(n + m, np.int64)
    activity = np.empty((2, m))
    _copy(base[0], low, 0)
    _copy(sides[0], low, n)
    _copy(base[1], high, 0)
    _copy(sides[1], high, n)
    start_value, everything = 0.0, np.arange(n + m)
    for k in range(n + m):
        start_value += start_reduced[k] * start_x[k]
    for b in range(begin, stop):
        own = costs[b] if len(costs) else cost
        count = _read(lower[b % len(lower)], upper[b % len(upper)], units, base, low, high, changed)
        crossed = False
        for t in range(count):
            crossed |= low[changed[t]] > high[changed[t]]
        if count < 0 or crossed:
            bound[b], status[b] = np.inf, OUTSIDE if count < 0 else EMPTY
        else:
            for attempt in range(2):  # the second from the first basis, where the one given is singular
                _copy(start_reduced, reduced, 0)
                _copy(weights, weight, 0)
                _copy(head, basic, 0)
                _copy(first, at, 0)
                counts[0], counts[1] = 0, 0
                if len(costs):
                    _costs_changed(own, cost, root, reduced)
                given = bases[b % len(bases)] if len(bases) and not attempt else first
                if not len(bases) or _replayed(given, root, vectors, basis, etas, room, price[0]):
                    break
            anew = len(costs) or len(bases)
            counts[2], value[0] = counts[0] + most, 0.0 if anew else start_value
            replays, which = counts[0], everything if anew else changed[:count]
            # A basis stays feasible where costs alone are other ones.
            feasible = len(costs) > 0
            if feasible:
                _placed(node, given, which, root, vectors, basis, etas, room, False)
                feasible = _leaving(basic, x, low, high, weight, 0) < 0
                for k in range(n + m):
                    feasible = feasible and abs(x[k]) < np.inf
            if not feasible:
                _placed(node, given, which, root, vectors, basis, etas, room, True)
            judge = own, judged, scratch, price
            status[b], bound[b] = _bounded(node, root, goals[b], vectors, basis, etas, room, judge, feasible)
            pivots[b] = counts[0] - replays
            if status[b] == ENDED:
                primal[b] = value_of(own, x, low, high, columns, activity)
            _write(b, bound[b] < goals[b], price[0], x, at, units, found)
        for t in range(count if count >= 0 else n):
            j = changed[t] if count >= 0 else t
            low[j], high[j] = base[0][j], base[1][j]
