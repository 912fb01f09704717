"""Parts of a decomposition, one a process: blocks of its own, and the variables that these hold.

The blocks of a model that every process states whole are dealt out
(:mod:`blocklp.distributed.partition`).  Of a model that no process states whole each has the blocks that it
stated.  In both cases processes tell each other which variables they hold, and how many copies of each: a
variable is counted by the first process that holds it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition, Group
from blocklp.distributed.partition import owners
from blocklp.distributed.processes import PIECE, Processes
from blocklp.distributed.shared_coupling import SharedCoupling
from blocklp.distributed.shared_rows import SharedRows
from blocklp.distributed.totals import SharedTotals
from blocklp.kernels.backend import Backend
from blocklp.kernels.compiled import TILE

OVERLAPPED = 64
"""Tiles of blocks of one process alone from which on it begins to send before it is at them: with fewer, a
second message takes longer than what waiting it spares."""

Chosen = tuple[tuple[Group, Tensor | slice], ...]
"""Groups, and which of their blocks."""


@dataclass(frozen=True)
class InstancePart:
    """The part of an instance that a process holds.

    Attributes
    ----------
    problem : Decomposition
        Its blocks and their variables, which has sums over all processes.
    chosen : tuple of (Group, Tensor or slice)
        Groups as they are stated in this process, and which of their blocks are of the part: ``(blocks,)``
        int64, ascending, or all.
    common : Tensor
        ``(width,)`` bool: which of the variables that are stated here all processes state.
    variables : Tensor
        ``(v,)`` int64: those that its blocks hold, ascending.
    owned : Tensor
        ``(v,)`` bool: those that it counts.
    """

    problem: Decomposition
    chosen: Chosen
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
        return self.chosen[-1][0].stop

    def cut(self, copies: Tensor) -> Tensor:
        """The copies of the part, of those that are stated here: ``(batch, copies) -> (batch, own)``.

        Prices of rows, which come last, are those of all parts.
        """
        return torch.cat([_cut(self.chosen, copies), copies[:, self.in_blocks :]], 1)

    def placed(self, own: Tensor) -> Tensor:
        """Copies of the part in their places among those that are stated here, zero elsewhere."""
        prices = own[:, self.problem.in_blocks :]
        found = torch.cat([own.new_zeros(len(own), self.in_blocks), prices], 1)
        for (group, which), part in zip(self.chosen, self.problem.groups, strict=True):
            group.rows(found)[..., which] = part.rows(own)
        return found


def _cut(chosen: Chosen, copies: Tensor) -> Tensor:
    """Some blocks' copies, of all copies ``(batch, copies)``."""
    return torch.cat([group.rows(copies)[..., which].flatten(1) for group, which in chosen], 1)


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
        chosen = _dealt(problem, processes)
    else:
        chosen = tuple((group, slice(None)) for group in problem.groups)
    index = _cut(chosen, problem.coupling.index)[0]
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
    groups = groups_of(chosen, counts[index] > 1, processes)
    own = torch.tensor([sum(g.blocks for g in groups), int((~common).sum()), len(index)])
    blocks, private, copies = processes.sum(own).tolist()
    width, most = private + int(common.sum()), int(processes.greatest(counts.max()[None]))
    numbered = variables if columns is None else columns[variables]
    foreign = (~owned).nonzero()[:, 0]
    totals = SharedTotals(processes, foreign, blocks, width, copies, numbered, backend)
    counted = torch.zeros_like(common)
    counted[variables[owned]] = True
    coupling = _coupling(
        number[index], counts[variables], (between[variables], between.cumsum(0)[variables] - 1)
    )
    coupling |= {"exchanged": int(between.sum()), "most_copies": most}
    turns = _turns(groups, coupling) if fixed and world > 1 else None
    if turns is None or not processes.any(sum(len(rest) for _, rest in turns) >= OVERLAPPED):
        turns = None

    def some(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[:, variables]

    part = Decomposition(
        problem.cost[:, variables],
        problem.lower[:, variables],
        problem.upper[:, variables],
        problem.offset.clone(),
        groups,
        SharedCoupling(processes=processes, fixed=fixed, backend=backend, turns=turns, **coupling),
        counts[variables].to(problem.cost)[None],
        some(problem.grid),
        rows=SharedRows.of(problem, (number, counted), processes, fixed, backend),
        beyond=some(problem.beyond),
        totals=totals,
    )
    return InstancePart(part, chosen, common, variables, owned)


def _dealt(problem: Decomposition, processes: Processes) -> Chosen:
    """The blocks of this process; the first one deals them out, for libraries of others may be other ones."""
    if processes.world == 1:
        return tuple((group, slice(None)) for group in problem.groups)
    owner = processes.from_first(owners(problem, processes.world) if processes.rank == 0 else None)
    assert owner is not None
    mine = ((own == processes.rank).nonzero()[:, 0] for own in owner)
    return tuple(zip(problem.groups, mine, strict=True))


def groups_of(chosen: Chosen, several: Tensor, processes: Processes) -> tuple[Group, ...]:
    """Make groups of some blocks; a coordinate is coupled where it is so in any process.

    Parameters
    ----------
    chosen : tuple of (Group, Tensor or slice)
        Groups, and which of their blocks.
    several : Tensor
        ``(copies,)`` bool, block after block: whether the variable of a copy has others.
    processes : Processes
        All processes.
    """
    groups: list[Group] = []
    for group, which in chosen:
        start, kind, count = groups[-1].stop if groups else 0, group.type, group.blocks
        if isinstance(which, Tensor):
            kind, count = group.type.part(which), len(which)
        groups.append(replace(group, type=kind, blocks=count, start=start, known=None))
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


def _turns(groups: tuple[Group, ...], coupling: dict[str, Any]) -> tuple[tuple[Tensor, Tensor], ...]:
    """See :attr:`SharedCoupling.turns`.

    Parameters
    ----------
    groups : tuple of Group
        Those of the part.
    coupling : dict
        What :func:`_coupling` returns.
    """
    target, marks = coupling["target"], torch.zeros(len(coupling["several"]) + 1, dtype=torch.bool)
    marks[coupling["sent"]] = True
    found = []
    for group in groups:
        pieces, own = [torch.zeros(0, dtype=torch.bool)], group.rows(target[None])[0]
        for piece in torch.split(own, PIECE, 1):  # memory is short
            met = (marks[piece.clamp(min=0).long()] & (piece >= 0)).any(0)
            pieces.append(torch.nn.functional.pad(met, (0, -len(met) % TILE)).view(-1, TILE).any(1))
        met = torch.cat(pieces)
        found.append((met.nonzero()[:, 0], (~met).nonzero()[:, 0]))
    return tuple(found)
