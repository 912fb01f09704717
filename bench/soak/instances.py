"""Random models of every block type, stated twice: as a model, and as a program whose optimum is known exactly.

Every model is built around a point that satisfies it, exactly, so that none may be called infeasible.  The program is
written from the definition of each type, vertices or rows, and asks the package for nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

import blocklp as bl
from bench.soak import exact_lp
from bench.soak.trial import Draw
from bench.soak.users import Charged, Listed
from blocklp.oracles import AtMostOne, Box, Chain, Edge, FourClique, FourCycle, Joint, Knapsack, Pairwise, Polytope, Simplex, Triangle
from blocklp.oracles.relu import ReluHull

Array = NDArray[np.float64]
Rows = list[tuple[Sequence[float], float, float]]
"""Rows ``(coefficients, least, most)`` of one block, with infinities for sides that are not there."""


@dataclass
class Group:
    """Blocks of one type: how they are built, and each as vertices or as rows.

    Attributes
    ----------
    build : callable
        Returns the type.
    scope : ndarray
        ``(blocks, dim)``.
    vertices : list of ndarray or None
        For each block ``(vertices, dim)``.
    rows : list of Rows or None
        For each block.
    rescale : callable or None
        Takes a factor of the variables and one of the rows to the group in these units.
    """

    build: Callable[[], bl.BlockType]
    scope: NDArray[np.int64]
    vertices: list[Array] | None = None
    rows: list[Rows] | None = None
    rescale: Callable[[float, float], Group] | None = None


@dataclass
class Sketch:
    """A random instance, or a batch that differs in costs.

    Attributes
    ----------
    lower, upper : ndarray
        ``(n,)``: bounds of the variable x.
    point : ndarray
        ``(n,)``: a point that satisfies everything, as the floats that it is.
    cost : ndarray
        ``(batch, n)``.
    offset : float
        Constant of the objective.
    fixed : dict of int to pair
        Bounds that are given to ``solve``.
    maximize : bool
        The sense.
    optimum : Fraction or None
        Where it is known without solving anything, of a single instance.
    """

    lower: Array
    upper: Array
    point: Array
    cost: Array
    groups: list[Group] = field(default_factory=list)
    offset: float = 0.0
    fixed: dict[int, tuple[float, float]] = field(default_factory=dict)
    maximize: bool = False
    optimum: Fraction | None = None

    @property
    def batch(self) -> int:
        """Number of instances."""
        return len(self.cost)

    def model(self, cost: Array | None = None) -> bl.Model:
        """State the model, with other costs if they are given."""
        model = bl.Model(batch=self.batch)
        x = model.variable("x", len(self.lower), lower=self.lower, upper=self.upper)
        for group in self.groups:
            model.add(group.build(), x[group.scope])
        costs = self.cost if cost is None else cost
        objective = (torch.as_tensor(costs) * x).sum() + self.offset
        (model.maximize if self.maximize else model.minimize)(objective)
        return model

    def bounds(self, model: bl.Model) -> dict[bl.language.View, tuple[object, object]] | None:
        """What is given to ``solve`` as ``bounds=``."""
        x = model.variables["x"]
        return {x[j]: sides for j, sides in self.fixed.items()} or None

    def program(self, instance: int = 0) -> exact_lp.Program:
        """The instance as a program, to be minimised: a maximum is minus the minimum of the negative."""
        sign = -1 if self.maximize else 1
        made = exact_lp.Program(offset=sign * Fraction(self.offset))
        for j, cost in enumerate(self.cost[instance].tolist()):
            low, high = self.fixed.get(j, (-math.inf, math.inf))
            made.column(sign * Fraction(cost), Fraction(max(low, self.lower[j])), Fraction(min(high, self.upper[j])))
        for group in self.groups:
            for b, scope in enumerate(group.scope.tolist()):
                if group.rows is not None:
                    for entries, least, most in group.rows[b]:
                        own = {j: Fraction(v) for j, v in zip(scope, map(float, entries), strict=True)}
                        made.row(own, *(None if math.isinf(side) else Fraction(side) for side in (least, most)))
                if group.vertices is not None:
                    _hull(made, scope, group.vertices[b])
        return made

    @cached_property
    def truths(self) -> list[tuple[Fraction, Fraction]]:
        """For each instance two numbers, in its own sense, between which the optimum lies; the first is on the bounds' side."""
        found = [] if self.optimum is None else [(self.optimum, self.optimum)]
        for i in range(len(found), self.batch):
            truth = exact_lp.solve(self.program(i))
            if truth is None:  # the known point says otherwise
                raise AssertionError("HiGHS finds a model infeasible that has a feasible point")
            found.append((-truth.least, -truth.most) if self.maximize else (truth.least, truth.most))
        return found

    def known(self, instance: int) -> Fraction:
        """The value of the known point, exactly."""
        terms = (Fraction(c) * Fraction(v) for c, v in zip(self.cost[instance].tolist(), self.point.tolist(), strict=True))
        return sum(terms, Fraction(self.offset))

    def rescaled(self, variables: float, rows: float, costs: float) -> Sketch:
        """The instance in other units: its optimum is multiplied by ``costs``."""
        groups = [g.rescale(variables, rows) for g in self.groups if g.rescale is not None]
        sides = self.lower * variables, self.upper * variables, self.point * variables
        fixed = {j: (low * variables, high * variables) for j, (low, high) in self.fixed.items()}
        return Sketch(*sides, self.cost * costs / variables, groups, self.offset * costs, fixed, self.maximize)

    @property
    def believed(self) -> bool:
        """Whether it has types of users, whose oracles are believed without a charge for their rounding."""
        return any(type(g.build()) is Listed for g in self.groups)

    def size(self, instance: int) -> float:
        """The largest magnitudes that the terms of the objective may have, added up."""
        return float((np.abs(self.cost[instance]) * np.maximum(np.abs(self.lower), np.abs(self.upper))).sum())

    def __str__(self) -> str:
        kinds = ", ".join(f"{len(g.scope)} {g.build().name}" for g in self.groups)
        return f"{len(self.lower)} variables, {kinds}, batch {self.batch}" + (f", {len(self.fixed)} fixed" if self.fixed else "")


