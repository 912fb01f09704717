"""Multipliers of the linear relaxation of blocks that are hulls of integer points: where to start from."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from blocklp.blocks.capabilities import integer_constraints_of
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.deadline import Deadline
from blocklp.decomposition.problem import Decomposition
from blocklp.methods.restricted_master import RestrictedMaster


class LinearRelaxation(BlockType):
    """The polytope of the rows of whose integer points a block is the hull; it has no oracle.

    Parameters
    ----------
    kind : BlockType
        The type of the block.
    """

    def __init__(self, kind: BlockType) -> None:
        self.kind = kind

    def constraints(self) -> Constraints | None:
        """The rows and bounds of the integer program."""
        return integer_constraints_of(self.kind)


def relaxed_duals(problem: Decomposition, deadline: Deadline) -> Tensor | None:
    """Dual solutions of the LPs of rows, solved by HiGHS; their bounds are at least the values of the LPs.

    Parameters
    ----------
    problem : Decomposition
        The problem.
    deadline : Deadline
        When to stop.

    Returns
    -------
    Tensor or None
        ``(batch, copies)``: multipliers, the usual first ones where an LP was not solved in time; None where
        no types are relaxed, or some state no rows at all.
    """

    def rows_of(kind: BlockType, stated: Constraints | None) -> BlockType:
        return kind if stated is not None else LinearRelaxation(kind)

    groups = tuple(replace(g, type=rows_of(g.type, g.constraints), known=None) for g in problem.groups)
    relaxed = replace(problem, groups=groups)
    if problem.testable or not relaxed.testable:
        return None
    duals = problem.to_dual(problem.cost)
    for i in range(problem.batch):
        master = RestrictedMaster(relaxed, i)
        master.begin()
        if (found := master.solve(deadline.left())) is not None:
            duals[i] = torch.from_numpy(found.duals).to(duals)
    return duals
