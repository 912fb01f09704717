r"""Exact reductions of heaviest independent sets, with the way home for solutions.

In this order, wherever a neighbourhood has changed: a node that weighs as much as all its neighbours enters; the weight of a
simplicial node moves to the constant, its lighter neighbours go and the others are charged; the path around a node of degree two
folds into one node, and so does the star around a node that weighs as much as all its neighbours but the lightest, if no two of them
are joined; a node goes whose neighbourhood contains that of a neighbour of no less weight; twins merge.  Then the roof dual's
integral nodes are fixed (Nemhauser and Trotter 1975).

References: S. Lamm, C. Schulz, D. Strash, R. Williger, H. Zhang, Exactly solving the maximum weight independent set problem on large
real-world graphs, ALENEX 2019; T. Akiba, Y. Iwata, Branch-and-reduce exponential/FPT algorithms in practice, Theoretical Computer
Science 609 (2016).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from blocklp.deadline import Deadline
from blocklp.problems.discrete.minimum_cut import minimum_cut
from blocklp.problems.qpbo.arrays import IntArray

FLOW = 2**30
"""Capacities and their sums stay below this: the flow runs in int32."""

PER_ARC = 1e-5
"""Seconds that a maximum flow takes for each of its arcs, at most in what was measured."""


class Entered(NamedTuple):
    """``node`` is in the set unless one of ``unless`` is."""

    node: int
    unless: tuple[int, ...]

    def lift(self, inside: set[int]) -> None:
        """Add to a set what it lacks."""
        if not inside.intersection(self.unless):
            inside.add(self.node)


class Fold(NamedTuple):
    """``first`` stood for ``first`` and ``others`` together; without them ``node`` is in the set."""

    node: int
    first: int
    others: tuple[int, ...]

    def lift(self, inside: set[int]) -> None:
        """Add to a set what it lacks."""
        inside.update(self.others if self.first in inside else (self.node,))


class Twin(NamedTuple):
    """``node`` is in the set if ``other`` is."""

    node: int
    other: int

    def lift(self, inside: set[int]) -> None:
        """Add to a set what it lacks."""
        if self.other in inside:
            inside.add(self.node)


Step = Entered | Fold | Twin


class ReducedGraph:
    """A graph that shrinks, the weight already won, and the steps that lead back.

    Parameters
    ----------
    weights : dict of int to float
        Weight of each node that is left: whole numbers, or others where sums may be rounded.
    near : dict of int to set of int
        Neighbours.
    won : float
        The heaviest set of the original graph weighs this more than that of the kernel.
    steps : tuple
        What was done, last first.
    """

    def __init__(
        self, weights: dict[int, float], near: dict[int, set[int]], won: float = 0.0, steps: list[Step] | None = None
    ) -> None:
        self.weights, self.near, self.won = weights, near, won
        self.steps: list[Step] = [] if steps is None else steps
        self._changed: set[int] = set(weights)

    def copy(self) -> ReducedGraph:
        """Return a kernel that shrinks on its own; nothing in it is marked as changed."""
        new = ReducedGraph(dict(self.weights), {v: set(s) for v, s in self.near.items()}, self.won, list(self.steps))
        new._changed = set(self._changed)
        return new

    def lift(self, members: Iterable[int]) -> set[int]:
        """Return an independent set of the original graph from one of the kernel; it weighs ``won`` more."""
        inside = set(members)
        for step in reversed(self.steps):
            step.lift(inside)
        return inside

    def drop(self, v: int) -> None:
        """Take a node out of the graph; it is not in the set."""
        for u in self.near.pop(v):
            self.near[u].discard(v)
            self._changed.add(u)
        del self.weights[v]
        self._changed.discard(v)

    def enter(self, v: int) -> None:
        """Put a node into the set."""
        self.won += self.weights[v]
        self.steps.append(Entered(v, ()))
        for u in list(self.near[v]):
            self.drop(u)
        self.drop(v)

    def reduce(self, deadline: Deadline | None = None) -> None:
        """Apply all rules until none does anything, or until the deadline."""
        while self._changed and not (deadline is not None and deadline.over()):
            v = self._changed.pop()
            if v in self.weights and any(
                rule(v) for rule in (self._heavy, self._simplicial, self._path, self._star, self._dominated, self._twin)
            ):
                if v in self.weights:
                    self._changed.add(v)

    def _heavy(self, v: int) -> bool:
        if self.weights[v] < sum(self.weights[u] for u in self.near[v]):
            return False
        self.enter(v)
        return True

    def _simplicial(self, v: int) -> bool:
        around = self.near[v]
        size = len(around)
        if any(len(self.near[u]) < size for u in around) or any(not around <= self.near[u] | {u} for u in around):
            return False
        weight = self.weights[v]
        self.won += weight
        for u in [u for u in around if self.weights[u] <= weight]:
            self.drop(u)
        rest = tuple(self.near[v])
        for u in rest:
            self.weights[u] -= weight
            self._changed |= self.near[u]
            self._changed.add(u)
        self.steps.append(Entered(v, rest))
        self.drop(v)
        return True

    def _path(self, v: int) -> bool:
        if len(self.near[v]) != 2:
            return False
        a, b = self.near[v]
        weight, both = self.weights[v], self.weights[a] + self.weights[b]
        if b in self.near[a] or weight < max(self.weights[a], self.weights[b]) or weight >= both:
            return False
        self._fold(v, a, (b,), both - weight)
        return True

    def _star(self, v: int) -> bool:
        """All neighbours, which are independent, or else v, which can replace any of them but all."""
        around = self.near[v]
        if len(around) < 3:
            return False
        weight, each = self.weights[v], [self.weights[u] for u in around]
        total = sum(each)
        if not total - min(each) <= weight < total or any(not around.isdisjoint(self.near[u]) for u in around):
            return False
        first, *others = around
        self._fold(v, first, tuple(others), total - weight)
        return True

    def _fold(self, v: int, first: int, others: tuple[int, ...], left: float) -> None:
        """Let ``first`` stand for all neighbours of v, at what they weigh more than v."""
        self.won += self.weights[v]
        self.steps.append(Fold(v, first, others))
        self.drop(v)
        for other in others:
            for u in list(self.near[other]):
                self.near[first].add(u)
                self.near[u].add(first)
            self.drop(other)
        self.weights[first] = left
        self._changed |= self.near[first] | {first}

    def _dominated(self, v: int) -> bool:
        """A neighbour u that sees no more than v does, and weighs no less, can replace v."""
        around = self.near[v]
        if not any(
            self.weights[u] >= self.weights[v] and len(self.near[u]) <= len(around) and self.near[u] <= around | {v} for u in around
        ):
            return False
        self.drop(v)
        return True

    def _twin(self, v: int) -> bool:
        around = self.near[v]
        fewest = min(around, key=lambda u: len(self.near[u]))
        for u in self.near[fewest]:
            if u != v and len(self.near[u]) == len(around) and self.near[u] == around:
                self.weights[v] += self.weights[u]
                self.steps.append(Twin(u, v))
                self.drop(u)
                return True
        return False

    def fix_by_flow(self, deadline: Deadline | None = None) -> float:
        """Fix what the roof dual decides, and reduce until the deadline; return a bound on the weight of the kernel's sets.

        Where there is no time for a flow, that is the sum of the weights.

        Weights that are not integers of a common multiple, or too large for the flow, are rounded up: they give a bound and fix
        nothing.
        """
        while self.weights:
            nodes = list(self.weights)
            weights = np.array([self.weights[v] for v in nodes])
            scale = 1.0
            total = float(weights.sum())
            if deadline is not None and not deadline.affords(PER_ARC * (2 * len(nodes) + sum(map(len, self.near.values())))):
                return math.nextafter(total, math.inf) * (1 + 2**-40) if np.any(weights % 1) else total
            exact = not np.any(weights % 1) and total < FLOW
            if not exact:
                scale = 2.0 ** np.floor(np.log2(FLOW / 2 / total))
            capacity = np.ceil(weights * scale).astype(np.int64)
            bound, ones = _roof(nodes, self.near, capacity)
            if not exact or not ones:
                # One rounding in the scaling by a power of two and none in the sum of integers.
                return bound / scale
            for v in ones:
                if v in self.weights:
                    self.enter(v)
            self.reduce(deadline)
        return 0.0


def _roof(nodes: list[int], near: dict[int, set[int]], weights: IntArray) -> tuple[float, list[int]]:
    """The half-integral optimum by a minimum cut in the double cover: value, and nodes at 1 (their neighbours are at 0)."""
    n, place = len(nodes), {v: k for k, v in enumerate(nodes)}
    tails = np.repeat(np.arange(n), [len(near[v]) for v in nodes])
    heads = np.array([place[u] for v in nodes for u in near[v]], dtype=np.int64)
    source, sink = 2 * n, 2 * n + 1
    every = np.arange(n)
    row = np.concatenate([np.full(n, source), tails, n + every])
    column = np.concatenate([every, n + heads, np.full(n, sink)])
    value = np.concatenate([weights, np.minimum(weights[tails], weights[heads]), weights])
    flow, reached = minimum_cut(2 * n + 2, row, column, value)
    ones = every[reached[:n] & ~reached[n : 2 * n]]
    return float(weights.sum()) - flow / 2, [nodes[k] for k in ones]
