"""Which process gets which blocks of an instance that all of them state whole.

Blocks are cut in the order in which they are stated, or in one that follows connectivity, into parts of equal
work.  Work is that of copies and of entries of rows beside the blocks.  In the second order neighbours come
close to each other: variables get places by the reverse Cuthill-McKee algorithm (Cuthill and McKee 1969) on
the graph of blocks and the variables that they share, and blocks are sorted by the places of their first and
last variable.  It is taken where parts then share far fewer variables, the numbers of which are what a pass
sends.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition, Group

FEW = 0.1
"""Part of the variables of several copies: where parts in the order as stated share less, it stays."""

FEWER = 0.8
"""So many of the variables that these parts share others may share at most, to be taken."""

LARGEST = 2**30
"""Copies up to which scipy numbers the entries of the graph."""


def owners(problem: Decomposition, world: int) -> list[Tensor]:
    """Deal blocks out to processes.

    Parameters
    ----------
    problem : Decomposition
        One instance without structured scopes, on the CPU.
    world : int
        Number of processes.

    Returns
    -------
    list of Tensor
        One a group, ``(blocks,)`` int64: the process of each block.
    """
    work = _work(problem)
    stated = _in_order(work, world)
    index, several = problem.coupling.index[0], problem.counts[0] > 1
    few = _shared(problem, stated) <= FEW * int(several.sum())
    if few or len(index) > LARGEST:
        return stated
    connected = _connected(problem, work, several, world)
    return connected if _shared(problem, connected) <= FEWER * _shared(problem, stated) else stated


def _work(problem: Decomposition) -> list[Tensor]:
    """Work of the blocks of each group, ``(blocks,)`` float64."""
    entries = None
    if problem.rows is not None:
        entries = torch.bincount(problem.rows.column, minlength=problem.cost.shape[1])
    found = []
    for group in problem.groups:
        work = torch.full((group.blocks,), float(group.dim), dtype=torch.float64)
        if entries is not None:
            work += entries[group.rows(problem.coupling.index)[0]].sum(0)
        found.append(work)
    return found


def _in_order(work: list[Tensor], world: int) -> list[Tensor]:
    """Parts of each group in the order of its blocks.

    What rounding to whole blocks takes from a process in one group it gets in the next.
    """
    short, found = torch.zeros(world - 1, dtype=torch.float64), []
    parts = torch.arange(1, world, dtype=torch.float64) / world
    for own in work:
        done = torch.nn.functional.pad(own.cumsum(0), (1, 0))
        wanted = done[-1] * parts + short
        ends = torch.searchsorted((done[:-1] + done[1:]) / 2, wanted.cummax(0).values)
        short = wanted - done[ends]
        found.append(torch.searchsorted(ends, torch.arange(len(own)), right=True))
    return found


def _connected(problem: Decomposition, work: list[Tensor], several: Tensor, world: int) -> list[Tensor]:
    """Parts of all blocks in the order of the places of variables that are in a mask ``(variables,)``."""
    index, place = problem.coupling.index[0], _places(problem, several)
    begin = torch.where(several, place, len(place))[index][None]
    first = torch.cat([g.rows(begin)[0].amin(0) for g in problem.groups])
    last = torch.cat([g.rows(place[index][None])[0].amax(0) for g in problem.groups])
    order = torch.from_numpy(np.lexsort((last.numpy(), first.numpy())))
    sizes = torch.cat(work)[order]
    done = sizes.cumsum(0)
    found = torch.empty_like(order)
    found[order] = ((done - sizes / 2) / done[-1] * world).long().clamp(max=world - 1)
    return list(torch.split(found, [len(own) for own in work]))


def _places(problem: Decomposition, several: Tensor) -> Tensor:
    """Places of the variables in a mask ``(variables,)`` along the graph, and -1 for all others: int64."""
    from scipy.sparse import coo_array  # importing it takes as long as solving a small model
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    index, count = problem.coupling.index[0], len(several)
    block = torch.cat([torch.arange(g.blocks).repeat(g.dim) + b for g, b in _first_blocks(problem)])
    inside = several[index]
    row, column = (block[inside] + count).numpy(), index[inside].numpy()
    size = count + int(sum(g.blocks for g in problem.groups))
    entries = np.ones(2 * len(row), np.int8), (np.append(row, column), np.append(column, row))
    order = reverse_cuthill_mckee(coo_array(entries, shape=(size, size)).tocsr(), symmetric_mode=True)
    place = torch.empty(size, dtype=torch.long)
    place[torch.from_numpy(order.astype(np.int64, order="C"))] = torch.arange(size)
    return torch.where(several, place[:count], -1)


def _first_blocks(problem: Decomposition) -> list[tuple[Group, int]]:
    """The groups, and how many blocks those before each have."""
    firsts = accumulate((g.blocks for g in problem.groups), initial=0)
    return list(zip(problem.groups, firsts, strict=False))


def _shared(problem: Decomposition, owner: list[Tensor]) -> int:
    """How many variables have copies in several parts."""
    index, count = problem.coupling.index[0], problem.cost.shape[1]
    own = torch.cat([part.repeat(g.dim) for g, part in zip(problem.groups, owner, strict=True)])
    nobody = torch.zeros(count, dtype=torch.long)
    least = nobody.scatter_reduce(0, index, own, "amin", include_self=False)
    return int((least != nobody.scatter_reduce(0, index, own, "amax", include_self=False)).sum())
