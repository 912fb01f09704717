r"""Sequential reweighted message passing: multipliers of large models in a fraction of a second (V. Kolmogorov, PAMI 37 (2015)).

Costs of factors are reparametrised, and the sum of the least entries of all tables and nodes is a bound.  A sweep goes through the
nodes in turn.  A node takes from each factor what the factor loses by no label,

.. math:: m_{f,i}(a) = \min_{x_f : x_i = a} \theta_f(x_f), \qquad \theta_i \mathrel{+}= \sum_f m_{f,i},

and deals out :math:`\theta_i / \max(n^+_i, n^-_i)` to each factor that has a node later in the order; :math:`n^+_i` and
:math:`n^-_i` are the numbers of its factors with a later node and with an earlier one.  Then it goes back.  Pairs inside larger
factors do as nodes do, after the first of theirs, and keep as much again for each of their own nodes.  The bound never falls; on
factors of two nodes this is TRW-S (V. Kolmogorov, PAMI 28 (2006)).  Like all coordinate ascents it may come to rest below the optimum
of the relaxation, from where the engine goes on by ``prox``, which rises where ADMM hardly does; the engine proves the bound, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.engine.records import Event, relative_gap
from blocklp.language.handles import Blocks
from blocklp.oracles.chain import Chain
from blocklp.oracles.joint import Joint
from blocklp.oracles.pairwise import Pairwise
from blocklp.problems.discrete.exact import rehearsed_loops
from blocklp.problems.discrete.tightening import Labelled
from blocklp.problems.mrf.marginals import Scope
from blocklp.problems.mrf.relaxation import PROVED, MrfRelaxation, entries_of
from blocklp.problems.mrf.rounding import improved
from blocklp.problems.qpbo.arrays import IntArray
from blocklp.results.state import Saddle

KERNELS = "blocklp.problems.mrf.messages_kernels"

LARGE = 20_000
"""Entries of tables from which on sweeps are worth their start; smaller models are solved in batches."""

SWEEPS, SHARE = 1000, 0.5
"""Pairs of sweeps, forth and back, and share of the time left, at most."""

EVERY, CLOSED = 5, 1e-6
"""Pairs of sweeps after which bound and labelling are looked at, and a relative gap that is none."""

RESTS, SLOWS, OF_GAP = 1e-7, 1e-4, 0.01
"""Relative growth by then at which the bound hardly rises any more, and at which clusters are worth a look; sweeps that close this
share of the gap go on in any case."""


class Passed(NamedTuple):
    """Where a solve begins.

    Attributes
    ----------
    state : State
        Multipliers, and the labelling as a point.
    best : Labelled
        The best labelling on the way.
    closed : bool
        Whether bound and labelling meet.
    interrupted : bool
        Whether an interrupt ended the sweeps.
    """

    state: bl.State
    best: Labelled
    closed: bool
    interrupted: bool

    @property
    def method(self) -> str:
        """The method that goes on: "prox", or "admm" where nothing is left to do but to take the point, which it does."""
        return "admm" if self.closed else "prox"


def passed(
    relaxation: MrfRelaxation,
    deadline: Deadline,
    growth: float = RESTS,
    callback: Callable[[Event], Any] | None = None,
    least: int = LARGE,
) -> Passed | None:
    """Sweep until the bound meets a labelling or rises by less than a share, for a part of the time.

    None for small models, for those with blocks of paths or chains, and without compiled loops.

    Parameters
    ----------
    relaxation : MrfRelaxation
        By edges and larger factors.
    deadline : Deadline
        For all that is done with the model.
    growth : float
        The share, every few sweeps.
    callback : callable, optional
        Gets an event every few sweeps, which are no passes; True ends them as an interrupt does.
    least : int
        Entries of the tables of a model that is not small.
    """
    left, proving = deadline.left(), PROVED * entries_of(relaxation.mrf)
    own = deadline.within(min(SHARE * left, left - proving))
    kernels = loops_for(relaxation, own, least)
    if kernels is None or left < proving:
        return None
    messages, interrupted = Messages(relaxation, kernels), False

    def told() -> None:
        if callback is not None and callback(messages.event(deadline.elapsed())):
            raise KeyboardInterrupt

    try:
        messages.rise(SWEEPS, growth, own, told)
    except KeyboardInterrupt:
        messages.look()
        interrupted = True
    if not messages.closed and not interrupted:
        messages.offer(improved(relaxation.mrf, messages.best.labels[None], own))
    return Passed(messages.state(), messages.best, messages.closed, interrupted)


def loops_for(relaxation: MrfRelaxation, deadline: Deadline, least: int) -> Any:
    """The loops for a relaxation; None where sweeps are not for it, or where there are none in time."""
    if sum(group.tables.size for group in relaxation.mrf.groups if group.order > 1) < least or not relaxation.views:
        return None
    if any(isinstance(blocks.type, Chain) for blocks in relaxation.model.blocks):
        return None
    return rehearsed_loops(KERNELS, deadline)


class Messages:
    """The reparametrised costs of a relaxation, and the best labelling that they gave.

    Parameters
    ----------
    relaxation : MrfRelaxation
        Its blocks are :class:`~blocklp.oracles.pairwise.Pairwise`, :class:`~blocklp.oracles.joint.Joint` and nodes alone.
    kernels : module
        :mod:`blocklp.problems.mrf.messages_kernels`.
    before : State, optional
        Multipliers of the first blocks of each name, to go on from.

    Attributes
    ----------
    best : Labelled
        The best labelling so far.
    reached : float
        The bound when :meth:`look` was called last.
    """

    def __init__(self, relaxation: MrfRelaxation, kernels: Any, before: bl.State | None = None) -> None:
        self.relaxation, self._kernels = relaxation, kernels
        relaxation.views.learn()
        self._cost, self._allowed = relaxation.points.cost.numpy(), (relaxation.views.upper > 0).numpy()
        self.best, self.reached = Labelled(torch.zeros(relaxation.mrf.n, dtype=torch.int64), math.inf), -math.inf
        self._factors = [_Factors.of(blocks) for blocks in relaxation.model.blocks if isinstance(blocks.type, (Pairwise, Joint))]
        possible = self._allowed.copy()
        for own in sorted(self._factors, key=lambda own: len(own.members)):  # parts before what they are parts of
            for begin, members in zip(own.begins, own.members, strict=False):
                possible[own.scope[:, -own.size :]] &= possible[own.scope[:, begin + members]]
        # What is forbidden outweighs all that is not.
        much = 1.0 + 2 * np.abs(self._cost).sum()
        self._costs = np.where(possible, self._cost, much)
        self._number_parts()
        rows, parts, place, begin = [np.zeros((0, 7), dtype=np.int64)], [np.zeros(0, dtype=np.int64)], 0, 0
        for own in self._factors:
            number = self._number(own.scope[:, own.begins[:-1]])
            for at, members in enumerate(own.members):
                places = place + own.begins[-1] * np.arange(len(number)) + own.begins[at]
                fixed = np.broadcast_to([own.size, begin], (len(number), 2))
                later, earlier = number[:, at] < number.max(1), number[:, at] > number.min(1)
                rows.append(np.column_stack([number[:, at], own.scope[:, -own.size], fixed, places, later, earlier]))
                parts.append(members)
                begin += own.size
            place += own.begins[-1] * len(number)
        self._multipliers, self._members = np.zeros(place), np.concatenate(parts)
        if before is not None:
            self._begin(before)
            self._costs = np.where(possible, self._costs, np.maximum(self._costs, much))
        by_part = np.concatenate(rows)
        by_part = by_part[np.argsort(by_part[:, 0], kind="stable")]
        self._places = tuple(np.ascontiguousarray(column) for column in by_part.T[1:])
        degree = np.bincount(by_part[:, 0], minlength=len(self._column))
        self._ends = np.concatenate([[0], np.cumsum(degree)])
        later, earlier = (np.bincount(by_part[:, 0], by_part[:, k], len(self._column)) for k in (5, 6))
        inside = np.zeros(len(self._cost), dtype=np.int64)  # parts of a factor that is a part itself
        for own in self._factors:
            inside[own.scope[:, -own.size]] = len(own.members)
        self._share = 1 / np.maximum(1, inside[self._column] + np.maximum(later, earlier))
        self._found = np.zeros((max(1, int(degree.max())), int(self._labels.max())))

    def _begin(self, state: bl.State) -> None:
        """Take the multipliers of parts over."""
        place = 0
        for own in self._factors:
            given = state.duals.get(own.name)
            if given is not None:
                scope = own.scope[: given.shape[1]]
                parts = np.where(self._allowed[scope], given[0].cpu().numpy(), 0.0)[:, : own.begins[-1]]
                self._multipliers[place : place + parts.size] = parts.reshape(-1)
                np.subtract.at(self._costs, scope[:, : own.begins[-1]], parts)
                for begin, members in zip(own.begins, own.members, strict=False):
                    self._costs[scope[:, -own.size :]] += parts[:, begin + members]
            place += own.begins[-1] * len(own.scope)

    def _number_parts(self) -> None:
        """Order all nodes and all other parts by their nodes, smaller ones first."""
        tables = self.relaxation.views.tables
        most = max(map(len, tables))
        columns = np.concatenate([first.numpy() for _, first in tables.values()])
        nodes = np.concatenate(
            [np.pad(own.numpy(), ((0, 0), (0, most - own.shape[1])), constant_values=-1) for own, _ in tables.values()]
        )
        labels = np.concatenate([np.full(len(first), math.prod(shape)) for shape, (_, first) in tables.items()])
        used = nodes[:, 1] < 0 if most > 1 else np.ones(len(nodes), dtype=bool)
        for own in self._factors:
            used |= np.isin(columns, own.scope[:, own.begins[:-1]])
        order = np.flatnonzero(used)[np.lexsort(nodes[used].T[::-1])]
        self._column, self._labels = columns[order], labels[order]
        single = nodes[order, 1] < 0 if most > 1 else np.ones(len(order), dtype=bool)
        self._nodes = np.flatnonzero(single)
        self._sorted = np.argsort(self._column)

    def _number(self, columns: IntArray) -> IntArray:
        """Numbers of the parts that begin at columns."""
        return np.asarray(self._sorted[np.searchsorted(self._column[self._sorted], columns)])

    def sweep(self) -> None:
        """Go through the parts forth and back."""
        table, size, begin, place, later, earlier = self._places
        order = np.arange(len(self._column))
        for parts, gives in ((order, later), (order[::-1].copy(), earlier)):
            self._kernels.sweep(
                parts, self._ends, table, size, begin, place, gives, self._share, self._column, self._labels,
                self._members, self._costs, self._multipliers, self._found,
            )  # fmt: skip

    def rise(self, sweeps: int, growth: float, deadline: Deadline, told: Callable[[], None] = lambda: None) -> None:
        """Sweep until the bound meets a labelling or rises by less than a share, so many times at most; ``told`` at every look."""
        for count in range(1, sweeps + 1):
            self.sweep()
            over = deadline.over() or count == sweeps
            if over or count % EVERY == 0:
                before = self.reached
                self.look()
                told()
                least = min(growth * self._scale, OF_GAP * (self.best.energy - self.reached))
                if over or self.closed or self.reached - before < least:
                    break

    def look(self) -> None:
        """Note the bound and a labelling."""
        self.reached = self.bound
        labels = self.labelling()
        self.offer(Labelled(torch.from_numpy(labels), float(self.relaxation.mrf.energy(labels))))

    def offer(self, found: Labelled) -> None:
        """Keep the better labelling."""
        if found.energy <= self.best.energy:
            self.best = found

    def event(self, seconds: float) -> Event:
        """The bound and the labelling so far, as a callback gets them."""
        bound, primal, floor = (
            torch.tensor([value], dtype=torch.float64) for value in (self.reached, self.best.energy, self._largest)
        )
        running = torch.tensor([int(bl.Status.RUNNING)])
        return Event(0, seconds, bound, primal, relative_gap(primal, bound, floor), running)

    @property
    def _scale(self) -> float:
        return max(abs(self.reached), self._largest)

    @property
    def closed(self) -> bool:
        """Whether the bound has met the labelling."""
        return self.best.energy - self.reached < CLOSED * self._scale

    @cached_property
    def _largest(self) -> float:
        """The largest cost: bounds may be zero."""
        return float(np.abs(self._cost).max())

    @cached_property
    def _alone(self) -> NDArray[np.bool_]:
        """Which columns are in no table of a factor that is a block."""
        found = np.ones(len(self._cost), dtype=bool)
        for own in self._factors:
            found[own.scope[:, -own.size :]] = False
        return found

    @property
    def bound(self) -> float:
        """The sum of the least entries of all tables, without an allowance for rounding."""
        least = sum(float(self._costs[own.scope[:, -own.size :]].min(1).sum()) for own in self._factors)
        alone = self._column[self._alone[self._column]]
        ends = np.sort(np.concatenate([alone, alone + self._labels[self._alone[self._column]]]))
        least += float(np.minimum.reduceat(np.append(self._costs, 0.0), ends)[::2].sum()) if len(alone) else 0.0
        return self.relaxation.mrf.constant + least

    def labelling(self) -> IntArray:
        """Labels ``(n,)`` int64, chosen one after the other by the reparametrised costs."""
        table, size, begin, *_ = self._places
        chosen = np.zeros(len(self._column), dtype=np.int64)
        where = self._ends, table, size, begin, self._column, self._labels
        self._kernels.label_in_turn(self._nodes, *where, self._members, self._costs.copy(), self._found, chosen)
        return chosen[self._nodes]

    def slack(self, labels: torch.Tensor) -> dict[Scope, float]:
        """By how much tables cost more with labels ``(n,)`` than their least entries: their sum is the gap between both."""
        point = self.relaxation.points.of_labels(labels[None])[0].numpy()
        found: dict[Scope, float] = {}
        names = {first: scope for scope, first in self.relaxation.views.starts.items()}
        for own in self._factors:
            table = own.scope[:, -own.size :]
            costs = self._costs[table]
            more = (costs * point[table]).sum(1) - costs.min(1)
            found.update(zip((names[first] for first in table[:, 0].tolist()), more.tolist(), strict=True))
        return found

    def state(self) -> bl.State:
        """Multipliers of all blocks, which share what is left of parts that are in no table, and the labelling as a point."""
        times, sums, duals, place = np.zeros(len(self._cost)), np.zeros(len(self._cost)), {}, 0
        for own in self._factors:
            np.add.at(times, own.scope[:, : -own.size], 1)
        left = np.where(self._alone, self._costs, 0.0) / np.maximum(1, times)
        given = []
        for own in self._factors:
            count = own.begins[-1] * len(own.scope)
            given.append(self._multipliers[place : place + count].reshape(len(own.scope), -1) + left[own.scope[:, : -own.size]])
            np.add.at(sums, own.scope[:, : -own.size], given[-1])
            place += count
        for own, multipliers in zip(self._factors, given, strict=True):
            columns = own.scope[:, -own.size :]
            both = np.concatenate([multipliers, self._cost[columns] - sums[columns]], 1)
            duals[own.name] = torch.from_numpy(np.where(self._allowed[own.scope], both, 0.0))[None]
        unknown = torch.full((1,), math.nan, dtype=torch.float64)
        return bl.State(duals, unknown, Saddle(self.relaxation.points.of_labels(self.best.labels[None]), {}, unknown))


class _Factors(NamedTuple):
    """Blocks of one type: columns ``(blocks, dim)``, of parts and then of the table; where parts begin, and the last one ends."""

    name: str
    scope: IntArray
    begins: IntArray
    size: int
    members: list[IntArray]  # labels of each part, by entries of the table

    @classmethod
    def of(cls, blocks: Blocks) -> _Factors:
        kind = blocks.type
        joint = Joint((kind.first, kind.second), ((0,), (1,))) if isinstance(kind, Pairwise) else kind
        assert isinstance(joint, Joint)
        begins = np.concatenate([[0], np.cumsum(joint.lengths)])[:-1]
        return cls(blocks.name, blocks.scope.numpy(), begins, joint.lengths[-1], [m.numpy() for m in joint.members[:-1]])
