"""Exact heaviest independent sets.

Reductions first.  A kernel whose quadratic function has a small width is solved by elimination; the others by branch and bound, in
which every node is reduced again, and bounded by the roof dual and by a cover with cliques.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray

from blocklp.certify.exact_arithmetic import rounded_down
from blocklp.deadline import Deadline
from blocklp.errors import TimeLimitError
from blocklp.problems.exact import DEFAULT, Callback, ExactResult, ExactRun, ExactSettings, in_units, search_loops
from blocklp.problems.integers import Grid, Unit, total_of
from blocklp.problems.mis.heuristics import greedy_independent_set, swap_descent
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.mis.reductions import ReducedGraph
from blocklp.problems.mis.relaxation import solve_mis
from blocklp.problems.qpbo.elimination import WIDEST, cheapest_order, minimise_by_elimination
from blocklp.problems.qpbo.exact import solve_qpbo_exactly
from blocklp.problems.qpbo.presolve import FunctionPart, presolve
from blocklp.search.best_first import Expansion, Node, branch_and_bound
from blocklp.status import Status

EFFORT = 5e7
"""Budget of a compiled search: nodes of the tree times squares of nodes of the graph."""
PAIRS, PASSES = 20_000, 600
"""Most pairs of a graph that is bounded by the LP of its cliques, and the passes of that."""
PER_SECOND, LOCAL = 7e7, 5e7
"""What is spent of that budget in a second; steps of local search in a second, at least."""
PER_EDGE = 1e-5
"""Seconds that it takes to build and to reduce a graph, for a node or an edge, at least."""
SPARSE = 5
"""A kernel of fewer pairs a node is tried as a quadratic function first."""


def solve_mis_exactly(
    graph: WeightedGraph,
    *,
    time_limit: float | Deadline = math.inf,
    callback: Callback | None = None,
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
        The graph states a clique problem; solve its ``complement()``.  Or weights and penalties add up to more than float64 holds.
    """
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
    run = _GraphRun(deadline, in_units(callback, float(unit.size)), settings=settings, grid=Grid.of(whole, unit.near))
    try:
        members, most = run.solve(integral)
    except KeyboardInterrupt:
        run.status = Status.INTERRUPTED
        members, most = _greedy(integral, deadline), float(whole.sum())
    bound = 0.0 - rounded_down(-(unit.size * int(most) + charge))
    labels, weight = torch.tensor(members.astype(np.int8)), math.fsum(graph.weights[members])
    seconds = deadline.elapsed() - began
    return ExactResult(labels, weight, bound, run.status is Status.OPTIMAL, run.nodes, seconds, run.status, run.detail)


def local_search(kernels: Any, graph: WeightedGraph, start: NDArray[np.bool_], rounds: int) -> NDArray[np.bool_]:
    """Improve an independent set by tabu search by swaps, in compiled loops (:mod:`blocklp.problems.mis.search_kernels`).

    Parameters
    ----------
    kernels : module
        The compiled loops.
    graph : WeightedGraph
        The graph.
    start : ndarray
        ``(n,)`` bool: an independent set.
    rounds : int
        Moves of the search.
    """
    inside, best = start.copy(), start.copy()
    near = np.concatenate([graph.edges, graph.edges[:, ::-1]])
    near = near[np.argsort(near[:, 0], kind="stable")]
    first = np.concatenate([[0], np.cumsum(np.bincount(near[:, 0], minlength=graph.n))]).astype(np.int64)
    kernels.tabu_swaps(first, np.ascontiguousarray(near[:, 1]), graph.weights, inside, rounds, 4000, best)
    return best


def _greedy(graph: WeightedGraph, deadline: Deadline) -> NDArray[np.bool_]:
    members = greedy_independent_set(graph, torch.tensor(graph.weights)[None], time_limit=deadline).members
    return np.asarray(swap_descent(graph, members, time_limit=deadline).members[0].numpy(), dtype=np.bool_)


