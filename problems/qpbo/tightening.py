"""Bounds beyond roof duality: violated clusters join the relaxation while the labelling and the bound are apart."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from torch import Tensor

import blocklp as bl
from blocklp.errors import ModelError
from blocklp.problems.discrete.adjacency import sparse_graph
from blocklp.problems.discrete.tightening import Labelled, Problem, tightened
from blocklp.problems.qpbo.annealing import short_search
from blocklp.problems.qpbo.clusters import Pairs, violated_cycles
from blocklp.problems.qpbo.heuristics import Labellings, one_flip_descent, round_fractional
from blocklp.problems.qpbo.instance import Qubo
from blocklp.search.tightening import Budget, Tightened

LARGEST = 1e150
"""Magnitude of coefficients up to which squares of their sums are far from the end of float64."""

STARTS = 32
"""Random labellings of which the best descent is where the first search for a good one starts."""


def tightened_roof_duality(
    model: bl.Model, qubo: Qubo, budget: Budget | None = None, *, time_limit: float | bl.Deadline = math.inf, **options: Any
) -> tuple[Tightened, Labelled]:
    """Tighten a roof-duality model until its bound meets the best labelling found.

    Parameters
    ----------
    model : Model
        The roof-duality model of the instance; it grows.
    qubo : Qubo
        The instance.
    budget : Budget, optional
        How far to go.
    time_limit : float or Deadline
        Seconds, of which a fifth at most goes to the first labelling.
    **options
        The others of :func:`blocklp.problems.discrete.tightening.tightened`.

    Returns
    -------
    Tightened, Labelled
        As there; labels are int8.

    Raises
    ------
    ModelError
        A coefficient is so large that squares of sums overflow.
    """
    largest = max(float(np.abs(values).max(initial=0.0)) for values in (qubo.linear, qubo.quadratic))
    if largest > LARGEST:
        raise ModelError(
            f"{qubo.name or 'the instance'} has a coefficient of magnitude {largest:.3g}, and tightening takes {LARGEST:g} at most; "
            "divide all of them by a power of two"
        )
    budget, deadline = budget or Budget(), bl.Deadline.of(time_limit)
    best = incumbent(qubo, deadline.within(0.2 * deadline.left()))
    return tightened(tightening_of(model, qubo, budget.blocks, deadline), best, budget, time_limit=deadline, **options)


def tightening_of(model: bl.Model, qubo: Qubo, most: int, deadline: bl.Deadline) -> Problem:
    """State how the roof-duality model of an instance is tightened, by at most so many clusters of a kind in a round.

    Parameters
    ----------
    model : Model
        The model of roof duality.
    qubo : Qubo
        The instance.
    most : int
        Clusters of a kind that a round adds at most.
    deadline : Deadline
        For every round.
    """
    return Problem(
        model,
        search=lambda solution: violated_cycles(qubo, solution, most, time_limit=deadline),
        rounded=lambda solution: rounded(qubo, solution, deadline),
        lifted=lambda solution, y: lifted(qubo, solution, y[None].to(solution.raw_x)),
    )


def rounded(qubo: Qubo, solution: bl.Solution, deadline: bl.Deadline) -> Labelled:
    """The best of labellings from the point at several thresholds, and one along the pairs that are cut, or not, most clearly.

    Where a function has symmetries its point says nothing about variables, but much about pairs.

    Parameters
    ----------
    qubo : Qubo
        The instance.
    solution : Solution
        That of its model.
    deadline : Deadline
        When to return what there is.
    """
    y = solution.x["y"]
    found = best_of(round_fractional(qubo, y, time_limit=deadline))
    if not len(qubo.edges) or deadline.over():
        return found
    along = best_of(round_fractional(qubo, _along_tree(qubo, solution)[None].to(y), [0.5], time_limit=deadline))
    return min(found, along, key=lambda labelled: labelled.energy)


def _along_tree(qubo: Qubo, solution: bl.Solution) -> Tensor:
    """Labels ``(n,)`` along a spanning tree of the pairs that the point cuts, or not, most clearly.

    The root is a variable that is always 0, of which every y is the cut.  So F. Barahona, M. Grötschel, M. Jünger and G. Reinelt
    round points of the cut polytope (An application of combinatorial optimization to statistical physics and circuit layout
    design, Operations Research 36 (1988)).
    """
    n, pairs, x = qubo.n, Pairs.of(qubo, solution), solution.raw_x[0]
    s = torch.cat([pairs.cut(x), x[:n].clamp(0, 1)]).double().cpu().numpy()
    row, column = torch.cat([pairs.ends.T.cpu(), torch.stack([torch.arange(n), torch.full((n,), n)])], 1).numpy()
    # Zeros would be no entries.
    tree = minimum_spanning_tree(sparse_graph(1 + np.minimum(s, 1 - s), row, column, n + 1))
    order, before = breadth_first_order(tree, n, directed=False)
    across = sparse_graph(1 + (s > 0.5), row, column, n + 1)
    across = across + across.T
    labels = np.zeros(n + 1, dtype=np.int8)
    sides = across[order[1:], before[order[1:]]] - 1
    for node, parent, side in zip(order[1:].tolist(), before[order[1:]].tolist(), np.asarray(sides).ravel().tolist(), strict=True):
        labels[node] = labels[parent] ^ side
    return torch.tensor(labels[:n])


def incumbent(qubo: Qubo, deadline: bl.Deadline) -> Labelled:
    """Return a good labelling, found without a relaxation: descents from random labellings, and a short search from the best."""
    starts = torch.rand(STARTS, qubo.n, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 1, STARTS)[:, None]
    begun = best_of(one_flip_descent(qubo, starts, time_limit=deadline))
    return best_of(short_search(qubo, begun.labels[None], time_limit=deadline))


def best_of(found: Labellings) -> Labelled:
    """The best of several labellings, the first one on ties."""
    best = int(found.energy.argmin())
    return Labelled(found.y[best], float(found.energy[best]))


def lifted(qubo: Qubo, solution: bl.Solution, y: Tensor) -> Tensor:
    """Labels ``(batch, n)`` with all products of the model, chords included: ``(batch, variables)``.

    Parameters
    ----------
    qubo, solution
        As in :func:`rounded`.
    y : Tensor
        ``(batch, n)``: labels 0 and 1.
    """
    x = torch.zeros(len(y), solution.solver.models[0].size, dtype=y.dtype, device=y.device)
    x[:, : qubo.n] = y
    if len(qubo.edges):
        pairs = Pairs.of(qubo, solution)
        i, j = pairs.ends.T
        x[:, pairs.column] = y[:, i] * y[:, j]
    return x
