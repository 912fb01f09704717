r"""Matchings with capacities: the instance type, what prices prove, and repair.

A ``Matching`` is the linear program

.. math:: \max_x \; \sum_e v_e x_e \quad \text{s.t.} \quad 0 \le x_e \le u_e, \quad
          least_s \le \sum_{e \in s} a_e x_e \le limit_s, \quad
          floor_d \le \sum_{e \to d} w_e x_e \le capacity_d

over edges e from sources s to destinations d: users and campaigns, orders and depots, tasks and machines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blocklp.errors import ModelError, NonFiniteError, ScopeError, ShapeError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

EPS = float(np.finfo(np.float64).eps)

BREADTH, SCALE, WORTH, AFFINITY = (0.0, 1.0), (0.0, 1.0), (-4.0, 0.75), (0.0, 0.5)
"""Mean and deviation of the logarithms of what :meth:`Matching.random` draws for destinations and sources."""

NOISE, LARGEST, SLACK = 0.5, 0.5, 1e-8
"""Deviation of the logarithm of an edge's noise; largest value of an edge; load that every destination has room for."""


@dataclass(frozen=True, eq=False)
class SourceBudget:
    """A further limit on what every source takes.

    Parameters
    ----------
    use : array_like
        ``(edges,)``: what a unit of an edge takes of it, non-negative.
    limit : array_like
        ``(sources,)``, or one number for all: the most that a source takes, non-negative.
    """

    use: FloatArray
    limit: FloatArray


