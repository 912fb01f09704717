"""Best-first branch and bound for minimisation, on any problem that can split and bound its own nodes.

The search knows bounds and the incumbent; ``expand``, which the caller writes, knows the problem.  It gets
many nodes at once, for bounds that are computed in batches.  What the search proves rests on two promises of
``expand``: bounds are valid, and no part of a node is forgotten.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from blocklp.deadline import Deadline
from blocklp.errors import OptionError, OracleError
from blocklp.status import Status

REASONS = {
    Status.OPTIMAL: "The incumbent is within the tolerance of the bound.",
    Status.CUTOFF: "The bound reached the cutoff.",
    Status.INFEASIBLE: "Every node is infeasible.",
    Status.STALLED: "No node is open; unresolved ones are below incumbent and cutoff; the bound counts them.",
    Status.PASS_LIMIT: "The node limit was reached; the bound is valid. Raise max_nodes=.",
    Status.TIME_LIMIT: "The time limit was reached; the bound is valid. Raise time_limit=.",
    Status.INTERRUPTED: "Interrupted by the user or the callback; the bound is the best so far.",
}


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A subproblem.

    Attributes
    ----------
    bound : float
        Lower bound on its optimum: infinite if it is infeasible, minus infinity if nothing is known.
    depth : int
        Splits between it and the root.
    state : object
        What ``expand`` needs to go on; the search does not look at it.
    bytes : int
        Size of ``state``, for the memory limit.
    """

    bound: float
    depth: int = 0
    state: Any = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Expansion:
    """The outcome of some nodes, taken together.

    Every feasible point of these nodes is in a child or in an unresolved node, or is worth no less than an
    incumbent returned now or earlier.  So a node that gives nothing is solved exactly or infeasible, and
    children above the cutoff are returned, not dropped: their bounds are part of the final bound.

    Attributes
    ----------
    children : sequence of Node
        Their bounds may be below those of their parents.  A node not reached in time may be returned as its
        own child.
    incumbent : float
        Value of the best feasible point met on the way; infinite without one.
    point : object
        That point.
    unresolved : sequence of Node
        Nodes that can neither be closed nor split, such as a leaf whose exact solution failed.  They are not
        looked at again, and their bounds limit what the search can prove.
    log : sequence
        Whatever a proof needs to know of these nodes; a search over workers puts the entries of all in order.
    interrupted : bool
        The user has interrupted the work on these nodes: the search ends with what is known of them.
    """

    children: Sequence[Node] = ()
    incumbent: float = math.inf
    point: Any = None
    unresolved: Sequence[Node] = ()
    log: Sequence[Any] = ()
    interrupted: bool = False


@dataclass(frozen=True)
class SearchEvent:
    """The state of a search after a batch, for callbacks; ``str(event)`` is one line.

    Attributes
    ----------
    nodes, open : int
        Nodes expanded so far, nodes that wait.
    bound : float
        Lower bound on the optimum: the least of the incumbent and the bounds of open, unresolved and pruned
        nodes, or an earlier such value if it was higher; infinite if there is no feasible point.
    incumbent : float
        Value of the best point, infinite without one.
    seconds : float
        Time since the start.
    """

    nodes: int
    open: int
    bound: float
    incumbent: float
    seconds: float

    def __str__(self) -> str:
        best = f"bound {self.bound:.9g} | incumbent {self.incumbent:.9g}"
        return f"{self.nodes} nodes | {self.open} open | {self.seconds:.1f} s | {best}"


@dataclass(frozen=True)
class SearchResult(SearchEvent):
    """The end of a search.

    Attributes
    ----------
    point : object
        The best point.
    status : Status
        ``OPTIMAL``, ``CUTOFF``, ``INFEASIBLE``, ``STALLED`` (unresolved nodes are left), ``PASS_LIMIT`` (of
        nodes), ``TIME_LIMIT`` or ``INTERRUPTED``; ``reason`` is the sentence.
    unresolved : int
        Nodes given up.
    frontier : tuple of Node
        Open nodes at a limit: roots from which the search can go on.  After an interrupt some may be missing.
    closed : float
        Least bound of the nodes that were pruned; infinite if none was.
    """

    point: Any
    status: Status
    unresolved: int
    frontier: tuple[Node, ...]
    closed: float = math.inf

    @property
    def proven(self) -> bool:
        """Whether the incumbent is optimal within ``tol``, the cutoff is a bound, or no point is feasible."""
        return self.status in (Status.OPTIMAL, Status.CUTOFF, Status.INFEASIBLE)

    @property
    def reason(self) -> str:
        """Why the search ended, in one sentence."""
        return REASONS[self.status]


