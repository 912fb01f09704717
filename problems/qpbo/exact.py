"""Exact minimisation of quadratic pseudo-boolean functions.

Variables of low degree and proved labels go first; what is left falls into components.  A component of small width is minimised by
elimination, another by branch and bound on convex underestimators.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from blocklp.errors import OptionError
from blocklp.problems.exact import Callback, ExactResult, search_loops
from blocklp.problems.qpbo.convex_search import search_convex
from blocklp.problems.qpbo.convexify import EPS, Spins
from blocklp.problems.qpbo.elimination import WIDEST, Order, cheapest_order, minimise_by_elimination
from blocklp.problems.qpbo.heuristics import one_flip_descent
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.presolve import LabelArray, fold, presolve
from blocklp.problems.qpbo.relaxation import solve_qpbo
from blocklp.status import Status

STARTS = 20
LARGEST = 500
"""Most variables of a component that is searched: matrices are dense."""
EASY, AFFORDABLE = 1e6, 4e8
"""Entries of tables: elimination at once, and elimination at all."""


@dataclass(frozen=True)
class Grid:
    """What values can be.

    Attributes
    ----------
    spacing : float
        All values are the offset plus multiples of this; zero if none is known that float64 resolves.
    tolerance : float
        Differences that do not matter, and more than rounding amounts to; zero where sums are exact.
    """

    spacing: float
    tolerance: float

    @classmethod
    def of(cls, qubo: Qubo) -> Grid:
        """Find the spacing of the values of a function."""
        coefficients = np.concatenate([qubo.linear, qubo.quadratic])
        size = float(np.abs(coefficients).sum())
        # Exact arithmetic on fractions with common denominators such as 100 is no use: floats are not multiples of 0.01.
        doubled = np.ldexp(coefficients, 20)
        if size > 0 and not np.any(doubled % 1) and np.abs(doubled).max() < 2.0**62:
            spacing = math.ldexp(math.gcd(*(int(c) for c in doubled)), -20)
            if size / spacing < 2.0**48:
                return cls(spacing, 0.0)
        return cls(0.0, max(1e-9, 64 * (qubo.n + len(qubo.edges)) * EPS) * size)

    @property
    def step(self) -> float:
        """What a better value must be better by."""
        return self.spacing or self.tolerance


@dataclass
class _Budget:
    """Time, nodes and the state of a run over several components."""

    deadline: float
    callback: Callback | None
    nodes: int = 0
    status: Status = Status.OPTIMAL

    def left(self) -> float:
        return self.deadline - time.perf_counter()


def solve_qpbo_exactly(qubo: Qubo, *, time_limit: float = math.inf, callback: Callback | None = None) -> ExactResult:
    """Minimise a quadratic pseudo-boolean function, with proof.

    Parameters
    ----------
    qubo : Qubo
        The function.
    time_limit : float
        Seconds; then, and after an interrupt, the best labelling and a valid bound are returned.
    callback : callable, optional
        Gets a :class:`blocklp.search.SearchEvent` of the component under way after every batch of nodes; True stops.

    Returns
    -------
    ExactResult

    Raises
    ------
    OptionError
        ``time_limit`` is not positive.

    Examples
    --------
    >>> from blocklp.problems.qpbo import Qubo, solve_qpbo_exactly
    >>> found = solve_qpbo_exactly(Qubo([-1, -1, -1], [[0, 1], [0, 2], [1, 2]], [2, 2, 2]))
    >>> found.energy, found.bound, found.proven
    (-1.0, -1.0, True)
    """
    if not time_limit > 0:
        raise OptionError(f"time_limit is {time_limit}; give a positive number of seconds")
    began = time.perf_counter()
    grid, budget = Grid.of(qubo), _Budget(began + time_limit, callback)
    labels, bound = _solve(replace(qubo, offset=0.0), grid, budget)
    energy = float(qubo.energy(labels))
    # The offset may round the sum.
    bound = min(bound + qubo.offset, energy)
    bound = energy if energy - bound <= 0 else math.nextafter(bound, -math.inf)
    seconds = time.perf_counter() - began
    return ExactResult(torch.tensor(labels), energy, bound, budget.status is Status.OPTIMAL, budget.nodes, seconds, budget.status)


def _solve(qubo: Qubo, grid: Grid, budget: _Budget) -> tuple[LabelArray, float]:
    """Labels, and a bound that a grid has been used for."""
    reduced = presolve(qubo)
    found = [_component(part.qubo, grid, budget) for part in reduced.parts]
    labels = reduced.lift([mine for mine, _ in found])
    energy = float(qubo.energy(labels))
    gap = sum(float(part.qubo.energy(mine)) - bound for part, (mine, bound) in zip(reduced.parts, found, strict=True))
    return labels, energy - gap - grid.tolerance


def _component(qubo: Qubo, grid: Grid, budget: _Budget) -> tuple[LabelArray, float]:
    """Labels and bound of a connected function all of whose variables have three neighbours or more."""
    order = cheapest_order(qubo.n, qubo.edges)
    spins = Spins.of(qubo) if qubo.n <= LARGEST else None
    labels = _incumbent(qubo, spins)
    trivial = float(np.minimum(qubo.linear, 0).sum() + np.minimum(qubo.quadratic, 0).sum())
    if budget.status is Status.INTERRUPTED or budget.left() <= 0:
        budget.status = Status.INTERRUPTED if budget.status is Status.INTERRUPTED else Status.TIME_LIMIT
        return labels, trivial
    try:
        if order.work <= EASY:
            return _eliminated(qubo, order, budget, labels, trivial)
        relaxed = solve_qpbo(qubo, tol=1e-5, passes=400, time_limit=budget.left())
        if relaxed.energy < float(qubo.energy(labels)):
            labels = relaxed.labels.numpy().astype(np.int8)
        bound = max(trivial, float(relaxed.relaxation.safe_bound[0]))
        if relaxed.relaxation.status[0] is Status.INTERRUPTED:
            budget.status = Status.INTERRUPTED
            return labels, bound
        weak = relaxed.persistency.weak
        if (weak >= 0).any():
            rest, free, constant = fold(qubo, weak)
            if rest is None:
                return weak.astype(np.int8), constant
            mine, below = _solve(rest, grid, budget)
            whole = weak.astype(np.int8)
            whole[free] = mine
            return whole, below + constant - grid.tolerance
        if order.work <= AFFORDABLE and order.width <= WIDEST:
            return _eliminated(qubo, order, budget, labels, bound)
        if spins is None:
            budget.status = Status.STALLED
            return labels, bound
        return _searched(qubo, spins, grid, budget, labels, bound)
    except KeyboardInterrupt:
        budget.status = Status.INTERRUPTED
        return labels, trivial


def _eliminated(qubo: Qubo, order: Order, budget: _Budget, labels: LabelArray, bound: float) -> tuple[LabelArray, float]:
    found = minimise_by_elimination(qubo, order, budget.deadline)
    if found is None:
        budget.status = Status.TIME_LIMIT
        return labels, bound
    budget.nodes += 1
    return found, float(qubo.energy(found))


def _searched(qubo: Qubo, spins: Spins, grid: Grid, budget: _Budget, labels: LabelArray, bound: float) -> tuple[LabelArray, float]:
    start = (2 * labels - 1).astype(np.int8)
    result, best, nodes = search_convex(spins, grid.step, start, budget.left(), budget.callback)
    budget.nodes += nodes
    labels = ((best + 1) // 2).astype(np.int8)
    energy = float(qubo.energy(labels))
    if result.proven:
        return labels, energy - grid.tolerance
    budget.status = result.status
    bound = max(bound, result.bound - grid.tolerance)
    if grid.spacing:
        bound = math.ceil(bound / grid.spacing - 1e-9) * grid.spacing
    return labels, min(bound, energy)


def _incumbent(qubo: Qubo, spins: Spins | None) -> LabelArray:
    """A good labelling: tabu search from random ones."""
    if spins is None:
        return _descended(qubo)
    n = qubo.n
    starts = np.random.default_rng(0).choice(np.array([-1, 1], dtype=np.int8), (STARTS, n))
    best, values = np.empty_like(starts), np.empty(STARTS)
    # About 1e8 operations at most.
    rounds = int(min(20 * n + 500, 1e8 / STARTS / n))
    search_loops("blocklp.problems.qpbo.search_kernels").tabu(STARTS, spins.coupling, starts, rounds, 3 + n // 20, 0, best, values)
    return np.asarray((best[values.argmin()] + 1) // 2, dtype=np.int8)


def _descended(qubo: Qubo) -> LabelArray:
    starts = torch.tensor(np.random.default_rng(0).integers(0, 2, (STARTS, qubo.n)))
    found = one_flip_descent(qubo, starts)
    return np.asarray(found.y[int(found.energy.argmin())], dtype=np.int8)
