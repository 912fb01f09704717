"""Searches of input and ReLU splits over workers: what they need, and what they find, in any process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.campaigns import Executor
from blocklp.deadline import Deadline
from blocklp.problems.verification.attack import float32_box
from blocklp.problems.verification.balls import Balls
from blocklp.problems.verification.input_splits import InputSplits
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.properties import Clause
from blocklp.problems.verification.proving import Part
from blocklp.problems.verification.relu_splits import ReluSplits
from blocklp.search.best_first import Expansion, Node, SearchResult
from blocklp.search.over_workers import Sharing, branch_and_bound_over

PARTS, BATCH = 8, 128
"""Tasks of a round, and most nodes of one."""

TRIED = 3
"""Points of a batch that are tried as counterexamples to a clause."""

NEAR = 1e-3
"""Errors of results in single precision, relative to the sizes of what is added up, at most."""


def candidates(network: Network, clauses: Sequence[Clause], x: Tensor, deadline: Deadline) -> list[NDArray[np.float32]]:
    """Round those of some points that satisfy the rows of a clause in float64, into its box.

    Parameters
    ----------
    network : Network
        The network.
    clauses : sequence of Clause
        All have the same box and ball, or ones around the points.
    x : Tensor
        ``(k, *input_shape)`` float64: the points.
    deadline : Deadline
        When to raise a ``TimeLimitError``.

    Returns
    -------
    list of ndarray
        ``(inputs,)`` float32 each, a few for each clause.
    """
    if (ball := clauses[0].ball) is not None:
        x = Balls.stacked([ball], network.input_shape, x.device).pulled(x)
    single = network.to(torch.float32, network.device)
    x = x[torch.as_tensor(_near(clauses, single.run(x.float(), deadline)[-1]), device=x.device)]
    if not len(x):
        return []
    y = network.run(x, deadline)[-1].flatten(1).cpu().numpy()
    found = []
    for clause in clauses:
        with np.errstate(over="ignore", invalid="ignore"):
            hits = np.flatnonzero(((y @ clause.matrix.T) <= clause.right).all(1))
        low, high, _ = float32_box(clause) if len(hits) else (None, None, None)
        found += [np.clip(x[k].flatten().cpu().numpy().astype(np.float32), low, high) for k in hits[:TRIED]]
    return found


def _near(clauses: Sequence[Clause], results: Tensor) -> NDArray[np.intp]:
    """Numbers of the points that may satisfy the rows of a clause, by their results in single precision: as a rule few or none."""
    y = results.flatten(1).double().cpu().numpy()
    near = np.zeros(len(y), dtype=bool)
    for clause in clauses:
        with np.errstate(over="ignore", invalid="ignore"):
            slack = NEAR * (1 + np.abs(y) @ np.abs(clause.matrix.T) + np.abs(clause.right))
            near |= ~(y @ clause.matrix.T > clause.right + slack).any(1)
    return np.flatnonzero(near)


@dataclass(frozen=True)
class Findings:
    """What expanding some nodes has found: points to confirm as counterexamples, and parts of the proof that were split or closed."""

    points: list[NDArray[np.float32]]
    parts: list[Part]


class SplitTree:
    """Expands the nodes of splits; it is pickled without what is for one process.

    Parameters
    ----------
    network : Network
        The network.
    splits : InputSplits or ReluSplits
        Its splits.
    clauses : sequence of Clause
        What counterexamples satisfy, all over one box; none if nobody looks for them.
    """

    def __init__(self, network: Network, splits: InputSplits | ReluSplits, clauses: Sequence[Clause]) -> None:
        self.network, self.splits, self.clauses = network, copy.copy(splits), clauses
        self.splits.inspect = self.look
        if isinstance(self.splits, ReluSplits):
            self.splits.effort.settle(self.splits.deadline)
        self.points: list[NDArray[np.float32]] = []
        self.elsewhere = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, elsewhere=True)

    def look(self, x: Tensor) -> None:
        """Keep points that may be counterexamples."""
        if self.clauses:
            self.points += candidates(self.network, self.clauses, x, self.splits.deadline)

    def expand(self, nodes: list[Node], incumbent: float, deadline: Deadline) -> Expansion:
        """Expand nodes; the log has :class:`Findings`.

        Parameters
        ----------
        nodes : list of Node
            The nodes.
        incumbent : float
            Not looked at: a counterexample ends the search.
        deadline : Deadline
            When to raise a ``TimeLimitError``, in other processes.
        """
        if self.elsewhere:
            self.splits.deadline.restart(deadline)
        self.points = []
        found = self.splits.expand(nodes)
        parts = [node.state.part for node in nodes if node.state.part is not None]
        return Expansion(found.children, unresolved=found.unresolved, log=[Findings(self.points, parts)])


def search_shared(
    executor: Executor,
    roots: Sequence[Node],
    tree: SplitTree,
    confirm: Callable[[NDArray[np.float32]], None],
    **limits: Any,
) -> SearchResult:
    """Search with workers.

    Parameters
    ----------
    executor : Executor
        Whose workers expand nodes.
    roots : sequence of Node
        The nodes to begin with; parts of a proof that theirs are split into are those of this process.
    tree : SplitTree
        What expands nodes.
    confirm : callable
        Gets a point; raises if it is a counterexample.
    **limits
        Of :func:`blocklp.search.branch_and_bound_over`.

    Returns
    -------
    SearchResult
        The result of the search.
    """
    open_ = {node.state.part.key: node.state.part for node in roots if node.state is not None and node.state.part is not None}

    def found(findings: Findings) -> None:
        for point in findings.points:
            confirm(point)
        for part in findings.parts:
            own = open_.pop(part.key, None)
            if own is not None:  # not within another one of these
                own.become(part)
                open_.update((leaf.key, leaf) for leaf in own.open())

    batch = min(tree.splits.batch, BATCH)
    sharing = Sharing(batch=batch, parts=PARTS, subtree=batch, memory=limits.pop("memory"))
    return branch_and_bound_over(executor, roots, tree.expand, sharing=sharing, log=found, **limits)
