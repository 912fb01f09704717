"""The primal simplex method from a basis that many LPs share, compiled for the CPU.

It serves LPs that differ in costs alone, for which the basis is feasible.  The variable with the largest
reduced cost enters, and the largest pivot leaves among those within a tolerance (Harris 1973).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.basis_kernels import PIVOT, SATISFIED, add_column, combine, eliminate, exchange, fill_row
from blocklp.kernels.compiled import compile
from blocklp.kernels.dual_simplex_layout import ENDED, LOWER, UNFINISHED, UPPER, ZERO
from blocklp.kernels.row_kernels import EXACT


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _improving(vectors: Any, low: Any, high: Any, late: int) -> int:
    """The nonbasic variable that the objective gains most by for each unit; -1 if it gains by none."""
    (reduced, _, at), best, chosen = vectors, ZERO, -1
    for k in range(len(reduced)):
        gain = reduced[k] * (at[k] - 1)  # LOWER, BASIC and UPPER are 0, 1 and 2
        if gain > ZERO and low[k] < high[k]:
            if late:  # degenerate pivots may cycle: prefer other variables every time
                gain *= 1 + (k * 7919 + late * 104729) % 61
            if gain > best:
                best, chosen = gain, k
    return chosen


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def _blocking(w: Any, sign: float, basic: Any, x: Any, low: Any, high: Any) -> Any:
    """The row whose variable reaches a bound first, of those within a tolerance the largest entry, and when.

    Basic variables move by ``-sign * w`` for each unit; row -1 if none reaches a bound.
    """
    least, row, best, step = np.inf, -1, 0.0, np.inf
    for p in range(len(w)):
        speed, k = sign * w[p], basic[p]
        if abs(speed) > PIVOT:
            least = min(least, ((x[k] - low[k] if speed > 0 else high[k] - x[k]) + SATISFIED) / abs(speed))
    if least < np.inf:
        for p in range(len(w)):
            speed, k = sign * w[p], basic[p]
            if abs(speed) > best and abs(speed) > PIVOT:
                own = (x[k] - low[k] if speed > 0 else high[k] - x[k]) / abs(speed)
                if own <= least:
                    best, row, step = abs(speed), p, max(own, 0.0)
    return row, step


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def improved(node: Any, root: Any, vectors: Any, basis: Any, etas: Any, room: Any) -> int:
    """Pivot by the primal simplex method from a feasible basis.

    Parameters
    ----------
    node : tuple of ndarray
        Values of variables, changed, and their bounds, ``(variables + rows,)`` each.
    root : tuple
        The first basis (:attr:`blocklp.lp.shared_basis.SharedBasis.arguments`).
    vectors, basis, etas : tuple of ndarray
        As in :func:`blocklp.kernels.basis_kernels.exchange`; the third count is that at which pivots end.
    room : tuple of ndarray
        Overwritten.

    Returns
    -------
    int
        ``ENDED``, or ``UNFINISHED`` where pivots did not suffice or were too small, or nothing bounds the
        value.
    """
    (x, low, high), (_, alpha, at), (basic, _, counts) = node, vectors, basis
    touched, seen, w, _, _, _ = room
    flips = 0
    while True:
        k = _improving(vectors, low, high, counts[0] if counts[0] > len(basic) else 0)
        if k < 0:
            return ENDED
        if counts[0] + flips >= counts[2]:
            return UNFINISHED
        sign = 1.0 if at[k] == LOWER else -1.0
        add_column(k, 1.0, root, w)
        eliminate(w, etas, counts[0])
        row, step = _blocking(w, sign, basic, x, low, high)
        across = high[k] - low[k]
        flip = across <= step
        step = min(step, across)
        if step == np.inf:
            for p in range(len(w)):
                w[p] = 0
            return UNFINISHED
        for p in range(len(w)):
            if w[p] != 0:
                x[basic[p]] -= sign * step * w[p]
        x[k] += sign * step
        if flip:
            at[k] = UPPER if at[k] == LOWER else LOWER
            x[k] = high[k] if at[k] == UPPER else low[k]
            flips += 1
            for p in range(len(w)):
                w[p] = 0
            continue
        leaves, column = basic[row], room[4][1]
        below = sign * w[row] > 0
        for p in range(len(w)):
            column[p], w[p] = w[p], 0
        many = fill_row(w, seen, combine(row, w, seen, etas, counts[0]), root, alpha, touched)
        exact = abs(column[row] - alpha[k]) <= PIVOT * (1 + abs(column[row]))
        if exact:
            x[leaves], at[leaves] = (low[leaves], LOWER) if below else (high[leaves], UPPER)
            exchange(k, row, vectors, touched, many, basis, column[: len(w)], etas)
        for t in range(many):
            alpha[touched[t]] = 0
        if not exact:
            return UNFINISHED
