"""The rows of the blocks of one group, written out for methods that need no oracles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.decomposition.block_products import times, transposed
from blocklp.decomposition.problem import Group
from blocklp.decomposition.totals import Totals
from blocklp.errors import OptionError

WRITING = 1e-8
"""Seconds that it takes to write out a number of a row."""


@dataclass(frozen=True)
class GroupRows:
    """Rows that the type of a group states, but for those that bounds of the variables imply.

    The largest entry of every row is 1, so that the units of the rows decide nothing.

    Attributes
    ----------
    kept : Tensor
        ``(rows,)`` int64: numbers of the rows among those that the type states.
    matrix : Tensor
        ``(batch or 1, rows, dim, blocks or 1)``.
    lower, upper : Tensor
        ``(batch, rows, blocks)``: sides, infinite where bounds imply them.
    unit : Tensor
        ``(batch, rows, blocks)``: what stated rows are multiplied by.
    sums : Tensor
        ``(batch, rows, blocks)``: sums of the magnitudes of the entries of each row.
    used : Tensor
        ``(batch, rows, blocks)`` bool: rows of which a side is left.
    columns : Tensor
        ``(batch, dim, blocks)``: sums of the magnitudes of each variable's entries.
    needed : Tensor
        ``(batch, dim, blocks)``: magnitudes that rows require of each variable.
    """

    kept: Tensor
    matrix: Tensor
    lower: Tensor
    upper: Tensor
    unit: Tensor
    sums: Tensor
    used: Tensor
    columns: Tensor
    needed: Tensor

    @classmethod
    def written(
        cls,
        group: Group,
        as_rows: Tensor | None,
        low: Tensor,
        high: Tensor,
        far: Tensor,
        totals: Totals,
        deadline: Deadline,
    ) -> GroupRows:
        """Write the rows of a group out.

        Parameters
        ----------
        group : Group
            The blocks.
        as_rows : Tensor or None
            ``(k,)`` int64: positions of a block whose bounds are rows.
        low, high : Tensor
            ``(batch, copies)``: bounds of the copies of all groups.
        far : Tensor
            ``()``: the largest magnitude of a bound.
        totals : Totals
            What holds in all parts of an instance, which keep the same rows.
        deadline : Deadline
            Checked first, with about the time that writing takes.

        Returns
        -------
        GroupRows
            In the precision of the bounds.

        Raises
        ------
        OptionError
            If the type states no constraints.
        TimeLimitError
            If the deadline is over.
        """
        stated = group.constraints
        if stated is None:
            raise OptionError(
                f"method 'pdhg' needs the constraints of all blocks, and blocks {group.name!r} of type "
                f"{group.type.name} state none; give the type a method constraints() -> Constraints, "
                f"or choose another method, such as 'auto'"
            )
        if as_rows is not None:
            stated = stated.bounds_as_rows(as_rows)
        if not stated.lower.shape[-1]:
            return cls.none(group, low)
        doing = f"writing out the rows of the blocks {group.name!r}"
        deadline.check(doing, WRITING * stated.matrix.shape[2] * group.dim * group.blocks)
        matrix = stated.matrix.to(low).permute(0, 2, 3, 1)
        stated_sides = (side.to(low).transpose(1, 2) for side in (stated.lower, stated.upper))
        least, most = (side.expand(len(low), -1, group.blocks) for side in stated_sides)
        plus, minus = matrix.clamp(min=0), matrix.clamp(max=0)
        idle_below = least <= times(group, plus, low) + times(group, minus, high)
        idle_above = most >= times(group, plus, high) + times(group, minus, low)
        if group.valid is not None:
            padding = group.valid[:, None] == 0
            idle_below, idle_above = idle_below | padding, idle_above | padding
        used = ~(idle_below & idle_above)
        kept = ~totals.everywhere(~used.any(2).any(0))
        largest = matrix[:, kept].abs().amax(2)
        unit = torch.where(largest > 0, 1 / largest, torch.ones_like(largest))
        matrix, used = matrix[:, kept] * unit[:, :, None], used[:, kept]
        size = matrix.abs()
        lower = least.masked_fill(idle_below, -torch.inf)[:, kept] * unit
        upper = most.masked_fill(idle_above, torch.inf)[:, kept] * unit
        sums = times(group, size, torch.ones_like(low))
        finite = _finite(lower, upper)
        # Entries are 1 at most, so that a side beyond all bounds asks for more than these allow.
        less = (finite > 0) & (finite < far)
        loose = not finite.shape[1] or not bool(totals.everywhere(~less.any()))
        columns = transposed(size, used.to(low))
        needed = _reached(size, finite) if loose else far.expand_as(columns)
        units = unit.expand(len(low), -1, group.blocks)
        return cls(kept.nonzero()[:, 0], matrix, lower, upper, units, sums, used, columns, needed)

    @classmethod
    def none(cls, group: Group, low: Tensor) -> GroupRows:
        """Those of a type without rows, such as boxes; ``low`` ``(batch, copies)`` are bounds of copies."""
        side = low.new_zeros(len(low), 0, group.blocks)
        columns = low.new_zeros(len(low), group.dim, group.blocks)
        matrix, used = low.new_zeros(1, 0, group.dim, 1), torch.zeros_like(side, dtype=torch.bool)
        kept = torch.zeros(0, dtype=torch.int64, device=low.device)
        return cls(kept, matrix, side, side, side, side, used, columns, columns)


def _reached(entries: Tensor, sides: Tensor) -> Tensor:
    """Magnitudes that rows require of each variable, the largest of all rows: ``(batch, dim, blocks)``.

    The variable with the largest entry of a row meets its side alone; others take part in proportion to their
    entries, so that small ones do not count.  ``entries`` ``(batch or 1, rows, dim, blocks or 1)`` are
    magnitudes, 1 at most, as are the sides ``(batch, rows, blocks)``.  Bounds of variables may be far beyond
    that.
    """
    most = sides.new_zeros(len(sides), entries.shape[2], sides.shape[2])
    for own, side in zip(entries.unbind(1), sides[:, :, None].unbind(1), strict=True):
        most = torch.maximum(most, side * own)
    return most


def _finite(lower: Tensor, upper: Tensor) -> Tensor:
    """The larger magnitude of two sides, infinite ones left out."""
    return torch.maximum(*(torch.where(torch.isfinite(side), side.abs(), 0.0) for side in (lower, upper)))