def _hull(program: exact_lp.Program, scope: Sequence[int], vertices: Array) -> None:
    """Say that the variables of a block are a mean of vertices."""
    shares = [program.column(Fraction(0), Fraction(0), Fraction(1)) for _ in vertices]
    program.row(dict.fromkeys(shares, Fraction(1)), Fraction(1), Fraction(1))
    for i, j in enumerate(scope):
        entries = {k: Fraction(float(v[i])) for k, v in zip(shares, vertices, strict=True)}
        program.row({**entries, j: Fraction(-1)}, Fraction(0), Fraction(0))


def random_sketch(draw: Draw, kinds: Sequence[str] = (), batch: int | None = None) -> Sketch:
    """A model of some layout, with costs, constants and fixings of all kinds.

    Parameters
    ----------
    kinds : sequence of str
        Layouts to choose from, by default all of :data:`LAYOUTS`.
    batch : int, optional
        Number of instances, by default one or a few.
    """
    count = batch if batch is not None else 1 if draw.chance(0.6) else draw.count(2, 4)
    sketch = LAYOUTS[draw.pick(*(kinds or LAYOUTS))](draw, count)
    sketch.maximize = draw.chance(0.2)
    return sketch


def rescaled(draw: Draw, sketch: Sketch) -> Sketch:
    """Costs of another size, a constant, and fixings, each sometimes."""
    scale = 10.0 ** draw.pick(0, 0, 0, -12, -8, -5, 5, 8, 12)
    size = float(np.abs(sketch.cost).max()) * scale
    offset = draw.pick(0.0, 0.0, 0.0, 1.0, -1 / 3) * size
    fixed = {}
    if draw.chance(0.3):
        for j in draw.random.permutation(len(sketch.lower))[: draw.count(1, 3)].tolist():
            value = float(sketch.point[j])
            fixed[j] = (value, value) if draw.chance(0.7) else (float(sketch.lower[j]), value)
    return replace(sketch, cost=sketch.cost * scale, offset=offset, fixed=fixed)


