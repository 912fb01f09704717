r"""The projected supergradient method with Polyak's steps to a level that is estimated on the way.

.. math:: \lambda \leftarrow \lambda + \frac{D_{rec} + \delta - D(\lambda)}{|d|^2} \, d, \qquad
          d \leftarrow P x + \frac{|P x|}{|d|} \, d

With the optimal value for the level :math:`D_{rec} + \delta` these are Polyak's steps. As it is not known,
:math:`\delta` is halved, and the best multipliers so far are taken up again, once a path of some length has
not raised the best value by a quarter of :math:`\delta`; a rise by that much sets a new record (Brannlund
1993; Goffin and Kiwiel 1999; Nedic and Bertsekas 2001, section III, the path-based rule). The direction
bisects the angle between the supergradient and the last direction (Sherali and Ulular 1989) and so does not
zigzag as plain supergradients do. While these two agree a step raises the value by half of :math:`\delta`: a
rise by nearly as much says that the level is low, and doubles :math:`\delta`.

All lengths are in units of the start, so that nothing depends on the scale of the costs: the first level asks
for a step as long as the multipliers, and a path is half as long, times the fourth root of what is left of
:math:`\delta`; no step is longer than a path.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.decomposition.row_sums import dot
from blocklp.kernels.plan import Plan
from blocklp.methods.base import Method, MethodState, where
from blocklp.methods.supergradient import scale


@dataclass(frozen=True)
class PolyakState(MethodState):
    """State of :class:`Polyak`.

    ``points`` is the step-weighted average of the oracle's answers, ``eta`` a step to the level.
    """

    direction: Tensor  # (batch, copies)
    best: Tensor  # (batch,): the largest value so far
    best_duals: Tensor  # (batch, copies): where it was found
    record: Tensor  # (batch,): the best value when the level was set
    rise: Tensor  # (batch,): how far above the record the level is
    first_rise: Tensor  # (batch,): what a step as long as the first multipliers promised
    path: Tensor  # (batch,): length of the steps since the level was set
    longest: Tensor  # (batch,): the longest path to the first level
    total: Tensor  # (batch,): sum of the step sizes that the average holds


@dataclass(frozen=True)
class Polyak(Method):
    """Polyak's steps with path-based levels and bisecting directions; nothing to set."""

    # Chosen on six families of LPs between 30 and 1000 passes; a factor of two in the first changes little.
    reach = 0.5
    enough = 0.25
    steep = 0.4

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> PolyakState:
        """Ask the oracles once and set the scale.

        Parameters
        ----------
        plan, duals
            As in :meth:`blocklp.methods.base.Method.start`.
        eta : Tensor or None
            ``(batch,)``: step length of a warm start, which sets the first level; None for one as long as the
            multipliers.
        """
        problem = plan.problem
        points, value = problem.min_oracle(duals)
        direction = problem.disagreement(points)
        size, length, zero = dot(direction, direction), scale(duals, direction), torch.zeros_like(value)
        eta = length if eta is None else torch.where(eta > 0, torch.minimum(eta, length), length)
        longest = self.reach * length * size.sqrt()
        best, rises = (value, duals, value), (eta * size, length * size)
        return PolyakState(duals, value, points, eta, direction, *best, *rises, zero, longest, zero)

    def step(self, plan: Plan, state: PolyakState) -> PolyakState:
        """One step towards the level, and another level where the path has become too long or has led up."""
        problem = plan.problem
        size = dot(state.direction, state.direction)
        longest = state.longest * (state.rise / state.first_rise).sqrt().sqrt()
        step = torch.minimum((state.record + state.rise - state.value) / size, longest / size.sqrt())
        step = torch.where(size > 0, step, torch.zeros_like(step))
        duals = state.duals + step[:, None] * state.direction
        x, value = problem.min_oracle(duals)

        supergradient = problem.disagreement(x)
        ratio = (dot(supergradient, supergradient) / size).sqrt()
        turn = torch.where(size > 0, ratio, torch.zeros_like(size))
        total = state.total + step
        share = torch.where(total > 0, step / total, torch.ones_like(total))

        better = value > state.best
        best, best_duals = torch.where(better, value, state.best), where(better, duals, state.best_duals)
        path = state.path + step * size.sqrt()
        up = best >= state.record + self.enough * state.rise
        lost = ~up & (path >= longest)
        low = best >= state.record + self.steep * state.rise
        rise = torch.where(low, 2 * state.rise, torch.where(lost, state.rise / 2, state.rise))
        return PolyakState(
            duals=where(lost, best_duals, duals),
            value=torch.where(lost, best, value),
            points=state.points + share[:, None] * (x - state.points),
            eta=torch.where(size > 0, rise / size, state.eta),
            direction=supergradient + turn[:, None] * state.direction,
            best=best,
            best_duals=best_duals,
            record=torch.where(up | lost, best, state.record),
            rise=rise,
            first_rise=state.first_rise,
            path=path.masked_fill(up | lost, 0),
            longest=state.longest,
            total=total,
        )
