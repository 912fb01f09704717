r"""The alternating direction method of multipliers on the consensus form, one block a function; the default.

.. math::
          x_b \leftarrow \arg\min_{x \in X_b} \frac{|x - t_b|^2}{2 \eta}, \quad
          t_b \leftarrow t_b + \rho \, (2 \, \mathrm{mean}(x) - z - x_b), \quad
          z \leftarrow z + \rho \, (\mathrm{mean}(x) - z)

(Boyd et al. 2011, sections 3.4.3 and 7.1; the thesis's future work), written in the sequence
:math:`t = z - \eta \lambda` of Douglas and Rachford (Eckstein and Bertsekas 1992). The consensus is
:math:`z = \mathrm{mean}(t) + \eta c / N`, so that the multipliers :math:`\lambda = (z - t) / \eta` sum to the
cost whatever rounding did, and a pass needs one sum over the copies, of :math:`2 x - t`. After a hundred
passes t is also drawn towards an anchor, where it was some passes ago, by a share of 1/2, 1/3, ... (Halpern
1967), and every so often the anchor moves to where t is (Lu and Yang 2024, Restarted Halpern PDHG for linear
programming): this closes the gap where plain ADMM circles.

ProxBC and ProxFW minimise one proximal function that couples all blocks; here every block has a function of
its own. Types that state their proximal points (:class:`HasProx`) are solved exactly; for all others each
pass takes a few pairwise steps on the atoms of the block (:mod:`blocklp.methods.active_set`) from its last
point. What is not shared has its cost for a multiplier, and nothing holds it.

The operations :func:`admm_passes`, :func:`admm_block_points`, :func:`admm_settled` and :func:`admm_restart`
are what backends make faster (:mod:`blocklp.kernels.operations`), where types have a proximal point of one
block (:class:`HasProxBlock`): on a CPU compiled loops do, on CUDA kernels of Triton.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.kernels.operations import operation
from blocklp.kernels.plan import Plan
from blocklp.methods import active_set as atom
from blocklp.methods import consensus
from blocklp.methods.base import MethodState
from blocklp.methods.consensus import FromPoint, halpern_step, has_prox, prox, residuals
from blocklp.methods.proximal_weight import Fixed, ResidualBalancing, scale_free
from blocklp.methods.sweeps import fused_loops, steps_to_points


@dataclass(frozen=True)
class AdmmState(MethodState):
    """State of :class:`Admm`.

    ``points`` are the proximal points around ``iterate``, unless loops over whole instances ran, which keep
    their ``mean`` alone; ``duals`` the multipliers there once :meth:`Admm.finish` wrote them.
    """

    iterate: Tensor  # (batch, copies): t, or already the next one where ready
    reflected: Tensor  # (batch, variables): what the next update draws points to, 2 mean(x) - z
    mean: Tensor  # (batch, variables): of the points, once finished
    ready: Tensor  # (batch,) bool
    first: Tensor  # (batch,): the weight at the start
    anchor: Tensor  # (batch, copies): t at the anchor; (batch, 0) as long as there is none
    age: Tensor  # (batch,) int64: updates since the anchor was set, and one
    origin: Tensor  # (batch,) float64: squared residual of the fixed point when the anchor was set
    last: Tensor  # (batch,) float64: the residual when it was last looked at, infinite for a new anchor
    primal_residual: Tensor  # (batch,) float64: squared primal residual, points to their mean, once measured
    dual_residual: Tensor  # (batch,) float64: squared dual residual, mean to consensus, copy by copy
    passes: int
    finished: bool
    held: bool  # the weight stays
    atoms: tuple[atom.Atoms | None, ...]  # one a group, None for types with a prox
    weights: tuple[Tensor, ...]  # (batch, atoms, blocks)

    def after(self, passes: int, **changes: Any) -> AdmmState:
        """Return the state after some more passes, whose iterate the next one updates, with other changes."""
        age = self.age + passes - self.ready.long()
        none = torch.zeros_like(self.ready)
        return self.changed(passes=self.passes + passes, age=age, ready=none, **changes)


@dataclass(frozen=True)
class Admm(FromPoint):
    """Proximal points of single blocks around a consensus, automatic weight.

    Parameters
    ----------
    eta : float, Tensor or array, optional
        The weight, one for all instances or ``(batch,)``; ``None`` balances how far blocks are apart with how
        far the consensus moves.
    hold : bool
        Whether the weight of a warm start stays as it is.
    """

    eta: float | Tensor | tuple[float, ...] | None = None
    hold: bool = False

    proximal = True
    uses_tables = True
    evaluates = False
    # Chosen on BA graphs of 1000 and 10,000 nodes, cliques, assignment, random fields and polytopes in 4
    # variables.
    relaxation, anchored = 1.5, 1.8
    plain = 100
    enough, decay, longest = 0.04, 0.64, 0.36
    repeats = 3
    every = 9  # with the pass of a check, every tenth: both look at the same multipliers
    balance = ResidualBalancing()
    snapshots = (
        ("points", "iterate", "anchor"),
        ("reflected",),
        ("value", "eta", "first", "age", "ready", "origin", "last", "passes", "held"),
    )

    def __post_init__(self) -> None:
        if self.eta is not None:
            object.__setattr__(self, "eta", Fixed(self.eta).eta)
        for name in ("relaxation", "anchored"):
            value = getattr(self, name)
            if not isinstance(value, float | int) or not 0 < value < 2:
                raise OptionError(
                    f"{type(self).__name__}.{name} is {value!r}; give a number above 0 and below 2"
                )

    def weights(self, batch: int) -> Tensor | None:
        """The weights given, which no warm start changes."""
        return None if self.eta is None else Fixed(self.eta).weights(batch)

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> AdmmState:
        """Every block at the oracle's answer to the first multipliers, the consensus at their mean.

        Parameters
        ----------
        plan, duals, eta
            As in :meth:`blocklp.methods.base.Method.start`; multipliers are used up, and residuals are
            balanced without a weight.
        """
        problem = plan.problem
        points, none = torch.zeros_like(duals), torch.zeros_like(duals[:, 0])
        atoms: list[atom.Atoms | None] = [None] * len(problem.groups)
        weights = [duals.new_empty(len(duals), 0)] * len(problem.groups)
        values = [none] * len(problem.groups)
        for n, group in enumerate(problem.groups):
            for first, last in group.unshared:  # nothing moves these: they are the cost
                duals[:, first:last] = problem.coupling.spread_part(problem.cost, first, last)
            if (plan.whole and group.shares) or has_prox(group, duals[:1]):
                point, best = group.min_oracle(group.view(duals))
                group.view(points).copy_(point)
            else:
                found, weights[n], best = atom.start(group, duals)
                group.rows(points).copy_(found.combine(weights[n]))
                atoms[n] = found
            values[n] = problem.totals.over_blocks_in_order(best.double()).to(none)
        held = self.eta is not None or (self.hold and eta is not None)
        if eta is None and self.eta is not None:
            eta = Fixed(self.eta).start(problem, duals, points)
        mean, apart, size = admm_first_means(plan, duals, points)
        eta = scale_free(apart, size, duals.dtype) if eta is None else eta
        iterate = admm_first_iterates(plan, eta, self.relaxation, mean, duals, points)
        age = torch.zeros_like(none, dtype=torch.long)
        nothing = torch.zeros_like(none, dtype=torch.float64)
        ready = torch.ones_like(none, dtype=torch.bool)
        residuals = nothing, nothing, nothing, nothing
        known = iterate, torch.zeros_like(mean), mean, ready, eta, duals[:, :0], age, *residuals
        rest = 1, True, held, tuple(atoms), tuple(weights)
        return AdmmState(duals, sum(values, none), points, eta, *known, *rest)

    def in_loops(self, plan: Plan) -> bool:
        """Whether sweeps over blocks with vertex tables run in compiled loops."""
        return fused_loops(plan) is not None

    def step(self, plan: Plan, state: AdmmState) -> AdmmState:
        """One pass; all is written over the state given."""
        return self.finish(plan, self.run(plan, state, 1)[0])

    def run(self, plan: Plan, state: AdmmState, most: int) -> tuple[AdmmState, int]:
        """Make several passes in one call of the loops, where these serve all that is shared.

        Parameters
        ----------
        plan, state, most
            As in :meth:`blocklp.methods.base.Method.run`; the state is written over.
        """
        most = min(most, self.every - (state.passes + 1) % self.every)
        state, passes = admm_passes(plan, state, self.relaxed(state), self.repeats, most)
        if (state.passes + 1) % self.every == 0:
            state = admm_settled(plan, self.finish(plan, state), self)
        return state, passes

    def finish(self, plan: Plan, state: AdmmState) -> AdmmState:
        """Write the multipliers at the points."""
        problem = plan.problem
        if state.finished:
            return state
        mean = problem.mean(state.points)
        centre = mean + mean - state.reflected
        for group in problem.groups:
            if group.shares:
                consensus.admm_multipliers(plan, state, group, centre)
        return state.changed(mean=mean, finished=True)

    def mean(self, plan: Plan, state: AdmmState) -> Tensor:
        """Mean of the points; of coupled variables that of the state, where passes take whole instances."""
        mean = super().mean(plan, state)
        return torch.where(plan.problem.counts > 1, state.mean.double(), mean) if plan.whole else mean

    def relaxed(self, state: AdmmState) -> float:
        """The relaxation of a pass."""
        return self.anchored if state.anchor.shape[1] else self.relaxation

    def oldest(self, state: AdmmState) -> int:
        """The age from which on an anchor has served; it is rounded as single precision rounds."""
        return math.ceil(np.float32(self.longest * state.passes))

    def rule(self, state: AdmmState) -> tuple[float, ...] | None:
        """The numbers of :func:`admm_settled`, for backends that write it again.

        Returns
        -------
        tuple of float or None
            :attr:`decay`, :attr:`enough`, whether the weight is held, and
            :meth:`ResidualBalancing.constants`; None where the weight has another rule.
        """
        constants = getattr(self.balance, "constants", None)
        known = None if constants is None else constants(state.eta.dtype)
        return None if known is None else (self.decay, self.enough, state.held, *known)


@operation
def admm_first_means(plan: Plan, duals: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means of the first points, and what the first weight is made of.

    Parameters
    ----------
    plan : Plan
        The problem in the working precision, and how it is executed.
    duals, points : Tensor
        ``(batch, copies)``: first multipliers and points.

    Returns
    -------
    mean, residual, size : Tensor
        ``(batch, variables)``: the means, at least of coupled variables. ``(batch,)`` float64: squared
        lengths of the points less these, and of the multipliers of variables with several copies.
    """
    problem, total = plan.problem, plan.problem.totals.over_blocks_in_order
    mean = problem.mean(points)
    away = points - problem.spread(mean)
    shared = (problem.counts > 1).to(duals).expand(len(duals), -1)
    residual, size = torch.zeros(2, len(duals), dtype=torch.float64, device=duals.device)
    for group in problem.groups:
        for (start, stop), coupled in zip(group.spans, group.pattern, strict=True):
            if coupled:
                own = problem.coupling.spread_part(shared, start, stop).mul_(duals[:, start:stop])
                residual = residual + total(away[:, start:stop].double().square())
                size = size + total(own.double().square())
    return mean, residual, size


