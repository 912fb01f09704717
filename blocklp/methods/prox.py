r"""Proximal steps solved block by block, with momentum and an automatic weight.

It minimises the same function as ProxBC and ProxFW,
:math:`\sum_b \langle \tilde\lambda_b, x_b \rangle + |P x|^2 / (2 \eta)`, and differs in four things:

* each block of each instance takes steps of its own closed-form size (with :math:`\beta` fixed the blocks
  separate), pairwise between the best and the worst of its atoms (:mod:`blocklp.methods.active_set`) instead
  of towards one vertex;
* Nesterov's extrapolation between those steps (:math:`|P| \le 1` makes the separable model a majoriser);
* the proximal problem is left when its Frank-Wolfe gap falls below the predicted increase
  :math:`|P x|^2 / \eta`, not after a fixed count, and solved more thoroughly once that turns out to be too
  early;
* :math:`\eta` follows :class:`blocklp.methods.proximal_weight.SeriousStepRule`, an instance at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from blocklp.kernels.operations import operation
from blocklp.kernels.plan import Plan
from blocklp.methods import active_set as atom
from blocklp.methods.base import where
from blocklp.methods.proximal import Proximal, ProximalState
from blocklp.methods.sweeps import Asked, advance, ask, fused_loops


@dataclass(frozen=True)
class ProxStepState(ProximalState):
    """State of :class:`Prox`; ``points`` are those of the extrapolated weights."""

    inner: Tensor  # (batch,): steps taken on the current proximal problem
    effort: Tensor  # (batch,): how thoroughly proximal problems are solved, from 1
    momentum: Tensor  # (batch,): Nesterov's t
    atoms: tuple[atom.Atoms, ...]  # one a group
    weights: tuple[Tensor, ...]  # (batch, atoms, blocks): extrapolated weights, on the simplex
    earlier: tuple[Tensor, ...]  # the weights of the step before, without extrapolation


@dataclass(frozen=True)
class Prox(Proximal):
    """Per-block pairwise steps, momentum, automatic weight.

    Parameters
    ----------
    eta : float, Tensor, array or ProximalWeight, optional
        The proximal weight: one for all instances, ``(batch,)`` or a rule; ``None`` chooses it automatically.
    """

    # Chosen on weighted MIS (BA graphs of 200 and 1000 nodes) between 10 and 600 passes: fewer inner passes
    # are better late, more are better early.
    repeats = 2
    most_inner = 20

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> ProxStepState:
        """Every block at the oracle's answer to the first multipliers.

        Parameters
        ----------
        plan, duals, eta
            As in :meth:`blocklp.methods.base.Method.start`.
        """
        problem = plan.problem
        atoms, weights, points, value = atom.begin(problem, duals)
        weight, origin = self.first_weight(problem, duals, points, eta)
        zero, one = torch.zeros_like(value), torch.ones_like(value)
        earlier = tuple(w.clone() for w in weights)
        begun = (origin, zero, zero, one, one)
        return ProxStepState(duals, value, points, weight, duals, value, *begun, atoms, weights, earlier)

    def in_loops(self, plan: Plan) -> bool:
        """Whether sweeps over blocks with vertex tables run in compiled loops."""
        return fused_loops(plan) is not None

    def step(self, plan: Plan, state: ProxStepState) -> ProxStepState:
        """One pass: the oracles, then a block step or a new proximal centre; the state given is used up."""
        eta = state.eta
        asked = ask(plan, state.points, state.centre, eta, state.atoms, state.weights, state.earlier)
        outer, share, scalars = prox_schedule(plan, self, state, asked)
        points, stepped, extrapolated = advance(plan, asked, state.points, eta, share, self.repeats)
        return ProxStepState(
            duals=asked.duals,
            value=asked.value,
            points=points,
            centre=where(outer, asked.duals, state.centre),
            origin=state.origin,
            atoms=tuple(a.atoms for a in asked.answers),
            weights=extrapolated,
            earlier=stepped,
            **scalars._asdict(),
        )


class Scalars(NamedTuple):
    """Numbers of instances in the next state, all ``(batch,)``: see :class:`ProxStepState`."""

    eta: Tensor
    centre_value: Tensor
    centres: Tensor
    inner: Tensor
    effort: Tensor
    momentum: Tensor


@operation
def prox_schedule(
    plan: Plan, method: Prox, state: ProxStepState, asked: Asked
) -> tuple[Tensor, Tensor, Scalars]:
    """Decide which instances leave their proximal problem, and with what numbers all go on.

    Parameters
    ----------
    plan : Plan
        The problem, and how it is executed.
    method : Prox
        The constants of the method, and the rule for the weight.
    state : ProxStepState
        The state before.
    asked : Asked
        Answers of the oracles.

    Returns
    -------
    outer, share, scalars : Tensor, Tensor, Scalars
        ``(batch,)`` each: instances that take their multipliers as a new centre (bool); by what part of their
        step weights are extrapolated; and numbers of the next state.
    """
    eta, value, model, gap = state.eta, asked.value, asked.model / state.eta, asked.cost - asked.value
    outer = (gap <= model / state.effort) | (state.inner + 1 >= method.most_inner * state.effort)
    rise = value - state.centre_value
    new_eta = method.next_weight(state, rise, model, gap)
    # A fall says that the proximal problem was left too early; near the optimum this is what closes the gap.
    effort = torch.where(outer & (rise < 0), (1.1 * state.effort).clamp(max=30.0), state.effort)
    momentum = torch.where(outer, torch.ones_like(eta), (1 + (1 + 4 * state.momentum**2).sqrt()) / 2)
    share = (~outer).to(eta) * (state.momentum - 1) / momentum
    scalars = Scalars(
        eta=torch.where(outer, new_eta, eta),
        centre_value=torch.where(outer, value, state.centre_value),
        centres=state.centres + outer,
        inner=torch.where(outer, torch.zeros_like(state.inner), state.inner + 1),
        effort=effort,
        momentum=momentum,
    )
    return outer, share, scalars
