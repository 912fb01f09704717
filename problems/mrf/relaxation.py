r"""The LP relaxation of an energy on its marginal variables.

One simplex variable a node, one table of marginals a factor, and

.. math:: \min_{x, p} \sum_i \langle \theta_i, x_i \rangle + \sum_f \langle \theta_f, p_f \rangle \quad \text{s.t.} \quad
          \sum_{x_{f \setminus i}} p_f = x_i

for every factor f and node i in it: the local polytope (M. I. Schlesinger 1976; T. Werner, A linear programming approach to max-sum
problem, PAMI 29 (2007)).  A factor of three or more nodes also agrees with the factors on some of its nodes.  Labels that an infinite
entry forbids have the upper bound 0.  Blocks are edges and larger factors, or chains of edges, and on top any clusters.  Without hard
constraints the relaxation of a binary pairwise model is that of roof duality, and is stated with its blocks.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import OptionError, ScopeError
from blocklp.expression import View
from blocklp.oracles.chain import Chain
from blocklp.oracles.choice import Simplex
from blocklp.oracles.joint import Joint
from blocklp.oracles.pairwise import Pairwise
from blocklp.problems.mrf.chains import edge_chains
from blocklp.problems.mrf.heuristics import Conditionals, descend
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.polytope import rounded_tables
from blocklp.problems.qpbo.relaxation import roof_duality_model

Decomposition = Literal["auto", "edges", "chains", "qubo"]

REPAIR_ROUNDS = 20
"""Rounds of descent at each check."""

Scope = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A model, and where it keeps the marginals of variables and factors.

    Attributes
    ----------
    mrf : Mrf
        The energy.
    model : Model
        Its relaxation.
    views : dict of tuple of int to View
        Variables, ascending, to their marginals (the last variable's label fastest); of the single variables and of all factors and
        clusters.  Empty for the decomposition ``"qubo"``.
    members : dict of str to list of tuple of int
        Names of the blocks of factors to the factors' variables.
    """

    mrf: Mrf
    model: bl.Model
    views: dict[Scope, View] = field(default_factory=dict)
    members: dict[str, list[Scope]] = field(default_factory=dict)

    def upper(self, scope: Scope) -> Tensor:
        """Upper bounds of the marginals of some variables, 0 for labels that a hard constraint forbids."""
        return self.bounds[self.views[scope].index]

    @cached_property
    def bounds(self) -> Tensor:
        """Upper bounds of all variables of the model, in a row."""
        return torch.cat([v.upper.reshape(-1) for v in self.model.variables.values()])

    def marginals(self, solution: bl.Solution) -> Tensor:
        """Marginals of the variables at a solution: ``(batch, n, most labels)``, 0 where there is no such label."""
        if not self.views:
            y = solution.x["y"]
            return torch.stack([1 - y, y], -1)
        found = torch.zeros(len(solution.bound), self.mrf.n, int(self.mrf.counts.max()), dtype=torch.float64)
        for i, count in enumerate(self.mrf.counts.tolist()):
            found[:, i, :count] = solution.x[self.views[i,]].cpu()
        return found


def relax(mrf: Mrf, decomposition: Decomposition = "auto", clusters: Iterable[Sequence[int]] = ()) -> Relaxation:
    """State the relaxation.

    Parameters
    ----------
    mrf : Mrf
        The energy.
    decomposition : {"auto", "edges", "chains", "qubo"}
        A block an edge; or one a chain of edges of equal tables, of 2^k edges; or :func:`blocklp.problems.qpbo.roof_duality_model`.
        All have the same optimum.  By default ``"qubo"`` where it is possible and there are no clusters, else ``"edges"``.
    clusters : iterable of sequence of int
        Sets of three or more variables whose joint labels become blocks, which raises the optimum.  Triplets share the marginals of
        all their pairs, larger clusters those of the pairs that are factors.  Clusters may be appended to those of a warm start.

    Returns
    -------
    Relaxation

    Raises
    ------
    OptionError
        ``decomposition`` is unknown, or ``"qubo"`` and not possible.
    ScopeError
        A cluster has fewer than three variables, or one that does not exist.
    """
    if decomposition not in get_args(Decomposition):
        raise OptionError(f"decomposition is {decomposition!r}; give one of {', '.join(get_args(Decomposition))}")
    groups = list(dict.fromkeys(_cluster(mrf, given) for given in clusters))
    qubo = mrf.to_qubo() if not groups and decomposition in ("auto", "qubo") else None
    if qubo is not None:
        return Relaxation(mrf, roof_duality_model(qubo))
    if decomposition == "qubo":
        raise OptionError("decomposition='qubo' is for binary pairwise models without infinite entries or clusters; use 'edges'")
    relaxation = _variables(mrf, groups)
    chains = edge_chains(mrf) if decomposition == "chains" else []
    _add_chains(relaxation, chains)
    covered = {frozenset(pair) for chain in chains for pair in itertools.pairwise(chain)}
    _add_factors(relaxation, [scope for scope, _ in mrf.factors if len(scope) > 1 and frozenset(scope) not in covered])
    _add_clusters(relaxation, groups)
    _add_simplices(relaxation)
    _state_repair(relaxation)
    return relaxation


