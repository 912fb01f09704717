r"""Convex quadratic underestimators of a quadratic pseudo-boolean function, by semidefinite duality.

In spins :math:`s = 2 y - 1` with :math:`s_0 = 1` the function is :math:`\langle C, s s^\top \rangle + k`.  Every choice of
multipliers :math:`u` of :math:`s_i^2 = 1` and :math:`\gamma \ge 0` of triangle inequalities

.. math:: 1 + a s_i s_j + b s_i s_k + a b\, s_j s_k \ge 0, \qquad a, b \in \{-1, 1\}

(which all spins satisfy) gives a function that nowhere exceeds it,

.. math:: s^\top Z s + \sum_i u_i - \sum_t \gamma_t + k, \qquad Z = C - \sum_t \gamma_t T_t - \mathrm{Diag}(u),

and is convex if Z is positive semidefinite.  Its minimum over the box is a bound for any fixing of variables; at the root it is
the semidefinite bound with triangles (F. Rendl, G. Rinaldi, A. Wiegele, Mathematical Programming 121 (2010)), on the box it can
be evaluated without another semidefinite program (A. Billionnet, S. Elloumi, Mathematical Programming 109 (2007)).

The multipliers u come from an interior-point method (C. Helmberg, F. Rendl, R. Vanderbei, H. Wolkowicz, SIAM J. Optimization 6
(1996)); triangles from the regularised dual (N. Krislock, J. Malick, F. Roupin, ACM TOMS 43 (2017)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, eigh
from scipy.optimize import minimize

from blocklp.deadline import Deadline
from blocklp.problems.qpbo.arrays import FloatArray, IntArray
from blocklp.problems.qpbo.instance import Qubo

EPS = float(np.finfo(np.float64).eps)
DIGITS = 1e-6
"""Relative gap up to which semidefinite programs are solved."""
SIGNS = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=np.float64)


@dataclass(frozen=True)
class Spins:
    r"""The function :math:`s^\top C s + k` of spins, where node 0 is the constant 1.

    Parameters
    ----------
    coupling : numpy.ndarray, shape (n + 1, n + 1), float64
        Symmetric C.
    constant : float
        k.
    """

    coupling: FloatArray
    constant: float

    @classmethod
    def of(cls, qubo: Qubo) -> Spins:
        """Rewrite a function of labels; powers of two are the only factors, and sums may round."""
        coupling = np.zeros((qubo.n + 1, qubo.n + 1))
        first, second = qubo.edges.T + 1
        np.add.at(coupling, (first, second), qubo.quadratic / 8)
        linear = qubo.linear / 4
        np.add.at(linear, qubo.edges.ravel(), np.repeat(qubo.quadratic / 8, 2))
        coupling[0, 1:] = linear
        coupling += coupling.T
        return cls(coupling, qubo.offset + float(qubo.linear.sum()) / 2 + float(qubo.quadratic.sum()) / 4)

    def fixed(self, spins: NDArray[np.int8]) -> Spins:
        """Fold the nodes of known spin into node 0.

        Parameters
        ----------
        spins : numpy.ndarray, shape (n,), int8
            -1 or 1 where fixed, 0 elsewhere.
        """
        known = np.concatenate([[1.0], spins])
        free = np.flatnonzero(known[1:] == 0) + 1
        folded = np.zeros((len(free) + 1, len(free) + 1))
        folded[1:, 1:] = self.coupling[np.ix_(free, free)]
        folded[0, 1:] = folded[1:, 0] = self.coupling[free] @ known
        return Spins(folded, self.constant + float(known @ self.coupling @ known))


@dataclass(frozen=True)
class Underestimator:
    """A convex quadratic function of spins that nowhere exceeds the given one.

    Parameters
    ----------
    spins : Spins
        ``coupling`` is positive semidefinite, in exact arithmetic.
    bound : float
        Its value as a semidefinite bound: a lower bound of the given function.
    correlations : numpy.ndarray, shape (n + 1, n + 1), float64
        The primal matrix, an estimate of the products of spins.
    """

    spins: Spins
    bound: float
    correlations: FloatArray


def convexified(given: Spins, rounds: int, threshold: float = np.inf, deadline: Deadline | None = None) -> Underestimator:
    """Find a good convex underestimator.

    Parameters
    ----------
    given : Spins
        The function, with at least one free spin.
    rounds : int
        Rounds of triangle inequalities.
    threshold : float
        A bound that suffices: stop there.
    deadline : Deadline, optional
        When to stop; steps of the interior-point method that are left then cost strength.
    """
    n, deadline = len(given.coupling), deadline or Deadline()
    diagonal, correlations = _semidefinite(given.coupling, deadline)
    best, level = diagonal, max(abs(diagonal.sum()), np.finfo(np.float64).tiny) / n / n
    bound = diagonal.sum() + given.constant
    triangles, signs, prices = np.zeros((0, 3), dtype=np.int64), np.zeros((0, 3)), np.zeros(0)
    chosen = _priced(given.coupling, triangles, signs, prices)
    for k in range(rounds):
        if n < 3 or bound >= threshold or deadline.over():
            break
        new, new_signs, worst = _violated(correlations, 5 * n)
        if worst > -0.02:
            break
        keep = prices > 1e-6 * level
        triangles, signs = np.concatenate([triangles[keep], new]), np.concatenate([signs[keep], new_signs])
        prices = np.concatenate([prices[keep], np.zeros(len(new))])
        smoothing = level * 0.4 * 0.75**k
        diagonal, prices, correlations = _regularised(given.coupling, triangles, signs, diagonal, prices, smoothing, deadline)
        priced = _priced(given.coupling, triangles, signs, prices)
        exact, _ = _semidefinite(priced.coupling, deadline)
        value = exact.sum() - priced.paid + given.constant
        if value > bound:
            gained, bound = value - bound, value
            chosen, best = priced, exact
            if np.isfinite(threshold) and gained < 0.01 * (threshold - bound):
                break
    return _safe(chosen, best, given.constant, correlations)


def _safe(priced: _Priced, diagonal: FloatArray, constant: float, correlations: FloatArray) -> Underestimator:
    r"""Shift the diagonal until the matrix is proved to be positive semidefinite; charge all that it costs.

    *Semidefinite.*  If Cholesky factorisation in floating point runs to its end on a symmetric n x n matrix M, its factor R satisfies
    :math:`R^\top R = M + \Delta` with :math:`\|\Delta\|_2 \le \gamma_{n+1} / (1 - \gamma_{n+1}) \operatorname{tr} M`, where
    :math:`\gamma_k = k u / (1 - k u)` and u = EPS / 2, whatever the order of its sums (N. Higham, Accuracy and Stability of
    Numerical Algorithms, Theorem 10.3; S. Rump, BIT 46 (2006)): columns of R have squared norms of at most
    :math:`M_{jj} / (1 - \gamma_{n+1})`, and the entries of :math:`\Delta` are below :math:`\gamma_{n+1}` times their products.  So no
    eigenvalue of M is below minus that, and (n + 4) EPS times the trace is more than that for all n below a million, with divisions
    by reciprocals and the rounding of the trace in it.  (Underflow is far away: couplings are whole numbers over eight.)  Twice
    that much is added to the diagonal, whose entries are then rounded once, by EPS / 2 of the trace at most.

    *Value.*  For spins :math:`s^\top P s - s^\top M s = \sum_i (P_{ii} - M_{ii})` for whatever the diagonal of M has become, because
    all other entries are those of P; the sum is rounded once.
    """
    coupling, n = priced.coupling, len(priced.coupling)
    matrix = coupling - np.diag(diagonal)
    size = float(np.abs(matrix).sum(1).max())
    shift = max(0.0, -float(eigh(matrix, eigvals_only=True, subset_by_index=[0, 0])[0])) + 32 * n * EPS * size + 1e-200
    while not _factors(shifted := matrix + shift * np.eye(n)):
        shift *= 2
    matrix = shifted + 2 * (n + 4) * EPS * float(np.trace(shifted)) * np.eye(n)
    terms = [constant, -priced.paid, -priced.error, *np.diag(coupling), *-np.diag(matrix)]
    bound = math.nextafter(math.fsum(terms), -math.inf)
    return Underestimator(Spins(matrix, bound), bound, correlations)


def _factors(matrix: FloatArray) -> bool:
    """Whether Cholesky factorisation runs to its end."""
    try:
        cholesky(matrix, check_finite=False)
    except LinAlgError:
        return False
    return True


def _semidefinite(coupling: FloatArray, deadline: Deadline) -> tuple[FloatArray, FloatArray]:
    """Maximise the sum of u with C - Diag(u) positive semidefinite; return u and the primal matrix of unit diagonal."""
    n = len(coupling)
    x = np.eye(n)
    u = np.diag(coupling) - 1.1 * np.abs(coupling).sum(1) - 1e-6 * (1 + np.abs(coupling).max())
    z = coupling - np.diag(u)
    mu = float((z * x).sum()) / (2 * n)
    for _ in range(60):
        if deadline.over():
            break
        try:
            inverse = np.linalg.inv(z)
            inverse = (inverse + inverse.T) / 2
            du = np.linalg.solve(inverse * x, 1 - mu * np.diag(inverse))
        except LinAlgError:
            break  # so near the boundary that no digit is left: the last point will do
        dx = mu * inverse - x + (inverse * du) @ x
        dx = (dx + dx.T) / 2
        if not np.isfinite(dx).all():
            break
        primal, dual = _step(x, dx), _step(z, -np.diag(du))
        x, u = x + primal * dx, u + dual * du
        z = coupling - np.diag(u)
        mu = float((z * x).sum()) / (2 * n)
        if 2 * n * mu <= DIGITS * (1 + abs(u.sum())):
            break
        if primal + dual > 1.6:
            mu *= 0.5
        if primal + dual > 1.9:
            mu *= 0.2
    return u, x


def _step(matrix: FloatArray, direction: FloatArray) -> float:
    """A step that keeps a matrix positive definite."""
    length = 1.0
    for _ in range(80):
        if _factors(matrix + length * direction):
            return length if length == 1.0 else 0.95 * length
        length *= 0.8
    return 0.0


def _violated(x: FloatArray, count: int) -> tuple[IntArray, FloatArray, float]:
    """Return the most violated triangle inequalities, their signs, and the worst violation."""
    n = len(x)
    found = []
    for signs in SIGNS:
        # Cut off in slices of the first node, so that memory stays of order n^2.
        for i in range(n - 2):
            part = 1 + signs[0] * x[i, i + 1 :, None] + signs[1] * x[i, None, i + 1 :] + signs[2] * x[i + 1 :, i + 1 :]
            j, k = np.nonzero(np.triu(part < -0.01, 1))
            if len(j):
                found.append(np.column_stack([part[j, k], np.full(len(j), i), j + i + 1, k + i + 1, np.tile(signs, (len(j), 1))]))
    if not found:
        return np.zeros((0, 3), dtype=np.int64), np.zeros((0, 3)), 0.0
    rows = np.concatenate(found)
    rows = rows[np.argsort(rows[:, 0], kind="stable")[:count]]
    return rows[:, 1:4].astype(np.int64), rows[:, 4:], float(rows[0, 0])


def _pairs(triangles: IntArray) -> tuple[IntArray, IntArray]:
    return triangles[:, [0, 0, 1]], triangles[:, [1, 2, 2]]


@dataclass(frozen=True)
class _Priced:
    """A function less priced triangle inequalities.

    Parameters
    ----------
    coupling : numpy.ndarray, shape (n + 1, n + 1), float64
        What is left.
    paid : float
        Sum of the prices, rounded up.
    error : float
        No spins have a value that all rounding changes by more.
    """

    coupling: FloatArray
    paid: float
    error: float


def _priced(coupling: FloatArray, triangles: IntArray, signs: FloatArray, prices: FloatArray) -> _Priced:
    r"""Subtract triangle inequalities.

    The charge of an entry is a sum of k halves of prices (exact) whose magnitudes add up to A: its error is below
    :math:`\gamma_{k-1} A`, that of the difference below :math:`u (|C| + A (1 + \gamma_k))`, with u = EPS / 2.  A price is in three
    entries, so that over all of them, each counted for both of its places, the magnitudes A add up to three times the sum of the
    prices.  Twice as much is charged, for the products of rounding errors and the rounding of these sums.
    """
    paid = math.fsum(prices)
    if not paid:
        return _Priced(coupling, 0.0, 0.0)
    first, second = _pairs(triangles)
    count = np.zeros(coupling.shape, dtype=np.int64)
    np.add.at(count, (first, second), 1)
    error = EPS * (3 * (int(count.max()) + 1) * paid + float(np.abs(coupling).sum()))
    return _Priced(_subtracted(coupling, triangles, signs, prices), math.nextafter(paid, math.inf), error)


def _subtracted(coupling: FloatArray, triangles: IntArray, signs: FloatArray, prices: FloatArray) -> FloatArray:
    first, second = _pairs(triangles)
    charged = np.zeros_like(coupling)
    np.add.at(charged, (first, second), prices[:, None] * signs / 2)
    return coupling - charged - charged.T


def _regularised(
    coupling: FloatArray,
    triangles: IntArray,
    signs: FloatArray,
    diagonal: FloatArray,
    prices: FloatArray,
    smoothing: float,
    deadline: Deadline,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Maximise :math:`\sum u - \sum \gamma - |[Z]_-|^2 / 2 \alpha`, whose gradient needs one eigenvalue decomposition."""
    n = len(coupling)
    first, second = _pairs(triangles)
    last: list[FloatArray] = []

    def negative(point: FloatArray) -> tuple[float, FloatArray]:
        u, gamma = point[:n], point[n:]
        values, vectors = eigh(_subtracted(coupling, triangles, signs, gamma) - np.diag(u), check_finite=False, driver="evd")
        below = values < 0
        part = vectors[:, below]
        x = (part * (-values[below] / smoothing)) @ part.T
        last[:] = [x]
        slope = np.concatenate([1 - np.diag(x), -1 - (signs * x[first, second]).sum(1)])
        value = u.sum() - gamma.sum() - (values[below] ** 2).sum() / (2 * smoothing)
        return -value, -slope

    def stop(intermediate_result: Any) -> None:
        if deadline.over():
            raise StopIteration

    # The scale of the multipliers is the smoothing's; L-BFGS wants numbers of order one.
    scale = max(smoothing * n, 1e-12)
    start = np.concatenate([diagonal, prices]) / scale
    free: list[tuple[float | None, float | None]] = [(None, None)] * n + [(0.0, None)] * len(prices)
    answer = minimize(
        lambda v: (lambda r: (r[0] / scale, r[1]))(negative(v * scale)),
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=free,
        options={"maxiter": 60, "maxcor": 20},
        callback=stop,
    )
    point = answer.x * scale
    negative(point)
    # Inequalities have no negative prices, whatever the step of the last iteration was.
    return point[:n], np.maximum(point[n:], 0.0), last[0]
