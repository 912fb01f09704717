"""Which compiled loops of the CPU a problem can use, and whether they pay.

A block type names its loops (:meth:`BlockType.loops`).  Passes give the bits of the tensor operations that they stand for, so that
the choice may depend on the batch and on what ran before, and the iterates of an instance do not.  Bounds of checks are summed in
another order; improvements that this could explain do not count (:data:`blocklp.checks.NOTICED`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch

from blocklp import compiled
from blocklp.box import Box
from blocklp.decomposition import Decomposition, Group

MODULE = "blocklp.consensus_kernels"
LARGE, SMALL = 300_000, 2_000
"""Copies from which on loops pay: of all problems so far, as long as loops are not loaded (that takes half a second), and of one."""

_so_far = [0]


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
        ``(k, 2)``: first copies and one past the last of what enters the means; private copies of swept groups are left out.
    used : int
        One past the last variable that the segments hold a copy of.
    only : Only or None
        Loops over the one group that shares variables, if it is swept.
    """

    consensus: ModuleType
    passes: tuple[Callable[..., None] | None, ...]
    segments: np.ndarray
    used: int
    only: Only | None


@dataclass(frozen=True)
class Only:
    """The only group that shares variables, all others being nothing but bounds, and loops over whole instances."""

    group: int
    several: Callable[..., None]
    bounds: Callable[..., None]
    completed: Callable[..., None]


def load(problem: Decomposition) -> Loops | None:
    """The loops, where some group has them and the problem is large enough to pay for them."""
    size = problem.batch * problem.copies
    if problem.cost.device.type != "cpu" or problem.coupling.maps or size < SMALL:
        return None
    named = [group.type.loops(group.curved) for group in problem.groups]
    if not any(named):
        return None
    _so_far[0] += size
    consensus = compiled.wanted(MODULE) if MODULE in sys.modules or _so_far[0] >= LARGE else None
    if consensus is None:
        return None
    passes: list[Callable[..., None] | None] = []
    segments: list[tuple[int, int]] = []
    sharing: list[Only | None] = []
    for n, (group, name) in enumerate(zip(problem.groups, named, strict=True)):
        find = _finder(name)
        passes.append(None if find is None else find("pass"))
        if shares(group):
            segments += [s for s, shared in zip(group.spans, group.curved.tolist(), strict=True) if shared or find is None]
            sharing.append(None if find is None else Only(n, find("passes"), find("bounds"), find("completed")))
        elif not _bounds_only(problem, group):
            sharing.append(None)
    used = max((int(problem.coupling.index[:, first:last].max()) + 1 for first, last in segments), default=0)
    only = sharing[0] if len(sharing) == 1 else None
    return Loops(consensus, tuple(passes), np.array(segments).reshape(-1, 2), used, only)


def shares(group: Group) -> bool:
    """Whether blocks of a group have variables in common with others."""
    return bool(group.curved.any())


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
