"""Branch and bound of a quadratic pseudo-boolean function over bounds of roof duality, with a rule that chooses variables.

Nodes are rows of multipliers over one model (:class:`blocklp.Nodes`).  How many there are is up to the rule: strong branching, which
bounds both children for every free variable, needs a tenth or less of those that the reduced costs of the last sweeps need.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import ShapeError
from blocklp.problems.discrete.exact import ExactRun
from blocklp.problems.discrete.fixed_nodes import both_sides, fixed_node
from blocklp.problems.discrete.integers import Grid
from blocklp.problems.qpbo.heuristics import round_fractional
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.presolve import LabelArray
from blocklp.problems.qpbo.relaxation import roof_duality_model
from blocklp.search.best_first import Expansion, Node
from blocklp.search.nodes import NodeBounds
from blocklp.search.over_workers import Sharing
from blocklp.status import Status

SWEEPS = 16
"""Sweeps of a node."""
ROOT_TOL, ROOT_PASSES = 1e-5, 1000
"""How far the root's LP is solved."""
TOGETHER, SIDES = 10_000_000, torch.arange(2, dtype=torch.int8)
"""Copies of all children that strong branching bounds at once, and the two values of a variable."""
MEMORY = 2e9
"""Bytes of multipliers of open nodes above which the deepest nodes come first."""
ALONE = Sharing(batch=16, parts=1, subtree=16, memory=MEMORY)
"""Nodes that are bounded at once."""
SHARED = Sharing(batch=16, parts=16, subtree=64, memory=MEMORY)
"""Nodes of a round that workers bound."""
LEAST = 1e-4
"""What a child gains at least, in parts of the distance to the incumbent: a variable of which one side gains nothing is no worse."""


class Rule(Protocol):
    """Chooses the variables to branch on."""

    def scores(self, qubo: Qubo, nodes: bl.Nodes, found: NodeBounds, goal: float) -> Tensor:
        """Return how good each variable is to branch on.

        Parameters
        ----------
        qubo : Qubo
            The function, of k variables.
        nodes : Nodes
            Its relaxation.
        found : NodeBounds
            Nodes of it; scores of nodes that are not open are not looked at.
        goal : float
            The bound that closes a node.

        Returns
        -------
        Tensor
            ``(nodes, k)`` float64: finite; those of fixed variables are not looked at.
        """


@dataclass(frozen=True)
class ReducedCosts:
    """Branches by what the last sweeps say of both values of a variable (:attr:`NodeBounds.scores`), at no further cost."""

    def scores(self, qubo: Qubo, nodes: bl.Nodes, found: NodeBounds, goal: float) -> Tensor:
        """Return the scores of the nodes.

        Parameters
        ----------
        qubo, nodes, found, goal
            As in :meth:`Rule.scores`; only ``found`` is looked at.

        Returns
        -------
        Tensor
            ``(nodes, k)`` float64; -1 where a variable is fixed.
        """
        return found.scores


