"""The instances of several models in one batch: their bounds, and blocks padded to one number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.capabilities import HasRestriction, constraints_of, supports
from blocklp.blocks.contract import BlockType
from blocklp.blocks.extents import Extent, extent
from blocklp.deadline import Deadline
from blocklp.decomposition.incidence import Linear
from blocklp.errors import OptionError
from blocklp.language.handles import Blocks, Rows, name_of_size
from blocklp.language.small_groups import Together, together
from blocklp.language.statement import Statement
from blocklp.language.variable_bounds import (
    Bounds,
    carry_gradients,
    flat_bounds,
    variable_bounds,
    with_gradients,
)
from blocklp.options import of_type

BUILDING = "building the problem"
"""What is being done when a deadline passes here."""


@dataclass(frozen=True, eq=False)
class Members:
    """The blocks of one name and size, of all models.

    Attributes
    ----------
    name : str
        Name of their group.
    columns : Tensor
        ``(models, dim, blocks)`` int64: their variables; padding has the last column of all.
    counts : Tensor or None
        ``(models,)`` int64: how many each model has; None where all have as many, so that none is padding.
    stated : object
        What the instances know them by.
    maps : tuple or None
        Maps of the caller's in the place of index maps.
    added : tuple of tuple
        As :attr:`Group.added`.
    """

    name: str
    columns: Tensor
    counts: Tensor | None
    stated: Any
    maps: tuple[Linear, Linear] | None = None
    added: tuple[tuple[str, int], ...] = ()

    @property
    def scope(self) -> Tensor:
        """The variables of every block: ``(models, blocks, dim)``, a view."""
        return self.columns.transpose(1, 2)


class Instances:
    """The instances of models, one after the other.

    Each instance of several models has a row of its own; the instances of a single model may share one.
    """

    def __init__(
        self,
        models: Sequence[Statement],
        width: int,
        deadline: Deadline,
        groups: Sequence[Together] | None = None,
    ) -> None:
        self.deadline, self.device = deadline, torch.device("cpu")
        self.models, self.batches, self.several = models, [m.batch for m in models], len(models) > 1
        self.batch = sum(self.batches)
        self.first = [0, *accumulate(self.batches)]
        self.owner = torch.arange(len(models)).repeat_interleave(torch.tensor(self.batches))
        self.width, self.sizes = width, [m.size for m in models]
        self.beyond = torch.zeros(len(models), width, dtype=torch.float64)
        self.real = self.own(leading(self.sizes, width))
        self.carrying = torch.zeros(len(models), width, dtype=torch.bool)
        if groups is not None:
            vars(self)["groups"] = groups

    @property
    def present(self) -> Tensor:
        """Which columns of each model are variables: ``(models, width)`` bool."""
        return leading(self.sizes, self.width)

    @property
    def rows(self) -> Sequence[Rows]:
        """Rows beside the blocks, of a model that compiles alone."""
        return self.models[0].rows

    @cached_property
    def groups(self) -> Sequence[Together]:
        """The blocks of every group, where small groups of equal types are one.

        In parts of a model they are not: other processes may have more blocks of a name.
        """
        named = _by_size(self.models)
        if any(m.part is not None for m in self.models):
            return list(map(Together, named))
        return list(together(named, self.batches, partial(self.deadline.check, BUILDING)))

    def members(self) -> Iterator[Members]:
        """The blocks, by name and size; each size of a name is a group (:func:`name_of_size`).

        A model without blocks of a size has zero blocks in that group, of the type that another model has
        there.
        """
        for same, added in self.groups:
            self.deadline.check(BUILDING)
            counts = [len(b.scope) for b in same]
            scope = padded(torch.cat([b.scope for b in same]), counts, self.width - 1)
            unequal = torch.tensor(counts) if min(counts) < max(counts) else None
            yield Members(same[0].name, scope.transpose(1, 2), unequal, same, same[0].maps, added)

    def own(self, rows: Tensor) -> Tensor:
        """Rows ``(models, ...)`` by instance: ``(batch, ...)``, or ``(1, ...)`` for a single model."""
        return rows if self.batch == len(rows) or not self.several else rows[self.owner]

    def bounds(self, bounds: Bounds) -> tuple[Tensor, Tensor]:
        """Bounds of all variables: ``(batch, width)`` each, or ``(1, width)`` where instances agree.

        They carry the gradients of what was given; :attr:`carrying` gets the variables where it does.
        """
        if not self.several:
            found = variable_bounds(self.models[0], bounds)
            if carry_gradients(self.models, bounds):
                self.carrying = with_gradients(self.models[0], bounds)[None]
            return found
        of_type(bounds, Mapping, "bounds", "a mapping {variable: (lower, upper)}")
        if bounds:
            instead = "set the bounds of several models when declaring them"
            raise OptionError(f"bounds= works on a single compiled model; {instead}")
        if carry_gradients(self.models, {}):
            own = (with_gradients(m, {}) for m in self.models)
            self.carrying = torch.stack([torch.nn.functional.pad(t, (0, self.width - len(t))) for t in own])
        counts = [m.size for m in self.models for _ in range(m.batch)]
        lower = torch.cat([part for m in self.models for part in flat_bounds(m, 0)])
        upper = torch.cat([part for m in self.models for part in flat_bounds(m, 1)])
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
        self, members: Members, lower: Tensor, upper: Tensor, needs_box: Tensor
    ) -> tuple[BlockType, Tensor | None]:
        """One type for blocks of the same name, restricted to the bounds of their variables.

        Parameters
        ----------
        members : Members
            The blocks of each model.
        lower, upper : Tensor
            ``(batch or 1, width)`` float64: bounds of all variables.
        needs_box : Tensor
            ``(models, width)`` bool, written: the variables whose bounds the type cannot take in.
            :attr:`beyond`, ``(models, width)``, gets the largest magnitudes of variables in such blocks,
            where the type's oracle has been asked for them.

        Returns
        -------
        kind : BlockType
            With block data ``(batch or 1, blocks or 1, ...)`` float64.
        points : Tensor or None
            :attr:`Extent.points` of its blocks, where they are known and not restricted.
        """
        same: Sequence[Blocks] = members.stated
        scope, kinds = self.own(members.scope), [b.type for b in same]
        if not self.several and (stated := constraints_of(kinds[0])) is not None and stated.below is not None:
            assert stated.above is not None
            tighter = (taken(lower, scope) > stated.below) | (taken(upper, scope) < stated.above)
            if not bool(tighter.any()):
                return kinds[0], None  # what rows imply beyond that need not be known
        found = self.extents(same)
        least, most = found.least, found.most
        points = found.points if len(least) == 1 or not self.several else None
        # Variables are fewer than copies: look at these first.
        if not bool((self.real & ((lower > least.amin()) | (upper < most.amax()))).any()):
            return self.stacked(kinds, same), points
        low, high = taken(lower, scope), taken(upper, scope)
        slack = 1e-9 * torch.maximum(least.abs(), most.abs()).nan_to_num(posinf=0.0)
        cut = (low > least + slack) | (high < most - slack)
        if self.several:  # padding blocks have no bounds
            cut &= self.own(leading([len(b.scope) for b in same], scope.shape[1]))[..., None]
        if not bool(cut.any()):
            return self.stacked(kinds, same), points
        for model in sorted(set(self.owner[cut.flatten(1).any(1)].tolist())) if self.several else [0]:
            self.deadline.check(BUILDING)
            rows = slice(self.first[model], self.first[model + 1]) if self.several else slice(None)
            own, count = same[model].scope, len(same[model].scope)
            kind, sides = kinds[model], (low[rows, :count], high[rows, :count])
            # The multipliers of a box of their own are the gradients of bounds.
            boxed = bool((cut[rows, :count] & self.carrying[model, own]).any())
            narrowed = kind.restrict(*sides) if supports(kind, HasRestriction) and not boxed else None
            if narrowed is None:
                needs_box[model, own[cut[rows, :count].any(0)]] = True
                farthest = torch.maximum(least.abs(), most.abs())
                farthest = farthest[rows if len(least) > 1 else slice(None), :count]
                farthest = farthest.nan_to_num(posinf=0.0).amax(0).expand(count, -1)
                self.beyond[model].scatter_reduce_(0, own.flatten(), farthest.flatten(), "amax")
            else:
                kinds[model], points = narrowed, None
        return self.stacked(kinds, same), points

    def extents(self, same: Sequence[Blocks]) -> Extent:
        """Ranges of every coordinate over its block, with sides ``(batch or 1, blocks or 1, dim)``."""
        asked: dict[tuple[int, int, int], Extent] = {}
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
            for side in ([f.least for f in found], [f.most for f in found])
        )
        return Extent(padded(least, counts, 0), padded(most, counts, 0))

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


def _by_size(models: Sequence[Statement]) -> Iterator[tuple[Blocks, ...]]:
    """Blocks of one name and size, of every model."""
    for same in zip(*(m.blocks for m in models), strict=True):
        sizes = sorted({b.scope.shape[1] for b in same})
        for size in sizes if len(sizes) > 1 else ():
            known = next(b for b in same if b.scope.shape[1] == size)
            kind = known.type.with_data(**{key: data[:1, :1] for key, data in known.type.tensors().items()})
            name = name_of_size(known.name, size)
            none = Blocks(name, kind, known.scope[:0])
            yield tuple(replace(b, name=name) if b.scope.shape[1] == size else none for b in same)
        if len(sizes) == 1:
            yield same


def leading(counts: list[int] | Tensor, length: int) -> Tensor:
    """Which of so many entries are among the first ones, for each count: ``(counts, length)`` bool."""
    counts = torch.as_tensor(counts)
    return torch.arange(length, device=counts.device) < counts[:, None]


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
    found = joined.new_full((len(counts), *joined.shape[1:], length), fill)
    valid = leading(torch.tensor(counts, device=joined.device), length)
    if joined.dim() == 1:
        return found.masked_scatter_(valid, joined)
    for i, column in enumerate(joined.unbind(1)):
        found[:, i].masked_scatter_(valid, column)
    return found.movedim(-1, 1)


def taken(values: Tensor, scope: Tensor) -> Tensor:
    """Gather values ``(batch or 1, variables)`` for the variables of blocks ``(batch or 1, blocks, dim)``."""
    return values[:, scope[0]] if len(scope) == 1 else values.gather(1, scope.flatten(1)).view(scope.shape)
