"""The ordered filter by the loops that numba compiles: tensors in, tensors out.

Functions of :mod:`blocklp.oracles.filters.ordered`, with their arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.oracles.filters import ordered_kernels as loops

if TYPE_CHECKING:
    from blocklp.oracles.filters.permutohedral import Lattice

STEP, STENCIL = 3e-9, 5e-6
"""Estimated seconds for an entry of the work on a label, and for a vertex and axis of the stencil."""
SORTING = 200
"""Entries that take as long as to sort a point's score."""
PIECE = 0.1
"""Seconds of work between two looks at a deadline."""


def ordered_filter(
    lattice: Lattice, scores: Tensor, values: Tensor, most: int, deadline: Deadline | None
) -> Tensor:
    """The ordered filter of the points of one image: ``(points, labels)``.

    Parameters
    ----------
    lattice : Lattice
        The kernel.
    scores, values : Tensor
        ``(points, labels)``.
    most : int
        Levels of a label; from the number of points on the exact order.
    deadline : Deadline or None
        When to give up.

    Raises
    ------
    TimeLimitError
        If the deadline would pass.
    """
    weights, vertices = lattice.weights.to(values), lattice.vertices.int()
    by_label = values.T.contiguous()
    out, threads = torch.empty_like(by_label), torch.get_num_threads()

    def sweep(labels: Tensor) -> None:
        if deadline is not None and "stencil" not in vars(lattice):
            deadline.check("finding the blur of every vertex", STENCIL * lattice.size * lattice.features)
        starts = lattice.stencil[0]
        rows = starts.diff().double()
        reached = float(rows[lattice.vertices[:: max(1, lattice.points // 1000)]].sum(1).mean())
        bits = _bits(scores)
        rest = (by_label, weights, vertices, *lattice.stencil, lattice.scale, threads, out)
        _in_groups(
            lambda part: loops.swept(threads, bits, part, *rest),
            labels,
            threads,
            STEP * lattice.points * (reached + SORTING),
            deadline,
        )

    if most >= lattice.points:
        sweep(torch.arange(scores.shape[1]))
        return out.T.contiguous()
    at, counts, light = assign_levels(scores, most)
    order = counts.argsort(descending=True)  # labels of one size to every thread
    # A point joins at about as many vertices as are among its neighbours; on levels the work is in proportion
    # to their number.
    quick = (light > 0) & (light * lattice.seen < lattice.points * (most / 4 + lattice.points / lattice.size))
    if bool(quick.any()):
        sweep(order[quick[order]])
    if not bool(quick.all()):
        rest = (by_label, weights, vertices, lattice.neighbours, lattice.scale, threads, out)
        corners = lattice.features + 1
        _in_groups(
            lambda part: loops.ordered(threads, at.T, counts, part, *rest),
            order[~quick[order]],
            threads,
            STEP * corners * (2 * lattice.points + lattice.size * float(counts.max())),
            deadline,
        )
    return out.T.contiguous()


def _in_groups(
    work: Callable[[Tensor], object],
    labels: Tensor,
    threads: int,
    seconds: float,
    deadline: Deadline | None,
) -> None:
    """Do the work of labels, about so many ``seconds`` each; with a deadline, of a few at a time.

    A group has as many labels as there are threads; after the first one its time is measured.
    """
    if deadline is None:
        work(labels)
        return
    while len(labels):
        rounds = max(1, int(PIECE / seconds)) if seconds > 0 else len(labels)
        part, labels = labels[: rounds * threads], labels[rounds * threads :]
        rounds = -(-len(part) // threads)
        deadline.check("ordering scores", seconds * rounds)
        began = time.perf_counter()
        work(part)
        seconds = (time.perf_counter() - began) / rounds


def assign_levels(scores: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions on levels, numbers of levels and of light points, as the definition has them."""
    at = torch.empty(scores.shape[::-1], dtype=torch.float32)
    counts, light = torch.empty(2, scores.shape[1], dtype=torch.int64)
    loops.levels(len(counts), _bits(scores), most, at, counts, light)
    return at.T, counts, light


def _bits(scores: Tensor) -> Tensor:
    """The bits of the scores as unsigned integers, label by label: ``(labels, points)``."""
    by_label = scores.T.to(torch.promote_types(scores.dtype, torch.float32)).contiguous()
    return by_label.view(torch.uint32 if by_label.dtype == torch.float32 else torch.uint64)
