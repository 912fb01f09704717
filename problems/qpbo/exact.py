"""Exact minimisation of quadratic pseudo-boolean functions.

Variables of low degree and proved labels go first; what is left falls into components.  A component of small width is minimised by
elimination, another by branch and bound on convex underestimators.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch

from blocklp.campaigns import Executor
from blocklp.certify.exact_arithmetic import rounded_down
from blocklp.deadline import Deadline
from blocklp.errors import TimeLimitError
from blocklp.options import required_hook
from blocklp.problems.elimination import PER_ENTRY, EliminationOrder
from blocklp.problems.exact import DEFAULT, Callback, ExactResult, ExactRun, ExactSettings, in_units, search_loops
from blocklp.problems.integers import Grid, Unit, total_of
from blocklp.problems.qpbo.convex_search import KERNELS, search_convex
from blocklp.problems.qpbo.convexify import Spins
from blocklp.problems.qpbo.elimination import WIDEST, cheapest_order, minimise_by_elimination
from blocklp.problems.qpbo.heuristics import one_flip_descent, round_fractional, tabu_search
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.node_search import Rule, search_nodes
from blocklp.problems.qpbo.presolve import LabelArray, fold, presolve
from blocklp.problems.qpbo.relaxation import roof_duality_model, solve_qpbo
from blocklp.problems.qpbo.tightening import best_of, tightening_of
from blocklp.problems.tightened_search import BUDGET, Branching, Fixings, search_tightened
from blocklp.problems.tightening import Labelled
from blocklp.status import Status

PER_START = 2e-7
"""Seconds that it takes to begin a tabu search and to end it, for each variable and neighbour, on a busy machine."""
PER_ANSWER = 1.5e-6
"""Seconds that it takes to write the answer out, for a variable or a pair, on a busy machine."""
STARTS = 20
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
        Whose workers expand the nodes of dense functions, and of searches with a rule: :class:`blocklp.campaigns.LocalExecutor`
        or :class:`blocklp.campaigns.RayExecutor`.  The nodes are the same for any number of workers.
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
        The magnitudes of the coefficients add up to more than float64 holds.

    Examples
    --------
    >>> from blocklp.problems.qpbo import Qubo, solve_qpbo_exactly
    >>> found = solve_qpbo_exactly(Qubo([-1, -1, -1], [[0, 1], [0, 2], [1, 2]], [2, 2, 2]))
    >>> found.energy, found.bound, found.proven
    (-1.0, -1.0, True)
    """
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
    limit = deadline.within(max(deadline.left() - closing, 1e-9))
    run = ExactRun(limit, in_units(callback, float(unit.size)), executor=executor, settings=settings)
    try:
        labels, below = minimised(integral, Grid.of(whole, unit.near), run, branching)
    except KeyboardInterrupt:
        run.status = Status.INTERRUPTED
        labels, below = _descended(integral, deadline), _trivial(integral)
    bound = rounded_down(Fraction(qubo.offset) + unit.size * int(below) - charge)
    # Rounded once; the sum of products would be rounded at every term.
    inside = labels.astype(bool)
    terms = [qubo.linear[inside], qubo.quadratic[inside[qubo.edges].all(1)], [qubo.offset]]
    energy = math.fsum(np.concatenate(terms))
    seconds, proven = deadline.elapsed() - began, run.status is Status.OPTIMAL
    return ExactResult(torch.tensor(labels), energy, bound, proven, run.nodes, seconds, run.status, run.detail)


def minimised(qubo: Qubo, grid: Grid, run: ExactRun, branching: Rule | None = None) -> tuple[LabelArray, float]:
    """Labels and bound of a function with integer coefficients, below ``run``'s limits.

    Reductions never raise the sum of all magnitudes, so all values are integers that float64 adds up exactly, and multiples of the
    spacing; so are the bounds.

    Parameters
    ----------
    qubo : Qubo
        The function, with integer coefficients.
    grid : Grid
        The grid of its values.
    run : ExactRun
        Deadline, callback and settings; gets the status.
    branching : Rule, optional
        As in :func:`solve_qpbo_exactly`.
    """
    if not run.deadline.affords(PER_TERM * (qubo.n + len(qubo.edges))):
        run.status = Status.TIME_LIMIT
        return _descended(qubo, run.deadline), _trivial(qubo)
    reduced = presolve(qubo, run.deadline)
    found = [_component(part.qubo, _grid_of(part.qubo, grid), run, branching) for part in reduced.parts]
    labels = reduced.lift([mine for mine, _ in found])
    energy = float(qubo.energy(labels))
    gap = sum(float(part.qubo.energy(mine)) - bound for part, (mine, bound) in zip(reduced.parts, found, strict=True))
    return labels, energy - gap


