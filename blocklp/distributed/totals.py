"""Sums over blocks and variables of which every process holds a part: the same bits whatever the parts are.

Terms are written as integers: multiples of a power of two so small that the sum of all of them, of which the
largest is known, still fits into 64 bits.  A second integer holds what this leaves, so that a sum of 2^20
numbers is exact to 2^-64 of its largest, far below the rounding error of floating point sums that bounds
charge.  Sums of integers do not depend on any order, and neither does what is made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.decomposition.row_sums import in_order
from blocklp.decomposition.totals import Totals
from blocklp.distributed.processes import Processes
from blocklp.kernels.backend import Backend
from blocklp.kernels.operations import operation

ROOM = 61
"""Bits of an integer that a sum may take: one is left for its sign, and one for rounding."""

LIMIT = 1022
"""Powers of two beyond which scales do not go: they must be finite numbers, and so must their inverses."""


def room(terms: int) -> int:
    """Bits that are left for each of so many terms, at least 1, where their sum takes :data:`ROOM`."""
    return ROOM - (terms - 1).bit_length()


def exponent(largest: Tensor, terms: int) -> Tensor:
    """The power of two with which sums of integers keep within 64 bits.

    Parameters
    ----------
    largest : Tensor
        ``(batch,)`` float64, finite: magnitude of the largest term.
    terms : int
        How many terms there are at most, at least 1.

    Returns
    -------
    Tensor
        ``(batch,)`` int64: terms times two to this power are what is rounded and added.
    """
    return (room(terms) - torch.frexp(largest)[1].long()).clamp(-LIMIT, LIMIT)


def scale(power: Tensor) -> Tensor:
    """Two to powers ``(batch,)`` int64 within :data:`LIMIT`: exact, float64."""
    return torch.ldexp(torch.ones_like(power, dtype=torch.float64), power)


@operation
def largest_magnitude(totals: SharedTotals, terms: Tensor) -> Tensor:
    """The largest magnitude in each row.

    Parameters
    ----------
    totals : SharedTotals
        The totals, which know the backend.
    terms : Tensor
        ``(batch, k)``.

    Returns
    -------
    Tensor
        ``(batch,)`` float64: infinite where one is not finite.
    """
    if not terms.shape[1]:
        return terms.new_zeros(len(terms), dtype=torch.float64)
    most = torch.maximum(terms.amax(1), -terms.amin(1)).double()
    return most.nan_to_num(torch.inf, torch.inf, torch.inf)


@operation
def integer_terms(totals: SharedTotals, terms: Tensor, scale: Tensor, finer: int) -> Tensor:
    """Sums of terms as multiples of a unit, and of what this leaves as multiples of a finer one.

    Parameters
    ----------
    totals : SharedTotals
        The totals, which know the backend.
    terms : Tensor
        ``(batch, k)``, finite.
    scale : Tensor
        ``(batch,)`` float64: one over the units, powers of two.
    finer : int
        The power of two by which the finer unit is less.

    Returns
    -------
    Tensor
        ``(2, batch)`` int64.
    """
    scaled = terms.double() * scale[:, None]
    high = scaled.round()
    low = (scaled - high) * 2.0**finer  # both exact
    return torch.stack([high.long().sum(1), low.round_().long().sum(1)])


@dataclass(frozen=True)
class SharedTotals(Totals):
    """Sums and maxima over the parts that processes hold of each instance.

    Attributes
    ----------
    processes : Processes
        Who holds them.
    foreign : Tensor
        ``(k,)`` int64: variables that this process holds and another one counts.  Their terms are the same
        numbers there, and are taken from the sums again: few where parts have few variables in common.
    all_blocks, all_variables, all_copies : int
        How many blocks, variables and copies an instance has.
    numbered : Tensor
        ``(variables,)`` int64: the numbers that variables of this process have in the instance.
    backend : Backend
        What runs the operations.
    """

    processes: Processes
    foreign: Tensor
    all_blocks: int
    all_variables: int
    all_copies: int
    numbered: Tensor
    backend: Backend

    whole = False

    def over_blocks(self, terms: Tensor) -> Tensor:
        """See :meth:`Totals.over_blocks`."""
        return self._sum(terms.flatten(1))

    over_blocks_in_order = over_blocks

    def over_variables(self, terms: Tensor) -> Tensor:
        """See :meth:`Totals.over_variables`."""
        return self._sum(terms, self.foreign)

    over_variables_in_order = over_variables

    def of_program_in_order(
        self, variables: Sequence[Tensor], rows: Sequence[Tensor], kinds: tuple[int, int]
    ) -> list[Tensor]:
        """See :meth:`Totals.of_program_in_order`; by two messages for all of them.

        Parameters
        ----------
        variables, rows, kinds
            As there.
        """
        of_blocks, beside = kinds
        own = rows[0].shape[1] - beside if rows else 0
        count = max(self.all_copies, self.all_variables, of_blocks)
        counted: list[tuple[Tensor, Tensor | None]] = [(terms, self.foreign) for terms in variables]
        if not of_blocks:
            return [*self._sums(counted, count), *map(in_order, rows)]
        sums = self._sums([*counted, *((terms[:, :own], None) for terms in rows)], count)
        first = len(variables)
        common = (in_order(t[:, own:]) for t in rows)
        return [*sums[:first], *(a + b for a, b in zip(common, sums[first:], strict=True))]

    def numbers(self, like: Tensor) -> Tensor:
        """See :meth:`Totals.numbers`."""
        return self.numbered

    def greatest(self, values: Tensor) -> Tensor:
        """See :meth:`Totals.greatest`; NaN counts as infinite."""
        return self.processes.greatest(values.nan_to_num(torch.inf, torch.inf, -torch.inf))

    def everywhere(self, met: Tensor) -> Tensor:
        """See :meth:`Totals.everywhere`."""
        return self.processes.greatest((~met).long()) == 0

    def blocks(self, own: int) -> int:
        """See :meth:`Totals.blocks`."""
        return self.all_blocks

    def variables(self, own: int) -> int:
        """See :meth:`Totals.variables`."""
        return self.all_variables

    def rows(self, own: int) -> int:
        """See :meth:`Totals.rows`; by one message."""
        return int(self.processes.sum(torch.tensor([own])))

    def _sum(self, terms: Tensor, foreign: Tensor | None = None) -> Tensor:
        """Sum of terms ``(batch, k)`` of all processes: NaN where one is not finite."""
        return self._sums([(terms, foreign)], max(self.all_copies, self.all_variables))[0]

    def _sums(self, parts: list[tuple[Tensor, Tensor | None]], count: int) -> list[Tensor]:
        """Sums of several numbers of terms ``(batch, k)``, each of ``count`` at most in all processes.

        With terms may come which of them another process counts.
        """
        if not parts:
            return []
        most = self.processes.greatest(torch.stack([largest_magnitude(self, terms) for terms, _ in parts]))
        finite, finer = torch.isfinite(most), room(count)
        power = exponent(torch.where(finite, most, 0.0), count)
        whole = bool(finite.all())
        each = zip(parts, finite, scale(power), strict=True)
        integers = []
        for (terms, foreign), fine, unit in each:
            terms = terms if whole else torch.where(fine[:, None], terms, 0)
            integers.append(integer_terms(self, terms, unit, finer))
            if foreign is not None and len(foreign):
                integers[-1] -= integer_terms(self, terms.index_select(1, foreign), unit, finer)
        high, low = self.processes.sum(torch.stack(integers, 1)).double()
        found = torch.where(finite, (high + low * 2.0**-finer) * scale(-power), torch.nan)
        return [own.to(terms.dtype) for own, (terms, _) in zip(found, parts, strict=True)]