def costs(draw: Draw, batch: int, n: int) -> Array:
    """Costs of one kind: integers with ties, decimals, normal numbers, or many magnitudes."""
    kind, shape = draw.pick("integers", "decimals", "normal", "spread"), (batch, n)
    if kind == "integers":
        found: Array = draw.random.integers(-5, 6, shape).astype(float)
    elif kind == "decimals":
        found = draw.random.integers(-99, 100, shape) / 10
    else:
        found = draw.random.normal(size=shape)
        if kind == "spread":
            found *= 10.0 ** draw.random.integers(-4, 4, shape)
    found[:, 0] += not found[0].any()
    return found


def products(draw: Draw, batch: int) -> Sketch:
    """Labels 0 and 1 with products of pairs: edges, triangles, cycles and cliques of four, which share products."""
    n = draw.count(4, 8)
    y = draw.random.integers(0, 2, n)
    numbers: dict[tuple[int, int], int] = {}

    def product(i: int, j: int) -> int:
        return numbers.setdefault((min(i, j), max(i, j)), n + len(numbers))

    layouts: list[tuple[Callable[[], bl.BlockType], int, Sequence[tuple[int, int]]]] = [
        (Edge, 2, ((0, 1),)),
        (Triangle, 3, Triangle.pairs),
        (FourCycle, 4, FourCycle.pairs),
        (FourClique, 4, FourClique.pairs),
    ]
    groups = []
    for number, (build, order, pairs) in enumerate(layouts):
        if number and draw.chance(0.5):
            continue
        chosen = [sorted(draw.random.permutation(n)[:order].tolist()) for _ in range(draw.count(1, 6 if order == 2 else 3))]
        chosen = [list(c) for c in dict.fromkeys(map(tuple, chosen))]
        scope = np.array([[*c, *(product(c[i], c[j]) for i, j in pairs)] for c in chosen])
        ends = np.array(list(itertools.product((0.0, 1.0), repeat=order)))
        table = np.hstack([ends, np.stack([ends[:, i] * ends[:, j] for i, j in pairs], 1)])
        groups.append(Group(build, scope, vertices=[table] * len(scope)))
    point = np.concatenate([y, [y[i] * y[j] for i, j in numbers]]).astype(float)
    if draw.chance(0.4):
        groups.append(knapsack(draw, point[:n], np.zeros(n), np.ones(n)))
    size = len(point)
    return Sketch(np.zeros(size), np.ones(size), point, costs(draw, batch, size), groups)


def labels(draw: Draw, batch: int) -> Sketch:
    """Variables with several labels, pairs, triples and chains of them, and each label set a simplex."""
    counts = draw.random.integers(2, 4, draw.count(3, 4)).tolist()
    first = np.concatenate([[0], np.cumsum(counts)]).tolist()
    chosen = [int(draw.random.integers(c)) for c in counts]
    point = [float(chosen[i] == a) for i, c in enumerate(counts) for a in range(c)]
    groups: list[Group] = []

    def joint(members: Sequence[int]) -> list[int]:
        """Variables of the joint labels of some of them, new ones."""
        sizes = [counts[i] for i in members]
        begin = len(point)
        point.extend(
            float(all(chosen[i] == a for i, a in zip(members, own, strict=False))) for own in itertools.product(*map(range, sizes))
        )
        return list(range(begin, len(point)))

    def add(build: Callable[[], bl.BlockType], members: Sequence[int], parts: Sequence[tuple[int, ...]]) -> None:
        """A block over labels and joint labels: each part is that of some members."""
        scope: list[int] = []
        for part in parts:
            of = [members[k] for k in part]
            scope += range(first[of[0]], first[of[0] + 1]) if len(of) == 1 else joint(of)
        rows = []
        for own in itertools.product(*(range(counts[i]) for i in members)):
            row: list[float] = []
            for part in parts:
                row += [float(all(own[k] == a for k, a in zip(part, some, strict=False))) for some in _labels(counts, members, part)]
            rows.append(row)
        groups.append(Group(build, np.array([scope]), vertices=[np.array(rows)]))

    for _ in range(draw.count(1, 3)):
        i, j = sorted(draw.random.permutation(len(counts))[:2].tolist())
        add(lambda a=counts[i], b=counts[j]: Pairwise(a, b), (i, j), ((0,), (1,), (0, 1)))
    if draw.chance(0.4):
        three = draw.random.permutation(len(counts))[:3].tolist()
        sizes = [counts[i] for i in three]
        if draw.chance(0.5):
            add(lambda: Chain(sizes), three, ((0,), (1,), (2,), (0, 1), (1, 2)))
        else:
            add(lambda: Joint(sizes, [(0,), (1,), (2,)]), three, ((0,), (1,), (2,), (0, 1, 2)))
    for i, count in enumerate(counts):
        if draw.chance(0.5):
            groups.append(simplex(count, np.arange(first[i], first[i + 1])[None]))
    size = len(point)
    return Sketch(np.zeros(size), np.ones(size), np.array(point), costs(draw, batch, size), groups)


