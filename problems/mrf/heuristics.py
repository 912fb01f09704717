"""Primal heuristics: iterated conditional modes in batches, and expansion moves by roof duality.

*Iterated conditional modes* (J. Besag, On the statistical analysis of dirty pictures, JRSS B 48 (1986)) gives variables their best
label while all others keep theirs.  As in :mod:`blocklp.problems.qpbo.heuristics` every round moves each variable that gains more
than its neighbours, so that gains add up.

*Expansion moves* (Y. Boykov, O. Veksler and R. Zabih, Fast approximate energy minimization via graph cuts, PAMI 23 (2001)) let all
variables choose between their label and a common one.  For any pairwise tables, metric or not, roof duality labels some of the
variables of this binary problem, and moving those alone never raises the energy (V. Kolmogorov and C. Rother, Minimizing
nonsubmodular functions with graph cuts -- a review, PAMI 29 (2007)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, OptionError
from blocklp.problems.discrete.adjacency import NOISE, Adjacency
from blocklp.problems.mrf.instance import FactorGroup, Mrf
from blocklp.problems.qpbo.arrays import FloatArray, IntArray
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.max_flow import roof_dual_labels


@dataclass(frozen=True)
class Labelling:
    """A labelling for each batch element.

    Attributes
    ----------
    labels : Tensor, shape (batch, n), int64
    energy : Tensor, shape (batch,), float64
        Their values, ``inf`` where a hard constraint is violated.
    """

    labels: Tensor
    energy: Tensor


ROOM = 4_000_000
"""Costs that a round of descent looks at together."""

PER_COST = 4e-8
"""Seconds for each cost that a round of descent looks at, at most in what was measured."""

PER_TERM = 1e-5
"""Seconds for each variable and factor that a move by flow takes, at most in what was measured."""


def softened(mrf: Mrf) -> tuple[FactorGroup, ...]:
    """The factor groups with infinite entries replaced by costs that outweigh all others together."""
    spread = 0.0
    for group in mrf.groups:
        finite = np.where(np.isinf(group.tables), np.nan, group.tables).reshape(len(group.tables), -1)
        known = finite[~np.isnan(finite).all(axis=1)]
        spread += 2 * float((np.nanmax(known, axis=1) - np.nanmin(known, axis=1)).sum()) if len(known) else 0.0
    ceiling = max((float(np.abs(g.tables[np.isfinite(g.tables)]).max(initial=0.0)) for g in mrf.groups), default=0.0)
    return tuple(FactorGroup(g.scopes, np.where(np.isinf(g.tables), ceiling + (spread or 1.0), g.tables)) for g in mrf.groups)


class Conditionals:
    """Costs of the labels of each variable given those of all others, on one device."""

    def __init__(self, mrf: Mrf, device: torch.device) -> None:
        self.mrf, self.device = mrf, device
        self.adjacency = Adjacency.build(mrf.n, mrf.edges, device)
        self.groups = [
            (torch.tensor(g.scopes, device=device), torch.tensor(g.tables.reshape(len(g.tables), -1), device=device), g.shape)
            for g in softened(mrf)
        ]
        beyond = torch.arange(int(mrf.counts.max()))[None] >= torch.tensor(mrf.counts)[:, None]
        self.base = torch.zeros(beyond.shape, dtype=torch.float64).masked_fill_(beyond, torch.inf).to(device)
        self.noise = torch.zeros(mrf.n, dtype=torch.float64, device=device)
        for scopes, tables, _ in self.groups:
            for column in scopes.T:
                self.noise.index_add_(0, column, NOISE * tables.abs().amax(1))

    def __call__(self, labels: Tensor) -> Tensor:
        """Costs ``(batch, n, most labels)`` of labellings ``(batch, n)``; infinite where there is no such label."""
        costs = self.base.expand(len(labels), -1, -1).clone()
        for scopes, tables, shape in self.groups:
            strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
            position = (labels[:, scopes] * torch.tensor(strides, device=self.device)).sum(-1)
            rows = torch.arange(len(tables), device=self.device)[:, None]
            for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
                variable = scopes[:, axis]
                entry = (position - stride * labels[:, variable])[..., None] + stride * torch.arange(size, device=self.device)
                costs[..., :size].index_add_(1, variable, tables[rows, entry])
        return costs


def descend(
    mrf: Mrf,
    labels: Tensor,
    max_rounds: int = 10_000,
    conditionals: Conditionals | None = None,
    *,
    time_limit: float | Deadline = math.inf,
) -> Labelling:
    """Improve labellings until no variable alone can.

    Parameters
    ----------
    mrf : Mrf
        The energy.
    labels : Tensor, shape (batch, n), int64
        On the device to work on.
    max_rounds : int
        Rounds at most; labellings still on their way down are then returned as they are.
    conditionals : Conditionals, optional
        Those of ``mrf``, to use them again.
    time_limit : float or Deadline
        Seconds; labellings still on their way down are then returned as they are.

    Returns
    -------
    Labelling
        Never worse than ``labels``.

    Raises
    ------
    ShapeError, ScopeError
        The labels do not fit the instance.
    OptionError
        ``max_rounds`` is negative.
    """
    if max_rounds < 0:
        raise OptionError(f"max_rounds is {max_rounds}; give 0 or more")
    mrf.checked_labels(labels.cpu().numpy())
    x, deadline = labels, Deadline.of(time_limit)
    if not deadline.over():
        given, parts = conditionals or Conditionals(mrf, labels.device), torch.split(labels, max(1, ROOM // looked_at(mrf)))
        x = torch.cat([_descended(given, part, max_rounds, deadline) for part in parts])
    return Labelling(x, torch.tensor(mrf.energy(x.cpu().numpy()), device=x.device))


def looked_at(mrf: Mrf) -> int:
    """Costs of a labelling that a round of descent looks at."""
    return int(mrf.n * mrf.counts.max()) + sum(len(g.tables) * sum(g.shape) for g in mrf.groups)


def _descended(given: Conditionals, labels: Tensor, max_rounds: int, deadline: Deadline) -> Tensor:
    """Labels ``(batch, n)`` that descent leads to."""
    x = labels.clone()
    for _ in range(max_rounds):
        if deadline.over():
            break
        costs = given(x)
        best, label = costs.min(-1)
        gain = costs.gather(-1, x[..., None])[..., 0] - best
        eligible = gain > given.noise
        if not eligible.any():
            break
        x = torch.where(given.adjacency.winners(gain, eligible), label, x)
    return x


def expand(mrf: Mrf, labels: IntArray, time_limit: float | Deadline = math.inf) -> IntArray:
    """Improve a labelling by expansion moves of all labels in turn until none gains.

    Parameters
    ----------
    mrf : Mrf
        A model whose factors have at most two variables.
    labels : numpy.ndarray, shape (n,), int64
    time_limit : float or Deadline
        Seconds; the best so far is returned then.

    Returns
    -------
    numpy.ndarray, shape (n,), int64
        Never worse than ``labels``.

    Raises
    ------
    ModelError
        A factor has more than two variables.
    ShapeError, ScopeError
        The labels do not fit the instance.
    """
    x, deadline = mrf.checked_labels(labels), Deadline.of(time_limit)
    return _expanded(_soft_pairwise(mrf), x, deadline)


def _expanded(soft: Mrf, labels: IntArray, deadline: Deadline) -> IntArray:
    """Expansion moves in a model with finite tables."""
    x, seconds = labels.copy(), PER_TERM * (soft.n + len(soft.factors))
    energy, most, idle, alpha = float(soft.energy(x)), int(soft.counts.max()), 0, 0
    noise = NOISE * sum(float(np.abs(group.tables).max(initial=0.0)) for group in soft.groups)
    while idle < most and deadline.affords(seconds):
        began = deadline.elapsed()
        moved = _moved(soft, x, np.minimum(alpha, soft.counts - 1))
        value = float(soft.energy(moved))
        seconds = max(deadline.elapsed() - began, seconds / 2)
        # Flow works in whole numbers, so that a move may gain nothing in truth.
        idle += 1
        if value < energy - noise:
            x, energy, idle = moved, value, 0
        alpha = (alpha + 1) % most
    return x


def fuse(mrf: Mrf, labels: IntArray, others: IntArray, time_limit: float | Deadline = math.inf) -> IntArray:
    """Improve a labelling by fusion moves: parts of other ones (V. Lempitsky, C. Rother, S. Roth and A. Blake, PAMI 32 (2010)).

    Parameters
    ----------
    mrf : Mrf
        A model whose factors have at most two variables.
    labels : numpy.ndarray, shape (n,), int64
    others : numpy.ndarray, shape (count, n), int64
    time_limit : float or Deadline
        Seconds; the best so far is returned then.

    Returns
    -------
    numpy.ndarray, shape (n,), int64
        Never worse than ``labels``, nor than any of the others that there was time for.

    Raises
    ------
    ModelError, ShapeError, ScopeError
        As :func:`expand`.
    """
    return _fused(_soft_pairwise(mrf), mrf.checked_labels(labels), mrf.checked_labels(others), Deadline.of(time_limit))


def _fused(soft: Mrf, labels: IntArray, others: IntArray, deadline: Deadline) -> IntArray:
    """Fusion moves in a model with finite tables."""
    x, seconds = labels, PER_TERM * (soft.n + len(soft.factors))
    for other in others:
        for base, target in ((x, other), (other, x)):
            if not deadline.affords(seconds):
                return x
            began = deadline.elapsed()
            moved = _moved(soft, base, target)
            if soft.energy(moved) < soft.energy(x):
                x = moved
            seconds = max(deadline.elapsed() - began, seconds / 2)
    return x


def moved_by_flow(mrf: Mrf, labels: IntArray, others: IntArray, deadline: Deadline) -> IntArray:
    """Improve a labelling by expansion moves, fusion with others, and expansion moves again.

    Parameters
    ----------
    mrf, labels, others
        As in :func:`fuse`.
    deadline : Deadline
        The best so far is returned then.

    Returns
    -------
    numpy.ndarray, shape (n,), int64
        Never worse than ``labels``.
    """
    if not deadline.affords(flow_seconds(mrf)):
        return labels
    soft = _soft_pairwise(mrf)
    expanded = _expanded(soft, labels, deadline)
    return _expanded(soft, _fused(soft, expanded, others, deadline), deadline)


def flow_seconds(mrf: Mrf) -> float:
    """What moves by flow take at least: no less is spent on them."""
    return 3 * PER_TERM * (mrf.n + len(mrf.factors))


def _soft_pairwise(mrf: Mrf) -> Mrf:
    """A model with finite tables, which is the same one where they are."""
    if mrf.order > 2:
        raise ModelError(f"{mrf.name or 'the instance'} has factors of {mrf.order} variables; moves by flow are for pairwise models")
    if math.isinf(mrf.top) and all(np.isfinite(group.tables).all() for group in mrf.groups):
        return mrf
    return mrf.with_tables([group.tables for group in softened(mrf)])


def _moved(mrf: Mrf, x: IntArray, target: IntArray) -> IntArray:
    """Move those variables to their target that roof duality lets move."""
    return np.where(roof_dual_labels(_move(mrf, x, target)) == 1, target, x)


def _move(mrf: Mrf, x: IntArray, target: IntArray) -> Qubo:
    """The energy of moving some variables to their target as a ``Qubo``."""
    linear = np.zeros(mrf.n)
    ends: list[IntArray] = [np.zeros((0, 2), dtype=np.int64)]
    couplings: list[FloatArray] = [np.zeros(0)]
    for group in mrf.groups:
        rows = np.arange(len(group.tables))
        keep, go = x[group.scopes], target[group.scopes]
        if group.order == 1:
            np.add.at(linear, group.scopes[:, 0], group.tables[rows, go[:, 0]] - group.tables[rows, keep[:, 0]])
            continue
        none = group.tables[rows, keep[:, 0], keep[:, 1]]
        first, second = group.tables[rows, go[:, 0], keep[:, 1]], group.tables[rows, keep[:, 0], go[:, 1]]
        np.add.at(linear, group.scopes[:, 0], first - none)
        np.add.at(linear, group.scopes[:, 1], second - none)
        ends.append(group.scopes)
        couplings.append(group.tables[rows, go[:, 0], go[:, 1]] - first - second + none)
    return Qubo.from_terms(linear, np.concatenate(ends), np.concatenate(couplings))
