r"""The LP relaxation of an energy on its marginal variables.

One simplex variable a node, one table of marginals a factor, and

.. math:: \min_{x, p} \sum_i \langle \theta_i, x_i \rangle + \sum_f \langle \theta_f, p_f \rangle \quad \text{s.t.} \quad
          \sum_{x_{f \setminus i}} p_f = x_i

for every factor f and node i in it: the local polytope (M. I. Schlesinger 1976; T. Werner, A linear programming approach to max-sum
problem, PAMI 29 (2007)).  A factor of three or more nodes also agrees with the factors on some of its nodes.  Labels that an infinite
entry forbids have the upper bound 0.  Blocks are edges and larger factors, paths of factors that hand a state on, or chains of edges,
and on top any clusters.  Without hard constraints the relaxation of a binary pairwise model is that of roof duality, and is stated
with its blocks.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import OptionError, ScopeError, TimeLimitError
from blocklp.language.expression import View
from blocklp.oracles.chain import Chain
from blocklp.oracles.joint import Joint
from blocklp.oracles.pairwise import Pairwise
from blocklp.oracles.simplex import Simplex
from blocklp.problems.discrete.together import lenient
from blocklp.problems.mrf.chains import StatePath, edge_chains, state_paths
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.marginals import Marginals, Points, Scope, spread
from blocklp.problems.qpbo.arrays import FloatArray, IntArray
from blocklp.problems.qpbo.relaxation import roof_duality_model

Decomposition = Literal["auto", "edges", "chains", "qubo"]


STATING = "stating the relaxation of an energy"

STATED, PROVED = 7e-7, 1.1e-6
"""Seconds for each entry of a table that it takes to state a relaxation, and to prove its first bound, in large models."""


@dataclass(frozen=True, eq=False)
class MrfRelaxation:
    """A model, and where it keeps the marginals of variables and factors.

    Attributes
    ----------
    mrf : Mrf
        The energy.
    model : Model
        Its relaxation.
    views : Marginals
        Variables, ascending, to their marginals (the last variable's label fastest); of the single variables and of all factors and
        clusters.  Empty for the decomposition ``"qubo"``.
    stated : bool
        Whether the model is more than the bound of :func:`least_entries`.
    """

    mrf: Mrf
    model: bl.Model
    views: Marginals
    stated: bool = True

    @cached_property
    def points(self) -> Points:
        """Primal points of the model."""
        return Points(self.views)

    def marginals(self, solution: bl.Solution) -> Tensor:
        """Marginals of the variables at a solution: ``(batch, n, most labels)``, 0 where there is no such label."""
        if not self.views:
            y = solution.x["y"]
            return torch.stack([1 - y, y], -1)
        found = torch.zeros(len(solution.bound), self.mrf.n, int(self.mrf.counts.max()), dtype=torch.float64)
        for shape, (nodes, first) in self.views.tables.items():
            if len(shape) == 1:
                found[:, nodes[:, 0], : shape[0]] = solution.raw_x[:, spread(first, shape[0])].cpu().to(torch.float64)
        return found


def relax(
    mrf: Mrf,
    decomposition: Decomposition = "auto",
    clusters: Iterable[Sequence[int]] = (),
    *,
    time_limit: float | bl.Deadline = math.inf,
) -> MrfRelaxation:
    """State the relaxation.

    Parameters
    ----------
    mrf : Mrf
        The energy.
    decomposition : {"auto", "edges", "chains", "qubo"}
        A block an edge or larger factor; or one a chain of edges of equal tables, of 2^k edges; or
        :func:`blocklp.problems.qpbo.roof_duality_model`.  All have the same optimum.  By default ``"qubo"`` where it is possible and
        there are no clusters, else ``"edges"`` with one block for each of :func:`~blocklp.problems.mrf.chains.state_paths`, if these
        have half of the factors of three variables or more.
    clusters : iterable of sequence of int
        Sets of three or more variables whose joint labels become blocks, which raises the optimum.  Triplets share the marginals of
        all their pairs, larger clusters those of the pairs that are factors.  Clusters may be appended to those of a warm start.
    time_limit : float or Deadline
        Seconds.

    Returns
    -------
    MrfRelaxation

    Raises
    ------
    OptionError
        ``decomposition`` is unknown, or ``"qubo"`` and not possible.
    ScopeError
        A cluster has fewer than three variables, or one that does not exist.
    TimeLimitError
        The time is over.
    """
    deadline = bl.Deadline.of(time_limit)
    deadline.check(STATING)
    if decomposition not in get_args(Decomposition):
        raise OptionError(f"decomposition is {decomposition!r}; give one of {', '.join(get_args(Decomposition))}")
    groups = list(dict.fromkeys(_cluster(mrf, given) for given in clusters))
    qubo = mrf.to_qubo() if not groups and decomposition in ("auto", "qubo") else None
    if qubo is not None:
        model = roof_duality_model(qubo)
        return MrfRelaxation(mrf, model, Marginals(mrf, model))
    if decomposition == "qubo":
        raise OptionError("decomposition='qubo' is for binary pairwise models without infinite entries or clusters; use 'edges'")
    relaxation = _variables(mrf, groups)
    chains = edge_chains(mrf) if decomposition == "chains" else []
    _add_chains(relaxation, chains)
    paths = state_paths(mrf) if decomposition == "auto" and mrf.order == 3 else []
    if 2 * sum(len(path.links) for path in paths) < sum(len(group.tables) for group in mrf.groups if group.order == 3):
        paths = []  # there by chance
    _add_paths(relaxation, paths)
    deadline.check(STATING)
    covered = {tuple(sorted(link)) for path in paths for link in path.links}
    _add_factors(relaxation, covered, deadline, pairs=not chains)
    _add_clusters(relaxation, groups)
    deadline.check(STATING)
    _add_simplices(relaxation)
    relaxation.model.repair_with(_Repair(relaxation))
    return relaxation


def relax_in_time(mrf: Mrf, decomposition: Decomposition, clusters: Sequence[Sequence[int]], solving: bl.Deadline) -> MrfRelaxation:
    """State the relaxation as :func:`relax` does, or :func:`least_entries` where there is no time to state it and to prove a bound.

    Parameters
    ----------
    mrf, decomposition, clusters
        As in :func:`relax`.
    solving : Deadline
        When the bound should be proved.

    Raises
    ------
    OptionError, ScopeError
        As :func:`relax`.
    """
    stating, began = lenient(solving), solving.elapsed()
    # Roof duality takes a fraction of that.
    seconds = 0.0 if decomposition in ("auto", "qubo") and mrf.order <= 2 and int(mrf.counts.max()) == 2 else stating_seconds(mrf)
    try:
        stating.check(STATING, seconds)
        relaxation = relax(mrf, decomposition, clusters, time_limit=stating)
        if seconds:  # a busy machine is as slow in the solve
            stating.check(STATING, PROVED * max(seconds / (STATED + PROVED), (solving.elapsed() - began) / STATED))
        return relaxation
    except TimeLimitError:
        return least_entries(mrf)


def stating_seconds(mrf: Mrf) -> float:
    """How long it takes to state the relaxation of an energy and to prove a first bound."""
    return (STATED + PROVED) * entries_of(mrf)


def entries_of(mrf: Mrf) -> int:
    """Entries of the tables of all factors."""
    return sum(group.tables.size for group in mrf.groups)


def least_entries(mrf: Mrf) -> MrfRelaxation:
    """State that no labelling costs less than the least entries of all tables: a model of the single variables.

    Costs of labels are by how much they exceed the least one, so that bounds of the variables alone prove that bound.
    """
    parts, costs = [np.array([mrf.constant])], dict[Scope, FloatArray]()
    for group in mrf.groups:
        least = group.tables.reshape(len(group.tables), -1).min(1)
        parts.append(np.where(np.isfinite(least), least, 0.0))
        if group.order == 1:
            costs.update(((i,), own) for i, own in zip(group.scopes[:, 0].tolist(), group.tables - parts[-1][:, None], strict=True))
    below = math.nextafter(math.fsum(np.concatenate(parts)), -math.inf)
    factors = tuple((scope, costs[scope]) for scope in sorted(costs))
    relaxation = _variables(Mrf.of_factors(mrf.counts, factors, below), [])
    _add_simplices(relaxation)
    return replace(relaxation, mrf=mrf, stated=False)


def _cluster(mrf: Mrf, given: Sequence[int]) -> Scope:
    scope = tuple(sorted({int(i) for i in given}))
    if len(scope) < 3 or len(scope) < len(given) or scope[0] < 0 or scope[-1] >= mrf.n:
        raise ScopeError(f"the cluster {tuple(given)} must name three or more different variables of 0 .. {mrf.n - 1}")
    return scope


def _variables(mrf: Mrf, clusters: list[Scope]) -> MrfRelaxation:
    """Declare the marginals, those of one shape as one array, and the objective."""
    scopes: dict[Scope, list[IntArray]] = {}
    costs: dict[Scope, list[FloatArray]] = {}
    place = np.zeros(mrf.n, dtype=np.int64)
    for count in np.unique(mrf.counts).tolist():
        members = np.flatnonzero(mrf.counts == count)
        place[members] = np.arange(len(members))
        scopes[count,], costs[count,] = [members[:, None]], [np.zeros((len(members), count))]
    for group in mrf.groups:
        if group.order == 1:
            costs[group.shape][0][place[group.scopes[:, 0]]] += group.tables
        else:
            scopes[group.shape], costs[group.shape] = [group.scopes], [group.tables.reshape(len(group.tables), -1)]
    factors = {scope for scope, _ in mrf.factors} if clusters else set()
    # The joint labels of a cluster belong to its block alone, unless a factor has them.
    new = dict.fromkeys(pair for c in clusters if len(c) == 3 for pair in itertools.combinations(c, 2)) | dict.fromkeys(clusters)
    for scope in new:
        if scope not in factors:
            shape = tuple(mrf.counts[list(scope)].tolist())
            scopes.setdefault(shape, []).append(np.array([scope]))
            costs.setdefault(shape, []).append(np.zeros((1, math.prod(shape))))
    model = bl.Model()
    views = Marginals(mrf, model)
    objective: bl.language.Expression | float = mrf.constant
    for shape, parts in scopes.items():
        values = np.concatenate(costs[shape])
        allowed = np.isfinite(values)
        name = f"{'x' if len(shape) == 1 else 'p'}{'x'.join(map(str, shape))}"
        upper, single = torch.tensor(allowed.astype(np.float64)), len(shape) == 1
        array = model.variable(name, values.shape, lower=0, upper=upper, integer=single)
        objective = (torch.tensor(np.where(allowed, values, 0.0)) * array).sum() + objective
        views.append(np.concatenate(parts), array.index[:, 0])
    assert isinstance(objective, bl.language.Expression)
    model.minimize(objective)
    return MrfRelaxation(mrf, model, views)


def _add_factors(relaxation: MrfRelaxation, covered: set[Scope], deadline: bl.Deadline, *, pairs: bool) -> None:
    """One block a factor that is not ``covered``; those of three or more variables share the marginals of the factors inside.

    Chains may have taken the ``pairs``.
    """
    known = {scope for scope, _ in relaxation.mrf.factors} if relaxation.mrf.order > 2 else set()
    for group in relaxation.mrf.groups:
        deadline.check(STATING)
        scopes = group.scopes
        if covered and group.order > 1:
            scopes = scopes[[scope not in covered for scope in map(tuple, scopes.tolist())]]
        kinds: dict[tuple[Scope, ...], list[Scope]] = defaultdict(list)
        if group.order == 2 and pairs and len(scopes):
            _add_kind(relaxation, Pairwise(*group.shape), scopes, ((0,), (1,)))
        for scope in map(tuple, scopes.tolist() if group.order > 2 else ()):
            parts = tuple(
                part
                for order in range(1, group.order)
                for part in itertools.combinations(range(group.order), order)
                if order == 1 or tuple(scope[k] for k in part) in known
            )
            kinds[parts].append(scope)
        for parts, members in kinds.items():
            _add_kind(relaxation, Joint(group.shape, parts), np.array(members), parts)


def _add_kind(relaxation: MrfRelaxation, kind: bl.BlockType, scopes: IntArray, parts: tuple[Scope, ...]) -> None:
    shape = tuple(relaxation.mrf.counts[scopes[0]].tolist())
    relaxation.model.add(kind, _with_parts(relaxation, scopes, parts), name=f"factors {shape} {parts}")


def _add_clusters(relaxation: MrfRelaxation, clusters: list[Scope]) -> None:
    """One block a cluster, with its single variables and those of its pairs that have marginals of their own."""
    for (shape, parts), members in cluster_kinds(relaxation.mrf, clusters).items():
        relaxation.model.add(Joint(shape, parts), _with_parts(relaxation, np.array(members), parts), name=cluster_name(shape, parts))


def cluster_kinds(mrf: Mrf, clusters: list[Scope]) -> dict[tuple[Scope, tuple[Scope, ...]], list[Scope]]:
    """Clusters by the label counts of their variables and the positions that have marginals: all pairs of triplets, else factors."""
    kinds: dict[tuple[Scope, tuple[Scope, ...]], list[Scope]] = defaultdict(list)
    factors = {scope for scope, _ in mrf.factors}
    for scope in clusters:
        parts = tuple(
            part
            for order in range(1, min(len(scope), mrf.order + 1))
            for part in itertools.combinations(range(len(scope)), order)
            if order == 1 or (order == 2 and len(scope) == 3) or tuple(scope[k] for k in part) in factors
        )
        kinds[tuple(mrf.counts[list(scope)].tolist()), parts].append(scope)
    return kinds


def cluster_name(shape: Scope, parts: tuple[Scope, ...]) -> str:
    """The handle of clusters of one kind."""
    return f"clusters {shape} {parts}"


def _with_parts(relaxation: MrfRelaxation, scopes: IntArray, parts: tuple[Scope, ...]) -> View:
    """Marginals of parts of each scope ``(blocks, order)``, then its own: ``(blocks, dim)``."""
    columns = [relaxation.views.columns(scopes[:, part]) for part in parts]
    return View(relaxation.model, "blocks", torch.cat([*columns, relaxation.views.columns(scopes)], 1))


def _add_chains(relaxation: MrfRelaxation, chains: list[list[int]]) -> None:
    """One block a chain; tables are turned to follow it."""
    counts, views = relaxation.mrf.counts, relaxation.views
    by_shape: dict[tuple[int, ...], list[list[int]]] = defaultdict(list)
    for chain in chains:
        by_shape[tuple(counts[chain].tolist())].append(chain)
    for shape, members in by_shape.items():
        blocks = []
        for chain in members:
            tables = []
            for i, j in itertools.pairwise(chain):
                index = views[min(i, j), max(i, j)].index
                tables.append(index if i < j else index.reshape(int(counts[j]), int(counts[i])).T.reshape(-1))
            blocks.append(torch.cat([*(views[i,].index for i in chain), *tables]))
        relaxation.model.add(Chain(shape), View(relaxation.model, "blocks", torch.stack(blocks)), name=f"chains {shape}")


def _add_paths(relaxation: MrfRelaxation, paths: list[StatePath]) -> None:
    """One block a path of states; tables are turned to follow it."""
    counts, views = relaxation.mrf.counts, relaxation.views
    by_shape: dict[tuple[Scope, Scope], list[Tensor]] = defaultdict(list)
    for path in paths:
        shape = tuple(counts[path.row].tolist()), tuple(counts[path.read].tolist())
        tables = []
        for link in path.links:
            scope = tuple(sorted(link))
            table = views[scope].index.reshape(counts[list(scope)].tolist())
            tables.append(table.permute([scope.index(i) for i in link]).reshape(-1))
        by_shape[shape].append(torch.cat([*(views[i,].index for i in path.row + path.read), *tables]))
    for (sizes, read), blocks in by_shape.items():
        relaxation.model.add(Chain(sizes, read), View(relaxation.model, "blocks", torch.stack(blocks)), name=f"paths {sizes} {read}")


def _add_simplices(relaxation: MrfRelaxation) -> None:
    """One block for each variable that no other block holds."""
    alone = torch.ones(relaxation.model.size, dtype=torch.bool)
    for blocks in relaxation.model.blocks:
        alone[blocks.scope] = False
    for shape, (_, first) in relaxation.views.tables.items():
        if len(shape) == 1 and bool(alone[first].any()):
            columns = spread(first[alone[first]], shape[0])
            relaxation.model.add(Simplex(shape[0]), View(relaxation.model, "blocks", columns), name=f"nodes {shape[0]}")


@dataclass(frozen=True, eq=False)
class _Repair:
    """Offers :meth:`Points.repaired` to the model; it can be pickled with it."""

    relaxation: MrfRelaxation

    def __call__(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        points, model = self.relaxation.points, self.relaxation.model
        x = points.repaired(torch.cat([given[v].flatten(1) for v in model.variables], 1))
        return {name: x[:, v.index.to(x.device)] for name, v in model.variables.items()}
