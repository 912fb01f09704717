r"""Search for clusters that raise the bound of a solved relaxation.

With the multipliers at hand every edge block e has the values :math:`b_e(x_e)`, and the bound is the sum of their minima (and of
other blocks).  If a cluster c takes over those of its edges, the bound grows by

.. math:: d(c) = \min_{x_c} \sum_{e \subset c} b_e(x_e) - \sum_{e \subset c} \min_{x_e} b_e(x_e) \ge 0

(D. Sontag, T. Meltzer, A. Globerson, T. Jaakkola and Y. Weiss, Tightening LP relaxations for MAP using message passing, UAI 2008).
Candidates are the chordless cycles of the graph of pair factors.  Binary pairwise models without infinite entries are tightened as
QPBO instances, whose search knows longer cycles and cliques (:mod:`blocklp.problems.qpbo.clusters`).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import networkx
import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.oracles.joint import Joint
from blocklp.oracles.pairwise import Pairwise
from blocklp.problems.discrete.tightening import Labelled, Problem, tightened
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.marginals import Scope
from blocklp.problems.mrf.relaxation import MrfRelaxation, cluster_kinds, cluster_name
from blocklp.problems.mrf.rounding import rounded
from blocklp.problems.qpbo.arrays import FloatArray, IntArray
from blocklp.search.tightening import Budget, Clusters, Tightened

MOST_CANDIDATES = 200_000
"""Cycles looked at, shorter ones first."""

LISTING = 0.2
"""Share of the time left that goes to listing cycles, at most."""

LARGEST_CLUSTER = 1024
"""Joint labels of a cluster at most."""

LONGEST = 4
"""Variables of a cycle at most; where there are none, of up to twice as many."""

LEAST = 1e-6
"""Least gain of a cluster, relative to the size of the bound."""

CHUNK, TOGETHER = 4_000_000, 10_000
"""Joint labels, and clusters, that are scored at a time."""


def cycles(mrf: Mrf, *, time_limit: float | bl.Deadline = math.inf) -> list[Scope]:
    """List chordless cycles of the graph of pair factors as sets of variables, the shortest first.

    Parameters
    ----------
    mrf : Mrf
        The energy.
    time_limit : float or Deadline
        Seconds; those found by then are returned.
    """
    deadline = bl.Deadline.of(time_limit)
    graph = networkx.Graph([scope for scope, _ in mrf.factors if len(scope) == 2])
    for bound in (LONGEST, 2 * LONGEST):
        small: set[Scope] = set()
        for c in itertools.islice(networkx.chordless_cycles(graph, length_bound=bound), MOST_CANDIDATES):
            if deadline.over():
                break
            if len(c) > 2 and np.prod(mrf.counts[c].astype(float)) <= LARGEST_CLUSTER:
                small.add(tuple(sorted(c)))
        if small:
            return sorted(small, key=lambda c: (len(c), c))
    return []


def edge_values(relaxation: MrfRelaxation, solution: bl.Solution) -> dict[Scope, Tensor]:
    """Values :math:`b_e` of the edge blocks by their variables, each of the shape of its table."""
    values: dict[Scope, Tensor] = {}
    owner, upper = relaxation.views.owner, relaxation.views.upper
    for blocks in relaxation.model.blocks:
        if isinstance(blocks.type, Pairwise):
            shape = blocks.type.first, blocks.type.second
            parts = [*shape, shape[0] * shape[1]]
            first, second, pair = torch.split(solution.duals[blocks][0].cpu(), parts, -1)
            sums = first[:, :, None] + second[:, None, :] + pair.reshape(-1, *shape)
            allowed = upper[torch.split(blocks.scope, parts, -1)[2]].reshape(-1, *shape)
            scopes = owner[blocks.scope[:, [0, shape[0]]]].tolist()
            values |= zip(map(tuple, scopes), sums.masked_fill(allowed == 0, torch.inf), strict=True)
    return values


def scores(mrf: Mrf, values: dict[Scope, Tensor], clusters: Sequence[Scope], deadline: bl.Deadline) -> FloatArray:
    """Gain :math:`d(c)` of each cluster: ``(clusters,)``; zero for those that are not looked at by the deadline.

    Parameters
    ----------
    mrf : Mrf
        The model.
    values : dict
        A table of reparametrised energies for each pair of variables that has some.
    clusters : sequence of tuple of int
        Variables of each cluster, ascending.
    deadline : Deadline
        When to stop.
    """
    found = np.zeros(len(clusters))
    kinds: dict[tuple[tuple[int, ...], tuple[Scope, ...]], list[int]] = defaultdict(list)
    for k, scope in enumerate(clusters):
        pairs = [p for p in itertools.combinations(range(len(scope)), 2) if (scope[p[0]], scope[p[1]]) in values]
        kinds[tuple(mrf.counts[list(scope)].tolist()), tuple(pairs)].append(k)
    for (shape, some), members in kinds.items():
        step = min(max(1, CHUNK // int(np.prod(shape))), TOGETHER)
        for begin in range(0, len(members), step):
            if deadline.over():
                return found
            part = members[begin : begin + step]
            joint, least = torch.zeros(len(part), *shape, dtype=torch.float64), torch.zeros(len(part), dtype=torch.float64)
            for a, b in some:
                tables = torch.stack([values[clusters[k][a], clusters[k][b]] for k in part])
                least += tables.amin((1, 2))
                joint += tables.reshape(len(part), *(size if axis in (a, b) else 1 for axis, size in enumerate(shape)))
            found[part] = (joint.flatten(1).amin(1) - least).numpy()
    return found


def violated_clusters(
    relaxation: MrfRelaxation,
    solution: bl.Solution,
    candidates: Sequence[Scope],
    most: int,
    *,
    time_limit: float | bl.Deadline = math.inf,
) -> list[Clusters]:
    """Propose the candidates of largest gain that the model has not got.

    Parameters
    ----------
    relaxation : MrfRelaxation
        Of the decomposition ``"edges"``.
    solution : Solution
        Of its model.
    candidates : sequence of tuple of int
        Such as :func:`cycles`.
    most : int
        Number of clusters at most.
    time_limit : float or Deadline
        Seconds; candidates that are not looked at by then are left out.

    Returns
    -------
    list of Clusters
        With the gain as score.
    """
    relaxation.views.learn()
    candidates = [c for c in candidates if c not in relaxation.views]
    gains = scores(relaxation.mrf, edge_values(relaxation, solution), candidates, bl.Deadline.of(time_limit))
    enough = LEAST * max(float(solution.floor[0]), abs(float(solution.bound[0])))
    order: IntArray = np.argsort(-gains, kind="stable")
    return proposed(relaxation, {candidates[k]: float(gains[k]) for k in order[:most].tolist() if gains[k] > enough})


def proposed(relaxation: MrfRelaxation, gains: dict[Scope, float]) -> list[Clusters]:
    """State clusters, with new variables for their joint labels and for those of pairs that have no marginals yet."""
    counts, views = relaxation.mrf.counts, relaxation.views
    made: dict[Scope, Tensor] = {}
    size = relaxation.model.size

    def columns(scope: Scope) -> Tensor:
        nonlocal size
        if scope in views:
            return views[scope].index
        if scope not in made:
            made[scope] = torch.arange(size, size + int(np.prod(counts[list(scope)])))
            size += len(made[scope])
        return made[scope]

    found = []
    for (shape, parts), members in cluster_kinds(relaxation.mrf, list(gains)).items():
        rows = [torch.cat([*(columns(tuple(scope[k] for k in part)) for part in parts), columns(scope)]) for scope in members]
        score = torch.tensor([gains[scope] for scope in members], dtype=torch.float64)
        found.append(Clusters(cluster_name(shape, parts), Joint(shape, parts), torch.stack(rows), score))
    return found


def tightened_local_polytope(
    relaxation: MrfRelaxation, best: Labelled, budget: Budget, *, time_limit: float | bl.Deadline = math.inf, **options: Any
) -> tuple[Tightened, Labelled]:
    """Tighten a relaxation by edges until its bound meets the best labelling found.

    Parameters
    ----------
    relaxation : MrfRelaxation
        Of the decomposition ``"edges"``; its model grows.
    best : Labelled
        A labelling to begin with.
    budget : Budget
        How far to go.
    time_limit : float or Deadline
        Seconds.
    **options
        The others of :func:`blocklp.problems.discrete.tightening.tightened`.

    Returns
    -------
    Tightened, Labelled
        As there; labels are int64.
    """
    deadline = bl.Deadline.of(time_limit)
    return tightened(tightening_of(relaxation, budget.blocks, deadline), best, budget, time_limit=deadline, **options)


def tightening_of(relaxation: MrfRelaxation, most: int, deadline: bl.Deadline) -> Problem:
    """State how a relaxation by edges is tightened, by at most so many clusters in a round.

    Parameters
    ----------
    relaxation : MrfRelaxation
        The relaxation.
    most : int
        Clusters that a round adds at most.
    deadline : Deadline
        For listing cycles, and for every round.
    """
    candidates = cycles(relaxation.mrf, time_limit=deadline.within(LISTING * deadline.left()))
    return Problem(
        relaxation.model,
        search=lambda solution: violated_clusters(relaxation, solution, candidates, most, time_limit=deadline),
        rounded=lambda solution: rounded(relaxation, solution, deadline),
        lifted=lambda solution, labels: relaxation.points.of_labels(labels[None].to(solution.raw_x.device)),
    )
