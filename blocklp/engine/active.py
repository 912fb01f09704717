"""Which of the instances that a chunk holds are active: known to the host, and sent up when it changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from blocklp.blocks.contract import Rows


@dataclass(frozen=True)
class Active:
    """The active ones among the instances that a chunk holds.

    Attributes
    ----------
    held : Tensor or slice
        Numbers of all instances held: ``(held,)`` int64 on the device, or a slice.
    rows, positions : Tensor
        ``(k,)`` int64 on the CPU: numbers of the active instances, and which of those held they are.
    count : int
        How many are held.
    device : torch.device
        The problem's device.
    """

    held: Rows
    rows: Tensor
    positions: Tensor
    count: int
    device: torch.device

    @classmethod
    def all_of(cls, part: slice, device: torch.device) -> Active:
        """All instances of a slice are held, and active."""
        rows = torch.arange(part.start, part.stop)
        return cls(part, rows, rows - part.start, len(rows), device)

    @cached_property
    def there(self) -> tuple[Tensor, Tensor]:
        """:attr:`rows` and :attr:`positions` on the device, in one copy."""
        if self.device.type == "cpu":
            return self.rows, self.positions
        both = torch.stack([self.rows, self.positions]).to(self.device, non_blocking=True)
        return both[0], both[1]

    @cached_property
    def numbers(self) -> Tensor:
        """Numbers of all instances held: ``(held,)`` int64 on the device."""
        if isinstance(self.held, Tensor):
            return self.held
        return torch.arange(self.held.start, self.held.stop, device=self.device)

    def write(self, values: Tensor, into: Tensor) -> None:
        """Write values ``(held, ...)`` of the active instances into a tensor of all ``(batch, ...)``."""
        if len(self.rows) == self.count:
            into[self.held] = values
        else:
            numbers, at = self.there
            into[numbers] = values[at]

    def select(self, stay: Tensor) -> Active:
        """Return some of the active instances, of their numbers ``(m,)`` int64 among these; all are held."""
        return replace(self, rows=self.rows[stay], positions=self.positions[stay])

    def compacted(self) -> Active:
        """Return the active instances where no others are held."""
        held, count = self.there[0], len(self.rows)
        return replace(self, held=held, positions=torch.arange(count), count=count)