@dataclass
class _GraphRun(ExactRun):
    """One call, on a graph of whole weights whose sums are exact."""

    grid: Grid = field(kw_only=True)

    def solve(self, graph: WeightedGraph) -> tuple[NDArray[np.bool_], float]:
        """Members and bound."""
        if not self.deadline.affords(PER_EDGE * (graph.n + len(graph.edges))):
            self.status = Status.TIME_LIMIT
            return _greedy(graph, self.deadline), float(graph.weights.sum())
        kernel = _kernel(graph)
        kernel.reduce(self.deadline)
        most = kernel.won + sum(kernel.weights.values())
        if not self.over():
            left = kernel.fix_by_flow(self.deadline)
            most = self.grid.lowered(kernel.won + left)
        inside: set[int] = set()
        bound = kernel.won
        for nodes in nx.connected_components(nx.from_dict_of_lists(kernel.near)) if kernel.weights else ():
            mine, part = self._component(*_graph(kernel, sorted(nodes)))
            inside |= mine
            bound += part
        members = np.zeros(graph.n, dtype=bool)
        members[list(kernel.lift(inside))] = True
        return members, min(bound, most)

    def _component(self, graph: WeightedGraph, nodes: list[int]) -> tuple[set[int], float]:
        best, most = np.zeros(graph.n, dtype=bool), float(graph.weights.sum())
        try:
            best = _greedy(graph, self.deadline)
            if not self.over():
                kernels = search_loops("blocklp.problems.mis.search_kernels", self)
                if kernels is not None:
                    best = local_search(kernels, graph, best, self._rounds(graph))
                best, most = self._searched(kernels, graph, best)
        except TimeLimitError:
            self.status = Status.TIME_LIMIT
        except KeyboardInterrupt:
            self.status = Status.INTERRUPTED
        return {nodes[v] for v in np.flatnonzero(best)}, most

    def _rounds(self, graph: WeightedGraph) -> int:
        """Rounds of local search: a fifth of the time left at most."""
        each = graph.n + 8 * len(graph.edges) / graph.n
        return int(min(200_000, 5e7 / graph.n, max(0.2 * self.deadline.left() * LOCAL / each, 1)))

    def _searched(self, kernels: Any, graph: WeightedGraph, best: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], float]:
        if len(graph.edges) < SPARSE * graph.n and _is_function(graph, self):
            # Minus the energy of the best labels is the weight of the set that they can be made to.
            found = solve_qpbo_exactly(graph.to_qubo(), time_limit=self.deadline, callback=self.callback, settings=self.settings)
            self.detail = self.detail or found.detail
            self.nodes += found.nodes
            chosen = _independent(graph, found.labels.numpy())
            if not found.proven:
                self.status = found.status
            return max(best, chosen, key=lambda b: float(graph.weight(b))), -found.bound
        search, tolerance = _Branching(graph, best, kernels, self), self.grid.tolerance
        result = branch_and_bound(
            [search.root()], search.expand, batch=1, tol=0.999 * self.grid.step, time_limit=self.deadline, callback=self.callback
        )
        self.nodes += search.nodes
        # Whatever was pruned is heavier by less than a step: by nothing, or by what does not matter.
        if result.proven:
            return search.best, self.grid.lowered(search.weight + tolerance)
        self.status = result.status
        return search.best, self.grid.lowered(min(float(graph.weights.sum()), -result.bound + tolerance))


class _Branching:
    """Expands nodes, each a kernel of a graph."""

    def __init__(self, graph: WeightedGraph, best: NDArray[np.bool_], kernels: Any, run: _GraphRun) -> None:
        self.graph, self.best, self.kernels = graph, best, kernels
        self.grid, self.deadline, self.settings = run.grid, run.deadline, run.settings
        self.weight = float(graph.weight(best))
        self.nodes = 0

    def root(self) -> Node:
        """Return the node of all sets."""
        return Node(-math.inf, 0, _kernel(self.graph))

    def expand(self, nodes: list[Node]) -> Expansion:
        """Branch on a node of most neighbours; what a child leaves is reduced and bounded, and solved if that is easy."""
        children = []
        for node in nodes:
            if self.deadline.over():
                children.append(node)
                continue
            kernel: ReducedGraph = node.state
            v = max(kernel.weights, key=lambda u: (len(kernel.near[u]), kernel.weights[u]))
            for enter in (True, False):
                child = kernel.copy()
                if enter:
                    child.enter(v)
                else:
                    child.drop(v)
                bound = self._bounded(child)
                if bound is not None:
                    children.append(Node(-bound, node.depth + 1, child))
        return Expansion(children, -self.weight, self.best)

    def _bounded(self, kernel: ReducedGraph) -> float | None:
        """Reduce, bound, and solve if easy; None if nothing better can be below."""
        self.nodes += 1
        kernel.reduce(self.deadline)
        left = kernel.fix_by_flow(self.deadline)
        bound = kernel.won + left
        if not kernel.weights:
            self._offer(kernel, set())
            return None
        goal = self.weight + self.grid.step
        if bound < goal:
            return None
        if self.deadline.over():
            return bound
        graph, nodes = _graph(kernel, sorted(kernel.weights))
        if graph.n < self.settings.searched_graph and self.kernels is not None:
            adjacent = np.zeros((graph.n, graph.n), dtype=bool)
            adjacent[graph.edges[:, 0], graph.edges[:, 1]] = adjacent[graph.edges[:, 1], graph.edges[:, 0]] = True
            order = np.argsort(-adjacent.sum(1), kind="stable")
            bound = min(bound, kernel.won + float(self.kernels.cover_bound(adjacent, graph.weights, order)))
            if bound < goal:
                return None
        if len(graph.edges) < SPARSE * graph.n:
            found = _by_elimination(graph, self.settings.leaf_tables, self.deadline)
            if found is not None:
                self._offer(kernel, {nodes[v] for v in np.flatnonzero(found)})
                return None
        if graph.n < self.settings.searched_graph and self.kernels is not None:
            members = np.zeros(graph.n, dtype=bool)
            least = self.weight - kernel.won
            value, ended = self._tree(adjacent, graph.weights, order, least, members)
            if value > least:
                self._offer(kernel, {nodes[v] for v in np.flatnonzero(members)})
            if ended:
                return None
        if len(graph.edges) <= PAIRS and not self.deadline.over():
            options = {"cutoff": goal - kernel.won - self.grid.step / 100, "time_limit": self.deadline}
            try:
                relaxed = solve_mis(graph, "cliques", tol=1e-4, passes=PASSES, **options)
            except TimeLimitError:
                return bound
            if relaxed.relaxation.status[0] is Status.INTERRUPTED:
                raise KeyboardInterrupt
            self._offer(kernel, {nodes[v] for v in np.flatnonzero(relaxed.members.numpy())})
            # Rounded down before it is added: that sum is exact.
            bound = min(bound, kernel.won + math.floor(min(float(relaxed.relaxation.safe_bound[0]), float(graph.weights.sum()))))
            if bound < self.weight + self.grid.step:
                return None
        return bound

    def _tree(
        self,
        adjacent: NDArray[np.bool_],
        weights: NDArray[np.float64],
        order: NDArray[np.int64],
        best: float,
        members: NDArray[np.bool_],
    ) -> tuple[float, bool]:
        """Depth-first search in compiled loops, in pieces between which the deadline is asked: weight, and whether it ended."""
        n, depth, left = len(weights), -1, int(EFFORT / len(weights) ** 2)
        piece, branch = max(1, int(self.settings.clock_every * PER_SECOND / n**2)), self.kernels.branch(n)
        while left > 0 and not self.deadline.over():
            best, depth, tree = self.kernels.heaviest(
                adjacent, weights, order, best, self.grid.step, min(left, piece), depth, members, *branch
            )
            self.nodes += tree
            left -= tree
            if depth < 0:
                return best, True
        return best, False

    def _offer(self, kernel: ReducedGraph, inside: set[int]) -> None:
        members = np.zeros(self.graph.n, dtype=bool)
        members[list(kernel.lift(inside))] = True
        weight = float(self.graph.weight(members))
        if weight > self.weight:
            self.best, self.weight = members, weight


