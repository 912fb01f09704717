"""Tighten the LP of a labelling problem until its bound meets the best labelling found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.problems.discrete.together import share, stop
from blocklp.results.values import Values
from blocklp.search.best_first import relative_gap
from blocklp.search.tightening import Budget, Round, Search, Tightened, tighten

T = TypeVar("T")

Told = Callable[[Round, float], Any]
"""Gets every round and the energy of the best labelling; True ends the work."""


@dataclass(frozen=True)
class Labelled:
    """A labelling ``(n,)`` and its energy, to be minimised."""

    labels: Tensor
    energy: float


@dataclass(frozen=True)
class Problem:
    """What tightening has to know of a labelling problem.

    Attributes
    ----------
    model : Model
        Its relaxation; it grows.
    search : callable
        That of :func:`blocklp.tighten`.
    rounded : callable
        Takes a solution to a labelling.
    lifted : callable
        Takes a solution and labels to the point ``(1, variables)`` of its model that they are.
    options : dict
        Options of :func:`blocklp.tighten` that suit it.
    """

    model: bl.Model
    search: Search
    rounded: Callable[[bl.Solution], Labelled]
    lifted: Callable[[bl.Solution, Tensor], Tensor]
    options: dict[str, Any] = field(default_factory=dict)


def tightened(
    problem: Problem,
    best: Labelled,
    budget: Budget,
    *,
    tol: float = 1e-4,
    cutoff: float = math.inf,
    told: Told | None = None,
    enough: Callable[[bl.Solution, Labelled], bool] | None = None,
    **options: Any,
) -> tuple[Tightened, Labelled]:
    """Tighten a relaxation until its bound comes within ``tol`` of the best labelling, or reaches the cutoff.

    Parameters
    ----------
    problem : Problem
        The problem.
    best : Labelled
        A labelling to begin with.
    budget : Budget
        How far to go.
    tol : float
        Relative gap between bound and labelling, or of the LP, at which to stop.
    cutoff : float
        Stop once the bound reaches this value.
    told : callable, optional
        As :data:`Told`.
    enough : callable, optional
        Gets the solution of every round and the best labelling; True ends the work too.
    **options
        Those of :func:`blocklp.search.tightening.tighten`.

    Returns
    -------
    Tightened, Labelled
        The labelling, the best one, is a primal point of the solution; the status is ``OPTIMAL`` where bound and labelling meet.

    Raises
    ------
    OptionError
        ``tol`` or ``cutoff`` is no single number.
    """
    if not isinstance(tol, int | float) or not isinstance(cutoff, int | float):
        raise OptionError(f"{tol=}, {cutoff=}; tightening takes one number for all instances")

    floor = 0.0

    def goal() -> float:
        return min(cutoff, best.energy - tol * max(floor, abs(best.energy))) if math.isfinite(best.energy) else cutoff

    def look(round: Round, solution: bl.Solution) -> bool:
        nonlocal best, floor
        floor = float(solution.floor[0])
        found = problem.rounded(solution)
        if found.energy < best.energy:
            best = found
        stop = told is not None and told(round, best.energy)
        return bool(stop) or float(round.bound[0]) >= goal() or (enough is not None and enough(solution, best))

    found = tighten(problem.model, problem.search, budget, tol=tol, cutoff=goal(), told=look, **{**options, **problem.options})
    return replace(found, solution=_with_labelling(problem, found.solution, best, tol)), best


def _with_labelling(problem: Problem, solution: bl.Solution, best: Labelled, tol: float) -> bl.Solution:
    """Offer a labelling as a primal point of the LP, which it is."""
    if not best.energy < float(solution.primal[0]):
        return solution
    energy = torch.full_like(solution.primal, best.energy)
    gap = torch.full_like(energy, relative_gap(best.energy, float(solution.bound[0]), float(solution.floor[0])))
    x = problem.lifted(solution, best.labels)
    stopped = bl.Status.INTERRUPTED in solution.status
    status = solution.status if stopped or bool(gap[0] > tol) else (bl.Status.OPTIMAL,)
    values = Values(x, solution.solver.models)
    return replace(solution, primal=energy, gap=gap, raw_x=x, x=values, status=status)


def tighten_in_turn(
    calls: Sequence[Callable[..., tuple[Tightened, T]]], *, time_limit: float | bl.Deadline = math.inf, **options: Any
) -> list[tuple[Tightened, T]]:
    """Tighten several instances one after another, since each gets clusters of its own; ``time_limit`` is for all, in equal shares.

    What an instance leaves of its share goes to the next ones.
    """
    deadline = bl.Deadline.of(time_limit)
    found: list[tuple[Tightened, T]] = []
    for call in calls:
        found.append(call(time_limit=share(deadline, 1, len(calls) - len(found)), **options))
        if bl.Status.INTERRUPTED in found[-1][0].solution.status:
            options |= {"told": stop, "callback": stop, "passes": 1}
    return found
