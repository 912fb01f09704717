"""Batched primal heuristics: one-flip descent and rounding of fractional points.

The field of variable i at a labelling y is ``linear_i + sum_j p_ij y_j``; flipping i changes the energy by
``delta_i = (1 - 2 y_i) field_i``.  In every round each variable flips whose delta is negative and better than that of
every neighbour.  No two of these are adjacent, so their deltas add up; the best delta of all is always among them, and
far-apart parts of a sparse instance descend at the same time.  A labelling at which no delta is negative is a one-flip
optimum.

No random numbers are used (on CUDA sums may still be rounded in another order from run to run).  Equal deltas are
ordered by a fixed scattered rank of the variables, because the plain order of their indices would let only one of a
long row of equals move in each round (M. Luby, A simple parallel algorithm for the maximal independent set problem,
SIAM J. Comput. 15 (1986)).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import OptionError
from blocklp.problems.discrete.adjacency import NOISE, Adjacency, check_points
from blocklp.problems.discrete.exact import affordable_loops, affordable_rounds
from blocklp.problems.qpbo.instance import Qubo

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

LARGE = 10_000_000
"""Labels and pairs of all labellings together from which on a descent loads compiled loops."""

MOVES = 2000
"""Tabu moves from which on compiled loops are loaded."""

PIECE, PER_SECOND = 20_000_000, 5e7
"""Labels and pairs of all labellings together between two looks at the clock; those that tabu moves go through in a second."""


@dataclass(frozen=True)
class Labellings:
    """A labelling for each batch element.

    Parameters
    ----------
    y : Tensor, shape (batch, n), int8
        Labels 0 or 1.
    energy : Tensor, shape (batch,), float64
        Their values.
    """

    y: Tensor
    energy: Tensor


def one_flip_descent(qubo: Qubo, y: Tensor, max_rounds: int = 10_000, *, time_limit: float | Deadline = math.inf) -> Labellings:
    """Descend from each labelling to a one-flip optimum.

    Parameters
    ----------
    qubo : Qubo
        The function.
    y : Tensor, shape (batch, n), any dtype
        Labels 0 or 1, on the device to work on.
    max_rounds : int
        Rounds at most; labellings still on their way down are then returned as they are.
    time_limit : float or Deadline
        Seconds, likewise.

    Returns
    -------
    Labellings
        Never worse than ``y``.

    Raises
    ------
    ShapeError
        ``y`` has not shape (batch, n).
    OptionError
        ``max_rounds`` is negative.
    """
    check_points(y, qubo.n, "y")
    if not isinstance(max_rounds, int) or not 0 <= max_rounds < 2**63:
        raise OptionError(f"max_rounds is {max_rounds!r}; give an integer, 0 or more")
    deadline = Deadline.of(time_limit)
    adjacency = Adjacency.build(qubo.n, qubo.edges, y.device)
    labels = y.to(torch.float64, copy=True)
    linear, coupling, field = coefficients_and_fields(qubo, adjacency, labels)
    noise = NOISE * linear.abs().index_add(0, adjacency.owner, coupling.abs())
    # The compiled loop makes the same flips; loading a compiler takes as long as some hundred small descents.
    large = "numba" in sys.modules or len(y) * (qubo.n + len(adjacency.neighbour)) > LARGE
    kernels = affordable_loops("blocklp.problems.qpbo.search_kernels", deadline) if large and y.device.type == "cpu" else None
    if kernels is not None:
        lists = (adjacency.first, adjacency.degree, adjacency.neighbour, coupling, adjacency.rank)
        work = max(1, len(y) * (qubo.n + len(adjacency.neighbour)))
        piece = max_rounds if math.isinf(deadline.left()) else max(1, PIECE // work)
        before = None
        for done in range(0, max_rounds, max(1, piece)):
            if deadline.over() or (before is not None and torch.equal(before, labels)):
                break
            before = labels.clone() if piece < max_rounds else None
            kernels.descend(len(y), *lists, noise, min(piece, max_rounds - done), labels, field)
    else:
        _descend(adjacency, coupling, noise, max_rounds, labels, field, deadline)
    # sum_i y_i (linear_i + field_i) counts every pair twice and every linear term twice.
    energy = qubo.offset + 0.5 * (labels * (linear + field)).sum(dim=1)
    return Labellings(labels.to(torch.int8), energy)


def _descend(
    adjacency: Adjacency, coupling: Tensor, noise: Tensor, rounds: int, labels: Tensor, field: Tensor, deadline: Deadline
) -> None:
    """Rounds of all labellings at once; the compiled loop of the same name makes the same flips."""
    for _ in range(rounds):
        if deadline.over():
            break
        gain = (2 * labels - 1) * field
        eligible = gain > noise
        if not eligible.any():
            break
        batch, node = adjacency.winners(gain, eligible).nonzero(as_tuple=True)
        change = 1 - 2 * labels[batch, node]
        labels[batch, node] += change
        position, entry = adjacency.expand(node)
        # Two flipped variables may share a neighbour, so the changes are added up.
        flat = batch[position] * labels.shape[1] + adjacency.neighbour[entry]
        field.view(-1).index_add_(0, flat, change[position] * coupling[entry])


def coefficients_and_fields(qubo: Qubo, adjacency: Adjacency, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return linear coefficients ``(n,)``, those of the pairs by neighbour ``(2 m,)``, and the fields ``(batch, n)`` of labels.

    Parameters
    ----------
    qubo : Qubo
        The function.
    adjacency : Adjacency
        Its neighbour lists, on the device of the labels.
    labels : Tensor, shape (batch, n), float64
        Labels 0 and 1.
    """
    coupling = torch.tensor(qubo.quadratic, device=labels.device)[adjacency.edge]
    linear = torch.tensor(qubo.linear, device=labels.device)
    pull = labels[:, adjacency.neighbour] * coupling
    return linear, coupling, linear + torch.zeros_like(labels).index_add_(1, adjacency.owner, pull)


