"""The instances of a batch that was stated from concatenated arrays: lowered without work for single ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.blocks.extents import extent
from blocklp.deadline import Deadline
from blocklp.language.batch_statement import BatchStatement
from blocklp.language.handles import Rows
from blocklp.language.instances import Instances, Members
from blocklp.language.ragged import RaggedBlocks, RaggedVariable
from blocklp.language.variable_bounds import Bounds


class RaggedInstances(Instances):
    """The instances of a batch, each with a row of its own, on the device of its arrays."""

    def __init__(self, batch: BatchStatement, width: int, deadline: Deadline) -> None:
        assert batch.sizes is not None
        self.stated, self.models, self.several = batch, batch, len(batch) > 1
        self.deadline, self.device, self.width, self.batch = deadline, batch.sizes.device, width, len(batch)
        self.beyond = torch.zeros(1, 1, dtype=torch.float64)  # no block reaches beyond bounds

    def own(self, rows: Tensor) -> Tensor:
        """Rows by instance, as they are."""
        return rows

    @property
    def present(self) -> Tensor:
        """Which columns of each instance are variables: ``(batch, width)`` bool."""
        assert self.stated.sizes is not None
        return torch.arange(self.width, device=self.device) < self.stated.sizes[:, None]

    def bounds(self, bounds: Bounds) -> tuple[Tensor, Tensor]:
        """Bounds of all variables: ``(batch or 1, width)`` each; 0 where there is no variable."""
        assert not bounds
        variables = self.stated.variables.values()
        return self._rows({v: v.lower for v in variables}), self._rows({v: v.upper for v in variables})

    def _rows(self, values: dict[RaggedVariable, float | Tensor]) -> Tensor:
        """Numbers of all variables by instance: ``(batch or 1, width)``, one row where all agree."""
        same = all(
            v.same_start is not None and v.offsets.uniform and isinstance(own, float)
            for v, own in values.items()
        )
        rows = torch.zeros(1 if same else self.batch, self.width, dtype=torch.float64, device=self.device)
        for variable, own in values.items():
            variable.lay_out(own, rows)
        return rows

    def grid(self, device: torch.device) -> Tensor | None:
        """Steps to whose multiples variables are rounded, ``(batch or 1, width)``; None where none is."""
        variables = self.stated.variables.values()
        if not any(v.grid for v in variables):
            return None
        return self._rows({v: v.grid for v in variables}).to(device)

    @property
    def rows(self) -> Sequence[Rows]:
        """There are no rows beside the blocks."""
        return ()

    def members(self) -> Iterator[Members]:
        """The blocks, by name."""
        for b in self.stated.blocks:
            if b.offsets.uniform:
                yield Members(b.name, b.columns, None, b)
            else:
                columns = b.columns.masked_fill(~b.offsets.valid[:, None], self.width - 1)
                yield Members(b.name, columns, b.offsets.sizes, b)

    def cuts_blocks(self) -> bool:
        """Whether bounds of variables may cut off part of a block, by the tightest bounds of all."""
        tightest = [v.tightest for v in self.stated.variables.values()]
        return any(
            low > least or high < most
            for b in self.stated.blocks
            for least, most in [_extent(b)]
            for low, high in tightest
        )

    def restricted(
        self, members: Members, lower: Tensor, upper: Tensor, needs_box: Tensor
    ) -> tuple[BlockType, None]:
        """One type for the blocks of a name, whose variables' bounds cut nothing off (:meth:`cuts_blocks`).

        Parameters
        ----------
        members : Members
            The blocks.
        lower, upper, needs_box : Tensor
            As in :meth:`Instances.restricted`.

        Returns
        -------
        kind, points : BlockType, None
            With block data ``(batch or 1, blocks or 1, ...)``; no points are known.
        """
        blocks: RaggedBlocks = members.stated
        own = {k: t for k, t in blocks.type.tensors().items() if t.shape[1] > 1}
        if not own or not self.several:
            return blocks.type, None
        stacked = {k: blocks.offsets.padded(t[0].to(self.device)) for k, t in own.items()}
        return blocks.type.with_data(**stacked), None


def _extent(blocks: RaggedBlocks) -> tuple[float, float]:
    """Least and largest value of any coordinate of any block; types are asked on the CPU."""
    dim, data = blocks.columns.shape[1], blocks.type.tensors()
    if blocks.type.stateless and not data:
        found = extent(blocks.type, 1, 1, dim)
    else:
        count = blocks.offsets.total if any(t.shape[1] > 1 for t in data.values()) else 1
        found = extent(blocks.type.to(torch.float64, torch.device("cpu")), 1, count, dim)
    return float(found.least.amin()), float(found.most.amax())
