r"""Search for clusters that raise the bound of a solved relaxation.

With the multipliers at hand every edge block e has the values :math:`b_e(x_e)`, and the bound is the sum of their minima (and of
other blocks).  If a cluster c takes over those of its edges, the bound grows by

.. math:: d(c) = \min_{x_c} \sum_{e \subset c} b_e(x_e) - \sum_{e \subset c} \min_{x_e} b_e(x_e) \ge 0

(D. Sontag, T. Meltzer, A. Globerson, T. Jaakkola and Y. Weiss, Tightening LP relaxations for MAP using message passing, UAI 2008).
Candidates are the chordless cycles of the graph of pair factors.  Where no one gains by itself, which is no proof that all together
gain nothing, those come in turn that hold most of the gap to the best labelling :math:`x^*`, which is the sum of
:math:`b_f(x^*_f) - \min_{x_f} b_f(x_f)` over all blocks.  Where the gap lies in no cycle, as that of larger factors may, a block that
holds some of it is joined with others that have a variable of it.  Large models, and those of larger factors, pass messages between
rounds (:mod:`blocklp.problems.mrf.messages`).  Binary pairwise models without infinite entries are tightened as
QPBO instances, whose search knows longer cycles and cliques (:mod:`blocklp.problems.qpbo.clusters`).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.oracles.joint import Joint
from blocklp.oracles.pairwise import Pairwise
from blocklp.problems.discrete.tightening import Labelled, Problem, tightened
from blocklp.problems.mrf.cycles import LARGEST, cycles
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.marginals import Scope
from blocklp.problems.mrf.messages import SHARE, SLOWS, Messages, Passed, loops_for
from blocklp.problems.mrf.relaxation import MrfRelaxation, cluster_kinds, cluster_name
from blocklp.problems.mrf.rounding import improved, rounded
from blocklp.problems.qpbo.arrays import FloatArray, IntArray
from blocklp.search.tightening import Budget, Clusters, Tightened

LISTING = 0.2
"""Share of the time left that goes to listing cycles, at most."""

LARGEST_SWEPT = 32_768
"""Joint labels of a cluster at most where messages are passed between rounds."""

SWEEPS = 30
"""Pairs of sweeps of messages between rounds at most."""

GROWTH = 4
"""Joint labels that a round of sweeps adds at most, or one of unions of blocks, times the entries of all factors."""

LEAST, LEAST_SWEPT = 1e-6, 1e-10
"""Least gain of a cluster, relative to the size of the bound; sweeps gain much more by a cluster than its own edges show."""

HOLDERS = 300
"""Blocks that hold most of the gap, of which pairs are made clusters where no cycle holds any of it."""

CHUNK, TOGETHER = 4_000_000, 10_000
"""Joint labels, and clusters, that are scored at a time."""


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
    entries: float = math.inf,
    least: float = LEAST,
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
        Such as :func:`blocklp.problems.mrf.cycles.cycles`.
    most : int
        Number of clusters at most.
    entries : float
        Joint labels of all of them at most.
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
    enough = least * max(float(solution.floor[0]), abs(float(solution.bound[0])))
    return proposed(relaxation, _best_of(relaxation.mrf, candidates, gains, enough, most, entries))


def _best_of(
    mrf: Mrf, candidates: Sequence[Scope], gains: FloatArray, enough: float, most: int, entries: float
) -> dict[Scope, float]:
    """Gains of the best candidates, those above a least gain, so many of them and of so many joint labels at most."""
    order: IntArray = np.argsort(-gains, kind="stable")[:most]
    order = order[gains[order] > enough]
    sizes = [math.prod(mrf.counts[list(candidates[k])].tolist()) for k in order]
    return {candidates[k]: float(gains[k]) for k in order[np.cumsum(sizes) <= entries].tolist()}


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
    relaxation: MrfRelaxation,
    best: Labelled,
    budget: Budget,
    begun: Passed | None = None,
    *,
    time_limit: float | bl.Deadline = math.inf,
    **options: Any,
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
    begun : Passed, optional
        As for :func:`tightening_of`.
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
    return tightened(tightening_of(relaxation, budget.blocks, deadline, begun), best, budget, time_limit=deadline, **options)


def tightening_of(relaxation: MrfRelaxation, most: int, deadline: bl.Deadline, begun: Passed | None = None) -> Problem:
    """State how a relaxation by edges is tightened, by at most so many clusters in a round.

    Parameters
    ----------
    relaxation : MrfRelaxation
        The relaxation.
    most : int
        Clusters that a round adds at most.
    deadline : Deadline
        For listing cycles, and for every round.
    begun : Passed, optional
        Where message passing has brought the relaxation: rounds go on by it.
    """
    listing, largest = deadline.within(LISTING * deadline.left()), LARGEST if begun is None else LARGEST_SWEPT
    given = relaxation, cycles(relaxation.mrf, largest, time_limit=listing), most, deadline
    rounds = _Rounds(*given) if begun is None else _Sweeps(*given, begun)
    return Problem(
        relaxation.model,
        search=rounds.search,
        rounded=rounds.rounded,
        lifted=lambda solution, labels: relaxation.points.of_labels(labels[None].to(solution.raw_x.device)),
        options=rounds.options,
    )


class _Rounds:
    """The work between two solves."""

    least, entries = LEAST, math.inf

    def __init__(self, relaxation: MrfRelaxation, candidates: Sequence[Scope], most: int, deadline: bl.Deadline) -> None:
        self.relaxation, self._candidates, self._most, self.deadline = relaxation, candidates, most, deadline
        self.best = Labelled(torch.zeros(relaxation.mrf.n, dtype=torch.int64), math.inf)
        self.growth = GROWTH * sum(group.tables.size for group in relaxation.mrf.groups)
        self.options: dict[str, Any] = {}

    def search(self, solution: bl.Solution) -> list[Clusters]:
        """Clusters that gain; where none does, those that hold most of the gap to the best labelling.

        Multipliers at which no cluster gains by itself need not be the best ones.
        """
        limits = self._most, self.entries
        found = violated_clusters(self.relaxation, solution, self._candidates, *limits, self.least, time_limit=self.deadline)
        if found or math.isinf(self.best.energy):
            return found
        slack = Messages(self.relaxation, None, solution.state).slack(self.best.labels)
        held: dict[Scope, float] = defaultdict(float)
        for scope, more in slack.items():
            pairs = list(itertools.combinations(scope, 2))
            for pair in pairs:
                held[pair] += more / len(pairs)
        mrf, left = self.relaxation.mrf, [c for c in self._candidates if c not in self.relaxation.views]
        shares = [sum(held.get(pair, 0.0) for pair in itertools.combinations(c, 2)) for c in left]
        enough = self.least * max(float(solution.floor[0]), abs(float(solution.bound[0])))
        chosen = _best_of(mrf, left, np.array(shares), enough, *limits)
        if not chosen:
            unions = self._unions(slack, enough)
            chosen = _best_of(mrf, list(unions), np.array(list(unions.values())), enough, self._most, self.growth)
        return proposed(self.relaxation, chosen) if chosen else []

    def _unions(self, slack: dict[Scope, float], least: float) -> dict[Scope, float]:
        """Clusters of a block that holds some of the gap and of one that has a variable of it, and how much both hold."""
        found: dict[Scope, float] = {}
        holders = [scope for scope in sorted(slack, key=lambda scope: -slack[scope])[:HOLDERS] if slack[scope] > least]
        near: dict[int, list[Scope]] = defaultdict(list)
        for scope in slack:
            for variable in scope:
                near[variable].append(scope)
        for one in holders:
            for other in dict.fromkeys(scope for variable in one for scope in near[variable]):
                union = tuple(sorted({*one, *other}))
                size = math.prod(self.relaxation.mrf.counts[list(union)].tolist())
                if union != one and union not in self.relaxation.views and size <= LARGEST:
                    found[union] = max(found.get(union, 0.0), slack[one] + slack[other])
        return found

    def rounded(self, solution: bl.Solution) -> Labelled:
        """A labelling from a point, or the best one so far."""
        self.offer(rounded(self.relaxation, solution, self.deadline))
        return self.best

    def offer(self, found: Labelled) -> None:
        """Keep the better labelling."""
        self.best = found if found.energy < self.best.energy else self.best


class _Sweeps(_Rounds):
    """Message passing between two solves."""

    least = LEAST_SWEPT

    def __init__(
        self, relaxation: MrfRelaxation, candidates: Sequence[Scope], most: int, deadline: bl.Deadline, begun: Passed
    ) -> None:
        super().__init__(relaxation, candidates, most, deadline)
        self.best, self.options = begun.best, {"warm_start": begun.state, "method": begun.method, "resume": self.resumed}
        self.entries = self.growth
        self._improved: Tensor | None = None

    def resumed(self, state: bl.State) -> bl.State:
        """Go on from the multipliers of the last round, with its clusters."""
        messages = Messages(self.relaxation, loops_for(self.relaxation, self.deadline, 0), state)
        messages.offer(self.best)
        messages.rise(SWEEPS, SLOWS, self.deadline.within(SHARE * self.deadline.left()))
        self.offer(messages.best)
        return messages.state()

    def rounded(self, solution: bl.Solution) -> Labelled:
        """The best labelling: of the sweeps, or where these found no better one, from the point of the engine."""
        mrf, labels = self.relaxation.mrf, self.best.labels
        if labels is self._improved:
            self.offer(rounded(self.relaxation, solution, self.deadline, [labels]))
        else:
            self.offer(improved(mrf, labels[None], self.deadline))
        self._improved = self.best.labels
        return self.best
