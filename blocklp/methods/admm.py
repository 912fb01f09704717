r"""The alternating direction method of multipliers (ADMM) on the consensus form, with an automatic weight.

.. math:: \min_x \sum_b \langle c_b, x_b \rangle \quad \text{s.t.} \quad x_b \in X_b, \; x_b = z \text{ where blocks share variables}

A pass moves multipliers and consensus, over-relaxed by :math:`\rho`, then takes the proximal point of every block:

.. math:: \lambda \leftarrow \lambda + \frac{\rho}{\eta} (x - \mathrm{mean}(x)), \quad
          z \leftarrow z + \rho \, (\mathrm{mean}(x) - z), \quad
          x_b \leftarrow \arg\min_{x \in X_b} \langle \lambda_b, x \rangle + \frac{|x - z|^2}{2 \eta}

(Boyd et al. 2011, sections 3.4.3 and 7.1; the thesis's future work).  ProxBC and ProxFW minimise one proximal function that couples
all blocks; here every block has a function of its own.  Types that state their :meth:`BlockType.prox` are solved exactly; for all
others each pass takes a few pairwise steps on the atoms of the block (:mod:`blocklp.atoms`) from its last point.

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

    swept = True
    looped = True
    evaluates = False
    relaxation = 1.5
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
        return AdmmState(duals, value, points, eta, mean, mean.clone(), eta, 1, tuple(atoms), tuple(weights))

    def step(self, problem: Decomposition, state: AdmmState) -> AdmmState:
        """One pass: multipliers and consensus, then the proximal point of every block; all is written over the state given."""
        return self.leap(problem, state, 1)[0]

    def leap(self, problem: Decomposition, state: AdmmState, most: int) -> tuple[AdmmState, int]:
        """Several passes in one call, where instances are too small to deal their blocks out to threads."""
        loops, eta = problem.loops, state.eta
        passes = min(most, self.every - state.passes % self.every)
        if loops is not None and loops.only is not None and (problem.batch > 1 or problem.copies < DIVIDED):
            group = problem.groups[loops.only.group]
            means = (loops.used, loops.segments, problem.counts, self.relaxation)
            own = (problem.coupling.places, state.mean, state.consensus, self.relaxation / eta, eta, group.start, group.blocks)
            loops.only.several(problem.batch, passes, *means, *own, state.duals, state.points)
        else:
            passes = 1
            state = self._blocks(problem, state)
        return self._consensus(problem, replace(state, passes=state.passes + passes)), passes

    def _blocks(self, problem: Decomposition, state: AdmmState) -> AdmmState:
        """The multipliers and the proximal points of all blocks, and their means."""
        duals, points, mean, consensus, eta = state.duals, state.points, state.mean, state.consensus, state.eta
        loops, rate, places = problem.loops, self.relaxation / eta, problem.coupling.places
        atoms, weights, slopes = list(state.atoms), list(state.weights), None
        for n, (group, a, w) in enumerate(zip(problem.groups, atoms, weights, strict=True)):
            if not shares(group):
                continue  # nothing is shared: the oracle's answer stays
            if loops is not None and (run := loops.passes[n]) is not None:
                own = (places, mean, consensus, rate, eta, group.start, group.blocks)
                run(problem.batch * tiles(group.blocks), *own, duals, points)
                continue
            near, centre = (problem.coupling.spread_part(v, group.start, group.stop) for v in (mean, consensus))
            dual, point = (t[:, group.start : group.stop] for t in (duals, points))
            dual.copy_(torch.sub(point, near, out=near).mul_(rate[:, None]).add_(dual))
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
        """What the next points are near to, and from time to time the weight."""
        duals, mean, consensus, eta, loops = state.duals, state.mean, state.consensus, state.eta, problem.loops
        if state.passes % self.every == 0:
            # Rounding adds up, and more so over many copies of a variable.
            rest = (problem.cost - collect(problem, duals)).div_(problem.counts)
            if loops is None:
                duals.add_(problem.spread(rest))
            else:
                loops.consensus.share(problem.batch, problem.coupling.places, loops.segments, rest, duals)
            if self.eta is None:
                eta = self.balance.update(problem, eta, state.first, state.passes, state.points, mean, consensus)
        if loops is None:
            moved = (mean - consensus).mul_(self.relaxation).add_(consensus)
            # What is not shared is its own consensus, so that nothing holds it.
            consensus = torch.where(problem.counts > 1, moved, mean)
        else:
            units = problem.batch * loops.consensus.chunks(loops.used)
            loops.consensus.follow(units, loops.used, problem.counts, self.relaxation, mean, consensus)
        return replace(state, consensus=consensus, eta=eta)


def collect(problem: Decomposition, copies: Tensor, out: Tensor | None = None) -> Tensor:
    """Sum of the copies of every variable, of the listed ones only by compiled loops: ``(batch, variables)``."""
    if (loops := problem.loops) is None:
        return problem.collect(copies)
    out = torch.empty_like(problem.cost) if out is None else out
    loops.consensus.collect(problem.batch, loops.used, problem.coupling.places, loops.segments, copies, out)
    return out


def prox(group: Group, cost: Tensor, centre: Tensor, eta: Tensor) -> Tensor | None:
    """Proximal points of a group: ``(batch, blocks, dim)``; blocks that only pad give zero."""
    point = group.type.prox(cost, centre, eta[:, None, None], group.curved)
    return point if point is None or group.alive is None else point * group.alive[..., None]