@dataclass(frozen=True, eq=False)
class Matching:
    """Shares of edges from sources to destinations, of the largest value.

    Parameters
    ----------
    source, destination : array_like
        ``(edges,)`` integers from 0: the ends of every edge, in any order.
    value : array_like
        ``(edges,)``: what a unit of an edge is worth.
    weight : array_like
        ``(edges,)``: what a unit loads its destination with, non-negative.
    capacity : array_like
        ``(destinations,)``: the most that every destination takes, non-negative; infinite for no limit.
    limit : array_like
        ``(sources,)``, or one number for all: the most that a source takes; by default one unit of its edges.
    least : array_like
        ``(sources,)`` or a number: the least that a source takes; equal to ``limit`` for an equation.
    use : array_like
        ``(edges,)`` or a number: what a unit of an edge takes of its source's limit, positive.
    floor : array_like
        ``(destinations,)`` or a number: the least load of a destination.
    upper : array_like
        ``(edges,)`` or a number: the most of an edge; infinite where limits alone say.
    budgets : sequence of SourceBudget
        Further limits of sources.

    Raises
    ------
    ShapeError, ScopeError, NonFiniteError, ModelError
        If an array is of the wrong shape, names an end that there is not, is not finite or has a wrong sign, or if a
        variable has no bound.

    Examples
    --------
    >>> from blocklp.problems.matching import Matching, solve_matching
    >>> two = Matching(source=[0, 0, 1], destination=[0, 1, 0], value=[3, 1, 2], weight=[1, 1, 1], capacity=[1, 1])
    >>> round(solve_matching(two).primal, 6)  # source 0 to destination 0, or source 1 there and 0 to 1
    3.0
    """

    source: IntArray
    destination: IntArray
    value: FloatArray
    weight: FloatArray
    capacity: FloatArray
    limit: FloatArray = field(default_factory=lambda: np.array(1.0))
    least: FloatArray = field(default_factory=lambda: np.array(0.0))
    use: FloatArray = field(default_factory=lambda: np.array(1.0))
    floor: FloatArray = field(default_factory=lambda: np.array(0.0))
    upper: FloatArray = field(default_factory=lambda: np.array(np.inf))
    budgets: tuple[SourceBudget, ...] = ()

    def __post_init__(self) -> None:
        value = _vector(self.value, "value", None, 1, finite=True)
        edges, ends = len(value), {}
        for name in ("source", "destination"):
            given = np.asarray(getattr(self, name))
            if given.shape != (edges,) or given.dtype.kind not in "iu":
                what = f"an array {given.shape} of {given.dtype}"
                raise ShapeError(f"{name} is {what}; give {edges} integers, one an edge, as there are values")
            if edges and given.min() < 0:
                raise ScopeError(f"{name}[{int(given.argmin())}] is {given.min()}; numbers begin at 0")
            ends[name] = given
        capacity = _vector(self.capacity, "capacity", 0.0, 1)
        if edges and (most := int(ends["destination"].max())) >= len(capacity):
            at = int(ends["destination"].argmax())
            raise ScopeError(f"destination[{at}] is {most}, and capacity has {len(capacity)} entries; give one for each")
        sources = int(ends["source"].max()) + 1 if edges else 0
        limit, least = (_vector(getattr(self, name), name, 0.0) for name in ("limit", "least"))
        for name, given in (("limit", limit), ("least", least)):
            if given.ndim and len(given) < sources:
                raise ShapeError(f"{name} has {len(given)} entries for {sources} sources; give one to each, or one number")
            sources = max(sources, given.size if given.ndim else 0)
        made = {
            **ends,
            "value": value,
            "weight": _vector(self.weight, "weight", 0.0, 1, finite=True),
            "capacity": capacity,
            "limit": np.broadcast_to(limit, sources),
            "least": np.broadcast_to(least, sources),
            "use": np.broadcast_to(_vector(self.use, "use", 0.0, finite=True), edges),
            "floor": np.broadcast_to(_vector(self.floor, "floor", 0.0, finite=True), len(capacity)),
            "upper": np.broadcast_to(_vector(self.upper, "upper", 0.0), edges),
            "budgets": tuple(self._budget(k, b, edges, sources) for k, b in enumerate(self.budgets)),
        }
        for name, given in made.items():
            object.__setattr__(self, name, given)
        if len(self.weight) != edges:
            raise ShapeError(f"weight has {len(self.weight)} entries for {edges} edges; give one to each")
        for low, high, what in (("least", "limit", "source"), ("floor", "capacity", "destination")):
            if (wrong := getattr(self, low) > getattr(self, high)).any():
                k = int(wrong.argmax())
                raise ModelError(f"{low} of {what} {k} is {getattr(self, low)[k]}, above its {high}, {getattr(self, high)[k]}")
        if edges and np.isinf(self.upper).any() and (lacking := np.isinf(self.most)).any():
            e = int(lacking.argmax())
            raise ModelError(f"edge {e} may carry any amount: use[{e}] is {self.use[e]}; give upper for it, or a positive use")

    @staticmethod
    def _budget(number: int, given: SourceBudget, edges: int, sources: int) -> SourceBudget:
        use = _vector(given.use, f"budgets[{number}].use", 0.0, 1, finite=True)
        limit = _vector(given.limit, f"budgets[{number}].limit", 0.0)
        if len(use) != edges or (limit.ndim and len(limit) != sources):
            raise ShapeError(
                f"budgets[{number}] has {len(use)} uses and {limit.size} limits; give {edges} and {sources}, or one limit for all"
            )
        return SourceBudget(use, np.broadcast_to(limit, sources))

    @property
    def edges(self) -> int:
        """Number of edges."""
        return len(self.value)

    @property
    def sources(self) -> int:
        """Number of sources, of which some may have no edge."""
        return len(self.limit)

    @property
    def destinations(self) -> int:
        """Number of destinations."""
        return len(self.capacity)

    @cached_property
    def most(self) -> FloatArray:
        """The most of every edge that bounds and limits allow, ``(edges,)``."""
        if not self.limit.strides[0] and not self.use.strides[0] and not self.upper.strides[0] and self.edges:
            one = self.use[0]
            return np.broadcast_to(min(self.upper[0], self.limit[0] / one if one > 0 else np.inf), self.edges)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.minimum(self.upper, np.where(self.use > 0, self.limit[self.source] / self.use, np.inf))

    @property
    def packing(self) -> bool:
        """Whether nothing but limits of sources and capacities holds shares back: any point can be scaled into them."""
        free = bool(np.isinf(self.upper).all())
        return free and not self.budgets and not self.least.any() and not self.floor.any() and bool((self.use > 0).all())

    @property
    def served(self) -> bool:
        """Whether the edges of every source can carry the least that it takes."""
        return not self.least.any() or bool((np.bincount(self.source, self.use * self.most, self.sources) >= self.least).all())

    @cached_property
    def order(self) -> IntArray | None:
        """The edges in the order of their sources; None where they are so."""
        return None if bool((np.diff(self.source) >= 0).all()) else np.argsort(self.source, kind="stable")

    @classmethod
    def random(cls, sources: int, destinations: int, sparsity: float, seed: int = 42) -> Matching:
        """A random matching by the law of DuaLip's benchmark.

        Breadth (and with it the degree), scale and worth of destinations, affinity of sources and noise of edges are
        lognormal; an edge is worth the product of the last three, up to 0.5, and loads its destination with its
        value times the scale.  Capacities are half to all of the load where every source takes its largest load.

        Parameters
        ----------
        sources, destinations : int
            Their numbers.
        sparsity : float
            Mean part of the destinations that a source has edges to.
        seed : int
            Of the random numbers.
        """
        draw = np.random.default_rng(seed)
        breadth, scale, worth = (draw.lognormal(*law, destinations) for law in (BREADTH, SCALE, WORTH))
        affinity = draw.lognormal(*AFFINITY, sources)
        counts = draw.poisson(breadth / breadth.sum() * sparsity * destinations * sources)
        counts = np.minimum(counts, sources)
        # As many sources for each destination as it should have, but for those that are drawn twice.
        pairs = draw.integers(0, sources, int(counts.sum())) * destinations + np.repeat(np.arange(destinations), counts)
        pairs = np.unique(pairs)
        source, destination = pairs // destinations, pairs % destinations
        value = worth[destination] * affinity[source] * draw.lognormal(0, NOISE, len(pairs))
        value = np.minimum(value, LARGEST)
        weight = scale[destination] * value
        most = np.zeros(sources)
        np.maximum.at(most, source, weight)
        greedy = np.bincount(destination, weight * (weight == most[source]), destinations)
        return cls(source, destination, value, weight, draw.uniform(0.5, 1, destinations) * (greedy + SLACK))

    def bound(self, price: FloatArray) -> tuple[float, float]:
        r"""The bound that prices of destinations prove on what shares are worth, of a :attr:`packing` matching.

        .. math:: \sum_s limit_s \max(0, \max_{e \in s} (v_e - w_e p_{d(e)}) / a_e) + \sum_d capacity_d p_d

        Parameters
        ----------
        price : ndarray
            ``(destinations,)``; negative ones count as zero.

        Returns
        -------
        bound, safe_bound : float
            The value, and that with all rounding charged.
        """
        price = np.maximum(price, 0)
        price = np.where(np.isinf(self.capacity), 0.0, price)
        paid = self.weight * price[self.destination]
        worth, size = self.value - paid, np.abs(self.value) + paid
        if self.use.strides[0] or self.use[:1].sum() != 1:
            worth, size = worth / self.use, size / self.use
        best, slack = np.zeros(self.sources), np.zeros(self.sources)
        if self.order is None and self.edges:
            starts = np.flatnonzero(np.diff(self.source, prepend=-1))
            own = self.source[starts]
            best[own] = np.maximum(np.maximum.reduceat(worth, starts), 0)
            size *= 4 * EPS
            size += worth
            slack[own] = np.maximum(np.maximum.reduceat(size, starts), 0)
        else:
            np.maximum.at(best, self.source, worth)
            np.maximum.at(slack, self.source, worth + 4 * EPS * size)
        capacity = np.where(np.isinf(self.capacity), 0.0, self.capacity)
        terms, tops = float(self.limit @ best), float(self.limit @ slack)
        paid_for = float(capacity @ price)
        added = (self.sources + self.destinations + 6) * EPS * (tops + paid_for)
        return terms + paid_for, tops + paid_for + added

    def repaired(self, x: FloatArray) -> FloatArray:
        """Scale shares ``(edges,)`` into the limits of sources, then into capacities, of a :attr:`packing` matching."""
        x = np.maximum(x, 0)
        for owner, use, most in ((self.source, self.use, self.limit), (self.destination, self.weight, self.capacity)):
            count = np.bincount(owner, minlength=len(most))
            load = np.bincount(owner, use * x, len(most)) * (1 + 2 * EPS * (count + 2))  # no more, whatever rounding does
            factor = np.divide(most, load, out=np.ones(len(most)), where=load > most)
            x *= factor[owner]
        return x

    def worth(self, x: FloatArray) -> float:
        """The value of shares ``(edges,)``."""
        return float(self.value @ x)


def _vector(given: ArrayLike, name: str, least: float | None, ndim: int = 0, finite: bool = False) -> Any:
    """Return numbers as float64 of the right dimension; an error names the first entry that is none."""
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{name} holds no real numbers ({error})") from error
    if array.ndim > 1 or array.ndim < ndim:
        raise ShapeError(f"{name} has shape {array.shape}; give a vector" + (" or a number" if not ndim else ""))
    wrong = ~np.isfinite(array) if finite else np.isnan(array)
    if wrong.any():
        raise NonFiniteError(f"{name} holds {array[wrong].flat[0]} at {int(np.argmax(wrong))}; give finite numbers")
    if least is not None and array.size and array.min() < least:
        raise ModelError(f"{name} holds {array.min()} at {int(array.argmin())}; it must not be negative")
    return array