def _labels(counts: Sequence[int], members: Sequence[int], part: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(counts[members[k]]) for k in part)))


def simplex(count: int, scope: NDArray[np.int64]) -> Group:
    """Exactly one of some variables."""
    return Group(lambda: Simplex(count), scope, rows=[[([1.0] * count, 1.0, 1.0)]] * len(scope))


def assignment(draw: Draw, batch: int) -> Sketch:
    """Items to bins: one or at most one bin each, a knapsack for each bin, with or without lower bounds of its own."""
    items, bins = draw.count(2, 5), draw.count(2, 3)
    choice = draw.random.integers(bins, size=items)
    place = np.arange(items * bins).reshape(items, bins)
    point = np.zeros(items * bins)
    point[place[np.arange(items), choice]] = 1
    if draw.chance(0.6):
        groups = [simplex(bins, place)]
    else:
        groups = [Group(lambda: AtMostOne(bins), place, rows=[[([1.0] * bins, -math.inf, 1.0)]] * items)]
    size = len(point)
    for b in range(bins):
        groups.append(knapsack(draw, point, np.zeros(size), np.ones(size), place[:, b]))
    return Sketch(np.zeros(size), np.ones(size), point, costs(draw, batch, size), groups)


def full_knapsack(draw: Draw, n: int) -> Sketch:
    """A knapsack whose capacity is used up by fixed items, but for a part of an item that weighs next to nothing."""
    held = int(draw.random.integers(1, n))
    weights = draw.random.integers(1, 9999, n) / 10
    weights[held:] = 10.0 ** -draw.random.integers(1, 18, n - held)
    if draw.chance(0.2):
        weights[-1] = draw.pick(1e-310, 5e-324)
    low = draw.pick(0.0, 0.0, -1.0) * np.ones(n)
    point = np.where(np.arange(n) < held, 1.0, low)
    load = sum((Fraction(w) * Fraction(v) for w, v in zip(weights.tolist(), point.tolist(), strict=True)), Fraction(0))
    capacity = above(load + Fraction(float(weights[held])) / draw.pick(1, 2, 3))
    group = _knapsack(weights, capacity, low, np.ones(n), np.arange(n))
    sketch = Sketch(low, np.ones(n), point, -draw.random.integers(0, 9, (1, n)).astype(float), [group])
    sketch.fixed = {j: (1.0, 1.0) for j in range(held) if low[j] < 1}
    # The least cost by its ratio to the weight first, in fractions (Dantzig 1957).
    exact, prices = [Fraction(w) for w in weights.tolist()], [Fraction(c) for c in sketch.cost[0].tolist()]
    room = Fraction(capacity) - load
    sketch.optimum = sum((c * Fraction(v) for c, v in zip(prices, point.tolist(), strict=True)), Fraction(0))
    for j in sorted(range(held, n), key=lambda j: prices[j] / exact[j]):
        raised = min(1 - Fraction(point[j]), room / exact[j])
        room -= raised * exact[j]
        sketch.optimum += prices[j] * raised
    return sketch


