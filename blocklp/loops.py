"""Which compiled loops of the CPU a problem can use, and whether they pay.

A block type names its loops (:meth:`BlockType.loops`).  Passes give the bits of the tensor operations that they stand for, so that
the choice may depend on the batch and on what ran before, and the iterates of an instance do not.  Bounds of checks are summed in
another order; improvements that this could explain do not count (:data:`blocklp.checks.NOTICED`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from blocklp import compiled
from blocklp.block import Rows, pick
from blocklp.bounds import NOISE, with_offset
from blocklp.box import Box
from blocklp.compiled import TURNS
from blocklp.decomposition import Decomposition, Group

MODULE = "blocklp.consensus_kernels"
PER_COPY, LEAST = 1 / 300_000, 10_000
"""Seconds that a hundred passes by tensor operations take for each copy, and for how many copies a smaller problem counts."""

_NO_TURNS = torch.zeros(0, dtype=torch.long)
_NO_TOTALS = torch.zeros(0, 8, dtype=torch.float64)
_NO_SUMS = {kind: torch.zeros(0, 4, 0, dtype=kind) for kind in (torch.float32, torch.float64)}


@dataclass(frozen=True)
class Loops:
    """Compiled loops of a problem.

    Attributes
    ----------
    consensus : module
        :mod:`blocklp.consensus_kernels`.
    passes : tuple
        A pass over each group's blocks, None where tensor operations do it.
    segments : numpy.ndarray
        ``(k, 2)``: :attr:`Decomposition.segments`.
    used : int
        One past the last variable that the segments hold a copy of; without padding, where only one group shares.
    modules : tuple
        Those that types name.
    alone : tuple or None
        Number of the one group that shares variables, all others being nothing but bounds, and its loops by their names
        (:attr:`Only.find`), if it has some.
    only : Only or None
        Loops over that group, for the instances of :meth:`over`.
    """

    consensus: ModuleType
    passes: tuple[Callable[..., None] | None, ...]
    segments: np.ndarray
    used: int
    modules: tuple[ModuleType, ...]
    alone: tuple[int, Callable[[str], Callable[..., None]]] | None
    only: Only | None = None

    def over(self, problem: Decomposition) -> Loops:
        """Return the loops for some instances, with what they need to know of them."""
        if self.alone is None:
            return self
        only, used = Only.over(problem, *self.alone)
        return replace(self, only=only, used=used)

    def select(self, rows: Rows) -> Loops:
        """Return the loops over some instances."""
        return self if self.only is None else replace(self, only=self.only.select(rows))

    def park(self, live: Tensor) -> Loops:
        """Return loops that leave all instances but those at some positions ``(k,)`` as they are."""
        assert self.only is not None
        return replace(self, only=replace(self.only, live=live))


@dataclass(frozen=True)
class Only:
    """The only group that shares variables, all others being nothing but bounds, and loops over whole instances.

    Attributes
    ----------
    group : int
        Its number.
    find : callable
        A loop by its name: ``passes``, ``bounds``, ``completed`` and ``certified`` for whole instances, ``divided`` for the passes
        of a single large one, ``restart``, ``products``.
    room : Tensor or None
        ``(parts, 4, used)`` for the sums of a large instance: as many as its blocks outweigh, whatever the number of threads.
    filled : Tensor
        :attr:`Group.filled`.
    live : Tensor
        ``(k,)`` int64: the instances at work; those that are done stay where they are, untouched, which spares copying the others.
    met : Tensor
        ``(batch or 1, variables)`` bool: variables that blocks of the group share.
    private : Tensor
        ``(batch or 1, variables)`` bool: variables in blocks of other groups.
    narrow : Tensor
        ``(batch,)`` bool: whether some variable of the group that is not shared has tighter bounds than 0 and 1.
    ends : int
        One past the last variable that is met or private.
    rest, largest, size : Tensor
        ``(batch,)``: value of all other groups and the constant less their rounding, largest magnitude of a
        variable of the group, sum of the sizes of the costs.
    """

    group: int
    find: Callable[[str], Callable[..., None]]
    room: Tensor | None
    filled: Tensor
    live: Tensor
    met: Tensor
    private: Tensor
    narrow: Tensor
    ends: int
    rest: Tensor
    largest: Tensor
    size: Tensor

    def dealt(self, kind: torch.dtype) -> tuple[int, Tensor, int, Tensor, Tensor]:
        """Units of work, turns, parts of an instance; where these are units, their sums (parts, 4, used) and totals (parts, 8)."""
        parts = 1 if self.room is None else len(self.room)
        if self.room is None or len(self.rest) > 1:
            return len(self.live), _NO_TURNS, parts, _NO_SUMS[kind], _NO_TOTALS
        sums = self.room.flatten().view(kind)[: self.room.numel()].view(self.room.shape)
        return parts, torch.zeros(TURNS, dtype=torch.long), parts, sums, self.rest.new_empty(parts, 8)

    def select(self, rows: Rows) -> Only:
        """Return the loops over some instances, all of them at work."""
        rest = pick(self.rest, rows)
        filled, met, private = (pick(v, rows) if len(v) > 1 else v for v in (self.filled, self.met, self.private))
        live, (narrow, largest, size) = torch.arange(len(rest)), (pick(v, rows) for v in (self.narrow, self.largest, self.size))
        return replace(self, live=live, filled=filled, met=met, private=private, narrow=narrow, rest=rest, largest=largest, size=size)

    @classmethod
    def over(cls, problem: Decomposition, number: int, find: Callable[[str], Callable[..., None]]) -> tuple[Only, int]:
        """What the loops need to know of a problem, and one past the last variable that the group shares."""
        group, index, rest = problem.groups[number], problem.coupling.index, torch.zeros_like(problem.offset)
        met, private = problem.met, torch.zeros_like(problem.met)
        tight, narrow = (problem.lower > 0) | (problem.upper < 1), torch.zeros(1, dtype=torch.bool)
        for other in problem.groups:
            # Blocks that only pad have a variable of their own.
            real = torch.ones(1, 1, dtype=torch.bool) if other.alive is None else other.alive > 0
            for (first, last), shared in zip(other.spans, other.curved.tolist(), strict=True):
                places = index[:, first:last]
                if other is not group:
                    private.scatter_(1, places, real.expand(places.shape))
                elif not shared:
                    rows = max(len(tight), len(places))
                    narrow = narrow | (tight.expand(rows, -1).gather(1, places.expand(rows, -1)) & real).any(1)
            if other is not group:
                own = problem.coupling.spread_part(problem.cost, other.start, other.stop)
                extent = problem.coupling.spread_part(problem.extent.expand_as(problem.cost), other.start, other.stop)
                doubt = NOISE * (own.abs() * extent).sum(1)
                rest = rest + (other.block_values(other.blockwise(own)).sum(-1) - doubt)
        largest = problem.extent.masked_fill(private & ~met, 0.0).amax(1)
        columns, used = private.any(0).nonzero(), problem.used
        ends = max(used, int(columns[-1]) + 1 if len(columns) else 0)
        room = problem.cost.new_empty(problem.parts, 4, used) if problem.parts > 1 else None
        tables = (torch.arange(problem.batch), met, private, narrow.expand(problem.batch), ends, with_offset(rest, problem.offset))
        return cls(number, find, room, group.filled, *tables, largest.expand(problem.batch), problem.cost.abs().sum(1)), used


def load(problem: Decomposition, kind: torch.dtype, whole: bool = True) -> Loops | None:
    """The loops, where some group has them and enough was solved in a precision to pay for them; :meth:`Loops.over` completes them.

    Those over whole instances, if asked for, show the means of points, but not the points themselves.
    """
    if problem.cost.device.type != "cpu" or problem.coupling.maps or problem.rows is not None:
        return None
    named = [group.type.loops(group.curved) for group in problem.groups]
    if not any(named):
        return None
    modules = {name.partition(":")[0] for name in named if name}
    for module in modules:
        compiled.spend(module, kind, PER_COPY * max(LEAST, problem.batch * problem.copies))
    found = tuple(source for module in modules if (source := compiled.earned(module, kind)) is not None)
    consensus = compiled.wanted(MODULE) if len(found) == len(modules) else None
    if consensus is None:
        return None
    passes: list[Callable[..., None] | None] = []
    sharing: list[int | None] = []
    for n, (group, name) in enumerate(zip(problem.groups, named, strict=True)):
        find = _finder(name)
        passes.append(None if find is None else find("pass"))
        if group.shares:
            sharing.append(None if find is None else n)
        elif not _bounds_only(problem, group):
            sharing.append(None)
    segments, alone, used = np.array(problem.segments).reshape(-1, 2), None, 0
    if whole and len(sharing) == 1 and (number := sharing[0]) is not None and (find := _finder(named[number])) is not None:
        alone = number, find
    else:
        used = max((int(problem.coupling.index[:, first:last].max()) + 1 for first, last in problem.segments), default=0)
    return Loops(consensus, tuple(passes), segments, used, found, alone)


def _bounds_only(problem: Decomposition, group: Group) -> bool:
    """Whether a group is nothing but the bounds of its variables."""
    if type(group.type) is not Box:
        return False
    alive = torch.ones(1, dtype=torch.bool) if group.alive is None else group.alive[:, None] > 0
    sides = zip((group.type.lower, group.type.upper), (problem.lower, problem.upper), strict=True)
    same = [a.transpose(1, 2) == group.rows(problem.spread(b.expand(problem.batch, -1))) for a, b in sides]
    return all(bool((s | ~alive).all()) for s in same)


def _finder(name: str | None) -> Callable[[str], Callable[..., None]] | None:
    if name is None:
        return None
    source, _, which = name.partition(":")
    module = compiled.loops(source)
    return lambda what: getattr(module, f"{which}_{what}")
