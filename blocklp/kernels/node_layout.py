"""The layout of a model for compiled loops over nodes: blocks in one list, copies sorted by variable."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from blocklp.blocks.capabilities import HasIntervals, supports, vertices_of
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.kernels import compiled

KERNELS = "blocklp.kernels.node_kernels"

TABLE, EDGE, AT_MOST_ONE, ONE, INTERVAL = range(5)
"""Kinds of blocks: any vertices, a pair and its product, unit vectors with and without zero, one variable."""

ENOUGH = 8.0
"""Penalty on a fixed copy's wrong value over all its block's multipliers: more than the rest can gain."""

LONGEST = 1024
"""Numbers in a table of vertices up to which loops go through it for every coordinate."""


WIDEST = 60
"""Variables of a vertex table up to which loops keep vertices in the bits of a number."""


@dataclass(frozen=True)
class NodeLayout:
    """A model for the loops; fields in the order of their arguments.

    Attributes
    ----------
    index : Tensor
        ``(copies,)`` int32: the variable of each copy.
    first, own : Tensor
        ``(variables + 1,)``, ``(copies,)`` int32: the copies of variable v are
        ``own[first[v]:first[v + 1]]``.
    base, mate, product : Tensor
        ``(copies,)`` int32: the first copy of the block of each of ``own``; the other end and the product
        where it is the end of an edge, else -1.
    member : Tensor
        ``(copies,)`` int32: the group of each of ``own``.
    later, earlier : Tensor
        ``(copies,)`` bool: whether the block of each of ``own`` shares a variable that comes later, or
        earlier.
    order : Tensor
        ``(k,)`` int32: the variables that blocks share.
    groups : Tensor
        ``(groups, 6)`` int64: kind, first copy, blocks (copies of one lie so far apart), dim, start in
        ``table``, vertices.
    table : Tensor
        ``(numbers,)`` float64: vertex tables.
    """

    index: Tensor
    first: Tensor
    own: Tensor
    base: Tensor
    mate: Tensor
    product: Tensor
    member: Tensor
    later: Tensor
    earlier: Tensor
    order: Tensor
    groups: Tensor
    table: Tensor

    @classmethod
    def of(cls, problem: Decomposition) -> NodeLayout | None:
        """Lay out a batch of one; None if some type does not list 0/1 vertices, or there are no loops."""
        found = [_kind(group) for group in problem.groups]
        kinds = [kind for kind in found if kind is not None]
        if problem.cost.device.type != "cpu" or problem.coupling.maps or len(kinds) < len(found):
            return None
        if compiled.wanted(KERNELS) is None:
            return None
        index, variables = problem.coupling.index[0], problem.coupling.variables
        shared = problem.counts[0] > 1
        own = index.argsort(stable=True)
        base, member, mate, product = (torch.full_like(index, -1) for _ in range(4))
        rows, numbers = [], 0
        for n, (group, (kind, table)) in enumerate(zip(problem.groups, kinds, strict=True)):
            number = group.start + torch.arange(group.blocks)
            base[group.start : group.stop], member[group.start : group.stop] = number.repeat(group.dim), n
            if kind == EDGE:
                (first, second), third = (slice(*span) for span in group.spans[:2]), number + 2 * group.blocks
                mate[first], mate[second] = number + group.blocks, number
                product[first], product[second] = third, third
            rows.append([kind, group.start, group.blocks, group.dim, numbers, len(table)])
            numbers += table.numel()
        # The last and the first shared variable of every block.
        last, least = torch.full_like(index, -1), torch.full_like(index, variables)
        last.scatter_reduce_(0, base, torch.where(shared[index], index, -1), "amax")
        least.scatter_reduce_(0, base, torch.where(shared[index], index, variables), "amin")
        later, earlier = last[base] > index, least[base] < index
        first_of = torch.cat([torch.zeros(1), torch.bincount(index, minlength=variables).cumsum(0)])
        per_copy = (base, mate, product, member, later, earlier)
        order, tables = shared.nonzero()[:, 0], torch.cat([table.flatten() for _, table in kinds])
        whole = (index, first_of, own, *(values[own] for values in per_copy), order)
        small = (values if values.dtype == torch.bool else values.to(torch.int32) for values in whole)
        return cls(*[*small, torch.tensor(rows), tables])

    def arguments(self) -> tuple[Tensor, ...]:
        """The fields."""
        return tuple(getattr(self, field.name) for field in fields(self))


def _kind(group: Group) -> tuple[int, Tensor] | None:
    """Kind and vertices of a group's blocks, None where loops cannot deal with them; few need vertices."""
    kind = group.type
    none = torch.zeros(0, group.dim, dtype=torch.float64)
    if supports(kind, HasIntervals) and group.dim == 1:
        lower, upper = kind.intervals()
        binary = bool((lower == 0).all() & (upper == 1).all())
        return (INTERVAL, none) if binary or not group.shares else None
    table = vertices_of(kind)
    if table is None or not bool(((table == 0) | (table == 1)).all()):
        return None
    ones = table.sum(0)
    if not bool(((ones > 0) & (ones < len(table))).all()):  # a coordinate that is constant
        return None
    unit = torch.eye(group.dim, dtype=torch.float64)
    if torch.equal(table, torch.cat([torch.zeros(1, group.dim, dtype=torch.float64), unit])):
        return AT_MOST_ONE, none
    if torch.equal(table, unit):
        return ONE, none
    pair = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 1]], dtype=torch.float64)
    if torch.equal(table, pair):
        return EDGE, table
    return (TABLE, table) if table.numel() <= LONGEST and group.dim <= WIDEST else None
