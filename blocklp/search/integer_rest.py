r"""Exact optima of models with hulls of integer points: a Lagrangean bound, and HiGHS on the rest.

1. The relaxation of the model, by Dantzig and Wolfe's method, gives the Lagrangean bound
   :math:`D(\lambda)` (Geoffrion 1974).
2. Min-marginals of the blocks say what every 0/1 variable costs off the value that its blocks prefer: no
   point of a value up to some limit has one that costs more (reduced-cost fixing by the Lagrangean bound).
3. What such a limit leaves open, a core, is an integer program whose rows the blocks state; HiGHS solves it,
   with the limit as a row. A point that it finds is optimal for the model, since all others are above the
   limit; where there is none, the limit is a bound, and the next one is twice as far.
4. A core that takes too many nodes is interrupted for dives of the relaxation, which look for points.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.capabilities import HasIntegerConstraints, HasMinMarginals, stated_rows_of, supports
from blocklp.general_solvers.integer_program import IntegerResult, solved_by_highs
from blocklp.general_solvers.linear_program import Array, LinearProgram, export
from blocklp.general_solvers.small_lp import available
from blocklp.results.solution import Solution
from blocklp.search.best_first import SearchEvent, SearchResult
from blocklp.search.integer_relaxations import bounds, with_box
from blocklp.search.integer_search import IntegerProgram
from blocklp.status import Status

SHARP, PASSES = 1e-7, 5000
"""Relative gap of the relaxation, and most passes for it."""

CORE, PART = 150, 8
"""Variables that the first limit leaves open at least, and one of so many of all, if that is more."""

MORE = 10
"""Factor of the next limits of HiGHS's trees."""

STEP = 1e-3
"""Least distance of limits, over the magnitude of the bound, where values are no multiples of a unit."""


