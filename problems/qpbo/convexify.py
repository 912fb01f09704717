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
(1996)); triangles from the regularised dual (N. Krislock, J. Malick, F. Roupin, ACM TOMS 43 (2017)).  A function with more spins
fixed begins where the one with fewer ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, eigh
from scipy.optimize import minimize

from blocklp.deadline import Deadline
from blocklp.problems.qpbo.arrays import FloatArray
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.triangles import EPS, Paid, Triangles

DIGITS = 1e-6
"""Relative gap up to which semidefinite programs are solved."""
ROUGH, SMOOTHER, SMOOTH = 0.4, 0.75, 5e-3
"""Regularisation of the first round, what each round leaves of it, and that of the last ones, in units of the level of prices."""
ITERATIONS, NEW = 40, 5
"""Iterations of a round, at most, and inequalities that it adds for each spin."""
PATIENCE, HOPELESS = 1, 0.25
"""After how many rounds it counts that another has gained less than a part of what is missing."""


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
class Multipliers:
    """Where a search for an underestimator ended; that of the same function goes on there, or one with more spins fixed.

    Attributes
    ----------
    diagonal : numpy.ndarray, shape (n + 1,), float64
        Of squares of spins.
    triangles : Triangles
        With their prices.
    correlations : numpy.ndarray, shape (n + 1, n + 1), float64
        The primal matrix, an estimate of the products of spins.
    level, smoothing : float
        The scale of prices, and the regularisation of the next round.
    """

    diagonal: FloatArray
    triangles: Triangles
    correlations: FloatArray
    level: float
    smoothing: float

    @classmethod
    def without_triangles(cls, coupling: FloatArray, deadline: Deadline) -> Multipliers:
        """Solve the semidefinite program without triangles."""
        diagonal, correlations = _semidefinite(coupling, deadline)
        level = max(abs(diagonal.sum()), np.finfo(np.float64).tiny) / len(coupling) ** 2
        return cls(diagonal, Triangles.none(), correlations, level, ROUGH * level)

    def fixed(self, spins: NDArray[np.int8]) -> Multipliers:
        """Fold the nodes of known spins ``(n,)``, zero elsewhere, into node 0."""
        known = np.concatenate([[True], spins != 0])
        diagonal = np.concatenate([[self.diagonal[known].sum()], self.diagonal[~known]])
        left = np.concatenate([[0], np.flatnonzero(~known)])
        correlations = self.correlations[np.ix_(left, left)]
        return replace(self, diagonal=diagonal, triangles=self.triangles.fixed(spins), correlations=correlations)


@dataclass(frozen=True)
class Underestimator:
    """A convex quadratic function of spins that nowhere exceeds the given one.

    Attributes
    ----------
    spins : Spins
        ``coupling`` is positive semidefinite, in exact arithmetic.
    bound : float
        Its value as a semidefinite bound: a lower bound of the given function.
    diagonal : numpy.ndarray, shape (n + 1,), float64
        Multipliers of squares of spins that it is made with, up to a shift that makes up for rounding.
    triangles : Triangles
        The triangle inequalities that it is made with, and their prices.
    multipliers : Multipliers
        Where the search for it ended.
    gaining : bool
        Whether more rounds may well gain more.
    interrupted : bool
        The user has interrupted the search for it.
    """

    spins: Spins
    bound: float
    diagonal: FloatArray
    triangles: Triangles
    multipliers: Multipliers
    gaining: bool
    interrupted: bool


