"""Matchings solved to a certified gap.

Where limits and capacities are all that holds shares back, the proximal point method
(:mod:`blocklp.methods.proximal_point`) runs on the arrays as they are: sources are blocks, destinations have prices.
All other matchings are models of the engine.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.kernels.backend import Backend, choose
from blocklp.kernels.compiled import mark
from blocklp.methods.block_program import LOOPS, BlockProgram
from blocklp.methods.proximal_point import ProximalPoint, first_step
from blocklp.options import of_type, real
from blocklp.oracles import AtMostOne, Knapsack, Simplex
from blocklp.problems.matching.instance import FloatArray, IntArray, Matching
from blocklp.status import Status

PASSES = 10_000
"""Passes of the engine that take as long by tensor operations as the method does, from which a backend is chosen."""

NOTHING = 1e-9
"""Part of what sources would be worth without capacities below which a value counts as zero."""

PATIENCE = 2000
"""Passes of the proximal point method after which the engine takes over."""


@dataclass(frozen=True)
class MatchingSolution:
    """The answer for a matching.

    Attributes
    ----------
    status : Status
        ``OPTIMAL`` where the gap is within the tolerance.
    bound, safe_bound : float
        No shares are worth more; the latter with all rounding charged.
    primal : float
        What :attr:`x` is worth; minus infinity where no shares are known that fit.
    gap : float
        Difference of the safe bound and ``primal``, relative to the larger magnitude.
    x : ndarray
        ``(edges,)``: the best shares.
    price : ndarray
        ``(destinations,)``: what the value rises with for a unit of capacity.
    passes : int
        Passes over all sources.
    seconds : float
        Time of the solve, without what it takes to load compiled loops, once a process.
    """

    status: Status
    bound: float
    safe_bound: float
    primal: float
    gap: float
    x: FloatArray
    price: FloatArray
    passes: int
    seconds: float


def matching_model(matching: Matching) -> bl.Model:
    """State a matching as a model: blocks for sources and their budgets, rows for destinations.

    Parameters
    ----------
    matching : Matching
        The instance.

    Returns
    -------
    Model
        With one variable ``x`` for each edge, in the order of the matching.
    """
    return stated(bl.Model(), matching, blocks_of_sources(matching))


Kind = tuple[int, int, int]
"""Which limit of sources blocks state, the number of their edges, and the place of their type in :data:`TYPES`."""

TYPES = ("", ", all", ", by use")
"""What names of blocks end in: at most one of the edges, exactly one, or limits of any kind."""


def blocks_of_sources(matching: Matching) -> dict[Kind, IntArray]:
    """The sources that have edges, by the kind of their block, for each of their limits."""
    degrees = np.bincount(matching.source, minlength=matching.sources)
    found: dict[Kind, IntArray] = {}
    for number, (use, limit, least) in enumerate(_limits(matching)):
        plain = np.ones(matching.sources, dtype=bool)
        np.logical_and.at(plain, matching.source, (use == 1) & (matching.upper >= 1))
        plain &= limit == 1
        types = np.where(plain & (least == 0), 0, np.where(plain & (least == 1), 1, 2))
        for k in np.unique(degrees[degrees > 0]).tolist():
            for type_ in np.unique(types[degrees == k]).tolist():
                found[number, k, type_] = np.flatnonzero((degrees == k) & (types == type_))
    return found


def stated(m: bl.Model, matching: Matching, blocks: dict[Kind, IntArray]) -> bl.Model:
    """State a matching in a model that is empty, or the part of a process in its part of a model.

    Parameters
    ----------
    m : Model
        Without variables; where it is a part, ``x`` is private.
    matching : Matching
        The instance, or the edges of the process.
    blocks : dict
        Kinds of blocks, in the order in which they are stated, to the sources ``(k,)`` of each; none where other processes have
        some.

    Returns
    -------
    Model
        The same one.
    """
    edges = np.arange(matching.edges) if matching.order is None else matching.order
    alone = m.part is not None
    x = m.variable("x", matching.edges, lower=0, upper=matching.most, private=alone)
    degrees = np.bincount(matching.source, minlength=matching.sources)
    first, limits = np.cumsum(degrees) - degrees, _limits(matching)
    for (number, k, type_), own in blocks.items():
        use, limit, least = limits[number]
        scope = edges[first[own][:, None] + np.arange(k)]
        name = f"sources of {k}" + (f", budget {number}" if number else "") + TYPES[type_]
        if type_ < 2:
            m.add((AtMostOne, Simplex)[type_](k), x[scope], name=name)
        else:
            box = matching.most[scope]
            most = np.minimum(limit[own], (use[scope] * box).sum(1))  # a finite number
            m.add(Knapsack(use[scope], most, 0.0, box, least=least[own]), x[scope], name=name)
    shape = matching.destinations, matching.edges
    rows = csr_array((matching.weight, (matching.destination, np.arange(matching.edges))), shape=shape)
    m.add_rows(rows, x, np.where(matching.floor > 0, matching.floor, -np.inf), matching.capacity, name="capacity")
    m.maximize(torch.from_numpy(matching.value) @ x)
    return m


def _limits(matching: Matching) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    """What edges take of each limit of their sources, it, and the least of it."""
    return [(matching.use, matching.limit, matching.least), *((b.use, b.limit, np.zeros(matching.sources)) for b in matching.budgets)]


def solve_matching(matching: Matching, *, tol: float = 1e-4, time_limit: float | Deadline = math.inf) -> MatchingSolution:
    """Find shares of the largest value, to a certified gap.

    Parameters
    ----------
    matching : Matching
        The instance.
    tol : float
        Relative gap to be certified.
    time_limit : float or Deadline
        Seconds; the best that was found by then is returned, as it is after an interrupt.

    Returns
    -------
    MatchingSolution

    Raises
    ------
    OptionError
        If an option is of another kind.
    """
    of_type(matching, Matching, "matching", "a Matching")
    deadline, tol = Deadline.of(time_limit), real(tol, "tol", positive=False)
    if not matching.packing:
        return _by_engine(matching, tol, deadline, time.perf_counter())
    device = torch.device("cpu")
    backend = choose("auto", device, matching.edges, PASSES, frozenset(), torch.float64, deadline)
    if (loops := backend.loops(LOOPS)) is not None:
        loops.rehearse()
        mark(loops, torch.float64)
    began = time.perf_counter()
    best = _Best(matching, tol, began)
    try:
        _by_blocks(best, backend, deadline)
    except KeyboardInterrupt:
        best.status = Status.INTERRUPTED
    if best.status is Status.STALLED and not deadline.over():
        other = _by_engine(matching, tol, deadline, began)
        best.passes += other.passes
        best.status = Status.OPTIMAL if best.offer(other.x, other.price) else other.status
    return best.solution()


class _Best:
    """The best bound and shares so far."""

    def __init__(self, matching: Matching, tol: float, began: float) -> None:
        self.matching, self.tol, self.began = matching, tol, began
        self.x, self.price = np.zeros(matching.edges), np.zeros(matching.destinations)
        self.bound, self.safe_bound = matching.bound(self.price)
        self.primal, self.passes, self.status = 0.0, 0, Status.TIME_LIMIT
        self.least = NOTHING * self.safe_bound

    @property
    def gap(self) -> float:
        size = max(self.safe_bound, self.primal, self.least)
        return max(0.0, self.safe_bound - self.primal) / size if size else 0.0

    def offer(self, x: FloatArray, price: FloatArray) -> bool:
        """Take what is better; say whether the gap is within the tolerance."""
        bound, safe = self.matching.bound(price)
        if safe < self.safe_bound:
            self.bound, self.safe_bound, self.price = bound, safe, np.maximum(price, 0)
        if (value := self.matching.worth(shares := self.matching.repaired(x))) > self.primal:
            self.primal, self.x = value, shares
        return self.gap <= self.tol

    def solution(self) -> MatchingSolution:
        known = self.status, self.bound, self.safe_bound, self.primal, self.gap, self.x, self.price, self.passes
        return MatchingSolution(*known, time.perf_counter() - self.began)


def _by_blocks(best: _Best, backend: Backend, deadline: Deadline) -> None:
    """The proximal point method, until the gap is closed, nothing moves or the time is over."""
    matching = best.matching
    if best.gap <= best.tol:
        best.status = Status.OPTIMAL
        return
    run = ProximalPoint(*_program(matching, backend), deadline)
    shares = np.empty(matching.edges)
    while not deadline.over():
        run.advance()
        best.passes = run.projections
        if matching.order is None:
            shares = run.x
        else:
            shares[matching.order] = run.x
        if best.offer(shares, -run.price):
            best.status = Status.OPTIMAL
            return
        if run.ended or run.projections > PATIENCE:
            best.status = Status.STALLED
            return


def _program(matching: Matching, backend: Backend) -> tuple[BlockProgram, FloatArray, FloatArray, float]:
    """The matching as an LP over blocks, and where the method starts."""

    def sorted_(values: Any) -> Any:
        return values if matching.order is None or not values.strides[0] else values[matching.order]

    edges, sources, rows = matching.edges, matching.sources, matching.destinations
    first = np.zeros(sources + 1, dtype=np.int64)
    np.cumsum(np.bincount(matching.source, minlength=sources), out=first[1:])
    program = BlockProgram(
        first,
        sorted_(matching.use),
        np.broadcast_to(0.0, edges),
        sorted_(matching.most),
        -sorted_(matching.value),
        np.broadcast_to(-np.inf, sources),
        matching.limit,
        np.arange(edges + 1),
        sorted_(matching.destination).astype(np.int32),
        sorted_(matching.weight),
        np.broadcast_to(-np.inf, rows),
        matching.capacity,
        backend,
    )
    return program, np.zeros(edges), np.zeros(rows), first_step(matching.value)


def _by_engine(matching: Matching, tol: float, deadline: Deadline, began: float) -> MatchingSolution:
    """The engine's answer for the model."""
    none = np.full(matching.edges, np.nan)
    if not matching.served:
        spent = time.perf_counter() - began
        return MatchingSolution(Status.INFEASIBLE, -np.inf, -np.inf, -np.inf, 0.0, none, none, 0, spent)
    m = matching_model(matching)
    found = m.solve(tol=tol, time_limit=deadline, passes=1_000_000)
    price = found.price("capacity")[0].numpy()
    return MatchingSolution(
        found.status[0],
        float(found.bound),
        float(found.safe_bound),
        float(found.primal),
        float(found.gap),
        found.x["x"][0].numpy(),
        price,
        int(found.passes),
        time.perf_counter() - began,
    )
