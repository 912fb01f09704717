r"""Rows and columns of a simplex tableau from those of an earlier basis, compiled for the CPU.

The tableau :math:`R = B^{-1} N` of a first basis is kept as it is, by rows and by columns.  After k pivots
the basis inverse is :math:`E_k \cdots E_1 B^{-1}` (product form, Dantzig and Orchard-Hays 1954): its rows are
combinations of at most k + 1 rows of R, and its columns those of R after k eliminations.
"""

from __future__ import annotations

from typing import Any

from blocklp.kernels.compiled import compile
from blocklp.kernels.dual_simplex_layout import BASIC
from blocklp.kernels.row_kernels import EXACT

SATISFIED, PIVOT = 1e-9, 1e-7
"""Violations and entries of the tableau that count as rounding."""


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def eliminate(w: Any, etas: Any, count: int) -> None:
    """Turn a column of the first basis into one of the basis after some pivots, in place.

    Parameters
    ----------
    w : ndarray
        ``(rows,)``: the column.
    etas : tuple of ndarray
        The pivots so far: starts ``(pivots + 1,)``, rows and pivot elements ``(pivots,)``, and the rows and
        entries of the other elements of each column.
    count : int
        Number of pivots.
    """
    start, at, pivot, index, entry = etas
    for i in range(count):
        r = at[i]
        if w[r] != 0:
            head = w[r] / pivot[i]
            for k in range(start[i], start[i + 1]):
                w[index[k]] -= entry[k] * head
            w[r] = head


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def combine(row: int, w: Any, seen: Any, etas: Any, count: int) -> int:
    """The combination of rows of the first basis that a row of the present one is.

    Parameters
    ----------
    row : int
        The row.
    w : ndarray
        ``(rows,)``: coefficients, zero before.
    seen : ndarray
        ``(rows,)`` int64: the rows that have one, written.
    etas, count
        As in :func:`eliminate`.

    Returns
    -------
    int
        Number of rows that have a coefficient.
    """
    start, at, pivot, index, entry = etas
    w[row], seen[0], many = 1.0, row, 1
    for i in range(count - 1, -1, -1):
        r, total = at[i], 0.0
        for k in range(start[i], start[i + 1]):
            total += entry[k] * w[index[k]]
        if total != 0:
            known = False
            for k in range(many):
                known |= seen[k] == r
            if not known:
                seen[many], many = r, many + 1
        w[r] = (w[r] - total) / pivot[i]
    return many


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def fill_row(w: Any, seen: Any, many: int, root: Any, alpha: Any, touched: Any) -> int:
    """Fill a row of the tableau.

    Parameters
    ----------
    w, seen, many : ndarray, ndarray, int
        What :func:`combine` made; coefficients become zero again.
    root : tuple
        The first basis (:attr:`blocklp.lp.shared_basis.SharedBasis.arguments`).
    alpha : ndarray
        ``(variables + rows,)``: the entries, zero before.
    touched : ndarray
        ``(variables + rows,)`` int64: the variables that have one, written.

    Returns
    -------
    int
        Number of these variables.
    """
    (head, _, _, _, _), (start, column, entry), _ = root
    found = 0
    for s in range(many):
        p = seen[s]
        factor = w[p]
        w[p] = 0
        if factor == 0:
            continue
        k = head[p]
        if alpha[k] == 0:
            touched[found], found = k, found + 1
        alpha[k] += factor
        for e in range(start[p], start[p + 1]):
            k = column[e]
            if alpha[k] == 0:
                touched[found], found = k, found + 1
            alpha[k] += factor * entry[e]
            if alpha[k] == 0:  # keeps its place in the list
                alpha[k] = 1e-300
    return found


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def add_column(k: int, step: float, root: Any, w: Any) -> None:
    """Add a multiple of a column of the first basis.

    Parameters
    ----------
    k : int
        The variable.
    step : float
        The multiple.
    root : tuple
        The first basis (:attr:`blocklp.lp.shared_basis.SharedBasis.arguments`).
    w : ndarray
        ``(rows,)``: ``B^{-1}`` times the column of the variable is added, so many times.
    """
    (_, place, _, _, _), _, (start, row, entry) = root
    if place[k] >= 0:
        w[place[k]] += step
    for e in range(start[k], start[k + 1]):
        w[row[e]] += step * entry[e]


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def keep(w: Any, row: int, etas: Any, count: int) -> None:
    """Note the elimination by which a column becomes a unit vector.

    Parameters
    ----------
    w : ndarray
        ``(rows,)``: the column in the present basis.
    row : int
        Where the unit vector is one.
    etas : tuple of ndarray
        The pivots so far: starts ``(pivots + 1,)``, rows and pivot elements ``(pivots,)``, and the rows and
        entries of the other elements of each column.
    count : int
        Number of pivots before.
    """
    start, at, pivot, index, entry = etas
    at[count], pivot[count], k = row, w[row], start[count]
    for p in range(len(w)):
        if w[p] != 0 and p != row:
            index[k], entry[k], k = p, w[p], k + 1
    start[count + 1] = k


@compile(nogil=True, error_model="numpy", fastmath=EXACT)
def exchange(k: int, row: int, vectors: Any, touched: Any, many: int, basis: Any, w: Any, etas: Any) -> None:
    """A variable enters the basis and that of a row leaves it.

    Parameters
    ----------
    k, row : int
        The variable and the row.
    vectors : tuple of ndarray
        Reduced costs and entries of the row ``(variables + rows,)``, and where variables are: changed.
    touched, many : ndarray, int
        Variables that have an entry in the row, and their number.
    basis : tuple of ndarray
        Variables and weights of rows ``(rows,)``, and counts, of which the first is that of pivots: changed.
    w : ndarray
        ``(rows,)``: the column of the variable.
    etas : tuple of ndarray
        The pivots so far: one is added.
    """
    (reduced, alpha, at), (basic, weight, counts) = vectors, basis
    leaves, step = basic[row], reduced[k] / alpha[k]
    for t in range(many):
        reduced[touched[t]] -= step * alpha[touched[t]]
    reduced[leaves], reduced[k] = -step, 0.0
    pivot, reference = w[row], weight[row]
    for p in range(len(w)):
        if w[p] != 0 and p != row:
            weight[p] = max(weight[p], (w[p] / pivot) ** 2 * reference)
    weight[row] = max(reference / pivot**2, 1e-4)
    keep(w, row, etas, counts[0])
    basic[row], at[k] = k, BASIC
    counts[0] += 1
