"""Lower bounds that suit a function, as leaves of a proof: what they prove is for the checker to say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from blocklp.deadline import Deadline
from blocklp.problems.discrete.tightening import Labelled, tightened
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.mis.relaxation import clique_model
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.relaxation import relax
from blocklp.problems.mrf.tightening import tightening_of
from blocklp.problems.proofs.function import HARD, IntegerFunction, Scope
from blocklp.problems.proofs.multipliers import Columns
from blocklp.problems.proofs.steps import Decomposition, Parts, Semidefinite
from blocklp.problems.proofs.theta import theta
from blocklp.problems.qpbo.convex_search import one_blas_thread
from blocklp.problems.qpbo.convexify import Multipliers, Spins, convexified
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model
from blocklp.problems.qpbo.tightening import tightening_of as tightening_of_function
from blocklp.search.tightening import Budget
from blocklp.status import Status

Floats: TypeAlias = NDArray[np.float64]

BUDGET = Budget(rounds=60, blocks=3000, passes=300)
PATIENCE = ((4, 0.1), (2, 0.01))
"""Rounds of tightening, and the share of what is missing that so many of them must close to be followed by others."""
PASSES = 600
"""Passes of the LP of cliques."""
ROUNDS, MOST, LARGEST = 20, 250, 350
"""Rounds of triangle inequalities, and most variables of a semidefinite bound with and without them: matrices are dense."""
DENSE = 3.0
"""Pairs a variable from which on a semidefinite bound comes first."""


@dataclass(frozen=True)
class Found:
    """A leaf, how much each variable is worth to branch on, and what is known of it: its likeliest label, and multipliers."""

    leaf: Decomposition | Semidefinite
    scores: Floats
    likeliest: np.ndarray[Any, np.dtype[np.int64]]
    multipliers: Multipliers | None = None


def as_mrf(function: IntegerFunction) -> tuple[Mrf, list[int]]:
    """An energy in floats, without the constant and with infinite entries again, and what its variables are called."""
    names = sorted(function.labels)
    number = {v: k for k, v in enumerate(names)}
    factors: list[tuple[Scope, np.ndarray[Any, Any]]] = []
    for scope, table in function.tables.items():
        values = np.ldexp(table.astype(np.float64), -function.exponent)
        values[table >= HARD // 2] = np.inf
        factors.append((tuple(number[v] for v in scope), values))
    return Mrf([len(function.labels[v]) for v in names], factors), names


def bounds(mrf: Mrf, names: list[int], goal: float, begin: Multipliers | None, deadline: Deadline) -> Iterable[Found]:
    """Bounds that suit an energy, in turn.

    Parameters
    ----------
    mrf : Mrf
        The energy.
    names : list of int
        What its variables are called in the proof.
    goal : float
        What is enough.
    begin : Multipliers, optional
        Where a semidefinite bound of the same function with fewer labels fixed ended.
    deadline : Deadline
        When to stop.

    Raises
    ------
    KeyboardInterrupt
        A relaxation was interrupted.
    """
    if (function := _Function.of(mrf, names)) is None:
        yield _by_labels(mrf, names, goal, deadline)
        return
    qubo = function.qubo
    sparse, small = len(qubo.edges) < DENSE * qubo.n, qubo.n <= MOST
    graph = _as_graph(qubo)
    excluding = graph is not None and len(function.hard) == len(qubo.edges)
    if graph is not None and (sparse or qubo.n > LARGEST):
        yield _by_cliques(graph, function, names, goal, deadline)
    if graph is not None and excluding and qubo.n <= LARGEST:
        yield _by_theta(graph, function, goal, deadline)
    if sparse or not small:
        yield _by_products(function, names, goal, deadline)
    if small and not excluding:
        yield _by_matrix(function, goal, begin)


@dataclass(frozen=True)
class _Function:
    """A quadratic function of variables of two labels each.

    Attributes
    ----------
    qubo : Qubo
        The function of second labels.
    shift : Parts
        What takes tables of pairs to that form: a constant for each pair, so that they lower nothing.
    hard : dict
        Pairs whose second labels exclude each other, and what their table has there apart from the product's coefficient.
    """

    qubo: Qubo
    shift: Parts
    hard: dict[Scope, float]

    @classmethod
    def of(cls, mrf: Mrf, names: list[int]) -> _Function | None:
        """That of an energy; None for others.

        Instead of an infinite entry of two second labels, the product has a coefficient that outweighs all they may win.
        """
        if mrf.order > 2 or (mrf.counts != 2).any() or any(np.isinf(table.ravel()[:-1]).any() for _, table in mrf.factors):
            return None
        pairs = [(scope, table) for scope, table in mrf.factors if len(scope) == 2]
        finite = [(scope, table) for scope, table in mrf.factors if len(scope) == 1]
        if any(np.isinf(table).any() for _, table in finite):
            return None
        scopes = np.array([scope for scope, _ in pairs], dtype=np.int64).reshape(-1, 2)
        tables = np.array([table for _, table in pairs]).reshape(-1, 2, 2)
        first, second = tables[:, 1, 0] - tables[:, 0, 0], tables[:, 0, 1] - tables[:, 0, 0]
        linear = np.zeros(mrf.n)
        for (i,), table in finite:
            linear[i] += table[1] - table[0]
        np.add.at(linear, scopes[:, 0], first)
        np.add.at(linear, scopes[:, 1], second)
        last = tables[:, 0, 0] + first + second
        products = tables[:, 1, 1] - last
        infinite = np.isinf(products)
        reach = np.abs(linear)
        np.add.at(reach, scopes.ravel(), np.repeat(np.where(infinite, 0.0, np.abs(products)), 2))
        products = np.where(infinite, reach[scopes].sum(1), products)
        offset = float(tables[:, 0, 0].sum()) + sum(float(table[0]) for _, table in finite)
        tables[:, 1, 1] = last
        none = np.zeros_like(first)
        shift = Parts(
            np.array(names)[scopes],
            (((0, 1), tables), ((0,), np.stack([none, -first], 1)), ((1,), np.stack([none, -second], 1))),
        )
        hard = {tuple(scope): float(entry) for scope, entry in zip(scopes[infinite].tolist(), last[infinite], strict=True)}
        return cls(Qubo.from_terms(linear, scopes, products, offset), shift, hard)

    @property
    def shifts(self) -> tuple[Parts, ...]:
        """The parts, if any of them says something."""
        return (self.shift,) if any(values.any() for _, values in self.shift.tables) else ()

    def penalties(self, coefficients: Floats) -> tuple[tuple[int, int, float], ...]:
        """What stands for the infinite entries of a semidefinite leaf, with such coefficients of all products."""
        listed = zip(self.qubo.edges.tolist(), coefficients.tolist(), strict=True)
        return tuple((i + 1, j + 1, self.hard[i, j] + own) for (i, j), own in listed if (i, j) in self.hard)


def _as_graph(qubo: Qubo) -> WeightedGraph | None:
    """The graph whose heaviest sets minimise a function; None where there is none, as choosing two neighbours may pay."""
    weights = -qubo.linear
    least = weights[qubo.edges].min(1, initial=np.inf) if len(qubo.edges) else np.zeros(0)
    if not (weights > 0).all() or (qubo.quadratic < least).any():
        return None
    return WeightedGraph(weights, qubo.edges)


def _by_cliques(graph: WeightedGraph, function: _Function, names: list[int], goal: float, deadline: Deadline) -> Found:
    """The LP of cliques."""
    model = clique_model(graph, "cliques")
    goal = goal - function.qubo.offset
    solution = model.solve(tol=1e-6, passes=PASSES, cutoff=-goal - 1e-9 * graph.weights.sum(), time_limit=deadline)
    _not_interrupted(solution.status[0])
    cliques = []
    for blocks in model.blocks:
        prices = solution.duals[blocks][0].amax(1).clamp(min=0).tolist()  # of a maximum
        for row, price in zip(blocks.scope.tolist(), prices, strict=True):
            if price:
                cliques.append((tuple(names[v] for v in row), price))
    return _of_graph(graph, Decomposition(function.shifts, tuple(cliques)), solution.x["y"][0].numpy())


def _by_theta(graph: WeightedGraph, function: _Function, goal: float, deadline: Deadline) -> Found:
    """Lovász's theta function: a semidefinite leaf without triangles, whose penalties of neighbours are multipliers."""
    goal = goal - function.qubo.offset
    t, entries, shares = theta(graph, -goal - 1e-7 * abs(goal), deadline)
    root = np.sqrt(graph.weights)
    penalties = 2 * entries * root[graph.edges].prod(1) / t
    # The form t - w.y + y.P.y with w_i y_i^2 for half of w_i y_i; its diagonal in spins.
    first = -(t - 0.75 * graph.weights.sum() + penalties.sum() / 4)
    leaf = Semidefinite((float(first), *(-graph.weights / 4).tolist()), (), function.penalties(penalties))
    return _of_graph(graph, leaf, np.clip(shares * t / graph.weights, 0, 1))


