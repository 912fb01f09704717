r"""The alternating direction method of multipliers on the consensus form, one block a function; the default.

.. math::
          x_b \leftarrow \arg\min_{x \in X_b} \frac{|x - t_b|^2}{2 \eta}, \quad
          t_b \leftarrow t_b + \rho \, (2 \, \mathrm{mean}(x) - z - x_b), \quad
          z \leftarrow z + \rho \, (\mathrm{mean}(x) - z)

(Boyd et al. 2011, sections 3.4.3 and 7.1; the thesis's future work), written in the governing sequence
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

On a CPU large problems run in compiled loops, where types have a proximal point of one block
(:class:`HasProxBlock`). They agree with the tensor operations up to rounding. There large instances are
summed in parts, which threads take side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocklp.decomposition.problem import in_order
from blocklp.kernels.plan import Plan
from blocklp.methods import active_set as atom
from blocklp.methods.base import Method, MethodState
from blocklp.methods.consensus import has_prox, moves, prox, pull
from blocklp.methods.proximal_weight import Fixed, ResidualBalancing, scale_free
from blocklp.methods.sweeps import around, cache_loops, fused_loops, renew


@dataclass(frozen=True)
class AdmmState(MethodState):
    """State of :class:`Admm`.

    ``points`` are the proximal points around ``governing``, unless loops over whole instances ran, which keep
    their ``mean`` alone; ``duals`` the multipliers there once :meth:`Admm.finish` wrote them.
    """

    governing: Tensor  # (batch, copies): t, or already the next one where ready
    target: Tensor  # (batch, variables): what the next update draws points to, 2 mean(x) - z
    mean: Tensor  # (batch, variables): of the points, once finished
    ready: Tensor  # (batch,) bool
    first: Tensor  # (batch,): the weight at the start
    anchor: Tensor  # (batch, copies): t at the anchor; (batch, 0) as long as there is none
    age: Tensor  # (batch,) int64: updates since the anchor was set, and one
    origin: Tensor  # (batch,) float64: squared residual of the fixed point when the anchor was set
    last: Tensor  # (batch,) float64: the residual when it was last looked at, infinite for a new anchor
    apart: Tensor  # (batch,) float64: squared primal residual, points to their mean, once measured
    moved: Tensor  # (batch,) float64: squared dual residual, mean to consensus, copy by copy
    passes: int
    finished: bool
    held: bool  # the weight stays
    atoms: tuple[atom.Atoms | None, ...]  # one a group, None for types with a prox
    weights: tuple[Tensor, ...]  # (batch, atoms, blocks)


@dataclass(frozen=True)
class Admm(Method):
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
    looped = True
    evaluates = False
    # Chosen on BA graphs of 1000 and 10,000 nodes, cliques, assignment, random fields and polytopes in 4
    # variables.
    relaxation, anchored = 1.5, 1.8
    plain = 100
    enough, decay, longest = 0.04, 0.64, 0.36
    repeats = 3
    every = 9  # with the pass of a check, every tenth: both look at the same multipliers
    balance = ResidualBalancing()

    def __post_init__(self) -> None:
        if self.eta is not None:
            object.__setattr__(self, "eta", Fixed(self.eta).eta)

    def weights(self, batch: int) -> Tensor | None:
        """The weights given, which no warm start changes."""
        return None if self.eta is None else Fixed(self.eta).weights(batch)

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> AdmmState:
        """Every block at the oracle's answer to the first multipliers, the consensus at their mean.

        Parameters
        ----------
        plan : Plan
            The problem in the working precision, and how it is executed.
        duals : Tensor
            ``(batch, copies)``: the first multipliers, which are used up.
        eta : Tensor or None
            ``(batch,)``: proximal weight of a warm start; None to balance the residuals.

        Returns
        -------
        AdmmState
            The state at the first multipliers.
        """
        problem = plan.problem
        points, none = torch.zeros_like(duals), torch.zeros_like(duals[:, 0])
        atoms: list[atom.Atoms | None] = [None] * len(problem.groups)
        weights = [duals.new_empty(len(duals), 0)] * len(problem.groups)
        values = [none] * len(problem.groups)
        for n, group in enumerate(problem.groups):
            for (first, last), coupled in zip(group.spans, group.curved.tolist(), strict=True):
                if not coupled:  # nothing moves these: they are the cost, also after a warm start
                    duals[:, first:last] = problem.coupling.spread_part(problem.cost, first, last)
            looped = plan.instances is not None and plan.instances.group == n
            if looped or has_prox(group, duals[:1]):
                point, best = group.min_oracle(group.view(duals))
                group.view(points).copy_(point)
            else:
                found, weights[n], best = atom.start(group, duals)
                group.rows(points).copy_(found.combine(weights[n]))
                atoms[n] = found
            values[n] = in_order(best.double()).to(none)
        held = self.eta is not None or (self.hold and eta is not None)
        if eta is None and self.eta is not None:
            eta = Fixed(self.eta).start(problem, duals, points)
        if plan.instances is not None:
            mean, apart, size = plan.instances.first_means(problem, duals, points)
            eta = scale_free(apart, size, duals.dtype) if eta is None else eta
            governing = plan.instances.first_iterates(problem, eta, self.relaxation, mean, duals, points)
        else:
            mean = problem.mean(points)
            near = problem.spread(mean)
            residual = points - near
            if eta is None:
                eta = self.balance.start(problem, duals, residual)
            governing = near.sub_(eta[:, None] * duals).sub_(residual.mul_(self.relaxation))
        age = torch.zeros_like(none, dtype=torch.long)
        nothing = torch.zeros_like(none, dtype=torch.float64)
        ready = torch.ones_like(none, dtype=torch.bool)
        residuals = nothing, nothing, nothing, nothing
        known = governing, torch.zeros_like(mean), mean, ready, eta, duals[:, :0], age, *residuals
        rest = 1, True, held, tuple(atoms), tuple(weights)
        return AdmmState(duals, sum(values, none), points, eta, *known, *rest)

    def in_loops(self, plan: Plan) -> bool:
        """Whether sweeps over blocks with vertex tables run in compiled loops."""
        return fused_loops(plan) is not None

    def step(self, plan: Plan, state: AdmmState) -> AdmmState:
        """One pass; all is written over the state given."""
        return self.finish(plan, self.leap(plan, state, 1)[0])

    def leap(self, plan: Plan, state: AdmmState, most: int) -> tuple[AdmmState, int]:
        """Make several passes in one call of the loops, where these serve all that is shared.

        Parameters
        ----------
        plan : Plan
            The problem in the working precision, and how it is executed.
        state : AdmmState
            The state before, which is written over.
        most : int
            Number of passes at most, at least 1.

        Returns
        -------
        state, passes : AdmmState, int
            The state, which :meth:`finish` completes, and the number of passes made.
        """
        if plan.instances is not None:
            passes = min(most, self.every - (state.passes + 1) % self.every)
            made = self._loops(plan, state, passes)
        else:
            passes = 1
            made = self._pass(plan, state)
        late = state.ready.long()
        age, none = state.age + passes - late, torch.zeros_like(state.ready)
        state = replace(state, passes=state.passes + passes, age=age, ready=none, **made)
        if (state.passes + 1) % self.every == 0:
            state = self._settled(plan, self.finish(plan, state))
        return state, passes

    def finish(self, plan: Plan, state: AdmmState) -> AdmmState:
        """Write the multipliers at the points."""
        problem = plan.problem
        if state.finished:
            return state
        mean = problem.collect(state.points).div_(problem.counts)
        centre = mean + mean - state.target
        for group in problem.groups:
            if group.shares:
                own = problem.coupling.spread_part(centre, group.start, group.stop)
                own = own - state.governing[:, group.start : group.stop]
                coupled, dual = group.curved[:, None] > 0, group.rows(state.duals)
                dual.copy_(torch.where(coupled, own.div_(state.eta[:, None]).view_as(dual), dual))
        return replace(state, mean=mean, finished=True)

    def mean(self, plan: Plan, state: AdmmState) -> Tensor:
        """Mean of the points; of coupled variables the one that loops keep, where these may run."""
        problem = plan.problem
        mean = super().mean(plan, state)
        return mean if plan.instances is None else torch.where(problem.counts > 1, state.mean.double(), mean)

    def _relaxed(self, state: AdmmState) -> float:
        """The relaxation of a pass."""
        return self.anchored if state.anchor.shape[1] else self.relaxation

    def _loops(self, plan: Plan, state: AdmmState, passes: int) -> dict[str, Any]:
        """Passes in compiled loops, all that is in the state included: what changes in it."""
        assert plan.instances is not None
        anchors, consensus = (state.anchor, state.age, state.ready), (state.target, state.mean)
        iterates, relaxation = (state.governing, state.duals), self._relaxed(state)
        given = (passes, state.eta, consensus, relaxation, anchors, iterates)
        primal, dual = plan.instances.passes(plan.problem, *given)
        return {"apart": primal, "moved": dual, "finished": True}

    def _pass(self, plan: Plan, state: AdmmState) -> dict[str, Any]:
        """One pass by tensor operations and the loops of single types: what changes in the state."""
        problem = plan.problem
        duals, points, governing, eta = state.duals, state.points, state.governing, state.eta
        loops, relaxation = plan.loops, self._relaxed(state)
        share = ((~state.ready).to(eta) * relaxation)[:, None]
        atoms, weights, slopes = list(state.atoms), list(state.weights), None
        for n, (group, a, w) in enumerate(zip(problem.groups, atoms, weights, strict=True)):
            if not group.shares:
                continue  # the oracle's answer stays
            if loops is not None and (run := loops.passes[n]) is not None:
                anchors = (state.anchor, state.age, state.ready)
                steps = (eta, state.target, relaxation, anchors, governing, duals, points)
                run(group, problem.coupling.places, *steps)
                continue
            t, point = governing[:, group.start : group.stop], points[:, group.start : group.stop]
            near = problem.coupling.spread_part(state.target, group.start, group.stop)
            t.sub_(share * point).add_(near.mul_(share))
            pull(state.anchor[:, group.start : group.stop], state.age, state.ready, t)
            if a is None:
                cost = group.view(duals).masked_fill(group.curved > 0, 0)
                found = prox(group, cost, group.view(governing), eta)
                assert found is not None
                group.view(points).copy_(found)
                continue
            # What is not shared costs what it costs, whatever t is.
            slopes = torch.empty_like(duals) if slopes is None else slopes
            slope = torch.sub(point, t, out=near).div_(eta[:, None]).view(-1, group.dim, group.blocks)
            group.rows(slopes).copy_(torch.where(group.curved[:, None] > 0, slope, group.rows(duals)))
            if isinstance(a, atom.VertexTable) and fused_loops(plan) is not None:
                around(plan, group, a, w, slopes, eta, self.repeats, points)
                continue
            if isinstance(a, atom.VertexCache) and cache_loops(plan) is not None:
                renew(plan, group, a, w, (points, slopes, eta), self.repeats)
                continue
            answer = a.answer(group, slopes, w, w)
            weights[n] = atom.pairwise_steps(answer.atoms, answer.weights, answer.values, eta, self.repeats)
            atoms[n] = answer.atoms
            group.rows(points).copy_(answer.atoms.combine(weights[n]))
        target = problem.collect(points + points - governing)
        target = target.sub_(eta[:, None] * problem.cost).div_(problem.counts)
        return {"target": target, "finished": False, "atoms": tuple(atoms), "weights": tuple(weights)}

    def _settled(self, plan: Plan, state: AdmmState) -> AdmmState:
        """Set a new anchor where it has served, and with it a new weight."""
        primal, dual = distances(plan, state)
        residual, served = primal + dual, torch.ones_like(state.ready)
        if state.anchor.shape[1]:
            worse = (residual <= self.decay * state.origin) & (residual > state.last)
            enough = residual <= self.enough * state.origin
            served = enough | worse | (state.age >= self.longest * state.passes)
        eta, anchor, relaxation = state.eta, state.anchor, self._relaxed(state)
        if not state.held:
            balanced = self.balance.update(eta, state.first, state.passes, primal, dual)
            eta = torch.where(served, balanced, eta)
        due = eta != state.eta
        if state.passes >= self.plain:
            due = served
            anchor = anchor if anchor.shape[1] else torch.empty_like(state.governing)
        restart(plan, state, relaxation, due, eta / state.eta, anchor)
        age, last = state.age.masked_fill(due, 1), residual.masked_fill(served, torch.inf)
        origin = torch.where(served, residual, state.origin)
        return replace(state, eta=eta, anchor=anchor, ready=due, age=age, origin=origin, last=last)


def restart(
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
    points, governing, consensus = state.points, state.governing, (state.target, state.mean)
    if plan.instances is not None:
        iterates, weights = (governing, state.duals), (state.eta, ratio)
        plan.instances.restart(problem, due, weights, consensus, relaxation, anchor, iterates)
        return
    centre = state.mean + state.mean - state.target
    centre = problem.spread((state.mean - centre).mul_(relaxation).add_(centre))
    new = problem.spread(state.target).mul_(relaxation).add_(governing - relaxation * points)
    new = (new - centre).mul_(ratio[:, None]).add_(centre)
    governing.copy_(torch.where(due[:, None], new, governing))
    if anchor.shape[1]:
        anchor.copy_(torch.where(due[:, None], governing, anchor))


def distances(plan: Plan, state: AdmmState) -> tuple[Tensor, Tensor]:
    """Squared primal and dual residuals, ``(batch,)`` float64.

    They are the distances of the points from their mean, and of the mean from the consensus, copy by copy.
    """
    problem = plan.problem
    if plan.instances is not None:
        return state.apart, state.moved
    primal = torch.zeros_like(state.apart)
    for group in problem.groups:
        if group.shares:
            means = problem.coupling.spread_part(state.mean, group.start, group.stop)
            own = state.points[:, group.start : group.stop] - means
            squares = own.view(-1, group.dim, group.blocks)[:, group.curved > 0].double().square()
            primal = primal + in_order(squares.flatten(1))
    return primal, moves(problem.counts, state.mean, state.target)