@operation
def admm_first_iterates(
    plan: Plan, eta: Tensor, relaxation: float, mean: Tensor, duals: Tensor, points: Tensor
) -> Tensor:
    """The first Douglas-Rachford iterates, at least of coupled copies.

    Parameters
    ----------
    plan : Plan
        The problem in the working precision, and how it is executed.
    eta : Tensor
        ``(batch,)``: proximal weights.
    relaxation : float
        Relaxation of the passes.
    mean, duals, points : Tensor
        As in :func:`admm_first_means`.

    Returns
    -------
    Tensor
        ``(batch, copies)``.
    """
    near = plan.problem.spread(mean)
    away = (points - near).mul_(relaxation)
    return near.sub_(eta[:, None] * duals).sub_(away)


@operation
def admm_passes(
    plan: Plan, state: AdmmState, relaxation: float, repeats: int, most: int
) -> tuple[AdmmState, int]:
    """Make passes over all blocks: their proximal points, and from these the next reflected consensus.

    Parameters
    ----------
    plan : Plan
        The problem in the working precision, and how it is executed.
    state : AdmmState
        The state before; its tensors are written over.
    relaxation : float
        Relaxation of the passes.
    repeats : int
        Pairwise steps towards proximal points that have no formula.
    most : int
        Number of passes at most, at least 1.

    Returns
    -------
    state, passes : AdmmState, int
        The state and the number of passes made.  Where :attr:`Plan.whole` says so, means and multipliers of
        coupled copies are kept and not points, the residuals are measured, and the state is finished.
    """
    problem = plan.problem
    reflected, atoms, weights = admm_reflections(plan, state, relaxation, repeats)
    reflected = reflected.sub_(state.eta[:, None] * problem.cost).div_(problem.counts)
    return state.after(1, reflected=reflected, finished=False, atoms=atoms, weights=weights), 1


