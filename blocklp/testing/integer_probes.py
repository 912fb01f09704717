"""Probe of a block type of integral points against integer programs, which HiGHS solves."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor

from blocklp.blocks.capabilities import integer_constraints_of
from blocklp.blocks.contract import BlockType
from blocklp.errors import OracleError
from blocklp.testing.lp_probes import admitted, lp_slack
from blocklp.testing.probes import Picks


def integer_optimality(kind: BlockType, cost: Tensor, picks: Picks) -> int:
    """Check that values are optima of integer programs over the rows that a type of integral points states.

    Parameters
    ----------
    kind, cost, picks
        As in :func:`blocklp.testing.lp_probes.optimality`.

    Returns
    -------
    int
        Integer programs solved; 0 if the type states no such rows.

    Raises
    ------
    OracleError
        If a value is another one, or the rows have no integer point.
    """
    rows = integer_constraints_of(kind)
    if rows is None:
        return 0
    point, value = kind.min_oracle(cost)
    solved = 0
    for i, b in picks:
        own, c = rows.block(i, b), cost[i, b].numpy()
        matrix, lower, upper = (t[0, 0].numpy() for t in (own.matrix, own.lower, own.upper))
        bounds = None
        if own.below is not None and own.above is not None:
            bounds = Bounds(own.below[0, 0].numpy(), own.above[0, 0].numpy())
        sides = LinearConstraint(matrix, lower, upper)
        found = milp(c, integrality=np.ones(len(c)), bounds=bounds, constraints=sides)
        if found.x is None:
            where = f"block {b} of instance {i}"
            raise OracleError(f"{kind.name}: the rows of {where} have no integer point; correct them")
        optimum, own_value = float(c @ np.round(found.x)), float(value[i, b])
        slack = lp_slack(cost[i, b], point[i, b])
        if not -slack - admitted(kind, cost, i, b) <= own_value - optimum <= slack:
            raise OracleError(
                f"{kind.name}: block {b} of instance {i} has value {own_value!r} and the integer program of "
                f"its rows {optimum!r}; one of min_oracle() and integer_constraints() is wrong, at cost "
                f"{c.tolist()}"
            )
        solved += 1
    return solved
