"""Arrays of floating-point numbers, calculated with exactly.

Every finite float is an integer times a power of two, so sums and products of floats need Python's integers only: no
rounding, and none of the common divisors that make rational numbers slow.
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
