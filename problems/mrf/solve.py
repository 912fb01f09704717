"""Bounds and labellings of Markov random fields in one call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.problems.mrf.heuristics import descend, expand, fuse
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.relaxation import Decomposition, Relaxation, relax
from blocklp.problems.mrf.tightening import cycles, violated_clusters
from blocklp.problems.qpbo.heuristics import round_fractional
from blocklp.problems.together import solve_together

PATIENCE = 100
"""Passes without progress after which averaging gives way to the default method."""

DRAWN = 62
"""Labellings drawn from the marginals."""

FUSED = 20
"""Labellings, the best first, that are fused."""

ROUND_PASSES = 300
"""Passes after each round of new clusters."""

MOST_NEW = 2000
"""New clusters in a round."""


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
        Its value, an upper bound on the minimum; infinite if no labelling that respects the hard constraints was found.
    gap : float
        ``(energy - bound) / max(1, |energy|, |bound|)``: how far the labelling can be from the minimum.
    """

    relaxation: bl.Solution
    labels: Tensor
    energy: float
    gap: float

    @property
    def bound(self) -> float:
        """The bound on the minimum."""
        return float(self.relaxation.bound[0])


@overload
def solve_mrf(
    mrfs: Mrf, decomposition: Decomposition = ..., clusters: Iterable[Sequence[int]] = ..., *, rounds: int = ..., **options: Any
) -> MrfSolution: ...
@overload
def solve_mrf(
    mrfs: Sequence[Mrf],
    decomposition: Decomposition = ...,
    clusters: Iterable[Sequence[int]] = ...,
    *,
    rounds: int = ...,
    **options: Any,
) -> list[MrfSolution]: ...
def solve_mrf(
    mrfs: Mrf | Sequence[Mrf],
    decomposition: Decomposition = "auto",
    clusters: Iterable[Sequence[int]] = (),
    *,
    rounds: int = 0,
    **options: Any,
) -> MrfSolution | list[MrfSolution]:
    """Bound energies by their LP relaxation and find labellings.

    With ``method="auto"`` models with hard constraints are first solved by averaging of min-marginals, which deals with them in a
    fraction of the passes, and only where that comes to rest by the default method, from there.

    Parameters
    ----------
    mrfs : Mrf or sequence of Mrf
        Several instances are solved in as few batches as their shapes allow, unless there are rounds.
    decomposition, clusters
        As in :func:`relax`; clusters are those of all instances.
    rounds : int
        Rounds of tightening by clusters of the cycles of the graph, each of 300 passes at most; by edges, whatever ``decomposition``
        says.
    **options
        Those of :meth:`blocklp.Model.solve`, but for ``warm_start`` and ``bounds``.

    Returns
    -------
    MrfSolution or list of MrfSolution
        As ``mrfs`` is one instance or several.

    Raises
    ------
    OptionError, ScopeError, DeviceError
        An option or a cluster is wrong, or the device is missing.
    """
    if rounds < 0:
        raise OptionError(f"rounds is {rounds}; give 0 or more")
    if isinstance(mrfs, Mrf):
        return solve_mrf([mrfs], decomposition, clusters, rounds=rounds, **options)[0]
    began, shared = time.perf_counter(), list(clusters)
    time_limit: float = options.pop("time_limit", math.inf)
    relaxations = [relax(mrf, "edges" if rounds else decomposition, shared) for mrf in mrfs]

    def left() -> float:
        return max(time_limit - (time.perf_counter() - began), 1e-9) if time_limit > 0 else time_limit

    if rounds:
        return [_tightened(relaxation, shared, rounds, left, options) for relaxation in relaxations]
    solutions = _solved(relaxations, left, options)
    return [finish(*pair, left()) for pair in zip(relaxations, solutions, strict=True)]


def _solved(relaxations: list[Relaxation], left: Callable[[], float], options: dict[str, Any]) -> list[bl.Solution]:
    """Solve instances with and without hard constraints together."""
    found: dict[int, bl.Solution] = {}
    for hard in (True, False):
        members = [k for k, relaxation in enumerate(relaxations) if bool((relaxation.bounds == 0).any()) is hard]
        if not members:
            continue
        averaging = {"method": "min-marginals", "patience": PATIENCE} if hard and options.get("method", "auto") == "auto" else {}
        together = solve_together([relaxations[k].model for k in members], time_limit=left(), **{**options, **averaging})
        for k, solution in zip(members, together, strict=True):
            stuck = averaging and solution.status[0] == bl.Status.STALLED
            found[k] = _continued(relaxations[k], solution, left(), options) if stuck else solution
    return [found[k] for k in range(len(relaxations))]


