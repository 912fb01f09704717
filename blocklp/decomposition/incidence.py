"""Which copies belong to which variable: the adjoint pair ``spread`` and ``collect``.

The copies of all blocks of an instance lie in one row, group after group; inside a group the block index runs
fastest (``(batch, dim, blocks)``), which makes sums over the few variables of a block contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, Self

import torch
from torch import Tensor

from blocklp.blocks.contract import Rows, pick

Linear = Callable[[Tensor], Tensor]


def sorted_copies(index: Tensor, variables: int) -> tuple[Tensor, Tensor]:
    """Copies sorted by variable, in their order, and where those of each begin and end.

    Parameters
    ----------
    index : Tensor
        ``(batch or 1, copies)`` int64: the variable of each copy.
    variables : int
        Number of variables of an instance.

    Returns
    -------
    order, ends : Tensor
        ``(batch or 1, copies)`` and ``(batch or 1, variables + 1)`` int64.
    """
    order = torch.argsort(index, dim=1, stable=True)
    lengths = torch.zeros(index.shape[0], variables, dtype=torch.long, device=index.device)
    lengths.scatter_add_(1, index, torch.ones_like(index))
    return order, torch.nn.functional.pad(lengths.cumsum(1), (1, 0))


class CopySums(Protocol):
    """Sums of the copies of every variable as a backend makes them."""

    def __call__(self, copies: Tensor) -> Tensor:
        """Sum copies ``(batch, copies)`` by variable, in a fixed order: ``(batch, variables)``."""

    def select(self, rows: Rows) -> Self:
        """The sums of some instances."""


@dataclass(frozen=True)
class Coupling:
    """Index maps between variables ``(batch, variables)`` and copies ``(batch, copies)``.

    Attributes
    ----------
    variables : int
        Number of variables of an instance (padding included).
    index : Tensor
        ``(batch or 1, copies)`` int64: the variable of each copy.
    order, ends : Tensor or None
        ``(batch or 1, copies)`` and ``(batch or 1, variables + 1)`` int64: copies sorted by variable, and
        where those of each begin and end; used where a scatter would need atomics (CUDA), so that sums are
        the same in every run.
    maps : dict
        Position ``(start, stop)`` of a group to its own ``(to_dual, to_primal)``, for structured scopes.
    sums : CopySums or None
        What sums the copies in place of tensor operations.
    """

    variables: int
    index: Tensor
    order: Tensor | None
    ends: Tensor | None
    maps: dict[tuple[int, int], tuple[Linear, Linear]]
    sums: CopySums | None = field(default=None, kw_only=True, repr=False)

    @property
    def indexed(self) -> bool:
        """Whether ``index`` says which variable each copy is of: maps that a caller gives alone do not."""
        return True

    @cached_property
    def places(self) -> Tensor:
        """``index`` in unsigned integers, of half the size where they suffice: loops test no sign."""
        return self.index.to(torch.uint32 if self.variables <= 2**32 else torch.uint64)

    @cached_property
    def by_variable(self) -> tuple[Tensor, Tensor]:
        """Copies sorted by variable ``(batch or 1, copies)``, and where those of each begin and end.

        In ``(batch or 1, variables + 1)``; in integers of half the size where they suffice.
        """
        order, ends = self.order, self.ends
        if order is None or ends is None:
            order, ends = sorted_copies(self.index, self.variables)
        kind = torch.int32 if self.index.shape[1] < 2**31 else torch.int64
        return order.to(kind), ends.to(kind)

    @classmethod
    def build(
        cls,
        variables: int,
        index: Tensor,
        maps: dict[tuple[int, int], tuple[Linear, Linear]] | None = None,
    ) -> Coupling:
        """Prepare the maps of an index tensor.

        Parameters
        ----------
        variables : int
            Number of variables of an instance (padding included).
        index : Tensor
            ``(batch or 1, copies)`` int64: the variable of each copy.
        maps : dict, optional
            Position ``(start, stop)`` of a group to its own ``(to_dual, to_primal)``.

        Returns
        -------
        Coupling
            The maps from variables to copies, and back.
        """
        if index.device.type == "cpu":
            return cls(variables, index, None, None, maps or {})
        return cls(variables, index, *sorted_copies(index, variables), maps or {})

    def spread(self, values: Tensor) -> Tensor:
        """Give every copy the value of its variable: ``(batch, variables) -> (batch, copies)``."""
        copies = values.gather(1, self.index.expand(values.shape[0], -1))
        for (start, stop), (to_dual, _) in self.maps.items():
            copies[:, start:stop] = to_dual(values)
        return copies

    def spread_part(self, values: Tensor, start: int, stop: int) -> Tensor:
        """Give some copies the values of their variables.

        Parameters
        ----------
        values : Tensor
            ``(batch, variables)``.
        start, stop : int
            First of these copies, and one past the last.

        Returns
        -------
        Tensor
            ``(batch, stop - start)``.
        """
        if self.maps:
            return self.spread(values)[:, start:stop]
        return values.gather(1, self.index[:, start:stop].expand(values.shape[0], -1))

    def collect(self, copies: Tensor) -> Tensor:
        """Sum the copies of every variable, the adjoint of :meth:`spread`, in a fixed order."""
        batch = copies.shape[0]
        extra = None
        if self.sums is not None:
            return self.sums(copies)
        if self.maps:
            copies = copies.clone()
            for (start, stop), (_, to_primal) in self.maps.items():
                part = to_primal(copies[:, start:stop].clone())
                extra = part if extra is None else extra + part
                copies[:, start:stop] = 0
        if self.order is None or self.ends is None:
            total = copies.new_zeros(batch, self.variables)
            total.scatter_add_(1, self.index.expand(batch, -1), copies)
        else:
            # CUDA takes a thread for each sum; in a flat tensor it would be a block of threads.
            ends, sorted_ = (
                self.ends.expand(batch, -1).contiguous(),
                copies.gather(1, self.order.expand(batch, -1)),
            )
            total = torch.segment_reduce(sorted_, "sum", offsets=ends, axis=1, unsafe=True, initial=0.0)
        return total if extra is None else total + extra

    def collect_points(self, points: Tensor) -> Tensor:
        """Sum points of blocks, copies of another size than multipliers, as :meth:`collect` does."""
        return self.collect(points)

    def reflected(self, points: Tensor, iterate: Tensor) -> Tensor:
        """Sum twice the points less the iterates, both ``(batch, copies)``, by variable."""
        return self.collect(points + points - iterate)

    def magnitudes(self, copies: Tensor) -> Tensor:
        """Sum of the magnitudes of the copies of every variable, at least.

        An error of :meth:`collect` is at most a unit of roundoff of it for each copy.
        """
        return self.collect(copies.abs())

    def greatest(self, values: Tensor, copies: Tensor) -> Tensor:
        """The largest of a value ``(batch, variables)`` of each variable and of its ``(batch, copies)``."""
        return values.scatter_reduce(1, self.index.expand_as(copies), copies, "amax")

    def select(self, rows: Rows) -> Coupling:
        """Return the maps of some instances."""
        if self.index.shape[0] == 1:
            return self
        order, ends = (t if t is None else pick(t, rows) for t in (self.order, self.ends))
        sums = None if self.sums is None else self.sums.select(rows)
        part = Coupling(self.variables, pick(self.index, rows), order, ends, self.maps, sums=sums)
        if "places" in vars(self):
            vars(part)["places"] = pick(self.places, rows)
        if "by_variable" in vars(self):
            vars(part)["by_variable"] = tuple(pick(t, rows) for t in self.by_variable)
        return part
