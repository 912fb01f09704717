"""Best-first branch and bound whose nodes are expanded by the workers of an executor.

One process holds the open nodes, the incumbent and the bound.  Workers get nodes of least bound, search below
them for a while on their own, by the same rule, and give back what is still open; so every worker has work as
long as there are open nodes, whoever has made them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from blocklp.campaigns.executors import Executor, Shared
from blocklp.deadline import Deadline
from blocklp.errors import OptionError, ProcessError
from blocklp.search.best_first import (
    Expansion,
    Node,
    OpenNodes,
    SearchEvent,
    SearchResult,
    check_goal,
    searched,
)
from blocklp.search.parcels import Parcel

RETRIES = 2
"""How often nodes are sent again whose worker's process ended, before they count as unresolved."""

Expand = Callable[..., Expansion]
"""Takes nodes, the value of the incumbent, a deadline and, where there is some, advice."""


@dataclass(frozen=True)
class Sharing:
    """How open nodes are shared among workers.

    Attributes
    ----------
    batch : int
        Most nodes that ``expand`` gets at once.
    parts : int
        Most tasks of a round in deterministic mode; at least the number of workers keeps all busy.
    least : int
        Nodes that a task gets at least, if there are so many: where a few cost as much as one.
    subtree : int
        Nodes that a task expands, at least one batch: its own and those below them.
    deterministic : bool
        Work in rounds whose tasks do not depend on workers, and put their results together in order: nodes,
        points and the log are the same for any number of workers, as far as ``expand`` is a function of its
        arguments and time does not run out.  Otherwise a worker that is free gets the best nodes at once.
    memory : float
        While open nodes have more ``bytes`` than this, the deepest come first.
    """

    batch: int = 16
    parts: int = 8
    subtree: int = 64
    deterministic: bool = True
    memory: float = math.inf
    least: int = 1


@dataclass(eq=False)
class _Part:
    """Nodes that a worker has."""

    nodes: list[Node]
    most: int
    advice: tuple[Any, ...]
    future: Future[Parcel[tuple[Expansion, int]]]
    tries: int = 0


def branch_and_bound_over(
    executor: Executor,
    roots: Iterable[Node],
    expand: Expand,
    *,
    sharing: Sharing | None = None,
    tol: float = 0.0,
    cutoff: float = math.inf,
    max_nodes: int | None = None,
    time_limit: float | Deadline = math.inf,
    callback: Callable[[SearchEvent], Any] | None = None,
    log: Callable[[Any], Any] | None = None,
    advice: Callable[[], Any] | None = None,
) -> SearchResult:
    """Minimise over ``roots`` with workers, as :func:`branch_and_bound` does without.

    A worker whose process ends loses nothing: its nodes are sent to another, twice at most, and are
    unresolved then.

    Parameters
    ----------
    executor : Executor
        Where nodes are expanded.  Workers that are busy when the search ends still finish their nodes.
    roots : iterable of Node
        Nodes that cover the problem.
    expand : callable
        Can be pickled, and is sent to every worker once: it has what a worker needs to state the problem.  It
        gets a list of nodes, the value of the incumbent, a deadline, and advice if there is some, and returns
        an :class:`Expansion`: an incumbent that it returns is a point of its own.  It keeps nothing of one
        call for another one; tensors in states travel as arrays.
    sharing : Sharing, optional
        How nodes are shared; by default in rounds.
    tol, cutoff, max_nodes, time_limit
        As in :func:`branch_and_bound`; nodes that workers have at the deadline are part of the frontier.
    callback : callable, optional
        Gets a :class:`SearchEvent` whenever nodes have come back; True stops.
    log : callable, optional
        Gets the entries of ``Expansion.log`` one by one, before ``callback`` hears of these nodes.
    advice : callable, optional
        Called for every task when it is handed out, in order; ``expand`` gets the value as its fourth
        argument: what all nodes so far have taught, such as pseudo-costs, of which ``log`` brings the news.

    Raises
    ------
    OptionError, OracleError
        As :func:`branch_and_bound` does.
    """
    plan = Sharing() if sharing is None else sharing
    most, deadline = math.inf if max_nodes is None else max_nodes, Deadline.of(time_limit)
    if not (min(plan.batch, plan.parts, plan.subtree, plan.least, most) >= 1 and plan.memory > 0):
        raise OptionError(f"{plan}, {max_nodes=}; all must be positive")
    check_goal(tol, cutoff)
    began = time.perf_counter()
    search = _SharedSearch(executor, expand, plan, OpenNodes(cutoff, tol), deadline, advice)
    nodes = search.nodes
    nodes.add(Expansion(tuple(roots)))
    entries: list[Any] = []

    def step(event: SearchEvent) -> SearchEvent:
        search.send(most - event.nodes)
        expanded, entries[:] = search.receive()
        return nodes.event(event.nodes + expanded, began, search.held())

    def heard(event: SearchEvent) -> Any:
        if log is not None:
            for entry in entries:
                log(entry)
        return callback is not None and callback(event)

    try:
        event, status = searched(nodes, step, most, deadline, began, heard, search.away)
    finally:
        for part in search.away:  # those that no worker has begun
            part.future.cancel()
    return nodes.result(event, status, time.perf_counter() - began, search.held())


