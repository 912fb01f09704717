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
from blocklp.search.best_first import Expansion, Node, SearchEvent, branch_and_bound
from blocklp.search.tightening import Budget, Round
from blocklp.status import Status

Fixings = NDArray[np.int8]

BUDGET = Budget(rounds=100, blocks=3000, passes=300)
PATIENCE = ((4, 0.1), (2, 0.01))
"""Rounds, and the share of the gap that so many of them must close to be followed by others."""
RETRIED = 0.5
"""Share of the gap at the last attempt to fix labels at which they are tried again."""
BATCH, SWEEPS = 32, 32
"""Nodes that are bounded at once, and their sweeps."""
PER_COPY = 5e-6
"""Seconds for each copy of a variable that it takes to lay out a model and to bound its root, on a busy machine."""
MEMORY = 2e9
"""Bytes of multipliers of open nodes above which the deepest nodes come first."""


@dataclass(frozen=True)
class Branching:
    """What the search has to know of a problem with integer values besides its relaxation.

    Attributes
    ----------
    problem : Problem
        Its relaxation.
    variables : View
        The 0/1 variables of the model to branch on.
    size : callable
        Takes fixings of these, ``(k,)`` of 0, 1 and -1 for free, to the number of labels that are left to choose from.
    rounded : callable
        Takes points ``(nodes, k)`` to a labelling.
    rest : callable
        Solves what fixings leave: a labelling of the whole problem, and a bound on all that have the fixings.
    """

    problem: Problem
    variables: View
    size: Callable[[Fixings], int]
    rounded: Callable[[Tensor], Labelled]
    rest: Callable[[Fixings], tuple[Labelled, float]]


def search_tightened(branching: Branching, best: Labelled, grid: Grid, run: ExactRun) -> tuple[Labelled, float]:
    """Minimise, from a labelling ``best`` on; ``run.status`` tells whether the bound returned meets the labelling.

    Parameters
    ----------
    branching : Branching
        The problem.
    best : Labelled
        A labelling to begin with.
    grid : Grid
        What its values can be.
    run : ExactRun
        Limits and settings.

    Returns
    -------
    Labelled, float
        The best labelling and a bound.
    """
    search = _TightenedSearch(branching, best, grid, run)
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

    def __init__(self, branching: Branching, best: Labelled, grid: Grid, run: ExactRun) -> None:
        self.branching, self.best, self.grid, self.run = branching, best, grid, run
        self.bound, self.gap = -math.inf, math.inf

    def goal(self) -> float:
        """A bound that leaves no labelling that matters; infinite until some labelling is feasible."""
        return self.best.energy - 0.999 * self.grid.step

    def offer(self, found: Labelled) -> None:
        """Keep the better labelling."""
        if found.energy < self.best.energy:
            self.best = found

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
        found, best = tightened(self.branching.problem, self.best, BUDGET, cutoff=self.goal(), told=told, enough=enough, **limits)
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
        return self.run.deadline.affords(PER_COPY * self.branching.problem.model.sizes()["copies"])

    def fixed(self, solution: bl.Solution) -> float:
        """Fix by reduced costs, for the root of the search; return the share of labels that is left."""
        self.nodes = bl.Nodes(self.branching.problem.model, self.branching.variables)
        free = torch.full((1, len(self.nodes.columns)), -1, dtype=torch.int8)
        found = self.nodes.solve(free, solution.state, cutoff=self.goal(), sweeps=0, time_limit=self.run.deadline)
        self.gap, self.size = self.best.energy - float(solution.bound[0]), self.branching.size(free[0].numpy())
        self.root = fixed_node(float(solution.safe_bound[0]), 0, found.fixings, found.multipliers)
        return self.branching.size(found.fixings[0].numpy()) / self.size

    def branch(self) -> None:
        """Search among the nodes of the root."""
        result = branch_and_bound(
            [self.root],
            self.expand,
            batch=BATCH,
            tol=0.999 * self.grid.step,
            cutoff=self.goal(),
            time_limit=self.run.deadline,
            memory=MEMORY,
            callback=self.told,
        )
        if not result.proven and (self.run.status is Status.OPTIMAL or result.status is Status.INTERRUPTED):
            self.run.status = result.status
        self.bound = max(self.bound, result.bound)

    def told(self, event: SearchEvent) -> bool:
        """Keep the bound of the search, and pass the event on."""
        self.bound = max(self.bound, event.bound)
        return bool(self.run.callback is not None and self.run.callback(event))

    def rest(self, fixings: Fixings) -> tuple[Labelled, float]:
        """Solve what fixings leave; its events show bound and incumbent of the whole."""
        callback = self.run.callback
        if callback is not None:
            self.run.callback = lambda event: callback(replace(event, bound=self.bound, incumbent=self.best.energy))
        try:
            return self.branching.rest(fixings)
        finally:
            self.run.callback = callback

    def expand(self, nodes: list[Node]) -> Expansion:
        """Bound nodes, solve those that are small, and split the others."""
        if self.run.status is Status.INTERRUPTED:  # in a rest, which has returned what it had
            raise KeyboardInterrupt
        fixings, multipliers = (torch.cat([node.state[k] for node in nodes]) for k in (0, 1))
        found = self.nodes.solve(fixings, multipliers, cutoff=self.goal(), sweeps=SWEEPS, time_limit=self.run.deadline)
        self.run.nodes += len(nodes)
        if int(Status.INTERRUPTED) in found.status.tolist():
            raise KeyboardInterrupt
        if bool(found.open.any()):
            self.offer(self.branching.rounded(torch.where(found.fixings < 0, found.x, found.fixings.double())[found.open]))
        children: list[Node] = []
        unresolved: list[Node] = []
        bounds, scores, fixings = torch.maximum(found.bound, torch.tensor([n.bound for n in nodes])), found.scores, found.fixings
        for k, node in enumerate(nodes):
            bound = float(bounds[k])
            if not bool(found.open[k]):
                children.append(Node(bound))
            elif self.run.over():
                unresolved.append(Node(bound))
            elif self.branching.size(fixings[k].numpy()) <= self.run.settings.shrunk * self.size:
                labels, below = self.rest(fixings[k].numpy())
                self.offer(labels)
                if below < min(self.goal(), labels.energy - self.grid.tolerance):
                    unresolved.append(Node(max(bound, below)))
            else:
                column = int(scores[k].argmax())
                children += both_sides(found, k, column, bound, node.depth)
        return Expansion(children, self.best.energy, self.best, unresolved)
