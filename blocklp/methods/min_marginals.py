r"""Averaging of min-marginals: block-coordinate ascent on the dual, in parallel and without a step size.

A pass asks every block what its value would gain or lose by each of its 0/1 variables,

.. math:: m_{b,i} = \min_{x \in X_b, x_i = 1} \langle \lambda_b, x \rangle
          - \min_{x \in X_b, x_i = 0} \langle \lambda_b, x \rangle,

takes a share of that away and deals it out equally to the n_j copies of the variable:

.. math:: \lambda_{b,i} \leftarrow \lambda_{b,i} - \frac{m_{b,i}}{k_b}
          + \frac{1}{n_j} \sum_{b', i' \to j} \frac{m_{b',i'}}{k_{b'}}

(max-sum diffusion: Werner, PAMI 2007; as a solver for blocks of any kind: Abbas and Swoboda, FastDOG, CVPR
2022, which goes through the variables of a block one by one and defers what it deals out). With :math:`k_b`
of :meth:`HasOverlap.overlap` the blocks lose nothing that they gave, and gain
:math:`\sum_i \max(0, -m_{b,i} / k_b)`; what they receive costs them at most its negative part, which is no
more in sum. So the bound never falls. It is no supergradient method, though: it may stop below the optimum.

Copies that can only be 0, or only 1, take all that the others give, since they have no use for their
multiplier. Copies of other kinds (blocks without min-marginals, coordinates that are not
0/1) keep theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.blocks.capabilities import overlap_of
from blocklp.decomposition.problem import Group
from blocklp.errors import OptionError
from blocklp.kernels.plan import Plan
from blocklp.methods.base import Method, MethodState


@dataclass(frozen=True)
class MinMarginalState(MethodState):
    """State of :class:`MinMarginals`; ``points`` are the oracle's answers one pass earlier."""

    takes: Tensor  # (batch, copies): the share of what the copies of its variable give that each one takes
    overlaps: tuple[int, ...]  # one a group, 0 for types without min-marginals
    known: tuple[bool, ...]  # whether there are min-marginals of all coordinates, whatever the cost


@dataclass(frozen=True)
class MinMarginals(Method):
    """Averaged min-marginals: monotone, without settings; quick at first, and may stop below the optimum."""

    evaluates = False

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> MinMarginalState:
        """Ask the oracles once and find out which copies take part.

        Parameters
        ----------
        plan, duals, eta
            As in :meth:`blocklp.methods.base.Method.start`; the weight is kept in the state and not used.

        Raises
        ------
        OptionError
            If blocks share variables and none of their types has min-marginals.
        """
        problem = plan.problem
        points, value = problem.min_oracle(duals)
        free, fixed = torch.zeros_like(duals), torch.zeros_like(duals)
        overlaps, known = [], []
        for group in problem.groups:
            ask = group.min_marginals if group.shares else None
            found = None if ask is None else ask(group.view(duals))
            overlaps.append(0 if found is None else overlap_of(group.type, group.shared))
            known.append(found is not None and not bool(found.isnan().any()))
            if found is not None:
                part = group.coupled if group.valid is None else group.coupled * group.valid[..., None]
                group.view(free).copy_(found.isfinite() * part)
                group.view(fixed).copy_(found.isinf() * part)
        shared = [group for group in problem.groups if group.shares]
        if shared and not any(overlaps):
            types = ", ".join(sorted({g.type.name for g in shared}))
            raise OptionError(
                f"min-marginals has nothing to average: none of {types} states min_marginals(cost); "
                f"choose another method, such as admm"
            )
        takers = torch.where(problem.spread(problem.collect(fixed)) > 0, fixed, free)
        takes = takers / problem.spread(problem.collect(takers)).clamp(min=1)
        eta = torch.ones_like(value) if eta is None else eta
        return MinMarginalState(duals, value, points, eta, takes, tuple(overlaps), tuple(known))

    def step(self, plan: Plan, state: MinMarginalState) -> MinMarginalState:
        """Take from all copies at once, and deal out what is missing to the cost."""
        problem = plan.problem
        left, points = state.duals.clone(), torch.empty_like(state.duals)
        each = zip(problem.groups, state.overlaps, state.known, strict=True)
        for group, overlap, known in each:
            cost = group.view(state.duals)
            found = group.min_marginals(cost) if overlap and group.min_marginals is not None else None
            group.view(points).copy_(best(group, cost, found, known))
            if found is not None:
                # Copies that take nothing back, though finite, may still give: to those that can only be 0 or
                # only 1.
                given = torch.where(found.isfinite(), found * group.coupled / overlap, 0.0)
                group.view(left).sub_(given if group.valid is None else given * group.valid[..., None])
        duals = left.addcmul_(state.takes, problem.spread(problem.cost - problem.collect(left)))
        return replace(state, duals=duals, points=points)


def best(group: Group, cost: Tensor, marginals: Tensor | None, known: bool) -> Tensor:
    """Points that minimise over a group's blocks, read off the min-marginals where these tell.

    Parameters
    ----------
    group, cost : Group, Tensor
        The blocks, and their costs ``(batch, blocks, dim)``.
    marginals : Tensor or None
        ``(batch, blocks, dim)``: min-marginals at this cost, NaN where unknown; None for a type without them.
    known : bool
        Whether none is NaN.

    Returns
    -------
    Tensor
        ``(batch, blocks, dim)``: where both values are as good, halves.
    """
    if marginals is None:
        return group.min_oracle(cost)[0]
    # Halves where both values are as good.
    point = 0.5 * (marginals <= 0).to(cost) + 0.5 * (marginals < 0)
    if not known:
        point = torch.where(marginals.isnan(), group.min_oracle(cost)[0], point)
    return point if group.valid is None else point * group.valid[..., None]