def _component(qubo: Qubo, grid: Grid, run: ExactRun, branching: Rule | None) -> tuple[LabelArray, float]:
    """Labels and bound of a connected function all of whose variables have three neighbours or more."""
    labels, bound = np.zeros(qubo.n, dtype=np.int8), _trivial(qubo)
    try:
        labels = _descended(qubo, run.deadline)
        if run.over():
            return labels, bound
        order = cheapest_order(qubo.n, qubo.edges, run.deadline)
        if order.work <= run.settings.tables_at_once:
            return _eliminated(qubo, order, run, labels, bound)
        labels = _incumbent(qubo, labels, run.deadline.within(max(0.2 * run.deadline.left(), 1e-9)))
        if run.over():
            return labels, bound
        relaxed = solve_qpbo(qubo, tol=1e-5, passes=400, time_limit=run.deadline)
        if relaxed.energy < float(qubo.energy(labels)):
            labels = relaxed.labels.numpy().astype(np.int8)
        bound = grid.raised(max(bound, float(relaxed.relaxation.safe_bound[0])))
        if relaxed.relaxation.status[0] is Status.INTERRUPTED:
            raise KeyboardInterrupt
        weak = relaxed.persistency.weak
        if (weak >= 0).any():
            rest, free, constant = fold(qubo, weak)
            if rest is None:
                return weak.astype(np.int8), constant
            mine, below = minimised(rest, grid, run, branching)
            labels = weak.astype(np.int8)
            labels[free] = mine
            return labels, max(bound, below + constant)
        if branching is not None and not run.over():
            return search_nodes(qubo, labels, grid, run, branching)
        affordable = order.work <= run.settings.tables and order.width <= WIDEST
        if affordable and run.deadline.affords(4 * PER_ENTRY * order.work):
            return _eliminated(qubo, order, run, labels, bound)
        if run.over():
            return labels, bound
        if qubo.n <= LARGEST and len(qubo.edges) > run.settings.dense * qubo.n:
            if search_loops(KERNELS, run) is not None:
                return _searched(qubo, grid, run, labels, bound)
        return _tightened(qubo, grid, run, labels, bound)
    except TimeLimitError:
        run.status = Status.TIME_LIMIT
        return labels, bound
    except KeyboardInterrupt:
        run.status = Status.INTERRUPTED
        return labels, bound


def _grid_of(qubo: Qubo, grid: Grid) -> Grid:
    """The grid of a part, often a coarser one."""
    return Grid.of(np.concatenate([qubo.linear, qubo.quadratic]), grid.near)


def _trivial(qubo: Qubo) -> float:
    """The sum of all that is negative."""
    return float(np.minimum(qubo.linear, 0).sum() + np.minimum(qubo.quadratic, 0).sum())


def _eliminated(qubo: Qubo, order: EliminationOrder, run: ExactRun, labels: LabelArray, bound: float) -> tuple[LabelArray, float]:
    found = minimise_by_elimination(qubo, order, run.deadline)
    if found is None:
        run.status = Status.TIME_LIMIT
        return labels, bound
    run.nodes += 1
    return found, float(qubo.energy(found))


def _searched(qubo: Qubo, grid: Grid, run: ExactRun, labels: LabelArray, bound: float) -> tuple[LabelArray, float]:
    start = (2 * labels - 1).astype(np.int8)
    result, best = search_convex(Spins.of(qubo), grid.step, start, run)
    labels = ((best + 1) // 2).astype(np.int8)
    energy = float(qubo.energy(labels))
    # Whatever was pruned is better by less than a step: by nothing, or by what does not matter.
    if result.proven:
        return labels, max(bound, grid.raised(energy - grid.tolerance))
    run.status = result.status
    return labels, min(energy, grid.raised(max(bound, result.bound - grid.tolerance)))


def _tightened(qubo: Qubo, grid: Grid, run: ExactRun, labels: LabelArray, bound: float) -> tuple[LabelArray, float]:
    model = roof_duality_model(qubo)

    def rest(fixings: Fixings) -> tuple[Labelled, float]:
        left, free, constant = fold(qubo, fixings)
        whole, below = fixings.copy(), constant
        if left is not None:
            whole[free], below = minimised(left, grid, run)
            below += constant
        return Labelled(torch.tensor(whole), float(qubo.energy(whole))), below

    branching = Branching(
        tightening_of(model, qubo, BUDGET.blocks, run.deadline),
        model.variables["y"],
        size=lambda fixings: int((fixings < 0).sum()),
        rounded=lambda points: best_of(round_fractional(qubo, points, time_limit=run.deadline)),
        rest=rest,
    )
    best, found = search_tightened(branching, Labelled(torch.tensor(labels), float(qubo.energy(labels))), grid, run)
    return best.labels.numpy().astype(np.int8), max(bound, found)


def _incumbent(qubo: Qubo, labels: LabelArray, deadline: Deadline) -> LabelArray:
    """A good labelling: tabu search from random ones, or the one given where there is no time to begin one."""
    n = qubo.n
    if not deadline.affords(PER_START * STARTS * (n + 2 * len(qubo.edges))):
        return labels
    starts = torch.tensor(np.random.default_rng(0).integers(0, 2, (STARTS, n)))
    # About 1e8 operations at most.
    found = tabu_search(qubo, starts, int(min(20 * n + 500, 1e8 / STARTS / n)), time_limit=deadline)
    return np.asarray(found.y[int(found.energy.argmin())], dtype=np.int8)


def _descended(qubo: Qubo, deadline: Deadline) -> LabelArray:
    return np.asarray(one_flip_descent(qubo, torch.zeros(1, qubo.n), time_limit=deadline).y[0], dtype=np.int8)
