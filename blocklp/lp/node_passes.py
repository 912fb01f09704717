"""Bounds of nodes of an LP by PDHG, all together, where the loops of the dual simplex method do not serve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from blocklp.deadline import Deadline
from blocklp.kernels.dual_simplex_layout import (
    EMPTY,
    ENDED,
    FAR,
    LOWER,
    PASSED,
    UNFINISHED,
    UPPER,
    NodeAnswers,
    NodeArrays,
)
from blocklp.lp import passes as passing
from blocklp.lp.judge import FEASIBLE, proved, violation
from blocklp.lp.shared_basis import SharedProgram, slack_basis

PASSES, TOL = 2000, 1e-6
"""Most passes, and the relative gap at which a node is solved."""


def bounded_by_passes(shared: SharedProgram, nodes: NodeArrays, out: NodeAnswers, deadline: Deadline) -> None:
    """Bound nodes, whose bounds are within those of the LP; every node ends with the slack basis.

    Parameters
    ----------
    shared : SharedProgram
        The scaled LP.
    nodes : NodeArrays
        Bounds, costs and goals; bases are not read.
    out : NodeAnswers
        Written.
    deadline : Deadline
        When to stop with the prices so far.
    """
    program, count = shared.program, len(nodes.goal)
    lower, upper = shared.bounds(nodes.lower, nodes.upper)
    lower, upper = (np.broadcast_to(side, (count, len(program.c))) for side in (lower, upper))
    out.basis[:] = slack_basis(program)
    out.basis[:, : len(program.c)] = np.where(shared.column < 0, UPPER, LOWER)
    crossed = (lower > upper).any(1)
    out.status[crossed], out.bound[crossed] = EMPTY, np.inf
    some = np.flatnonzero(~crossed)
    if not len(some):
        return
    lower, upper = lower[some], upper[some]
    cost = nodes.cost[some] if len(nodes.cost) else np.repeat(program.c[None], len(some), 0)
    below, above = (np.repeat(side[None], len(some), 0) for side in (program.row_lower, program.row_upper))
    box = lower, np.minimum(upper, np.maximum(np.minimum(shared.implied, FAR), lower))
    goal = nodes.goal[some]
    found = passing.solved(program.A, cost, (below, above), box, TOL, deadline, PASSES, None, goal)
    points, prices = passing.points(found)
    out.x[some], out.price[some] = points * shared.column, prices * shared.row
    for k, i in enumerate(some):
        node = replace(program, c=cost[k], lower=lower[k], upper=upper[k], offset=0.0)
        out.bound[i] = proved(node, prices[k], lower[k], np.minimum(upper[k], shared.implied))
        if out.bound[i] == np.inf or out.bound[i] >= goal[k]:
            out.status[i] = PASSED
        elif violation(node, points[k]) <= FEASIBLE:
            out.status[i], out.primal[i] = ENDED, float(cost[k] @ points[k])
        else:
            out.status[i] = UNFINISHED
