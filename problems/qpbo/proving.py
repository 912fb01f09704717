"""Proofs of minima by roof duality in a tree, for :func:`blocklp.problems.qpbo.proof.check_proof`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from blocklp.errors import OptionError
from blocklp.problems.qpbo.arrays import FloatArray
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.presolve import LabelArray, fold
from blocklp.problems.qpbo.proof import Branch, Leaf, Rational
from blocklp.problems.qpbo.relaxation import roof_duality_model
from blocklp.status import Status

PASSES = 200


def prove_minimum(qubo: Qubo, labels: ArrayLike, max_leaves: int = 2000) -> Branch | Leaf:
    """Build a proof that labels are a minimiser; for small functions, or those that roof duality is nearly tight for.

    Parameters
    ----------
    qubo : Qubo
        The function; for a heaviest independent set ``graph.to_qubo()``.
    labels : array_like, shape (n,)
        A minimiser, as from :func:`blocklp.problems.qpbo.solve_qpbo_exactly`, or the members of a set.
    max_leaves : int
        Leaves at most.

    Returns
    -------
    Branch or Leaf
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
    size = np.bincount(qubo.edges.ravel(), np.repeat(np.abs(qubo.quadratic), 2), qubo.n) + np.abs(qubo.linear)
    leaves = 0
    done: list[Branch | Leaf] = []
    # Fixings that are to be bounded; a variable comes back when both of its parts are done.
    work: list[LabelArray | int] = [np.full(qubo.n, -1, dtype=np.int8)]
    while work:
        fixed = work.pop()
        if isinstance(fixed, int):
            one, zero = done.pop(), done.pop()
            done.append(Branch(fixed, zero, one))
            continue
        leaf, y = _bounded(qubo, fixed)
        if (fixed >= 0).all() or rational.leaf(fixed.tolist(), leaf) > goal:
            done.append(leaf)
            leaves += 1
            if leaves > max_leaves:
                raise OptionError(f"the proof needs more than {max_leaves} leaves; raise max_leaves, or prove a smaller instance")
            continue
        # The strongest of the undecided variables.
        variable = int(np.where(fixed < 0, size * (1 + 4 * y * (1 - y)), -1).argmax())
        zero_fixed, one_fixed = fixed.copy(), fixed.copy()
        zero_fixed[variable], one_fixed[variable] = 0, 1
        work += [variable, one_fixed, zero_fixed]
    return done[0]


def _bounded(qubo: Qubo, fixed: LabelArray) -> tuple[Leaf, FloatArray]:
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
