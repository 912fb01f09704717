r"""A proximal bundle method with a model for every block: few oracle calls, much work between them.

Every block keeps the vertices that its oracle returned (:mod:`blocklp.methods.active_set`). They give a model
of the dual from above,

.. math:: \hat D(\lambda) = \sum_b \min_k \langle \lambda_b, a_{b,k} \rangle \ge D(\lambda),

and a pass maximises :math:`\hat D(\lambda) - \frac{\eta}{2} |\lambda - \tilde\lambda|^2` over the multipliers
that sum to the cost, then asks every oracle once at the solution
:math:`\lambda = \tilde\lambda + P x / \eta`. If the dual rose by a tenth of what the model promised,
:math:`\lambda` is the next centre (a serious step), else only the models improve (Lemarechal 1977; Kiwiel
1990; with a model a block, "disaggregated", Feltenmark and Kiwiel 2000).

The model's problem is solved in its own dual: each block moves its point :math:`x_b` in the hull of its
vertices, by pairwise steps with Nesterov's extrapolation, as :class:`blocklp.methods.Prox` does, but without
oracle calls. That pays where oracles are dear and passes are few.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.row_sums import dot
from blocklp.errors import OptionError
from blocklp.kernels.plan import Plan
from blocklp.methods import active_set as atom
from blocklp.methods.base import where
from blocklp.methods.proximal import Proximal, ProximalState


@dataclass(frozen=True)
class BundleState(ProximalState):
    """State of :class:`Bundle`; ``points`` solve the model's problem."""

    effort: Tensor  # (batch,): steps on the next model's problem
    atoms: tuple[atom.Atoms, ...]  # one a group
    weights: tuple[Tensor, ...]  # (batch, atoms, blocks), on the simplex


@dataclass(frozen=True)
class Bundle(Proximal):
    """Fully corrective steps over the vertices seen so far, automatic weight.

    Parameters
    ----------
    eta : float, Tensor, array or ProximalWeight, optional
        The proximal weight: one for all instances, ``(batch,)`` or a rule; ``None`` chooses it automatically.
    inner : int
        Steps on the model's problem between two oracle calls, at least 1; up to ten times as many where these
        leave too much open.
    """

    inner: int = 10

    repeats = 2
    serious = 0.1
    open = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, int) or self.inner < 1:
            least = "a bundle takes at least one step between oracle calls"
            raise OptionError(f"inner is {self.inner!r}; {least}")

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> BundleState:
        """Every block at the oracle's answer to the first multipliers.

        Parameters
        ----------
        plan, duals, eta
            As in :meth:`blocklp.methods.base.Method.start`.
        """
        problem = plan.problem
        atoms, weights, points, value = atom.begin(problem, duals)
        weight, origin = self.first_weight(problem, duals, points, eta)
        begun = origin, torch.zeros_like(value), torch.full_like(value, self.inner)
        return BundleState(duals, value, points, weight, duals, value, *begun, atoms, weights)

    def step(self, plan: Plan, state: BundleState) -> BundleState:
        """One pass: solve the model's problem, then ask the oracles at its solution."""
        problem = plan.problem
        points, weights = self._solve(problem, state)
        spread = problem.disagreement(points)
        duals = state.centre + spread / state.eta[:, None]
        value, model, cost = (torch.zeros_like(state.value) for _ in range(3))
        answers = []
        for group, atoms, own in zip(problem.groups, state.atoms, weights, strict=True):
            values = atoms.values(group, duals)
            model = model + dot(values.amin(1), own.sum(1))  # padding has no weights
            cost = cost + dot(own, values)
            answers.append(atoms.answer(group, duals, own, own))
            value = value + answers[-1].best.sum(1)
        actual, predicted = value - state.centre_value, cost - state.centre_value
        serious = actual >= self.serious * predicted
        # A model's problem that is left too early says nothing about the weight.
        early = cost - model > self.open * predicted
        effort = torch.where(early, state.effort * 1.5, state.effort / 1.1).clamp(self.inner, 10 * self.inner)
        eta = self.next_weight(state, actual, dot(spread, spread) / state.eta, cost - value)
        return BundleState(
            duals=duals,
            value=value,
            points=points,
            eta=torch.where(early | (~serious & (actual >= 0)), state.eta, eta),
            centre=where(serious, duals, state.centre),
            centre_value=torch.where(serious, value, state.centre_value),
            origin=state.origin,
            centres=state.centres + serious,
            effort=effort,
            atoms=tuple(a.atoms for a in answers),
            weights=tuple(a.weights for a in answers),
        )

    def _solve(self, problem: Decomposition, state: BundleState) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Points of the blocks and their weights after some steps on the model's problem."""
        points, ahead, earlier = torch.empty_like(state.points), state.weights, state.weights
        momentum, steps = 1.0, int(state.effort.max())
        for n in range(steps + 1):
            for group, own, atoms in zip(problem.groups, ahead, state.atoms, strict=True):
                group.rows(points).copy_(atoms.combine(own))
            if n == steps:
                break
            duals = problem.disagreement(points).div_(state.eta[:, None]).add_(state.centre)
            following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            # The last step is not extrapolated: its points give the predicted increase.
            left = state.effort.floor() - n
            extrapolation = ((momentum - 1) / following * (left > 1).to(state.eta))[:, None, None]
            stepped = []
            for group, atoms, own, old in zip(problem.groups, state.atoms, ahead, earlier, strict=True):
                new = atom.pairwise_steps(atoms, own, atoms.values(group, duals), state.eta, self.repeats)
                stepped.append(where(left > 0, new, old))
            pairs = zip(stepped, earlier, strict=True)
            ahead = tuple(atom.extrapolated(new, old, extrapolation) for new, old in pairs)
            earlier, momentum = tuple(stepped), following
        return points, ahead
