r"""The ordered filter by divide and conquer (thesis, 2.1.7 and A.1.5): the exact order of all scores, without levels.

.. math:: g_{a:i} = \sum_b k(f_a, f_b) \, \mathrm{sign}(y_{a:i} - y_{b:i}) \, v_{b:i}

The points are split into those of lower and of higher scores.  Between the halves the order is known, and one filter of each half's
values gives what it counts for the other; within the halves it is the same problem again.

The thesis builds a lattice for every half anew.  That lattice lacks vertices through which the whole one blurs, so its kernel is
another one; here every half keeps the vertices on the paths between its points, and all filters are blocks of one kernel matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.errors import ModelError, ShapeError
from blocklp.oracles.permutohedral import Lattice

LEAF = 256
"""Points that are not divided further: their block of the matrix is formed."""


def divide_and_conquer(lattice: Lattice, scores: Tensor, values: Tensor | None = None) -> Tensor:
    """Points below less points above, for every label: the exact :func:`~blocklp.oracles.ordered.ordered_filter`.

    Parameters
    ----------
    lattice : Lattice
        The kernel.
    scores : Tensor
        ``(points, labels)`` floating point; ties count nothing.
    values : Tensor, optional
        ``(points, labels)``; 1 by default.

    Returns
    -------
    Tensor
        ``(points, labels)``.

    Raises
    ------
    ShapeError, ModelError
        If scores or values do not fit, or the lattice is not symmetric.
    """
    if scores.dim() != 2 or scores.shape[0] != lattice.points or (values is not None and values.shape != scores.shape):
        raise ShapeError(f"scores have shape {tuple(scores.shape)}; the lattice has {lattice.points} points, give (points, labels)")
    if not lattice.symmetric:
        raise ModelError("an ordered filter needs a symmetric kernel; build the lattice with symmetric=True")
    values = torch.ones_like(scores) if values is None else values
    images, first = [], 0
    for part in lattice.images:
        here = slice(first, first + part.points)
        ranks = [score.unique(return_inverse=True)[1] for score in scores[here].T]
        images.append(torch.stack([_within(part, rank, value) for rank, value in zip(ranks, values[here].T, strict=True)], 1))
        first += part.points
    return torch.cat(images)


def _within(lattice: Lattice, rank: Tensor, value: Tensor) -> Tensor:
    """Points of lower rank less points of higher rank: ``(points,)``."""
    lowest, highest = int(rank.min()), int(rank.max())
    if lowest == highest:
        return torch.zeros_like(value)
    if len(rank) <= LEAF:
        return (lattice.filter(value.diag()) * (rank[:, None] - rank).sign()).sum(1)
    middle = rank.median()
    upper = rank > middle if middle < highest else rank == highest
    from_lower, from_upper = lattice.filter(torch.stack([value * ~upper, value * upper], 1)).T
    result = torch.where(upper, from_lower, -from_upper)
    for half in (~upper, upper):
        points = half.nonzero()[:, 0]
        result[points] += _within(restrict(lattice, points), rank[points], value[points])
    return result


def restrict(lattice: Lattice, points: Tensor) -> Lattice:
    """The lattice of some points ``(count,)`` int64: the same kernel between them, with no more vertices than that needs.

    Those are the vertices on the paths of the blur from one of the points to another.  Points ascend.
    """
    vertices = lattice.vertices[points]
    here = torch.zeros(lattice.size + 1, dtype=torch.bool, device=lattice.device)  # the last stands for neighbours that do not exist
    here[vertices] = True
    # Where a blur along the first k axes leads to, and from where one along the others leads back.
    ahead, back = [here], [here]
    for axis in range(len(lattice.neighbours)):
        ahead.append(_step(ahead[-1], lattice.neighbours[axis]))
        back.append(_step(back[-1], lattice.neighbours[-1 - axis]))
    kept = torch.stack([a & b for a, b in zip(ahead, reversed(back), strict=True)]).any(0)[:-1].nonzero()[:, 0]
    number = torch.full((lattice.size + 1,), len(kept), device=lattice.device)
    number[kept] = torch.arange(len(kept), device=lattice.device)
    sizes: list[int] = []
    if lattice.sizes:
        image = torch.arange(len(lattice.sizes)).repeat_interleave(torch.tensor(lattice.sizes)).to(points.device)
        sizes = [n for n in torch.bincount(image[points]).tolist() if n]
    neighbours = number[lattice.neighbours[:, :, kept]]
    part = Lattice(lattice.weights[points], number[vertices], neighbours, tuple(sizes), lattice.symmetric)
    if len(sizes) > 1:  # an image may begin or end with vertices that none of its points touches
        images = [restrict(part, own) for own in torch.split(torch.arange(len(points), device=points.device), sizes)]
        object.__setattr__(part, "images", images)
    return part


def _step(marked: Tensor, neighbours: Tensor) -> Tensor:
    """The marked vertices and their neighbours along one axis: ``(size + 1,)``."""
    grown = marked.clone()
    grown[:-1] |= marked[neighbours[0]] | marked[neighbours[1]]
    return grown