@dataclass
class _SharedSearch:
    """Open nodes here, and those that workers have."""

    executor: Executor
    expand: Expand
    plan: Sharing
    nodes: OpenNodes
    deadline: Deadline
    advice: Callable[[], Any] | None = None
    away: list[_Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shared = self.executor.share(self.expand)

    def held(self) -> list[Node]:
        """Return the nodes that workers have."""
        return [node for part in self.away for node in part.nodes]

    def send(self, room: float) -> None:
        """Hand out the best nodes: those of a round once the last is over, or some to each free worker."""
        plan, nodes = self.plan, self.nodes
        if plan.deterministic:
            tasks = 0 if self.away else plan.parts
        else:
            tasks = self.executor.workers - len(self.away)
        tasks = int(min(tasks, len(nodes.heap), room))
        if not tasks:
            return
        tasks = min(tasks, max(1, len(nodes.heap) // plan.least))
        few = len(nodes.heap) < plan.parts  # then workers come back soon, so that all have some
        taken = nodes.take(int(min(tasks * plan.batch, room)), deepest=nodes.bytes > plan.memory)
        most = int(min(plan.batch if few else max(plan.subtree, plan.batch), room // tasks))
        for k in range(tasks):
            own = taken[k::tasks]  # so that all get nodes as good as those of the others
            advice = () if self.advice is None else (self.advice(),)
            self.away.append(_Part(own, most, advice, self._submit(own, most, advice)))

    def receive(self) -> tuple[int, list[Any]]:
        """Wait for nodes; return how many have been expanded, and the entries of the log."""
        when = ALL_COMPLETED if self.plan.deterministic else FIRST_COMPLETED
        left = self.deadline.left()
        wait([part.future for part in self.away], None if math.isinf(left) else left, when)
        for part in self.away:
            if _lost(part.future) and part.tries < RETRIES:
                part.future, part.tries = self._submit(part.nodes, part.most, part.advice), part.tries + 1
        if self.plan.deterministic and not all(part.future.done() for part in self.away):
            return 0, []
        expanded, entries = 0, list[Any]()
        for part in [part for part in self.away if part.future.done()]:
            if _lost(part.future):
                found, count = Expansion(unresolved=part.nodes), 0
            else:
                found, count = part.future.result().value
            self.nodes.add(found)
            self.away.remove(part)
            expanded += count
            entries += found.log
        return expanded, entries

    def _submit(
        self, own: list[Node], most: int, advice: tuple[Any, ...]
    ) -> Future[Parcel[tuple[Expansion, int]]]:
        nodes, seconds = self.nodes, max(self.deadline.left(), 1e-9)
        given = nodes.best[0], nodes.cutoff, nodes.tol, self.plan.batch, most, seconds
        return self.executor.submit(search_below, self.shared, Parcel((own, advice)), *given)


def _lost(future: Future[Any]) -> bool:
    """Whether the process of a task has ended."""
    return future.done() and isinstance(future.exception(), ProcessError)


def search_below(
    shared: Shared,
    given: Parcel[tuple[Sequence[Node], tuple[Any, ...]]],
    incumbent: float,
    cutoff: float,
    tol: float,
    batch: int,
    most: int,
    seconds: float,
) -> Parcel[tuple[Expansion, int]]:
    """Search below some nodes; what a worker does.

    Parameters
    ----------
    shared : Shared
        The function that expands nodes.
    given : Parcel
        The nodes, and further arguments of that function: the advice, or none.
    incumbent : float
        Value of the best point known.
    cutoff, tol : float
        As in :func:`branch_and_bound`.
    batch, most : int
        Most nodes that are expanded at once, and in all.
    seconds : float
        Time for all of it.

    Returns
    -------
    Parcel
        The outcome of the nodes, and how many were expanded.
    """
    nodes, advice = given.value
    expand, deadline = shared.get(), Deadline(seconds)
    search, count = OpenNodes(cutoff, tol, incumbent), 0
    unresolved, entries = list[Node](), list[Any]()
    search.add(Expansion(nodes))
    while search.heap and count < most and not search.interrupted and not (count and deadline.over()):
        taken = search.take(min(batch, most - count), deepest=False)
        found = expand(taken, search.best[0], deadline, *advice)
        search.add(found)
        count += len(taken)
        unresolved += found.unresolved
        entries += found.log
    value, point = search.best
    children = [entry[3] for entry in search.heap]
    if search.pruned < math.inf:  # not below what the incumbent prunes, and part of the final bound
        children.append(Node(search.pruned))
    own = value if value < incumbent else math.inf
    return Parcel((Expansion(children, own, point, unresolved, entries, search.interrupted), count))