def round_fractional(
    qubo: Qubo, y: Tensor, thresholds: Sequence[float] = THRESHOLDS, *, time_limit: float | Deadline = math.inf
) -> Labellings:
    """Round each point at every threshold, descend, and keep the best labelling.

    Parameters
    ----------
    qubo : Qubo
        The function.
    y : Tensor, shape (batch, n), floating point
        Points, typically in [0, 1]^n, on the device to work on.
    thresholds : sequence of float
        A variable becomes 1 where ``y`` exceeds the threshold.
    time_limit : float or Deadline
        Seconds; labellings may then be no optima yet.

    Returns
    -------
    Labellings
        One for each point, all one-flip optima.

    Raises
    ------
    ShapeError
        ``y`` has not shape (batch, n).
    NonFiniteError
        ``y`` is not finite.
    OptionError
        There is no threshold.
    """
    check_points(y, qubo.n, "y")
    if not len(thresholds):
        raise OptionError("thresholds is empty; give at least one, such as 0.5")
    cuts = torch.tensor(thresholds, dtype=torch.float64, device=y.device)
    starts = (y[:, None, :] > cuts[:, None]).reshape(-1, qubo.n)
    found = one_flip_descent(qubo, starts, time_limit=time_limit)
    best = found.energy.view(len(y), len(cuts)).argmin(dim=1)
    chosen = best + len(cuts) * torch.arange(len(y), device=y.device)
    return Labellings(found.y[chosen], found.energy[chosen])


def tabu_search(qubo: Qubo, y: Tensor, moves: int | None = None, *, time_limit: float | Deadline = math.inf) -> Labellings:
    """Improve each labelling by one-flip moves that may lead uphill, and keep the best one met.

    Every move flips the variable that lowers the energy most, or raises it least, of those that did not flip lately, or any that
    gives a new best (G. Palubeckis, Multistart tabu search strategies for the unconstrained binary quadratic optimization problem,
    Annals of Operations Research 131 (2004)).  No random numbers are used; start from several labellings.

    Parameters
    ----------
    qubo, y
        As in :func:`one_flip_descent`, and so is what is returned.
    moves : int, optional
        Number of moves, by default 20 for each variable.
    time_limit : float or Deadline
        Seconds; fewer moves are made then.

    Raises
    ------
    ShapeError
        ``y`` has not shape (batch, n).
    OptionError
        ``moves`` is negative.
    """
    check_points(y, qubo.n, "y")
    moves = 20 * qubo.n if moves is None else moves
    if moves < 0:
        raise OptionError(f"moves is {moves}; give 0 or more")
    adjacency = Adjacency.build(qubo.n, qubo.edges, y.device)
    labels = y.to(torch.float64)
    _, coupling, field = coefficients_and_fields(qubo, adjacency, labels)
    side, deadline = 2 * labels - 1, Deadline.of(time_limit)  # -1 and 1
    found, tenure = side.clone(), min(20, qubo.n // 4)
    many = "numba" in sys.modules or moves > MOVES
    kernels = affordable_loops("blocklp.problems.qpbo.search_kernels", deadline) if many and y.device.type == "cpu" else None
    if kernels is not None:
        moves = affordable_rounds(moves, deadline, PER_SECOND, len(y) * (qubo.n + 2 * len(qubo.edges) // qubo.n))
        lists = (adjacency.first, adjacency.degree, adjacency.neighbour)
        kernels.flips(len(y), *lists, coupling, tenure, moves, side, field, found)
    else:
        _flips(adjacency, coupling, tenure, moves, side, field, found, deadline)
    # Energies are summed anew: rounding has added up on the way.
    last = one_flip_descent(qubo, (found + 1) / 2, time_limit=deadline)
    start = one_flip_descent(qubo, y, time_limit=deadline)
    better = last.energy <= start.energy
    return Labellings(torch.where(better[:, None], last.y, start.y), torch.where(better, last.energy, start.energy))


def _flips(
    adjacency: Adjacency,
    coupling: Tensor,
    tenure: int,
    moves: int,
    side: Tensor,
    field: Tensor,
    found: Tensor,
    deadline: Deadline,
) -> None:
    """Tabu moves of all lanes at once; the compiled loop of the same name makes the same flips."""
    lanes, n = side.shape
    rows = torch.arange(lanes, device=side.device)
    until = torch.zeros(side.shape, dtype=torch.long, device=side.device)
    value = torch.zeros(lanes, dtype=torch.float64, device=side.device)
    best = value.clone()
    for move in range(1, moves + 1):
        if deadline.over():
            break
        gain = side * field
        allowed = (until < move) | (gain > (value - best + 1e-9 * value.abs())[:, None])
        chosen = gain.masked_fill(~allowed, -torch.inf).argmax(1)
        value = value - gain[rows, chosen]
        change = -side[rows, chosen]
        side[rows, chosen] = change
        position, entry = adjacency.expand(chosen)
        # A lane flips one variable, so no field is named twice.
        field.view(-1).index_add_(0, position * n + adjacency.neighbour[entry], change[position] * coupling[entry])
        # Lanes forbid a flip for different times, so that equal starts part.
        until[rows, chosen] = move + tenure + rows % 10
        better = value < best
        best = torch.where(better, value, best)
        found.copy_(torch.where(better[:, None], side, found))
