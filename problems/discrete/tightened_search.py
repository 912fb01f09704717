"""Branch and bound below a tightened relaxation, for sparse problems too wide for elimination.

The relaxation is tightened until its bound meets the best labelling, or rounds no longer pay.  Reduced costs then fix what no better
labelling has.  Where that leaves much less, the rest is a problem of its own: it is reduced again, falls into parts, and gets a
relaxation tightened anew.  Otherwise nodes are bounded over the root's model (:class:`blocklp.Nodes`), many at a time, until they
have shrunk so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import blocklp as bl
from blocklp.language.expression import View
from blocklp.problems.discrete.exact import ExactRun
from blocklp.problems.discrete.fixed_nodes import both_sides, fixed_node
from blocklp.problems.discrete.integers import Grid
from blocklp.problems.discrete.tightening import Labelled, Problem, tightened
from blocklp.search.best_first import Expansion, Node, SearchEvent
from blocklp.search.over_workers import Sharing
from blocklp.search.tightening import Budget, Round
from blocklp.status import Status

Fixings = NDArray[np.int8]

BUDGET = Budget(rounds=100, blocks=3000, passes=300)
PATIENCE = ((4, 0.1), (2, 0.01))
"""Rounds, and the share of the gap that so many of them must close to be followed by others."""
RETRIED = 0.5
"""Share of the gap at the last attempt to fix labels at which they are tried again."""
SWEEPS = 32
"""Sweeps of a node."""
PER_COPY = 5e-6
"""Seconds for each copy of a variable that it takes to lay out a model and to bound its root, on a busy machine."""
MEMORY = 2e9
"""Bytes of multipliers of open nodes above which the deepest nodes come first."""
ALONE = Sharing(batch=32, parts=1, subtree=32, memory=MEMORY)
"""Nodes that are bounded at once."""
SHARED = Sharing(batch=32, parts=8, subtree=96, memory=MEMORY)
"""Nodes of a round that workers bound."""


@dataclass(frozen=True)
class Branching:
    """What the search has to know of a problem with integer values besides its relaxation; it can be pickled.

    Attributes
    ----------
    variables : View
        The 0/1 variables of the model to branch on.
    size : callable
        Takes fixings of these, ``(k,)`` of 0, 1 and -1 for free, to the number of labels that are left to choose from.
    rounded : callable
        Takes points ``(nodes, k)`` and a deadline to a labelling.
    rest : callable
        Takes fixings, and the limits of an :class:`ExactRun` that gets the status, and solves what they leave: a labelling of the
        whole problem, and a bound on all that have the fixings.
    """

    variables: View
    size: Callable[[Fixings], int]
    rounded: Callable[[Tensor, bl.Deadline], Labelled]
    rest: Callable[[Fixings, ExactRun], tuple[Labelled, float]]


@dataclass(frozen=True)
class Spent:
    """What a call has taken: nodes of rests and its own, the status that rests have left, and what they did without."""

    nodes: int
    status: Status
    detail: str


def search_tightened(problem: Problem, branching: Branching, best: Labelled, grid: Grid, run: ExactRun) -> tuple[Labelled, float]:
    """Minimise, from a labelling ``best`` on; ``run.status`` tells whether the bound returned meets the labelling.

    Parameters
    ----------
    problem : Problem
        The relaxation.
    branching : Branching
        What else there is to know.
    best : Labelled
        A labelling to begin with.
    grid : Grid
        What its values can be.
    run : ExactRun
        Limits, workers and settings.

    Returns
    -------
    Labelled, float
        The best labelling and a bound.
    """
    search = _TightenedSearch(problem, branching, best, grid, run)
    try:
        search.tighten()
        if search.bound < search.goal() and not run.over():
            search.branch()
    except KeyboardInterrupt:
        run.status = Status.INTERRUPTED
    # Whatever was dropped is better by less than a step: by nothing, or by what does not matter.
    return search.best, grid.raised(min(search.bound, search.best.energy - grid.tolerance))


class _TightenedSearch:
    """The state of a search: its incumbent, its bound, and the nodes of its root's model."""

    def __init__(self, problem: Problem, branching: Branching, best: Labelled, grid: Grid, run: ExactRun) -> None:
        self.problem, self.branching, self.best, self.grid, self.run = problem, branching, best, grid, run
        self.bound, self.gap, self.method = -math.inf, math.inf, problem.options.get("method", "auto")

    def goal(self) -> float:
        """A bound that leaves no labelling that matters; infinite until some labelling is feasible."""
        return self.best.energy - 0.999 * self.grid.step

    def offer(self, found: Labelled) -> None:
        """Keep the better labelling."""
        self.best = better(self.best, found)

    def tighten(self) -> None:
        """Bound the root; its multipliers are kept."""
        gaps: list[float] = []

        def told(round: Round, energy: float) -> bool:
            event = SearchEvent(self.run.nodes, 1, float(round.bound[0]), energy, round.seconds)
            if self.run.callback is not None and self.run.callback(event):
                self.run.status = Status.INTERRUPTED
            return self.run.status is Status.INTERRUPTED

        def enough(solution: bl.Solution, best: Labelled) -> bool:
            self.offer(best)
            gaps.append(best.energy - float(solution.bound[0]))
            if math.isinf(gaps[-1]):
                return len(gaps) > PATIENCE[0][0]
            if gaps[-1] <= RETRIED * self.gap and self.affords_fixing() and self.fixed(solution) <= self.run.settings.shrunk:
                return True
            return any(len(gaps) > rounds and gaps[-1] > (1 - share) * gaps[-1 - rounds] for rounds, share in PATIENCE)

        tol = max(0.1 * self.grid.step / max(1.0, abs(self.best.energy)), 1e-12)
        limits: dict[str, Any] = {"tol": tol, "passes": self.run.settings.root_passes, "time_limit": self.run.deadline}
        found, best = tightened(self.problem, self.best, BUDGET, cutoff=self.goal(), told=told, enough=enough, **limits)
        self.offer(best)
        self.run.nodes += 1
        self.bound = float(found.solution.safe_bound[0])
        if found.solution.status[0] is Status.INTERRUPTED:
            self.run.status = Status.INTERRUPTED
        elif self.bound < self.goal():
            if self.affords_fixing():
                self.fixed(found.solution)
            else:
                self.run.status = Status.TIME_LIMIT

    def affords_fixing(self) -> bool:
        """Whether there is time to fix by reduced costs, which lays out the model anew."""
        return self.run.deadline.affords(PER_COPY * self.problem.model.sizes()["copies"])

    def fixed(self, solution: bl.Solution) -> float:
        """Fix by reduced costs, for the root of the search; return the share of labels that is left."""
        self.nodes = bl.Nodes(self.problem.model, self.branching.variables)
        free = torch.full((1, len(self.nodes.columns)), -1, dtype=torch.int8)
        limits: dict[str, Any] = {"sweeps": 0, "method": self.method, "time_limit": self.run.deadline}
        found = self.nodes.solve(free, solution.state, cutoff=self.goal(), **limits)
        self.gap, self.size = self.best.energy - float(solution.bound[0]), self.branching.size(free[0].numpy())
        self.root = fixed_node(float(solution.safe_bound[0]), 0, found.fixings, found.multipliers)
        return self.branching.size(found.fixings[0].numpy()) / self.size

    def branch(self) -> None:
        """Search among the nodes of the root, which is expanded here: where it is a rest, workers are for that one."""
        callback, own = self.run.callback, replace(self.run)
        if callback is not None:  # events of rests show bound and incumbent of the whole
            own.callback = lambda event: callback(replace(event, bound=self.bound, incumbent=self.best.energy))
        tree = TightenedTree(
            self.problem.model,
            self.nodes,
            self.branching,
            self.best,
            self.grid,
            self.run.settings.shrunk * self.size,
            own,
            self.method,
        )

        def told(event: SearchEvent) -> bool:
            self.bound = max(self.bound, event.bound)
            stopped = callback is not None and callback(event)
            return bool(stopped) or self.run.status is Status.INTERRUPTED

        left = Status.OPTIMAL

        def spent(entry: Spent) -> None:
            nonlocal left
            self.run.nodes += entry.nodes
            own.nodes = self.run.nodes
            self.run.detail = self.run.detail or entry.detail
            if entry.status is not Status.OPTIMAL:
                left = entry.status
            if left is Status.INTERRUPTED:
                self.run.status = left

        first = tree.expanded([self.root], math.inf, replace(own, status=Status.OPTIMAL))
        self.offer(first.point)
        for entry in first.log:
            spent(entry)
        if first.unresolved:
            self.bound = max(self.bound, first.unresolved[0].bound)
            proven, status = False, Status.STALLED
        else:
            limits: dict[str, Any] = {"cutoff": self.goal(), "callback": told, "log": spent}
            result = self.run.searched(first.children, tree.expand, ALONE, SHARED, self.grid.step, **limits)
            self.bound = max(self.bound, result.bound)
            proven, status = result.proven, result.status
            if result.point is not None:
                self.offer(result.point)
        if not proven:
            status = left if status is Status.STALLED and left is not Status.OPTIMAL else status
            if self.run.status is Status.OPTIMAL or status is Status.INTERRUPTED:
                self.run.status = status


