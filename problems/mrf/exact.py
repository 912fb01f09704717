"""Exact minimisation of discrete energies.

Labels that cannot matter and variables of few neighbours go first; what is left falls into components.  A component of small width is
minimised by elimination, a binary pairwise one as a quadratic function, another by branch and bound on tightened relaxations.
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
from blocklp.language.expression import View
from blocklp.problems.discrete.elimination import PER_ENTRY, cheapest_order, eliminate
from blocklp.problems.discrete.exact import DEFAULT, Callback, ExactResult, ExactRun, ExactSettings, in_units
from blocklp.problems.discrete.given import check_instance
from blocklp.problems.discrete.integers import Grid, Unit, total_of
from blocklp.problems.discrete.pipeline import Bracket, minimised, proved
from blocklp.problems.discrete.reduced import Reduced
from blocklp.problems.discrete.tightened_search import BUDGET, Branching, Fixings, better, search_tightened
from blocklp.problems.discrete.tightening import Labelled
from blocklp.problems.discrete.together import before
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.messages import SLOWS, passed
from blocklp.problems.mrf.reductions import reduced
from blocklp.problems.mrf.relaxation import STATING, relax, stating_seconds
from blocklp.problems.mrf.rounding import alone, improved, incumbent
from blocklp.problems.mrf.tightening import tightening_of
from blocklp.problems.qpbo.arrays import FloatArray, IntArray
from blocklp.problems.qpbo.exact import Functions
from blocklp.status import Status

FIRST = 0.2
"""Share of the time left that goes to a first labelling, at most."""

REDUCING = 1e-5
"""Seconds for each variable and factor that it takes to begin reductions and to state what they leave."""

AS_FUNCTION = 16
"""Sums of so many times the entries come up where tables are stated as quadratic functions."""


def solve_mrf_exactly(
    mrf: Mrf,
    *,
    time_limit: float | Deadline = math.inf,
    callback: Callback | None = None,
    executor: Executor | None = None,
    settings: ExactSettings = DEFAULT,
) -> ExactResult:
    """Minimise a discrete energy, with proof.

    Parameters
    ----------
    mrf : Mrf
        The energy.
    time_limit, callback, executor, settings
        As in :func:`blocklp.problems.qpbo.solve_qpbo_exactly`.

    Returns
    -------
    ExactResult
        Labels are int64.  Where no labelling respects the hard constraints, or all have the energy ``mrf.top`` or more, energy and
        bound are infinite, and that is proved.

    Raises
    ------
    OptionError
        ``time_limit`` is not positive.
    ModelError
        It is no ``Mrf``, or the magnitudes of the finite entries add up to more than float64 holds.

    Examples
    --------
    >>> from blocklp.problems.mrf import Mrf, solve_mrf_exactly
    >>> found = solve_mrf_exactly(Mrf([3, 3], [((0,), [0, 2, 3]), ((0, 1), [[5, 4, 5], [1, 5, 5], [5, 5, 0]])]))
    >>> found.labels.tolist(), found.energy, found.bound, found.proven
    ([1, 0], 3.0, 3.0, True)
    """
    check_instance(mrf, Mrf)
    deadline = Deadline.of(time_limit)
    began = deadline.elapsed()
    finite = [np.isfinite(group.tables) for group in mrf.groups]
    values = [np.where(known, group.tables, 0.0) for known, group in zip(finite, mrf.groups, strict=True)]
    sizes = np.concatenate([np.zeros(0), *(_most(np.abs(own)) for own in values)])
    total_of(np.append(sizes, mrf.constant) * AS_FUNCTION)
    # Large energies often have few different entries.
    unit = Unit.of(np.unique(np.concatenate([np.zeros(1), *(own.ravel() for own in values)])), AS_FUNCTION * total_of(sizes))
    whole = [unit.whole(own) for own in values]
    integral = mrf.with_tables([np.where(known, own, np.inf) for known, own in zip(finite, whole, strict=True)])
    run = ExactRun(deadline, in_units(callback, float(unit.size)), executor=executor, settings=settings)
    found = proved(Energies(unit.near), integral, run)
    energy, bound = _energy(mrf, found.labels), math.inf
    if found.bound < math.inf:
        below = Fraction(mrf.constant) + unit.size * int(found.bound) - _charge(unit, values, whole, sizes)
        bound = min(energy, rounded_down(below))
    if bound == math.inf or bound >= mrf.top:
        energy, bound, run.status = math.inf, math.inf, Status.INFEASIBLE
    elif energy >= mrf.top:
        # No labelling below the top is known; where the best of all is, rounding alone left the bound below it.
        energy, run.status = math.inf, Status.STALLED if run.status is Status.OPTIMAL else run.status
    return run.result(torch.tensor(found.labels), energy, bound, unit, deadline.elapsed() - began)


def _charge(unit: Unit, values: list[FloatArray], whole: list[FloatArray], sizes: FloatArray) -> Fraction:
    """By how much the integers of a labelling can stand for more than its entries: the worst entry of every factor."""
    if unit.exact:
        return Fraction(0)
    size = float(unit.size)
    # The unit, a product with it and a difference are rounded: three parts in 2^53 of the entry.
    excess = [_most(own * size - given) for given, own in zip(values, whole, strict=True)]
    return Fraction(math.fsum(np.concatenate([2.0**-51 * sizes, *excess]))) * (1 + Fraction(1, 2**52))


def _most(tables: FloatArray) -> FloatArray:
    """The largest entry of each of the tables ``(factors, ...)``, but at least 0."""
    return np.asarray(tables.reshape(len(tables), -1).max(axis=1, initial=0.0))


def _energy(mrf: Mrf, labels: IntArray) -> float:
    """The energy, rounded once."""
    return math.fsum(np.concatenate([[mrf.constant], *(group.values(labels) for group in mrf.groups)]))


@dataclass(frozen=True)
class Energies:
    """Energies of integers, as the pipeline of exact solvers sees them; a bound is infinite where no labelling is feasible.

    Attributes
    ----------
    near : float
        Share of the magnitudes that does not matter.
    """

    near: float

    def seconds(self, problem: Mrf) -> float:
        """Return nothing: where there is no time for reductions they are left out, and the search looks at the clock itself."""
        return 0.0

    def least(self, problem: Mrf) -> float:
        """Return the sum of the least entries."""
        return problem.constant + sum(float(group.tables.reshape(len(group.tables), -1).min(1).sum()) for group in problem.groups)

    def begin(self, problem: Mrf, deadline: Deadline) -> IntArray:
        """Return the label of least cost of each variable."""
        return np.asarray(alone(problem).numpy())

    def reduce(self, problem: Mrf, run: ExactRun) -> Reduced[Mrf]:
        """Drop labels, minimise out variables of at most two neighbours, and split; nothing where there is no time for that."""
        seconds = REDUCING * (problem.n + len(problem.factors))
        if not run.deadline.affords(2 * seconds):
            return Reduced(0.0, (problem,), lambda found: found[0])
        return reduced(problem, before(run.deadline, seconds), run.settings.reduced_table)

    def search(self, part: Mrf, found: Bracket) -> None:
        """Eliminate where tables are small; else minimise as a quadratic function, or branch by labels."""
        run = found.run
        order = cheapest_order(part.counts.tolist(), part.edges, run.settings.energy_tables, run.deadline, ("table",))
        if order.work <= run.settings.energy_tables and run.deadline.affords(4 * PER_ENTRY * order.work):
            labels = eliminate(part.counts.tolist(), part.factors, order, run.deadline)
            found.eliminated(labels, part.energy)
            return
        if (qubo := part.to_qubo()) is not None:
            # So that what does not matter to the function does not matter to the energy either.
            function = minimised(Functions(self.near / AS_FUNCTION), qubo, run)
            found.labels, found.bound = function.labels.astype(np.int64), max(found.bound, function.bound)
        else:
            self._searched(part, found)

    def _searched(self, mrf: Mrf, found: Bracket) -> None:
        run, stating = found.run, stating_seconds(mrf)
        share = FIRST if run.deadline.affords(stating) else 1.0
        best = incumbent(mrf, run.deadline.within(share * run.deadline.left()))
        found.labels = best.labels.numpy()
        run.deadline.check(STATING, stating)
        relaxation = relax(mrf, "edges", time_limit=run.deadline)
        columns = [relaxation.views[i,].index for i in range(mrf.n)]
        some = _SomeLabels(self, mrf, np.cumsum([0, *(len(c) for c in columns)]), best)
        variables = View(relaxation.model, "labels", torch.cat(columns))
        begun = passed(relaxation, run.deadline, SLOWS)
        if begun is not None:
            best = better(best, begun.best)
        finite = [np.where(np.isfinite(group.tables), group.tables, 0.0) for group in mrf.groups]
        total = sum(float(_most(np.abs(own)).sum()) for own in finite)
        grid = Grid.of(np.concatenate([own.ravel() for own in finite]), self.near, total)
        problem = tightening_of(relaxation, BUDGET.blocks, run.deadline, begun)
        best, below = search_tightened(problem, Branching(variables, some.size, some.rounded, some.rest), best, grid, run)
        found.labels, found.bound = best.labels.numpy(), max(found.bound, below)


@dataclass(frozen=True, eq=False)
class _SomeLabels:
    """Energies on some of the labels of each variable, as fixings ``(labels of all variables,)`` leave them.

    Attributes
    ----------
    kind : Energies
        Solves what is left.
    mrf : Mrf
        The energy.
    ends : numpy.ndarray, shape (n + 1,)
        Where the labels of a variable begin and end.
    best : Labelled
        A labelling to return where there is none.
    """

    kind: Energies
    mrf: Mrf
    ends: IntArray
    best: Labelled

    def kept(self, fixings: Fixings) -> list[IntArray]:
        """The labels that are left: those that are not 0 where no other one is 1."""
        own = [fixings[self.ends[i] : self.ends[i + 1]] for i in range(self.mrf.n)]
        return [np.flatnonzero((f != 0) & ((f == 1).sum() == (f == 1))) for f in own]

    def size(self, fixings: Fixings) -> int:
        """The number of labels to choose from."""
        return sum(len(k) - 1 for k in self.kept(fixings))

    def rest(self, fixings: Fixings, run: ExactRun) -> tuple[Labelled, float]:
        """Minimise over the labels that are left."""
        labels = self.kept(fixings)
        if not all(len(k) for k in labels):
            return self.best, math.inf
        counts = np.array([len(k) for k in labels])
        factors = [(scope, table[np.ix_(*(labels[i] for i in scope))]) for scope, table in self.mrf.factors]
        left = minimised(self.kind, Mrf(counts, factors), run)
        whole = np.array([k[label] for k, label in zip(labels, left.labels.tolist(), strict=True)])
        return Labelled(torch.tensor(whole), float(self.mrf.energy(whole))), left.bound

    def rounded(self, points: Tensor, deadline: Deadline) -> Labelled:
        """A labelling from points, by the likeliest labels."""
        starts = torch.stack([points[:, self.ends[i] : self.ends[i + 1]].argmax(1) for i in range(self.mrf.n)], 1)
        return improved(self.mrf, starts, deadline)