@operation
def admm_reflections(
    plan: Plan, state: AdmmState, relaxation: float, repeats: int
) -> tuple[Tensor, tuple[atom.Atoms | None, ...], tuple[Tensor, ...]]:
    """Find the proximal points of all blocks that share variables, and sum the reflections of all copies.

    Parameters
    ----------
    plan, state, relaxation, repeats
        As in :func:`admm_passes`; t and points are written.

    Returns
    -------
    sums : Tensor
        ``(batch, variables)``: of twice the points less t.
    atoms, weights : tuple
        Those of the next state.
    """
    atoms, weights = list(state.atoms), list(state.weights)
    for n, group in enumerate(plan.problem.groups):
        if group.shares:  # elsewhere the oracle's answer stays
            atoms[n], weights[n] = admm_block_points(plan, state, n, relaxation, repeats)
    return plan.problem.coupling.reflected(state.points, state.iterate), tuple(atoms), tuple(weights)


@operation
def admm_block_points(
    plan: Plan, state: AdmmState, number: int, relaxation: float, repeats: int
) -> tuple[atom.Atoms | None, Tensor]:
    """Update the Douglas-Rachford iterate t of one group, and find the proximal points around it.

    Parameters
    ----------
    plan, state, relaxation, repeats
        As in :func:`admm_passes`; t and the points of the group are written.
    number : int
        Number of the group, which shares variables.

    Returns
    -------
    atoms, weights : Atoms or None, Tensor
        Active set of the group, and the weights of its points; as before for types with a prox.
    """
    problem, group, eta = plan.problem, plan.problem.groups[number], state.eta
    atoms, weights = state.atoms[number], state.weights[number]
    t, point = (v[:, group.start : group.stop] for v in (state.iterate, state.points))
    share = ((~state.ready).to(eta) * relaxation)[:, None]
    near = problem.coupling.spread_part(state.reflected, group.start, group.stop)
    t.sub_(share * point).add_(near.mul_(share))
    halpern_step(state.anchor[:, group.start : group.stop], state.age, state.ready, t)
    if atoms is None:
        cost = group.view(state.duals).masked_fill(group.coupled > 0, 0)
        found = prox(group, cost, group.view(state.iterate), eta)
        assert found is not None
        group.view(state.points).copy_(found)
        return atoms, weights
    # What is not shared costs what it costs, whatever t is.
    slopes = torch.empty_like(state.duals)
    slope = torch.sub(point, t, out=near).div_(eta[:, None]).view(-1, group.dim, group.blocks)
    group.rows(slopes).copy_(torch.where(group.coupled[:, None] > 0, slope, group.rows(state.duals)))
    return steps_to_points(plan, group, atoms, weights, (state.points, slopes, eta), repeats)


