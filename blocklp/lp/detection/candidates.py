"""Structures worth comparing: made of classes of rows, grown from nothing, cut by a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from blocklp.lp.detection.class_subsets import class_subsets
from blocklp.lp.detection.growth import grown
from blocklp.lp.detection.partitions import partitions
from blocklp.lp.detection.pattern import Mask, Pattern, Split, split
from blocklp.lp.detection.row_classes import Form, RowFacts, row_classes
from blocklp.lp.detection.scores import Score

MASTERS, CONSTANT = 6e6, 5000
"""Work of trying borders for an effort of one: for each, all entries, rows and columns, and a constant."""

LONG = 20_000
"""Entries, for an effort of one, up to which structures grow from the two best masters of a rule, not one."""

CLASSES, GROWN = "classes of rows", ", grown"
"""How structures were found, in words."""


def by_classes(pattern: Pattern, facts: RowFacts, worth: Score, work: float) -> Iterator[tuple[str, Split]]:
    """Structures made of classes of rows, or by size alone.

    Parameters
    ----------
    pattern : Pattern
        Of the matrix.
    facts : RowFacts
        Of its rows.
    worth : callable
        The score.
    work : float
        The effort.

    Yields
    ------
    how : str
        How it was found, in words.
    found : Split
        The structure.
    """
    m, n = pattern.shape
    rows, columns = np.ones(m, dtype=bool), np.zeros(n, dtype=bool)
    fixed = facts.form >= Form.SINGLE
    rules, ends = row_classes(pattern, facts), 2 if len(pattern.rows) <= work * LONG else 1
    most = int(work * MASTERS / (CONSTANT + len(pattern.rows) + m + n)) // len(rules)

    def value(master: Mask, linking: Mask = columns) -> float:
        return worth(pattern, facts, split(pattern, master, linking))

    tried = set[bytes]()
    for name, classes in rules.items():
        for master in class_subsets(classes, fixed, value, most)[:ends]:
            if master.tobytes() not in tried:
                tried.add(master.tobytes())
                yield from _with_growth(pattern, master, columns, f"{CLASSES} by {name}")
    for master, linking in _dense(pattern, value, most)[:ends]:
        yield from _with_growth(pattern, master, linking, "dense rows and columns taken out")
    yield from _with_growth(pattern, rows, columns, "rows joined from short to long")
    yield from _with_growth(pattern, ~rows, ~columns, "columns joined from short to long")


def by_partitions(pattern: Pattern, work: float) -> Iterator[tuple[str, Split]]:
    """Structures cut by Mt-KaHyPar, which must be installed; see :func:`by_classes`."""
    for how, master, linking in partitions(pattern, work):
        yield from _with_growth(pattern, master, linking, how)


def _dense(pattern: Pattern, worth: Callable[[Mask, Mask], float], most: int) -> list[tuple[Mask, Mask]]:
    """Rows and columns with more entries than some power of two as the border: the two best ones.

    Parameters
    ----------
    pattern : Pattern
        Of the matrix.
    worth : callable
        The score of a border.
    most : int
        How many borders may be tried.
    """
    longest = int(max(pattern.lengths.max(initial=0), pattern.heights.max(initial=0)))
    limits = [2**k for k in range(1, longest.bit_length() + 1)]
    pairs = {
        (int((pattern.lengths > a).sum()), int((pattern.heights > b).sum())): (a, b)
        for a in limits
        for b in limits
    }
    # The last ones take out the least.
    chosen = list(pairs.values())[max(0, len(pairs) - most) :]
    borders = [(pattern.lengths > a, pattern.heights > b) for a, b in chosen]
    return sorted(borders, key=lambda border: -worth(*border))[:2]


def _with_growth(pattern: Pattern, master: Mask, linking: Mask, how: str) -> Iterator[tuple[str, Split]]:
    """A structure, and the one that grows from it."""
    yield how, split(pattern, master, linking)
    more = grown(pattern, master, linking)
    if not (np.array_equal(more[0], master) and np.array_equal(more[1], linking)):
        yield f"{how}{GROWN}", split(pattern, *more)
