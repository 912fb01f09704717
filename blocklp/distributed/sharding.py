"""Parts of a decomposition, one a process: blocks of its own, and the variables that these hold.

A model that every process states whole is cut: blocks in their order, so that a process has one range of each
group, and with it an equal part of the copies and of the entries of rows beside the blocks.  Of a model that
no process states whole each has the blocks that it stated.  In both cases processes tell each other which
variables they hold, and how many copies of each: a variable is counted by the first process that holds it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.distributed.processes import Processes
from blocklp.distributed.shared_coupling import SharedCoupling
from blocklp.distributed.shared_rows import SharedRows
from blocklp.distributed.totals import SharedTotals
from blocklp.kernels.backend import Backend


@dataclass(frozen=True)
class InstancePart:
    """The part of an instance that a process holds.

    Attributes
    ----------
    problem : Decomposition
        Its blocks and their variables, which has sums over all processes.
    ranges : tuple of (Group, int, int)
        Groups as they are stated in this process, and in each the first block of the part and one past the
        last.
    common : Tensor
        ``(width,)`` bool: which of the variables that are stated here all processes state.
    variables : Tensor
        ``(v,)`` int64: those that its blocks hold, ascending.
    owned : Tensor
        ``(v,)`` bool: those that it counts.
    """

    problem: Decomposition
    ranges: tuple[tuple[Group, int, int], ...]
    common: Tensor
    variables: Tensor
    owned: Tensor

    @property
    def coupling(self) -> SharedCoupling:
        """The maps of its copies."""
        found = self.problem.coupling
        assert isinstance(found, SharedCoupling)
        return found

    @property
    def in_blocks(self) -> int:
        """Number of copies in blocks, of those that are stated here."""
        return self.ranges[-1][0].stop

    def cut(self, copies: Tensor) -> Tensor:
        """The copies of the part, of those that are stated here: ``(batch, copies) -> (batch, own)``.

        Prices of rows, which come last, are those of all parts.
        """
        return torch.cat([_cut(self.ranges, copies), copies[:, self.in_blocks :]], 1)

    def placed(self, own: Tensor) -> Tensor:
        """Copies of the part in their places among those that are stated here, zero elsewhere."""
        prices = own[:, self.problem.in_blocks :]
        found = torch.cat([own.new_zeros(len(own), self.in_blocks), prices], 1)
        for (group, first, last), part in zip(self.ranges, self.problem.groups, strict=True):
            group.rows(found)[..., first:last] = part.rows(own)
        return found


def _cut(ranges: tuple[tuple[Group, int, int], ...], copies: Tensor) -> Tensor:
    """Some blocks' copies, of all copies ``(batch, copies)``."""
    return torch.cat([g.rows(copies)[..., first:last].flatten(1) for g, first, last in ranges], 1)


def _data(kind: BlockType, first: int, last: int) -> BlockType:
    """The type with the block data of some blocks, which it does not share with that of all blocks."""
    several = {name: own for name, own in kind.tensors().items() if own.shape[1] > 1}
    return kind.with_data(**{name: own[:, first:last].clone() for name, own in several.items()})


