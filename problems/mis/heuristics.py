"""Batched primal heuristics for heavy independent sets: greedy construction and one-swap improvement.

*Greedy* (GWMIN).  The node with the largest score over degree plus one enters and its neighbours go; degrees are those
among the nodes that are left.  All nodes that beat their neighbours enter in the same round.  Since each entering node
outweighs the shares ``score / (degree + 1)`` of itself and its neighbours, scores that are not negative give a set of
total score at least ``sum_v score_v / (degree_v + 1)`` (S. Sakai, M. Togasaki, K. Yamazaki, A note on greedy algorithms
for the maximum weighted independent set problem, Discrete Applied Mathematics 126 (2003)).

*One-swap*, or (w, 1)-interchange: a node outside enters and its neighbours in the set leave if it weighs more than they
do together (B. Nogueira, R. Pinheiro, A. Subramanian, A hybrid iterated local search heuristic for the maximum weight
independent set problem, Optimization Letters 12 (2018)).  Nodes that enter in the same round are not adjacent; a
neighbour that two of them share leaves once, so the weight grows by at least the sum of their gains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, OptionError
from blocklp.problems.discrete.adjacency import NOISE, Adjacency, check_points
from blocklp.problems.discrete.exact import affordable_loops, affordable_rounds
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.qpbo.arrays import first_true

ROUNDS, PATIENCE = 200_000, 4000
"""Rounds of tabu search, and those without a heavier set after which a random node is forced in."""
PER_SECOND = 5e7
"""Looks at nodes in a second, at least."""


@dataclass(frozen=True)
class IndependentSets:
    """A maximal independent set for each batch element.

    Parameters
    ----------
    members : Tensor, shape (batch, n), bool
        Whether each node is in the set.
    weight : Tensor, shape (batch,), float64
        Weights of the sets.
    """

    members: Tensor
    weight: Tensor


def greedy_independent_set(graph: WeightedGraph, scores: Tensor, *, time_limit: float | Deadline = math.inf) -> IndependentSets:
    """Build a maximal independent set from each vector of scores.

    Parameters
    ----------
    graph : WeightedGraph
        The graph.
    scores : Tensor, shape (batch, n)
        What makes a node worth entering, such as its weight or a fractional solution times weight.
    time_limit : float or Deadline
        Seconds; sets that are not maximal yet are then returned as they are.

    Returns
    -------
    IndependentSets
        On the device of ``scores``.

    Raises
    ------
    ShapeError
        ``scores`` has not shape (batch, n).
    NonFiniteError
        ``scores`` is not finite.
    ModelError
        The graph states a clique problem.
    """
    graph.require_independent_set()
    check_points(scores, graph.n, "scores")
    adjacency = Adjacency.build(graph.n, graph.edges, scores.device)
    value, deadline = scores.to(torch.float64), Deadline.of(time_limit)
    degree = adjacency.degree.repeat(len(scores), 1)
    members = torch.zeros_like(value, dtype=torch.bool)
    undecided = ~members
    while undecided.any() and not deadline.over():
        entering = adjacency.winners(value / (degree + 1), undecided)
        members |= entering
        left = undecided & ~entering
        batch, node = entering.nonzero(as_tuple=True)
        position, entry = adjacency.expand(node)
        left[batch[position], adjacency.neighbour[entry]] = False
        batch, node = (undecided & ~left).nonzero(as_tuple=True)
        position, entry = adjacency.expand(node)
        flat = batch[position] * graph.n + adjacency.neighbour[entry]
        degree.view(-1).index_add_(0, flat, torch.full_like(flat, -1))
        undecided = left
    return _weighed(graph, members)


def swap_descent(graph: WeightedGraph, members: Tensor, *, time_limit: float | Deadline = math.inf) -> IndependentSets:
    """Improve independent sets until they are maximal and no one-swap makes them heavier.

    Parameters
    ----------
    graph : WeightedGraph
        The graph.
    members : Tensor, shape (batch, n), bool
        Independent sets, possibly empty.
    time_limit : float or Deadline
        Seconds; sets still on their way up are then returned as they are.

    Returns
    -------
    IndependentSets
        Never lighter than ``members``.

    Raises
    ------
    ShapeError
        ``members`` has not shape (batch, n).
    ModelError
        The graph states a clique problem, or a set is not independent.
    """
    graph.require_independent_set()
    check_points(members, graph.n, "members")
    dependent = first_true(~graph.independent(members.cpu().numpy()))
    if dependent is not None:
        raise ModelError(f"members[{dependent}] holds two adjacent nodes; start from greedy_independent_set")
    adjacency = Adjacency.build(graph.n, graph.edges, members.device)
    weights = torch.tensor(graph.weights, device=members.device)
    inside = members.to(torch.bool, copy=True)
    near = torch.repeat_interleave(torch.arange(graph.n, device=inside.device), adjacency.degree)
    noise = NOISE * weights.index_add(0, near, weights[adjacency.neighbour])
    # Of each node: the number and the weight of its neighbours in the set.
    crowd = torch.zeros(inside.shape, dtype=torch.int64, device=inside.device)
    crowd.index_add_(1, near, inside[:, adjacency.neighbour].to(torch.int64))
    loss = torch.zeros(inside.shape, dtype=torch.float64, device=inside.device)
    loss.index_add_(1, near, inside[:, adjacency.neighbour] * weights[adjacency.neighbour])
    deadline = Deadline.of(time_limit)
    while True:
        gain = weights - loss
        # The count tells a free node from one whose neighbours weigh nothing, or nearly so after many updates.
        eligible = ~inside & ((gain > noise) | (crowd == 0))
        if not eligible.any() or deadline.over():
            return _weighed(graph, inside)
        after = inside | adjacency.winners(gain, eligible)
        batch, node = (after & ~inside).nonzero(as_tuple=True)
        position, entry = adjacency.expand(node)
        after[batch[position], adjacency.neighbour[entry]] = False
        batch, node = (after ^ inside).nonzero(as_tuple=True)
        position, entry = adjacency.expand(node)
        flat = batch[position] * graph.n + adjacency.neighbour[entry]
        change = torch.where(after[batch, node], 1, -1)
        crowd.view(-1).index_add_(0, flat, change[position])
        loss.view(-1).index_add_(0, flat, (change * weights[node])[position])
        inside = after


def round_independent_set(graph: WeightedGraph, y: Tensor, *, time_limit: float | Deadline = math.inf) -> IndependentSets:
    """Turn fractional points into heavy independent sets.

    Three greedy scores are tried, ``y``, ``y`` times weight, and weight; each set is improved by one-swaps and the
    heaviest is kept.

    Parameters
    ----------
    graph
        As in :func:`greedy_independent_set`, and so are errors.
    y : Tensor, shape (batch, n), floating point
        Points, typically in [0, 1]^n, on the device to work on.
    time_limit : float or Deadline
        Seconds; sets may then be lighter.

    Returns
    -------
    IndependentSets
        One set for each point.
    """
    check_points(y, graph.n, "y")
    weights = torch.tensor(graph.weights, device=y.device)
    scores = torch.stack([y, y * weights, weights.expand(y.shape)], dim=1)
    deadline = Deadline.of(time_limit)
    greedy = greedy_independent_set(graph, scores.reshape(-1, graph.n), time_limit=deadline)
    found = swap_descent(graph, greedy.members, time_limit=deadline)
    best = found.weight.view(scores.shape[:2]).argmax(dim=1)
    chosen = best + scores.shape[1] * torch.arange(len(y), device=y.device)
    return IndependentSets(found.members[chosen], found.weight[chosen])


def tabu_swaps(
    graph: WeightedGraph, members: Tensor, rounds: int = ROUNDS, *, time_limit: float | Deadline = math.inf
) -> IndependentSets:
    """Improve independent sets by swaps that may make them lighter, and keep the heaviest ones met.

    A node enters, its neighbours leave and may not return for some rounds; after many rounds without a heavier set a random node is
    forced in (Q. Wu, J.-K. Hao, F. Glover, Multi-neighborhood tabu search for the maximum weight clique problem, Annals of
    Operations Research 196 (2012)).  Random numbers are the same in every call.

    Parameters
    ----------
    graph, members
        As in :func:`swap_descent`.
    rounds : int
        Nodes that enter, for each set.
    time_limit : float or Deadline
        Seconds; fewer rounds are made then.

    Returns
    -------
    IndependentSets
        Never lighter than ``members``; where there are no compiled loops, or no time for them, those of :func:`swap_descent`.

    Raises
    ------
    ShapeError
        ``members`` has not shape (batch, n).
    OptionError
        ``rounds`` is negative.
    ModelError
        The graph states a clique problem, or a set is not independent.
    """
    if rounds < 0:
        raise OptionError(f"rounds is {rounds}; give 0 or more")
    deadline = Deadline.of(time_limit)
    start = swap_descent(graph, members, time_limit=deadline)
    kernels = affordable_loops("blocklp.problems.mis.search_kernels", deadline)
    if kernels is None:
        return start
    rounds = affordable_rounds(rounds, deadline, PER_SECOND, len(members) * round_steps(graph))
    near = Adjacency.build(graph.n, graph.edges, torch.device("cpu"))
    first = np.append(near.first.numpy(), 2 * len(graph.edges))
    found = start.members.cpu().numpy().copy()
    for row in found:
        kernels.tabu_swaps(first, near.neighbour.numpy(), graph.weights, row.copy(), rounds, PATIENCE, row)
    return _weighed(graph, torch.tensor(found, device=members.device))


def round_steps(graph: WeightedGraph) -> float:
    """Return what a round of :func:`tabu_swaps` takes: a look at every node, and neighbours of those that move."""
    return graph.n + 8 * len(graph.edges) / max(1, graph.n)


def _weighed(graph: WeightedGraph, members: Tensor) -> IndependentSets:
    weights = torch.tensor(graph.weights, device=members.device)
    return IndependentSets(members, members.to(torch.float64) @ weights)
