"""Bounds beyond roof duality: violated clusters join the relaxation while the labelling and the bound are apart."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.problems.qpbo.clusters import Pairs, violated_cycles
from blocklp.problems.qpbo.heuristics import Labellings, round_fractional, tabu_search
from blocklp.problems.qpbo.instance import Qubo
from blocklp.solution import Values
from blocklp.tightening import Budget, Clusters, Round, Tightened, tighten

STARTS, TABU_NODES = 32, 2000
"""Labellings from which tabu search starts, and the largest instance that it takes."""

Told = Callable[[Round, float], Any]


def tightened(
    model: bl.Model,
    qubo: Qubo,
    budget: Budget | None = None,
    *,
    tol: float = 1e-4,
    cutoff: float = math.inf,
    told: Told | None = None,
    **options: Any,
) -> tuple[Tightened, Labellings]:
    """Tighten a roof-duality model until its bound meets the best labelling found.

    Parameters
    ----------
    model : Model
        The roof-duality model of the instance; it grows.
    qubo : Qubo
        The instance.
    budget : Budget, optional
        How far to go.
    tol : float
        Relative gap between bound and labelling, or of the LP, at which to stop.
    cutoff : float
        Stop once the bound reaches this value.
    told : callable, optional
        Gets every :class:`blocklp.tightening.Round` and the energy of the best labelling; True ends the work.
    **options
        Those of :func:`blocklp.tightening.tighten`.

    Returns
    -------
    Tightened, Labellings
        The labelling, the best one, is a primal point of the solution; the status is ``OPTIMAL`` where bound and labelling meet.
    """
    if not isinstance(tol, int | float) or not isinstance(cutoff, int | float):
        raise OptionError(f"{tol=}, {cutoff=}; tightening takes one number for all instances")
    budget = budget or Budget()
    best = incumbent(qubo)

    def goal() -> float:
        energy = float(best.energy[0])
        return min(cutoff, energy - tol * max(1.0, abs(energy)))

    def look(round: Round, solution: bl.Solution) -> bool:
        nonlocal best
        rounded = round_fractional(qubo, solution.x["y"])
        if bool(rounded.energy[0] < best.energy[0]):
            best = rounded
        stop = told is not None and told(round, float(best.energy[0]))
        return bool(stop) or float(round.bound[0]) >= goal()

    def search(solution: bl.Solution) -> list[Clusters]:
        return violated_cycles(qubo, solution, budget.blocks)

    found = tighten(model, search, budget, tol=tol, cutoff=goal(), told=look, **options)
    return replace(found, solution=_with_labelling(qubo, found.solution, best, tol)), best


def incumbent(qubo: Qubo) -> Labellings:
    """Return a good labelling, found without a relaxation: the best of tabu searches, or of descents for large instances."""
    starts = torch.rand(STARTS, qubo.n, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 1, STARTS)[:, None]
    found = tabu_search(qubo, starts) if qubo.n <= TABU_NODES else round_fractional(qubo, starts.double(), [0.5])
    best = found.energy.argmin()[None]
    return Labellings(found.y[best], found.energy[best])


def _with_labelling(qubo: Qubo, solution: bl.Solution, labels: Labellings, tol: float) -> bl.Solution:
    """Offer a labelling and its products as a primal point of the LP, which they are."""
    energy = labels.energy.to(solution.bound)
    if not bool(energy[0] < solution.primal[0]) and bool(torch.isfinite(solution.primal[0])):
        return solution
    gap = (energy - solution.bound).clamp(min=0) / torch.maximum(energy.abs(), solution.bound.abs()).clamp(min=1)
    x = lifted(qubo, solution, labels.y.to(solution.raw_x))
    stopped = bl.Status.INTERRUPTED in solution.status
    status = solution.status if stopped or bool(gap[0] > tol) else (bl.Status.OPTIMAL,)
    values = Values(x, solution.solver.models[0].variables)
    return replace(solution, primal=energy, gap=gap, raw_x=x, x=values, status=status)


def lifted(qubo: Qubo, solution: bl.Solution, y: Tensor) -> Tensor:
    """Labels ``(batch, n)`` with all products of the model, chords included: ``(batch, variables)``."""
    x = torch.zeros(len(y), solution.solver.models[0].size, dtype=y.dtype, device=y.device)
    x[:, : qubo.n] = y
    if len(qubo.edges):
        pairs = Pairs.of(qubo, solution)
        i, j = pairs.ends.T
        x[:, pairs.column] = y[:, i] * y[:, j]
    return x


def tighten_all(
    models: Sequence[bl.Model], qubos: Sequence[Qubo], budget: Budget | None, *, time_limit: float = math.inf, **options: Any
) -> list[tuple[Tightened, Labellings]]:
    """:func:`tightened` for several instances in turn, since each gets clusters of its own; ``time_limit`` is for all."""
    began = time.perf_counter()
    found: list[tuple[Tightened, Labellings]] = []
    for model, qubo in zip(models, qubos, strict=True):
        left = max(time_limit - (time.perf_counter() - began), 1e-9) if found else time_limit
        found.append(tightened(model, qubo, budget, time_limit=left, **options))
        if bl.Status.INTERRUPTED in found[-1][0].solution.status:
            options |= {"told": lambda *_: True, "passes": 1}
    return found
