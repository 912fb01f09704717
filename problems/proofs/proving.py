"""Proofs of minima, for :func:`blocklp.problems.proofs.check_proof`.

Variables of few neighbours are minimised out, and what is left splits into parts.  One of small tables is eliminated as a whole; of
the others a tree is built, whose leaves are eliminated in turn, or bounded by the relaxation that suits them: by cliques where
choosing two neighbours never pays, as in independent sets, by a semidefinite program where variables have two labels and many
neighbours, and else by tightened relaxations.  Nothing of this has to be right: what a leaf proves is what the checker says of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from blocklp.campaigns import Executor, InProcess
from blocklp.deadline import Deadline
from blocklp.errors import FormatError, OptionError, ProcessError
from blocklp.problems.discrete.elimination import cheapest_order, neighbour_sets
from blocklp.problems.discrete.exact import DEFAULT, ExactSettings
from blocklp.problems.discrete.tightening import Labelled, tightened
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.mis.relaxation import clique_model
from blocklp.problems.mrf.exact import solve_mrf_exactly
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.relaxation import relax
from blocklp.problems.mrf.tightening import tightening_of
from blocklp.problems.proofs.bounds import decomposed
from blocklp.problems.proofs.function import FINE, HARD, Discrete, ExactFunction, IntegerFunction, Scope
from blocklp.problems.proofs.multipliers import Columns
from blocklp.problems.proofs.semidefinite import semidefinite
from blocklp.problems.proofs.steps import Branch, Decomposition, Eliminate, Semidefinite, Split, Step, from_json, to_json
from blocklp.problems.proofs.theta import theta
from blocklp.problems.qpbo.convex_search import one_blas_thread
from blocklp.problems.qpbo.convexify import Multipliers, Spins, convexified
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model
from blocklp.problems.qpbo.tightening import tightening_of as tightening_of_function
from blocklp.search.best_first import Expansion, Node
from blocklp.search.over_workers import Sharing, branch_and_bound_over
from blocklp.search.tightening import Budget
from blocklp.status import Status

SHARING = Sharing(batch=4, parts=16, subtree=16)
BUDGET = Budget(rounds=60, blocks=3000, passes=300)
PATIENCE = ((4, 0.1), (2, 0.01))
"""Rounds of tightening, and the share of what is missing that so many of them must close to be followed by others."""
PASSES = 600
"""Passes of the LP of cliques."""
ROUNDS, MOST, LARGEST = 20, 250, 350
"""Rounds of triangle inequalities, and most variables of a semidefinite bound with and without them: matrices are dense."""
DENSE = 3.0
"""Pairs a variable from which on a semidefinite bound comes first."""
NEAR = 2e-9
"""Share of the sum of all magnitudes that does not matter where coefficients are no multiples of a common number."""


def prove_minimum(
    problem: Discrete,
    labels: ArrayLike | None,
    max_leaves: int = 2000,
    *,
    time_limit: float | Deadline = math.inf,
    executor: Executor | None = None,
    log: Callable[[str], Any] | None = None,
    settings: ExactSettings = DEFAULT,
) -> tuple[Step, ...]:
    """Build a proof that labels are a minimiser.

    Parameters
    ----------
    problem : Qubo, Mrf or WeightedGraph
        The problem; of a graph, that a set is heaviest.
    labels : array_like of int, shape (n,), or None
        A minimiser, as from :func:`blocklp.problems.qpbo.solve_qpbo_exactly`, :func:`blocklp.problems.mrf.solve_mrf_exactly` or
        :func:`blocklp.problems.mis.solve_mis_exactly`; None where there is no labelling.
    max_leaves : int
        Leaves at most.
    time_limit : float or Deadline
        Seconds.
    executor : Executor, optional
        Whose workers build it; by default this process does.  The proof is the same for any number of them.
    log : callable, optional
        Gets a line of text for every step as soon as it is there; of all lines :func:`proof_from_log` makes the proof.
    settings : ExactSettings
        ``energy_tables`` and ``leaf_tables`` say what is eliminated at the root of a part and below, ``reduced_table`` what a
        variable of few neighbours leaves at most.

    Returns
    -------
    tuple of Branch, Split, Eliminate, Decomposition and Semidefinite
        For :func:`blocklp.problems.proofs.check_proof`, which alone says whether it succeeded: with coefficients that are not
        multiples of a common number, it may leave two billionths of the sum of all magnitudes open.

    Raises
    ------
    OptionError
        More leaves are needed.
    TimeLimitError
        The time is over.
    ShapeError, ScopeError, ModelError
        The labels do not fit the problem, or are forbidden.
    """
    deadline = Deadline.of(time_limit)
    exact = ExactFunction(problem)
    lines: list[str] = []

    def keep(line: str) -> None:
        lines.append(line)
        if log is not None:
            log(line)

    if labels is not None:
        exact.value(labels)
    path: tuple[int, ...] = ()
    function = exact.function
    few = _few_neighbours(function, settings.reduced_table)
    if few:
        keep(_line(path, Eliminate(few)))
        path, function = (*path, 0), function.without(few)
    parts = _components(function)
    below = [(path, function)]
    if len(parts) > 1:
        keep(_line(path, Split(parts)))
        below = [((*path, k), part) for k, part in enumerate(function.parts(parts))]
    functions = [part for _, part in below]
    goals = _goals(exact, functions, labels, deadline)
    for (where, part), goal in zip(below, goals, strict=True):
        if goal is None:
            keep(_line(where, Decomposition()))
            continue
        # Of a tree in which every branch has two parts, one node more than half is a leaf.
        found = branch_and_bound_over(
            executor or InProcess(),
            [Node(-math.inf, 0, _Part(where, (), None))],
            _Prover(part, goal, settings).expand,
            sharing=SHARING,
            max_nodes=2 * max_leaves - 1,
            time_limit=deadline,
            log=keep,
        )
        if found.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        deadline.check("building a proof")
        if found.status is Status.PASS_LIMIT:
            raise OptionError(f"the proof needs more than {max_leaves} leaves; raise max_leaves, or prove a smaller instance")
        if found.unresolved:
            raise ProcessError("the processes that should have proved a part of the labellings ended; give them more memory")
    return proof_from_log(lines)


def _line(path: tuple[int, ...], step: Step) -> str:
    """A line of the log: which subtree of which subtree, and so on, a step begins."""
    return json.dumps([path, to_json(step)])


def proof_from_log(lines: Iterable[str]) -> tuple[Step, ...]:
    """Put the proof together that the log of a search holds, whose lines may come in any order.

    Raises
    ------
    FormatError
        A line is none of a log, or steps are missing: the search did not end, or the log is not whole.
    """
    found: dict[tuple[int, ...], Step] = {}
    try:
        for line in lines:
            path, item = json.loads(line)
            found[tuple(int(k) for k in path)] = from_json(item)
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"not the log of a proof: {error}") from error
    wanted = {(): None} | {(*path, k): None for path, step in found.items() for k in range(step.below)}
    if missing := wanted.keys() - found.keys():
        raise FormatError(f"the log lacks {len(missing)} steps, such as the one at {min(missing)}; has the search ended?")
    if more := found.keys() - wanted.keys():
        raise FormatError(f"the log has steps that belong to no other, such as the one at {min(more)}")
    return tuple(found[path] for path in sorted(found))  # each before those below it


def _few_neighbours(function: IntegerFunction, most: int) -> tuple[int, ...]:
    """Variables in an order in which each has at most two neighbours when it is minimised out."""
    names = sorted(function.labels)
    number = {v: k for k, v in enumerate(names)}
    sizes = [len(function.labels[v]) for v in names]
    near = neighbour_sets(len(names), _edges(function, number))
    left, found = [k for k in range(len(names)) if len(near[k]) <= 2], []
    done = [False] * len(names)
    while left:
        k = left.pop()
        around = near[k]
        if done[k] or len(around) > 2 or math.prod([sizes[k], *(sizes[j] for j in around)]) > most:
            continue
        done[k] = True
        found.append(names[k])
        for j in around:
            near[j] = (near[j] | around) - {k, j}
            if len(near[j]) <= 2:
                left.append(j)
    return tuple(found)


def _edges(function: IntegerFunction, number: dict[int, int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Pairs of numbers of variables that some table names."""
    pairs = {(number[u], number[v]) for scope in function.tables for i, u in enumerate(scope) for v in scope[i + 1 :]}
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def _components(function: IntegerFunction) -> tuple[tuple[int, ...], ...]:
    """Variables that tables connect."""
    leader = {v: v for v in function.labels}

    def root(v: int) -> int:
        while leader[v] != v:
            leader[v] = leader[leader[v]]
            v = leader[v]
        return v

    for scope in function.tables:
        for v in scope[1:]:
            leader[root(v)] = root(scope[0])
    found: dict[int, list[int]] = {}
    for v in sorted(function.labels):
        found.setdefault(root(v), []).append(v)
    return tuple(map(tuple, found.values()))


