"""Parts of a decomposition, one a process: every process gets an equal part of the blocks of each group.

Blocks are cut in their order, so that a process has one range of each group, and with it an equal part of the
copies.  A variable is held by every process that has a copy of it, and counted by the first one of these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.decomposition.incidence import Coupling
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.distributed.processes import Processes
from blocklp.distributed.shared_coupling import SharedCoupling
from blocklp.distributed.totals import SharedTotals
from blocklp.kernels.backend import Backend


@dataclass(frozen=True)
class Part:
    """The part of an instance that a process holds.

    Attributes
    ----------
    problem : Decomposition
        Its blocks and their variables, which has sums over all processes.
    groups : tuple of Group
        The groups of the whole instance.
    rank, world : int
        Number of the process, and of processes.
    variables : Tensor
        ``(v,)`` int64: its variables, ascending.
    owned : Tensor
        ``(v,)`` bool: those that it counts.
    width : int
        Number of variables of the whole instance.
    """

    problem: Decomposition
    groups: tuple[Group, ...]
    rank: int
    world: int
    variables: Tensor
    owned: Tensor
    width: int

    def cut(self, copies: Tensor) -> Tensor:
        """The copies of the part: ``(batch, copies)`` of the whole instance to ``(batch, own copies)``."""
        return _cut(self.groups, self.rank, self.world, copies)

    def placed(self, own: Tensor) -> Tensor:
        """Copies of the part in their places among those of the whole instance, zero elsewhere."""
        found = own.new_zeros(len(own), self.groups[-1].stop)
        for group, part in zip(self.groups, self.problem.groups, strict=True):
            first, last = _range(group, self.rank, self.world)
            group.rows(found)[..., first:last] = part.rows(own)
        return found


def _range(group: Group, rank: int, world: int) -> tuple[int, int]:
    """First block of a process, and one past the last."""
    return group.blocks * rank // world, group.blocks * (rank + 1) // world


def _cut(groups: tuple[Group, ...], rank: int, world: int, copies: Tensor) -> Tensor:
    """The copies of a process's blocks, of all copies ``(batch, copies)``."""
    ranges = ((group, *_range(group, rank, world)) for group in groups)
    return torch.cat([g.rows(copies)[..., first:last].flatten(1) for g, first, last in ranges], 1)


def _data(kind: BlockType, first: int, last: int) -> BlockType:
    """The type with the block data of some blocks, which it does not share with that of all blocks."""
    several = {name: own for name, own in kind.tensors().items() if own.shape[1] > 1}
    return kind.with_data(**{name: own[:, first:last].clone() for name, own in several.items()})


def sharded(problem: Decomposition, processes: Processes, fixed: bool, backend: Backend) -> Part:
    """Cut out the part of this process.

    Parameters
    ----------
    problem : Decomposition
        One instance without rows or structured scopes, in float64 on the CPU.
    processes : Processes
        All of them.
    fixed : bool
        Whether copies are added as integers.
    backend : Backend
        What runs the operations.

    Returns
    -------
    Part
        That of this process.
    """
    rank, world, index = processes.rank, processes.world, problem.coupling.index[0]
    width = problem.cost.shape[1]
    owner = torch.full((width,), -1)
    final = owner.clone()  # the last process that holds each variable
    for other in range(world):
        final[_cut(problem.groups, other, world, index[None])[0]] = other
    for other in reversed(range(world)):
        owner[_cut(problem.groups, other, world, index[None])[0]] = other
    own = _cut(problem.groups, rank, world, index[None])[0]
    held = torch.zeros(width, dtype=torch.bool)
    held[own] = True
    variables = held.nonzero()[:, 0]
    number = torch.full((width,), -1)
    number[variables] = torch.arange(len(variables))
    groups, start = [], 0
    for group in problem.groups:
        first, last = _range(group, rank, world)
        kind = _data(group.type, first, last)
        groups.append(replace(group, type=kind, blocks=last - first, start=start))
        start = groups[-1].stop
    owned = owner[variables] == rank
    blocks = sum(group.blocks for group in problem.groups)
    totals = SharedTotals(
        processes, None if bool(owned.all()) else owned[None], blocks, width, problem.copies, backend
    )

    def some(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[:, variables]

    coupling = _coupling(problem, processes, number[own], (variables, owner != final), fixed, backend)
    part = Decomposition(
        problem.cost[:, variables],
        problem.lower[:, variables],
        problem.upper[:, variables],
        problem.offset.clone(),
        tuple(groups),
        coupling,
        problem.counts[:, variables],
        some(problem.grid),
        beyond=some(problem.beyond),
        totals=totals,
    )
    return Part(part, problem.groups, rank, world, variables, owned, width)


def _coupling(
    problem: Decomposition,
    processes: Processes,
    index: Tensor,
    of: tuple[Tensor, Tensor],
    fixed: bool,
    backend: Backend,
) -> Coupling:
    """The maps of this process's copies.

    Parameters
    ----------
    problem : Decomposition
        The whole instance.
    processes, fixed, backend
        As in :func:`sharded`.
    index : Tensor
        ``(own copies,)`` int64: which of the variables held here each is of.
    of : tuple of Tensor
        ``(v,)`` int64: the variables held here.  ``(variables,)`` bool: which of all variables have copies in
        several processes.
    """
    variables, between = of
    counts = problem.counts[0, variables]
    single = counts[index] <= 1
    several = (counts > 1).nonzero()[:, 0]
    slot = torch.zeros(len(variables), dtype=torch.long)
    slot[several] = torch.arange(len(several))
    copies = (~single).nonzero()[:, 0]
    place = between.long().cumsum(0) - 1  # among all that are exchanged
    sent = between[variables[several]].nonzero()[:, 0]
    alone = single.nonzero()[:, 0]
    return SharedCoupling(
        variables=len(variables),
        index=index[None],
        order=None,
        ends=None,
        maps={},
        processes=processes,
        fixed=fixed,
        alone=index[alone],
        alone_copies=alone,
        several=several,
        several_copies=copies,
        slots=slot[index[copies]],
        sent=sent,
        at_exchange=place[variables[several[sent]]],
        exchanged=int(between.sum()),
        most_copies=int(problem.counts.max()),
        backend=backend,
    )