class TightenedTree:
    """Expands nodes of a tightened model; it is pickled without the layout of that, which each process makes itself.

    Parameters
    ----------
    model : Model
        The model.
    nodes : Nodes
        Its nodes.
    branching : Branching
        The problem.
    best : Labelled
        The labelling that the search begins with.
    grid : Grid
        What values can be.
    smallest : float
        Labels that leave a problem of its own, at most.
    run : ExactRun
        Limits in this process: others have none but deadlines.
    method : str
        Of nodes that are bounded by passes.
    """

    def __init__(
        self,
        model: bl.Model,
        nodes: bl.Nodes,
        branching: Branching,
        best: Labelled,
        grid: Grid,
        smallest: float,
        run: ExactRun,
        method: str,
    ) -> None:
        self.model, self.nodes, self.method = model, nodes, method
        self.branching, self.best, self.grid, self.smallest, self.run = branching, best, grid, smallest, run

    @cached_property
    def nodes(self) -> bl.Nodes:
        """The nodes of the model."""
        return bl.Nodes(self.model, self.branching.variables)

    def __getstate__(self) -> dict[str, Any]:
        there = ExactRun(bl.Deadline(), None, settings=self.run.settings)
        return {name: value for name, value in vars(self).items() if name != "nodes"} | {"run": there}

    def expand(self, nodes: list[Node], incumbent: float, deadline: bl.Deadline) -> Expansion:
        """Bound nodes, solve those that are small, and split the others; the log has a :class:`Spent`.

        Parameters
        ----------
        nodes, incumbent, deadline
            As in :data:`blocklp.search.over_workers.Expand`.
        """
        return self.expanded(nodes, incumbent, replace(self.run, deadline=deadline, status=Status.OPTIMAL, executor=None))

    def expanded(self, nodes: list[Node], incumbent: float, run: ExactRun) -> Expansion:
        """Expand nodes within limits, and with workers for rests, if ``run`` has some.

        Parameters
        ----------
        nodes, incumbent
            As in :meth:`expand`.
        run : ExactRun
            The limits; gets the status.

        Raises
        ------
        KeyboardInterrupt
            The user interrupted the bounds.
        """
        best = known = self.best if self.best.energy <= incumbent else Labelled(self.best.labels, incumbent)
        before, margin = run.nodes, 0.999 * self.grid.step
        fixings, multipliers = (torch.cat([node.state[k] for node in nodes]) for k in (0, 1))
        limits: dict[str, Any] = {"sweeps": SWEEPS, "method": self.method, "time_limit": run.deadline}
        bounded = self.nodes.solve(fixings, multipliers, cutoff=best.energy - margin, **limits)
        run.nodes += len(nodes)
        if int(Status.INTERRUPTED) in bounded.status.tolist():
            raise KeyboardInterrupt
        fixings, open_ = bounded.fixings, bounded.open
        if bool(open_.any()):
            points = torch.where(fixings < 0, bounded.x, fixings.double())[open_]
            best = better(best, self.branching.rounded(points, run.deadline))
        children: list[Node] = []
        unresolved: list[Node] = []
        scores = bounded.scores
        for k, node in enumerate(nodes):
            bound = max(float(bounded.bound[k]), node.bound)
            if not bool(open_[k]):
                children.append(Node(bound))
            elif run.over():
                unresolved.append(Node(bound))
            elif self.branching.size(fixings[k].numpy()) <= self.smallest:
                labels, below = self.branching.rest(fixings[k].numpy(), run)
                best = better(best, labels)
                if below < min(best.energy - margin, labels.energy - self.grid.tolerance):
                    unresolved.append(Node(max(bound, below)))
            else:
                children += both_sides(bounded, k, int(scores[k].argmax()), bound, node.depth)
        log = [Spent(run.nodes - before, run.status, run.detail)]
        if best is known and best is not self.best:  # another worker has the labels
            return Expansion(children, unresolved=unresolved, log=log)
        return Expansion(children, best.energy, best, unresolved, log)


def better(one: Labelled, other: Labelled) -> Labelled:
    """Return the better labelling, the first on ties."""
    return other if other.energy < one.energy else one
