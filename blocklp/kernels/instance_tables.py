"""Tables of whole instances in which blocks of one type share variables, and others are bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from blocklp.blocks.contract import Rows, pick
from blocklp.blocks.extents import extent
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.decomposition.valid_bounds import NOISE, with_offset
from blocklp.kernels.block_source import block_data

Best = tuple[Tensor, Tensor]
"""Best bounds and their multipliers, or best values and their points, which are written.

``(batch,)`` float64, and ``(batch, copies)`` or, in float64, ``(batch, variables)``.
"""


@dataclass(frozen=True)
class InstanceTables:
    """Tables of the instances of a problem whose blocks of one group share variables, and others are bounds.

    Attributes
    ----------
    group : int
        Number of the only group that shares variables.
    used : int
        One past the last variable that blocks of the group share.
    filled : Tensor
        :attr:`Group.filled`.
    active : Tensor
        ``(k,)`` int64: the active instances; frozen ones keep their place, which spares copying the others.
    met : Tensor
        ``(batch or 1, variables)`` bool: variables that blocks of the group share.
    private : Tensor
        ``(batch or 1, variables)`` bool: variables in blocks of other groups.
    narrow : Tensor
        ``(batch,)`` bool: whether bounds may be tighter than the blocks for variables that only one has.
    ends : int
        One past the last variable that is met or private.
    rest, largest, size : Tensor
        ``(batch,)``: value of all other groups and the constant less their rounding, largest magnitude of a
        variable of the group, sum of the sizes of the costs.
    """

    group: int
    used: int
    filled: Tensor
    active: Tensor
    met: Tensor
    private: Tensor
    narrow: Tensor
    ends: int
    rest: Tensor
    largest: Tensor
    size: Tensor

    @classmethod
    def laid_out(cls, problem: Decomposition, group: int, used: int | None = None, **own: Any) -> Self:
        """Lay out the tables of a problem's instances, whatever the costs (:meth:`priced`).

        Parameters
        ----------
        problem : Decomposition
            The problem, in float64.
        group : int
            Number of the only group that shares variables.
        used : int, optional
            One past the last variable that these share, of all instances.
        **own
            Further attributes of a class that derives from this one.
        """
        mine, index = problem.groups[group], problem.coupling.index
        met = shared_variables(problem, mine)
        private = torch.zeros_like(met)
        for other in problem.groups:
            if other is mine:
                continue
            for first, last in other.spans:
                places = index[:, first:last]
                private.scatter_(1, places, valid_blocks(other).expand(places.shape))
        found, last = last_of(met, private)
        used = found if used is None else used
        beside = private & ~met
        inside = problem.extent.masked_fill(beside, 0.0)
        return cls(
            group=group,
            used=used,
            filled=mine.filled,
            active=torch.arange(problem.batch, device=index.device),
            met=met,
            private=private,
            narrow=_narrow(problem, mine).expand(problem.batch),
            ends=max(used, last),
            rest=problem.offset,
            largest=inside.amax(1).expand(problem.batch),
            size=problem.offset,
            **own,
        )

    def priced(self, problem: Decomposition) -> Self:
        """Return the tables for the costs of a problem, which :meth:`laid_out` leaves out."""
        rest = torch.zeros_like(problem.offset)
        for number, other in enumerate(problem.groups):
            if number == self.group:
                continue
            cost = problem.coupling.spread_part(problem.cost, other.start, other.stop)
            extent = problem.extent.expand_as(problem.cost)
            extent = problem.coupling.spread_part(extent, other.start, other.stop)
            rounding_error = NOISE * (cost.abs() * extent).sum(1)
            rest = rest + (other.block_values(other.blockwise(cost)).sum(-1) - rounding_error)
        return replace(self, rest=with_offset(rest, problem.offset), size=problem.cost.abs().sum(1))

    def select(self, rows: Rows) -> Self:
        """Return the tables of some instances, all of them active."""
        shared = self.filled, self.met, self.private
        filled, met, private = (pick(v, rows) if len(v) > 1 else v for v in shared)
        tables = self.rest, self.largest, self.size, self.narrow
        rest, largest, size, narrow = (pick(v, rows) for v in tables)
        active = torch.arange(len(rest), device=rest.device)
        own = replace(self, rest=rest, largest=largest, size=size, active=active)
        return replace(own, filled=filled, met=met, private=private, narrow=narrow)


def shared_variables(problem: Decomposition, group: Group) -> Tensor:
    """Variables that valid blocks of a group share: ``(batch or 1, variables)`` bool."""
    index = problem.coupling.index
    met = torch.zeros(len(index), problem.coupling.variables, dtype=torch.bool, device=index.device)
    for (first, last), shared in zip(group.spans, group.pattern, strict=True):
        if shared:
            met.scatter_(1, index[:, first:last], valid_blocks(group).expand(len(index), group.blocks))
    return met


def _narrow(problem: Decomposition, group: Group) -> Tensor:
    """Whether bounds of variables in one block alone may be tighter than it: ``(batch or 1,)`` bool."""
    private, device = group.type.private_coordinates, problem.cost.device
    if block_data(group.type) or not private:
        return torch.full((1,), bool(private), device=device)
    found = extent(group.type, 1, 1, group.dim)
    least, most = (side[0, 0].tolist() for side in (found.least, found.most))
    tight = torch.zeros(1, dtype=torch.bool, device=device)
    for i in range(group.dim - private, group.dim):
        first, last = group.spans[i]
        places = problem.coupling.index[:, first:last]
        within = (problem.lower > least[i]) | (problem.upper < most[i])  # variables are fewer than copies
        rows = max(len(within), len(places))
        within = within.expand(rows, -1).gather(1, places.expand(rows, -1))
        tight = tight | (within & valid_blocks(group)).any(1)
    return tight


def last_of(*masks: Tensor) -> list[int]:
    """One past the last column of each mask with an entry that is true; 0 without any."""
    number = torch.arange(1, masks[0].shape[1] + 1, device=masks[0].device)
    return torch.stack([(mask.any(0) * number).amax() for mask in masks]).tolist()


def valid_blocks(group: Group) -> Tensor:
    """Blocks that are no padding, which has variables of its own: ``(batch or 1, blocks or 1)`` bool."""
    if group.valid is None:
        return torch.ones(1, 1, dtype=torch.bool, device=group.coupled.device)
    return group.valid > 0
