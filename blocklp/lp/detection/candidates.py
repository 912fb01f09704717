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

LEAST = 8
"""Borders that each rule may try in any case."""

LONG = 20_000
"""Entries, for an effort of one, up to which structures grow from the two best masters of a rule, not one."""

ENTRIES = 1e6
"""Work of growing structures for an effort of one: entries of the rows and columns of all borders."""

CLASSES, GROWN = "classes of rows", ", grown"
"""How structures were found, in words."""


class StructureCandidates:
    """Structures of a matrix, with words that say how each was found.

    Parameters
    ----------
    pattern, facts : Pattern, RowFacts
        Nonzeros of the matrix, and what its rows are like.
    worth : callable
        The score.
    effort : float
        How much work, about seconds of one core.
    """

    def __init__(self, pattern: Pattern, facts: RowFacts, worth: Score, effort: float) -> None:
        self.pattern, self.facts, self.worth, self.effort = pattern, facts, worth, effort
        self.left = ENTRIES * effort

    def by_classes(self) -> Iterator[tuple[str, Split]]:
        """Structures made of classes of rows, or by size alone."""
        pattern, (m, n) = self.pattern, self.pattern.shape
        rows, columns = np.ones(m, dtype=bool), np.zeros(n, dtype=bool)
        rules, size = row_classes(pattern, self.facts), len(pattern.rows)
        ends = 2 if size <= self.effort * LONG else 1
        most = max(LEAST, int(self.effort * MASTERS / (CONSTANT + size + m + n)) // len(rules))

        def value(master: Mask, linking: Mask = columns) -> float:
            return self.worth(pattern, self.facts, split(pattern, master, linking))

        tried = set[bytes]()
        for name, classes in rules.items():
            for master in class_subsets(classes, self.facts.form >= Form.SINGLE, value, most)[:ends]:
                if master.tobytes() not in tried:
                    tried.add(master.tobytes())
                    yield from self._grown(master, columns, f"{CLASSES} by {name}")
        for master, linking in _dense(pattern, value, most)[:ends]:
            yield from self._grown(master, linking, "dense rows and columns taken out")
        yield from self._grown(rows, columns, "rows joined from short to long")
        yield from self._grown(~rows, ~columns, "columns joined from short to long")

    def by_partitions(self) -> Iterator[tuple[str, Split]]:
        """Structures cut by Mt-KaHyPar, which must be installed."""
        for how, master, linking in partitions(self.pattern, self.effort):
            yield from self._grown(master, linking, how)

    def _grown(self, master: Mask, linking: Mask, how: str) -> Iterator[tuple[str, Split]]:
        """A structure, and the one that grows from it if there is work left."""
        pattern = self.pattern
        yield how, split(pattern, master, linking)
        size = int(pattern.lengths[master].sum() + pattern.heights[linking].sum())
        if size > self.left:
            return
        self.left -= size
        more = grown(pattern, master, linking)
        if not (np.array_equal(more[0], master) and np.array_equal(more[1], linking)):
            yield f"{how}{GROWN}", split(pattern, *more)


def _dense(pattern: Pattern, worth: Callable[[Mask, Mask], float], most: int) -> list[tuple[Mask, Mask]]:
    """Rows and columns with more entries than some power of two as the border: the two best of ``most``."""
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
