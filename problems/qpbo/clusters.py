r"""Search for clusters that a fractional point violates: triangles, 4-cycles, longer odd cycles and cliques of four.

With :math:`s_{ij} = y_i + y_j - 2 z_{ij}`, which says whether a labelling cuts a pair, a labelling cuts an even number of the pairs
of every cycle C.  So for every odd set F of them

.. math:: \sum_{e \in F} (1 - s_e) + \sum_{e \in C \setminus F} s_e \ge 1,

and by how much the left side falls short is the violation.  For a given point the cycle that violates most is a shortest path between
the two copies of a node in a graph that has each node twice: a pair leads to the same side at the length :math:`s_e` and to the other
at :math:`1 - s_e` (F. Barahona and A. R. Mahjoub, On the cut polytope, Mathematical Programming 36 (1986)).  Triangles are all
looked at, and for 4-cycles the shortest two paths of two pairs of either kind between any two nodes.  Longer cycles come from
shortest paths and are cut into triangles by chords, products of two variables that cost nothing.  Cliques of four are triangles that
are tight or violated with a fourth variable, where they violate a pentagonal inequality (:class:`FourClique`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.language.statement import Statement
from blocklp.oracles.boolean_quadric import FourClique, FourCycle, Triangle, pentagonal
from blocklp.problems.discrete.adjacency import Adjacency, sparse_graph
from blocklp.problems.discrete.exact import rehearsed_loops
from blocklp.problems.qpbo.instance import Qubo
from blocklp.results.solution import Solution
from blocklp.search.tightening import Clusters, fresh

TRIANGLES, FOUR_CYCLES, FOUR_CLIQUES = "triangles", "four-cycles", "four-cliques"

BASES, CHUNK = 4_000, 1_000
"""Triangles that are extended to cliques of four, and how many of them at once."""

AHEAD = 4
"""Candidates that are compared with clusters of the model at first, for each of these and of those wanted; then ever more."""

FEW = 0.1
"""Longer cycles are looked for when fewer new clusters than this share of those wanted are violated."""

LEAST = 1e-3
"""Violations below this are left to later rounds: they may be no more than what the LP leaves open."""

LONGEST, TIE = 64, 1e-9
"""Most pairs of a cycle, and what each adds to its length: short paths stay ahead of longer ones, and zeros in sparse matrices."""

PIECE = 2_000_000
"""Nodes and pairs that shortest paths may pass between two looks at the clock."""

WEDGES, WEDGE = 20_000_000, 1e-6
"""Most paths of two pairs that are looked at for 4-cycles, as dense instances with more have hardly any without a chord; and seconds
that one takes."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of variables that have a product in the model, sorted.

    Attributes
    ----------
    n : int
        Number of variables y, the columns 0 .. n-1.
    key : Tensor
        ``(pairs,)`` int64, increasing: ``i n + j`` for i < j.
    column : Tensor
        ``(pairs,)``: of the product.
    """

    n: int
    key: Tensor
    column: Tensor

    @classmethod
    def of(cls, qubo: Qubo, solution: Solution) -> Pairs:
        """Those of the instance and the chords of triangles that were added."""
        device = solution.raw_x.device
        i, j = torch.tensor(qubo.edges, device=device).T
        key, column = i * qubo.n + j, qubo.n + torch.arange(len(qubo.edges), device=device)
        for blocks in solution.solver.models[0].blocks:
            if blocks.name == TRIANGLES:
                scope = blocks.scope.to(device)
                made = torch.stack([scope[:, a] * qubo.n + scope[:, b] for a, b in Triangle.pairs], 1)
                chord = scope[:, 3:] >= qubo.n + len(qubo.edges)
                key, column = torch.cat([key, made[chord]]), torch.cat([column, scope[:, 3:][chord]])
        key, order = key.sort(stable=True)
        first = torch.ones_like(key, dtype=torch.bool)
        first[1:] = key[1:] != key[:-1]
        return cls(qubo.n, key[first], column[order][first])

    @cached_property
    def ends(self) -> Tensor:
        """The two variables of each pair: ``(pairs, 2)``, the smaller first."""
        return torch.stack([self.key // self.n, self.key % self.n], 1)

    @cached_property
    def adjacency(self) -> Adjacency:
        """Neighbour lists."""
        return Adjacency.build(self.n, self.ends.cpu().numpy(), self.key.device)

    def cut(self, x: Tensor) -> Tensor:
        """By how much a point ``(variables,)`` cuts each pair: ``(pairs,)`` in [0, 1]."""
        i, j = self.ends.T
        return (x[i] + x[j] - 2 * x[self.column]).clamp(0, 1)

    def find(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        """Look pairs up: their numbers, and whether they are there."""
        key = torch.minimum(i, j) * self.n + torch.maximum(i, j)
        place = torch.searchsorted(self.key, key).clamp(max=len(self.key) - 1)
        return place, self.key[place] == key

    @cached_property
    def triangles(self) -> tuple[Tensor, Tensor]:
        """All triangles: nodes in increasing order and numbers of their pairs, both ``(count, 3)``."""
        i, j = self.ends.T
        position, entry = self.adjacency.expand(j)
        k = self.adjacency.neighbour[entry]
        ahead = (k > j[position]).nonzero()[:, 0]
        position, entry, k = position[ahead], entry[ahead], k[ahead]
        closing, there = self.find(i[position], k)
        position, entry, k, closing = position[there], entry[there], k[there], closing[there]
        nodes = torch.stack([i[position], j[position], k], 1)
        return nodes, torch.stack([position, closing, self.adjacency.edge[entry]], 1)


def violated_cycles(qubo: Qubo, solution: Solution, most: int, *, time_limit: float | Deadline = math.inf) -> list[Clusters]:
    """Propose triangles, 4-cycles and cliques of four that the primal point violates, and where few are new, longer cycles.

    Parameters
    ----------
    qubo : Qubo
        The instance.
    solution : Solution
        Of its roof-duality model, tightened or not, alone.
    most : int
        Most clusters of a kind that are wanted.
    time_limit : float or Deadline
        Seconds; kinds that are not looked at by then are left out.

    Returns
    -------
    list of Clusters
        With the violation as score.
    """
    if not len(qubo.edges):
        return []
    pairs = Pairs.of(qubo, solution)
    x = solution.raw_x[0]
    cut = pairs.cut(x)
    model = solution.solver.models[0]
    deadline = Deadline.of(time_limit)
    kinds: list[Callable[[], Clusters]] = [
        lambda: _triangles(model, pairs, cut, most),
        lambda: _four_cycles(model, pairs, cut, most, deadline),
        lambda: _four_cliques(model, pairs, x, cut, most),
    ]
    found: list[Clusters] = []
    for kind in kinds:
        if not deadline.over():
            found.append(kind())
    if sum(len(f.scope) for f in found) < FEW * most and not deadline.over():
        found.append(_long_cycles(pairs, cut, most, model.size, deadline))
    return found


def _triangles(model: Statement, pairs: Pairs, cut: Tensor, most: int) -> Clusters:
    nodes, numbers = pairs.triangles
    s = cut[numbers]
    total = s.sum(1)
    violation = torch.maximum(total - 2, 2 * s.amax(1) - total) if len(s) else total
    best = _largest(violation, len(violation))
    scope = torch.cat([nodes[best], pairs.column[numbers[best]]], 1)
    return _new(model, Clusters(TRIANGLES, Triangle(), scope, violation[best]), most)


def _four_cliques(model: Statement, pairs: Pairs, x: Tensor, cut: Tensor, most: int) -> Clusters:
    """Triangles that are tight or violated with a common neighbour, where they violate a pentagonal inequality."""
    nodes, numbers = pairs.triangles
    nothing = Clusters(FOUR_CLIQUES, FourClique(), torch.zeros(0, 10, dtype=torch.long), torch.zeros(0, dtype=torch.float64))
    if not len(nodes):
        return nothing
    s = cut[numbers]
    total = s.sum(1)
    tight = torch.maximum(total - 2, 2 * s.amax(1) - total).argsort(descending=True, stable=True)[:BASES]
    matrix, above = (torch.tensor(t, device=cut.device) for t in pentagonal())
    found = []
    for part in torch.split(tight, CHUNK):
        position, entry = pairs.adjacency.expand(nodes[part, 0])
        fourth = pairs.adjacency.neighbour[entry]
        base, known = nodes[part[position]], numbers[part[position]]
        (one, first), (two, second) = (pairs.find(base[:, k], fourth) for k in (1, 2))
        good = first & second & (fourth != base[:, 1]) & (fourth != base[:, 2])
        corners = torch.cat([base[good], fourth[good, None]], 1)
        sides = torch.stack(
            [known[good, 0], known[good, 1], pairs.adjacency.edge[entry[good]], known[good, 2], one[good], two[good]], 1
        )
        violation = (torch.cat([x[corners], cut[sides]], 1) @ matrix.T - above).amax(1)
        best = _largest(violation, 4 * most)  # a clique shows up once for each of its tight triangles
        found.append((torch.cat([corners[best], pairs.column[sides[best]]], 1), violation[best]))
    scope, violation = torch.cat([f[0] for f in found]), torch.cat([f[1] for f in found])
    best = _largest(violation, len(violation))
    return _new(model, Clusters(FOUR_CLIQUES, FourClique(), scope[best], violation[best]), most)


def _four_cycles(model: Statement, pairs: Pairs, cut: Tensor, most: int, deadline: Deadline) -> Clusters:
    """4-cycles without a chord: the shortest even path a-b-c with the shortest odd path a-d-c."""
    near = pairs.adjacency
    nothing = Clusters(FOUR_CYCLES, FourCycle(), torch.zeros(0, 8, dtype=torch.long), torch.zeros(0, dtype=torch.float64))
    wedges = int((near.degree**2).sum())
    if wedges > WEDGES or not deadline.affords(WEDGE * wedges):
        return nothing
    # Paths a-b-c with a < c that are no pair, by their ends.
    a, b = torch.repeat_interleave(torch.arange(pairs.n, device=cut.device), near.degree), near.neighbour
    position, entry = near.expand(b)
    a, b, c = a[position], b[position], near.neighbour[entry]
    first, second = near.edge[position], near.edge[entry]
    open_ = (a < c).nonzero()[:, 0]
    open_ = open_[~pairs.find(a[open_], c[open_])[1]]
    a, b, c, first, second = (t[open_] for t in (a, b, c, first, second))
    if not len(a):
        return nothing
    s, t = cut[first], cut[second]
    even, odd = torch.minimum(s + t, 2 - s - t), torch.minimum(1 - s + t, 1 + s - t)
    ends = a * pairs.n + c
    candidates = []
    evens, odds = (_shortest(ends, length, 2) for length in (even, odd))
    for p in evens:
        for q in odds:
            here = ((p >= 0) & (q >= 0)).nonzero()[:, 0]
            p_, q_ = p[here], q[here]
            # No path with itself, and no chord between the middles.
            good = b[p_] != b[q_]
            good &= ~pairs.find(b[p_], b[q_])[1]
            candidates.append(torch.stack([p_[good], q_[good]], 1))
    p, q = torch.cat(candidates).T
    violation = 1 - even[p] - odd[q]
    best = _largest(violation, len(violation))
    p, q, violation = p[best], q[best], violation[best]
    nodes, numbers = torch.stack([a[p], b[p], c[p], b[q]], 1), torch.stack([first[p], second[p], second[q], first[q]], 1)
    return _new(model, Clusters(FOUR_CYCLES, FourCycle(), torch.cat([nodes, pairs.column[numbers]], 1), violation), most)


def _new(model: Statement, clusters: Clusters, most: int) -> Clusters:
    """The first clusters that the model has not got; of those listed several times only one."""
    known = sum(len(b.scope) for b in model.blocks if b.name == clusters.name)
    ahead, chosen = AHEAD * (known + most), torch.zeros(0, dtype=torch.long)
    while len(chosen) < most:  # of the best ones only as many as it takes: there may be millions
        chosen = fresh(model, clusters.name, clusters.scope[:ahead]).nonzero()[:most, 0]
        if ahead >= len(clusters.scope):
            break
        ahead *= 4
    return replace(clusters, scope=clusters.scope[chosen], score=clusters.score[chosen])


def _shortest(ends: Tensor, length: Tensor, count: int) -> list[Tensor]:
    """For every pair of ends, numbered in order, the shortest paths between them: the first, second, ..., -1 where there is none."""
    _, group = torch.unique(ends, return_inverse=True)
    order = length.argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    sizes = group.bincount()
    start = sizes.cumsum(0) - sizes
    return [torch.where(sizes > k, order[(start + k).clamp(max=len(order) - 1)], -1) for k in range(count)]


def _largest(violation: Tensor, most: int) -> Tensor:
    """Numbers of the largest violations, in their order."""
    order = violation.argsort(descending=True, stable=True)[:most]
    return order[violation[order] > LEAST]


def _long_cycles(pairs: Pairs, cut: Tensor, most: int, new: int, deadline: Deadline) -> Clusters:
    """Cycles from shortest paths between the copies of nodes, cut into triangles; ``new`` is the first free column."""
    s = cut.cpu()
    # Where all pairs of a node are cut or not, it is only on a cycle that is violated if others are, or if nothing is fractional.
    fractional = (s > LEAST) & (s < 1 - LEAST)
    starts = torch.unique(pairs.ends.cpu()[fractional]) if bool(fractional.any()) else torch.arange(pairs.n)
    kernels = rehearsed_loops("blocklp.problems.qpbo.cycle_kernels", deadline)
    if kernels is None:
        distance, paths = _by_scipy(pairs, s, starts, deadline)
    else:
        near = pairs.adjacency
        first = torch.cat([near.first, near.degree.sum()[None]]).cpu()
        distance = torch.full((len(starts),), torch.inf, dtype=torch.float64)
        paths = torch.empty(len(starts), LONGEST, dtype=torch.int32)
        graph = (first, near.neighbour.cpu(), s[near.edge.cpu()], 1 - LEAST, TIE)
        size = len(starts) if math.isinf(deadline.left()) else max(1, PIECE // (pairs.n + 2 * len(pairs.key)))
        for part in torch.split(torch.arange(len(starts)), max(1, size)):
            if deadline.over():
                break
            rows = slice(int(part[0]), int(part[-1]) + 1) if len(part) else slice(0)
            kernels.odd_cycles(len(part), starts[rows], *graph, distance[rows], paths[rows])
    cycles: dict[frozenset[int], tuple[float, list[int]]] = {}
    for row in distance.isfinite().nonzero()[:, 0].tolist():
        path = [node for node in paths[row].tolist() if node >= 0]
        if len(set(path)) == len(path) >= 4:
            cycles[frozenset(path)] = (1 - float(distance[row]), path)
    return _cut_up(pairs, sorted(cycles.values(), key=lambda c: -c[0])[:most], new)


def _by_scipy(pairs: Pairs, same: Tensor, starts: Tensor, deadline: Deadline) -> tuple[Tensor, Tensor]:
    """What :func:`blocklp.problems.qpbo.cycle_kernels.odd_cycles` writes, without compiled loops."""
    n, s = pairs.n, same.numpy()
    i, j = pairs.ends.cpu().numpy().T
    length = np.concatenate([s, s, 1 - s, 1 - s]) + TIE
    row, column = np.concatenate([i, i + n, i, i + n]), np.concatenate([j, j + n, j + n, j])
    graph = sparse_graph(length, row, column, 2 * n)
    distances, paths = np.full(len(starts), np.inf), np.full((len(starts), LONGEST), -1, dtype=np.int32)
    size = CHUNK if math.isinf(deadline.left()) else min(CHUNK, max(1, PIECE // 10 // (n + len(s))))
    for begin in range(0, len(starts), size):
        if deadline.over():
            break
        sources = starts[begin : begin + size].numpy()
        found, before = dijkstra(graph, directed=False, indices=sources, return_predecessors=True, limit=1 - LEAST)
        for k, source in enumerate(sources.tolist()):
            path, at = [], source + n
            while at != source and np.isfinite(found[k, source + n]):
                path.append(at % n)
                at = int(before[k, at])
            if 0 < len(path) <= LONGEST:
                distances[begin + k], paths[begin + k, : len(path)] = found[k, source + n], path
    return torch.tensor(distances), torch.tensor(paths)


def _cut_up(pairs: Pairs, cycles: list[tuple[float, list[int]]], new: int) -> Clusters:
    """Triangles that share the first node of each cycle; products that are missing get new columns."""
    corners = [(path[0], path[k], path[k + 1]) for _, path in cycles for k in range(1, len(path) - 1)]
    score = [violation for violation, path in cycles for _ in range(len(path) - 2)]
    nodes = torch.tensor(corners, dtype=torch.long, device=pairs.key.device).view(-1, 3).sort(1).values
    columns = []
    for a, b in Triangle.pairs:
        place, there = pairs.find(nodes[:, a], nodes[:, b])
        columns.append(torch.where(there, pairs.column[place], new + nodes[:, a] * pairs.n + nodes[:, b]))
    scope = torch.cat([nodes, torch.stack(columns, 1)], 1)
    return Clusters(TRIANGLES, Triangle(), scope, torch.tensor(score, dtype=torch.float64, device=nodes.device))
