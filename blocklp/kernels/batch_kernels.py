"""Passes of PDHG over many small instances that differ in numbers only, compiled for the CPU.

The loops of :mod:`blocklp.kernels.program_kernels` take blocks by tiles; an instance with a few dozen blocks
leaves most of a tile empty. Here a chunk of instances is taken at once: every number of an instance is a row
of as many numbers as there are instances in the chunk, so that each operation on it is one on a vector. All
numbers of a chunk stay in the cache for all passes.

Sums are added in the order in which the other loops add them, so that an instance has the same bits in both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import TILE, compile, kernel
from blocklp.kernels.program_kernels import decide
from blocklp.kernels.row_kernels import EXACT

_RESTARTED = 2


@compile(nogil=True, error_model="numpy")
def _chunk(values: Any, first: int, count: int) -> Any:
    """Numbers of some instances ``(batch or 1, n)``, one row for each number: ``(n, count)``."""
    out = np.empty((values.shape[1], count), values.dtype)
    for q in range(count):
        own = values[(first + q) % len(values)]
        for i in range(len(own)):
            out[i, q] = own[i]
    return out


@compile(nogil=True, error_model="numpy")
def _three(values: Any, first: int, count: int) -> Any:
    """Chunks of three arrays."""
    return _chunk(values[0], first, count), _chunk(values[1], first, count), _chunk(values[2], first, count)


@compile(nogil=True, error_model="numpy")
def _put_back(values: Any, first: int, chunk: Any) -> None:
    """Write the numbers of a chunk over those of its instances."""
    for q in range(chunk.shape[1]):
        own = values[first + q]
        for i in range(len(own)):
            own[i] = chunk[i, q]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _multiply(starts: Any, numbers: Any, columns: Any, entries: Any, r: int, values: Any, total: Any) -> None:
    """One row of a sparse matrix times the values of all instances of a chunk."""
    total[:] = 0
    for k in range(starts[r], starts[r + 1]):
        entry, value = entries[numbers[k]], values[columns[k]]
        if len(entry) == 1:
            one = entry[0]
            for q in range(len(total)):
                total[q] += one * value[q]
        else:
            for q in range(len(total)):
                total[q] += entry[q] * value[q]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _step_variables(eta: Any, given: Any, x: Any, near: Any, pulled: Any) -> None:
    """The gradient step of every variable."""
    cost, lower, upper, column = given
    for v in range(len(x)):
        own, total, step, c, rate = x[v], pulled[v], near[v], cost[v], column[v]
        for q in range(len(own)):
            step[q] = own[q] - eta[q] * rate[q] * (c[q] - total[q])
        low, high = lower[v], upper[v]
        for q in range(len(own)):
            step[q] = min(max(step[q], low[q]), high[q])


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _step_rows(
    eta: Any,
    by_row: Any,
    entries: Any,
    given: Any,
    near: Any,
    y: Any,
    y_bar: Any,
    a: Any,
    a_bar: Any,
) -> None:
    """The step of every row, and what it reaches."""
    starts, numbers, columns = by_row
    lower, upper, sigma, length = given
    one = eta.dtype.type(1)
    for r in range(len(y)):
        reached, w, dual, active, weight = a_bar[r], y_bar[r], y[r], a[r], length[r]
        _multiply(starts, numbers, columns, entries, r, near, reached)
        for q in range(len(w)):
            w[q] = eta[q] * weight[q] * dual[q] - (reached[q] + reached[q] - active[q])
        low, high, rate = lower[r], upper[r], sigma[r]
        for q in range(len(w)):
            w[q] = rate[q] * (one / eta[q]) * (w[q] - min(max(w[q], -high[q]), -low[q]))


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _settle(now: Any, origin: Any, bar: Any, back: Any, restarted: Any) -> None:
    """Reflected Halpern step from ``bar`` towards the start of the epoch; or an epoch begins at ``bar``."""
    for i in range(len(now)):
        here, before, there = now[i], origin[i], bar[i]
        for q in range(len(here)):
            ahead = there[q] + there[q] - here[q]
            here[q] = there[q] if restarted[q] else ahead + back[q] * (before[q] - ahead)
        for q in range(len(here)):
            before[q] = there[q] if restarted[q] else before[q]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _adjoint(by_copy: Any, entries: Any, y: Any, copy: Any, pulled: Any) -> None:
    """The transposed rows times y, copy by copy."""
    variables, starts, numbers, rows = by_copy
    pulled[:] = 0
    for k in range(len(variables)):
        _multiply(starts, numbers, rows, entries, k, y, copy)
        total = pulled[variables[k]]
        for q in range(len(copy)):
            total[q] += copy[q]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _fold(terms: Any, count: int, out: Any, part: int) -> None:
    """Sum of the first ``count`` terms of a tile ``(TILE, chunk)``, by halves, to ``out[:, part]``."""
    half = TILE // 2
    while half:
        for i in range(min(half, max(0, count - half))):
            own, upper = terms[i], terms[half + i]
            for q in range(len(own)):
                own[q] += upper[q]
        count, half = min(count, half), half // 2
    for q in range(len(out)):
        out[q, part] = terms[0, q]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _measure(
    groups: Any,
    tiles: Any,
    x: Any,
    y: Any,
    column: Any,
    length: Any,
    terms: Any,
    sums: Any,
) -> None:
    """How far variables and rows step, and how far they are from the start of their epoch.

    ``sums`` is ``(chunk, tiles, 3)``, with the tiles of rows first.
    """
    near, bar = x[2], y[2]
    for t in range(len(tiles)):
        group, first, count = groups[tiles[t, 0]], tiles[t, 1], tiles[t, 2]
        for part in range(3):
            terms[:count] = 0
            for r in range(group[3]):
                for i in range(count):
                    at = group[4] + r * group[2] + first + i
                    term, there, weight = terms[i], bar[at], length[at]
                    if part < 2:
                        here = y[part][at]
                        for q in range(len(term)):
                            term[q] += (there[q] - here[q]) ** 2 * weight[q]
                    else:
                        here, active, reached = y[0][at], y[3][at], y[5][at]
                        for q in range(len(term)):
                            term[q] += (there[q] - here[q]) * (reached[q] - active[q])
            _fold(terms, count, sums[:, t], part)
    for first in range(0, len(near), TILE):
        count = min(TILE, len(near) - first)
        for part in range(2):
            for i in range(count):
                term, there, here, rate = terms[i], near[first + i], x[part][first + i], column[first + i]
                for q in range(len(term)):
                    term[q] = (there[q] - here[q]) ** 2 / rate[q]
            _fold(terms, count, sums[:, len(tiles) + first // TILE], part)


@kernel()
def passes(
    begin: int,
    stop: int,
    width: int,
    many: int,
    before: int,
    rules: Any,
    layout: Any,
    by_row: Any,
    by_copy: Any,
    entries: Any,
    variables: Any,
    rows: Any,
    own: Any,
    pulled: Any,
    scalars: Any,
) -> None:
    """Passes of :class:`blocklp.methods.pdhg.Pdhg`; all that changes is written over.

    Parameters
    ----------
    begin, stop : int
        Units to deal with; a unit is a chunk of ``width`` instances.
    width : int
        Instances of a chunk.
    many, before : int
        Passes to make, and passes made before.
    rules : array
        ``(5,)`` float64: the constants of restarts (:func:`blocklp.kernels.program_kernels.decide`).
    layout : tuple of array
        Groups and tiles of rows (:class:`blocklp.kernels.row_layout.RowLayout`).
    by_row, by_copy : tuple of array
        The rows of the matrix, and those of its transpose, one for each copy, with the variable that it
        belongs to.
    entries : array
        ``(batch or 1, entries)``: numbers of the matrix.
    variables : tuple of array
        Cost, lower and upper bound and step of variables, ``(batch or 1, variables)`` each.
    rows : tuple of array
        Lower and upper side, step and squared length of rows, ``(batch or 1, rows)`` each.
    own : tuple of array
        x, y and A x, each now, at the start of the epoch, and at the last step: ``(batch, ...)``, written.
    pulled : array
        ``(batch, 1, variables)``: A^T y, written.
    scalars : tuple of array
        eta, age, residual, first residual and suggested weight, ``(batch,)`` each; all but the last written.
    """
    groups, tiles = layout
    for unit in range(begin, stop):
        first = unit * width
        count = min(width, len(pulled) - first)
        eta, age, residual, at_origin, suggested = scalars
        part = slice(first, first + count)
        mine = eta[part], age[part], residual[part], at_origin[part], suggested[part]
        matrix = _chunk(entries, first, count if len(entries) > 1 else 1)
        given = (*_three(variables[:3], first, count), _chunk(variables[3], first, count))
        sides = (*_three(rows[:3], first, count), _chunk(rows[3], first, count))
        x = _three(own[:3], first, count)
        y = _three(own[3:6], first, count) + _three(own[6:], first, count)
        total = _chunk(pulled[:, 0], first, count)
        terms, copy = np.empty((TILE, count), total.dtype), np.empty(count, total.dtype)
        sums = np.zeros((count, len(tiles) + (len(x[0]) + TILE - 1) // TILE, 3))
        verdict, restarted = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        back = np.empty(count, total.dtype)
        for n in range(many):
            passed, look = before + n + 1, False
            for q in range(count):
                look = look or mine[1][q] == 0
            look = look or passed % rules[3] == 0
            _step_variables(mine[0], given, x[0], x[2], total)
            _step_rows(mine[0], by_row, matrix, sides, x[2], y[0], y[2], y[3], y[5])
            if look:
                _measure(groups, tiles, x, y, given[3], sides[3], terms, sums)
            for q in range(count):
                own_look = mine[1][q] == 0 or passed % rules[3] == 0
                decide(q, passed, own_look, True, rules, mine, len(tiles), sums[q], verdict)
                restarted[q] = verdict[q] == _RESTARTED
                back[q] = total.dtype.type(1) / (mine[1][q] + total.dtype.type(1))
            _settle(x[0], x[1], x[2], back, restarted)
            _settle(y[0], y[1], y[2], back, restarted)
            _settle(y[3], y[4], y[5], back, restarted)
            _adjoint(by_copy, matrix, y[0], copy, total)
        for k in range(3):
            _put_back(own[k], first, x[k])
        for k in range(6):
            _put_back(own[3 + k], first, y[k])
        _put_back(pulled[:, 0], first, total)
