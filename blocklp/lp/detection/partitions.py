"""Blocks by partitions of a hypergraph of the matrix with Mt-KaHyPar, where that is installed.

Three hypergraphs serve. Columns are nodes and rows are nets: rows that are cut are the master. Rows are nodes
and columns are nets: columns that are cut link. Entries are nodes, rows and columns are nets: both borders
(an arrowhead), weighed by their area.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from blocklp.lp.detection.pattern import Mask, Numbers, Pattern

IMBALANCE = 0.3
"""Parts may be larger than the average by this."""

TRIALS = (
    ("rows", 1.0),
    ("entries", 1.0),
    ("rows", 2.0),
    ("entries", 0.5),
    ("rows", 0.5),
    ("columns", 1.0),
    ("entries", 2.0),
    ("rows", 4.0),
)
"""Which hypergraph is cut into how many parts, as a multiple of the cube root of the number of rows."""

NODES_AND_PINS, PART = 1.2e5, 700
"""Work of partitions for an effort of one: nodes and entries of nets times the binary logarithm of the parts,
and what each part adds to it.
"""


def installed() -> bool:
    """Whether Mt-KaHyPar can be imported."""
    try:
        import mtkahypar  # noqa: F401
    except ImportError:
        return False
    return True


def partitions(pattern: Pattern, effort: float) -> Iterator[tuple[str, Mask, Mask]]:
    """Cut the matrix, as often as the effort allows.

    Parameters
    ----------
    pattern : Pattern
        Of the matrix.
    effort : float
        How much work, about seconds of one core.

    Yields
    ------
    how : str
        In words.
    master, linking : ndarray
        ``(rows,)`` and ``(columns,)`` bool: what is cut.
    """
    m, n = pattern.shape
    root, left = max(2.0, m ** (1 / 3)), effort * NODES_AND_PINS
    entries, done = len(pattern.rows), set[tuple[str, int]]()
    for which, multiple in TRIALS:
        parts = max(2, round(root * multiple))
        size = {"rows": n + entries, "columns": m + entries, "entries": 2.5 * entries}[which]
        work = size * math.log2(parts) + PART * parts
        if (which, parts) in done or work > left or parts >= min(m, n):
            continue
        left -= work
        done.add((which, parts))
        yield f"{which} cut into {parts} parts by Mt-KaHyPar", *_cut(pattern, which, parts)


def _cut(pattern: Pattern, which: str, parts: int) -> tuple[Mask, Mask]:
    """Rows and columns that lie in several parts."""
    m, n = pattern.shape
    entries = np.arange(len(pattern.rows))
    if which == "rows":
        part = _partition(n, [row for row in pattern.by_row if len(row) > 1], parts, None)[pattern.columns]
        return _mixed(pattern.rows, part, m), np.zeros(n, dtype=bool)
    if which == "columns":
        part = _partition(m, [column for column in pattern.by_column if len(column) > 1], parts, None)[
            pattern.rows
        ]
        return np.zeros(m, dtype=bool), _mixed(pattern.columns, part, n)
    rows = np.split(entries, np.cumsum(pattern.lengths)[:-1])
    columns = np.split(np.argsort(pattern.columns, kind="stable"), np.cumsum(pattern.heights)[:-1])
    nets = [(places.tolist(), n) for places in rows if len(places) > 1]
    nets += [(places.tolist(), m) for places in columns if len(places) > 1]
    part = _partition(len(entries), [places for places, _ in nets], parts, [weight for _, weight in nets])
    return _mixed(pattern.rows, part, m), _mixed(pattern.columns, part, n)


def _mixed(where: Numbers, part: Numbers, size: int) -> Mask:
    """Whether a row or column has entries in several parts."""
    least, most = np.full(size, np.iinfo(np.int64).max), np.full(size, -1)
    np.minimum.at(least, where, part)
    np.maximum.at(most, where, part)
    return np.asarray(most > least)


def _partition(nodes: int, nets: list[list[int]], parts: int, weights: list[int] | None) -> Numbers:
    """The part of every node; the same ones whatever the number of threads."""
    import mtkahypar

    context = _kahypar().context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
    context.logging = False
    context.set_partitioning_parameters(parts, IMBALANCE, mtkahypar.Objective.CUT)
    mtkahypar.set_seed(0)
    ones = [1] * nodes
    graph = _kahypar().create_hypergraph(context, nodes, len(nets), nets, ones, weights or [1] * len(nets))
    return np.array(graph.partition(context).get_partition(), dtype=np.int64)


@cache
def _kahypar() -> Any:
    """Mt-KaHyPar, which can be started once a process only."""
    import mtkahypar

    return mtkahypar.initialize(1, False)
