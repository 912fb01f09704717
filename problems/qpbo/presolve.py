r"""Exact reductions of a quadratic pseudo-boolean function, with the way home for solutions.

*Degree.*  A variable with at most two neighbours is minimised out: :math:`\min_{y_v} y_v (a_v + p y_a + q y_b)` is again a quadratic
function of the neighbours (P. L. Hammer, I. Rosenberg, S. Rudeanu 1963, the basic algorithm, stopped where it would leave quadratic
functions).  *Persistency.*  Labels that :func:`~blocklp.problems.qpbo.persistency.verified_persistency` proves are folded in.
*Components* are left to be solved apart.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from blocklp.deadline import Deadline
from blocklp.problems.discrete.elimination import EliminationOrder, eliminate
from blocklp.problems.discrete.reduced import Elimination, Reduced, Rule, components
from blocklp.problems.qpbo.arrays import IntArray
from blocklp.problems.qpbo.instance import Qubo

LabelArray = NDArray[np.int8]


def presolve(qubo: Qubo, deadline: Deadline | None = None) -> Reduced[Qubo]:
    r"""Minimise out variables of degree at most two until none is left, or until the deadline, and split into components.

    The sum of the magnitudes of linear and quadratic coefficients never grows: on two neighbours :math:`\min(0, a + p y + q z)` has
    coefficients whose magnitudes add up to at most :math:`|a| + |p| + |q|`, whatever their signs.
    """
    near: list[dict[int, float]] = [{} for _ in range(qubo.n)]
    for (a, b), p in zip(qubo.edges.tolist(), qubo.quadratic.tolist(), strict=True):
        if p:
            near[a][b] = near[b][a] = p
    linear, offset = qubo.linear.tolist(), qubo.offset
    gone, rules = [False] * qubo.n, list[Rule]()
    waiting = [v for v in range(qubo.n) if len(near[v]) <= 2]
    while waiting and not (deadline is not None and deadline.over()):
        v = waiting.pop()
        if gone[v] or len(near[v]) > 2:
            continue
        gone[v] = True
        alone = linear[v]
        least = min(0.0, alone)
        offset += least
        pairs = tuple(near[v].items())
        near[v].clear()
        for other, p in pairs:
            del near[other][v]
            linear[other] += min(0.0, alone + p) - least
            waiting.append(other)
        if not pairs:
            rules.append((v, (), (alone < 0,)))
        elif len(pairs) == 1:
            ((a, p),) = pairs
            rules.append((v, (a,), (alone < 0, alone + p < 0)))
        else:
            (a, p), (b, q) = pairs
            both = alone + p + q
            rules.append((v, (a, b), (alone < 0, alone + q < 0, alone + p < 0, both < 0)))
            joined = near[a].get(b, 0.0) + (min(0.0, both) - min(0.0, alone + p) - min(0.0, alone + q) + least)
            if joined:
                near[a][b] = near[b][a] = joined
            elif b in near[a]:
                del near[a][b], near[b][a]
    parts, variables = _parts(np.array(linear), near, ~np.array(gone))
    return Reduced(offset, parts, Elimination([2] * qubo.n, rules, variables))


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


def minimise_by_elimination(qubo: Qubo, order: EliminationOrder, deadline: Deadline) -> IntArray | None:
    """Return a minimiser, or None where there is no time for the next table.

    Parameters
    ----------
    qubo : Qubo
        The function.
    order : EliminationOrder
        Which variables are eliminated one after the other.
    deadline : Deadline
        Asked before every table.
    """
    alone, pairs = np.zeros((qubo.n, 2)), np.zeros((len(qubo.edges), 2, 2))
    alone[:, 1], pairs[:, 1, 1] = qubo.linear, qubo.quadratic
    scopes = chain(zip(range(qubo.n)), qubo.edges.tolist())
    return eliminate([2] * qubo.n, zip(scopes, chain(alone, pairs), strict=True), order, deadline)


def _parts(
    linear: NDArray[np.float64], near: list[dict[int, float]], left: NDArray[np.bool_]
) -> tuple[tuple[Qubo, ...], list[IntArray]]:
    """Connected functions, and their variables."""
    terms = [(a, b, p) for a, others in enumerate(near) for b, p in sorted(others.items()) if a < b]
    edges, values = np.array([(a, b) for a, b, _ in terms], dtype=np.int64).reshape(-1, 2), np.array([p for _, _, p in terms])
    variables = components(edges, left)
    place, owner = np.zeros((2, len(linear)), dtype=np.int64)
    for k, mine in enumerate(variables):
        place[mine], owner[mine] = np.arange(len(mine)), k
    order = np.argsort(owner[edges[:, 0]], kind="stable")
    pairs = np.split(order, np.cumsum(np.bincount(owner[edges[:, 0]], minlength=len(variables)))[:-1])
    parts = [Qubo(linear[mine], place[edges[own]], values[own]) for mine, own in zip(variables, pairs, strict=False)]
    return tuple(parts), variables
