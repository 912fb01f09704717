"""Where the entries of each instance begin in concatenated arrays, and rows of one length made of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from blocklp.errors import ModelError, ShapeError
from blocklp.options import as_tensor, shown


@dataclass(frozen=True, eq=False)
class Offsets:
    """The rows of several instances, of different lengths, one after the other.

    Attributes
    ----------
    first : Tensor
        ``(count + 1,)`` int64: where the entries of each instance begin, and the number of all.
    total, least, most : int
        Number of all entries, and of those of the smallest and of the largest instance.
    """

    first: Tensor
    total: int
    least: int
    most: int

    @classmethod
    def of(cls, given: object, what: str) -> Offsets:
        """Read offsets, on the device where they are.

        Raises
        ------
        ModelError, ShapeError
            If they are no integers ``(count + 1,)`` from 0 on that do not fall.
        """
        if isinstance(given, Offsets):
            return given
        first = integers(given, what)
        if first.dim() != 1 or len(first) < 2:
            raise ShapeError(f"{what} have shape {tuple(first.shape)}; give (instances + 1,) of them")
        sizes = first.diff()
        begin, total, least, most = torch.stack([first[0], first[-1], sizes.amin(), sizes.amax()]).tolist()
        if begin != 0 or least < 0:
            raise ModelError(f"{what} are {shown(given)}; they must begin with 0 and not fall")
        return cls(first, total, least, most)

    @classmethod
    def alone(cls, total: int) -> Offsets:
        """Those of a single instance, on the CPU."""
        return cls(torch.tensor([0, total]), total, total, total)

    @property
    def count(self) -> int:
        """Number of instances."""
        return len(self.first) - 1

    @cached_property
    def sizes(self) -> Tensor:
        """Numbers of entries of the instances: ``(count,)`` int64."""
        return self.first.diff()

    @cached_property
    def counts(self) -> list[int]:
        """:attr:`sizes` on the host."""
        found: list[int] = self.sizes.tolist()
        return found

    @property
    def uniform(self) -> bool:
        """Whether all instances have as many entries, so that rows need no padding."""
        return self.least == self.most

    @cached_property
    def valid(self) -> Tensor:
        """Which entries of padded rows there are: ``(count, most)`` bool."""
        return torch.arange(self.most, device=self.first.device) < self.sizes[:, None]

    @cached_property
    def places(self) -> Tensor:
        """Numbers of the entries of padded rows, ``(count, most)`` int64; padding repeats any entry."""
        places = torch.arange(self.most, device=self.first.device) + self.first[:-1, None]
        return places.clamp_(max=max(self.total - 1, 0))

    def padded(self, values: Tensor) -> Tensor:
        """Rows of one length, ``(total, ...)`` to ``(count, most, ...)``: a view where no padding is needed.

        Padding repeats any entry.
        """
        if self.uniform:
            return values.view(self.count, self.most, *values.shape[1:])
        return values[self.places]

    def span(self, instance: int) -> slice:
        """Numbers of the entries of an instance."""
        return slice(*self.first[instance : instance + 2].tolist())


def integers(given: object, what: str) -> Tensor:
    """Read integers as int64, on the device where they are.

    Raises
    ------
    ModelError
        If they are none.
    """
    try:
        data = as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ModelError(f"{what} are {shown(given)}; give integers") from error
    if data.is_floating_point() or data.is_complex() or data.dtype == torch.bool:
        raise ModelError(f"{what} hold {data.dtype}; give integers")
    return data.long()
