r"""The alternating direction method of multipliers (ADMM) on the consensus form, with an automatic weight.

.. math:: \min_x \sum_b \langle c_b, x_b \rangle \quad \text{s.t.} \quad x_b \in X_b, \; x_b = z \text{ where blocks share variables}

A pass takes the proximal point of every block around the consensus z, then moves multipliers and consensus, over-relaxed by
:math:`\rho`:

.. math:: x_b \leftarrow \arg\min_{x \in X_b} \langle \lambda_b, x \rangle + \frac{|x - z|^2}{2 \eta}, \qquad
          \lambda \leftarrow \lambda + \frac{\rho}{\eta} (x - \mathrm{mean}(x)), \qquad z \leftarrow z + \rho \, (\mathrm{mean}(x) - z)

(Boyd et al. 2011, sections 3.4.3 and 7.1; the thesis's future work).  ProxBC and ProxFW minimise one proximal function of all
blocks, which couples them; here every block has a function of its own.  Types that state their :meth:`BlockType.prox` are solved
exactly; for all others each pass takes a few pairwise steps on the atoms of the block (:mod:`blocklp.atoms`) from its last point.

The multipliers sum to the cost at all times, so each of them gives a bound; it is evaluated when the engine checks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp import atoms as atom
from blocklp.decomposition import Decomposition, Group, dot
from blocklp.methods.base import MethodState
from blocklp.weight import BalanceRule


@dataclass(frozen=True)
class AdmmState(MethodState):
    """State of :class:`Admm`; ``points`` are the proximal points at ``duals``."""

    mean: Tensor  # (batch, variables): of the points
    consensus: Tensor  # (batch, variables): what the points were near to
    passes: int
    atoms: tuple[atom.Atoms | None, ...]  # one a group, None for types with a prox
    weights: tuple[Tensor, ...]  # (batch, atoms, blocks)


@dataclass(frozen=True)
class Admm:
    """Proximal points of single blocks around a consensus, automatic weight.

    Parameters
    ----------
    eta : float, optional
        The weight; ``None`` balances how far blocks are apart with how far the consensus moves.
    """

    eta: float | None = None

    swept = False
    evaluates = False
    relaxation = 1.5
    repeats = 3
    every = 10
    balance = BalanceRule()

    def start(self, problem: Decomposition, duals: Tensor, eta: Tensor | None) -> AdmmState:
        """Every block at the oracle's answer to ``duals``, the consensus at their mean."""
        points = torch.empty_like(duals)
        value = torch.zeros_like(duals[:, 0])
        atoms: list[atom.Atoms | None] = []
        weights: list[Tensor] = []
        for group in problem.groups:
            if has_prox(group, duals):
                found, own, block_value = None, duals.new_empty(len(duals), 0), group.block_values(group.view(duals))
                group.view(points).copy_(group.min_oracle(group.view(duals))[0])
            else:
                found, own, block_value = atom.start(group, duals)
                group.rows(points).copy_(found.combine(own))
            value = value + block_value.sum(1)
            atoms.append(found)
            weights.append(own)
        mean = problem.mean(points)
        if self.eta is not None:
            eta = torch.full_like(value, self.eta)
        elif eta is None:
            eta = self.balance.start(problem, duals, points)
        return AdmmState(duals, value, points, eta, mean, mean, 1, tuple(atoms), tuple(weights))

    def step(self, problem: Decomposition, state: AdmmState) -> AdmmState:
        """One pass: multipliers and consensus, then the proximal point of every block."""
        rate = self.relaxation / state.eta
        duals = (state.points - problem.spread(state.mean)).mul_(rate[:, None]).add_(state.duals)
        consensus = (state.mean - state.consensus).mul_(self.relaxation).add_(state.consensus)
        centre = problem.spread(consensus)
        points, atoms, weights = torch.empty_like(duals), [], []
        slopes: Tensor | None = None
        for group, a, w in zip(problem.groups, state.atoms, state.weights, strict=True):
            if a is None:
                group.view(points).copy_(prox(group, duals, centre, state.eta))
            else:
                if slopes is None:
                    slopes = (state.points - centre).div_(state.eta[:, None]).add_(duals)
                answer = a.answer(group, slopes, w, w)
                a, w = answer.atoms, atom.pairwise_steps(answer.atoms, answer.weights, answer.values, state.eta, self.repeats)
                group.rows(points).copy_(a.combine(w))
            atoms.append(a)
            weights.append(w)
        mean = problem.mean(points)
        eta, passes = state.eta, state.passes + 1
        if passes % self.every == 0:
            duals = problem.recentred(duals)  # rounding adds up, and more so over many copies of a variable
            if self.eta is None:
                eta = self.balance.update(problem, eta, passes, points, mean, consensus)
        return AdmmState(duals, state.value, points, eta, mean, consensus, passes, tuple(atoms), tuple(weights))


def has_prox(group: Group, duals: Tensor) -> bool:
    """Whether the type of a group has a formula for its proximal points."""
    return prox(group, duals, duals, torch.ones_like(duals[:, 0])) is not None


def prox(group: Group, duals: Tensor, centre: Tensor, eta: Tensor) -> Tensor | None:
    """Proximal points of a group: ``(batch, blocks, dim)``; blocks that only pad give zero."""
    point = group.type.prox(group.view(duals), group.view(centre), eta[:, None, None], group.curved)
    return point if point is None or group.alive is None else point * group.alive[..., None]
