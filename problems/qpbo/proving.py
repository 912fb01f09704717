"""Proofs of minima by roof duality and semidefinite bounds in a tree, for :func:`blocklp.problems.qpbo.proof.check_proof`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from blocklp.campaigns import Executor, InProcess
from blocklp.deadline import Deadline
from blocklp.errors import OptionError, ProcessError
from blocklp.problems.qpbo.arrays import FloatArray
from blocklp.problems.qpbo.convex_search import one_blas_thread
from blocklp.problems.qpbo.convexify import Multipliers, Spins, convexified
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.presolve import LabelArray, fold
from blocklp.problems.qpbo.proof import Leaf, Proof, Rational, SemidefiniteLeaf, log_line, proof_from_log
from blocklp.problems.qpbo.relaxation import roof_duality_model
from blocklp.search.best_first import Expansion, Node
from blocklp.search.over_workers import Sharing, branch_and_bound_over
from blocklp.status import Status

PASSES = 200
ROUNDS, MOST = 20, 250
"""Rounds of triangle inequalities, and most free variables of a semidefinite bound: its matrices are dense."""

SHARING = Sharing(batch=4, parts=16, subtree=16)


def prove_minimum(
    qubo: Qubo,
    labels: ArrayLike,
    max_leaves: int = 2000,
    *,
    executor: Executor | None = None,
    log: Callable[[str], Any] | None = None,
) -> Proof:
    """Build a proof that labels are a minimiser, of up to some 100 variables where roof duality is not nearly tight.

    Parameters
    ----------
    qubo : Qubo
        The function; for a heaviest independent set ``graph.to_qubo()``.
    labels : array_like, shape (n,)
        A minimiser, as from :func:`blocklp.problems.qpbo.solve_qpbo_exactly`, or the members of a set.
    max_leaves : int
        Leaves at most.
    executor : Executor, optional
        Whose workers build it; by default this process does.  The proof is the same for any number of them.
    log : callable, optional
        Gets a line of text for every node as soon as it is there; of all lines :func:`blocklp.problems.qpbo.proof.proof_from_log`
        makes the proof.

    Returns
    -------
    Branch, Leaf or SemidefiniteLeaf
        For :func:`blocklp.problems.qpbo.proof.check_proof`, which alone says whether it succeeded: with coefficients that are not
        multiples of a common number, parts within rounding of the minimum are split until nothing is free.

    Raises
    ------
    OptionError
        More leaves are needed.
    ShapeError
        The labels are not 0 or 1, one for each variable.
    """
    rational = Rational(qubo)
    goal = rational.energy(labels) - rational.spacing
    lines: list[str] = []

    def keep(line: str) -> None:
        lines.append(line)
        if log is not None:
            log(line)

    # Of a tree in which every branch has two parts, one node more than half is a leaf.
    found = branch_and_bound_over(
        executor or InProcess(),
        [Node(-math.inf, 0, _Part((), None))],
        _Prover(qubo, goal).expand,
        sharing=SHARING,
        max_nodes=2 * max_leaves - 1,
        log=keep,
    )
    if found.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    if found.status is Status.PASS_LIMIT:
        raise OptionError(f"the proof needs more than {max_leaves} leaves; raise max_leaves, or prove a smaller instance")
    if found.unresolved:
        raise ProcessError("the processes that should have proved a part of the labellings ended; give them more memory")
    return proof_from_log(lines)


@dataclass(frozen=True)
class _Part:
    """Fixings of variables in their order, and multipliers of the spins that they leave free."""

    fixings: tuple[tuple[int, int], ...]
    multipliers: Multipliers | None


@dataclass(frozen=True)
class _Prover:
    """Bounds the parts of the labellings that fixings state, in order; every one is a leaf above the goal, or split."""

    qubo: Qubo
    goal: Fraction

    def expand(self, nodes: list[Node], incumbent: float, deadline: Deadline) -> Expansion:
        """Return the halves of the nodes that are split, and a line of the log for each node."""
        del incumbent, deadline  # a part that is not reached is given back by whoever asks
        qubo, rational = self.qubo, Rational(self.qubo)
        size = np.bincount(qubo.edges.ravel(), np.repeat(np.abs(qubo.quadratic), 2), qubo.n) + np.abs(qubo.linear)
        children, lines = [], []
        for node in nodes:
            part: _Part = node.state
            fixed = np.full(qubo.n, -1, dtype=np.int8)
            for variable, value in part.fixings:
                fixed[variable] = value
            leaf, y = roof_leaf(qubo, fixed)
            if (fixed >= 0).all() or rational.leaf(fixed.tolist(), leaf) > self.goal:
                lines.append(log_line(part.fixings, leaf))
                continue
            other, multipliers = self._semidefinite(fixed, part.multipliers)
            if other is not None and rational.semidefinite(fixed.tolist(), other) > self.goal:
                lines.append(log_line(part.fixings, other))
                continue
            # The strongest of the undecided variables.
            scores = np.where(fixed < 0, size * (1 + 4 * y * (1 - y)), -1)
            if multipliers is not None:
                decided = np.clip(np.nan_to_num(np.abs(multipliers.correlations[0, 1:])), 0, 1)
                scores[fixed < 0] = size[fixed < 0] * (1 - decided)
            variable = int(scores.argmax())
            lines.append(log_line(part.fixings, variable))
            place = int((fixed[:variable] < 0).sum())
            for value in (0, 1):
                below = None
                if multipliers is not None:
                    spins = np.zeros(len(multipliers.diagonal) - 1, dtype=np.int8)
                    spins[place] = 2 * value - 1
                    below = multipliers.fixed(spins)
                children.append(Node(-math.inf, node.depth + 1, _Part((*part.fixings, (variable, value)), below)))
        return Expansion(children, log=lines)

    def _semidefinite(self, fixed: LabelArray, begin: Multipliers | None) -> tuple[SemidefiniteLeaf | None, Multipliers | None]:
        """A semidefinite bound, begun where that of a part with fewer fixings ended, and where it ends; for up to MOST variables."""
        rest, _, constant = fold(self.qubo, fixed)
        if rest is None or not 3 <= rest.n <= MOST or not len(rest.edges):
            return None, None
        spins = Spins.of(rest)
        goal = float(self.goal) - constant
        with one_blas_thread():
            under = convexified(spins, ROUNDS, goal + 1e-9 * abs(spins.coupling).sum(), begin=begin)
        triangles = under.triangles.above(0.0)
        listed = zip(triangles.nodes.tolist(), triangles.signs.tolist(), triangles.prices.tolist(), strict=True)
        leaf = SemidefiniteLeaf(tuple(under.diagonal.tolist()), tuple((*nodes, *signs[:2], price) for nodes, signs, price in listed))
        return leaf, under.multipliers


def roof_leaf(qubo: Qubo, fixed: LabelArray) -> tuple[Leaf, FloatArray]:
    """Multipliers of roof duality, and its point."""
    point = np.where(fixed < 0, 0.5, fixed)
    rest, free, _ = fold(qubo, fixed)
    if rest is None or not len(rest.edges):
        return Leaf(()), point
    model = roof_duality_model(rest)
    solution = model.solve(tol=1e-6, passes=PASSES)
    if Status.INTERRUPTED in solution.status:  # which the solver has caught, with nothing proved
        raise KeyboardInterrupt
    (blocks,) = model.blocks
    duals = solution.duals[blocks][0][blocks.scope[:, 2].argsort()]  # products are in the order of the pairs
    point[free] = solution.x["y"][0].numpy()
    return Leaf(tuple((float(a), float(b), float(c)) for a, b, c in duals.tolist())), point