def _tightened(
    relaxation: Relaxation, clusters: list[Sequence[int]], rounds: int, left: Callable[[], float], options: dict[str, Any]
) -> MrfSolution:
    """Solve, add violated clusters and go on from the same multipliers."""
    mrf = relaxation.mrf
    [solution] = _solved([relaxation], left, options)
    best, known = finish(relaxation, solution, left()), [tuple(sorted(c)) for c in clusters]
    candidates = cycles(mrf)
    for _ in range(rounds):
        if best.gap <= options.get("tol", 1e-4) or left() < 1e-6 or solution.status[0] == bl.Status.INTERRUPTED:
            break
        fresh = set(candidates) - set(known)
        new = violated_clusters(relaxation, solution, [c for c in candidates if c in fresh], MOST_NEW)
        if not new:
            break
        known += new
        relaxation = relax(mrf, "edges", known)
        limits = {**options, "passes": min(ROUND_PASSES, options.get("passes", ROUND_PASSES))}
        solution = _continued(relaxation, solution, left(), limits)
        found = finish(relaxation, solution, left())
        if best.energy < found.energy:
            found = replace(found, labels=best.labels, energy=best.energy, gap=gap_between(best.energy, found.bound))
        best = found
    return best


def _continued(relaxation: Relaxation, begun: bl.Solution, time_limit: float, options: dict[str, Any]) -> bl.Solution:
    """Go on with the method that is asked for, from the multipliers of the same model or of one with fewer blocks."""
    last = relaxation.model.solve(warm_start=begun.state, time_limit=time_limit, **options)
    if len(last.raw_x[0]) != len(begun.raw_x[0]):
        return replace(
            last, passes=begun.passes + last.passes, seconds=begun.seconds + last.seconds, history=begun.history + last.history
        )
    better = last if float(last.primal[0]) <= float(begun.primal[0]) else begun
    gap = (better.primal - last.bound).abs() / torch.maximum(better.primal.abs(), last.bound.abs()).clamp(min=1)
    return replace(
        last,
        primal=better.primal,
        gap=gap,
        x=better.x,
        raw_x=better.raw_x,
        passes=begun.passes + last.passes,
        seconds=begun.seconds + last.seconds,
        history=begun.history + last.history,
    )


def finish(relaxation: Relaxation, solution: bl.Solution, time_limit: float = math.inf) -> MrfSolution:
    """Round the point of a solved relaxation and improve it.

    Starts are the likeliest label of each variable, its label of least cost, and labels drawn by their marginals with a fixed seed;
    binary models without hard constraints add those of :func:`blocklp.problems.qpbo.round_fractional`.  All descend together.  In
    pairwise models the best one is improved by expansion moves and fused with the next ones.

    Parameters
    ----------
    relaxation : Relaxation
        Of one instance.
    solution : Solution
        Of its model.
    time_limit : float
        Seconds for expansion moves.
    """
    mrf = relaxation.mrf
    marginals = relaxation.marginals(solution).cpu().to(torch.float64)
    likeliest = marginals.argmax(-1)
    alone = torch.zeros_like(likeliest)
    for scope, table in mrf.factors:
        if len(scope) == 1:
            alone[0, scope[0]] = int(table.argmin())
    # Far from convergence a variable may have no weight at all, or a little below zero.
    exists = torch.arange(marginals.shape[-1]) < torch.tensor(mrf.counts)[:, None]
    weights = marginals[0].clamp(min=0) + 1e-3 * exists
    drawn = torch.multinomial(weights, DRAWN, replacement=True, generator=torch.Generator().manual_seed(0)).T
    starts = [likeliest, alone, drawn]
    if not relaxation.views and (qubo := mrf.to_qubo()) is not None:
        starts.append(round_fractional(qubo, solution.x["y"].cpu()).y.long())
    improved = descend(mrf, torch.cat(starts))
    ranked = improved.labels[improved.energy.argsort(stable=True)]
    labels = ranked[0]
    if mrf.order <= 2:
        expanded = expand(mrf, labels.numpy(), time_limit)
        labels = torch.tensor(expand(mrf, fuse(mrf, expanded, ranked[1:FUSED].numpy()), time_limit))
    energy = float(mrf.energy(labels.numpy()))
    return MrfSolution(solution, labels, energy, gap_between(energy, float(solution.bound[0])))


def gap_between(energy: float, bound: float) -> float:
    """How far a labelling can be from the minimum, relative to its size; infinite where it violates a hard constraint."""
    return max(0.0, energy - bound) / max(1.0, abs(energy), abs(bound)) if math.isfinite(energy) else math.inf
