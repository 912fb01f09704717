r"""Restarted primal-dual hybrid gradient (PDHG) on the LP that the block types write out: for high accuracy.

.. math:: \min_x \; \langle c, x \rangle \quad \text{s.t.} \quad l \le A x \le u, \; lo \le x \le hi

A holds the rows of all blocks (:class:`HasConstraints`) that the bounds of the variables do not imply.
A pass is one product with A and one with its transpose,

.. math:: \bar x = \mathrm{clip}(x - \eta T (c - A^\top y), lo, hi), \quad
          w = \eta \Sigma^{-1} y - A (2 \bar x - x), \quad
          \bar y = \tfrac{1}{\eta} \Sigma \, (w - \mathrm{clip}(w, -u, -l)),

reflected and averaged with the point :math:`z_0` where its epoch began,
:math:`z \leftarrow \frac{k+1}{k+2} (2 \bar z - z) + \frac{1}{k+2} z_0` (Lu and Yang 2024, Restarted Halpern
PDHG for linear programming; the base of cuPDLPx and HPR-LP). The diagonals T and :math:`\Sigma` are the
inverse absolute column and row sums of A (Pock and Chambolle 2011, eq. 10 with alpha = 1), over the norm of A
in their metric. An epoch ends at :math:`\bar z` once the fixed-point residual :math:`|z - \bar z|` has fallen
enough; :math:`\eta` then moves halfway (in logarithms) to the ratio of primal to dual movement (Applegate et
al. 2021, PDLP, algorithms 2 and 3). The constants are theirs.

The multipliers of a block are :math:`A_b^\top \bar y_b` and its share of the reduced costs
:math:`c - A^\top \bar y`. Those are paid for by the bounds of variables, which not every block need imply;
where one does not, the compiler added a block of type :class:`Box` for the variable. So such blocks take the
reduced cost of their variables, and all copies equal parts of the others'.

A warm start evaluates its multipliers first, so that their bound is kept. The method goes on from the x, y
and weight that it left there itself (:class:`blocklp.results.Saddle`), in a new epoch. Of another method's
state it takes the weight and, by the oracles' answers, x; y cannot be read off multipliers, and starts at
zero. (Fitting it to them on every block alone, by this same method, shortened some solves and lengthened as
many.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.errors import TimeLimitError
from blocklp.kernels.operations import operation
from blocklp.kernels.plan import Plan
from blocklp.kernels.program import PASSES, Program
from blocklp.methods.base import Memory, Method, MethodState, StateParts, where
from blocklp.methods.shrinking import shrinking
from blocklp.violation import known_empty

TRIPLES = "now", "first", "bar"
"""Attributes of a state that hold a point, duals and activities of rows."""

NUMBERS = "eta", "age", "residual", "first_residual", "passes"
"""Attributes of a state with a number an instance, and how many passes have been made."""


@dataclass(frozen=True)
class PdhgState(MethodState):
    """State of :class:`Pdhg`; ``points`` are the copies of the last primal point.

    ``eta`` is NaN before the first pass where no warm start had one.
    """

    program: Program
    now: tuple[Tensor, ...]  # x (batch, variables), y and A x (batch, rows)
    first: tuple[Tensor, ...]  # x, y and A x at the start of the epoch
    bar: tuple[Tensor, ...]  # the last step, from which the multipliers come
    pulled: Tensor  # (batch, parts, variables): sums that add up to A^T y
    age: Tensor  # (batch,): passes of the epoch
    residual: Tensor  # (batch,) float64: its square when it was last measured
    first_residual: Tensor  # (batch,) float64: at the start of the epoch
    weight: Tensor | None  # (batch,): what the sizes of the data suggest for eta, from the first pass on
    passes: int


@dataclass(frozen=True)
class Pdhg(Method):
    """Restarted, reflected Halpern PDHG; nothing to set, every instance has its own weight and restarts."""

    evaluates = False
    knows_rows = True
    cadence, regular = 49, 4  # a check takes as long as a hundred passes where LPs are small
    usual = 2000
    sufficient = 0.2
    necessary = 0.8
    artificial = 0.36
    every = 5
    longest = 10  # passes between looks at the clock
    reach = 1e6
    # Passes that count as made after a warm start: epochs of a few passes would throw the weight about where
    # all is nearly settled.
    resumed = 250

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> PdhgState:
        """Write the LP out and ask the oracles once.

        Parameters
        ----------
        plan, duals
            As in :meth:`blocklp.methods.base.Method.start`.
        eta : Tensor or None
            ``(batch,)``: primal weight of a warm start; None for the one that the sizes of the data suggest.

        Returns
        -------
        PdhgState
            x at the mean of the oracles' answers, within bounds and the reach of rows; y at zero.  Step sizes
            are left to the first pass.
        """
        problem = plan.problem
        program = plan.program
        points, value = problem.min_oracle(duals)
        near = torch.minimum(torch.maximum(problem.mean(points), -program.reach), program.reach)
        x = program.box.clip(near)
        now, zero = (
            (x, torch.zeros_like(program.lower), program.activity(problem, x)),
            torch.zeros_like(value),
        )
        residual = torch.zeros_like(value, dtype=torch.float64)
        eta = torch.full_like(value, torch.nan) if eta is None else eta
        first, bar = (tuple(t.clone() for t in now) for _ in range(2))
        pulled = x.new_zeros(len(x), program.parts, x.shape[1])
        iterates = now, first, bar, pulled
        measured = zero, residual, residual.clone()
        return PdhgState(duals, value, points, eta, program, *iterates, *measured, weight=None, passes=0)

    def remember(self, plan: Plan, state: PdhgState) -> Memory:
        """The last step and the weight, NaN before the first pass."""
        problem = plan.problem
        return state.bar[0], state.program.whole(problem, state.bar[1]), state.eta

    def resume(self, plan: Plan, state: PdhgState, memory: Memory) -> PdhgState:
        """Begin at the point, duals and weight of an earlier solve.

        Parameters
        ----------
        plan, state, memory
            As in :meth:`blocklp.methods.base.Method.resume`. Where x is NaN, as for variables added since,
            the oracles' point stays.
        """
        problem = plan.problem
        program, (x, y, weight) = state.program, memory
        x = torch.where(x.isnan(), state.now[0], x.to(state.now[0]))
        x, y = program.box.clip(x), program.part(problem, y)
        now = x, y, program.activity(problem, x)
        first, bar = (tuple(t.clone() for t in now) for _ in range(2))
        eta = torch.where(torch.isfinite(weight) & (weight > 0), weight.to(state.eta), state.eta)
        pulled = program.sums(problem, y)
        return replace(state, now=now, first=first, bar=bar, pulled=pulled, eta=eta, passes=self.resumed)

    def saved(self, plan: Plan, state: PdhgState) -> StateParts:
        """Points, duals and activities by blocks; step sizes and sums of duals are made anew."""
        variables: dict[str, Tensor] = {}
        rows: dict[str, list[Tensor]] = {}
        numbers = {name: getattr(state, name) for name in NUMBERS}
        program = state.program
        for name in TRIPLES:
            x, *others = getattr(state, name)
            variables[name] = x
            for kind, values in zip(("duals", "activity"), others, strict=True):
                key = f"{name}_{kind}"
                rows[key] = [own for _, own in program.by_groups(plan.problem, values)]
                numbers[key] = values[:, values.shape[1] - program.beside :]
        return StateParts({}, variables, rows, numbers)

    def restored(self, plan: Plan, state: PdhgState, kept: StateParts) -> PdhgState:
        """Go on from a state that was saved; :meth:`finish` makes its multipliers and points.

        Parameters
        ----------
        plan, state, kept
            As in :meth:`Method.restored`.
        """

        def whole(key: str) -> Tensor:
            return torch.cat([*(own.flatten(1) for own in kept.rows[key]), kept.numbers[key]], 1)

        state = self.weighted(plan, state)  # now, as it was before any pass
        triples = {n: (kept.variables[n], whole(f"{n}_duals"), whole(f"{n}_activity")) for n in TRIPLES}
        numbers = {name: kept.numbers[name] for name in NUMBERS} | {"passes": int(kept.numbers["passes"])}
        pulled = state.program.sums(plan.problem, triples["now"][1])
        return state.changed(**triples, **numbers, pulled=pulled)

    def step(self, plan: Plan, state: PdhgState) -> PdhgState:
        """One pass; the state given is used up."""
        return self.finish(plan, self.run(plan, state, 1)[0])

    def run(self, plan: Plan, state: PdhgState, most: int) -> tuple[PdhgState, int]:
        """Several passes; :meth:`finish` forms multipliers and points.

        Parameters
        ----------
        plan, state, most
            As in :meth:`blocklp.methods.base.Method.run`; the state is used up.
        """
        if state.weight is None:
            try:
                state = self.weighted(plan, state)
            except TimeLimitError:  # which ends the solve at its next look at the clock
                return state, 0
        return pdhg_passes(plan, state, self, most)

    def weighted(self, plan: Plan, state: PdhgState) -> PdhgState:
        """The state with its primal weights, which nothing needs before the first pass."""
        weight = plan.steps.weight(plan.problem)
        known = torch.isfinite(state.eta) & (state.eta > 0)
        eta = torch.where(known, self._within(weight, state.eta), weight)
        return replace(state, weight=weight, eta=eta)

    def finish(self, plan: Plan, state: PdhgState) -> PdhgState:
        """The multipliers and points of the last step."""
        problem = plan.problem
        if not state.passes:
            return state
        duals = self.multipliers(plan, state.bar[1])
        return replace(state, duals=duals, points=problem.spread(state.bar[0]))

    def multipliers(self, plan: Plan, y: Tensor) -> Tensor:
        """The multipliers ``(batch, copies)`` that row duals ``(batch, rows)`` make, by their best factor."""
        problem, program = plan.problem, plan.program
        duals = program.adjoint(problem, y)
        box = program.box.lower, program.box.upper, problem.totals
        factor = shrinking(program.proved(problem, y), problem.collect(duals), problem.cost, *box)
        duals = duals * factor.to(duals)[:, None]
        return duals + program.reduced(problem, duals)

    def in_loops(self, plan: Plan) -> bool:
        """Whether the products with the rows run in compiled loops."""
        try:
            return plan.program.loops(PASSES) is not None
        except TimeLimitError:  # as :meth:`start` will say
            return False

    def one_pass(self, plan: Plan, state: PdhgState) -> PdhgState:
        """Make one pass by tensor operations."""
        problem, program, steps = plan.problem, state.program, plan.steps
        (x, y, activity), eta = state.now, state.eta[:, None]
        near = x - eta * steps.column * (problem.cost - state.pulled.sum(1))
        near = program.box.clip(near)
        reached = program.activity(problem, near)
        w = eta * steps.length * y - (2 * reached - activity)
        clipped = torch.minimum(torch.maximum(w, -program.upper), -program.lower)
        y_bar = steps.row * (1 / eta) * (w - clipped)
        bar, back = (near, y_bar, reached), (1 / (state.age + 2))[:, None]
        reflected = [2 * new - old for new, old in zip(bar, state.now, strict=True)]
        now = tuple(t + back * (t0 - t) for t, t0 in zip(reflected, state.first, strict=True))
        done = replace(state, now=now, bar=bar, age=state.age + 1, passes=state.passes + 1)
        if done.passes % self.every <= 1:  # epochs end at multiples, and their first pass is measured too
            moved = [new - old for new, old in zip(bar, state.now, strict=True)]
            done = self._measured(plan, done, moved)
        return replace(done, pulled=program.sums(problem, done.now[1]))

    def _measured(self, plan: Plan, state: PdhgState, step: list[Tensor]) -> PdhgState:
        """The state after a step, with its residual and, where one is due, in a new epoch."""
        (dx, dy, da), eta = step, state.eta.double()
        primal, dual, across = self._sums(plan, state, dx, dy, dy * da)
        residual = primal / eta + 2 * across + dual * eta
        residual = torch.where(residual > 0, residual, 0)
        young = state.age == 1
        known = torch.where(young, residual, state.first_residual)
        if state.passes % self.every:
            return replace(state, residual=torch.where(young, residual, state.residual), first_residual=known)
        done = replace(state, residual=residual, first_residual=known)
        return self._restarted(plan, done, residual > state.residual)

    def _sums(self, plan: Plan, state: PdhgState, dx: Tensor, dy: Tensor, *others: Tensor) -> list[Tensor]:
        """Squared lengths of moves of x and y in the metrics of the steps, and sums of rows: ``(batch,)``."""
        terms, rows = (dx * dx / plan.steps.column).double(), (dy * dy * plan.steps.length, *others)
        doubled = [own.double() for own in rows]
        return plan.problem.totals.of_program_in_order([terms], doubled, state.program.kinds)

    def _restarted(self, plan: Plan, state: PdhgState, grown: Tensor) -> PdhgState:
        """A new epoch at the last step, with another weight, where one is due."""
        enough = state.residual <= self.sufficient**2 * state.first_residual
        some = grown & (state.residual <= self.necessary**2 * state.first_residual)
        due = (state.age > 1) & (enough | some | (state.age.double() > self.artificial * state.passes))
        if known_empty(due):
            return state
        eta, bar = state.eta.double(), state.bar
        dx, dy, _ = (new - old for new, old in zip(bar, state.first, strict=True))
        primal, dual = self._sums(plan, state, dx, dy)
        ratio = (primal / dual).sqrt()
        balanced = (eta * torch.minimum(torch.maximum(ratio, eta / 100), eta * 100)).sqrt()
        now = tuple(where(due, new, old) for new, old in zip(bar, state.now, strict=True))
        first = tuple(where(due, new, old) for new, old in zip(bar, state.first, strict=True))
        assert state.weight is not None
        valid = due & torch.isfinite(ratio) & (ratio > 0)
        eta = torch.where(valid, self._within(state.weight, balanced), state.eta)
        return replace(state, now=now, first=first, eta=eta, age=state.age.masked_fill(due, 0))

    def _within(self, weight: Tensor, eta: Tensor) -> Tensor:
        """The weight, within reach of that which the sizes of the data suggest; warm starts may bring any."""
        low, high = weight.double() / self.reach, weight.double() * self.reach
        return torch.minimum(torch.maximum(eta.double(), low), high).to(weight)


@operation
def pdhg_passes(plan: Plan, state: PdhgState, method: Pdhg, most: int) -> tuple[PdhgState, int]:
    """Make passes over all rows, restarts and weights included.

    Parameters
    ----------
    plan : Plan
        The problem in the working precision, and how it is executed.
    state : PdhgState
        The state before, which may be written over.
    method : Pdhg
        The constants of the method.
    most : int
        Number of passes at most, at least 1.

    Returns
    -------
    state, passes : PdhgState, int
        The state, which :meth:`Pdhg.finish` completes, and the number of passes made: no more than should go
        by before the next look at the deadline.
    """
    most = min(most, method.longest)
    for _ in range(most):
        state = method.one_pass(plan, state)
    return state, most