def _graph(kernel: ReducedGraph, nodes: list[int]) -> tuple[WeightedGraph, list[int]]:
    """The graph of some nodes that no others are joined to, numbered anew, and their old numbers."""
    place = {v: k for k, v in enumerate(nodes)}
    edges = [(place[v], place[u]) for v in nodes for u in kernel.near[v] if v < u]
    return WeightedGraph.from_edges([kernel.weights[v] for v in nodes], np.array(edges, dtype=np.int64).reshape(-1, 2)), nodes


def _kernel(graph: WeightedGraph) -> ReducedGraph:
    near: dict[int, set[int]] = {v: set() for v in range(graph.n)}
    for a, b in graph.edges.tolist():
        near[a].add(b)
        near[b].add(a)
    return ReducedGraph(dict(enumerate(graph.weights.tolist())), near)


def _is_function(graph: WeightedGraph, run: ExactRun) -> bool:
    """Whether to minimise a quadratic function instead: one that is stated by a graph of far more nodes, or one of small width."""
    parts = presolve(graph.to_qubo(), run.deadline).parts
    return sum(part.qubo.n for part in parts) <= graph.n / 2 or _narrow(parts, run.deadline) <= run.settings.tables


def _narrow(parts: Iterable[FunctionPart], deadline: Deadline) -> float:
    """Work of elimination on presolved functions; infinite where that is too wide, or to find out takes too long."""
    work = 0.0
    for part in parts:
        order = cheapest_order(part.qubo.n, part.qubo.edges, deadline)
        work += order.work if order.width <= WIDEST else math.inf
    return work


def _by_elimination(graph: WeightedGraph, most: float, deadline: Deadline) -> NDArray[np.bool_] | None:
    """A heaviest set, or None where that would take more than ``most`` entries of tables, or too long."""
    reduced = presolve(graph.to_qubo(), deadline)
    if _narrow(reduced.parts, deadline) > most:
        return None
    labels = []
    for part in reduced.parts:
        found = minimise_by_elimination(part.qubo, cheapest_order(part.qubo.n, part.qubo.edges, deadline), deadline)
        if found is None:
            return None
        labels.append(found)
    return _independent(graph, reduced.lift(labels))


def _independent(graph: WeightedGraph, labels: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Drop the lighter node of every pair that is in whole: never a loss, as the penalties are."""
    inside = labels.astype(bool)
    for a, b in graph.edges.tolist():
        if inside[a] and inside[b]:
            inside[a if graph.weights[a] <= graph.weights[b] else b] = False
    return inside