def relative_gap(energy: float, bound: float, floor: float = 0.0) -> float:
    """``|energy - bound| / max(|energy|, |bound|, floor)``.

    Parameters
    ----------
    energy, bound : float
        Value of a point, and a bound.
    floor : float
        Least number that the gap is relative to.

    Returns
    -------
    float
        Zero where both are equal, infinite where only one of them is finite.
    """
    if energy == bound:
        return 0.0
    if not (math.isfinite(energy) and math.isfinite(bound)):
        return math.inf
    return abs(energy - bound) / max(abs(energy), abs(bound), floor)


def branch_and_bound(
    roots: Iterable[Node],
    expand: Callable[[list[Node]], Expansion],
    *,
    batch: int = 64,
    tol: float = 0.0,
    cutoff: float = math.inf,
    max_nodes: int | None = None,
    time_limit: float | Deadline = math.inf,
    memory: float = math.inf,
    callback: Callable[[SearchEvent], Any] | None = None,
) -> SearchResult:
    """Minimise over ``roots``; return the best so far at a limit or an interrupt.

    Nodes whose bound reaches the cutoff, or comes within ``tol`` of the incumbent, are pruned.  The others
    are expanded by least bound; among equals the deepest, then the oldest, comes first, so that a search
    repeats itself.

    Parameters
    ----------
    roots : iterable of Node
        Nodes that cover the problem.
    expand : callable
        Splits, bounds and solves a list of nodes of any depths, see :class:`Expansion`.
    batch : int
        Most nodes that ``expand`` gets at once.
    tol : float
        Absolute gap at which the incumbent is optimal.
    cutoff : float
        The search is over once the bound reaches this value.  One that only asks whether it does can stop by
        ``callback`` at an incumbent below it.
    max_nodes : int, optional
        Most nodes to expand.
    time_limit : float or Deadline
        Seconds; looked at between batches.
    memory : float
        While open nodes have more ``bytes`` than this, the deepest come first; a depth-first search still
        goes above it.
    callback : callable, optional
        Gets a :class:`SearchEvent` after every batch; True stops.

    Returns
    -------
    SearchResult
        The best point, the bound, and why the search ended.

    Raises
    ------
    OptionError
        If an option is out of range.
    OracleError
        If a bound or an incumbent is NaN.

    Examples
    --------
    The least x² - 5x among the integers up to 1000; a state is an interval.

    >>> from blocklp.search.best_first import Expansion, Node, branch_and_bound
    >>> def node(a, b):
    ...     return Node(a * a - 5 * b, state=(a, b))
    >>> def expand(nodes):
    ...     split = [(a, (a + b) // 2, b) for a, b in (node.state for node in nodes)]
    ...     children = [node(*half) for a, m, b in split if a < b for half in ((a, m), (m + 1, b))]
    ...     return Expansion(children, *min((m * m - 5 * m, m) for _, m, _ in split))
    >>> result = branch_and_bound([node(0, 1000)], expand)
    >>> result.incumbent, result.point, result.proven
    (-6.0, 3, True)
    """
    most = math.inf if max_nodes is None else max_nodes
    deadline = Deadline.of(time_limit)
    if not (batch >= 1 and most >= 1 and memory > 0):
        raise OptionError(f"{batch=}, {max_nodes=}, {memory=}; all must be positive")
    check_goal(tol, cutoff)
    began, search = time.perf_counter(), OpenNodes(cutoff, tol)
    search.add(Expansion(tuple(roots)))

    def step(event: SearchEvent) -> SearchEvent:
        nodes = search.take(int(min(batch, most - event.nodes)), deepest=search.bytes > memory)
        search.add(expand(nodes))
        return search.event(event.nodes + len(nodes), began)

    event, status = searched(search, step, most, deadline, began, callback)
    return search.result(event, status, time.perf_counter() - began)


def searched(
    search: OpenNodes,
    step: Callable[[SearchEvent], SearchEvent],
    most: float,
    deadline: Deadline,
    began: float,
    callback: Callable[[SearchEvent], Any] | None,
    away: Sequence[Any] = (),
) -> tuple[SearchEvent, Status]:
    """Expand nodes until the bound is a proof, a limit is reached, or who watches wants no more.

    Parameters
    ----------
    search : OpenNodes
        Those of the start.
    step : callable
        Expands some nodes; gets the last event and returns the next one.
    most, deadline
        Most nodes to expand, and when to stop.
    began : float
        Reading of the clock at the start.
    callback : callable or None
        Gets every event; True stops.
    away : sequence
        Not empty while workers have nodes.

    Returns
    -------
    event, status : SearchEvent, Status
        The last event, and why the search ended, unless the bound is a proof.
    """
    # An interrupt may lose the nodes of a batch or leave the heap half built.  So the result comes from the
    # last event, whose bound still holds, and from the incumbent, which may be newer.
    event = search.event(0, began)
    try:
        while (search.heap or away) and event.bound < search.goal():
            if event.nodes >= most or deadline.over():
                return event, Status.PASS_LIMIT if event.nodes >= most else Status.TIME_LIMIT
            event = step(event)
            if (callback is not None and callback(event)) or search.interrupted:
                return event, Status.INTERRUPTED
    except KeyboardInterrupt:
        return event, Status.INTERRUPTED
    return event, Status.STALLED


