"""Matchings of which every process holds the edges of its own sources (docs/distributed.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.errors import ModelError
from blocklp.language.shard import Shard
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.matching.instance import FloatArray, Matching, SourceBudget
from blocklp.problems.matching.readers import read_matching
from blocklp.problems.matching.solve import blocks_of_sources, stated
from blocklp.problems.matching.tables import MatchingTables, equal_ranges, write_tables


@dataclass(frozen=True)
class MatchingPart:
    """The edges of a range of sources.

    Attributes
    ----------
    matching : Matching
        These, sorted by source, and all destinations; sources are numbered from 0.
    first : int
        The number of its first source among all.
    """

    matching: Matching
    first: int


def part_of(matching: Matching, rank: int, world: int) -> MatchingPart:
    """Cut the edges of one of several ranges of sources out of a matching; ranges have about as many edges.

    Parameters
    ----------
    matching : Matching
        The whole.
    rank, world : int
        Number of the range, and of ranges.

    Raises
    ------
    ModelError, OptionError
        If there is no such range, or no edge in it.
    """
    shard, sources = Shard(rank, world), matching.sources
    starts = equal_ranges(np.bincount(matching.source, minlength=sources), 0, sources, world)
    first, stop = (int(starts[k]) for k in (rank, rank + 1))
    mine = np.flatnonzero((matching.source >= first) & (matching.source < stop))
    mine = mine[np.argsort(matching.source[mine], kind="stable")]
    edges = {name: getattr(matching, name)[mine] for name in ("destination", "value", "weight", "use", "upper")}
    ours = {name: getattr(matching, name)[first:stop] for name in ("limit", "least")}
    budgets = tuple(SourceBudget(b.use[mine], b.limit[first:stop]) for b in matching.budgets)
    return _checked(
        MatchingPart(replace(matching, source=matching.source[mine] - first, **edges, **ours, budgets=budgets), first), shard
    )


def read_matching_part(
    path: str | Path, rank: int, world: int, *, max_bytes: int = MAX_BYTES, time_limit: float | Deadline = math.inf
) -> MatchingPart:
    """Read the edges of one of several ranges of sources; ranges have about as many edges.

    Parameters
    ----------
    path : str or Path
        As for :func:`read_matching`.  Of a folder of Parquet or Arrow files no process holds more than its part; an
        ``.npz`` file is read whole, and cut.
    rank, world : int
        Number of the range, and of ranges.
    max_bytes, time_limit
        As for :func:`read_matching`; of a folder those of the part.

    Raises
    ------
    FormatError, BlocklpError, TimeLimitError
        As :func:`read_matching`; also if there is no such range, or no edge in it.
    """
    shard = Shard(rank, world)
    if not Path(path).is_dir():
        return part_of(read_matching(path, max_bytes=max_bytes, time_limit=time_limit), rank, world)
    tables = MatchingTables(path, max_bytes=max_bytes, time_limit=time_limit)
    first, stop = tables.starts(world)[rank : rank + 2].tolist()
    return _checked(MatchingPart(tables.read(first, stop), first), shard)


def _checked(part: MatchingPart, shard: Shard) -> MatchingPart:
    if not part.matching.edges:
        raise ModelError(f"process {shard.rank} of {shard.world} has no edges; take fewer processes")
    return part


def matching_shard(part: MatchingPart, group: Any = None) -> bl.Model | bl.Status:
    """State the part of a matching that this process holds; all processes call it, and tell each other the degrees of sources.

    Parameters
    ----------
    part : MatchingPart
        The edges of this process; ranges of sources are in the order of the processes.
    group : ProcessGroup, optional
        The processes; by default all of ``torch.distributed``.

    Returns
    -------
    Model or Status
        As :func:`matching_model`'s, with ``x`` of the edges of this process, to be solved by ``mesh=``. In all processes
        ``Status.INFEASIBLE`` where the edges of some source cannot carry the least that it takes.
    """
    shard = Shard(dist.get_rank(group), dist.get_world_size(group))
    served, blocks = part.matching.served, blocks_of_sources(part.matching)
    told: list[Any] = [None] * shard.world
    dist.all_gather_object(told, (served, list(blocks)), group=group)
    if not all(own for own, _ in told):
        return bl.Status.INFEASIBLE
    nothing = np.empty(0, dtype=np.int64)
    every = {kind: blocks.get(kind, nothing) for kind in sorted({kind for _, kinds in told for kind in kinds})}
    return stated(bl.Model.shard(shard.rank, shard.world), part.matching, every)


def write_shares(folder: str | Path, part: MatchingPart, x: FloatArray, price: FloatArray, rank: int = 0, world: int = 1) -> None:
    """Write shares and prices to files of Parquet in a folder: those of a process beside those of others.

    Parameters
    ----------
    folder : str or Path
        Where to. ``shares/RANK-of-WORLD.parquet`` has the columns ``source``, ``destination`` and ``x``, a row an edge; the
        first process writes ``prices.parquet``, with the column ``price``, a row a destination, and removes shares of other
        numbers of processes.
    part : MatchingPart
        The edges.
    x, price : ndarray
        ``(edges,)`` and ``(destinations,)``.
    rank, world : int
        Number of the process, and of processes.

    Raises
    ------
    MissingDependencyError
        If pyarrow is not installed.
    """
    own = part.matching
    columns = {"source": own.source + part.first, "destination": own.destination, "x": x}
    write_tables(folder, {f"shares/{rank}-of-{world}": columns} | ({} if rank else {"prices": {"price": price}}))
    for other in (Path(folder) / "shares").glob("*-of-*.parquet") if not rank else ():
        if not other.name.endswith(f"-of-{world}.parquet"):
            other.unlink()
