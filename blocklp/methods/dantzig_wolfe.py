r"""Dantzig-Wolfe decomposition: multipliers from a master over the points seen so far, with smoothing.

A pass asks every oracle once, at

.. math:: \lambda = \alpha \hat\lambda + (1 - \alpha) \lambda^{*},

between the best multipliers so far and the duals of the restricted master
(:mod:`blocklp.methods.restricted_master`; smoothing, Wentges 1997). Points that improve the master join it,
and it is solved again. If none does, the next pass asks at :math:`\lambda^{*}` itself, as passes do while the
master pays penalties: what the oracles say there is the end, or improves it. :math:`\alpha` falls where the
supergradient at :math:`\lambda` points on towards :math:`\lambda^{*}`, and grows where it does not (Pessoa,
Sadykov, Uchoa and Vanderbeck 2018, algorithm 1).

The master's own solution is a primal point in the hull of the points that the oracles returned, so that no
block type need state its constraints. Its value falls and the bound rises until they meet: after finitely
many passes, where oracles return vertices. That pays where blocks are few or their oracles dear; the master
is a linear program of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from blocklp.errors import MissingDependencyError, install
from blocklp.kernels.plan import Plan
from blocklp.methods.base import Method, MethodState, where
from blocklp.methods.restricted_master import MasterSolution, RestrictedMaster, available


@dataclass
class Column:
    """The column generation of one instance: what is no tensor in the state.

    Attributes
    ----------
    master : RestrictedMaster
        The master.
    smoothing : float
        alpha, while neither of these holds: points violate rows of the master, so that its duals are
        penalties; or no answer improved it, so that its duals may prove that nothing does.
    solution : MasterSolution or None
        The last one of the master.
    direct : bool
        Whether one of them does.
    ended : bool
        Whether no answer at the duals of the master improved it.
    """

    master: RestrictedMaster
    smoothing: float
    solution: MasterSolution | None = None
    direct: bool = True
    ended: bool = False


@dataclass(frozen=True)
class Columns:
    """The column generation of each instance."""

    own: tuple[Column, ...]

    def select(self, rows: Tensor) -> Columns:
        """Return the column generation of some instances."""
        return Columns(tuple(self.own[i] for i in rows.tolist()))


@dataclass(frozen=True)
class DantzigWolfeState(MethodState):
    """State of :class:`DantzigWolfe`; ``points`` solve the master."""

    answers: Tensor  # (batch, copies): what the oracles returned at the multipliers
    best: Tensor  # (batch, copies): the best multipliers so far
    best_value: Tensor  # (batch,)
    columns: Columns


@dataclass(frozen=True)
class DantzigWolfe(Method):
    """Column generation with a master that HiGHS solves; nothing to set."""

    knows_rows = by_index = True
    cadence = 1
    smoothing = 0.2

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> DantzigWolfeState:
        """Ask the oracles at the first multipliers, and state the masters.

        Parameters
        ----------
        plan : Plan
            The problem in the working precision, and how it is executed.
        duals : Tensor
            ``(batch, copies)``: the first multipliers.
        eta : Tensor or None
            Not used: there is no weight.

        Returns
        -------
        DantzigWolfeState
            The state at the first multipliers.

        Raises
        ------
        MissingDependencyError
            If highspy is not installed.
        """
        problem = plan.problem
        if not available():
            need = "method 'dantzig-wolfe' needs the package highspy"
            raise MissingDependencyError(f"{need}: {install('highs')}")
        answers, value = problem.min_oracle(duals)
        masters = (RestrictedMaster(problem, i, by_points=True) for i in range(problem.batch))
        columns = Columns(tuple(Column(master, self.smoothing) for master in masters))
        one = torch.ones_like(value)
        return DantzigWolfeState(duals, value, answers, one, answers, duals, value, columns)

    def step(self, plan: Plan, state: DantzigWolfeState) -> DantzigWolfeState:
        """Add points to the masters, solve these, and ask the oracles near their duals."""
        problem = plan.problem
        points, duals = state.points.clone(), state.duals.clone()
        for i, own in enumerate(state.columns.own):
            found = self._advanced(plan, own, state, i)
            if found is not None:
                points[i, : problem.in_blocks] = torch.from_numpy(found.points).to(points)
                alpha = 0.0 if own.direct else own.smoothing
                at = torch.from_numpy(found.duals).to(duals.device)
                duals[i] = at.lerp(state.best[i].double(), alpha).to(duals)
        answers, value = problem.min_oracle(duals)
        better = value > state.best_value
        return replace(
            state,
            duals=duals,
            value=value,
            points=points,
            answers=answers,
            best=where(better, duals, state.best),
            best_value=torch.where(better, value, state.best_value),
        )

    def due(self, state: DantzigWolfeState) -> bool:
        """Whether a check should see that a master is solved."""
        return any(own.ended for own in state.columns.own)

    def _advanced(self, plan: Plan, own: Column, state: DantzigWolfeState, i: int) -> MasterSolution | None:
        """The solution of an instance's master with the points of the last answers."""
        problem = plan.problem
        answers = state.answers[i, : problem.in_blocks].double().cpu().numpy()
        blocks = np.arange(own.master.layout.blocks)
        if (last := own.solution) is not None:
            saved = own.master.reduced_costs(last, answers)
            size = np.abs(last.convexity) + abs(last.value) / max(1, len(blocks))
            blocks = np.flatnonzero(saved < -self.improving(state.duals.dtype) * size)
            if not len(blocks) and not (own.direct and last.violation):
                own.direct, own.ended = True, own.direct
                return last
            if not len(blocks):
                own.master.raise_penalty()
            elif not own.direct:
                self._smooth(own, state, i)
        own.master.add(answers, blocks)
        own.solution = own.master.solve(plan.deadline.left()) or own.solution
        own.direct = own.solution is None or not own.master.layout.blocks or own.solution.violation > 0
        return own.solution

    @staticmethod
    def improving(dtype: torch.dtype) -> float:
        """Part of a block's value by which a point must improve the master: above all rounding."""
        return max(1e-9, 16 * torch.finfo(dtype).eps)

    def _smooth(self, own: Column, state: DantzigWolfeState, i: int) -> None:
        """Less smoothing where the supergradient of the dual points on towards the duals of the master."""
        assert own.solution is not None
        towards = torch.from_numpy(own.solution.duals).to(state.best.device) - state.best[i].double()
        # Along directions that keep the sum of multipliers, the answers themselves are a supergradient.
        rise = float(state.answers[i].double() @ towards)
        if rise > 0:
            less = max(0.0, own.smoothing - 0.1 * (1 - own.smoothing))
            own.smoothing = own.smoothing / 1.1 if own.smoothing >= 0.5 else less
        else:
            own.smoothing = own.smoothing + 0.1 * (1 - own.smoothing)
