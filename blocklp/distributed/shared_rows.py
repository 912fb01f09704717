r"""Rows beside the blocks, of which every process holds the entries of its own variables.

Every process has all prices, and so :math:`A^\top y` of its own variables.  Activities :math:`A x` take one
all-reduce: of integers, multiples of a power of two that the bounds of the variables decide, so that they do
not depend on who holds which variable.  Bounds on the optimum are made of prices alone; what rounding takes
from activities is far below what a floating point sum loses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.rows import CouplingRows
from blocklp.distributed.processes import Processes
from blocklp.distributed.totals import exponent, room, scale
from blocklp.kernels.backend import Backend
from blocklp.kernels.operations import operation
from blocklp.rounding import rounding

WIDE = 2.0**8
"""Terms within bounds over those that rows ask for, from which on there is a second integer for what the
first leaves."""


@dataclass(frozen=True, kw_only=True)
class SharedRows(CouplingRows):
    """The rows of an instance with the entries of the variables that a process holds.

    Attributes
    ----------
    processes : Processes
        Who holds the other variables.
    fixed : bool
        Whether integers are added.
    backend : Backend
        What runs the operations.
    counted : Tensor
        ``(k,)`` int64: entries of variables that this process counts, while some other process counts those
        that both hold.
    longest : int
        Entries that a row has at most, of all processes.
    greatest : Tensor
        ``(rows,)`` float64: the largest magnitude of a term of each row while variables are within bounds.
    wide : bool
        Whether bounds are so far beyond what rows ask for that sums take two integers.
    """

    processes: Processes
    fixed: bool
    backend: Backend
    counted: Tensor
    longest: int
    greatest: Tensor
    wide: bool

    @classmethod
    def of(
        cls,
        stated: Decomposition,
        part: tuple[Tensor, Tensor],
        processes: Processes,
        fixed: bool,
        backend: Backend,
    ) -> SharedRows | None:
        """Take the entries of some variables.

        Parameters
        ----------
        stated : Decomposition
            One instance as this process states it: whole, or with other private variables than other
            processes, and all that is in these rows of the variables that they have in common.
        part : tuple of Tensor
            ``(variables,)`` int64: the number that each variable has in this process, or -1;
            ``(variables,)`` bool: whether this process counts it.
        processes, fixed, backend
            As the attributes.

        Returns
        -------
        SharedRows or None
            None where there are no rows.
        """
        rows, (number, counted) = stated.rows, part
        if rows is None:
            return None
        mine = (number[rows.column] >= 0).nonzero()[:, 0]
        column, held = rows.column[mine], number >= 0
        own = cls(
            rows.row[mine],
            number[column],
            rows.entry[mine],
            *(side.clone() for side in (rows.lower, rows.upper, rows.least, rows.most)),
            processes=processes,
            fixed=fixed,
            backend=backend,
            counted=counted[column].nonzero()[:, 0],
            longest=1,
            greatest=rows.lower[0],
            wide=False,
        )
        return own._within(stated.lower[:, held], stated.upper[:, held])

    def _within(self, low: Tensor, high: Tensor) -> SharedRows:
        """The rows with units, and with what activities can be (:meth:`CouplingRows.build`).

        Parameters
        ----------
        low, high : Tensor
            ``(1, variables)`` float64: bounds of the variables of this process.
        """
        reach, size = torch.maximum(low.abs(), high.abs()), self.entry.abs()
        asked = self.asked(reach.shape[1])
        near = torch.where(asked > 0, torch.minimum(asked, reach), reach)

        def largest(values: Tensor) -> Tensor:
            terms = size * values[0, self.column]
            return self.processes.greatest(
                size.new_zeros(self.count).scatter_reduce(0, self.row, terms, "amax")
            )

        entries = self.processes.sum(torch.bincount(self.row[self.counted], minlength=self.count))
        greatest = largest(reach)
        wide = bool((greatest > WIDE * largest(near)).any())
        own = replace(self, longest=max(1, int(entries.max())), greatest=greatest, wide=wide)
        plus, minus = (replace(own, entry=self.entry.clamp(**side)) for side in ({"min": 0}, {"max": 0}))
        least, most = (plus._exact(a) + minus._exact(b) for a, b in ((low, high), (high, low)))
        error = rounding(2 * own.longest + 4, torch.float64) * replace(own, entry=size)._exact(reach)
        least = torch.where(torch.isfinite(self.lower), self.lower, torch.minimum(least - error, self.upper))
        most = torch.where(torch.isfinite(self.upper), self.upper, torch.maximum(most + error, self.lower))
        return replace(own, least=least, most=most)

    def largest(self) -> Tensor:
        """See :meth:`CouplingRows.largest`; of all processes."""
        return self.processes.greatest(super().largest())

    def in_own_units(self) -> tuple[CouplingRows, Tensor]:
        """See :meth:`CouplingRows.in_own_units`."""
        rows, unit = super().in_own_units()
        assert isinstance(rows, SharedRows)
        return replace(rows, greatest=self.greatest * unit[0].double()), unit

    def activity(self, x: Tensor) -> Tensor:
        """See :meth:`CouplingRows.activity`; in all processes."""
        if not self.fixed:
            row, column, entry = self.counts
            terms = (entry * x[:, column]).double()
            total = terms.new_zeros(len(x), self.count).index_add_(1, row, terms)
            return self.processes.sum(total).to(x)
        found, over = self._summed(x, self._power, self.wide)
        if not over:  # as a rule
            return found.to(x)
        most = self.processes.greatest(largest_terms(self, x))
        finite = torch.isfinite(most)
        power = exponent(torch.where(finite, most, 0.0), self.longest)
        found, _ = self._summed(torch.where(torch.isfinite(x), x, 0.0), power, True)
        return torch.where(finite, found, torch.nan).to(x)

    def _exact(self, x: Tensor) -> Tensor:
        """Activities at points within bounds, by two integers each where integers are added."""
        return self._summed(x, self._power, True)[0] if self.fixed else self.activity(x)

    @property
    def _power(self) -> Tensor:
        """The powers of two with which terms within bounds are added: ``(1, rows)``."""
        return exponent(self.greatest, self.longest)[None] - 1  # rounding of units may add to terms

    def _summed(self, x: Tensor, power: Tensor, twice: bool) -> tuple[Tensor, bool]:
        """Activities in float64, and whether a term in any process is beyond what integers hold."""
        sums, over = integer_activity(self, x, scale(power), twice)
        buffer = torch.cat([sums.flatten(1), over[:, None].long()], 1)
        self.processes.sum(buffer)
        parts = buffer[:, :-1].view_as(sums).double()
        found = parts[:, 0]
        if twice:
            found = found + parts[:, 1] * 2.0 ** -room(self.longest)
        return found * scale(-power), bool((buffer[:, -1] > 0).any())

    @cached_property
    def counts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, columns and entries that this process counts, row after row: ``(k,)`` each."""
        return self.row[self.counted], self.column[self.counted], self.entry[self.counted]

    @cached_property
    def in_loops(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.floating[Any]]]:
        """Where the entries of every row that are counted begin, the columns of these, and they."""
        row, column, entry = self.counts
        starts = torch.searchsorted(row, torch.arange(self.count + 1))
        return starts.numpy(), column.numpy(), entry.numpy()


