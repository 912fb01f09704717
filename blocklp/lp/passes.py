"""PDHG on LPs that share a matrix, each in its box: one call of the engine."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array

from blocklp.deadline import Deadline
from blocklp.general_solvers.linear_program import Array
from blocklp.language.handles import ROWS
from blocklp.model import Model
from blocklp.results.solution import Solution
from blocklp.results.state import Saddle, State


def solved(
    matrix: csr_array,
    cost: Array,
    sides: tuple[Array, Array],
    box: tuple[Array, Array],
    tol: float,
    deadline: Deadline,
    passes: int,
    state: State | None,
    cutoff: Array | None = None,
) -> Solution:
    """Solve LPs of minimisation by restarted PDHG.

    Parameters
    ----------
    matrix : csr_array
        ``(rows, variables)``; at least one row.
    cost : ndarray
        ``(batch, variables)``.
    sides : tuple of ndarray
        Lower and upper sides ``(batch, rows)``, may be infinite.
    box : tuple of ndarray
        Lower and upper bounds ``(batch, variables)``, finite.
    tol : float
        Relative gap within the box.
    deadline : Deadline
        End of the solve.
    passes : int
        Most passes.
    state : State or None
        Warm start.
    cutoff : ndarray, optional
        ``(batch,)``: bounds from which on an LP is of no interest.

    Returns
    -------
    Solution
        Points ``"x"`` and prices of the rows, by instance.
    """
    model = Model(batch=len(cost))
    lower, upper = torch.from_numpy(box[0].min(0)), torch.from_numpy(box[1].max(0))
    x = model.variable("x", cost.shape[1], lower=lower, upper=upper)
    model.add_rows(matrix, x, *sides, name=ROWS)
    price = model.parameter("c", cost.shape[1])
    model.minimize((price * x).sum())
    price.value = torch.from_numpy(cost)
    return model.compile().solve(
        method="pdhg",
        tol=tol,
        time_limit=deadline,
        passes=passes,
        warm_start=state,
        cutoff=None if cutoff is None else torch.from_numpy(cutoff),
        bounds={x: (torch.from_numpy(box[0]), torch.from_numpy(box[1]))} if len(cost) > 1 else None,
    )


def points(solution: Solution) -> tuple[Array, Array]:
    """Points ``(batch, variables)`` and prices ``(batch, rows)`` of a solution."""
    return solution.x["x"].numpy(), solution.duals[ROWS][:, :, 0].numpy()


def state(x: Array, price: Array) -> State:
    """A warm start from points ``(batch, variables)`` and prices ``(batch, rows)``."""
    unknown = torch.full((len(x),), torch.nan, dtype=torch.float64)
    rows = {ROWS: torch.from_numpy(np.ascontiguousarray(price))[:, :, None]}
    return State(rows, unknown, Saddle(torch.from_numpy(np.ascontiguousarray(x)), rows, unknown))
