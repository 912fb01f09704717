"""The instances of several models in one batch: their bounds, and blocks padded to one number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from blocklp.blocks.capabilities import HasRestriction, constraints_of, supports
from blocklp.blocks.contract import BlockType
from blocklp.blocks.extents import extent
from blocklp.deadline import Deadline
from blocklp.errors import OptionError
from blocklp.language.handles import Blocks
from blocklp.language.statement import Statement
from blocklp.language.variable_bounds import Bounds, flat_bounds, variable_bounds
from blocklp.options import of_type

BUILDING = "building the problem"
"""What is being done when a deadline passes here."""


class Instances:
    """The instances of models, one after the other.

    Each instance of several models has a row of its own; the instances of a single model may share one.
    """

    def __init__(self, models: Sequence[Statement], width: int, deadline: Deadline) -> None:
        self.deadline = deadline
        self.models, self.batches, self.several = models, [m.batch for m in models], len(models) > 1
        self.batch = sum(self.batches)
        self.first = [0, *accumulate(self.batches)]
        self.owner = torch.arange(len(models)).repeat_interleave(torch.tensor(self.batches))
        self.width, self.sizes = width, [m.size for m in models]
        self.beyond = torch.zeros(len(models), width, dtype=torch.float64)
        self.real = self.own(leading(self.sizes, width))

    def own(self, rows: Tensor) -> Tensor:
        """Rows ``(models, ...)`` by instance: ``(batch, ...)``, or ``(1, ...)`` for a single model."""
        return rows if self.batch == len(rows) or not self.several else rows[self.owner]

    def bounds(self, bounds: Bounds) -> tuple[Tensor, Tensor]:
        """Bounds of all variables: ``(batch, width)`` each, or ``(1, width)`` where instances agree."""
        if not self.several:
            return variable_bounds(self.models[0], bounds)
        of_type(bounds, Mapping, "bounds", "a mapping {variable: (lower, upper)}")
        if bounds:
            instead = "set the bounds of several models when declaring them"
            raise OptionError(f"bounds= works on a single compiled model; {instead}")
        counts = [m.size for m in self.models for _ in range(m.batch)]
        lower = torch.cat([part for m in self.models for part in flat_bounds(m, "lower")])
        upper = torch.cat([part for m in self.models for part in flat_bounds(m, "upper")])
        return padded(lower, counts, 0, self.width), padded(upper, counts, 0, self.width)

    def grid(self, device: torch.device) -> Tensor | None:
        """Steps to whose multiples variables are rounded, ``(batch or 1, width)``; None where none is."""
        variables = [v for m in self.models for v in m.variables.values()]
        steps = torch.tensor([v.grid for v in variables], dtype=torch.float64)
        if not bool(steps.any()):
            return None
        steps = steps.repeat_interleave(torch.tensor([v.columns.stop - v.columns.start for v in variables]))
        return self.own(padded(steps, self.sizes, 0, self.width)).to(device)

    def restricted(
        self,
        same: Sequence[Blocks],
        scope: Tensor,
        lower: Tensor,
        upper: Tensor,
        needs_box: Tensor,
    ) -> BlockType:
        """One type for blocks of the same name, restricted to the bounds of their variables.

        Parameters
        ----------
        same : sequence of Blocks
            The blocks of each model.
        scope : Tensor
            ``(batch or 1, blocks, dim)`` int64: their variables, padding included.
        lower, upper : Tensor
            ``(batch or 1, width)`` float64: bounds of all variables.
        needs_box : Tensor
            ``(models, width)`` bool, written: the variables whose bounds the type cannot take in.
            :attr:`beyond`, ``(models, width)``, gets the largest magnitudes of variables in such blocks,
            where the type's oracle has been asked for them.

        Returns
        -------
        BlockType
            With block data ``(batch or 1, blocks or 1, ...)`` float64.
        """
        kinds = [b.type for b in same]
        if not self.several and (stated := constraints_of(kinds[0])) is not None and stated.below is not None:
            assert stated.above is not None
            tighter = (taken(lower, scope) > stated.below) | (taken(upper, scope) < stated.above)
            if not bool(tighter.any()):
                return kinds[0]  # what rows imply beyond that need not be known
        least, most = self.extents(same)
        # Variables are fewer than copies: look at these first.
        if not bool((self.real & ((lower > least.amin()) | (upper < most.amax()))).any()):
            return self.stacked(kinds, same)
        low, high = taken(lower, scope), taken(upper, scope)
        slack = 1e-9 * torch.maximum(least.abs(), most.abs()).nan_to_num(posinf=0.0)
        cut = (low > least + slack) | (high < most - slack)
        if self.several:  # padding blocks have no bounds
            cut &= self.own(leading([len(b.scope) for b in same], scope.shape[1]))[..., None]
        if not bool(cut.any()):
            return self.stacked(kinds, same)
        for model in sorted(set(self.owner[cut.flatten(1).any(1)].tolist())) if self.several else [0]:
            self.deadline.check(BUILDING)
            rows = slice(self.first[model], self.first[model + 1]) if self.several else slice(None)
            own, count = same[model].scope, len(same[model].scope)
            kind, sides = kinds[model], (low[rows, :count], high[rows, :count])
            narrowed = kind.restrict(*sides) if supports(kind, HasRestriction) else None
            if narrowed is None:
                needs_box[model, own[cut[rows, :count].any(0)]] = True
                farthest = torch.maximum(least.abs(), most.abs())
                farthest = farthest[rows if len(least) > 1 else slice(None), :count]
                farthest = farthest.nan_to_num(posinf=0.0).amax(0).expand(count, -1)
                self.beyond[model].scatter_reduce_(0, own.flatten(), farthest.flatten(), "amax")
            else:
                kinds[model] = narrowed
        return self.stacked(kinds, same)

    def extents(self, same: Sequence[Blocks]) -> tuple[Tensor, Tensor]:
        """Least and largest values of every coordinate over its block: ``(batch or 1, blocks or 1, dim)``."""
        asked: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}
        found = []
        for b, batch in zip(same, self.batches, strict=True):
            data, (blocks, dim) = b.type.tensors().values(), b.scope.shape
            rows = batch if any(len(t) > 1 for t in data) else 1
            count = blocks if any(t.shape[1] > 1 for t in data) else 1
            key = id(b.type), rows, count
            self.deadline.check(BUILDING)
            asked[key] = asked.get(key) or extent(b.type, rows, count, dim)
            found.append(asked[key])
        if all(f is found[0] for f in found):
            return found[0]
        counts = [b.scope.shape[0] for b, batch in zip(same, self.batches, strict=True) for _ in range(batch)]
        full = [(batch, *b.scope.shape) for b, batch in zip(same, self.batches, strict=True)]
        least, most = (
            torch.cat([t.expand(shape).flatten(0, 1) for t, shape in zip(side, full, strict=True)])
            for side in zip(*found, strict=True)
        )
        return padded(least, counts, 0), padded(most, counts, 0)

    def stacked(self, kinds: Sequence[BlockType], same: Sequence[Blocks]) -> BlockType:
        """One type for the blocks of all models: block data padded to one number of blocks, and joined."""
        if not self.several:
            return kinds[0]
        kinds, counts = kinds[0].alike(kinds), [len(b.scope) for b in same]
        first = kinds[0]
        joined: dict[str, Tensor] = {}
        for key in first.block_data:
            own = [kind.tensors().get(key) for kind in kinds]
            sample = next((data for data in own if data is not None), None)
            if sample is None:
                continue
            rows = []
            for data, batch, count in zip(own, self.batches, counts, strict=True):
                self.deadline.check(BUILDING)
                # Absent data is zero (nothing excluded); padding repeats a real block, so that oracles meet
                # valid data.
                full = sample[:1, :1].expand(batch, max(counts), *sample.shape[2:]).clone()
                full[:, :count] = 0 if data is None else data.expand(batch, count, *data.shape[2:])
                rows.append(full)
            joined[key] = torch.cat(rows)
        return first.with_data(**joined) if joined else first


def leading(counts: list[int], length: int) -> Tensor:
    """Which of so many entries are among the first ones, for each count: ``(counts, length)`` bool."""
    return torch.arange(length) < torch.tensor(counts)[:, None]


def padded(joined: Tensor, counts: list[int], fill: int, length: int = 0) -> Tensor:
    """Pad rows of different lengths to one length.

    Parameters
    ----------
    joined : Tensor
        ``(entries,)`` or ``(entries, dim)``: the rows, one after the other.
    counts : list of int
        Their lengths.
    fill : int
        What they are padded with.
    length : int
        The least length; that of the longest row, if it is longer.

    Returns
    -------
    Tensor
        ``(rows, length)`` or ``(rows, length, dim)``.
    """
    length = max(length, *counts)
    if min(counts) == length:
        return joined.view(len(counts), length, *joined.shape[1:])
    # In memory entries run fastest, as copies do in a row of them.
    found, valid = joined.new_full((len(counts), *joined.shape[1:], length), fill), leading(counts, length)
    if joined.dim() == 1:
        return found.masked_scatter_(valid, joined)
    for i, column in enumerate(joined.unbind(1)):
        found[:, i].masked_scatter_(valid, column)
    return found.movedim(-1, 1)


def taken(values: Tensor, scope: Tensor) -> Tensor:
    """Gather values ``(batch or 1, variables)`` for the variables of blocks ``(batch or 1, blocks, dim)``."""
    return values[:, scope[0]] if len(scope) == 1 else values.gather(1, scope.flatten(1)).view(scope.shape)
