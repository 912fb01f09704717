r"""Exact reductions of a quadratic pseudo-boolean function, with the way home for solutions.

*Degree.*  A variable with at most two neighbours is minimised out: :math:`\min_{y_v} y_v (a_v + p y_a + q y_b)` is again a quadratic
function of the neighbours (P. L. Hammer, I. Rosenberg, S. Rudeanu 1963, the basic algorithm, stopped where it would leave quadratic
functions).  *Persistency.*  Labels that :func:`~blocklp.problems.qpbo.persistency.verified_persistency` proves are folded in.
*Components* are left to be solved apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from blocklp.deadline import Deadline
from blocklp.problems.qpbo.arrays import IntArray
from blocklp.problems.qpbo.instance import Qubo

LabelArray = NDArray[np.int8]
Rule = tuple[int, float, tuple[tuple[int, float], ...]]
"""A variable, its coefficient and those of its pairs when it was minimised out."""


@dataclass(frozen=True)
class FunctionPart:
    """A connected function that is left.

    Attributes
    ----------
    qubo : Qubo
        The function, with offset zero.
    variables : numpy.ndarray, shape (qubo.n,), int64
        Its variables in the given function.
    """

    qubo: Qubo
    variables: IntArray


@dataclass(frozen=True)
class Presolved:
    """What is left, and how to come back.

    Attributes
    ----------
    n : int
        Number of variables of the given function.
    offset : float
        The minimum is that of the parts plus this.
    parts : tuple of FunctionPart
        Functions without common variables.
    rules : tuple
        Variables minimised out, in order.
    """

    n: int
    offset: float
    parts: tuple[FunctionPart, ...]
    rules: tuple[Rule, ...]

    def lift(self, labels: list[LabelArray]) -> LabelArray:
        """Return labels of the given function from labels of the parts, of the same value but for rounding.

        Parameters
        ----------
        labels : list of numpy.ndarray, shape (part.qubo.n,)
        """
        whole = np.zeros(self.n, dtype=np.int8)
        for part, mine in zip(self.parts, labels, strict=True):
            whole[part.variables] = mine
        for variable, linear, pairs in reversed(self.rules):
            whole[variable] = linear + sum(p * whole[other] for other, p in pairs) < 0
        return whole


def presolve(qubo: Qubo, deadline: Deadline | None = None) -> Presolved:
    r"""Minimise out variables of degree at most two until none is left, or until the deadline, and split into components.

    The sum of the magnitudes of linear and quadratic coefficients never grows: on two neighbours :math:`\min(0, a + p y + q z)` has
    coefficients whose magnitudes add up to at most :math:`|a| + |p| + |q|`, whatever their signs.
    """
    near: list[dict[int, float]] = [{} for _ in range(qubo.n)]
    for (a, b), p in zip(qubo.edges.tolist(), qubo.quadratic.tolist(), strict=True):
        if p:
            near[a][b] = near[b][a] = p
    linear, offset = qubo.linear.tolist(), qubo.offset
    gone, rules = [False] * qubo.n, []
    waiting = [v for v in range(qubo.n) if len(near[v]) <= 2]
    while waiting and not (deadline is not None and deadline.over()):
        v = waiting.pop()
        if gone[v] or len(near[v]) > 2:
            continue
        gone[v] = True
        pairs = tuple(near[v].items())
        rules.append((v, linear[v], pairs))
        for other, _ in pairs:
            del near[other][v]
        waiting += [other for other, _ in pairs]
        least = min(0.0, linear[v])
        offset += least
        alone = [min(0.0, linear[v] + p) - least for _, p in pairs]
        for (other, _), change in zip(pairs, alone, strict=True):
            linear[other] += change
        if len(pairs) == 2:
            (a, p), (b, q) = pairs
            together = min(0.0, linear[v] + p + q) - least - alone[0] - alone[1]
            joined = near[a].get(b, 0.0) + together
            if joined:
                near[a][b] = near[b][a] = joined
            elif b in near[a]:
                del near[a][b], near[b][a]
    return Presolved(qubo.n, offset, _parts(np.array(linear), near, gone), tuple(rules))


def fold(qubo: Qubo, labels: LabelArray) -> tuple[Qubo | None, IntArray, float]:
    """Fix variables; return the function of the others, these, and the constant that it lacks.

    Parameters
    ----------
    labels : numpy.ndarray, shape (n,), int8
        0 or 1 where fixed, -1 elsewhere.
    """
    ones, free = labels == 1, labels == -1
    first, second = qubo.edges.T
    constant = qubo.offset + float(qubo.linear[ones].sum()) + float(qubo.quadratic[ones[first] & ones[second]].sum())
    if not free.any():
        return None, np.zeros(0, dtype=np.int64), constant
    linear = qubo.linear.copy()
    for a, b in ((first, second), (second, first)):
        np.add.at(linear, a[ones[b]], qubo.quadratic[ones[b]])
    place = np.cumsum(free) - 1
    kept = free[first] & free[second]
    return Qubo(linear[free], place[qubo.edges[kept]], qubo.quadratic[kept]), np.flatnonzero(free), constant


def _parts(linear: NDArray[np.float64], near: list[dict[int, float]], gone: list[bool]) -> tuple[FunctionPart, ...]:
    n = len(linear)
    edges = np.array([(a, b) for a in range(n) for b in near[a] if a < b], dtype=np.int64).reshape(-1, 2)
    order = np.lexsort((edges[:, 1], edges[:, 0]))
    edges = edges[order]
    values = np.array([near[a][b] for a, b in edges.tolist()])
    _, owner = connected_components(coo_array((np.ones(len(edges)), edges.T), shape=(n, n)), directed=False)
    owner[np.array(gone, dtype=bool)] = -1
    parts = []
    for k in np.unique(owner[owner >= 0]):
        mine = owner == k
        place = np.cumsum(mine) - 1
        inside = mine[edges[:, 0]] if len(edges) else np.zeros(0, dtype=bool)
        parts.append(FunctionPart(Qubo(linear[mine], place[edges[inside]], values[inside]), np.flatnonzero(mine)))
    return tuple(parts)
