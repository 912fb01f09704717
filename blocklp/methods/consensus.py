"""Steps of :class:`blocklp.methods.Admm`: proximal points, anchors, residuals, multipliers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition, Group
from blocklp.decomposition.totals import WHOLE, Totals
from blocklp.kernels.operations import operation
from blocklp.kernels.plan import Plan
from blocklp.methods.base import Memory, Method


def has_prox(group: Group, duals: Tensor) -> bool:
    """Whether the type has a formula for proximal points, asked about one instance."""
    costs = group.view(duals)
    return prox(group.select(slice(0, 1)), costs, costs, torch.ones_like(duals[:, 0])) is not None


def prox(group: Group, cost: Tensor, centre: Tensor, eta: Tensor) -> Tensor | None:
    """Proximal points of a group, if its type has a formula; padding gives zero, and no blocks do not ask it.

    Parameters
    ----------
    group : Group
        The blocks.
    cost, centre : Tensor
        ``(batch, blocks, dim)``.
    eta : Tensor
        ``(batch,)``: the proximal weight.

    Returns
    -------
    Tensor or None
        ``(batch, blocks, dim)``.
    """
    if group.prox is None:
        return None
    if not group.blocks:
        return centre.clone()
    point = group.prox(cost, centre, eta[:, None, None], group.shared)
    return point if point is None or group.valid is None else point * group.valid[..., None]


class FromPoint(Method):
    r"""Methods whose iterates are :math:`x - \eta \lambda`, which a point x begins as well as multipliers do.

    Without a point the copies begin as far apart as the oracles' answers are, however good the multipliers.
    """

    def resume(self, plan: Plan, state: Any, memory: Memory) -> Any:
        """Begin at the point of a primal-dual warm start.

        Parameters
        ----------
        plan, state, memory
            As in :meth:`blocklp.methods.base.Method.resume`; the state has ``iterate``, ``mean`` and ``eta``,
            and x alone is taken of the memory. Where x is NaN, as for variables added since, the mean of the
            oracles' answers stays.
        """
        x = torch.where(memory[0].isnan(), state.mean, memory[0].to(state.mean))
        iterate = torch.addcmul(plan.problem.spread(x), state.eta[:, None], state.duals, value=-1)
        return state.changed(iterate=iterate)


def halpern_step(anchor: Tensor, age: Tensor, ready: Tensor, value: Tensor) -> None:
    """Halpern step: draw values towards an anchor, if there is one, ever less with its age.

    Parameters
    ----------
    anchor : Tensor
        ``(batch, n)``, or ``(batch, 0)`` for none.
    age : Tensor
        ``(batch,)`` int64: passes since the anchor was set.
    ready : Tensor
        ``(batch,)`` bool: instances whose values stay.
    value : Tensor
        ``(batch, n)``, written.
    """
    if anchor.shape[1]:
        share = age.to(value) / (age + 1).to(value)
        value.copy_(torch.where(ready[:, None], value, (value - anchor).mul_(share[:, None]).add_(anchor)))


def moves(counts: Tensor, mean: Tensor, target: Tensor, totals: Totals = WHOLE) -> Tensor:
    """Squared dual residual of some variables: ``(batch,)`` float64.

    Parameters
    ----------
    counts : Tensor
        ``(batch or 1, k)``: numbers of copies.
    mean, target : Tensor
        ``(batch, k)``: means of the copies, and reflected consensus.
    totals : Totals
        Sums over the variables.

    Returns
    -------
    Tensor
        ``(batch,)`` float64, in squared units of the variables.
    """
    consensus = (mean + mean).sub_(target)
    step = torch.sub(mean, consensus, out=consensus).masked_fill_(counts <= 1, 0).double()
    return totals.over_variables_in_order(step.square_().mul_(counts))


def residuals(plan: Plan, state: Any) -> tuple[Tensor, Tensor]:
    """Squared distances of the points from their mean, and of the mean from the consensus, copy by copy.

    Parameters
    ----------
    plan, state : Plan, AdmmState
        The problem and how it is executed, and a state of ADMM with the points of the last pass.

    Returns
    -------
    primal, dual : Tensor
        ``(batch,)`` float64.
    """
    problem = plan.problem
    if plan.whole:
        return state.primal_residual, state.dual_residual
    primal = torch.zeros_like(state.primal_residual)
    for group in problem.groups:
        if group.shares:
            primal = primal + problem.totals.over_blocks_in_order(_squares(problem, state, group))
    return primal, moves(problem.counts, state.mean, state.reflected, problem.totals)


def _squares(problem: Decomposition, state: Any, group: Group) -> Tensor:
    """Squared distances ``(batch, copies of the group)`` of points from their mean, zero where uncoupled."""
    away = problem.coupling.spread_part(state.mean, group.start, group.stop)
    torch.sub(state.points[:, group.start : group.stop], away, out=away)
    away.view(len(away), group.dim, group.blocks).masked_fill_(group.coupled[:, None] == 0, 0.0)
    return away.double().square_()


@operation
def admm_multipliers(plan: Plan, state: Any, group: Group, centre: Tensor) -> None:
    """Write the multipliers of a group at the points, those of coupled copies.

    Parameters
    ----------
    plan : Plan
        The problem in the working precision, and how it is executed.
    state : AdmmState
        A state of ADMM; its multipliers are written.
    group : Group
        The blocks.
    centre : Tensor
        ``(batch, variables)``: the consensus z.
    """
    own = plan.problem.coupling.spread_part(centre, group.start, group.stop)
    own = own - state.iterate[:, group.start : group.stop]
    coupled, dual = group.coupled[:, None] > 0, group.rows(state.duals)
    dual.copy_(torch.where(coupled, own.div_(state.eta[:, None]).view_as(dual), dual))
