r"""Restarted primal-dual hybrid gradient (PDHG) on the LP that the block types write out: for high accuracy.

.. math:: \min_x \; \langle c, x \rangle \quad \text{s.t.} \quad l \le A x \le u, \; lo \le x \le hi

A holds the rows of all blocks (:meth:`BlockType.constraints`) that the bounds of the variables do not imply.  A pass is one product
with A and one with its transpose,

.. math:: \bar x = \mathrm{clip}(x - \eta T (c - A^\top y), lo, hi), \quad
          w = \eta \Sigma^{-1} y - A (2 \bar x - x), \quad
          \bar y = \tfrac{1}{\eta} \Sigma \, (w - \mathrm{clip}(w, -u, -l)),

reflected and averaged with the point :math:`z_0` where its epoch began,
:math:`z \leftarrow \frac{k+1}{k+2} (2 \bar z - z) + \frac{1}{k+2} z_0` (Lu and Yang 2024, Restarted Halpern PDHG for linear
programming; the base of cuPDLPx and HPR-LP).  The diagonals T and :math:`\Sigma` are the inverse absolute column and row sums of A
(Pock and Chambolle 2011, eq. 10 with alpha = 1), so that no norm is estimated.  An epoch ends at :math:`\bar z` once the fixed-point
residual :math:`|z - \bar z|` has fallen enough; :math:`\eta` then moves halfway (in logarithms) to the ratio of primal to dual
movement (Applegate et al. 2021, PDLP, algorithms 2 and 3).  The constants are theirs.

The multipliers of a block are :math:`A_b^\top \bar y_b` and its share of the reduced costs :math:`c - A^\top \bar y`.  Those are paid
for by the bounds of variables, which not every block need imply; where one does not, the compiler added a block of type
:class:`Box` for the variable.  So such blocks take the reduced cost of their variables, and all copies equal parts of the others'.

A warm start gives multipliers, and y cannot be read off them.  They are evaluated first, so that their bound is kept, and give the
weight and, by the oracles' answers, x; y starts at zero.  (Fitting y to them on every block alone, by this same method, shortened
some solves and lengthened as many.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.block import pick
from blocklp.box import Box
from blocklp.decomposition import Decomposition, Group, dot
from blocklp.errors import OptionError
from blocklp.methods.base import Method, MethodState, where


@dataclass(frozen=True)
class Program:
    """The rows of all blocks, one group after the other and each as ``(rows, blocks)``, and the step sizes."""

    matrices: tuple[Tensor, ...]  # one a group: (batch or 1, rows, dim, blocks or 1)
    lower: Tensor  # (batch, rows)
    upper: Tensor  # (batch, rows)
    row: Tensor  # (batch, rows): the diagonal of Sigma
    column: Tensor  # (batch, variables): the diagonal of T
    share: Tensor  # (batch, copies): of the reduced cost of the variable
    weight: Tensor  # (batch,): size of the primal points over that of the cost, in the metrics of the steps

    @classmethod
    def build(cls, problem: Decomposition) -> Program:
        """Write the LP out.

        Raises
        ------
        OptionError
            If a block type states no constraints.
        """
        low, high = (problem.spread(side.expand_as(problem.cost)) for side in (problem.lower, problem.upper))
        columns, boxes = torch.zeros_like(low), torch.zeros_like(low)
        matrices, lower, upper, rows = [], [], [], []
        for group in problem.groups:
            stated = group.type.constraints()
            if stated is None:
                raise OptionError(
                    f"method 'pdhg' needs the constraints of all blocks, and blocks {group.name!r} of type {group.type.name} state "
                    f"none; give the type a method constraints() -> Constraints, or choose another method, such as 'auto'"
                )
            matrix = stated.matrix.to(low).permute(0, 2, 3, 1)
            least, most = (side.to(low).transpose(1, 2).expand(len(low), -1, group.blocks) for side in (stated.lower, stated.upper))
            plus, minus = matrix.clamp(min=0), matrix.clamp(max=0)
            idle_below = least <= times(group, plus, low) + times(group, minus, high)
            idle_above = most >= times(group, plus, high) + times(group, minus, low)
            if group.alive is not None:
                idle_below, idle_above = (idle | (group.alive[:, None] == 0) for idle in (idle_below, idle_above))
            used = ~(idle_below & idle_above)
            kept = used.any(2).any(0)
            matrix, size = matrix[:, kept], matrix[:, kept].abs()
            matrices.append(matrix)
            lower.append(least.masked_fill(idle_below, -torch.inf)[:, kept].flatten(1))
            upper.append(most.masked_fill(idle_above, torch.inf)[:, kept].flatten(1))
            rows.append(times(group, size, torch.ones_like(low)).flatten(1))
            group.rows(columns).copy_(transposed(size, used[:, kept].to(low)))
            group.rows(boxes).fill_(float(isinstance(group.type, Box)))
        takers = problem.spread(problem.collect(boxes))
        share = torch.where(takers > 0, boxes / takers, problem.to_dual(torch.ones_like(problem.cost)))
        # Without entries any step is as good.
        row, column = (torch.where(t > 0, 1 / t, torch.ones_like(t)) for t in (torch.cat(rows, 1), problem.collect(columns)))
        largest = torch.maximum(problem.lower.abs(), problem.upper.abs()).expand_as(column)
        weight = (dot(largest / column, largest) / dot(problem.cost * column, problem.cost)).sqrt()
        weight = torch.where(torch.isfinite(weight) & (weight > 0), weight, torch.ones_like(weight))
        return cls(tuple(matrices), torch.cat(lower, 1), torch.cat(upper, 1), row, column, share, weight)

    def activity(self, problem: Decomposition, x: Tensor) -> Tensor:
        """A x: ``(batch, variables) -> (batch, rows)``."""
        copies = problem.spread(x)
        return torch.cat([times(g, m, copies).flatten(1) for g, m in zip(problem.groups, self.matrices, strict=True)], 1)

    def pull(self, problem: Decomposition, y: Tensor) -> Tensor:
        """What every block adds to A^T y: ``(batch, rows) -> (batch, copies)``."""
        copies, start = y.new_empty(len(y), problem.copies), 0
        for group, matrix in zip(problem.groups, self.matrices, strict=True):
            stop = start + matrix.shape[1] * group.blocks
            group.rows(copies).copy_(transposed(matrix, y[:, start:stop].view(len(y), -1, group.blocks)))
            start = stop
        return copies

    def select(self, rows: Tensor) -> Program:
        """Return the program of some instances."""
        matrices = tuple(m if len(m) == 1 else pick(m, rows) for m in self.matrices)
        rest = (self.lower, self.upper, self.row, self.column, self.share, self.weight)
        return Program(matrices, *(pick(t, rows) for t in rest))


def times(group: Group, matrix: Tensor, copies: Tensor) -> Tensor:
    """Every block's matrix times its copies: ``(batch, rows, blocks)``."""
    if matrix.shape[::3] == (1, 1):
        return torch.matmul(matrix[0, :, :, 0], group.rows(copies))
    return (matrix * group.rows(copies)[:, None]).sum(2)