def _goals(
    exact: ExactFunction, functions: Sequence[IntegerFunction], labels: ArrayLike | None, deadline: Deadline
) -> list[int | None]:
    """What the bound of each part must exceed; None where the sum of its least entries will do."""
    values = [_minimum(part, deadline) if labels is None else part.value(np.asarray(labels).tolist()) for part in functions]
    ceiling = 1 << FINE if math.isinf(exact.ceiling) else math.ceil(exact.ceiling / exact.function.unit)
    if None in values:
        k = values.index(None)
        others = sum(other.least() for j, other in enumerate(functions) if j != k)
        return [ceiling - others - 1 if j == k else None for j in range(len(functions))]
    known = [value for value in values if value is not None]
    if labels is None and sum(known) < ceiling:
        raise OptionError("there are labellings; give the labels of the best one")
    near = math.floor(NEAR * 2**FINE) // len(functions)  # of a sum of all magnitudes
    return [
        value - max(1, function.spacing, near if function.spacing < near else 0)
        for function, value in zip(functions, known, strict=True)
    ]


def _minimum(function: IntegerFunction, deadline: Deadline) -> int | None:
    """The minimum of a function, None where no labels respect its infinite entries."""
    if function.labels:
        mrf, names = _as_mrf(function)
        found = solve_mrf_exactly(mrf, time_limit=deadline)
        deadline.check("building a proof")
        if found.status is Status.INFEASIBLE:
            return None
        x = dict(zip(names, found.labels.tolist(), strict=True))
        own = {v: function.labels[v][place] for v, place in x.items()}
        return function.value([own.get(v, 0) for v in range(max(names) + 1)])
    return function.constant if function.constant < HARD // 2 else None


