"""Exact minimisation of quadratic pseudo-boolean functions.

Variables of low degree and proved labels go first; what is left falls into components.  A component of small width is minimised by
elimination, another by branch and bound on convex underestimators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from blocklp.campaigns import Executor
from blocklp.certify.exact_arithmetic import rounded_down
from blocklp.deadline import Deadline
from blocklp.options import required_hook
from blocklp.problems.discrete.elimination import PER_ENTRY, cheapest_order
from blocklp.problems.discrete.exact import DEFAULT, Callback, ExactResult, ExactRun, ExactSettings, in_units, search_loops
from blocklp.problems.discrete.given import check_instance
from blocklp.problems.discrete.integers import Grid, Unit, total_of
from blocklp.problems.discrete.pipeline import Bracket, minimised, proved
from blocklp.problems.discrete.reduced import Reduced
from blocklp.problems.discrete.tightened_search import BUDGET, Branching, Fixings, search_tightened
from blocklp.problems.discrete.tightening import Labelled
from blocklp.problems.qpbo.convex_search import KERNELS, search_convex
from blocklp.problems.qpbo.convexify import Spins
from blocklp.problems.qpbo.heuristics import one_flip_descent, round_fractional, tabu_search
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.node_search import Rule, search_nodes
from blocklp.problems.qpbo.presolve import LabelArray, fold, minimise_by_elimination, presolve
from blocklp.problems.qpbo.relaxation import roof_duality_model, solve_qpbo
from blocklp.problems.qpbo.tightening import best_of, tightening_of
from blocklp.status import Status

PER_START = 2e-7
"""Seconds that it takes to begin a tabu search and to end it, for each variable and neighbour, on a busy machine."""
PER_ANSWER = 1.5e-6
"""Seconds that it takes to write the answer out, for a variable or a pair, on a busy machine."""
STARTS = 20
FEW, FEWER = 200, 0.6
"""Functions of so few variables count as dense with this part of the pairs that others need: their semidefinite bounds are cheap."""
LARGEST = 500
"""Most variables of a component that is searched: matrices are dense."""
PER_TERM = 1e-5
"""Seconds that it takes to presolve a function, for a variable or a pair, at least."""


def solve_qpbo_exactly(
    qubo: Qubo,
    *,
    time_limit: float | Deadline = math.inf,
    callback: Callback | None = None,
    branching: Rule | None = None,
    executor: Executor | None = None,
    settings: ExactSettings = DEFAULT,
) -> ExactResult:
    """Minimise a quadratic pseudo-boolean function, with proof.

    Parameters
    ----------
    qubo : Qubo
        The function.
    time_limit : float or Deadline
        Seconds; then, and after an interrupt, the best labelling and a valid bound are returned.
    callback : callable, optional
        Gets a :class:`blocklp.search.SearchEvent` of the component under way after every batch of nodes; True stops.
    branching : Rule, optional
        Search what reductions leave by bounds of roof duality, and split nodes by this rule: :class:`StrongBranching`,
        or :class:`blocklp.problems.learnt.LearntBranching`.  By default other bounds are
        taken, which are stronger and take longer, and do without a rule.
    executor : Executor, optional
        Whose workers expand the nodes of what is searched: :class:`blocklp.campaigns.LocalExecutor` or
        :class:`blocklp.campaigns.RayExecutor`.  The nodes are the same for any number of workers.
    settings : ExactSettings
        At what sizes methods change; the minimum is the same for any.

    Returns
    -------
    ExactResult

    Raises
    ------
    OptionError
        ``time_limit`` is not positive, or ``branching`` is no rule.
    ModelError
        It is no ``Qubo``, or the magnitudes of the coefficients add up to more than float64 holds.

    Examples
    --------
    >>> from blocklp.problems.qpbo import Qubo, solve_qpbo_exactly
    >>> found = solve_qpbo_exactly(Qubo([-1, -1, -1], [[0, 1], [0, 2], [1, 2]], [2, 2, 2]))
    >>> found.energy, found.bound, found.proven
    (-1.0, -1.0, True)
    """
    check_instance(qubo, Qubo)
    if branching is not None:
        required_hook(getattr(branching, "scores", None), "branching.scores")
    deadline = Deadline.of(time_limit)
    began = deadline.elapsed()
    given = np.concatenate([qubo.linear, qubo.quadratic])
    total_of(np.append(given, qubo.offset))
    unit = Unit.of(given, total_of(given))
    whole = unit.whole(given)
    # No value is below the sum of what its integers stand for by more than all that rounding has raised them.
    charge, _ = unit.rounding(given, whole)
    integral = Qubo(whole[: qubo.n], qubo.edges, whole[qubo.n :])
    closing = PER_ANSWER * (qubo.n + len(qubo.edges))
    limit = deadline.within(deadline.left() - closing)
    run = ExactRun(limit, in_units(callback, float(unit.size)), executor=executor, settings=settings)
    result = proved(Functions(unit.near, branching), integral, run)
    bound = rounded_down(Fraction(qubo.offset) + unit.size * int(result.bound) - charge)
    # Rounded once; the sum of products would be rounded at every term.
    inside = result.labels.astype(bool)
    terms = [qubo.linear[inside], qubo.quadratic[inside[qubo.edges].all(1)], [qubo.offset]]
    return run.result(torch.tensor(inside.astype(np.int8)), math.fsum(np.concatenate(terms)), bound, unit, deadline.elapsed() - began)


@dataclass(frozen=True)
class Functions:
    """Quadratic functions with integer coefficients, as the pipeline of exact solvers sees them.

    Reductions never raise the sum of all magnitudes, so all values are integers that float64 adds up exactly, and multiples of the
    spacing of their grid; so are the bounds.

    Attributes
    ----------
    near : float
        Share of the magnitudes that does not matter.
    branching : Rule, optional
        As in :func:`solve_qpbo_exactly`.
    """

    near: float
    branching: Rule | None = None

    def seconds(self, problem: Qubo) -> float:
        """Return how long presolve takes, at least."""
        return PER_TERM * (problem.n + len(problem.edges))

    def least(self, problem: Qubo) -> float:
        """Return the sum of all that is negative."""
        return float(np.minimum(problem.linear, 0).sum() + np.minimum(problem.quadratic, 0).sum())

    def begin(self, problem: Qubo, deadline: Deadline) -> LabelArray:
        """Return labels that no flip improves."""
        return np.asarray(one_flip_descent(problem, torch.zeros(1, problem.n), time_limit=deadline).y[0], dtype=np.int8)

    def reduce(self, problem: Qubo, run: ExactRun) -> Reduced[Qubo]:
        """Return connected functions all of whose variables have three neighbours or more."""
        return presolve(problem, run.deadline)

    def search(self, part: Qubo, found: Bracket) -> None:
        """Eliminate where tables are small; else fix persistent labels and start again, or search."""
        run = found.run
        grid = Grid.of(np.concatenate([part.linear, part.quadratic]), self.near)
        affordable = max(run.settings.tables, run.settings.tables_at_once)
        order = cheapest_order([2] * part.n, part.edges, affordable, run.deadline)
        if order.work <= run.settings.tables_at_once:
            found.eliminated(minimise_by_elimination(part, order, run.deadline), part.energy)
            return
        found.labels = _incumbent(part, found.labels, run.deadline.within(0.2 * run.deadline.left()))
        if run.over():
            return
        relaxed = solve_qpbo(part, tol=1e-5, passes=400, time_limit=run.deadline)
        if relaxed.energy < float(part.energy(found.labels)):
            found.labels = relaxed.labels.numpy().astype(np.int8)
        found.bound = grid.raised(max(found.bound, float(relaxed.relaxation.safe_bound[0])))
        if relaxed.relaxation.status[0] is Status.INTERRUPTED:
            raise KeyboardInterrupt
        weak = relaxed.persistency.weak
        if (weak >= 0).any():
            found.labels, below = self.folded(part, weak, run)
            found.bound = max(found.bound, below)
        elif self.branching is not None and not run.over():
            found.labels, found.bound = search_nodes(part, found.labels, grid, run, self.branching)
        elif order.work <= run.settings.tables and run.deadline.affords(4 * PER_ENTRY * order.work):
            found.eliminated(minimise_by_elimination(part, order, run.deadline), part.energy)
        elif run.over():
            return
        elif _is_convex_sooner(part, run) and search_loops(KERNELS, run) is not None:
            result, spins = search_convex(Spins.of(part), grid.step, (2 * found.labels - 1).astype(np.int8), run)
            labels = ((spins + 1) // 2).astype(np.int8)
            found.searched(labels, float(part.energy(labels)), result, grid)
        else:
            self._tightened(part, grid, found)

    def folded(self, problem: Qubo, fixings: LabelArray, run: ExactRun) -> tuple[LabelArray, float]:
        """Return labels with some fixings, and a bound on all that have them.

        Parameters
        ----------
        problem : Qubo
            The function.
        fixings : ndarray
            ``(n,)`` int8: 0 or 1 where fixed, -1 elsewhere.
        run : ExactRun
            Limits.
        """
        left, free, below = fold(problem, fixings)
        whole = fixings.astype(np.int8)
        if left is not None:
            rest = minimised(self, left, run)
            whole[free] = rest.labels
            below += rest.bound
        return whole, below

    def _tightened(self, part: Qubo, grid: Grid, found: Bracket) -> None:
        run = found.run
        model = roof_duality_model(part)
        some = _SomeFree(self, part)
        problem = tightening_of(model, part, BUDGET.blocks, run.deadline)
        branching = Branching(model.variables["y"], some.size, some.rounded, some.rest)
        best, below = search_tightened(problem, branching, _labelled(part, found.labels), grid, run)
        found.labels, found.bound = best.labels.numpy().astype(np.int8), max(found.bound, below)


@dataclass(frozen=True, eq=False)
class _SomeFree:
    """Functions of some of the variables of one, as fixings leave them, and the kind that minimises them."""

    kind: Functions
    qubo: Qubo

    def size(self, fixings: Fixings) -> int:
        """The number of free variables."""
        return int((fixings < 0).sum())

    def rest(self, fixings: Fixings, run: ExactRun) -> tuple[Labelled, float]:
        """Minimise over the free variables."""
        labels, below = self.kind.folded(self.qubo, fixings, run)
        return _labelled(self.qubo, labels), below

    def rounded(self, points: Tensor, deadline: Deadline) -> Labelled:
        """A labelling from points, at several thresholds."""
        return best_of(round_fractional(self.qubo, points, time_limit=deadline))


def _labelled(qubo: Qubo, labels: LabelArray) -> Labelled:
    return Labelled(torch.tensor(labels), float(qubo.energy(labels)))


def _is_convex_sooner(part: Qubo, run: ExactRun) -> bool:
    """Whether convex underestimators are to bound the nodes, and not tightened relaxations."""
    dense = run.settings.dense * (FEWER if part.n <= FEW else 1.0)
    return part.n <= LARGEST and len(part.edges) > dense * part.n


def _incumbent(qubo: Qubo, labels: LabelArray, deadline: Deadline) -> LabelArray:
    """A good labelling: tabu search from random ones, or the one given where there is no time to begin one."""
    n = qubo.n
    if not deadline.affords(PER_START * STARTS * (n + 2 * len(qubo.edges))):
        return labels
    starts = torch.tensor(np.random.default_rng(0).integers(0, 2, (STARTS, n)))
    # About 1e8 operations at most.
    found = tabu_search(qubo, starts, int(min(20 * n + 500, 1e8 / STARTS / n)), time_limit=deadline)
    return np.asarray(found.y[int(found.energy.argmin())], dtype=np.int8)
