"""Minimisation of a sum of tables by eliminating variables one after another: exact, in time and memory exponential in the width.

All tables that name a variable are added up in one over its neighbours, which its minimum then joins (bucket elimination: R. Dechter,
Artificial Intelligence 113 (1999)).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blocklp.deadline import Deadline
from blocklp.problems.qpbo.arrays import FloatArray, IntArray

PER_ENTRY = 1e-8
"""Seconds that it takes to add a table to another, for each entry, on a busy machine."""


@dataclass(frozen=True)
class EliminationOrder:
    """An order of elimination.

    Attributes
    ----------
    variables : list of int
        The order.
    width : int
        Most neighbours at the time of elimination.
    work : float
        Entries of all tables.
    """

    variables: list[int]
    width: int
    work: float


def eliminate(
    counts: Sequence[int], factors: Iterable[tuple[Sequence[int], FloatArray]], order: EliminationOrder, deadline: Deadline
) -> IntArray | None:
    """Return a minimiser, or None where there is no time for the next table.

    Parameters
    ----------
    counts : sequence of int
        Labels of each variable.
    factors : iterable of (sequence of int, ndarray)
        Variables, one or more, and a table with an axis for each; entries may be infinite.
    order : EliminationOrder
        Which variables are eliminated one after the other.
    deadline : Deadline
        Asked before every table.

    Returns
    -------
    ndarray or None
        ``(variables,)`` int64.
    """
    place = [0] * len(counts)
    for number, i in enumerate(order.variables):
        place[i] = number
    buckets: list[list[tuple[tuple[int, ...], FloatArray]]] = [[] for _ in counts]
    for scope, table in factors:
        # Into the bucket of its first variable in the order, its axes in that order too.
        axes = sorted(range(len(scope)), key=[place[j] for j in scope].__getitem__)
        buckets[scope[axes[0]]].append((tuple(scope[k] for k in axes), table.transpose(axes)))
    choices: list[tuple[int, tuple[int, ...], NDArray[np.unsignedinteger]]] = []
    for i in order.variables:
        own, buckets[i] = buckets[i], []
        variables = tuple(sorted({i}.union(*(mine for mine, _ in own)), key=place.__getitem__))
        shape = [counts[j] for j in variables]
        if not deadline.affords(PER_ENTRY * math.prod(shape) * (len(own) + 2)):
            return None
        total = np.zeros(shape)
        for mine, table in sorted(own, key=lambda entry: -entry[1].size):
            # Some axes are only to be inserted.
            total += table.reshape([counts[j] if j in mine else 1 for j in variables])
        # Of two labels a bit says which is the better one.
        best = np.packbits(total[1] < total[0]) if counts[i] == 2 else total.argmin(0).astype(np.min_scalar_type(counts[i])).ravel()
        choices.append((i, variables[1:], best))
        if len(variables) > 1:
            buckets[variables[1]].append((variables[1:], total.min(0)))
    labels = [0] * len(counts)
    for i, others, best in reversed(choices):
        position = 0
        for j in others:
            position = position * counts[j] + labels[j]
        labels[i] = int(best[position >> 3]) >> (7 - (position & 7)) & 1 if counts[i] == 2 else int(best[position])
    return np.array(labels, dtype=np.int64)
