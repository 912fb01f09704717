r"""Feasibility projection: feasible points near to almost feasible ones, such as the mean of the copies.

The projection on the feasible set, in the metric of the column sums T of the rows A
(:class:`blocklp.kernels.step_sizes.StepSizes`),

.. math:: \min_x \; \tfrac12 |x - x_0|^2_{T^{-1}} \quad \text{s.t.} \quad l \le A x \le u, \; lo \le x \le hi,

by accelerated proximal gradient steps on its dual, started anew where momentum leads back (Beck and Teboulle
2009; O'Donoghue and Candes 2015).  The steps are those of PDHG.  The projection moves what is violated
by about as much as it is violated, while a shrinkage towards an interior point moves everything, and
equalities have no interior.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.decomposition.row_sums import in_order
from blocklp.engine.points import offer
from blocklp.errors import TimeLimitError
from blocklp.kernels.operations import operation
from blocklp.kernels.plan import Plan
from blocklp.methods.base import where

ALMOST = 3e-2
"""Relative violation of rows above which a point is not worth a feasibility projection."""

PASSES = 150
"""Passes of a feasibility projection of a candidate."""

BETWEEN = 10
"""Passes after which the host waits for a device to say whether any point needs another pass."""


def project(plan: Plan, x: Tensor, tolerance: float, most: int) -> tuple[Tensor, Tensor]:
    """Project points onto the feasible set until no row is violated by more than a tolerance.

    Parameters
    ----------
    plan : Plan
        The problem; all blocks must state their constraints.
    x : Tensor
        ``(batch, variables)``: the points, in the precision of the plan.
    tolerance : float
        Admissible violation, relative to the rows at ``x`` as in :meth:`Constraints.relative_violation`.
    most : int
        Most passes.

    Returns
    -------
    points, passes : Tensor
        ``(batch, variables)``, and how many passes each took ``(batch,)`` int64.

    Raises
    ------
    OptionError
        If some block type states no constraints.
    """
    slack = tolerance * plan.program.sizes(plan.problem, x)
    return projection_passes(plan, x, slack, most)


@operation
def projection_passes(plan: Plan, x: Tensor, slack: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Project points onto the feasible set until no row is violated by more than its slack.

    Parameters
    ----------
    plan, x, most
        As in :func:`project`.
    slack : Tensor
        ``(batch, rows)``: admissible violations.

    Returns
    -------
    points, passes : Tensor
        ``(batch, variables)``, and how many passes each took ``(batch,)`` int64.
    """
    problem, program, steps = plan.problem, plan.program, plan.steps
    y = torch.zeros_like(steps.row)
    ahead = y  # the duals after the momentum step
    age, found, passes = torch.zeros_like(x[:, 0]), x, torch.zeros(len(x), dtype=torch.long, device=x.device)
    active = torch.ones(len(x), dtype=torch.bool, device=x.device)
    between = 1 if x.device.type == "cpu" else BETWEEN
    for k in range(most):
        if plan.deadline.over():
            break
        near = x + steps.column * program.sums(problem, ahead).sum(1)
        near = program.box.clip(near)
        reached = program.activity(problem, near)
        found, passes = where(active, near, found), passes + active
        active = active & ~(torch.maximum(program.lower - reached, reached - program.upper) <= slack).all(1)
        if (k + 1) % between == 0 and not bool(active.any()):
            break
        w = ahead * steps.length - reached
        new = steps.row * (w - torch.minimum(torch.maximum(w, -program.upper), -program.lower))
        back = in_order(((ahead - new) * steps.length * (new - y)).double()) > 0
        age = (age + 1).masked_fill(back, 0.0)
        ahead, y = new + (age / (age + 3))[:, None] * (new - y), new
    return found, passes


def offer_projected(
    plan: Plan, found: Tensor, tolerance: float, bound: Tensor, primal: Tensor, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scale points that are almost feasible and might be better, or else project them; keep the better ones.

    Parameters
    ----------
    plan : Plan
        The problem in float64, and how it is executed.
    found : Tensor
        ``(batch, variables)`` float64: points within the bounds of the variables.
    tolerance, bound, primal, x
        As in :func:`blocklp.engine.points.offer`.

    Returns
    -------
    primal, x, spent : Tensor
        ``(batch,)``, ``(batch, variables)`` float64, and the passes that this took ``(batch,)`` int64.
    """
    spent, before = torch.zeros(len(primal), dtype=torch.long, device=primal.device), primal
    if plan.deadline.over():
        return primal, x, spent
    try:
        scaled = plan.program.scaled(plan.problem, found)
        primal, x, _ = offer(plan, scaled, None, tolerance, bound, primal, x)
        rows = (~(primal < before)).nonzero()[:, 0]
        if len(rows):
            part = plan if len(rows) == len(primal) else plan.select(rows)
            projected, passes = project(part, found[rows], tolerance / 2, PASSES)
            better, best, _ = offer(part, projected, None, tolerance, bound[rows], primal[rows], x[rows])
            primal, x = primal.index_copy(0, rows, better), x.index_copy(0, rows, best)
            spent.index_copy_(0, rows, passes)
    except TimeLimitError:  # no time is left to write the rows out
        pass
    return primal, x, spent
