"""Bounds and labellings of Markov random fields in one call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, overload

import numpy as np
from torch import Tensor

import blocklp as bl
from blocklp.engine.records import relative_gap
from blocklp.errors import OptionError
from blocklp.oracles.chain import Chain
from blocklp.problems.discrete.given import check_instances
from blocklp.problems.discrete.tightening import Labelled, Told, tighten_in_turn
from blocklp.problems.discrete.together import before, lenient, share, solve_together, stop
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.messages import LARGE, SLOWS, Passed, passed
from blocklp.problems.mrf.relaxation import PROVED, STATING, Decomposition, MrfRelaxation, entries_of, relax_in_time
from blocklp.problems.mrf.rounding import incumbent, rounded
from blocklp.problems.mrf.tightening import tightened_local_polytope
from blocklp.problems.qpbo.tightening import tightened_roof_duality
from blocklp.search.best_first import relative_gap as labelling_gap
from blocklp.search.tightening import Budget, Round, Tightened
from blocklp.solver import OVER

FIRST = 0.2
"""Share of the time left that goes to a first labelling before tightening, at most."""

CLOSING = 5e-6
"""Seconds for each entry of a table that rounding deserves, if that is a fifth of the time at most."""

PATIENCE = 100
"""Passes without progress after which averaging gives way to the default method."""

STARTS = 7
"""Starts of a nonconvex method beside the relaxation's labelling: all labels alike, and random ones."""

MANY = 8
"""Labels of a variable from which on averaging goes first: proximal points over tables of that size take many passes to get near."""


@dataclass(frozen=True)
class MrfSolution:
    """A bound, a labelling, and what is proved between them.

    Attributes
    ----------
    relaxation : Solution
        The LP: ``bound``, ``safe_bound``, LP gap, status, multipliers.
    labels : Tensor
        ``(n,)`` int64: the best labelling found.
    energy : float
        Its value, an upper bound on the minimum; infinite if no labelling that respects the hard constraints, and has an energy below
        ``Mrf.top``, was found.
    gap : float
        ``|energy - bound| / max(|energy|, |bound|, relaxation.floor)``: how far the labelling can be from the minimum.
    rounds : tuple of Round
        What tightening came to, one a solve; empty without.
    """

    relaxation: bl.Solution
    labels: Tensor
    energy: float
    gap: float
    rounds: tuple[Round, ...] = ()

    @property
    def bound(self) -> float:
        """The bound on the minimum."""
        return float(self.relaxation.bound[0])


