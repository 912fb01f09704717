"""Branch and bound of a connected quadratic function by convex underestimators and depth-first search below them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blocklp.deadline import Deadline
from blocklp.kernels import compiled
from blocklp.problems.discrete.exact import ExactRun, ExactSettings
from blocklp.problems.qpbo.convexify import EPS, Spins, Underestimator, convexified
from blocklp.search.best_first import Expansion, Node, SearchResult
from blocklp.search.over_workers import Sharing

SpinArray = NDArray[np.int8]

ROOT_ROUNDS, ROUNDS = 20, 4
"""Rounds of triangle inequalities."""
WORK = 2e8
"""Nodes times squares of spins below a node after which what is open gets underestimators of its own, at the latest."""
PER_SECOND = 1e9
"""Additions in bounds of nodes in a second."""
SWEEPS = 60
"""Most sweeps of coordinate descent for a bound."""
ALONE = Sharing(batch=2, parts=1, subtree=1)
"""Two nodes are searched side by side on the threads of this process."""
SHARED = Sharing(batch=1, parts=16, subtree=1)
"""Nodes of a round that are searched by workers: each takes long."""
KERNELS = "blocklp.problems.qpbo.search_kernels"


@dataclass(frozen=True)
class SpinSubproblem:
    """A fixing of spins, and a function that nowhere exceeds the given one, on the spins that ``function_of`` leaves free.

    Attributes
    ----------
    fixed : numpy.ndarray, shape (n,), int8
        -1 or 1, 0 where free.
    inherited : Spins
        Of the spins that ``outer`` leaves free.
    outer : numpy.ndarray, shape (n,), int8
        A part of ``fixed``.
    """

    fixed: SpinArray
    inherited: Spins
    outer: SpinArray

    def function(self) -> Spins:
        """Fold what is fixed since ``outer``.

        Products with spins are exact.  So a sum of N of them has an error below ``N EPS / 2`` times their magnitudes; entries of the
        folded row and column are such sums, the new constant is one of such sums, added to the old one.
        """
        folded = self.inherited.fixed(self.fixed[self.outer == 0])
        size = float(np.abs(self.inherited.coupling).sum())
        charge = EPS * ((len(self.inherited.coupling) + 3) * size + abs(self.inherited.constant))
        return Spins(folded.coupling, folded.constant - charge)


class ConvexSearch:
    """Expands nodes: underestimates each anew, then searches below it.  It is pickled without its compiled loops.

    Parameters
    ----------
    spins : Spins
        The function.
    step : float
        Different values are at least this far apart, or differ by what does not matter.
    start : numpy.ndarray, shape (n,), int8
        A good labelling by spins.
    settings : ExactSettings
        How many nodes are searched below a node, and how often the clock is looked at.
    """

    def __init__(self, spins: Spins, step: float, start: SpinArray, settings: ExactSettings) -> None:
        self.spins, self.step, self.start, self.settings = spins, step, start, settings

    def root(self) -> Node:
        """Return the node of all labellings."""
        nothing = np.zeros(len(self.start), dtype=np.int8)
        return Node(-math.inf, 0, SpinSubproblem(nothing, self.spins, nothing))

    def expand(self, nodes: list[Node], incumbent: float, deadline: Deadline) -> Expansion:
        """Bound, search, and return what is left open; the log has the number of nodes bounded.

        Parameters
        ----------
        nodes, incumbent, deadline
            As in :data:`blocklp.search.over_workers.Expand`.
        """
        return _Call(self, incumbent, deadline).expanded(nodes)


class _Call:
    """Expands some nodes, with the best labelling that is known meanwhile: nothing is left of it for other nodes."""

    def __init__(self, search: ConvexSearch, incumbent: float, deadline: Deadline) -> None:
        self.spins, self.step, self.settings = search.spins, search.step, search.settings
        self.deadline, self.bounded = deadline, 0
        self.best: SpinArray | None = None
        self.value = incumbent
        self._offer(search.start)

    def expanded(self, nodes: list[Node]) -> Expansion:
        """Bound, search, and return what is left open."""
        goal = self.value - self.step
        below: list[tuple[Node, Underestimator]] = []
        late: list[Node] = []
        for node in nodes:
            if self.deadline.over():
                late.append(node)
                continue
            under = convexified(node.state.function(), ROUNDS if node.depth else ROOT_ROUNDS, goal, self.deadline)
            self.bounded += 1
            if under.bound <= goal:
                below.append((node, under))
        children = self._search(below) if below else []
        value = math.inf if self.best is None else self.value
        return Expansion([*children, *late], value, self.best, log=[self.bounded])

    def _search(self, below: list[tuple[Node, Underestimator]]) -> list[Node]:
        r"""Search below nodes by depth-first search; return what it leaves open.

        The charge for rounding, with u = EPS / 2, S sweeps, and ``R_j = |g_j| + 2 sum_i |h_ij|``, whose sum is at most 2 |z|, where
        |z| is the sum of magnitudes of the underestimator.  All points are in the box.  A slope is a running sum, never above R_j:
        every addition errs by u R_j, every product by ``8 u |h_ij|`` (a move is at most 2, and rounded itself).  After n products
        at first and as many in each of S - 1 more sweeps the slopes are off by at most e_j, of sum ``u S (n + 5) 2 |z|``.  The
        value errs by half that and ``u (n + 3) (|c| + 2 |z|)`` in its own sum, the drop below it by twice that and
        ``u (n + 3) 4 |z|``.  Together that is less than ``u (n + 5) (5 S + 6) (|z| + |c|)``; charged is
        ``u (n + 4) (8 S + 16) (|z| + |c|)``.  The test that fixes a spin adds twice a slope where the drop took it: the same errors,
        and one more rounding.
        """
        sizes = np.array([len(under.spins.coupling) - 1 for _, under in below])
        count, n = len(below), int(sizes.max())
        h, g = np.zeros((count, n, n)), np.zeros((count, n))
        true = np.zeros((count, n + 1, n + 1))
        constant, true_constant, charge = np.zeros(count), np.zeros(count), np.zeros(count)
        fixed, points = np.zeros((count, n + 2, n), dtype=np.int8), np.zeros((count, n + 2, n))
        bounds = np.full((count, n + 2), -np.inf)
        for k, (node, under) in enumerate(below):
            z, size = under.spins.coupling, sizes[k]
            own = self.spins.fixed(node.state.fixed)
            h[k, :size, :size], g[k, :size] = z[1:, 1:], 2 * z[0, 1:]
            constant[k] = under.spins.constant + z[0, 0]
            true[k, : size + 1, : size + 1], true_constant[k] = own.coupling, own.constant
            charge[k] = 4 * (SWEEPS + 2) * (n + 4) * EPS * (np.abs(z).sum() + abs(constant[k]))
            bounds[k, 0] = max(node.bound, under.bound)
            points[k, 0, :size] = 0.9 * np.clip(np.nan_to_num(under.correlations[0, 1:]), -1, 1)
        kernels = compiled.wanted(KERNELS)
        assert kernels is not None
        budget = int(min(self.settings.nodes_below, WORK / max(n, 1) ** 2))
        best, value = np.zeros((count, n), dtype=np.int8), np.full(count, np.inf)
        opened, bounded = np.ones(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        piece = budget
        if math.isfinite(self.deadline.left()):
            piece = max(1, int(self.settings.clock_every * PER_SECOND / SWEEPS / max(n, 1) ** 2))
        for begin in range(0, budget, piece):
            limits = self.step, self.value, SWEEPS, min(piece, budget - begin)
            given = (h, g, constant), (true, true_constant), sizes, charge
            stacks, found = (fixed, points, bounds, opened), (best, value, bounded)
            kernels.explore(count, *given, *limits, stacks, found)
            if self.deadline.over() or not opened.any():
                break
        self.bounded += int(bounded.sum())
        children = []
        for k, (node, under) in enumerate(below):
            outer = node.state.fixed
            if value[k] < np.inf:
                self._offer(_merged(outer, best[k, : sizes[k]]))
            for row in range(opened[k]):
                merged = _merged(outer, fixed[k, row, : sizes[k]])
                depth = int(np.count_nonzero(merged))
                children.append(Node(float(bounds[k, row]), max(depth, 1), SpinSubproblem(merged, under.spins, outer)))
        return children

    def _offer(self, spins: SpinArray) -> None:
        value = evaluate(self.spins, spins)
        if value < self.value:
            self.best, self.value = spins, value


def evaluate(spins: Spins, point: SpinArray) -> float:
    """Return the value of the function at -1 and 1."""
    s = np.concatenate([[1.0], point])
    return float(s @ spins.coupling @ s) + spins.constant


def _merged(outer: SpinArray, inner: SpinArray) -> SpinArray:
    """Put values into the free places."""
    whole = outer.copy()
    whole[outer == 0] = inner
    return whole


def search_convex(spins: Spins, step: float, start: SpinArray, run: ExactRun) -> tuple[SearchResult, SpinArray]:
    """Minimise by branch and bound with convex underestimators; the compiled loops are there.

    Parameters
    ----------
    spins : Spins
        The function, of spins -1 and 1.
    step : float
        How far apart its values are at least.
    start : ndarray
        ``(n,)`` int8: the first spins.
    run : ExactRun
        Limits, workers and settings; gets the number of nodes.

    Returns
    -------
    SearchResult, ndarray
        The result of the search, and the best spins ``(n,)``.
    """
    search = ConvexSearch(spins, step, start, run.settings)
    result = run.searched([search.root()], search.expand, ALONE, SHARED, step)
    return result, start if result.point is None else result.point
