"""PDHG on one or many LPs that share a matrix, each in a box of its own: one call of the engine."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array

from blocklp.deadline import Deadline
from blocklp.handles import ROWS
from blocklp.linear_program import Array
from blocklp.model import Model
from blocklp.solution import Solution
from blocklp.state import Saddle, State


def solved(
    matrix: csr_array,
    cost: Array,
    sides: tuple[Array, Array],
    box: tuple[Array, Array],
    tol: float,
    deadline: Deadline,
    passes: int,
    state: State | None,
) -> Solution:
    """Solve LPs of minimisation.

    Parameters
    ----------
    matrix : csr_array
        ``(rows, variables)``; at least one row.
    cost, sides, box : ndarray
        ``(batch, variables)``, two of ``(batch, rows)`` and two of ``(batch, variables)``, these finite.
    tol : float
        Relative gap within the box.
    deadline : Deadline
        Of everything.
    passes : int
        Most passes.
    state : State or None
        Where to go on from.

    Returns
    -------
    Solution
        Points ``"x"`` and prices of the rows, by instance.
    """
    model = Model(batch=len(cost))
    x = model.variable("x", cost.shape[1], lower=torch.from_numpy(box[0].min(0)), upper=torch.from_numpy(box[1].max(0)))
    model.add_rows(matrix, x, *sides, name=ROWS)
    price = model.parameter("c", cost.shape[1])
    model.minimize((price * x).sum())
    price.value = torch.from_numpy(cost)
    own = {x: (torch.from_numpy(box[0]), torch.from_numpy(box[1]))} if len(cost) > 1 else None
    return model.compile().solve(method="pdhg", tol=tol, time_limit=deadline, passes=passes, warm_start=state, bounds=own)


def points(found: Solution) -> tuple[Array, Array]:
    """Points ``(batch, variables)`` and prices ``(batch, rows)`` of a solution."""
    return found.x["x"].numpy(), found.duals[ROWS][:, :, 0].numpy()


def state(x: Array, price: Array) -> State:
    """Where a solve goes on from points ``(batch, variables)`` and prices ``(batch, rows)``."""
    unknown, rows = (
        torch.full((len(x),), torch.nan, dtype=torch.float64),
        {ROWS: torch.from_numpy(np.ascontiguousarray(price))[:, :, None]},
    )
    return State(rows, unknown, Saddle(torch.from_numpy(np.ascontiguousarray(x)), rows, unknown))