@dataclass(frozen=True)
class StrongBranching:
    """Branches by the product of the gains of both children, each of which is bounded, for every free variable."""

    def scores(self, qubo: Qubo, nodes: bl.Nodes, found: NodeBounds, goal: float) -> Tensor:
        """Bound the children, and return the products of their gains.

        Parameters
        ----------
        qubo, nodes, found, goal
            As in :meth:`Rule.scores`.

        Returns
        -------
        Tensor
            ``(nodes, k)`` float64, positive.
        """
        return product(self.gains(nodes, found, goal))

    def gains(self, nodes: bl.Nodes, found: NodeBounds, goal: float) -> Tensor:
        """Gains of the bound of each node by one fixing more, in parts of what closes the node.

        Parameters
        ----------
        nodes, found, goal
            As in :meth:`Rule.scores`.

        Returns
        -------
        Tensor
            ``(nodes, k, 2)`` float64 from 0 to 1: with the variable at 0 and at 1; 0 where it is fixed, or the node is not open.
        """
        fixed = found.fixings
        gains = torch.zeros(*fixed.shape, 2, dtype=torch.float64)
        most = max(1, TOGETHER // nodes.problem.copies)
        for k in found.open.nonzero()[:, 0].tolist():
            gap = goal - found.bound[k]
            for columns in torch.split((fixed[k] < 0).nonzero()[:, 0], most):
                children = fixed[k].repeat(2 * len(columns), 1)
                children[torch.arange(len(children)), columns.repeat(2)] = SIDES.repeat_interleave(len(columns))
                below = nodes.solve(children, found.multipliers[k : k + 1], goal, sweeps=SWEEPS)
                gains[k, columns] = portion(below.bound.view(2, -1).T - found.bound[k], gap)
        return gains


def portion(gain: Tensor, gap: Tensor) -> Tensor:
    """Gains in parts of what is left to gain, from 0 to 1."""
    return (gain / gap.clamp(min=1e-300)).nan_to_num(0.0, posinf=1.0).clamp(0, 1)


def product(gains: Tensor) -> Tensor:
    """The product of the gains ``(..., 2)`` of both children."""
    return (gains + LEAST).prod(-1)


def search_nodes(qubo: Qubo, labels: LabelArray, grid: Grid, run: ExactRun, rule: Rule) -> tuple[LabelArray, float]:
    """Minimise, from labels on; ``run.status`` tells whether the bound returned meets the labels.

    Parameters
    ----------
    qubo : Qubo
        The function, with integer coefficients and at least one pair.
    labels : ndarray
        ``(n,)`` int8: a labelling to begin with.
    grid : Grid
        What its values can be.
    run : ExactRun
        Limits.
    rule : Rule
        Chooses the variables to branch on.

    Returns
    -------
    ndarray, float
        The best labels ``(n,)`` int8, and a bound.
    """
    search = _NodeSearch(qubo, labels, 0.999 * grid.step, rule)
    bound = -math.inf
    try:
        found = run.searched([search.root(run.deadline)], search.expand, ALONE, SHARED, grid.step)
        run.nodes += found.nodes
        status, bound = (Status.OPTIMAL if found.proven else found.status), found.bound
        labels = labels if found.point is None else found.point
    except KeyboardInterrupt:  # at the root
        status = Status.INTERRUPTED
    if run.status is Status.OPTIMAL:
        run.status = status
    # Whatever was dropped is better by less than a step: by nothing, or by what does not matter.
    return labels, grid.raised(min(bound, float(qubo.energy(labels)) - grid.tolerance))


class _NodeSearch:
    """Roots and expansions of the tree; it is pickled without the relaxation, which each process lays out itself.

    Parameters
    ----------
    qubo : Qubo
        The function.
    labels : ndarray
        ``(n,)`` int8: a labelling to begin with.
    margin : float
        How far below a labelling a bound leaves none that matters.
    rule : Rule
        Chooses the variables to branch on.
    """

    def __init__(self, qubo: Qubo, labels: LabelArray, margin: float, rule: Rule) -> None:
        self.qubo, self.margin, self.rule = qubo, margin, rule
        self.start = labels, float(qubo.energy(labels))

    @cached_property
    def nodes(self) -> bl.Nodes:
        """The relaxation of all nodes."""
        return bl.Nodes(roof_duality_model(self.qubo), "y")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "nodes"}

    def root(self, deadline: bl.Deadline) -> Node:
        """Solve the relaxation, and fix by its reduced costs."""
        relaxed = self.nodes.solver.solve(tol=ROOT_TOL, passes=ROOT_PASSES, time_limit=deadline)
        free = torch.full((1, self.qubo.n), -1, dtype=torch.int8)
        found = self.nodes.solve(free, relaxed.state, self.start[1] - self.margin, sweeps=0, time_limit=deadline)
        bound = max(float(found.bound[0]), float(relaxed.safe_bound[0]))
        return fixed_node(bound, 0, found.fixings, found.multipliers)

    def expand(self, nodes: list[Node], incumbent: float, deadline: bl.Deadline) -> Expansion:
        """Bound nodes, round their points, and split those that are open.

        Parameters
        ----------
        nodes, incumbent, deadline
            As in :data:`blocklp.search.over_workers.Expand`.

        Raises
        ------
        KeyboardInterrupt
            The user interrupted the bounds.
        ShapeError
            The rule returned scores of another shape.
        """
        labels: LabelArray | None
        labels, energy = self.start if self.start[1] <= incumbent else (None, incumbent)
        fixings, multipliers = (torch.cat([node.state[k] for node in nodes]) for k in (0, 1))
        found = self.nodes.solve(fixings, multipliers, energy - self.margin, sweeps=SWEEPS, time_limit=deadline)
        if int(Status.INTERRUPTED) in found.status.tolist():
            raise KeyboardInterrupt
        fixings = found.fixings
        free = fixings < 0
        branched = found.open & free.any(1)
        points = torch.where(free, found.x, fixings.double())[found.open]
        offered = [fixings[k].numpy() for k in (found.open & ~branched).nonzero()[:, 0].tolist()]
        if len(points):
            rounded = round_fractional(self.qubo, points, time_limit=deadline)
            offered.append(rounded.y[int(rounded.energy.argmin())].numpy().astype("int8"))
        for own in offered:
            if (value := float(self.qubo.energy(own))) < energy:
                labels, energy = own, value
        scores = torch.zeros(free.shape, dtype=torch.float64)
        if bool(branched.any()) and not deadline.over():
            scores = self.rule.scores(self.qubo, self.nodes, found, energy - self.margin)
            if scores.shape != free.shape:
                what = f"scores of {free.shape[0]} nodes have shape {tuple(scores.shape)}"
                raise ShapeError(f"{what}; a branching rule returns one a variable: {tuple(free.shape)}")
        scores = scores.nan_to_num()  # a fixed variable is never the best
        columns = scores.masked_fill(~free, -torch.inf).argmax(1).tolist()
        children: list[Node] = []
        for k, node in enumerate(nodes):
            bound = max(node.bound, float(found.bound[k]))
            if not bool(found.open[k]):
                children.append(Node(bound, node.depth))
            elif bool(branched[k]):  # what is not is a labelling
                children += both_sides(found, k, columns[k], bound, node.depth)
        return Expansion(children, math.inf if labels is None else energy, labels)
