"""Formulas of VNN-LIB files in rational numbers: their disjunctive normal form, and its boxes and rows in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from blocklp.problems.qpbo.arrays import FloatArray
from blocklp.problems.verification.properties import Clause, Row, frozen

LARGEST_FLOAT32 = Fraction(float(np.finfo(np.float32).max))


class Bound(NamedTuple):
    """``x[key] <= value``, or ``-x[~key] <= value`` if ``key`` is negative, so that both sides are treated alike."""

    key: int
    value: Fraction
    strict: bool


@dataclass(slots=True)
class Junction:
    """All of the parts, or any of them; nested ones of the same kind are flattened and constants are gone."""

    every: bool
    parts: list[Formula]


Formula = bool | Bound | Row | Junction
Atoms = tuple[Bound | Row, ...]


def join(every: bool, parts: list[Formula]) -> Formula:
    """Return all of the parts, or any of them, without constants."""
    kept: list[Formula] = []
    for part in parts:
        if isinstance(part, bool):
            if part is not every:
                return part
        elif isinstance(part, Junction) and part.every is every:
            kept += part.parts
        else:
            kept.append(part)
    if not kept:
        return every
    return kept[0] if len(kept) == 1 else Junction(every, kept)


def count(formula: Formula) -> int:
    """Return the number of alternatives of a formula."""
    if not isinstance(formula, Junction):
        return 1
    counts = [count(part) for part in formula.parts if isinstance(part, Junction) or not formula.every]
    return math.prod(counts) if formula.every else sum(counts)


def alternatives(formula: Formula) -> Iterator[Atoms]:
    """Expand a formula without constants into its disjunctive normal form, one conjunction after the other."""
    if isinstance(formula, Bound | Row):
        yield (formula,)
    elif isinstance(formula, Junction) and formula.every:
        plain: Atoms = tuple(part for part in formula.parts if isinstance(part, Bound | Row))
        for choice in product(*(alternatives(part) for part in formula.parts if isinstance(part, Junction))):
            yield sum(choice, plain)
    elif isinstance(formula, Junction):
        for part in formula.parts:
            yield from alternatives(part)


def round_up(value: Fraction) -> float:
    """Return the smallest float64 number that is not below ``value``; OverflowError if there is none."""
    nearest = value.numerator / value.denominator
    top, bottom = nearest.as_integer_ratio()
    above = math.nextafter(nearest, math.inf) if top * value.denominator < value.numerator * bottom else nearest
    if math.isinf(above):
        raise OverflowError
    return above


def inwards(bound: Bound) -> float:
    """Return the greatest float64 number that satisfies a bound on ``x`` (or on ``-x``)."""
    below = -round_up(-bound.value)
    return math.nextafter(below, -math.inf) if bound.strict and below == bound.value else below


def tighten(bounds: dict[int, Bound], bound: Bound, outer: dict[int, Bound]) -> None:
    """Add to ``bounds`` a bound that says more than ``bounds`` and ``outer`` do.

    Parameters
    ----------
    bounds, outer : dict
        Bounds by key, of an alternative and of all alternatives.
    bound : Bound
        The new one.
    """
    old = bounds.get(bound.key) or outer.get(bound.key)
    if old is None or (bound.value, not bound.strict) < (old.value, not old.strict):
        bounds[bound.key] = bound


def first_empty(bounds: dict[int, Bound], outer: dict[int, Bound]) -> int | None:
    """Return an input that ``bounds``, which refine ``outer``, leave no value at all, or None; exact."""
    for key, bound in bounds.items():
        other = bounds.get(~key) or outer.get(~key)
        if other is not None:
            width = bound.value + other.value
            if width < 0 or (width == 0 and (bound.strict or other.strict)):
                return max(key, ~key)
    return None


def first_missing(bounds: dict[int, Bound], outer: dict[int, Bound], inputs: int) -> int | None:
    """Return the key of a bound that neither ``bounds`` nor ``outer`` have, or None.

    Parameters
    ----------
    bounds, outer : dict
        Bounds by key, of an alternative and of all alternatives.
    inputs : int
        Number of inputs, which have a lower and an upper bound each.
    """
    # Counting first: a file may bound thousands of inputs for all alternatives at once.
    if len(outer) + sum(key not in outer for key in bounds) == 2 * inputs:
        return None
    return next(key for index in range(inputs) for key in (~index, index) if key not in outer and key not in bounds)


class ClauseArrays:
    """Float64 arrays of clauses: boxes from bounds that refine common ones, and rows, each made once."""

    def __init__(self, common: dict[int, Bound], inputs: int, outputs: int, most: int) -> None:
        self.common, self.inputs, self.outputs, self.most = common, inputs, outputs, most
        self.boxes: dict[frozenset[Bound], Box] = {}
        self.rows: dict[int, tuple[FloatArray, float]] = {}
        self.entries = 0

    @cached_property
    def common_box(self) -> Box:
        """The common bounds, and infinities where there are none."""
        low, high = np.full(self.inputs, -np.inf), np.full(self.inputs, np.inf)
        return self.tightened((low, high, low, high), self.common)

    @staticmethod
    def tightened(box: Box, bounds: dict[int, Bound]) -> Box:
        """Return a box with these bounds in place of its own: rounded outwards, and inwards."""
        lower, upper, inner_lower, inner_upper = (end.copy() for end in box)
        for key, bound in bounds.items():
            if key < 0:
                lower[~key], inner_lower[~key] = -round_up(bound.value), -inwards(bound)
            else:
                upper[key], inner_upper[key] = round_up(bound.value), inwards(bound)
        return frozen(lower), frozen(upper), frozen(inner_lower), frozen(inner_upper)

    def clause(self, refined: dict[int, Bound], rows: list[Row]) -> Clause:
        """Return the clause of bounds and rows; MemoryError if there would be more numbers than at most."""
        key = frozenset(refined.values())
        self.entries += len(rows) * self.outputs + (0 if key in self.boxes else 4 * self.inputs)
        if self.entries > self.most:
            raise MemoryError
        if key not in self.boxes:
            self.boxes[key] = self.tightened(self.common_box, refined)
        made = [self.row(row) for row in rows]
        matrix, right = np.stack([vector for vector, _ in made]), np.array([side for _, side in made])
        lower, upper, *inside = self.boxes[key]
        strict = frozen(np.array([row.strict for row in rows]))
        return Clause(lower, upper, frozen(matrix), frozen(right), strict, (inside[0], inside[1]), tuple(rows))

    def row(self, row: Row) -> tuple[FloatArray, float]:
        """Return coefficients, each to the nearest float64 number, and the right-hand side, rounded up."""
        if id(row) not in self.rows:
            vector = np.zeros(self.outputs)
            for index, value in row.terms.items():
                vector[index] = value.numerator / value.denominator
                if vector[index] == 0:
                    raise OverflowError
            self.rows[id(row)] = vector, round_up(row.right)
        return self.rows[id(row)]


Box = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
Linear = tuple[dict[int, Fraction], Fraction]
ONE, ZERO = Fraction(1), Fraction(0)


def scaled(linear: Linear, factor: Fraction) -> Linear:
    """Return a linear term times a number."""
    return ({key: value * factor for key, value in linear[0].items()} if factor else {}), linear[1] * factor


def bits(value: Fraction) -> int:
    """Return the length of a number."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def added(left: Linear, right: Linear) -> Linear:
    """Return the sum of two linear terms."""
    terms = dict(left[0])
    for key, value in right[0].items():
        terms[key] = terms.get(key, ZERO) + value
    return {key: value for key, value in terms.items() if value}, left[1] + right[1]


def nearest_float32(value: Fraction) -> Fraction:
    """Return the float32 number nearest to a value within their range; of two, the one whose last bit is zero."""
    near = np.float32(float(value))  # rounded twice, so that a neighbour may be nearer
    ends = (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf)))
    finite = [end for end in ends if np.isfinite(end)]
    return Fraction(float(min(finite, key=lambda end: (abs(Fraction(float(end)) - value), int(end.view(np.uint32)) & 1))))