def knapsack(draw: Draw, point: Array, lower: Array, upper: Array, scope: NDArray[np.int64] | None = None) -> Group:
    """A knapsack that the point satisfies: weights of one or of many magnitudes, some zero, some beyond normal numbers."""
    scope = draw.random.permutation(len(point))[: draw.count(2, 6)] if scope is None else scope
    dim = len(scope)
    kind = draw.pick("decimals", "spread", "tiny", "zeros")
    weights = draw.random.integers(1, 9999, dim) / 10
    if kind in ("spread", "tiny"):
        weights *= 10.0 ** draw.random.integers(-9 if kind == "spread" else -18, 4, dim)
    if kind == "zeros":
        weights *= draw.random.integers(0, 2, dim)
    if draw.chance(0.1):
        weights[int(draw.random.integers(dim))] = draw.pick(1e-310, 5e-324, 1e-200)
    low, high = lower[scope].copy(), upper[scope].copy()
    if draw.chance(0.4):  # bounds of its own, around the point
        low = np.where(draw.random.random(dim) < 0.5, point[scope], np.where(draw.random.random(dim) < 0.5, low, low - 1))
        high = np.maximum(high, low)
    load = sum((Fraction(w) * Fraction(v) for w, v in zip(weights.tolist(), point[scope].tolist(), strict=True)), Fraction(0))
    room = 0.0 if draw.chance(0.3) else float(weights.sum() * draw.random.random() * 0.5)
    capacity = above(load + Fraction(room))
    return _knapsack(weights, capacity, low, high, scope)


def _knapsack(weights: Array, capacity: float, low: Array, high: Array, scope: NDArray[np.int64]) -> Group:
    dim = len(scope)
    rows: Rows = [(_unit(dim, k), float(low[k]), float(high[k])) for k in range(dim)]
    rows.append((weights.tolist(), -math.inf, capacity))
    return Group(
        lambda: Knapsack(weights, capacity, low, high),
        scope[None],
        rows=[rows],
        rescale=lambda f, g: _knapsack(weights * (g / f), capacity * g, low * f, high * f, scope),
    )


def above(value: Fraction) -> float:
    """The least float that is not below a fraction."""
    found = float(value)
    return math.nextafter(found, math.inf) if Fraction(found) < value else found


def _unit(dim: int, k: int) -> list[float]:
    return [float(i == k) for i in range(dim)]


def polytopes(draw: Draw, batch: int, reach: int | None = None) -> Sketch:
    """Small polytopes with rows around a point, in variables of different units; ``reach`` is the power of ten of their boxes."""
    n = draw.count(3, 8)
    powers = draw.random.integers(-3, 4, n) if draw.chance(0.4) and reach is None else np.zeros(n, dtype=int)
    width = 10.0 ** (powers + (draw.pick(0, 0, 1, 2) if reach is None else reach))
    low = -width * draw.random.integers(0, 2, n)
    inside = np.round(draw.random.random(n), 3) * (1 if reach is None else 10.0**-reach)
    point = np.clip(low + inside * width * (2 if reach is None else 1), low, width)
    groups = []
    for _ in range(draw.count(1, 4)):
        dim = min(n, draw.count(2, 4))
        scope = draw.random.permutation(n)[:dim]
        rows: Rows = []
        for _ in range(draw.count(1, 3)):
            entries = draw.random.integers(-9, 10, dim) / draw.pick(1, 10) / (10.0 ** powers[scope] if reach is None else 1.0)
            if not entries.any():
                continue
            load = sum(
                (Fraction(a) * Fraction(v) for a, v in zip(entries.tolist(), point[scope].tolist(), strict=False)), Fraction(0)
            )
            slack = Fraction(float(draw.random.integers(0, 5))) * Fraction(float(np.abs(entries).max()))
            most, least = above(load + slack), -above(-(load - slack))
            rows.append((entries.tolist(), *draw.pick((-math.inf, most), (-math.inf, most), (least, math.inf), (least, most))))
        if rows:
            groups.append(polytope(rows, scope, low, width))
    if draw.chance(0.3):
        groups.append(knapsack(draw, point, low, width))
    return Sketch(low, width, point, costs(draw, batch, n) / 10.0**powers, groups)


