"""Rows that are alike: by sense, signs, equal coefficients and length, and by the rows that they meet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from blocklp.general_solvers.linear_program import Array
from blocklp.lp.detection.pattern import Numbers, Pattern

BITS = 30
"""Leading bits up to which two coefficients or sides are equal."""


class Form(IntEnum):
    """What a row says, its sign turned so that most coefficients are positive.

    The first five have equal coefficients: as in set partitioning, packing and covering.
    """

    PARTITION = 0
    PACKING = 1
    COVERING = 2
    EQUAL = 3
    """Equal coefficients, but the sense is not known or a side is not positive."""
    DIFFERENCE = 4
    """Two coefficients of different signs."""
    KNAPSACK = 5
    LOAD = 6
    """A lower side, all coefficients positive."""
    BALANCE = 7
    """An equation, all coefficients positive."""
    MIXED = 8
    MIXED_EQUATION = 9
    SINGLE = 10
    """One entry: a bound of a variable."""
    EMPTY = 11


@dataclass(frozen=True, eq=False)
class RowFacts:
    """Of each row of a matrix.

    Attributes
    ----------
    form : ndarray
        ``(rows,)`` int64: a :class:`Form`.
    positive, negative : ndarray
        ``(rows,)`` int64: coefficients of either sign, after turning.
    mass : ndarray
        ``(rows,)`` float64: finite side by the common coefficient, of the first three forms; else NaN.
    weighed : ndarray
        ``(entries,)`` float64: coefficients by the largest of the row, turned, to ``BITS`` bits.
    sides : ndarray
        ``(rows, 2)`` float64: lower and upper side likewise.
    """

    form: Numbers
    positive: Numbers
    negative: Numbers
    mass: Array
    weighed: Array
    sides: Array


def row_facts(matrix: csr_array, pattern: Pattern, lower: Array | None, upper: Array | None) -> RowFacts:
    """Look at the coefficients and sides of all rows.

    Parameters
    ----------
    matrix : csr_array
        ``(rows, columns)`` float64, without explicit zeros.
    pattern : Pattern
        Of the matrix.
    lower, upper : ndarray or None
        ``(rows,)`` float64; None where they are not known.
    """
    m, rows = pattern.shape[0], pattern.rows
    known = lower is not None and upper is not None
    low, high = (lower, upper) if lower is not None and upper is not None else (np.zeros(m), np.zeros(m))
    positive = np.bincount(rows[matrix.data > 0], minlength=m)
    negative = pattern.lengths - positive
    equation, above, below = low == high, np.isfinite(high), np.isfinite(low)
    turned = (negative > positive) | ((negative == positive) & ~equation & below & ~above)
    size = np.zeros(m)
    np.maximum.at(size, rows, np.abs(matrix.data))
    # Divided, not multiplied by an inverse, so that the largest is exactly one.
    size = np.where(turned, -1.0, 1.0) * np.where(size > 0, size, 1.0)
    low, high = np.where(turned, high / size, low / size), np.where(turned, low / size, high / size)
    above, below = np.isfinite(high), np.isfinite(low)
    positive, negative = np.where(turned, negative, positive), np.where(turned, positive, negative)
    weighed = leading(matrix.data / size[rows])
    equal = (negative == 0) & (np.bincount(rows[weighed != 1], minlength=m) == 0)
    form = np.where(equation, Form.MIXED_EQUATION, Form.MIXED)
    all_positive = negative == 0
    one_sided = np.where(above, Form.KNAPSACK, Form.LOAD)
    form[all_positive] = np.where(equation, Form.BALANCE, one_sided)[all_positive]
    form[equal] = Form.EQUAL
    if known:
        form[equal & equation & (high > 0)] = Form.PARTITION
        form[equal & ~equation & above & ~below & (high > 0)] = Form.PACKING
        form[equal & ~equation & below & ~above & (low > 0)] = Form.COVERING
    else:
        form[all_positive & ~equal] = Form.KNAPSACK
        form[~all_positive] = Form.MIXED
    form[(positive == 1) & (negative == 1)] = Form.DIFFERENCE
    form[pattern.lengths == 1] = Form.SINGLE
    form[pattern.lengths == 0] = Form.EMPTY
    mass = np.where(form <= Form.PACKING, high, np.where(form == Form.COVERING, low, np.nan))
    sides = leading(np.stack([low, high], 1)) if known else np.zeros((m, 2))
    return RowFacts(form.astype(np.int64), positive, negative, mass, weighed, sides)


def row_classes(pattern: Pattern, facts: RowFacts) -> dict[str, Numbers]:
    """Numbers of the class of each row, ``(rows,)`` int64, by several rules; coarse ones come first.

    Parameters
    ----------
    pattern, facts : Pattern, RowFacts
        Nonzeros of the matrix, and what its rows are like.
    """
    form, length = facts.form, pattern.lengths
    return {
        "form": numbered(form),
        "form and columns met": _roles(pattern, facts),
        "form and length": numbered(form, length),
        "magnitude of length": numbered(np.frexp(length.astype(np.float64))[1].astype(np.int64)),
        "form and signs": numbered(form, facts.positive, facts.negative),
        "coefficients": numbered(form, coefficients_of(pattern, facts)),
    }


def coefficients_of(pattern: Pattern, facts: RowFacts) -> Numbers:
    """A number that two rows share if they have the same coefficients, in any order, and sides."""
    own = multiset(pattern.rows, facts.weighed, pattern.shape[0])
    return numbered(own, *facts.sides.T.view(np.int64))


def multiset(where: Numbers, what: NDArray[np.float64] | Numbers, size: int) -> Numbers:
    """A number for what lies at each place, ``(size,)`` int64, whatever its order.

    Parameters
    ----------
    where : ndarray
        ``(k,)`` int64: places.
    what : ndarray
        ``(k,)``: values of eight bytes.
    size : int
        Number of places.

    Returns
    -------
    ndarray
        Sums of a hash of the values modulo 2**64 (splitmix64), which have no order.
    """
    sums = np.zeros(size, dtype=np.uint64)
    np.add.at(sums, where, _hashed(what))
    return sums.view(np.int64)


def numbered(*keys: Numbers) -> Numbers:
    """Numbers of equal tuples of keys, each ``(k,)`` int64."""
    code = np.ascontiguousarray(keys[0]).view(np.uint64)
    for key in keys[1:]:
        code = _hashed(code) + np.ascontiguousarray(key).view(np.uint64)
    return np.unique(code, return_inverse=True)[1].reshape(len(code)).astype(np.int64)


def _hashed(what: NDArray[Any]) -> NDArray[np.uint64]:
    """A hash of values of eight bytes."""
    mixed = np.ascontiguousarray(what).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def leading(values: Array) -> Array:
    """Values rounded to ``BITS`` bits, zeros without a sign."""
    part, power = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(part, BITS)), power - BITS) + 0.0)


def _roles(pattern: Pattern, facts: RowFacts) -> Numbers:
    """Classes of rows by form and by the forms of the rows that they share columns with.

    Two rounds: a column has the set of classes of its rows, a row the set of classes of its columns (colour
    refinement that counts nothing, Weisfeiler and Leman 1968).
    """
    m, n = pattern.shape
    rows = numbered(facts.form)
    for _ in range(2):
        columns = numbered(_set_of(pattern.columns, rows[pattern.rows], n))
        rows = numbered(facts.form, _set_of(pattern.rows, columns[pattern.columns], m))
    return rows


def _set_of(where: Numbers, what: Numbers, size: int) -> Numbers:
    """A number for the set of values at each place; values are below the number of entries."""
    count = int(what.max(initial=0)) + 1
    place, value = np.divmod(np.unique(where * count + what), count)
    return multiset(place, value, size)
