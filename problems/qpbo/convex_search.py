"""Branch and bound of a connected quadratic function by convex underestimators and depth-first search below them."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from blocklp.deadline import Deadline
from blocklp.kernels import compiled
from blocklp.problems.discrete.exact import ExactRun, ExactSettings
from blocklp.problems.qpbo.convexify import Multipliers, Spins, Underestimator, convexified
from blocklp.problems.qpbo.triangles import EPS
from blocklp.search.best_first import Expansion, Node, SearchResult
from blocklp.search.over_workers import Sharing

SpinArray = NDArray[np.int8]

ROUNDS = 5
"""Rounds of triangle inequalities before depth-first search is tried."""
WORK = 2e8
"""Nodes times squares of spins of a depth-first search, at most: then the halves of its root get underestimators of their own."""
TRIAL = 20
"""Below a node whose part that a twentieth of these nodes closes is less than a twentieth, no more are tried."""
DEEP = 3
"""Where a third of the spins are on the stack the tree is one-sided, of which such parts say nothing."""
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
    """A fixing of spins, and where the bound of what is left begins.

    Attributes
    ----------
    fixed : numpy.ndarray, shape (n,), int8
        -1 or 1, 0 where free.
    outer : numpy.ndarray, shape (n,), int8
        A part of ``fixed``.
    multipliers : Multipliers, optional
        Of the spins that ``outer`` leaves free.
    """

    fixed: SpinArray
    outer: SpinArray
    multipliers: Multipliers | None = None

    def function(self, whole: Spins) -> Spins:
        """Fold what is fixed into a function of all spins.

        Products with spins are exact.  So a sum of N of them has an error below ``N EPS / 2`` times their magnitudes; entries of the
        folded row and column are such sums, the new constant is one of such sums, added to the old one.
        """
        folded = whole.fixed(self.fixed)
        size = float(np.abs(whole.coupling).sum())
        charge = EPS * ((len(whole.coupling) + 3) * size + abs(whole.constant))
        return Spins(folded.coupling, folded.constant - charge)

    def begin(self) -> Multipliers | None:
        """Multipliers of the spins that are free."""
        return None if self.multipliers is None else self.multipliers.fixed(self.fixed[self.outer == 0])


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
        """Return the node of all labellings; where all spins may be turned, one is fixed."""
        fixed = np.zeros(len(self.start), dtype=np.int8)
        coupling = self.spins.coupling
        if len(fixed) > 1 and not coupling[0, 1:].any():
            fixed[np.abs(coupling[1:, 1:]).sum(1).argmax()] = 1
        return Node(-math.inf, 0, SpinSubproblem(fixed, fixed))

    def expand(self, nodes: list[Node], incumbent: float, deadline: Deadline) -> Expansion:
        """Bound, search, and return what is left open; the log has the number of nodes bounded.

        Parameters
        ----------
        nodes, incumbent, deadline
            As in :data:`blocklp.search.over_workers.Expand`.
        """
        with one_blas_thread():
            return _Call(self, incumbent, deadline).expanded(nodes)


class _Call:
    """Expands some nodes, with the best labelling that is known meanwhile: nothing is left of it for other nodes."""

    def __init__(self, search: ConvexSearch, incumbent: float, deadline: Deadline) -> None:
        self.spins, self.step, self.settings = search.spins, search.step, search.settings
        self.deadline, self.bounded, self.interrupted = deadline, 0, False
        self.best: SpinArray | None = None
        self.value = incumbent
        self._offer(search.start)

    def expanded(self, nodes: list[Node]) -> Expansion:
        """Bound, search, and return what is left open."""
        goal = self.value - self.step
        below: list[tuple[Node, Underestimator]] = []
        late: list[Node] = []
        for node in nodes:
            if self.interrupted or self.deadline.over():
                late.append(node)
                continue
            part: SpinSubproblem = node.state
            under = convexified(part.function(self.spins), ROUNDS, goal, self.deadline, part.begin())
            self.bounded, self.interrupted = self.bounded + 1, under.interrupted
            if under.bound <= goal:
                below.append((node, under))
        try:
            children = self._search(below) if below else []
        except KeyboardInterrupt:  # the underestimators are there
            self.interrupted = True
            children = [_again(node, under) for node, under in below]
        value = math.inf if self.best is None else self.value
        return Expansion([*children, *late], value, self.best, log=[self.bounded], interrupted=self.interrupted)

    def _search(self, below: list[tuple[Node, Underestimator]]) -> list[Node]:
        r"""Search below nodes by depth-first search; return the halves of those that it does not finish, or themselves.

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
        bounds, parts = np.full((count, n + 2), -np.inf), np.ones((count, n + 2))
        lower = [max(node.bound, under.bound) for node, under in below]
        for k, (node, under) in enumerate(below):
            z, size = under.spins.coupling, sizes[k]
            own = self.spins.fixed(node.state.fixed)
            h[k, :size, :size], g[k, :size] = z[1:, 1:], 2 * z[0, 1:]
            constant[k] = under.spins.constant + z[0, 0]
            true[k, : size + 1, : size + 1], true_constant[k] = own.coupling, own.constant
            charge[k] = 4 * (SWEEPS + 2) * (n + 4) * EPS * (np.abs(z).sum() + abs(constant[k]))
            bounds[k, 0] = lower[k]
            points[k, 0, :size] = 0.9 * np.clip(np.nan_to_num(under.multipliers.correlations[0, 1:]), -1, 1)
        kernels = compiled.wanted(KERNELS)
        assert kernels is not None
        budget = int(min(self.settings.nodes_below, WORK / max(n, 1) ** 2))
        best, value = np.zeros((count, n), dtype=np.int8), np.full(count, np.inf)
        opened, bounded = np.ones(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        piece = budget
        if math.isfinite(self.deadline.left()):
            piece = max(1, int(self.settings.clock_every * PER_SECOND / SWEEPS / max(n, 1) ** 2))
        given, stacks = ((h, g, constant), (true, true_constant), sizes, charge), (fixed, points, bounds, parts, opened)

        def go_on(begin: int, end: int) -> None:
            for first in range(begin, end, piece):
                if not (self.interrupted or self.deadline.over()):
                    limits = self.step, self.value, SWEEPS, min(piece, end - first)
                    kernels.explore(count, *given, *limits, stacks, (best, value, bounded))

        go_on(0, 1)
        halves, half_bounds, split = fixed[:, :2].copy(), bounds[:, :2].copy(), opened.copy()
        go_on(1, budget // TRIAL)
        left = np.array([parts[k, : opened[k]].sum() for k in range(count)])
        hopeless = (left > 1 - 1 / TRIAL) & (opened < sizes / DEEP)
        opened[hopeless] = 0
        go_on(max(1, budget // TRIAL), budget)
        split[~hopeless & (opened == 0)] = 0
        self.bounded += int(bounded.sum())
        children = []
        for k, (node, under) in enumerate(below):
            outer = node.state.fixed
            if value[k] < np.inf:
                self._offer(_merged(outer, best[k, : sizes[k]]))
            if split[k] and under.gaining:  # it is taken up again with more rounds
                children.append(_again(node, under))
                continue
            for row in range(split[k]):
                state = SpinSubproblem(_merged(outer, halves[k, row, : sizes[k]]), outer, under.multipliers)
                children.append(Node(float(half_bounds[k, row]), node.depth + 1, state))
        return children

    def _offer(self, spins: SpinArray) -> None:
        value = evaluate(self.spins, spins)
        if value < self.value:
            self.best, self.value = spins, value


def _again(node: Node, under: Underestimator) -> Node:
    """Return a node as its own child, with what has been learnt of it."""
    fixed = node.state.fixed
    return Node(max(node.bound, under.bound), node.depth, SpinSubproblem(fixed, fixed, under.multipliers))


def one_blas_thread() -> AbstractContextManager[object]:
    """Matrices of some hundred rows gain nothing from more threads, and wait for them on a busy machine."""
    if find_spec("threadpoolctl") is None:
        return nullcontext()
    from threadpoolctl import ThreadpoolController

    limited: AbstractContextManager[object] = ThreadpoolController().limit(limits=1, user_api="blas")
    return limited


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