def transposed(matrix: Tensor, y: Tensor) -> Tensor:
    """Every block's transposed matrix times ``(batch, rows, blocks)``: ``(batch, dim, blocks)``."""
    if matrix.shape[::3] == (1, 1):
        return torch.matmul(matrix[0, :, :, 0].T, y)
    return (matrix * y[:, :, None]).sum(1)


@dataclass(frozen=True)
class PdhgState(MethodState):
    """State of :class:`Pdhg`; ``points`` are the copies of the last primal point."""

    program: Program
    now: tuple[Tensor, ...]  # x (batch, variables), y and A x (batch, rows)
    first: tuple[Tensor, ...]  # the same at the start of the epoch
    age: Tensor  # (batch,): passes of the epoch
    residual: Tensor  # (batch,): when it was last measured
    first_residual: Tensor  # (batch,): at the start of the epoch
    passes: int


@dataclass(frozen=True)
class Pdhg(Method):
    """Restarted, reflected Halpern PDHG; nothing to set, every instance has its own weight and restarts."""

    evaluates = False
    sufficient = 0.2
    necessary = 0.8
    artificial = 0.36
    every = 5
    longest = 10  # between looks at the clock
    reach = 1e6

    def start(self, problem: Decomposition, duals: Tensor, eta: Tensor | None) -> PdhgState:
        """Write the LP out and ask the oracles once: x at the mean of their answers within bounds, y at zero."""
        program = Program.build(problem)
        points, value = problem.min_oracle(duals)
        x = torch.minimum(torch.maximum(problem.mean(points), problem.lower), problem.upper)
        now, zero = (x, torch.zeros_like(program.row), program.activity(problem, x)), torch.zeros_like(value)
        eta = program.weight if eta is None else self._within(program, eta)
        return PdhgState(duals, value, points, eta, program, now, now, zero, zero, zero, 0)

    def step(self, problem: Decomposition, state: PdhgState) -> PdhgState:
        """One pass."""
        return self.leap(problem, state, 1)[0]

    def leap(self, problem: Decomposition, state: PdhgState, most: int) -> tuple[PdhgState, int]:
        """Some passes; multipliers are formed after the last one only."""
        most = min(most, self.longest)
        for _ in range(most):
            state, (x, y, _) = self._pass(problem, state)
        duals = state.program.pull(problem, y)
        reduced = problem.spread(problem.cost - problem.collect(duals))
        return replace(state, duals=duals + state.program.share * reduced, points=problem.spread(x)), most

    def _pass(self, problem: Decomposition, state: PdhgState) -> tuple[PdhgState, tuple[Tensor, ...]]:
        """The next state, and the step to take it from: x and y bar, and A x."""
        program, (x, y, activity) = state.program, state.now
        pace, rate = state.eta[:, None] * program.column, program.row / state.eta[:, None]
        near = x - pace * (problem.cost - problem.collect(program.pull(problem, y)))
        near = torch.minimum(torch.maximum(near, problem.lower), problem.upper)
        reached = program.activity(problem, near)
        w = y / rate - (2 * reached - activity)
        bar = (near, rate * (w - torch.minimum(torch.maximum(w, -program.upper), -program.lower)), reached)
        back = (1 / (state.age + 2))[:, None]
        reflected = [2 * new - old for new, old in zip(bar, state.now, strict=True)]
        now = tuple(t + back * (t0 - t) for t, t0 in zip(reflected, state.first, strict=True))
        done = replace(state, now=now, age=state.age + 1, passes=state.passes + 1)
        if done.passes % self.every > 1:  # epochs end at multiples, so that their first pass is measured too
            return done, bar
        dx, dy, da = (new - old for new, old in zip(bar, state.now, strict=True))
        residual = (dot(dx / pace, dx) - 2 * dot(dy, da) + dot(dy / rate, dy)).clamp(min=0).sqrt()
        done = replace(done, residual=residual, first_residual=torch.where(state.age == 0, residual, state.first_residual))
        return done if done.passes % self.every else self._restarted(done, bar, residual > state.residual), bar

    def _restarted(self, state: PdhgState, bar: tuple[Tensor, ...], grown: Tensor) -> PdhgState:
        """A new epoch at ``bar``, with another weight, where one is due."""
        enough = state.residual <= self.sufficient * state.first_residual
        some = grown & (state.residual <= self.necessary * state.first_residual)
        due = (state.age > 1) & (enough | some | (state.age > self.artificial * state.passes))
        if not bool(due.any()):
            return state
        program, eta = state.program, state.eta
        dx, dy, _ = (new - old for new, old in zip(bar, state.first, strict=True))
        ratio = (dot(dx / program.column, dx) / dot(dy / program.row, dy)).sqrt()
        balanced = (eta * torch.minimum(torch.maximum(ratio, eta / 100), eta * 100)).sqrt()
        now, first = (tuple(where(due, new, t) for new, t in zip(bar, old, strict=True)) for old in (state.now, state.first))
        eta = torch.where(due & torch.isfinite(ratio) & (ratio > 0), self._within(program, balanced), eta)
        return replace(state, now=now, first=first, eta=eta, age=state.age.masked_fill(due, 0))

    def _within(self, program: Program, eta: Tensor) -> Tensor:
        """The weight, within reach of the one that the sizes of the data suggest: warm starts may bring any."""
        return torch.minimum(torch.maximum(eta, program.weight / self.reach), program.weight * self.reach)