def sharded(
    problem: Decomposition,
    processes: Processes,
    fixed: bool,
    backend: Backend,
    common: Tensor | None = None,
    columns: Tensor | None = None,
) -> InstancePart:
    """Find the part of this process.

    Parameters
    ----------
    problem : Decomposition
        One instance without structured scopes, in float64 on the CPU, as this process states it.
    processes : Processes
        All of them.
    fixed : bool
        Whether copies are added as integers.
    backend : Backend
        What runs the operations.
    common : Tensor, optional
        ``(variables,)`` bool: which variables all processes state, in one order, where each states its own
        blocks.  By default all processes state all, and blocks are cut.
    columns : Tensor, optional
        ``(variables,)`` int64: the numbers that variables have in the instance; by default as they come.

    Returns
    -------
    InstancePart
        That of this process.
    """
    rank, world = processes.rank, processes.world
    if common is None:
        common = torch.ones(problem.cost.shape[1], dtype=torch.bool)
        ends = zip(problem.groups, _ranges(problem, world), strict=True)
        ranges = tuple((group, own[rank], own[rank + 1]) for group, own in ends)
        index = _cut(ranges, problem.coupling.index)[0]
    else:
        ranges = tuple((g, 0, g.blocks) for g in problem.groups)
        index = problem.coupling.index[0]
    held = torch.zeros(len(common), dtype=torch.bool)
    held[index] = True
    all_here = bool(common.all())
    known, present = (slice(None), held) if all_here else (common, held[common])
    holders = torch.stack([torch.where(present, -rank, -world), torch.where(present, rank, -1)])
    least, last = processes.greatest(holders)
    counts = torch.bincount(index, minlength=len(common))
    counts[known] = processes.sum(counts[known].contiguous())
    between, owned = torch.zeros_like(common), ~common
    between[known], owned[known] = -least != last, -least == rank
    variables = held.nonzero()[:, 0]
    owned = owned[variables]
    number = torch.full((len(common),), -1)
    number[variables] = torch.arange(len(variables))
    groups = _groups(ranges, counts[index] > 1, processes)
    own = torch.tensor([sum(g.blocks for g in groups), int((~common).sum()), len(index)])
    blocks, private, copies = processes.sum(own).tolist()
    width, most = private + int(common.sum()), int(processes.greatest(counts.max()[None]))
    everything = None if bool(owned.all()) else owned[None]
    numbered = variables if columns is None else columns[variables]
    totals = SharedTotals(processes, everything, blocks, width, copies, numbered, backend)
    counted = torch.zeros_like(common)
    counted[variables[owned]] = True
    coupling = _coupling(
        number[index], counts[variables], (between[variables], between.cumsum(0)[variables] - 1)
    )
    coupling |= {"exchanged": int(between.sum()), "most_copies": most}

    def some(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[:, variables]

    part = Decomposition(
        problem.cost[:, variables],
        problem.lower[:, variables],
        problem.upper[:, variables],
        problem.offset.clone(),
        groups,
        SharedCoupling(processes=processes, fixed=fixed, backend=backend, **coupling),
        counts[variables].to(problem.cost)[None],
        some(problem.grid),
        rows=SharedRows.of(problem, (number, counted), processes, fixed, backend),
        beyond=some(problem.beyond),
        totals=totals,
    )
    return InstancePart(part, ranges, common, variables, owned)


def _ranges(problem: Decomposition, world: int) -> list[list[int]]:
    """Where the blocks of each process begin in every group, and the end of the last: equal parts of work.

    Work is that of copies and of entries of rows beside the blocks.  What rounding to whole blocks takes from
    a process in one group it gets in the next.
    """
    entries = None
    if problem.rows is not None:
        entries = torch.bincount(problem.rows.column, minlength=problem.cost.shape[1])
    short, found = torch.zeros(world - 1, dtype=torch.float64), []
    parts = torch.arange(1, world, dtype=torch.float64) / world
    for group in problem.groups:
        work = torch.full((group.blocks,), float(group.dim), dtype=torch.float64)
        if entries is not None:
            work += entries[group.rows(problem.coupling.index)[0]].sum(0)
        done = torch.nn.functional.pad(work.cumsum(0), (1, 0))
        wanted = done[-1] * parts + short
        middles = (done[:-1] + done[1:]) / 2
        ends = torch.searchsorted(middles, wanted.cummax(0).values) if world > 1 else wanted.long()
        short = wanted - done[ends]
        found.append([0, *ends.tolist(), group.blocks])
    return found


def _groups(
    ranges: tuple[tuple[Group, int, int], ...], several: Tensor, processes: Processes
) -> tuple[Group, ...]:
    """The groups of some blocks, whose copies are of variables with several or not ``(copies,)``.

    A coordinate is coupled where it is so in any process.
    """
    groups: list[Group] = []
    for group, first, last in ranges:
        start = groups[-1].stop if groups else 0
        kind = group.type if last - first == group.blocks else _data(group.type, first, last)
        groups.append(replace(group, type=kind, blocks=last - first, start=start, known=None))
    own = torch.cat([g.rows(several[None])[0].any(1) for g in groups]).long()
    coupled = torch.split(processes.greatest(own).double(), [g.dim for g in groups])
    return tuple(replace(g, coupled=mine) for g, mine in zip(groups, coupled, strict=True))


def _coupling(index: Tensor, counts: Tensor, exchange: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Attributes of :class:`SharedCoupling`.

    Parameters
    ----------
    index : Tensor
        ``(own copies,)`` int64: which of the variables held here each is of.
    counts : Tensor
        ``(v,)`` int64: numbers of copies of these, in all processes.
    exchange : tuple of Tensor
        ``(v,)`` bool and int64: which of them have copies in several processes, and where among all such
        variables.
    """
    between, place = exchange
    several = (counts > 1).nonzero()[:, 0]
    place_of = -1 - torch.arange(len(counts), dtype=torch.int32)
    place_of[several] = torch.arange(len(several), dtype=torch.int32)
    sent = between[several].nonzero()[:, 0]
    return {
        "variables": len(counts),
        "index": index[None],
        "order": None,
        "ends": None,
        "maps": {},
        "target": place_of[index],
        "several": several,
        "sent": sent,
        "at_exchange": place[several[sent]],
    }
