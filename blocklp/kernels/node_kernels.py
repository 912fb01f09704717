"""Sequential averaging of min-marginals for nodes of one model, a node after the other, compiled for the CPU.

A sweep goes through the shared variables, forwards or backwards.  Each takes all of its min-marginals out of
its blocks and gives their sum to the blocks that it shares with variables to come, so that what one variable
learns goes on to the next (Kolmogorov, Convergent tree-reweighted message passing, PAMI 2006; for blocks of
any kind: A new look at reweighted message passing, PAMI 2015).  No step lowers the bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import compile, kernel
from blocklp.kernels.node_layout import AT_MOST_ONE, EDGE, ENOUGH, INTERVAL, ONE, TABLE
from blocklp.status import Status

UNIT = 4 * float(np.finfo(np.float64).eps)
ENDS = (Status.CUTOFF, Status.INFEASIBLE, Status.STALLED, Status.PASS_LIMIT)
CUTOFF, INFEASIBLE, STALLED, LIMIT = map(int, ENDS)


@compile(error_model="numpy")
def _values(group: Any, index: Any, lower: Any, upper: Any, table: Any, w: Any) -> float:
    """The sum of the least values of a group's blocks."""
    kind, start, blocks, dim, first, rows = group[0], group[1], group[2], group[3], group[4], group[5]
    total = 0.0
    if kind == EDGE:
        y, z = w[start : start + blocks], w[start + blocks : start + 2 * blocks]
        p = w[start + 2 * blocks : start + 3 * blocks]
        for b in range(blocks):
            total += min(min(0.0, y[b]), min(z[b], y[b] + z[b] + p[b]))
    elif kind == INTERVAL:
        for k in range(start, start + blocks):
            total += min(w[k] * lower[index[k]], w[k] * upper[index[k]])
    elif kind == TABLE:
        for b in range(start, start + blocks):
            best = np.inf
            for r in range(rows):
                best = min(best, _vertex(b, blocks, dim, table, first + r * dim, w))
            total += best
    else:
        for b in range(start, start + blocks):
            best = 0.0 if kind == AT_MOST_ONE else np.inf
            for i in range(dim):
                best = min(best, w[b + i * blocks])
            total += best
    return total


@compile(error_model="numpy")
def _vertex(base: int, stride: int, dim: int, table: Any, first: int, w: Any) -> Any:
    """The cost of a vertex."""
    total = 0.0
    for i in range(dim):
        total += table[first + i] * w[base + i * stride]
    return total


@compile(error_model="numpy")
def _marginal(group: Any, base: int, k: int, table: Any, w: Any) -> Any:
    """The best value with 1 at copy k less that with 0, of a block that begins at a copy."""
    kind, stride, dim, first, rows = group[0], group[2], group[3], group[4], group[5]
    if kind == INTERVAL:
        return w[k]
    if kind != TABLE and kind != EDGE:
        best = 0.0 if kind == AT_MOST_ONE else np.inf
        for i in range(base, base + dim * stride, stride):
            if i != k:
                best = min(best, w[i])
        return w[k] - best
    at, one, zero = (k - base) // stride, np.inf, np.inf
    for r in range(rows):
        value = _vertex(base, stride, dim, table, first + r * dim, w)
        if table[first + r * dim + at] == 1:
            one = min(one, value)
        else:
            zero = min(zero, value)
    return one - zero


@compile(error_model="numpy")
def _agree(group: Any, base: int, index: Any, table: Any, fix: Any, queue: Any, count: int) -> int:
    """Fix what all vertices with a block's fixings share; the queue's new length, -1 if none has them."""
    kind, stride, dim, first, rows = group[0], group[2], group[3], group[4], group[5]
    if kind == INTERVAL:
        return count
    ones, zeros, always, ever, some = 0, 0, -1, 0, False
    if kind == EDGE or kind == TABLE:
        for r in range(rows):
            bits, good = 0, True
            for i in range(dim):
                value, wanted = table[first + r * dim + i], fix[index[base + i * stride]]
                good &= wanted < 0 or value == wanted
                bits |= int(value) << i
            if good:
                always, ever, some = always & bits, ever | bits, True
    else:
        for i in range(dim):
            ones += fix[index[base + i * stride]] == 1
            zeros += fix[index[base + i * stride]] == 0
        some = ones <= 1 and (kind == AT_MOST_ONE or zeros < dim)
    if not some:
        return -1
    for i in range(dim):
        v = index[base + i * stride]
        if fix[v] < 0:
            if kind == EDGE or kind == TABLE:
                value = 1 if always >> i & 1 else (-1 if ever >> i & 1 else 0)
            else:
                value = 0 if ones else (1 if kind == ONE and zeros == dim - 1 else -1)
            if value >= 0:
                fix[v], queue[count], count = value, v, count + 1
    return count


