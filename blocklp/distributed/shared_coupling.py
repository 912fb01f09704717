"""Sums of the copies of every variable, of which every process holds some."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.decomposition.incidence import Coupling
from blocklp.distributed.processes import Processes
from blocklp.distributed.totals import exponent, largest_magnitude, scale


@dataclass(frozen=True, kw_only=True)
class SharedCoupling(Coupling):
    """Index maps of the blocks of a process, and sums with those of the others.

    Variables of a single copy have this for their sum, and those whose copies all lie here are not sent.

    Attributes
    ----------
    processes : Processes
        Who holds the other blocks.
    fixed : bool
        Whether integers are added.
    alone, alone_copies : Tensor
        ``(a,)`` int64: variables with a single copy, and these copies.
    several, several_copies, slots : Tensor
        ``(s,)``, ``(k,)`` and ``(k,)`` int64: variables with several copies; those that lie here, and of
        which of these variables each is.
    sent, at_exchange : Tensor
        ``(b,)`` int64: which variables with several copies have some in other processes, and their places
        among those of which this holds in any process.
    exchanged : int
        How many there are of these in all.
    most_copies : int
        Copies that a variable has at most, of all processes.
    """

    processes: Processes
    fixed: bool
    alone: Tensor
    alone_copies: Tensor
    several: Tensor
    several_copies: Tensor
    slots: Tensor
    sent: Tensor
    at_exchange: Tensor
    exchanged: int
    most_copies: int

    def collect(self, copies: Tensor) -> Tensor:
        """Sum the copies of every variable ``(batch, variables)``, in all processes."""
        return self._collected(copies)[0]

    def magnitudes(self, copies: Tensor) -> Tensor:
        """See :meth:`Coupling.magnitudes`: what rounding to integers may take is added."""
        total, unit = self._collected(copies.abs())
        allowed = (unit / torch.finfo(torch.float64).eps).to(total)
        return total.index_add(1, self.several, allowed[:, None].expand(-1, len(self.several)))

    def _collected(self, copies: Tensor) -> tuple[Tensor, Tensor]:
        """The sums, and the units ``(batch,)`` float64 of which they are multiples; zero for any number."""
        own = copies.index_select(1, self.several_copies)
        if self.fixed:
            most = largest_magnitude(own, self.processes)
            finite = torch.isfinite(most)
            power = exponent(torch.where(finite, most, 0.0), self.most_copies)
            unit = torch.where(finite, scale(-power), torch.nan)
            terms = own.double().mul_(scale(power)[:, None]).round_().long()
        else:
            unit, terms = torch.zeros(len(copies), dtype=torch.float64), own.double()
        sums = terms.new_zeros(len(copies), len(self.several)).index_add_(1, self.slots, terms)
        if self.exchanged:
            buffer = sums.new_zeros(len(copies), self.exchanged)
            buffer[:, self.at_exchange] = sums[:, self.sent]
            sums[:, self.sent] = self.processes.sum(buffer)[:, self.at_exchange]
        found = sums.double() * unit[:, None] if self.fixed else sums
        total = copies.new_zeros(len(copies), self.variables)
        total[:, self.alone] = copies.index_select(1, self.alone_copies)
        total[:, self.several] = found.to(copies.dtype)
        return total, unit