def check_goal(tol: float, cutoff: float) -> None:
    """Raise an ``OptionError`` unless a tolerance and a cutoff make sense."""
    if not 0 <= tol < math.inf or math.isnan(cutoff):
        raise OptionError(f"{tol=}, {cutoff=}; tol must be finite and not negative, cutoff not NaN")


class OpenNodes:
    """Open nodes, in a heap of ``(bound, -depth, number, node)``, and what is known of all others.

    Parameters
    ----------
    cutoff, tol : float
        As in :func:`branch_and_bound`.
    incumbent : float
        Value of a point that is known elsewhere.
    """

    def __init__(self, cutoff: float, tol: float, incumbent: float = math.inf) -> None:
        self.cutoff, self.tol = cutoff, tol
        self.heap: list[tuple[float, float, int, Node]] = []
        self.bytes = self.numbered = self.unresolved = 0
        self.interrupted = False
        # A pair: an interrupt cannot part the value from its point.
        self.best: tuple[float, Any] = (incumbent, None)
        self.bound = -math.inf
        # The least bounds of pruned and of unresolved nodes; they may be below the incumbent.
        self.pruned = self.given_up = math.inf

    def goal(self) -> float:
        """Return the bound at which nodes are pruned, and the search is over."""
        return min(self.cutoff, self.best[0] - self.tol)

    def take(self, count: int, deepest: bool) -> list[Node]:
        """Take out the nodes of least bound, or the deepest."""
        if deepest:
            taken = heapq.nsmallest(count, self.heap, key=itemgetter(1, 0, 2))
            numbers = {entry[2] for entry in taken}
            self.heap = [entry for entry in self.heap if entry[2] not in numbers]
            heapq.heapify(self.heap)
        else:
            taken = [heapq.heappop(self.heap) for _ in range(min(count, len(self.heap)))]
        nodes = [entry[3] for entry in taken]
        self.bytes -= sum(node.bytes for node in nodes)
        return nodes

    def add(self, new: Expansion) -> None:
        """Push the children that are not pruned; a better incumbent prunes open nodes too."""
        if any(map(math.isnan, (new.incumbent, *(node.bound for node in (*new.children, *new.unresolved))))):
            need = "a node of which nothing is known has the bound -inf"
            raise OracleError(f"a bound or an incumbent is NaN; {need}")
        if new.incumbent < self.best[0]:
            self.best = (float(new.incumbent), new.point)
            self.heap = [entry for entry in self.heap if not self._pruned(entry[3])]
            heapq.heapify(self.heap)
            self.bytes = sum(entry[3].bytes for entry in self.heap)
        for node in new.children:
            if not self._pruned(node):
                heapq.heappush(self.heap, (float(node.bound), -float(node.depth), self.numbered, node))
                self.numbered += 1
                self.bytes += node.bytes
        self.interrupted |= new.interrupted
        self.given_up = min([self.given_up, *(float(node.bound) for node in new.unresolved)])
        self.unresolved += len(new.unresolved)

    def _pruned(self, node: Node) -> bool:
        if node.bound < self.goal():
            return False
        self.pruned = min(self.pruned, float(node.bound))
        return True

    def event(self, nodes: int, began: float, away: Sequence[Node] = ()) -> SearchEvent:
        """Update the bound and return the numbers of this moment.

        Parameters
        ----------
        nodes : int
            Nodes expanded so far.
        began : float
            Reading of the clock at the start.
        away : sequence of Node
            Open nodes that workers have.
        """
        least = min([self.heap[0][0] if self.heap else math.inf, *(float(node.bound) for node in away)])
        # An earlier bound may be higher, and by rounding above the incumbent.
        self.bound = min(max(self.bound, min(least, self.pruned, self.given_up)), self.best[0])
        seconds = time.perf_counter() - began
        return SearchEvent(nodes, len(self.heap) + len(away), self.bound, self.best[0], seconds)

    def result(
        self, event: SearchEvent, status: Status, seconds: float, away: Sequence[Node] = ()
    ) -> SearchResult:
        """Return the end of a search.

        Parameters
        ----------
        event : SearchEvent
            The last one.
        status : Status
            Why it ended, unless the bound is a proof.
        seconds : float
            Time since the start.
        away : sequence of Node
            Open nodes that workers have not given back.
        """
        incumbent, point = self.best
        bound = min(event.bound, incumbent)
        if bound >= self.goal():
            proof = Status.OPTIMAL if bound >= incumbent - self.tol else Status.CUTOFF
            status = Status.INFEASIBLE if bound == math.inf else proof
        frontier = (*(entry[3] for entry in self.heap), *away)
        numbers = event.nodes, event.open, bound, incumbent, seconds
        return SearchResult(*numbers, point, status, self.unresolved, frontier, self.pruned)