def _as_mrf(function: IntegerFunction) -> tuple[Mrf, list[int]]:
    """An energy in floats, without the constant and with infinite entries again, and what its variables are called."""
    names = sorted(function.labels)
    number = {v: k for k, v in enumerate(names)}
    factors: list[tuple[Scope, np.ndarray[Any, Any]]] = []
    for scope, table in function.tables.items():
        values = np.ldexp(table.astype(np.float64), -function.exponent)
        values[table >= HARD // 2] = np.inf
        factors.append((tuple(number[v] for v in scope), values))
    return Mrf([len(function.labels[v]) for v in names], factors), names


@dataclass(frozen=True)
class _Part:
    """Where a subtree is, the cases of variables above it, and multipliers of the spins that these leave."""

    path: tuple[int, ...]
    cases: tuple[tuple[int, tuple[int, ...]], ...]
    multipliers: Multipliers | None


@dataclass(frozen=True)
class _Found:
    """A leaf, how much each variable is worth to branch on, and what is known of it: its likeliest label, and multipliers."""

    leaf: Decomposition | Semidefinite
    scores: np.ndarray[Any, np.dtype[np.float64]]
    likeliest: np.ndarray[Any, np.dtype[np.int64]]
    multipliers: Multipliers | None = None


@dataclass(frozen=True)
class _Prover:
    """Bounds parts of the labellings; every one is a leaf above the goal, or split.

    Attributes
    ----------
    function : IntegerFunction
        The function.
    goal : int
        What bounds must exceed.
    settings : ExactSettings
        Entries of tables up to which the root and other nodes are eliminated.
    """

    function: IntegerFunction
    goal: int
    settings: ExactSettings

    def expand(self, nodes: list[Node], incumbent: float, deadline: Deadline) -> Expansion:
        """Return the cases of the nodes that are split, and lines of the log for each node."""
        del incumbent
        children: list[Node] = []
        lines: list[str] = []
        for node in nodes:
            if deadline.over():
                children.append(node)
                continue
            part: _Part = node.state
            step, below, multipliers = self._step(
                part, deadline, self.settings.leaf_tables if node.depth else self.settings.energy_tables
            )
            lines.append(_line(part.path, step))
            if isinstance(step, Eliminate):
                lines.append(_line((*part.path, 0), Decomposition()))
            for k, case in enumerate(below):
                cases = (*part.cases, (step.variable, case)) if isinstance(step, Branch) else part.cases
                own = None if multipliers is None else multipliers[k]
                children.append(Node(-math.inf, node.depth + 1, _Part((*part.path, k), cases, own)))
        return Expansion(children, log=lines)

    def _step(
        self, part: _Part, deadline: Deadline, tables: float
    ) -> tuple[Step, tuple[tuple[int, ...], ...], Sequence[Multipliers] | None]:
        """The step of a node, its cases, and the multipliers that these begin with."""
        function = self.function.with_labels(dict(part.cases)) if part.cases else self.function
        if function.least() > self.goal or not function.labels:
            return Decomposition(), (), None
        mrf, names = _as_mrf(function)
        order = cheapest_order(mrf.counts.tolist(), mrf.edges, tables, deadline, ("table",))
        if order.work <= tables:
            return Eliminate(tuple(names[k] for k in order.variables)), (), None
        goal = math.ldexp(float(self.goal - function.constant), -function.exponent)
        best: _Found | None = None
        for found in self._bounds(mrf, names, goal, part.multipliers, deadline):
            leaf = found.leaf
            bound = semidefinite(function, leaf) if isinstance(leaf, Semidefinite) else decomposed(function, leaf.parts, leaf.cliques)
            if bound > self.goal:
                return leaf, (), None
            best = found
        assert best is not None
        k = int(best.scores.argmax())
        own = function.labels[names[k]]
        first = own[int(best.likeliest[k])]
        # Labels that are impossible here still have to be in a case.
        stated = dict(part.cases).get(names[k], self.function.labels[names[k]])
        cases = ((first,), tuple(label for label in stated if label != first))
        below = None
        if best.multipliers is not None:
            spins = np.zeros((2, len(names)), dtype=np.int8)
            spins[:, k] = [-1, 1] if first == own[0] else [1, -1]
            below = [best.multipliers.fixed(row) for row in spins]
        return Branch(names[k], cases), cases, below

    def _bounds(self, mrf: Mrf, names: list[int], goal: float, begin: Multipliers | None, deadline: Deadline) -> Iterable[_Found]:
        """Bounds that suit an energy, in turn."""
        if (stated := _as_function(mrf)) is None:
            yield _by_labels(mrf, names, goal, deadline)
            return
        qubo, hard = stated
        sparse, small = len(qubo.edges) < DENSE * qubo.n, qubo.n <= MOST
        if (graph := _as_graph(qubo)) is not None:
            if sparse or qubo.n > LARGEST:
                yield _by_cliques(graph, names, goal, deadline)
            if qubo.n <= LARGEST:
                yield _by_theta(graph, goal, deadline)
        if sparse or not small:
            yield _by_products(qubo, names, goal, deadline)
        if small and graph is None:
            yield _by_matrix(qubo, hard, goal, begin)


def _as_function(mrf: Mrf) -> tuple[Qubo, dict[Scope, float]] | None:
    """The quadratic function that an energy of two labels each is, and what stands for infinite entries of second labels.

    That outweighs all that choosing one of the two may win.  None for other energies.
    """
    finite, hard = [], []
    for scope, table in mrf.factors:
        if np.isinf(table).any():
            if table.shape != (2, 2) or not np.isfinite(table.ravel()[:3]).all():
                return None
            finite.append((scope, np.where(np.isinf(table), table[0, 1] + table[1, 0] - table[0, 0], table)))
            hard.append(scope)
        else:
            finite.append((scope, table))
    qubo = Mrf(mrf.counts, finite).to_qubo()
    if qubo is None:
        return None
    reach = np.abs(qubo.linear)
    np.add.at(reach, qubo.edges.ravel(), np.repeat(np.abs(qubo.quadratic), 2))
    penalties = [float(reach[list(scope)].sum()) for scope in hard]
    edges = np.concatenate([qubo.edges, np.array(hard, dtype=np.int64).reshape(-1, 2)])
    whole = Qubo.from_terms(qubo.linear, edges, np.append(qubo.quadratic, penalties), qubo.offset)
    tables = dict(finite)
    return whole, {scope: float(tables[scope][1, 1]) + penalty for scope, penalty in zip(hard, penalties, strict=True)}


def _as_graph(qubo: Qubo) -> WeightedGraph | None:
    """The graph whose heaviest sets minimise a function; None where there is none, as choosing two neighbours may pay."""
    weights = -qubo.linear
    least = weights[qubo.edges].min(1, initial=np.inf) if len(qubo.edges) else np.zeros(0)
    if not (weights > 0).all() or (qubo.quadratic < least).any():
        return None
    return WeightedGraph(weights, qubo.edges)


def _by_cliques(graph: WeightedGraph, names: list[int], goal: float, deadline: Deadline) -> _Found:
    """The LP of cliques."""
    model = clique_model(graph, "cliques")
    solution = model.solve(tol=1e-6, passes=PASSES, cutoff=-goal - 1e-9 * graph.weights.sum(), time_limit=deadline)
    _not_interrupted(solution.status[0])
    cliques = []
    for blocks in model.blocks:
        prices = solution.duals[blocks][0].amax(1).clamp(min=0).tolist()  # of a maximum
        for row, price in zip(blocks.scope.tolist(), prices, strict=True):
            if price:
                cliques.append((tuple(names[v] for v in row), price))
    return _of_graph(graph, Decomposition((), tuple(cliques)), solution.x["y"][0].numpy())


def _by_theta(graph: WeightedGraph, goal: float, deadline: Deadline) -> _Found:
    """Lovász's theta function: a semidefinite leaf without triangles, whose penalties of neighbours are multipliers."""
    t, entries, shares = theta(graph, -goal - 1e-7 * abs(goal), deadline)
    root = np.sqrt(graph.weights)
    penalties = 2 * entries * root[graph.edges].prod(1) / t
    # The form t - w.y + y.P.y with w_i y_i^2 for half of w_i y_i; its diagonal in spins.
    first = -(t - 0.75 * graph.weights.sum() + penalties.sum() / 4)
    nodes = (graph.edges + 1).tolist()
    leaf = Semidefinite(
        (float(first), *(-graph.weights / 4).tolist()),
        (),
        tuple((i, j, penalty) for (i, j), penalty in zip(nodes, penalties.tolist(), strict=True)),
    )
    return _of_graph(graph, leaf, np.clip(shares * t / graph.weights, 0, 1))


def _of_graph(graph: WeightedGraph, leaf: Decomposition | Semidefinite, y: np.ndarray[Any, np.dtype[np.float64]]) -> _Found:
    """A leaf of a graph, whose nodes of many neighbours come first where a point does not decide them."""
    degrees = np.bincount(graph.edges.ravel(), minlength=graph.n)
    return _Found(leaf, (1 + degrees) * (0.05 + y * (1 - y)), np.ones(graph.n, dtype=np.int64))


def _by_products(qubo: Qubo, names: list[int], goal: float, deadline: Deadline) -> _Found:
    """Roof duality, tightened."""
    model = roof_duality_model(qubo)
    problem = tightening_of_function(model, qubo, BUDGET.blocks, deadline)
    begun = Labelled(torch.zeros(qubo.n, dtype=torch.int8), math.inf)
    solution = _tightened(problem, begun, goal, deadline)
    y = solution.x["y"][0].numpy()
    size = np.bincount(qubo.edges.ravel(), np.repeat(np.abs(qubo.quadratic), 2), qubo.n) + np.abs(qubo.linear)
    scores = size * (0.05 + y * (1 - y))
    return _Found(Columns.of_products(qubo, solution).leaf(solution, names), scores, (y > 0.5).astype(np.int64))


def _by_labels(mrf: Mrf, names: list[int], goal: float, deadline: Deadline) -> _Found:
    """The local polytope, tightened."""
    relaxation = relax(mrf, "edges", time_limit=deadline)
    problem = tightening_of(relaxation, BUDGET.blocks, deadline)
    begun = Labelled(torch.zeros(mrf.n, dtype=torch.int64), math.inf)
    solution = _tightened(problem, begun, goal, deadline)
    marginals = relaxation.marginals(solution)[0].numpy()
    degrees = np.bincount(mrf.edges.ravel(), minlength=mrf.n)
    scores = np.where(mrf.counts > 1, (1 + degrees) * (1.05 - marginals.max(1)), -1.0)
    return _Found(Columns.of_labels(relaxation).leaf(solution, names), scores, marginals.argmax(1))


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


def _by_matrix(qubo: Qubo, hard: dict[Scope, float], goal: float, begin: Multipliers | None) -> _Found:
    """A semidefinite bound with triangle inequalities, begun where that of a part with fewer fixings ended."""
    spins = Spins.of(qubo)
    with one_blas_thread():
        under = convexified(spins, ROUNDS, goal + 1e-9 * abs(spins.coupling).sum(), begin=begin)
    triangles = under.triangles.above(0.0)
    listed = zip(triangles.nodes.tolist(), triangles.signs.tolist(), triangles.prices.tolist(), strict=True)
    leaf = Semidefinite(
        tuple(under.diagonal.tolist()),
        tuple((*nodes, *signs[:2], price) for nodes, signs, price in listed),
        tuple((i + 1, j + 1, value) for (i, j), value in hard.items()),
    )
    size = np.bincount(qubo.edges.ravel(), np.repeat(np.abs(qubo.quadratic), 2), qubo.n) + np.abs(qubo.linear)
    estimates = np.nan_to_num(under.multipliers.correlations[0, 1:])
    scores = size * (1 - np.clip(np.abs(estimates), 0, 1))
    return _Found(leaf, scores, (estimates > 0).astype(np.int64), under.multipliers)


def _not_interrupted(status: Status) -> None:
    if status is Status.INTERRUPTED:  # which the solver has caught, with nothing proved
        raise KeyboardInterrupt