def _of_graph(graph: WeightedGraph, leaf: Decomposition | Semidefinite, y: Floats) -> Found:
    """A leaf of a graph, whose nodes of many neighbours come first where a point does not decide them."""
    degrees = np.bincount(graph.edges.ravel(), minlength=graph.n)
    return Found(leaf, (1 + degrees) * (0.05 + y * (1 - y)), np.ones(graph.n, dtype=np.int64))


def _by_products(function: _Function, names: list[int], goal: float, deadline: Deadline) -> Found:
    """Roof duality, tightened."""
    qubo = function.qubo
    model = roof_duality_model(qubo)
    problem = tightening_of_function(model, qubo, BUDGET.blocks, deadline)
    begun = Labelled(torch.zeros(qubo.n, dtype=torch.int8), math.inf)
    solution = _tightened(problem, begun, goal, deadline)
    y = solution.x["y"][0].numpy()
    size = np.bincount(qubo.edges.ravel(), np.repeat(np.abs(qubo.quadratic), 2), qubo.n) + np.abs(qubo.linear)
    scores = size * (0.05 + y * (1 - y))
    leaf = Columns.of_products(qubo, solution).leaf(solution, names)
    return Found(Decomposition((*function.shifts, *leaf.parts)), scores, (y > 0.5).astype(np.int64))