@compile(error_model="numpy")
def _imply(
    fixings: Any,
    asked: Any,
    first: Any,
    base: Any,
    member: Any,
    index: Any,
    groups: Any,
    table: Any,
    fix: Any,
    queue: Any,
) -> int:
    """Queue a node's fixings and all that they imply by single blocks; how many, -1 if they contradict."""
    fix[:], count, at = -1, 0, 0
    for n in range(len(asked)):
        if fixings[n] >= 0:
            fix[asked[n]], queue[count], count = fixings[n], asked[n], count + 1
    while at < count:
        for e in range(first[queue[at]], first[queue[at] + 1]):
            count = _agree(groups[member[e]], base[e], index, table, fix, queue, count)
            if count < 0:
                return -1
        at += 1
    return count


@compile(nogil=True, error_model="numpy")
def _begin(
    fix: Any,
    fixed: Any,
    given: Any,
    cost: Any,
    first: Any,
    own: Any,
    base: Any,
    member: Any,
    order: Any,
    alone: Any,
    groups: Any,
    w: Any,
    kept: Any,
) -> float:
    """Write a node's multipliers ``w``, and ``kept`` without its fixings; its constant beside the offset."""
    constant = 0.0
    kept[:] = alone
    for v in order:
        total = 0.0
        for e in range(first[v], first[v + 1]):
            total += given[own[e]]
        share = (cost[v] - total) / (first[v + 1] - first[v])
        for e in range(first[v], first[v + 1]):
            kept[own[e]] = given[own[e]] + share
    w[:] = kept
    for v in fixed:
        constant += cost[v] if fix[v] == 1 else 0.0
        for e in range(first[v], first[v + 1]):
            stride, dim, size = groups[member[e], 2], groups[member[e], 3], 0.0
            for i in range(dim):
                size += abs(kept[base[e] + i * stride])
            w[own[e]] = ENOUGH * size if fix[v] == 0 else -ENOUGH * size
            constant += ENOUGH * size if fix[v] == 1 else 0.0
    return constant


@compile(nogil=True, error_model="numpy")
def _sweep(
    backwards: bool,
    fix: Any,
    order: Any,
    first: Any,
    own: Any,
    base: Any,
    mate: Any,
    product: Any,
    member: Any,
    ahead: Any,
    groups: Any,
    table: Any,
    w: Any,
) -> None:
    """Go through the variables once."""
    for n in range(len(order)):
        v = order[len(order) - 1 - n] if backwards else order[n]
        if fix[v] >= 0:
            continue
        total, on = 0.0, 0
        for e in range(first[v], first[v + 1]):
            k = own[e]
            if mate[e] >= 0:  # as in _probe; a function for both makes nodes take seven times as long
                y, p = w[mate[e]], w[product[e]]
                m = w[k] + (min(0.0, y + p) - min(0.0, y))
            else:
                m = _marginal(groups[member[e]], base[e], k, table, w)
            w[k] -= m
            total += m
            on += ahead[e]
        rest = first[v + 1] - first[v] - on
        share = total / max(on, rest)
        left = (total - on * share) / rest if rest else 0.0
        for e in range(first[v], first[v + 1]):
            w[own[e]] += share if ahead[e] else left


@compile(nogil=True, error_model="numpy")
def _rounding(
    fix: Any,
    cost: Any,
    first: Any,
    own: Any,
    order: Any,
    lower: Any,
    upper: Any,
    largest: float,
    terms: int,
    constant: float,
    w: Any,
) -> float:
    """Upper bound on rounding in the sum of the values and on what the multipliers' residual takes off it."""
    total_error, size = 0.0, abs(constant)
    for k in range(len(w)):
        size += abs(w[k]) * largest
    for v in order:
        if fix[v] < 0:
            total, mass = 0.0, 0.0
            for e in range(first[v], first[v + 1]):
                total += w[own[e]]
                mass += abs(w[own[e]])
            left = cost[v] - total
            error = UNIT * (first[v + 1] - first[v] + 2) * (abs(cost[v]) + mass)
            total_error += error * largest - min(left * lower[v], left * upper[v])
    for v in range(len(cost)):
        if fix[v] == 1:
            size += abs(cost[v])
    return total_error * (1 + 1e-9) + UNIT * terms * size


