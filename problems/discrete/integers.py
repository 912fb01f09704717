"""Integers in place of floats, so that no sum of an exact solver is rounded.

Coefficients that are multiples of a common number become integers without loss, decimals such as 0.1 up to the rounding of float64.
Others are rounded to a grid so fine that its integers are still added up exactly.  What rounding changes is summed in rational
numbers, and the bound is charged with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from blocklp.certify.exact_arithmetic import Exact
from blocklp.errors import ModelError

FloatArray = NDArray[np.float64]

LARGEST = 2.0**48
"""Sum of the magnitudes of the integers: eighths of them, and doubles, are then added up exactly too."""
WHOLE = 2.0**53
"""Magnitude below which float64 tells all whole numbers apart."""
ZERO = 1e-7
"""Part of the total of all magnitudes below which a sum counts as zero."""
NEAR = 1e-9
"""Values that are no multiples of a common number are not told apart below this share of the sum of all magnitudes."""


def total_of(values: FloatArray) -> float:
    """Add up magnitudes.

    Raises
    ------
    ModelError
        Their sum overflows.
    """
    with np.errstate(over="ignore"):
        total = float(np.abs(values).sum())
    if not math.isfinite(total):
        raise ModelError("the magnitudes of the coefficients add up to more than float64 holds; divide all of them by a constant")
    return total


@dataclass(frozen=True)
class Unit:
    """The value that an integer stands for.

    Attributes
    ----------
    size : Fraction
        The value of one.
    exact : bool
        Whether all given values are multiples of it.
    near : float
        ``NEAR`` if the values were rounded to a grid that is not their own, else 0.
    step : float
        Least difference of two different sums of the values; 0 where nothing is known of it.
    floor : float
        Magnitude below which a sum counts as zero.
    """

    size: Fraction
    exact: bool
    near: float
    step: float
    floor: float

    @classmethod
    def of(cls, values: FloatArray, total: float) -> Unit:
        """Find the coarsest unit of some values.

        Parameters
        ----------
        values : numpy.ndarray, shape (k,), float64
        total : float
            A bound of their sums, finite, which must stay below ``LARGEST`` units.
        """
        if total == 0:
            return cls(Fraction(1), True, 0.0, 0.0, 0.0)
        integral = Exact.of(values)
        common = math.gcd(*integral.integers.tolist()) * Fraction(2) ** integral.exponent
        if total / common < LARGEST:
            return cls(common, True, 0.0, float(common), ZERO * total)
        # A power of two; one below the least float64 would have been a common divisor.
        grid = Fraction(2) ** math.ceil(math.log2(total / LARGEST) + 1)
        if common.denominator == 1 and float(np.abs(values).max()) < WHOLE:  # not meant as decimals
            return cls(grid, False, 0.0, float(common), ZERO * total)
        for power in range(math.floor(math.log10(total)), -308, -1):
            step = 10.0**power
            if total / step >= LARGEST:
                break
            ratio = values / step
            whole = np.rint(ratio)
            if (np.abs(ratio - whole) <= 1e-15 * np.abs(whole)).all():
                size = Fraction(10) ** power * math.gcd(*map(int, whole))
                return cls(size, False, 0.0, float(size), ZERO * total)
        return cls(grid, False, NEAR, 0.0, ZERO * total)

    def whole(self, values: FloatArray) -> FloatArray:
        """Return the nearest integers, as floats."""
        return np.rint(values / float(self.size))

    def rounding(self, values: FloatArray, whole: FloatArray) -> tuple[Fraction, Fraction]:
        """Return by how much integers stand for more than their values, and by how much for less, each summed up exactly."""
        if self.exact:
            return Fraction(0), Fraction(0)
        given = Exact.of(values)
        power = max(0, -given.exponent)
        # All in parts of this, which is below both the unit and the last digit of every value.
        part = Fraction(1, self.size.denominator << power)
        integers = np.array([int(k) for k in whole], dtype=object) * (self.size.numerator << power)
        above = integers - given.integers * (self.size.denominator << (given.exponent + power))
        return int(np.maximum(above, 0).sum()) * part, int(np.maximum(-above, 0).sum()) * part


@dataclass(frozen=True)
class Grid:
    """The values that sums of some integers can have.

    Attributes
    ----------
    spacing : float
        All are multiples of this.
    tolerance : float
        Differences that do not matter, a whole number; zero where the spacing is larger.
    near : float
        Share of the magnitudes that does not matter.
    """

    spacing: float
    tolerance: float
    near: float

    @classmethod
    def of(cls, whole: FloatArray, near: float, total: float | None = None) -> Grid:
        """Find the grid of some integers.

        Parameters
        ----------
        whole : ndarray
            The coefficients, float64 with integer values.
        near : float
            Values are not told apart below this share of the total; 0 where all are exact.
        total : float, optional
            What sums are bounded by; by default the sum of all magnitudes.
        """
        spacing = float(max(1, np.gcd.reduce(whole.astype(np.int64))))
        tolerance = float(math.floor(near * (float(np.abs(whole).sum()) if total is None else total)))
        return cls(spacing, tolerance if tolerance > spacing else 0.0, near)

    @property
    def step(self) -> float:
        """The least amount by which a better value is better."""
        return self.tolerance or self.spacing

    def raised(self, bound: float) -> float:
        """The least value that is not below a bound.

        The quotient may be rounded, but never across an integer.
        """
        return bound if math.isinf(bound) else math.ceil(bound / self.spacing) * self.spacing