def polytope(rows: Rows, scope: NDArray[np.int64], low: Array, high: Array) -> Group:
    """One polytope with rows, in the box of its variables."""
    matrix, least, most = (np.array([row[k] for row in rows]) for k in range(3))
    box = [(_unit(len(scope), k), float(low[j]), float(high[j])) for k, j in enumerate(scope)]
    return Group(
        lambda: Polytope(matrix, least, most, low[scope], high[scope]),
        scope[None],
        rows=[[*rows, *box]],
        rescale=lambda f, g: polytope([(np.multiply(a, g / f).tolist(), b * g, c * g) for a, b, c in rows], scope, low * f, high * f),
    )


def tables(draw: Draw, batch: int) -> Sketch:
    """Hulls of listed vertices, boxes and user's types, which share variables of different units."""
    n = draw.count(3, 8)
    unit = 10.0 ** (draw.random.integers(-3, 4, n) if draw.chance(0.4) else np.zeros(n))
    point = draw.random.integers(-2, 3, n) * unit
    groups = []
    for _ in range(draw.count(1, 4)):
        dim = min(n, draw.count(2, 4))
        scope = draw.random.permutation(n)[:dim]
        others = draw.random.integers(-3, 4, (draw.count(1, 6), dim)) * unit[scope]
        table = np.unique(np.vstack([point[scope], others]), axis=0)
        groups.append(table_group(draw.pick(bl.FiniteVertices, Listed, Charged), table, scope))
    low, high = -3 * unit, 3 * unit
    if draw.chance(0.3):
        scope = draw.random.permutation(n)[:2]
        inner = np.minimum(point[scope], low[scope] / 2), np.maximum(point[scope], high[scope] / 2)
        groups.append(_box(*inner, scope))
    return Sketch(low, high, point, costs(draw, batch, n) / unit, groups)


def table_group(kind: Callable[[Array], bl.BlockType], table: Array, scope: NDArray[np.int64]) -> Group:
    return Group(lambda: kind(table), scope[None], vertices=[table], rescale=lambda f, _: table_group(kind, table * f, scope))


def _box(low: Array, high: Array, scope: NDArray[np.int64]) -> Group:
    rows: Rows = [(_unit(len(scope), k), float(low[k]), float(high[k])) for k in range(len(scope))]
    return Group(lambda: Box(low, high), scope[None], rows=[rows], rescale=lambda f, _: _box(low * f, high * f, scope))


def hulls(draw: Draw, batch: int) -> Sketch:
    """Neurons: hulls of ReLUs, tied together by polytopes over their inputs and outputs."""
    n = draw.count(2, 4)
    low, high = -draw.random.integers(0, 30, n) / 10, draw.random.integers(0, 30, n) / 10
    z = low + np.round(draw.random.random(n), 2) * (high - low)
    z = np.clip(z, low, high)
    point = np.concatenate([z, np.maximum(z, 0)])
    scope = np.stack([np.arange(n), n + np.arange(n)], 1)
    corners = [
        np.array([[lo, 0.0 if lo < 0 else lo], [hi, hi], [0.0, 0.0] if lo < 0 else [hi, hi]])
        for lo, hi in zip(low, high, strict=False)
    ]
    groups = [Group(lambda: ReluHull(low, high), scope, vertices=[np.unique(c, axis=0) for c in corners])]
    lower, upper = np.concatenate([low, np.zeros(n)]), np.concatenate([high, high])
    rows: Rows = []
    some = draw.random.permutation(2 * n)[:3]
    for _ in range(draw.count(1, 2)):
        entries = draw.random.integers(-5, 6, len(some)).astype(float)
        if entries.any():
            load = sum((Fraction(a) * Fraction(v) for a, v in zip(entries.tolist(), point[some].tolist(), strict=False)), Fraction(0))
            rows.append((entries.tolist(), -math.inf, above(load)))
    if rows:
        groups.append(polytope(rows, some, lower, upper))
    return Sketch(lower, upper, point, costs(draw, batch, 2 * n), groups)


LAYOUTS: dict[str, Callable[[Draw, int], Sketch]] = {
    "products": products,
    "labels": labels,
    "assignment": assignment,
    "polytopes": polytopes,
    "tables": tables,
    "hulls": hulls,
}
