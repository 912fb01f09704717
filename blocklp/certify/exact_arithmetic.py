"""Arrays of floating-point numbers, calculated with exactly.

Every finite float is an integer times a power of two, so sums and products of floats need Python's integers
only: no rounding, and none of the common divisors that make rational numbers slow.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

MANTISSA = 53
"""Bits of a float64's integer."""


@dataclass(frozen=True)
class Exact:
    r"""The array :math:`integers \cdot 2^{exponent}`.

    Attributes
    ----------
    integers : ndarray
        Any shape, dtype object: Python integers.
    exponent : int
        Common to all entries.
    """

    integers: NDArray[np.object_]
    exponent: int

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Exact:
        """Take finite float64 numbers as they are."""
        fraction, power = np.frexp(values)
        whole = np.ldexp(fraction, MANTISSA).astype(np.int64).astype(object)
        least = int(np.min(power, where=values != 0, initial=sys.float_info.max_exp))
        # A zero is zero at any exponent.
        shift = np.where(values != 0, power - least, 0)
        return cls(np.asarray(whole << shift.astype(object), dtype=object), least - MANTISSA)

    def _at(self, exponent: int) -> NDArray[np.object_]:
        """Integers for a common exponent that is not larger."""
        return np.asarray(self.integers * (1 << (self.exponent - exponent)), dtype=object)

    def __add__(self, other: Exact) -> Exact:
        exponent = min(self.exponent, other.exponent)
        return Exact(self._at(exponent) + other._at(exponent), exponent)

    def __neg__(self) -> Exact:
        return Exact(-self.integers, self.exponent)

    def __sub__(self, other: Exact) -> Exact:
        return self + -other

    def __mul__(self, other: Exact) -> Exact:
        return Exact(self.integers * other.integers, self.exponent + other.exponent)

    def __getitem__(self, key: Any) -> Exact:
        return Exact(self.integers[key], self.exponent)

    def minimum(self, other: Exact) -> Exact:
        """Entrywise minimum."""
        exponent = min(self.exponent, other.exponent)
        return Exact(np.minimum(self._at(exponent), other._at(exponent)), exponent)

    def scatter(self, positions: NDArray[np.intp], size: int) -> Exact:
        """Sums of the entries with one position: ``(size,)``."""
        sums = np.full(size, 0, dtype=object)
        np.add.at(sums, positions.ravel(), self.integers.ravel())
        return Exact(sums, self.exponent)

    def sum(self, axis: int) -> Exact:
        """Sum along an axis."""
        return Exact(self.integers.sum(axis), self.exponent)

    def total(self) -> Fraction:
        """Sum of all entries."""
        return Fraction(sum(self.integers.ravel().tolist())) * Fraction(2) ** self.exponent


def rounded_down(value: Fraction) -> float:
    """Largest float64 that is not above ``value``."""
    try:
        near = float(value)
    except OverflowError:
        return -math.inf if value < 0 else sys.float_info.max
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)


SPLITTER = 2.0**27 + 1
"""Splits a float64 into halves whose products are exact (Veltkamp 1968, Dekker 1971)."""


def sums_of_products(
    a: NDArray[np.float64],
    b: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    r"""Sums :math:`\sum_k a_k b_k` along the last axis, rounded up by at most two units in the last place.

    That holds whatever cancels.
    Products and sums are split into floats and their rounding errors (Ogita, Rump and Oishi, Accurate sum and
    dot product, SIAM J. Sci. Comput. 26(6), 2005); what cancels beyond twice the precision is added up in
    integers. No data overflow or underflow.

    Parameters
    ----------
    a, b : ndarray
        ``(..., terms)`` float64, finite, of one shape.

    Returns
    -------
    value, exponent : ndarray
        ``(...)`` float64 and int64: the sum is ``value * 2**exponent``.
    """
    (x, x_power), (y, y_power) = np.frexp(a), np.frexp(b)
    product = x * y
    (x_high, x_low), (y_high, y_low) = _halves(x), _halves(y)
    rest = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    power = np.where(product != 0, x_power.astype(np.int64) + y_power, -(10**6))
    exponent = np.maximum(power.max(-1, initial=-(10**6)), -(10**5))
    shift = power - exponent[..., None]
    terms, errors = (np.ldexp(part, np.maximum(shift, -2000)) for part in (product, rest))
    # Halve the row until one term is left; every addition leaves its rounding error behind.
    error, size, count = errors.sum(-1), np.abs(errors).sum(-1), terms.shape[-1]
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        left, right, odd = terms[..., :half], terms[..., half : 2 * half], terms[..., 2 * half :]
        total = left + right
        other = total - left
        lost = (left - (total - other)) + (right - other)
        error, size = error + lost.sum(-1), size + np.abs(lost).sum(-1)
        terms = np.concatenate([total, odd], -1)
    nearly = terms.sum(-1)
    value = nearly + error
    part = value - nearly
    last = (nearly - (value - part)) + (error - part)
    unit = np.finfo(np.float64).eps
    # Terms that far below the largest may have lost bits.
    error = 4 * (count + 2) * unit * size + ((shift < -900) & (product != 0)).sum(-1) * 2.0**-900
    above = np.nextafter(value + np.maximum(last, 0) + error, np.inf)
    value = np.where(np.abs(last) + error == 0, value, above)
    open_rows = error > unit / 2 * np.abs(value)
    for where in zip(*np.nonzero(open_rows), strict=True):
        exact = (Exact.of(a[where]) * Exact.of(b[where])).total()
        exponent[where] = exact.numerator.bit_length() - exact.denominator.bit_length()
        value[where] = -rounded_down(-exact / Fraction(2) ** int(exponent[where]))
    return value, exponent


def _halves(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two numbers of half the digits that sum to each."""
    big = SPLITTER * x
    high = big - (big - x)
    return high, x - high
