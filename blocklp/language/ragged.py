"""Variables and blocks of a batch whose instances differ in size, as concatenated arrays."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.language.offsets import Offsets, integers


@dataclass(frozen=True, eq=False)
class RaggedVariable:
    """An array of variables with another length in every instance.

    Attributes
    ----------
    name : str
        Unique in the batch.
    offsets : Offsets
        Where the entries of each instance begin in concatenated arrays.
    start : Tensor
        ``(count,)`` int64: its first column in each instance's row of variables.
    same_start : int or None
        Where all instances have the same, this column.
    lower, upper : float or Tensor
        Finite bounds, one number or ``(total,)`` float64.
    tightest : tuple of float
        The largest lower and the least upper bound.
    grid : float
        As in :meth:`blocklp.Model.variable`.
    """

    name: str
    offsets: Offsets
    start: Tensor
    same_start: int | None
    lower: float | Tensor
    upper: float | Tensor
    tightest: tuple[float, float]
    grid: float

    def __getitem__(self, index: object) -> RaggedView:
        return RaggedView(self, integers(index, f"indices of {self.name!r}"))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its concatenated values."""
        return (self.offsets.total,)

    def lay_out(self, values: float | Tensor, rows: Tensor) -> None:
        """Write one number, or values ``(total,)``, into the columns of rows ``(count, width)``.

        The last column of the rows is no variable's wherever instances differ in length.
        """
        most, at = self.offsets.most, self.same_start
        if at is not None and self.offsets.uniform:
            own = values if isinstance(values, float) else self.offsets.padded(values)
            rows[:, at : at + most] = own
            return
        valid = self.offsets.valid
        columns = torch.arange(most, device=rows.device) + self.start[:, None]
        columns = torch.where(valid, columns, rows.shape[1] - 1)
        own = rows.new_full((), values) if isinstance(values, float) else self.offsets.padded(values)
        rows.scatter_(1, columns, torch.where(valid, own, 0.0))

    def part(self, values: float | Tensor, instance: int) -> float | Tensor:
        """The values of one instance, where they are not one number."""
        return values if isinstance(values, float) else values[self.offsets.span(instance)]

    def __repr__(self) -> str:
        return f"{self.name}[{self.offsets.total}] of {self.offsets.count} instances"


@dataclass(frozen=True, eq=False)
class RaggedView:
    """Entries of a variable by their numbers in their own instance: ``(blocks,)`` or ``(blocks, k)``."""

    variable: RaggedVariable
    index: Tensor


@dataclass(frozen=True, eq=False)
class RaggedBlocks:
    """The handle of added blocks.

    Attributes
    ----------
    name : str
        Unique in the batch.
    type : BlockType
        Their type, with block data ``(1, 1 or total, ...)``.
    offsets : Offsets
        Where the blocks of each instance begin.
    columns : Tensor
        ``(count, dim, most)`` int64: the variables of every block, as columns of its instance's row; padding
        repeats any.
    """

    name: str
    type: BlockType
    offsets: Offsets
    columns: Tensor

    def data_of(self, instance: int) -> BlockType:
        """The type with the data of one instance."""
        span = self.offsets.span(instance)
        parts = {k: t[:, span] if t.shape[1] > 1 else t for k, t in self.type.tensors().items()}
        return self.type.with_data(**{k: t.cpu() for k, t in parts.items()})
