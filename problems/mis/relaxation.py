r"""Bounds on the heaviest independent set by the LP in which every clique of a family holds at most one node.

.. math:: \max_{y \in [0,1]^n} w \cdot y \quad \text{s.t.} \quad \sum_{i \in C} y_i \le 1 \quad \text{for every clique } C

With the edges as cliques its optimum is minus the roof-duality bound of ``WeightedGraph.to_qubo()``, and half-integral
(G. L. Nemhauser and L. E. Trotter, Vertex packings: structural properties and algorithms, Mathematical Programming 8
(1975)).  The pairs are stated as blocks :math:`y_i + y_j \le 1` like all cliques; as products they take as many passes and as long.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, overload

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.oracles.simplex import AtMostOne
from blocklp.problems.discrete.given import check_instances
from blocklp.problems.discrete.together import before, lenient, share, solve_together
from blocklp.problems.mis.cliques import heavy_cliques, violated_cliques
from blocklp.problems.mis.heuristics import ROUNDS, round_independent_set, round_steps, swap_descent, tabu_swaps
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.qpbo.annealing import short_search
from blocklp.problems.qpbo.arrays import IntArray
from blocklp.problems.qpbo.persistency import Persistency, closing_time, persistency_in_time
from blocklp.search.best_first import relative_gap

CliqueBlocks = Literal["edges", "cliques", "separated"]

COVERING = 3
"""One part in so many of the time of a graph at most goes to finding cliques."""
SEPARATIONS, NEAR = 4, 1e-3
"""Rounds in which cliques are added that a point violates, and the gap of the LP at that point."""
PIECE = 200_000
"""Nodes and edges of the points that are rounded together under a time limit."""
SCALINGS = 3
"""Scalings of a primal point: more hardly raise its weight."""
WORK, ALL_WORK, SHARE = 2e8, 1e9, 0.5
"""Looks at nodes at most in the search for a heavier set than rounding gives, those of all graphs, and its share of the time left."""
SMALL = 30
"""Nodes up to which a process that has not loaded compiled loops does without."""
DRAWN, LEAST, ROOM = 32, 0.1, 1_000_000
"""Points to round beside that of the LP, drawn from 0 to its y plus ``LEAST``; fewer on large graphs, by nodes and edges."""


def clique_model(graph: WeightedGraph, blocks: CliqueBlocks = "cliques", *, time_limit: float | bl.Deadline = math.inf) -> bl.Model:
    """Return the relaxation as a model with variables ``y`` (n,) and one kind of blocks a clique size.

    The repair hook scales the y of the iterate, that y rounded to halves, and that y rounded to 0 and 1, and keeps the
    heaviest.

    Parameters
    ----------
    graph : WeightedGraph
        The graph, with independent sets as objective.
    blocks : {"cliques", "edges", "separated"}
        Those of :func:`heavy_cliques`; the edges alone: a weaker bound, sooner; or with "separated" those of :func:`heavy_cliques`
        and more that points of the LP violate, found in four rounds: a stronger bound on dense graphs, later.
    time_limit : float or Deadline
        Seconds for finding cliques; what is not covered by then is stated by edges.

    Raises
    ------
    OptionError
        ``blocks`` is unknown.
    ModelError
        The graph states a clique problem.
    """
    if blocks not in get_args(CliqueBlocks):
        raise OptionError(f"blocks is {blocks!r}; give 'edges', 'cliques' or 'separated'")
    graph.require_independent_set()
    if blocks == "edges":
        return _model(graph, _edges(graph))
    deadline = bl.Deadline.of(time_limit)
    cover = heavy_cliques(graph, time_limit=deadline)
    model = _model(graph, cover)
    for _ in range(SEPARATIONS if blocks == "separated" else 0):
        if deadline.over():
            break
        point = model.solve(tol=NEAR, time_limit=deadline).x["y"][0].cpu().numpy()
        found = violated_cliques(graph, point, time_limit=deadline)
        if not found:
            break
        for size, cliques in found.items():
            cover[size] = np.concatenate([cover[size], cliques]) if size in cover else cliques
        model = _model(graph, cover)
    return model


def _model(graph: WeightedGraph, cover: dict[int, IntArray]) -> bl.Model:
    """The relaxation by the cliques of a cover, by their sizes."""
    model = bl.Model()
    y = model.variable("y", graph.n, lower=0, upper=1, integer=True)
    for size, cliques in cover.items():
        model.add(AtMostOne(size), y[torch.tensor(cliques)], name=f"cliques of {size}")
    weights = torch.tensor(graph.weights)
    model.maximize(weights @ y)

    # Entry k of the cover puts a node into a clique.
    node = torch.cat([torch.zeros(0, dtype=torch.long), *(torch.tensor(c).flatten() for c in cover.values())])
    lengths = torch.tensor([size for size, cliques in cover.items() for _ in cliques], dtype=torch.long)
    clique = torch.repeat_interleave(torch.arange(len(lengths)), lengths)

    def scaled(values: Tensor) -> Tensor:
        """Divide each y_i by the largest sum among its cliques.

        Then every clique C keeps its constraint, since its nodes are divided by its own sum or more.  Once all sums are at
        most 1 nothing shrinks any more, so repeating it only fills slack.
        """
        entries, owners = (t.to(values.device).expand(len(values), -1) for t in (node, clique))
        for _ in range(SCALINGS):
            sums = values.new_zeros(len(values), len(lengths)).scatter_add_(1, owners, values.gather(1, entries))
            largest = torch.zeros_like(values).scatter_reduce_(1, entries, sums.gather(1, owners), "amax")
            values = torch.where(largest > 0, values / largest, values)
        return values

    def repair(x: dict[str, Tensor]) -> dict[str, Tensor]:
        fractional = x["y"].clamp(0, 1)
        points = torch.cat([fractional, (2 * fractional).round() / 2, fractional.round()])
        candidates = scaled(points).view(3, *fractional.shape)
        best = (candidates @ weights.to(candidates)).argmax(0)
        return {"y": candidates[best, torch.arange(len(best), device=best.device)]}

    model.repair_with(repair)
    return model


def _edges(graph: WeightedGraph) -> dict[int, IntArray]:
    """The edges as cliques of two."""
    return {2: graph.edges} if len(graph.edges) else {}


@dataclass(frozen=True)
class MisSolution:
    """A bound, an independent set, and what is proved between them.

    Attributes
    ----------
    relaxation : Solution
        The clique LP, to be maximised: ``bound`` and ``safe_bound`` are upper bounds on the weight of every set.
    members : Tensor
        ``(n,)`` bool: the heaviest independent set found.
    weight : float
        Its weight, a lower bound on the maximum.
    gap : float
        ``|bound - weight| / max(weight, |bound|, relaxation.floor)``: how far the set can be from the maximum.
    persistency : Persistency
        Nodes proved to be inside (1) or outside (0) of some (``weak``) or all (``strong``) heaviest sets; none (-1) where there was
        no time.
    """

    relaxation: bl.Solution
    members: Tensor
    weight: float
    gap: float
    persistency: Persistency

    def __repr__(self) -> str:
        bound, size = float(self.relaxation.bound[0]), int(self.members.sum())
        return f"MisSolution(weight={self.weight:.8g}, bound={bound:.8g}, gap={self.gap:.2%}, {size} of {len(self.members)} nodes)"


@overload
def solve_mis(graphs: WeightedGraph, blocks: CliqueBlocks = ..., **options: Any) -> MisSolution: ...
@overload
def solve_mis(graphs: Sequence[WeightedGraph], blocks: CliqueBlocks = ..., **options: Any) -> list[MisSolution]: ...
def solve_mis(
    graphs: WeightedGraph | Sequence[WeightedGraph], blocks: CliqueBlocks = "cliques", **options: Any
) -> MisSolution | list[MisSolution]:
    """Bound heaviest independent sets, round, and verify persistencies.

    Parameters
    ----------
    graphs : WeightedGraph or sequence of WeightedGraph
        Several graphs are solved in as few batches as their clique sizes allow; in one, if ``blocks`` is ``"edges"``.
    blocks : {"cliques", "edges", "separated"}
        As in :func:`clique_model`.
    **options
        Those of :meth:`blocklp.Model.solve`; ``time_limit`` is for all graphs and all that is done.

    Returns
    -------
    MisSolution or list of MisSolution
        As ``graphs`` is one graph or several.

    Raises
    ------
    OptionError, ModelError, DeviceError
        An option is wrong, what is given is no ``WeightedGraph`` or states a clique problem (solve its ``complement()``), or the
        device is missing.
    TimeLimitError
        The time was over before all relaxations were stated.
    """
    if isinstance(graphs, WeightedGraph):
        return solve_mis([graphs], blocks, **options)[0]
    check_instances(graphs, WeightedGraph)
    deadline = bl.Deadline.of(options.pop("time_limit", math.inf))
    models, stating = [], lenient(deadline)
    for k, graph in enumerate(graphs):
        stating.check("stating the relaxations of graphs")
        models.append(clique_model(graph, blocks, time_limit=share(deadline, 1, COVERING * (len(graphs) - k))))
    closing = [closing_time(graph.n, len(graph.edges)) for graph in graphs]
    solutions = solve_together(models, time_limit=before(deadline, sum(closing)), **options)
    found, work = [], min(WORK, ALL_WORK / max(1, len(graphs)))
    for k, (graph, solution) in enumerate(zip(graphs, solutions, strict=True)):
        found.append(_finish(graph, solution, work, before(deadline, sum(closing[k + 1 :]))))
    return found


def _finish(graph: WeightedGraph, relaxation: bl.Solution, work: float, deadline: bl.Deadline) -> MisSolution:
    """Round; where the bound leaves room for a heavier set, search for one, with so many looks at nodes at most."""
    y = relaxation.x["y"]
    drawn = torch.rand(min(DRAWN, ROOM // (graph.n + 2 * len(graph.edges) + 1)), graph.n, generator=torch.Generator().manual_seed(0))
    points = torch.cat([y, (y + LEAST) * drawn.to(y)])
    members, weight = torch.zeros(graph.n, dtype=torch.bool, device=y.device), -math.inf
    # A few at a time, that of the LP first; at least that one is rounded.
    size = len(points) if math.isinf(deadline.left()) else max(1, PIECE // (graph.n + 2 * len(graph.edges) + 1))
    for part in torch.split(points, size):
        if weight >= 0 and deadline.over():
            break
        rounded = round_independent_set(graph, part, time_limit=deadline)
        best = int(rounded.weight.argmax())
        if float(rounded.weight[best]) > weight:
            members, weight = rounded.members[best], float(rounded.weight[best])
    if not deadline.over() and not weight >= float(relaxation.primal[0]) > -math.inf:
        searched = deadline.within(SHARE * deadline.left())
        starts = torch.stack([members, _annealed(graph, members, searched)])
        if graph.n <= SMALL and "numba" not in sys.modules:
            found = swap_descent(graph, starts, time_limit=searched)
        else:
            rounds = int(min(ROUNDS, work / (len(starts) * round_steps(graph))))
            found = tabu_swaps(graph, starts, rounds, time_limit=searched)
        best = int(found.weight.argmax())
        members, weight = found.members[best], float(found.weight[best])
    gap = relative_gap(weight, float(relaxation.bound[0]), float(relaxation.floor[0]))
    persistency = persistency_in_time([graph.to_qubo()], [y[0].cpu().numpy()], deadline)[0]
    return MisSolution(relaxation, members, weight, gap, persistency)


def _annealed(graph: WeightedGraph, members: Tensor, deadline: bl.Deadline) -> Tensor:
    """The set of the labels that annealing leads to from a set: often another one where weights differ much."""
    found = short_search(graph.to_qubo(), members[None], time_limit=deadline)
    return torch.tensor(graph.without_conflicts(found.y[0].cpu().numpy()), device=members.device)
