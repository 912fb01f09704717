"""Sweeps of sequential reweighted message passing, compiled for the CPU (see :mod:`blocklp.problems.mrf.messages`)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from blocklp.kernels.compiled import compile

SECONDS = 10.0
"""What it takes to compile all of these loops, on a busy machine."""


@compile(nogil=True, error_model="numpy")
def least_of(costs: Any, parts: Any, found: Any) -> None:
    """The least cost in a table with each label of a part.

    Parameters
    ----------
    costs, parts : array
        ``(entries,)``: the table, and the label of the part in every entry.
    found : array
        ``(labels,)``, which is written.
    """
    found[:] = np.inf
    for k in range(len(costs)):
        if costs[k] < found[parts[k]]:
            found[parts[k]] = costs[k]


@compile(nogil=True, error_model="numpy")
def add_to(costs: Any, parts: Any, change: Any) -> None:
    """Add a number for each label of a part to all entries with it.

    Parameters
    ----------
    costs, parts : array
        ``(entries,)``: the table, which is changed, and the label of the part in every entry.
    change : array
        ``(labels,)``.
    """
    for k in range(len(costs)):
        costs[k] += change[parts[k]]


@compile(nogil=True, error_model="numpy")
def sweep(
    order: Any, ends: Any, table: Any, size: Any, begin: Any, place: Any, gives: Any, share: Any, column: Any, labels: Any,
    parts: Any, costs: Any, multipliers: Any, found: Any,
) -> None:  # fmt: skip
    """Have each part collect what the tables around it can lose, and deal shares out to those that go on.

    Parameters
    ----------
    order : array
        Parts in the order of the sweep.
    ends : array
        ``(parts + 1,)``: the places of a part are those from ``ends[i]`` to before ``ends[i + 1]``.
    table, size, begin, place : array
        Of a place: where its table begins in ``costs``, its entries, and where ``parts`` and ``multipliers`` of it begin.
    gives : array
        Of a place: whether its table has a later part in the order of the sweep.
    share : array
        Of a part: what each of those gets.
    column, labels : array
        Of a part: where its own costs begin in ``costs``, and how many there are.
    parts, costs, multipliers : array
        Labels of parts by entries of tables; reparametrised costs, and what was added to tables, which are changed.
    found : array
        ``(most places of a part, most labels of a part)``: scratch.
    """
    for i in order:
        own = costs[column[i] : column[i] + labels[i]]
        giving = 0
        for e in range(ends[i], ends[i + 1]):
            least = found[e - ends[i], : labels[i]]
            least_of(costs[table[e] : table[e] + size[e]], parts[begin[e] : begin[e] + size[e]], least)
            own += least
            giving += gives[e]
        for e in range(ends[i], ends[i + 1]):
            change = found[e - ends[i], : labels[i]]
            for label in range(labels[i]):
                change[label] = share[i] * own[label] - change[label] if gives[e] else -change[label]
            add_to(costs[table[e] : table[e] + size[e]], parts[begin[e] : begin[e] + size[e]], change)
            multipliers[place[e] : place[e] + labels[i]] += change
        own *= 1 - share[i] * giving


@compile(nogil=True, error_model="numpy")
def label_in_turn(
    nodes: Any, ends: Any, table: Any, size: Any, begin: Any, column: Any, labels: Any,
    parts: Any, costs: Any, found: Any, chosen: Any,
) -> None:  # fmt: skip
    """Give each node in turn the label of least cost beside those given before.

    Parameters
    ----------
    nodes : array
        Parts that are single nodes, in turn.
    ends, table, size, begin, column, labels, parts, found : array
        As in :func:`sweep`.
    costs : array
        Reparametrised costs, which lose all entries with other labels.
    chosen : array
        ``(parts,)``: labels, written where a part is a node.
    """
    for i in nodes:
        own = costs[column[i] : column[i] + labels[i]]
        least = found[0, : labels[i]]
        for e in range(ends[i], ends[i + 1]):
            least_of(costs[table[e] : table[e] + size[e]], parts[begin[e] : begin[e] + size[e]], least)
            own += least
        chosen[i] = own.argmin()
        least[:] = np.inf
        least[chosen[i]] = 0.0
        for e in range(ends[i], ends[i + 1]):
            add_to(costs[table[e] : table[e] + size[e]], parts[begin[e] : begin[e] + size[e]], least)


def rehearse() -> None:
    """Compile all loops."""
    from blocklp.problems.mrf.instance import Mrf
    from blocklp.problems.mrf.messages import Messages
    from blocklp.problems.mrf.relaxation import relax

    passing = Messages(relax(Mrf([2, 2, 2], [((0, 1, 2), np.ones((2, 2, 2)))]), "edges"), sys.modules[__name__])
    passing.sweep()
    passing.labelling()
