"""Energies of whole numbers while a file is read: tables, auxiliary variables, and the upper bound that forbids.

A file states costs as whole numbers of one unit (a power of ten of it, where costs are decimals) and an upper
bound: labellings that cost as much or more are forbidden.  A cost that reaches the bound whatever the other
functions come to is stored as infinite, so that relaxations and searches see the constraint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from blocklp.errors import FormatError
from blocklp.problems.files import Allowance
from blocklp.problems.lines import NODE
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.words import ENTRY, EXACT, MOST_VARIABLES
from blocklp.problems.qpbo.arrays import FloatArray

WHOLE_TABLE = 2**12
"""Entries up to which a function of many variables is one table, if it could also be a chain of smaller ones."""

LARGEST_TABLE = 2**20
"""Entries up to which a function that is nothing but a table is one."""

Cost = float
"""A whole number, or infinity."""


@dataclass
class CostNetwork:
    """What has been read of an energy.

    Attributes
    ----------
    allowance : Allowance
        Memory and time left.
    counts : list of int
        Numbers of labels of the variables of the file, and of auxiliary ones after them.
    top : float
        The upper bound, a whole number or infinity.
    digits : int
        Decimals of a cost: the unit is ``10 ** -digits``.
    rounded : FormatError, optional
        About the first cost that float64 rounds, raised by :meth:`finish` unless all of them are forbidden.
    whole_table : int
        Entries up to which a function of many variables is one table, if it could also be a chain of smaller ones.
    """

    allowance: Allowance
    counts: list[int]
    top: int | float = math.inf
    digits: int = 0
    rounded: FormatError | None = None
    constant: int = 0
    factors: list[tuple[list[int], FloatArray]] = field(default_factory=list)
    whole_table: int = WHOLE_TABLE

    def __post_init__(self) -> None:
        self.given = len(self.counts)
        """Variables of the file."""

    def sizes(self, scope: Sequence[int]) -> list[int]:
        """Return the numbers of labels of some variables."""
        return [self.counts[i] for i in scope]

    def entries(self, scope: Sequence[int]) -> int:
        """Return the number of joint labels of some variables."""
        return math.prod(self.sizes(scope))

    def take(self, scope: Sequence[int], what: str) -> None:
        """Account for a table.

        Raises
        ------
        FormatError
            It has too many axes or entries.
        """
        size = self.entries(scope)
        if len(scope) > MOST_VARIABLES:
            raise FormatError(
                f"{self.allowance.path}: {what} would be a table of {len(scope)} variables, at most {MOST_VARIABLES} are read; "
                "split the function"
            )
        self.allowance.take(ENTRY * size, f"{what}, a table of {size} entries,")

    def add(self, scope: Sequence[int], table: FloatArray) -> None:
        """Add a function, whole numbers or infinite; one without variables goes to the constant."""
        if len(scope):
            self.factors.append((list(scope), table))
            return
        # All labellings have a constant of the upper bound or more.
        value = float(table.reshape(()))
        if math.isinf(value) and math.isinf(self.top):
            raise FormatError(f"{self.allowance.path}: a function without variables forbids every labelling; leave it out")
        self.constant += int(self.top if math.isinf(value) else value)

    def auxiliary(self, size: int) -> int:
        """Return a new variable, after those of the file."""
        self.allowance.take(NODE + 2 * 8 * size, "auxiliary variables")
        self.counts.append(size)
        return len(self.counts) - 1

    def floor(self) -> float:
        """Return a lower bound of all energies so far, whole: the sum of the least entries."""
        return self.constant + sum(int(table.min()) for _, table in self.factors if table.min() < math.inf)

    def finish(self, name: str) -> Mrf:
        """Return the energy.

        Raises
        ------
        FormatError
            Costs, or energies and the upper bound, are so large that float64 rounds them.
        """
        least = [int(table.min()) if table.min() < math.inf else 0 for _, table in self.factors]
        # Sums of whole numbers that float64 rounds could reach the bound only by that.
        if abs(self.top) <= EXACT and abs(self.constant) + sum(map(abs, least)) <= EXACT:
            rest = self.constant + sum(least)
            self.factors = [
                (scope, np.where(table + float(rest - low) >= self.top, np.inf, table))
                for (scope, table), low in zip(self.factors, least, strict=True)
            ]
        if self.rounded is not None and any((np.abs(t[np.isfinite(t)]) > EXACT).any() for _, t in self.factors):
            raise self.rounded
        most = self.constant + sum(int(table[np.isfinite(table)].max(initial=0.0)) for _, table in self.factors)
        reached = most >= self.top
        if reached and self.top > EXACT:
            raise FormatError(
                f"{self.allowance.path}: costs add up to the upper bound {self.top}, which float64 does not hold exactly; "
                "divide all of them by a constant"
            )
        top = float(self.top) if reached else math.inf
        if not self.digits:
            return Mrf(self.counts, self.factors, float(self.constant), name, top)
        unit = 10**self.digits
        factors = [(scope, table / unit) for scope, table in self.factors]
        # Sums of decimals are rounded; energies below the bound stay half a unit away from what is compared with.
        return Mrf(self.counts, factors, self.constant / unit, name, (top - 0.5) / unit)