def _by_labels(mrf: Mrf, names: list[int], goal: float, deadline: Deadline) -> Found:
    """The local polytope, tightened."""
    relaxation = relax(mrf, "edges", time_limit=deadline)
    problem = tightening_of(relaxation, BUDGET.blocks, deadline)
    begun = Labelled(torch.zeros(mrf.n, dtype=torch.int64), math.inf)
    solution = _tightened(problem, begun, goal, deadline)
    marginals = relaxation.marginals(solution)[0].numpy()
    degrees = np.bincount(mrf.edges.ravel(), minlength=mrf.n)
    scores = np.where(mrf.counts > 1, (1 + degrees) * (1.05 - marginals.max(1)), -1.0)
    return Found(Columns.of_labels(relaxation).leaf(solution, names), scores, marginals.argmax(1))


def _tightened(problem: Any, begun: Labelled, goal: float, deadline: Deadline) -> Any:
    """The last solution of a tightening that ends where it meets the goal, or closes too little of what is missing."""
    missing: list[float] = []

    def enough(solution: Any, best: Labelled) -> bool:
        missing.append(goal - float(solution.bound[0]))
        return any(len(missing) > rounds and missing[-1] > (1 - share) * missing[-1 - rounds] for rounds, share in PATIENCE)

    cutoff = goal + 1e-9 * abs(goal)
    found, _ = tightened(problem, begun, BUDGET, tol=1e-9, cutoff=cutoff, enough=enough, time_limit=deadline)
    _not_interrupted(found.solution.status[0])
    return found.solution


def _by_matrix(function: _Function, goal: float, begin: Multipliers | None) -> Found:
    """A semidefinite bound with triangle inequalities, begun where that of a part with fewer fixings ended."""
    qubo = function.qubo
    spins = Spins.of(qubo)
    with one_blas_thread():
        under = convexified(spins, ROUNDS, goal + 1e-9 * abs(spins.coupling).sum(), begin=begin)
    if under.interrupted:
        raise KeyboardInterrupt
    triangles = under.triangles.above(0.0)
    listed = zip(triangles.nodes.tolist(), triangles.signs.tolist(), triangles.prices.tolist(), strict=True)
    leaf = Semidefinite(
        tuple(under.diagonal.tolist()),
        tuple((*nodes, *signs[:2], price) for nodes, signs, price in listed),
        function.penalties(qubo.quadratic),
    )
    size = np.bincount(qubo.edges.ravel(), np.repeat(np.abs(qubo.quadratic), 2), qubo.n) + np.abs(qubo.linear)
    estimates = np.nan_to_num(under.multipliers.correlations[0, 1:])
    scores = size * (1 - np.clip(np.abs(estimates), 0, 1))
    return Found(leaf, scores, (estimates > 0).astype(np.int64), under.multipliers)


def _not_interrupted(status: Status) -> None:
    if status is Status.INTERRUPTED:  # which the solver has caught, with nothing proved
        raise KeyboardInterrupt