@operation
def admm_settled(plan: Plan, state: AdmmState, method: Admm) -> AdmmState:
    """Set a new anchor where it has served, and with it a new weight.

    Parameters
    ----------
    plan : Plan
        The problem in the working precision, and how it is executed.
    state : AdmmState
        A finished state; its tensors are written over.
    method : Admm
        The method, which has the constants.

    Returns
    -------
    AdmmState
        The state from which passes go on.
    """
    primal, dual = residuals(plan, state)
    residual, served = primal + dual, torch.ones_like(state.ready)
    if state.anchor.shape[1]:
        worse = (residual <= method.decay * state.origin) & (residual > state.last)
        enough = residual <= method.enough * state.origin
        served = enough | worse | (state.age >= method.oldest(state))
    eta, anchor, relaxation = state.eta, state.anchor, method.relaxed(state)
    if not state.held:
        balanced = method.balance.update(eta, state.first, state.passes, primal, dual)
        eta = torch.where(served, balanced, eta)
    due = eta != state.eta
    if state.passes >= method.plain:
        due = served
        anchor = anchor if anchor.shape[1] else torch.empty_like(state.iterate)
    admm_restart(plan, state, relaxation, due, eta / state.eta, anchor)
    age, last = state.age.masked_fill(due, 1), residual.masked_fill(served, torch.inf)
    origin = torch.where(served, residual, state.origin)
    return state.changed(eta=eta, anchor=anchor, ready=due, age=age, origin=origin, last=last)


@operation
def admm_restart(
    plan: Plan,
    state: AdmmState,
    relaxation: float,
    due: Tensor,
    ratio: Tensor,
    anchor: Tensor,
) -> None:
    """Update the Douglas-Rachford iterate t for another weight, and set the anchor there, if there is one.

    Parameters
    ----------
    plan : Plan
        The problem in the working precision, and how it is executed.
    state : AdmmState
        A finished state; its t is written.
    relaxation : float
        Relaxation of the passes.
    due : Tensor
        ``(batch,)`` bool: the instances.
    ratio : Tensor
        ``(batch,)``: the new weight over the present one.
    anchor : Tensor
        ``(batch, copies)``, written, or ``(batch, 0)`` for none.
    """
    problem = plan.problem
    points, iterate = state.points, state.iterate
    centre = state.mean + state.mean - state.reflected
    centre = problem.spread((state.mean - centre).mul_(relaxation).add_(centre))
    new = problem.spread(state.reflected).mul_(relaxation).add_(iterate - relaxation * points)
    new = (new - centre).mul_(ratio[:, None]).add_(centre)
    iterate.copy_(torch.where(due[:, None], new, iterate))
    if anchor.shape[1]:
        anchor.copy_(torch.where(due[:, None], iterate, anchor))
