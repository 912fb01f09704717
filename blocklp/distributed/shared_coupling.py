"""Sums of the copies of every variable, of which every process holds some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from blocklp.decomposition.incidence import Coupling
from blocklp.distributed.processes import Processes
from blocklp.distributed.totals import LIMIT, room, scale
from blocklp.kernels.backend import Backend
from blocklp.kernels.operations import operation

KEPT = 2
"""Powers of two by which the largest copy may be less than what units allow for, before there are others."""


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
    target : Tensor
        ``(copies,)`` int32: for each copy the number of its sum, or -1 less the variable that it is alone of.
    several : Tensor
        ``(s,)`` int64: variables with several copies, in the order of the sums.
    sent, at_exchange : Tensor
        ``(b,)`` int64: which variables with several copies have some in other processes, and their places
        among those of which this holds in any process.
    exchanged : int
        How many there are of these in all.
    most_copies : int
        Copies that a variable has at most, of all processes.
    backend : Backend
        What runs the operations.
    turns : tuple or None
        Two sets of tiles of each group's blocks, ``(k,)`` int64: those that have variables which are sent,
        and all others; None where these are few in all processes.
    recent : dict
        Kind of sum to the power of two above the largest copy, as the units of the last one allow for it.
    """

    processes: Processes
    fixed: bool
    target: Tensor
    several: Tensor
    sent: Tensor
    at_exchange: Tensor
    exchanged: int
    most_copies: int
    backend: Backend
    turns: tuple[tuple[Tensor, Tensor], ...] | None
    recent: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def collect(self, copies: Tensor) -> Tensor:
        """Sum the copies of every variable ``(batch, variables)``, in all processes."""
        return self._collected("multipliers", copies)[0]

    def collect_points(self, points: Tensor) -> Tensor:
        """See :meth:`Coupling.collect_points`."""
        return self._collected("points", points)[0]

    def reflected(self, points: Tensor, iterate: Tensor) -> Tensor:
        """See :meth:`Coupling.reflected`; integers are added as the numbers come."""
        if not self.fixed:
            return super().reflected(points, iterate)
        return self._collected("reflections", points, iterate)[0]

    def magnitudes(self, copies: Tensor) -> Tensor:
        """See :meth:`Coupling.magnitudes`: what rounding to integers may take is added."""
        total, unit = self._collected("multipliers", copies.abs())
        allowed = (unit / torch.finfo(torch.float64).eps).to(total)
        return total.index_add(1, self.several, allowed[:, None].expand(-1, len(self.several)))

    def greatest(self, values: Tensor, copies: Tensor) -> Tensor:
        """See :meth:`Coupling.greatest`; in all processes."""
        found = super().greatest(values, copies)
        if self.exchanged and self.processes.world > 1:
            here = self._between
            buffer = found.new_full((len(found), self.exchanged), -torch.inf)
            buffer[:, self.at_exchange] = found[:, here]
            found[:, here] = self.processes.greatest(buffer)[:, self.at_exchange]
        return found

    def _collected(self, kind: str, copies: Tensor, iterate: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sums, and the units ``(batch,)`` float64 of which they are multiples; zero for any number.

        Those of twice the copies less the iterate, where one is given.  Sums of one kind are of about the
        same size.
        """
        if self.most_copies <= 1:  # copies are the sums
            copies = copies if iterate is None else copies + copies - iterate
            return self.only_copies(copies), torch.zeros(len(copies), dtype=torch.float64)
        if self.fixed:
            return self._integers(kind, copies, iterate)
        unit, total = torch.zeros(len(copies), dtype=torch.float64), self.only_copies(copies)
        sums = unit.new_zeros(len(copies), len(self.several))
        here, slots = self.slots
        sums.index_add_(1, slots, copies.index_select(1, here).double())
        ones = torch.ones_like(unit)
        self.placed(sums, total, ones, self.exchange(sums, sums.new_zeros(len(copies), 0)))
        return total, unit

    def _integers(self, kind: str, copies: Tensor, iterate: Tensor | None) -> tuple[Tensor, Tensor]:
        """Sums in all processes by integers, beside variables of a single copy, and the units of the sums.

        Units are those of the last sum of the kind, if the largest copy allows for it: whether it does is
        known from the very sums, which spares an all-reduce.  It does where the largest copy of all processes
        says so, so that the number of processes makes no difference.
        """
        power = self.power(kind)
        if power is not None:
            sums, total, most = integer_copies(self, copies, iterate, scale(power))
            unit = scale(-power)
            if fit(self.placed(sums, total, unit, self.exchange(sums, self.marks(kind, most)))):
                return total, unit
        return self.in_new_units(kind, copies, iterate)

    def power(self, kind: str) -> Tensor | None:
        """Powers of two ``(batch,)`` that scaled the last sums of a kind; None before there are some."""
        assumed = self.recent.get(kind)
        return None if assumed is None else room(self.most_copies) - assumed

    def marks(self, kind: str, most: Tensor) -> Tensor:
        """Marks, to be added to those of other processes, of whether sums fit their units (:func:`fit`).

        Parameters
        ----------
        kind : str
            Of the sums, for which there was a :meth:`power`.
        most : Tensor
            ``(batch,)`` float64: magnitude of the largest copy here, infinite where one is not finite.

        Returns
        -------
        Tensor
            ``(batch, 2)`` int64: whether it is beyond what the units allow for, and whether it is near that.
        """
        assumed = self.recent[kind]
        own = torch.frexp(most)[1].long()  # that of an infinite number is not used
        over = ~torch.isfinite(most) | (own > assumed)
        near = ~over & (most > 0) & (own >= assumed - KEPT)
        return torch.stack([over, near], 1).long()

    def in_new_units(self, kind: str, copies: Tensor, iterate: Tensor | None) -> tuple[Tensor, Tensor]:
        """Sums in all processes by integers in the units that the largest copy asks for, and these.

        Parameters
        ----------
        kind : str
            Of the sums.
        copies, iterate : Tensor
            As in :func:`integer_copies`.
        """
        if iterate is not None:
            copies = (copies + copies).sub_(iterate)
        most = self.processes.greatest(largest_shared(self, copies))
        finite = torch.isfinite(most)
        assumed = torch.frexp(torch.where(finite, most, 0.0))[1].long() + 1  # it may grow
        assumed = assumed.clamp(room(self.most_copies) - LIMIT, room(self.most_copies) + LIMIT)
        self.recent[kind] = assumed
        power = room(self.most_copies) - assumed
        if not bool(finite.all()):
            copies = torch.where(finite[:, None], copies, 0)
        sums, total, _ = integer_copies(self, copies, None, scale(power))
        unit = torch.where(finite, scale(-power), torch.nan)
        self.placed(sums, total, unit, self.exchange(sums, sums.new_zeros(len(copies), 0)))
        return total, unit

    def exchange(self, sums: Tensor, marks: Tensor) -> Callable[[], Tensor]:
        """Begin to add those of other processes to sums ``(batch, s)``, and to marks.

        Returns
        -------
        callable
            Waits for the sums of the variables that are sent, ``(batch, exchanged)``, and of the marks beside
            them.
        """
        width = self.exchanged + marks.shape[1]
        buffer = sums.new_zeros(len(sums), width)
        buffer[:, self.at_exchange] = sums[:, self.sent]
        buffer[:, self.exchanged :] = marks
        return self.processes.begin_sum(buffer) if width else lambda: buffer

    def placed(self, sums: Tensor, total: Tensor, unit: Tensor, exchanged: Callable[[], Tensor]) -> Tensor:
        """Put sums in units ``(batch,)`` into ``total``, and return the sums of marks.

        Variables of which this process has all copies are done while the messages of others are under way.

        Parameters
        ----------
        sums : Tensor
            ``(batch, s)``: of the copies of this process.
        total : Tensor
            ``(batch, variables)``, written where variables have several copies.
        unit : Tensor
            ``(batch,)`` float64: of which the sums are multiples.
        exchanged : callable
            What :meth:`exchange` returned.
        """
        total[:, self.several] = sums.double().mul_(unit[:, None]).to(total)
        buffer = exchanged()
        total[:, self._between] = buffer[:, self.at_exchange].double().mul_(unit[:, None]).to(total)
        return buffer[:, self.exchanged :]

    def only_copies(self, copies: Tensor) -> Tensor:
        """Variables of a single copy ``(batch, variables)``; zero elsewhere."""
        total = copies.new_zeros(len(copies), self.variables)
        here, variables = self._alone
        total[:, variables] = copies.index_select(1, here)
        return total

    @cached_property
    def _between(self) -> Tensor:
        """Variables that are sent: ``(b,)`` int64."""
        return self.several[self.sent]

    @cached_property
    def _alone(self) -> tuple[Tensor, Tensor]:
        """Copies that are the only one of their variable, and these variables: ``(a,)`` int64 each."""
        copies = (self.target < 0).nonzero()[:, 0]
        return copies, -1 - self.target[copies].long()

    @cached_property
    def slots(self) -> tuple[Tensor, Tensor]:
        """Copies of variables with several, and the sum that each is of: ``(k,)`` int64 each.

        Loops do not need them.
        """
        copies = (self.target >= 0).nonzero()[:, 0]
        return copies, self.target[copies].long()


def fit(marks: Tensor) -> bool:
    """Whether sums fit their units: no copy is beyond them, and some copy is near what they allow for.

    Parameters
    ----------
    marks : Tensor
        ``(batch, 2)`` int64: sums of :meth:`SharedCoupling.marks` of all processes.
    """
    return bool(((marks[:, 0] == 0) & (marks[:, 1] > 0)).all())


@operation
def largest_shared(coupling: SharedCoupling, copies: Tensor) -> Tensor:
    """The largest magnitude among copies of variables that have several.

    Parameters
    ----------
    coupling : SharedCoupling
        The maps, which know the backend.
    copies : Tensor
        ``(batch, copies)``.

    Returns
    -------
    Tensor
        ``(batch,)`` float64: infinite where one is not finite.
    """
    own = copies.index_select(1, coupling.slots[0])
    if not own.shape[1]:
        return own.new_zeros(len(own), dtype=torch.float64)
    most = torch.maximum(own.amax(1), -own.amin(1)).double()
    return most.nan_to_num(torch.inf, torch.inf, torch.inf)


@operation
def integer_copies(
    coupling: SharedCoupling, copies: Tensor, iterate: Tensor | None, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of this process's copies as multiples of a unit, and variables of a single copy.

    Parameters
    ----------
    coupling : SharedCoupling
        The maps, which know the backend.
    copies : Tensor
        ``(batch, copies)``.
    iterate : Tensor or None
        ``(batch, copies)``: it is taken from twice the copies before these are added; None to add copies.
    scale : Tensor
        ``(batch,)`` float64: one over the units, powers of two.

    Returns
    -------
    sums, total : Tensor
        ``(batch, s)`` int64: of variables with several copies, any numbers where a term is beyond an
        integer.  ``(batch, variables)``: those with one, zero elsewhere.
    most : Tensor
        ``(batch,)`` float64: the largest magnitude of what is added, infinite where one is not finite.
    """
    if iterate is not None:
        copies = (copies + copies).sub_(iterate)
    here, slots = coupling.slots
    own = copies.index_select(1, here).double().mul_(scale[:, None]).round_()
    sums = torch.zeros(len(copies), len(coupling.several), dtype=torch.long)
    sums.index_add_(1, slots, own.long())
    return sums, coupling.only_copies(copies), largest_shared(coupling, copies)
