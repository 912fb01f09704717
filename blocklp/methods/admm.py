r"""The alternating direction method of multipliers (ADMM) on the consensus form, with an automatic weight.

.. math:: \min_x \sum_b \langle c_b, x_b \rangle \quad \text{s.t.} \quad x_b \in X_b, \; x_b = z \text{ where blocks share variables}

A pass moves multipliers and consensus, over-relaxed by :math:`\rho`, then takes the proximal point of every block:

.. math:: \lambda \leftarrow \lambda + \frac{\rho}{\eta} (x - \mathrm{mean}(x)), \quad
          z \leftarrow z + \rho \, (\mathrm{mean}(x) - z), \quad
          x_b \leftarrow \arg\min_{x \in X_b} \langle \lambda_b, x \rangle + \frac{|x - z|^2}{2 \eta}

(Boyd et al. 2011, sections 3.4.3 and 7.1; the thesis's future work).  After a hundred passes multipliers and consensus are also drawn
towards an anchor, where they were some passes ago, by a share of 1/2, 1/3, ... (Halpern 1967), and every so often the anchor moves to
where they are (Lu and Yang 2024, Restarted Halpern PDHG for linear programming): this closes the gap where plain ADMM circles.

ProxBC and ProxFW minimise one proximal function that couples all blocks; here every block has a function of its own.  Types that
state their :meth:`BlockType.prox` are solved exactly; for all others each pass takes a few pairwise steps on the atoms of the block
(:mod:`blocklp.atoms`) from its last point.

The multipliers sum to the cost at all times, so each of them gives a bound; it is evaluated when the engine checks.

On a CPU large problems run in compiled loops, where types have some (:meth:`BlockType.loops`).  They give the bits of the tensor
operations, so that an instance's numbers do not depend on which of them ran.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp import atoms as atom
from blocklp.compiled import tiles
from blocklp.decomposition import Decomposition, Group
from blocklp.errors import OptionError
from blocklp.loops import shares
from blocklp.methods.base import Method, MethodState
from blocklp.sweeps import around, fused_loops
from blocklp.weight import BalanceRule, Fixed

DIVIDED = 100_000
"""Copies from which on threads share the blocks of a single instance."""


@dataclass(frozen=True)
class AdmmState(MethodState):
    """State of :class:`Admm`; ``points`` are the proximal points at ``duals``, whose values are not known."""

    mean: Tensor  # (batch, variables): of the points; unused for variables of one compiled block only
    consensus: Tensor  # (batch, variables): what the next points are near to
    first: Tensor  # (batch,): the weight at the start
    anchor: Tensor  # (batch, copies): multipliers of the anchor; (batch, 0) as long as there is none
    base: Tensor  # (batch, variables): its consensus
    age: Tensor  # (batch,) int64: passes since the anchor was set
    origin: Tensor  # (batch,) float64: squared residual of the fixed point when the anchor was set
    last: Tensor  # (batch,) float64: the residual ten passes ago, infinite for a new anchor
    passes: int
    atoms: tuple[atom.Atoms | None, ...]  # one a group, None for types with a prox
    weights: tuple[Tensor, ...]  # (batch, atoms, blocks)


@dataclass(frozen=True)
class Admm(Method):
    """Proximal points of single blocks around a consensus, automatic weight.

    Parameters
    ----------
    eta : float, optional
        The weight; ``None`` balances how far blocks are apart with how far the consensus moves.
    """

    eta: float | None = None

    proximal = True
    swept = True
    looped = True
    evaluates = False
    # Chosen on BA graphs of 1000 and 10,000 nodes, cliques, assignment, random fields and polytopes in 4 variables.
    relaxation, anchored = 1.5, 1.8
    plain = 100
    enough, decay, longest = 0.04, 0.64, 0.36
    repeats = 3
    every = 10
    balance = BalanceRule()

    def __post_init__(self) -> None:
        if self.eta is not None:
            if not isinstance(self.eta, int | float):
                raise OptionError(f"eta is {self.eta!r}; ADMM takes a number, or None for its automatic weight")
            Fixed(float(self.eta))

    def start(self, problem: Decomposition, duals: Tensor, eta: Tensor | None) -> AdmmState:
        """Every block at the oracle's answer to ``duals``, the consensus at their mean."""
        duals = duals.clone()
        for group in problem.groups:
            for (first, last), shared in zip(group.spans, group.curved.tolist(), strict=True):
                if not shared:  # nothing moves these: they are the cost, also after a warm start from another one
                    duals[:, first:last] = problem.coupling.spread_part(problem.cost, first, last)
        points = torch.empty_like(duals)
        value = torch.zeros_like(duals[:, 0])
        atoms: list[atom.Atoms | None] = []
        weights: list[Tensor] = []
        for group in problem.groups:
            found: atom.Atoms | None = None
            if prox(group, group.view(duals), group.view(duals), torch.ones_like(value)) is not None:
                point, best = group.min_oracle(group.view(duals))
                group.view(points).copy_(point)
                own = duals.new_empty(len(duals), 0)
            else:
                found, own, best = atom.start(group, duals)
                group.rows(points).copy_(found.combine(own))
            value = value + best.sum(1)
            atoms.append(found)
            weights.append(own)
        if self.eta is not None:
            eta = torch.full_like(value, self.eta)
        elif eta is None:
            eta = self.balance.start(problem, duals, points)
        mean = problem.mean(points)
        none, nothing = torch.zeros_like(value, dtype=torch.long), torch.zeros_like(value, dtype=torch.float64)
        anchor = (duals[:, :0], mean[:, :0], none, nothing, nothing)
        return AdmmState(duals, value, points, eta, mean, mean.clone(), eta, *anchor, 1, tuple(atoms), tuple(weights))

    def step(self, problem: Decomposition, state: AdmmState) -> AdmmState:
        """One pass: multipliers and consensus, then the proximal point of every block; all is written over the state given."""
        return self.leap(problem, state, 1)[0]

    def leap(self, problem: Decomposition, state: AdmmState, most: int) -> tuple[AdmmState, int]:
        """Several passes in one call, where instances are too small to deal their blocks out to threads."""
        loops, eta = problem.loops, state.eta
        passes = min(most, self.every - state.passes % self.every)
        if loops is not None and loops.only is not None and (problem.batch > 1 or problem.copies < DIVIDED):
            group = problem.groups[loops.only.group]
            speed, pull = self._speed(state), (state.anchor, state.base, state.age)
            means = (loops.used, problem.counts, speed)
            own = (problem.coupling.places, state.mean, state.consensus, speed / eta, eta, *pull, group.start, group.blocks)
            loops.only.several(len(loops.only.live), loops.only.live, passes, *means, *own, state.duals, state.points)
        else:
            passes = 1
            state = self._blocks(problem, state)
        return self._consensus(problem, replace(state, passes=state.passes + passes, age=state.age + passes)), passes

    def _speed(self, state: AdmmState) -> float:
        """The relaxation of a pass."""
        return self.anchored if state.anchor.shape[1] else self.relaxation

    def _blocks(self, problem: Decomposition, state: AdmmState) -> AdmmState:
        """The multipliers and the proximal points of all blocks, and their means."""
        duals, points, mean, consensus, eta = state.duals, state.points, state.mean, state.consensus, state.eta
        loops, rate, places = problem.loops, self._speed(state) / eta, problem.coupling.places
        atoms, weights, slopes = list(state.atoms), list(state.weights), None
        for n, (group, a, w) in enumerate(zip(problem.groups, atoms, weights, strict=True)):
            if not shares(group):
                continue  # nothing is shared: the oracle's answer stays
            if loops is not None and (run := loops.passes[n]) is not None:
                own = (places, mean, consensus, rate, eta, state.anchor, state.age, group.start, group.blocks)
                run(problem.batch * tiles(group.blocks), *own, duals, points)
                continue
            near, centre = (problem.coupling.spread_part(v, group.start, group.stop) for v in (mean, consensus))
            dual, point = (t[:, group.start : group.stop] for t in (duals, points))
            dual.copy_(torch.sub(point, near, out=near).mul_(rate[:, None]).add_(dual))
            pull(state.anchor[:, group.start : group.stop], state.age, dual)
            if a is None:
                found = prox(group, group.view(duals), group.blockwise(centre), eta)
                assert found is not None
                group.view(points).copy_(found)
                continue
            slopes = torch.empty_like(duals) if slopes is None else slopes
            if isinstance(a, atom.VertexTable) and fused_loops(problem) is not None:
                around(problem, group, a, w, (points, duals, consensus, eta), self.repeats, slopes)
                continue
            slopes[:, group.start : group.stop] = torch.sub(point, centre, out=centre).div_(eta[:, None]).add_(dual)
            answer = a.answer(group, slopes, w, w)
            weights[n] = atom.pairwise_steps(answer.atoms, answer.weights, answer.values, eta, self.repeats)
            atoms[n] = answer.atoms
            group.rows(points).copy_(answer.atoms.combine(weights[n]))
        used = mean.shape[1] if loops is None else loops.used
        mean = collect(problem, points, mean)
        mean[:, :used].div_(problem.counts[:, :used])
        return replace(state, mean=mean, atoms=tuple(atoms), weights=tuple(weights))

    def _consensus(self, problem: Decomposition, state: AdmmState) -> AdmmState:
        """What the next points are near to, and from time to time the weight and the anchor."""
        if state.passes % self.every == 0:
            state = self._settled(problem, state)
        mean, consensus, loops, speed = state.mean, state.consensus, problem.loops, self._speed(state)
        if loops is None:
            moved = (mean - consensus).mul_(speed).add_(consensus)
            # What is not shared is its own consensus, so that nothing holds it.
            consensus = torch.where(problem.counts > 1, moved, mean)
            pull(state.base, state.age, consensus)
        else:
            rows = torch.arange(problem.batch) if loops.only is None else loops.only.live
            units = len(rows) * loops.consensus.chunks(loops.used)
            loops.consensus.follow(units, rows, loops.used, problem.counts, speed, mean, consensus, state.base, state.age)
        return replace(state, consensus=consensus)

    def _settled(self, problem: Decomposition, state: AdmmState) -> AdmmState:
        """Correct the multipliers; set a new anchor where it has served, and with it a new weight."""
        apart, moved = settle(problem, state)
        residual, served = apart + moved, torch.ones_like(state.age, dtype=torch.bool)
        if state.anchor.shape[1]:
            worse = (residual <= self.decay * state.origin) & (residual > state.last)
            served = (residual <= self.enough * state.origin) | worse | (state.age >= self.longest * state.passes)
        eta = state.eta
        if self.eta is None:
            eta = torch.where(served, self.balance.update(eta, state.first, state.passes, apart, moved), eta)
        if state.passes < self.plain:
            return replace(state, eta=eta)
        age, origin = state.age.masked_fill(served, 0), torch.where(served, residual, state.origin)
        state = replace(state, eta=eta, age=age, origin=origin, last=residual.masked_fill(served, torch.inf))
        if state.anchor.shape[1]:
            return state
        return replace(state, anchor=torch.empty_like(state.duals), base=torch.empty_like(state.consensus))