@overload
def solve_mrf(
    mrfs: Mrf,
    decomposition: Decomposition = ...,
    clusters: Iterable[Sequence[int]] = ...,
    tighten: bool | Budget = ...,
    told: Told | None = ...,
    heuristic: str | None = ...,
    **options: Any,
) -> MrfSolution: ...
@overload
def solve_mrf(
    mrfs: Sequence[Mrf],
    decomposition: Decomposition = ...,
    clusters: Iterable[Sequence[int]] = ...,
    tighten: bool | Budget = ...,
    told: Told | None = ...,
    heuristic: str | None = ...,
    **options: Any,
) -> list[MrfSolution]: ...
def solve_mrf(
    mrfs: Mrf | Sequence[Mrf],
    decomposition: Decomposition = "auto",
    clusters: Iterable[Sequence[int]] = (),
    tighten: bool | Budget = False,
    told: Told | None = None,
    heuristic: str | None = None,
    **options: Any,
) -> MrfSolution | list[MrfSolution]:
    """Bound energies by their LP relaxation, tightened if asked for, and find labellings.

    With ``method="auto"`` large models outside of paths of states begin with sweeps of message passing, of which callbacks hear
    (:mod:`blocklp.problems.mrf.messages`). Others with hard constraints, or with variables of eight or more labels, are first solved
    by averaging of min-marginals, which deals with them in a fraction of the passes, and only where that comes to rest by the default
    method, from there.

    Parameters
    ----------
    mrfs : Mrf or sequence of Mrf
        Several instances are solved in as few batches as their shapes allow; one after the other, if they are tightened.
    decomposition, clusters
        As in :func:`relax`; clusters are those of all instances.  Chains are not tightened.
    tighten : bool or Budget
        Whether to add clusters that raise the bound, round by round, until it meets the labelling, and how far to go.  Models that
        are stated by roof duality are tightened as in :func:`blocklp.problems.qpbo.solve_qpbo`.
    told : callable, optional
        Gets every :class:`blocklp.search.Round` and the energy of the best labelling so far; True ends the instance.
    heuristic : str, optional
        A method of :func:`blocklp.problems.mrf.nonconvex.minimise`, which looks for another labelling of each instance in the end,
        from the relaxation's labelling and seven other starts; the better one is kept.
    **options
        Those of :meth:`blocklp.Model.solve`, but for ``warm_start`` and ``bounds``.  Those of passes hold for each instance that is
        tightened and leave out sweeps of message passing, ``time_limit`` holds for all of them and all that is done.  An instance
        that is too large for its relaxation to be stated in time gets the sum of the least entries of its tables for a bound.

    Returns
    -------
    MrfSolution or list of MrfSolution
        As ``mrfs`` is one instance or several.

    Raises
    ------
    OptionError, ScopeError, DeviceError, ModelError
        An option or a cluster is wrong, an instance is no ``Mrf``, the device is missing, or the heuristic does not take an instance.
    TimeLimitError
        The deadline had long been over.
    """
    if isinstance(mrfs, Mrf):
        return solve_mrf([mrfs], decomposition, clusters, tighten, told, heuristic, **options)[0]
    check_instances(mrfs, Mrf)
    if tighten is not False and decomposition == "chains":
        raise OptionError("decomposition='chains' is not tightened; leave it out, or use 'edges'")
    if heuristic is not None:
        from blocklp.problems.mrf.nonconvex.minimise import check_method

        for mrf in mrfs:
            check_method(mrf, heuristic)
    deadline = bl.Deadline.of(options.pop("time_limit", math.inf))
    shared = list(clusters)
    if lenient(deadline).over():
        deadline.check(STATING)
    closing = [CLOSING * (mrf.n + entries_of(mrf)) for mrf in mrfs]
    solving = before(deadline, sum(closing))
    relaxations = [relax_in_time(mrf.without_top(), decomposition, shared, solving) for mrf in mrfs]
    if tighten is not False:
        budget = Budget() if tighten is True else tighten
        calls = [partial(_tightened, relaxation, budget) for relaxation in relaxations]
        found = tighten_in_turn(calls, told=told, time_limit=solving, **options)
        pairs = [(solved, _searched(mrf, best, heuristic, deadline)) for mrf, (solved, best) in zip(mrfs, found, strict=True)]
        return [_between(*result, mrf.top) for result, mrf in zip(pairs, mrfs, strict=True)]
    for relaxation in relaxations:
        if relaxation.views:
            relaxation.points.descents = solving.within(solving.left() - PROVED * entries_of(relaxation.mrf))
    begun = _passed(relaxations, solving, options)
    solutions = _solved(relaxations, begun, solving, options)
    results = []
    for k, (relaxation, solution, mrf) in enumerate(zip(relaxations, solutions, mrfs, strict=True)):
        own = begun.get(k)
        if own is not None and own.closed:
            best = own.best
        else:
            labels = [] if own is None else [own.best.labels]
            best = rounded(relaxation, solution, before(deadline, sum(closing[k + 1 :])), labels)
        results.append(_between(solution, _searched(mrf, best, heuristic, deadline), mrf.top))
    return results


def _searched(mrf: Mrf, best: Labelled, heuristic: str | None, deadline: bl.Deadline) -> Labelled:
    """The better one of a labelling and what a nonconvex method finds from there and from other starts."""
    if heuristic is None or deadline.over():
        return best
    from blocklp.problems.mrf.nonconvex import minimise

    tried = [minimise(mrf, heuristic, starts, time_limit=deadline) for starts in (best.labels[None].long(), STARTS)]
    energy, labels = min(((float(found.energy.min()), found.labels[found.best]) for found in tried), key=lambda pair: pair[0])
    return Labelled(labels, energy) if energy < best.energy else best


def _passed(relaxations: list[MrfRelaxation], deadline: bl.Deadline, options: dict[str, Any]) -> dict[int, Passed]:
    """Where the solves of large models begin, by their numbers, each within its share of the time left."""
    if options.get("method", "auto") != "auto":
        return {}
    found: dict[int, Passed] = {}
    for k, relaxation in enumerate(relaxations):
        if not relaxation.stated:
            continue
        own = passed(relaxation, share(deadline, 1, len(relaxations) - k), callback=options.get("callback"))
        if own is not None:
            found[k] = own
            if own.interrupted:
                break
    return found


def _solved(
    relaxations: list[MrfRelaxation], begun: dict[int, Passed], deadline: bl.Deadline, options: dict[str, Any]
) -> list[bl.Solution]:
    """Solve instances that have begun one by one, others with and without hard constraints in as few batches as shapes allow.

    Each kind, and each instance that goes on, gets its share of the time left; after an interrupt the rest gets a first pass.
    """
    found = {k: _unproved(own, options) for k, own in enumerate(relaxations) if not own.stated}
    options = {**options, "callback": stop} if any(own.interrupted for own in begun.values()) else options
    for k, own in begun.items():
        mine = share(deadline, 1, len(relaxations) - len(found))
        found[k] = relaxations[k].model.solve(warm_start=own.state, time_limit=mine, **{**options, "method": own.method})
        options = _stopped([found[k]], options)
    averages = [_averages(relaxation, options) for relaxation in relaxations]
    for first in (True, False):
        members = [k for k, own in enumerate(averages) if own is first and k not in found]
        if not members:
            continue
        averaging = {"method": "min-marginals", "patience": PATIENCE} if first else {}
        mine = share(deadline, len(members), len(relaxations) - len(found))
        together = solve_together([relaxations[k].model for k in members], time_limit=mine, **{**options, **averaging})
        options = _stopped(together, options)
        averaged = dict(zip(members, together, strict=True))
        stuck = [k for k in members if first and averaged[k].status[0] == bl.Status.STALLED]
        found |= {k: averaged[k] for k in members if k not in stuck}
        for k in stuck:
            found[k] = _continued(relaxations[k], averaged[k], share(deadline, 1, len(relaxations) - len(found)), options)
            options = _stopped([found[k]], options)
    return [found[k] for k in range(len(relaxations))]


