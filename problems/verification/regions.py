"""Regions of a search for counterexamples, and what is proved of whole clauses meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blocklp.problems.verification.relu_splits import ReluSplits
from blocklp.search.best_first import Node


@dataclass(frozen=True)
class Region:
    """Open root nodes of a region (none if all clauses are impossible there); the clause of each specification."""

    splits: ReluSplits | None
    nodes: list[Node]
    clause: Sequence[int]

    def clauses(self, nodes: Iterable[Node]) -> set[int]:
        """The clauses of some open nodes."""
        return {self.clause[node.state.spec] for node in nodes}


class ClauseBounds:
    """The best bounds on the margins of clauses, each over all of its box."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}

    def least(self, count: int) -> float:
        """The bound of a query of so many clauses: minus infinity where nothing is known of one."""
        return min((self._known.get(number, -math.inf) for number in range(count)), default=math.inf)

    def hold(self, clauses: Iterable[int], bound: float) -> None:
        """Keep a bound that holds for each of some clauses, where it is their best."""
        for number in clauses:
            self._known[number] = max(self._known.get(number, bound), bound)