def pull(anchor: Tensor, age: Tensor, value: Tensor) -> None:
    """Draw values ``(batch, n)`` towards an anchor, if there is one, ever less with its age ``(batch,)``; set it at age 0."""
    if not anchor.shape[1]:
        return
    new = age == 0
    if age.device.type != "cpu" or bool(new.any()):  # elsewhere, to look costs more than to copy
        anchor.copy_(torch.where(new[:, None], value, anchor))
    share = age.to(value) / (age + 1).to(value)
    value.sub_(anchor).mul_(share[:, None]).add_(anchor)


def collect(problem: Decomposition, copies: Tensor, out: Tensor | None = None) -> Tensor:
    """Sum of the copies of every variable, of the listed ones only by compiled loops: ``(batch, variables)``."""
    if (loops := problem.loops) is None:
        return problem.collect(copies)
    out = torch.empty_like(problem.cost) if out is None else out
    loops.consensus.collect(problem.batch, loops.used, problem.coupling.places, loops.segments, copies, out)
    return out


def settle(problem: Decomposition, state: AdmmState) -> tuple[Tensor, Tensor]:
    """Make the multipliers sum to the cost again, and measure how far blocks are apart and how far the consensus is to move.

    Rounding adds up in multipliers, and more so over many copies of a variable.  Returns squares of distances ``(batch,)``, float64.
    """
    duals, points, mean, consensus, loops = state.duals, state.points, state.mean, state.consensus, problem.loops
    if loops is not None and loops.only is not None:
        live, found = loops.only.live, torch.ones(2, problem.batch, dtype=torch.float64)
        table = (loops.used, problem.coupling.places, loops.segments, problem.cost, problem.counts)
        loops.consensus.settle(len(live), live, *table, duals, points, mean, consensus, *found)
        return found[0], found[1]
    rest = (problem.cost - collect(problem, duals)).div_(problem.counts)
    if loops is None:
        duals.add_(problem.spread(rest))
    else:
        loops.consensus.share(problem.batch, problem.coupling.places, loops.segments, rest, duals)
    apart = torch.zeros(problem.batch, dtype=torch.float64, device=duals.device)
    for group in problem.groups:
        own = group.rows(points) - problem.coupling.spread_part(mean, group.start, group.stop).view_as(group.rows(points))
        # What is not shared may have no mean.
        apart = apart + _in_order(own[:, group.curved > 0].double().square())
    shared = problem.counts * (problem.counts > 1)
    return apart, _in_order((mean - consensus).double().square() * shared)


def _in_order(terms: Tensor) -> Tensor:
    """Sum of ``(batch, ...)`` float64 from first to last, as loops add."""
    terms = terms.flatten(1)
    if terms.device.type != "cpu":  # where there are no loops, and cumsum is not reproducible
        return terms.sum(1)
    return terms.cumsum(1)[:, -1] if terms.shape[1] else terms.new_zeros(len(terms))


def prox(group: Group, cost: Tensor, centre: Tensor, eta: Tensor) -> Tensor | None:
    """Proximal points of a group: ``(batch, blocks, dim)``; blocks that only pad give zero."""
    point = group.type.prox(cost, centre, eta[:, None, None], group.curved)
    return point if point is None or group.alive is None else point * group.alive[..., None]