@compile(nogil=True, error_model="numpy")
def _probe(
    fix: Any,
    bound: float,
    asked: Any,
    first: Any,
    own: Any,
    base: Any,
    mate: Any,
    product: Any,
    member: Any,
    groups: Any,
    table: Any,
    w: Any,
    out: Any,
) -> float:
    """Write bounds with each variable at 0 and at 1, and likely values; returns the node's bound by these."""
    best = bound
    if_zero, if_one, x = out
    for n in range(len(asked)):
        v, down, up, total, mass, most = asked[n], 0.0, 0.0, 0.0, 0.0, 0
        if fix[v] >= 0:
            x[n] = fix[v]
            if_zero[n], if_one[n] = bound if fix[v] == 0 else np.inf, bound if fix[v] == 1 else np.inf
            continue
        for e in range(first[v], first[v + 1]):
            k = own[e]
            if mate[e] >= 0:
                y, p, dim = w[mate[e]], w[product[e]], 3
                m = w[k] + (min(0.0, y + p) - min(0.0, y))
                mass += abs(w[k]) + abs(y) + abs(p)
            else:
                group = groups[member[e]]
                m, dim = _marginal(group, base[e], k, table, w), group[3]
                for i in range(dim):
                    mass += abs(w[base[e] + i * group[2]])
            most = max(most, dim)
            down, up, total = down + max(0.0, -m), up + max(0.0, m), total + m
        error = UNIT * ((most + 6 + first[v + 1] - first[v]) * 2 * mass + abs(bound))
        if_zero[n], if_one[n] = bound + max(0.0, down - error), bound + max(0.0, up - error)
        x[n] = 0.5 if abs(total) <= error else (1.0 if total < 0 else 0.0)
        best = max(best, min(if_zero[n], if_one[n]))
    return best


@kernel(grain=16)
def bounds(
    begin: int,
    stop: int,
    fixings: Any,
    given: Any,
    model: Any,
    cutoff: Any,
    sweeps: int,
    stall: float,
    asked: Any,
    layout: Any,
    out: Any,
) -> None:
    """Bound nodes, each from multipliers of its own.

    Parameters
    ----------
    begin, stop : int
        The first node, and one past the last.
    fixings : ndarray
        ``(nodes, k)`` int8: 0, 1 or -1 for each of the variables ``asked``.
    given : ndarray
        ``(nodes or 1, copies)`` float64: the multipliers to start from.
    model : tuple
        Costs ``(variables,)`` float64 and constant, lower and upper bounds ``(variables,)`` float64.
    cutoff : ndarray
        ``(nodes,)`` float64: a node stops when its bound reaches it.
    sweeps, stall : int, float
        Most sweeps, and the relative gain of two of them below which a node stops.
    asked : ndarray
        ``(k,)`` int64: the variables to branch on.
    layout : tuple of ndarray
        The fields of :class:`blocklp.kernels.node_layout.NodeLayout`.
    out : tuple of ndarray
        Written: bounds, statuses and sweeps ``(nodes,)``; multipliers ``(nodes, copies)`` of open nodes;
        bounds with one variable more fixed at 0, at 1, and likely values ``(nodes, k)``.
    """
    cost, offset, lower, upper = model
    index, first, own, base, mate, product, member, later, earlier, order, groups, table = layout
    bound, status, made, multipliers, if_zero, if_one, x = out
    w, kept, terms = np.empty(len(own)), np.empty(len(own)), 2 * len(cost) + 16
    alone, largest = cost[index], max(np.abs(lower).max(), np.abs(upper).max())
    fix, queue = np.empty(len(cost), np.int8), np.empty(len(cost), np.int64)
    for g in range(len(groups)):
        terms += groups[g, 2] + groups[g, 3]
    for row in range(begin, stop):
        count = _imply(fixings[row], asked, first, base, member, index, groups, table, fix, queue)
        start, possible = given[row % len(given)], count >= 0
        fixed = queue[: max(count, 0)]
        constant = offset
        constant += _begin(fix, fixed, start, cost, first, own, base, member, order, alone, groups, w, kept)
        goal, state, done, safe, before = cutoff[row], LIMIT, 0, np.inf, -np.inf
        while possible:
            total = constant
            for g in range(len(groups)):
                total += _values(groups[g], index, lower, upper, table, w)
            last = done >= sweeps or total - before <= stall * abs(total)
            if total >= goal or last:
                error = _rounding(fix, cost, first, own, order, lower, upper, largest, terms, constant, w)
                safe = total - error
                if safe >= goal or last:
                    state = CUTOFF if safe >= goal else (LIMIT if done >= sweeps else STALLED)
                    break
            before = total
            for k in range(min(2, sweeps - done)):
                ahead = earlier if k else later
                _sweep(k == 1, fix, order, first, own, base, mate, product, member, ahead, groups, table, w)
                done += 1
        if possible:
            # What is fixed keeps its multipliers for nodes in which it is free.
            for v in order:
                if fix[v] < 0:
                    for e in range(first[v], first[v + 1]):
                        kept[own[e]] = w[own[e]]
            sides = if_zero[row], if_one[row], x[row]
            best = _probe(fix, safe, asked, first, own, base, mate, product, member, groups, table, w, sides)
            bound[row], status[row] = best, state if best < goal else CUTOFF
        else:
            bound[row], status[row], if_zero[row], if_one[row] = np.inf, INFEASIBLE, np.inf, np.inf
        made[row] = done
        if status[row] != CUTOFF and status[row] != INFEASIBLE:
            multipliers[row] = kept