def _cluster(mrf: Mrf, given: Sequence[int]) -> Scope:
    scope = tuple(sorted({int(i) for i in given}))
    if len(scope) < 3 or len(scope) < len(given) or scope[0] < 0 or scope[-1] >= mrf.n:
        raise ScopeError(f"the cluster {tuple(given)} must name three or more different variables of 0 .. {mrf.n - 1}")
    return scope


def _variables(mrf: Mrf, clusters: list[Scope]) -> Relaxation:
    """Declare the marginals, those of one shape as one array, and the objective."""
    tables = dict(mrf.factors)
    scopes: dict[Scope, None] = {(i,): None for i in range(mrf.n)}
    scopes |= dict.fromkeys(scope for scope, _ in mrf.factors)
    scopes |= dict.fromkeys(pair for c in clusters if len(c) == 3 for pair in itertools.combinations(c, 2))
    # The joint labels of a cluster belong to its block alone, unless a factor has them.
    scopes |= dict.fromkeys(clusters)
    by_shape: dict[tuple[int, ...], list[Scope]] = defaultdict(list)
    for scope in scopes:
        by_shape[tuple(mrf.counts[list(scope)].tolist())].append(scope)
    model = bl.Model()
    views: dict[Scope, View] = {}
    objective: bl.Expression | float = mrf.constant
    for shape, members in by_shape.items():
        size = int(np.prod(shape))
        none = np.zeros(shape)
        costs = np.stack([tables.get(scope, none) for scope in members]).reshape(-1, size)
        allowed = np.isfinite(costs)
        upper = torch.tensor(allowed.astype(np.float64))
        name = "x" if len(shape) == 1 else "p"
        array = model.variable(f"{name}{'x'.join(map(str, shape))}", (len(members), size), lower=0, upper=upper)
        objective = (torch.tensor(np.where(allowed, costs, 0.0)) * array).sum() + objective
        views |= {scope: array[row] for row, scope in enumerate(members)}
    assert isinstance(objective, bl.Expression)
    model.minimize(objective)
    return Relaxation(mrf, model, views)


def _stacked(relaxation: Relaxation, blocks: list[list[View]]) -> View:
    """One view ``(blocks, dim)`` of the variables of blocks of one type."""
    return View(relaxation.model, "blocks", torch.stack([torch.cat([v.index for v in views]) for views in blocks]))


def _add_factors(relaxation: Relaxation, scopes: list[Scope]) -> None:
    """One block a factor; those of three or more variables share the marginals of the factors inside."""
    known, counts = {scope for scope, _ in relaxation.mrf.factors}, relaxation.mrf.counts
    kinds: dict[tuple[tuple[int, ...], tuple[Scope, ...]], list[Scope]] = defaultdict(list)
    for scope in scopes:
        positions = range(len(scope))
        parts = tuple(
            part
            for order in range(1, len(scope))
            for part in itertools.combinations(positions, order)
            if order == 1 or tuple(scope[k] for k in part) in known
        )
        kinds[tuple(counts[list(scope)].tolist()), parts].append(scope)
    for (shape, parts), members in kinds.items():
        kind = Pairwise(*shape) if len(shape) == 2 else Joint(shape, parts)
        relaxation.model.add(kind, _with_parts(relaxation, members, parts), name=f"factors {shape} {parts}")
        relaxation.members[f"factors {shape} {parts}"] = members


def _add_clusters(relaxation: Relaxation, clusters: list[Scope]) -> None:
    """One block a cluster, with its single variables and those of its pairs that have marginals of their own."""
    kinds: dict[tuple[tuple[int, ...], tuple[Scope, ...]], list[Scope]] = defaultdict(list)
    factors = {scope for scope, _ in relaxation.mrf.factors}
    for scope in clusters:
        pairs = [p for p in itertools.combinations(range(len(scope)), 2) if len(scope) == 3 or (scope[p[0]], scope[p[1]]) in factors]
        parts = (*((k,) for k in range(len(scope))), *pairs)
        kinds[tuple(relaxation.mrf.counts[list(scope)].tolist()), parts].append(scope)
    for (shape, parts), members in kinds.items():
        relaxation.model.add(Joint(shape, parts), _with_parts(relaxation, members, parts), name=f"clusters {shape} {parts}")


