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
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from blocklp.campaigns import Executor, InProcess
from blocklp.deadline import Deadline
from blocklp.errors import FormatError, OptionError, ProcessError
from blocklp.problems.discrete.elimination import cheapest_order, neighbour_sets
from blocklp.problems.discrete.exact import DEFAULT, ExactSettings
from blocklp.problems.mrf.exact import solve_mrf_exactly
from blocklp.problems.proofs.bounds import Decomposed
from blocklp.problems.proofs.function import ENTRIES, FINE, HARD, Discrete, ExactFunction, IntegerFunction
from blocklp.problems.proofs.node_bounds import Found, as_mrf, bounds
from blocklp.problems.proofs.semidefinite import semidefinite
from blocklp.problems.proofs.steps import Branch, Decomposition, Eliminate, Semidefinite, Split, Step, from_json, to_json
from blocklp.problems.qpbo.convexify import Multipliers
from blocklp.search.best_first import Expansion, Node
from blocklp.search.over_workers import Sharing, branch_and_bound_over
from blocklp.status import Status

SHARING = Sharing(batch=4, parts=16, subtree=16)
NEAR = 2e-9
"""Share of the sum of all magnitudes that does not matter where coefficients are no multiples of a common number."""
REMOVED = 0.3
"""Share of the labels to choose from whose removal leaves a problem of its own, rather than a branch."""


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
        The labels do not fit the problem, or are forbidden; or the problem is none of these.
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
            [Node(-math.inf, 0, _Part(where))],
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
    done, entries = [False] * len(names), 0
    while left:
        k = left.pop()
        around = near[k]
        size = math.prod([sizes[k], *(sizes[j] for j in around)]) if len(around) <= 2 else most + 1
        if done[k] or size > min(most, ENTRIES - entries):  # the checker refuses more
            continue
        entries += size // sizes[k]
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
        mrf, names = as_mrf(function)
        found = solve_mrf_exactly(mrf, time_limit=deadline)
        deadline.check("building a proof")
        if found.status is Status.INFEASIBLE:
            return None
        x = dict(zip(names, found.labels.tolist(), strict=True))
        own = {v: function.labels[v][place] for v, place in x.items()}
        return function.value([own.get(v, 0) for v in range(max(names) + 1)])
    return function.constant if function.constant < HARD // 2 else None


@dataclass(frozen=True)
class _Part:
    """A subtree.

    Attributes
    ----------
    path : tuple of int
        Where it is.
    cases : tuple of (int, tuple of int)
        Variables, and labels that steps above have left.
    multipliers : Multipliers, optional
        Those of the spins that these leave, to begin with.
    own : bool
        Whether it is much smaller than what is above it, a problem of its own.
    """

    path: tuple[int, ...]
    cases: tuple[tuple[int, tuple[int, ...]], ...] = ()
    multipliers: Multipliers | None = None
    own: bool = True

    def below(self, k: int, cases: Cases, multipliers: Multipliers | None = None, *, own: bool = False) -> _Part:
        """The subtree of number k, with more cases."""
        return _Part((*self.path, k), (*self.cases, *cases), multipliers, own)


Cases: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]


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
        Entries of tables up to which problems of their own, and other nodes, are eliminated.
    """

    function: IntegerFunction
    goal: int
    settings: ExactSettings

    def expand(self, nodes: list[Node], incumbent: float, deadline: Deadline) -> Expansion:
        """Return the subtrees of the nodes that are no leaves, and lines of the log for each node."""
        del incumbent
        children: list[Node] = []
        lines: list[str] = []
        for node in nodes:
            if deadline.over():
                children.append(node)
                continue
            part: _Part = node.state
            step, below = self._step(part, deadline)
            lines.append(_line(part.path, step))
            if isinstance(step, Eliminate):
                lines.append(_line((*part.path, 0), Decomposition()))
            children += [Node(-math.inf, node.depth + 1, subtree) for subtree in below]
        return Expansion(children, log=lines)

    def _step(self, part: _Part, deadline: Deadline) -> tuple[Step, list[_Part]]:
        """A step, and the subtrees that are still to be proved."""
        function = self.function.with_labels(dict(part.cases)) if part.cases else self.function
        if function.least() > self.goal or not function.labels:
            return Decomposition(), []
        mrf, names = as_mrf(function)
        tables = min(self.settings.energy_tables if part.own else self.settings.leaf_tables, ENTRIES)
        order = cheapest_order(mrf.counts.tolist(), mrf.edges, tables, deadline, ("table",))
        if order.work <= tables:
            return Eliminate(tuple(names[k] for k in order.variables)), []
        goal = math.ldexp(float(self.goal - function.constant), -function.exponent)
        tried: list[Found] = []
        removed: tuple[Cases, Decomposition] = (), Decomposition()
        for found in bounds(mrf, names, goal, part.multipliers, deadline):
            tried.append(found)
            leaf = found.leaf
            try:
                if isinstance(leaf, Semidefinite):
                    enough = semidefinite(function, leaf) > self.goal
                else:
                    parts = Decomposed(function, leaf)
                    enough = parts.bound > self.goal
                    removed = removed if enough else max(removed, (self._removed(function, parts), leaf), key=lambda r: len(r[0]))
            except FormatError:  # multipliers out of all proportion
                continue
            if enough:
                return leaf, []
        if removed[0]:
            left = tuple((v, tuple(label for label in function.labels[v] if label not in own)) for v, own in removed[0])
            return replace(removed[1], removed=removed[0]), [part.below(0, left, own=True)]
        return self._branch(part, function, names, tried[-1])

    def _removed(self, function: IntegerFunction, parts: Decomposed) -> Cases:
        """Labels that a decomposition removes; none if these are few."""
        found = []
        for v, own in parts.bounds_of(function.labels).items():
            keep = max(self.goal, min(own))  # at least one of them
            over = tuple(label for label, bound in zip(function.labels[v], own, strict=True) if bound > keep)
            if over:
                found.append((v, over))
        count, every = sum(len(over) for _, over in found), sum(len(own) - 1 for own in function.labels.values())
        return tuple(found) if count >= REMOVED * every else ()

    def _branch(self, part: _Part, function: IntegerFunction, names: list[int], found: Found) -> tuple[Step, list[_Part]]:
        """The likeliest label of the variable that is worth most, and the others."""
        k = int(found.scores.argmax())
        own = function.labels[names[k]]
        first = own[int(found.likeliest[k])]
        # Labels that are impossible here still have to be in a case.
        stated = dict(part.cases).get(names[k], self.function.labels[names[k]])
        cases = ((first,), tuple(label for label in stated if label != first))
        below = []
        for number, case in enumerate(cases):
            multipliers = found.multipliers
            if multipliers is not None:
                spins = np.zeros(len(names), dtype=np.int8)
                spins[k] = -1 if (first == own[0]) == (number == 0) else 1
                multipliers = multipliers.fixed(spins)
            below.append(part.below(number, ((names[k], case),), multipliers))
        return Branch(names[k], cases), below