def _unproved(relaxation: MrfRelaxation, options: dict[str, Any]) -> bl.Solution:
    """The solution whose bound is that of the variables alone, as if no time were left."""
    return relaxation.model.solve(**{**options, "time_limit": bl.Deadline(OVER)})


def _stopped(solutions: Sequence[bl.Solution], options: dict[str, Any]) -> dict[str, Any]:
    """The options of what comes after some solutions: to stop at once, if one was interrupted."""
    return {**options, "callback": stop} if any(bl.Status.INTERRUPTED in s.status for s in solutions) else options


def _averages(relaxation: MrfRelaxation, options: dict[str, Any]) -> bool:
    """Whether a model is first solved by averaging: where an entry is infinite, or a variable has many labels, outside of paths.

    A path of states sees what it forbids in its oracle.
    """
    if options.get("method", "auto") != "auto":
        return False
    many, hard = relaxation.mrf.counts >= MANY, relaxation.views.upper == 0
    owner = relaxation.views.owner
    for blocks in relaxation.model.blocks:
        if isinstance(blocks.type, Chain) and any(blocks.type.read):
            hard[blocks.scope] = False
            inside = owner[blocks.scope]
            many = many & ~np.isin(np.arange(len(many)), inside[inside >= 0])
    return bool(many.any()) or bool(hard.any())


def _tightened(relaxation: MrfRelaxation, budget: Budget, *, time_limit: bl.Deadline, **options: Any) -> tuple[Tightened, Labelled]:
    """Tighten one relaxation, of whatever decomposition."""
    mrf, untold = relaxation.mrf, {k: v for k, v in options.items() if k != "told"}
    if not relaxation.stated:
        solution = _unproved(relaxation, untold)
        return Tightened(solution, ()), rounded(relaxation, solution, time_limit)
    if not relaxation.views:
        qubo = mrf.to_qubo()
        assert qubo is not None
        found, best = tightened_roof_duality(relaxation.model, qubo, budget, time_limit=time_limit, **options)
        labels = best.labels.long().cpu()
        return found, Labelled(labels, float(mrf.energy(labels.numpy())))

    automatic = options.get("method", "auto") == "auto"
    # Clusters of larger factors have many joint labels, for which sweeps are an order of magnitude faster than the engine.
    least = LARGE if mrf.order <= 2 else 0
    begun = passed(relaxation, time_limit, SLOWS, options.get("callback"), least) if automatic else None
    if begun is not None:
        stopped = {"callback": stop} if begun.interrupted else {}
        return tightened_local_polytope(relaxation, begun.best, budget, begun, time_limit=time_limit, **{**options, **stopped})
    known = incumbent(mrf, time_limit.within(FIRST * time_limit.left()))
    if _averages(relaxation, options):
        if budget.rounds:
            untold["passes"] = min(budget.passes, options.get("passes", budget.passes))
        options["warm_start"] = _solved([relaxation], {}, time_limit, untold)[0]
    return tightened_local_polytope(relaxation, known, budget, time_limit=time_limit, **options)


def _continued(relaxation: MrfRelaxation, begun: bl.Solution, time_limit: bl.Deadline, options: dict[str, Any]) -> bl.Solution:
    """Go on with the method that is asked for, from the multipliers of a solution of the same model."""
    last = relaxation.model.solve(warm_start=begun.state, time_limit=time_limit, **options)
    better = last if float(last.primal[0]) <= float(begun.primal[0]) else begun
    return replace(
        last,
        primal=better.primal,
        gap=relative_gap(better.primal, last.bound, last.floor),
        x=better.x,
        raw_x=better.raw_x,
        passes=begun.passes + last.passes,
        seconds=begun.seconds + last.seconds,
        history=begun.history + last.history,
    )


def _between(found: bl.Solution | Tightened, best: Labelled, top: float) -> MrfSolution:
    """What is proved between a bound and a labelling, which is none where its energy reaches the top."""
    best = best if best.energy < top else replace(best, energy=math.inf)
    solution, rounds = (found.solution, found.rounds) if isinstance(found, Tightened) else (found, ())
    gap = labelling_gap(best.energy, float(solution.bound[0]), float(solution.floor[0]))
    return MrfSolution(solution, best.labels, best.energy, gap, rounds)