def _with_parts(relaxation: Relaxation, members: list[Scope], parts: tuple[Scope, ...]) -> View:
    """Marginals of parts of each scope, then its own: ``(blocks, dim)``."""
    views = relaxation.views
    return _stacked(relaxation, [[*(views[tuple(s[k] for k in part)] for part in parts), views[s]] for s in members])


def _add_chains(relaxation: Relaxation, chains: list[list[int]]) -> None:
    """One block a chain; tables are turned to follow it."""
    counts = relaxation.mrf.counts
    by_shape: dict[tuple[int, ...], list[list[int]]] = defaultdict(list)
    for chain in chains:
        by_shape[tuple(counts[chain].tolist())].append(chain)
    for shape, members in by_shape.items():
        blocks = []
        for chain in members:
            tables = []
            for i, j in itertools.pairwise(chain):
                view = relaxation.views[min(i, j), max(i, j)]
                tables.append(view if i < j else view.reshape(int(counts[j]), int(counts[i])).T.reshape(-1))
            blocks.append([*(relaxation.views[i,] for i in chain), *tables])
        relaxation.model.add(Chain(shape), _stacked(relaxation, blocks), name=f"chains {shape}")


def _add_simplices(relaxation: Relaxation) -> None:
    """One block for each variable that no other block holds."""
    alone = torch.ones(relaxation.model.size, dtype=torch.bool)
    for blocks in relaxation.model.blocks:
        alone[blocks.scope] = False
    by_size: dict[int, list[View]] = defaultdict(list)
    for i in range(relaxation.mrf.n):
        view = relaxation.views[i,]
        if alone[view.index[0]]:
            by_size[len(view)].append(view)
    for size, views in by_size.items():
        relaxation.model.add(Simplex(size), _stacked(relaxation, [[v] for v in views]), name=f"nodes {size}")


def _state_repair(relaxation: Relaxation) -> None:
    """Offer a labelling near the iterate and, in pairwise models, the iterate with tables rounded to its nodes.

    The cheaper one counts.
    """
    mrf, model = relaxation.mrf, relaxation.model
    scopes = list(relaxation.views)
    columns = [relaxation.views[scope].index for scope in scopes]
    forbidden = relaxation.bounds == 0
    assert model.objective is not None
    cost = model.objective.evaluate()[0][0]
    pairs = max(map(len, scopes)) <= 2
    rows: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for k, scope in enumerate(scopes):
        rows[tuple(mrf.counts[list(scope)].tolist())].append(k)
    conditionals: dict[torch.device, Conditionals] = {}

    def labelled(x: Tensor) -> Tensor:
        marginals = x.new_zeros(len(x), mrf.n, int(mrf.counts.max())).to(torch.float64)
        for shape, members in rows.items():
            if len(shape) == 1:
                nodes = torch.tensor([scopes[k][0] for k in members])
                marginals[:, nodes, : shape[0]] = x[:, torch.stack([columns[k] for k in members])].to(torch.float64)
        if x.device not in conditionals:
            conditionals[x.device] = Conditionals(mrf, x.device)
        labels = descend(mrf, marginals.argmax(-1), REPAIR_ROUNDS, conditionals[x.device]).labels
        point = torch.zeros_like(x)
        for shape, members in rows.items():
            nodes = torch.tensor([scopes[k] for k in members])
            position = labels[:, nodes[:, 0]]
            for axis in range(1, len(shape)):
                position = position * shape[axis] + labels[:, nodes[:, axis]]
            first = torch.stack([columns[k] for k in members])
            point.scatter_(1, first.to(x.device)[torch.arange(len(members)), position], 1.0)
        return point

    def fractional(x: Tensor) -> Tensor:
        point = x.clamp(0, 1)
        point[:, forbidden] = 0
        for shape, members in sorted(rows.items(), key=lambda item: len(item[0])):
            index = torch.stack([columns[k] for k in members])
            if len(shape) == 1:
                point[:, index] = point[:, index] / point[:, index].sum(-1, keepdim=True).clamp(min=1e-30)
                continue
            ends = [torch.stack([relaxation.views[scopes[k][axis],].index for k in members]) for axis in (0, 1)]
            table = point[:, index].reshape(len(point), -1, *shape)
            point[:, index] = rounded_tables(table, point[:, ends[0]], point[:, ends[1]]).flatten(-2)
        return point

    def repair(given: dict[str, Tensor]) -> dict[str, Tensor]:
        x = torch.cat([given[v].flatten(1) for v in model.variables], 1)
        candidates = [labelled(x), fractional(x)] if pairs else [labelled(x)]
        values = torch.stack([(c @ cost.to(c)).masked_fill((c[:, forbidden] > 1e-9).any(1), torch.inf) for c in candidates])
        best = torch.stack(candidates)[values.argmin(0), torch.arange(len(x))]
        return {name: best[:, v.index.to(best.device)] for name, v in model.variables.items()}

    model.repair_with(repair)
