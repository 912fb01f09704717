r"""Exact minima of models with integer variables: branch and bound over relaxations, many nodes a solve.

A node narrows the bounds of the integer variables. Its relaxation is the model itself under these bounds, an
instance of a batch for each node, so that blocks of any type, rows and oracles of users are bounded as they
are anywhere else. What is proved rests on bounds with all rounding charged, where the block types state their
errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from torch import Tensor

from blocklp.blocks.capabilities import integer_constraints_of, stated_rows_of
from blocklp.deadline import Deadline
from blocklp.decomposition.problem import Group
from blocklp.decomposition.valid_bounds import CANCELLED, box_minimum
from blocklp.engine.points import feasible
from blocklp.kernels.plan import Plan
from blocklp.language.expression import Expression, Term
from blocklp.language.handles import Blocks, Rows
from blocklp.language.row_constraint import RowConstraint
from blocklp.language.sense import Sense
from blocklp.methods import Method
from blocklp.model import Model
from blocklp.results.solution import Solution
from blocklp.results.state import State
from blocklp.search.best_first import Node
from blocklp.search.integer_relaxations import Bases, Relaxed, SimplexRelaxations
from blocklp.status import Status

INTEGRAL = 1e-6
"""Distance to an integer up to which a value counts as one, and relative violation up to which a point counts
as feasible."""

COARSE, FINE = 1e-4, 1e-8
"""Relative gaps of relaxations, of nodes to split and of nodes whose integers are all fixed."""

NODE_PASSES, LEAF_PASSES = 300, 20_000
"""Most passes of the relaxations of nodes to split, and of nodes whose integers are all fixed."""

DIVES = 4
"""Dives side by side, with roundings of their own."""

DIVED = 0.2
"""Least part of the free integers that a round of a dive fixes."""

BACK = 20
"""Steps back after which a dive ends."""

ZERO = 1e-6
"""Part of the terms of values at the bounds of the variables below which a value counts as zero."""

ROUNDED_UP = 1e-9
"""Part of a value by which bounds are lowered before they are rounded up to what a value can be."""


@dataclass
class Subproblem:
    """The bounds of a node: ``(variables,)`` each, the state of its parent, and the split that made it."""

    low: Tensor
    high: Tensor
    state: State | Bases | None = None
    split: tuple[int, int, float] | None = None  # column, 0 for down and 1 for up, distance moved


@dataclass
class IntegerProgram:
    """One instance of a model, in the sense of minimisation.

    Attributes
    ----------
    model : Model
        The model.
    instance : int
        Which of its instances.
    method : str or Method
        For the relaxations.
    deadline : Deadline
        When to stop.
    tol : float
        Relative gap at which the best point is optimal.
    best, point : float, Tensor
        The best value known, and its point ``(variables,)``; infinity and None without one.
    size : float
        That of the terms of the best value.
    stopped : bool
        Whether a callback has stopped the search.
    task : int
        Number of the task of the search.
    simplex : SimplexRelaxations or None
        Solves the relaxations, where it serves.
    """

    model: Model
    instance: int
    method: str | Method
    deadline: Deadline
    tol: float
    best: float = math.inf
    point: Tensor | None = None
    size: float = 0.0
    stopped: bool = False
    task: int = 0
    sense: Sense = field(init=False)
    simplex: SimplexRelaxations | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Read bounds, costs and what values the objective can have."""
        model, n = self.model, self.model.size
        assert model.objective is not None
        self.sense = Sense(model.maximizing)
        cost, constant = (part.detach() for part in model.objective.evaluate())
        self.cost = self.sense.turn(cost[self.instance])
        self.constant = self.sense.turn(float(constant[self.instance]))
        self.integer = torch.zeros(n, dtype=torch.bool)
        self.low, self.high = torch.empty(2, n, dtype=torch.float64)
        for v in model.variables.values():
            self.integer[v.columns] = v.integer
            for side, own in ((self.low, v.lower), (self.high, v.upper)):
                side[v.columns] = own[self.instance % len(own)].reshape(-1)
        self.low, self.high = self._rounded(self.low, self.high)
        whole = bool((self.cost[~self.integer] == 0).all()) and bool((self.cost == self.cost.round()).all())
        whole = whole and float(self.cost.abs().sum()) < 2**50
        divisor = reduce(math.gcd, map(int, self.cost.abs().tolist())) if whole else 0
        self.unit = float(divisor)  # every value is a multiple of it plus the constant; 0 where none is known
        if self.method == "auto":
            self.simplex = SimplexRelaxations.of(self.model, self.instance, self.low, self.high)
        if self.simplex is not None:  # nodes lie within its bounds, which have those that blocks state
            stated = self.simplex.program
            self.low, self.high = self._rounded(*map(torch.from_numpy, (stated.lower, stated.upper)))
            program = replace(
                stated,
                c=self.cost.numpy(),
                offset=self.constant,
                lower=self.low.numpy(),
                upper=self.high.numpy(),
                maximize=False,
            )
            self.simplex = replace(self.simplex, program=program)
        relaxed = self.relaxation(self.low[None], self.high[None].maximum(self.low))
        self.exact = relaxed.compile().decomposition()
        self.floor = ZERO * float(self.exact.cost_terms[0][0])
        binary = self.integer & (self.low >= 0) & (self.high <= 1)
        scopes = [b.scope for b in model.blocks if stated_rows_of(b.type) is None]
        self.tells = all(bool(binary[scope].all()) for scope in scopes)  # whether points can be tested

    def _rounded(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds ``(variables,)`` with those of integers at integers."""
        low = torch.where(self.integer, (low - INTEGRAL).ceil(), low)
        return low, torch.where(self.integer, (high + INTEGRAL).floor(), high)

    def root(self) -> list[Node]:
        """Return the node of all points, with the bound of the box; none where bounds leave no integer."""
        if bool((self.low > self.high).any()):
            return []
        return [Node(self.raised(float(box_minimum(self.exact)[0])), state=Subproblem(self.low, self.high))]

    def holds(self, x: Tensor) -> bool:
        """Whether a point ``(variables,)`` is feasible, for all that can be told of it.

        A type that states no constraints is asked for the minimiser of 1 - 2 x: where x is a corner of the
        unit cube, it is the only one of the cube, and so the oracle's answer if and only if the block, within
        the cube, has it.
        """
        if not bool(feasible(Plan(self.exact), x[None], INTEGRAL)):
            return False
        copies = self.exact.coupling.spread(x[None])
        unknown = [(g, g.view(copies)) for g in self.exact.groups if g.constraints is None]
        silent = list[tuple[Group, Tensor]]()
        for group, own in unknown:
            if (rows := integer_constraints_of(group.type)) is None:
                silent.append((group, own))
            elif bool((rows.relative_violation(own, own.abs().clamp(min=1)) > INTEGRAL).any()):
                return False
        answers = ((g.type.min_oracle(1 - 2 * own)[0], own) for g, own in silent if self.tells)
        return all(bool(((answer - own).abs() <= INTEGRAL).all()) for answer, own in answers)

    def goal(self) -> float:
        """Return the bound from which on a node holds no better point."""
        if math.isinf(self.best):
            return math.inf
        return self.best - (0.5 * self.unit if self.unit else self.allowed())

    def allowed(self) -> float:
        """Return how far below the best value the bound may stay."""
        size = max(abs(self.best), CANCELLED * self.size, self.floor)
        return 0.0 if math.isinf(self.best) else self.tol * size

    def keep(self, value: float, point: Tensor) -> None:
        """Take a point as the best one."""
        self.best, self.point, self.size = value, point, float(self.cost.abs() @ point.abs())

    def raised(self, bound: float) -> float:
        """Return the least value that the objective can have from a bound on."""
        if not self.unit or math.isinf(bound):
            return bound
        steps = (bound - self.constant) / self.unit
        return max(bound, self.unit * math.ceil(steps - ROUNDED_UP * max(1.0, abs(steps))) + self.constant)

    def relaxation(self, low: Tensor, high: Tensor) -> Model:
        """The instance under bounds of its variables ``(nodes, variables)``, a batch of as many instances."""
        model, number = self.model, torch.tensor([self.instance])
        made = Model(len(low))
        for v in model.variables.values():
            lower, upper = (_shaped(side, v.columns, v.shape) for side in (low, high))
            made.variable(v.name, v.shape, lower=lower, upper=upper)
        made.blocks = [Blocks(b.name, b.type.select(number), b.scope, b.maps) for b in model.blocks]
        for handle in model.rows:
            stated = handle.constraint
            sides = (side[self.instance % len(side)][None] for side in (stated.lower, stated.upper))
            made.rows.append(Rows(handle.name, RowConstraint(made, stated.matrix, *sides)))
        terms = (Term(torch.arange(model.size), self.sense.turn(self.cost[None]), None),)
        constant = torch.full((1,), self.sense.turn(self.constant), dtype=torch.float64)
        made.objective, made.maximizing = Expression(made, (), terms, constant), model.maximizing
        return made

    def solve(self, low: Tensor, high: Tensor, state: State | None, tol: float, passes: int) -> Solution:
        """Solve the relaxations of nodes; those that cannot be better than the best point stop.

        Parameters
        ----------
        low, high : Tensor
            ``(nodes, variables)`` float64: bounds of the variables.
        state : State or None
            Where to start, one instance for each node.
        tol : float
            Relative gap at which a node is solved.
        passes : int
            Most passes.

        Returns
        -------
        Solution
            Of the relaxations, a node an instance.

        Raises
        ------
        KeyboardInterrupt
            If the solve was interrupted.
        """
        goal = self.goal()
        found = self.relaxation(low, high).solve(
            method=self.method,
            tol=tol,
            cutoff=None if math.isinf(goal) else self.sense.turn(goal),
            passes=passes,
            time_limit=self.deadline,
            warm_start=state,
            feasibility_tol=INTEGRAL / 2,
        )
        if Status.INTERRUPTED in found.status:  # the search ends as its solves do
            raise KeyboardInterrupt
        return found

    def relaxed(
        self, low: Tensor, high: Tensor, state: State | Bases | None, tol: float, passes: int
    ) -> Relaxed:
        """Solve the relaxations of nodes by the simplex method where it serves, and else as :meth:`solve`.

        Parameters
        ----------
        low, high, state, tol, passes
            As in :meth:`solve`; the simplex method needs neither ``tol`` nor ``passes``.

        Returns
        -------
        Relaxed
            In the sense of minimisation.

        Raises
        ------
        KeyboardInterrupt
            If the solve was interrupted.
        """
        nodes = None if self.simplex is None else self.simplex.nodes(self.task, self.deadline)
        if self.simplex is None or nodes is None:
            own = state if isinstance(state, State) else None
            return Relaxed.of(self.solve(low, high, own, tol, passes), self.sense)
        return self.simplex.solve(nodes, low, high, state, self.goal(), self.deadline)

    def offer(self, points: Tensor) -> None:
        """Keep the best of those points ``(k, variables)``, integers rounded, that are feasible."""
        near = torch.where(self.integer, points.round(), points)
        if self.simplex is not None:  # all at once, before each is judged
            near = near[self.simplex.may_hold(near)]
        value = near @ self.cost + self.constant
        for i in value.argsort().tolist():
            if float(value[i]) >= self.best:
                return
            if self.tells and self.holds(near[i]):
                self.keep(float(value[i]), near[i])

    def complete(self, points: Tensor, state: State | Bases | None) -> Tensor:
        """Fix the integers as in points ``(k, variables)``, find the others, and return bounds ``(k,)``."""
        near = torch.minimum(torch.maximum(points.round(), self.low), self.high)
        if bool(self.integer.all()) and self.tells:  # a point is a point
            self.offer(near)
            return torch.full((len(near),), math.inf, dtype=torch.float64)
        low, high = torch.where(self.integer, near, self.low), torch.where(self.integer, near, self.high)
        found = self.relaxed(low, high, state, FINE, LEAF_PASSES)
        settled = torch.isfinite(found.primal) | (found.bound >= self.goal())
        if self.simplex is not None and not bool(settled.all()):  # nothing is left to split
            found = Relaxed.of(self.solve(low, high, None, FINE, LEAF_PASSES), self.sense)
        # Where the types state no constraints, the engine alone can tell that a point is feasible.
        for i in torch.isfinite(found.primal).nonzero()[:, 0].tolist():
            x = torch.where(self.integer, near[i], found.x[i])
            value = float(x @ self.cost) + self.constant
            if value < self.best and (not self.tells or self.holds(x)):
                self.keep(value, x)
        return found.bound

    def dive(
        self,
        low: Tensor,
        high: Tensor,
        state: State | Bases | None,
        root: Tensor | None = None,
        seed: int = 0,
    ) -> None:
        """Look for points below a node, in several ways side by side.

        Each fixes the integers that the relaxation is surest of, again and again; where nothing is left, it
        goes a step back, once in a row, and keeps the one that was least sure from that value.

        Parameters
        ----------
        low, high : Tensor
            ``(variables,)`` float64: bounds of the variables at the node.
        state : State, Bases or None
            Where to start, a single instance.
        root : Tensor, optional
            ``(variables,)`` float64: the point of the node's relaxation, where it has been solved.
        seed : int
            Of what is drawn.
        """
        seeded = torch.Generator().manual_seed(seed)
        low, high = low.repeat(DIVES, 1), high.repeat(DIVES, 1)
        before, fails = (low, high), torch.zeros(DIVES, dtype=torch.long)
        returned = torch.ones(DIVES, dtype=torch.bool)
        shake = torch.linspace(0, 0.5, DIVES, dtype=torch.float64)[:, None]
        state = None if state is None else state.repeat(DIVES)
        if root is not None:
            free = self.integer & (low < high)
            noise = shake * torch.rand(low.shape, generator=seeded, dtype=torch.float64)
            (low, high), before = self._fixed(root.expand_as(low), low, high, free, noise)
        while len(low) and not self.deadline.over():
            found = self.relaxed(low, high, state, 10 * COARSE, NODE_PASSES)
            self.offer(found.x)
            free = self.integer & (low < high)
            known = torch.isfinite(found.primal) | (not self.exact.testable)
            going = torch.isfinite(found.bound) & (found.bound < self.goal()) & known
            done = going & ~free.any(1)
            if bool(done.any()):
                self.complete(low[done], found.state.select(done))
            fails = torch.where(going, fails, fails + 1)
            kept = ((going & free.any(1)) | (~going & ~returned & (fails <= BACK))).nonzero()[:, 0]
            if not len(kept):
                return
            low, high, free, shake = (t[kept] for t in (low, high, free, shake))
            fails, going = fails[kept], going[kept, None]
            returned = ~going[:, 0]
            before, state, x = (before[0][kept], before[1][kept]), found.state.select(kept), found.x[kept]
            noise = shake * torch.rand(low.shape, generator=seeded, dtype=torch.float64)
            ahead, back = self._fixed(x, low, high, free, noise)
            low, high = (torch.where(going, *pair) for pair in zip(ahead, before, strict=True))
            before = torch.where(going, back[0], before[0]), torch.where(going, back[1], before[1])

    def _fixed(
        self,
        x: Tensor,
        low: Tensor,
        high: Tensor,
        free: Tensor,
        noise: Tensor,
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Bounds with the integers fixed that a dive is surest of, and those without the last value."""
        to = torch.minimum(torch.maximum(x.round(), low), high)
        # What is at its lower end stays free as long as something is not: a choice that was not made may be
        # needed yet.
        chosen = free & (to > self.low)
        free = torch.where(chosen.any(1, keepdim=True), chosen, free)
        distance = ((x - to).abs() + noise).masked_fill(~free, math.inf)
        count = (DIVED * free.sum(1)).ceil().long().clamp(min=1)
        ordered = distance.sort(1)
        fixed = free & (distance <= ordered.values.gather(1, count[:, None] - 1))
        last = torch.zeros_like(free).scatter_(1, ordered.indices.gather(1, count[:, None] - 1), True)
        ahead = torch.where(fixed, to, low), torch.where(fixed, to, high)
        back = torch.where(last & (to == low), to + 1, low), torch.where(last & (to > low), to - 1, high)
        return ahead, back


def _shaped(values: Tensor, columns: slice, shape: tuple[int, ...]) -> Tensor:
    """The columns of a variable, in its shape."""
    return values[:, columns].reshape(-1, *shape)