def convexified(
    given: Spins,
    rounds: int,
    threshold: float = np.inf,
    deadline: Deadline | None = None,
    begin: Multipliers | None = None,
) -> Underestimator:
    """Find a good convex underestimator; after an interrupt, one as good as the work done until then.

    Parameters
    ----------
    given : Spins
        The function, with at least one free spin.
    rounds : int
        Rounds of triangle inequalities, at most: they end when they gain little of what the threshold wants.
    threshold : float
        A bound that suffices: stop there.
    deadline : Deadline, optional
        When to stop; steps of the interior-point method that are left then cost strength.
    begin : Multipliers, optional
        Where to begin; by default without triangles.
    """
    n, deadline = len(given.coupling), (deadline or Deadline()).within(math.inf)
    last = Multipliers.without_triangles(given.coupling, deadline) if begin is None else begin
    chosen, best = last.triangles, last.diagonal
    bound = best.sum() + given.constant if begin is None else -math.inf
    gaining = n >= 3
    try:
        for k in range(rounds):
            if not gaining or bound >= threshold or deadline.over():
                break
            kept = last.triangles.above(1e-6 * last.level)
            triangles = kept.with_violated(last.correlations, NEW * n)
            if triangles is kept and (len(kept.prices) == 0 or last.smoothing < SMOOTH * last.level):
                gaining = False  # what is left to gain is below the accuracy of the correlations
                break
            found = _regularised(given.coupling, replace(last, triangles=triangles), deadline)
            paid = found.triangles.paid(given.coupling)
            exact, _ = _semidefinite(paid.coupling, deadline)
            value = exact.sum() - paid.price + given.constant
            if not math.isfinite(value):
                gaining = False  # coefficients of such different sizes that no digit is left
                break
            last, gained = found, value - bound
            if gained > 0:
                chosen, best, bound = found.triangles, exact, value
            gaining = not (k >= PATIENCE and gained < HOPELESS * (threshold - bound) < np.inf)
    except KeyboardInterrupt:  # the last round is lost
        deadline.interrupt()
    paid = chosen.paid(given.coupling)
    if bound == -math.inf:  # no round was made
        best, _ = _semidefinite(paid.coupling, deadline)
    spins, bound = _safe(paid, best, given.constant)
    return Underestimator(spins, bound, best, chosen, last, gaining, deadline.interrupted)


def _safe(paid: Paid, diagonal: FloatArray, constant: float) -> tuple[Spins, float]:
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
    coupling, n = paid.coupling, len(paid.coupling)
    matrix = coupling - np.diag(diagonal)
    size = float(np.abs(matrix).sum(1).max())
    shift = max(0.0, -float(eigh(matrix, eigvals_only=True, subset_by_index=[0, 0])[0])) + 32 * n * EPS * size + 1e-200
    while not _factors(shifted := matrix + shift * np.eye(n)):
        shift *= 2
    matrix = shifted + 2 * (n + 4) * EPS * float(np.trace(shifted)) * np.eye(n)
    terms = [constant, -paid.price, -paid.error, *np.diag(coupling), *-np.diag(matrix)]
    bound = math.nextafter(math.fsum(terms), -math.inf)
    return Spins(matrix, bound), bound


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
    try:
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
    except KeyboardInterrupt:  # every u is feasible
        deadline.interrupt()
    return u, x


def _step(matrix: FloatArray, direction: FloatArray) -> float:
    """A step that keeps a matrix positive definite."""
    length = 1.0
    for _ in range(80):
        if _factors(matrix + length * direction):
            return length if length == 1.0 else 0.95 * length
        length *= 0.8
    return 0.0


def _regularised(coupling: FloatArray, begin: Multipliers, deadline: Deadline) -> Multipliers:
    r"""Maximise :math:`\sum u - \sum \gamma - |[Z]_-|^2 / 2 \alpha`, whose gradient needs one eigenvalue decomposition."""
    n, triangles = len(coupling), begin.triangles
    first, second = triangles.pairs
    smoothing = max(begin.smoothing, SMOOTH * begin.level)
    x = begin.correlations

    def negative(point: FloatArray) -> tuple[float, FloatArray]:
        nonlocal x
        u, gamma = point[:n], point[n:]
        values, vectors = eigh(triangles.charged(coupling, gamma) - np.diag(u), check_finite=False, driver="evd")
        below = values[values < 0]
        part = vectors[:, : len(below)]
        x = (part * (-below / smoothing)) @ part.T
        slope = np.concatenate([1 - np.diag(x), -1 - (triangles.signs * x[first, second]).sum(1)])
        value = u.sum() - gamma.sum() - (below**2).sum() / (2 * smoothing)
        return -value, -slope

    def stop(intermediate_result: Any) -> None:
        if deadline.over():
            raise StopIteration

    # The scale of the multipliers is the smoothing's; L-BFGS wants numbers of order one.
    scale = max(smoothing * n, 1e-12)
    start = np.concatenate([begin.diagonal, triangles.prices]) / scale
    free: list[tuple[float | None, float | None]] = [(None, None)] * n + [(0.0, None)] * len(triangles.prices)
    answer = minimize(
        lambda v: (lambda r: (r[0] / scale, r[1]))(negative(v * scale)),
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=free,
        options={"maxiter": ITERATIONS, "maxcor": 20},
        callback=stop,
    )
    point = answer.x * scale
    negative(point)
    # Inequalities have no negative prices, whatever the step of the last iteration was.
    priced = replace(triangles, prices=np.maximum(point[n:], 0.0))
    return Multipliers(point[:n], priced, x, begin.level, SMOOTHER * smoothing)
