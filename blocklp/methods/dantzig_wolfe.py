r"""Dantzig-Wolfe decomposition: multipliers from a master over the points seen so far, kept within a box.

A pass asks every oracle once, at the duals :math:`\lambda` of the restricted master
(:mod:`blocklp.methods.restricted_master`), which is a model of the dual from above,

.. math:: \hat D(\lambda) = \sum_b \min_k \langle \lambda_b, a_{b,k} \rangle \ge D(\lambda).

Points that improve the master join it, and it is solved again. Its duals alone would be far apart from pass
to pass; a box keeps those of rows near the best ones so far, the centre (boxstep: Marsten, Hogan and
Blankenship 1975). Where the dual rises by a tenth of what the model predicts, :math:`\lambda` is the next
centre (a serious step), and the box grows if it binds and the rise was half of that; where the dual falls by
as much as was predicted, step after step, the box shrinks; where no point improves the master,
:math:`\lambda` is the best of the box, which grows.

Points of blocks that are known before the first pass (:attr:`Group.known`), each with the largest or least
value of a coordinate, are in the first master: coupling rows mostly ask for one of these.

The master's own solution is a primal point in the hull of the points that the oracles returned, so that no
block type need state its constraints. Its value falls and the bound rises until they meet: after finitely
many passes, where oracles return vertices. That pays where blocks are few or their oracles dear; the master
is a linear program of its own.

Where types of integral points state rows (:class:`blocklp.blocks.HasIntegerConstraints`), the first centre is
the dual solution of their LP, and the first bound at least its value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.extents import KEPT
from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.valid_bounds import charges
from blocklp.errors import MissingDependencyError, install
from blocklp.general_solvers.small_lp import available
from blocklp.kernels.plan import Plan
from blocklp.methods.base import Method, MethodState
from blocklp.methods.integer_relaxation import relaxed_duals
from blocklp.methods.master_layout import Array, Numbers
from blocklp.methods.restricted_master import MasterSolution, RestrictedMaster


@dataclass
class Column:
    """The column generation of one instance: what is no tensor in the state.

    Attributes
    ----------
    master : RestrictedMaster
        The master.
    radius : float
        That of the box.
    centre, centre_value : ndarray or None, float
        Prices of rows at the centre of the box, and the dual value there.
    solution : MasterSolution or None
        The last one of the master.
    nulls : int
        Steps since the centre moved or the box shrank.
    ended : bool
        Whether no answer at the duals of the master improved it, until a check has seen it.
    """

    master: RestrictedMaster
    radius: float = math.inf
    centre: Array | None = None
    centre_value: float = -math.inf
    solution: MasterSolution | None = None
    nulls: int = 0
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
    paid: Tensor  # (batch,): what bounds of variables take up of the cost, at their sides
    columns: Columns


@dataclass(frozen=True)
class DantzigWolfe(Method):
    """Column generation with a master that HiGHS solves; nothing to set."""

    knows_rows = by_index = True
    cadence = 1
    # Radius of the box over the largest cost: around the usual first multipliers, around those of a warm
    # start or of the LP of integer blocks, and the least one.
    radius, near, least = 0.25, 1 / 32, 1e-4
    # Its factors where a side binds and the dual rose as predicted, where the box holds nothing better, and
    # where the dual fell by what was predicted, as in one of so many steps.
    wider, widest, narrower, patient = 2.0, 10.0, 0.5, 3
    serious, kept = 0.1, 0.5  # parts of the predicted increase for the centre to move, and the box to grow

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> DantzigWolfeState:
        """Ask the oracles at the first multipliers, and state the masters.

        Parameters
        ----------
        plan, duals
            As in :meth:`blocklp.methods.base.Method.start`.
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
        cold = torch.equal(duals, problem.to_dual(problem.cost))
        if cold and (relaxed := relaxed_duals(problem, plan.deadline)) is not None:
            duals, cold = relaxed, False
        radius = self.radius if cold else self.near
        answers, value = problem.min_oracle(duals)
        masters = (RestrictedMaster(problem, i, by_points=True) for i in range(problem.batch))
        columns = Columns(tuple(Column(master, radius) for master in masters))
        one = torch.ones_like(value)
        paid = charges(problem.cost - problem.collect(duals), problem.lower, problem.upper).sum(1)
        return DantzigWolfeState(duals, value, answers, one, answers, paid, columns)

    def step(self, plan: Plan, state: DantzigWolfeState) -> DantzigWolfeState:
        """Add points to the masters, solve these, and ask the oracles at their duals."""
        problem = plan.problem
        points, duals, paid = state.points.clone(), state.duals.clone(), state.paid.clone()
        for i, own in enumerate(state.columns.own):
            found = self._advanced(plan, own, state, i)
            if found is not None:
                points[i, : problem.in_blocks] = torch.from_numpy(found.points).to(points)
                duals[i], paid[i] = torch.from_numpy(found.duals).to(duals), found.paid
            elif (ray := own.master.ray()) is not None:  # no point is feasible
                duals[i], own.ended = torch.from_numpy(ray).to(duals), True
        answers, value = problem.min_oracle(duals)
        return replace(state, duals=duals, value=value, points=points, answers=answers, paid=paid)

    def due(self, state: DantzigWolfeState) -> bool:
        """Whether a check should see that a master is solved."""
        return any(own.ended for own in state.columns.own)

    def finish(self, plan: Plan, state: DantzigWolfeState) -> DantzigWolfeState:
        """The state as it is; checks have then seen what there is to see, until the next pass."""
        for own in state.columns.own:
            own.ended = False
        return state

    def _advanced(self, plan: Plan, own: Column, state: DantzigWolfeState, i: int) -> MasterSolution | None:
        """The solution of an instance's master with the points of the last answers."""
        problem, master = plan.problem, own.master
        answers = state.answers[i, : problem.in_blocks].double().cpu().numpy()
        value, blocks = float(state.value[i] + state.paid[i]), np.arange(master.layout.blocks)
        if (last := own.solution) is not None:
            saved = master.reduced_costs(last, answers)
            size = np.abs(last.convexity) + abs(last.value) / max(1, len(blocks))
            blocks = np.flatnonzero(saved < -self.improving(state.duals.dtype) * size)
            if not len(blocks) and not last.violation:
                own.ended = True
                return last
            self._recentre(own, last, value, exact=not len(blocks))
        else:
            for known, numbers in _known(problem, master, i):
                master.add(known, numbers)
        master.add(answers[None], blocks)
        if own.centre is None:
            own.centre, own.centre_value = master.prices(state.duals[i].double().cpu().numpy()), value
        master.stabilise(own.centre, own.radius)
        own.solution = master.solve(plan.deadline.left()) or own.solution
        return own.solution

    def _recentre(self, own: Column, last: MasterSolution, value: float, exact: bool) -> None:
        """Move the box to the duals of the master where the dual rose by a part of what it predicted.

        ``value`` is the dual value at the duals of the ``last`` solution; these are the best ones of the box
        where no answer improved the master (``exact``).
        """
        actual, predicted = value - own.centre_value, last.value - own.centre_value
        if exact or actual >= self.serious * predicted:
            own.centre, own.centre_value = last.prices, value
            if last.violation and (exact or actual > self.kept * predicted):
                own.radius *= self.widest if exact else self.wider
            own.nulls = 0
            return
        own.nulls += 1
        if own.nulls >= self.patient and actual < -predicted:
            own.radius, own.nulls = max(own.radius * self.narrower, self.least), 0

    @staticmethod
    def improving(dtype: torch.dtype) -> float:
        """Part of a block's value by which a point must improve the master: above all rounding."""
        return max(1e-9, 16 * torch.finfo(dtype).eps)


def _known(problem: Decomposition, master: RestrictedMaster, i: int) -> Iterator[tuple[Array, Numbers]]:
    """Points of an instance's blocks that are known before the first pass, where they are not too many.

    Returns
    -------
    iterator of tuple
        For each group, points ``(points, copies in blocks)`` and the numbers of the group's blocks.
    """
    for group in problem.groups:
        known = group.known
        if known is None or known.shape[1] * group.blocks * group.dim > KEPT:
            continue
        own = known[i if len(known) > 1 else 0].expand(-1, group.blocks, -1)
        points = np.zeros((len(own), problem.in_blocks))
        points[:, group.start : group.stop] = own.transpose(1, 2).flatten(1).cpu().numpy()
        numbers = master.layout.block[group.start : group.start + group.blocks]
        yield points, numbers[numbers >= 0]