@dataclass
class Rest:
    """The search of one instance.

    Attributes
    ----------
    program : IntegerProgram
        The instance, and its best point.
    listener : callable
        Gets an event after every step; True stops the search.
    max_nodes : float
        Most nodes, about.
    bound : float
        Lower bound on the optimum.
    nodes : int
        Relaxations and nodes of HiGHS's trees.
    first_nodes : int
        Nodes of HiGHS's tree before the first dive.
    began : float
        When, by the clock of ``time.perf_counter``.
    """

    program: IntegerProgram
    listener: Callable[[SearchEvent], Any]
    max_nodes: float = math.inf
    bound: float = -math.inf
    nodes: int = 0
    first_nodes: int = 1000
    began: float = field(default_factory=time.perf_counter)

    def solve(self) -> SearchResult:
        """Bound, fix, and solve cores until the best point is optimal, the time is over, or by Ctrl-C."""
        try:
            return self._solved()
        except KeyboardInterrupt:
            return self._ended(Status.INTERRUPTED)

    def _solved(self) -> SearchResult:
        program = self.program
        root = program.root()
        if not root:
            return self._ended(Status.INFEASIBLE, math.inf)
        self.bound = root[0].bound
        found = program.solve(program.low[None], program.high[None], None, SHARP, PASSES)
        program.offer(found.raw_x)
        self.nodes, self.bound = 1, program.raised(max(self.bound, float(bounds(found, program.sense)[0])))
        if math.isinf(self.bound):
            return self._ended(Status.INFEASIBLE, math.inf)
        if self._stopped():
            return self._ended(Status.INTERRUPTED)
        return self._cores(found)

    def _cores(self, found: Solution) -> SearchResult:
        """Solve cores of rising limits."""
        program, linear = self.program, self._linear()
        least = float(bounds(found, program.sense)[0])
        rises = self._rises(found)
        core = max(CORE, program.model.size // PART)
        most = float(torch.where(rises.isinf(), 0.0, rises).max())
        reach = min(most, float(rises.amax(0).kthvalue(min(core, program.model.size)).values))
        nodes, dived, whole = self.first_nodes, False, False
        while not program.deadline.over():
            if self.bound >= program.goal():
                return self._ended(Status.OPTIMAL)
            if self.nodes >= self.max_nodes:
                return self._ended(Status.PASS_LIMIT)
            limit = math.inf if whole else self._limit(least, reach)
            result = self._core(linear, least, rises, limit, nodes)
            if result.ended and result.x is not None and not self._believed(result.x):
                return self._ended(Status.STALLED)
            if result.ended:
                none = result.x is None and program.point is None
                if none and whole:
                    return self._ended(Status.INFEASIBLE, math.inf)
                # Where nothing was left out, there may be no point at all.
                whole, reach = none and limit - least >= most, 2 * max(limit - least, STEP * abs(self.bound))
            else:
                nodes *= MORE
                if not dived and not program.deadline.over():
                    program.dive(
                        program.low, program.high, with_box(found.state, program.model.size), found.raw_x[0]
                    )
                    dived = True
            if self._stopped():
                return self._ended(Status.INTERRUPTED)
        return self._ended(Status.OPTIMAL if self.bound >= program.goal() else Status.TIME_LIMIT)

    def _limit(self, least: float, reach: float) -> float:
        """The limit of the next core, a value of the objective."""
        program = self.program
        limit = max(least + reach, self.bound)
        if program.unit:
            steps = math.floor((limit - program.constant) / program.unit + 1e-9)
            limit = max(program.constant + program.unit * steps, self.bound)
        return min(limit, program.best - (program.unit or program.allowed()))

    def _core(
        self, linear: LinearProgram, least: float, rises: Tensor, limit: float, nodes: int
    ) -> IntegerResult:
        """Solve what a limit leaves open, and raise the bound by what that says."""
        program = self.program
        allowed = limit - least + 1e-9 * max(1.0, abs(least))
        up, down = (rise > allowed for rise in rises)
        low, high = program.low.clone(), program.high.clone()
        low, high = torch.where(down, low.clamp(min=1), low), torch.where(up, high.clamp(max=0), high)
        if bool((low > high).any()):
            result = IntegerResult(None, math.inf, True, 0)
        else:
            room = 1e-6 * (program.unit or 1.0)
            open_all = torch.equal(low, program.low) and torch.equal(high, program.high)
            result = solved_by_highs(
                replace(linear, lower=low.numpy(), upper=high.numpy()),
                program.integer.numpy(),
                # Fixings tell as much, and the row makes relaxations hard to solve.
                cutoff=limit - program.constant + room if open_all else math.inf,
                target=self.bound - program.constant + room if program.unit else -math.inf,
                nodes=nodes,
                seconds=program.deadline.left(),
            )
        self.nodes += max(1, result.nodes)
        if result.x is not None:
            program.offer(torch.from_numpy(result.x)[None])
            if not bool(program.integer.all()):
                program.complete(torch.from_numpy(result.x)[None], None)
        inside = result.bound + program.constant
        beyond = limit + program.unit if program.unit else limit
        self.bound = max(self.bound, min(program.raised(inside), beyond, program.best))
        return result

    def _believed(self, x: Array) -> bool:
        """Whether the best point is at least as good as HiGHS's, which may be infeasible by our measure."""
        program = self.program
        near = torch.where(program.integer, torch.from_numpy(x).round(), torch.from_numpy(x))
        value = float(near @ program.cost) + program.constant
        return program.best <= value + 1e-6 * max(1.0, abs(value))

    def _linear(self) -> LinearProgram:
        """The rows of the instance, to be minimised."""
        program = self.program
        made = export(program.model, program.instance, integers=True)
        return replace(made, c=program.cost.numpy(), offset=0.0, maximize=False)

    def _rises(self, found: Solution) -> Tensor:
        """What the bound rises by at least with each 0/1 variable at 1, and at 0: ``(2, variables)``."""
        program = self.program
        rises = torch.zeros(2, program.model.size, dtype=torch.float64)
        for group in program.exact.groups:
            known = [found.state.duals.get(name) for name, _ in group.named]
            if any(own is None for own in known) or not supports(group.type, HasMinMarginals):
                continue
            cost = program.sense.turn(torch.cat([own[:1] for own in known if own is not None], 1))
            if cost.shape[1:] != (group.blocks, group.dim):
                continue
            marginals = group.type.min_marginals(cost)
            if marginals is None:
                continue
            own = torch.where(marginals.isnan(), 0.0, marginals)[0].T.reshape(-1)
            index = program.exact.coupling.index[0, group.start : group.stop]
            for rise, side in zip(rises, (own, -own), strict=True):
                rise.scatter_add_(0, index, side.clamp(min=0))
        return rises

    def _stopped(self) -> bool:
        """Tell the listener, and ask whether it stops the search."""
        best, seconds = self.program.best, time.perf_counter() - self.began
        event = SearchEvent(self.nodes, 1, min(self.bound, best), best, seconds)
        self.program.stopped = bool(self.listener(event))
        return self.program.stopped

    def _ended(self, status: Status, bound: float | None = None) -> SearchResult:
        """The result, whose point is the best one."""
        best = self.program.best
        bound = min(self.bound, best) if bound is None else bound
        seconds = time.perf_counter() - self.began
        return SearchResult(self.nodes, 0, bound, best, seconds, self.program.point, status, 0, ())


def serves(program: IntegerProgram) -> bool:
    """Whether some blocks are hulls of integer points, HiGHS is there, and all can be written out as rows."""
    blocks = program.model.blocks
    hulls = [b for b in blocks if supports(b.type, HasIntegerConstraints)]
    whole = all(bool(program.integer[b.scope].all()) for b in hulls)
    return bool(hulls) and whole and available() and all(stated_rows_of(b.type) is not None for b in blocks)