@operation
def integer_activity(rows: SharedRows, x: Tensor, scale: Tensor, twice: bool) -> tuple[Tensor, Tensor]:
    """Sums of the terms that this process counts, as multiples of a unit.

    Parameters
    ----------
    rows : SharedRows
        The rows, which know the backend.
    x : Tensor
        ``(batch, variables)``.
    scale : Tensor
        ``(batch or 1, rows)`` float64: one over the units, powers of two.
    twice : bool
        Whether what this leaves is added too, as multiples of a finer unit.

    Returns
    -------
    sums : Tensor
        ``(batch, 1 or 2, rows)`` int64; any numbers where a term is beyond an integer.
    over : Tensor
        ``(batch,)`` bool: whether one is, or is not finite.
    """
    row, column, entry = rows.counts
    scaled = (entry * x[:, column]).double() * scale[:, row]
    fits = (scaled.abs() <= 2.0 ** room(rows.longest)).all(1)
    whole = scaled.round()
    parts = [whole, ((scaled - whole) * 2.0 ** room(rows.longest)).round_()] if twice else [whole]
    sums = torch.zeros(len(x), len(parts), rows.count, dtype=torch.long)
    for k, part in enumerate(parts):
        sums[:, k].index_add_(1, row, part.long())
    return sums, ~fits


@operation
def largest_terms(rows: SharedRows, x: Tensor) -> Tensor:
    """The largest magnitude of a term that this process counts, of each row.

    Parameters
    ----------
    rows : SharedRows
        The rows, which know the backend.
    x : Tensor
        ``(batch, variables)``.

    Returns
    -------
    Tensor
        ``(batch, rows)`` float64: infinite where one is not finite.
    """
    row, column, entry = rows.counts
    terms = (entry * x[:, column]).double().abs().nan_to_num(torch.inf, torch.inf)
    return terms.new_zeros(len(x), rows.count).scatter_reduce(1, row.expand(len(x), -1), terms, "amax")
