"""Simulated annealing, and the short search for a good labelling that follows a relaxation.

Annealing finds better labellings than descents and tabu search do in as much time where variables are many and pairs are few: cuts
of the larger graphs of the G-set within 1 % of the best ones known in less than a second (as T. Myklebust, Solving maximum cut
problems by simulated annealing, 2015, says too).
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import OptionError
from blocklp.problems.discrete.adjacency import Adjacency, check_points
from blocklp.problems.discrete.exact import affordable_loops, affordable_rounds
from blocklp.problems.qpbo.heuristics import Labellings, coefficients_and_fields, one_flip_descent, tabu_search
from blocklp.problems.qpbo.instance import Qubo

HOT, COLD = 0.5, 0.08
"""First and last temperature, in the unit that :func:`anneal` describes."""
SWEEPS, STARTS, FEWEST = 1000, 8, 20
"""Sweeps of a short search, its labellings, and the fewest sweeps that are of use."""
WORK, PER_SECOND, SHARE = 4e7, 1e8, 0.3
"""Steps of a short search at most, steps in a second at least, and the share of the time left that it takes at most."""
SMALL, MOVES = 200, 2000
"""Variables up to which a process that has not loaded compiled loops does without, and moves that it makes then."""


def anneal(
    qubo: Qubo, y: Tensor, sweeps: int = SWEEPS, hot: float | Tensor = HOT, *, time_limit: float | Deadline = math.inf
) -> Labellings:
    """Anneal each labelling, descend from the best labels that it came by, and keep these or the start, whichever is better.

    Parameters
    ----------
    qubo : Qubo
        The function.
    y : Tensor, shape (batch, n), any dtype
        Labels 0 or 1.  Equal ones part: random numbers differ by the place in the batch, and are the same in every call.
    sweeps : int
        How often every variable is looked at.
    hot : float or Tensor
        The first temperature, of all or ``(batch,)`` of each, in units of half the mean over the variables of the root of the sum of
        squares of their pairs' coefficients.  The last one is 0.08.
    time_limit : float or Deadline
        Seconds; fewer sweeps are made then.

    Returns
    -------
    Labellings
        Never worse than ``y``, and one-flip optima; where there are no compiled loops, or no time for them, those of a descent.

    Raises
    ------
    ShapeError
        ``y`` has not shape (batch, n).
    OptionError
        ``sweeps`` is negative, or a temperature is not positive.
    """
    check_points(y, qubo.n, "y")
    temperatures = torch.as_tensor(hot, dtype=torch.float64).expand(len(y)).contiguous()
    if sweeps < 0 or not bool((temperatures > 0).all()):
        raise OptionError(f"sweeps is {sweeps} and hot {hot}; give 0 or more sweeps, and positive temperatures")
    deadline = Deadline.of(time_limit)
    start = one_flip_descent(qubo, y, time_limit=deadline)
    kernels = affordable_loops("blocklp.problems.qpbo.annealing_kernels", deadline)
    if kernels is None:
        return start
    sweeps = affordable_rounds(sweeps, deadline, PER_SECOND, len(y) * _steps(qubo))
    adjacency = Adjacency.build(qubo.n, qubo.edges, torch.device("cpu"))
    labels = start.y.double().cpu()
    _, coupling, field = coefficients_and_fields(qubo, adjacency, labels)
    largest = float(coupling.abs().max()) if len(coupling) else 1.0  # its square may be more than float64 holds
    pull = torch.zeros(qubo.n, dtype=torch.float64).index_add_(0, adjacency.owner, (coupling / largest).square()).sqrt()
    unit = max(largest * float(pull.mean()) / 2, sys.float_info.min)
    found = labels.clone()
    lists = (adjacency.first, adjacency.degree, adjacency.neighbour, coupling)
    kernels.anneal(len(y), *lists, temperatures * unit, COLD * unit, sweeps, labels, field, found)
    last = one_flip_descent(qubo, found.to(y.device), time_limit=deadline)
    better = last.energy < start.energy
    return Labellings(torch.where(better[:, None], last.y, start.y), torch.where(better, last.energy, start.energy))


def short_search(qubo: Qubo, y: Tensor, *, work: float = WORK, time_limit: float | Deadline = math.inf) -> Labellings:
    """Improve a labelling by annealing at several temperatures, or by tabu search where that is sooner.

    Parameters
    ----------
    qubo : Qubo
        The function.
    y : Tensor, shape (1, n), any dtype
        Labels 0 or 1.
    work : float
        Steps at most, some hundred million a second: a sweep is one for each variable and one for five pairs.
    time_limit : float or Deadline
        Seconds, of which a part is taken.

    Returns
    -------
    Labellings
        One labelling, never worse than ``y``.

    Raises
    ------
    ShapeError
        ``y`` has not shape (batch, n).
    """
    deadline = Deadline.of(time_limit)
    if qubo.n <= SMALL and "numba" not in sys.modules:
        return tabu_search(qubo, y, min(20 * qubo.n, MOVES), time_limit=deadline)
    work = min(work, SHARE * deadline.left() * PER_SECOND)
    sweeps = int(min(SWEEPS, work / _steps(qubo)))
    if sweeps < FEWEST:
        return one_flip_descent(qubo, y, time_limit=deadline)
    lanes = int(min(STARTS, max(1.0, work / (sweeps * _steps(qubo)))))
    hot = HOT * torch.arange(1, lanes + 1, dtype=torch.float64) / lanes
    found = anneal(qubo, y[:1].expand(lanes, -1), sweeps, hot, time_limit=deadline)
    best = found.energy.argmin()[None]
    return Labellings(found.y[best], found.energy[best])


def _steps(qubo: Qubo) -> float:
    """What a sweep takes."""
    return qubo.n + len(qubo.edges) / 5
