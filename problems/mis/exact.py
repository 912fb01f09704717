"""Exact heaviest independent sets.

Reductions first.  A kernel whose quadratic function has a small width is solved by elimination; the others by branch and bound, in
which every node is reduced again, and bounded by the roof dual and by a cover with cliques.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray

from blocklp.campaigns import Executor
from blocklp.certify.exact_arithmetic import rounded_down
from blocklp.deadline import Deadline
from blocklp.errors import TimeLimitError
from blocklp.kernels import compiled
from blocklp.problems.discrete.elimination import EliminationOrder, cheapest_order, neighbour_sets
from blocklp.problems.discrete.exact import DEFAULT, Callback, ExactResult, ExactRun, ExactSettings, in_units, search_loops
from blocklp.problems.discrete.given import check_instance
from blocklp.problems.discrete.integers import Grid, Unit, total_of
from blocklp.problems.discrete.pipeline import Bracket, proved
from blocklp.problems.discrete.reduced import Reduced
from blocklp.problems.mis.heuristics import ROUNDS, greedy_independent_set, swap_descent, tabu_swaps
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.mis.reductions import ReducedGraph
from blocklp.problems.mis.relaxation import solve_mis
from blocklp.problems.qpbo.exact import solve_qpbo_exactly
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.presolve import minimise_by_elimination, presolve
from blocklp.search.best_first import Expansion, Node
from blocklp.search.over_workers import Sharing
from blocklp.status import Status

LONGER = 20
"""How many times as much a search spends before a node is branched on as when it is bounded."""
PAIRS, PASSES = 50_000, 600
"""Most pairs of a graph that is bounded by the LP of its cliques, and the passes of that."""
PER_SECOND = 5e7
"""Nodes of a tree times nodes of its graph that are searched in a second, at least."""
SPREAD = 4
"""Depth from which on nodes are searched for long where there are workers: those above it become several first."""
ALONE, SHARED = Sharing(batch=1, parts=1, subtree=1), Sharing(batch=1, parts=16, subtree=1)
"""Nodes that this process expands, and a round of workers."""
KERNELS = "blocklp.problems.mis.search_kernels"
WORK = 5e7
"""Looks at nodes of local search at most."""
PER_EDGE = 1e-5
"""Seconds that it takes to build and to reduce a graph, for a node or an edge, at least."""
SPARSE = 5
"""A kernel of fewer pairs a node is tried as a quadratic function first."""


def solve_mis_exactly(
    graph: WeightedGraph,
    *,
    time_limit: float | Deadline = math.inf,
    callback: Callback | None = None,
    executor: Executor | None = None,
    settings: ExactSettings = DEFAULT,
) -> ExactResult:
    """Find a heaviest independent set, with proof.

    Parameters
    ----------
    graph : WeightedGraph
        The graph, with independent sets as objective.
    time_limit : float or Deadline
        Seconds; then, and after an interrupt, the best set and a valid bound are returned.
    callback : callable, optional
        Gets a :class:`blocklp.search.SearchEvent` of the component under way, whose values are minus weights, after every batch of
        nodes; True stops.
    executor : Executor, optional
        Whose workers expand nodes (:func:`blocklp.search.branch_and_bound_over`); the nodes are the same for any number of them.
    settings : ExactSettings
        At what sizes methods change; the heaviest weight is the same for any.

    Returns
    -------
    ExactResult
        ``energy`` is the weight, ``bound`` an upper bound of it.

    Raises
    ------
    OptionError
        ``time_limit`` is not positive.
    ModelError
        It is no ``WeightedGraph``, or states a clique problem; solve its ``complement()``.  Or weights and penalties add up to more
        than float64 holds.
    """
    check_instance(graph, WeightedGraph)
    deadline = Deadline.of(time_limit)
    began = deadline.elapsed()
    graph.require_independent_set()
    # With the penalties that edges have in the quadratic function.
    total = total_of(np.concatenate([graph.weights, graph.weights[graph.edges].max(1, initial=0.0)]))
    unit = Unit.of(graph.weights, total)
    whole = unit.whole(graph.weights)
    # No set weighs more than its integers stand for by more than all that rounding has lowered them.
    _, charge = unit.rounding(graph.weights, whole)
    integral = WeightedGraph(whole, graph.edges)
    run = ExactRun(deadline, in_units(callback, float(unit.size)), executor=executor, settings=settings)
    found = proved(Graphs(Grid.of(whole, unit.near)), integral, run)
    bound = 0.0 - rounded_down(unit.size * int(found.bound) - charge)
    members = found.labels.astype(bool)
    weight = math.fsum(graph.weights[members])
    return run.result(torch.tensor(members.astype(np.int8)), weight, bound, unit, deadline.elapsed() - began)


@dataclass(frozen=True)
class Graphs:
    """Graphs of whole weights whose sums are exact, as the pipeline of exact solvers sees them: it minimises minus the weight.

    Attributes
    ----------
    grid : Grid
        What weights of sets can be.
    """

    grid: Grid

    def seconds(self, problem: WeightedGraph) -> float:
        """Return how long reductions take, at least."""
        return PER_EDGE * (problem.n + len(problem.edges))

    def least(self, problem: WeightedGraph) -> float:
        """Return minus the weight of all nodes."""
        return -float(problem.weights.sum())

    def begin(self, problem: WeightedGraph, deadline: Deadline) -> NDArray[np.bool_]:
        """Return a set that no swap improves."""
        members = greedy_independent_set(problem, torch.tensor(problem.weights)[None], time_limit=deadline).members
        return np.asarray(swap_descent(problem, members, time_limit=deadline).members[0].numpy(), dtype=np.bool_)

    def reduce(self, problem: WeightedGraph, run: ExactRun) -> Reduced[WeightedGraph]:
        """Return the components of what reductions leave, and the bound of the roof dual."""
        kernel = _kernel(problem)
        kernel.reduce(run.deadline)
        least = -math.inf
        if not run.over():
            left = kernel.fix_by_flow(run.deadline)  # which also wins
            least = self.grid.raised(-(kernel.won + left))
        parts = [_graph(kernel, sorted(nodes)) for nodes in nx.connected_components(nx.from_dict_of_lists(kernel.near))]

        def lift(found: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
            inside = {nodes[v] for (_, nodes), own in zip(parts, found, strict=True) for v in np.flatnonzero(own).tolist()}
            return _members(problem.n, kernel.lift(inside))

        return Reduced(-kernel.won, tuple(graph for graph, _ in parts), lift, least)

    def search(self, part: WeightedGraph, found: Bracket) -> None:
        """Improve by local search; then minimise as a quadratic function, or branch."""
        run = found.run
        kernels = search_loops(KERNELS, run)
        if kernels is not None:
            # A fifth of the time left at most.
            rounds, some = int(min(ROUNDS, WORK / part.n)), run.deadline.within(0.2 * run.deadline.left())
            start = torch.tensor(found.labels)[None]
            found.labels = np.asarray(tabu_swaps(part, start, rounds, time_limit=some).members[0].numpy(), dtype=np.bool_)
        if len(part.edges) < SPARSE * part.n and _is_function(part, run):
            # Minus the energy of the best labels is the weight of the set that they can be made to.
            best = solve_qpbo_exactly(
                part.to_qubo(), time_limit=run.deadline, callback=run.callback, executor=run.executor, settings=run.settings
            )
            run.detail = run.detail or best.detail
            run.nodes += best.nodes
            chosen = part.without_conflicts(best.labels.numpy())
            if not best.proven:
                run.status = best.status
            found.labels, found.bound = max(found.labels, chosen, key=lambda b: float(part.weight(b))), best.bound
            return
        search = GraphSearch(
            part, found.labels, self.grid.step, kernels is not None, 0 if run.executor is None else SPREAD, run.settings
        )
        result = run.searched([search.root()], search.expand, ALONE, SHARED, self.grid.step)
        heaviest = found.labels if result.point is None else result.point
        found.searched(heaviest, -float(part.weight(heaviest)), result, self.grid)


@dataclass(frozen=True)
class GraphSearch:
    """Expands nodes, each a kernel of a graph.  It is pickled without its compiled loops.

    Attributes
    ----------
    graph : WeightedGraph
        The graph, of whole weights.
    start : numpy.ndarray, shape (n,), bool
        An independent set.
    step : float
        How far apart weights of sets are at least.
    fast : bool
        Whether to search in compiled loops.
    spread : int
        Depth from which on a node is searched for long before it is branched on.
    settings : ExactSettings
        At what sizes methods change.
    """

    graph: WeightedGraph
    start: NDArray[np.bool_]
    step: float
    fast: bool
    spread: int
    settings: ExactSettings

    def root(self) -> Node:
        """Return the node of all sets."""
        return Node(-math.inf, 0, _kernel(self.graph))

    def expand(self, nodes: list[Node], incumbent: float, deadline: Deadline) -> Expansion:
        """Branch, bound, and return what is left open; the log has the number of nodes bounded.

        Parameters
        ----------
        nodes, incumbent, deadline
            As in :data:`blocklp.search.over_workers.Expand`.
        """
        return _GraphExpansion(self, -incumbent, deadline).expanded(nodes)


class _GraphExpansion:
    """Expands some nodes, with the heaviest set that is known meanwhile: nothing is left of it for other nodes."""

    def __init__(self, search: GraphSearch, weight: float, deadline: Deadline) -> None:
        self.graph, self.step, self.settings, self.spread = search.graph, search.step, search.settings, search.spread
        self.kernels = compiled.loops(KERNELS) if search.fast else None
        self.deadline, self.nodes = deadline, 0
        self.best: NDArray[np.bool_] | None = None
        self.weight = weight
        own = float(self.graph.weight(search.start))
        if own > weight:
            self.best, self.weight = search.start, own

    def expanded(self, nodes: list[Node]) -> Expansion:
        """Search for long, or branch on a node of most neighbours and bound what reductions leave of the two kernels."""
        children = []
        for node in nodes:
            if self.deadline.over():
                children.append(node)
                continue
            kernel: ReducedGraph = node.state
            if not node.depth:
                kernels = [kernel.copy()]
            elif node.depth >= self.spread and self._searched_long(kernel):
                continue
            elif self.deadline.over():
                children.append(node)
                continue
            else:
                v = max(kernel.weights, key=lambda u: (len(kernel.near[u]), kernel.weights[u]))
                kernels = [kernel.copy(), kernel.copy()]
                kernels[0].enter(v)
                kernels[1].drop(v)
            for child in kernels:
                bound = self._bounded(child)
                if bound is not None:
                    children.append(Node(max(-bound, node.bound), node.depth + 1, child))
        return Expansion(children, math.inf if self.best is None else -self.weight, self.best, log=[self.nodes])

    def _searched_long(self, kernel: ReducedGraph) -> bool:
        """Whether a long search of what reductions have left comes to its end."""
        graph, nodes = _graph(kernel, sorted(kernel.weights))
        work = LONGER * self.settings.tree_work
        return self._has_tree(graph) and self._searched(_Tree(self.kernels, graph, self.step), kernel, nodes, work)

    def _has_tree(self, graph: WeightedGraph) -> bool:
        return self.kernels is not None and graph.n < self.settings.searched_graph

    def _bounded(self, kernel: ReducedGraph) -> float | None:
        """Reduce, bound, and solve if easy; None if nothing better can be below."""
        self.nodes += 1
        kernel.reduce(self.deadline)
        left = kernel.fix_by_flow(self.deadline)
        bound = kernel.won + left
        if not kernel.weights:
            self._offer(kernel, set())
            return None
        if bound < self.weight + self.step:
            return None
        if self.deadline.over():
            return bound
        graph, nodes = _graph(kernel, sorted(kernel.weights))
        tree = None
        if self._has_tree(graph):
            tree = _Tree(self.kernels, graph, self.step)
            bound = min(bound, kernel.won + tree.bound)
            if bound < self.weight + self.step:
                return None
        if len(graph.edges) < SPARSE * graph.n:
            found = _by_elimination(graph, self.settings.leaf_tables, self.deadline)
            if found is not None:
                self._offer(kernel, {nodes[v] for v in np.flatnonzero(found)})
                return None
        if tree is not None and self._searched(tree, kernel, nodes, self.settings.tree_work):
            return None
        if len(graph.edges) <= PAIRS and not self.deadline.over():
            options = {"cutoff": self.weight + 0.99 * self.step - kernel.won, "time_limit": self.deadline}
            try:
                relaxed = solve_mis(graph, "cliques", tol=1e-4, passes=PASSES, **options)
            except TimeLimitError:
                return bound
            if relaxed.relaxation.status[0] is Status.INTERRUPTED:
                raise KeyboardInterrupt
            self._offer(kernel, {nodes[v] for v in np.flatnonzero(relaxed.members.numpy())})
            # Rounded down before it is added: that sum is exact.
            bound = min(bound, kernel.won + math.floor(min(float(relaxed.relaxation.safe_bound[0]), float(graph.weights.sum()))))
            if bound < self.weight + self.step:
                return None
        return bound

    def _searched(self, tree: _Tree, kernel: ReducedGraph, nodes: list[int], effort: float) -> bool:
        """Go on with the search of a tree, and say whether it came to its end."""
        members = tree.search(self.weight - kernel.won, effort, self.settings.clock_every, self.deadline)
        self.nodes += tree.spent
        if members is not None:
            self._offer(kernel, {nodes[v] for v in np.flatnonzero(members).tolist()})
        return tree.ended

    def _offer(self, kernel: ReducedGraph, inside: set[int]) -> None:
        members = _members(self.graph.n, kernel.lift(inside))
        weight = float(self.graph.weight(members))
        if weight > self.weight:
            self.best, self.weight = members, weight


class _Tree:
    """The open depth-first search of a graph in compiled loops.

    Attributes
    ----------
    bound : float
        What the cover of all nodes weighs.
    spent : int
        Nodes of the tree in the last call.
    ended : bool
        Whether the search came to its end.
    """

    def __init__(self, kernels: Any, graph: WeightedGraph, step: float) -> None:
        self._kernels, self._step = kernels, step
        self._order, self._adjacent = kernels.ordered(graph.n, graph.edges)
        self._weights = graph.weights[self._order]
        self.bound = float(kernels.cover_bound(self._adjacent, self._weights))
        self._depth, self._branch, self.spent, self.ended = -1, kernels.branch(graph.n), 0, False

    def search(self, least: float, effort: float, clock_every: float, deadline: Deadline) -> NDArray[np.bool_] | None:
        """Search in pieces between which the deadline is asked; return a set that weighs more than ``least``, if there was one."""
        n, best = len(self._order), least
        members = np.zeros(n, dtype=np.bool_)
        left, piece = int(effort / n), max(1, int(clock_every * PER_SECOND / n))
        self.spent = 0
        while left > 0 and not self.ended and not deadline.over():
            best, self._depth, tree = self._kernels.heaviest(
                self._adjacent, self._weights, best, self._step, min(left, piece), self._depth, members, *self._branch
            )
            self.spent += tree
            left -= tree
            self.ended = self._depth < 0
        if best <= least:
            return None
        found = np.zeros(n, dtype=np.bool_)
        found[self._order] = members
        return found


def _graph(kernel: ReducedGraph, nodes: list[int]) -> tuple[WeightedGraph, list[int]]:
    """The graph of some nodes that no others are joined to, numbered anew, and their old numbers."""
    place = {v: k for k, v in enumerate(nodes)}
    edges = [(place[v], place[u]) for v in nodes for u in kernel.near[v] if v < u]
    return WeightedGraph.from_edges([kernel.weights[v] for v in nodes], np.array(edges, dtype=np.int64).reshape(-1, 2)), nodes


def _members(n: int, inside: Iterable[int]) -> NDArray[np.bool_]:
    """A set of nodes as a mask."""
    members = np.zeros(n, dtype=bool)
    members[list(inside)] = True
    return members


def _kernel(graph: WeightedGraph) -> ReducedGraph:
    return ReducedGraph(dict(enumerate(graph.weights.tolist())), dict(enumerate(neighbour_sets(graph.n, graph.edges))))


def _is_function(graph: WeightedGraph, run: ExactRun) -> bool:
    """Whether to minimise a quadratic function instead: one that is stated by a graph of far more nodes, or one of small width."""
    parts = presolve(graph.to_qubo(), run.deadline).parts
    return sum(part.n for part in parts) <= graph.n / 2 or _orders(parts, run.settings.tables, run.deadline) is not None


def _orders(parts: Iterable[Qubo], most: float, deadline: Deadline) -> list[EliminationOrder] | None:
    """Orders of elimination of presolved functions; None where that takes more than ``most`` entries of tables, or too long."""
    orders = []
    for part in parts:
        orders.append(cheapest_order([2] * part.n, part.edges, most, deadline))
        if (most := most - orders[-1].work) < 0:
            return None
    return orders


def _by_elimination(graph: WeightedGraph, most: float, deadline: Deadline) -> NDArray[np.bool_] | None:
    """A heaviest set, or None where that would take more than ``most`` entries of tables, or too long."""
    reduced = presolve(graph.to_qubo(), deadline)
    orders = _orders(reduced.parts, most, deadline)
    if orders is None:
        return None
    labels = []
    for part, order in zip(reduced.parts, orders, strict=True):
        found = minimise_by_elimination(part, order, deadline)
        if found is None:
            return None
        labels.append(found)
    return graph.without_conflicts(reduced.lift(labels))
